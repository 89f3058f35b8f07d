"""Arguments are filled in once, and their content is never expanded again."""

from __future__ import annotations

import random
import shlex
import time
import unittest

from openagentic_sdk.skills.render import MAX_FILLED_CHARS, fill_arguments, fill_variables, split_words


class RenderTest(unittest.TestCase):
    def test_every_placeholder(self) -> None:
        for text, arguments, expected in (
            ("Do $ARGUMENTS.", "a b", "Do a b."),
            ("Do $1 then $2.", "a b", "Do a then b."),
            ("Do $0 then $1.", "a b", "Do a then b."),
            ("Do $ARGUMENTS[0] and $ARGUMENTS[1].", "a b", "Do a and b."),
            ("Do $1.", "'a b' c", "Do a b."),
            ("Do $3.", "a", "Do $3.\n\nARGUMENTS: a\n"),
            ("Do it.", "", "Do it."),
            ("Do it.", "now", "Do it.\n\nARGUMENTS: now\n"),
            ("Costs $5.00 and \\$1, \\$ARGUMENTS.", "", "Costs $5.00 and $1, $ARGUMENTS."),
            ("$ARGUMENTS", "$1 $ARGUMENTS ${HOME}", "$1 $ARGUMENTS ${HOME}"),
            ("$1|$2", "$2 x", "$2|x"),
            ("$issue for $who", "12", "12 for "),
            ("$other", "12", "$other\n\nARGUMENTS: 12\n"),
            ("$ARGUMENTS_X", "", "$ARGUMENTS_X"),
        ):
            with self.subTest(text):
                self.assertEqual(fill_arguments(text, arguments, names=("issue", "who")), expected)

    def test_an_index_far_beyond_the_words_stays_unchanged(self) -> None:
        self.assertEqual(fill_arguments("$9999 $ARGUMENTS[9999] $ARGUMENTS", "a"), "$9999 $ARGUMENTS[9999] a")

    def test_long_arguments_do_not_multiply_without_end(self) -> None:
        self.assertLess(len(fill_arguments("$1" * 5000, "x" * 5000)), 2 * MAX_FILLED_CHARS)

    def test_variables_with_a_value_are_filled_in(self) -> None:
        text = "${CLAUDE_SKILL_DIR}/x {baseDir}/y ${OTHER} $HOME"
        self.assertEqual(fill_variables(text, {"CLAUDE_SKILL_DIR": "/s"}), "/s/x /s/y ${OTHER} $HOME")

    def test_words_with_unbalanced_quotes_are_split_at_spaces(self) -> None:
        self.assertEqual(split_words("it's here"), ["it's", "here"])


class WordTest(unittest.TestCase):
    def test_words_are_those_of_a_shell(self) -> None:
        source = random.Random(8)
        for _ in range(5000):
            text = "".join(source.choice("ab'\"\\ \t\n'\"#$\u00e9") for _ in range(source.randrange(12)))
            with self.subTest(text):
                try:
                    expected = shlex.split(text)
                except ValueError:
                    expected = text.split()
                self.assertEqual(split_words(text), expected)

    def test_a_long_word_takes_one_pass(self) -> None:
        began = time.process_time()
        for text in ("a" * 1_000_000, "it's " + "a" * 1_000_000, "'" * 1_000_001, "\\" * 1_000_001):
            split_words(text)
        self.assertLess(time.process_time() - began, 20.0)


if __name__ == "__main__":
    unittest.main()
