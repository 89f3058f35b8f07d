"""Operations on whole sessions, as plain functions over any store.

Titles, tags, rewinds and the like are events in the session's log; no event is rewritten. Forks and exports are atomic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from typing import Any

from ...errors import (
    ConcurrencyError,
    InvalidEventError,
    OptionsError,
    SessionError,
    SessionExistsError,
    SessionHeldError,
    SessionLockedError,
    SessionNotFoundError,
)
from ...events import (
    Event,
    ModelRequest,
    Outcome,
    RecordErased,
    RecordErasing,
    RecordKept,
    RecordPurged,
    SessionCompacted,
    SessionForked,
    SessionMeta,
    SessionRewound,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from ...ground.checks import MAX_NUMBER, TEXT, TEXTS, check_settings, number, or_none
from ...ground.frozen import frozen
from ...ground.words import plural
from ...sessions.authority import Authority, KeyedDigests
from ...sessions.base import SessionStore, require_store, whole_id, windows_from_end
from ...sessions.core import check_expected_seq, new_session_id
from ...sessions.folds.summary import SessionSummary, failed_summary, plain_line
from ...sessions.folds.usage import Usage
from ...sessions.folds.view import SessionView
from ...sessions.rebuild import Message, rebuild_messages, standing_events
from ...sessions.resume import load_view
from ...sessions.rewriting import OUTPUT_NAME
from ...sessions.seal import Seal
from .abandoned import ends_of_rewind
from .depth import flattened
from .undo import Conflicts, restore_files

FORKED_BEFORE_START = "The session was forked before this call ran. Ask for it again if it is still wanted."
FORKED_IN_THE_MIDDLE = (
    "The session was forked while this call ran: it may or may not have run. Check before repeating it."
)
_WINDOW_EVENTS = 64
# In metadata, with the name of a receiver: the `seq` of the last event that was delivered to it.
TOLD_KEY = "webhooks"
# The session in which purges record what they deleted.
TOMBSTONES = "tombstones"


@frozen
class SessionState:
    """A session's state for programs: the messages that a model would receive, and the options in force.

    Times are epoch seconds; `usage` and `cost_usd` are None if unknown; `compaction` is the one in force.
    """

    session_id: str
    messages: Sequence[Message]
    created: float
    updated: float
    model: str | None = None
    cwd: str | None = None
    system_prompt: str | None = None
    permission_mode: str | None = None
    tools: Sequence[str] = ()
    allowed_tools: Sequence[str] | None = None
    disallowed_tools: Sequence[str] | None = None
    turns: int = 0
    usage: Usage | None = None
    cost_usd: float | None = None
    compaction: SessionCompacted | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


# --- begin and go on -------------------------------------------------------------------------------------------------


def create_session(
    store: SessionStore,
    *,
    session_id: str | None = None,
    cwd: str | None = None,
    title: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Create a session and return its id. Raises `SessionExistsError` and `OptionsError`."""
    full_metadata = {**(metadata or {}), **({} if cwd is None else {"cwd": cwd})}
    session_id = store.create_session(metadata=full_metadata, session_id=session_id)
    if title is not None:
        rename_session(store, session_id, title)
    return session_id


def resume_session(store: SessionStore, session_id: str | None = None, *, cwd: str | None = None) -> str:
    """Return the id of the session to resume: the given one, the only one with this prefix, or else the newest of `cwd`.

    Raises `SessionNotFoundError`, and `OptionsError` if several ids have the prefix.
    """
    if session_id is None:
        newest = store.list_session_summaries(cwd=cwd, limit=1)
        if not newest:
            error = SessionNotFoundError("(newest)")
            error.args = ("this store contains no session" + ("" if cwd is None else f" of the folder {cwd}"),)
            raise error
        return newest[0].id
    return whole_id(store, session_id)


def load_session(store: SessionStore, session_id: str) -> SessionState:
    """Fold the session's state from its log. Raises `SessionNotFoundError`, `LogCorruptError`."""
    view = SessionView().extend(store.iter_events(session_id))
    meta = store.read_metadata(session_id)
    metadata: dict[str, Any] = meta["metadata"]
    summary = store.read_summary(session_id)
    inits = [event for event in view.events if isinstance(event, SystemInit)]
    standing = standing_events(view.events)
    compactions = [event for event in standing if isinstance(event, SessionCompacted)]
    last = inits[-1] if inits else None
    return SessionState(
        session_id=session_id,
        messages=view.conversation.messages(),
        created=meta["created_at"],
        updated=summary.updated,
        model=summary.model,
        cwd=last.cwd if last else summary.cwd,
        system_prompt=view.context.system_prompt if view.context else None,
        permission_mode=last.permission_mode if last else metadata.get("permission_mode"),
        tools=last.tools if last else (),
        allowed_tools=metadata.get("allowed_tools"),
        disallowed_tools=metadata.get("disallowed_tools"),
        turns=len(_prompts(standing)),
        usage=view.usage,
        cost_usd=view.cost_usd if view.usage else None,
        compaction=compactions[-1] if compactions else None,
        metadata=metadata,
    )


def get_messages(
    store: SessionStore, session_id: str, *, from_turn: int = 1, to_turn: int | None = None
) -> list[Message]:
    """Return the messages of turns `from_turn` to `to_turn`, both inclusive and counted from 1, in their original form.

    A turn is a prompt and everything that follows it. Rewound turns do not count; compacted ones do, and are returned
    whole.
    """
    turns = turns_of(store.iter_events(session_id))
    chosen_turns = turns[from_turn : None if to_turn is None else max(0, to_turn + 1)] if from_turn >= 1 else []
    return rebuild_messages(event for turn in chosen_turns for event in turn)


def turns_of(events: Iterable[Event]) -> list[list[Event]]:
    """The events of each turn that was not rewound, including compacted turns.

    The first item holds the events before any prompt.
    """
    turns: list[list[Event]] = [[]]
    for event in standing_events(events):
        if _is_prompt(event):
            turns.append([])
        if not isinstance(event, SessionCompacted | SessionRewound | SystemInit):
            turns[-1].append(event)
    return turns


def append_signed(
    store: SessionStore,
    session_id: str,
    events: Sequence[Event] | Callable[[], Sequence[Event]],
    seal: Seal | None = None,
    *,
    expected_seq: int | None = None,
) -> list[Event]:
    """Append a person's decisions outside a run, signed with this installation's key; return them as stored.

    Events that `append_events` adds are only history, and grant nothing. If `events` is a function, it is called while no
    other writer can append. Also raises the errors of `append_events`.
    """
    with store.open_writer(session_id) as writer:
        check_expected_seq(session_id, expected_seq, writer.last_seq)
        authority = Authority(session_id, seal or Seal())
        for event in store.iter_events(session_id):
            authority.apply(event)
        events = events() if callable(events) else events
        return writer.append(authority.sign(events, writer.last_seq))


# --- change ----------------------------------------------------------------------------------------------------------


def rename_session(store: SessionStore, session_id: str, title: str) -> SessionSummary:
    """Set the session's title, or remove it with an empty string; return the session's summary.

    Raises `SessionNotFoundError`, and `SessionLockedError` during a run.
    """
    require_store(store)
    check_settings({"title": title}, {"title": TEXT})
    store.append_event(session_id, SessionMeta(title=plain_line(title)))
    return store.read_summary(session_id)


TAG_PATIENCE_S = 1.0
# A position outside the log is refused later, by an error that names the log's positions.
_WHOLE = or_none(number(-MAX_NUMBER, whole=True))


def tag_session(
    store: SessionStore, session_id: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
) -> SessionSummary:
    """Add and remove tags, which keep the order of their addition; return the session's summary.

    Raises `SessionNotFoundError`, and `SessionLockedError` during a run.
    """
    require_store(store)
    check_settings({"add": add, "remove": remove}, {"add": TEXTS, "remove": TEXTS})
    added = [plain_line(tag) for tag in add]
    removed = {plain_line(tag) for tag in remove}
    deadline = time.monotonic() + TAG_PATIENCE_S
    while True:
        before = store.read_summary(session_id)
        tags = [tag for tag in dict.fromkeys((*before.tags, *added)) if tag and tag not in removed]
        try:
            store.append_events(session_id, [SessionMeta(tags=tags)], expected_seq=before.events)
            return store.read_summary(session_id)
        except ConcurrencyError:
            # Another writer appended in between, perhaps tags: keep those too.
            continue
        except SessionLockedError:
            # Another tagging call ends within moments; a run does not.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def rewind_session(
    store: SessionStore,
    session_id: str,
    *,
    to_seq: int | None = None,
    turns: int | None = None,
    files: bool = False,
    conflicts: Conflicts = "refuse",
    roots: Sequence[str] = (),
    seal: Seal | None = None,
    request_id: str | None = None,
) -> Event:
    """Remove from the model's view everything after `to_seq`, or the newest `turns` prompts and what followed them.

    Returns the `session.rewound` event; the log keeps everything. `request_id` makes the rewind idempotent: a second one
    with the same id changes nothing and returns the same event. Whatever is open after that position is closed in the same
    batch: questions as `answered_by: rewound`, calls, subagents, and the run. With `files`, file changes made by calls since
    then are also undone, as by `restore_files` and under its conditions. Raises `OptionsError` unless either `to_seq` or
    `turns` names a position in the log. With `files`, also raises the errors of `restore_files`.
    """
    # Read before the log is searched: a rewind with the same id that is appended in between makes `expected_seq` fail.
    last_seq = None if request_id is None else store.last_seq(session_id)
    if request_id is not None:
        request = load_view(store, session_id)[0].requests.get(request_id)
        if request is not None:
            return store.read_events(session_id, after_seq=request.seq - 1, limit=1)[0]
    to_seq = rewind_point(store, session_id, to_seq=to_seq, turns=turns)
    seal = seal or Seal()

    def tail() -> list[Event]:
        return [*ends_of_rewind(store, session_id, to_seq, seal), SessionRewound(to_seq, request_id=request_id)]

    if not files:
        return append_signed(store, session_id, tail, seal, expected_seq=last_seq)[-1]
    restored = restore_files(store, session_id, to_seq=to_seq, conflicts=conflicts, roots=roots, seal=seal, tail=tail)
    later_events = store.iter_events(session_id, after_seq=restored.seq or 0)
    return next(event for event in later_events if isinstance(event, SessionRewound))


def rewind_point(store: SessionStore, session_id: str, *, to_seq: int | None = None, turns: int | None = None) -> int:
    """The `seq` to rewind to: `to_seq`, or the one before the newest `turns` prompts. Raises `OptionsError`."""
    require_store(store)
    check_settings({"to_seq": to_seq, "turns": turns}, {"to_seq": _WHOLE, "turns": _WHOLE})
    if (to_seq is None) == (turns is None):
        raise OptionsError("a rewind needs exactly one of to_seq and turns")
    if to_seq is None:
        prompts = _prompts(standing_events(store.iter_events(session_id)))
        if turns is None or not 1 <= turns <= len(prompts):
            raise OptionsError(f"session {session_id!r} has {plural(len(prompts), 'turn')} to undo, not {turns}")
        to_seq = (prompts[-turns].seq or 1) - 1
    last_seq = store.last_seq(session_id)
    if not 0 <= to_seq <= last_seq:
        raise OptionsError(f"session {session_id!r} has events 1 to {last_seq}: it cannot go back to {to_seq}")
    return to_seq


def undo_compaction(store: SessionStore, session_id: str) -> Event:
    """Restore to the model's view what the newest compaction hid; everything since then is rewound with it.

    Raises `OptionsError` if no compaction is in force.
    """
    standing = standing_events(store.iter_events(session_id))
    compactions = [event for event in standing if isinstance(event, SessionCompacted)]
    if not compactions:
        raise OptionsError(f"session {session_id!r} has no compaction in force: there is nothing to undo")
    return rewind_session(store, session_id, to_seq=(compactions[-1].seq or 1) - 1)


def fork_session(
    store: SessionStore,
    source_id: str,
    *,
    at_seq: int | None = None,
    session_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    seal: KeyedDigests | None = None,
) -> str:
    """Create a session that begins as a copy of another up to `at_seq` (None: its end); return its id.

    The source is only read, so it may be running. Calls that are open at the cut are closed in the copy with a result that
    explains this: they are never run twice. What this installation allowed in the source is also allowed in the copy
    (`seal` contains its key); events from elsewhere gain no authority. Raises `OptionsError` for a position after the end
    of the log.
    """
    require_store(store)
    check_settings({"at_seq": at_seq}, {"at_seq": _WHOLE})
    last_seq = store.last_seq(source_id)
    at_seq = last_seq if at_seq is None else at_seq
    if not 0 <= at_seq <= last_seq:
        raise OptionsError(f"session {source_id!r} has events 1 to {last_seq}: it cannot be forked at {at_seq}")
    fork_id = session_id or new_session_id()
    seal, source_metadata = seal or Seal(), store.read_metadata(source_id)["metadata"]
    # Their digests transfer this installation's authority from the source to the copy.
    parents = [*_parents_cut_off(store, source_id, at_seq, source_metadata, seal), source_id]
    markers = Authority(fork_id, seal).sign([SessionForked(parent, at_seq) for parent in parents], at_seq)
    tail = [*markers, *_end_open_calls(store, source_id, at_seq)]
    fork_metadata = forked_metadata(source_metadata, source_id, at_seq, metadata)
    return store.copy_session(source_id, fork_id, at_seq=at_seq, tail=tail, metadata=fork_metadata)


def _parents_cut_off(
    store: SessionStore, source_id: str, at_seq: int, metadata: Mapping[str, Any], seal: KeyedDigests
) -> list[str]:
    """The sessions for whose events the source's own markers vouch, if these follow `at_seq` and are not copied."""
    parent_seq = metadata.get("parent_seq")
    if not isinstance(parent_seq, int) or at_seq > parent_seq:
        return []
    authority, markers = Authority(source_id, seal), list[SessionForked]()
    for event in store.iter_events(source_id):
        authority.apply(event)
        if isinstance(event, SessionForked) and (event.seq or 0) > at_seq:
            markers.append(event)
    return list(dict.fromkeys(marker.parent_session_id for marker in markers if authority.is_ours(marker)))


def forked_metadata(
    parents: Mapping[str, Any], parent_id: str, parent_seq: int, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The metadata of a fork at `parent_seq`. A fork is never a subagent's session, even if its source is one.

    It lacks the marks of what was delivered about the source's events.
    """
    lost = ("parent_tool_use_id", "agent_name")
    parent_fields = {
        key: value for key, value in parents.items() if key not in lost and not key.startswith(f"{TOLD_KEY}.")
    }
    return {**parent_fields, **(own or {}), "parent_session_id": parent_id, "parent_seq": parent_seq}


def delete_session(store: SessionStore, session_id: str) -> list[str]:
    """Delete the session, those of its subagents, and their blobs; return the ids, children first.

    The session itself is deleted last, so that no session is left without its parent, and a deletion that was stopped can
    be repeated. Raises `SessionNotFoundError`, `OptionsError` for the tombstones of a purge, and `SessionLockedError` or
    `SessionHeldError` if one of them is in use or must be kept; then nothing is deleted.
    """
    require_store(store)
    doomed = [*reversed(descendants(store, session_id)), session_id]
    if session_id == TOMBSTONES and any(isinstance(event, RecordPurged) for event in store.iter_events(session_id)):
        raise OptionsError("the tombstones record what was purged: they cannot be deleted")
    for name in dict.fromkeys([*kept_with(store, session_id), *doomed]):
        store.refuse_kept(name)
    for name in doomed:
        if store.is_held(name):
            raise SessionLockedError(name, "a run")
    for name in doomed:
        store.delete_session(name)
    return doomed


def kept_with(store: SessionStore, session_id: str) -> Iterator[str]:
    """Yield the session, then those whose subagent it is, innermost first: a hold or retention of one covers it.

    A subagent's session may be younger than the hold. Raises `SessionNotFoundError` if the session does not exist.
    """
    seen: set[str] = set()
    while session_id not in seen:
        seen.add(session_id)  # metadata is not signed: a forged parent could create a cycle
        metadata = store.read_metadata(session_id)["metadata"]
        yield session_id
        parent_id = metadata.get("parent_session_id")
        if metadata.get("parent_tool_use_id") is None or not isinstance(parent_id, str):
            return
        if not store.session_exists(parent_id):
            return
        session_id = parent_id


def descendants(store: SessionStore, session_id: str) -> list[str]:
    """The ids of the sessions of the session's subagents, of their subagents, and so on; parents before children."""
    return reachable(session_id, store.list_children)


def rows_of_tag(store: SessionStore, tag: str) -> list[SessionSummary]:
    """The summaries that `cost_report` counts under this tag: those of its sessions, and of their subagents' sessions.

    Only these sessions are read if the store has an index of words.
    """
    name = plain_line(tag)
    tagged = [row for row in store.list_session_summaries(query=name, include_children=True) if name in row.tags]
    roots = [
        row for row in tagged if not (row.is_child and row.parent is not None and store.session_exists(row.parent))
    ]
    rows = {row.id: row for row in roots}
    for child in (name for root in roots for name in descendants(store, root.id)):
        if child not in rows:
            try:
                rows[child] = store.read_summary(child)
            except SessionNotFoundError:  # deleted just now
                continue
            except (SessionError, InvalidEventError) as error:
                rows[child] = failed_summary(child, error)
    return list(rows.values())


def reachable(start: str, near: Callable[[str], Iterable[str]]) -> list[str]:
    """The names that `near` reaches from `start` in any number of steps, nearest first, without `start`."""
    order, waiting = {start: None}, [start]
    while waiting:
        fresh = [name for name in near(waiting.pop(0)) if name not in order]
        order.update(dict.fromkeys(fresh))
        waiting += fresh
    return list(order)[1:]


# --- from store to store ---------------------------------------------------------------------------------------------


def export_session(source: SessionStore, target: SessionStore, session_id: str) -> list[str]:
    """Copy the session, those of its subagents, and their blobs to another store; return the ids, which stay the same.

    Either all are copied or none. Raises `SessionExistsError` if the target already has one of them.
    """
    names = [session_id, *descendants(source, session_id)]
    with all_or_none(target) as done:
        for name in names:
            _copy_to(source, target, name)
            done.append(name)
    return done


def copy_missing(source: SessionStore, target: SessionStore, session_id: str) -> Iterator[tuple[str, bool]]:
    """Copy like `export_session`, but session by session; yield each id, and whether it was copied or already present.

    Sessions that an interrupted call copied are kept and not copied again. Raises `SessionExistsError` if the target has a
    different session with the same id, or a different continuation of it.
    """
    for name in (session_id, *descendants(source, session_id)):
        if not target.session_exists(name):
            _copy_to(source, target, name)
            yield name, True
            continue
        ends = [(store.last_seq(name), store.read_metadata(name)["created_at"]) for store in (source, target)]
        if ends[0] != ends[1]:
            (count, created), (other_count, other_created) = ends
            if created != other_created:
                raise SessionExistsError(name)
            raise SessionExistsError(
                name,
                f"has {count:,} events, and in the target it has {other_count:,} events: unless it was continued there, "
                "delete it there and copy it again",
            )
        _copy_outputs(source, target, name)
        yield name, False


def _copy_to(source: SessionStore, target: SessionStore, name: str) -> None:
    """Copy one session, and again if something was erased from it meanwhile."""
    while not _is_copied_to(source, target, name):
        _delete_copy(target, name)


def _is_copied_to(source: SessionStore, target: SessionStore, name: str) -> bool:
    """Copy one session; return False if an erasure was recorded meanwhile, so that part of the copy may precede it."""
    meta = source.read_metadata(name)
    # Events that a run appends from now on are not copied: the log's end could move on faster than the copy.
    end = source.last_seq(name)
    events = source.iter_events(name, limit=end)
    target.import_session(
        name,
        flattened(events),
        metadata=meta["metadata"],
        created_at=meta["created_at"],
        blobs=map(partial(source.read_blob, name), source.list_blobs(name)),
    )
    try:
        _copy_outputs(source, target, name)
        changes = source.iter_events(name, after_seq=end)
        return not any(isinstance(event, RecordErasing | RecordErased) for event in changes)
    except BaseException:  # after any error, even a Ctrl-C, no partial copy may remain
        _delete_copy(target, name)
        raise


def _copy_outputs(source: SessionStore, target: SessionStore, name: str) -> None:
    """Copy the files in which calls stored whole outputs, except those that a previous attempt copied."""
    for output in sorted({*source.list_outputs(name)} - {*target.list_outputs(name)}):
        if OUTPUT_NAME.fullmatch(output):
            target.add_output(name, output, source.read_output(name, output))


def import_session(target: SessionStore, source: SessionStore, session_id: str) -> list[str]:
    """Like `export_session`, with the target first."""
    return export_session(source, target, session_id)


@contextmanager
def all_or_none(store: SessionStore) -> Iterator[list[str]]:
    """Collect the ids of sessions that the block creates; if it fails, delete these sessions in reverse order."""
    ids: list[str] = []
    try:
        yield ids
    except BaseException:  # after any error, even a Ctrl-C, no partial copy may remain
        for name in reversed(ids):
            # Report the error that caused the rollback, not one of the rollback's own.
            with suppress(SessionError):
                _delete_copy(store, name)
        raise


def _delete_copy(store: SessionStore, name: str) -> None:
    """Delete a session that was just copied, although its original must be kept."""
    try:
        store.delete_session(name)
    except SessionHeldError:
        store.append_event(name, RecordKept(held=False, until=0.0, reason="an incomplete copy"))
        store.delete_session(name)


# --- folds -----------------------------------------------------------------------------------------------------------


def _prompts(events: Iterable[Event]) -> list[UserMessage]:
    return [event for event in events if isinstance(event, UserMessage) and _is_prompt(event)]


def _is_prompt(event: Event) -> bool:
    return isinstance(event, UserMessage) and event.origin == "user"


def _end_open_calls(store: SessionStore, session_id: str, at_seq: int) -> list[Event]:
    """Build a result for each call that is open at `at_seq`."""
    started: set[str] = set()
    waiting: dict[str, ToolUse] = {}
    for event in _since_last_request(store, session_id, at_seq):
        if isinstance(event, ToolUse):
            waiting[event.tool_use_id] = event
        elif isinstance(event, ToolStarted):
            started.add(event.tool_use_id)
        elif isinstance(event, ToolResult):
            waiting.pop(event.tool_use_id, None)
    ended: dict[bool, tuple[str, Outcome]] = {
        True: (FORKED_IN_THE_MIDDLE, "unknown"),
        False: (FORKED_BEFORE_START, "cancelled"),
    }
    results: list[Event] = []
    # Calls made inside another call end before the call that made them, as in any log.
    for call_id, use in sorted(waiting.items(), key=lambda item: not item[1].is_inside):
        text, outcome = ended[call_id in started]
        result = ToolResult(call_id, is_error=True, error_type="SessionForked", error_message=text, outcome=outcome)
        results.append(replace(result, parent_tool_use_id=use.parent_tool_use_id if use.is_inside else None))
    return results


def _since_last_request(store: SessionStore, session_id: str, at_seq: int) -> Sequence[Event]:
    """The events from the last prompt or model request up to `at_seq`: those that can leave a call open."""
    events: Sequence[Event] = []
    for events in windows_from_end(store, session_id, at_seq, _WINDOW_EVENTS):
        settled = [index for index, event in enumerate(events) if isinstance(event, ModelRequest) or _is_prompt(event)]
        if settled:
            return events[settled[-1] :]
    return events


def child_events(store: SessionStore, parent_id: str, child_id: str) -> Sequence[Event]:
    """The events of a subagent's session; empty if this parent has no such session, or if it cannot be read.

    A log names its subagents' sessions and may come from anyone, so only a session that names this parent is read.
    """
    try:
        is_ours = store.read_metadata(child_id)["metadata"].get("parent_session_id") == parent_id
        return store.read_events(child_id) if is_ours else ()
    except (SessionError, OptionsError):
        return ()
