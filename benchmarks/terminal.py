"""What rendering costs while text streams to a terminal: processor time per 1,000 characters, Markdown and the rows below.

The floor writes the same pieces to the same stream as they are.
"""

from __future__ import annotations

import io

from openagentic_sdk.cli.screen.live import LivePrinter
from openagentic_sdk.cli.screen.terminal import Screen
from openagentic_sdk.events import AssistantDelta, AssistantMessage, Event, SystemInit

from . import Row, best_cpu_s

PIECE_CHARS = 12
_TEXT = (
    "# A heading\n\nA paragraph with **bold words**, `code`, and a [link](http://x.test) that is long enough to be wrapped "
    "at the edge of the terminal, as models write them.\n\n- an item\n- another one with *more* words in it\n\n"
    "```python\ndef answer():\n    return 42\n```\n\n| a | b |\n|---|---|\n| 1 | two |\n\n"
) * 40


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rows() -> list[Row]:
    pieces = [_TEXT[at : at + PIECE_CHARS] for at in range(0, len(_TEXT), PIECE_CHARS)]
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
    return [Row("rendering 1,000 streamed characters", cost_ms, "ms", cost_ms / floor_ms, "plain writes", "value <= 1")]
