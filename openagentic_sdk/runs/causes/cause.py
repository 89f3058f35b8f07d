"""A cause in sentences, with the command that continues the session."""

from __future__ import annotations

import shlex
from typing import Any

from ...events import Event
from ...ground.frozen import frozen
from ...ground.text import on_one_line

MAX_LINES = 10


@frozen
class Cause:
    """The cause of a session's state, as found by `find_cause`. `kind` is empty if nothing went wrong.

    `seq` is the event at which it went wrong, of type `event` in session `session_id`, which is a subagent's for a failure
    inside it. `asked` is the newest prompt, shortened. `ended` describes how the newest run ended, `why` is the cause as a
    sentence, and `more` contains further lines. `go_on` is the command that continues the session, in its folder `cwd`;
    empty if no command can.
    """

    session_id: str
    kind: str
    asked: str
    ended: str
    why: str
    seq: int | None = None
    event: str = ""
    more: tuple[str, ...] = ()
    go_on: tuple[str, ...] = ()
    cwd: str = ""

    def flags_outside(self, folder: str) -> tuple[str, ...]:
        """The flags that make the command continue in the session's folder if it is run in `folder`; can be empty."""
        takes_it = self.go_on[1:2] in (("run",), ("chat",))
        return ("--cwd", self.cwd) if takes_it and self.cwd and self.cwd != folder else ()

    def lines(self, *flags: str) -> list[str]:
        """The cause in at most `MAX_LINES` lines; `flags` are added to the command."""
        # A run that waits or was suspended has not failed: it needs an answer, or another process.
        label = "stopped at" if self.kind in ("waiting", "suspended") else "went wrong"
        where = [f"{label}: event {self.seq}, {self.event}, of session {self.session_id}"] if self.kind else []
        begin = 3 if self.go_on[1:2] == ("workflow",) else 2
        command = (*self.go_on[:begin], *flags, *self.go_on[begin:])
        last = [f"to continue: {' '.join(map(_quoted, command))}"] if self.go_on else []
        lines = [f"asked: {self.asked}", f"ended: {self.ended}", *where, f"why: {self.why}"]
        lines += [f"  {line}" for line in self.more[: MAX_LINES - len(lines) - len(last)]]
        return [*map(on_one_line, lines), *last]


@frozen
class CauseInRun:
    """A cause within one run.

    `settings`, pairs of an option's name and its value, and `prompt` form the command that continues the session, unless
    `command` names another one. `inside` is the cause found in a subagent.
    """

    kind: str
    event: Event
    why: str
    more: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    prompt: str = "Go on."
    inside: Cause | None = None
    command: tuple[str, ...] = ()


def _quoted(word: str) -> str:
    """A word for a shell, always on one line."""
    if on_one_line(word) == word:
        return shlex.quote(word)
    return "$'" + on_one_line(word.replace("\\", "\\\\").replace("'", "\\'")) + "'"
