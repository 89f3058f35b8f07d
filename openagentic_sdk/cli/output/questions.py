"""Questions to the person at the terminal, and the permission gate that asks them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Protocol

from ...events import UserAnswer, UserQuestion
from ...ground.text import on_one_line, visible_lines
from ...permissions.gate import PermissionGate
from ...permissions.interactive import LONG_CHARS, TRIES, UNANSWERED, question_text, typed_here, unclear
from ...sessions.answers import pick_choices, read_answer
from ..keep_rule import rule_keeper
from .terminal import Screen, read_line


def somebody_is_there() -> bool:
    """Whether questions can be asked: stdin and stdout are both terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Asker:
    """A callable that asks the person at the terminal the agent's questions, one at a time, while the run continues.

    `park` is called at end of input: it leaves the question open, and returns False if that is not possible.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._turn = asyncio.Lock()
        self.park: Callable[[], bool] = lambda: False

    async def __call__(self, question: UserQuestion) -> str:
        """Return the answer; a typed number selects that choice. The answer is empty, which allows nothing, after an empty
        line, and at end of input if the question cannot stay open; after three unclear answers it is a refusal or empty.
        """
        async with self._turn:
            text = f"{show_question(question)}\n  answer: "
            if question.kind == "permission":
                text = question_text(question, colour=self._screen.has_colours)
            for _ in range(TRIES):
                with self._screen.nothing_below():
                    self._screen.end_line()
                    line = await read_line(text, self._screen)
                if line is None and self.park():
                    await asyncio.Event().wait()  # until the suspended run cancels it
                if not (line or "").strip():
                    return ""
                answer = read_typed(question, line or "")
                if answer is not None:
                    return answer
                text = f"  {unclear(question, line or '')}: "
        return UNANSWERED[question.kind]

    def tell(self, text: str) -> None:
        """Show a message that needs no answer."""
        self._screen.end_line()
        self._screen.line(on_one_line(text, 300))


def ask_yes_or_no(question: str, screen: Screen) -> bool | None:
    """Ask the person at the terminal until the answer is yes or no; return None at end of input."""
    screen.line(question)
    answer = ""
    while answer not in ("y", "yes", "n", "no"):
        try:
            answer = input("[yes/no] ").strip().lower()
        except EOFError:
            screen.write("\n")
            return None
    return answer in ("y", "yes")


def agrees(question: str) -> bool:
    """Ask whether the person at the terminal agrees; a bare Enter and end of input mean no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def is_agreed(question: str, args: argparse.Namespace) -> bool:
    """Return whether the person consents to an irreversible action: by `--yes`, or when asked.

    If nobody can be asked, print what is required, and return False.
    """
    if args.yes or (sys.stdin.isatty() and agrees(question)):
        return True
    if not sys.stdin.isatty():
        sys.stderr.write(f"nobody can be asked here: {question} Give --yes to agree\n")
    return False


def read_typed(question: UserQuestion, words: str) -> str | None:
    """Like `read_answer`, but also accept the numbers of choices, unless the question is about a permission."""
    several = question.details.get("multi_select") is True
    numbered = question.kind != "permission"
    picked = pick_choices(words.strip(), question.choices, several=several, numbered=numbered)
    return ", ".join(picked) or read_answer(question, words)


def show_question(question: UserQuestion) -> str:
    """The question with numbered choices, safe to print."""
    choices = [f"\n    {number} {on_one_line(text)}" for number, text in enumerate(question.choices, 1)]
    prompt = visible_lines(question.prompt)
    size = f"\n  ({len(question.prompt):,} characters)" if len(question.prompt) > LONG_CHARS else ""
    return "? " + "\n  ".join(prompt) + size + "".join(choices)


class Person(Protocol):
    """A person at the terminal, who answers questions and can be shown messages."""

    async def __call__(self, question: UserQuestion) -> str: ...

    def tell(self, text: str) -> None: ...


def build_gate(args: argparse.Namespace, asker: Person | None) -> PermissionGate:
    """Build the gate that the flags configure; without an `asker`, calls that need a question are denied."""

    async def answer(question: UserQuestion) -> UserAnswer:
        assert asker is not None, "only called if a person can be asked"
        return typed_here(question, await asker(question))

    return PermissionGate(
        permission_mode=args.permission_mode,
        allow=tuple(args.allow),
        deny=tuple(args.deny),
        source="command line",
        user_answerer=None if asker is None else answer,
        save_rule=None if asker is None else rule_keeper(args, asker.tell),
    )
