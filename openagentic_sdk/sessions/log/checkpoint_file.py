"""Keep the checkpoint of a log in a file beside it, with the offset, `seq` and chain value of its position."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from zlib import crc32

from ...ground.disk import Disk, write_durably
from ..checkpoint import open_view, seal_view
from ..folds.view import KeptView
from ..seal import Seal
from .blocks import read_range
from .folder import path_in, read_cache
from .line import SEAL_LENGTH
from .scan import Position

CHECKPOINT_NAME = "checkpoint.json"


class Checkpoint:
    """The checkpoint file of the session in `folder`, whose name is the session's id."""

    def __init__(self, disk: Disk, folder: Path, seal: Seal) -> None:
        self._disk = disk
        self._path = path_in(folder, CHECKPOINT_NAME)
        self._session_id = folder.name
        self._seal = seal

    def write(self, position: Position, view: KeptView) -> None:
        """Keep a view of the log up to `position`. Failures are ignored: it is a cache."""
        place = {"offset": position.offset, "seq": position.seq, "crc": position.crc}
        data = seal_view(self._seal, self._session_id, place, view)
        # None without a key: an unsealed checkpoint could replace the log in every later resume.
        if data is not None:
            with suppress(OSError):
                # Not synced: if a power failure loses it, the next resume folds the log from its start.
                write_durably(self._disk, self._path, data, sync=False)

    def read(self) -> tuple[Position, KeptView] | None:
        """Return the position and the view kept there; None unless this installation wrote them for this session."""
        checkpoint = open_view(self._seal, self._session_id, read_cache(self._path))
        if checkpoint is None:
            return None
        place, view = checkpoint
        return Position(place["offset"], place["seq"], place["crc"]), view


def is_at(disk: Disk, fd: int, position: Position) -> bool:
    """Whether the log has the chain value of this position at its offset."""
    seal = read_range(disk, fd, position.offset - SEAL_LENGTH - 1, position.offset)
    try:
        own = int(seal[len(b',"crc":"') : -len(b'"}\n')], 16)
    except ValueError:
        return False
    # One seal suffices: it covers every byte of the log before it.
    return len(seal) == SEAL_LENGTH + 1 and crc32(seal, own) == position.crc
