"""The contents of a SKILL.md, file by file: each `<case>.md` beside its `<case>.json`."""

from __future__ import annotations

import json
import random
import re
import time
import unittest
from pathlib import Path

from openagentic_sdk.ground.text import one_line, without_hidden
from openagentic_sdk.skills.fields import split_rules
from openagentic_sdk.skills.frontmatter import read_frontmatter
from openagentic_sdk.skills.names import broken_name_rule, name_key
from openagentic_sdk.skills.parse import parse_skill_markdown
from tests.size import full_size, sized

CASES = Path(__file__).parents[2] / "fixtures" / "skills" / "parse"


def read_case(path: Path) -> str:
    return path.read_bytes().decode("utf-8")


class CaseTest(unittest.TestCase):
    def test_every_file_is_parsed_to_the_values_beside_it(self) -> None:
        for path in sorted(CASES.glob("*.md")):
            expected = json.loads(path.with_suffix(".json").read_text(encoding="ascii"))
            doc = parse_skill_markdown(read_case(path), folder=expected.pop("folder"))
            codes = expected.pop("codes")
            with self.subTest(path.stem):
                self.assertEqual([note.code for note in doc.diagnostics], codes)
                for name, value in expected.items():
                    found = getattr(doc, name)
                    self.assertEqual(list(found) if isinstance(found, tuple) else found, value, name)

    def test_the_body_is_the_end_of_the_file_byte_for_byte(self) -> None:
        for path in sorted(CASES.glob("*.md")):
            text = read_case(path)
            with self.subTest(path.stem):
                self.assertTrue(text.endswith(parse_skill_markdown(text).body))

    def test_diagnostics_point_at_the_line(self) -> None:
        doc = parse_skill_markdown("---\nname: x\ndescription: a: b\n---\n")
        self.assertEqual([(note.code, note.line) for note in doc.diagnostics], [("frontmatter-invalid", 3)])

    def test_each_key_keeps_its_source_and_line(self) -> None:
        front = read_frontmatter("---\nname: x\nargument-hint: [a] # c\nhooks:\n  A:\n    - b\n---\n")
        self.assertEqual((front.sources["argument-hint"].text, front.sources["argument-hint"].line), ("[a]", 3))
        self.assertEqual((front.sources["hooks"].text, front.sources["hooks"].line), ("A:\n    - b", 4))


class SizeTest(unittest.TestCase):
    def test_a_body_of_300_kilobytes_is_read_whole(self) -> None:
        body = "Text of a long skill.\n" * 15_000
        self.assertEqual(parse_skill_markdown(f"---\nname: x\ndescription: d\n---\n{body}").body, body)

    def test_100_000_keys_are_not_read_but_the_name_is(self) -> None:
        keys = "".join(f"k{i}: v\n" for i in range(100_000))
        began = time.process_time()
        doc = parse_skill_markdown(f"---\nname: x\ndescription: d\n{keys}---\nbody\n", folder="x")
        self.assertLess(time.process_time() - began, 30.0)
        self.assertEqual((doc.name, doc.summary, doc.body), ("x", "d", "body\n"))
        self.assertEqual([note.code for note in doc.diagnostics], ["frontmatter-too-big", "frontmatter-scanned"])

    @full_size
    def test_hostile_files_take_time_in_proportion_to_their_length(self) -> None:
        for name, text in (
            ("openers", "---\n" * 50_000),
            ("comments before", "<!--" * 50_000),
            ("spaces before", " " * 200_000 + "---\n"),
            ("unclosed keys", "---\n" + "k: v\n" * 40_000),
            ("broken lines", "---\n" + "a: b: c\n" * 8_000 + "---\n"),
            ("broken quotes", "---\n" + 'a: "\n' * 10_000 + "---\n"),
            ("name lines", "---\n- x\n" + "name" * 15_000 + "\n---\n"),
            ("marks before name", "---\n- x\n" + "*" * 60_000 + "\n---\n"),
            ("headings", "#" * 200_000),
            ("heading marks", "# a" + " #" * 100_000),
            ("heading spaces", "# a" + " " * 200_000 + "b"),
            ("item spaces", "## Checklist\n-" + " " * 200_000 + "b"),
            ("boxes", "- [ ] " * 25_000),
            ("rules", "-" * 200_000 + "x"),
            ("list marks", "## Checklist\n" + "- " * 100_000),
            ("fences", "```\n~~~\n" * 25_000),
            ("parentheses", "---\nallowed-tools: " + "(" * 60_000 + "\n---\n"),
        ):
            with self.subTest(name):
                began = time.process_time()
                parse_skill_markdown(text)
                self.assertLess(time.process_time() - began, 30.0)  # quadratic time would be hours


class RecoveryTest(unittest.TestCase):
    """Frontmatter that is not valid YAML, as left by editors, merges and models."""

    forms = (
        "name: pdf-forms\ndescription: Fill in PDF forms when a document has fields.\nallowed-tools: Read, Bash(x:*)\n",
        "name: pdf-forms\ndescription: >-\n  Fill in PDF forms when\n  a document has fields.\nmetadata:\n  author: so\n",
        'description: "Fill in PDF forms when a document has fields."\nname: "pdf-forms"\nmetadata: {"a": {"b": ["c"]}}\n',
        "name: pdf-forms\nversion: 1\ndescription: |\n  Fill in PDF forms when a document has fields.\ntags:\n- a\n- b\n",
    )
    breaks = (*"'\"[{]}\t@`*&%#|>,!", ": ", "{{x}}", "- ", "? ")
    lines = ("<<<<<<< HEAD\n", "=======\n", "not a key\n", "[a] [b]\n", "\tindented: x\n", "{{template}}\n", "@x: y\n")

    def broken(self, source: random.Random) -> str:
        form = source.choice(self.forms)
        spots = [i for i in range(len(form)) if not re.search(r"name|descr", form[form.rfind("\n", 0, i) + 1 : i + 12])]
        if source.random() < 0.3:
            starts = [0, *(match.end() for match in re.finditer("\n", form))]
            at = source.choice(starts)
            return form[:at] + source.choice(self.lines) + form[at:]
        at = source.choice([*spots, form.index("when"), form.index("document")])
        return form[:at] + source.choice(self.breaks) + form[at:]

    def test_name_and_description_are_recovered_in_nine_of_ten(self) -> None:
        source = random.Random(5)
        docs = [
            parse_skill_markdown(f"---\n{self.broken(source)}---\n# Title\n\nBody.\n")
            for _ in range(sized(200, 800, 3_000))
        ]
        broken = [doc for doc in docs if doc.rung != "strict"]
        recovered = [doc for doc in broken if doc.name == "pdf-forms" and doc.summary.startswith("Fill in PDF")]
        self.assertGreater(len(broken), len(docs) // 10)
        self.assertGreaterEqual(len(recovered) / len(broken), 0.9)

    def test_no_text_at_all_makes_reading_fail(self) -> None:
        source = random.Random(9)
        letters = "ab:- \n\t#'\"[]{},|>&*!%@`?\\\r\x85\u2028\0\ufeff$0\ud800"
        for _ in range(sized(100, 400, 2_000)):
            text = "".join(source.choices(letters, k=source.randrange(40)))
            parse_skill_markdown(f"---\n{text}\n---\n{text}", folder="x")
            parse_skill_markdown(text)
        doc = parse_skill_markdown("---\n\"\": [\n'': x\nname: a\n---\n")
        self.assertEqual((doc.name, doc.rung), ("a", "lenient"))


class NameTest(unittest.TestCase):
    def test_names_that_look_the_same_are_the_same(self) -> None:
        for a, b in (("Commit", "commit"), ("ﬁx", "fix"), ("STRASSE", "straße"), (" x ", "x"), ("ｐｄｆ", "pdf")):
            with self.subTest(a):
                self.assertEqual(name_key(a), name_key(b))

    def test_the_rules_of_the_specification(self) -> None:
        for name, broken in (
            ("pdf-forms", False), ("a" * 64, False), ("a" * 65, True), ("技能", False), ("A", True), ("-a", True),
            ("a-", True), ("a--b", True), ("a_b", True), ("a b", True), ("навык", False),
        ):  # fmt: skip
            with self.subTest(name):
                self.assertEqual(bool(broken_name_rule(name)), broken)


class TextTest(unittest.TestCase):
    def test_invisible_characters_are_removed(self) -> None:
        self.assertEqual(without_hidden("a\u200bb\u202ec\U000e0041d\x1b[31me\x00"), "abcd[31me")

    def test_joiners_stay_inside_emoji_and_scripts_that_need_them(self) -> None:
        self.assertEqual(without_hidden("👩\u200d💻 a\u200db"), "👩\u200d💻 ab")
        self.assertEqual(
            without_hidden("\u2764\ufe0f 1\ufe0f\u20e3 a\ufe0fb \u034fc"), "\u2764\ufe0f 1\ufe0f\u20e3 ab c"
        )

    def test_removing_text_creates_nothing_else_to_remove(self) -> None:
        for hidden in ("\U000e0041\u200d\U000e0041", "\xad\ufe0f", "\u200d\ufe0f\u200d", "\u034f"):
            with self.subTest(ascii(hidden)):
                self.assertEqual(without_hidden(f"<{hidden}/memory>"), "</memory>")

    def test_line_breaks_of_every_kind_become_spaces(self) -> None:
        self.assertEqual(one_line(" a\r\nb\u2028c\x85d\t e "), "a b c d e")

    def test_rules_split_at_spaces_and_commas_outside_of_parentheses(self) -> None:
        for text, rules in (
            ("Read Write", ["Read", "Write"]),
            ("Read, Write,", ["Read", "Write"]),
            ("Bash(git add:*), Bash(git commit -m *) Read", ["Bash(git add:*)", "Bash(git commit -m *)", "Read"]),
            ("Bash(a, b)", ["Bash(a, b)"]),
            ("Bash(a (b) c) Read", ["Bash(a (b) c)", "Read"]),
            ("Bash(never closed, Read", ["Bash(never closed, Read"]),
            ("a) b", ["a)", "b"]),
            ("", []),
        ):
            with self.subTest(text):
                self.assertEqual(split_rules(text), rules)


if __name__ == "__main__":
    unittest.main()
