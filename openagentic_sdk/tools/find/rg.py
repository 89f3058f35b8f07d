"""Let ripgrep rule out files that cannot match, when it is installed.

The law of the file: rg only narrows. It is given a pattern that matches at least whatever the query matches, and the files
that the walk chose, one by one; what is found in the rest, and how it is shown, is the business of `search` alone. So an
answer is the same with and without rg.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from ..base import ToolContext
from ..files.workspace import check_cancelled
from .pattern_cost import TOKENS

MAX_ARGUMENT_BYTES = 500_000
_LOOK_EVERY_S = 0.05

_ANY_BYTE = r"(?-u:[\x80-\xff])"
# What Python's classes match beyond Rust's is added; what they match less does no harm.
_CLASSES: Mapping[str, str] = {
    r"\d": r"\d",
    r"\w": r"[\w\p{N}]",
    r"\s": r"[\s\x1c-\x1f]",
    r"\D": rf"(?:[^0-9]|{_ANY_BYTE})",
    r"\W": rf"(?:[^0-9A-Za-z_]|{_ANY_BYTE})",
    r"\S": rf"(?:[^ \t\n\r\x0b\x0c]|{_ANY_BYTE})",
    r"\b": "",
    r"\B": "",
}
# Letters that Python takes for i, s and k when case does not count.
_FOLDED_BY_PYTHON = "\u0130\u0131\u017f\u212a"
_IN_SET = {r"\d": r"\d", r"\w": r"\w\p{N}", r"\s": r"\s\x1c-\x1f"}
_IN_NEGATED_SET = {r"\d": "0-9", r"\w": "0-9A-Za-z_", r"\s": r" \t\n\r\x0b\x0c"}
_PLAIN_ESCAPE = re.compile(r"\\[^0-9A-Za-z]|\\[tnrfva]")
_PLAIN_GROUP = re.compile(r"\((\?(:|P<\w+>))?\Z")
_SET_STEP = re.compile(r"\\.|.", re.DOTALL)


def find_rg(ctx: ToolContext) -> str | None:
    """The installed rg, never one that lies in the working directory or a workspace."""
    outside = [os.path.realpath(root) for root in (ctx.cwd, *ctx.workspace_roots)]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.realpath(os.path.join(folder, "rg"))
        if not os.path.isabs(folder) or any((path + "/").startswith(root.rstrip("/") + "/") for root in outside):
            continue
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def rg_pattern(pattern: str, *, ignore_case: bool) -> str | None:
    """A pattern in Rust's syntax that matches at least what this one matches; None when that cannot be said."""
    parts: list[str] = []
    for token in TOKENS.finditer(pattern):
        kind, text = token.lastgroup or "", token[0]
        part = _translate(kind, text, ignore_case)
        if part is None or (kind == "repeat" and parts and not parts[-1]):
            return None
        parts.append(part)
    return "".join(parts)


def paths_with_matches(
    rg: str,
    pattern: str,
    paths: Sequence[str],
    *,
    ignore_case: bool,
    multiline: bool,
    deadline: float,
    ctx: ToolContext,
) -> set[str] | None:
    """The paths of the files that hold a match of a pattern in Rust's syntax; None when rg could not say."""
    options = ["--no-config", "--files-with-matches", "--null", "--text", "--no-messages", "--color=never"]
    options += ["--ignore-case"] if ignore_case else ["--case-sensitive"]
    options += ["--multiline", "--multiline-dotall"] if multiline else []
    found: set[str] = set()
    for batch in _argument_batches(paths):
        output = _run([rg, *options, "--regexp", pattern, "--", *batch], deadline, ctx)
        if output is None:
            return None
        found.update(os.fsdecode(name) for name in output.split(b"\0") if name)
    return found


def _argument_batches(paths: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        size += len(path) + 8 if path.isascii() else 4 * len(path) + 8
        if size > MAX_ARGUMENT_BYTES and batch:
            yield batch
            batch, size = [], 0
        batch.append(path)
    if batch:
        yield batch


def _run(command: list[str], deadline: float, ctx: ToolContext) -> bytes | None:
    """What rg prints, or None when it fails or time is up."""
    import subprocess

    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env={}
    )
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=_LOOK_EVERY_S)
                return output if process.returncode in (0, 1) else None
            except subprocess.TimeoutExpired:
                check_cancelled(ctx)
                if time.monotonic() > deadline:
                    return None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _translate(kind: str, text: str, ignore_case: bool) -> str | None:
    if kind == "escape":
        return _CLASSES.get(text) if text in _CLASSES else text if _PLAIN_ESCAPE.fullmatch(text) else None
    if kind == "set":
        return _set(text, ignore_case)
    if kind == "open":
        return text if _PLAIN_GROUP.match(text) else None
    if kind == "repeat":
        return None if text.startswith("{,") or (len(text) > 1 and text.endswith("+")) else text
    if kind in ("close", "or"):
        return text
    if kind == "other":
        return _other(text, ignore_case)
    return None


def _other(text: str, ignore_case: bool) -> str | None:
    if text == ".":
        return rf"(?:.|{_ANY_BYTE})"
    if text in "{}[":
        return None
    return "[iI\u0130\u0131]" if ignore_case and text in "iI" else text


def _set(text: str, ignore_case: bool) -> str | None:
    negated = text.startswith("[^")
    body = text[2:-1] if negated else text[1:-1]
    if re.search(r"\[|&&|--|~~", body):
        return None
    classes = _IN_NEGATED_SET if negated else _IN_SET
    steps = [classes.get(step, step) for step in _SET_STEP.findall(body)]
    if any(
        step[0] == "\\" and len(step) == 2 and step not in classes and not _PLAIN_ESCAPE.fullmatch(step)
        for step in steps
    ):
        return None
    if negated:
        return f"(?:[^{''.join(steps)}]|{_ANY_BYTE})"
    return f"[{''.join(steps)}{_FOLDED_BY_PYTHON if ignore_case else ''}]"
