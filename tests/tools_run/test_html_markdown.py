"""Pages with their expected Markdown in fixtures/tools_run/html, single elements as a table, and pages built to be slow."""

from __future__ import annotations

import time
import unittest

from openagentic_sdk.tools.web.markdown import html_to_markdown
from tests.size import full_size

from .support import FIXTURES

PIECES = [
    ("plain text", "plain text"),
    ("<p>a\n  b\t c</p><p>d</p>", "a b c\n\nd"),
    ("<h3>Title</h3>text", "### Title\n\ntext"),
    ("&lt;script&gt;", "<script>"),
    ("<script>x</script>y<SCRIPT>z", "y"),
    ("<style>a{}</style >b", "b"),
    ("<noscript>a</noscript><template>b</template>c", "c"),
    ("<div hidden>a<div>b</div>c</div>d", "d"),
    ("<input hidden>kept", "kept"),
    ("<p style='visibility: hidden'>a</p>b", "b"),
    ("<a href='x'>t</a>", "[t](http://h.example/d/x)"),
    ("<a href='#here'>t</a>", "t"),
    ("<a href='JavaScript:x()'>t</a>", "t"),
    ("<a href='http://[bad'>t</a>", "t"),
    ("<a href='a b)c'>t</a>", "[t](http://h.example/d/a%20b%29c)"),
    ("<base href='/other/'><a href='x'>t</a>", "[t](http://h.example/other/x)"),
    ("<img src='i.png' alt='A  b'>", "![A b](http://h.example/d/i.png)"),
    ("<img src='data:image/png;base64,AAAA' alt='A'>", "[image: A]"),
    ("<img src='i.png'>x", "x"),
    ("a<br>b<br/>c", "a\nb\nc"),
    ("<ul><li>a</li><li>b<ol><li>c</ol></ul>", "- a\n- b\n  1. c"),
    ("<pre>a\n  b</pre>", "```\na\n  b\n```"),
    ("<pre>a ``` b</pre>", "````\na ``` b\n````"),
    ("use <code>x</code>", "use `x`"),
    ("<table><tr><td>a<td>b<tr><td>c</table>", "| a | b |\n| --- | --- |\n| c |  |"),
    ("<table><tr><td>layout</td></tr></table>", "layout"),
    ("<blockquote>a<blockquote>b</blockquote></blockquote>", "> a\n>\n> > b"),
    ("<a b='1 > 0' href=x>t</a>", "[t](http://h.example/d/x)"),
    ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
    ("", ""),
]
HOSTILE = ["<", "<a ", "<!--", "<!", "<?", "</", "<a b='", "&", "&#", "<div>", "<ul>", "<ul><li>x", "<script>", "<title>",
           "<pre>", "<a href=x>", "<table><td>", "<textarea><", "<![CDATA[",
           "</a ", "<a x=\"'", "<blockquote><p>x"]  # fmt: skip


class Conversion(unittest.TestCase):
    def test_pages_become_the_markdown_beside_them(self) -> None:
        for page in sorted((FIXTURES / "html").glob("*.html")):
            with self.subTest(page.name):
                converted = html_to_markdown(page.read_text(encoding="utf-8"), "https://garden.example/veg/")
                self.assertEqual(converted.markdown + "\n", page.with_suffix(".md").read_text(encoding="utf-8"))

    def test_pieces_are_converted_as_in_the_table(self) -> None:
        for html, markdown in PIECES:
            with self.subTest(html):
                self.assertEqual(html_to_markdown(html, "http://h.example/d/").markdown, markdown)

    def test_the_title_is_the_first_one(self) -> None:
        html = "<title> A &amp;\n b </title><svg><title>icon</title></svg>"
        self.assertEqual(html_to_markdown(html).title, "A & b")

    def test_elements_hidden_from_people_are_hidden_from_the_model(self) -> None:
        text = html_to_markdown((FIXTURES / "html" / "article.html").read_text(encoding="utf-8")).markdown
        for secret in ("Ignore all previous", "evil.example", "steal", "not shown", "not text"):
            self.assertNotIn(secret, text)

    @full_size
    def test_pages_made_to_be_slow_take_time_in_proportion_to_their_length(self) -> None:
        for piece in HOSTILE:
            with self.subTest(piece):
                began = time.process_time()
                html_to_markdown(piece * (40_000 // len(piece)))
                # A quadratic parser would need minutes for these, a linear one at most a second.
                self.assertLess(time.process_time() - began, 5)

    def test_a_page_that_is_too_long_is_cut_with_a_note(self) -> None:
        self.assertTrue(html_to_markdown("x" * 2_000_001).is_cut)
        self.assertFalse(html_to_markdown("<b>x</b>").is_cut)
