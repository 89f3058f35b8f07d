"""Words for messages: texts cut to a length, counts with their noun, similar names, and valid UTF-8."""

from __future__ import annotations

from collections.abc import Iterable


def shortened(text: str, max_chars: int, mark: str = "...") -> str:
    """The text, truncated to `max_chars` with a mark at its end if necessary."""
    return text if len(text) <= max_chars else text[: max(max_chars - len(mark), 0)].rstrip() + mark


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 line`, `2 lines`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def look_alikes(name: str, names: Iterable[str], least: float) -> list[str]:
    """At most three known names with a similarity of at least `least` (0 to 1), for an error's suggestion."""
    from difflib import get_close_matches  # slow to import, and only needed for a mistake

    folded = {each.casefold(): each for each in names}
    return [folded[key] for key in get_close_matches(name.casefold(), folded, 3, least)]


def sendable(text: str) -> str:
    """The text as valid UTF-8: surrogate pairs are joined, lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
