"""Where a tool's path leads and what of it may be shown: the last word before files are opened.

The gate has permitted a call before it starts, and a path may lead elsewhere by then. So a tool resolves its path once, asks
`ctx.permits_path` about the result (the gate answers from its rules and from what it approved for this call, without another
question), and opens exactly that.

Glob and Grep turn up many more paths, some of which rules may keep from being read. `ctx.may_read` is a plain function from
an absolute path to whether it may be shown. Where it is None, `ctx.permits_path` is asked, on the event loop, once for each
path that would be shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...errors import ToolError
from ..base import ToolContext, may_read_all
from .workspace import ResolvedPath, resolve_path


async def permitted_path(path: str, ctx: ToolContext, *, write: bool) -> ResolvedPath:
    """What `path` means. Raises `ToolError` when it leads to where the call may not go."""
    resolved = resolve_path(path, ctx.cwd)
    if ctx.permits_path is not None and not await ctx.permits_path(resolved.real, write):
        raise ToolError(f"{path!r} leads to {resolved.real}, which this call may not {'write' if write else 'read'}")
    return resolved


def read_filter(ctx: ToolContext, loop: asyncio.AbstractEventLoop) -> Callable[[str], bool] | None:
    """Whether a path may be shown, or None when everything may be. To be called in a thread, not on `loop`."""
    if ctx.may_read is not None:
        return None if ctx.may_read is may_read_all else ctx.may_read
    permits = ctx.permits_path
    if permits is None:
        return None

    async def ask(path: str) -> bool:
        return await permits(path, False)

    return lambda path: asyncio.run_coroutine_threadsafe(ask(path), loop).result()
