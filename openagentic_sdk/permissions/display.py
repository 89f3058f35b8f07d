"""The preview of a call for the person who approves it: the command, the diff or the address. Omitted parts are mentioned.

Everything from a model reaches a terminal only through `visible`, which lets through no character that moves the cursor,
changes colours, reorders text or is invisible.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ground.disk import read_regular
from ..ground.patterns import regex
from ..ground.text import visible, visible_lines

MAX_DIFF_LINES = 400
MAX_FILE_BYTES = 512 * 1024
_MOST_EDIT_LINES = 10 * MAX_DIFF_LINES


def preview(tool: str, input: Mapping[str, Any], cwd: str) -> list[str]:
    """The effect of a call, as lines that are safe to show. Diff lines start with `+`, `-`, `@` or a space."""
    path = str(input.get("file_path") or input.get("notebook_path") or "")
    if tool == "Bash":
        command = visible_lines(str(input.get("command", "")))
        more = [f"({visible(str(k))}: {visible(_short(v))})" for k, v in input.items() if k not in _SHOWN_ALREADY]
        return [f"$ {command[0]}", *(f"  {line}" for line in command[1:]), *more]
    if tool in ("Edit", "MultiEdit"):
        lines = [visible(path)]
        edits = input.get("edits")
        every = edits if isinstance(edits, list) else [input]
        for number, edit in enumerate(every):
            if len(lines) > _MOST_EDIT_LINES:
                return [*lines, f"({len(every) - number} more edits are not shown)"]
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
                # Some regular files of the kernel, such as /proc/kmsg, block their reader or never end.
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
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
    same = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
    start = min(len(before), len(after)) if same is None else same
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    removed, added = before[start : len(before) - end], after[start : len(after) - end]
    if len(removed) * len(added) > _MAX_COMPARED_PAIRS:
        header = f"@@ -{start + 1},{len(removed)} +{start + 1},{len(added)} @@"
        return [header, *_marked("-", removed), *_marked("+", added)]
    # Equal lines at both ends are left out: comparing takes time that may grow with the square of their number.
    first, last = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
    parts = before[first : len(before) - last], after[first : len(after) - last]
    lines = list(difflib.unified_diff(*parts, lineterm="", n=_CONTEXT))[2:]
    shown = [_at_line(line, first) if line[:2] == "@@" else line[:1] + _shown(line[1:]) for line in lines]
    more = len(shown) - MAX_DIFF_LINES
    return shown if more <= 0 else [*shown[:MAX_DIFF_LINES], f"({more} more lines are not shown)"]


_CONTEXT = 3
_MAX_COMPARED_PAIRS = 2_000_000
_RANGES = regex(r"(?<=[-+])\d+")


def _at_line(header: str, first: int) -> str:
    """Add to the line numbers in a diff's hunk header the number of lines that were left out before the comparison."""
    return _RANGES.sub(lambda match: str(int(match[0]) + first), header)


def _marked(sign: str, lines: list[str]) -> list[str]:
    most = MAX_DIFF_LINES // 2
    more = [f"({len(lines) - most} more lines are not shown)"] if len(lines) > most else []
    return [*(sign + _shown(line) for line in lines[:most]), *more]


def _shown(line: str) -> str:
    return visible(line.replace("\t", "    "))


def _short(value: Any) -> str:
    text, most = value if isinstance(value, str) else repr(value), 2000
    return text if len(text) <= most else f"{text[:most]} ({len(text) - most} more characters are not shown)"


def coloured(lines: list[str]) -> list[str]:
    """Colour diff lines red and green, and hunk headers cyan; make commands bold."""
    colours = {"+": "32", "-": "31", "@": "36", "$": "1"}
    return [f"\x1b[{colours[line[0]]}m{line}\x1b[0m" if line[:1] in colours else line for line in lines]
