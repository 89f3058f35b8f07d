"""Adapt any store of this package to the Claude Agent SDK's `SessionStore` protocol of six async methods, without that SDK.

Each key (`project_key`, `session_id`, `subpath`) is a session and each entry one event of it, verbatim. The last event of a
batch also contains the time and the summary after it, so both appear together with the entries or not at all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import datetime
from typing import Any, TypeVar

from ...errors import ConcurrencyError, InvalidEventError, SessionExistsError, SessionLockedError, SessionNotFoundError
from ...events import Event, UnknownEvent
from ...ground.clock import Clock, SystemClock
from ...ground.frozen import mutable
from ...ground.patterns import regex
from ...serialization import dumps_fields, dumps_json
from ...sessions.base import SessionStore, windows_from_end
from .in_turn import InTurn

T = TypeVar("T")
TranscriptKey = Mapping[str, Any]
TranscriptEntry = dict[str, Any]
FoldSummary = Callable[[dict[str, Any] | None, TranscriptKey, Sequence[TranscriptEntry]], dict[str, Any]]

ENTRY_TYPE = "claude.entry"
MAX_PROMPT_CHARS = 200
RETRY_S = 0.002


@mutable
class _LogState:
    """The state of a log as last read, so that an append reads only newer events.

    `summary` is the summary of the last complete batch; `unsummarised` are later entries, of a batch that a crash cut short.
    """

    created_at: float
    last_seq: int = 0
    uuids: set[str] = field(default_factory=set)
    mtime: int = 0
    summary: dict[str, Any] | None = None
    unsummarised: list[TranscriptEntry] = field(default_factory=list)


class ClaudeSessionStore:
    """An adapter from a store to the protocol behind `ClaudeAgentOptions(session_store=...)`.

    `fold` is that SDK's own `fold_session_summary`; without it, summaries are folded by the published rules. Calls run in
    threads, under asyncio and trio, one after the other in the order in which they were made; a cancelled append still runs.
    """

    def __init__(self, store: SessionStore, *, fold: FoldSummary | None = None, clock: Clock | None = None) -> None:
        self._store = store
        self._fold = fold or fold_session_summary
        self._clock = clock or SystemClock()
        self._log_states: dict[str, _LogState] = {}
        self._newest = 0
        self._turns = InTurn()

    async def append(self, key: TranscriptKey, entries: Sequence[TranscriptEntry]) -> None:
        """Append entries, except those whose `uuid` is already stored.

        Raises `InvalidEventError` for an invalid one, appending nothing.
        """
        await self._off_loop(lambda: self._append(key, list(entries)))

    async def load(self, key: TranscriptKey) -> list[TranscriptEntry] | None:
        """Return all entries in order, None if nothing was ever written."""
        return await self._off_loop(lambda: self._load(key))

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """Return `{"session_id", "mtime"}` of each main transcript of the project, newest first."""
        rows = await self._off_loop(lambda: self._rows(project_key))
        return [{"session_id": row["session_id"], "mtime": row["mtime"]} for row in rows]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """Return `{"session_id", "mtime", "data"}` of each main transcript of the project; no transcript is loaded."""
        rows = await self._off_loop(lambda: self._rows(project_key))
        return [{"session_id": row["session_id"], "mtime": row["mtime"], "data": row["summary"]} for row in rows]

    async def delete(self, key: TranscriptKey) -> None:
        """Delete a transcript; deleting a main key deletes its subkeys. A missing key is not an error."""
        await self._off_loop(lambda: self._delete(key))

    async def list_subkeys(self, key: TranscriptKey) -> list[str]:
        """Return the subpaths of the session that have entries."""
        return await self._off_loop(lambda: self._subkeys(key))

    def close(self) -> None:
        """Wait for pending operations; the underlying store stays open."""
        self._turns.wait()

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return await self._turns.call("", work)

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _append(self, key: TranscriptKey, entries: list[TranscriptEntry]) -> None:
        session_id = session_id_of(key)
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
                raise InvalidEventError(f"an entry must be an object with a string `type`, not {entry!r:.100}")
            dumps_fields(UnknownEvent({"type": ENTRY_TYPE, "entry": entry}))
        if not entries:
            return
        while True:
            with suppress(SessionExistsError):
                self._store.create_session(session_id=session_id, metadata=_metadata(key))
            try:
                log = self._catch_up(session_id)
                fresh, uuids = [], set(log.uuids)
                for entry in entries:
                    uuid = _uuid(entry)
                    if not uuid or not uuids.issuperset(uuid):
                        fresh.append(entry)
                    uuids.update(uuid)
                if not fresh:
                    return
                # At millisecond resolution two appends could share a time, and the later one must sort later.
                mtime = self._newest = max(int(self._clock.now() * 1000), log.mtime + 1, self._newest + 1)
                previous = None if log.summary is None else {**log.summary, "mtime": log.mtime}
                summary = None if key.get("subpath") else self._fold(previous, key, [*log.unsummarised, *fresh])
                events = [UnknownEvent({"type": ENTRY_TYPE, "entry": entry}) for entry in fresh[:-1]]
                last = {"type": ENTRY_TYPE, "entry": fresh[-1], "session_id": key["session_id"], "mtime": mtime}
                self._store.append_events(
                    session_id, [*events, UnknownEvent({**last, "summary": summary})], expected_seq=log.last_seq
                )
                return
            except (ConcurrencyError, SessionLockedError, SessionNotFoundError):
                # Another process appended first, is appending, or deleted the session: read the log's new events, try again.
                time.sleep(RETRY_S)

    def _catch_up(self, session_id: str) -> _LogState:
        created_at = self._store.read_metadata(session_id)["created_at"]
        log = self._log_states.get(session_id)
        if log is None or log.created_at != created_at:
            log = self._log_states[session_id] = _LogState(created_at)
        for event in self._store.iter_events(session_id, after_seq=log.last_seq):
            # A title set through our own API is not an entry, but its `seq` counts.
            log.last_seq = event.seq or log.last_seq
            for data in _entry_events([event]):
                log.uuids.update(_uuid(data["entry"]))
                log.unsummarised.append(data["entry"])
                if "mtime" in data:
                    log.mtime, log.summary = data["mtime"], data.get("summary")
                    log.unsummarised.clear()
        return log

    def _load(self, key: TranscriptKey) -> list[TranscriptEntry] | None:
        try:
            events = self._store.iter_events(session_id_of(key))
            return [data["entry"] for data in _entry_events(events)] or None
        except SessionNotFoundError:
            return None

    def _rows(self, project_key: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for summary in self._store.list_session_summaries(cwd=_project(project_key)):
            last = self._last_whole_batch(summary.id, summary.events)
            if last is not None:
                stored_summary = last["summary"]
                data = stored_summary.get("data") if isinstance(stored_summary, Mapping) else None
                fields = dict(data) if isinstance(data, Mapping) else {}
                # Two processes may have written in the same millisecond: the store has the order.
                mtime = min([last["mtime"], *(row["mtime"] - 1 for row in rows[-1:])])
                rows.append({"session_id": last["session_id"], "mtime": mtime, "summary": fields})
        return rows

    def _last_whole_batch(self, session_id: str, events: int) -> Mapping[str, Any] | None:
        """The data of the last event that contains a summary, nearly always the log's last; None if no event has one."""
        for batch in windows_from_end(self._store, session_id, events, 1):
            whole = [data for data in _entry_events(batch) if "mtime" in data]
            if whole:
                return whole[-1]
        return None

    def _delete(self, key: TranscriptKey) -> None:
        main = session_id_of(key)
        children = [] if key.get("subpath") else self._store.list_children(main)
        for session_id in (*children, main):
            self._log_states.pop(session_id, None)
            with suppress(SessionNotFoundError):
                self._store.delete_session(session_id)

    def _subkeys(self, key: TranscriptKey) -> list[str]:
        main = session_id_of({"project_key": key["project_key"], "session_id": key["session_id"]})
        children = [name for name in self._store.list_children(main) if self._store.last_seq(name)]
        return [self._store.read_metadata(name)["metadata"]["subpath"] for name in children]


def session_id_of(key: TranscriptKey) -> str:
    """The session id for a key. Raises `ValueError` for a key that the protocol does not allow."""
    parts = [key["project_key"], key["session_id"]] + ([key["subpath"]] if "subpath" in key else [])
    if not all(isinstance(part, str) for part in parts) or parts[2:] == [""]:
        raise ValueError(f"key {dict(key)!r} is invalid: project_key, session_id and subpath must be non-empty strings")
    return "claude-" + hashlib.sha256(dumps_json(parts).encode("ascii")).hexdigest()[:40]


def _project(project_key: str) -> str:
    return f"claude:{project_key}"


def _metadata(key: TranscriptKey) -> dict[str, Any]:
    """The metadata of a key's session. A subpath makes it a child, so that lists omit it and the main key finds it."""
    metadata = {"cwd": _project(key["project_key"]), "claude_session_id": key["session_id"]}
    if "subpath" not in key:
        return metadata
    main = session_id_of({"project_key": key["project_key"], "session_id": key["session_id"]})
    return {**metadata, "subpath": key["subpath"], "parent_session_id": main, "parent_tool_use_id": key["subpath"]}


def _entry_events(events: Iterable[Event]) -> Iterable[Mapping[str, Any]]:
    return (event.data for event in events if isinstance(event, UnknownEvent) and event.type == ENTRY_TYPE)


def _uuid(entry: TranscriptEntry) -> list[str]:
    uuid = entry.get("uuid")
    return [uuid] if isinstance(uuid, str) else []


# --- summaries by the protocol's published rules ---------------------------------------------------------------------

_LAST_WINS = {
    "customTitle": "custom_title",
    "aiTitle": "ai_title",
    "lastPrompt": "last_prompt",
    "summary": "summary_hint",
    "gitBranch": "git_branch",
}


_COMMAND = regex(r"<command-name>(.*?)</command-name>")
# Claude Code's own list of sessions omits these: output of local commands and hooks, ticks, interruptions, IDE blocks that
# are the whole text. Any other text that begins with "<" was written by a person.
_NOT_BY_A_PERSON = regex(
    r"<local-command-stdout>|<session-start-hook>|<tick>|<goal>|\[Request interrupted by user[^\]]*\]"
    r"|<ide_opened_file>.*</ide_opened_file>$|<ide_selection>.*</ide_selection>$"
)


def fold_session_summary(
    previous: Mapping[str, Any] | None, key: TranscriptKey, entries: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Fold the entries into the summary `{"session_id", "mtime", "data"}`. Pure: the caller sets `mtime`."""
    data = dict(previous["data"]) if previous is not None else {}
    for entry in entries:
        data.setdefault("is_sidechain", entry.get("isSidechain") is True)
        if "created_at" not in data:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                data["created_at"] = int(datetime.fromisoformat(entry["timestamp"]).timestamp() * 1000)
        if not data.get("cwd") and isinstance(entry.get("cwd"), str) and entry["cwd"]:
            data["cwd"] = entry["cwd"]
        for source, target in _LAST_WINS.items():
            if isinstance(entry.get(source), str):
                data[target] = entry[source]
        if entry.get("type") == "tag":
            data.pop("tag", None)
            if isinstance(entry.get("tag"), str) and entry["tag"]:
                data["tag"] = entry["tag"]
        if entry.get("type") == "user" and not data.get("first_prompt_locked"):
            _fold_prompt(data, entry)
    mtime = previous["mtime"] if previous is not None else 0
    return {"session_id": key["session_id"], "mtime": mtime, "data": data}


def _fold_prompt(data: dict[str, Any], entry: Mapping[str, Any]) -> None:
    """Add the first text that a person wrote in this entry, if any.

    A slash command counts only until such a text is found.
    """
    if entry.get("isMeta") is True or entry.get("isCompactSummary") is True:
        return
    message = entry.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    if any(block.get("type") == "tool_result" for block in blocks):
        return
    texts = [block.get("text") for block in blocks if block.get("type") == "text"] or [content]
    for text in texts:
        line = text.replace("\n", " ").strip() if isinstance(text, str) else ""
        command = _COMMAND.search(line)
        if command:
            data["command_fallback"] = data.get("command_fallback") or command[1]
        elif line and not _NOT_BY_A_PERSON.match(line):
            data["first_prompt"] = line if len(line) <= MAX_PROMPT_CHARS else line[:MAX_PROMPT_CHARS].rstrip() + "…"
            data["first_prompt_locked"] = True
            return
