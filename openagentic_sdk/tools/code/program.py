"""The host's side of running code: one process in a sandbox, and the calls that it asks for.

What comes from the process is believed in nothing: a frame that is too long, no JSON, or no call ends it. The channel is its
standard input, a socket in both directions (`child.py` has the frames); standard output and errors are one pipe.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any

from ...errors import InvalidEventError, ToolError
from ...events import ToolResult
from ...frozen import mutable
from ...serialization import dumps_json, loads_json
from ...sessions.rebuild import result_text
from ...threads import run_in_thread, start_thread
from ..base import Tool
from ..shell.process import HelperHold, RunningCommand, ServerSpec
from .place import CodeLimits, code_place

MAX_FRAME_BYTES = 4 << 20
MAX_VALUE_BYTES = 16 << 20
MAX_AT_ONCE = 16
MAX_NAME_CHARS = 256
_READ_BYTES = 64 * 1024

CallTool = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


@mutable
class Ended:
    """How code ended: its exit code, what it printed, how many calls it made, and why it was ended, if it was."""

    exit_code: int = 0
    output: bytes = b""
    total_bytes: int = 0
    calls: int = 0
    reason: str = ""


async def run_program(code: str, tools: Sequence[Tool], call: CallTool, limits: CodeLimits) -> Ended:
    """Run code to its end or to a limit; nothing of it is left when this returns or raises, and no call goes on.

    Raises `ToolError` where there is no sandbox, and what `call` raises besides its results.
    """
    program = _Program(call, limits)
    with code_place(_child_source(), limits) as spec:
        try:
            await program.start(spec, _start_frame(code, tools))
            await program.watch()
        finally:
            await program.end()
    return program.ended


def _child_source() -> str:
    return files(__package__).joinpath("child.py").read_text("utf-8")


def _start_frame(code: str, tools: Sequence[Tool]) -> bytes:
    told = [{"name": t.name, "description": t.description, "schema": dict(t.input_schema)} for t in tools]
    return _framed({"code": code, "tools": told})


def _framed(value: Any) -> bytes:
    body = dumps_json(value).encode()
    return len(body).to_bytes(4, "big") + body


class _Program:
    """One process and its calls. `stop` ends it from outside, for a reason that the model is told."""

    def __init__(self, call: CallTool, limits: CodeLimits) -> None:
        self.ended = Ended()
        self._call, self._limits = call, limits
        self._loop = asyncio.get_running_loop()
        self._hold = HelperHold()
        self._command: RunningCommand | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._out_r = -1
        self._output = bytearray()
        self._over = asyncio.Event()  # it has ended, or is to be ended
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._at_work = 0  # calls of tools, whose time is not the code's
        self._changed = asyncio.Event()  # `_at_work` went from or to 0

    async def start(self, spec: ServerSpec, first_frame: bytes) -> None:
        ours, theirs = socket.socketpair()
        self._out_r, out_w = os.pipe()
        with theirs:
            starting = start_thread(
                partial(self._hold.start, spec, (theirs.fileno(), out_w, out_w)), "openagentic-code-start"
            )
            cancelled: asyncio.CancelledError | None = None
            while not starting.done():
                try:
                    await asyncio.wait({starting})
                except asyncio.CancelledError as error:  # a start takes moments, and what it started must not be lost
                    cancelled = error
        os.close(out_w)
        try:
            self._command = starting.result()
        except BaseException:
            ours.close()
            raise
        os.set_blocking(self._out_r, False)
        self._loop.add_reader(self._out_r, self._read_output)
        self._loop.add_reader(self._command.fileno(), self._read_end)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        if cancelled is not None:
            raise cancelled
        self._writer.write(first_frame)
        self._begin(self._serve(reader))

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def watch(self) -> None:
        """Wait for its end, or for its time to be over; while a tool works for it, its clock stands still."""
        left_s = self._limits.seconds
        while not self._over.is_set():
            self._changed.clear()
            began, is_timed = self._loop.time(), self._at_work == 0
            waits = {self._loop.create_task(event.wait()) for event in (self._over, self._changed)}
            try:
                await asyncio.wait(waits, timeout=left_s if is_timed else None, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            left_s -= self._loop.time() - began if is_timed else 0
            if left_s <= 0 and is_timed and not self._over.is_set():
                self._stop(f"the code was ended after {self._limits.seconds:g} s without its calls: do less at once")
        if self._failure is not None:
            raise self._failure

    def _stop(self, reason: str) -> None:
        self.ended.reason = self.ended.reason or reason
        self._over.set()

    async def end(self) -> None:
        """Kill what still runs, end the calls that are under way, and take what was printed."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        command = self._command
        try:
            if command is not None:
                if command.fileno() >= 0:
                    self._loop.remove_reader(command.fileno())
                await run_in_thread(command.close, name="openagentic-code-end")
                while self._out_r >= 0 and self._read_output():
                    continue
            while tasks:
                _, tasks = await asyncio.wait(tasks)
        finally:
            if self._writer is not None:
                self._writer.transport.abort()
            if self._out_r >= 0:
                self._loop.remove_reader(self._out_r)
                os.close(self._out_r)
            self._hold.release(at_once=False)
            self.ended.output = bytes(self._output)

    def _read_end(self) -> None:
        """Something is known about the end of the process."""
        command = self._command
        assert command is not None, "it was started"
        watched = command.fileno()
        try:
            if not command.wait(0):
                return
        except ToolError as error:
            self._loop.remove_reader(watched)
            self._stop(str(error))
            return
        self._loop.remove_reader(watched)
        self._over.set()
        report = command.report
        assert report is not None, "it has ended"
        self.ended.exit_code = report.exit_code
        if report.signal or report.exit_code > 128:
            number = report.signal or report.exit_code - 128
            self.ended.reason = (
                f"the code was ended by signal {number}: it used more time or memory than it may, or crashed"
            )

    def _read_output(self) -> bool:
        """Take one piece of what it prints; whether there was one."""
        try:
            data = os.read(self._out_r, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._out_r)
            return False
        self.ended.total_bytes += len(data)
        room = self._limits.output_bytes - len(self._output)
        self._output += data[: max(0, room)]
        if room < len(data):
            self._stop(f"the code was ended because it printed more than {self._limits.output_bytes} bytes: print less")
        return True

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        """Take the calls as they come, so many at once and no more, until the channel is closed or misused."""
        seen: set[int] = set()
        try:
            while True:
                await self._room.acquire()
                length = int.from_bytes(await reader.readexactly(4), "big")
                if length > MAX_FRAME_BYTES:
                    raise ToolError(f"a call of {length} bytes is longer than {MAX_FRAME_BYTES}")
                number, tool, input = _read_call(await reader.readexactly(length), seen)
                self._begin(self._answer(number, tool, input))
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # it has ended, or lets go of the channel: then it just makes no more calls
        except ToolError as error:
            self._stop(f"the code was ended because it wrote to the channel of its calls: {error}")

    async def _answer(self, number: int, tool: str, input: Mapping[str, Any]) -> None:
        try:
            frame = await self._outcome(number, tool, input)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the run is to end, and whoever runs the code has to know
            self._failure = self._failure or error
            self._over.set()
            return
        finally:
            self._room.release()
        assert self._writer is not None, "it was started"
        with suppress(ConnectionError):  # it ended meanwhile
            self._writer.write(frame)
            await self._writer.drain()

    async def _outcome(self, number: int, tool: str, input: Mapping[str, Any]) -> bytes:
        if self.ended.calls >= self._limits.max_calls:
            said = f"this code has made its {self._limits.max_calls} calls: go on in another call of Code"
            return _framed({"id": number, "error": {"type": "ToolError", "message": said}})
        self.ended.calls += 1
        self._count(1)
        try:
            result = await self._call(tool, input)
        finally:
            self._count(-1)
        if result.outcome != "ok":
            said = result.error_message or result_text(result)
            return _framed({"id": number, "error": {"type": result.error_type or "ToolError", "message": said}})
        frame = _framed({"id": number, "value": result.output})
        if len(frame) > MAX_VALUE_BYTES:
            said = f"the call ran, but its result of {len(frame)} bytes is too long for code: ask for less"
            return _framed({"id": number, "error": {"type": "ToolError", "message": said}})
        return frame

    def _count(self, step: int) -> None:
        self._at_work += step
        self._changed.set()


def _read_call(body: bytes, seen: set[int]) -> tuple[int, str, Mapping[str, Any]]:
    """One call of a process that may send anything. Raises `ToolError`."""
    try:
        frame = loads_json(body)
    except InvalidEventError as error:
        raise ToolError(str(error)) from None
    if not isinstance(frame, dict) or frame.keys() != {"id", "tool", "input"}:
        raise ToolError("what came is no call")
    number, tool, input = frame["id"], frame["tool"], frame["input"]
    if type(number) is not int or number in seen or number < 0 or number > sys.maxsize:
        raise ToolError("the number of a call is taken, or is none")
    if not isinstance(tool, str) or len(tool) > MAX_NAME_CHARS or not isinstance(input, dict):
        raise ToolError("a call has no name, or no arguments")
    seen.add(number)
    return number, tool, input
