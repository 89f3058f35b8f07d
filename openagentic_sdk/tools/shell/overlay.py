"""Read a command's writes from the upper layer of an overlay, and apply those that are permitted.

The kernel's format (Documentation/filesystems/overlayfs.rst): a device 0:0 marks a deletion, a folder with the attribute
`user.overlay.opaque` hides everything below it, anything else is the new content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from ...errors import ToolError
from ...ground.disk import SystemDisk, remove_tree, walk, whole_file
from ...ground.files import open_folder
from ...ground.frozen import frozen

COMPARE_BYTES = 1024 * 1024

EffectKind = Literal["created", "changed", "deleted"]


@frozen
class FileEffect:
    """One path, relative to the workspace folder, that a command created, changed or deleted."""

    kind: EffectKind
    path: str
    is_folder: bool = False

    @property
    def shown_path(self) -> str:
        return self.path + "/" if self.is_folder else self.path


def read_effects(folder: str, upper: str, *, times: bool = False) -> list[FileEffect]:
    """The effects of a command on `folder`, sorted by path. Writes that changed nothing are omitted.

    With `times`, a file that was touched counts as changed: it is newer to `make`, whatever its content. Raises `ToolError`
    for effects that cannot be read, such as a path that is too long.
    """
    effects: list[FileEffect] = []
    waiting = [""]
    try:
        # Not by recursion: a command can create any depth.
        while waiting:
            below = waiting.pop()
            with os.scandir(os.path.join(upper, below)) as entries:
                for entry in entries:
                    path = os.path.join(below, entry.name)
                    effects += _effects_of(entry, path, os.path.join(folder, path), times)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
    except OSError as error:
        raise ToolError(
            f"the command's changes to {folder} were discarded, because they cannot be read ({error.strerror}: "
            f"{error.filename!s:.200}): repeat the command without such files"
        ) from error
    return sorted(effects, key=lambda effect: (effect.path, effect.kind))


def _effects_of(entry: os.DirEntry[str], path: str, place: str, times: bool) -> Iterator[FileEffect]:
    """Yield the effects that one entry of the upper layer records on its `place`, except those inside a folder."""
    status = entry.stat(follow_symlinks=False)
    before = _status(place)
    is_device = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
    # The other form of a deletion in that document, since Linux 6.7: an empty file with this attribute.
    is_marked = stat.S_ISREG(status.st_mode) and not status.st_size and _attribute(entry.path, "whiteout") is not None
    if is_device or is_marked:
        if before is not None:
            yield FileEffect("deleted", path, stat.S_ISDIR(before.st_mode))
    elif stat.S_ISDIR(status.st_mode):
        yield from _folder_effects(entry.path, path, place, status, before)
    elif before is None:
        yield FileEffect("created", path)
    elif stat.S_ISDIR(before.st_mode):
        yield FileEffect("deleted", path, is_folder=True)
        yield FileEffect("created", path)
    elif (times and stat.S_ISREG(status.st_mode) and status.st_mtime_ns != before.st_mtime_ns) or not _is_same(
        entry.path, status, place, before
    ):
        yield FileEffect("changed", path)


def _folder_effects(
    copy: str, path: str, place: str, status: os.stat_result, before: os.stat_result | None
) -> Iterator[FileEffect]:
    if before is None or not stat.S_ISDIR(before.st_mode):
        if before is not None:
            yield FileEffect("deleted", path)
        yield FileEffect("created", path, is_folder=True)
        return
    if stat.S_IMODE(status.st_mode) != stat.S_IMODE(before.st_mode):
        yield FileEffect("changed", path, is_folder=True)
    if _attribute(copy, "opaque") == b"y":
        upper_names = set(os.listdir(copy))
        for entry in os.scandir(place):
            if entry.name not in upper_names:
                yield FileEffect("deleted", os.path.join(path, entry.name), entry.is_dir(follow_symlinks=False))


def meanwhile_changed(folder: str, upper: str, path: str, since_ns: int) -> bool:
    """Whether something else has changed an absolute path in `folder` since that time, to a state other than the command's.

    A folder, or a path that is gone, does not count. Making or removing a hard link to the same file does: the kernel keeps
    one time for all its names.
    """
    now = _status(path)
    # The time of the last change of state, which no program can set, unlike that of modification.
    if now is None or stat.S_ISDIR(now.st_mode) or now.st_ctime_ns <= since_ns:
        return False
    copy = os.path.join(upper, os.path.relpath(path, folder))
    status = _status(copy)
    return status is None or not _is_same(copy, status, path, now)


def permitted_effects(
    folder: str, effects: list[FileEffect], refusal: Callable[[str], str | None]
) -> tuple[list[FileEffect], dict[str, str]]:
    """The effects that may be applied, and the absolute paths of the others with the reasons that `refusal` gives.

    If a deleted folder contains something that may not be deleted, everything else in it is deleted.
    """
    permitted: list[FileEffect] = []
    refused: dict[str, str] = {}
    dropped: set[str] = set()
    # Deletions first: whatever takes the place of a folder is permitted only if all of the folder may be deleted.
    for effect in sorted(effects, key=lambda effect: effect.kind != "deleted"):
        path = os.path.join(folder, effect.path)
        if dropped and not dropped.isdisjoint(_folders_above(folder, path)):
            continue
        why = refusal(path) or refused.get(path)
        if why is not None:
            dropped.add(path)
            refused[path] = why
        elif effect.kind == "deleted" and effect.is_folder:
            inner, stays = _deletions(folder, effect.path, refusal)
            permitted += inner
            refused |= stays
            if stays:  # nor can it be replaced
                refused[path] = "something in it stays"
        else:
            permitted.append(effect)
    return sorted(permitted, key=lambda effect: (effect.path, effect.kind)), refused


def _folders_above(folder: str, path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) != folder and path != "/":
        yield path


def _deletions(
    folder: str, below: str, refusal: Callable[[str], str | None]
) -> tuple[list[FileEffect], dict[str, str]]:
    """The deletion of a folder, or of everything in it except what must stay, with the reasons by absolute path."""
    reasons: dict[str, str] = {}
    found_effects: list[FileEffect] = []
    waiting = [below]
    while waiting:
        path = waiting.pop()
        found_effects.append(FileEffect("deleted", path, is_folder=True))
        try:
            entries = list(os.scandir(os.path.join(folder, path)))
        except OSError:
            continue
        for entry in entries:
            if (why := refusal(entry.path)) is not None:
                reasons[entry.path] = why
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(os.path.join(path, entry.name))
            else:
                found_effects.append(FileEffect("deleted", os.path.join(path, entry.name)))
    if not reasons:
        return found_effects[:1], {}
    # The folders above what stays are kept, and everything else in them is deleted as a whole.
    kept_folders = {above for path in reasons for above in _folders_above(folder, path)}
    places = {effect: os.path.join(folder, effect.path) for effect in found_effects}
    inner = [
        each for each, place in places.items() if place not in kept_folders and os.path.dirname(place) in kept_folders
    ]
    return inner, reasons


def apply_effects(folder: str, upper: str, effects: list[FileEffect]) -> None:
    """Apply the effects to `folder`, deletions first. Each file appears completely or not at all.

    Raises OSError if a folder on the way has been replaced meanwhile, or if the disk fails: then only part of the effects
    may have been applied.
    """
    real = os.path.realpath(folder)
    # First, because a file may have taken the place of a folder.
    for effect in (effect for effect in effects if effect.kind == "deleted"):
        with _place(real, effect.path) as target:
            # If it is a link to a folder, the link is deleted, not the folder.
            if os.path.isdir(target) and not os.path.islink(target):
                remove_tree(target, ignore_errors=False)
            elif os.path.lexists(target):
                os.unlink(target)
    for effect in (effect for effect in effects if effect.kind != "deleted"):
        source = os.path.join(upper, effect.path)
        with _place(real, effect.path) as target:
            if not effect.is_folder:
                _put(source, target)
                continue
            if not os.path.lexists(target):
                os.mkdir(target)
        # With `/.`, so that the descriptor is that of the folder itself: a link in its place is refused.
        with _place(real, f"{effect.path}/.") as target:
            os.chmod(target, stat.S_IMODE(os.lstat(source).st_mode))


def touched_files(folder: str, effects: list[FileEffect]) -> list[str]:
    """The files and links, including those in deleted folders, that the effects create, change or delete."""
    touched: list[str] = []
    for effect in effects:
        path = os.path.join(os.path.realpath(folder), effect.path)
        if effect.kind == "deleted" and effect.is_folder:
            touched.extend(os.path.join(top, name) for top, _, names in walk(path) for name in sorted(names))
        elif not effect.is_folder:
            touched.append(path)
    return touched


@contextmanager
def _place(real: str, path: str) -> Iterator[str]:
    """Yield a name for this place below the resolved folder, relative to a descriptor of its parent: whatever is renamed or
    linked during the block, it leads nowhere else. Raises OSError if a link has replaced a folder.
    """
    parent, name = os.path.split(os.path.join(real, path))
    with ExitStack() as stack:
        try:
            folder_fd = stack.enter_context(open_folder(parent))
        except ToolError as error:
            raise OSError(f"{path} cannot be applied: {error}") from error
        yield f"/proc/self/fd/{folder_fd}/{name}"


def _put(source: str, target: str) -> None:
    import shutil

    status = os.lstat(source)
    if not any(is_kind(status.st_mode) for is_kind in (stat.S_ISLNK, stat.S_ISFIFO, stat.S_ISREG)):
        return  # a socket or a device is useless after the command's end
    if stat.S_ISREG(status.st_mode) and _move(source, target):
        return
    # Not synced: the command itself would have left its files like this.
    with whole_file(SystemDisk(), Path(target), sync=False) as temporary:
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(source), temporary)
        elif stat.S_ISFIFO(status.st_mode):
            os.mkfifo(temporary, stat.S_IMODE(status.st_mode))
        else:
            # Contents, mode and times, but not the attributes: some belong to the overlay.
            shutil.copyfile(source, temporary)
            os.chmod(temporary, stat.S_IMODE(status.st_mode))
            os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))


def _move(source: str, target: str) -> bool:
    """Move the file itself into place, without the overlay's marks; return False if that requires a copy.

    A copy is required on another file system, and for a file with marks that its owner may not write, such as a git object.
    """
    marks = [name for name in os.listxattr(source) if name.startswith("user.overlay.")]
    if marks and not os.access(source, os.W_OK):
        return False
    for name in marks:
        os.removexattr(source, name)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _attribute(path: str, name: str) -> bytes | None:
    try:
        return os.getxattr(path, f"user.overlay.{name}", follow_symlinks=False)
    except OSError:  # it has no such attribute
        return None


def _is_same(path: str, status: os.stat_result, other: str, before: os.stat_result) -> bool:
    if status.st_mode != before.st_mode or status.st_size != before.st_size:
        return False
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path) == os.readlink(other)
    if not stat.S_ISREG(status.st_mode):
        return False
    with open(path, "rb") as first, open(other, "rb") as second:
        while True:
            piece = first.read(COMPARE_BYTES)
            if piece != second.read(COMPARE_BYTES):
                return False
            if not piece:
                return True


def remove_layers(folder: str) -> None:
    """Remove a folder that contains the upper layers (`upper...`) and working folders (`work...`) of overlays."""
    # overlayfs leaves a folder that even its owner may not list; if empty, it can still be removed.
    for name in os.listdir(folder):
        inner = os.path.join(folder, name, "work")
        if name.startswith("work") and os.path.isdir(inner):
            os.chmod(inner, 0o700)
    remove_tree(folder)
