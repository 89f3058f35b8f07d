"""Events as lines for people: streamed text, one line per tool call, questions, to-do lists, indented subagents.

The same code prints a run while it happens and a stored session afterwards. Messages of concurrent subagents are printed as
a whole, so that only the main agent's text streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...events import (
    AssistantDelta,
    AssistantMessage,
    Event,
    ModelResponse,
    ModelRetry,
    ReasoningDelta,
    Result,
    SessionCompacted,
    SystemInit,
    TodoUpdated,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.text import on_one_line, printable, settled
from ...parts.masking import environment_redactor, shown
from ...parts.record.folds.notes import MAX_ERROR_CHARS, describe_input, note_of, printed_by_plan
from ...parts.record.folds.prices import price_setting
from ...parts.record.folds.window import WindowMeter
from ...sessions.folds.usage import cached_share, normalize_usage
from ...sessions.rebuild import describe_attachment
from .terminal import Screen

INDENT = "    "
_OUTCOME_STYLES = {"ok": "green", "error": "red", "denied": "yellow", "cancelled": "yellow", "unknown": "yellow"}
_MARKS = {"completed": "[x]", "in_progress": "[>]"}
# What a person can do about a run that stopped before its end.
_ADVICE = {
    "max_steps": "it reached the limit of model calls: raise --max-steps, or continue with --resume {id}",
    "timeout": "it reached its time limit: raise --timeout, or continue with --resume {id}",
    "budget": "its budget is spent: raise the limit, or continue with --resume {id}",
    "interrupted": "it was interrupted: continue with --resume {id}",
    "suspended": "its process was asked to end: continue with --resume {id}",
    "waiting": "it waits for an answer: continue with --resume {id}",
}


class EventPrinter:
    """A printer of events as lines on a screen. With `transcript`, it also prints prompts, for readers of a log.

    `window` is the `max_context_tokens` of runs that are shown while they happen.
    """

    def __init__(self, screen: Screen, *, transcript: bool = False, window: int | None = None) -> None:
        self._screen = screen
        self._transcript = transcript
        self._redactor = environment_redactor()
        self.meter = WindowMeter(window)
        self._cwd = ""
        self._uses: dict[str, ToolUse] = {}
        self._depths: dict[str, int] = {}  # of the agent that made each call
        self._head_shown: str | None = None  # the call whose line is still open
        self._streamed = False  # whether text of the main agent's current answer is on the screen
        self._thinking = False
        self._unsettled = ""  # the end of the streamed text, which the next characters may join

    def show(self, event: Event) -> None:
        """Print one event; kinds that do not concern a reader print nothing."""
        self.meter.take(event)
        printer = _PRINTERS.get(event.type)
        if printer is not None:
            printer(self, shown(event, self._redactor))
        elif (note := note_of(event)) is not None:
            self._line(f"  {note[0]}", note[1], self._depth(event))
            if self._transcript and isinstance(event, SessionCompacted):
                self._note(event.summary, self._depth(event))

    def learn(self, event: Event) -> None:
        """Remember what later lines refer to, without printing."""
        self.meter.take(event)
        if isinstance(event, SystemInit):
            self._init(event)
        elif isinstance(event, ToolUse):
            self._use(event)

    # --- lines -------------------------------------------------------------------------------------------------------

    def _line(self, text: str, style: str | None = None, depth: int = 0) -> None:
        self._head_shown = None
        self._screen.line(self._styled(_indent(text, depth), style))

    def _styled(self, text: str, style: str | None) -> str:
        return self._screen.styled(text, style) if style else text

    def _note(self, text: str, depth: int) -> None:
        """Print a longer text, indented below its line, in a transcript only."""
        self._line(_indent(printable(text).rstrip("\n"), 1), "dim", depth)

    def _depth(self, event: Event) -> int:
        if event.parent_tool_use_id is None:
            return 0
        return self._depths.get(event.parent_tool_use_id, 0) + 1

    # --- text --------------------------------------------------------------------------------------------------------

    def _init(self, event: SystemInit) -> None:
        if event.parent_tool_use_id is None:
            self._cwd = event.cwd

    def _prompt(self, event: UserMessage) -> None:
        depth = self._depth(event)
        if event.origin == "context":  # the runtime's information for the model; `sessions explain` shows all of it
            self._line(
                f"  (sent to the model: {on_one_line(event.about or '').rstrip(':')}, {len(event.text):,} characters)",
                "dim",
            )
        elif depth == 0 and (self._transcript or event.origin != "user"):
            text = "\n".join([event.text, *map(describe_attachment, event.attachments)])
            self._line(f"> {printable(text)}".replace("\n", "\n  "), "bold")

    def _delta(self, event: AssistantDelta) -> None:
        if event.parent_tool_use_id is not None or not event.text_delta:
            return
        if not self._streamed:
            self._screen.end_line()
            self._head_shown = None
        self._streamed = True
        self._screen.write(self._settled(event.text_delta))

    def _settled(self, more: str, *, is_whole: bool = False) -> str:
        """The part of the streamed text that can be shown; with `is_whole`, all the rest."""
        text = self._unsettled + more
        cut = len(text) if is_whole else settled(text)
        self._unsettled = text[cut:]
        return printable(text[:cut])

    def _show_reasoning(self, event: ReasoningDelta) -> None:
        if self._screen.is_terminal and not self._thinking and event.parent_tool_use_id is None:
            self._line("thinking ...", "dim")
        self._thinking = True

    def _message(self, event: AssistantMessage) -> None:
        depth = self._depth(event)
        streamed = self._streamed and depth == 0
        if depth == 0:
            self._streamed = self._thinking = False
        if streamed:
            self._screen.write(self._settled("", is_whole=True))
            self._screen.end_line()
        elif event.text:
            speaker = f"{on_one_line(event.agent_name)}: " if event.agent_name and depth else ""
            self._line(speaker + printable(event.text).rstrip("\n"), depth=depth)
        if event.incomplete:
            self._line("(the answer was cut here)", "yellow", depth)

    def _response(self, event: ModelResponse) -> None:
        # The closing lines name what stopped the main agent.
        if event.error_message and event.parent_tool_use_id is not None:
            self._line(f"model: {on_one_line(event.error_message, MAX_ERROR_CHARS)}", "red", self._depth(event))

    def _retry(self, event: ModelRetry) -> None:
        other = f" with {on_one_line(event.model)}" if event.model else ""
        reason = on_one_line(event.reason, MAX_ERROR_CHARS)
        self._line(f"trying again{other} in {seconds(event.delay_s)}: {reason}", "yellow", self._depth(event))

    # --- tool calls --------------------------------------------------------------------------------------------------

    def _use(self, event: ToolUse) -> None:
        self._uses[event.tool_use_id] = event
        self._depths[event.tool_use_id] = self._depth(event)

    def _started(self, event: ToolStarted) -> None:
        """On a terminal, show a call while it runs; its outcome completes the line. Of parallel calls, only the first."""
        if self._screen.is_terminal and self._head_shown is None and event.tool_use_id in self._uses:
            self._screen.end_line()
            self._screen.write(self._head(event.tool_use_id))
            self._head_shown = event.tool_use_id

    def _result(self, event: ToolResult) -> None:
        outcome = self._styled(on_one_line(event.outcome), _OUTCOME_STYLES.get(event.outcome, "yellow"))
        took = f", {seconds(event.duration_s)}" if event.duration_s is not None else ""
        why = f": {on_one_line(event.error_message, MAX_ERROR_CHARS)}" if event.error_message else ""
        tail = f" - {outcome}{took}{why}"
        if self._head_shown == event.tool_use_id:
            self._screen.write(tail + "\n")
            self._head_shown = None
        else:
            self._line(self._head(event.tool_use_id) + tail)
        if printed := printed_by_plan(event):
            self._line(printable(printed), depth=self._depth(event))
        trace = (event.meta or {}).get("traceback")
        if self._transcript and isinstance(trace, str):
            self._note(trace, self._depths.get(event.tool_use_id, 0))

    def _head(self, tool_use_id: str) -> str:
        use = self._uses.get(tool_use_id)
        if use is None:
            return f"  [call {on_one_line(tool_use_id)}]"
        name = self._styled(f"[{on_one_line(use.name, 80)}]", "cyan")
        about = describe_input(use.name, use.input, self._cwd)
        return _indent(f"  {name} {about}".rstrip(), self._depths[tool_use_id])

    # --- people, skills, subagents -----------------------------------------------------------------------------------

    def _question(self, event: UserQuestion) -> None:
        """Print a question, in a transcript only: during a run, the code that asks shows it."""
        self._head_shown = None
        if self._transcript:
            choices = f" ({' / '.join(on_one_line(choice) for choice in event.choices)})" if event.choices else ""
            preview = "".join(f"\n    {printable(str(line))}" for line in event.details.get("preview") or ())
            self._line(f"? {printable(event.prompt)}{choices}{preview}", "yellow", self._depth(event))

    def _answer(self, event: UserAnswer) -> None:
        if self._transcript:
            self._line(f"  {on_one_line(event.answered_by)}: {on_one_line(event.answer)}", depth=self._depth(event))

    def _todos(self, event: TodoUpdated) -> None:
        done = sum(todo.get("status") == "completed" for todo in event.todos)
        rows = [f"  To do, {done} of {len(event.todos)} done"]
        for todo in event.todos:
            rows.append(f"    {_MARKS.get(str(todo.get('status')), '[ ]')} {on_one_line(str(todo.get('content', '')))}")
        self._line("\n".join(rows), depth=self._depth(event))

    def _end(self, event: Result) -> None:
        if event.parent_tool_use_id is None:
            self._close(event)

    def _close(self, event: Result, id_letters: int | None = None) -> None:
        """Print the summary of a run, and below it how to set a price for each model without one."""
        self._line(closing_line(event, id_letters, self.meter.words), "dim" if event.stop_reason == "end" else "yellow")
        for model in self.meter.unpriced if event.cost_usd is None else ():
            self._line(f"  no price of {on_one_line(model) or 'the model'} is known: {price_setting(model)}", "dim")


def closing_line(event: Result, id_letters: int | None = None, window: str = "") -> str:
    """The summary of a run on one line: its session, steps, tokens, cost, window and time. If it was stopped or its answer
    is incomplete, more lines explain why.

    `id_letters` is how many characters of a session's id are shown, None for all. `window` describes how full the model's
    window is; empty if unknown.
    """
    parts = [
        f"session {on_one_line(event.session_id)[:id_letters]}",
        f"{event.steps} {'step' if event.steps == 1 else 'steps'}",
    ]
    tokens = normalize_usage(event.usage)
    token_text = f"{tokens['input_tokens']:,} + {tokens['output_tokens']:,} tokens" if tokens else "tokens unknown"
    parts.append("no tokens" if event.usage == {} else token_text)
    if share := cached_share(event.usage):
        parts.append(f"{share:.0%} cached")
    parts.append(cost_words(event.cost_usd))
    parts += [window] if window else []
    if event.duration_s is not None:
        parts.append(seconds(event.duration_s))
    if event.stop_reason == "end" and event.cut_by is None:
        return "Ended: " + ", ".join(parts)
    why = _ADVICE.get(event.stop_reason, "continue with --resume {id}").format(id=on_one_line(event.session_id))
    if event.error_message:
        why = printable(event.error_message).replace("\n", "\n  ")
    saved = "" if event.saved else " (events of this run could not be stored)"
    return f"Stopped ({on_one_line(event.stop_reason)}): {', '.join(parts)}\n  {why}{saved}"


def cost_words(cost_usd: float | None) -> str:
    """A cost in words, or that it is unknown."""
    return "cost unknown" if cost_usd is None else f"${cost_usd:.4f}"


def seconds(duration_s: float) -> str:
    """A duration for people: `3 ms`, `1.4 s`, `2 min 5 s`."""
    if duration_s < 0.9995:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    return f"{int(duration_s // 60)} min {int(duration_s % 60)} s"


def _indent(text: str, depth: int) -> str:
    return "\n".join(INDENT * depth + row for row in text.split("\n")) if depth else text


_PRINTERS: Mapping[str, Callable[[EventPrinter, Any], None]] = {
    AssistantDelta.type: EventPrinter._delta,
    AssistantMessage.type: EventPrinter._message,
    ModelResponse.type: EventPrinter._response,
    ModelRetry.type: EventPrinter._retry,
    ReasoningDelta.type: EventPrinter._show_reasoning,
    Result.type: EventPrinter._end,
    SystemInit.type: EventPrinter._init,
    TodoUpdated.type: EventPrinter._todos,
    ToolResult.type: EventPrinter._result,
    ToolStarted.type: EventPrinter._started,
    ToolUse.type: EventPrinter._use,
    UserAnswer.type: EventPrinter._answer,
    UserMessage.type: EventPrinter._prompt,
    UserQuestion.type: EventPrinter._question,
}
