"""Describe tool calls for an editor: title and kind, locations, diff and result. Values in, JSON out.

Editors render content as Markdown and turn paths into links. So raw output is put into a fence that it cannot close, and
characters that control the display are escaped. Values that are too long, or nested too deeply for JSON parsers of other
languages (Rust's limit is 128), are truncated or left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...events import ToolResult
from ...ground.jsonrpc import Json
from ...ground.patterns import regex
from ...ground.text import escape, is_hidden, on_one_line
from ...parts.record.folds.notes import describe_input, printed_by_plan
from ...serialization import dumps_json, nesting

KINDS = {
    "Bash": "execute",
    "Edit": "edit",
    "Glob": "search",
    "Grep": "search",
    "MultiEdit": "edit",
    "NotebookEdit": "edit",
    "Read": "read",
    "Task": "think",
    "TodoWrite": "think",
    "WebFetch": "fetch",
    "WebSearch": "fetch",
    "Write": "edit",
}
MAX_TEXT_CHARS = 8_000
MAX_DIFF_CHARS = 1 << 20
MAX_RAW_CHARS = 64 * 1024
MAX_RAW_DEPTH = 64
# Joiners and variation selectors are hidden characters too, but are kept: their effect depends on their neighbours.
_JOINING = regex("[\u200c\u200d\ufe00-\ufe0f]")
_FENCE = regex("`{3,}")
_ENDS = {ord("\r"): "", 0x85: "\n", 0x2028: "\n", 0x2029: "\n"}


def plain(text: str) -> str:
    """The text with display control characters escaped and with all line ends as line feeds.

    Each character is treated by itself, so the result is the same whether a text is shown at once or in pieces.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    hidden = {letter for letter in set(text) if is_hidden(letter) and not _JOINING.match(letter)}
    escapes = {ord(letter): escape(letter) for letter in hidden if not "\ud800" <= letter <= "\udfff"}
    return text.translate({**escapes, **_ENDS})


def plain_value(value: Any) -> Any:
    """A JSON value with `plain` applied to all strings in it."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(key): plain_value(item) for key, item in value.items()}
    return [plain_value(item) for item in value] if isinstance(value, list | tuple) else value


def text_block(text: str) -> Json:
    """A content block with this text."""
    return {"type": "text", "text": plain(text)}


def content(text: str) -> Json:
    """An item of a call's `content` with this Markdown text."""
    return {"type": "content", "content": text_block(text)}


def fenced(text: str) -> str:
    """The text in a fence that it cannot close; of more than `MAX_TEXT_CHARS` characters, only the beginning and the end."""
    if len(text) > MAX_TEXT_CHARS:
        left_out = len(text) - MAX_TEXT_CHARS
        head, tail = text[: MAX_TEXT_CHARS * 3 // 4], text[-MAX_TEXT_CHARS // 4 :]
        text = f"{head}\n[... {left_out:,} more characters ...]\n{tail}"
    return in_fence(text.rstrip())


def in_fence(text: str) -> str:
    """The whole text in a fence that it cannot close."""
    fence = "`" * max(3, 1 + max(map(len, _FENCE.findall(text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def describe_call(name: str, input: Mapping[str, Any], cwd: str) -> Json:
    """The fields of a requested call: `title`, `kind` and, where they apply, `content`, `locations` and `rawInput`."""
    name, path = on_one_line(name, 80), input.get("file_path", input.get("notebook_path"))
    fields: Json = {"title": f"{name} {describe_input(name, input, cwd)}".strip(), "kind": KINDS.get(name, "other")}
    place = place_of(path, cwd)
    if place is not None:
        line = input.get("offset")
        is_line = name == "Read" and isinstance(line, int) and 0 < line < 1 << 31
        fields["locations"] = [{"path": place, **({"line": line} if is_line else {})}]
        changes = diffs(name, input, place)
        if changes:
            fields["content"] = changes
    if is_small(input):
        fields["rawInput"] = plain_value(input)
    return fields


def diffs(name: str, input: Mapping[str, Any], path: str, old: str | None = None) -> list[Json]:
    """The changes of a call to the file at `path`, as old and new text. `old` is the text of a file that is replaced."""
    changes: list[tuple[str | None, Any]] = []
    if name in ("Edit", "MultiEdit"):
        edits = input.get("edits")
        for edit in edits if isinstance(edits, list) else [input]:
            if isinstance(edit, Mapping):
                before = edit.get("old", edit.get("old_string", ""))
                changes.append((str(before), edit.get("new", edit.get("new_string", ""))))
    elif name in ("Write", "NotebookEdit"):
        changes.append((old, input.get("content", input.get("new_source", ""))))
    blocks = []
    for before, after in changes:
        if len(before or "") + len(str(after)) > MAX_DIFF_CHARS:
            blocks.append(content(f"({len(before or ''):,} characters become {len(str(after)):,}: too many to show)"))
        else:
            old_text = None if before is None else plain(before)
            blocks.append({"type": "diff", "path": path, "oldText": old_text, "newText": plain(str(after))})
    return blocks


def describe_result(name: str, result: ToolResult, blocks: Sequence[Json] = ()) -> Json:
    """The fields of a finished call; `blocks` is the content displayed so far, whose diffs are kept."""
    ended: Json = {"status": "completed" if result.outcome == "ok" and not result.is_error else "failed"}
    diffs = [block for block in blocks if block["type"] == "diff"]
    output = result.output
    if name == "TodoWrite" and ended["status"] == "completed":
        return ended  # the plan already shows it
    if printed := printed_by_plan(result):
        ended["content"] = [*diffs, content(fenced(printed))]
    elif result.is_error and result.error_message:
        ended["content"] = [*diffs, content(fenced(result.error_message))]
    elif not (diffs and ended["status"] == "completed"):
        ended["content"] = [*diffs, *([] if output is None else _output_blocks(name, output))]
    if output is not None and is_small(output):
        ended["rawOutput"] = plain_value(output)
    return ended


def _output_blocks(name: str, output: Any) -> list[Json]:
    """The content for a tool's output: an image, a command's output, a subagent's text, or JSON."""
    if isinstance(output, Mapping):
        data, media_type = output.get("data"), output.get("media_type")
        if output.get("type") == "image" and isinstance(data, str) and isinstance(media_type, str):
            return [{"type": "content", "content": {"type": "image", "data": data, "mimeType": media_type}}]
        if "stdout" in output:
            code = output.get("exit_code")
            parts = [str(output.get("stdout") or ""), str(output.get("stderr") or "")]
            parts += [f"exit code {code}"] if code else []
            text = "\n".join(part.rstrip("\n") for part in parts if part)
            return [content(fenced(text))] if text else []
        if name == "Task" and isinstance(output.get("final_text"), str):
            return [content(str(output["final_text"]))]
        text_of = next((output[key] for key in ("content", "text") if isinstance(output.get(key), str)), None)
        if text_of is not None:
            return [content(fenced(text_of))]
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, indent=1)
    return [content(fenced(text))] if text.strip() else []


def is_small(value: Any) -> bool:
    """Whether a JSON value can be sent unchanged: neither too long nor nested deeper than clients can parse."""
    text = dumps_json(value)
    return len(text) <= MAX_RAW_CHARS and nesting(value) <= MAX_RAW_DEPTH


def place_of(path: Any, cwd: str) -> str | None:
    """The absolute path that a call names; None if no editor could open it or it contains hidden characters."""
    if not isinstance(path, str) or not path or len(path) > 4096 or any(map(is_hidden, path)):
        return None
    place = os.path.normpath(os.path.join(cwd, path))
    # Editors turn the path into a link, which a line end would break.
    return place if os.path.isabs(place) and not re.search(r"[\n\t]", place) else None
