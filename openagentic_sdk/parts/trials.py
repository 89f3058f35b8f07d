"""Try commands that no rule decides on a copy of the workspace, and judge them by their effects there.

If nothing changed, or in `default` only caches of tools, the result is returned. `plan` drops any
changes and returns the result. In the other modes, a call whose changes a deny rule forbids is denied; if only
unprotected files of the workspace changed, `acceptEdits` keeps the changes and `default` asks once, with the list and
the differences. Any other command requires approval before it runs, as without this part.
A trial has its own decision and start event and
changes nothing, so it is repeated after a crash; keeping its changes has a second decision and start event, and is the
unsafe effect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import ToolError, ToolInputError
from ..events import (
    Effect,
    Event,
    PermissionDecision,
    ToolResult,
    ToolStarted,
    TrialStarted,
    UserQuestion,
)
from ..ground.frozen import changed, frozen
from ..ground.text import visible, visible_lines
from ..ground.threads import run_in_thread
from ..ground.words import plural
from ..kernel.agent import Run
from ..kernel.gate import ApprovalResult, CallContext
from ..kernel.part import Part
from ..kernel.tool import BareTool, ToolContext, ToolOutput
from ..kernel.tool_call import Permitted, Proposed, decision_event
from ..permissions.display import preview
from ..permissions.gate import PermissionGate
from ..permissions.program_tables import INTERACTIVE, PAGERS
from ..permissions.shell import CommandLine
from ..sessions.request import json_sha256
from ..tools.bash import BashTool, TriedCommand
from ..tools.shell.file_policy import FilePolicy
from ..tools.shell.sandboxed import named_channel
from ..tools.shell.trial import MAX_CHANGED_BYTES, MAX_EFFECTS, Change, TrialLimits, is_cached, shown_diff

# The maximum number of trials of one command: a trial is repeated if a file that it would replace has changed meanwhile, or
# if the run ended during it.
_MOST_TRIALS = 3
_MOST_NAMED = 20
_SHELL = "Bash"


class Trials(Part):
    """A part that decides commands by their effects on a copy. Without it, those that no rule decides are asked about."""

    def __init__(self, run: Run, limits: TrialLimits | None = None) -> None:
        super().__init__(run)
        self._limits = limits or TrialLimits()

    async def permit(self, call: Proposed, context: CallContext) -> Permitted | CallContext:
        gate, tool = self.run.gate, call.tool
        if not (isinstance(gate, PermissionGate) and isinstance(tool, BashTool) and call.use.name == _SHELL):
            return context
        approval = gate.trial(_SHELL, call.input, context)
        record = self.run.view.calls.get(call.use.tool_use_id)
        if approval is None or record is None:  # a call that no model made is not in the log
            return context
        why_not = tool.untriable(self.run.agent.cwd)
        why_not = _untriable(gate, call.input, context) if why_not is None else why_not
        if why_not is not None:
            return context if why_not == "" else _with_reason(context, why_not)
        view, use_id = self.run.view, call.use.tool_use_id
        starts = [event for event in view.events if isinstance(event, TrialStarted) and event.tool_use_id == use_id]
        attempt, has_asked = len(starts) + 1, view.has_asked(use_id)
        if attempt == 1 and has_asked:  # a person was asked before it ran, and that answer applies
            return context
        if attempt > _MOST_TRIALS and not has_asked:
            return _with_reason(context, f"each of {_MOST_TRIALS} trials was interrupted")
        tool = _TriedCall(self.run, tool, call, context, approval, self._limits)
        return _Trial(call.use, tool, call.input, tool.decision(approval), attempt)

    async def after_call(self, call: Permitted, result: ToolResult) -> ToolResult:
        denied = call.tool.denied if isinstance(call.tool, _TriedCall) else None
        if denied is None:
            return result
        return ToolResult(
            result.tool_use_id, is_error=True, error_type="PermissionDenied", error_message=denied, outcome="denied"
        )


def _untriable(gate: PermissionGate, input: Mapping[str, Any], context: CallContext) -> str | None:
    """The reason why this command is not tried, for the person who is asked; None if it can be tried."""
    if input.get("run_in_background", False):
        return "it runs in the background and has no end at which its effects could be judged"
    channel = named_channel(str(input["command"]), context.cwd or "", context.workspace_roots)
    if channel is not None:
        return f"{visible(channel)} connects to another program, which a copy cannot contain, so it was not tried"
    line = gate.subject(_SHELL, input, context).line
    names = [os.path.basename(part.argv[0]) for part in line.commands] if isinstance(line, CommandLine) else []
    program = next((name for name in names if name in INTERACTIVE - PAGERS), None)
    return None if program is None else f"{program} waits for a person at a terminal, so it was not tried"


def _with_reason(context: CallContext, reason: str) -> CallContext:
    """The context with an additional reason, beside that of the rules, for the person who is asked."""
    ask_person = context.ask
    if ask_person is None:
        return context

    async def ask(question: UserQuestion) -> Any:
        earlier_reason = question.details.get("reason")
        return await ask_person(
            changed(question, details={**question.details, "reason": f"{earlier_reason}; {reason}"})
        )

    return replace(context, ask=ask)


@frozen
class _Trial(Permitted):
    """A call that may be tried; its effects are decided after the trial."""

    attempt: int

    def opening_events(self, run: Run) -> Sequence[Event]:
        use, may = self.use, self.decision
        digest, policy = may.input_sha256, may.policy_sha256
        return [TrialStarted(use.tool_use_id, use.name, may.mode, digest, may.reason, policy, self.attempt)]


@frozen
class _TrialVerdict:
    """The action to take after a trial, and the reason.

    `drop` the changes and return the result, `keep` the changes, `ask` about them, ask before the command runs (`before`),
    or `deny` the call.
    """

    outcome: str
    reason: str = ""


class _TriedCall(BareTool):
    """A call whose command is tried on a copy first. `denied` is the reason why it was finally refused, if it was."""

    # A trial changes nothing, so a crash repeats it. `_record` declares the unsafe effect before changes are kept.
    effect = "read"
    parallel = False

    def __init__(
        self,
        run: Run,
        tool: BashTool,
        call: Proposed,
        context: CallContext,
        approval: ApprovalResult,
        limits: TrialLimits,
    ) -> None:
        self.name, self.description, self.input_schema = tool.name, tool.description, tool.input_schema
        self.denied: str | None = None
        self._run, self._tool, self._call, self._context, self._limits = run, tool, call, context, limits
        self._approval = approval

    def check_input(self, input: Mapping[str, Any], name: str = "the arguments") -> Mapping[str, Any]:
        return self._tool.check_input(input, name)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        for _ in range(_MOST_TRIALS):
            with ExitStack() as stack:
                try:
                    tried = await run_in_thread(partial(self._try_out, input, ctx, stack), ctx.cancelled)
                except ToolInputError:
                    raise
                except ToolError as error:
                    judged = _TrialVerdict("before", f"it could not be tried on a copy: {error}")
                    break
                judged = self._judge(tried)
                if judged.outcome == "drop":
                    approval = replace(self._approval, reason=judged.reason, details=self._details(tried))
                    await self._record(approval, "read")
                    return await run_in_thread(partial(self._tool.drop, tried, ctx), ctx.cancelled)
                if judged.outcome == "deny":
                    await self._record(
                        replace(self._approval, allowed=False, reason=judged.reason, category="deny_rule")
                    )
                    return self._refused(judged.reason)
                if judged.outcome == "before":
                    break
                approval = await self._decided(judged, tried)
                # A person may take hours: the answer is only valid for files that still have the content that was
                # shown.
                if not await run_in_thread(partial(self._tool.is_current, tried), ctx.cancelled):
                    continue
                await self._record(approval, "unsafe")
                if not approval.allowed:
                    return self._refused(approval.reason)
                return await run_in_thread(partial(self._tool.keep, tried, ctx), ctx.cancelled)
        else:
            judged = _TrialVerdict("before", "other programs changed the same files whenever it was tried")
        return await self._run_after_asking(input, ctx, judged.reason)

    def _try_out(self, input: Mapping[str, Any], ctx: ToolContext, stack: ExitStack) -> TriedCommand:
        policy: FilePolicy = self._gate.file_policy(str(input["command"]), self._context, asked=False)
        return self._tool.try_out(input, ctx, stack, policy, self._limits)

    @property
    def _gate(self) -> PermissionGate:
        gate = self._run.gate
        assert isinstance(gate, PermissionGate), "with another gate, nothing is tried"
        return gate

    def _refused(self, reason: str) -> ToolOutput:
        self.denied = reason
        return ToolOutput(reason, is_error=True)

    def decision(self, approval: ApprovalResult) -> PermissionDecision:
        """The decision as an event, not recorded in the log."""
        use = self._call.use
        return PermissionDecision(
            use.tool_use_id,
            use.name,
            approval.allowed,
            approval.mode,
            approval.input_sha256,
            approval.reason,
            policy_sha256=approval.policy_sha256,
        )

    async def _record(
        self, approval: ApprovalResult, effect: Effect = "unsafe", input: Mapping[str, Any] | None = None
    ) -> None:
        """Record a decision and, if it allows the call, the start of the call."""
        use, run = self._call.use, self._run
        events: list[Event] = [decision_event(run, use, approval, run.gate, self._call.input)]
        if approval.allowed:
            key, attempt = f"{run.session_id}:{use.tool_use_id}", run.view.calls[use.tool_use_id].attempts + 1
            digest = approval.input_sha256
            events.append(ToolStarted(use.tool_use_id, use.name, effect, digest, key, attempt, input))
        await run.record(*events)

    def _details(self, tried: TriedCommand) -> dict[str, Any]:
        """The trial's record for the log: the changed paths, and digests of the content that the changes replace."""
        replaces = {change.path: change.before for change in tried.changes if change.before}
        trial = {"changed": _path_list(tried.changes), "total": len(tried.changes), "replaces": replaces}
        return {**self._approval.details, "trial": trial}

    def _judge(self, tried: TriedCommand) -> _TrialVerdict:
        if tried.shortfall is not None:
            return _TrialVerdict("before", f"on a copy without the network, {tried.shortfall}")
        if not tried.changes:
            return _TrialVerdict("drop", "it was tried on a copy and changed nothing")
        if self._run.gate.mode == "plan":
            return _TrialVerdict("drop", "it was tried on a copy, and mode plan discards its changes")
        size_bytes = sum(change.size_bytes for change in tried.changes)
        if len(tried.changes) > MAX_EFFECTS or size_bytes > MAX_CHANGED_BYTES:
            size = f"{plural(len(tried.changes), 'file')} and {plural(size_bytes, 'byte')}"
            return _TrialVerdict("before", f"it changes {size}, too many to be evaluated")
        verdicts = []
        for change in tried.changes:
            if change.problem is not None:
                return _TrialVerdict("before", f"{change.problem}: {change.path}")
            verdict = self._gate.verdict("Edit", {"file_path": change.path}, self._context)
            if verdict.outcome == "deny":
                return _TrialVerdict("deny", f"on a copy it changed {change.path}, and {verdict.reason}")
            if verdict.outcome == "ask" and (verdict.firm or verdict.category != "unsettled"):
                return _TrialVerdict("before", f"it changes {change.path}: {verdict.reason}")
            verdicts.append(verdict)
        if all(verdict.outcome == "allow" for verdict in verdicts):
            return _TrialVerdict("keep", verdicts[0].reason)
        if all(is_cached(change, tried.root) for change in tried.changes):
            return _TrialVerdict("drop", "it was tried on a copy and changed only caches, which are discarded")
        return _TrialVerdict("ask", "it changes files of the workspace")

    async def _decided(self, judged: _TrialVerdict, tried: TriedCommand) -> ApprovalResult:
        """Decide whether to keep the effects of a trial, asking a person if the verdict is `ask`.

        The decision includes digests of the content that the effects replace.
        """
        call = self._call
        changes = [(each.path, each.before, each.after) for each in tried.changes]
        # The digest includes the effects, so that an answer applies to exactly these.
        changes_sha256 = json_sha256({"input": dict(call.input), "changes": changes})
        result = replace(
            self._approval,
            reason=f"it was tried on a copy, and its changes are permitted: {judged.reason}",
            category="mode",
            details=self._details(tried),
        )
        if judged.outcome == "keep":
            return result
        difference = visible_lines(shown_diff(tried.changes, tried.source_of, tried.root))
        details = {
            "input_sha256": changes_sha256,
            "preview": [*preview(_SHELL, call.input, tried.root), "", *difference],
            "reason": "it was tried on a copy and has finished there; its changes are listed, and will be kept or discarded "
            "(mode acceptEdits keeps such changes without a question)",
            "changes": {kind: _path_list(tried.changes, kind) for kind in ("created", "changed", "deleted")},
            "diff": "\n".join(difference),
        }
        proposal = replace(
            result, reason=f"on a copy it changed {', '.join(_path_list(tried.changes))}", category="unsettled"
        )
        return await self._gate.ask_to_keep(_SHELL, call.input, self._context, proposal, details)

    async def _run_after_asking(self, input: Mapping[str, Any], ctx: ToolContext, reason: str) -> Any:
        """Ask before the command runs, as without a trial, and include what the trial showed."""
        use = self._call.use
        approval = await self._run.gate.approve(use.name, input, _with_reason(self._context, reason))
        if not approval.allowed:
            approval = replace(approval, reason=f"{approval.reason} ({reason})")
        changed_input = None
        if approval.updated_input is not None:
            input = changed_input = self._tool.check_input(approval.updated_input, f"{use.name}, as edited")
            approval = replace(approval, input_sha256=json_sha256(dict(input)))
        await self._record(approval, "unsafe", changed_input)
        if not approval.allowed:
            return self._refused(approval.reason)
        return await self._tool.run(input, ctx)


def _path_list(changes: Sequence[Change], kind: str | None = None) -> list[str]:
    """Up to `_MOST_NAMED` changed paths, and the number of the others; `kind` None includes all kinds of change."""
    paths = [f"{change.path}{'/' * change.is_folder}" for change in changes if kind in (None, change.kind)]
    paths = [visible(path) for path in paths]
    return [*paths[:_MOST_NAMED], f"and {len(paths) - _MOST_NAMED} more"] if len(paths) > _MOST_NAMED else paths
