"""Questions in place: a box of rows below the text that takes keys until it knows the answer."""

from __future__ import annotations

import json
from typing import Protocol

from ...events import UserQuestion
from ...text import on_one_line
from ...tools.ask_user_question import SEVERAL_ANSWERS
from .editor import LineEditor
from .keys import Key
from .palette import Style
from .widths import text_width, wrapped

# The key of each answer to a permission question, and what it is called below the question.
_ANSWERS = (
    ("y", "yes", "yes"),
    ("n", "no", "no, because …"),
    ("a", "always", "always"),
    ("s", "always save", "always, saved"),
)


class Box(Protocol):
    """`press` gives the answer when there is one; `rows` what to show meanwhile."""

    def press(self, key: Key) -> str | None: ...

    def rows(self, width: int, style: Style) -> list[str]: ...


class PermissionBox:
    """y, n, a, s and e: yes, no and why, always, always and saved, something else in its place."""

    def __init__(self, question: UserQuestion) -> None:
        self._answers = [answer for answer in _ANSWERS if answer[1] in question.choices or answer[0] in "yn"]
        given = question.details.get("input")
        known = given if isinstance(given, dict) else {}
        is_command = question.details.get("tool_name") == "Bash"
        self._command = str(known.get("command", "")) if is_command else json.dumps(known, ensure_ascii=False)
        self._line: tuple[str, LineEditor] | None = None

    def press(self, key: Key) -> str | None:
        if self._line is not None:
            before, editor = self._line
            if key.name in ("escape", "eof"):
                self._line = None
                return None
            text = editor.press(key)
            if text is None:
                return None
            return before + text.strip() if text.strip() else "no"
        if key.name in ("escape", "eof"):
            return "no"
        letter = key.text.lower() if key.name == "text" else ""
        if letter == "n":
            self._line = "no because ", LineEditor()
        elif letter == "e":
            editor = LineEditor()
            editor.press(Key("paste", self._command))
            self._line = "edit ", editor
        return next((answer for name, answer, _ in self._answers if name == letter and name != "n"), None)

    def rows(self, width: int, style: Style) -> list[str]:
        if self._line is not None:
            before, editor = self._line
            help_ = "enter says no" if before.startswith("no") else "enter runs this instead"
            typed = editor.rows(style(before, "prompt"), width, lambda letter: style(letter, "cursor"))
            return [*typed, style(f"{help_} · escape goes back", "dim")]
        rows, used = [""], 0
        for name, label in [*((name, label) for name, _, label in self._answers), ("e", "edit")]:
            wide = len(name) + len(label) + 5
            if used + wide > width and used:
                rows, used = [*rows, ""], 0
            rows[-1] += f"{style(f'[{name}]', 'prompt')} {label}  "
            used += wide
        return [row.rstrip() for row in rows]


class ChoiceBox:
    """A list to choose from with arrows or numbers; with several answers, space marks. Anything typed is an own answer."""

    def __init__(self, question: UserQuestion) -> None:
        lines = question.prompt.split("\n")
        self._several = bool(lines) and lines[-1] == SEVERAL_ANSWERS
        self._choices = [
            (choice, next((line[len(choice) + 2 :] for line in lines[1:] if line.startswith(f"{choice}: ")), ""))
            for choice in question.choices
        ]
        self._at = 0
        self._marked: set[int] = set()
        self._editor = LineEditor()

    def press(self, key: Key) -> str | None:
        if self._editor.text or not self._choices:
            if key.name == "escape":
                self._editor.clear()
            return self._editor.press(key) if key.name != "eof" else ""
        number = int(key.text) if key.name == "text" and key.text.isascii() and key.text.isdigit() else 0
        if key.name in ("up", "down", "tab", "shift-tab"):
            self._at = (self._at + (1 if key.name in ("down", "tab") else -1)) % len(self._choices)
        elif 0 < number <= len(self._choices):
            self._at = number - 1
            if not self._several:
                return self._pick()
            self._mark()
        elif key.name == "text" and key.text == " ":
            self._mark()
        elif key.name == "enter":
            return self._pick()
        elif key.name in ("eof", "escape"):
            return ""
        else:
            self._editor.press(key)
        return None

    def _mark(self) -> None:
        if self._several:
            self._marked ^= {self._at}

    def _pick(self) -> str:
        chosen = sorted(self._marked) or [self._at]
        return ", ".join(self._choices[place][0] for place in chosen)

    def rows(self, width: int, style: Style) -> list[str]:
        rows = []
        for place, (choice, about) in enumerate(self._choices):
            box = ("☑ " if place in self._marked else "☐ ") if self._several else ""
            pointer = style("❯ ", "prompt") if place == self._at and not self._editor.text else "  "
            first, *more = wrapped(f"{place + 1}. {box}{on_one_line(choice)}", width - 3)
            rows += [pointer + first, *(f"     {row}" for row in more)]
            about = on_one_line(about)
            if about and not more and text_width(first) + text_width(about) + 4 < width:
                rows[-1] += style(f"  {about}", "dim")
            elif about:
                rows += [style(f"     {row}", "dim") for row in wrapped(about, width - 6)]
        if self._editor.text or not self._choices:
            mark = style("answer: ", "prompt")
            return [*rows, *self._editor.rows(mark, width, lambda letter: style(letter, "cursor"))]
        keys = "space marks · enter answers" if self._several else "enter chooses"
        help_ = wrapped(f"↑ ↓ · {keys} · or type your own answer", width - 3)
        return [*rows, *(style(f"  {row}", "dim") for row in help_)]


def box_for(question: UserQuestion) -> Box:
    """The box that fits the question."""
    return PermissionBox(question) if question.kind == "permission" else ChoiceBox(question)
