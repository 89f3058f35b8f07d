"""What was done in a simulation, each operation as it was invoked and as it returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from openagentic_sdk.events import Event
from openagentic_sdk.sessions.base import loads_stored


class PromiseBrokenError(AssertionError):
    """What happened is not what the model allows."""


class History:
    """The operations of one seed, in order. `require` fails with them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lines: list[str] = []
        self.failure: PromiseBrokenError | None = None

    def invoke(self, who: object, what: str, work: Callable[[], Any], *expected: type[BaseException]) -> Any:
        """Do the work; gives what came of it, or the error if it is one of those."""
        line = f"{who}: {what}"
        self.lines.append(f"{line} ...")
        try:
            came = work()
        except expected as error:
            self.lines[-1] = f"{line} -> {type(error).__name__}: {error}"
            return error
        except Exception as error:
            self.lines[-1] = f"{line} -> {type(error).__name__}: {error}"
            raise self.broken(f"{what} raised {type(error).__name__}: {error}") from error
        plain = came is None or isinstance(came, str | int | dict)
        self.lines[-1] = f"{line} -> {str(came)[:80] if plain else type(came).__name__}"
        return came

    def require(self, holds: object, claim: str | Callable[[], str]) -> None:
        if not holds:
            # Who is asked in the middle of a run may not end it: what a tool raises the model is told.
            self.failure = self.failure or self.broken(claim if isinstance(claim, str) else claim())
            raise self.failure

    def broken(self, claim: str) -> PromiseBrokenError:
        done = "\n  ".join(self.lines[-40:])
        return PromiseBrokenError(
            f"seed {self.seed}: {claim}\n  {done}\nreplay it: python3 -m tests.simulation {self.seed}"
        )


def read_lines(session: str, lines: Sequence[str]) -> list[Event]:
    """The events of a log, from its lines as they are stored: a schedule looks at the same ones again and again."""
    return [_read_line(session, seq, line) for seq, line in enumerate(lines, 1)]


@lru_cache(1000)
def _read_line(session: str, seq: int, line: str) -> Event:
    return loads_stored(session, seq, line)
