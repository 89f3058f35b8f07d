"""The prices of a shop."""

from collections.abc import Iterable


def total(prices: Iterable[int]) -> int:
    """What the prices come to."""
    return sum(prices)
