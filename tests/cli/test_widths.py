"""The width of text, and where it is cut: nothing is lost, nothing exceeds its row, no character is split."""

from __future__ import annotations

import io
import random
import unittest

from openagentic_sdk.cli.output.render import EventPrinter
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.cli.output.widths import begins_letter, cut_at, shortened, text_width, wrapped
from openagentic_sdk.cli.screen.editor import LineEditor
from openagentic_sdk.cli.screen.keys import Key
from openagentic_sdk.events import AssistantDelta, AssistantMessage
from openagentic_sdk.ground.text import printable
from tests.size import sized

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
THUMB = "\U0001f44d\U0001f3fd"
LETTERS = (
    "a",
    " ",
    "漢",
    "字。",
    "e\u0301",
    FAMILY,
    THUMB,
    "❤\ufe0f",
    "שלום",
    "مرحبا",
    "1\ufe0f\u20e3",
    "\u0e01\u0e34",
)


def mixed(seed: int, count: int) -> str:
    return "".join(random.Random(seed).choices(LETTERS, k=count))


class Widths(unittest.TestCase):
    def test_letters_of_several_parts_are_as_wide_as_terminals_show_them(self) -> None:
        widths = {"abc": 3, "漢字": 4, "e\u0301": 1, FAMILY: 2, THUMB: 2, "❤\ufe0f": 2, "שלום": 4, "": 0}
        self.assertEqual({text: text_width(text) for text in widths}, widths)

    def test_rows_and_pieces_fit_keep_everything_and_cut_no_letter(self) -> None:
        for seed in range(sized(4, 10, 30)):
            text = mixed(seed, 80)
            for columns in (2, 5, 20):
                for rows in (wrapped(text, columns), cut_at(text, columns)):
                    self.assertLessEqual(max(map(text_width, rows)), columns, (seed, columns, rows))
                    self.assertEqual("".join(rows).replace(" ", ""), text.replace(" ", ""))
                at = 0
                for piece in cut_at(text, columns):
                    self.assertTrue(begins_letter(text, at), (text, at))
                    at += len(piece)
            self.assertLessEqual(text_width(shortened(text, 7)), 7)

    def test_blanks_inside_of_a_row_are_what_they_were(self) -> None:
        self.assertEqual(wrapped("  echo  'a   b' and more words", 18), ["  echo  'a   b'", "  and more words"])

    def test_a_streamed_text_is_printed_the_same_wherever_it_is_split(self) -> None:
        text = f"{FAMILY} {THUMB} 漢字\r\nkeys 1\ufe0f\u20e3 \u200devil\u202e {FAMILY}"
        for size in (1, 2, 3, 5):
            out = io.StringIO()
            printer = EventPrinter(Screen(out))
            for at in range(0, len(text), size):
                printer.show(AssistantDelta(text[at : at + size]))
            printer.show(AssistantMessage(text))
            self.assertEqual(out.getvalue(), printable(text) + "\n", size)

    def test_the_cursor_steps_over_whole_letters_and_takes_them_away_whole(self) -> None:
        editor = LineEditor()
        editor.press(Key("paste", f"a{FAMILY}e\u0301漢"))
        editor.press(Key("left"))
        editor.press(Key("backspace"))
        self.assertEqual((editor.text, editor.cursor), (f"a{FAMILY}漢", 1 + len(FAMILY)))
        editor.press(Key("left"))
        self.assertEqual(editor.rows("> ", 40, lambda letter: f"<{letter}>"), [f"> a<{FAMILY}>漢"])
        editor.press(Key("delete"))
        self.assertEqual(editor.text, "a漢")

    def test_the_history_is_searched_for_what_was_typed(self) -> None:
        editor = LineEditor(history=["run tests", "fix it", "run all"])
        editor.press(Key("text", "run"))
        for found in ("run all", "run tests", "run tests"):
            editor.press(Key("search"))
            self.assertEqual(editor.text, found)


if __name__ == "__main__":
    unittest.main()
