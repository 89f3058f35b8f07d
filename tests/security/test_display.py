"""No stored text can control the terminal or the page that displays it."""

from __future__ import annotations

import io
import re
import unittest
from dataclasses import fields

from openagentic_sdk import events
from openagentic_sdk.cli.output.questions import show_question
from openagentic_sdk.cli.output.render import EventPrinter
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    Result,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.ground.text import is_hidden
from openagentic_sdk.parts.record.folds.export import to_markdown
from openagentic_sdk.permissions.interactive import question_text

from .test_redaction import event_types, filled

HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\u2066\u200b\u3164\u00ad\U000e0041\x00\x7f\b\u2028z"
# Kinds whose text may have several lines, because the reader expects prose there.
PROSE = {"user.message", "assistant.message", "user.question", "assistant.delta"}


def printed(event: Event, *, transcript: bool = True) -> str:
    out = io.StringIO()
    printer = EventPrinter(Screen(out, colour=True), transcript=transcript)
    use = ToolUse("call", "Bash", {"command": HOSTILE})
    printer.show(use)
    printer.show(event)
    return out.getvalue()


class OnATerminal(unittest.TestCase):
    def test_no_field_of_any_event_reaches_the_terminal_with_a_hidden_letter(self) -> None:
        for cls in event_types():
            whole = filled(cls, HOSTILE)
            calls = [whole, *([ToolResult("call", HOSTILE, outcome="error", error_message=HOSTILE)])]
            for event in calls:
                shown = re.sub("\x1b\\[(0|1|2|3[1236])m", "", printed(event))
                with self.subTest(type=cls.type):
                    self.assertEqual([letter for letter in shown if is_hidden(letter)], [])

    def test_no_field_that_is_one_line_forges_another(self) -> None:
        for cls in event_types():
            if cls.type in PROSE:
                continue
            shown = re.sub("\x1b\\[[0-9]+m", "", printed(filled(cls, "x\nEnded: all is well"), transcript=True))
            with self.subTest(type=cls.type):
                self.assertNotIn("\nEnded: all is well", shown)

    def test_the_screen_cleans_text_that_its_caller_did_not(self) -> None:
        out = io.StringIO()
        screen = Screen(out, colour=True)
        screen.line(screen.styled("fine", "red") + HOSTILE)
        screen.write(HOSTILE)
        screen.rewrite(HOSTILE)
        rest = out.getvalue().replace("\x1b[31m", "").replace("\x1b[0m", "").replace("\r\x1b[K", "")
        self.assertEqual([letter for letter in rest if is_hidden(letter)], [])
        self.assertIn("\x1b[31mfine\x1b[0m", out.getvalue())

    def test_every_kind_of_event_is_tried_with_each_of_its_text_fields(self) -> None:
        text_fields = [field.name for cls in event_types() for field in fields(filled(cls, "x")) if field.type]
        self.assertGreater(len(text_fields), 150)
        self.assertIn(ToolStarted, event_types())
        self.assertIs(events.Event, Event)


class Questions(unittest.TestCase):
    def ask(self, prompt: str, preview: list[str] | None = None) -> str:
        details = {"preview": preview or []}
        return question_text(UserQuestion("q", prompt, ("yes", "no"), "permission", "c", details))

    def test_a_payload_cannot_be_pushed_screens_above_the_prompt(self) -> None:
        for padding in (" " * 50_000, "\n" * 5_000, "\n \t\n" * 5_000, "\u00a0" * 9_000, "\u2003" * 9_000):
            for text in (f"rm -rf /{padding}echo hello", f"{padding}echo hello"):
                shown = self.ask(text)
                with self.subTest(padding=repr(padding[:3])):
                    self.assertIn("echo hello", shown)
                    is_short = len(shown) < 400 and shown.count("\n") < 25
                    self.assertTrue(is_short or "characters: review all of it" in shown.splitlines()[-2])

    def test_the_length_of_a_long_text_is_shown_right_above_the_answer(self) -> None:
        self.assertNotIn("review all of it", self.ask("Run it?", ["$ ls"]))
        shown = self.ask("Run it?", [f"$ line {n}" for n in range(400)])
        self.assertIn("401 lines", shown.splitlines()[-2])
        asked = show_question(UserQuestion("q", "word " * 1_000, ("a", "b")))
        self.assertIn("(5,000 characters)", asked)


class AsMarkdown(unittest.TestCase):
    def test_no_text_and_no_name_forges_a_heading(self) -> None:
        for end in ("\n", "\r", "\r\n", "\u2028", "\x85", "\x0b", "\n\n"):
            forged = f"x{end}# Forged{end}</blockquote>{end}<h1>Forged</h1>{end}Forged{end}====="
            stored: list[Event] = [
                SystemInit(forged, forged, "1", model=forged),
                UserMessage(forged, origin=forged),
                UserMessage(forged),
                AssistantMessage(forged),
                ToolUse("c", forged, {"a": forged}),
                ToolResult("c", forged, outcome="ok"),
                ToolResult("c", None, is_error=True, error_message=f"```{end}# Forged", outcome="error"),
                Result(forged, forged, "end", error_message=forged),
            ]
            with self.subTest(end=repr(end)):
                fence, outside = "", []
                for line in re.split("\r\n|\r|\n", to_markdown(stored)):
                    if line == fence or (not fence and re.fullmatch("`{3,}", line)):
                        fence = "" if fence else line
                    elif not fence:
                        outside.append(re.sub("`[^`]*`", "", line))
                shown = [line for line in outside if re.match(r" {0,3}(#|=+$|<)", line)]
                self.assertEqual(len(shown), 5, shown)
                self.assertTrue(all(line.startswith(("# Session", "## ", "### ")) for line in shown), shown)
                self.assertNotRegex("\n".join(outside), r"(?<!\\)<h1")


if __name__ == "__main__":
    unittest.main()
