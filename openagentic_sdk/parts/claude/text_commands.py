"""Run the commands in the text of a skill or command before the model reads the text.

A command runs if the gate would let the model run it in mode default without a question, or if the text's own grants allow
it, and hooks permit it; never because of a looser mode or a person. The command is recorded in the log before it runs, and
one that was started is never run again. A command that may not run is replaced with a sentence; if a command fails, the text
is not used at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from ...errors import ToolError
from ...events import TextCommandFinished, TextCommandStarted, ToolResult, ToolUse
from ...ground.text import without_hidden
from ...ground.threads import settled
from ...kernel.agent import Run
from ...kernel.gate import ApprovalResult
from ...kernel.tool_call import Permitted, decision_event, propose
from ...kernel.tool_step import after_hooks, execute, masked
from ...permissions.gate import permission_gate
from ...permissions.shell import CommandLine, base_name, parse_command
from ...sessions.folds.features.all import TextCommandsFold
from ...sessions.request import json_sha256
from ...skills.text_commands import Draft

_SHELL = "Bash"
_MAX_ERROR_CHARS = 500
CUT_SHORT = "the run was interrupted while the command was running; it may have taken effect in part"
UNKNOWN = "the process died before it was recorded; the command may or may not have run, so it is not run again"


async def fill_draft(run: Run, draft: Draft, cause: str) -> str:
    """Run the draft's commands in sequence; return the text with their output.

    `cause` identifies the call or prompt that needs the text: commands that ran for it before a crash are not run again. A
    command that may not run is replaced with the reason. Raises `ToolError` if one fails, or may already have run.
    """
    outputs: list[str] = []
    for number, command in enumerate(draft.commands, 1):
        end = await _run_once(run, draft, f"{cause}:{number}", command)
        if isinstance(end, str):
            outputs.append(f"[The command {command!r} of this text was not run: {end}]")
            continue
        if end.outcome != "ok":
            raise ToolError(f"{draft.name} is not used: its command {command!r} {end.error_message}")
        outputs.append(end.output)
    return draft.filled(outputs)


async def _run_once(run: Run, draft: Draft, command_id: str, command: str) -> TextCommandFinished | str:
    """Run a command; return how it ended, or why it may not run."""
    ends = run.view.fold(TextCommandsFold).ends
    if command_id in ends:
        known_end = ends[command_id]
        return known_end or TextCommandFinished(
            command_id, outcome="error", error_message=f"has no known end ({UNKNOWN})"
        )
    call = await _permit(run, draft, ToolUse(command_id, _SHELL, {"command": command}))
    if isinstance(call, str):
        return call
    started = TextCommandStarted(command_id, draft.name, call.input["command"], call.decision.input_sha256, draft.path)
    await run.record(call.decision, started)
    try:
        result = await execute(run, call)
    except asyncio.CancelledError:
        end = TextCommandFinished(command_id, outcome="cancelled", error_message=f"has no known end ({CUT_SHORT})")
        ended, _ = await settled(run.record(end))
        ended.exception()
        raise
    events, result = await after_hooks(run, call, result)
    end = _finished(command_id, await masked(run, result), call.input["command"])
    await run.record(*events, end)
    return end


async def _permit(run: Run, draft: Draft, use: ToolUse) -> Permitted | str:
    """Return the command after hooks, with the decision that allows it; or the reason why it is not allowed."""
    call = await propose(run, use)
    if call.wish.block or call.wish.permission in ("deny", "ask"):
        # A hook that wants a person to be asked refuses too, because these commands run without a person.
        reason = call.wish.block_reason or "a hook does not let it run without a question"
        digest = json_sha256(dict(call.input))
        approval = ApprovalResult(False, reason, run.agent.gate.mode, "hook", hook=call.hook, input_sha256=digest)
    else:
        context = run.gate_context(use.tool_use_id, "unsafe", _SHELL)
        context = replace(context, grants=(*context.grants, *draft.grants))  # the rules in the text itself
        approval = permission_gate(run.gate).judge_by_rule(_SHELL, call.input, context)
    decision = decision_event(run, use, approval, run.gate, call.input)
    decision = replace(decision, details={**decision.details, "text_of": draft.name})
    if not approval.allowed:
        await run.record(decision)
        return approval.reason
    return Permitted(use, call.tool, call.input, decision)


# Programs that exit with 1 if they find nothing, or a difference.
_COMPARING = frozenset({"grep", "egrep", "fgrep", "rg", "find", "diff", "cmp", "test", "["})


def compares(command: str) -> bool:
    """Whether exit code 1 of a command means that it found nothing, or a difference."""
    line = parse_command(command)
    return isinstance(line, CommandLine) and base_name(line.commands[-1].argv[0]) in _COMPARING


def _finished(command_id: str, result: ToolResult, command: str) -> TextCommandFinished:
    """The end of a command; a failed one has no output, even if it wrote some."""
    output = result.output if isinstance(result.output, Mapping) else {}
    errors = str(output.get("stderr") or "").strip()
    streams = (str(output.get(stream) or "").strip("\n") for stream in ("stdout", "stderr"))
    text = without_hidden("\n".join(part for part in streams if part))  # without invisible characters
    failure = None
    if result.is_error:
        failure = result.error_message
    elif output.get("timed_out"):
        failure = "it took too long and was ended"
    elif output.get("exit_code") != 0 and not (output.get("exit_code") == 1 and compares(command)):
        failure = (
            f"it ended with exit code {output.get('exit_code')}{': ' + errors[-_MAX_ERROR_CHARS:] if errors else ''}"
        )
    return TextCommandFinished(
        command_id,
        "" if failure else text,
        "error" if failure else "ok",
        f"failed: {failure}" if failure else None,
        result.duration_s,
    )
