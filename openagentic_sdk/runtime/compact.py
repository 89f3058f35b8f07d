"""Make room when the conversation comes near the model's limit."""

from __future__ import annotations

from .agent import Run


async def compact_when_full(run: Run) -> None:
    """Replace the older part of the conversation by a summary when the next request would be too large."""
