"""What changed in a file, as rows with line numbers and three lines around each change."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from ...text import visible
from .terminal import Screen

CONTEXT_LINES = 3
MAX_ROWS = 80
# Comparing takes time that grows with the square of it.
MAX_LINES = 20_000


def diff_rows(before: str, after: str) -> Iterator[tuple[str, int, str]]:
    """Each row as its sign (`+`, `-`, blank, or `…` for lines that are left out), its number and its text.

    Numbers are those of the file as it is now; of removed lines, those that they had.
    """
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > MAX_LINES:
        yield "…", 0, f"{len(old):,} lines became {len(new):,}: too many to compare"
        return
    for number, group in enumerate(SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)):
        if number:
            yield "…", 0, ""
        for tag, old_at, old_end, new_at, new_end in group:
            if tag == "equal":
                yield from ((" ", at + 1, new[at]) for at in range(new_at, new_end))
            else:
                yield from (("-", at + 1, old[at]) for at in range(old_at, old_end))
                yield from (("+", at + 1, new[at]) for at in range(new_at, new_end))


def shown_diff(before: str, after: str, screen: Screen, *, indent: str = "    ", max_rows: int = MAX_ROWS) -> list[str]:
    """The rows for a screen: numbers in a column, signs, and the colours that the screen has."""
    rows = list(diff_rows(before, after))
    width = len(str(max((number for _, number, _ in rows), default=0)))
    shown = []
    for sign, number, text in rows[:max_rows]:
        style = {"+": "added", "-": "removed"}.get(sign, "dim" if sign == "…" else "")
        row = f"{sign} {visible(text.replace(chr(9), '    '))}" if sign != "…" else f"… {text}".rstrip()
        shown.append(f"{indent}{screen.styled(f'{number or str():>{width}}', 'dim')} {screen.styled(row, style)}")
    if len(rows) > max_rows:
        shown.append(screen.styled(f"{indent}{'':>{width}} … {len(rows) - max_rows} more rows", "dim"))
    return shown
