"""A line editor without a terminal: keys in, rows out.

The text may have several lines. History consists of earlier inputs; completions are offered by a function of the word
before the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os.path import commonprefix

from ...ground.text import on_one_line
from ..output.terminal import plain_width
from ..output.widths import begins_letter, text_width
from .keys import Key

Complete = Callable[[str, bool], Sequence[str]]
MAX_ROWS = 12


def no_completions(word: str, is_first: bool) -> Sequence[str]:
    """Offer no completions."""
    return ()


class LineEditor:
    """An editor of the text being typed. `press` returns the whole text when it is submitted, otherwise None."""

    def __init__(self, *, history: Sequence[str] = (), complete: Complete = no_completions) -> None:
        self.text = ""
        self.cursor = 0
        self.offers: Sequence[str] = ()
        self._history = list(history)
        self._place = len(self._history)
        self._draft = ""
        self._complete = complete
        self._killed = ""

    def press(self, key: Key) -> str | None:
        """Process a key; return the text if it was submitted. Unknown keys change nothing."""
        if key.name == "enter":
            # Most terminals send the same for Enter and Shift-Enter, so a backslash also makes a new line.
            if self.text.endswith("\\") and self.cursor == len(self.text):
                self.text = self.text[:-1]
                self.cursor -= 1
                self._insert("\n")
                return None
            text = self.text
            if text.strip() and (not self._history or self._history[-1] != text):
                self._history.append(text)
            self.clear()
            return text
        self.offers = ()
        if key.name in ("text", "paste"):
            self._insert(key.text)
        elif key.name == "newline":
            self._insert("\n")
        elif key.name == "tab":
            start = max(self.text.rfind(blank, 0, self.cursor) for blank in " \n") + 1
            word = self.text[start : self.cursor]
            matches = list(self._complete(word, start == 0))
            common = commonprefix(matches)  # noqa: RUF071 - of words, not of paths
            if len(common) > len(word) or len(matches) == 1:
                self._delete(start, self.cursor)
                self._insert(common + (" " if len(matches) == 1 and not common.endswith("/") else ""))
            elif len(matches) > 1:
                self.offers = matches
        else:
            act = _KEYS.get(key.name)
            if act is not None:
                act(self)
        return None

    def clear(self) -> None:
        """Start over with an empty text."""
        self.text, self.cursor, self.offers = "", 0, ()
        self._place = len(self._history)

    def take_back(self, text: str) -> None:
        """Insert a submitted but unread text before the one being typed."""
        if text:
            self.text = f"{text}\n{self.text}" if self.text else text
            self.cursor = len(self.text)

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _delete(self, start: int, end: int, *, keep: bool = False) -> None:
        if keep:
            self._killed = self.text[start:end]
        self.text = self.text[:start] + self.text[end:]
        self.cursor = start

    # --- moving ------------------------------------------------------------------------------------------------------

    def _left(self) -> None:
        self.cursor = max(self.cursor - 1, 0)
        while not begins_letter(self.text, self.cursor):
            self.cursor -= 1

    def _right(self) -> None:
        self.cursor = self._behind_letter()

    def _behind_letter(self) -> int:
        """The end of the user-perceived character under the cursor."""
        end = min(self.cursor + 1, len(self.text))
        while not begins_letter(self.text, end):
            end += 1
        return end

    def _line_start(self) -> int:
        return self.text.rfind("\n", 0, self.cursor) + 1

    def _line_end(self) -> int:
        end = self.text.find("\n", self.cursor)
        return len(self.text) if end < 0 else end

    def _home(self) -> None:
        self.cursor = self._line_start()

    def _end(self) -> None:
        self.cursor = self._line_end()

    def _word_left(self) -> None:
        before = self.text[: self.cursor].rstrip()
        self.cursor = max(before.rfind(" "), before.rfind("\n")) + 1

    def _word_right(self) -> None:
        rest = self.text[self.cursor :]
        skipped = len(rest) - len(rest.lstrip())
        end = next((at for at, letter in enumerate(rest) if at >= skipped and letter in " \n"), len(rest))
        self.cursor += end

    def _up(self) -> None:
        start = self._line_start()
        if start:
            before = self.text.rfind("\n", 0, start - 1) + 1
            self.cursor = min(before + self.cursor - start, start - 1)
        elif self._place:
            self._recall(self._place - 1)

    def _down(self) -> None:
        end = self._line_end()
        if end < len(self.text):
            after = self.text.find("\n", end + 1)
            self.cursor = min(end + 1 + self.cursor - self._line_start(), len(self.text) if after < 0 else after)
        elif self._place < len(self._history):
            self._recall(self._place + 1)

    def _recall(self, place: int) -> None:
        if self._place == len(self._history):
            self._draft = self.text
        self._place = place
        self.text = self._draft if place == len(self._history) else self._history[place]
        self.cursor = len(self.text)

    def _search(self) -> None:
        """Recall the newest earlier text that contains what was typed; if repeated, the one before it."""
        needle = self.text if self._place == len(self._history) else self._draft
        places = [place for place in range(self._place) if needle in self._history[place]]
        if places:
            self._recall(places[-1])

    # --- deleting ----------------------------------------------------------------------------------------------------

    def _backspace(self) -> None:
        end = self.cursor
        self._left()
        self._delete(self.cursor, end)

    def _delete_right(self) -> None:
        self._delete(self.cursor, self._behind_letter())

    def _kill_word(self) -> None:
        end = self.cursor
        self._word_left()
        self._delete(self.cursor, end, keep=True)

    def _kill_start(self) -> None:
        self._delete(self._line_start(), self.cursor, keep=True)

    def _kill_end(self) -> None:
        self._delete(self.cursor, self._line_end(), keep=True)

    def _yank(self) -> None:
        self._insert(self._killed)

    # --- showing -----------------------------------------------------------------------------------------------------

    def rows(self, mark: str, width: int, cursor: Callable[[str], str]) -> list[str]:
        """The rows to show: `mark` before the first, the character under the cursor styled by `cursor`.

        Long lines are wrapped at the width; of a long text the rows around the cursor are shown.
        """
        indent, here = " " * plain_width(mark), 0
        rows: list[str] = []
        at = 0
        for line in self.text.split("\n"):
            for start, piece in _pieces(line, max(width - len(indent) - 2, 8)):
                first, last = at + start, at + start + len(piece)
                row = on_one_line(piece)
                is_last_piece = start + len(piece) == len(line)
                if first <= self.cursor < last or (self.cursor == last and is_last_piece):
                    here = len(rows)
                    offset = self.cursor - first
                    letter_end = self._behind_letter() - first if offset < len(piece) else offset
                    under = on_one_line(piece[offset:letter_end]) or " "
                    row = on_one_line(piece[:offset]) + cursor(under) + on_one_line(piece[letter_end:])
                rows.append((indent if rows else mark) + row)
            at += len(line) + 1
        first_row = max(0, min(here - MAX_ROWS // 2, len(rows) - MAX_ROWS))
        shown_rows = rows[first_row : first_row + MAX_ROWS]
        if len(rows) > MAX_ROWS:
            shown_rows.append(f"{indent}({len(rows)} rows, {len(self.text):,} characters)")
        if self.offers:
            shown_rows.append(indent + "  ".join(on_one_line(offer) for offer in self.offers[:20]))
        return shown_rows


def _pieces(line: str, columns: int) -> list[tuple[int, str]]:
    """The line in pieces that fit when displayed, each with its position."""
    if line.isascii() and line.isprintable():
        return [(start, line[start : start + columns]) for start in range(0, len(line) or 1, columns)]
    pieces, start, width = [], 0, 0
    begins = [at for at in range(len(line)) if begins_letter(line, at)]
    for at, end in zip(begins, [*begins[1:], len(line)], strict=True):
        wide = max(text_width(on_one_line(line[at:end])), 1)
        if width + wide > columns:
            pieces.append((start, line[start:at]))
            start, width = at, 0
        width += wide
    return [*pieces, (start, line[start:])]


_KEYS: dict[str, Callable[[LineEditor], None]] = {
    "left": LineEditor._left,
    "right": LineEditor._right,
    "home": LineEditor._home,
    "end": LineEditor._end,
    "word-left": LineEditor._word_left,
    "word-right": LineEditor._word_right,
    "up": LineEditor._up,
    "search": LineEditor._search,
    "down": LineEditor._down,
    "backspace": LineEditor._backspace,
    "delete": LineEditor._delete_right,
    "kill-word": LineEditor._kill_word,
    "kill-start": LineEditor._kill_start,
    "kill-end": LineEditor._kill_end,
    "yank": LineEditor._yank,
}
