"""The page of a record contains everything that a check needs, and checks itself in a browser."""

from __future__ import annotations

import unittest
from pathlib import Path

from openagentic_sdk.events import UserMessage
from openagentic_sdk.parts.record.bundle import bundle_of, read_bundle
from openagentic_sdk.parts.record.commit import leaves
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.parts.record.sign import sign_session
from openagentic_sdk.parts.record.signers import SshKey, Trust
from openagentic_sdk.parts.record.verify import verify_record
from openagentic_sdk.serialization import event_to_dict
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.viewer.page import build_record_page
from tests.browser import browser, needs_browser

from .support import HAS_SSH, RecordCase

HOSTILE = "</script><script>window.hacked=1</script> \u2028 \ud83d 1e-7"


class Page(RecordCase):
    def page(self, *signers: object) -> str:
        store = MemorySessionStore()
        self.filled(store, secret=HOSTILE)
        sign_session(store, "s", [self.key, *signers])  # type: ignore[list-item]
        erase(store, "s", [(8, "/output/stdout")], spread=False, seal=self.seal)
        store.append_event("s", UserMessage("not signed"))
        return build_record_page("s", store.iter_events("s"))

    def test_the_command_checks_the_page_like_the_log(self) -> None:
        path = self.folder / "s.html"
        path.write_text(self.page(), encoding="utf-8")
        [(name, events)] = read_bundle(path).items()
        report = verify_record(name, events, self.trust)
        self.assertEqual((report.ok, report.unsigned), (True, 3))
        page = path.read_text(encoding="utf-8")
        self.assertEqual(
            (page.count("</script>"), "default-src 'none'" in page, "<script>window" in page), (2, True, False)
        )

    def test_the_texts_of_events_that_nobody_signed_are_in_it_too(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        events = store.read_events("s")
        rows = bundle_of("s", events)["events"]
        self.assertEqual([row["event"] for row in rows], [*map(event_to_dict, events)])
        self.assertEqual([row["leaves"] for row in rows], [[["", text, None] for _, text in leaves(e)] for e in events])
        self.assertIn("leaves", build_record_page("s", iter(events)))

    @needs_browser
    @unittest.skipUnless(HAS_SSH, "needs ssh-keygen")
    def test_a_browser_reports_that_a_record_is_intact_or_what_was_changed(self) -> None:
        whole = self.page(SshKey(self.ssh_key("alice")))
        mark = '\\"command\\":\\"lookup 1'  # in the leaf's form, which the page shows
        self.assertEqual(whole.count(mark), 1)
        changed = whole.replace(mark, mark.replace("1", "9"))
        said = []
        with browser() as started:
            for number, text in enumerate((whole, changed)):
                path = Path(self.folder, f"{number}.html")
                path.write_text(text, encoding="utf-8")
                page = started.new_page()
                page.goto(path.as_uri())
                page.wait_for_function("document.getElementById('verdict').className !== ''", timeout=120_000)
                said.append((page.locator("#verdict").inner_text(), page.locator("#ranges").inner_text()))
                self.assertIsNone(page.evaluate("window.hacked ?? null"))
        self.assertIn("The record holds: somebody vouches for events 1 to 10.", said[0][0])
        self.assertIn("(valid: made with this key", said[0][1])
        self.assertIn("does not hold: 1 problems", said[1][0])
        self.assertIn("event 3: it is not what was signed", said[1][1])

    def test_a_file_that_is_not_a_record_is_reported_as_such(self) -> None:
        path = self.folder / "x"
        path.write_text("<html></html>")
        with self.assertRaisesRegex(ValueError, "neither an archive nor a page"):
            read_bundle(path)
        self.assertEqual(verify_record("s", [], Trust()).ok, False)
