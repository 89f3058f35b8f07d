"""Shell commands as hooks, as Claude Code's settings define them: JSON on stdin, an exit code and JSON for an answer.

Exit 0 lets pass, and its stdout may hold an answer as JSON; exit 2 blocks with stderr as the reason; any other end is a
failed hook, after which things go on unless it wrote an answer that says otherwise. A hook's processes never outlive it:
they are a process group of their own, ended with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import IO, Any

from ...errors import InvalidEventError, ToolInputError
from ...ground.frozen import frozen
from ...hooks.engine import HookEngine
from ...hooks.models import HookDecision, HookMatcher, Permission
from ...serialization import dumps_json, loads_json
from ...skills.files import bytecode_folder
from ...skills.render import fill_variables, plugin_variables
from ...tools.shell.environment import find_program
from ..project.settings import CommandHook
from ..project.trust import TRUST_VARIABLE
from .names import MATCHED, tool_name_of, with_our_names, with_their_names

# Claude Code's events, and our points. What ends a subagent is decided where any agent wants to stop.
EVENTS = {
    "PreToolUse": "pre_tool_use",
    "PostToolUse": "post_tool_use",
    "PostToolUseFailure": "post_tool_use_failure",
    "UserPromptSubmit": "user_prompt_submit",
    "SessionStart": "session_start",
    "SessionEnd": "session_end",
    "Stop": "stop",
    "SubagentStart": "subagent_start",
    "SubagentStop": "stop",
    "PreCompact": "pre_compact",
    "PostCompact": "post_compact",
    "PermissionRequest": "permission_request",
    "Notification": "notification",
}
_NAMES = {point: event for event, point in reversed(EVENTS.items())} | {"subagent_stop": "SubagentStop"}
# Events of the conversation with a person: a subagent has none of its own.
_OF_THE_SESSION = frozenset({"UserPromptSubmit", "SessionStart", "SessionEnd", "Stop"})
# What kinds of notifications and compactions, and a mode, are called there.
_KINDS = {"permission": "permission_prompt", "question": "elicitation_dialog", "overflow": "auto"}
_MODES = {"bypass": "bypassPermissions"}

DEFAULT_TIMEOUT_S = 600.0
PROMPT_TIMEOUT_S = 30.0
MAX_OUTPUT_CHARS = 10_000

# Where plain text on stdout is context for the model, and where a block is a remark on what has already happened.
_TEXT_IS_CONTEXT = frozenset({"user_prompt_submit", "session_start"})
_TOO_LATE_TO_BLOCK = frozenset(
    (
        "post_tool_use",
        "post_tool_use_failure",
        "session_start",
        "session_end",
        "subagent_start",
        "subagent_stop",
        "post_compact",
        "notification",
    )
)
# Of these, where the model reads the remark; elsewhere only a person does.
_MODEL_READS = frozenset({"post_tool_use", "post_tool_use_failure"})
_TOOL_POINTS = frozenset({"pre_tool_use", "post_tool_use", "post_tool_use_failure", "permission_request"})
# Variables through which a shell would run something before the hook.
_UNWANTED = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "IFS", "CDPATH", "GLOBIGNORE")


@frozen
class ShellHook:
    """A hook that runs a shell command in the project. Called with the engine's payload; see `HookMatcher`.

    With `args` the command is a program that is run without a shell. `event` is Claude Code's name for the point, None for
    the usual one; `plugin_root` the folder of the plugin that the hook came with, `plugin_data` that of what it keeps. What
    `is_async` is not waited for, and ends after `timeout_s`, or with the event loop. What `only_forbids` neither allows nor
    changes anything.
    """

    command: str
    project_dir: str = "."
    permission_mode: str = "default"
    transcript_path: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] | None = None
    event: str | None = None
    plugin_root: str = ""
    plugin_data: str = ""
    is_async: bool = False
    only_forbids: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S

    async def __call__(self, payload: dict[str, Any]) -> HookDecision | None:
        """Run it. Raises OSError when it cannot be started, and RuntimeError with stderr when it fails."""
        data = dumps_json(self._described(payload)).encode("ascii")
        if self.is_async and payload.get("hook_point") != "session_end":
            task = asyncio.create_task(asyncio.wait_for(self._run(data), self.timeout_s))
            _RUNNING.add(task)  # the event loop itself keeps no task alive
            task.add_done_callback(_forget)
            return None
        code, out, err = await self._run(data)
        point = str(payload.get("hook_point"))
        if code == 0:
            return self._counted(payload, answer_of(point, out))
        answer = None
        if out.lstrip().startswith("{"):
            with contextlib.suppress(RuntimeError):  # what is no answer counts for nothing beside the exit code
                answer = answer_of(point, out) or HookDecision()
        if code == 2:
            said = answer.block_reason if answer is not None and answer.block else None
            blocked = _blocked(point, said or err.strip() or "the hook gave no reason")
            if answer is None:
                return blocked
            message = answer.system_message or blocked.system_message
            return replace(blocked, system_message=message, stops=answer.stops)
        if answer is not None:
            return self._counted(payload, answer)
        how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        raise RuntimeError(f"{self.command!r}: {how}: {err.strip()[:1000] or 'it wrote nothing to stderr'}")

    def _described(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """What the command reads: the fields that Claude Code documents for the event, and what else JSON can say."""
        context = payload.get("context") or {}
        point = str(payload.get("hook_point"))
        transcript = context.get("transcript")
        mode = str(context.get("permission_mode") or self.permission_mode)
        described: dict[str, Any] = {
            "session_id": str(context.get("session_id") or ""),
            "transcript_path": transcript() if callable(transcript) else self.transcript_path,
            "cwd": str(context.get("cwd") or self.project_dir),
            "permission_mode": _MODES.get(mode, mode),
            "hook_event_name": self.event or _NAMES.get(point, point),
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
        tool = described.get("tool_name")
        if isinstance(tool, str):
            described["tool_name"] = tool_name_of(tool)
            if isinstance(described.get("tool_input"), dict):
                described["tool_input"] = with_their_names(tool, described["tool_input"], described["cwd"])
        if agent := described.get("agent_name"):
            described.setdefault("agent_type", agent)
            described.setdefault("agent_id", str(context.get("agent_id") or described["session_id"]))
        if point == "session_start" and context.get("model"):
            described["model"] = str(context["model"])
        if point == "notification":
            described["title"] = "Permission needed" if payload.get("kind") == "permission" else "A question waits"
        for key in ("notification_type", "trigger"):
            if key in described:
                described[key] = _KINDS.get(str(described[key]), described[key])
        if point == "pre_compact":
            described.setdefault("custom_instructions", "")
        return described

    def _counted(self, payload: Mapping[str, Any], answer: HookDecision | None) -> HookDecision | None:
        cwd = str((payload.get("context") or {}).get("cwd") or self.project_dir)
        answer = _in_our_names(payload, answer, cwd)
        if answer is None or not self.only_forbids:
            return answer
        wish = answer.permission if answer.permission != "allow" else None
        return replace(answer, permission=wish, override_tool_input=None, override_prompt=None)

    def _places(self) -> dict[str, str]:
        # the variables are in the environment of the command, so that it may name each
        plugin = plugin_variables(self.plugin_root, self.plugin_data, "CLAUDE_PLUGIN_DATA")
        return {"CLAUDE_PROJECT_DIR": os.path.abspath(self.project_dir), **plugin}

    async def _run(self, data: bytes) -> tuple[int, str, str]:
        # Files, not pipes: a process that the hook left behind cannot make us wait for the end of its output.
        bash = find_program("bash", (self.project_dir,))
        shell = (bash, "--noprofile", "--norc", "-c") if bash else ("/bin/sh", "-c")
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(data)
            given.seek(0)
            command = [*shell, self.command]
            if self.args is not None:
                command = [fill_variables(each, self._places()) for each in (self.command, *self.args)]
            unwanted = (*_UNWANTED, TRUST_VARIABLE)
            kept = {k: v for k, v in os.environ.items() if k not in unwanted and not k.startswith("BASH_FUNC_")}
            # What Python compiles would stand in the project otherwise, and change what was trusted.
            kept["PYTHONPYCACHEPREFIX"] = bytecode_folder("hooks")
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=out,
                stderr=err,
                cwd=self.project_dir,
                env={**kept, **self.env, **self._places()},
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


# The hooks that are not waited for, while they run.
_RUNNING: set[asyncio.Task[tuple[int, str, str]]] = set()


def _forget(task: asyncio.Task[tuple[int, str, str]]) -> None:
    _RUNNING.discard(task)
    if not task.cancelled():
        task.exception()  # its outcome is no longer needed


def _in_our_names(payload: Mapping[str, Any], answer: HookDecision | None, cwd: str) -> HookDecision | None:
    """The answer, with an updated input as our tool reads it; an input that contradicts itself blocks."""
    tool, input = payload.get("tool_name"), payload.get("tool_input")
    changed = answer.override_tool_input if answer is not None else None
    if answer is None or changed is None or not isinstance(tool, str) or not isinstance(input, Mapping):
        return None if answer == HookDecision() else answer
    try:
        return replace(answer, override_tool_input=with_our_names(tool, input, changed, cwd))
    except ToolInputError as error:
        return replace(answer, override_tool_input=None, block=True, block_reason=str(error), permission="deny")


def _blocked(point: str, reason: str) -> HookDecision:
    if point in _MODEL_READS:
        return HookDecision(additional_context=reason, action="feedback")
    if point in _TOO_LATE_TO_BLOCK:
        return HookDecision(system_message=reason, action="feedback")
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
        decision = HookDecision(
            block=point not in _TOO_LATE_TO_BLOCK, block_reason=str(reason), action="stop", stops=True
        )
    elif answer.get("decision") == "block":
        decision = _blocked(point, str(answer.get("reason") or "the hook gave no reason"))
    elif answer.get("decision") == "approve" and point == "pre_tool_use":
        decision = HookDecision(permission="allow", block_reason=_text(answer.get("reason")))
    decision = replace(decision, system_message=_text(answer.get("systemMessage")) or decision.system_message)
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
    meant: Mapping[str, Permission] = {"allow": "allow", "deny": "deny", "ask": "ask", "defer": "ask"}
    permission = meant.get(str(wish)) if wish else None
    return replace(
        decision,
        block=decision.block or (permission == "deny" and point == "pre_tool_use"),
        block_reason=_text(reason) or decision.block_reason,
        override_tool_input=changed if isinstance(changed, dict) else None,
        override_tool_output=specific.get("updatedToolOutput") if point == "post_tool_use" else None,
        permission=permission or decision.permission,
        additional_context=_text(specific.get("additionalContext")) or decision.additional_context,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# --- from settings -------------------------------------------------------------------------------------------------------

# Says whether a call, a tool's name and its input, fits a permission rule.
Fits = Callable[[str, str, Mapping[str, Any]], bool]


def with_command_hooks(
    engine: HookEngine,
    described: Sequence[CommandHook],
    *,
    project_dir: str,
    permission_mode: str = "default",
    env: Mapping[str, str] | None = None,
    fits: Fits | None = None,
) -> tuple[HookEngine, tuple[str, ...]]:
    """The engine with the commands of trusted settings behind its own hooks, and a sentence for each that has no place.

    A matcher that is no regular expression stands for every tool: a hook that was meant to block is not lost. `fits` judges
    the conditions of hooks; without it every call fits.
    """
    found: dict[str, list[HookMatcher]] = {}
    problems: list[str] = []
    for hook in described:
        point = EVENTS.get(hook.event)
        if point is None:
            problems.append(f"{hook.source}: there is no hook event {hook.event!r} here; {hook.command!r} never runs")
            continue
        if hook.condition and point not in _TOOL_POINTS:
            problems.append(f"{hook.source}: {hook.event} has no call that an `if` fits; {hook.command!r} never runs")
            continue
        pattern, regex = matched_names(hook.matcher)
        if regex is not None and not _is_regex(regex):
            problems.append(
                f"{hook.source}: matcher {regex!r} is no regular expression; {hook.command!r} runs for every tool"
            )
            regex = None
        usual_s = PROMPT_TIMEOUT_S if hook.event == "UserPromptSubmit" else DEFAULT_TIMEOUT_S
        timeout_s = usual_s if hook.timeout_s is None else hook.timeout_s
        shell_hook = ShellHook(
            hook.command,
            hook.folder or project_dir,
            permission_mode,
            env=env or {},
            args=hook.args,
            event=hook.event,
            plugin_root=hook.root,
            plugin_data=hook.data,
            is_async=hook.is_async,
            only_forbids=hook.only_forbids,
            timeout_s=timeout_s,
        )
        name = f"{hook.command[:80]} ({hook.source})"
        matcher = HookMatcher(
            name,
            pattern,
            shell_hook,
            timeout_s,
            fail_closed=False,
            tool_name_regex=_with_our_names_of_tools(regex),
            when=_When(hook, name, fits),
        )
        found.setdefault(point, []).append(matcher)
    added: dict[str, Any] = {point: (*getattr(engine, point), *matchers) for point, matchers in found.items()}
    return replace(engine, **added), tuple(problems)


@frozen
class _When:
    """Whether a hook of a file runs: in whose conversation, after which outcome, for which call and skill, how often."""

    hook: CommandHook
    name: str
    fits: Fits | None

    def __call__(self, payload: Mapping[str, Any]) -> bool:
        hook, context = self.hook, payload.get("context") or {}
        agent = context.get("agent_name")
        if agent and hook.event in _OF_THE_SESSION:
            return False
        if hook.event == "SubagentStop" and not (agent and _is_named(hook.matcher, str(agent))):
            return False
        if hook.event == "PostToolUse" and context.get("error_message"):
            return False
        is_active = context.get("is_active")
        if hook.skill and not (callable(is_active) and is_active(hook.skill)):
            return False
        has_run = context.get("has_run")
        if hook.once and callable(has_run) and has_run(self.name):
            return False
        tool, input = payload.get("tool_name"), payload.get("tool_input")
        if hook.condition and self.fits is not None and isinstance(tool, str) and isinstance(input, Mapping):
            return self.fits(hook.condition, tool, input)
        return True


def _is_named(matcher: str, name: str) -> bool:
    pattern, regex = matched_names(matcher)
    if regex is not None:
        return not _is_regex(regex) or re.search(regex, name) is not None
    return pattern == "*" or name in pattern.split("|")


def matched_names(matcher: str) -> tuple[str, str | None]:
    """A matcher of settings as patterns or a regular expression: names joined by `|` or `,` are an exact list, `*` and
    nothing are all names, anything else is a regular expression that may stand anywhere in a name."""
    if matcher in ("", "*"):
        return "*", None
    if re.fullmatch(r"[A-Za-z0-9_\- ,|:]*", matcher):
        names = [name.strip() for name in re.split(r"[|,]", matcher) if name.strip()]
        return "|".join(dict.fromkeys([*names, *(ours for name in names for ours in MATCHED.get(name, ()))])), None
    return "*", matcher


def _with_our_names_of_tools(regex: str | None) -> str | None:
    """The expression, with our names of the tools that it finds under theirs."""
    ours = [] if regex is None else [ours for name, each in MATCHED.items() if re.search(regex, name) for ours in each]
    return "|".join([f"(?:{regex})", *(f"^{name}$" for name in ours)]) if ours else regex


def _is_regex(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
