"""What files were before a call changed them."""

from __future__ import annotations

from collections.abc import Sequence

from ...kernel.tool import ToolContext


class FileCopies:
    """A service: keeps what files are before a call changes them, so that the change can be undone."""

    def keep(self, ctx: ToolContext, paths: Sequence[str]) -> None:
        """Keep the files at these resolved paths. To be called in a thread. Raises `StorageError`."""
        raise NotImplementedError


def keep_files(ctx: ToolContext, paths: Sequence[str]) -> None:
    """Keep what these files are, where the run does."""
    copies = ctx.services.find(FileCopies)
    if copies is not None:
        copies.keep(ctx, paths)
