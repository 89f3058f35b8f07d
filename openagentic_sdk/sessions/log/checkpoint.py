"""What a run kept of its view behind a compaction, beside the log: a resume reads from there on. It may be deleted.

The file says which place in the log it speaks of (offset, `seq` and chain value), and a keyed digest says that this
installation wrote it for this session. What an archive brings, what another session's folder held, and what was edited is
not used. Damage of the log before that place is not noticed by a resume; finding it is what verifying is for.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from ...disk import Disk, write_durably
from ...errors import InvalidEventError, OptionsError
from ...serialization import dumps_json, loads_json
from ..folds.view import KeptView
from ..seal import Seal
from .blocks import read_range
from .folder import MAX_CACHE_BYTES, read_cache
from .line import SEAL_LENGTH
from .scan import Position

CHECKPOINT_NAME = "checkpoint.json"
_PURPOSE = b"openagentic-sdk checkpoint"


class Checkpoint:
    """The kept view beside the log of the session in `folder`, whose name is the session's id."""

    def __init__(self, disk: Disk, folder: Path, seal: Seal) -> None:
        self._disk = disk
        self._path = folder / CHECKPOINT_NAME
        self._session_id = folder.name.encode()
        self._seal = seal

    def write(self, position: Position, kept: KeptView) -> None:
        """Keep a view of the log up to `position`. What cannot be kept is left out: it is a cache."""
        place = {"offset": position.offset, "seq": position.seq, "crc": position.crc}
        try:
            body = dumps_json({**place, "kept": kept.to_dict()}).encode("ascii")
            data = self._seal.digest(_PURPOSE, self._session_id, body).encode("ascii") + b"\n" + body + b"\n"
            if len(data) <= MAX_CACHE_BYTES:
                write_durably(self._disk, self._path, data, sync=False)
        except (OSError, OptionsError, InvalidEventError):
            return

    def read(self) -> tuple[Position, KeptView] | None:
        """The kept view and the place that it speaks of; None unless this installation wrote it for this session."""
        data = read_cache(self._path)
        digest, _, rest = (data or b"").partition(b"\n")
        body = rest.removesuffix(b"\n")
        try:
            if not body or not self._seal.matches(digest.decode("ascii"), _PURPOSE, self._session_id, body):
                return None
            known = loads_json(body)
            kept = KeptView.from_dict(known["kept"])
        except (OptionsError, InvalidEventError, UnicodeDecodeError):
            return None
        return None if kept is None else (Position(known["offset"], known["seq"], known["crc"]), kept)


def stands_at(disk: Disk, fd: int, position: Position) -> bool:
    """Whether the log has this chain value at this place."""
    seal = read_range(disk, fd, position.offset - SEAL_LENGTH - 1, position.offset)
    try:
        own = int(seal[len(b',"crc":"') : -len(b'"}\n')], 16)
    except ValueError:
        return False
    return len(seal) == SEAL_LENGTH + 1 and crc32(seal, own) == position.crc
