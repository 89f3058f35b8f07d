"""Markdown on a terminal: independent of how the text is divided, and never wider than the screen."""

from __future__ import annotations

import random
import unittest

from openagentic_sdk.cli.output.widths import text_width
from openagentic_sdk.cli.screen.markdown import Markdown

SAMPLE = """# A title with `code`

A paragraph with **bold words**, *italics*, [a link](http://x.test) and 2 * 3 * 4 in snake_case_names.
- first item that is long enough to be wrapped onto a second row of the list
  - [x] done
12. twelfth
> quoted words that go on and on until they need a row more

```python
def f():
\treturn "**not bold**"
```

| left | right |
|---|---:|
| a | two `words` |

---
the end ** is open"""
SHOWN = """<heading:A title with> <code:code>

A paragraph with <bold:bold words>, <italic:italics>, <link:a>
<link:link> <dim:(http://x.test)> and 2 * 3 * 4 in
snake_case_names.
<bullet:•> first item that is long enough to be
  wrapped onto a second row of the list
  <bullet:•> ☑ done
<bullet:12.> twelfth
<dim:▌ >quoted words that go on and on until
<dim:▌ >they need a row more

<dim:  python>
<dim:  │> <code:def f():>
<dim:  │> <code:    return "**not bold**">

<bold:left><dim: │ ><bold:right>
<dim:─────┼──────────>
a   <dim: │ >two words

<dim:───────────────────────────────────────>
the end ** is open
"""


def named(text: str, style: str) -> str:
    return f"<{style}:{text}>" if style else text


def plain(text: str, style: str) -> str:
    return text


def shown(text: str, size: int, style: object = named, width: int = 40) -> str:
    markdown = Markdown(style, lambda: width)  # type: ignore[arg-type]
    pieces = [markdown.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join(pieces) + markdown.close()


class Rendering(unittest.TestCase):
    maxDiff = None

    def test_each_block_and_span_has_its_style(self) -> None:
        self.assertEqual(shown(SAMPLE, len(SAMPLE)), SHOWN)

    def test_the_pieces_in_which_it_comes_make_no_difference(self) -> None:
        for size in (1, 2, 3, 7, 12, 64):
            with self.subTest(size):
                self.assertEqual(shown(SAMPLE, size), SHOWN)

    def test_words_are_written_as_soon_as_they_are_whole(self) -> None:
        markdown = Markdown(plain, lambda: 80)
        pieces = [markdown.feed(piece) for piece in ("Hel", "lo wor", "ld **a", " b** ", "c")]
        self.assertEqual(pieces, ["", "Hello", " world", " a b", ""])
        self.assertEqual(markdown.close(), " c\n")

    def test_a_line_of_many_words_is_never_wider_than_the_screen(self) -> None:
        words = ["word", "long" * 30, "漢字", "**b**", "`c`", "- ", "> ", "1. ", "\t", "e\u0301", "👩\u200d👩"]
        for seed in range(300):
            chance = random.Random(seed)
            text = " ".join(chance.choice(words) for _ in range(30))
            for row in shown(text, 5, plain, 30).split("\n"):
                self.assertLessEqual(text_width(row), 29, (seed, row))

    def test_a_table_too_wide_is_wrapped_in_its_cells_and_one_without_room_stays_text(self) -> None:
        table = f"| a | b |\n|---|---|\n| {'many words ' * 8}| x |\n"
        rows = shown(table, 9, plain, 40).rstrip("\n").split("\n")
        self.assertTrue(all(text_width(row) < 40 for row in rows), rows)
        self.assertGreater(len(rows), 4)
        many = "|" + "c|" * 30 + "\n|" + "-|" * 30 + "\n"
        self.assertEqual(shown(many, 9, plain, 40), many)

    def test_a_span_that_never_ends_is_text_in_the_end(self) -> None:
        text = "`" + "word " * 200
        self.assertEqual("".join(shown(text, 11, plain, 80).split()), "".join(text.split()))

    def test_code_that_never_ends_is_shown_line_by_line(self) -> None:
        markdown = Markdown(plain, lambda: 40)
        self.assertEqual(markdown.feed("```\nx = 1\ny"), "  │ x = 1\n")
        self.assertEqual(markdown.close(), "  │ y\n")

    def test_wide_letters_count_twice_and_marks_not_at_all(self) -> None:
        self.assertEqual([text_width(text) for text in ("abc", "漢字", "e\u0301")], [3, 4, 1])


if __name__ == "__main__":
    unittest.main()
