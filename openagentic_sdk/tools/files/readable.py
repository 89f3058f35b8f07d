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
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ToolError
from ...frozen import frozen
from ...threads import running_loop
from ..base import ToolContext, may_read_all
from .workspace import ResolvedPath, resolve_path, shown_path


async def permitted_path(path: str, ctx: ToolContext, *, write: bool) -> ResolvedPath:
    """What `path` means. Raises `ToolError` when it leads to where the call may not go."""
    resolved = resolve_path(path, ctx.cwd)
    if ctx.permits_path is not None and not await ctx.permits_path(resolved.real, write):
        raise ToolError(f"{path!r} leads to {resolved.real}, which this call may not {'write' if write else 'read'}")
    return resolved


@frozen
class Search:
    """One call of Glob or Grep: where it looks, what it was given, and whether a path may be shown (None: every one may).

    `permits` is called in a thread, not on the event loop.
    """

    root: ResolvedPath
    input: Mapping[str, Any]
    ctx: ToolContext
    permits: Callable[[str], bool] | None

    @property
    def shown_root(self) -> str:
        """The root as results show it."""
        return shown_path(self.root.lexical, self.ctx.cwd)


async def permitted_search(tool: str, input: Mapping[str, Any], ctx: ToolContext) -> Search:
    """The search that a call asks for. Raises `ToolError` when its root is where the call may not go."""
    root = await permitted_path(input.get("root") or ".", ctx, write=False)
    return Search(root, input, ctx, _read_filter(ctx, running_loop(tool)))


def _read_filter(ctx: ToolContext, loop: asyncio.AbstractEventLoop) -> Callable[[str], bool] | None:
    if ctx.may_read is not None:
        return None if ctx.may_read is may_read_all else ctx.may_read
    permits = ctx.permits_path
    if permits is None:
        return None

    async def ask(path: str) -> bool:
        return await permits(path, False)

    return lambda path: asyncio.run_coroutine_threadsafe(ask(path), loop).result()
