"""Diagnose a run by how it ended: the table of all causes, and the causes that are not calls, answers or limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ...errors import (
    McpError,
    ModelRetryError,
    PartError,
    ProviderError,
    StorageError,
    StructuredOutputError,
    WorkflowError,
)
from ...events import (
    AssistantMessage,
    HookEvent,
    ModelRequest,
    ModelResponse,
    ModelRetry,
    Result,
    SystemNotice,
    ToolResult,
    ToolStarted,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.frozen import changed
from ...ground.words import plural
from .answers import cut, dropped, fallback
from .calls import blocked_by, command_failed, explained, server, subagent, trouble
from .cause import CauseInRun
from .limits import given_up, limit, loop, refused_answers, steady_errors
from .run import JudgedRun, as_text, blocks, has_failed, short

_WORKFLOW_RUN = "openagentic-sdk workflow run"


def diagnose(run: JudgedRun) -> CauseInRun | None:
    """Find the cause of what went wrong in a run; None if nothing did."""
    result = run.result
    if result is None:
        return dead(run)
    reason = result.stop_reason
    causes = _BY_END.get(reason) or _BY_END.get(reason.partition(":")[0], (failed,))
    return next((diagnosis for cause in causes if (diagnosis := cause(run, result)) is not None), None)


def dead(run: JudgedRun) -> CauseInRun:
    """The cause of a run whose process died."""
    last = next(run.of(ToolStarted, ModelRequest, UserQuestion), run.events[-1])
    why = f"its process died, or could no longer store events, when {run.doing}"
    return CauseInRun("dead", last, why, prompt="The process died: check what was done, and continue.")


def stopped(run: JudgedRun, result: Result) -> CauseInRun:
    """The cause of a run that a person, the caller or a part of the caller interrupted, or that was suspended."""
    if result.error_message and result.stop_reason == "interrupted":
        return CauseInRun("part", result, result.error_message)
    who = (
        "its process was asked to end" if result.stop_reason == "suspended" else "a person or the caller interrupted it"
    )
    return CauseInRun(result.stop_reason, result, f"{who}, when {run.doing}")


def waits(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The open question that a run waits for; without one, its last answer or whatever its workflow waits for."""
    answers = [e for e in run.log if isinstance(e, UserAnswer)]
    answered_ids = {answer.question_id for answer in answers}
    open_ones = [e for e in run.log if isinstance(e, UserQuestion) and e.question_id not in answered_ids]
    chat = ("openagentic-sdk", "chat", "--resume", run.session_id, *run.model_flags, *run.permission_flags)
    if not open_ones and answers and not run.is_workflow:
        # A prompt would end the call that the answer is for: `chat` continues from the log.
        return CauseInRun("waiting", answers[-1], result.error_message or "its question is answered", command=chat)
    if not open_ones:
        return CauseInRun("waiting", result, result.error_message or "it waits", command=run.workflow_command("show"))
    question = open_ones[-1]
    choices = f" ({', '.join(question.choices)})" if question.choices else ""
    asking = run.uses.get(question.tool_use_id or "")
    about = f", for {run.call(asking.tool_use_id)}" if asking is not None else ""
    why = f"it waits for a person's answer to {short(question.prompt)!r}{choices}{about}"
    answer = question.choices[0] if question.choices else "..."
    # A prompt would replace the answer and end the call: `chat` asks the question again.
    command = chat
    if run.is_workflow:
        command = run.workflow_command("answer", answer)
    return CauseInRun("waiting", question, why, prompt=answer, command=command)


def blocked(run: JudgedRun, result: Result) -> CauseInRun:
    """The hook that ended the run."""
    point = result.stop_reason.partition(":")[2]
    hook = next((e for e in run.of(HookEvent) if e.hook_point == point and blocks(e)), None)
    if hook is not None:
        return blocked_by(run, hook, result)
    return CauseInRun("hook", result, result.error_message or result.stop_reason)


def guardrail(run: JudgedRun, result: Result) -> CauseInRun | None:
    """The guardrail that tripped; None without one."""
    notice = next((e for e in run.of(SystemNotice) if e.code == "guardrail.tripped"), None)
    return None if notice is None else CauseInRun("guardrail", notice, notice.message)


def failed(run: JudgedRun, result: Result) -> CauseInRun:
    """The cause of a run that ended with an error; the error's type determines the kind."""
    kind = _ERROR_KINDS.get(result.error_type or "", "error")
    why = f"{result.error_type or 'an error'}: {short(result.error_message)}"
    if kind == "vendor":
        return _failed_by_vendor(run, result, why)
    if kind == "output":
        return _failed_by_output(run, result, why)
    step = trouble(run, result)
    if run.is_workflow and step is None:  # the step failed or was cancelled in an earlier run, and fails this one again
        ends = (e for e in reversed(run.log) if isinstance(e, ToolResult))
        step = next((explained(run, e, 1) for e in ends if has_failed(e) or e.outcome == "cancelled"), None)
    if run.is_workflow and step is not None:
        again = f"to run the step again: {_WORKFLOW_RUN} MODULE:NAME --session {run.session_id}"
        return changed(
            step,
            kind="workflow",
            why=short(result.error_message),
            more=(*(line for line in step.more if _WORKFLOW_RUN not in line), again),
            command=run.workflow_command("retry", step.event),
        )
    return step if step is not None and step.kind == kind else CauseInRun(kind, result, why)


def _failed_by_vendor(run: JudgedRun, result: Result, why: str) -> CauseInRun:
    retries = [e.reason for e in run.events if isinstance(e, ModelRetry)]
    more = tuple(
        f"after {plural(len(retries), 'more attempt')}; the first attempt: {short(one, 160)}" for one in retries[:1]
    )
    return CauseInRun("vendor", next(run.of(ModelResponse), result), why, more)


def _failed_by_output(run: JudgedRun, result: Result, why: str) -> CauseInRun:
    """The cause of a run in which no answer of the model was accepted by the schema or a validator."""
    repairs = [e for e in run.events if isinstance(e, UserMessage) and e.origin == "repair"]
    misfits = [e for e in run.events if isinstance(e, ToolResult) and run.name_of(e) == "final_answer"]
    answers = [as_text(dict(run.uses[e.tool_use_id].input)) for e in misfits[-1:]]
    answers += [e.text for e in run.of(AssistantMessage) if e.text]
    more = tuple(f"its last answer was {short(answer, 160)!r}" for answer in answers[:1])
    if "output_schema" in (result.error_message or ""):
        more = (*more, "no log contains the schema: give it again with --output-schema FILE")
    return CauseInRun("output", next(iter([*repairs, *misfits]), result), why, more)


def _names(*kinds: type[BaseException]) -> Iterator[str]:
    for kind in kinds:
        yield kind.__name__
        yield from _names(*kind.__subclasses__())


# The kind of cause for each error type that ends a run.
_ERROR_KINDS: Mapping[str, str] = {
    **dict.fromkeys(_names(ProviderError), "vendor"),
    **dict.fromkeys(_names(StorageError), "store"),
    **dict.fromkeys(_names(McpError), "mcp"),
    **dict.fromkeys(_names(StructuredOutputError, ModelRetryError), "output"),
    **dict.fromkeys(_names(PartError), "part"),
    **dict.fromkeys(_names(WorkflowError), "workflow"),
}
_LIMITS = (loop, steady_errors, refused_answers, limit)
_AT_THE_END = (cut, trouble, given_up, subagent, dropped, fallback, command_failed, server)
# The causes to look for, in this order, by how the run ended; the part of a reason before its colon counts.
_BY_END: Mapping[str, Sequence[Callable[[JudgedRun, Result], CauseInRun | None]]] = {
    "end": _AT_THE_END,
    "handoff": (),
    "max_steps": _LIMITS,
    "timeout": _LIMITS,
    "budget": _LIMITS,
    "interrupted": (loop, stopped),
    "suspended": (stopped,),
    "waiting": (waits,),
    "blocked": (guardrail, blocked),
    "error": (failed,),
}
