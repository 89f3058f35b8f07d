"""A remark about input: a problem or oddity, in words, with a code for programs."""

from __future__ import annotations

from .frozen import frozen


@frozen
class Diagnostic:
    """A remark about a file, a definition or a log for its author or reader.

    `code` is for programs. `path` is the subject: a file or a server's tool; `line` is a line number, or an event number in
    a log, from 1, or 0 for the whole. `is_error` is true if something does not work or was left out because of it.
    """

    code: str
    message: str
    line: int = 0
    path: str = ""
    is_error: bool = False

    @classmethod
    def left_out(cls, kind: str, reason: object, path: str = "", line: int = 0) -> Diagnostic:
        """Return the remark that a file or folder of this kind is ignored, with the reason."""
        return cls(f"{kind}-left-out", str(reason), line, path, is_error=True)

    @property
    def located(self) -> str:
        """The message, preceded by its location."""
        line = f":{self.line}" if self.line else ""
        return f"{self.path}{line}: {self.message}" if self.path else self.message
