"""Which skills are active and what they allow follows from the events alone."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.events import Event, SkillActivated, UserMessage
from openagentic_sdk.serialization import event_from_dict
from openagentic_sdk.skills.activation import (
    activation_event,
    active_skills,
    drift_event,
    grantable,
    sha256_text,
    skill_policy,
)
from openagentic_sdk.skills.index import SkillInfo
from openagentic_sdk.skills.library import SkillLibrary
from openagentic_sdk.skills.parse import parse_skill_markdown
from tests.skills.support import ProjectTestCase

CASES = json.loads((Path(__file__).parents[2] / "fixtures" / "skills" / "activation.json").read_text(encoding="utf-8"))
SHORT = {
    "activate": "skill.activated",
    "deactivate": "skill.deactivated",
    "drift": "skill.drifted",
    "prompt": "user.message",
    "rewind": "session.rewound",
    "compact": "session.compacted",
}


def events_of(case: dict[str, Any]) -> list[Event]:
    """The events of a case, whose steps are `[kind, name or text or seq, more fields]`."""
    events = []
    for seq, (kind, subject, *more) in enumerate(case["events"], 1):
        field = {"prompt": "text", "rewind": "to_seq", "compact": "up_to_seq"}.get(kind, "name")
        extra = {"summary": "s"} if kind == "compact" else {}
        fields = {"type": SHORT[kind], "seq": seq, field: subject, **extra, **(more[0] if more else {})}
        events.append(event_from_dict(fields))
    return events


class CaseTest(unittest.TestCase):
    def test_every_log_leaves_what_is_written_down(self) -> None:
        for case in CASES:
            events = events_of(case)
            policy = skill_policy(events)
            with self.subTest(case["case"]):
                self.assertEqual([skill.name for skill in active_skills(events)], case["active"])
                self.assertEqual(list(policy.grants), case.get("grants", []))
                self.assertEqual(list(policy.disallowed_tools), case.get("disallowed", []))
                self.assertEqual([list(rules) for rules in policy.allowlists], case.get("only", []))


class EventTest(unittest.TestCase):
    info = SkillInfo("x", "d", "/p/.claude/skills/x/SKILL.md", scope="project", folder="x")
    doc = parse_skill_markdown(
        "---\nname: x\ndescription: d\nallowed-tools: Read, Bash(${CLAUDE_SKILL_DIR}/run:*), Bash, *\n"
        "disallowed-tools: Write, Bash({baseDir}/drop:*)\n---\nGo to {baseDir} with $ARGUMENTS.\u200b\n"
    )

    def test_the_event_holds_all_that_a_resumed_session_needs(self) -> None:
        event = activation_event(self.info, self.doc, arguments="$1 now", requested_by="user", tree_sha256="t")
        self.assertEqual(event.body, "Go to /p/.claude/skills/x with $ARGUMENTS.")
        self.assertEqual(event.body_sha256, sha256_text(event.body))
        self.assertEqual((event.arguments, event.requested_by, event.tree_sha256), ("$1 now", "user", "t"))
        self.assertEqual((event.path, event.scope), (self.info.path, "project"))
        self.assertEqual(event.disallowed_tools, ("Write", "Bash(/p/.claude/skills/x/drop:*)"))

    def test_grants_need_trust_and_never_apply_to_unknown_tools(self) -> None:
        self.assertEqual(activation_event(self.info, self.doc).grants, ())
        trusted = activation_event(self.info, self.doc, trusted=True)
        self.assertEqual(trusted.grants, ("Read", "Bash(/p/.claude/skills/x/run:*)", "Bash"))

    def test_enforced_allowed_tools_are_all_that_may_be_used(self) -> None:
        self.assertIsNone(activation_event(self.info, self.doc).allowed_only)
        allowed = ("Read", "Bash(/p/.claude/skills/x/run:*)", "Bash", "*")
        self.assertEqual(activation_event(self.info, self.doc, enforce=True).allowed_only, allowed)

    def test_rules_that_are_too_wide_are_withheld(self) -> None:
        rules = ("Read", "*", "Bash", "Bash(*)", "bash( * )", "mcp__*", "AskUserQuestion", "Bash(ls:*)", "mcp__a__b")
        granted, withheld = grantable(rules)
        self.assertEqual(granted, ("Read", "Bash", "Bash(*)", "bash( * )", "Bash(ls:*)", "mcp__a__b"))
        self.assertEqual(withheld, ("*", "mcp__*", "AskUserQuestion"))

    def test_drift_is_a_changed_or_missing_text(self) -> None:
        event = activation_event(self.info, self.doc)
        self.assertIsNone(drift_event(event, event.body))
        changed, gone = drift_event(event, "other"), drift_event(event, None)
        assert changed is not None and gone is not None
        self.assertEqual((changed.new_sha256, gone.new_sha256), (sha256_text("other"), None))


class ArgumentsTest(unittest.TestCase):
    def test_arguments_belong_to_the_turn_in_which_they_were_given(self) -> None:
        activated = SkillActivated("a", arguments="now")
        self.assertEqual([skill.arguments for skill in active_skills([activated])], ["now"])
        later = [activated, UserMessage("next"), SkillActivated("b", arguments="then")]
        self.assertEqual([skill.arguments for skill in active_skills(later)], [None, "then"])


class LibraryTest(ProjectTestCase):
    def test_an_active_skill_is_not_activated_again_unless_its_text_or_arguments_differ(self) -> None:
        path = self.skill("a")
        library = SkillLibrary()
        info = library.index(str(self.project)).find("a")
        first = library.activate(info, []).event
        assert first is not None
        self.assertIsNone(library.activate(info, [first]).event)
        self.assertIsNotNone(library.activate(info, [first], arguments="now").event)
        path.write_text("---\nname: a\ndescription: d\n---\nDo something else.\n", encoding="utf-8")
        self.assertIsNotNone(library.activate(info, [first]).event)

    def test_a_person_who_asks_again_in_the_next_turn_gets_arguments_and_grants_again(self) -> None:
        self.skill("a", allowed_tools="Read")
        for library, arguments, again in (
            (SkillLibrary(), "x", True),
            (SkillLibrary(), None, False),
            (SkillLibrary(trusts=lambda skill: True), None, True),
        ):
            info = library.index(str(self.project)).find("a")
            first = library.activate(info, [], arguments=arguments, requested_by="user").event
            assert first is not None
            asked = [UserMessage("1"), first]
            second = library.activate(info, asked, arguments=arguments, requested_by="user").event
            self.assertEqual(second is not None, again)

    def test_drift_is_found_once_and_for_lost_files_too(self) -> None:
        kept, changed, lost = self.skill("a"), self.skill("b"), self.skill("c")
        library = SkillLibrary()
        events: list[Event] = []
        for name in "abc":
            info = library.index(str(self.project)).find(name)
            event = library.activate(info, events, project_dir="/p").event
            assert event is not None
            events.append(event)
        changed.write_text("---\nname: b\n---\nOther.\n", encoding="utf-8")
        lost.unlink()
        self.assertTrue(kept.exists())
        drifts = library.find_drift(events, project_dir="/p")
        self.assertEqual([drift.name for drift in drifts], ["b", "c"])
        self.assertEqual(library.find_drift([*events, *drifts], project_dir="/p"), [])
        self.assertEqual([skill.name for skill in active_skills([*events, *drifts])], ["a", "b", "c"])


if __name__ == "__main__":
    unittest.main()
