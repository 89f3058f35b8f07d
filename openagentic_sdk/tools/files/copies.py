"""Copies of files from before a call changed them."""

from __future__ import annotations

from collections.abc import Sequence

from ...kernel.tool import ToolContext


class FileCopies:
    """A service that keeps copies of files before a call changes them, so that the change can be undone."""

    def keep(self, ctx: ToolContext, paths: Sequence[str]) -> None:
        """Keep copies of the files at these resolved paths. Call it in a thread. Raises `StorageError`."""
        raise NotImplementedError


def keep_files(ctx: ToolContext, paths: Sequence[str]) -> None:
    """Keep copies of these files, if the run does so. Raises `StorageError`."""
    copies = ctx.services.find(FileCopies)
    if copies is not None:
        copies.keep(ctx, paths)
