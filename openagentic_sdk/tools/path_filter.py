"""Obey Read deny rules for the many paths that one Glob or Grep call turns up.

The gate has permitted the call on its root; single files below may still be denied. `ctx.run_resources["read_filter"]` is a
plain function from an absolute path to whether it may be shown: it should be left out, or None, when there are no rules,
and then nothing is asked at all. When the key is missing, `ctx.permits_path` is asked, on the event loop, once for each
path that would be shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .base import ToolContext

READ_FILTER = "read_filter"


def read_filter(ctx: ToolContext, loop: asyncio.AbstractEventLoop | None) -> Callable[[str], bool] | None:
    """Whether a path may be shown, or None when everything may be. To be called in a thread, not on `loop`."""
    if READ_FILTER in ctx.run_resources:
        given: Callable[[str], bool] | None = ctx.run_resources[READ_FILTER]
        return given
    permits = ctx.permits_path
    if permits is None:
        return None

    async def ask(path: str) -> bool:
        return await permits(path, False)

    if loop is None:
        return lambda path: asyncio.run(ask(path))
    return lambda path: asyncio.run_coroutine_threadsafe(ask(path), loop).result()
