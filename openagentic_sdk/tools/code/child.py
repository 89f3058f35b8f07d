"""The program in the sandbox: the model's code, and the functions with which it calls tools.

The text of this file is passed to a bare interpreter (`program.py`), so it imports only the standard library. It is written
for well-behaved code; hostile code can do anything here, and the host trusts nothing that it receives.

Frames in both directions are four bytes of length (big endian) and JSON. In: first `{"code", "tools"}`, then answers
`{"id", "value"}` or `{"id", "error": {"type", "message"}}`. Out: calls `{"id", "tool", "input"}`.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import itertools
import json
import keyword
import linecache
import os
import re
import select
import socket
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

OURS = ("ToolError", "tools", "help", "exit")


class ToolError(Exception):
    """A failed tool call, with the message of its result; `error_type` is its type."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


class Host:
    """The channel to the host, which sends calls and delivers their answers, in whichever event loop the code runs."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._received = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: asyncio.Task[None] | None = None

    def first_frame(self) -> Any:
        """Read the host's request, before there is an event loop. Raises `EOFError` if the host is gone."""
        while (frame := self._next_frame()) is None:
            piece = self._channel.recv(1 << 16)
            if not piece:
                raise EOFError("the host process is gone")
            self._received += piece
        self._channel.setblocking(False)
        return frame

    def _next_frame(self) -> Any:
        length = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + length or len(self._received) < 4:
            return None
        frame = json.loads(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        return frame

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool and return its output. Raises `ToolError` if the call fails."""
        number = next(self._ids)
        body = json.dumps({"id": number, "tool": tool, "input": arguments}).encode()
        loop = asyncio.get_running_loop()
        # The code may run one event loop after another; each needs its own reader.
        if loop is not self._loop:
            self._loop, self._reading = loop, loop.create_task(self._read(loop))
        answer = self._waiting[number] = loop.create_future()
        data = memoryview(len(body).to_bytes(4, "big") + body)
        while data:
            try:
                data = data[self._channel.send(data) :]
            except BlockingIOError:  # a frame must be sent completely, so nothing else may happen in between
                select.select([], [self._channel], [])
        return await answer

    async def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        while piece := await loop.sock_recv(self._channel, 1 << 16):
            self._received += piece
            while (frame := self._next_frame()) is not None:
                answer = self._waiting.pop(frame["id"], None)
                # The code cancelled the call, for example with its own timeout.
                if answer is None or answer.done():
                    continue
                if "error" in frame:
                    answer.set_exception(ToolError(frame["error"]["type"], frame["error"]["message"]))
                else:
                    answer.set_result(frame["value"])


def make_functions(host: Host, tools: list[dict[str, Any]]) -> dict[str, Callable[..., Any]]:
    """Create an async function for each tool, under its name as a Python identifier."""
    functions: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        name = re.sub(r"\W", "_", tool["name"])
        name = f"_{name}" if not name.isidentifier() else name
        # Two tools may become the same identifier, and none may hide what every program uses.
        while keyword.iskeyword(name) or hasattr(builtins, name) or name in functions or name in OURS:
            name += "_"
        functions[name] = make_function(host, name, tool)
    return functions


def make_function(host: Host, name: str, tool: dict[str, Any]) -> Callable[..., Any]:
    """Create the function of one tool: arguments by name, or in the order of its schema with the required ones first."""
    properties, required_keys = tool["schema"].get("properties"), tool["schema"].get("required")
    properties = properties if isinstance(properties, dict) else {}
    required = (
        [key for key in required_keys if isinstance(key, str) and key in properties]
        if isinstance(required_keys, list)
        else []
    )
    required = list(dict.fromkeys(required))
    order = [*required, *(key for key in properties if key not in required)]

    async def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(order):
            most = f"{len(order)} argument{'' if len(order) == 1 else 's'}"
            raise TypeError(f"{name}() takes {most} but {len(args)} {'was' if len(args) == 1 else 'were'} given")
        arguments = dict(zip(order, args, strict=False))
        doubled = arguments.keys() & kwargs.keys()
        if doubled:
            raise TypeError(f"{name}() got {', '.join(doubled)} twice")
        return await host.call(tool["name"], {**arguments, **kwargs})

    usual = [key for key in order if key.isidentifier() and not keyword.iskeyword(key)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(key, kind, default=inspect.Parameter.empty if key in required else None) for key in usual
    ]
    call.__name__ = call.__qualname__ = name
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    lines = [f"{key}: {describe(properties[key])}" for key in order]
    call.__doc__ = "\n".join([tool["description"], *(["", "Arguments:", *lines] if lines else [])])
    return call


def describe(schema: Any) -> str:
    """A parameter's type and description."""
    if not isinstance(schema, dict):
        return ""
    kinds = schema.get("enum") or schema.get("type") or ""
    return f"{kinds} {schema.get('description', '')}".strip()


def show_help(function: Any) -> None:
    """Print help for a function like interactive Python; importing the real `help` takes as long as everything else here."""
    print(f"{function.__name__}{inspect.signature(function)}\n{inspect.getdoc(function) or ''}")


def run(code: str, names: dict[str, Any]) -> int:
    """Run the model's code, which may use `await` anywhere; return its exit code, 1 if it raised an error."""
    # Tracebacks show lines of the code, though it is in no file; without a time, the entry is never checked against one.
    linecache.cache["code"] = (len(code), None, code.splitlines(keepends=True), "code")
    try:
        compiled = compile(code, "code", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if compiled.co_flags & inspect.CO_COROUTINE:
            asyncio.run(evaluate(compiled, names))
        else:  # it may run its own event loop
            exec(compiled, names)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:  # noqa: BLE001 - any error is reported to the model
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != "code":
            trace = trace.tb_next
        # Standard error is the same pipe: the report must come after what the code printed.
        sys.stdout.flush()
        report = traceback.TracebackException(type(error), error, trace, limit=-20)
        report.stack[:] = [frame for frame in report.stack if frame.filename != "<string>"]  # frames of this file
        report.print()
        return 1
    return 0


async def evaluate(compiled: Any, names: dict[str, Any]) -> None:
    """Run code that uses `await` at its top level."""
    await eval(compiled, names)


def main() -> None:
    """Receive the code and the tools, run the code, and exit at once, whatever threads are left."""
    # The channel moves away from descriptor 0: code that reads standard input must find its end, not the answers to calls.
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    os.set_inheritable(channel.fileno(), False)
    host = Host(channel)
    sys.argv = ["code"]
    start = host.first_frame()
    functions = make_functions(host, start["tools"])
    by_name = dict(zip((tool["name"] for tool in start["tools"]), functions.values(), strict=True))
    ours = {"ToolError": ToolError, "tools": by_name, "help": show_help, "exit": sys.exit}
    names = {"__name__": "__main__", "__builtins__": builtins, **ours, **functions}
    status = run(start["code"], names)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001 - the code may have replaced the streams with any object
            status = 1
    # Not `sys.exit`, which would wait for threads that the code left behind.
    os._exit(status)


if __name__ == "__main__":
    main()
