"""The state shared by the Bash calls of one run: the working directory, and the background shells.

The shells end with the run: the runtime closes what it finds in `RunResources`. Those of an abandoned context end when it is
garbage-collected, or at the latest with the process.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ToolError, ToolInputError
from ...ground.frozen import mutable
from ...ground.garbage import when_collected
from ...ground.text import CUT_MARGIN, Redact, existing
from ...kernel.tool import RunResources, Secrets, ToolContext
from ..base import BlockingTool
from ..labels import OWN_SESSION
from ..schema import number, object_schema, string
from .output import KeptText, keep_output, keep_text, kept_part, trim_incomplete
from .process import CommandReport, CommandSpec, HelperHold, RunningCommand

MAX_WAIT_S = 60.0
MAX_SHELLS = 16
WAIT_STEP_S = 0.05


@mutable
class _Stream:
    """A file that a shell writes, and how far the model has read it."""

    path: str
    offset: int = 0

    def size(self) -> int:
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError:
            return 0

    def take(self, max_bytes: int, is_last: bool, redact: Redact | None) -> KeptText:
        """Take the new output, masked; leave an incomplete character, and with `redact` an incomplete line, for later."""
        new_bytes = max(0, self.size() - self.offset)
        # A secret may extend across the position: what precedes it is read again, to mask the rest of the secret.
        before = min(self.offset, CUT_MARGIN) if redact else 0
        edge_bytes = max_bytes + (2 * CUT_MARGIN if redact else 0)
        with open(self.path, "rb") if new_bytes else io.BytesIO() as file:
            file.seek(self.offset - before)
            earlier, head = file.read(before), file.read(min(new_bytes, edge_bytes))
            file.seek(self.offset + max(len(head), new_bytes - edge_bytes))
            tail = file.read(new_bytes - len(head)) if new_bytes > len(head) else b""
        if not is_last:
            data = tail or head
            cut = trim_incomplete(data)
            # A line is shown in part only if it is longer than the margin: waiting for its end could take forever.
            if redact and len(cut) - (end := cut.rfind(b"\n") + 1) < CUT_MARGIN:
                cut = cut[:end]
            new_bytes -= len(data) - len(cut)
            head, tail = (head, cut) if tail else (cut, tail)
        self.offset += new_bytes
        return keep_text(head, tail, new_bytes, max_bytes, None if redact is None else _going_on(earlier, redact))


def _going_on(earlier: bytes, redact: Redact) -> Redact:
    """Return a redactor for text that continues `earlier`: a multi-line secret that began there is masked to its end."""
    context = earlier.decode("utf-8", "replace")
    masked_context = redact(context)

    def masked(text: str) -> str:
        whole = redact(context + text)
        return whole[len(masked_context) :] if context and whole.startswith(masked_context) else redact(text)

    return masked


class BackgroundShell:
    """One command running in the background. `on_end` is called when its end is noticed, perhaps more than once; `notes`
    describe which of its effects were not kept.
    """

    def __init__(
        self,
        shell_id: str,
        command: str,
        running: RunningCommand,
        spec: CommandSpec,
        on_end: Callable[[], None],
        notes: Sequence[str],
    ) -> None:
        self.shell_id = shell_id
        self.command = command
        self.stdout, self.stderr = (_Stream(path) for path in spec.paths)
        self._running = running
        self._lock = threading.Lock()
        self._was_killed = False
        self.is_lost = False
        self._on_end = on_end
        self.notes = notes

    def report(self) -> CommandReport | None:
        """The report of a shell that has ended; None while it runs, or if its supervisor was killed (`is_lost`)."""
        with self._lock:
            try:
                # Inside the lock: two calls may look at the same time, and the report arrives once.
                has_ended = self._running.wait(0)
            except ToolError:
                has_ended = self.is_lost = True
            if has_ended:
                self._on_end()
            return self._running.report

    @property
    def status(self) -> str:
        """`running`, `exited`, `killed` (by a call or the output limit) or `lost` (its supervisor was killed)."""
        report = self.report()
        if report is None:
            return "lost" if self.is_lost else "running"
        return "killed" if self._was_killed or report.ended_by else "exited"

    def has_news(self) -> bool:
        return self.status != "running" or any(stream.size() > stream.offset for stream in (self.stdout, self.stderr))

    def kill(self) -> None:
        """End the shell and everything it started, and wait until that is done."""
        if self.report() is None:  # a shell that has ended by itself was not killed
            self._was_killed = True
        with self._lock:
            self._running.close()
            self._on_end()


class CommandFolder:
    """The folder in which the next command of a run starts: the one in which the previous command ended.

    Code that offers it to tools must also pass it to the permission gate, so that each command is judged where it runs.
    """

    def __init__(self) -> None:
        self._left_in: str | None = None

    def leave_in(self, folder: str) -> None:
        """Record the resolved folder in which a command ended."""
        self._left_in = folder

    def kept(self) -> str | None:
        """The folder in which the last command ended; None if there was none, or if the folder is gone or was replaced."""
        path = self._left_in
        if path is None or not os.path.isdir(path) or os.path.realpath(path) != path:  # a link has replaced it
            self._left_in = None
        return self._left_in


class RunShells:
    """The shared state of one run's Bash calls; `folder` is used by a tool that runs outside a session."""

    def __init__(self) -> None:
        self.folder = CommandFolder()
        self.notices: set[str] = set()
        self.hold = HelperHold()
        self._shells: dict[str, BackgroundShell] = {}
        self._started = 0
        # A run that is abandoned closes nothing, and its shells must not outlive it.
        self._finalizer = when_collected(self, _end_forgotten, self._shells, self.hold)

    def start(
        self, command: str, spec: CommandSpec, on_end: Callable[[], None], notes: Sequence[str]
    ) -> BackgroundShell:
        """Run a command in the background; call `on_end` when its end is noticed. Raises `ToolInputError` beyond
        `MAX_SHELLS`, and `ToolError` if the command cannot be started.
        """
        running = [shell.shell_id for shell in self._shells.values() if shell.status == "running"]
        if len(running) >= MAX_SHELLS:
            raise ToolInputError(
                f"{len(running)} background shells are already running ({', '.join(running)}): KillBash one first"
            )
        self._started += 1
        shell_id = f"shell_{self._started}"
        shell = BackgroundShell(shell_id, command, self.hold.start(spec), spec, on_end, notes)
        self._shells[shell_id] = shell
        return shell

    def settle(self) -> None:
        """Notice each shell that has ended by itself, which calls its `on_end`."""
        for shell in list(self._shells.values()):
            shell.report()

    def get(self, shell_id: str) -> BackgroundShell:
        if shell_id not in self._shells:
            shell_ids = existing("background shells", self._shells, "in this run")
            raise ToolInputError(f"unknown background shell {shell_id!r}: {shell_ids}", path="shell_id")
        return self._shells[shell_id]

    def close(self) -> None:
        """End every background shell and release the helper process."""
        self._finalizer.detach()
        _end_shells(self._shells)
        self.hold.release(at_once=True)


def _end_shells(shells: dict[str, BackgroundShell]) -> None:
    while shells:
        shells.popitem()[1].kill()


def _end_forgotten(shells: dict[str, BackgroundShell], hold: HelperHold) -> None:
    _end_shells(shells)
    hold.release(at_once=False)


def run_shells(ctx: ToolContext) -> RunShells:
    """The shared state of the Bash calls of the run of `ctx`."""
    return ctx.services.get(RunResources).get(RunShells)


def command_folder(ctx: ToolContext) -> CommandFolder:
    """The command folder of the run of `ctx`; in a session whose gate does not receive it, a new one, which is not kept."""
    folder = ctx.services.find(CommandFolder)
    if folder is not None:
        return folder
    return run_shells(ctx).folder if ctx.session_id is None else CommandFolder()


_SHELL_ID = string("The `shell_id` that Bash returned.")


class _ShellTool(BlockingTool):
    """A tool for one background shell, which returns its state and new output."""

    # A call advances the read position of the output, so it must not run twice or concurrently with another one.
    effect = "unsafe"

    def __init__(self, *, max_output_bytes: int = 30_000) -> None:
        self._max_output_bytes = max_output_bytes


class BashOutputTool(_ShellTool):
    """A tool that reads the new output of a background shell.

    Returns `{"shell_id", "command", "status", "stdout", "stderr", "stdout_truncated", "stderr_truncated", "exit_code",
    "notes"}`. The text is the output since the last call; `exit_code` is `None` while the shell runs.
    """

    name = "BashOutput"
    labels = OWN_SESSION
    description = (
        "Read what a background shell has written since you last looked, and whether it still runs. With `wait_s` the call "
        "waits that long for something new."
    )
    input_schema = object_schema(
        {
            "shell_id": _SHELL_ID,
            "wait_s": number("Seconds to wait for news; 0 when left out.", minimum=0, maximum=MAX_WAIT_S),
        },
        required=["shell_id"],
    )

    def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        shell = run_shells(ctx).get(input["shell_id"])
        # Polled, because the output is a file, and nothing announces that it has grown.
        for _ in range(int(input.get("wait_s", 0) / WAIT_STEP_S)):
            if shell.has_news() or ctx.cancelled.wait(WAIT_STEP_S):
                break
        return describe_shell(shell, self._max_output_bytes, ctx)


class KillBashTool(_ShellTool):
    """A tool that ends a background shell and everything it started, and returns the same as `BashOutput`."""

    name = "KillBash"
    labels = OWN_SESSION
    description = "End a background shell and everything it started. Returns its last output."
    input_schema = object_schema({"shell_id": _SHELL_ID}, required=["shell_id"])

    def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        shell = run_shells(ctx).get(input["shell_id"])
        shell.kill()
        return describe_shell(shell, self._max_output_bytes, ctx)


def describe_shell(shell: BackgroundShell, max_bytes: int, ctx: ToolContext) -> dict[str, Any]:
    """Build the result of a shell tool: the shell's state and its new output, which counts as read from now on."""
    report = shell.report()  # before the output, so that the last output of an ended shell is included
    notes = list(shell.notes)
    texts = {}
    for name, stream in (("stdout", shell.stdout), ("stderr", shell.stderr)):
        texts[name] = stream.take(max_bytes, report is not None or shell.is_lost, ctx.services.get(Secrets).redact)
        if texts[name].is_truncated:
            size = os.path.getsize(stream.path) if os.path.exists(stream.path) else 0
            path = keep_output(stream.path, ctx, is_over=report is not None)
            where = f"; {kept_part(size, ctx)} in {path}" if path is not None else ""
            notes.append(f"{name}: {texts[name].omitted_bytes:,} new bytes are left out here{where}")
    if shell.is_lost:
        notes.append("its supervisor was killed, so its end is unknown; its remaining processes were killed too")
    if report is not None and report.ended_by == "output_limit":
        notes.append("the shell was ended because it exceeded the output limit")
    return {
        "shell_id": shell.shell_id,
        "command": shell.command,
        "status": shell.status,
        "stdout": texts["stdout"].text,
        "stderr": texts["stderr"].text,
        "stdout_truncated": texts["stdout"].is_truncated,
        "stderr_truncated": texts["stderr"].is_truncated,
        "exit_code": report.exit_code if report is not None else None,
        "notes": notes,
    }
