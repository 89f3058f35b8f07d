"""What a person sees before approving: the command, the diff or the address, with nothing hidden.

Everything from a model reaches a terminal only through `visible`, which leaves no character that moves the cursor, changes
colours, reorders text or is invisible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ground.disk import read_regular
from ..ground.text import visible, visible_lines

MAX_DIFF_LINES = 400
MAX_FILE_BYTES = 512 * 1024


def preview(tool: str, input: Mapping[str, Any], cwd: str) -> list[str]:
    """The effect of a call, as lines that are safe to show. Diff lines start with `+`, `-` or a blank."""
    path = str(input.get("file_path") or input.get("notebook_path") or "")
    if tool == "Bash":
        command = visible_lines(str(input.get("command", "")))
        more = [f"({visible(str(k))}: {visible(_short(v))})" for k, v in input.items() if k not in _SHOWN_ALREADY]
        return [f"$ {command[0]}", *(f"  {line}" for line in command[1:]), *more]
    if tool in ("Edit", "MultiEdit"):
        lines = [visible(path)]
        edits = input.get("edits")
        for edit in edits if isinstance(edits, list) else [input]:
            if not isinstance(edit, Mapping):
                continue
            old, new = edit.get("old", edit.get("old_string", "")), edit.get("new", edit.get("new_string", ""))
            lines += _diff(str(old), str(new))
            count = edit.get("count", 1)
            if edit.get("replace_all") or count != 1:
                is_every = edit.get("replace_all") or count == 0
                lines.append("(every place)" if is_every else f"({visible(str(count))} places)")
        return lines
    if tool in ("Write", "NotebookEdit"):
        new, old, note = str(input.get("content", input.get("new_source", ""))), "", []
        # The tool will report the error of an unreadable path.
        with contextlib.suppress(OSError, ValueError):
            file = Path(cwd, path)
            if file.is_file() and file.stat().st_size > MAX_FILE_BYTES:
                note = ["(replaces a file that is too big to compare)"]
            elif file.is_file():
                # Some regular files of the kernel, such as /proc/kmsg, make their reader wait or have no end.
                text = read_regular(file, MAX_FILE_BYTES).decode("utf-8", "replace")
                old = text.replace("\r\n", "\n").replace("\r", "\n")
        return [visible(path), *note, *_diff(old, new)]
    if tool == "WebFetch":
        return [visible(str(input.get("url", "")))]
    return [f"{visible(str(key))}: {visible(_short(value))}" for key, value in input.items()]


_SHOWN_ALREADY = ("command", "description")


def _diff(old: str, new: str) -> list[str]:
    import difflib

    if len(old) + len(new) > 2 * MAX_FILE_BYTES:
        return [f"({len(old)} characters become {len(new)}: too many to compare)"]
    lines = difflib.unified_diff(old.split("\n") if old else [], new.split("\n") if new else [], lineterm="", n=3)
    visible_lines = [line[:1] + visible(line[1:].replace("\t", "    ")) for line in list(lines)[2:]]
    more = len(visible_lines) - MAX_DIFF_LINES
    return visible_lines if more <= 0 else [*visible_lines[:MAX_DIFF_LINES], f"({more} more lines are not shown)"]


def _short(value: Any) -> str:
    text, most = value if isinstance(value, str) else repr(value), 2000
    return text if len(text) <= most else f"{text[:most]} ({len(text) - most} more characters are not shown)"


def coloured(lines: list[str]) -> list[str]:
    """Diff lines in red and green, locations in cyan."""
    colours = {"+": "32", "-": "31", "@": "36", "$": "1"}
    return [f"\x1b[{colours[line[0]]}m{line}\x1b[0m" if line[:1] in colours else line for line in lines]
