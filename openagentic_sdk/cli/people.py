"""Questions to the person at the terminal, and the permission gate that asks them."""

from __future__ import annotations

import argparse
import sys

from ..events import UserQuestion
from ..permissions.gate import PermissionGate
from .terminal import Screen, read_line


def somebody_is_there() -> bool:
    """Whether questions can be asked: stdin and stdout are both a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Asker:
    """Puts the agent's questions to the person, one at a time; `EventPrinter` has shown the question already."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    async def __call__(self, question: UserQuestion) -> str:
        """The answer as typed; a number picks a choice. The end of input is an empty answer, which allows nothing."""
        answer = (await read_line("  answer: ", self._screen) or "").strip()
        if answer.isdecimal() and 0 < int(answer) <= len(question.choices):
            return question.choices[int(answer) - 1]
        return answer


def build_gate(args: argparse.Namespace, asker: Asker | None) -> PermissionGate:
    """The policy that the flags stand for; without an `asker`, what would need a question is denied."""
    return PermissionGate(
        permission_mode=args.permission_mode,
        allow=tuple(args.allow),
        deny=tuple(args.deny),
        user_answerer=asker,
    )
