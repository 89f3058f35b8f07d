"""How untrusted text is displayed to a person."""

from __future__ import annotations

import unicodedata
import unittest

from openagentic_sdk.ground.text import is_hidden, is_plain, one_line, printable, visible, visible_lines, without_hidden
from tests.size import full_size

# In planes 2 and 3, Python has names only for ideographs; planes between 3 and 14 contain no letters.
LETTERS = [chr(code) for code in (*range(0x20000), *range(0xE0000, 0xE1000))]
FILLERS = {
    "soft hyphen": "\xad",
    "combining grapheme joiner": "\u034f",
    "Arabic letter mark": "\u061c",
    "Hangul fillers": "\u115f\u1160\u3164\uffa0",
    "Khmer inherent vowels": "\u17b4\u17b5",
    "Mongolian selectors and separator": "\u180b\u180c\u180d\u180e\u180f",
    "zero width": "\u200b\u2060\ufeff",
    "marks of direction": "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    "line and paragraph separators": "\u2028\u2029",
    "invisible operators": "\u2061\u2062\u2063\u2064",
    "deprecated format characters": "\u206a\u206f",
    "kept free": "\u2065\ufff0\ufff8\U000e0000\U000e0080\U000e0fff",
    "Braille blank": "\u2800",
    "interlinear marks": "\ufff9\ufffa\ufffb",
    "shorthand and musical controls": "\U0001bca0\U0001d173\U0001d17a\U0001d159",
    "tags": "\U000e0001\U000e0041\U000e007f",
    "selectors beyond the first": "\U000e0100\U000e01ef",
    "controls": "\x00\x07\x08\x0b\x0c\x1b\x7f\x85\x9b",
    "lone surrogates": "\ud800\udfff",
    "selectors on a Latin letter": "\ufe00\ufe0e\ufe0f",
    "joiners between Latin letters": "\u200c\u200d",
}
KEPT = (
    *("plain", "añb", "日本語", "e\u0301", "👩\u200d💻", "👩\u200d❤\ufe0f\u200d👩", "❤\ufe0f", "1\ufe0f\u20e3"),
    *("می\u200cخواهم", "क्\u200dष", "①→─│█", "a\u3000b", "a\xa0b", "\ue0b0", "tab\there", "two\nlines"),
)


class HiddenLettersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.hidden = set(filter(is_hidden, LETTERS))

    def test_everything_that_shows_nothing_is_hidden(self) -> None:
        for kind, letters in FILLERS.items():
            for letter in letters:
                with self.subTest(kind, code=hex(ord(letter))):
                    self.assertTrue(is_hidden(letter))
                    self.assertFalse(is_plain(letter))
                    self.assertNotIn(letter, printable(f"a{letter}b"))
                    self.assertNotIn(letter, visible(f"a{letter}b"))
                    self.assertNotIn(letter, without_hidden(f"a{letter}b").replace("\n", ""))

    @full_size
    def test_every_letter_of_a_hidden_property_is_hidden(self) -> None:
        by_category = {letter for letter in LETTERS if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        words = ("VARIATION SELECTOR", "ZERO WIDTH", "INVISIBLE", "HANGUL FILLER", "TAG LATIN")
        others = {letter: unicodedata.name(letter, "") for letter in LETTERS if letter not in self.hidden}
        by_name = {letter for letter, name in others.items() if any(word in name for word in words)}
        seen = (by_category | by_name) - {"\t", "\n"} - self.hidden
        self.assertEqual(seen, set())

    def test_letters_marks_and_signs_that_have_a_shape_are_not(self) -> None:
        hidden = [letter for letter in self.hidden if unicodedata.category(letter)[0] not in "CZ"]
        # The rest: fillers of scripts, selectors, the Braille blank, a note without a head.
        self.assertLess(len(hidden), 300)
        for text in KEPT:
            with self.subTest(text):
                self.assertEqual(printable(text), text)
                self.assertEqual(without_hidden(text), text)

    def test_a_joiner_or_a_selector_without_work_is_hidden_even_beside_other_scripts(self) -> None:
        for text in (
            "日\ufe0f\ufe0f",
            "👩\u200d",
            "\u200d👩",
            "👩\u200d\u200d💻",
            "日\u200d a",
            "\u3164\u200d\u3164",
            "日\U000e0100",
        ):
            with self.subTest(ascii(text)):
                self.assertIn("\\", printable(text))


class ShownTextTest(unittest.TestCase):
    def test_a_decision_is_shown_on_one_line_of_plain_letters(self) -> None:
        table = {
            "rm -rf x": "rm -rf x",
            "a\nb\tc\rd": "a\\nb\\tc\\rd",
            "\x1b[2K\x07": "\\x1b[2K\\x07",
            "a\u202eb": "a\\u202eb",
            "a\U000e0041b": "a\\U000e0041b",
            "a\xa0b\u3000c": "a\\xa0b\\u3000c",
            "é日": "é日",
            "👩\u200d💻": "👩\\u200d💻",
            "a" + " " * 41 + "b": "a[41 spaces]b",
            "a" + " " * 40 + "b": "a" + " " * 40 + "b",
        }
        for text, shown in table.items():
            with self.subTest(ascii(text)):
                self.assertEqual(visible(text), shown)
        self.assertEqual(visible_lines("a\tb\nc\rd"), ["a    b", "c\\rd"])

    def test_text_for_reading_keeps_its_lines(self) -> None:
        self.assertEqual(printable("a\r\nb\rc\td\x9b31m"), "a\nb\\x0dc\td\\x9b31m".replace("\\x0d", "\\r"))

    def test_text_for_the_model_loses_what_is_hidden_and_keeps_its_lines(self) -> None:
        self.assertEqual(without_hidden("a\r\nb\rc\u200bd\xade"), "a\nb\ncde")
        self.assertEqual(without_hidden("\ud83d\ude00 \ud83d"), "😀 ")
        self.assertEqual(one_line("  a \u200b b\n\tc\u2028d  "), "a b c d")

    def test_more_joiners_than_any_writing_has_are_hidden_all(self) -> None:
        joined = "ü\u200dö"
        self.assertEqual(without_hidden(joined * 100), joined * 100)
        self.assertEqual(without_hidden(joined * 200_001), "üö" * 200_001)


if __name__ == "__main__":
    unittest.main()
