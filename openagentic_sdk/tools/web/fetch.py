"""One fetch: request and response, the signal that ends it early, and the base of tools that fetch."""

from __future__ import annotations

import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ToolError
from ...ground.frozen import frozen
from ...ground.threads import run_in_thread
from ...kernel.tool import ToolContext
from ..base import BlockingTool

if TYPE_CHECKING:
    from .address import IPAddress, WebUrl


@frozen
class FetchRequest:
    """A request: GET `url`, or POST with the body `posted`, to the first of its checked `addresses` that can be reached."""

    url: WebUrl
    addresses: Sequence[IPAddress]
    headers: Mapping[str, str]
    max_bytes: int
    posted: bytes | None = None


@frozen
class FetchAnswer:
    """The response from one address. `is_cut` is true if the body exceeded the read limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False


class FetchSignal(threading.Event):
    """An event that stops a fetch; setting it sets `parent` and shuts down the socket on which the fetch may be waiting.

    `deadline` is a time of `time.monotonic`. `parent` is the call's own signal, polled between steps.
    """

    def __init__(self, parent: threading.Event) -> None:
        super().__init__()
        self.deadline = float("inf")
        self._parent = parent
        self._socket: socket.socket | None = None

    def set(self) -> None:
        super().set()
        self._parent.set()
        self._shut()

    def watch(self, connected: socket.socket | None) -> None:
        """Register the socket currently in use, or None; shut it down if the fetch was stopped already."""
        self._socket = connected
        if self.is_set():
            self._shut()

    def remaining_s(self) -> float:
        """Return the seconds left. Raises `ToolError` if there are none or the call was cancelled."""
        if self.is_set() or self._parent.is_set():
            raise ToolError("the fetch was cancelled")
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise ToolError("the page did not arrive in time: try again, or fetch a smaller one")
        return left_s

    def _shut(self) -> None:
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # not connected yet, or closed already
                return


class FetchingTool(BlockingTool):
    """A tool that sends requests to servers; cancelling a call also shuts down the socket on which its thread may wait."""

    @abstractmethod
    def fetch(self, input: Mapping[str, Any], signal: FetchSignal, ctx: ToolContext) -> dict[str, Any]:
        """Do the tool's work, in a thread; return its output. Setting `signal` ends the exchange in progress."""

    def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        return self.fetch(input, FetchSignal(ctx.cancelled), ctx)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        signal = FetchSignal(ctx.cancelled)
        return await run_in_thread(lambda: self.fetch(input, signal, ctx), signal)


def resolve(host: str) -> list[str]:
    """Look up the addresses of a host with the system's resolver. Raises `OSError`."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
