"""Put files back as they were: what the calls of a session changed since one of its events, and undoing it.

Before a call changes a file for the first time in a run, what the file was is kept as a blob (`file.kept`), and results say
what was written. So the log knows what each file was at an event and what the session left in it; a file that is anything
else by now was changed by somebody else, and is not touched. Only what this installation kept is ever put back.

A restore is in the log before it begins (`files.restoring`) and after it (`files.restored`). What was interrupted in between
is finished first by the next one; each file is replaced whole, so beginning again changes nothing that was done.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, Literal

from ...errors import FilesChangedError, SessionError, StorageError, ToolError
from ...events import (
    Event,
    FileKept,
    FilesRestored,
    FilesRestoring,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
)
from ...ground.disk import is_within
from ...ground.files import change_lock, digest_file, file_status, remove_file, replace_file, sweep_unfinished
from ...ground.frozen import frozen, mutable
from ...sessions.authority import Authority
from ...sessions.base import SessionStore
from ...sessions.seal import Seal

# What to do about files that were changed by somebody else since: nothing at all, nothing to those, or the same to all.
Conflicts = Literal["refuse", "skip", "overwrite"]
Action = Literal["write", "delete", "keep", "refuse"]
UNKNOWN = "unknown"
# More subagents than one session starts; also what bounds how deep a log made by hand can nest them.
_MAX_SESSIONS = 400
# Calls that say what they changed, or change no files of the workspace.
_ACCOUNTED = (
    "Write", "Edit", "Task", "TodoWrite", "SkillActivate", "SkillDeactivate",
    "AskUserQuestion", "KillBash", "Code", "memory",
)  # fmt: skip


@mutable
class ChangedFile:
    """One file that a session changed since an event.

    `before` and `after` are digests: what it was at the event, and what the session left in it; None is no file, `UNKNOWN`
    what no event says; `last_kept` is what it was before the newest call that may have changed it. `mode` and `after_mode`
    are permissions, None when not known. `between` says that somebody else changed it between two runs. `problem` says why
    it cannot be put back, whatever stands there. The session has the blob.
    """

    path: str
    before: str | None = UNKNOWN
    mode: int | None = None
    after: str | None = UNKNOWN
    after_mode: int | None = None
    last_kept: str | None = UNKNOWN
    between: bool = False
    problem: str | None = None
    session_id: str = ""

    @property
    def left(self) -> str | None:
        """What the session left in it; what it was before the newest call, while no event says more."""
        return self.last_kept if self.after == UNKNOWN else self.after


@mutable
class FileChanges:
    """What a session and its subagents changed since an event, and the calls that may have changed more than was seen."""

    files: dict[str, ChangedFile] = field(default_factory=dict)
    uncovered: list[ToolUse] = field(default_factory=list)


@frozen
class PlannedFile:
    """What a restore would do to one file, and why not when `action` is `refuse`.

    `found` and `sha256` are the digests of what stands there and of what would, None for no file.
    """

    path: str
    action: Action
    found: str | None = None
    sha256: str | None = None
    mode: int | None = None
    reason: str = ""
    session_id: str = ""


@frozen
class RestorePlan:
    """What a restore would do, file by file, and the calls whose changes it knows nothing about."""

    files: Sequence[PlannedFile]
    uncovered: Sequence[ToolUse]


def file_changes(
    store: SessionStore, session_id: str, *, after_seq: int = 0, seal: Seal | None = None, roots: Sequence[str] = ()
) -> FileChanges:
    """What the session, and the subagents that it started since, changed after event `after_seq`.

    `roots` are folders that belong to the workspace besides the one that the session ran in.
    """
    changes = FileChanges()
    _UndoFold(store, seal or Seal(), changes, [os.path.realpath(root) for root in roots]).add(session_id, after_seq)
    return changes


class _UndoFold:
    """`file_changes` at work: `left` is what the calls so far left in each file, also those up to the event."""

    def __init__(self, store: SessionStore, seal: Seal, changes: FileChanges, roots: list[str]) -> None:
        self._store = store
        self._seal = seal
        self._changes = changes
        self._roots = roots
        self._left: dict[str, str | None] = {}
        # Of each file that a call is known to have been about to change: why it is not put back all the same, else None.
        self._problems: dict[str, str | None] = {}
        self._seen: list[str] = []

    def add(self, session_id: str, after_seq: int) -> None:
        if session_id in self._seen or len(self._seen) >= _MAX_SESSIONS:
            return  # a session is part of one turn only, and of none that it began itself
        self._seen.append(session_id)
        authority = Authority(session_id, self._seal)
        for event in self._store.iter_events(session_id):  # a fork's marker, which vouches for them, stands behind them
            authority.apply(event)
        calls: dict[str, ToolUse] = {}
        unsafe: set[str] = set()
        journal: Sequence[Mapping[str, Any]] = ()
        for event in self._store.iter_events(session_id):
            counts = (event.seq or 0) > after_seq
            match event:
                case SystemInit() if authority.is_ours(event):
                    self._roots.append(os.path.realpath(event.cwd))
                case ToolUse():
                    calls[event.tool_use_id] = event
                case ToolStarted() if event.effect != "read" and event.tool_use_id in calls:
                    unsafe.add(event.tool_use_id)
                    if counts and event.name not in _ACCOUNTED:
                        self._changes.uncovered.append(calls[event.tool_use_id])
                case FileKept():
                    self._keep(event, session_id, counts, is_ours=authority.is_ours(event))
                case ToolResult() if event.tool_use_id in unsafe:
                    unsafe.remove(event.tool_use_id)
                    self._finish(session_id, counts, event, calls[event.tool_use_id])
                case FilesRestoring() if authority.is_ours(event):
                    journal = event.files
                    for file in journal:
                        self._note(session_id, counts, file["path"], UNKNOWN)
                case FilesRestored():
                    for file in journal:
                        digest = file["sha256"] if file["path"] in event.paths else file["found"]
                        self._note(session_id, counts, file["path"], digest, file["mode"])
                case SubagentStarted() if counts and self._store.session_exists(event.child_session_id):
                    self.add(event.child_session_id, 0)

    def _keep(self, event: FileKept, session_id: str, counts: bool, *, is_ours: bool) -> None:
        problem = event.problem
        if not is_ours:
            problem = "it was kept by another installation, or the log was changed since"
        elif not any(is_within(event.path, root) for root in self._roots):
            problem = "it lies outside of the workspace"
        self._problems[event.path] = problem
        if not counts:
            return
        known = self._changes.files.get(event.path)
        if known is None:
            known = ChangedFile(event.path, event.sha256, event.mode, problem=problem, session_id=session_id)
            self._changes.files[event.path] = known
        else:
            known.between |= event.sha256 != known.left
        known.after, known.after_mode, known.last_kept = UNKNOWN, event.mode, event.sha256

    def _finish(self, session_id: str, counts: bool, event: ToolResult, call: ToolUse) -> None:
        """Take down what a call says that it wrote: `files` is path to digest, `changed` path to digest and mode or null."""
        meta = event.meta or {}
        written: dict[str, tuple[str | None, int | None]] = {}
        if isinstance(files := meta.get("files"), dict):
            written = {path: (str(digest), None) for path, digest in files.items()}
        if isinstance(changed := meta.get("changed"), dict):
            for path, what in changed.items():
                match what:
                    case [str() | None as left, int() as bits]:
                        written[path] = left, bits
                    case _:
                        written[path] = None, None
            self._changes.uncovered[:] = [use for use in self._changes.uncovered if use is not call]
        for path, (digest, mode) in written.items():
            self._note(session_id, counts, path, digest, mode)

    def _note(self, session_id: str, counts: bool, path: str, digest: str | None, mode: int | None = None) -> None:
        """The session has left this in a file."""
        if counts:
            # Only what was kept is put back, whatever a log says about other files.
            problem = self._problems.get(path, "it was not kept before it was changed")
            new = ChangedFile(path, self._left.get(path, UNKNOWN), problem=problem, session_id=session_id)
            known = self._changes.files.setdefault(path, new)
            known.after, known.after_mode = digest, mode or known.after_mode
        self._left[path] = digest


def plan_restore(
    store: SessionStore,
    session_id: str,
    *,
    to_seq: int,
    conflicts: Conflicts = "refuse",
    roots: Sequence[str] = (),
    seal: Seal | None = None,
) -> RestorePlan:
    """What it would take to have each file as it was at event `to_seq`. Only reads."""
    changes = file_changes(store, session_id, after_seq=to_seq, seal=seal, roots=roots)
    files = [_plan_file(store, known, conflicts) for _, known in sorted(changes.files.items())]
    return RestorePlan(files, changes.uncovered)


def _plan_file(store: SessionStore, known: ChangedFile, conflicts: Conflicts) -> PlannedFile:
    try:
        status = file_status(known.path)
        found = None if status is None else digest_file(known.path)
    except (ToolError, OSError, ValueError) as error:  # a log may name what no file system can hold
        return PlannedFile(known.path, "refuse", reason=str(error))
    mode = None if status is None else stat.S_IMODE(status.st_mode)
    # Permissions that the session left alone stay as they are now.
    wanted_mode = known.mode if mode is None or known.after_mode != known.mode else None
    reason = known.problem or _not_kept(store, known)
    if reason is None and found == known.before and wanted_mode in (None, mode):
        return PlannedFile(known.path, "keep", found, known.before)
    if reason is None and conflicts != "overwrite":
        reason = _conflict(known, found)
        if reason is None and wanted_mode is not None and mode not in (None, wanted_mode, known.after_mode):
            reason = "something else changed its permissions since"
    if reason is not None:
        return PlannedFile(known.path, "refuse", found, known.before, reason=reason)
    action: Action = "delete" if known.before is None else "write"
    return PlannedFile(known.path, action, found, known.before, wanted_mode, session_id=known.session_id)


def _not_kept(store: SessionStore, known: ChangedFile) -> str | None:
    if known.before is None:
        return None
    if known.before != UNKNOWN:  # that is: no event says what it was
        with suppress(StorageError):
            store.read_blob(known.session_id, known.before)
            return None
    return "what it was at this event is not kept: go back to the start of a turn"


def _conflict(known: ChangedFile, found: str | None) -> str | None:
    if known.between:
        return "something else changed it between the turns that are taken back"
    if found == known.left:
        return None
    if known.after == UNKNOWN:
        return "a call that did not end may have changed it, and it is not as it was before"
    return "something else deleted it since" if found is None else "something else changed it since"


def restore_files(
    store: SessionStore,
    session_id: str,
    *,
    to_seq: int,
    conflicts: Conflicts = "refuse",
    roots: Sequence[str] = (),
    seal: Seal | None = None,
    tail: Callable[[], Sequence[Event]] = tuple,
) -> FilesRestored:
    """Put the files that the session changed back as they were at event `to_seq`; returns the event that says so.

    Finishes an interrupted restore first. What `tail` makes is recorded with the event. Raises `FilesChangedError`
    when a file cannot be put back and `conflicts` is "refuse", `SessionLockedError` while a run goes on; then nothing was
    changed.
    """
    seal = seal or Seal()
    with store.open_writer(session_id) as writer:
        authority = Authority(session_id, seal)
        journal: FilesRestoring | None = None
        for event in store.iter_events(session_id):
            authority.apply(event)
            if isinstance(event, FilesRestoring) and authority.is_ours(event):
                journal = event
            elif isinstance(event, FilesRestored | SystemInit):
                journal = None  # done, or too late: the session went on

        def record(*events: Event) -> list[Event]:
            stored = writer.append(authority.sign(events, writer.last_seq))
            for event in stored:
                authority.apply(event, made_here=True)
            return stored

        if journal is not None:
            for file in journal.files:
                sweep_unfinished(file["path"])
            record(_put_back(store, journal))
        plan = plan_restore(store, session_id, to_seq=to_seq, conflicts=conflicts, roots=roots, seal=seal)
        refused = {file.path: file.reason for file in plan.files if file.action == "refuse"}
        if refused and conflicts == "refuse":
            raise FilesChangedError(session_id, refused)
        wanted = [file for file in plan.files if file.action in ("write", "delete")]
        names = ("path", "found", "sha256", "mode", "session_id")
        journal = FilesRestoring(to_seq, [{name: getattr(file, name) for name in names} for file in wanted])
        if wanted:
            record(journal)
        done = _put_back(store, journal)
        done = FilesRestored(to_seq, done.paths, {**refused, **done.failed})
        stored = record(done, *tail())[0]
        assert isinstance(stored, FilesRestored)
        return stored


def _put_back(store: SessionStore, journal: FilesRestoring) -> FilesRestored:
    """Do what a journal says, or what is left of it: a file that is neither as found nor as wanted is not touched."""
    paths: list[str] = []
    failed: dict[str, str] = {}
    for file in journal.files:
        path, wanted, mode = file["path"], file["sha256"], file["mode"]
        try:
            with change_lock(path):
                status = file_status(path)
                now = None if status is None else digest_file(path)
                if now not in (file["found"], wanted):
                    raise ToolError("something else changed it meanwhile")
                if wanted is None and status is not None:
                    remove_file(path, status)
                elif wanted is not None and (
                    now != wanted or (mode is not None and status and stat.S_IMODE(status.st_mode) != mode)
                ):
                    replace_file(path, store.read_blob(file["session_id"], wanted), status, mode)
            paths.append(path)
        except (ToolError, OSError, SessionError) as error:
            failed[path] = str(error)
    return FilesRestored(journal.to_seq, paths, failed)
