"""The contract of parts with state: the page's examples and three parts of the package pass it, and a broken one fails."""

import io
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.assemble import build_agent
from openagentic_sdk.parts.budgets import Budgets
from openagentic_sdk.parts.claude.project import ProjectPart
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.parts.tool_search import DeferredTools
from openagentic_sdk.sessions.folds.features.all import LoadedToolsFold
from openagentic_sdk.sessions.folds.features.skills import SkillsFold
from openagentic_sdk.skills.activation import active_skills
from openagentic_sdk.testing import part_contract
from openagentic_sdk.tools.function import tool
from tests.runtime.support import echo, options_for
from tests.size import full_size

from .test_custom import Tally

ECHOES = [
    {"text": "x" * 2000, "tool_calls": [{"name": "echo", "arguments": {"text": text}} for text in texts]}
    for texts in (["one"], ["two", "three"], ["four"])
]

WORDS = "kettle saucer spoon filter grinder scale timer apron towel tray lemon sugar"


def many_tools():
    """More tools than a model is shown at once."""

    def make(word):
        @tool(name=word, effect="read")
        async def one(text: str = "") -> str:
            """Return the text. This sentence is long so that the definitions of all tools are larger than is allowed."""
            return text

        return one

    return [echo, *map(make, WORDS.split())]


class TallyTest(part_contract.PartContract):
    """A part that counts in `see_prompt` and `see_result`."""

    part = Tally
    turns = (*ECHOES, "Done.")

    def make_agent(self, provider, store):
        return build_agent(options_for(provider, session_store=store, parts=[Tally]))

    async def test_the_state_counts_everything_once(self):
        self.assertEqual(self.state, {"prompts": 1, "results": 4})


class BudgetsTest(part_contract.PartContract):
    """A part of the package: the spending of a session."""

    part = Budgets
    turns = tuple(
        {**turn, "usage": {"input_tokens": 100, "output_tokens": 10}} for turn in (*ECHOES, {"text": "Done."})
    )

    def make_agent(self, provider, store):
        return build_agent(options_for(provider, session_store=store, max_tokens=100_000))

    def state_of(self, part):
        return {"tokens": part._budget.tokens, "cost_usd": part._budget.cost_usd}

    async def test_a_compaction_leaves_the_state(self):
        """A compaction adds to the costs."""

    async def test_a_fork_has_the_state(self):
        """Whatever was copied has been paid by the source session."""
        fork = fork_session(self.store, self.session_id)
        _, state = await self._play(self.store, (), None, resume=fork)
        self.assertEqual(state["tokens"], 0)


class SkillsTest(part_contract.PartContract):
    """A part of the package: the active skills."""

    part = ProjectPart
    turns = (
        {"text": "x" * 2000, "tool_calls": [{"name": "SkillActivate", "arguments": {"name": "brewing"}}]},
        *ECHOES,
        "Done.",
    )

    def make_agent(self, provider, store):
        if not hasattr(self, "folder"):
            self.folder = self.enterContext(tempfile.TemporaryDirectory())
            skill = Path(self.folder, ".claude", "skills", "brewing", "SKILL.md")
            skill.parent.mkdir(parents=True)
            skill.write_text("---\nname: brewing\ndescription: Brew tea.\n---\nBoil water first.\n")
        options = options_for(provider, session_store=store, cwd=self.folder, setting_sources=("project",), tools=None)
        tools = [*build_agent(options).tools, echo]
        return build_agent(
            options_for(provider, session_store=store, cwd=self.folder, setting_sources=("project",), tools=tools)
        )

    def state_of(self, part):
        return [skill.name for skill in active_skills(part.run.view.fold(SkillsFold).events)]


class DeferredToolsTest(part_contract.PartContract):
    """A part of the package: the deferred tools that the model has found."""

    part = DeferredTools
    turns = (
        {"text": "x" * 2000, "tool_calls": [{"name": "ToolSearch", "arguments": {"query": "kettle"}}]},
        {"text": "x" * 2000, "tool_calls": [{"name": "apron", "arguments": {}}]},
        *ECHOES,
        "Done.",
    )

    def make_agent(self, provider, store):
        return build_agent(options_for(provider, session_store=store, tools=many_tools(), max_context_tokens=8_000))

    def state_of(self, part):
        return sorted(part.run.view.fold(LoadedToolsFold).names)

    async def test_the_facts_are_the_same_object_until_the_tools_change(self):
        """Other facts would be compared with all that the model has read, before each step."""
        found = []
        self.state_of = lambda part: found.append((part, part.facts()))
        await self._play(self.store, (), None, resume=self.session_id)
        (part, facts), *_ = found
        self.assertIn("spoon", facts["tools:"])
        part.update()
        self.assertIs(part.facts(), facts)


# Some thirty runs each; in the small size, the tally alone shows that the contract passes.
for _kind in (BudgetsTest, SkillsTest, DeferredToolsTest):
    _name = "test_wherever_a_run_is_killed_it_ends_with_the_same_state_when_it_is_resumed"
    setattr(_kind, _name, full_size(getattr(_kind, _name)))
del _kind, _name


class BrokenPartsTest(unittest.TestCase):
    """The contract detects whatever a part must not do."""

    def failed_tests(self, **wrong):
        kind = type("Wrong", (Tally,), wrong)

        class WrongTest(part_contract.PartContract):
            part = kind
            turns = TallyTest.turns

            def make_agent(self, provider, store):
                return build_agent(options_for(provider, session_store=store, parts=[kind]))

        suite = unittest.defaultTestLoader.loadTestsFromTestCase(WrongTest)
        outcome = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
        failed = [test for test, _ in (*outcome.failures, *outcome.errors)]
        return {getattr(test, "test_case", test)._testMethodName for test in failed}

    @full_size
    def test_a_part_that_forgets_what_it_kept_fails(self):
        failed = self.failed_tests(restore=lambda self, state, version: None)
        self.assertIn("test_wherever_a_run_is_killed_it_ends_with_the_same_state_when_it_is_resumed", failed)
        self.assertIn("test_a_fork_has_the_state", failed)

    @full_size
    def test_a_part_whose_state_lives_in_the_process_fails(self):
        def see_result(self, result):
            type(self).seen = getattr(type(self), "seen", 0) + 1
            self.counts["results"] = type(self).seen

        failed = self.failed_tests(see_result=see_result)
        self.assertIn("test_wherever_a_run_is_killed_it_ends_with_the_same_state_when_it_is_resumed", failed)

    @full_size
    def test_a_part_that_counts_what_a_process_does_twice_fails(self):
        def before_step(self):
            self.counts["results"] += 1

        failed = self.failed_tests(before_step=before_step)
        self.assertIn("test_wherever_a_run_is_killed_it_ends_with_the_same_state_when_it_is_resumed", failed)

    @full_size
    def test_a_part_without_a_state_has_nothing_to_test(self):
        failed = self.failed_tests(state=lambda self: None)
        self.assertIn("test_the_run_comes_to_its_end_and_the_part_has_a_state_that_is_json", failed)


if __name__ == "__main__":
    unittest.main()
