"""Explain a session's state: the request, how it ended, the event at which it went wrong, and how to continue.

A fold over the log and, if they can be read, over the logs of subagents. The newest run is judged by how it ended or, if it
ended normally, by failures that were not remedied later. Each kind of cause is a function in `causes`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from ..events import Event, SubagentStarted, SystemInit, ToolUse, UserAnswer, UserMessage, UserQuestion
from ..parts.masking import environment_redactor, shown
from ..parts.record.lifecycle import child_events
from ..permissions.subject import SESSION_TOOLS
from ..providers.named import BASE_URL_KEY
from ..sessions.base import SessionStore
from ..tools.defaults import default_tools
from .causes.cause import MAX_LINES, Cause, CauseInRun
from .causes.endings import diagnose
from .causes.run import JudgedRun, ReadEvents, short

__all__ = ["Cause", "find_cause", "why_session"]

# How many levels of subagents are searched for a cause, and how many runs before the newest one.
_MAX_DEPTH, _MAX_EARLIER_RUNS = 8, 8
_FLAGS: Mapping[str, str] = {
    "max_steps": "--max-steps",
    "timeout_s": "--timeout",
    "max_cost_usd": "--max-cost",
    "allowed_tools": "--allow",
}
# Tools of this package that an option enables.
_TOOLS_OF_OPTIONS = frozenset({"Code", "TaskOutput", "ToolSearch", "final_answer", "memory"})


def why_session(store: SessionStore, session_id: str, *, flags: Sequence[str] = ()) -> Cause:
    """Find the cause of a stored session's state. Raises `SessionNotFoundError` and the other errors of the store.

    `flags` are the command-line flags that select the store.
    """
    read, is_held = partial(child_events, store), store.is_held(session_id)
    base_url = store.read_metadata(session_id)["metadata"].get(BASE_URL_KEY)
    events = store.read_events(session_id)
    return find_cause(session_id, events, read=read, is_held=is_held, base_url=base_url, flags=flags)


def find_cause(
    session_id: str,
    events: Iterable[Event],
    *,
    read: ReadEvents | None = None,
    is_held: bool | None = False,
    base_url: object = None,
    flags: Sequence[str] = (),
    depth: int = 0,
) -> Cause:
    """Find the cause of a session's state in its log. `read` returns the events of a subagent's session.

    `is_held` is true while a run holds the session, None if that is unknown. `base_url` is the endpoint's address in the
    session's metadata, and `flags` are the command-line flags that select the store. `depth` is the number of sessions above
    this one, 0 unless it is a subagent's.
    """
    redact = environment_redactor()
    events = [shown(event, redact) for event in events]
    starts = [at for at, event in enumerate(events) if isinstance(event, SystemInit)]
    task = next((e.text for e in reversed(events) if isinstance(e, UserMessage) and e.origin == "user"), "")
    task = short(task, 200) or "nothing yet"
    if not starts:
        return Cause(session_id, "", task, "no run began", "nothing went wrong: no run has begun")
    uses = {event.tool_use_id: event for event in events if isinstance(event, ToolUse)}
    newest = list(pairwise([*starts, len(events)]))[-1 - _MAX_EARLIER_RUNS :]
    explain = partial(_cause_inside, session_id, read, depth)
    runs = [JudgedRun(session_id, events, bounds, uses, read, explain, base_url) for bounds in newest]
    last = runs[-1]
    if last.result is None and is_held is not False:
        return Cause(session_id, "", task, "it is still running", f"nothing went wrong so far: {last.doing}")
    cause = diagnose(last)
    if cause is None:
        return _nothing_wrong(session_id, task, runs)
    inside, at = cause.inside, cause.event
    where = (session_id, at.seq, at.type) if inside is None else (inside.session_id, inside.seq, inside.event)
    more, command = cause.more, cause.command
    is_conversation = not last.is_workflow and command[1:2] in ((), ("chat",))
    own_tools = _own_tools(last, cause) if is_conversation else []
    if depth == 0 and is_conversation:
        more = (*more[: MAX_LINES - 7], *_going_on_in_code(last, cause, own_tools, flags))
    if own_tools and isinstance(at, UserQuestion | UserAnswer):  # no command has the tool of the call
        command = ()
    else:
        command = command or (last.going_on if last.is_workflow else _run_command(last, cause))
    place = last.init.cwd
    return Cause(where[0], cause.kind, task, last.ended, cause.why, *where[1:], more=more, go_on=command, cwd=place)


def _nothing_wrong(session_id: str, task: str, runs: Sequence[JudgedRun]) -> Cause:
    """The state of a session whose newest run needs no explanation; an earlier failure is mentioned."""
    last = runs[-1]
    earlier = next(((run, one) for run in reversed(runs[:-1]) if (one := diagnose(run)) is not None), None)
    more: tuple[str, ...] = ()
    if earlier is not None:
        more = (f"an earlier run: {earlier[0].ended}; event {earlier[1].event.seq}: {earlier[1].why}",)
    answer = short(last.result.final_text, 120) if last.result is not None else ""
    why = f"nothing went wrong: it answered {answer!r}" if answer else "nothing went wrong"
    return Cause(session_id, "", task, last.ended, why, more=more)


def _run_command(run: JudgedRun, cause: CauseInRun) -> tuple[str, ...]:
    """The command that continues a conversation with the settings and prompt of the cause."""
    dashes = ("--",) if cause.prompt.startswith("-") else ()
    command = ("openagentic-sdk", "run", "--resume", run.session_id, *run.model_flags, *run.permission_flags)
    return (*command, *_flags(cause.settings), *dashes, cause.prompt)


def _cause_inside(session_id: str, read: ReadEvents | None, depth: int, started: SubagentStarted) -> Cause | None:
    """The cause inside a subagent that a run of this session started; None if nothing went wrong there."""
    events = read(session_id, started.child_session_id) if read is not None and depth < _MAX_DEPTH else ()
    cause = find_cause(started.child_session_id, events, read=read, depth=depth + 1)
    return cause if cause.kind else None


def _own_tools(run: JudgedRun, cause: CauseInRun) -> list[str]:
    """The names of the run's tools that come from the caller's program, so that no command has them."""
    builtin_tools = SESSION_TOOLS | set(default_tools().names()) | _TOOLS_OF_OPTIONS
    event = cause.event
    question_id = event.question_id if isinstance(event, UserQuestion | UserAnswer) else None
    questions = [e for e in run.log if isinstance(e, UserQuestion) and e.question_id == question_id]
    asking = run.uses.get(questions[-1].tool_use_id or "") if questions else None
    # The newest run may not have had the tool that an earlier run's question is about.
    names = [*run.init.tools, *([] if asking is None else [asking.name])]
    return [name for name in dict.fromkeys(names) if name not in builtin_tools and not name.startswith("mcp__")]


def _going_on_in_code(
    run: JudgedRun, cause: CauseInRun, own_tools: Sequence[str], flags: Sequence[str]
) -> tuple[str, ...]:
    """A line on how to continue in the caller's program, if that has tools or a model that no command can name.

    Otherwise a line about the endpoint's address, if the log lacks it, or nothing.
    """
    own = [*own_tools]
    if not run.model_flags:
        own.append(f"the model {run.init.provider or ''}:{run.init.model or ''}")
    if not own:
        if run.model_flags[-1] == "URL":
            return ("the log does not contain the address of the endpoint: replace URL with it",)
        return ()
    changes = "".join(
        f", {name}=[*options.{name}, {repr(value)[1:-1]}]" if isinstance(value, list) else f", {name}={value!r}"
        for name, value in cause.settings
    )
    options = f"replace(options, resume={run.session_id!r}{changes})"
    whose = f"in your program, which supplies {short(', '.join(own), 120)}"
    go_on = f"agent.run_sync(session={run.session_id!r}) or run_sync(prompt=None, options={options})"
    if isinstance(cause.event, UserQuestion):
        answer = f"await answer_question(store, {run.session_id!r}, {cause.event.question_id!r}, {cause.prompt!r})"
        dashes = ("--",) if cause.prompt.startswith("-") else ()
        question = ("--question", cause.event.question_id)
        words = ("sessions", "answer", *flags, run.session_id, *question, *dashes, cause.prompt)
        command = shlex.join(("openagentic-sdk", *words))
        return (f"{whose}: {answer} (or `{command}`), then {go_on}",)
    if isinstance(cause.event, UserAnswer):
        return (f"{whose}: {go_on}",)
    return (f"{whose}: run_sync(prompt={cause.prompt!r}, options={options})",)


def _flags(settings: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in settings:
        if name not in _FLAGS:
            continue  # no command has a flag for it
        for each in value if isinstance(value, list) else (value,):
            yield from (_FLAGS[name], str(each))
