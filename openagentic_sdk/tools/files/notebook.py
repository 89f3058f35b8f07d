"""A Jupyter notebook as lines of text: each cell with its number and type, its source, and its outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...ground.loose import as_mapping, as_mappings, as_text

MAX_OUTPUT_CHARS = 10_000


def notebook_lines(data: bytes) -> list[str] | None:
    """The cells as lines, each output cut after `MAX_OUTPUT_CHARS`; None if this is not a notebook.

    A notebook is an object with a list of `cells` (nbformat 4).
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    cells = as_mapping(document).get("cells")
    if not isinstance(cells, list):
        return None
    return [line for number, cell in enumerate(cells, 1) if isinstance(cell, dict) for line in _cell(number, cell)]


def _cell(number: int, cell: Mapping[str, Any]) -> Iterator[str]:
    kind = cell.get("cell_type") or "unknown"
    yield f"[cell {number}, {kind}]"
    yield from _text(cell.get("source")).splitlines()
    for output in as_mappings(cell.get("outputs")):
        yield f"[output of cell {number}]"
        text = _output_text(output)
        yield from text[:MAX_OUTPUT_CHARS].splitlines()
        if len(text) > MAX_OUTPUT_CHARS:
            yield f"… (+{len(text) - MAX_OUTPUT_CHARS:,} characters)"


def _output_text(output: Mapping[str, Any]) -> str:
    if output.get("output_type") == "stream":
        return _text(output.get("text"))
    if output.get("output_type") == "error":
        return f"{output.get('ename')}: {output.get('evalue')}"
    data = output.get("data")
    if not isinstance(data, dict):
        return ""
    others = [kind for kind in data if kind != "text/plain"]
    plain_text = _text(data.get("text/plain"))
    return f"{plain_text}\n({', '.join(others)} not shown)" if others else plain_text


def _text(value: Any) -> str:
    """The text, which nbformat stores as one string or as a list of lines."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return as_text(value)
