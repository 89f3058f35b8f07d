"""Restore files: determine what a session's calls changed since one of its events, and undo it.

Before a call first changes a file in a run, the file's content is stored as a blob (`file.kept`), and results record what
was written. The log therefore determines each file's content at an event and after the session's last write; a file with
any other content was changed by someone else and is not touched. Only content that this installation stored is ever
restored.

The log records a restore before it begins (`files.restoring`) and after it (`files.restored`). The next restore first
finishes an interrupted one; each file is replaced atomically, so repeating a restore is harmless.
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

# How to treat files that someone else has changed since: restore nothing, skip these files, or overwrite them.
Conflicts = Literal["refuse", "skip", "overwrite"]
RestoreAction = Literal["write", "delete", "keep", "refuse"]
UNKNOWN = "unknown"
# More subagents than one session starts; also limits how deeply a forged log can nest them.
_MAX_SESSIONS = 400
# Tools that report their changes, or change no files of the workspace.
_ACCOUNTED = (
    "Write", "Edit", "Task", "TodoWrite", "SkillActivate", "SkillDeactivate",
    "AskUserQuestion", "KillBash", "Code", "memory",
)  # fmt: skip


@mutable
class ChangedFile:
    """One file that a session changed since an event.

    `before` and `after` are digests of its content at the event and after the session's last write; None means no file, and
    `UNKNOWN` means that no event records it. `last_kept` is its content before the newest call that may have changed it.
    `mode` and `after_mode` are permissions, None if unknown. `between` is true if someone else changed it between two runs.
    `problem` is the reason why it can never be restored, whatever its present content; None if it can. The blob of `before`
    is in session `session_id`.
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
        """The digest of its content after the session's last write, or before the newest call if no event records more."""
        return self.last_kept if self.after == UNKNOWN else self.after


@mutable
class FileChanges:
    """The files that a session and its subagents changed since an event, and calls with changes that are not recorded."""

    files: dict[str, ChangedFile] = field(default_factory=dict)
    uncovered: list[ToolUse] = field(default_factory=list)


@frozen
class PlannedFile:
    """The planned action for one file, and the reason if `action` is `refuse`.

    `found` and `sha256` are the digests of its present and its restored content, None for no file. `mode` are the
    permissions to set, None to leave them.
    """

    path: str
    action: RestoreAction
    found: str | None = None
    sha256: str | None = None
    mode: int | None = None
    reason: str = ""
    session_id: str = ""


@frozen
class RestorePlan:
    """The planned actions file by file, and the calls whose changes are not recorded."""

    files: Sequence[PlannedFile]
    uncovered: Sequence[ToolUse]


def file_changes(
    store: SessionStore, session_id: str, *, after_seq: int = 0, seal: Seal | None = None, roots: Sequence[str] = ()
) -> FileChanges:
    """The files that the session, and the subagents that it started since, changed after event `after_seq`.

    `roots` are workspace folders in addition to the session's working directory.
    """
    changes = FileChanges()
    _UndoFold(store, seal or Seal(), changes, [os.path.realpath(root) for root in roots]).add(session_id, after_seq)
    return changes


class _UndoFold:
    """The fold behind `file_changes`: `_left` is each file's content after the calls so far, from the start of the log."""

    def __init__(self, store: SessionStore, seal: Seal, changes: FileChanges, roots: list[str]) -> None:
        self._store = store
        self._seal = seal
        self._changes = changes
        self._roots = roots
        self._left: dict[str, str | None] = {}
        # For each file that a call was about to change: why it cannot be restored, None if it can.
        self._problems: dict[str, str | None] = {}
        self._seen: list[str] = []

    def add(self, session_id: str, after_seq: int) -> None:
        if session_id in self._seen or len(self._seen) >= _MAX_SESSIONS:
            return  # a session is counted once; a forged log may name it as its own subagent
        self._seen.append(session_id)
        authority = Authority(session_id, self._seal)
        for event in self._store.iter_events(session_id):  # a fork's marker vouches for the events before it
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
            problem = "it was kept by another installation, or the log has been changed since"
        elif not any(is_within(event.path, root) for root in self._roots):
            problem = "it is outside the workspace"
        self._problems[event.path] = problem
        if not counts:
            return
        file = self._changes.files.get(event.path)
        if file is None:
            file = ChangedFile(event.path, event.sha256, event.mode, problem=problem, session_id=session_id)
            self._changes.files[event.path] = file
        else:
            file.between |= event.sha256 != file.left
        file.after, file.after_mode, file.last_kept = UNKNOWN, event.mode, event.sha256

    def _finish(self, session_id: str, counts: bool, event: ToolResult, call: ToolUse) -> None:
        """Record the writes that a call reports: `files` maps paths to digests, `changed` to digest and mode, or null."""
        meta = event.meta or {}
        writes: dict[str, tuple[str | None, int | None]] = {}
        if isinstance(files := meta.get("files"), dict):
            writes = {path: (str(digest), None) for path, digest in files.items()}
        if isinstance(changed := meta.get("changed"), dict):
            for path, what in changed.items():
                match what:
                    case [str() | None as content_digest, int() as bits]:
                        writes[path] = content_digest, bits
                    case _:
                        writes[path] = None, None
            self._changes.uncovered[:] = [use for use in self._changes.uncovered if use is not call]
        for path, (digest, mode) in writes.items():
            self._note(session_id, counts, path, digest, mode)

    def _note(self, session_id: str, counts: bool, path: str, digest: str | None, mode: int | None = None) -> None:
        """Record the content that the session left in a file."""
        if counts:
            # Only stored content is restored, whatever a log claims about other files.
            problem = self._problems.get(path, "it was not kept before it was changed")
            new = ChangedFile(path, self._left.get(path, UNKNOWN), problem=problem, session_id=session_id)
            file = self._changes.files.setdefault(path, new)
            file.after, file.after_mode = digest, mode or file.after_mode
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
    """Plan the actions that restore each file to its content at event `to_seq`. Read-only."""
    changes = file_changes(store, session_id, after_seq=to_seq, seal=seal, roots=roots)
    files = [_plan_file(store, file, conflicts) for _, file in sorted(changes.files.items())]
    return RestorePlan(files, changes.uncovered)


def _plan_file(store: SessionStore, file: ChangedFile, conflicts: Conflicts) -> PlannedFile:
    try:
        status = file_status(file.path)
        current = None if status is None else digest_file(file.path)
    except (ToolError, OSError, ValueError) as error:  # a log may contain paths that no file system allows
        return PlannedFile(file.path, "refuse", reason=str(error))
    mode = None if status is None else stat.S_IMODE(status.st_mode)
    # Permissions that the session did not change keep their present value.
    wanted_mode = file.mode if mode is None or file.after_mode != file.mode else None
    reason = file.problem or _missing_copy(store, file)
    if reason is None and current == file.before and wanted_mode in (None, mode):
        return PlannedFile(file.path, "keep", current, file.before)
    if reason is None and conflicts != "overwrite":
        reason = _conflict(file, current)
        if reason is None and wanted_mode is not None and mode not in (None, wanted_mode, file.after_mode):
            reason = "something else has changed its permissions since"
    if reason is not None:
        return PlannedFile(file.path, "refuse", current, file.before, reason=reason)
    action: RestoreAction = "delete" if file.before is None else "write"
    return PlannedFile(file.path, action, current, file.before, wanted_mode, session_id=file.session_id)


def _missing_copy(store: SessionStore, file: ChangedFile) -> str | None:
    if file.before is None:
        return None
    if file.before != UNKNOWN:  # no event records its content
        with suppress(StorageError):
            store.read_blob(file.session_id, file.before)
            return None
    return "its state at this event was not kept: go back to the start of a turn"


def _conflict(file: ChangedFile, current: str | None) -> str | None:
    if file.between:
        return "something else changed it between the turns to be undone"
    if current == file.left:
        return None
    if file.after == UNKNOWN:
        return "a call that did not end may have changed it, and it differs from its earlier state"
    return "something else has deleted it since" if current is None else "something else has changed it since"


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
    """Restore files that the session changed to their content at event `to_seq`; return the event that records it.

    Finishes an interrupted restore first. The events that `tail` returns are recorded in the same batch. Raises
    `FilesChangedError` if a file cannot be restored and `conflicts` is "refuse", and `SessionLockedError` while a run is
    active; in each case this restore changed nothing.
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
                journal = None  # already done, or superseded: the session continued

        def record(*events: Event) -> list[Event]:
            stored_events = writer.append(authority.sign(events, writer.last_seq))
            for event in stored_events:
                authority.apply(event, made_here=True)
            return stored_events

        if journal is not None:
            for file in journal.files:
                # A restore that was killed while writing leaves a partial file beside its target.
                sweep_unfinished(file["path"])
            record(_carry_out(store, journal))
        plan = plan_restore(store, session_id, to_seq=to_seq, conflicts=conflicts, roots=roots, seal=seal)
        refused = {file.path: file.reason for file in plan.files if file.action == "refuse"}
        if refused and conflicts == "refuse":
            raise FilesChangedError(session_id, refused)
        files = [file for file in plan.files if file.action in ("write", "delete")]
        names = ("path", "found", "sha256", "mode", "session_id")
        journal = FilesRestoring(to_seq, [{name: getattr(file, name) for name in names} for file in files])
        if files:
            record(journal)
        done = _carry_out(store, journal)
        done = FilesRestored(to_seq, done.paths, {**refused, **done.failed})
        stored_event = record(done, *tail())[0]
        assert isinstance(stored_event, FilesRestored)
        return stored_event


def _carry_out(store: SessionStore, journal: FilesRestoring) -> FilesRestored:
    """Carry out the rest of a journal; return the event that records the outcome.

    A file whose content is neither the one found before nor the one to restore is left alone.
    """
    paths: list[str] = []
    failed: dict[str, str] = {}
    for file in journal.files:
        path, digest, mode = file["path"], file["sha256"], file["mode"]
        try:
            with change_lock(path):
                status = file_status(path)
                now = None if status is None else digest_file(path)
                if now not in (file["found"], digest):
                    raise ToolError("something else has changed it meanwhile")
                if digest is None and status is not None:
                    remove_file(path, status)
                elif digest is not None and (
                    now != digest or (mode is not None and status and stat.S_IMODE(status.st_mode) != mode)
                ):
                    replace_file(path, store.read_blob(file["session_id"], digest), status, mode)
            paths.append(path)
        except (ToolError, OSError, SessionError) as error:
            failed[path] = str(error)
    return FilesRestored(journal.to_seq, paths, failed)
