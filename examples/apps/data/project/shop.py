"""The prices of a shop."""

from collections.abc import Iterable


def total(prices: Iterable[int]) -> int:
    """The sum of the prices."""
    return sum(prices)
