"""A run as a person watches it: answers rendered as they come, calls that end in one line each, and a status below.

Finished items are above and never change; current ones are in the rows below: running calls, the to-do list, the elapsed
time, the cost and how to stop it. Subagents are folded into the row of the call that started them.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Any

from ...events import (
    AssistantDelta,
    AssistantMessage,
    Event,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    ReasoningDelta,
    Result,
    SystemInit,
    TodoUpdated,
    ToolProgress,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.frozen import mutable
from ...ground.text import on_one_line, printable
from ...parts.masking import shown
from ...parts.record.folds.notes import MAX_ERROR_CHARS, describe_input, printed_by_plan, progress_words
from ...sessions.folds.usage import add_cost, normalize_usage
from ...sessions.rebuild import describe_attachment
from ..output.diffs import shown_diff
from ..output.render import EventPrinter, cost_words, seconds
from ..output.terminal import Screen
from ..output.widths import shortened, text_width, wrapped
from .markdown import Markdown

TAIL_LINES = 5
MAX_TODO_ROWS = 8
# How many characters of a session's random id are shown: every command accepts the start of an id.
SHOWN_ID_LETTERS = 8
# While text streams, the rows below are drawn at most this often.
DRAW_EVERY_S = 0.1
# Streamed text is written at most this often, as a model may send it letter by letter; `tick` writes the rest.
WRITE_EVERY_S = 0.02
MAX_KEPT_CALLS = 200
MAX_KEPT_CHARS = 1 << 20
MAX_DIFF_BYTES = 512 * 1024
_MARKS = {"ok": ("✓", "green"), "error": ("✗", "red"), "denied": ("⊘", "yellow"), "cancelled": ("■", "yellow")}
_BOXES = {"completed": "☑", "in_progress": "▶"}


@mutable
class _LiveCall:
    """A running call: its number for `/show`, a file's text `before` Write or Edit, and its subagents' activity so far."""

    number: int
    use: ToolUse
    began: float
    before: str | None = None
    calls: int = 0
    doing: str = ""


@mutable
class _Status:
    """The contents of the status row, and the to-do list. `phase` is what the run is doing or waiting for."""

    began: float
    phase: str = "starting"
    is_asked: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    todos: list[dict[str, Any]] = field(default_factory=list)


class LivePrinter(EventPrinter):
    """A printer of runs on a terminal, one after the other. Call `tick` regularly: it redraws the rows below the text.
    `hint` explains how to stop or steer a run.

    `outputs` are the newest calls with their full output, for `/show N`; their numbers continue from turn to turn.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        outputs: CallOutputs | None = None,
        hint: str = "ctrl-c interrupts",
        window: int | None = None,
    ) -> None:
        super().__init__(screen, window=window)
        self.outputs = outputs or CallOutputs()
        self.footer: list[str] = []
        self._hint = hint
        self._markdown: Markdown | None = None
        self._running: dict[str, _LiveCall] = {}
        self._roots: dict[str, str] = {}  # by a subagent's call, the main agent's call to which it belongs
        self._status: _Status | None = None
        self._draw_at = self._write_at = 0.0
        self._coming: list[str] = []
        self._agreed: str | None = None  # the call that was asked about last, and was not changed by the answer

    def show(self, event: Event) -> None:
        """Print one event, or only count it if it is a subagent's."""
        event = shown(event, self._redactor)
        self.meter.take(event)
        act = _ACTS.get(event.type)
        if self._coming and not isinstance(event, AssistantDelta):
            self._write_coming()
        if event.parent_tool_use_id is not None:
            # Count what a subagent does for the row of the call that started it.
            root = self._roots.get(event.parent_tool_use_id, event.parent_tool_use_id)
            call = self._running.get(root)
            if isinstance(event, ToolUse):
                self._uses[event.tool_use_id] = event
                self._roots[event.tool_use_id] = root
                if call is not None:
                    call.calls += 1
                    call.doing = f"{on_one_line(event.name)} {describe_input(event.name, event.input, self._cwd)}"
            elif isinstance(event, ModelResponse):
                self._spend(event)
        elif act is not None:
            act(self, event)
        else:
            super().show(event)
        if event.seq is not None or time.monotonic() >= self._draw_at:
            self.tick()

    def tick(self) -> None:
        """Write the text that has arrived, and redraw the rows below it."""
        if self._coming:
            self._write_coming()
        self._draw_at = time.monotonic() + DRAW_EVERY_S
        self._screen.show_below([*self._rows(), *self.footer])

    @property
    def cwd(self) -> str:
        """The working directory of the run shown last; empty before the first."""
        return self._cwd

    def pause(self) -> None:
        """Remove the rows below the text before something else writes."""
        self._screen.show_below([])

    # --- finished items ----------------------------------------------------------------------------------------------

    def _begin(self, event: SystemInit) -> None:
        self._cwd = event.cwd
        self._status = _Status(time.monotonic())
        if not self.outputs.has_greeted:
            self.outputs.has_greeted = True
            home = os.path.expanduser("~")
            folder = (
                "~" + event.cwd[len(home) :] if event.cwd == home or event.cwd.startswith(home + "/") else event.cwd
            )
            about = (event.model, folder, event.permission_mode, f"session {event.session_id[:SHOWN_ID_LETTERS]}")
            self._line(" · ".join(on_one_line(part) for part in about if part), "dim")

    def _line(self, text: str, style: str | None = None, depth: int = 0) -> None:
        for row in wrapped(text, self._screen.width - 1):
            super()._line(row, style, depth)

    def _show_prompt(self, event: UserMessage) -> None:
        """Show a prompt that was not typed here; a typed one is already on the screen."""
        if event.origin not in ("user", "steering"):
            self._prompt(event)

    def _stream(self, event: AssistantDelta) -> None:
        if event.text_delta:
            if self._markdown is None:
                self._screen.line("")
                self._markdown = Markdown(self._screen.styled, lambda: self._screen.width)
                self._phase("writing")
            self._coming.append(event.text_delta)
            if (now := time.monotonic()) >= self._write_at:
                self._write_at = now + WRITE_EVERY_S
                self._write_coming()

    def _write_coming(self) -> None:
        text = self._settled("".join(self._coming))
        self._coming.clear()
        if self._markdown is not None:
            self._screen.write(self._markdown.feed(text))

    def _text(self, event: AssistantMessage) -> None:
        if self._markdown is None and event.text:
            self._stream(AssistantDelta(event.text))
        self._end_text()
        if event.incomplete:
            self._line("(the answer was cut here)", "yellow")

    def _end_text(self) -> None:
        self._write_coming()
        markdown, self._markdown = self._markdown, None
        if markdown is not None:
            self._screen.write(markdown.feed(self._settled("", is_whole=True)) + markdown.close())
            self._screen.end_line()

    def _call_begins(self, event: ToolStarted) -> None:
        use = self._uses.get(event.tool_use_id)
        if use is not None:
            call = _LiveCall(self.outputs.next_number(), use, time.monotonic())
            if use.name in ("Write", "Edit"):
                call.before = text_of(self._path(use))
            self._running[event.tool_use_id] = call

    def _call_ends(self, event: ToolResult) -> None:
        call = self._running.pop(event.tool_use_id, None)
        use = self._uses.get(event.tool_use_id)
        if use is not None and use.name == "TodoWrite" and event.outcome == "ok":
            return  # the list itself is shown below
        name = on_one_line(use.name, 80) if use else f"call {on_one_line(event.tool_use_id)}"
        about = describe_input(use.name, use.input, self._cwd) if use else ""
        mark, style = _MARKS.get(event.outcome, ("?", "yellow"))
        styled = self._screen.styled
        took = f" {seconds(event.duration_s)}" if event.duration_s is not None and event.duration_s >= 0.1 else ""
        folded = f" ({call.calls} calls)" if call is not None and call.calls else ""
        number = self.outputs.keep(call.number if call else None, f"{name} {about}".strip(), event)
        suffix = f"{folded}{took} [{number}]"
        room = self._screen.width - len(name) - text_width(suffix) - 4
        shown_about = shortened(on_one_line(about, 1_000), room) if room > 3 else ""
        self._line(f"{styled(mark, style)} {styled(name, 'bold')} {shown_about}{styled(suffix, 'dim')}")
        if event.error_message:
            self._line(
                f"    {on_one_line(event.error_message, MAX_ERROR_CHARS)}", "red" if style == "red" else "yellow"
            )
        for row in self._details(call, event, number):
            self._line(row)
        if printed := printed_by_plan(event):
            self._line(printable(printed))

    def _details(self, call: _LiveCall | None, event: ToolResult, number: int) -> list[str]:
        """The rows below a call: the end of a command's output, or the changes of a file."""
        if call is None or event.output is None:
            return []
        if call.use.name == "Bash":
            text = self.outputs.text(number) or ""
            lines = text.rstrip("\n").split("\n") if text.strip() else []
            styled = self._screen.styled
            room = self._screen.width - 5
            rows = [styled(f"    {shortened(on_one_line(line, 1_000), room)}", "dim") for line in lines[-TAIL_LINES:]]
            if len(lines) > TAIL_LINES:
                above = "1 line" if len(lines) == TAIL_LINES + 1 else f"{len(lines) - TAIL_LINES} lines"
                rows.insert(0, styled(f"    … {above} above: /show {number}", "dim"))
            return rows
        if self._agreed == event.tool_use_id:
            return []  # it was shown when it was asked about
        if call.use.name in ("Write", "Edit") and not event.is_error:
            after = text_of(self._path(call.use))
            if after is not None and call.before is not None:
                return shown_diff(call.before, after, self._screen)
        return []

    def _path(self, use: ToolUse) -> str:
        return os.path.join(self._cwd, str(use.input.get("file_path", "")))

    def _finish(self, event: Result) -> None:
        todos = self._status.todos if self._status else []
        if any(todo.get("status") != "completed" for todo in todos):
            for row in self._todo_rows(todos):
                self._line(row)
        self._status = None
        self._running.clear()
        self._close(event, SHOWN_ID_LETTERS)

    # --- current items -----------------------------------------------------------------------------------------------

    def _on_progress(self, event: ToolProgress) -> None:
        call = self._running.get(event.tool_use_id)
        if call is not None:
            call.doing = progress_words(event)

    def _phase(self, phase: str) -> None:
        if self._status is not None:
            self._status.phase = phase

    def _spend(self, event: ModelResponse) -> None:
        status, tokens = self._status, normalize_usage(event.usage)
        if status is None:
            return
        if tokens:
            status.input_tokens += tokens["input_tokens"]
            status.output_tokens += tokens["output_tokens"]
        status.cost_usd = add_cost(status.cost_usd, event.cost_usd)

    def _rows(self) -> list[str]:
        status, styled = self._status, self._screen.styled
        if status is None:
            return []
        rows = []
        for call in self._running.values():
            about = describe_input(call.use.name, call.use.input, self._cwd)
            what = f"{styled('●', 'cyan')} {styled(on_one_line(call.use.name), 'bold')} {about}"
            inner = f" · {call.calls} calls" if call.calls else ""
            inner += f" · {call.doing}" if call.doing else ""
            rows.append(f"{what}{styled(f'{inner} · {seconds(time.monotonic() - call.began)}', 'dim')}")
        rows += self._todo_rows(status.todos)
        tokens = f"{status.input_tokens:,} + {status.output_tokens:,} tokens"
        cost = cost_words(status.cost_usd) if status.cost_usd != 0 else ""
        phase = f"{len(self._running)} running" if self._running else status.phase
        duration_s = time.monotonic() - status.began
        took = f"{int(duration_s)} s" if duration_s < 60 else f"{int(duration_s // 60)} min {int(duration_s % 60)} s"
        if status.is_asked:
            parts = ("waiting for your answer", took, tokens, cost, self.meter.words, "ctrl-c interrupts")
        else:
            parts = (phase, took, tokens, cost, self.meter.words, self._hint)
        return [*rows, styled("· " + " · ".join(part for part in parts if part), "dim")]

    def _todo_rows(self, todos: list[dict[str, Any]]) -> list[str]:
        done = sum(todo.get("status") == "completed" for todo in todos)
        open_first = [todo for todo in todos if todo.get("status") != "completed"][:MAX_TODO_ROWS]
        rows = []
        for todo in open_first:
            box = _BOXES.get(str(todo.get("status")), "☐")
            rows.append(f"  {box} {on_one_line(str(todo.get('content', '')), 200)}")
        return [f"  to do, {done} of {len(todos)} done", *rows] if todos else []

    def _on_request(self, event: ModelRequest) -> None:
        phases = {"turn": "waiting for the model", "extract": "reading"}
        self._phase(phases.get(event.purpose, "summarizing"))

    def _on_reasoning(self, event: ReasoningDelta) -> None:
        self._phase("thinking")

    def _on_retry(self, event: ModelRetry) -> None:
        self._phase(f"trying again in {seconds(event.delay_s)}")
        self._end_text()
        self._retry(event)

    def _on_response(self, event: ModelResponse) -> None:
        self._spend(event)
        self._response(event)

    def _on_todos(self, event: TodoUpdated) -> None:
        if self._status is not None:
            self._status.todos = [dict(todo) for todo in event.todos]

    def _on_question(self, event: UserQuestion | UserAnswer) -> None:
        if self._status is not None:
            self._status.is_asked = isinstance(event, UserQuestion)
        if isinstance(event, UserQuestion):
            self._agreed = event.tool_use_id
        elif event.answer.startswith("edit"):
            self._agreed = None


class CallOutputs:
    """The newest calls of a conversation, numbered, with their outputs."""

    def __init__(self) -> None:
        self.has_greeted = False
        self._last = 0
        self._kept_outputs: deque[tuple[int, str, str]] = deque(maxlen=MAX_KEPT_CALLS)

    def next_number(self) -> int:
        """Return a new number, for the next call."""
        self._last += 1
        return self._last

    def keep(self, number: int | None, title: str, result: ToolResult) -> int:
        """Store a call's output under its number, or under a new one if that is None; return the number."""
        number = self.next_number() if number is None else number
        self._kept_outputs.append((number, title, output_text(result)[:MAX_KEPT_CHARS]))
        return number

    def text(self, number: int) -> str | None:
        """The output of a call, up to `MAX_KEPT_CHARS`; None if it is not stored."""
        return next((text for each, _, text in self._kept_outputs if each == number), None)

    def title(self, number: int) -> str:
        """The tool and the subject of a call; empty if it is not stored."""
        return next((title for each, title, _ in self._kept_outputs if each == number), "")

    @property
    def newest(self) -> int | None:
        """The number of the call that ended last; None before the first."""
        return self._kept_outputs[-1][0] if self._kept_outputs else None


def output_text(result: ToolResult) -> str:
    """A call's output as text; for a command, both streams and a nonzero exit code."""
    output = result.output
    if isinstance(output, str):
        return printable("\n".join([*([output] if output else []), *map(describe_attachment, result.attachments)]))
    if isinstance(output, dict) and "exit_code" in output:
        streams = (str(output.get("stdout") or ""), str(output.get("stderr") or ""))
        ended = f"(exit code {output['exit_code']})" if output["exit_code"] else ""
        return printable("\n".join(text.rstrip("\n") for text in (*streams, ended) if text))
    if output is None:
        return printable(result.error_message or "")
    return printable(json.dumps(output, ensure_ascii=False, indent=1))


def text_of(path: str) -> str | None:
    """The text of a regular file of at most `MAX_DIFF_BYTES`, empty if it does not exist, None for anything else."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_DIFF_BYTES:
            return None
        with open(path, "rb") as file:
            data = file.read(MAX_DIFF_BYTES + 1)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):  # a model may name a path that no file system accepts
        return None
    return None if b"\0" in data else data.decode("utf-8", "replace")


_ACTS: dict[str, Callable[[LivePrinter, Any], None]] = {
    SystemInit.type: LivePrinter._begin,
    AssistantDelta.type: LivePrinter._stream,
    AssistantMessage.type: LivePrinter._text,
    ModelRequest.type: LivePrinter._on_request,
    ModelResponse.type: LivePrinter._on_response,
    ModelRetry.type: LivePrinter._on_retry,
    ReasoningDelta.type: LivePrinter._on_reasoning,
    ToolProgress.type: LivePrinter._on_progress,
    ToolStarted.type: LivePrinter._call_begins,
    ToolResult.type: LivePrinter._call_ends,
    TodoUpdated.type: LivePrinter._on_todos,
    UserMessage.type: LivePrinter._show_prompt,
    UserAnswer.type: LivePrinter._on_question,
    UserQuestion.type: LivePrinter._on_question,
    Result.type: LivePrinter._finish,
}
