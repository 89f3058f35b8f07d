"""Notices for people: one line per reason, with its places, and none for anything without effect on a run."""

from __future__ import annotations

import unittest

from openagentic_sdk.ground.diagnostic import Diagnostic
from openagentic_sdk.parts.project.notices import for_a_run, grouped
from openagentic_sdk.skills.ledger import word_notes
from tests.skills.support import RunTestCase


class Grouping(unittest.TestCase):
    def test_findings_of_one_reason_are_one_line_with_their_places_and_how_many_there_are(self) -> None:
        notes = [Diagnostic("c", "memory has no effect here: x", 4, f"/p/agents/{name}.md") for name in "abcde"]
        (one,) = grouped(notes)
        self.assertEqual(
            one.located,
            "memory has no effect here: x (5 places in /p/agents: a.md:4, b.md:4, c.md:4 and 2 more)",
        )
        self.assertEqual(grouped(notes[:1]), notes[:1])

    def test_findings_whose_sentences_differ_in_a_name_are_one_line_with_the_names(self) -> None:
        rule = "the allow rule {0!r} is not understood and is left out: {1}"
        notes = [
            Diagnostic("rule-not-understood", rule.format(text, why), line, "/p/s.json", is_error=True)
            for line, (text, why) in enumerate(
                [("Edit:*", "odd"), ("done", "a word"), ("Bash:*", "odd"), ("{x}", "odd")], 1
            )
        ]
        self.assertEqual(
            [note.located for note in grouped(notes)],
            [
                "/p/s.json:1: the allow rules 'Edit:*', 'Bash:*', '{x}' are not understood, and each is left out: odd "
                "(lines 1, 3, 4)",
                "/p/s.json:2: the allow rule 'done' is not understood and is left out: a word",
            ],
        )

    def test_servers_that_wait_are_one_line_however_many_there_are(self) -> None:
        text = "the server {0!r} is not started: nobody has approved it yet: look at it and agree with `... {0}`"
        notes = [Diagnostic("mcp-pending", text.format(f"s{n}"), path="/p/.mcp.json") for n in range(20)]
        (one,) = grouped(notes)
        self.assertTrue(one.message.startswith("the servers 's0', 's1', "), one.message)
        self.assertIn("'s11' and 8 more are not started", one.message)
        self.assertIn("`openagentic-sdk mcp trust NAME`", one.message)

    def test_words_that_change_nothing_of_a_run_are_silent_or_one_line(self) -> None:
        notes = word_notes("setting", ["statusLine", "theme", "ourOwn", "apiKeyHelper"], "settings-key")
        said = [note.message for note in for_a_run(notes, "settings")]
        self.assertEqual(len(said), 2)
        self.assertIn("apiKeyHelper has no effect here: pass the key", said[0])
        self.assertIn("use statusLine, theme: `openagentic-sdk doctor --project`", said[1])
        self.assertEqual(for_a_run(word_notes("agent", ["color", "category", "initialPrompt"]), "agents"), [])


class NoticesOfARun(RunTestCase):
    def test_a_project_with_hundreds_of_files_gets_one_notice_for_each_reason(self) -> None:
        self.write(
            {
                f".claude/agents/a{n}.md": f"---\nname: a{n}\ndescription: d\nmemory: user\ncolor: red\nteam: x\n---\nDo."
                for n in range(150)
            }
        )
        self.write(
            {
                f".claude/commands/c{n}.md": f"---\ndescription: c\ncategory: x\nhooks: y\n---\nDo {n}."
                for n in range(150)
            }
        )
        result = self.run_script("Done.")
        said = [event.message for event in result.events if event.type == "system.notice"]
        self.assertEqual(len(said), 2, said)
        self.assertIn("150 places", said[0])
        again = self.run_script("Done.", resume=result.session_id)
        self.assertEqual([event for event in again.events if event.type == "system.notice"], [])
