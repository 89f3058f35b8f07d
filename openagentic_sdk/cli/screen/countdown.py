"""Show on a terminal how long it is until the model is asked again."""

from __future__ import annotations

import asyncio
import math

from .terminal import Screen


class Countdown:
    """One line that counts seconds down and leaves nothing behind. Silent where the screen is no terminal."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._task: asyncio.Task[None] | None = None

    def start(self, delay_s: float) -> None:
        """Count from `delay_s` to 0, until `stop`."""
        if self._screen.is_terminal and delay_s >= 1:
            self._task = asyncio.create_task(self._tick(delay_s))

    def stop(self) -> None:
        """Take the line away."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            self._screen.rewrite("")

    async def _tick(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + delay_s
        while (left_s := ends_at - loop.time()) > 0:
            self._screen.rewrite(self._screen.styled(f"  in {math.ceil(left_s)} s", "yellow"))
            await asyncio.sleep(min(1.0, left_s))
