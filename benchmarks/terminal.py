"""The cost of rendering text that streams to a terminal: processor time per 1,000 characters, for Markdown and status rows.

The floor writes the same pieces to the same stream unchanged. Pieces arrive at full speed, word by word and character by
character: the terminal is drawn 50 times a second, so both cost about the same.
"""

from __future__ import annotations

import io

from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.cli.screen.live import LivePrinter
from openagentic_sdk.events import AssistantDelta, AssistantMessage, Event, SystemInit

from . import Row, best_cpu_s

_TEXT = (
    "# A heading\n\nA paragraph with **bold words**, `code`, and a [link](http://x.test) that is long enough to be wrapped "
    "at the edge of the terminal, as models write them.\n\n- an item\n- another one with *more* words in it\n\n"
    "```python\ndef answer():\n    return 42\n```\n\n| a | b |\n|---|---|\n| 1 | two |\n\n"
) * 40


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _cost_and_floor_ms(piece_chars: int) -> tuple[float, float]:
    pieces = [_TEXT[at : at + piece_chars] for at in range(0, len(_TEXT), piece_chars)]
    events: list[Event] = [SystemInit("s", "/", "0"), *map(AssistantDelta, pieces), AssistantMessage(_TEXT)]

    def rendered() -> None:
        printer = LivePrinter(Screen(_Terminal(), environ={"TERM": "xterm-256color"}))
        for event in events:
            printer.show(event)

    def written() -> None:
        out = _Terminal()
        for piece in pieces:
            out.write(piece)
            out.flush()

    cost_ms, floor_ms = (best_cpu_s(act) * 1000 / len(_TEXT) * 1000 for act in (rendered, written))
    return cost_ms, floor_ms


def rows() -> list[Row]:
    made = []
    for name, piece_chars, bar in (("word by word", 12, "ratio <= 100"), ("letter by letter", 1, "ratio <= 20")):
        cost_ms, floor_ms = _cost_and_floor_ms(piece_chars)
        about = f"rendering 1,000 characters {name}"
        made.append(Row(about, cost_ms, "ms", cost_ms / floor_ms, "plain writes", bar))
    return made
