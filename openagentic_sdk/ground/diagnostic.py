"""A note on what was read: something wrong or odd, in words, with a code for programs."""

from __future__ import annotations

from .frozen import frozen


@frozen
class Diagnostic:
    """Something about a file, a definition or a log that its author or reader may want to know.

    `code` is for programs. `path` names what it is about: a file, a server's tool; `line` counts its lines, or a log's
    events, from 1; 0 is the whole of it. `is_error` marks what loses something.
    """

    code: str
    message: str
    line: int = 0
    path: str = ""
    is_error: bool = False

    @classmethod
    def left_out(cls, kind: str, reason: object, path: str = "", line: int = 0) -> Diagnostic:
        """That a file or folder of this kind does not count, and why."""
        return cls(f"{kind}-left-out", str(reason), line, path, is_error=True)

    @property
    def located(self) -> str:
        """The message behind the place that it is about."""
        line = f":{self.line}" if self.line else ""
        return f"{self.path}{line}: {self.message}" if self.path else self.message
