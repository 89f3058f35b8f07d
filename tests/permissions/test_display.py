"""Text shown to a person: no control sequences, no hidden characters."""

from __future__ import annotations

import asyncio
import re
import unicodedata
import unittest

from openagentic_sdk.events import UserQuestion
from openagentic_sdk.ground.text import visible
from openagentic_sdk.permissions.display import coloured, preview
from openagentic_sdk.permissions.interactive import InteractiveApprover, question_text
from tests.size import LARGE, full_size

from .workspace import Person, WorkspaceTestCase, fixture

HIDDEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0]")


def is_harmless(text: str) -> bool:
    """Whether every character of a line is displayed as itself."""
    plain = all(letter == " " or unicodedata.category(letter)[0] not in "CZ" for letter in text)
    return plain and not HIDDEN.search(text) and " " * 41 not in text


class TerminalStrings(WorkspaceTestCase):
    def test_no_string_of_the_table_reaches_the_terminal_as_it_is(self) -> None:
        table = fixture("terminal.json")
        self.assertGreaterEqual(len(table), 40)
        for case in table:
            with self.subTest(case["about"]):
                self.assertFalse(is_harmless(case["text"]) and case["text"] == visible(case["text"]))
                self.assertTrue(is_harmless(visible(case["text"])), visible(case["text"]))

    def test_a_question_names_the_folder_of_a_command_after_a_cd_and_where_a_link_leads(self) -> None:
        person = Person()
        gate = self.gate(person)
        for cwd in ("src", "."):
            context = {"cwd": str(self.root / cwd), "session_cwd": str(self.root), "workspace_roots": [str(self.root)]}
            self.runner.run(gate.approve("Bash", {"command": "rm 'a b'"}, context))
        self.runner.run(gate.approve("Read", {"file_path": "link_file_out"}, {"cwd": str(self.root)}))
        moved, still, link = [question.details for question in person.asked]
        self.assertEqual(moved["preview"], ["$ rm 'a b'", f"(in {self.root / 'src'})"])
        self.assertEqual((still["preview"], still["reason"]), (["$ rm 'a b'"], "no rule allows: rm 'a b'"))
        self.assertEqual(
            link["reason"],
            f"{self.root}/link_file_out leads to {self.outside}/outside.txt, which is outside the workspace",
        )

    @full_size
    def test_nothing_of_the_table_gets_through_a_question_in_any_tool(self) -> None:
        for number, case in enumerate(fixture("terminal.json")):
            text = case["text"].encode("utf-8", "surrogatepass").decode("utf-8", "replace")
            inputs = [
                ("Bash", {"command": text, text: text}),
                ("Edit", {"file_path": text, "old": text, "new": text + "2"}),
                ("Write", {"file_path": "new", "content": text}),
                ("WebFetch", {"url": text}),
                (f"mcp__a__{text}", {text: text, "b": [text]}),
            ]
            # In the small size each tool is tested with a part of the table.
            for tool, input in inputs if LARGE else inputs[number % 2 :: 2]:
                with self.subTest(about=case["about"], tool=tool):
                    person = Person()
                    self.approve(self.gate(person, permission_mode="prompt"), tool, input)
                    shown = question_text(person.asked[0])
                    self.assertTrue(all(is_harmless(line) for line in shown.split("\n")), shown)

    def test_plain_text_of_any_script_stays_unchanged(self) -> None:
        for text in ("ls -la", "grüße", "日本語", "Привет", "مرحبا", "a\\b", "e\u0301", "🙂"):
            with self.subTest(text):
                self.assertEqual(visible(text), text)


class Previews(WorkspaceTestCase):
    def test_an_edit_is_shown_as_a_diff(self) -> None:
        lines = preview("Edit", {"file_path": "a.py", "old": "one\ntwo", "new": "one\nthree"}, str(self.root))
        self.assertEqual(lines, ["a.py", "@@ -1,2 +1,2 @@", " one", "-two", "+three"])

    def test_several_edits_are_all_shown(self) -> None:
        edits = [{"old": "a", "new": "b"}, {"old_string": "c", "new_string": "d", "replace_all": True}]
        lines = preview("Edit", {"file_path": "a.py", "edits": edits}, str(self.root))
        self.assertEqual([line for line in lines if line[0] in "+-("], ["-a", "+b", "-c", "+d", "(every place)"])

    def test_a_write_is_compared_with_the_file_that_is_there(self) -> None:
        (self.root / "b.txt").write_text("old\nsame\n", encoding="utf-8")
        lines = preview("Write", {"file_path": "b.txt", "content": "new\nsame\n"}, str(self.root))
        self.assertEqual(lines[2:4], ["-old", "+new"])

    def test_a_device_or_pipe_is_not_read_for_a_diff(self) -> None:
        for path in ("/dev/zero", "/proc/kmsg", "/proc/self/pagemap"):  # the last two count as regular files
            self.assertEqual(preview("Write", {"file_path": path, "content": "x"}, "/")[-1], "+x")

    def test_an_address_and_what_an_unknown_tool_gets_are_shown(self) -> None:
        self.assertEqual(preview("WebFetch", {"url": "https://a.example/x"}, "/"), ["https://a.example/x"])
        self.assertEqual(preview("Brew", {"cups": 2, "kind": "green"}, "/"), ["cups: 2", "kind: green"])

    def test_a_long_diff_states_what_it_omits(self) -> None:
        lines = preview("Write", {"file_path": "new", "content": "\n".join(map(str, range(1000)))}, str(self.root))
        self.assertIn("more lines are not shown", lines[-1])

    def test_a_command_of_several_lines_is_shown_whole(self) -> None:
        self.assertEqual(
            preview("Bash", {"command": "ls\nrm x", "timeout_s": 5}, "/"), ["$ ls", "  rm x", "(timeout_s: 5)"]
        )

    def test_colours_are_ours_alone(self) -> None:
        self.assertEqual(coloured(["+a", "-b", " c"]), ["\x1b[32m+a\x1b[0m", "\x1b[31m-b\x1b[0m", " c"])

    def test_a_change_far_down_in_a_file_is_shown_at_its_lines(self) -> None:
        before = [f"line {number}" for number in range(1, 101)]
        (self.root / "far.txt").write_text("\n".join(before), encoding="utf-8")
        after = "\n".join([*before[:49], "changed", *before[50:]])
        shown = preview("Write", {"file_path": "far.txt", "content": after}, str(self.root))
        self.assertEqual(shown[1:6], ["@@ -47,7 +47,7 @@", " line 47", " line 48", " line 49", "-line 50"])

    def test_long_texts_with_few_equal_lines_are_shown_without_comparing_every_pair(self) -> None:
        old, new = (
            "\n".join(f"{one}{number % 70}" for number in range(20_000) for one in pair) for pair in ("xa", "xb")
        )
        (self.root / "long.txt").write_text(old, encoding="utf-8")
        shown = preview("Write", {"file_path": "long.txt", "content": new}, str(self.root))
        self.assertEqual((shown[1], shown[2], len(shown)), ("@@ -2,39999 +2,39999 @@", "-a0", 404))
        self.assertEqual((shown[203], shown[-1]), ("+b0", "(39799 more lines are not shown)"))
        edits = [{"old": old[:1200], "new": new[:1200]}] * 1000
        shown = preview("MultiEdit", {"file_path": "long.txt", "edits": edits}, str(self.root))
        self.assertRegex(shown[-1], r"\d+ more edits are not shown")


class Terminal(unittest.TestCase):
    def answers(self, typed: str) -> str:
        question = UserQuestion("q", "Allow Bash?", ("yes", "no"), details={"preview": ["$ ls"]})
        return asyncio.run(InteractiveApprover(input_fn=lambda prompt: typed).answer(question))

    def test_typed_text_is_returned_without_surrounding_blanks(self) -> None:
        self.assertEqual(self.answers("  yes \n"), "yes")

    def test_the_end_of_input_is_an_empty_answer(self) -> None:
        def ends(prompt: str) -> str:
            raise EOFError

        question = UserQuestion("q", "Allow?")
        self.assertEqual(asyncio.run(InteractiveApprover(input_fn=ends).answer(question)), "")

    def test_the_prompt_shows_call_reason_offers_and_choices(self) -> None:
        details = {"preview": ["$ ls"], "reason": "no rule", "offers": ["Bash(ls)"]}
        text = question_text(UserQuestion("q", "Allow Bash?", ("yes", "no"), details=details))
        self.assertEqual(text, "Allow Bash?\n$ ls\nasked because no rule\nalways: Bash(ls)\n[yes/no] ")


if __name__ == "__main__":
    unittest.main()
