"""The back-off schedule of all retries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

from .frozen import frozen


@frozen
class Backoff:
    """A schedule of waits that grow by `factor` from `first_s` to `longest_s`.

    Each wait is shortened by a random share of up to `jitter` (0 to 1).
    """

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def wait_s(self, failures: int) -> float:
        """Return the seconds to wait after `failures` (1, 2 ...) consecutive failed attempts."""
        grown_s = min(self.longest_s, self.first_s * self.factor ** min(failures - 1, 64))
        return grown_s * (1 - self.jitter * int.from_bytes(os.urandom(4)) / 2**32) if self.jitter else grown_s

    def waits(self) -> Iterator[float]:
        """Return an endless iterator over the waits, in seconds, after the first failure, the second, and so on."""
        return map(self.wait_s, count(1))
