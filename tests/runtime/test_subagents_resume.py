"""Subagents of a killed process go on at their own step, at every depth, wherever it died."""

import unittest

from openagentic_sdk.api import run
from openagentic_sdk.events import ModelResponse, Result, SubagentFinished, SubagentStarted, ToolResult
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.testing.crash import crash_everywhere
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.background_tasks import TaskOutputTool
from openagentic_sdk.tools.session.task import TaskTool
from tests.size import LARGE

from .support import options_for

SPENT = {"input_tokens": 10, "output_tokens": 1}


def task(name, **more):
    return {"name": "Task", "arguments": {"agent": name, "prompt": f"do {name}", **more}}


def calls(*made, agent=None):
    turn = {"tool_calls": list(made), "usage": SPENT}
    return {**turn, "agent": f"You are {agent}."} if agent else turn


def says(text, agent=None):
    turn = {"text": text, "usage": SPENT, "deltas": 0}
    return {**turn, "agent": f"You are {agent}."} if agent else turn


def act(number):
    return {"name": "act", "arguments": {"number": number}}


def look(text):
    return {"name": "look", "arguments": {"text": text}}


# A lead starts two managers at once, and each of these a worker; everybody acts too.
TREE = (
    calls(task("north"), task("south")),
    calls(act(1), agent="north"), calls(task("digger"), agent="north"), says("north done", "north"),
    calls(task("diver"), act(2), agent="south"), says("south done", "south"),
    calls(look("a"), act(3), agent="digger"), says("dug", "digger"),
    calls(act(4), agent="diver"), says("dived", "diver"),
    says("All done."),
)  # fmt: skip


def tree(life, turns=TREE, **changes):
    """What a process does that starts the tree, or goes on with it."""

    @tool(effect="read")
    async def look(text: str) -> str:
        """Look at it."""
        return text

    @tool
    async def act(number: int) -> str:
        """Take effect."""
        life.effect(f"act {number}")
        return f"acted {number}"

    names = ("north", "south", "digger", "diver")
    agents = {name: AgentDefinition(name, f"You are {name}.", tools=("*",)) for name in names}
    tools = [look, act, TaskTool(dict.fromkeys(names, ""), background=True), TaskOutputTool()]
    provider = ScriptedProvider(turns, resumable=True)
    settings = {"agents": agents, "tools": tools, "session_store": life.store, "session": "lead", "request_id": "lead"}
    return run(prompt="go", options=options_for(provider, **{**settings, **changes}))


class EveryPointTest(unittest.TestCase):
    def judge(self, outcome):
        """One session each, one end each, every answer paid once and counted once, and what they gave back in the parent."""
        everything = [event for events in outcome.events.values() for event in events]
        starts = [event.child_session_id for event in everything if isinstance(event, SubagentStarted)]
        ends = [event.child_session_id for event in everything if isinstance(event, SubagentFinished)]
        self.assertEqual(sorted(starts), sorted(ends))
        self.assertEqual(sorted([*starts, "lead"]), sorted(outcome.events), "no session is left over")
        results = [event for event in everything if isinstance(event, ToolResult) and "Task" in event.tool_use_id]
        answers = [event for event in everything if isinstance(event, ModelResponse) and event.complete]
        spent = [event for event in outcome.events["lead"] if isinstance(event, Result)][-1].usage
        self.assertEqual(spent["input_tokens"], 10 * len(answers))
        return results

    def test_a_tree_of_three_levels_goes_on_from_every_point_without_losing_a_call_an_answer_or_a_cent(self):
        def check(outcome):
            self.judge(outcome)
            told = [event for event in outcome.events["lead"] if isinstance(event, ToolResult)]
            self.assertEqual([event.output["final_text"] for event in told], ["north done", "south done"])
            self.assertEqual(outcome.result.final_text, "All done.")

        report = crash_everywhere(tree, check, points=None if LARGE else 30, deaths=3 if LARGE else 1)
        self.assertGreaterEqual(report.points, 150 if LARGE else 30)


if __name__ == "__main__":
    unittest.main()
