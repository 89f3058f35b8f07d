"""The Edit tool: replace exact text in a file, and nothing else in it.

Never fuzzy: text that does not match character by character is an error that shows the nearest match; bytes outside the
replaced parts are preserved, including byte order mark and line ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ToolError
from ..events import ToolUse
from ..ground.files import change_lock, digest_bytes, digest_file, read_snapshot, replace_file
from ..ground.frozen import frozen
from ..ground.threads import run_in_thread
from ..kernel.tool import ToolContext, ToolOutput
from .base import Tool
from .files.copies import keep_files
from .files.encoding import binary_kind, decode, encode, is_binary
from .files.nearest import explain_missing
from .files.workspace import (
    ResolvedPath,
    missing_file,
    observed_digest,
    permitted_path,
    plain_path_errors,
    refuse_if_stale,
    resolve_path,
    shown_path,
)
from .labels import LOCAL_FILES
from .schema import array, boolean, integer, object_schema, string

_EDIT_FIELDS: Mapping[str, Any] = {
    "old": string("The exact text to replace, exactly as in the file, without line numbers"),
    "new": string("The text to put there"),
    "old_string": string("Another name for old"),
    "new_string": string("Another name for new"),
    "count": integer(
        "Replace only the first so many places; 0 is all. Without it, old must occur in exactly one place", minimum=0
    ),
    "replace_all": boolean("Replace every place, like count 0"),
    "before": string("Only places that have this text somewhere before them"),
    "after": string("Only places that have this text somewhere after them"),
}


@frozen
class _Replacement:
    """One replacement. `count` is the maximum number of replaced occurrences, 0 for all, None for exactly one."""

    old: str
    new: str
    count: int | None
    before: str
    after: str


class EditTool(Tool):
    """A tool that replaces exact text: it returns `{"file_path", "replacements", "lines", "sha256"}`.

    `lines` are the new line numbers of the first 20 replacements, and `note` is added if there is something to report.
    Several `edits` apply one after the other, each to the result of the previous one, all of them or none. Raises
    `ValueError` if the text or an anchor does not occur, or occurs more often than requested; `ToolError` if the file
    changed after the model read it.
    """

    name = "Edit"
    labels = LOCAL_FILES
    description = (
        "Replace exact text in a file. `old` must match character by character, white space included, and occur in one "
        "place only, unless count or replace_all is set; more surrounding lines, or the anchors before and after, make it "
        "unique. Several changes of one file go into `edits`: all are made or none."
    )
    input_schema = object_schema(
        {
            "file_path": string("The file, absolute or relative to the working directory"),
            **_EDIT_FIELDS,
            "edits": array(
                "Several changes in their order, instead of old and new", minItems=1, items=object_schema(_EDIT_FIELDS)
            ),
        },
        required=["file_path"],
    )
    effect = "unsafe"

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        changes = _changes(input)
        path = await permitted_path(input["file_path"], ctx, write=True)
        with plain_path_errors(path, ctx.cwd):
            return await run_in_thread(lambda: self._edit(path, changes, ctx), ctx.cancelled)

    def _edit(self, path: ResolvedPath, changes: list[_Replacement], ctx: ToolContext) -> ToolOutput:
        # Held from the read to the write: calls of parallel subagents may edit the same file.
        with change_lock(path.real):
            snapshot = read_snapshot(path.real, self._max_bytes)
            if snapshot is None:
                raise missing_file(path, ctx.cwd)
            refuse_if_stale(path, snapshot.sha256, ctx)
            if is_binary(snapshot.data[:8_192]):
                kind = binary_kind(snapshot.data)
                raise ToolError(f"{shown_path(path.lexical, ctx.cwd)} is {kind}, not text, so it cannot be edited")
            text, encoding = decode(snapshot.data)
            edited, places = _apply(text, changes, shown_path(path.lexical, ctx.cwd))
            try:
                data = encode(edited, encoding)
            except UnicodeEncodeError as error:
                character = edited[error.start]
                raise ValueError(
                    f"the file is {encoding.codec} text, which cannot encode {character!a}, so nothing was changed"
                ) from None
            # Before the change: a process that dies in between must leave the content that undo restores.
            keep_files(ctx, [path.real])
            notes = replace_file(path.real, data, snapshot.status)
        sha256 = digest_bytes(data)
        output = {
            "file_path": shown_path(path.lexical, ctx.cwd),
            "replacements": len(places),
            "lines": [edited.count("\n", 0, place) + 1 for place in places[:20]],
            "sha256": sha256,
        }
        if notes:
            output["note"] = "; ".join(notes)
        return ToolOutput(output, {"files": {path.real: sha256}})

    async def reconcile(self, call: ToolUse, ctx: ToolContext) -> Any | None:
        """Determine the outcome after a crash: a file in the state that the model last saw was not edited; otherwise the
        outcome is unknown (None).
        """
        path = resolve_path(call.input["file_path"], ctx.cwd)
        now = await run_in_thread(lambda: digest_file(path.real), ctx.cancelled)
        # Any other content may be this edit or somebody else's: only the unchanged file proves that nothing ran.
        if now is None or now != observed_digest(path, ctx):
            return None
        text = f"interrupted before {shown_path(path.lexical, ctx.cwd)} was changed; it is as before: repeat the call"
        return ToolOutput(text, is_error=True)


def edited_text(text: str, input: Mapping[str, Any]) -> str:
    """The text after a call with this input. Raises `ValueError` if the call would be refused."""
    return _apply(text, _changes(input), "the file")[0]


def _changes(input: Mapping[str, Any]) -> list[_Replacement]:
    edits = input.get("edits")
    if edits and any(input.get(key) is not None for key in ("old", "old_string", "new", "new_string")):
        raise ValueError("give either old and new, or edits, not both")
    changes = []
    for edit in edits or [input]:
        old, new = edit.get("old", edit.get("old_string")), edit.get("new", edit.get("new_string"))
        if old is None or new is None:
            raise ValueError("an edit needs `old` (the exact text to replace) and `new` (the text to put there)")
        if old == "":
            raise ValueError(
                "`old` is empty: to add text, replace a line with that line and the new text; to create a file, use Write"
            )
        if old == new:
            raise ValueError("`old` and `new` are the same, so nothing would change")
        count = 0 if edit.get("replace_all") else edit.get("count")
        changes.append(_Replacement(old, new, count, edit.get("before") or "", edit.get("after") or ""))
    return changes


def _apply(text: str, changes: list[_Replacement], name: str) -> tuple[str, list[int]]:
    """Apply all changes; return the text, and the position of each replaced part in it."""
    places: list[int] = []
    for number, change in enumerate(changes, 1):
        label = f"edit {number} of {len(changes)}: " if len(changes) > 1 else ""
        try:
            text, places = _apply_one(text, change, places, name)
        except ValueError as error:
            raise ValueError(f"{label}{error}; nothing was changed") from None
    return text, sorted(places)


def _apply_one(text: str, change: _Replacement, places: list[int], name: str) -> tuple[str, list[int]]:
    change = _with_line_ends(text, change)
    starts, start = [], text.find(change.old)
    while start >= 0:
        starts.append(start)
        # Occurrences do not overlap, because replacing one would destroy the other.
        start = text.find(change.old, start + len(change.old))
    if not starts:
        raise ValueError(f"`old` is not in {name}. {explain_missing(text, change.old)}")
    chosen_starts = _choose(text, starts, change, name)
    pieces, end, moved, growth = [], 0, [], len(change.new) - len(change.old)
    for number, start in enumerate(chosen_starts):
        pieces += [text[end:start], change.new]
        end = start + len(change.old)
        moved.append(start + number * growth)
    # Positions of earlier edits move with every replacement before them.
    shifted = [place + growth * sum(start < place for start in chosen_starts) for place in places]
    return "".join([*pieces, text[end:]]), shifted + moved


def _with_line_ends(text: str, change: _Replacement) -> _Replacement:
    """In a file with CRLF line ends, interpret the model's newlines as such, unless its text matches unchanged."""
    if "\r\n" not in text:
        return change
    before, after = _as_it_stands(text, change.before), _as_it_stands(text, change.after)
    old = _as_it_stands(text, change.old)
    # A text on one line does not show the line ends around it: then CRLF is used if the whole file uses it.
    is_crlf = text.count("\r\n") == text.count("\n") if "\n" not in old else "\r\n" in old
    new = _crlf(change.new) if is_crlf else change.new
    return _Replacement(old, new, change.count, before, after)


def _as_it_stands(text: str, passage: str) -> str:
    return passage if "\n" not in passage or passage in text else _crlf(passage)


def _crlf(text: str) -> str:
    return text if "\r" in text else text.replace("\n", "\r\n")


def _choose(text: str, starts: list[int], change: _Replacement, name: str) -> list[int]:
    """The occurrences that fit the anchors, as many as requested. Raises `ValueError` if none fit, or if several do without
    `count`.
    """
    chosen_starts = [
        start
        for start in starts
        if (not change.before or text.find(change.before, 0, start) >= 0)
        and (not change.after or text.find(change.after, start + len(change.old)) >= 0)
    ]
    if not chosen_starts:
        for label, anchor in (("before", change.before), ("after", change.after)):
            if anchor and anchor not in text:
                raise ValueError(f"the anchor `{label}` is not in {name}. {explain_missing(text, anchor)}")
        anchors = (("after", "before", change.before), ("before", "after", change.after))
        required = [f"{side} the text of `{label}`" for side, label, anchor in anchors if anchor]
        lines = f"line{'' if len(starts) == 1 else 's'} {_line_numbers(text, starts)}"
        raise ValueError(f"`old` occurs in {name} ({lines}), but nowhere {' and '.join(required)}")
    if change.count is not None:
        return chosen_starts[: change.count or None]  # 0 means all
    if len(chosen_starts) > 1:
        raise ValueError(
            f"`old` occurs in {len(chosen_starts)} places in {name} (lines "
            f"{_line_numbers(text, chosen_starts)}): add surrounding lines "
            "to it, or set `before`, `after` or `replace_all`"
        )
    return chosen_starts


def _line_numbers(text: str, places: list[int]) -> str:
    lines = ", ".join(str(text.count("\n", 0, start) + 1) for start in places[:10])
    return lines + (", …" if len(places) > 10 else "")
