"""Verify a stored session from its first byte to its last, report problems with their remedies, and salvage intact events.

The log is compared with every independent source: its summary and checkpoint files, its blobs, and its subagents' sessions.
Nothing here changes the verified session.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any
from zlib import crc32

from ...errors import LogCorruptError, OptionsError, SessionError, StorageError
from ...events import (
    CommandExpanded,
    ContextCleared,
    Event,
    FileKept,
    FilesRestored,
    FilesRestoring,
    LogFragment,
    LogSalvaged,
    PermissionDecision,
    RecordErasing,
    SessionCompacted,
    SessionForked,
    SessionRewound,
    SkillActivated,
    SystemInit,
    ToolResult,
    ToolUse,
    UnknownEvent,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.disk import SystemDisk
from ...ground.frozen import frozen
from ...ground.system import BINARY, NO_FOLLOW
from ...ground.words import plural
from ...providers.wrappers.abilities import MEDIA_KINDS
from ...sessions.authority import Authority, with_mac
from ...sessions.base import DIGEST_WITHIN, Remains, SessionStore
from ...sessions.core import new_session_id
from ...sessions.folds.view import SessionView
from ...sessions.log.blocks import line_blocks
from ...sessions.log.checkpoint_file import CHECKPOINT_NAME, Checkpoint
from ...sessions.log.damage import Fragment, as_written, fragments
from ...sessions.log.folder import LOG_NAME, META_NAME, SUMMARY_NAME, storage_errors
from ...sessions.log.scan import LogReader, Position, find_end
from ...sessions.log.summary_beside import LOST, SummaryBeside
from ...sessions.log.unsynced import marked_size
from ...sessions.seal import Seal
from ...sessions.store import FileSessionStore
from .depth import flattened
from .lifecycle import forked_metadata
from .places import places_of

_WRONG: Mapping[str, str] = {
    "checksum": "its bytes are not those that were written",
    "sequence": "it is not the next event: lines are missing, duplicated or moved",
    "json": "it is not an event",
    "hole": "there are zeros in its place",
    "durable-loss": "it is damaged although a later line records that it was safely on disk",
    "torn-tail": "it is unfinished, as a crash in the middle of a write leaves it",
    "unsynced": "the disk failed to sync the log, so everything from here on may be in memory only",
    "blob": "its bytes do not match the digest in its name",
    "missing": "the log refers to it and it is missing",
    "witness": "the log lacks events that were in it",
}
_CUT = "restore the log from a copy; without one, the next append continues after the remaining events"
IN_DOUBT = "The log was damaged after this call: it may or may not have run. Check before repeating it."

# Used instead of a call's id in the metadata of a workflow's inbox, and of the runs of its steps on a fleet.
WITHOUT_CALL = ("workflow.inbox", "workflow.run")


@frozen
class Problem:
    """One problem with a log or its record, located by `seq` and `offset` (in bytes), or by `blob`; `todo` is the remedy.

    `change` is how the log was altered, see `LogCorruptError`; `witness` is the source that contradicts the log. `detail`
    describes the problem more precisely than its kind does.
    """

    kind: str
    seq: int = 0
    offset: int = 0
    todo: str = ""
    blob: str | None = None
    change: str | None = None
    detail: str | None = None
    witness: str | None = None

    @property
    def is_harmless(self) -> bool:
        """Whether the problem results from a crash and the next run repairs it without losing anything acknowledged."""
        return self.kind in ("torn-tail", "unsynced")

    @property
    def text(self) -> str:
        """The problem as a sentence."""
        return self.detail or _WRONG[self.kind]

    def __str__(self) -> str:
        where = f"blob {self.blob}" if self.blob else f"event {self.seq} at byte {self.offset}"
        return f"{self.witness or where}: {self.text} ({self.kind}); {self.todo}"


@frozen
class SessionReport:
    """The result of a check: `events` good events occupy `good_bytes` of the log's `size`.

    `behind` counts the intact events after damage, `notes` are observations that are not problems. `foreign` are events
    that would grant something on resume but were not written by this installation: they count as history only.
    """

    session_id: str
    events: int
    good_bytes: int
    size: int
    problems: tuple[Problem, ...] = ()
    behind: int = 0
    notes: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the session can be resumed as it is."""
        return all(problem.is_harmless for problem in self.problems)

    @property
    def damage(self) -> str:
        """The problems as text."""
        return "; ".join(problem.text for problem in self.problems)


@frozen
class Salvage:
    """The result of a salvage: `session_id` is the new session, `events` the number of old events that it begins with.

    `kept_behind` of the `report.behind` events after the damage are at the new session's end, as `log.fragment` events.
    """

    session_id: str
    events: int
    dropped_bytes: int
    report: SessionReport
    kept_behind: int = 0


def subagent_sessions(store: FileSessionStore) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The metadata of subagents' sessions, by the parent's id and then by their own."""
    by_parent: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name in store.list_sessions():
        with suppress(SessionError):
            metadata = store.read_metadata(name)["metadata"]
            # Imported sessions may name calls that their transcripts do not contain.
            is_ours = "imported_from" not in metadata and "claude_session_id" not in metadata
            if "parent_tool_use_id" in metadata and is_ours:
                by_parent.setdefault(str(metadata.get("parent_session_id")), {})[name] = metadata
    return by_parent


def verify_session(
    store: SessionStore, session_id: str, *, subagents: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None
) -> SessionReport:
    """Verify the whole log and every blob, and compare the log with all other sources.

    If the store is not a `FileSessionStore`, it checks its bytes itself, and its events and blobs are only read. `subagents`
    is the result of `subagent_sessions`, for callers that verify many sessions in files. Raises `SessionNotFoundError`, and
    `StorageError` if the disk or the server cannot be read.
    """
    if not isinstance(store, FileSessionStore):
        report = _verify_remains(session_id, store.read_remains(session_id))
        return _with_foreign(store, report)
    if not store.session_exists(session_id) and session_id in store.list_lost():
        return _verify_lost(store, session_id)
    with _opened(store, session_id) as fd:
        # Read before the log: a run writes to the log first, so a source that is ahead of it proves that events are missing.
        witnesses = _Witnesses(store, session_id, subagents)
        return _with_foreign(store, witnesses.judge(_verify_log(fd, session_id, witnesses), fd))


def _with_foreign(store: SessionStore, report: SessionReport) -> SessionReport:
    events = store.iter_events(report.session_id, limit=report.events) if report.ok else ()
    foreign = foreign_authority(report.session_id, events, store.seal)
    return replace(report, foreign=tuple(event.seq or 0 for event in foreign))


class _Witnesses:
    """Independent sources about a log's events, and the objects that those events reference."""

    def __init__(
        self,
        store: FileSessionStore,
        session_id: str,
        subagents: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        folder, disk = store.session_dir(session_id), SystemDisk()
        summary, checkpoint = SummaryBeside(disk, folder).kept(), Checkpoint(disk, folder, store.seal).read()
        self.store, self.folder = store, folder
        self.places = {
            SUMMARY_NAME: summary.position if summary else None,
            CHECKPOINT_NAME: checkpoint[0] if checkpoint else None,
        }
        self.blobs = set(store.list_blobs(session_id))
        by_parent = subagent_sessions(store) if subagents is None else subagents
        self.children = by_parent.get(session_id, {})
        self.named_blobs: set[str] = set()
        self.calls: set[str] = set()

    def note(self, event: Event) -> None:
        if isinstance(event, ToolUse):
            self.calls.add(event.tool_use_id)
        self.named_blobs.update(_named_blobs(event))
        # Only a note: the metadata comes from the tool, so it cannot prove that a blob is missing.
        output = event.meta.get("blob") if isinstance(event, ToolResult) and event.meta else None
        if isinstance(output, str) and output in self.blobs:
            self.named_blobs.add(output)

    def judge(self, report: SessionReport, fd: int) -> SessionReport:
        """Return the report with all contradictions added. For a log that is already damaged, only blobs are checked."""
        problems, notes = list(report.problems), []
        if report.ok:
            problems += [*self._ends(report, fd), *self._calls(report)]
            torn = next((problem for problem in problems if problem.kind == "torn-tail"), None)
            summary = self.places[SUMMARY_NAME]
            if torn and torn.detail is None and summary and summary.seq == torn.seq:
                claim = f"{_WRONG['torn-tail']}, and {SUMMARY_NAME} records that it had been written completely"
                problems[problems.index(torn)] = replace(torn, detail=claim)
            for witness in sorted(os.listdir(self.store.session_dir(report.session_id))):
                if losing := re.fullmatch(rf"{re.escape(SUMMARY_NAME + LOST)}(\d+)-(\d+)", witness):
                    ended, had = map(int, losing.groups())
                    had_events = plural(had, "event")
                    what = f"the log ended after event {ended} when a writer opened it, and had contained {had_events}"
                    notes.append(f"{witness}: {what}; {_CUT}")
            if unnamed := len(self.blobs - self.named_blobs):
                belong = "blob belongs" if unnamed == 1 else "blobs belong"
                notes.append(f"{unnamed} {belong} to no event: a crash or lost events can cause this")
        there = self.store.list_blobs(report.session_id)
        for digest in there:
            try:
                self.store.read_blob(report.session_id, digest)
            except StorageError:
                todo = "the log is not affected; salvage omits the blob"
                problems.append(Problem("blob", 0, 0, todo, blob=digest))
        todo = "restore it from a copy of the session; the event that names it is intact"
        problems += [Problem("missing", 0, 0, todo, blob=name) for name in sorted(self.named_blobs.difference(there))]
        return replace(report, problems=tuple(problems), notes=tuple(notes))

    def _ends(self, report: SessionReport, fd: int) -> Iterator[Problem]:
        """Yield a problem for each other source (summary, checkpoint, blobs) that contradicts the log's length or bytes."""
        end = f"the log ends after event {report.events}, at byte {report.good_bytes}"
        for name, place in self.places.items():
            if place is None:
                continue
            if place.seq > report.events:
                # A single event torn by a crash is reported together with the torn line.
                if place.seq > report.events + 1 or report.good_bytes == report.size:
                    claim = f"it records {plural(place.seq, 'event')} up to byte {place.offset}"
                    detail = f"{claim}, and {end}: the log's end was cut off"
                    yield Problem("witness", report.events + 1, report.good_bytes, _CUT, detail=detail, witness=name)
            elif place.offset == report.size + 1 and _prefix_crc(fd, report.size, b"\n") == place.crc:
                todo = "nothing needs to be done: the next run writes it"
                detail = "the line end after it is missing"
                yield Problem("torn-tail", place.seq, report.size, todo, detail=detail)
            # The checksum is chained, so one comparison covers everything before that place.
            elif place.offset > report.good_bytes or _prefix_crc(fd, place.offset) != place.crc:
                detail = f"it was created from a log that differs from this one before event {place.seq}"
                yield Problem("witness", place.seq, place.offset, _CUT, detail=detail, witness=name)
        if self.blobs and not report.events:
            detail = f"found {plural(len(self.blobs), 'stored output')}, and no event in the log"
            yield Problem("witness", 1, 0, _CUT, detail=detail, witness="blobs")

    def _calls(self, report: SessionReport) -> Iterator[Problem]:
        """Yield a problem for each subagent's session that names a call which the log lacks."""
        for name, metadata in self.children.items():
            call = metadata.get("parent_tool_use_id")
            if call not in self.calls and call not in WITHOUT_CALL:
                detail = f"its metadata names call {call!r} as its start, but no event of the log is that call"
                seq, offset = report.events + 1, report.good_bytes
                yield Problem("witness", seq, offset, _CUT, detail=detail, witness=f"session {name}")


def _verify_lost(store: FileSessionStore, session_id: str) -> SessionReport:
    """Report on a session whose log is missing."""
    summary = SummaryBeside(SystemDisk(), store.root_dir / "sessions" / session_id).kept()
    claim = f"it records {plural(summary.position.seq, 'event')}" if summary else "it describes a session"
    detail = f"{claim}, and the log is missing: {LOG_NAME} was removed"
    todo = "restore the log from a copy: nothing here can be continued"
    witness = SUMMARY_NAME if summary else META_NAME
    return SessionReport(session_id, 0, 0, 0, (Problem("witness", 1, 0, todo, detail=detail, witness=witness),))


def _verify_log(fd: int, session_id: str, witnesses: _Witnesses) -> SessionReport:
    disk = SystemDisk()
    reader = LogReader(disk, fd, session_id)
    problems: list[Problem] = []
    behind = 0
    try:
        for event in reader.events():
            witnesses.note(event)
        good = reader.position
    except LogCorruptError as error:
        good = Position(error.offset, error.seq - 1)
        behind = sum(1 for _ in fragments(disk, fd, error.offset, good.seq))
        if error.change == "line ends":
            todo = "undoes that in a new session"
        else:
            intact = f"the {plural(good.seq, 'event')} before it" if good.seq else "none of the log"
            todo = f"makes a new session from what is intact: {intact}"
            todo += f", and with --keep-behind {plural(behind, 'event')} after it as records" if behind else ""
        todo = f"`openagentic-sdk sessions salvage {session_id}` {todo}"
        problems.append(Problem(error.kind, error.seq, error.offset, todo, change=error.change, detail=error.detail))
    size = disk.fstat(fd).st_size
    if not problems and marked_size(LOG_NAME, os.listdir(witnesses.folder)) is not None:
        end = find_end(disk, fd, session_id)
        todo = "nothing needs to be done: the next run puts it into a new file"
        problems.append(Problem("unsynced", end.dur + 1, end.durable_offset, todo))
    if all(problem.is_harmless for problem in problems) and good.offset < size:
        todo = "nothing needs to be done: the next run moves it aside and records that in the log"
        problems.append(Problem("torn-tail", good.seq + 1, good.offset, todo))
    return SessionReport(session_id, good.seq, good.offset, size, tuple(problems), behind)


def _prefix_crc(fd: int, length: int, behind: bytes = b"") -> int:
    """The checksum of the log's first `length` bytes followed by `behind`."""
    crc = 0
    for block in line_blocks(SystemDisk(), fd, 0):
        crc = crc32(block[:length], crc)
        length -= len(block)
        if length <= 0:
            break
    return crc32(behind, crc)


@contextmanager
def _opened(store: FileSessionStore, session_id: str) -> Iterator[int]:
    with storage_errors(session_id, "cannot be read"):
        disk = SystemDisk()
        fd = disk.open(str(store.session_dir(session_id) / LOG_NAME), os.O_RDONLY | BINARY | NO_FOLLOW)
        try:
            yield fd
        finally:
            disk.close(fd)


# --- salvage ---------------------------------------------------------------------------------------------------------


def salvage(
    store: SessionStore, session_id: str, *, target_id: str | None = None, keep_behind: bool = False
) -> Salvage:
    """Create a session from the intact beginning of a damaged one and its intact blobs; the old session is not changed.

    The new session's first event, `log.salvaged`, records this; the old log's events follow, shifted by one place. Line
    ends that an editor converted are first converted back. Calls left open by the damage end as `unknown`. With
    `keep_behind`, the intact events after the damage are appended as `log.fragment`, which is not part of any conversation.
    Raises `SessionNotFoundError`, `SessionExistsError` if `target_id` exists, and `OptionsError` for `keep_behind` if the
    store does not use files.
    """
    if not isinstance(store, FileSessionStore):
        if keep_behind:
            raise OptionsError("only session files show what follows damage: omit keep_behind (--keep-behind)")
        return _salvage_from_database(store, session_id, target_id)
    report = verify_session(store, session_id)
    with _opened(store, session_id) as fd, tempfile.TemporaryFile() as undone:
        again = report
        if any(problem.change == "line ends" for problem in report.problems):
            offset = 0
            for block in line_blocks(SystemDisk(), fd, 0):
                lines = block.split(b"\n")
                undone.write(b"\n".join([as_written(lines[0], offset), *(as_written(line, 1) for line in lines[1:])]))
                offset += len(block)
            undone.flush()
            fd = undone.fileno()
            again = _verify_log(fd, session_id, _Witnesses(store, session_id, {}))
        good, dropped_bytes = again.events, again.size - again.good_bytes
        kept_behind = again.behind if keep_behind else 0
        kept_fragments = islice(fragments(SystemDisk(), fd, again.good_bytes, good), kept_behind)
        new_id = target_id or new_session_id()
        before, now = Authority(session_id, store.seal), Authority(new_id, store.seal)

        def copied() -> Iterator[Event]:
            return islice(LogReader(SystemDisk(), fd, session_id).events(), good)

        first = LogSalvaged(session_id, good, report.damage, dropped_bytes, kept_behind)
        damaged = {problem.blob for problem in report.problems}
        digests = [digest for digest in store.list_blobs(session_id) if digest not in damaged]
        store.import_session(
            new_id,
            _salvaged(first, copied, kept_fragments, before, now),
            metadata=forked_metadata(store.read_metadata(session_id)["metadata"], session_id, good),
            blobs=(store.read_blob(session_id, digest) for digest in digests),
        )
    return Salvage(new_id, good, dropped_bytes, report, kept_behind)


def _salvage_from_database(store: SessionStore, session_id: str, target_id: str | None) -> Salvage:
    """Like `salvage`, for a store with its own byte format: the events up to the first damaged or missing one."""
    remains = store.read_remains(session_id)
    report = _verify_remains(session_id, remains)
    good, lost_blobs = report.events, {problem.blob for problem in report.problems}
    first = LogSalvaged(session_id, good, report.damage, 0, 0)
    new_id = target_id or new_session_id()
    before, now = Authority(session_id, store.seal), Authority(new_id, store.seal)
    store.import_session(
        new_id,
        _salvaged(first, lambda: islice(remains.iter_events(), good), (), before, now),
        metadata=forked_metadata(remains.metadata, session_id, good),
        blobs=(remains.read_blob(digest) for digest in remains.blobs if digest not in lost_blobs),
    )
    return Salvage(new_id, good, 0, report)


def _verify_remains(session_id: str, remains: Remains) -> SessionReport:
    """Read all of a session in a store with its own byte format; report its problems."""
    good, todo, blob_names = 0, "salvage saves what is left", dict[str, None]()
    problems = [Problem("witness", 1, 0, todo, detail=hole, witness="the server") for hole in remains.holes]
    try:
        for event in remains.iter_events():
            good = event.seq or good
            blob_names.update(dict.fromkeys(_named_blobs(event)))
    except LogCorruptError as error:
        detail = f"event {error.seq} is damaged or missing"
        problems.append(Problem(error.kind, error.seq, 0, todo, detail=detail))
    for digest in remains.blobs:
        try:
            remains.read_blob(digest)
        except StorageError:
            problems.append(Problem("blob", 0, 0, todo, blob=digest))
    problems += [Problem("missing", 0, 0, todo, blob=name) for name in blob_names if name not in remains.blobs]
    return SessionReport(session_id, good, 0, 0, tuple(problems))


def _named_blobs(event: Event) -> list[str]:
    """The digests of the blobs that an event references: a file's earlier content, a tool's output, attachments."""
    if isinstance(event, FileKept):
        return [event.sha256] if event.sha256 and DIGEST_WITHIN.fullmatch(event.sha256) else []
    if isinstance(event, ContextCleared):
        return [entry["sha256"] for entry in event.results.values() if isinstance(entry, Mapping) and "sha256" in entry]
    if not isinstance(event, ToolResult | UserMessage):
        return []
    output = event.output if isinstance(event, ToolResult) and isinstance(event.output, Mapping) else {}
    parts = [part for part in (output, *event.attachments) if isinstance(part, Mapping)]
    digests = [part.get("sha256") for part in parts if "size" in part and part.get("type") in (*MEDIA_KINDS, "other")]
    digests += [output.get("blob")] if output.get("truncated") is True else []
    return [digest for digest in digests if isinstance(digest, str)]


def _salvaged(
    first: LogSalvaged,
    copied: Callable[[], Iterable[Event]],
    kept_fragments: Iterable[Fragment],
    before: Authority,
    now: Authority,
) -> Iterator[Event]:
    """Yield the events of the new session: `log.salvaged`, the old events, those that close what is open, and fragments.

    Events that this installation wrote are signed again for their new place; no others are.
    """
    view, seq = SessionView(), 0

    def placed(event: Event, is_ours: bool) -> Event:
        nonlocal seq
        seq += 1
        (signed,) = now.sign([_numbered(event, seq)], seq - 1)
        signed = signed if is_ours else with_mac(signed, None)
        now.apply(signed)
        return signed

    yield placed(first, False)
    for event in flattened(copied()):  # all of them first: a fork's marker vouches for the events before it
        before.apply(event)
    for event in flattened(copied()):
        view.apply(event)
        yield placed(moved_by(event, 1), before.is_ours(event))
    yield placed(SessionForked(first.source_session_id, first.events), False)
    # Inner calls first: the result of the call that made them follows theirs, as in a run.
    for record in (*view.open_inner_calls(), *view.open_calls()):
        yield placed(
            ToolResult(
                record.use.tool_use_id,
                is_error=True,
                error_type="UnknownOutcome",
                error_message=IN_DOUBT,
                outcome="unknown",
                parent_tool_use_id=record.use.parent_tool_use_id if record.use.is_inside else None,
            ),
            False,
        )
    for fragment in kept_fragments:
        yield placed(LogFragment(fragment.seq, fragment.event, fragment.is_proved), False)


def moved_by(event: Event, places: int) -> Event:
    """The event with the log positions that it references moved by this number of places."""
    match event:
        case SessionCompacted():
            return replace(event, up_to_seq=event.up_to_seq + places)
        case SessionRewound() | FilesRestoring() | FilesRestored():
            return replace(event, to_seq=event.to_seq + places)
        case SystemInit() if event.messages_from_seq is not None:
            return replace(event, messages_from_seq=event.messages_from_seq + places)
        case RecordErasing():
            fields = [{"seq": erased_seq + places, "path": pointer} for erased_seq, pointer in places_of(event)]
            return replace(event, fields=fields)
    return event


def _numbered(event: Event, seq: int) -> Event:
    return UnknownEvent({**event.data, "seq": seq}) if isinstance(event, UnknownEvent) else replace(event, seq=seq)


def foreign_authority(session_id: str, events: Iterable[Event], seal: Seal) -> list[Event]:
    """The events of others that would grant something on resume if this installation had written them, in order."""
    authority = Authority(session_id, seal)
    lasting: list[Event] = []
    calls: dict[str, list[Event]] = {}  # the related events of each open call
    asked_for: dict[str, str | None] = {}
    for event in events:
        authority.apply(event)
        match event:
            case PermissionDecision() if event.allowed and event.details.get("remembered"):
                lasting.append(event)
            case SkillActivated() | CommandExpanded() if event.grants:
                lasting.append(event)
            case ToolUse():
                calls[event.tool_use_id] = [event]
            case ToolResult():
                calls.pop(event.tool_use_id, None)
            case UserQuestion():
                asked_for[event.question_id] = event.tool_use_id
            case UserAnswer() if (call_id := asked_for.get(event.question_id)) in calls and call_id is not None:
                calls[call_id].append(event)
    grants = [*lasting, *(event for belonging in calls.values() for event in belonging)]
    return sorted((event for event in grants if not authority.is_ours(event)), key=lambda event: event.seq or 0)
