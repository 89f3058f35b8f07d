"""One fetch: what is asked for and what came back, what ends it early, and the tools that are made of such fetches."""

from __future__ import annotations

import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ToolError
from ...ground.frozen import frozen
from ...ground.threads import run_in_thread
from ...kernel.tool import ToolContext
from ..base import BlockingTool
from .address import IPAddress, WebUrl


@frozen
class FetchRequest:
    """GET `url`, or POST with the body `posted`, from the first of its checked `addresses` that answers."""

    url: WebUrl
    addresses: Sequence[IPAddress]
    headers: Mapping[str, str]
    max_bytes: int
    posted: bytes | None = None


@frozen
class FetchAnswer:
    """What one address said. `is_cut` when the body was longer than is read."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False


class FetchSignal(threading.Event):
    """Set when a fetch is to stop; setting it shuts the socket that the fetch may be waiting at.

    `deadline` is a moment of `time.monotonic`. `parent` is the call's own signal, looked at between steps.
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
        """Name the socket that is in use now."""
        self._socket = connected
        if self.is_set():
            self._shut()

    def remaining_s(self) -> float:
        """Seconds left; raises `ToolError` when there are none or the call was cancelled."""
        if self.is_set() or self._parent.is_set():
            raise ToolError("the fetch was cancelled")
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise ToolError("the page did not come in time: try again, or a smaller page")
        return left_s

    def _shut(self) -> None:
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:  # not connected yet, or closed already
                return


class FetchingTool(BlockingTool):
    """A tool that asks servers. A cancelled call also shuts the socket at which its thread may be waiting."""

    @abstractmethod
    def fetch(self, input: Mapping[str, Any], signal: FetchSignal, ctx: ToolContext) -> dict[str, Any]:
        """Do it, in a thread; `signal` ends each exchange."""

    def execute(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        return self.fetch(input, FetchSignal(ctx.cancelled), ctx)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        signal = FetchSignal(ctx.cancelled)
        return await run_in_thread(lambda: self.fetch(input, signal, ctx), signal)


def resolve(host: str) -> list[str]:
    """The addresses of a host, as the system's resolver gives them."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
