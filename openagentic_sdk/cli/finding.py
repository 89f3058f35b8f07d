"""One thing that a command looked at: whether it works, and what to do where it does not."""

from __future__ import annotations

from ..ground.frozen import frozen
from ..ground.text import on_one_line
from .output.terminal import Screen

_MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}


@frozen
class Finding:
    """One thing that was looked at. `works` is None when it depends on more; `advice` is what to set or do."""

    name: str
    works: bool | None
    detail: str
    advice: str = ""
    needed: bool = False

    def lines(self, screen: Screen) -> list[str]:
        """It for people, with the advice on a line of its own."""
        mark, style = _MARKS[self.works]
        said = f"  {screen.styled(f'{mark:3}', style)} {on_one_line(self.name, 200):18} {on_one_line(self.detail, 300)}"
        advice = f"      {'':18} {screen.styled(on_one_line(self.advice), 'yellow')}"
        return [said.rstrip(), advice] if self.advice else [said.rstrip()]
