"""Collect the parts of an answer in time proportional to its length, however small the pieces are."""

from __future__ import annotations

from typing import Any

from ...errors import ProviderResponseError
from ...ground.loose import as_list, as_text

# The maximum number of blocks, items, citations or calls in one answer: far more than a model writes, and few enough to be
# kept in memory.
MAX_ANSWER_PARTS = 50_000


def check_part_count(count: int) -> None:
    """Raise `ProviderResponseError` if an answer has more parts than `MAX_ANSWER_PARTS`."""
    if count > MAX_ANSWER_PARTS:
        raise ProviderResponseError(
            f"the endpoint sent more than {MAX_ANSWER_PARTS:,} calls or blocks in one answer, which was cut off there"
        )


class GrowingFields:
    """Strings and lists in the blocks of an answer that grow piece by piece.

    Appending to the field itself would copy it for each piece, which takes hours for a long answer in pieces of a few
    characters. `settle` writes what was added into the blocks.
    """

    def __init__(self) -> None:
        # The key contains the identity of the block, which the entry keeps alive.
        self._added: dict[tuple[int, str], tuple[dict[str, Any], list[Any]]] = {}

    def add(self, block: dict[str, Any], key: str, piece: Any) -> None:
        """Add a piece of text, or any other value as an item of a list."""
        entry = self._added.get((id(block), key))
        if entry is None:
            entry = self._added[id(block), key] = (block, [])
        entry[1].append(piece)

    def settle(self) -> None:
        """Append what was added to the fields of the blocks."""
        for (_, key), (block, pieces) in self._added.items():
            if all(isinstance(piece, str) for piece in pieces):
                block[key] = "".join([as_text(block.get(key)), *pieces])
            else:
                block[key] = [*as_list(block.get(key)), *pieces]
        self._added.clear()
