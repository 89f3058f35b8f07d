"""Run shell commands as hooks, as Claude Code does: they read JSON from stdin, and answer with an exit code and JSON.

`hook_answers` interprets the answers. A hook runs in a process group of its own, which is killed when the hook ends or is
cancelled; only processes that have left the group survive.
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
from functools import partial
from typing import IO, Any

from ...errors import InvalidEventError, ToolInputError
from ...ground.diagnostic import Diagnostic
from ...ground.frozen import frozen
from ...ground.threads import settled
from ...ground.words import look_alikes
from ...hooks.engine import HookEngine
from ...hooks.models import HookDecision, HookMatcher
from ...serialization import dumps_json, loads_json
from ...skills.files import bytecode_folder
from ...skills.ledger import row_of
from ...skills.render import fill_variables, plugin_variables
from ...tools.shell.environment import find_program
from ..project.settings import CommandHook
from ..project.trust import TRUST_VARIABLE
from .hook_answers import capped, decision_of, runs_on
from .names import MATCHED, tool_name_of, with_our_names, with_their_names
from .text_commands import compares

# Claude Code's events, and our points. The end of a subagent is decided at the same point as that of any agent.
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
# Events of the conversation with a person, which a subagent does not have.
_OF_THE_SESSION = frozenset({"UserPromptSubmit", "SessionStart", "SessionEnd", "Stop"})
# Claude Code's names for kinds of notifications and compactions, and for a mode.
_KINDS = {"permission": "permission_prompt", "question": "elicitation_dialog", "overflow": "auto"}
_MODES = {"bypass": "bypassPermissions"}
# Claude Code's names for fields of our payloads.
_FIELDS = {"tool_output": "tool_response", "kind": "notification_type"}

DEFAULT_TIMEOUT_S = 600.0
PROMPT_TIMEOUT_S = 30.0
# The limit of a hook's stdout and stderr, each; the rest is ignored.
_MAX_OUTPUT_BYTES = 1024 * 1024
# The interval at which a running hook's stdout is checked for the line that asks not to wait for it.
_LOOK_EVERY_S = 0.05
# The number of times that stop hooks may send the model back to work in one turn, as in Claude Code.
MAX_STOP_BLOCKS = 8

TOOL_POINTS = frozenset({"pre_tool_use", "post_tool_use", "post_tool_use_failure", "permission_request"})
# Variables through which a shell would run something before the hook.
_UNWANTED = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "IFS", "CDPATH", "GLOBIGNORE")


@frozen
class ShellHook:
    """A hook that runs a shell command in the project. Called with the engine's payload; see `HookMatcher`.

    With `args`, the command is a program that runs without a shell. `event` is Claude Code's name for the point, None for
    the usual one; `plugin_root` is the folder of the hook's plugin, `plugin_data` the plugin's data folder. An `is_async`
    hook runs in the background, for at most `timeout_s`, and ends with the event loop at the latest. An `only_forbids` hook
    can neither allow a call, nor change its input or a prompt.
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
        """Run the command; return its decision, None if it has none or continues in the background.

        Raises OSError if it cannot be started, and RuntimeError with the reason if it fails or its answer is invalid.
        """
        data = dumps_json(self._described(payload)).encode("ascii")
        point = str(payload.get("hook_point"))
        out = tempfile.TemporaryFile()  # noqa: SIM115 - closed once the process has ended, however long that takes
        work = asyncio.create_task(self._run(data, out))
        work.add_done_callback(partial(_close, out))
        try:
            if point == "session_end":  # nothing runs after the session's end
                await asyncio.wait((work,))
            is_left = not work.done() and (self.is_async or await _leaves_us(work, out))
        except asyncio.CancelledError:
            work.cancel()
            await settled(asyncio.wait((work,)))
            raise
        if is_left:
            self._leave(work, payload)
            return None
        code, output, err = work.result()
        return self._counted(payload, decision_of(point, code, output, err, self.command))

    def _leave(self, work: asyncio.Task[tuple[int, str, str]], payload: Mapping[str, Any]) -> None:
        """Let the command continue in the background; its additions are sent to the model with the next request."""
        context = payload.get("context") or {}
        point, deliver = str(payload.get("hook_point")), context.get("deliver")

        async def follow() -> None:
            try:
                async with asyncio.timeout(self.timeout_s):
                    code, out, err = await work
                first, _, rest = out.lstrip().partition("\n")
                answer = decision_of(point, code, rest if runs_on(first) else out, err, self.command)
            except (TimeoutError, RuntimeError, OSError):
                return  # nobody waits for it any longer, and its effects have happened
            if answer is None or not callable(deliver):
                return
            reason = answer.block_reason if code == 2 else None
            for text in filter(None, (answer.additional_context, answer.system_message, reason)):
                deliver(text)

        task = asyncio.create_task(follow())
        _RUNNING.add(task)  # the event loop itself keeps no task alive
        task.add_done_callback(_RUNNING.discard)

    def _described(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The command's input: the fields that Claude Code documents for the event, and the rest of the payload as JSON."""
        context = payload.get("context") or {}
        described = self._fields_of_all(context, str(payload.get("hook_point")))
        for key, value in payload.items():
            if key not in ("hook_point", "context"):
                described[_FIELDS.get(key, key)] = _as_json(value)
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
            described.setdefault("agent_id", str(context.get("agent_id") or context.get("tool_use_id") or ""))
        return described | self._fields_of_event(payload, context, described)

    def _fields_of_all(self, context: Mapping[str, Any], point: str) -> dict[str, Any]:
        """The fields that every event has. A hook in a subagent gets the session and the transcript of the main agent."""
        main = context.get("main") or {}
        transcript = main.get("transcript") or context.get("transcript")
        mode = str(context.get("permission_mode") or self.permission_mode)
        return {
            "session_id": str(main.get("session_id") or context.get("session_id") or ""),
            "transcript_path": transcript() if callable(transcript) else self.transcript_path,
            "cwd": str(context.get("cwd") or self.project_dir),
            "permission_mode": _MODES.get(mode, mode),
            "hook_event_name": self.event or _NAMES.get(point, point),
        }

    def _fields_of_event(
        self, payload: Mapping[str, Any], context: Mapping[str, Any], described: dict[str, Any]
    ) -> dict[str, Any]:
        """The fields in which Claude Code's event differs from our point; fields that the event lacks are removed from
        `described`.
        """
        own: dict[str, Any] = {
            key: _KINDS.get(str(described[key]), described[key])
            for key in ("notification_type", "trigger")
            if key in described
        }
        match payload.get("hook_point"):
            case "user_prompt_submit":
                typed = context.get("typed_prompt")
                if isinstance(typed, tuple) and typed[1] == described.get("prompt"):
                    own["prompt"] = typed[0]
            case "post_tool_use" if self.event == "PostToolUseFailure":
                own |= {"error": failure_of(payload), "is_interrupt": False}
                described.pop("tool_response", None)
            case "session_start" if context.get("model"):
                own["model"] = str(context["model"])
            case "notification":
                own["title"] = "Permission needed" if payload.get("kind") == "permission" else "Question pending"
            case "pre_compact":
                own["custom_instructions"] = described.get("custom_instructions", "")
        if self.event == "SubagentStop" and callable(transcript := context.get("transcript")):
            own["agent_transcript_path"] = transcript()
        return own

    def _counted(self, payload: Mapping[str, Any], answer: HookDecision | None) -> HookDecision | None:
        cwd = str((payload.get("context") or {}).get("cwd") or self.project_dir)
        answer = _in_our_names(payload, answer, cwd)
        if answer is not None and answer.block and not answer.stops and payload.get("hook_point") == "stop":
            blocks = (payload.get("context") or {}).get("stop_blocks")
            if callable(blocks) and blocks() >= MAX_STOP_BLOCKS:
                message = f"{self.command!r} sent the model back to work {MAX_STOP_BLOCKS} times: the turn ends now"
                answer = replace(answer, block=False, block_reason=None, action="overridden", system_message=message)
        if answer is None or not self.only_forbids:
            return answer
        # Other files of the project have changed since a person trusted it, so its hooks may only make things stricter.
        wish = answer.permission if answer.permission != "allow" else None
        return replace(answer, permission=wish, override_tool_input=None, override_prompt=None)

    def _places(self) -> dict[str, str]:
        # The command also has these variables in its environment, so it may use either form.
        plugin = plugin_variables(self.plugin_root, self.plugin_data, "CLAUDE_PLUGIN_DATA")
        return {"CLAUDE_PROJECT_DIR": os.path.abspath(self.project_dir), **plugin}

    async def _run(self, data: bytes, out: IO[bytes]) -> tuple[int, str, str]:
        # Files, not pipes: with a pipe, a process that the hook left behind could delay the end of file indefinitely.
        bash = find_program("bash", (self.project_dir,))
        shell = (bash, "--noprofile", "--norc", "-c") if bash else ("/bin/sh", "-c")
        with tempfile.TemporaryFile() as input_file, tempfile.TemporaryFile() as err:
            input_file.write(data)
            input_file.seek(0)
            command = [*shell, self.command]
            if self.args is not None:
                command = [fill_variables(each, self._places()) for each in (self.command, *self.args)]
            unwanted = (*_UNWANTED, TRUST_VARIABLE)
            environ = {k: v for k, v in os.environ.items() if k not in unwanted and not k.startswith("BASH_FUNC_")}
            # Otherwise Python would write compiled files to the project, and change what was trusted.
            environ["PYTHONPYCACHEPREFIX"] = bytecode_folder("hooks")
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=input_file,
                stdout=out,
                stderr=err,
                cwd=self.project_dir,
                env={**environ, **self.env, **self._places()},
                # A group of its own, which can be killed with everything in it.
                start_new_session=True,
            )
            try:
                code = await process.wait()
            finally:
                # Also after a normal end: what the hook started and left behind is in its group.
                with contextlib.suppress(ProcessLookupError, PermissionError):  # the group may be empty by now
                    os.killpg(process.pid, signal.SIGKILL)
                while process.returncode is None:
                    with contextlib.suppress(asyncio.CancelledError):  # wait for the process itself in any case
                        await process.wait()
            return code, _start_of(out), _start_of(err)


async def _leaves_us(work: asyncio.Task[tuple[int, str, str]], out: IO[bytes]) -> bool:
    """Wait until a hook ends (return False), or its first line asks not to wait for it (return True)."""
    is_open = True
    while not work.done():
        await asyncio.wait((work,), timeout=_LOOK_EVERY_S if is_open else None)
        # `pread`, because the process shares the file's offset with us: a read would move the place where it writes.
        head = b"" if work.done() or not is_open else os.pread(out.fileno(), 4096, 0).lstrip()
        line, end, _ = head.partition(b"\n")
        if head and runs_on(line.decode("utf-8", errors="replace")):
            return True
        # The request is one short first line of JSON; with anything else there, it can no longer come.
        is_open = not head or (head.startswith(b"{") and not end and len(head) < 4096)
    return False


def _close(out: IO[bytes], work: asyncio.Task[tuple[int, str, str]]) -> None:
    out.close()
    if not work.cancelled():
        work.exception()  # retrieved to avoid a warning; a waiting caller has it already


def _start_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MAX_OUTPUT_BYTES).decode("utf-8", errors="replace")


def failure_of(payload: Mapping[str, Any]) -> str | None:
    """The failure of a Bash command in Claude Code's form; None if it did not fail, and for other tools."""
    output, input = payload.get("tool_output"), payload.get("tool_input")
    if payload.get("tool_name") != "Bash" or not isinstance(output, Mapping) or not isinstance(input, Mapping):
        return None
    code, command = output.get("exit_code"), str(input.get("command") or "")
    if not isinstance(code, int) or code == 0 or (code == 1 and compares(command)):
        return None
    streams = (str(output.get(stream) or "").strip("\n") for stream in ("stdout", "stderr"))
    return capped("\n".join(filter(None, (f"Exit code {code}", *streams))))


def _as_json(value: Any) -> Any:
    try:
        return loads_json(dumps_json(value))
    except InvalidEventError:
        return str(value)


# The tasks that follow hooks in the background, kept alive while they run.
_RUNNING: set[asyncio.Task[None]] = set()


def _in_our_names(payload: Mapping[str, Any], answer: HookDecision | None, cwd: str) -> HookDecision | None:
    """The answer with the updated input in our tool's names, None for an empty answer; a contradictory input blocks the
    call.
    """
    tool, input = payload.get("tool_name"), payload.get("tool_input")
    changed = answer.override_tool_input if answer is not None else None
    if answer is None or changed is None or not isinstance(tool, str) or not isinstance(input, Mapping):
        return None if answer == HookDecision() else answer
    try:
        return replace(answer, override_tool_input=with_our_names(tool, input, changed, cwd))
    except ToolInputError as error:
        return replace(answer, override_tool_input=None, block=True, block_reason=str(error), permission="deny")


# --- from settings -------------------------------------------------------------------------------------------------------

# Whether a call matches a permission rule: called with the rule, the tool's name and the input.
MatcherFits = Callable[[str, str, Mapping[str, Any]], bool]


def with_command_hooks(
    engine: HookEngine,
    described: Sequence[CommandHook],
    *,
    project_dir: str,
    permission_mode: str = "default",
    env: Mapping[str, str] | None = None,
    fits: MatcherFits | None = None,
) -> tuple[HookEngine, tuple[Diagnostic, ...]]:
    """The engine with the hooks of trusted settings after its own, and a finding for each that cannot run as written.

    A matcher that is not a valid regular expression matches every tool, so that a hook meant to block is not lost. `fits`
    evaluates the conditions of hooks; without it, every call matches.
    """
    matchers_by_point: dict[str, list[HookMatcher]] = {}
    problems: list[Diagnostic] = []
    for hook in described:
        point = EVENTS.get(hook.event)
        if point is None:
            problems.append(Diagnostic("hook", without_event(hook.event), path=hook.source, is_error=True))
            continue
        if hook.condition and point not in TOOL_POINTS:
            text = f"{hook.event} has no call that an `if` could match; {hook.command!r} never runs"
            problems.append(Diagnostic("hook", text, path=hook.source, is_error=True))
            continue
        pattern, regex = matched_names(hook.matcher)
        if regex is not None and not _is_regex(regex):
            text = f"matcher {regex!r} is not a regular expression; {hook.command!r} runs for every tool"
            problems.append(Diagnostic("hook", text, path=hook.source, is_error=True))
            regex = None
        shell_hook = _shell_hook(hook, project_dir, permission_mode, env or {})
        name = f"{hook.command[:80]} ({hook.source})"
        # A Bash command with a nonzero exit code is a result here, but a failure in Claude Code.
        points = (point, "post_tool_use") if hook.event == "PostToolUseFailure" else (point,)
        for each in points:
            matcher = HookMatcher(
                name,
                pattern,
                shell_hook,
                shell_hook.timeout_s,
                fail_closed=False,
                tool_name_regex=_with_our_names_of_tools(regex),
                when=_RuleCondition(hook, name, fits),
            )
            if all(
                matcher.hook != other.hook or not _are_alike(matcher, other)
                for other in matchers_by_point.get(each, ())
            ):
                matchers_by_point.setdefault(each, []).append(matcher)
    added: dict[str, Any] = {
        point: (*getattr(engine, point), *matchers) for point, matchers in matchers_by_point.items()
    }
    return replace(engine, **added), tuple(problems)


def _shell_hook(hook: CommandHook, project_dir: str, permission_mode: str, env: Mapping[str, str]) -> ShellHook:
    """The command of a hook, with the time limit that is usual for its event unless the settings name one."""
    usual_s = PROMPT_TIMEOUT_S if hook.event == "UserPromptSubmit" else DEFAULT_TIMEOUT_S
    return ShellHook(
        hook.command,
        hook.folder or project_dir,
        permission_mode,
        env=env,
        args=hook.args,
        event=hook.event,
        plugin_root=hook.root,
        plugin_data=hook.data,
        is_async=hook.is_async,
        only_forbids=hook.only_forbids,
        timeout_s=usual_s if hook.timeout_s is None else hook.timeout_s,
    )


def without_event(event: str) -> str:
    """A message that explains why the hooks of an event never run."""
    row = row_of("hook-event", event)
    near = look_alikes(event, EVENTS, 0.6) if row is None else []
    advice = (
        row.how
        if row is not None
        else f"did you mean {' or '.join(near)}?"
        if near
        else "Claude Code has no such event either"
    )
    return f"hooks of the event {event[:80]!r} never run here: {advice}"


@frozen
class _RuleCondition:
    """The condition for a hook from a file to run: on the conversation, outcome, call, active skill and earlier runs."""

    hook: CommandHook
    name: str
    fits: MatcherFits | None

    def __call__(self, payload: Mapping[str, Any]) -> bool:
        hook, context = self.hook, payload.get("context") or {}
        agent = context.get("agent_name")
        if agent and hook.event in _OF_THE_SESSION:
            return False
        if hook.event == "SubagentStop" and not (agent and _is_named(hook.matcher, str(agent))):
            return False
        if payload.get("hook_point") == "post_tool_use":
            has_failed = bool(context.get("error_message")) or failure_of(payload) is not None
            if has_failed != (hook.event == "PostToolUseFailure"):
                return False
            if has_failed and context.get("error_message"):
                return False  # the point for failures handles it
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


def _are_alike(first: HookMatcher, second: HookMatcher) -> bool:
    """Whether two hooks with the same command run for the same calls; if so, only one is used, as in Claude Code."""
    same_names = (first.tool_name_pattern, first.tool_name_regex) == (second.tool_name_pattern, second.tool_name_regex)
    conditions = [
        (when.hook.condition, when.hook.skill, when.hook.once)
        for when in (first.when, second.when)
        if isinstance(when, _RuleCondition)
    ]
    return same_names and len(set(conditions)) == 1


def _is_named(matcher: str, name: str) -> bool:
    pattern, regex = matched_names(matcher)
    if regex is not None:
        return not _is_regex(regex) or re.search(regex, name) is not None
    return pattern == "*" or name in pattern.split("|")


def matched_names(matcher: str) -> tuple[str, str | None]:
    """Convert a matcher of settings to a pattern, and to a regular expression or None; names must match both.

    Names joined by `|` or `,` are an exact list, to which our names for them are added; `*` and "" match all names; anything
    else is a regular expression that is searched for in a name.
    """
    if matcher in ("", "*"):
        return "*", None
    if re.fullmatch(r"[A-Za-z0-9_\- ,|:]*", matcher):
        names = [name.strip() for name in re.split(r"[|,]", matcher) if name.strip()]
        return "|".join(dict.fromkeys([*names, *(ours for name in names for ours in MATCHED.get(name, ()))])), None
    return "*", matcher


def _with_our_names_of_tools(regex: str | None) -> str | None:
    """The expression, extended by our names of the tools whose Claude Code names it matches."""
    ours = [] if regex is None else [ours for name, each in MATCHED.items() if re.search(regex, name) for ours in each]
    return "|".join([f"(?:{regex})", *(f"^{name}$" for name in ours)]) if ours else regex


def _is_regex(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
