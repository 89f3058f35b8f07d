"""Questions to the person at the terminal, and the permission gate that asks them."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Protocol

from ...events import UserAnswer, UserQuestion
from ...permissions.gate import PermissionGate
from ...permissions.interactive import LONG_CHARS, question_text, typed_here
from ...text import on_one_line, visible_lines
from ..keep_rule import rule_keeper
from .terminal import Screen, read_line


def somebody_is_there() -> bool:
    """Whether questions can be asked: stdin and stdout are both a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Asker:
    """Puts the agent's questions to the person at the terminal, one at a time, without stopping the run."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._turn = asyncio.Lock()

    async def __call__(self, question: UserQuestion) -> str:
        """The answer as typed; a number picks a choice. The end of input is an empty answer, which allows nothing."""
        async with self._turn:
            with self._screen.nothing_below():
                self._screen.end_line()
                text = f"{show_question(question)}\n  answer: "
                if question.kind == "permission":
                    text = question_text(question, colour=self._screen.has_colours)
                answer = (await read_line(text, self._screen) or "").strip()
        if answer.isdecimal() and 0 < int(answer) <= len(question.choices):
            return question.choices[int(answer) - 1]
        return answer

    def tell(self, text: str) -> None:
        """Say something that needs no answer."""
        self._screen.end_line()
        self._screen.line(on_one_line(text, 300))


def ask_yes_or_no(question: str, screen: Screen) -> bool | None:
    """The answer of the person at the terminal; None at the end of input. A bare Enter is no answer."""
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
    """Whether the person at the terminal says yes; a bare Enter, and the end of input, say no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def show_question(question: UserQuestion) -> str:
    """What is asked, with numbered choices, safe to print."""
    choices = [f"\n    {number} {on_one_line(text)}" for number, text in enumerate(question.choices, 1)]
    prompt = visible_lines(question.prompt)
    size = f"\n  ({len(question.prompt):,} characters)" if len(question.prompt) > LONG_CHARS else ""
    return "? " + "\n  ".join(prompt) + size + "".join(choices)


class Person(Protocol):
    """Answers questions at the terminal, and can be shown messages."""

    async def __call__(self, question: UserQuestion) -> str: ...

    def tell(self, text: str) -> None: ...


def build_gate(args: argparse.Namespace, asker: Person | None) -> PermissionGate:
    """The policy that the flags stand for; without an `asker`, what would need a question is denied."""

    async def answer(question: UserQuestion) -> UserAnswer:
        assert asker is not None, "nobody is asked otherwise"
        return typed_here(question, await asker(question))

    return PermissionGate(
        permission_mode=args.permission_mode,
        allow=tuple(args.allow),
        deny=tuple(args.deny),
        source="command line",
        user_answerer=None if asker is None else answer,
        save_rule=None if asker is None else rule_keeper(args, asker.tell),
    )
