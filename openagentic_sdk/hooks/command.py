"""Shell commands as hooks, as Claude Code's settings define them: JSON on stdin, an exit code and JSON for an answer.

Exit 0 lets pass, and its stdout may hold an answer as JSON; exit 2 blocks with stderr as the reason; any other end is a
failed hook, which the engine judges by the hook's `fail_closed`. A hook's processes never outlive it: they are a process
group of their own, ended with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import IO, Any

from ..errors import InvalidEventError
from ..frozen import frozen
from ..project.settings import CommandHook
from ..serialization import dumps_json, loads_json
from ..tools.shell.environment import find_program
from .engine import HookEngine
from .models import HookDecision, HookMatcher

# Claude Code's events, and our points.
EVENTS = {
    "PreToolUse": "pre_tool_use",
    "PostToolUse": "post_tool_use",
    "UserPromptSubmit": "user_prompt_submit",
    "SessionStart": "session_start",
    "SessionEnd": "session_end",
    "Stop": "stop",
    "SubagentStart": "subagent_start",
    "SubagentStop": "subagent_stop",
    "PreCompact": "pre_compact",
    "PostCompact": "post_compact",
    "PermissionRequest": "permission_request",
    "Notification": "notification",
}
_NAMES = {point: event for event, point in EVENTS.items()}

DEFAULT_TIMEOUT_S = 600.0
MAX_OUTPUT_CHARS = 10_000

# Where plain text on stdout is context for the model, and where a block is a remark on what has already happened.
_TEXT_IS_CONTEXT = frozenset({"user_prompt_submit", "session_start"})
_TOO_LATE_TO_BLOCK = frozenset(
    {"post_tool_use", "session_start", "session_end", "subagent_stop", "post_compact", "notification"}
)
# Variables through which a shell would run something before the hook.
_UNWANTED = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "IFS", "CDPATH", "GLOBIGNORE")


@frozen
class ShellHook:
    """A hook that runs a shell command in the project. Called with the engine's payload; see `HookMatcher`.

    `transcript_path` and `permission_mode` are passed on to the command as they are.
    """

    command: str
    project_dir: str = "."
    permission_mode: str = "default"
    transcript_path: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, payload: dict[str, Any]) -> HookDecision | None:
        """Run it. Raises OSError when it cannot be started, and RuntimeError with stderr when it fails."""
        code, out, err = await self._run(dumps_json(self._described(payload)).encode("ascii"))
        point = str(payload.get("hook_point"))
        if code == 2:
            return _blocked(point, err.strip() or "the hook gave no reason")
        if code != 0:
            how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
            raise RuntimeError(f"{self.command!r}: {how}: {err.strip()[:1000] or 'it wrote nothing to stderr'}")
        return answer_of(point, out)

    def _described(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """What the command reads: Claude Code's fields, and everything else that JSON can say."""
        context = payload.get("context") or {}
        point = str(payload.get("hook_point"))
        described: dict[str, Any] = {
            "session_id": str(context.get("session_id") or ""),
            "transcript_path": self.transcript_path,
            "cwd": str(context.get("cwd") or self.project_dir),
            "permission_mode": self.permission_mode,
            "hook_event_name": _NAMES.get(point, point),
        }
        names = {"tool_output": "tool_response", "kind": "notification_type"}
        for key, value in payload.items():
            if key not in ("hook_point", "context"):
                described[names.get(key, key)] = _as_json(value)
        for key in ("tool_use_id", "agent_name", "final_text", "error_message"):
            if context.get(key):
                described.setdefault(key, str(context[key]))
        if context.get("tool_input") and not described.get("tool_input"):
            described["tool_input"] = _as_json(context["tool_input"])
        return described

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in _UNWANTED and not k.startswith("BASH_FUNC_")}
        return {**kept, "CLAUDE_PROJECT_DIR": os.path.abspath(self.project_dir), **self.env}

    async def _run(self, data: bytes) -> tuple[int, str, str]:
        # Files, not pipes: a process that the hook left behind cannot make us wait for the end of its output.
        import tempfile

        bash = find_program("bash", (self.project_dir,))
        shell = (bash, "--noprofile", "--norc", "-c") if bash else ("/bin/sh", "-c")
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(data)
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *shell,
                self.command,
                stdin=given,
                stdout=out,
                stderr=err,
                cwd=self.project_dir,
                env=self._environment(),
                start_new_session=True,
            )
            try:
                code = await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty by now
                    os.killpg(process.pid, signal.SIGKILL)
                while process.returncode is None:
                    with contextlib.suppress(asyncio.CancelledError):  # the hook itself is waited for, whatever comes
                        await process.wait()
            return code, _start_of(out), _start_of(err)


def _start_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(4 * MAX_OUTPUT_CHARS).decode("utf-8", errors="replace")[:MAX_OUTPUT_CHARS]


def _as_json(value: Any) -> Any:
    try:
        return loads_json(dumps_json(value))
    except InvalidEventError:
        return str(value)


def _blocked(point: str, reason: str) -> HookDecision:
    if point in _TOO_LATE_TO_BLOCK:
        return HookDecision(additional_context=reason, action="feedback")
    return HookDecision(block=True, block_reason=reason)


def answer_of(point: str, text: str) -> HookDecision | None:
    """What a hook's stdout decides. Text that is no JSON object is context at the points where Claude Code says so."""
    text = text.strip()
    if not text.startswith("{"):
        return HookDecision(additional_context=text) if text and point in _TEXT_IS_CONTEXT else None
    try:
        answer = loads_json(text)
    except InvalidEventError as error:
        raise RuntimeError(f"the hook's answer begins like JSON and is none: {error}") from None
    decision = HookDecision()
    if answer.get("continue") is False:
        reason = answer.get("stopReason") or answer.get("reason") or "the hook stopped the run"
        decision = HookDecision(block=point not in _TOO_LATE_TO_BLOCK, block_reason=str(reason), action="stop")
    elif answer.get("decision") == "block":
        decision = _blocked(point, str(answer.get("reason") or "the hook gave no reason"))
    elif answer.get("decision") == "approve" and point == "pre_tool_use":
        decision = HookDecision(permission="allow", block_reason=_text(answer.get("reason")))
    specific = answer.get("hookSpecificOutput")
    if isinstance(specific, dict):
        decision = _specific(point, specific, decision)
    return None if decision == HookDecision() else decision


def _specific(point: str, specific: Mapping[str, Any], decision: HookDecision) -> HookDecision:
    """The fields of one event, on top of those that every event has."""
    wish, reason = specific.get("permissionDecision"), specific.get("permissionDecisionReason")
    changed, inner = specific.get("updatedInput"), specific.get("decision")
    if isinstance(inner, dict):
        wish, changed = inner.get("behavior", wish), inner.get("updatedInput", changed)
        reason = inner.get("message", reason)
    # "defer" leaves the call to a person, which is what asking is here.
    permission = {"allow": "allow", "deny": "deny", "ask": "ask", "defer": "ask"}.get(str(wish)) if wish else None
    return HookDecision(
        block=decision.block or (permission == "deny" and point == "pre_tool_use"),
        block_reason=_text(reason) or decision.block_reason,
        override_tool_input=changed if isinstance(changed, dict) else None,
        override_tool_output=specific.get("updatedToolOutput") if point == "post_tool_use" else None,
        permission=permission or decision.permission,
        additional_context=_text(specific.get("additionalContext")) or decision.additional_context,
        action=decision.action,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# --- from settings -------------------------------------------------------------------------------------------------------


def with_command_hooks(
    engine: HookEngine, described: Sequence[CommandHook], *, project_dir: str, permission_mode: str = "default"
) -> tuple[HookEngine, tuple[str, ...]]:
    """The engine with the commands of trusted settings behind its own hooks, and a sentence for each that has no place.

    A matcher that is no regular expression stands for every tool: a hook that was meant to block is not lost.
    """
    found: dict[str, list[HookMatcher]] = {}
    problems: list[str] = []
    for hook in described:
        point = EVENTS.get(hook.event)
        if point is None:
            problems.append(f"{hook.source}: there is no hook event {hook.event!r} here; {hook.command!r} never runs")
            continue
        pattern, regex = matched_names(hook.matcher)
        try:
            re.compile(regex or "")
        except re.error:
            problems.append(
                f"{hook.source}: matcher {regex!r} is no regular expression; {hook.command!r} runs for every tool"
            )
            regex = None
        shell_hook = ShellHook(hook.command, project_dir, permission_mode)
        timeout_s = DEFAULT_TIMEOUT_S if hook.timeout_s is None else hook.timeout_s
        name = f"{hook.command[:80]} ({hook.source})"
        matcher = HookMatcher(name, pattern, shell_hook, timeout_s, tool_name_regex=regex)
        found.setdefault(point, []).append(matcher)
    added: dict[str, Any] = {point: (*engine.__dict__[point], *matchers) for point, matchers in found.items()}
    return replace(engine, **added), tuple(problems)


def matched_names(matcher: str) -> tuple[str, str | None]:
    """A matcher of settings as patterns or a regular expression: names joined by `|` or `,` are an exact list, `*` and
    nothing are all names, anything else is a regular expression that may stand anywhere in a name."""
    if matcher in ("", "*"):
        return "*", None
    if re.fullmatch(r"[A-Za-z0-9_\- ,|]*", matcher):
        return "|".join(name.strip() for name in re.split(r"[|,]", matcher) if name.strip()), None
    return "*", matcher
