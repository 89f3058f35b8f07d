"""The operations of a simulation, each with its invocation and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from openagentic_sdk.events import Event
from openagentic_sdk.sessions.base import loads_stored


class PromiseBrokenError(AssertionError):
    """The outcome of an operation is not one that the model allows."""


class History:
    """The operations of one seed, in order. `require` raises an error that lists them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lines: list[str] = []
        self.failure: PromiseBrokenError | None = None

    def invoke(self, who: object, what: str, work: Callable[[], Any], *expected: type[BaseException]) -> Any:
        """Call `work`; return its value, or the exception if it is one of `expected`."""
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
            # Keep it: inside a run, a tool's exception would only become an error message for the model.
            self.failure = self.failure or self.broken(claim if isinstance(claim, str) else claim())
            raise self.failure

    def broken(self, claim: str) -> PromiseBrokenError:
        done = "\n  ".join(self.lines[-40:])
        return PromiseBrokenError(
            f"seed {self.seed}: {claim}\n  {done}\nreplay it: python3 -m tests.simulation {self.seed}"
        )


def read_lines(session: str, lines: Sequence[str]) -> list[Event]:
    """Parse the stored lines of a log, with a cache, since schedules read the same lines repeatedly."""
    return [_read_line(session, seq, line) for seq, line in enumerate(lines, 1)]


@lru_cache(1000)
def _read_line(session: str, seq: int, line: str) -> Event:
    return loads_stored(session, seq, line)
