"""The served page in a real browser: a person types, watches, answers, steers, cancels, attaches and takes back."""

import os
import re
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.events import AssistantMessage, Result, SystemInit, UserAnswer, UserMessage
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.edit import EditTool
from openagentic_sdk.tools.read import ReadTool
from openagentic_sdk.tools.session.ask_user_question import AskUserQuestionTool
from tests.browser import browser, needs_browser
from tests.server.support import WAIT_S, Gate, Served
from tests.waiting import until, until_async

from .test_view import HOSTILE, PICTURE

MODULES = os.environ.get("OPENAGENTIC_TEST_NODE_MODULES", "")
AXE = Path(MODULES, "axe-core", "axe.min.js")
# A folder for pictures of the pages, for people to look at.
PICTURES = os.environ.get("OPENAGENTIC_TEST_PICTURES")
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1200, "height": 800}
READ = {"name": "Read", "arguments": {"file_path": "a.py"}}
EDIT = {"name": "Edit", "arguments": {"file_path": "a.py", "old": "one", "new": "two"}}
ASK = {
    "name": "AskUserQuestion",
    "arguments": {"question": "Milk or lemon?", "choices": ["milk", "lemon"], "multi_select": True},
}


@needs_browser
class LivePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(browser())

    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "a.py").write_text("one = 1\n")
        self.gate = Gate()
        self.addCleanup(self.gate.open.set)
        self.store = MemorySessionStore()

    def serve(self, *turns):
        def made(turns):
            tools = [ReadTool(), EditTool(), AskUserQuestionTool(), self.gate.tool()]
            gate = PermissionGate(permission_mode="default", allow=["hold"])
            place = {"cwd": str(self.folder), "home": str(self.folder), "tools": tools, "permission_gate": gate}
            provider = turns[0] if hasattr(turns[0], "stream") else ScriptedProvider(turns)
            return OpenAgenticOptions(provider=provider, model="hosted", system_prompt="A test.", **place)

        self.served = Served(Agents({"helper": NamedAgent(made(turns), "Helps")}), store=self.store)
        self.addCleanup(self.served.close)

    def open(self, path="/", who=None, **options):
        context = self.browser.new_context(**{"viewport": DESKTOP, **options})
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(WAIT_S * 1000)
        self.complaints = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        ticket = self.served.application.guard.new_ticket(who or Principal(name="anna"))
        page.goto(f"http://127.0.0.1:{self.served.port}/signin/{ticket}?to={path}")
        return page

    def start(self, page, text="Go."):
        page.fill("#prompt", text)
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/sessions/"))
        return page.url.rsplit("/", 1)[1]

    def until_parked(self, page):
        """Wait until the page shows that the run is parked: it shows a question a little earlier."""
        # Not with `wait_for_function`: the page's policy refuses the evaluation of strings.
        until(lambda: page.title().startswith("(?)"), "the page shows that the run is parked", WAIT_S)

    def events(self, session_id, kind):
        return [event for event in self.store.read_events(session_id) if isinstance(event, kind)]

    def test_a_newcomer_types_a_prompt_and_reads_the_answer_as_it_streams(self):
        self.serve(
            {"text": "Tea **is** ready.", "tool_calls": [{"name": "hold", "arguments": {}}]}, "Here it is.", "More."
        )
        page = self.open()
        session_id = self.start(page, "Tea, please.")
        page.locator(".answer strong").filter(has_text="is").wait_for()
        self.gate.open.set()
        page.locator(".answer").filter(has_text="Here it is.").wait_for()
        page.locator("#status").filter(has_text="No run is in progress").wait_for()
        page.fill("#prompt", "Again")
        page.keyboard.press("Enter")
        page.locator(".answer").filter(has_text="More.").wait_for()
        self.assertEqual([event.text for event in self.events(session_id, UserMessage)], ["Tea, please.", "Again"])
        page.get_by_role("link", name="All sessions").click()
        page.get_by_role("link", name="Tea, please.").wait_for()
        self.assertEqual(self.complaints, [])

    def test_the_page_shows_how_full_the_window_is_during_a_run(self):
        self.serve({"text": "Looking.", "tool_calls": [{"name": "hold", "arguments": {}}]}, "Here it is.")
        page = self.open()
        self.start(page, "Tea, please.")
        context = page.locator("#context")
        context.locator("summary").filter(has_text="the endpoint counted").wait_for()
        context.locator("summary").click()
        for words in ("prompts and notes:", "the window size is unknown", "no price of hosted is known"):
            context.locator("pre").filter(has_text=words).wait_for()
        page.locator("#facts").filter(has_text="cost unknown").wait_for()
        self.gate.open.set()
        context.locator("pre").filter(has_text="results of calls:").wait_for()
        self.assertEqual(self.complaints, [])

    def test_words_are_shown_before_their_message_is_stored(self):
        parts = [{"type": "text_delta", "delta": "Half of "}, {"type": "text_delta", "delta": "it"}]
        gate = self.gate

        async def held():
            return gate.open.is_set()

        class Slow:
            name = "slow"

            async def stream(self, **request):
                for part in parts:
                    yield part
                await until_async(held, "the test has seen it", WAIT_S)
                yield {"type": "done"}

        self.serve(Slow())
        page = self.open()
        session_id = self.start(page)
        page.locator(".partial").filter(has_text="Half of it").wait_for()
        self.assertEqual(self.events(session_id, AssistantMessage), [])
        gate.open.set()
        page.locator(".answer:not(.partial)").filter(has_text="Half of it").wait_for()
        self.assertEqual(page.locator(".partial").count(), 0)

    def test_a_question_shows_its_diff_and_the_answer_is_signed_with_who_gave_it(self):
        self.serve({"tool_calls": [READ]}, {"tool_calls": [EDIT]}, "Done.")
        page = self.open()
        session_id = self.start(page)
        card = page.locator(".asked")
        card.wait_for()
        self.assertEqual(card.locator(".removed").inner_text().strip(), "- one")
        self.assertIn("a.py", card.inner_text())
        card.get_by_role("button", name="Allow", exact=True).click()
        page.locator(".answer").filter(has_text="Done.").wait_for()
        self.assertEqual((self.folder / "a.py").read_text(), "two = 1\n")
        [answer] = self.events(session_id, UserAnswer)
        self.assertEqual((answer.answer, answer.answered_by, answer.approver["name"]), ("yes", "anna", "anna"))
        self.assertTrue(answer.mac)
        page.locator(".question").filter(has_text="anna").filter(has_text="signed").wait_for()
        self.assertEqual((card.count(), self.complaints), (0, []))

    def test_a_rejection_takes_a_reason_and_several_choices_make_one_answer(self):
        self.serve({"tool_calls": [READ, EDIT]}, {"tool_calls": [ASK]}, "Done.")
        page = self.open()
        session_id = self.start(page)
        page.get_by_label("Reason for a rejection").fill("not now")
        page.get_by_role("button", name="Reject").click()
        page.get_by_label("milk", exact=True).check()
        page.get_by_label("lemon", exact=True).check()
        page.get_by_role("button", name="Answer").click()
        page.locator(".answer").filter(has_text="Done.").wait_for()
        self.assertEqual([event.answer for event in self.events(session_id, UserAnswer)], ["no not now", "milk, lemon"])

    def test_who_may_not_answer_sees_the_question_without_buttons(self):
        self.serve({"tool_calls": [ASK]}, "Done.")
        page = self.open(who=Principal(name="bert", may_answer=False))
        self.start(page)
        page.locator(".asked").filter(has_text="You may not answer").wait_for()
        self.until_parked(page)
        self.assertEqual(page.locator(".asked button").count(), 0)
        page.fill("#prompt", "Then I say it so")
        page.keyboard.press("Enter")
        page.locator("#trouble").filter(has_text="answer").wait_for()
        self.assertEqual(page.input_value("#prompt"), "Then I say it so")

    def test_a_run_is_steered_cancelled_and_its_prompt_withdrawn(self):
        self.serve({"tool_calls": [{"name": "hold", "arguments": {}}]}, "Done.")
        page = self.open()
        session_id = self.start(page)
        page.locator("#send").filter(has_text="Send to the run").wait_for()
        page.fill("#prompt", "Quickly!")
        page.keyboard.press("Enter")
        messages = self.served.application.desk.messages
        until(lambda: messages._delivered, "the run has received it, and takes it with its next step", WAIT_S)
        self.gate.open.set()
        page.locator(".prompt").filter(has_text="Quickly!").wait_for()
        page.locator("#status").filter(has_text="No run is in progress").wait_for()
        self.assertEqual([event.origin for event in self.events(session_id, UserMessage)], ["user", "steering"])
        page.get_by_role("button", name="Undo last prompt").click()
        page.locator(".note").filter(has_text="rewound").wait_for()
        self.assertGreater(page.locator(".undone").count(), 0)

    def test_a_run_that_waits_is_cancelled_from_the_keyboard_alone(self):
        self.serve({"tool_calls": [ASK]}, "Done.")
        page = self.open()
        session_id = self.start(page)
        page.locator(".asked").wait_for()
        self.until_parked(page)
        page.locator("#cancel").focus()
        page.keyboard.press("Enter")
        page.locator("#status").filter(has_text="No run is in progress").wait_for()
        self.assertEqual([event.stop_reason for event in self.events(session_id, Result)], ["waiting", "interrupted"])
        self.assertEqual(page.locator(".asked").count(), 0)

    def test_a_picture_is_attached_and_shown(self):
        self.serve("Hm.", "I see.")
        page = self.open()
        session_id = self.start(page)
        page.locator("#status").filter(has_text="No run is in progress").wait_for()
        page.locator("#chosen-files").set_input_files([{"name": "dot.png", "mimeType": "image/png", "buffer": PICTURE}])
        page.locator("#files li").filter(has_text="dot.png").wait_for()
        page.fill("#prompt", "Look")
        page.keyboard.press("Enter")
        page.locator(".prompt").filter(has_text="dot.png").wait_for()
        [_, seen] = self.events(session_id, UserMessage)
        self.assertEqual([part["media_type"] for part in seen.attachments], ["image/png"])
        page.reload()
        page.locator("img.picture").wait_for()

    def test_a_message_sent_before_the_connection_broke_is_sent_once(self):
        self.serve("Done.", "Again.")
        page = self.open()
        session_id = self.start(page)
        page.locator("#status").filter(has_text="No run is in progress").wait_for()
        page.evaluate("live.socket.close()")
        page.evaluate("document.getElementById('prompt').value = 'once'; send()")
        page.locator(".prompt").filter(has_text="once").wait_for()
        self.assertEqual([event.text for event in self.events(session_id, UserMessage)], ["Go.", "once"])

    def test_hostile_text_stays_text_in_every_corner(self):
        said = {"question": HOSTILE, "choices": [HOSTILE, "b"], "header": HOSTILE}
        self.serve({"text": HOSTILE, "tool_calls": [{"name": "AskUserQuestion", "arguments": said}]}, HOSTILE)
        page = self.open()
        self.start(page, HOSTILE)
        page.locator(".asked").filter(has_text="onerror").wait_for()
        page.get_by_role("button", name="onerror").click()
        page.locator(".answer").filter(has_text="onerror").nth(1).wait_for()
        page.goto(f"http://127.0.0.1:{self.served.port}/?query=onerror")
        page.get_by_role("link", name="onerror").wait_for()
        self.assertIsNone(page.evaluate("window.hacked ?? null"))
        self.assertEqual((page.locator("img").count(), self.complaints), (0, []))

    def test_the_list_is_searched_filtered_and_paged(self):
        self.serve("Done.")
        for number in range(60):
            session_id = self.store.create_session()
            self.store.append_events(session_id, [SystemInit(session_id, "/", "0"), UserMessage(f"prompt {number:02}")])
            self.store.append_events(session_id, [Result("", session_id, "error" if number % 2 else "end")])
        page = self.open()
        self.assertEqual(page.locator("#sessions tbody tr").count(), 50)
        page.get_by_role("link", name="Older sessions").click()
        page.get_by_role("link", name="prompt 00").wait_for()
        self.assertEqual(page.locator("#sessions tbody tr").count(), 10)
        page.goto(f"http://127.0.0.1:{self.served.port}/")
        page.get_by_label("State").select_option("failed")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url(re.compile("state=failed"))
        self.assertEqual(set(page.locator("#sessions tbody td.state").all_inner_texts()), {"failed"})

    def test_open_questions_are_above_the_list_and_link_to_where_they_are_answered(self):
        self.serve({"tool_calls": [READ, EDIT]}, "Done.")
        page = self.open()
        session_id = self.start(page)
        page.locator(".asked").wait_for()
        self.until_parked(page)
        page.goto(f"http://127.0.0.1:{self.served.port}/?state=waiting")
        self.assertEqual(page.locator("#inbox").count(), 0)
        page.goto(f"http://127.0.0.1:{self.served.port}/")
        inbox = page.get_by_role("region", name="1 question for you")
        self.assertIn("a.py", inbox.inner_text())
        inbox.get_by_role("link").click()
        page.wait_for_url(re.compile(session_id))
        page.get_by_role("button", name="Allow", exact=True).click()
        page.locator(".answer").filter(has_text="Done.").wait_for()
        page.goto(f"http://127.0.0.1:{self.served.port}/")
        page.locator("#sessions").wait_for()
        self.assertEqual((page.locator("#inbox").count(), self.complaints), (0, []))

    @unittest.skipUnless(AXE.exists(), "OPENAGENTIC_TEST_NODE_MODULES names no axe-core")
    def test_axe_finds_nothing_and_nothing_is_wider_than_a_phone(self):
        long = (
            "A very long line of an answer, `with_code_that_has_no_blank_in_it_at_all_and_goes_on_for_ever_and_ever`. "
            * 4
        )
        table = "\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\n" + "x" * 200 + "\n```"
        self.serve(
            {"text": long + table, "tool_calls": [READ]},
            {"tool_calls": [EDIT]},
            {"tool_calls": [ASK]},
        )
        names = []
        for prompt in ("Go. " + "word " * 60, "Tea?"):
            page = self.open()
            names.append(self.start(page, prompt))
            page.locator(".asked").wait_for()
            self.until_parked(page)
            page.context.close()
        edit, asked = (f"/sessions/{name}" for name in names)
        source = AXE.read_text()
        for name, size in (("phone", PHONE), ("desktop", DESKTOP)):
            for view, path in {"list": "/", "session": edit, "events": edit, "question": asked}.items():
                page = self.open(path, viewport=size)
                page.locator("#say").wait_for()
                page.locator(".asked").wait_for()
                if view == "session":
                    page.locator("details.call summary").first.click()
                if view == "events":
                    page.get_by_role("button", name="Raw events").click()
                    page.locator(".row").nth(3).click()
                    page.get_by_role("button", name="Commands").click()
                page.evaluate(source)
                # Colours are all that differs in the dark, and they are the same at any width.
                schemes = {"light": "", "dark": "runOnly: ['color-contrast'], "}
                for scheme in ("light", "dark") if size is PHONE else ("light",):
                    page.emulate_media(color_scheme=scheme)
                    with self.subTest(scheme=scheme, size=name, view=view):
                        found = page.evaluate(f"axe.run({{{schemes[scheme]}resultTypes: ['violations']}})")[
                            "violations"
                        ]
                        told = [
                            (each["id"], node["html"][:200], node.get("failureSummary", "")[:300])
                            for each in found
                            for node in each["nodes"]
                        ]
                        self.assertEqual(told, [])
                        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), size["width"])
                    if PICTURES:
                        page.screenshot(path=str(Path(PICTURES, f"{view}-{name}-{scheme}.png")))
                page.context.close()


if __name__ == "__main__":
    unittest.main()
