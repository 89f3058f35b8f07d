"""After a process dies, its subagents resume at their own step, at every depth, wherever it died."""

import asyncio
import unittest
from itertools import product

from openagentic_sdk.api import run
from openagentic_sdk.assemble import build_agent, run_request
from openagentic_sdk.events import ModelResponse, Result, SubagentFinished, SubagentStarted, ToolResult
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.kernel.prompt import Said
from openagentic_sdk.kernel.task import RunTask
from openagentic_sdk.options import AgentDefinition
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.background import answer_question, submit
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.crash import Life, Moment, World, crash_everywhere, crash_report
from openagentic_sdk.testing.part_contract import is_torn
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.session.background_tasks import TaskOutputTool
from openagentic_sdk.tools.session.task import TaskTool
from tests.size import LARGE, full_size, sized

from .support import assert_closed, options_for

SPENT = {"input_tokens": 10, "output_tokens": 1}
NAMES = ("north", "south", "digger", "diver")


def task(name, **more):
    return {"name": "Task", "arguments": {"agent": name, "prompt": f"do {name}", **more}}


def fetch(number):
    return {"name": "TaskOutput", "arguments": {"task_id": f"task_{number}", "wait_s": 60}}


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


# A lead starts two managers at once, and each manager starts a worker; all of them call `act` too.
TREE = (
    calls(task("north"), task("south")),
    calls(act(1), agent="north"), calls(task("digger"), agent="north"), says("north done", "north"),
    calls(task("diver"), act(2), agent="south"), says("south done", "south"),
    calls(look("a"), act(3), agent="digger"), says("dug", "digger"),
    calls(act(4), agent="diver"), says("dived", "diver"),
    says("All done."),
)  # fmt: skip
CHAIN = (
    calls(task("north")),
    calls(act(1), agent="north"), calls(task("digger"), agent="north"), says("north done", "north"),
    says("All done."),
)  # fmt: skip
BEHIND = (
    calls(task("north", background=True), task("digger", background=True)),
    calls(act(1), agent="north"), calls(task("diver"), agent="north"), says("north done", "north"),
    calls(act(3), agent="digger"), says("dug", "digger"),
    calls(look("b"), agent="diver"), says("dived", "diver"),
    calls(fetch(1), fetch(2)),
    says("All done."),
)  # fmt: skip
ASKING = (
    calls(task("north"), task("south")),
    calls(task("digger"), agent="north"), says("north done", "north"),
    calls(act(2), agent="south"), says("south done", "south"),
    calls(act(3), agent="digger"), says("dug", "digger"),
    says("All done."),
)  # fmt: skip


def options_of(life, turns=TREE, **changes):
    """Options for a process that starts or resumes the tree of subagents."""

    @tool(effect="read")
    async def look(text: str) -> str:
        """Look at it."""
        return text

    @tool
    async def act(number: int) -> str:
        """Take effect."""
        life.effect(f"act {number}")
        return f"acted {number}"

    agents = {name: AgentDefinition(name, f"You are {name}.", tools=("*",), max_steps=3) for name in NAMES}
    tools = [look, act, TaskTool(dict.fromkeys(NAMES, ""), background=True), TaskOutputTool()]
    provider = ScriptedProvider(turns, resumable=True)
    place = {"session_store": life.store, "session": "lead", "request_id": "lead"}
    return options_for(provider, **{"agents": agents, "tools": tools, **place, **changes})


def tree(life, turns=TREE, **changes):
    return run(prompt="go", options=options_of(life, turns, **changes))


def all_events(outcome):
    return [event for events in outcome.events.values() for event in events]


def of_type(kind, events):
    return [event for event in events if isinstance(event, kind)]


def kill_points(points):
    """The number of places at which a test kills the process; all of them in the large size."""
    # Not three: after so many attempts of a call without a result, its outcome is unknown (MAX_ATTEMPTS).
    return {"points": None, "deaths": 2} if LARGE else {"points": points}


def killed_world(behind, number=1):
    """A world in which the tree was killed right after the n-th action for which `behind` returns true."""
    first = Life(World(real=False))
    asyncio.run(tree(first))
    places = [place for place, what in enumerate(first.seen, 1) if behind(what)]
    world = World(real=False)
    life = Life(world, 1, Moment(places[number - 1], True, ""))
    try:
        asyncio.run(tree(life))
    except BaseException:  # noqa: BLE001 - a killed life may raise anything
        assert life.is_dead
    return world


def in_a_call(what):
    return "tool.started" in what and "'lead'" not in what


class EveryPointTest(unittest.TestCase):
    def judge(self, outcome, count):
        """Check that each subagent has one session and one end, and that all usage is counted once."""
        events = all_events(outcome)
        starts = [event.child_session_id for event in of_type(SubagentStarted, events)]
        self.assertEqual(len(starts), count)
        self.assertEqual(sorted(starts), sorted(event.child_session_id for event in of_type(SubagentFinished, events)))
        self.assertEqual(sorted([*starts, "lead"]), sorted(outcome.events), "there is an extra session")
        answers = [event for event in of_type(ModelResponse, events) if event.complete]
        spent = of_type(Result, outcome.events["lead"])[-1].usage
        self.assertEqual(spent["input_tokens"], 10 * len(answers))

    @full_size
    def test_a_tree_of_three_levels_continues_from_every_point_and_nothing_happens_or_is_paid_twice(self):
        def check(outcome):
            self.judge(outcome, 4)
            results = of_type(ToolResult, outcome.events["lead"])
            self.assertEqual([event.output["final_text"] for event in results], ["north done", "south done"])

        report = crash_everywhere(tree, check, **kill_points(12))
        self.assertGreaterEqual(report.points, 150 if LARGE else 12)

    @unittest.skipUnless(LARGE, "processes are killed for real in the large size, and once in test_crash")
    def test_the_tree_continues_when_its_process_is_killed_by_a_signal(self):
        crash_everywhere(tree, lambda outcome: self.judge(outcome, 4), real=True, points=60)

    @full_size
    def test_a_budget_that_ends_inside_of_a_subagent_ends_the_tree_wherever_the_process_died(self):
        """An answer cut off by the kill has no usage to log; a kill after the end counts as a separate run."""
        report = crash_report(lambda life: tree(life, CHAIN, max_tokens=30))
        last = "result in session 'lead'"
        at_the_end = [each for each in report.broken if last in str(each) and any(m.is_behind for m in each.moments)]
        self.assertEqual([each for each in report.broken if each not in at_the_end], [])

    @full_size
    def test_background_subagents_continue_under_the_ids_that_the_model_has(self):
        def check(outcome):
            self.judge(outcome, 3)
            outputs = [event.output for event in of_type(ToolResult, outcome.events["lead"])]
            fetched = [output["final_text"] for output in outputs if output["status"] == "done"]
            self.assertEqual(fetched, ["north done", "dug"])

        crash_everywhere(lambda life: tree(life, BEHIND), check, **kill_points(10))

    @full_size
    def test_several_questions_in_several_subagents_wait_and_each_answer_lets_its_own_continue(self):
        async def ask_and_answer(life):
            gate = PermissionGate(allow=["Task"])
            while True:
                result = await submit("go", options_of(life, ASKING, permission_gate=gate)).wait()
                if result.state != "waiting":
                    return result.data
                for question_id in (
                    life.store.read_summary("lead").open_questions[life.number % 2 :][:1]
                    or (life.store.read_summary("lead").open_questions[:1])
                ):
                    await answer_question(life.store, "lead", question_id, "yes")

        crash_everywhere(ask_and_answer, lambda outcome: self.judge(outcome, 3), **kill_points(10))

    def test_every_pair_of_places_in_the_logs_of_two_subagents_that_work_at_the_same_time(self):
        turns = (
            calls(task("north"), task("south")),
            *(turn for name in ("north", "south") for turn in (calls(look("x"), agent=name), says(name, name))),
            says("All done."),
        )
        whole, both_look = Life(World(real=False)), asyncio.Barrier(2)

        @tool(name="look", effect="read")
        async def look_together(text: str) -> str:
            """Look at it, and return only after both calls have begun."""
            await both_look.wait()
            return text

        asyncio.run(tree(whole, turns, tools=[look_together, TaskTool(dict.fromkeys(NAMES, ""))]))
        lead = whole.store.read_events("lead")
        children = {event.name: event.child_session_id for event in of_type(SubagentStarted, lead)}
        both = max(event.seq for event in of_type(SubagentStarted, lead))
        logs = {name: whole.store.read_events(session_id) for name, session_id in children.items()}
        # An answer is one write: a killed process has written all of it or nothing.
        ends = {
            name: [end for end in range(len(log) + 1) if end in (0, len(log)) or not is_torn(log[:end], log[end])]
            for name, log in logs.items()
        }
        pairs = list(product(ends["north"], ends["south"]))
        for north, south in pairs[:: sized(50, 20, 1)]:
            store = MemorySessionStore()
            store.import_session("lead", lead[:both], metadata=whole.store.read_metadata("lead")["metadata"])
            for name, end in (("north", north), ("south", south)):
                known = whole.store.read_metadata(children[name])["metadata"]
                store.import_session(children[name], logs[name][:end], metadata=known)
            with self.subTest(north=north, south=south):
                life = Life(World(real=False))
                result = asyncio.run(tree(life, turns, session_store=store))
                self.assertEqual((result.stop_reason, result.final_text), ("end", "All done."))
                texts = [event.output["final_text"] for event in of_type(ToolResult, store.read_events("lead"))]
                self.assertEqual(texts, ["north", "south"])
                self.assertEqual(result.usage["input_tokens"], 60)
                for name in ("lead", *children.values()):
                    assert_closed(self, store, name)

    @full_size
    def test_hooks_recorded_in_the_log_do_not_run_again_and_their_answers_count(self):
        def build(life):
            def told(payload):
                life.things.setdefault("hooks", []).append(payload["hook_point"])
                return HookDecision(additional_context="Be brief.")

            def stopped(payload):
                life.things.setdefault("hooks", []).append(payload["hook_point"])
                return HookDecision(block=True, block_reason="withheld")

            start, stop = HookMatcher("start", hook=told), HookMatcher("stop", hook=stopped)
            hooks = HookEngine(subagent_start=[start], subagent_stop=[stop])
            turns = (calls(task("north")), says("north done", "north"), says("All done."))
            return tree(life, turns, hooks=hooks)

        def check(outcome):
            (moment,) = outcome.moments or (Moment(0, True, ""),)
            twice = "hook.event" in moment.what and not moment.is_behind
            self.assertLessEqual(len(outcome.things["hooks"]), 3 if twice else 2)
            (told,) = of_type(ToolResult, outcome.events["lead"])
            self.assertIn("withheld", told.error_message)
            (child,) = (events for name, events in outcome.events.items() if name != "lead")
            self.assertEqual(sum(getattr(event, "text", "") == "Be brief." for event in child), 1)

        crash_everywhere(build, check, points=sized(5, 12, None))


class SuspendedTest(unittest.TestCase):
    """Suspending a process leaves its subagents in the same state as killing it."""

    @full_size
    def test_a_tree_that_is_suspended_at_any_event_continues(self):
        async def until(life, number, how):
            options = options_of(life)
            agent = build_agent(options)
            seen = 0
            async with await RunTask.start(agent, run_request(options, agent), Said("go")) as running:
                while await running.next_event() is not None:
                    seen += 1
                    if seen == number:
                        getattr(running, how)()
                await asyncio.wait({running._task})
            return seen

        total = asyncio.run(until(Life(World(real=False)), 0, ""))
        for number, how in product(range(1, total - 6, 1 if LARGE else 19), ("suspend", "suspend_soon")):
            world = World(real=False)
            asyncio.run(until(Life(world), number, how))
            with self.subTest(number=number, how=how):
                life = Life(world, 2)
                self.assertEqual(asyncio.run(tree(life)).final_text, "All done.")
                self.assertEqual(len(set(world.effects())), len(world.effects()))
                events = [
                    event for name in life.store.list_sessions() for event in assert_closed(self, life.store, name)
                ]
                counts = [len(of_type(kind, events)) for kind in (SubagentStarted, SubagentFinished)]
                self.assertEqual(counts, [4, 4])

    @full_size
    def test_a_person_who_interrupts_ends_the_subagents_that_were_to_continue(self):
        for number in (1, 2, 4, 9):
            world = killed_world(in_a_call, 3)
            life = Life(world, 2)

            async def interrupt(life=life, number=number):
                options = options_of(life)
                agent = build_agent(options)
                async with await RunTask.start(agent, run_request(options, agent), Said("go")) as running:
                    while await running.next_event() is not None:
                        number -= 1
                        if not number:
                            running.interrupt()
                    return await running.result()

            with self.subTest(number=number):
                self.assertEqual(asyncio.run(interrupt()).stop_reason, "interrupted")
                rows = life.store.list_session_summaries(include_children=True)
                self.assertEqual({row.state for row in rows}, {"idle"})


class LostTest(unittest.TestCase):
    """If a subagent cannot resume, the result of its call says so."""

    def lost(self, before=lambda store, session_id: None, **changes):
        life = Life(killed_world(in_a_call, 3), 2)
        sessions = {
            life.store.read_metadata(name)["metadata"].get("agent_name"): name for name in life.store.list_sessions()
        }
        kept = before(life.store, sessions["north"])
        result = asyncio.run(tree(life, **changes))
        self.assertEqual((result.stop_reason, result.final_text), ("end", "All done."))
        # The two subagents may end in either order.
        results = sorted(of_type(ToolResult, life.store.read_events("lead")), key=lambda event: event.outcome)
        self.assertEqual([event.outcome for event in results], ["ok", "unknown"])
        self.assertIn(f"subagent 'north' (session {sessions['north']})", results[1].error_message)
        ends = of_type(SubagentFinished, life.store.read_events("lead"))
        self.assertEqual(sorted(event.stop_reason for event in ends), ["end", "interrupted"])
        del kept
        return results[1].error_message

    def test_when_its_log_was_deleted(self):
        text = self.lost(lambda store, session_id: store.delete_session(session_id))
        self.assertIn("its log was deleted", text)

    def test_when_its_agent_is_no_longer_defined(self):
        others = NAMES[1:]
        agents = {name: AgentDefinition(name, f"You are {name}.", tools=("*",)) for name in others}
        tools = [TaskTool(dict.fromkeys(others, ""))]
        self.assertIn("unknown agent 'north'", self.lost(agents=agents, tools=tools))

    def test_when_another_run_holds_its_session(self):
        text = self.lost(lambda store, session_id: store.open_writer(session_id))
        self.assertIn("is in use by", text)

    def test_a_fork_leaves_the_subagents_of_its_source_alone(self):
        world = killed_world(in_a_call, 3)
        life = Life(world, 2)
        fork = fork_session(life.store, "lead")
        others = [name for name in life.store.list_sessions() if name not in ("lead", fork)]
        before = [life.store.read_events(name) for name in others]
        asyncio.run(tree(life, session=None, request_id=None, resume=fork))
        outcomes = [event.outcome for event in of_type(ToolResult, life.store.read_events(fork))]
        self.assertEqual(outcomes, ["unknown", "unknown"])
        self.assertEqual([life.store.read_events(name) for name in others], before)


if __name__ == "__main__":
    unittest.main()
