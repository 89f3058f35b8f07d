"""Tokens and money: what a session and its subagents may spend, and what limits that others share leave of a day.

Looked at before each step, and while an answer comes: an endpoint tells what an answer cost only at its end, so tokens are
estimated from its bytes until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..events import Event, ModelResponse
from ..ground.frozen import mutable
from ..kernel.agent import Run
from ..kernel.lifetime import RunStopped
from ..kernel.part import Part
from ..kernel.recorder import off_loop
from ..sessions.folds.compaction import BYTES_PER_TOKEN, estimate_tokens


@mutable
class Room:
    """What is left of a limit that other sessions share; None for a number is no limit. `reason` says why nothing is."""

    name: str
    tokens_left: int | None = None
    usd_left: float | None = None
    reason: str | None = None


@mutable
class Budget:
    """What a session and all of its subagents may spend together; None is no limit.

    `cost_usd` becomes None for good when a call had no known price. `rooms` are what limits of the day leave.
    `is_estimated` says that some of `tokens` were not counted by the endpoint, `coming_bytes` is what the answers that are
    on their way weigh so far.
    """

    max_tokens: int | None = None
    max_cost_usd: float | None = None
    tokens: int = 0
    cost_usd: float | None = 0.0
    rooms: tuple[Room, ...] = ()
    is_estimated: bool = False
    coming_bytes: int = 0

    def charge(self, usage: Mapping[str, Any] | None, cost_usd: float | None, estimated_tokens: int = 0) -> None:
        """Take one call's usage into account; the estimate counts when the endpoint says nothing."""
        usage = usage or {}
        tokens = int(usage.get("input_tokens") or 0) + int(usage.get("output_tokens") or 0)
        if not tokens and estimated_tokens:
            tokens, self.is_estimated = estimated_tokens, True
        self.tokens += tokens
        for room in self.rooms:
            room.tokens_left = None if room.tokens_left is None else room.tokens_left - tokens
            room.usd_left = None if room.usd_left is None else room.usd_left - (cost_usd or 0.0)
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def complaint(self) -> str | None:
        """Why no further call may be made, or None."""
        full = next((room.reason for room in self.rooms if room.reason is not None), None)
        if full is not None:
            return full
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            about = "about " if self.is_estimated else ""
            return f"{about}{self.tokens} tokens are spent, max_tokens is {self.max_tokens}"
        if self.max_cost_usd is None:
            return None
        if self.cost_usd is None:
            return f"max_cost_usd is {self.max_cost_usd} and a call had no known price: add its model to `prices`"
        if self.cost_usd >= self.max_cost_usd:
            return f"{self.cost_usd:.4f} USD are spent, max_cost_usd is {self.max_cost_usd}"
        return None


# How many bytes all answers that are coming may have together, now; and which limit that is.
_Limit = tuple[Callable[[], float], str]


class Budgets(Part):
    """The budget of a run, which its subagents share.

    `rooms` returns what shared limits leave a session at a time (its id, epoch seconds); it blocks.
    """

    limits = frozenset({"max_tokens", "max_cost_usd"})

    def __init__(self, run: Run, rooms: Callable[[str, float], tuple[Room, ...]] | None = None) -> None:
        super().__init__(run)
        parents = None if run.parent is None else run.parent.parts.services.find(Budgets)
        request, view = run.request, run.view
        own = Budget(request.max_tokens, request.max_cost_usd, view.tokens, view.cost_usd)
        self._budget: Budget = own if parents is None else parents._budget
        self._rooms = rooms
        self._limits: Sequence[_Limit] | None = None
        self._coming_bytes = 0

    def services(self) -> Mapping[type, object]:
        return {Budgets: self}

    async def complaint(self) -> str | None:
        """Why no further call of a model may be made, None when one may."""
        if self._rooms is not None:
            run = self.run
            self._budget.rooms = await off_loop(True, self._rooms, run.session_id, run.agent.clock.now())
        return self._budget.complaint()

    async def before_step(self) -> None:
        complaint = await self.complaint()
        if complaint is not None:
            raise RunStopped("budget", complaint)

    def charge(self, usage: Mapping[str, Any] | None, cost_usd: float | None) -> None:
        """Charge what a subagent of an earlier process spent."""
        self._budget.charge(usage, cost_usd)

    def receive(self, size_bytes: int) -> tuple[int, str | None]:
        budget = self._budget
        if self._limits is None:
            self._limits = self._open_limits()
        room, why = size_bytes, None
        for bytes_left, limit in self._limits:
            left = int(max(0.0, bytes_left())) - budget.coming_bytes
            if left < room:
                room, why = max(0, left), limit
        self._coming_bytes += size_bytes
        budget.coming_bytes += size_bytes
        return room, why

    def drop_answer(self) -> None:
        self._budget.coming_bytes -= self._coming_bytes
        self._coming_bytes, self._limits = 0, None

    def stored(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ModelResponse):
                if event.complete or event.usage is not None or self._coming_bytes:
                    self._charge_answer(event)
                self.drop_answer()

    def _charge_answer(self, response: ModelResponse) -> None:
        estimated = 0
        if self._budget.max_tokens is not None:
            estimated = estimate_tokens(self.run.view.conversation.size_bytes() + self._coming_bytes)
        is_lost = not response.complete and response.usage is None
        self._budget.charge(response.usage, 0.0 if is_lost else response.cost_usd, estimated)

    def _open_limits(self) -> list[_Limit]:
        """The limits of the answer that begins."""
        budget, run = self._budget, self.run
        limits: list[_Limit] = []
        usd = budget.max_cost_usd if budget.cost_usd is not None else None
        has_dollars = usd is not None or any(room.usd_left is not None for room in budget.rooms)
        # The price of a million tokens: one alone may be too little for a price to tell.
        price = run.agent.cost({"input_tokens": 0, "output_tokens": 1_000_000}, run.model) if has_dollars else None

        def add_tokens(left: Callable[[], float], limit: str) -> None:
            limits.append((lambda: left() * BYTES_PER_TOKEN, f"with the answer that was coming {limit}"))

        def add_dollars(left: Callable[[], float], limit: str) -> None:
            if price:
                add_tokens(lambda: left() / price * 1_000_000, limit)

        def add_room(room: Room) -> None:
            if room.tokens_left is not None:
                add_tokens(lambda: room.tokens_left or 0, f"nothing is left of max_tokens in {room.name}")
            if room.usd_left is not None:
                add_dollars(lambda: room.usd_left or 0.0, f"nothing is left of max_cost_usd in {room.name}")

        if (most := budget.max_tokens) is not None:
            add_tokens(lambda: most - budget.tokens, f"about {most} tokens are spent, which is max_tokens")
        for room in budget.rooms:
            add_room(room)
        if usd is not None:
            add_dollars(lambda: usd - (budget.cost_usd or 0.0), f"about {usd} USD are spent, which is max_cost_usd")
        return limits
