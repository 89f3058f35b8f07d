"""A server that runs as our child process: its pipes are on the event loop, and a helper supervises its processes.

The same helper runs shell commands (`tools.shell.helper`): whatever the program starts ends with the program, and all of it
ends if this process dies, even by `kill -9`. Standard error is always drained, and its end is kept for messages.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from ...errors import InvalidEventError, McpError, ToolError
from ...ground.jsonrpc import NO_OPEN_REQUEST, Lines, Peer
from ...ground.text import one_line, without_hidden
from ...ground.threads import run_in_thread, settled
from ...ground.words import plural
from ...tools.shell.process import CommandReport, HelperHold, Outbox, RunningCommand, ServerSpec
from .protocol import LONG_BYTES, as_batch, read_long_message, read_message
from .server_config import McpServer, mask_secrets

# A result with pictures is one line, in Base64.
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_STDERR_BYTES = 64 * 1024
MAX_UNSENT_BYTES = 64 * 1024 * 1024
MAX_STRAYS = 10_000
# A larger buffer would be allocated and freed for every read.
_READ_BYTES = 64 * 1024
# How long a server may take to end after its input is closed, and after TERM; then it is killed.
EXIT_S, TERM_S = 2.0, 2.0
# How long to wait, after the end of a server's output, for the report that its process has ended, which gives the reason.
_NEWS_S = 0.5
_LIST = ord("[")
_LINES_AT_ONCE = 200
_SHOWN_STDERR_CHARS = 2_000
# What the official SDKs pass on, and what programs need for the user's locale and for temporary files.
_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


def server_environment(settings: McpServer, project_dir: str, host: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a server: variables passed on from `host` (None: this process), CLAUDE_PROJECT_DIR, and its `env`.

    Exported shell functions (`() {...`) are never passed on.
    """
    source = os.environ if host is None else host
    passed = {
        name: value
        for name, value in source.items()
        if (settings.inherit_env or name in _PASSED_ON) and not value.startswith("()")
    }
    return {**passed, "CLAUDE_PROJECT_DIR": project_dir, **settings.env}


class StdioWire:
    """A running server. `peer` communicates with it; `on_lost` is called once with the reason if it ends on its own."""

    def __init__(
        self,
        name: str,
        settings: McpServer,
        make_peer: Callable[[Callable[[bytes], object]], Peer],
        on_lost: Callable[[McpError], None],
    ) -> None:
        self.name = name
        self.peer = make_peer(self._send)
        self.lost: McpError | None = None
        self._strays = 0
        self._first_stray = b""
        self._settings = settings
        self._on_lost = on_lost
        self._lines = Lines(MAX_LINE_BYTES)
        # Lines that have been read and not yet passed on; reading is paused meanwhile. `_reading` parses a long one.
        self._waiting: deque[bytes | None] = deque()
        self._is_paused = False
        self._reading: asyncio.Task[None] | None = None
        self._stderr = bytearray()
        self._outbox: Outbox | None = None
        self._loop = asyncio.get_running_loop()
        self._hold = HelperHold()
        self._command: RunningCommand | None = None
        self._ended = asyncio.Event()
        self._fds: dict[str, int] = {}

    async def open(self, cwd: str) -> None:
        """Start the program. Raises `McpError` if it cannot be started."""
        settings = self._settings
        environment = server_environment(settings, cwd)
        folder, program = _find_program(settings, cwd, environment.get("PATH", ""))
        if program is None:
            text = f"{settings.command!r} is not a program on PATH: install it, or give its path"
            raise McpError(text, server=self.name)
        (in_r, in_w), (out_r, out_w), (err_r, err_w) = self._pipes()
        self._fds = {"in": in_w, "out": out_r, "err": err_r}
        spec = ServerSpec(argv=(program, *settings.args), env=environment, cwd=folder, grace_s=TERM_S)
        start = partial(self._hold.start, spec, (in_r, out_w, err_w))
        # A start is short, and a process that it started must not be lost.
        started, cancelled = await settled(run_in_thread(start, name="openagentic-mcp-start"))
        for fd in (in_r, out_w, err_w):
            os.close(fd)
        try:
            self._command = started.result()
        except (ToolError, ValueError) as error:
            self._let_go()
            raise McpError(f"the server {self.name} cannot be started: {error}", server=self.name) from None
        for fd in self._fds.values():
            os.set_blocking(fd, False)
        self._outbox = Outbox(in_w, partial(os.write, in_w))
        self._loop.add_reader(out_r, self._read_output)
        self._loop.add_reader(err_r, self._read_stderr)
        self._command.watch(self._take_end)
        if cancelled is not None:
            raise cancelled

    def _pipes(self) -> list[tuple[int, int]]:
        pipes: list[tuple[int, int]] = []
        try:
            for _ in range(3):
                pipes.append(os.pipe())
        except OSError as error:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise McpError(f"the server {self.name} cannot be started: {error.strerror}", server=self.name) from None
        return pipes

    async def close(self) -> None:
        """End the server and all its processes: close its input, then terminate it, then kill it."""
        self.lost = self.lost or McpError(f"the server {self.name} was closed", server=self.name)
        command = self._command
        try:
            if command is not None and not self._ended.is_set():
                self._close_fd("in")
                # After an order to terminate, the helper kills on its own after `TERM_S`; its report may take a second more.
                for order, moment_s in ((None, EXIT_S), (b"T", TERM_S + 1), (b"K", TERM_S)):
                    if order is not None:
                        command.order(order)
                    try:
                        await asyncio.wait_for(self._ended.wait(), moment_s)
                        break
                    except TimeoutError:
                        continue
        finally:
            self._let_go()  # which kills what is still running
            if self._reading is not None:
                await asyncio.wait({self._reading})

    def stderr(self) -> str:
        """The last output of the server to standard error, without secrets from its configuration."""
        return mask_secrets(self._settings, without_hidden(self._stderr[-MAX_STDERR_BYTES:].decode("utf-8", "replace")))

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _send(self, line: bytes) -> None:
        if self.lost is not None or self._outbox is None or "in" not in self._fds:
            return  # waiting requests fail when the server is lost
        if self._outbox.send(line) > MAX_UNSENT_BYTES:
            self._lose("does not read its input")

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read_output(self) -> bool:
        """Read a chunk of the server's output and handle its lines; return whether there was one."""
        data = self._read("out")
        if data:
            self._waiting.extend(self._lines.feed(data))
            self._take_lines()
        elif data is not None and self.lost is None:
            self._loop.call_later(_NEWS_S, self._lose, "closed its output")
        return bool(data)

    def _take_lines(self) -> None:
        """Pass on the waiting lines, or as many as do not block the event loop; reading is paused while some remain."""
        for _ in range(min(len(self._waiting), _LINES_AT_ONCE)):
            line = self._waiting.popleft()
            if line is not None and len(line) > LONG_BYTES:
                self._pause()
                self._reading = self._loop.create_task(self._take_long(line), name=f"mcp line {self.name}")
                return
            if line and line[0] == _LIST:
                self._take_list(line)
            else:
                self.peer.receive(line)
        if self._waiting:
            self._pause()
            self._loop.call_soon(self._take_lines)
        elif self._is_paused and "out" in self._fds:
            self._is_paused = False
            self._loop.add_reader(self._fds["out"], self._read_output)

    def _pause(self) -> None:
        if not self._is_paused and "out" in self._fds:
            self._is_paused = True
            self._loop.remove_reader(self._fds["out"])

    async def _take_long(self, line: bytes) -> None:
        try:
            message = await read_long_message(line)
        except InvalidEventError as error:
            self.take_stray(str(error), line)
        else:
            self.peer.take(message, line)
        self._reading = None
        self._take_lines()

    def _take_list(self, line: bytes) -> None:
        """Pass on a line that is a list of messages, as before 2025-06-18; a log line may begin the same way."""
        with suppress(InvalidEventError):
            whole = read_message(line)
            batch = as_batch(whole)
            if batch and all(isinstance(one, dict) and "jsonrpc" in one for one in batch):
                for message in batch:
                    self.peer.take(message)
                return
        self.take_stray("it is not a message", line)

    def _read_stderr(self) -> bool:
        """Read a chunk of the server's standard error; return whether there was one."""
        data = self._read("err")
        if data:
            self._stderr += data
            if len(self._stderr) > 2 * MAX_STDERR_BYTES:
                del self._stderr[:-MAX_STDERR_BYTES]
        return bool(data)

    def _read(self, stream: str) -> bytes | None:
        """Bytes available now: b"" at end of file, None if there are none yet."""
        try:
            data = os.read(self._fds[stream], _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fds[stream])
        return data

    def _take_end(self, end: CommandReport | ToolError) -> None:
        if isinstance(end, ToolError):
            how = "was lost: its supervisor was killed"
        else:
            how = f"was ended by signal {end.signal}" if end.signal else f"exited with code {end.exit_code}"
        self._ended.set()
        self._finish(how)

    def _finish(self, how: str) -> None:
        """Read the last output of a server that ended, in steps between which the event loop runs, and then declare the
        server lost.
        """
        if self._reading is not None and not self._reading.done():
            self._reading.add_done_callback(lambda _: self._finish(how))
        elif self._waiting or (self.lost is None and "out" in self._fds and self._read_output()):
            self._loop.call_soon(self._finish, how)
        else:
            while "err" in self._fds and self._read_stderr():
                continue
            self._lose(how)

    def _lose(self, how: str) -> None:
        if self.lost is not None:
            return
        self.lost = McpError(f"the server {self.name} {how}{self.last_words()}", server=self.name, stderr=self.stderr())
        self._on_lost(self.lost)

    def take_stray(self, reason: str, line: bytes) -> None:
        """Handle a line that is not a message, or a late answer that no request waits for (which is common)."""
        # Detects a truncated message; a log line that quotes a message begins differently, or is complete JSON.
        is_cut = not line or (line.lstrip()[:1] == b"{" and b'"jsonrpc"' in line[:1000] and not _is_json(line))
        self._strays += 1
        self._first_stray = self._first_stray or line[:200]
        if is_cut and reason != NO_OPEN_REQUEST:
            # It may have been an answer, whose request would otherwise wait until its time limit.
            text = f"the server {self.name} wrote a message that cannot be read ({reason})"
            self.peer.fail(lambda: McpError(text, server=self.name, in_flight=True))
        if self._strays > MAX_STRAYS:
            self._lose(f"wrote more than {MAX_STRAYS} lines that are not messages")

    def last_words(self) -> str:
        """The end of the server's standard error and its first stray line, masked, to append to an error message."""
        tail = self.stderr()[-_SHOWN_STDERR_CHARS:].strip()
        words = f"; its last words on standard error:\n{tail}" if tail else ""
        if self._strays:
            first = mask_secrets(self._settings, one_line(self._first_stray.decode("utf-8", "replace")))
            lines = plural(self._strays, "line")
            words = f"; it wrote {lines} that cannot be read as a message, first {first[:200]!r}{words}"
        return words

    # --- end ---------------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        self._waiting.clear()
        if self._reading is not None:
            self._reading.cancel()
        if self._command is not None:
            if self._command.fileno() >= 0:
                self._loop.remove_reader(self._command.fileno())
            self._command.close()
        for stream in list(self._fds):
            self._close_fd(stream)
        self._hold.release(at_once=False)

    def _close_fd(self, stream: str) -> None:
        fd = self._fds.pop(stream, None)
        if fd is not None:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            os.close(fd)


def _is_json(line: bytes) -> bool:
    try:
        read_message(line)
    except InvalidEventError:
        return False
    return True


def _find_program(settings: McpServer, cwd: str, path: str) -> tuple[str, str | None]:
    """The folder to start a server in, and its program: a path below that folder, or found in an absolute folder of PATH.

    The program is None if PATH does not contain it. A path may also be absolute, or begin with `~`.
    """
    folder, command = os.path.join(cwd, os.path.expanduser(settings.cwd or "")), str(settings.command)
    if os.sep in command:
        return folder, os.path.join(folder, os.path.expanduser(command))
    absolute = os.pathsep.join(part for part in path.split(os.pathsep) if os.path.isabs(part))
    return folder, shutil.which(command, path=absolute)
