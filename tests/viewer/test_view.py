"""The page: what stands in it, and what a real browser makes of it."""

import re
import shutil
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from openagentic_sdk.events import (
    AssistantMessage,
    ModelRequest,
    ModelResponse,
    PermissionDecision,
    Result,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.viewer.page import build_page, dump_for_script
from openagentic_sdk.viewer.serve import ViewServer

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u2028<!--'


def session(steps=3, text=HOSTILE):
    """A stored session; every text in it tries to become markup."""
    store = MemorySessionStore()
    session_id = store.create_session()
    events = [SystemInit(session_id, "/", "0", model="m"), UserMessage(text)]
    for step in range(1, steps + 1):
        call = f"c{step}"
        events += [
            ModelRequest(step, 1, "0" * 64, step),
            ModelResponse(step, 1, usage={"input_tokens": step * 10, "output_tokens": 2}, cost_usd=0.01, model="m"),
            AssistantMessage(text),
            ToolUse(call, "Read", {"file_path": text}),
            PermissionDecision(call, "Read", True, "default", "0" * 64, text),
            ToolStarted(call, "Read", "read", "0" * 64, call),
            ToolResult(call, {"content": text}),
        ]
    store.append_events(session_id, [*events, Result("done", session_id, "end")])
    return store, session_id


class PageTest(unittest.TestCase):
    def test_the_page_asks_nobody_for_anything_and_names_its_own_script(self):
        store, session_id = session()
        page = build_page(store.iter_events(session_id), title="a <b> title")
        self.assertIn("default-src 'none'", page)
        self.assertIn("connect-src 'none'", page)
        self.assertEqual(re.findall(r"(?:src|href)=", page.split("<script", 1)[0]), [])
        self.assertIn("<title>a &lt;b&gt; title</title>", page)

    def test_text_of_the_session_cannot_end_its_script_element(self):
        store, session_id = session()
        page = build_page(store.iter_events(session_id), title="t")
        self.assertEqual(page.count("</script>"), 2)
        self.assertNotIn("<img", page)
        self.assertNotIn("\u2028", page)
        self.assertEqual(dump_for_script({"a": "</"}), '{"a":"\\u003c/"}')


class ServeTest(unittest.TestCase):
    def setUp(self):
        self.store, self.session_id = session()
        self.server = ViewServer(self.store, self.session_id, title="t")
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.close)

    def read(self, address, **headers):
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
            return answer.read().decode()

    def test_it_serves_the_page_and_the_events_behind_a_position(self):
        self.assertIn('id="list"', self.read(self.server.address))
        self.assertIn('"seq": 24', self.read(f"{self.server.address}events?after=23").replace('":24', '": 24'))

    def test_other_names_and_paths_are_refused(self):
        for address, headers in ((self.server.address, {"Host": "evil.example"}), (self.server.address[:30] + "/", {})):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.read(address, **headers)
            refused.exception.close()
            self.assertIn(refused.exception.code, (403, 404))


@unittest.skipIf(
    sync_playwright is None or CHROMIUM is None, "the browser test needs playwright (dev extra) and Chromium"
)
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.playwright = sync_playwright().start()
        cls.addClassCleanup(cls.playwright.stop)
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        cls.addClassCleanup(cls.browser.close)

    def open(self, store, session_id, fragment="", **page_options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = Path(folder.name) / "session.html"
        file.write_text(build_page(store.iter_events(session_id), title="A session"), encoding="utf-8")
        page = self.browser.new_page(**page_options)
        self.addCleanup(page.close)
        self.complaints = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        self.requests = []
        page.goto(file.as_uri() + fragment)
        return page

    def test_it_loads_without_errors_or_requests_and_no_text_becomes_markup(self):
        for scheme in ("light", "dark"):
            page = self.open(*session(), color_scheme=scheme)
            page.wait_for_selector(".row")
            self.assertEqual(page.locator("#count").inner_text(), "24 of 24 events")
            page.locator(".row").nth(1).click()
            self.assertIn(HOSTILE[:20], page.locator("#detail").inner_text())
            self.assertIsNone(page.evaluate("window.hacked ?? null"))
            self.assertEqual(page.locator("img").count(), 0)
            self.assertEqual((self.complaints, self.requests[1:]), ([], []))

    def test_search_and_kinds_filter_the_list(self):
        page = self.open(*session(steps=2, text="plain words"))
        page.fill("#search", "read file_path")
        self.assertEqual(page.locator("#count").inner_text(), "2 of 17 events")
        page.fill("#search", "")
        page.get_by_role("button", name="tool").click()
        self.assertEqual(page.locator("#count").inner_text(), "11 of 17 events")

    def test_the_keyboard_moves_opens_and_searches(self):
        page = self.open(*session(steps=2, text="plain words"))
        page.focus("#list")
        for _ in range(2):
            page.keyboard.press("ArrowDown")
        self.assertIn("2 user.message", page.locator("#detail h2").inner_text())
        page.keyboard.press("End")
        self.assertIn("17 result", page.locator("#detail h2").inner_text())
        page.keyboard.press("/")
        self.assertEqual(page.evaluate("document.activeElement.id"), "search")

    def test_a_link_opens_its_event(self):
        page = self.open(*session(), fragment="#9")
        self.assertTrue(page.locator("#detail h2").inner_text().startswith("9 "))

    def test_ten_thousand_events_show_within_two_seconds(self):
        store, session_id = session(steps=1428, text="some text that is not short " * 4)
        page = self.open(store, session_id)
        took_ms = page.evaluate("performance.now()")
        page.wait_for_selector(".row")
        self.assertEqual(page.locator("#count").inner_text(), "9999 of 9999 events")
        self.assertLess(page.locator(".row").count(), 200, "only what can be seen is in the page")
        self.assertLess(took_ms, 2000 * 5, "a bound against hangs only: benchmarks/viewer.py measures")

    def test_a_served_page_shows_events_as_they_come(self):
        store, session_id = session()
        server = ViewServer(store, session_id, title="live")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.close)
        page = self.browser.new_page()
        self.addCleanup(page.close)
        page.goto(server.address)
        page.wait_for_selector(".row")
        store.append_event(session_id, UserMessage("one more"))
        deadline = time.monotonic() + 10
        while page.locator("#count").inner_text() != "25 of 25 events" and time.monotonic() < deadline:
            page.wait_for_timeout(50)
        self.assertEqual(page.locator("#count").inner_text(), "25 of 25 events")


if __name__ == "__main__":
    unittest.main()
