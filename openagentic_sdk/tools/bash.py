"""Run a command line with bash.

Each call is a separate shell: `bash --noprofile --norc -c <the command, byte for byte>`, no standard input, a scrubbed
environment. Between calls only the working directory is kept, as long as it stays inside the workspace. When a call returns,
nothing that it started still runs, except processes that cannot be killed and a shell started with `run_in_background`,
which ends with the run.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from signal import Signals
from typing import Any

from ..errors import OptionsError, ToolError, ToolInputError
from ..events import SystemNotice
from ..ground.disk import is_within
from ..ground.files import file_state
from ..ground.frozen import frozen
from ..ground.system import user_home
from ..ground.text import CUT_MARGIN
from ..kernel.tool import Secrets, SessionLog, ToolContext, ToolOutput
from .base import BlockingTool
from .files.copies import keep_files
from .labels import ToolLabels
from .schema import boolean, number, object_schema, string
from .shell.background import CommandFolder, RunShells, command_folder, run_shells
from .shell.environment import command_environment, find_program
from .shell.file_policy import NOTHING_CLOSED, CommandRules, FilePolicy, run_temp
from .shell.git_config import foreign_settings, git_note, names_git, overruling
from .shell.git_settings import GitSettings
from .shell.output import keep_output, keep_text, kept_part, output_paths
from .shell.overlay import read_effects
from .shell.process import CommandReport, CommandSpec, run_command
from .shell.sandbox_plan import probe_sandbox
from .shell.sandboxed import (
    MAX_TOUCHED,
    BashSandbox,
    ConfinedCommand,
    EffectsMode,
    SandboxMode,
    named_channel,
    renaming_note,
    writes_in_place,
)
from .shell.trial import (
    WITHOUT_RETRIES,
    Change,
    TrialLimits,
    changes_of,
    covered_folders,
    hidden_files,
    shortfall,
    shown_places,
)

DEFAULT_TIMEOUT_S = 120.0
MAX_TIMEOUT_S = 600.0
DEFAULT_OUTPUT_BYTES = 30_000
# Linux passes at most 128 KiB in one argument of a program (MAX_ARG_STRLEN).
MAX_COMMAND_BYTES = 120_000
MAX_FILE_BYTES = 2 * 1024**3


@functools.lru_cache(maxsize=64, typed=True)  # most agents have the same, so it is read once
def _input_schema(timeout_s: float, max_timeout_s: float) -> Mapping[str, Any]:
    return object_schema(
        {
            "command": string("The command line, as bash reads it.", minLength=1),
            "timeout_s": number(
                f"Seconds after which the command is ended; {timeout_s:g} when left out.",
                minimum=0.01,
                maximum=max_timeout_s,
            ),
            "run_in_background": boolean(
                "Start it and return at once; BashOutput reads what it writes, KillBash ends it."
            ),
            "description": string("What the command does, in a few words, for people."),
        },
        required=["command"],
    )


@frozen
class TriedCommand:
    """A command that ran on a copy, and its effects, `changes`.

    `shortfall` states what the command lacked there or which limit it exceeded, and is None if its effects can be judged.
    """

    command: str
    spec: CommandSpec
    report: CommandReport
    confinement: ConfinedCommand
    policy: FilePolicy
    sandbox: BashSandbox
    changes: tuple[Change, ...]
    shortfall: str | None
    timeout_s: float

    @property
    def root(self) -> str:
        """The first folder of the workspace, to which displayed paths are relative."""
        return self.confinement.layers[0][0]

    @property
    def source_of(self) -> dict[str, str]:
        """The location of each change's new content on the copy, by path."""
        layers, paths = self.confinement.layers, [change.path for change in self.changes]
        return {
            path: os.path.join(upper, os.path.relpath(path, folder))
            for folder, upper in layers
            for path in paths
            if is_within(path, folder)
        }


class _FreeSpace:
    """A measure of how much a trial writes: the space that its file system loses during the trial."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._free_bytes = self._free()
        self.was_used_up = False

    def _free(self) -> int:
        room = os.statvfs(self._folder)
        return room.f_bavail * room.f_frsize

    def is_used_up(self) -> bool:
        # Four times the limit, because other programs use the same file system meanwhile.
        self.was_used_up = self.was_used_up or self._free_bytes - self._free() > 4 * self._most_bytes
        return self.was_used_up


class BashTool(BlockingTool):
    """A tool that runs a command line with bash and returns a dict:

    `stdout`, `stderr`: text, each at most `max_output_bytes` bytes of UTF-8, start and end kept; `stdout_truncated`,
    `stderr_truncated`, and if truncated `stdout_file`, `stderr_file` with the complete output, or with its first 64 MiB if
    secrets are masked; `exit_code` (128 + n if signal n ended the shell) and `signal` (its name or None); `timed_out`;
    `duration_s`; `cwd` for the next call, relative to the workspace; `notes`: sentences about what was truncated, ended or
    reset. With `run_in_background`, the keys are `shell_id`, `status` and `notes`.

    `max_file_bytes` is how much a command may write to one stream before it is ended. `keep_environment` names variables
    that are passed although they look like secrets or influence programs, `environment` adds variables. `sandbox`,
    `sandbox_...` and `bash_effects` are explained in `shell/sandboxed.py`: with them a result has `sandbox` (its level) and
    `effects` (`{"created", "changed", "deleted", "applied", "total"}`), and a `system.notice` describes the sandbox once
    per run. `trusts_git` lets git run what a repository's own configuration names, its hooks for example; otherwise hooks
    are off, other settings that could run something are removed where there are mounts, and the result of a git command
    says so.
    """

    name = "Bash"
    labels = ToolLabels("derived", control=("command",), sink=True)
    effect = "unsafe"

    def __init__(
        self,
        *,
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_timeout_s: float = MAX_TIMEOUT_S,
        max_file_bytes: int = MAX_FILE_BYTES,
        keep_environment: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        sandbox: SandboxMode | None = None,
        sandbox_network: bool = False,
        sandbox_unix_sockets: bool = False,
        sandbox_writable: Iterable[str] = (),
        sandbox_protected: Iterable[str] = (),
        sandbox_limits: Iterable[tuple[int, int]] = (),
        bash_effects: EffectsMode | None = None,
        trusts_git: bool = False,
    ) -> None:
        if max_output_bytes < 0 or timeout_s <= 0:
            raise OptionsError(
                f"BashTool needs max_output_bytes of at least 0 and timeout_s above 0, but got {max_output_bytes} and "
                f"{timeout_s}"
            )
        self._max_output_bytes = max_output_bytes
        self._timeout_s = timeout_s
        self._max_file_bytes = max_file_bytes
        self._keep_environment = tuple(keep_environment)
        self._environment = dict(environment or {})
        self._sandbox = BashSandbox(
            mode=sandbox,
            network=sandbox_network,
            unix_sockets=sandbox_unix_sockets,
            writable=tuple(sandbox_writable),
            protected=tuple(sandbox_protected),
            limits=tuple(sandbox_limits),
            effects=bash_effects,
        )
        self._trusts_git = trusts_git
        self.input_schema = _input_schema(timeout_s, max(timeout_s, max_timeout_s))
        self.description = (
            "Run a command with bash and return its output. Each call is a new shell: only the working directory is kept, "
            "variables are not. There is no standard input and no terminal. The command is ended after "
            f"{timeout_s:g} s unless `timeout_s` says otherwise, and whatever it left running with `&` is ended with it: "
            "for servers and watchers use `run_in_background`. Long output is cut in the middle; the result names the "
            "file that holds all of it. Read files with Read, search with Grep and Glob, change files with Edit."
            + self._sandbox.description
        )

    def keeps(self, sandbox: SandboxMode, effects: EffectsMode | None) -> bool:
        """Whether this tool satisfies a required sandbox and the requested handling of effects."""
        own = self._sandbox
        return (sandbox != "require" or own.mode == "require") and effects in (None, own.effects)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        earlier_notices = frozenset(run_shells(ctx).notices)
        result = await super().run(input, ctx)
        new = run_shells(ctx).notices - earlier_notices
        if new:
            sandbox = self.sandbox_under(ctx.services.find(CommandRules) or CommandRules())
            level = sandbox.protection(probe_sandbox())
            codes = {level: "sandbox.level"} if self._sandbox.mode is None and sandbox.effects is None else {}
            notices = (SystemNotice(codes.get(text, "sandbox"), text) for text in sorted(new))
            await ctx.services.get(SessionLog).record(*notices)
        return result

    def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any] | ToolOutput:
        command = _checked_command(input["command"])
        shells = run_shells(ctx)
        rules = ctx.services.find(CommandRules) or CommandRules()
        sandbox = self.sandbox_under(rules)
        policy = rules.policy(ctx, command) if sandbox.confines else NOTHING_CLOSED
        roots = _roots(ctx)
        if input.get("run_in_background", False):
            # What the shell writes to protected paths is set aside before the model's next request, if it has ended by then.
            rules.before_step = shells.settle
            return self._start_in_background(command, shells, ctx, sandbox, policy)
        timeout_s = float(input.get("timeout_s", self._timeout_s))
        folder = command_folder(ctx)
        cwd = _working_dir(folder, ctx)
        temp = run_temp(ctx).folder if sandbox.confines else ""
        direct = sandbox.effects is None and sandbox.confines
        direct = direct and (writes_in_place(command, policy) or named_channel(command, cwd, roots) is not None)
        foreign = self._foreign(command, cwd, ctx) if sandbox.confines else {}
        with sandbox.confine(cwd, policy, temp, direct=direct, foreign=foreign) as confinement:
            spec = self._spec(command, cwd, ctx, confinement)
            report = run_command(spec, timeout_s=timeout_s, is_cancelled=ctx.cancelled.is_set)
            effects = sandbox.settle(confinement, policy, roots[0], functools.partial(keep_files, ctx))
        return self._output(command, report, spec, confinement, effects, timeout_s, ctx)

    def _output(
        self,
        command: str,
        report: CommandReport,
        spec: CommandSpec,
        confinement: ConfinedCommand,
        effects: dict[str, Any] | None,
        timeout_s: float,
        ctx: ToolContext,
    ) -> dict[str, Any] | ToolOutput:
        folder, roots = command_folder(ctx), _roots(ctx)
        notes = [
            *_ending_notes(report, timeout_s),
            *_new_notices(run_shells(ctx), confinement),
            *confinement.dropped,
        ]
        if effects is not None and not effects["applied"]:
            notes.append("this was a dry run: the changes listed under `effects` were not written")
        renaming = renaming_note(confinement, report.stderr.head, report.stderr.tail, report.stdout.tail)
        notes += [renaming] if renaming else []
        if names_git(command) and not self._trusts_git:
            foreign = self._foreign(command, spec.cwd, ctx)
            about_git = git_note(command, spec.cwd, foreign, is_left_out=confinement.has_mounts)
            notes += [about_git] if about_git else []
        notes += _move(folder, report.cwd, roots, ctx)
        result = self._result(report, spec, notes, ctx)
        place = os.path.realpath(folder.kept() or spec.cwd)
        result["cwd"] = os.path.relpath(place, roots[0]) if is_within(place, roots[0]) else place
        if confinement.plan is not None:
            result["sandbox"] = confinement.level
        if effects is None:
            return result
        result["effects"] = effects
        if len(confinement.touched) > MAX_TOUCHED:
            return result
        return ToolOutput(result, {"changed": {path: file_state(path) for path in confinement.touched}})

    # --- trials ----------------------------------------------------------------------------------------------------------

    def untriable(self, cwd: str) -> str | None:
        """The reason why commands are not tried on a copy here; empty if not worth reporting, None if they are tried."""
        if self._sandbox.mode == "off" or self._sandbox.effects is not None:
            return ""
        try:
            report = probe_sandbox()
        except ToolError as error:
            return str(error)
        if not report.overlay:
            return f"this machine cannot provide a copy to try it on: {report.reasons.get('overlay', '')}"
        home = os.path.realpath(user_home())
        return (
            "the workspace contains the home folder, so it was not tried"
            if is_within(home, os.path.realpath(cwd))
            else None
        )

    def try_out(
        self, input: Mapping[str, Any], ctx: ToolContext, stack: ExitStack, policy: FilePolicy, limits: TrialLimits
    ) -> TriedCommand:
        """Run a command on a copy of the workspace, which `stack` removes; call `keep` or `drop` before that.

        `policy` is the file access of a command that nobody has approved. Raises `ToolError` if the command cannot run here.
        """
        command = _checked_command(input["command"])
        if policy.problem is not None:
            raise ToolError(policy.problem)
        # Nobody has approved the command: it may read nothing private, and write only to the copy.
        policy = replace(
            policy,
            hidden=(*policy.hidden, *hidden_files()),
            covered=covered_folders(policy.covered),
            shown=(*policy.shown, *shown_places()),
            writable=(),
            git_writes=False,
        )
        sandbox = BashSandbox(
            mode="auto", network=False, effects="commit", limits=limits.as_rlimits(), counts_times=True
        )
        cwd = _working_dir(command_folder(ctx), ctx)
        timeout_s = min(float(input.get("timeout_s", self._timeout_s)), limits.seconds)
        foreign = self._foreign(command, cwd, ctx)
        confinement = stack.enter_context(sandbox.confine(cwd, policy, run_temp(ctx).folder, foreign=foreign))
        bytecode = os.path.join(confinement.environment["TMPDIR"], "bytecode-of-trials")
        confinement.environment.update(WITHOUT_RETRIES, PYTHONPYCACHEPREFIX=bytecode)
        spec = replace(self._spec(command, cwd, ctx, confinement), file_bytes=limits.file_bytes)
        # The limit per file does not bound a command that writes many files.
        room = _FreeSpace(confinement.layers[0][1], limits.file_bytes)
        report = run_command(
            spec, timeout_s=timeout_s, is_cancelled=lambda: ctx.cancelled.is_set() or room.is_used_up()
        )
        lacks = (
            "it changes more bytes than a trial may" if room.was_used_up else shortfall(command, report, policy.covered)
        )
        changes = () if lacks is not None else _changes_on(confinement)
        return TriedCommand(command, spec, report, confinement, policy, sandbox, changes, lacks, timeout_s)

    def is_current(self, tried: TriedCommand) -> bool:
        """Whether keeping a trial's effects now would change exactly what was judged."""
        return _changes_on(tried.confinement) == tried.changes

    def keep(self, tried: TriedCommand, ctx: ToolContext) -> dict[str, Any] | ToolOutput:
        """Apply a trial's effects, after keeping copies of the files that they change; return the call's output."""
        keep = functools.partial(keep_files, ctx)
        effects = tried.sandbox.settle(tried.confinement, tried.policy, tried.root, keep)
        return self._ended(tried, effects, ctx)

    def drop(self, tried: TriedCommand, ctx: ToolContext) -> dict[str, Any] | ToolOutput:
        """Discard a trial's effects; return the call's output, which lists what would have changed."""
        previewed = replace(tried.sandbox, effects="preview")
        effects = previewed.settle(tried.confinement, tried.policy, tried.root, lambda paths: None)
        return self._ended(tried, effects if tried.changes else None, ctx)

    def _ended(
        self, tried: TriedCommand, effects: dict[str, Any] | None, ctx: ToolContext
    ) -> dict[str, Any] | ToolOutput:
        return self._output(tried.command, tried.report, tried.spec, tried.confinement, effects, tried.timeout_s, ctx)

    def sandbox_under(self, rules: CommandRules) -> BashSandbox:
        """The sandbox of this tool's commands: the tool's own if it sets a mode, otherwise with the mode of these rules."""
        own = self._sandbox
        if own.mode is not None:
            return own
        sockets = own.unix_sockets or rules.sandbox == "auto"
        return replace(own, mode=rules.sandbox, network=own.network or None, unix_sockets=sockets)

    def _start_in_background(
        self, command: str, shells: RunShells, ctx: ToolContext, sandbox: BashSandbox, policy: FilePolicy
    ) -> dict[str, Any]:
        if sandbox.effects is not None:
            raise ToolInputError(
                "the effects of a command are listed when it ends, so it cannot run in the background here",
                path="command",
            )
        cwd = _working_dir(command_folder(ctx), ctx)
        with ExitStack() as stack:
            temp = run_temp(ctx).folder if sandbox.confines else ""
            foreign = self._foreign(command, cwd, ctx)
            confinement = stack.enter_context(sandbox.confine(cwd, policy, temp, direct=True, foreign=foreign))
            spec = self._spec(command, cwd, ctx, confinement, is_background=True)
            # Keep the sandbox's mounts until the shell has ended.
            shell = shells.start(command, spec, stack.pop_all().close, confinement.dropped)
        note = f"it ends by itself, by KillBash, or with this run; BashOutput({shell.shell_id!r}) reads what it writes"
        notes = [note, *_new_notices(shells, confinement)]
        return {"shell_id": shell.shell_id, "status": "running", "notes": notes}

    def _foreign(self, command: str, cwd: str, ctx: ToolContext) -> dict[str, GitSettings]:
        return {} if self._trusts_git else foreign_settings(cwd, _roots(ctx), deep=names_git(command))

    def _spec(
        self, command: str, cwd: str, ctx: ToolContext, confinement: ConfinedCommand, is_background: bool = False
    ) -> CommandSpec:
        # The gate has read the command as UTF-8; in another locale, bash could divide its bytes differently.
        locale = "C.UTF-8" if has_utf8_locale() else "C"
        extra = {"PWD": cwd, **self._environment, **confinement.environment, "LC_ALL": locale}
        roots = _roots(ctx)
        if not self._trusts_git:
            # git numbers the settings in variables (GIT_CONFIG_KEY_n), so ours continue after those of the caller.
            extra |= overruling(int(self._environment.get("GIT_CONFIG_COUNT", "0")))
        environment = command_environment(keep=self._keep_environment, extra=extra, workspace=roots)
        # A program in the workspace must not take the place of one that a rule allows by its name.
        searched = environment.get("PATH", "").split(os.pathsep)
        inside = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder not in searched]
        inside = [folder for folder in inside if folder.startswith("/")]
        if inside and "PATH" not in self._environment:
            confinement.notes.append(
                f"{', '.join(inside)} on PATH is inside the workspace, so commands do not find programs there: call "
                "them by their paths, or set PATH under"
                ' "env" in the settings'
            )
        return CommandSpec(
            argv=(bash_path(roots), "--noprofile", "--norc", "-c", command),
            env=environment,
            cwd=cwd,
            # A secret that the cut divides could not be recognized: the margins keep it whole until it is masked.
            keep_bytes=self._max_output_bytes + (2 * CUT_MARGIN if ctx.services.get(Secrets).redact else 0),
            paths=output_paths(ctx.tool_use_id),
            file_bytes=self._max_file_bytes,
            spool=is_background,
            sandbox=confinement.plan,
        )

    def _result(self, report: CommandReport, spec: CommandSpec, notes: list[str], ctx: ToolContext) -> dict[str, Any]:
        out, err = (
            keep_text(
                stream.head, stream.tail, stream.total_bytes, self._max_output_bytes, ctx.services.get(Secrets).redact
            )
            for stream in (report.stdout, report.stderr)
        )
        result = {
            "stdout": out.text,
            "stderr": err.text,
            "exit_code": report.exit_code,
            "stdout_truncated": out.is_truncated,
            "stderr_truncated": err.is_truncated,
            "signal": Signals(report.signal).name if report.signal else None,
            "timed_out": report.ended_by == "timeout",
            "duration_s": round(report.duration_s, 3),
            "notes": notes,
        }
        streams = (("stdout", out, report.stdout, spec.paths[0]), ("stderr", err, report.stderr, spec.paths[1]))
        for name, text, stream, path in streams:
            kept_path = keep_output(path, ctx, is_over=True) if stream.is_spooled else None
            if kept_path is not None:
                result[f"{name}_file"] = kept_path
            if text.is_truncated:
                where = (
                    f"{kept_part(text.total_bytes, ctx)} in {kept_path}"
                    if kept_path is not None
                    else "narrow the output to see it"
                )
                cut = f"{text.omitted_bytes:,} of {text.total_bytes:,} bytes"
                notes.append(f"{name}: {cut} are left out of the middle; {where}")
        return result


def bash_path(workspace: Iterable[str] = ()) -> str:
    """The path of bash. Raises `ToolError` if none exists outside the workspace."""
    path = find_program("bash", workspace)
    if path is None:
        raise ToolError("bash was not found outside the workspace: use the file tools, or install bash")
    return path


def _changes_on(confinement: ConfinedCommand) -> tuple[Change, ...]:
    """The changes that keeping all effects of a command on a copy would make, given the workspace as it is now."""
    return tuple(
        change
        for folder, upper in confinement.layers
        for change in changes_of(folder, upper, read_effects(folder, upper, times=True))
    )


@functools.cache
def has_utf8_locale() -> bool:
    """Whether bash supports C.UTF-8 here; in another locale, it could read a command differently from the permission gate.

    Raises `ToolError` if bash cannot be started.
    """
    # The length of an e with an acute accent, two bytes in UTF-8: 1 if bash counts characters.
    counts = [bash_path(), "--noprofile", "--norc", "-c", 'printf %s "${#1}"', "bash", os.fsdecode("\u00e9".encode())]
    try:
        result = subprocess.run(
            counts, env={"LC_ALL": "C.UTF-8"}, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise ToolError(f"{counts[0]} could not be started: {error.strerror or error}") from error
    return result.stdout == b"1"


def _checked_command(command: str) -> str:
    if "\0" in command:
        raise ToolInputError(
            "the command contains a NUL character, which cannot be passed to a program: remove it", path="command"
        )
    try:
        size_bytes = len(command.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ToolInputError(
            f"the command is not valid text ({error}): remove the invalid characters", path="command"
        ) from None
    if size_bytes > MAX_COMMAND_BYTES:
        raise ToolInputError(
            f"the command has {size_bytes:,} bytes, and the limit is {MAX_COMMAND_BYTES:,}: write it to a file and run that",
            path="command",
        )
    if not command.isascii() and not has_utf8_locale():
        raise ToolInputError(
            "this machine has no locale C.UTF-8, so bash could misread letters here: write the command in ASCII, or "
            "install the locale",
            path="command",
        )
    return command


def _roots(ctx: ToolContext) -> list[str]:
    return list(map(os.path.realpath, ctx.workspace_roots or (ctx.cwd,)))


def _working_dir(folder: CommandFolder, ctx: ToolContext) -> str:
    """The folder in which the next command starts: where the last one ended, or the session's folder if that is gone.

    Raises `ToolError` if neither exists.
    """
    last_folder = folder.kept()
    if last_folder is not None:
        return last_folder
    start = os.path.abspath(ctx.cwd)
    if not os.path.isdir(start):
        raise ToolError(f"the working directory {start} does not exist: create it, or start the session elsewhere")
    return start


def _move(folder: CommandFolder, cwd: str | None, roots: list[str], ctx: ToolContext) -> list[str]:
    """Remember where the command ended; return a note if that is outside the workspace and so not kept."""
    if cwd is None or not os.path.isdir(cwd):
        return []
    real = os.path.realpath(cwd)  # a command may report any path, for example one with links and dots
    if any(is_within(real, root) for root in roots):
        folder.leave_in(real)
        return []
    if real == os.path.realpath(ctx.cwd):
        return []
    return [
        f"the command ended in {cwd}, outside the workspace: the next one starts in {_working_dir(folder, ctx)} again"
    ]


def _ending_notes(report: CommandReport, timeout_s: float) -> list[str]:
    notes = []
    if report.ended_by == "timeout":
        notes.append(
            f"the command was ended after {timeout_s:g} s: give it a longer `timeout_s`, or use `run_in_background`"
        )
    if report.ended_by == "cancel":
        notes.append("the command was ended because the call was cancelled")
    if report.ended_by == "output_limit":
        notes.append(
            "the command was ended because it wrote more than the output limit: send its output to a file or filter it"
        )
    if report.leftovers:
        notes.append(
            f"{_count(report.leftovers)} that the command left running ended with it: use `run_in_background` for "
            "programs that should continue"
        )
    if report.stubborn:
        notes.append(
            f"{_count(report.stubborn)} of the command could not be ended (owned by another user, or stuck in the kernel)"
        )
    return notes


def _new_notices(shells: RunShells, confinement: ConfinedCommand) -> list[str]:
    """Return the notices about the sandbox that are new in this run, and remember them."""
    fresh = [note for note in confinement.notes if note not in shells.notices]
    shells.notices.update(fresh)
    return fresh


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
