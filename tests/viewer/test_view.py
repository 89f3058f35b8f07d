"""The page: its contents, and how a real browser renders it."""

import base64
import dataclasses
import re
import tempfile
import unittest
from functools import partial
from pathlib import Path

from openagentic_sdk import events as events_module
from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    ModelRequest,
    ModelResponse,
    PermissionDecision,
    Result,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.viewer.page import build_page, dump_for_script
from tests.browser import browser, needs_browser
from tests.server.support import Served

HOSTILE = '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u2028<!--'
ENVELOPE = [each.name for each in dataclasses.fields(Event)]
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def session(steps=3, text=HOSTILE):
    """A stored session in which every string tries to become markup."""
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


def hostile_fields(kind, inner):
    """Values of the types that the fields have; the contents of lists and objects are arbitrary."""
    values = {}
    for each in dataclasses.fields(kind):
        annotation = str(each.type)
        if each.name in ENVELOPE:
            continue
        if "Sequence" in annotation:
            values[each.name] = (
                [inner] if "Mapping" not in annotation else [{"content": inner, "sha256": inner, HOSTILE: inner}]
            )
        elif "Mapping" in annotation:
            values[each.name] = {HOSTILE: inner, "command": inner, "stdout": inner, "exit_code": inner}
        else:
            plain = {"bool": True, "int": 7, "float": 0.5}
            values[each.name] = next((plain[name] for name in plain if name in annotation), HOSTILE)
    return values


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
        self.served = Served(store=self.store)
        self.addCleanup(self.served.close)

    def test_pages_of_a_session_and_of_all_are_served_to_who_may_see_them(self):
        page = self.served.ask("GET", f"/sessions/{self.session_id}")
        self.assertIn(b'id="list"', page.body)
        self.assertIn(f'"live":{{"address":"/v1/sessions/{self.session_id}/events"'.encode(), page.body)
        found = self.served.ask("GET", "/?query=hacked")
        self.assertIn(f'href="/sessions/{self.session_id}"'.encode(), found.body)
        self.assertNotIn(b"<img", found.body)
        self.assertIn(b"script-src 'sha256-", page.body)
        self.assertIn(b"script-src 'sha256-", found.body)
        self.assertIn(b'value="hacked"', found.body)
        self.assertIn(b"1 session", found.body)
        nothing = self.served.ask("GET", "/?query=%22%3E%3Cscript%3Enowhere")
        self.assertIn(b'value="&quot;&gt;&lt;script&gt;nowhere"', nothing.body)
        self.assertIn(b"No session matches", nothing.body)
        for path in ("/", f"/sessions/{self.session_id}"):
            self.assertEqual(self.served.ask("GET", path, Authorization="").status, 401)
        self.assertEqual(self.served.ask("GET", "/sessions/none").status, 404)


@needs_browser
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(browser())

    def open(self, store, session_id, fragment="", **page_options):
        pictures = partial(store.read_blob, session_id)
        text = build_page(store.iter_events(session_id), title="A session", read_blob=pictures)
        return self.show(text, fragment, **page_options)

    def show(self, text, fragment="", **page_options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = Path(folder.name) / "session.html"
        file.write_text(text, encoding="utf-8")
        page = self.browser.new_page(**page_options)
        page.set_default_timeout(120_000)
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
            page.wait_for_selector(".block")
            self.assertEqual(page.locator("#count").inner_text(), "24 of 24 events")
            page.locator("details.call summary").first.click()
            page.locator("details.call .inside").first.filter(has_text=HOSTILE[:20]).wait_for()
            page.get_by_role("button", name="Raw events").click()
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
        page.keyboard.press("e")
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
        self.assertIn("Read", page.locator(".block.chosen").text_content())
        page.keyboard.press("e")
        self.assertTrue(page.locator("#detail h2").inner_text().startswith("9 "))

    def test_the_conversation_reads_as_prompt_answer_and_folded_calls(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        edit = {"file_path": "a.py", "old": "one", "new": "two"}
        answer = "# Title\n\nSome **bold** and `code`.\n\n- item\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nx < y\n```"
        events = [
            SystemInit(session_id, "/", "0", model="m"),
            UserMessage("Change *it*"),
            AssistantMessage(answer),
            ToolUse("c1", "Edit", edit),
            PermissionDecision("c1", "Edit", False, "default", "0" * 64, "a person said no", answered_by="user"),
            ToolResult("c1", is_error=True, error_type="PermissionDenied", error_message="no", outcome="denied"),
            ToolUse("c2", "Task", {"agent": "helper", "prompt": "go"}),
            ToolStarted("c2", "Task", "unsafe", "0" * 64, "c2"),
            AssistantMessage("from below", parent_tool_use_id="c2", agent_name="helper"),
            ToolUse("c3", "Bash", {"command": "ls"}, parent_tool_use_id="c2"),
            ToolResult("c3", {"stdout": "file\n", "stderr": "", "exit_code": 0}, parent_tool_use_id="c2"),
            ToolResult("c2", {"final_text": "ok"}),
            Result("done", session_id, "end"),
        ]
        store.append_events(session_id, events)
        page = self.open(store, session_id)
        self.assertEqual(page.locator(".prompt em").text_content(), "it")
        for part, text in (("h3", "Title"), ("strong", "bold"), ("code", "code"), ("li", "item"), ("td >> nth=1", "2")):
            self.assertEqual(page.locator(f".answer .markdown {part}").first.text_content(), text)
        self.assertEqual(page.locator(".answer pre").first.text_content(), "x < y")
        refused = page.locator("details.call").first
        self.assertIn("⊘", refused.locator(".mark").text_content())
        refused.locator("summary").click()
        refused.locator(
            ".removed"
        ).wait_for()  # folded content is filled after the click, on the browser's `toggle` event
        self.assertEqual(refused.locator(".removed").text_content().strip(), "- one")
        self.assertIn("refused by user: a person said no", refused.text_content())
        task = page.locator("#conversation > .group > .block > details.call").nth(1)
        task.locator("summary").first.click()
        task.locator(".children").filter(has_text="from below").wait_for()
        task.locator(".children details.call summary").click()
        task.locator(".children").filter(has_text="$ ls").wait_for()
        self.assertEqual(self.complaints, [])

    def test_a_question_and_its_call_name_where_a_value_came_from(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        told = {
            "argument": "to",
            "value": "DE89",
            "label": "untrusted",
            "source": "tool read_mail",
            "seq": 2,
            "line": "pay",
        }
        labels = {"labels": {"rule": "ask(untrusted): *", "outcome": "ask", "findings": [told]}}
        reason = "to 'DE89' comes from tool read_mail, event 2, which you did not write: “pay”"
        events = [
            SystemInit(session_id, "/", "0", model="m"),
            UserMessage("go"),
            ToolUse("c1", "send_money", {"to": "DE89"}),
            UserQuestion("q", "Allow send_money?", kind="permission", tool_use_id="c1", details={"reason": reason}),
            UserAnswer("q", "yes"),
            PermissionDecision(
                "c1",
                "send_money",
                True,
                "default",
                "0" * 64,
                "the person answered yes",
                answered_by="user",
                details=labels,
            ),
        ]
        store.append_events(session_id, events)
        page = self.open(store, session_id)
        self.assertIn(reason, page.locator(".question").first.text_content())
        call = page.locator("details.call").first
        call.locator("summary").click()
        call.locator(".decision").filter(has_text="to DE89: untrusted, tool read_mail, event 2: “pay”").wait_for()
        self.assertEqual(self.complaints, [])

    def test_reading_is_searched_walked_and_leads_to_the_raw_event(self):
        page = self.open(*session(steps=3, text="plain words"))
        page.locator("#conversation").focus()
        page.keyboard.press("j")
        page.keyboard.press("j")
        self.assertEqual(page.locator(".block.chosen").count(), 1)
        page.fill("#search", "done")
        self.assertEqual(page.locator(".block:visible").count(), 1)
        page.fill("#search", "")
        page.locator(".answer .seq").first.click()
        self.assertIn("assistant.message", page.locator("#detail h2").inner_text())
        self.assertTrue(page.evaluate("location.hash") == "#5")

    def test_events_of_every_type_full_of_hostile_values_show_and_do_nothing(self):
        kinds = [kind for kind in vars(events_module).values() if isinstance(kind, type) and issubclass(kind, Event)]
        kinds = [kind for kind in kinds if kind.type]
        self.assertGreater(len(kinds), 40)
        for inner in (HOSTILE, 7, [HOSTILE, None], {HOSTILE: HOSTILE, "data": HOSTILE, "sha256": "../../x"}):
            made = [kind(**hostile_fields(kind, inner)) for kind in kinds]
            rows = [UserMessage("before"), *made, UserMessage("behind all of them")]
            rows = [dataclasses.replace(row, seq=seq, ts=1.7e9 + seq) for seq, row in enumerate(rows, 1)]
            page = self.show(build_page(rows, title=HOSTILE, read_blob=lambda name: b"<svg onload='hacked=1'>"))
            page.get_by_text("behind all of them").first.wait_for()
            for summary in page.locator("details > summary:visible").all():
                summary.click()
            page.keyboard.press("e")
            for key in ("Home", *["ArrowDown"] * len(made), "End"):
                page.keyboard.press(key)
            self.assertIn("behind all", page.locator("#detail").inner_text())
            page.emulate_media(media="print")
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            self.assertIsNone(page.evaluate("window.hacked ?? null"))
            self.assertEqual((self.complaints, page.locator("img").count(), len(self.requests)), ([], 0, 1), inner)

    def test_every_ordinary_event_can_be_shown(self):
        page = self.open(*session(text="plain words"))
        self.assertEqual(page.get_by_text("cannot be shown").count(), 0)

    def test_stored_pictures_are_shown_and_nothing_else_is_taken_for_one(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        named = []
        for data in (PICTURE, b"<svg xmlns='http://www.w3.org/2000/svg' onload='hacked=1'/>"):
            part = {"type": "image", "media_type": "image/svg+xml", "name": "a.svg", "size": len(data)}
            named.append({**part, "sha256": store.put_blob(session_id, data)})
        gone = {"type": "image", "media_type": "image/png", "size": 1, "sha256": "0" * 64}
        call = [ToolUse("c", "Shot", {}), ToolResult("c", "taken", attachments=named[:1])]
        store.append_events(session_id, [UserMessage("look", attachments=[*named, gone]), *call])
        page = self.open(store, session_id)
        page.locator("details.call summary").click()
        page.locator("details.call img.picture").wait_for()
        page.wait_for_function("[...document.images].every(image => image.complete)")
        pictures = page.locator("img.picture")
        self.assertEqual([picture.evaluate("node => node.naturalWidth") for picture in pictures.all()], [1, 1])
        self.assertEqual(page.locator(".prompt .decision").count(), 2)
        self.assertEqual((self.complaints, len([url for url in self.requests if "data:" not in url])), ([], 1))

    def test_hidden_letters_are_seen_as_escapes_and_commands_are_offered_to_copy(self):
        store, session_id = session(steps=1, text="- a\u202eb\x1b[2J\u2028c \U0001f469\u200d\U0001f467")
        page = self.open(store, session_id)
        self.assertEqual(
            page.locator(".prompt li").text_content(), "a\\u{202e}b\\u{1b}[2J\\u{2028}c \U0001f469\u200d\U0001f467"
        )
        page.get_by_role("button", name="Commands").click()
        page.locator("#conversation").focus()
        page.keyboard.press("j")
        shown = page.locator("#commands").text_content()
        self.assertIn(f"openagentic-sdk whatif {session_id} --at 2 --model MODEL", shown)
        self.assertIn(f"openagentic-sdk sessions fork {session_id} --at-seq 2", shown)

    def test_ten_thousand_events_are_counted_and_only_the_visible_ones_are_in_the_page(self):
        store, session_id = session(steps=1428, text="some text that is not short " * 4)
        page = self.open(store, session_id)
        page.wait_for_selector(".block")
        self.assertEqual(
            page.locator("details.call .inside *").count(), 0, "the inside of a call is created when it is opened"
        )
        page.keyboard.press("e")
        self.assertEqual(page.locator("#count").inner_text(), "9999 of 9999 events")
        self.assertLess(page.locator(".row").count(), 200, "only the visible part is in the page")

    def test_a_browser_scrolls_few_groups_and_finds_and_filters_what_is_far_away_in_them(self):
        store, session_id = session(steps=300, text="plain words")
        far = 7 * 200 + 3
        page = self.open(store, session_id, fragment=f"#{far}")
        blocks = page.locator(".block").count()
        self.assertGreater(blocks, 500)
        self.assertLess(page.locator("#conversation > *").count(), blocks / 40)
        top = page.locator(".block.chosen").bounding_box()["y"]
        box = page.locator("#conversation").bounding_box()
        self.assertTrue(box["y"] <= top <= box["y"] + box["height"], (top, box))
        page.fill("#search", "done")
        page.wait_for_function("document.querySelectorAll('.block:not([hidden])').length === 1")
        conversation = page.locator("#conversation")
        self.assertEqual(
            conversation.evaluate("node => node.scrollHeight - node.clientHeight"), 0, "hidden groups take no room"
        )

    def test_a_served_page_shows_events_as_they_come_even_behind_a_ticket_and_after_a_lost_connection(self):
        store, session_id = session()
        served = Served(store=store)
        self.addCleanup(served.close)
        ticket = served.application.guard.new_ticket(Principal())
        page = self.browser.new_page()
        page.set_default_timeout(120_000)
        self.addCleanup(page.close)
        page.goto(f"http://{served.host}/signin/{ticket}?to=/sessions/{session_id}")
        self.assertNotIn(ticket, page.url)
        page.wait_for_selector(".block")
        for count in (25, 26):
            store.append_event(session_id, UserMessage("one more"))
            page.locator("#count", has_text=f"{count} of {count} events").wait_for()
            served.loop.call_soon_threadsafe(lambda: [each.close() for each in list(served.server._connections)])
        self.assertIsNone(page.evaluate("window.hacked ?? null"))


if __name__ == "__main__":
    unittest.main()
