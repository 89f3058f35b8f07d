"""The outline of a Markdown body: its title, its first paragraph and its checklist."""

from __future__ import annotations

from dataclasses import field

from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..ground.text import one_line


@frozen
class Outline:
    """The title, the first paragraph and the checklist of a Markdown body; each is empty if it is missing."""

    title: str = ""
    paragraph: str = ""
    checklist: list[str] = field(default_factory=list)


_FENCE = regex(r"[ ]{0,3}(`{3,}+(?![^`\n]*`)|~{3,})")
_HEADING = regex(r"[ ]{0,3}(#{1,6})(?=[ \t]|$)")
_ITEM = regex(r"\s*(?:[-*+]|\d{1,9}[.)])(?:\s+(.*)|$)")
_BOX = regex(r"\[[ xX]?\](?:\s+|$)")
_NO_TEXT = regex(r"\s*(?:[-*+]\s|[-*_=]{3,}\s*$|\d{1,9}[.)]\s|>|\||<!--|<[/a-zA-Z])")


def read_outline(body: str) -> Outline:
    """Read the first heading of level 1, the first paragraph outside lists, tables and code, and the checklist."""
    reading = _OutlineReading()
    for line in lines_outside_fences(body):
        reading.take(line)
    return reading.outline()


class _OutlineReading:
    """A reader of a body, line by line.

    In a checklist section every list item counts; without such items, the items with a box elsewhere are the checklist.
    """

    def __init__(self) -> None:
        self._title = ""
        self._paragraph: list[str] = []
        self._paragraph_ended = False
        self._checklist_level = 0
        self._listed, self._boxes = _Items(), _Items()

    def take(self, line: str) -> None:
        heading = _HEADING.match(line)
        if heading:
            text = line[heading.end() :].strip()
            bare = text.rstrip("#")  # `Title ##` is `Title`; `C#` keeps its mark
            self.take_heading(len(heading[1]), bare.rstrip() if not bare or bare[-1] in " \t" else text)
        elif self._checklist_level:
            self._listed.add(line, any_item=True)
        else:
            self._boxes.add(line, any_item=False)
            self.take_text(line)

    def outline(self) -> Outline:
        return Outline(self._title, one_line(" ".join(self._paragraph)), self._listed.texts() or self._boxes.texts())

    def take_heading(self, level: int, text: str) -> None:
        if level == 1 and not self._title:
            self._title = one_line(text)
        if not self._checklist_level or level <= self._checklist_level:
            self._checklist_level = level if "checklist" in text.casefold() else 0
        self._paragraph_ended = bool(self._paragraph)
        self._listed.close()
        self._boxes.close()

    def take_text(self, line: str) -> None:
        is_code = not self._paragraph and line.startswith(("    ", "\t"))
        if not line.strip() or _NO_TEXT.match(line) or is_code:
            self._paragraph_ended = bool(self._paragraph)
        elif not self._paragraph_ended:
            self._paragraph.append(line)


class _Items:
    """A collector of list items, line by line; an indented line after an item continues it."""

    def __init__(self) -> None:
        self._items: list[list[str]] = []
        self._open = False

    def add(self, line: str, *, any_item: bool) -> None:
        item = _ITEM.match(line)
        text = (item[1] or "") if item else ""
        if item and (any_item or _BOX.match(text)):
            self._items.append([_BOX.sub("", text, count=1)])
            self._open = True
        elif item or not line.strip() or not line.startswith((" ", "\t")):
            self._open = False
        elif self._open:
            self._items[-1].append(line)

    def close(self) -> None:
        self._open = False

    def texts(self) -> list[str]:
        return [text for text in (one_line(" ".join(parts)) for parts in self._items) if text]


def lines_outside_fences(body: str) -> list[str]:
    """The lines of a body; those of fenced code, including the fences, are replaced with ''."""
    lines: list[str] = []
    fence = ""
    for line in body.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        before, fence = fence, fence_behind(fence, line)
        lines.append("" if before or fence else line)
    return lines


def fence_behind(fence: str, line: str) -> str:
    """The opening mark of the fenced code that is open after a line, '' for none; `fence` is the mark open before it."""
    mark = _FENCE.match(line)
    if not fence:
        return mark[1] if mark else ""
    # After the mark, only characters that every Markdown reader treats as blank: text that people see inside the code must
    # not be outside of it here, where it could contain commands to run.
    closes = mark and mark[1].startswith(fence) and not line[mark.end() :].strip(" \t\r")
    return "" if closes else fence
