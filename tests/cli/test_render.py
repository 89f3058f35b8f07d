"""Events as lines for people."""

from __future__ import annotations

import io
import unittest
from collections.abc import Iterable
from pathlib import Path

from openagentic_sdk.cli.output.render import EventPrinter, closing_line, seconds
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.events import (
    AssistantDelta,
    AssistantMessage,
    Event,
    ModelRetry,
    Result,
    SessionCompacted,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    TodoUpdated,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.parts.record.folds.notes import describe_input

from .test_terminal import Terminal

INIT = SystemInit("s1", "/work", "0")


def printed(events: Iterable[Event], *, transcript: bool = False, out: io.StringIO | None = None) -> str:
    """The printer's output for these events, without colours."""
    out = out or io.StringIO()
    printer = EventPrinter(Screen(out, colour=False), transcript=transcript)
    for event in events:
        printer.show(event)
    return out.getvalue()


def read_call(use_id: str = "c1", path: str = "/work/a.txt", **envelope: str) -> list[Event]:
    """The events of a call from its request to its start."""
    return [
        ToolUse(use_id, "Read", {"file_path": path}, **envelope),
        ToolStarted(use_id, "Read", "read", "0" * 64, "key", **envelope),
    ]


class Text(unittest.TestCase):
    def test_streamed_text_is_shown_once(self) -> None:
        events = [AssistantDelta("Hel"), AssistantDelta("lo"), AssistantMessage("Hello")]
        self.assertEqual(printed(events), "Hello\n")

    def test_text_that_was_not_streamed_is_shown_whole(self) -> None:
        self.assertEqual(printed([AssistantMessage("Hello")]), "Hello\n")

    def test_an_answer_without_text_shows_nothing(self) -> None:
        self.assertEqual(printed([AssistantMessage("")]), "")

    def test_escape_sequences_of_a_model_do_not_reach_the_terminal(self) -> None:
        self.assertEqual(printed([AssistantDelta("\x1b[2J"), AssistantMessage("\x1b[2J")]), "\\x1b[2J\n")

    def test_a_truncated_answer_is_marked_as_truncated(self) -> None:
        self.assertIn("was cut", printed([AssistantDelta("Hal"), AssistantMessage("Hal", incomplete=True)]))

    def test_a_transcript_shows_prompts_and_answers_to_questions(self) -> None:
        events = [UserMessage("Do\nit"), UserQuestion("q", "Really?", ("yes", "no")), UserAnswer("q", "yes")]
        self.assertEqual(printed(events, transcript=True), "> Do\n  it\n? Really? (yes / no)\n  user: yes\n")
        self.assertEqual(printed(events), "")

    def test_a_retry_prints_its_reason_and_its_delay(self) -> None:
        self.assertEqual(printed([ModelRetry(1, 2, "busy", 1.5)]), "trying again in 1.5 s: busy\n")

    def test_a_transcript_shows_the_whole_summary_of_a_compaction(self) -> None:
        event = SessionCompacted(7, "Wanted: tea.\nDone: \x1b[2J nothing.")
        line = "  the conversation up to event 7 was summarized (model)\n"
        self.assertEqual(printed([event]), line)
        shown = printed([event], transcript=True)
        self.assertEqual(shown, f"{line}    Wanted: tea.\n    Done: \\x1b[2J nothing.\n")


class Calls(unittest.TestCase):
    def test_a_call_is_one_line_with_outcome_and_duration(self) -> None:
        events = [INIT, *read_call(), ToolResult("c1", "text", duration_s=0.0042)]
        self.assertEqual(printed(events), "  [Read] a.txt - ok, 4 ms\n")

    def test_a_failed_call_prints_its_reason_on_the_same_line(self) -> None:
        result = ToolResult("c1", None, True, "ValueError", "two\nlines", outcome="error", duration_s=2)
        self.assertEqual(printed([INIT, *read_call(), result]), "  [Read] a.txt - error, 2.0 s: two\\nlines\n")

    def test_a_terminal_shows_the_call_before_its_outcome(self) -> None:
        events = [INIT, *read_call()]
        self.assertEqual(printed(events, out=Terminal()), "  [Read] a.txt")
        done = [*events, ToolResult("c1", "text", duration_s=0.001)]
        self.assertEqual(printed(done, out=Terminal()), "  [Read] a.txt - ok, 1 ms\n")

    def test_calls_that_run_side_by_side_each_get_a_whole_line(self) -> None:
        started = [*read_call("c1", "/work/a"), *read_call("c2", "/work/b")]
        ended = [ToolResult("c1", "x", duration_s=0), ToolResult("c2", "x", duration_s=0)]
        shown = printed([INIT, *started, *ended], out=Terminal())
        self.assertEqual(shown.splitlines()[-2:], ["  [Read] a - ok, 0 ms", "  [Read] b - ok, 0 ms"])

    def test_arguments_of_a_call_cannot_command_the_terminal(self) -> None:
        events = [ToolUse("c", "Bash\x1b[2J", {"command": "ls\x1b[2J\nrm x"}), ToolResult("c", None)]
        self.assertEqual(printed(events), "  [Bash\\x1b[2J] ls\\x1b[2J\\nrm x - ok\n")

    def test_a_result_without_its_call_is_shown_too(self) -> None:
        self.assertEqual(printed([ToolResult("c9", None)]), "  [call c9] - ok\n")

    def test_the_telling_argument_of_a_call_is_shown(self) -> None:
        table = [
            ("Grep", {"file_glob": "*.py", "query": "TODO"}, "TODO"),
            ("Read", {"file_path": "/work/src/a.py"}, "src/a.py"),
            ("Read", {"file_path": "/workshop/a.py"}, "/workshop/a.py"),
            ("Mine", {"count": 3, "name": "x"}, "x"),
            ("Mine", {"count": 3, "deep": True}, "count: 3, deep: true"),
            ("TodoWrite", {"todos": [{}, {}]}, "todos: 2 items"),
            ("Mine", {}, ""),
            ("Bash", {"command": "x" * 200}, "x" * 97 + "..."),
        ]
        for name, arguments, shown in table:
            with self.subTest(name=name, arguments=arguments):
                self.assertEqual(describe_input(name, arguments, "/work"), shown)


class Subagents(unittest.TestCase):
    def test_the_output_of_a_subagent_is_indented_under_its_call(self) -> None:
        inside = {"parent_tool_use_id": "t1", "agent_name": "reader"}
        events = [
            INIT,
            ToolUse("t1", "Task", {"agent": "reader", "prompt": "look"}),
            SubagentStarted("t1", "reader", "s2", "look"),
            AssistantDelta("str", **inside),
            *read_call("c1", "/work/a.txt", **inside),
            ToolResult("c1", "text", duration_s=0, **inside),
            AssistantMessage("Found\nit.", **inside),
            SubagentFinished("t1", "reader", "s2", "end"),
            ToolResult("t1", "Found it.", duration_s=0),
        ]
        self.assertEqual(
            printed(events).splitlines(),
            [
                "  subagent reader begins in session s2: look",
                "      [Read] a.txt - ok, 0 ms",
                "    reader: Found",
                "    it.",
                "  subagent reader ends",
                "  [Task] reader - ok, 0 ms",
            ],
        )


class Lists(unittest.TestCase):
    def test_a_to_do_list_shows_what_is_done_and_what_is_not(self) -> None:
        todos = [
            {"content": "one", "status": "completed"},
            {"content": "two", "status": "in_progress"},
            {"content": "three", "status": "pending"},
        ]
        lines = ["  To do, 1 of 3 done", "    [x] one", "    [>] two", "    [ ] three"]
        self.assertEqual(printed([TodoUpdated(todos)]).splitlines(), lines)


class Closing(unittest.TestCase):
    def test_the_closing_line_names_session_steps_tokens_cost_and_time(self) -> None:
        usage = {"input_tokens": 1234, "output_tokens": 56}
        result = Result("x", "s1", "end", usage=usage, cost_usd=0.0123, steps=3, duration_s=1.25)
        self.assertEqual(closing_line(result), "Ended: session s1, 3 steps, 1,234 + 56 tokens, $0.0123, 1.2 s")

    def test_unknown_figures_are_not_printed_as_zero(self) -> None:
        self.assertEqual(
            closing_line(Result("x", "s1", "end", steps=1)), "Ended: session s1, 1 step, tokens unknown, cost unknown"
        )

    def test_a_run_that_stopped_early_prints_how_to_continue(self) -> None:
        for reason in ("max_steps", "timeout", "budget", "interrupted", "blocked:stop"):
            with self.subTest(reason):
                line = closing_line(Result("", "s1", reason))
                self.assertIn(reason, line)
                self.assertIn("--resume s1", line)

    def test_a_failed_run_prints_what_failed(self) -> None:
        result = Result("", "s1", "error", error_type="X", error_message="no route\x1b[2J", saved=False)
        self.assertIn("no route\\x1b[2J (events of this run could not be stored)", closing_line(result))

    def test_durations_are_printed_in_everyday_units(self) -> None:
        table = {0.0004: "0 ms", 0.25: "250 ms", 0.9996: "1.0 s", 12.34: "12.3 s", 125.0: "2 min 5 s"}
        for duration_s, shown in table.items():
            with self.subTest(duration_s):
                self.assertEqual(seconds(duration_s), shown)


class Kinds(unittest.TestCase):
    def test_every_kind_of_event_can_be_printed(self) -> None:
        from openagentic_sdk.serialization import loads_event

        logs = Path(__file__).parents[2] / "fixtures" / "logs"
        for log in logs.glob("*/events.jsonl"):
            with self.subTest(log.parent.name):
                events = [loads_event(line, strict=False) for line in log.read_bytes().splitlines()]
                self.assertTrue(printed(events, transcript=True).endswith("\n"))


if __name__ == "__main__":
    unittest.main()
