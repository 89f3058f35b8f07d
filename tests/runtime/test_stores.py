"""Which store a run writes to, and the notices about it."""

import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.stores.locate import open_store

from .support import assert_closed, events_of, options_for, result_of

NOTICE = "This store forgets everything when the lights go out."


class ForgetfulStore(MemorySessionStore):
    """A store that reports that it is not reliable."""

    def durability_notice(self):
        return NOTICE


class StoresTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_store_that_may_lose_events_is_noted_in_the_log_before_the_first_prompt(self):
        store = ForgetfulStore()
        events = await events_of("hi", options_for(["ok"], session_store=store))
        stored = assert_closed(self, store, result_of(events).session_id)
        self.assertEqual([event.type for event in stored[:3]], ["system.init", "system.notice", "user.message"])
        self.assertEqual((stored[1].code, stored[1].message), ("store.durability", NOTICE))

    async def test_a_store_that_keeps_its_promise_is_not_noted(self):
        events = await events_of("hi", options_for(["ok"]))
        self.assertNotIn("system.notice", [event.type for event in events])

    async def test_a_store_can_be_given_by_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in (f"sqlite:{folder}/runs.db", f"file:{folder}/files", str(Path(folder) / "more")):
                events = await events_of("hi", options_for(["ok"], session_store=name))
                store = open_store(name)
                self.addCleanup(store.close)
                assert_closed(self, store, result_of(events).session_id)


if __name__ == "__main__":
    unittest.main()
