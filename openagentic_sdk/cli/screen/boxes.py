"""Questions in place: a box of rows below the text that receives keys until the question is answered."""

from __future__ import annotations

import json
from typing import Protocol

from ...events import UserQuestion
from ...ground.text import on_one_line
from ...permissions.interactive import unclear
from ...sessions.answers import read_answer, takes_own_words
from ...tools.session.ask_user_question import SEVERAL_ANSWERS
from ..output.palette import Style
from ..output.widths import text_width, wrapped
from .editor import LineEditor
from .keys import Key

# The letter of each answer to a permission question, and how it is shown.
_ANSWERS = (
    ("y", "yes", "yes"),
    ("n", "no", "no, because …"),
    ("a", "always", "always"),
    ("s", "always save", "always, saved"),
)


class Box(Protocol):
    """A question that is answered with keys. `press` returns the answer, or None until there is one; `rows` is what to show
    until then.
    """

    def press(self, key: Key) -> str | None: ...

    def rows(self, width: int, style: Style) -> list[str]: ...


class PermissionBox:
    """The box of a permission question: a line for y, n, a, s or e (yes, no, always, always and save, edit), a full
    answer, or no and a reason; Enter submits, and Escape on an empty line means no. An invalid answer stays in the line, and
    allows nothing.
    """

    def __init__(self, question: UserQuestion) -> None:
        self._question = question
        rows = [row for row in _ANSWERS if row[1] in question.choices or row[0] in "yn"]
        self._answers = {key: answer for key, answer, _ in rows}
        self._labels = [*((key, label) for key, _, label in rows), ("e", "edit")]
        input = question.details.get("input")
        fields = input if isinstance(input, dict) else {}
        is_command = question.details.get("tool_name") == "Bash"
        self._command = str(fields.get("command", "")) if is_command else json.dumps(fields, ensure_ascii=False)
        self._editor = LineEditor()
        self._edits = False
        self._unclear = ""

    def press(self, key: Key) -> str | None:
        if key.name in ("escape", "eof"):
            if not self._edits and not self._editor.text:
                return "no"
            self._edits, self._unclear = False, ""
            self._editor.clear()
            return None
        text = self._editor.press(key)
        if text is None:
            self._unclear = ""
            return None
        reply = text.strip()
        if not self._edits and reply.lower() == "e":
            self._edits = True
            self._editor.press(Key("paste", self._command))
            return None
        words = f"edit {reply}" if self._edits else self._answers.get(reply.lower(), reply)
        answer = read_answer(self._question, words)
        if answer is None:
            self._unclear = unclear(self._question, reply)
            self._editor.press(Key("paste", text))
        return answer

    def rows(self, width: int, style: Style) -> list[str]:
        before = style("edit " if self._edits else "answer: ", "prompt")
        typed = self._editor.rows(before, width, lambda letter: style(letter, "cursor"))
        if self._edits:
            return [*typed, style("enter runs this instead · escape goes back", "dim")]
        rows, used = [""], 0
        for name, label in self._labels:
            wide = len(name) + len(label) + 5
            if used + wide > width and used:
                rows, used = [*rows, ""], 0
            rows[-1] += f"{style(f'[{name}]', 'prompt')} {label}  "
            used += wide
        rows = [row.rstrip() for row in rows]
        warning = [style(row, "yellow") for row in wrapped(self._unclear, width - 3)] if self._unclear else []
        return [*warning, *rows, *typed]


class ChoiceBox:
    """A list to choose from with arrows or numbers and Enter; if several answers are allowed, the space bar marks them.
    Typed text is a custom answer if the question accepts one. Escape dismisses the question.
    """

    def __init__(self, question: UserQuestion) -> None:
        self._question = question
        lines = question.prompt.split("\n")
        self._several = question.details.get("multi_select") is True or lines[-1] == SEVERAL_ANSWERS
        self._number = ""  # the digits that were typed last
        self._unclear = ""
        self._choices = [
            (choice, next((line[len(choice) + 2 :] for line in lines[1:] if line.startswith(f"{choice}: ")), ""))
            for choice in question.choices
        ]
        self._at = 0
        self._marked: set[int] = set()
        self._editor = LineEditor()

    def press(self, key: Key) -> str | None:
        typed, self._number, self._unclear = self._number, "", ""
        if typed and key.name == "text" and not key.text.isdigit():
            self._editor.press(Key("text", typed))  # a number followed by words is not a choice
        if self._editor.text or not self._choices:
            if key.name == "escape":
                self._editor.clear()
            return self._own_words(self._editor.press(key)) if key.name != "eof" else ""
        number = int(key.text) if key.name == "text" and key.text.isascii() and key.text.isdigit() else 0
        if key.name in ("up", "down", "tab", "shift-tab"):
            self._at = (self._at + (1 if key.name in ("down", "tab") else -1)) % len(self._choices)
        elif 0 < number <= len(self._choices):
            self._at = number - 1
            self._number = "" if self._several else typed + key.text
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

    def _own_words(self, text: str | None) -> str | None:
        """Return the typed text after Enter if it is a valid answer; an invalid one stays in the line for correction."""
        if not text:
            return text
        answer = read_answer(self._question, text)
        if answer is None:
            self._unclear = unclear(self._question, text)
            self._editor.press(Key("paste", text))
        return answer

    def _mark(self) -> None:
        if self._several:
            self._marked ^= {self._at}

    def _pick(self) -> str:
        places = sorted(self._marked) or [self._at]
        return ", ".join(self._choices[place][0] for place in places)

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
            warning = [style(row, "yellow") for row in wrapped(self._unclear, width - 3)] if self._unclear else []
            return [*rows, *warning, *self._editor.rows(mark, width, lambda letter: style(letter, "cursor"))]
        keys = "space marks · enter answers" if self._several else "enter chooses"
        own = " · or type your own answer" if takes_own_words(self._question) else ""
        help_ = wrapped(f"↑ ↓ · {keys}{own}", width - 3)
        return [*rows, *(style(f"  {row}", "dim") for row in help_)]


def box_for(question: UserQuestion) -> Box:
    """Create the box for a question: a `PermissionBox` or a `ChoiceBox`."""
    return PermissionBox(question) if question.kind == "permission" else ChoiceBox(question)
