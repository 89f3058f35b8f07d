"""Text on a terminal: control sequences are escaped, and colours do not leak."""

from __future__ import annotations

import io
import unittest

from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.ground.text import on_one_line, printable

HOSTILE = {
    "\x1b[2J": "\\x1b[2J",  # clears the screen
    "\x1b]52;c;cGF5\x07": "\\x1b]52;c;cGF5\\x07",  # writes the clipboard
    "\x9b31m": "\\x9b31m",  # the same in one byte
    "safe\rrm -rf /": "safe\\rrm -rf /",  # hides the text before it
    "a\x08b": "a\\x08b",
    "abc\u202edcb": "abc\\u202edcb",  # reverses the following text
    "\u2066x\u2069": "\\u2066x\\u2069",
    "zero\u200bwidth": "zero\\u200bwidth",
    "\U000e0041": "\\U000e0041",  # an invisible character
    "\ud800": "\\ud800",
    "\x00": "\\x00",
}
HARMLESS = ("plain", "two\nlines", "a\ttab", "über 日本語 ✓", "👩\u200d👩\u200d👧")


class Terminal(io.StringIO):
    """A stream that reports that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Printable(unittest.TestCase):
    def test_control_sequences_of_a_text_are_escaped(self) -> None:
        for text, shown in HOSTILE.items():
            with self.subTest(shown):
                self.assertEqual(printable(text), shown)

    def test_text_of_any_language_stays_unchanged(self) -> None:
        for text in HARMLESS:
            with self.subTest(text):
                self.assertEqual(printable(text), text)

    def test_windows_line_ends_are_line_ends(self) -> None:
        self.assertEqual(printable("a\r\nb"), "a\nb")

    def test_a_cut_text_stays_on_one_line_and_is_marked_as_cut(self) -> None:
        self.assertEqual(on_one_line("a\nb\tc"), "a\\nb\\tc")
        self.assertEqual(on_one_line("x" * 50, 10), "xxxxxxx...")


class Colours(unittest.TestCase):
    def _shown(self, out: io.StringIO, **environ: str) -> str:
        return Screen(out, environ=environ).styled("text", "red")

    def test_a_terminal_gets_colours(self) -> None:
        self.assertEqual(self._shown(Terminal()), "\x1b[31mtext\x1b[0m")

    def test_a_file_gets_none(self) -> None:
        self.assertEqual(self._shown(io.StringIO()), "text")

    def test_no_color_and_a_dumb_terminal_get_none(self) -> None:
        self.assertEqual(self._shown(Terminal(), NO_COLOR="1"), "text")
        self.assertEqual(self._shown(Terminal(), TERM="dumb"), "text")

    def test_an_empty_no_color_means_nothing(self) -> None:
        self.assertIn("\x1b[", self._shown(Terminal(), NO_COLOR=""))


class Lines(unittest.TestCase):
    def test_a_line_begins_on_a_line_of_its_own(self) -> None:
        out = io.StringIO()
        screen = Screen(out)
        screen.write("streamed")
        screen.line("first")
        screen.line("second")
        self.assertEqual(out.getvalue(), "streamed\nfirst\nsecond\n")

    def test_an_answer_that_was_echoed_has_ended_the_line(self) -> None:
        out = io.StringIO()
        screen = Screen(out)
        screen.write("answer: ")
        screen.line_was_typed(echoed=True)
        screen.line("next")
        self.assertEqual(out.getvalue(), "answer: next\n")


if __name__ == "__main__":
    unittest.main()
