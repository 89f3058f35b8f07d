"""What ends a fetch from another thread, or when its time is over."""

from __future__ import annotations

import socket
import threading
import time

from ...errors import ToolError


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
