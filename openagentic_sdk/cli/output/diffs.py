"""The changes of a file as rows with line numbers and three lines of context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher

from ...ground.text import visible
from .terminal import Screen
from .widths import cut_at

CONTEXT_LINES = 3
MAX_ROWS = 80
# Comparing takes time that grows with the product of both lengths and with the pairs of equal lines. Beyond these bounds
# everything between the first and the last line that differ is shown as replaced.
MAX_COMPARED = 4_000_000
MAX_PAIRS = 500_000


def diff_rows(before: str, after: str) -> Iterator[tuple[str, int, str]]:
    """Yield each row as its sign (`+`, `-`, a space, or `…` for omitted lines), its number and its text.

    Numbers refer to the new file; those of removed lines, to the old one.
    """
    old, new = before.splitlines(), after.splitlines()
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    first = max(head - CONTEXT_LINES, 0)  # equal lines at both ends are not compared
    last = max(tail - CONTEXT_LINES, 0)
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    often = Counter(old)
    if len(old) * len(new) > MAX_COMPARED or sum(often[line] for line in new) > MAX_PAIRS:
        groups = [[("replace", 0, len(old), 0, len(new))]]
    else:
        groups = list(SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES))
    for number, group in enumerate(groups):
        if number:
            yield "…", 0, ""
        for tag, old_at, old_end, new_at, new_end in group:
            if tag == "equal":
                yield from ((" ", first + at + 1, new[at]) for at in range(new_at, new_end))
            else:
                yield from (("-", first + at + 1, old[at]) for at in range(old_at, old_end))
                yield from (("+", first + at + 1, new[at]) for at in range(new_at, new_end))


def _common(old: list[str], new: list[str]) -> int:
    """The number of equal lines at the beginning of both."""
    pairs = zip(old, new, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(old), len(new)))


def shown_diff(
    before: str,
    after: str,
    screen: Screen,
    *,
    indent: str = "    ",
    columns: int | None = None,
    max_rows: int = MAX_ROWS,
) -> list[str]:
    """A diff as rows for a screen, with line numbers, signs and colours; beyond `max_rows`, a last row counts the others."""
    rows = list(diff_rows(before, after))
    width = len(str(max((number for _, number, _ in rows), default=0)))
    room = max((columns or screen.width) - len(indent) - width - 4, 8)
    lines = []
    for sign, number, text in rows[:max_rows]:
        style = {"+": "added", "-": "removed"}.get(sign, "dim" if sign == "…" else "")
        pieces = cut_at(visible(text.replace("\t", "    ")), room)
        for place, piece in enumerate(pieces):  # a line that is wider than the terminal continues below its number
            first = (f"{number or '':>{width}}", sign) if place == 0 else (" " * width, " ")
            lines.append(
                f"{indent}{screen.styled(first[0], 'dim')} {screen.styled(f'{first[1]} {piece}'.rstrip(), style)}"
            )
    if len(rows) > max_rows:
        lines.append(screen.styled(f"{indent}{'':>{width}} … {len(rows) - max_rows} more rows", "dim"))
    return lines
