"""A session in one compressed file: its events, its blobs, the sessions of its subagents, and a manifest with digests.

    manifest.json            {"format", "version", "sessions": [{"id", "created_at", "metadata", "events", "sha256", ...}]}
    0/events.jsonl           the events of the first session, which is the one that was archived
    0/blobs/<sha256>         its blobs
    0/outputs/<name>         the files in which its calls stored whole outputs

The file is a zip that any zip tool can open. Nothing in it is trusted on restore: names are never used as paths, digests are
checked before a session appears, and ids and events must pass the checks of the target store.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import error as ZlibError

from ...errors import InvalidEventError, StorageError
from ...events import Event
from ...ground.disk import SystemDisk, whole_file
from ...ground.system import reason_of
from ...serialization import dumps_event, dumps_json, loads_event, loads_json
from ...sessions.base import SessionStore
from ...sessions.core import check_expected_seq
from ...sessions.folds.summary import LAST_TIME
from ...sessions.rewriting import OUTPUT_NAME
from .depth import flattened
from .lifecycle import all_or_none, descendants, kept_with

FORMAT = "openagentic-sdk session archive"
VERSION = 1
MANIFEST_NAME = "manifest.json"
MAX_LINE_BYTES = 256 * 1024 * 1024
MAX_BLOB_BYTES = 256 * 1024 * 1024
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
# Zip bomb limit: logs compress to a tenth or twentieth of their size; a far higher ratio is an attack on the disk.
MAX_UNCHECKED_BYTES, MAX_RATIO = 64 * 1024 * 1024, 200


def archive_session(
    store: SessionStore, session_id: str, path: str | os.PathLike[str], *, remove: bool = False
) -> list[str]:
    """Write the session and those of its subagents to a new file at `path`; return the sessions' ids.

    With `remove`, the sessions are deleted from the store once the file is complete and has been read back, unless events or
    subagents have been added since. Raises `FileExistsError`, `SessionNotFoundError`, `StorageError`, and with `remove`
    `ConcurrencyError` if a session has changed and `SessionHeldError` if one must be kept.
    """
    names = [session_id, *descendants(store, session_id)]
    target = Path(path)
    if target.exists():
        raise FileExistsError(f"{target} already exists: choose another file")
    with whole_file(SystemDisk(), target, is_new=True) as unfinished:
        # Private from the first byte: an archive contains whatever the sessions contain.
        private = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(private, "wb") as whole:
            sessions, is_refused = _write_archive(store, whole, names, ZIP_DEFLATED)
            if is_refused:  # much of it repeats, as in a sparse file
                whole.seek(0)
                sessions, _ = _write_archive(store, whole, names, ZIP_STORED)
        # Before the file gets its name, because `remove` deletes the sessions next.
        check_archive(unfinished)
        with open(unfinished, "rb+") as archive_file:
            os.fsync(archive_file.fileno())
    if remove:
        _remove_archived(store, session_id, sessions)
    return names


def _remove_archived(store: SessionStore, session_id: str, sessions: Sequence[Mapping[str, Any]]) -> None:
    """Delete the archived sessions if none has changed. Raises `ConcurrencyError`, `StorageError` for a new subagent."""
    if [session_id, *descendants(store, session_id)] != [entry["id"] for entry in sessions]:
        raise StorageError(
            f"session {session_id!r} has started new subagents since it was archived: archive it again to remove it",
            session_id=session_id,
        )
    for entry in sessions:
        check_expected_seq(entry["id"], entry["events"], store.last_seq(entry["id"]))
        if left := sorted({*store.list_outputs(entry["id"])} - {*entry["outputs"]}):
            raise StorageError(
                f"session {entry['id']!r} has an output, {left[0]}, that is not in the archive: move it to another folder "
                "to remove the session",
                session_id=entry["id"],
            )
    for name in [*kept_with(store, session_id), *(entry["id"] for entry in sessions)]:
        store.refuse_kept(name)
    for entry in reversed(sessions):
        store.delete_session(entry["id"], expected_seq=entry["events"])


def restore_session(store: SessionStore, path: str | os.PathLike[str]) -> list[str]:
    """Restore an archive's sessions with their ids, `seq` and times; return the ids, the archived session's first.

    Either all of them are restored or none. Raises `StorageError` for a damaged file or one that is not an archive, and
    `SessionExistsError`.
    """
    with _opened(path) as file, all_or_none(store) as done:
        for number, entry in enumerate(_entries(file)):
            store.import_session(
                entry["id"],
                flattened(_events(file, number, entry)),
                metadata=entry["metadata"],
                created_at=float(entry["created_at"]),
                blobs=_blobs(file, number, entry),
            )
            done.append(entry["id"])
            for name, data in _outputs(file, number, entry):
                store.add_output(entry["id"], name, data)
    return done


def check_archive(path: str | os.PathLike[str]) -> list[str]:
    """Read the whole archive and compare every digest; return the sessions' ids. Raises `StorageError` for any defect."""
    with _opened(path) as file:
        entries = list(_entries(file))
        for number, entry in enumerate(entries):
            for _ in _events(file, number, entry):
                pass
            for _ in _blobs(file, number, entry):
                pass
            for _ in _outputs(file, number, entry):
                pass
    return [entry["id"] for entry in entries]


# --- writing ---------------------------------------------------------------------------------------------------------


def _write_archive(store: SessionStore, whole: BinaryIO, names: Sequence[str], method: int) -> tuple[list[Any], bool]:
    """Write an archive, compressed by `method`; return its manifest's entries, and whether its ratio would be refused."""
    with ZipFile(whole, "w", method) as file:
        sessions = [_write_session(store, file, number, name) for number, name in enumerate(names)]
        manifest = {"format": FORMAT, "version": VERSION, "sessions": sessions}
        file.writestr(_member(MANIFEST_NAME, method), dumps_json(manifest))
        is_refused = _is_bomb(*_sizes(file))
    whole.truncate()
    return sessions, is_refused


def _member(name: str, method: int) -> ZipInfo:
    """A member with a fixed time: a zip cannot express times before 1980 or after 2107, and a clock may be wrong."""
    member = ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    member.compress_type = method
    member.external_attr = 0o600 << 16
    return member


def _write_session(store: SessionStore, file: ZipFile, number: int, session_id: str) -> dict[str, Any]:
    meta = store.read_metadata(session_id)
    digest, count = hashlib.sha256(), 0
    with file.open(_member(f"{number}/events.jsonl", file.compression), "w", force_zip64=True) as log:
        for event in store.iter_events(session_id):
            line = dumps_event(event).encode("ascii") + b"\n"
            digest.update(line)
            log.write(line)
            count += 1
    blobs = store.list_blobs(session_id)
    for name in blobs:
        file.writestr(_member(f"{number}/blobs/{name}", file.compression), store.read_blob(session_id, name))
    outputs = dict[str, str]()
    for name in filter(OUTPUT_NAME.fullmatch, store.list_outputs(session_id)):
        data = store.read_output(session_id, name)
        if len(data) <= MAX_BLOB_BYTES:
            outputs[name] = hashlib.sha256(data).hexdigest()
            file.writestr(_member(f"{number}/outputs/{name}", file.compression), data)
    return {
        "id": session_id,
        "created_at": meta["created_at"],
        "metadata": meta["metadata"],
        "events": count,
        "sha256": digest.hexdigest(),
        "blobs": blobs,
        "outputs": outputs,
    }


# --- reading ---------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[ZipFile]:
    """Hold the archive open as a zip during the block; every defect in it is raised as a `StorageError`."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for, and a device has no end
            raise StorageError(f"{path} cannot be read as an archive: it is not a regular file")
        with ZipFile(path) as file:
            size, packed = _sizes(file)
            if _is_bomb(size, packed):
                raise StorageError(f"{path} is not a session archive: {packed:,} bytes of it unpack to {size:,}")
            yield file
    except (OSError, BadZipFile) as error:
        raise StorageError(f"{path} cannot be read as an archive: {reason_of(error)}") from error
    except InvalidEventError as error:
        raise StorageError(f"the archive {path} is damaged: {error}") from error
    except (KeyError, ZlibError, EOFError, NotImplementedError, RuntimeError) as error:
        # The exceptions of zipfile: missing member, damaged data, unknown compression, encrypted member.
        raise StorageError(f"the archive {path} is damaged: {error}") from error


def _sizes(file: ZipFile) -> tuple[int, int]:
    """The bytes of all members, unpacked and packed."""
    members = file.infolist()
    return sum(member.file_size for member in members), sum(member.compress_size for member in members)


def _is_bomb(size: int, packed: int) -> bool:
    return size > max(MAX_UNCHECKED_BYTES, packed * MAX_RATIO)


def _entries(file: ZipFile) -> Iterator[dict[str, Any]]:
    if MANIFEST_NAME not in file.namelist():
        raise StorageError(f"{file.filename} is not a session archive: it has no {MANIFEST_NAME}")
    if file.getinfo(MANIFEST_NAME).file_size > MAX_MANIFEST_BYTES:
        raise StorageError(f"the manifest of the archive {file.filename} exceeds {MAX_MANIFEST_BYTES:,} bytes")
    manifest = loads_json(file.read(MANIFEST_NAME))
    if not isinstance(manifest, Mapping) or manifest.get("format") != FORMAT:
        raise StorageError(f"{file.filename} is not a session archive: its {MANIFEST_NAME} has another format")
    if manifest.get("version") != VERSION:
        raise StorageError(
            f"the archive {file.filename} has version {manifest.get('version')!r:.20}, and this package reads {VERSION}: "
            "upgrade openagentic-sdk"
        )
    entries = manifest.get("sessions")
    if not isinstance(entries, list) or not entries or not all(map(_is_entry, entries)):
        raise StorageError(
            f"the manifest of the archive {file.filename} is damaged: it names no sessions, or a session's entry is "
            "incomplete"
        )
    yield from entries


def _is_entry(entry: Any) -> bool:
    kinds: Mapping[str, Any] = {
        "id": str,
        "created_at": (int, float),
        "metadata": dict,
        "events": int,
        "sha256": str,
        "blobs": list,
    }
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), kind) for name, kind in kinds.items()):
        return False
    # Older versions did not archive outputs.
    outputs = entry.setdefault("outputs", {})
    if not isinstance(outputs, dict) or not all(isinstance(digest, str) for digest in outputs.values()):
        return False
    return bool(abs(entry["created_at"]) <= LAST_TIME)


def _events(file: ZipFile, number: int, entry: Mapping[str, Any]) -> Iterator[Event]:
    digest, count, session_id = hashlib.sha256(), 0, entry["id"]
    with file.open(f"{number}/events.jsonl") as log:
        # A longer line is cut here, and then reported as unterminated.
        while line := log.readline(MAX_LINE_BYTES):
            count += 1
            if not line.endswith(b"\n"):
                raise StorageError(
                    f"the archive {file.filename} is damaged: session {session_id!r} has an unterminated or overlong "
                    "line"
                )
            digest.update(line)
            try:
                event = loads_event(line, strict=False)
            except InvalidEventError as error:
                raise StorageError(
                    f"the archive {file.filename} is damaged: event {count} of session {session_id!r} is invalid ({error})",
                    session_id=session_id,
                ) from error
            yield event
    if digest.hexdigest() != entry["sha256"] or count != entry["events"]:
        raise StorageError(
            f"the archive {file.filename} is damaged: the events of session {entry['id']!r} do not match its manifest",
            session_id=entry["id"],
        )


def _blobs(file: ZipFile, number: int, entry: Mapping[str, Any]) -> Iterator[bytes]:
    for name in entry["blobs"]:
        yield _checked(file, f"{number}/blobs/{name}", name, f"blob {name} of session {entry['id']!r}", entry["id"])


def _outputs(file: ZipFile, number: int, entry: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, digest in entry["outputs"].items():
        about = f"output {name!r:.200} of session {entry['id']!r}"
        yield name, _checked(file, f"{number}/outputs/{name}", digest, about, entry["id"])


def _checked(file: ZipFile, name: str, digest: str, about: str, session_id: str) -> bytes:
    """The bytes of a member. Raises a `StorageError` that describes it as `about` if they do not match the digest."""
    member = file.getinfo(name)
    # zipfile returns no more than this declared size, so the check limits the memory too.
    if member.file_size > MAX_BLOB_BYTES:
        raise StorageError(f"{about} exceeds the limit for blobs", session_id=session_id)
    data = file.read(member)
    if hashlib.sha256(data).hexdigest() != digest:
        raise StorageError(
            f"the archive {file.filename} is damaged: {about} does not match its digest", session_id=session_id
        )
    return data
