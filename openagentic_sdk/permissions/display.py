"""What a person sees before saying yes: the command, the diff, the address, with nothing hidden in it.

The law of this file: whatever comes from a model reaches a terminal only through `visible`, which leaves no character that
moves the cursor, changes colours, reorders text or cannot be seen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .shell import INVISIBLE

MAX_DIFF_LINES = 400
MAX_FILE_BYTES = 512 * 1024
# Blanks beyond this many in a row could push the rest of a line out of sight.
MAX_BLANKS = 40

_BLANKS = re.compile(rf" {{{MAX_BLANKS + 1},}}")
_SAFE_ASCII = re.compile(r"[ -~]*")


def visible(text: str) -> str:
    """The text on one line, each character that is no plain sign written as an escape (`\\x1b`, `\\u202e`)."""
    if _SAFE_ASCII.fullmatch(text):
        escaped = text
    else:
        escaped = "".join(letter if _is_plain(letter) else _escape(letter) for letter in text)
    return _BLANKS.sub(lambda match: f"[{len(match[0])} blanks]", escaped)


def _is_plain(letter: str) -> bool:
    if letter <= "~":
        return letter >= " "
    return unicodedata.category(letter)[0] not in "CZ" and not INVISIBLE.match(letter)


def _escape(letter: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(letter)
    if named:
        return named
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible_lines(text: str) -> list[str]:
    """Like `visible`, with line feeds as ends of lines and tabs as four blanks."""
    return [visible(line.replace("\t", "    ")) for line in text.split("\n")]


def preview(tool: str, input: Mapping[str, Any], cwd: str) -> list[str]:
    """What a call will do, as lines that are safe to show. Diff lines start with `+`, `-` or a blank."""
    if tool == "Bash":
        return list(_command_lines(input))
    if tool in ("Edit", "MultiEdit"):
        return [_path_line(input), *_edit_lines(input)]
    if tool in ("Write", "NotebookEdit"):
        return [_path_line(input), *_write_lines(input, cwd)]
    if tool == "WebFetch":
        return [visible(str(input.get("url", "")))]
    return [f"{visible(str(key))}: {visible(_short(value))}" for key, value in input.items()]


def _command_lines(input: Mapping[str, Any]) -> Iterator[str]:
    command = str(input.get("command", ""))
    yield from (f"$ {line}" if index == 0 else f"  {line}" for index, line in enumerate(visible_lines(command)))
    for key, value in input.items():
        if key not in ("command", "description"):
            yield f"({visible(str(key))}: {visible(_short(value))})"


def _path_line(input: Mapping[str, Any]) -> str:
    return visible(str(input.get("file_path") or input.get("notebook_path") or ""))


def _edit_lines(input: Mapping[str, Any]) -> Iterator[str]:
    edits = input.get("edits")
    for edit in edits if isinstance(edits, list) else [input]:
        if not isinstance(edit, Mapping):
            continue
        old = str(edit.get("old", edit.get("old_string", "")))
        new = str(edit.get("new", edit.get("new_string", "")))
        yield from _diff(old, new)
        count = edit.get("count", 1)
        if edit.get("replace_all") or count != 1:
            yield "(every place)" if edit.get("replace_all") or count == 0 else f"({visible(str(count))} places)"


def _write_lines(input: Mapping[str, Any], cwd: str) -> list[str]:
    new = str(input.get("content", input.get("new_source", "")))
    path = Path(cwd, str(input.get("file_path") or input.get("notebook_path") or ""))
    try:
        if not path.is_file():
            return _diff("", new)
        if path.stat().st_size > MAX_FILE_BYTES:
            return ["(replaces a file that is too big to compare)", *_diff("", new)]
        return _diff(path.read_text(encoding="utf-8", errors="replace"), new)
    except (OSError, ValueError):  # the tool will say what is wrong with the path
        return _diff("", new)


def _diff(old: str, new: str) -> list[str]:
    import difflib

    if len(old) + len(new) > 2 * MAX_FILE_BYTES:
        return [f"({len(old)} characters become {len(new)}: too many to compare)"]
    lines = difflib.unified_diff(old.split("\n") if old else [], new.split("\n") if new else [], lineterm="", n=3)
    shown = [line[:1] + visible(line[1:].replace("\t", "    ")) for line in list(lines)[2:]]
    more = len(shown) - MAX_DIFF_LINES
    return shown if more <= 0 else [*shown[:MAX_DIFF_LINES], f"({more} more lines are not shown)"]


def _short(value: Any, most: int = 2000) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[:most]} ({len(text) - most} more characters are not shown)"


def coloured(lines: list[str]) -> list[str]:
    """Diff lines in red and green, places in cyan."""
    colours = {"+": "32", "-": "31", "@": "36", "$": "1"}
    return [f"\x1b[{colours[line[0]]}m{line}\x1b[0m" if line[:1] in colours else line for line in lines]
