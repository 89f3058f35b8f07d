"""A workflow whose documents are read by separate runs, on two workers that are killed and stopped repeatedly."""

from __future__ import annotations

import random
import signal
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from openagentic_sdk.events import ModelResponse, Result, SystemNotice, ToolResult
from openagentic_sdk.fleet import Fleet
from openagentic_sdk.fleet.record import OPEN
from openagentic_sdk.parts.workflows.inbox import deliver, read_inbox
from openagentic_sdk.sessions.seal import Seal
from tests.fleet.places import FleetTest, PostgresFleetTest, end, postgres_url
from tests.size import LARGE
from tests.waiting import until

from .documents import agents, notes

DOCUMENTS, KILLS = 500, 30


class ManySenders(FleetTest):
    def test_events_that_are_delivered_at_the_same_time_are_stored_once_each(self) -> None:
        def send(sender: int) -> list[bool]:
            return [deliver(self.store, "s", "news", [sender, n], event_id=f"{sender}.{n // 2}") for n in range(6)]

        with ThreadPoolExecutor(6) as pool:
            self.assertEqual(list(pool.map(send, range(6))), [[True, False] * 3] * 6)
        found = sorted(event.payload for event in read_inbox(self.store, "s", Seal()))
        self.assertEqual(found, [[sender, n] for sender in range(6) for n in (0, 2, 4)])


@unittest.skipUnless(postgres_url(), "needs OPENAGENTIC_TEST_POSTGRES_URL")
class ManySendersOnPostgres(ManySenders, PostgresFleetTest):
    pass


@unittest.skipUnless(LARGE, "kills and suspends workers for minutes: large size only")
@unittest.skipUnless(sys.platform == "linux", "needs signals and /proc")
class TwoWorkers(FleetTest):
    lease_s = 20.0  # no lease of a living worker expires on a busy machine; those of the others are ended by the test

    def test_each_document_is_read_once_and_noted_once_whatever_happens_to_the_workers(self) -> None:
        self.fleet = Fleet(self.store, agents())
        self.addCleanup(self.fleet.close)
        run_id = self.run_async(self.fleet.enqueue("notes", notes.prompt(DOCUMENTS), request_id="k", max_attempts=1000))
        rng, zombies = random.Random(7), []
        flags = ("--agents", "tests.workflows.documents:agents", "--slots", "4")
        with ExitStack() as stack:
            team = [stack.enter_context(self.worker(*flags)) for _ in range(2)]
            for number in range(KILLS):
                more = DOCUMENTS * (number + 1) // (KILLS + 1)
                until(lambda more=more: len(self.kept()) >= more, lambda more=more: self.shown(more))
                victim = team.pop(rng.randrange(2))
                if number % 2:
                    self.stop_at_will(victim)
                    zombies.append(victim)
                else:
                    end(victim, signal.SIGKILL)
                self.expire_all_of(victim)
                team.append(stack.enter_context(self.worker(*flags)))
            self.until_over(run_id)
            for zombie in zombies:
                zombie.send_signal(signal.SIGCONT)
                self.assertIn(end(zombie), (0, -signal.SIGTERM, 128 + signal.SIGTERM))
            for worker in team:
                end(worker)
        self.check(self.status(run_id).session)

    def shown(self, more: int) -> str:
        """What was waited for, with the runs that are not over."""
        rows = self.run_async(self.fleet.runs(states=OPEN, limit=DOCUMENTS))
        facts = [(row.id, row.agent, row.state, row.owner, row.lease_left_s, row.attempts, row.error) for row in rows]
        return f"{more} documents are stored, not {len(self.kept())}: {facts}"

    def kept(self) -> list[int]:
        return sorted(int(text) for place in Path(self.folder).glob("kept *") if (text := place.read_text()))

    def check(self, session: str) -> None:
        """Check that every document has one result, one note and one paid answer."""
        events = self.store.read_events(session)
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        # A notice of an event that arrived while the workflow ended may follow its end.
        end = next(event for event in reversed(events) if not isinstance(event, SystemNotice))
        assert isinstance(end, Result)
        self.assertEqual(end.structured_output, [f"{number}: A note." for number in range(DOCUMENTS)])
        self.assertEqual(self.kept(), list(range(DOCUMENTS)))
        ids = [event.tool_use_id for event in events if isinstance(event, ToolResult)]
        self.assertEqual(len(ids), len(set(ids)))
        rows = [row for row in self.run_async(self.fleet.runs(limit=DOCUMENTS + 9)) if row.agent == "reader"]
        self.assertEqual({row.state for row in rows}, {"ended"})
        self.assertEqual(len(rows), DOCUMENTS)
        answers = [e for row in rows for e in self.store.read_events(row.session) if isinstance(e, ModelResponse)]
        self.assertEqual(sum(answer.complete for answer in answers), DOCUMENTS)


@unittest.skipUnless(postgres_url(), "needs OPENAGENTIC_TEST_POSTGRES_URL")
class TwoWorkersOnPostgres(TwoWorkers, PostgresFleetTest):
    pass


if __name__ == "__main__":
    unittest.main()
