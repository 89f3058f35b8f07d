"""Resolve a tool's path, and check whether the call may access it and whether the file is still what the model saw.

The gate permits a call before it starts, and a path may lead elsewhere by then. So a tool resolves its path once, asks
`PathRules` about the result (the gate answers from its rules and from what it approved for this call, without another
question), and opens exactly that, with `openagentic_sdk.ground.files`.

Glob and Grep encounter many more paths, and rules may forbid reading some: `PathRules.read_filter` returns a predicate that
is true for absolute paths that may be shown.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import ToolError
from ...ground.frozen import frozen
from ...ground.words import look_alikes, sendable
from ...kernel.tool import PathRules, ToolContext
from ...sessions.folds.features.all import ObservedFilesFold


@frozen
class ResolvedPath:
    """A resolved path: `lexical` is absolute without `.` and `..`, `real` also has every link followed.

    Neither needs to exist. Rules that deny match either, rules that allow need both; tools open `real`.
    """

    lexical: str
    real: str


def resolve_path(path: str, cwd: str) -> ResolvedPath:
    """Resolve `path` in the folder `cwd`. `~` alone and a leading `~/` are the home folder; nothing else is expanded.

    Raises `ToolError` for an empty path, one that no file can have, a loop of links, and an ambiguous path, whose `..`
    follows a link.
    """
    if not path or not can_name_a_file(path):
        encoding = sys.getfilesystemencoding()
        if encoding != "utf-8" and "\0" not in path and sendable(path) == path != "":
            raise ToolError(
                f"{path!r} cannot be encoded as {encoding}, in which this process names files: use an ASCII name, or set"
                " PYTHONUTF8=1 and start again"
            )
        raise ToolError(f"{path!r} is not a path: give the path of a file, absolute or relative to {cwd}")
    expanded = os.path.expanduser(path) if path == "~" or path.startswith("~/") else path
    # POSIX distinguishes a leading double slash; the kernel does not.
    joined = re.sub("^//+", "/", os.path.join(os.path.abspath(cwd), expanded))
    lexical = os.path.normpath(joined)
    real = os.path.realpath(lexical)
    if _is_circular(real):
        raise ToolError(f"{path!r} is part of a symbolic link loop: name a file outside the loop")
    if ".." in joined.split("/") and os.path.realpath(joined) != real:
        raise ToolError(f"{path!r} goes through a link and back up with '..': name the file without '..'")
    return ResolvedPath(lexical, real)


def _is_circular(real: str) -> bool:
    try:
        os.stat(real)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def can_name_a_file(path: str) -> bool:
    """Whether `os.fsencode` accepts the text, and it has no NUL; a lone surrogate from a model is usually refused."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


async def permitted_path(path: str, ctx: ToolContext, *, write: bool) -> ResolvedPath:
    """Resolve `path`. Raises `ToolError` if the call may not read it or, with `write`, change it."""
    resolved = resolve_path(path, ctx.cwd)
    if not await ctx.services.get(PathRules).permits(ctx, resolved.real, write=write):
        raise ToolError(f"{path!r} leads to {resolved.real}, which this call may not {'write' if write else 'read'}")
    return resolved


@frozen
class Search:
    """One call of Glob or Grep, with its resolved root.

    `permits` returns whether a path may be shown, None if all may; it is called in a thread, not on the event loop.
    """

    root: ResolvedPath
    input: Mapping[str, Any]
    ctx: ToolContext
    permits: Callable[[str], bool] | None

    @property
    def shown_root(self) -> str:
        """The root as displayed in results."""
        return shown_path(self.root.lexical, self.ctx.cwd)


async def permitted_search(input: Mapping[str, Any], ctx: ToolContext) -> Search:
    """Return the search that a call requests. Raises `ToolError` if the call may not access the root of the search."""
    root = await permitted_path(input.get("root") or ".", ctx, write=False)
    return Search(root, input, ctx, ctx.services.get(PathRules).read_filter())


def shown_path(path: str, cwd: str) -> str:
    """The path as displayed in results: relative to `cwd` if it is below, otherwise absolute."""
    base = os.path.abspath(cwd)
    if path == base:
        return "."
    prefix = base if base.endswith("/") else base + "/"
    return path[len(prefix) :] if path.startswith(prefix) else path


_ADVICE = {
    errno.ENAMETOOLONG: "use shorter names: most file systems allow 255 bytes for a name and 4,096 for a path",
    errno.EACCES: "choose a path that this user may access",
    errno.EPERM: "choose a path that this user may access",
    errno.EROFS: "choose a path on a file system that can be written",
    errno.ENOSPC: "free some space first, or choose a path on another disk",
    errno.EDQUOT: "free some space first, or choose a path on another disk",
    errno.EMFILE: "this process has too many open files: try again later",
    errno.ENFILE: "this machine has too many open files: try again later",
    errno.ENOENT: "choose a folder in which files can be created",
}


@contextmanager
def plain_path_errors(path: ResolvedPath, cwd: str) -> Iterator[None]:
    """Replace the message of a system error that the block raises with a sentence for the model: the path, what is wrong,
    and what to do. The type of the error stays the same.
    """
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise  # its message is already a sentence for the model
        advice = _ADVICE.get(error.errno or 0, "choose another path")
        name = shown_path(path.lexical, cwd)
        shown = name if len(name) <= 200 else f"{name[:100]}...{name[-50:]}"
        plain = type(error)(f"{shown!r} cannot be used: {error.strerror}; {advice}")
        plain.errno = error.errno
        raise plain from None


def check_cancelled(ctx: ToolContext) -> None:
    """Raise `ToolError` if the call was cancelled."""
    if ctx.cancelled.is_set():
        raise ToolError("stopped: the call was cancelled")


def check_folder(path: ResolvedPath, ctx: ToolContext) -> None:
    """Raise `FileNotFoundError` or `NotADirectoryError`, with advice, unless the path is a folder."""
    if os.path.isdir(path.real):
        return
    if os.path.lexists(path.real):
        raise NotADirectoryError(f"{shown_path(path.lexical, ctx.cwd)} is not a folder: give one")
    raise missing_file(path, ctx.cwd, "folder")


def missing_file(path: ResolvedPath, cwd: str, noun: str = "file") -> FileNotFoundError:
    """The error for a missing path, with similar names in its folder, if any."""
    folder, name = os.path.split(path.real)
    text = f"the {noun} {shown_path(path.lexical, cwd)!r} does not exist (working directory {os.path.abspath(cwd)})"
    try:
        names = os.listdir(folder)[:2_000]
    except OSError:
        names = []  # only a hint: a folder that cannot be listed provides none
    near = [repr(entry) for entry in look_alikes(name, names, 0.7)]
    return FileNotFoundError(f"{text}: did you mean {' or '.join(near)}?" if near else f"{text}: use Glob to find it")


def observed_digest(path: ResolvedPath, ctx: ToolContext) -> str | None:
    """The digest of the file as the model last read or wrote it; None if the model did neither."""
    fold = ctx.services.find(ObservedFilesFold)
    return None if fold is None else fold.digests.get(path.real)


def refuse_if_stale(path: ResolvedPath, sha256: str | None, ctx: ToolContext) -> None:
    """Raise `ToolError` if the file differs from what the model has seen of it, if anything.

    `sha256` is the file's current digest, None if it does not exist.
    """
    digest = observed_digest(path, ctx)
    if digest is None or digest == sha256:
        return
    what = "was deleted" if sha256 is None else "has changed"
    raise ToolError(
        f"{shown_path(path.lexical, ctx.cwd)} {what} since you last read or wrote it, so nothing was written: Read it "
        "again, then repeat the change on its current content"
    )
