"""The result of one check by a command: whether something works, and what to do if not."""

from __future__ import annotations

from ..ground.frozen import frozen
from ..ground.text import on_one_line
from .output.terminal import Screen

_MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}


@frozen
class Finding:
    """One checked item. `works` is `None` if it depends on other things, `advice` is the remedy, and `needed` is true if an
    agent cannot run without the item.
    """

    name: str
    works: bool | None
    detail: str
    advice: str = ""
    needed: bool = False

    def lines(self, screen: Screen) -> list[str]:
        """The lines to print, with the advice on a separate line."""
        mark, style = _MARKS[self.works]
        head = f"  {screen.styled(f'{mark:3}', style)} {on_one_line(self.name, 200):18} {on_one_line(self.detail, 300)}"
        advice = f"      {'':18} {screen.styled(on_one_line(self.advice), 'yellow')}"
        return [head.rstrip(), advice] if self.advice else [head.rstrip()]
