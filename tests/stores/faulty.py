"""Stores with one fault each, around any store: for each fault, the contract test that must detect it.

Faults that depend on timing, such as a check that is acted on too late, pause between the two steps so that they show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from openagentic_sdk.errors import (
    ConcurrencyError,
    InvalidEventError,
    LogCorruptError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from openagentic_sdk.events import Event, UnknownEvent, UserMessage
from openagentic_sdk.serialization import event_from_dict, event_to_dict
from openagentic_sdk.sessions.base import SessionStore, stamp_events
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.stores.locate import open_store
from tests.waiting import pause

GAP_S = 0.01
_DELEGATED = (
    *("create_session", "open_writer", "iter_events", "read_metadata", "update_metadata", "list_sessions"),
    *("delete_session", "put_blob", "read_blob", "last_seq", "append_events", "take_over", "session_exists"),
    *("wait_for_events", "read_summary", "list_session_summaries", "list_children", "search", "list_blobs"),
    *("import_session", "copy_session", "durability_notice", "close"),
    *("put_message", "read_messages", "remove_messages", "wait_for_news"),
    *("rewrite_events", "delete_blobs", "ids_beginning", "claim_request"),
)
FAULTS: dict[str, tuple[str, type[SessionStore]]] = {}


def _delegate(name: str) -> Callable[..., Any]:
    def call(self: Any, *how: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*how, **named)

    return call


class _Named:
    inner: SessionStore

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner

    @property
    def has_inbox(self) -> bool:
        return self.inner.has_inbox


Wrapped: Any = type(
    "Wrapped",
    (_Named, SessionStore),
    {name: _delegate(name) for name in _DELEGATED} | {"__doc__": "Does what another store does."},
)


def open_faulty(name: str, url: str) -> SessionStore:
    """Open the store of that name with that fault."""
    store: SessionStore = FAULTS[name][1](open_store(url))  # type: ignore[call-arg]
    return store


def caught_by(test: str) -> Callable[[type], type]:
    """Register the class as a fault that this contract test must detect."""

    def register(cls: type) -> type:
        FAULTS[cls.__name__] = (f"test_{test}", cls)
        return cls

    return register


def changed(event: Event, **values: Any) -> Event:
    return dataclasses.replace(event, **values)


def rewritten(event: Event, change: Callable[[Any], Any]) -> Event:
    """The event with each text and number in it passed through `change`."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {walk(key): walk(each) for key, each in value.items()}
        if isinstance(value, list):
            return [walk(each) for each in value]
        return change(value)

    kept = event_to_dict(event)
    fields = {key: value if key in ("type", "seq", "ts") else walk(value) for key, value in kept.items()}
    return event_from_dict(fields, strict=False)


class WrappedWriter(SessionWriter):
    """A writer that delegates to another."""

    def __init__(self, inner: SessionWriter) -> None:
        self.inner = inner
        self.session_id = inner.session_id
        self.epoch = inner.epoch

    @property
    def last_seq(self) -> int:
        return self.inner.last_seq

    def append(self, events: Sequence[Event]) -> list[Event]:
        return self.inner.append(events)

    def close(self) -> None:
        self.inner.close()


class Writing(Wrapped):
    """A store whose writers are of the class `writer`, which `append_events` uses as well."""

    writer: type[WrappedWriter] = WrappedWriter

    def open_writer(self, session_id: str) -> SessionWriter:
        return self.writer(self.inner.open_writer(session_id))

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        return SessionStore.append_events(self, session_id, events, expected_seq=expected_seq)


def writing(change: Callable[[list[Event]], list[Event]]) -> type:
    """A store that stores changed events."""

    class Changed(WrappedWriter):
        def append(self, events: Sequence[Event]) -> list[Event]:
            return self.inner.append(change(list(events)))

    class Store(Writing):
        writer = Changed

    return Store


def reading(change: Callable[[Event], Event | None]) -> type:
    """A store that returns changed events; `change` returns None to omit one."""

    class Store(Wrapped):
        def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
            events = self.inner.iter_events(session_id, after_seq=after_seq, limit=limit)
            return (new for event in events if (new := change(event)) is not None)

    return Store


# --- sessions --------------------------------------------------------------------------------------------------------

NEW = "a_new_session_is_empty_and_knows_what_it_was_created_with"
CLEAN = "a_deleted_session_is_gone_and_its_id_starts_clean"


@caught_by(NEW)
class MetadataIsFlattened(Wrapped):
    def create_session(self, *, metadata=None, session_id=None):
        flat = {key: str(value) for key, value in (metadata or {}).items()}
        return self.inner.create_session(metadata=flat, session_id=session_id)


@caught_by(NEW)
class CreationTimeIsThatOfTheQuestion(Wrapped):
    def read_metadata(self, session_id):
        return {**self.inner.read_metadata(session_id), "created_at": time.time()}


@caught_by("an_id_can_be_chosen_once")
class CreatingReplaces(Wrapped):
    def create_session(self, *, metadata=None, session_id=None):
        if session_id and self.inner.session_exists(session_id):
            self.inner.delete_session(session_id)
        return self.inner.create_session(metadata=metadata, session_id=session_id)


@caught_by("only_one_of_many_that_create_the_same_session_succeeds")
class CreatingChecksAndThenActs(Wrapped):
    def create_session(self, *, metadata=None, session_id=None):
        if session_id and self.inner.session_exists(session_id):
            raise SessionExistsError(session_id)
        pause(GAP_S, "another thread gets in between")
        with contextlib.suppress(SessionExistsError):
            self.inner.create_session(metadata=metadata, session_id=session_id)
        return session_id


@caught_by("every_call_says_when_there_is_no_such_session")
class AnUnknownSessionIsEmpty(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        with contextlib.suppress(SessionNotFoundError):
            yield from self.inner.iter_events(session_id, after_seq=after_seq, limit=limit)


@caught_by("every_call_says_when_there_is_no_such_session")
class AppendingCreates(Wrapped):
    def append_events(self, session_id, events, *, expected_seq=None):
        if not self.inner.session_exists(session_id):
            self.inner.create_session(session_id=session_id)
        return self.inner.append_events(session_id, events, expected_seq=expected_seq)


@caught_by("metadata_changes_key_by_key_and_none_removes")
class NoneIsKept(Wrapped):
    def read_metadata(self, session_id):
        known = self.inner.read_metadata(session_id)
        return {**known, "metadata": {**known["metadata"], **getattr(self, "nones", {})}}

    def update_metadata(self, session_id, changes):
        self.nones = {key: value for key, value in changes.items() if value is None}
        self.inner.update_metadata(session_id, changes)


@caught_by("metadata_changes_key_by_key_and_none_removes")
class AChangeReplacesAllMetadata(Wrapped):
    def update_metadata(self, session_id, changes):
        gone = dict.fromkeys(self.inner.read_metadata(session_id)["metadata"])
        self.inner.update_metadata(session_id, {**gone, **changes})


class ReadingThenWritingMetadata(Wrapped):
    """Read all metadata, and write all of it back a moment later."""

    def update_metadata(self, session_id, changes):
        known = self.inner.read_metadata(session_id)["metadata"]
        different = 1 + sum(map(ord, "".join(changes))) % 4
        pause(GAP_S * different, "stores must not all wait for the same time, or none would see the writes of another")
        now = self.inner.read_metadata(session_id)["metadata"]
        self.inner.update_metadata(session_id, {**dict.fromkeys(now), **known, **changes})


@caught_by("changes_of_metadata_at_the_same_time_are_all_kept")
class MetadataOfTwoThreadsOverwrite(ReadingThenWritingMetadata):
    pass


@caught_by("changes_of_metadata_by_two_processes_are_all_kept")
class MetadataOfTwoProcessesOverwrite(ReadingThenWritingMetadata):
    pass


@caught_by("metadata_and_blobs_can_be_written_while_a_run_appends")
class MetadataAreRefusedDuringARun(Wrapped):
    def update_metadata(self, session_id, changes):
        self.inner.open_writer(session_id).close()
        self.inner.update_metadata(session_id, changes)


@caught_by("metadata_and_blobs_can_be_written_while_a_run_appends")
class BlobsAreRefusedDuringARun(Wrapped):
    def put_blob(self, session_id, data):
        self.inner.open_writer(session_id).close()
        return self.inner.put_blob(session_id, data)


@caught_by("metadata_and_blobs_can_be_written_while_a_run_appends")
class AChangeOfMetadataLosesARacingAppend(Writing):
    class writer(WrappedWriter):
        def append(self, events):
            return self.inner.append(list(events)[:1])


@caught_by("changed_metadata_list_the_session_anew")
class TheListKeepsTheOldFolder(Wrapped):
    def update_metadata(self, session_id, changes):
        self.__dict__.setdefault("rows", {})[session_id] = self.inner.read_summary(session_id)
        self.inner.update_metadata(session_id, changes)

    def list_session_summaries(self, **how):
        rows = self.inner.list_session_summaries(**{**how, "cwd": None})
        old = self.__dict__.get("rows", {})
        rows = [dataclasses.replace(row, cwd=old.get(row.id, row).cwd) for row in rows]
        return [row for row in rows if how.get("cwd") in (None, row.cwd)]


@caught_by(CLEAN)
class ADeletedIdStaysDead(Wrapped):
    def delete_session(self, session_id, *, expected_seq=None):
        self.__dict__.setdefault("dead", set()).add(session_id)
        self.inner.delete_session(session_id)

    def create_session(self, *, metadata=None, session_id=None):
        if session_id in self.__dict__.get("dead", set()):
            raise SessionExistsError(session_id)
        return self.inner.create_session(metadata=metadata, session_id=session_id)


@caught_by(CLEAN)
class WritesAfterARebirthAreDropped(Wrapped):
    def delete_session(self, session_id, *, expected_seq=None):
        self.__dict__.setdefault("dead", set()).add(session_id)
        self.inner.delete_session(session_id)

    def append_events(self, session_id, events, *, expected_seq=None):
        if session_id in self.__dict__.get("dead", set()):
            return stamp_events(events, first_seq=self.inner.last_seq(session_id) + 1, now=time.time())
        return self.inner.append_events(session_id, events, expected_seq=expected_seq)


@caught_by(CLEAN)
class DeletingKeepsBlobs(Wrapped):
    def put_blob(self, session_id, data):
        digest = self.inner.put_blob(session_id, data)
        self.__dict__.setdefault("blobs", {})[session_id, digest] = data
        return digest

    def read_blob(self, session_id, sha256):
        return self.__dict__.get("blobs", {}).get((session_id, sha256)) or self.inner.read_blob(session_id, sha256)


@caught_by(CLEAN)
class DeletingKeepsTheRow(Wrapped):
    def delete_session(self, session_id, *, expected_seq=None):
        self.row = self.inner.read_summary(session_id)
        self.inner.delete_session(session_id)

    def list_session_summaries(self, **how):
        rows = self.inner.list_session_summaries(**how)
        return rows or [self.row] if "row" in self.__dict__ else rows


@caught_by("blobs_come_back_as_they_were_and_belong_to_one_session")
class BlobsAreSharedByAll(Wrapped):
    def put_blob(self, session_id, data):
        self.__dict__.setdefault("blobs", {})[hashlib.sha256(data).hexdigest()] = data
        return self.inner.put_blob(session_id, data)

    def read_blob(self, session_id, sha256):
        if sha256 in self.__dict__.get("blobs", {}):
            return self.blobs[sha256]
        return self.inner.read_blob(session_id, sha256)


@caught_by("blobs_come_back_as_they_were_and_belong_to_one_session")
class BlobsAreCutAt64Kb(Wrapped):
    def read_blob(self, session_id, sha256):
        return self.inner.read_blob(session_id, sha256)[: 64 * 1024]


@caught_by("blobs_come_back_as_they_were_and_belong_to_one_session")
class AnEmptyBlobIsNone(Wrapped):
    def read_blob(self, session_id, sha256):
        data = self.inner.read_blob(session_id, sha256)
        if not data:
            raise StorageError("no such blob", session_id=session_id)
        return data


@caught_by("hostile_ids_are_kept_apart_or_refused")
class IdsDoNotDistinguishCase(Wrapped):
    def create_session(self, *, metadata=None, session_id=None):
        with contextlib.suppress(SessionExistsError):
            self.inner.create_session(metadata=metadata, session_id=session_id.lower())
        return session_id

    def append_events(self, session_id, events, *, expected_seq=None):
        return self.inner.append_events(session_id.lower(), events, expected_seq=expected_seq)

    def iter_events(self, session_id, *, after_seq=0, limit=None):
        return self.inner.iter_events(session_id.lower(), after_seq=after_seq, limit=limit)


@caught_by("nothing_outside_of_a_session_can_be_reached_by_a_hostile_id")
class AnyIdExists(Wrapped):
    def session_exists(self, session_id):
        return True


class Caching(Wrapped):
    """Return stale events from a cache."""

    def remembered(self, name, *how, **named):
        kept = self.__dict__.setdefault("kept", {})
        key = (name, how, tuple(sorted(named.items())))
        if key not in kept:
            answer = getattr(self.inner, name)(*how, **named)
            kept[key] = list(answer) if isinstance(answer, Iterator) else answer
        return kept[key]


class RowsAreCached(Caching):
    def list_session_summaries(self, **how):
        return self.remembered("list_session_summaries", **how)


class EventsAreCached(Caching):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        return iter(self.remembered("iter_events", session_id, after_seq=after_seq, limit=limit))


class MetadataAreCached(Caching):
    def read_metadata(self, session_id):
        return self.remembered("read_metadata", session_id)


class ThePlaceIsCached(Caching):
    def last_seq(self, session_id):
        return self.remembered("last_seq", session_id)


for _cls in (RowsAreCached, EventsAreCached, MetadataAreCached):
    caught_by("what_another_process_wrote_is_seen_at_once")(_cls)
    caught_by("what_another_store_wrote_is_seen_at_once")(type(f"{_cls.__name__}InOneProcess", (_cls,), {}))
caught_by("what_another_store_wrote_is_seen_at_once")(ThePlaceIsCached)


@caught_by("a_session_that_went_on_is_not_deleted")
class DeletingForgetsWhatIsExpected(Wrapped):
    def delete_session(self, session_id, *, expected_seq=None):
        self.inner.delete_session(session_id)


# --- appending -------------------------------------------------------------------------------------------------------

ORDER = "events_come_back_in_order_numbered_from_one_without_a_hole"
FIDELITY = "every_text_and_value_of_json_survives"


def _texts(change: Callable[[str], str]) -> type:
    return reading(lambda event: rewritten(event, lambda value: change(value) if isinstance(value, str) else value))


def _numbers(kind: type, change: Callable[[Any], Any]) -> type:
    return reading(lambda event: rewritten(event, lambda value: change(value) if type(value) is kind else value))


for _name, _test, _fault in (
    ("BatchesAreSorted", ORDER, writing(lambda events: sorted(events, key=lambda event: getattr(event, "text", "")))),
    ("EventsAreDoubled", ORDER, writing(lambda events: [*events, *events[-1:]])),
    ("TheLastOfABatchIsLost", ORDER, writing(lambda events: events[:-1] if len(events) > 1 else events)),
    ("TimesAreRounded", ORDER, reading(lambda event: changed(event, ts=round(event.ts or 0.0)))),
    ("NumbersBeginAtZero", ORDER, reading(lambda event: changed(event, seq=(event.seq or 0) - 1))),
    ("TextsAreCutAt64Kb", FIDELITY, _texts(lambda text: text[: 64 * 1024])),
    ("TextsAreAsciiOnly", FIDELITY, _texts(lambda text: text.encode("ascii", "replace").decode())),
    ("SurrogatesAreReplaced", FIDELITY, _texts(lambda text: text.encode("utf-8", "replace").decode())),
    ("NulIsDropped", FIDELITY, _texts(lambda text: text.replace("\0", ""))),
    ("TextsAreStripped", FIDELITY, _texts(str.strip)),
    ("TextsAreNormalised", FIDELITY, _texts(lambda text: "\n".join(text.splitlines()))),
    ("BigNumbersBecomeFloats", FIDELITY, _numbers(int, lambda value: float(value) if abs(value) > 2**53 else value)),
    ("FloatsLoseDigits", FIDELITY, _numbers(float, lambda value: float(f"{value:.3g}"))),
    ("TheSignOfZeroIsLost", FIDELITY, _numbers(float, lambda value: value + 0.0)),
    ("UnknownTypesAreDropped", FIDELITY, reading(lambda event: None if isinstance(event, UnknownEvent) else event)),
    (
        "UnknownFieldsAreDropped",
        "whose_events_they_are_survives",
        reading(
            lambda event: (
                UnknownEvent({"type": event.type, "seq": event.seq, "ts": event.ts})
                if isinstance(event, UnknownEvent)
                else event
            )
        ),
    ),
    (
        "TheParentIsDropped",
        "whose_events_they_are_survives",
        reading(lambda event: changed(event, parent_tool_use_id=None) if event.seq == 1 else event),
    ),
    (
        "OneOfThousandsIsSkipped",
        "ten_thousand_events_are_complete_and_in_order",
        reading(lambda event: None if event.seq == 7777 else event),
    ),
    ("BigBatchesAreCut", "ten_thousand_events_are_complete_and_in_order", writing(lambda events: events[:256])),
):
    caught_by(_test)(type(_name, (_fault,), {}))


@caught_by("nobody_reads_past_an_event_that_is_gone")
class AHoleIsReadSilently(Wrapped):
    def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
        with contextlib.suppress(LogCorruptError):
            yield from self.inner.iter_events(session_id, after_seq=after_seq, limit=limit)


@caught_by("a_part_of_a_log_can_be_read")
class TheCursorSkipsOne(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        return self.inner.iter_events(session_id, after_seq=after_seq + (after_seq > 0), limit=limit)


@caught_by("a_part_of_a_log_can_be_read")
class NoLimitAtZero(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        return self.inner.iter_events(session_id, after_seq=after_seq, limit=limit or None)


@caught_by("an_append_that_expects_another_position_changes_nothing")
class TheExpectedPlaceIsIgnored(Wrapped):
    def append_events(self, session_id, events, *, expected_seq=None):
        return self.inner.append_events(session_id, events)


@caught_by("an_append_that_expects_another_position_changes_nothing")
class AnExpectedPlaceOfZeroIsNone(Wrapped):
    def append_events(self, session_id, events, *, expected_seq=None):
        return self.inner.append_events(session_id, events, expected_seq=expected_seq or None)


class CheckingThenActing(Wrapped):
    """Compare the expected seq, and append a moment later."""

    def append_events(self, session_id, events, *, expected_seq=None):
        found = self.inner.last_seq(session_id)
        if expected_seq is not None and found != expected_seq:
            raise ConcurrencyError(session_id, expected_seq, found)
        pause(GAP_S, "another thread gets in between")
        while True:
            with contextlib.suppress(SessionLockedError):
                return self.inner.append_events(session_id, events)


@caught_by("of_many_that_expect_the_same_place_one_is_stored")
class ThreadsCheckAndThenAct(CheckingThenActing):
    pass


@caught_by("of_two_processes_that_expect_the_same_place_one_is_stored")
class ProcessesCheckAndThenAct(CheckingThenActing):
    pass


class OneByOne(Writing):
    """Store the events of a batch one at a time."""

    class writer(WrappedWriter):
        def append(self, events):
            return [self.inner.append([event])[0] for event in events]


@caught_by("one_bad_event_keeps_the_whole_batch_out")
class ABadEventLeavesAPart(OneByOne):
    pass


@caught_by("a_batch_is_seen_whole_or_not_at_all")
class OthersSeeAPartOfABatch(Writing):
    class writer(WrappedWriter):
        def append(self, events):
            first = self.inner.append(events[:1])
            pause(GAP_S, "another thread gets in between")
            return first + self.inner.append(events[1:])


@caught_by("one_bad_event_keeps_the_whole_batch_out")
class ABadEventIsLeftOut(Writing):
    class writer(WrappedWriter):
        def append(self, events):
            try:
                return self.inner.append(events)
            except InvalidEventError:
                return self.inner.append(
                    [event for event in events if isinstance(event, UserMessage) and isinstance(event.text, str)]
                )


@caught_by("a_read_that_goes_on_while_others_append_gives_each_event_once")
class AnEventIsReadTwiceDuringAWrite(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        began = self.inner.last_seq(session_id)
        for event in self.inner.iter_events(session_id, after_seq=after_seq, limit=limit):
            yield event
            if self.inner.last_seq(session_id) > began:
                began = self.inner.last_seq(session_id)
                yield event


@caught_by("a_read_that_goes_on_while_others_append_gives_each_event_once")
class AReadEndsWhenSomebodyWrites(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        began = self.inner.last_seq(session_id)
        for event in self.inner.iter_events(session_id, after_seq=after_seq, limit=limit):
            yield event
            if self.inner.last_seq(session_id) > began:
                return


# --- writers ---------------------------------------------------------------------------------------------------------

SECOND = "the_second_writer_is_refused_and_changes_nothing"


class Buffering(Writing):
    """Acknowledge events before storing them."""

    class writer(WrappedWriter):
        def __init__(self, inner):
            super().__init__(inner)
            self.waiting: list[Event] = []

        @property
        def last_seq(self):
            return self.inner.last_seq + len(self.waiting)

        def append(self, events):
            stamped = stamp_events(events, first_seq=self.last_seq + 1, now=time.time())
            self.waiting.extend(events)
            return stamped

        def close(self):
            if self.waiting:
                self.inner.append(self.waiting)
                self.waiting = []
            self.inner.close()


@caught_by("a_killed_writer_leaves_a_prefix_and_is_replaced_at_once")
class LostAtKill(Buffering):
    pass


@caught_by(ORDER)
class StoredAtClose(Buffering):
    pass


@caught_by("what_a_killed_process_acknowledged_is_there")
class MetadataLostAtKill(Wrapped):
    def update_metadata(self, session_id, changes):
        self.__dict__.setdefault("waiting", []).append((session_id, changes))

    def read_metadata(self, session_id):
        for name, changes in self.__dict__.pop("waiting", []):
            self.inner.update_metadata(name, changes)
        return self.inner.read_metadata(session_id)

    def close(self):
        for name, changes in self.__dict__.pop("waiting", []):
            self.inner.update_metadata(name, changes)
        self.inner.close()


@caught_by("what_a_killed_process_acknowledged_is_there")
class BlobsLostAtKill(Wrapped):
    def put_blob(self, session_id, data):
        self.__dict__.setdefault("waiting", []).append((session_id, data))
        return hashlib.sha256(data).hexdigest()


@caught_by("everything_is_there_when_the_store_is_opened_again")
class LostOnClose(Wrapped):
    def append_events(self, session_id, events, *, expected_seq=None):
        self.appended = session_id
        return self.inner.append_events(session_id, events, expected_seq=expected_seq)

    def close(self):
        if "appended" in self.__dict__:
            kept = list(self.inner.iter_events(self.appended))[:-1]
            known = self.inner.read_metadata(self.appended)
            self.inner.delete_session(self.appended)
            self.inner.import_session(self.appended, kept, metadata=known["metadata"], created_at=known["created_at"])
        self.inner.close()


@caught_by("everything_is_there_when_the_store_is_opened_again")
class MetadataAreLostOnReopening(Wrapped):
    def update_metadata(self, session_id, changes):
        self.__dict__.setdefault("changes", {}).update(changes)

    def read_metadata(self, session_id):
        known = self.inner.read_metadata(session_id)
        return {**known, "metadata": {**known["metadata"], **self.__dict__.get("changes", {})}}


@caught_by(SECOND)
class TwoWritersAreAccepted(Wrapped):
    def open_writer(self, session_id):
        try:
            return self.inner.open_writer(session_id)
        except SessionLockedError:
            return self.inner.take_over(session_id)


@caught_by(SECOND)
class ALockedSessionCanBeDeleted(Wrapped):
    def delete_session(self, session_id, *, expected_seq=None):
        with contextlib.suppress(SessionLockedError):
            self.inner.delete_session(session_id)


@caught_by(SECOND)
class TheLockOutlivesItsWriter(Wrapped):
    def open_writer(self, session_id):
        if session_id in self.__dict__.setdefault("held", set()):
            raise SessionLockedError(session_id)
        self.held.add(session_id)
        return self.inner.open_writer(session_id)


class KnowsOneProcess(SessionWriter):
    """A lock that only this process respects."""

    held: ClassVar[set[str]] = set()

    def __init__(self, store, session_id):
        if session_id in self.held:
            raise SessionLockedError(session_id)
        store.read_metadata(session_id)
        self.held.add(session_id)
        self.session_id, self.store = session_id, store

    @property
    def last_seq(self):
        return self.store.last_seq(self.session_id)

    def append(self, events):
        return self.store.append_events(self.session_id, events)

    def close(self):
        self.held.discard(self.session_id)


@caught_by("another_process_is_refused_while_a_writer_is_open")
class TheLockKnowsOneProcessOnly(Wrapped):
    def open_writer(self, session_id):
        return KnowsOneProcess(self.inner, session_id)


@caught_by("a_closed_writer_can_be_closed_again_and_not_be_used")
class AClosedWriterWrites(Writing):
    class writer(WrappedWriter):
        def append(self, events):
            try:
                return self.inner.append(events)
            except StorageError:
                return stamp_events(events, first_seq=self.inner.last_seq + 1, now=time.time())


@caught_by("the_epoch_rises_with_every_writer")
class TheEpochStays(Writing):
    class writer(WrappedWriter):
        def __init__(self, inner):
            super().__init__(inner)
            self.epoch = 1


@caught_by("a_holder_that_hangs_cannot_append_after_it_was_replaced")
class AReplacedHolderWrites(Writing):
    class writer(WrappedWriter):
        def append(self, events):
            try:
                return self.inner.append(events)
            except ConcurrencyError:
                return stamp_events(events, first_seq=self.inner.last_seq + 1, now=time.time())


@caught_by("threads_that_share_a_writer_are_served_one_after_the_other")
class ASharedWriterRaces(Writing):
    class writer(WrappedWriter):
        def append(self, events):
            first = self.inner.last_seq + 1
            pause(GAP_S / 10, "another thread gets in between")
            self.inner.append(events)
            return stamp_events(events, first_seq=first, now=time.time())


# --- lists and summaries ---------------------------------------------------------------------------------------------

FILTERED = "lists_can_be_filtered_and_paged"
PAGES = "pages_make_up_the_whole_list_and_the_order_stays"


@caught_by("the_session_last_written_to_comes_first")
class TheOrderIsThatOfCreation(Wrapped):
    def list_sessions(self):
        return sorted(
            self.inner.list_sessions(), key=lambda name: self.inner.read_metadata(name)["created_at"], reverse=True
        )


@caught_by(PAGES)
class TheOrderChangesWithEachList(Wrapped):
    def list_session_summaries(self, **how):
        self.turn = 1 - self.__dict__.get("turn", 0)
        rows = self.inner.list_session_summaries(**{**how, "limit": None, "offset": 0})[:: 1 if self.turn else -1]
        offset, limit = how.get("offset", 0), how.get("limit")
        return rows[offset:] if limit is None else rows[offset : offset + limit]


@caught_by(PAGES)
class PagesSkipOne(Wrapped):
    def list_session_summaries(self, **how):
        offset = how.get("offset", 0)
        return self.inner.list_session_summaries(**{**how, "offset": offset + (offset > 0)})


@caught_by(PAGES)
class PagesOverlap(Wrapped):
    def list_session_summaries(self, **how):
        return self.inner.list_session_summaries(**{**how, "offset": max(0, how.get("offset", 0) - 1)})


@caught_by(FILTERED)
class ThePageIsCutBeforeTheFilter(Wrapped):
    def list_session_summaries(self, **how):
        rows = self.inner.list_session_summaries(**{**how, "cwd": None})
        return [row for row in rows if how.get("cwd") in (None, row.cwd)]


@caught_by(FILTERED)
class TheFilterDistinguishesCase(Wrapped):
    def list_session_summaries(self, **how):
        query = how.pop("query", None)
        rows = self.inner.list_session_summaries(**how)
        return [row for row in rows if not query or query in (row.first_prompt or "")]


@caught_by("the_sessions_of_subagents_are_listed_only_when_asked_for")
class ChildrenAreAlwaysListed(Wrapped):
    def list_session_summaries(self, **how):
        return self.inner.list_session_summaries(**{**how, "include_children": True})


@caught_by("the_sessions_of_subagents_are_listed_only_when_asked_for")
class NobodyHasChildren(Wrapped):
    def list_children(self, session_id):
        return []


@caught_by("the_summary_is_the_fold_of_the_log_however_it_was_split")
class TheSummaryForgetsUsage(Wrapped):
    def read_summary(self, session_id):
        return dataclasses.replace(self.inner.read_summary(session_id), tokens=0)


@caught_by("a_summary_says_what_a_list_shows")
class ATitleComesFromAToolsInput(Wrapped):
    def list_session_summaries(self, **how):
        rows = self.inner.list_session_summaries(**how)
        return [dataclasses.replace(row, title=row.title or "stolen") for row in rows]


@caught_by("the_time_of_the_last_write_rises_with_every_append")
class TheTimeOfTheLastWriteStays(Wrapped):
    def read_summary(self, session_id):
        summary = self.inner.read_summary(session_id)
        return dataclasses.replace(summary, updated=summary.created)


# --- whole sessions --------------------------------------------------------------------------------------------------


@caught_by("an_imported_session_keeps_ids_numbers_and_times")
class AnImportIsOfToday(Wrapped):
    def import_session(self, session_id, events, *, metadata=None, created_at=None, blobs=()):
        return self.inner.import_session(session_id, events, metadata=metadata, created_at=time.time(), blobs=blobs)


@caught_by("an_imported_session_keeps_ids_numbers_and_times")
class AnImportForgetsBlobs(Wrapped):
    def import_session(self, session_id, events, *, metadata=None, created_at=None, blobs=()):
        return self.inner.import_session(session_id, events, metadata=metadata, created_at=created_at)


@caught_by("an_import_is_complete_or_absent")
class AnImportThatFailsLeavesAPart(Wrapped):
    def import_session(self, session_id, events, *, metadata=None, created_at=None, blobs=()):
        self.inner.create_session(session_id=session_id, metadata=metadata)
        for event in events:
            if not isinstance(event.seq, int) or event.seq != self.inner.last_seq(session_id) + 1:
                raise InvalidEventError("a hole")
            self.inner.append_events(session_id, [event])
        return session_id


@caught_by("a_copy_has_the_same_beginning_and_goes_its_own_way")
class ACopyEndsOneEarly(Wrapped):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        return self.inner.copy_session(source_id, target_id, at_seq=max(0, at_seq - 1), tail=tail, metadata=metadata)


@caught_by("a_copy_keeps_its_blobs_and_metadata_when_its_source_is_gone")
class ACopyUsesTheBlobsOfItsSource(Wrapped):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        self.source = source_id
        return self.inner.copy_session(source_id, target_id, at_seq=at_seq, tail=tail, metadata=metadata)

    def read_blob(self, session_id, sha256):
        return self.inner.read_blob(self.__dict__.get("source", session_id), sha256)


@caught_by("a_copy_keeps_its_blobs_and_metadata_when_its_source_is_gone")
class ACopyHasTheMetadataOfItsSource(Wrapped):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        known = self.inner.read_metadata(source_id)["metadata"]
        return self.inner.copy_session(source_id, target_id, at_seq=at_seq, tail=tail, metadata=known)


LATER = "what_comes_to_a_copy_later_does_not_reach_its_source_nor_the_other_way"


class KnowsSources(Wrapped):
    def copy_session(self, source_id, target_id, **how):
        self.__dict__.setdefault("sources", {})[target_id] = source_id
        return self.inner.copy_session(source_id, target_id, **how)

    def source_of(self, session_id):
        return self.__dict__.get("sources", {}).get(session_id)


@caught_by(LATER)
class ACopySharesItsBlobs(KnowsSources):
    def put_blob(self, session_id, data):
        if source := self.source_of(session_id):
            self.inner.put_blob(source, data)
        return self.inner.put_blob(session_id, data)


@caught_by(LATER)
class ACopySharesItsMetadata(KnowsSources):
    def update_metadata(self, session_id, changes):
        self.inner.update_metadata(self.source_of(session_id) or session_id, changes)


@caught_by("a_copy_of_what_is_not_there_makes_nothing")
class ACopyPastTheEndIsShort(Wrapped):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        at_seq = min(at_seq, self.inner.last_seq(source_id))
        return self.inner.copy_session(source_id, target_id, at_seq=at_seq, tail=tail, metadata=metadata)


@caught_by("a_copy_of_what_is_not_there_makes_nothing")
class ACopyOfNothingLeavesATarget(Wrapped):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        if not self.inner.session_exists(source_id):
            self.inner.create_session(session_id=target_id)
        return self.inner.copy_session(source_id, target_id, at_seq=at_seq, tail=tail, metadata=metadata)


@caught_by("a_read_of_a_session_that_is_deleted_meanwhile_fails_or_is_whole")
class AReadOfADeletedSessionIsShort(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        events = self.inner.iter_events(session_id, after_seq=after_seq, limit=limit)
        for number, event in enumerate(events):
            if number == 100 and not self.inner.session_exists(session_id):
                return
            yield event


@caught_by("a_copy_of_a_session_that_is_deleted_meanwhile_is_whole_or_absent")
class ACopyOfADeletedSessionIsShort(Wrapped):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        events = list(self.inner.iter_events(source_id, limit=at_seq // 2))
        return self.inner.import_session(target_id, events, metadata=metadata)


@caught_by("words_are_found_with_session_seq_and_context")
class SearchFindsOneOfEachSession(Wrapped):
    def search(self, query, *, limit=50, tenant=None):
        return list({hit.session_id: hit for hit in self.inner.search(query, limit=limit)}.values())


@caught_by("words_are_found_with_session_seq_and_context")
class SearchRemembers(Caching):
    def search(self, query, *, limit=50, tenant=None):
        return self.remembered("search", query, limit=limit)


@caught_by("words_are_found_with_session_seq_and_context")
class SearchFindsPartsOfWords(Wrapped):
    def search(self, query, *, limit=50, tenant=None):
        hits = self.inner.search(query, limit=limit)
        return hits or (self.inner.search(f"z{query}", limit=limit) if query.isalpha() else [])


@caught_by("a_follower_learns_of_new_events")
class AFollowerIsNeverTold(Wrapped):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        if self.inner.last_seq(session_id) > after_seq:
            return True
        pause(min(timeout_s, GAP_S), "it waits, but not for an event")
        return False


@caught_by("a_follower_learns_of_new_events")
class AFollowerIsAlwaysTold(Wrapped):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        return True


@caught_by("a_follower_learns_of_what_another_process_appends")
class AFollowerKnowsOneProcessOnly(Caching):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        return self.remembered("last_seq", session_id) > after_seq


@caught_by("a_tenant_lists_and_finds_its_own_sessions_only")
class SearchFindsWhatOthersSaid(Wrapped):
    def search(self, query, *, limit=50, tenant=None):
        return self.inner.search(query, limit=limit)


@caught_by("a_tenant_lists_and_finds_its_own_sessions_only")
class ThePageIsCutBeforeTheTenant(Wrapped):
    def list_session_summaries(self, **how):
        tenant = how.pop("tenant", None)
        rows = self.inner.list_session_summaries(**how)
        return [row for row in rows if tenant is None or (row.tenant or "") == tenant]


@caught_by("a_tenant_lists_and_finds_its_own_sessions_only")
class SessionsWithoutATenantAreEveryones(Wrapped):
    def list_session_summaries(self, **how):
        return self.inner.list_session_summaries(**{**how, "tenant": how.get("tenant") or None})


@caught_by("a_message_waits_until_it_is_removed_whoever_put_it_while_a_run_holds_the_session")
class ReadingTakesMessagesOut(Wrapped):
    def read_messages(self, session_ids, *, after=0):
        found = self.inner.read_messages(session_ids, after=after)
        self.inner.remove_messages([message.number for message in found])
        return found


@caught_by("a_message_waits_until_it_is_removed_whoever_put_it_while_a_run_holds_the_session")
class MessagesNeedTheRightToWrite(Wrapped):
    def put_message(self, session_id, message):
        with self.inner.open_writer(session_id):
            return self.inner.put_message(session_id, message)


@caught_by("messages_go_with_their_session_and_no_copy_has_them")
class MessagesOutliveTheirSession(Wrapped):
    def delete_session(self, session_id, *, expected_seq=None):
        self.__dict__.setdefault("old", []).extend(self.inner.read_messages([session_id]))
        self.inner.delete_session(session_id, expected_seq=expected_seq)

    def read_messages(self, session_ids, *, after=0):
        return [*self.__dict__.get("old", ()), *self.inner.read_messages(session_ids, after=after)]


@caught_by("messages_of_many_sessions_are_read_together_and_of_no_other")
class MessagesComeSessionAfterSession(Wrapped):
    def read_messages(self, session_ids, *, after=0):
        return sorted(self.inner.read_messages(session_ids, after=after), key=lambda each: each.session_id)


@caught_by("a_message_comes_back_as_it_was_put_or_is_refused_whole")
class MessagesAreCut(Wrapped):
    def put_message(self, session_id, message):
        if isinstance(message, dict):
            message = {key: value[:1000] if isinstance(value, str) else value for key, value in message.items()}
        return self.inner.put_message(session_id, message)


@caught_by("a_reader_with_a_cursor_misses_no_message_of_many_who_put_at_once")
class ALaterMessageIsSeenEarlier(Wrapped):
    def read_messages(self, session_ids, *, after=0):
        found = self.inner.read_messages(session_ids, after=after)
        return found[1:] if len(found) > 1 else found


@caught_by("a_message_of_another_process_is_there_although_it_was_killed")
class MessagesStayInTheirProcess(Wrapped):
    def put_message(self, session_id, message):
        self.__dict__.setdefault("kept", []).append(message)
        return len(self.kept)


@caught_by("a_session_that_nobody_reads_takes_no_endless_number_of_messages")
class TheOldestMessageMakesRoom(Wrapped):
    def put_message(self, session_id, message):
        with contextlib.suppress(StorageError):
            return self.inner.put_message(session_id, message)
        self.inner.remove_messages([self.inner.read_messages([session_id])[0].number])
        return self.inner.put_message(session_id, message)


@caught_by("who_follows_many_sessions_learns_which_have_news")
class OneOfManyIsWatched(Wrapped):
    def wait_for_news(self, known, *, timeout_s, messages_after=None):
        return self.inner.wait_for_news(
            dict(list(known.items())[:1]), timeout_s=min(timeout_s, 0.1), messages_after=messages_after
        )


@caught_by("who_follows_many_sessions_learns_which_have_news")
class NewsAreOfAllWhoAreFollowed(Wrapped):
    def wait_for_news(self, known, *, timeout_s, messages_after=None):
        news = self.inner.wait_for_news(known, timeout_s=timeout_s, messages_after=messages_after)
        return set(known) if news else news


@caught_by("a_message_wakes_who_waits_for_messages_until_it_is_taken")
class MessagesWakeNobody(Wrapped):
    def wait_for_news(self, known, *, timeout_s, messages_after=None):
        return self.inner.wait_for_news(known, timeout_s=min(timeout_s, 0.1))


# --- what third-party stores may get wrong ---------------------------------------------------------------------------


@caught_by("every_call_says_when_there_is_no_such_session")
class AFollowerOfNothingWaits(Wrapped):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        with contextlib.suppress(SessionNotFoundError):
            return self.inner.wait_for_events(session_id, after_seq=after_seq, timeout_s=timeout_s)
        return False


@caught_by("every_call_says_when_there_is_no_such_session")
class TheChildrenOfNothingAreAnError(Wrapped):
    def list_children(self, session_id):
        self.inner.last_seq(session_id)
        return self.inner.list_children(session_id)


@caught_by("a_part_of_an_id_finds_its_sessions_and_is_none")
class APartOfAnIdIsASession(Wrapped):
    def session_exists(self, session_id):
        return any(name.startswith(session_id) for name in self.inner.list_sessions())


@caught_by("a_part_of_an_id_finds_its_sessions_and_is_none")
class AnIdIsFoundByItsMiddle(Wrapped):
    def ids_beginning(self, start):
        return [name for name in self.inner.list_sessions() if start in name]


@caught_by("nobody_reads_past_an_event_that_is_gone")
class AHoleIsReadSilentlyInAPart(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        events = self.inner.iter_events(session_id, after_seq=after_seq, limit=limit)
        with contextlib.suppress(*([] if limit is None else [LogCorruptError])):
            yield from events


@caught_by("a_copy_that_is_deleted_takes_nothing_of_its_source_along")
class ADeletedCopyTakesTheBlobsAlong(KnowsSources):
    def delete_session(self, session_id, *, expected_seq=None):
        self.inner.delete_session(session_id, expected_seq=expected_seq)
        self.__dict__.setdefault("bare", set()).add(self.source_of(session_id))

    def read_blob(self, session_id, sha256):
        if session_id in self.__dict__.get("bare", ()):
            raise StorageError("no such blob", session_id=session_id)
        return self.inner.read_blob(session_id, sha256)


@caught_by("a_copy_that_is_deleted_takes_nothing_of_its_source_along")
class ACopyHasTheTagsOfItsSource(Wrapped):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        tags = self.inner.read_metadata(source_id)["metadata"].get("tags", [])
        metadata = {"tags": tags, **metadata}
        return self.inner.copy_session(source_id, target_id, at_seq=at_seq, tail=tail, metadata=metadata)


@caught_by("an_imported_session_keeps_ids_numbers_and_times")
class AnImportHasTheMetadataOfTheLastOne(Wrapped):
    def import_session(self, session_id, events, *, metadata=None, **how):
        self.__dict__.setdefault("all", {}).update(metadata or {})
        return self.inner.import_session(session_id, events, metadata=self.all, **how)


@caught_by("a_follower_learns_of_new_events")
class AFollowerSleepsTheWholeTime(Wrapped):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        pause(timeout_s, "a follower that looks once, at the end")
        return self.inner.last_seq(session_id) > after_seq


REPLACED = "events_that_are_replaced_are_gone_from_all_that_can_be_read"


@caught_by(REPLACED)
class ReplacingDoesNothing(Wrapped):
    def rewrite_events(self, session_id, change):
        change(self.inner.read_events(session_id))


@caught_by(REPLACED)
class ReplacingKeepsTheRow(Wrapped):
    def rewrite_events(self, session_id, change):
        self.row = self.inner.read_summary(session_id)
        self.inner.rewrite_events(session_id, change)

    def read_summary(self, session_id):
        return self.__dict__.get("row") or self.inner.read_summary(session_id)


@caught_by(REPLACED)
class ReplacingKeepsTheWordsOfTheSearch(Wrapped):
    def search(self, query, **how):
        kept = self.__dict__.setdefault("kept", {})
        kept[query] = self.inner.search(query, **how) or kept.get(query, [])
        return kept[query]


@caught_by(REPLACED)
class ReplacingKeepsTheLock(Wrapped):
    def rewrite_events(self, session_id, change):
        self.inner.rewrite_events(session_id, change)
        self.writer = self.inner.open_writer(session_id)


@caught_by(REPLACED)
class ReplacingTakesNoLock(Wrapped):
    def rewrite_events(self, session_id, change):
        with contextlib.suppress(SessionLockedError):
            self.inner.rewrite_events(session_id, change)


@caught_by(REPLACED)
class DeletedBlobsStay(Wrapped):
    def delete_blobs(self, session_id, digests):
        pass


# --- what the contract did not notice --------------------------------------------------------------------------------

NEWS = "who_begins_to_follow_is_told_of_all_that_have_news"
APART = "hostile_ids_are_kept_apart_or_refused"
CLAIMS = "a_request_id_belongs_to_one_session_until_that_is_deleted"
OWN_WAY = "what_comes_to_a_copy_later_does_not_reach_its_source_nor_the_other_way"


@caught_by(NEWS)
class NewsAreOfOneAtATime(Wrapped):
    def wait_for_news(self, known, *, timeout_s, messages_after=None):
        news = self.inner.wait_for_news(known, timeout_s=timeout_s, messages_after=messages_after)
        return set(sorted(news)[:1])


@caught_by(NEWS)
class MessagesHideEvents(Wrapped):
    def wait_for_news(self, known, *, timeout_s, messages_after=None):
        news = self.inner.wait_for_news(known, timeout_s=timeout_s, messages_after=messages_after)
        if messages_after is None or not news:
            return news
        return {message.session_id for message in self.inner.read_messages(known, after=messages_after)} or news


@caught_by(NEWS)
class TheGoneAreNoNewsBesideOthers(Wrapped):
    def wait_for_news(self, known, *, timeout_s, messages_after=None):
        news = self.inner.wait_for_news(known, timeout_s=timeout_s, messages_after=messages_after)
        return {name for name in news if self.inner.session_exists(name)} or news


@caught_by(NEWS)
class MetadataAreNews(Wrapped):
    changes: ClassVar[set[str]] = set()

    def update_metadata(self, session_id, changes):
        self.inner.update_metadata(session_id, changes)
        self.changes.add(session_id)

    def wait_for_news(self, known, *, timeout_s, messages_after=None):
        return self.changes & set(known) or self.inner.wait_for_news(
            known, timeout_s=timeout_s, messages_after=messages_after
        )


@caught_by("a_follower_learns_of_new_events")
class AnyOtherPlaceIsNews(Wrapped):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        return self.inner.last_seq(session_id) != after_seq or self.inner.wait_for_events(
            session_id, after_seq=after_seq, timeout_s=timeout_s
        )


@caught_by("metadata_changes_key_by_key_and_none_removes")
class ChangesOfMetadataAreMergedDeeply(Wrapped):
    def update_metadata(self, session_id, changes):
        before = self.inner.read_metadata(session_id)["metadata"]
        merged = {
            key: {**before[key], **value} if isinstance(value, dict) and isinstance(before.get(key), dict) else value
            for key, value in changes.items()
        }
        self.inner.update_metadata(session_id, merged)


@caught_by("metadata_changes_key_by_key_and_none_removes")
class NoneRemovesInTheDepthToo(Wrapped):
    def update_metadata(self, session_id, changes):
        def without_none(value):
            return {k: without_none(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value

        self.inner.update_metadata(
            session_id, {key: None if value is None else without_none(value) for key, value in changes.items()}
        )


@caught_by("metadata_changes_key_by_key_and_none_removes")
class WhatIsFalseIsRemoved(Wrapped):
    def update_metadata(self, session_id, changes):
        self.inner.update_metadata(session_id, {key: value or None for key, value in changes.items()})


@caught_by("metadata_changes_key_by_key_and_none_removes")
class AChangeIsACreation(Wrapped):
    def update_metadata(self, session_id, changes):
        self.inner.update_metadata(session_id, changes)
        self.__dict__.setdefault("changed_at", {})[session_id] = time.time()

    def read_metadata(self, session_id):
        meta = self.inner.read_metadata(session_id)
        return {**meta, "created_at": self.__dict__.get("changed_at", {}).get(session_id, meta["created_at"])}


def same_ids(form: Callable[[str], str]) -> type:
    """A store that keeps apart only what differs in that form."""

    class Store(Wrapped):
        def create_session(self, *, metadata=None, session_id=None):
            forms = self.__dict__.setdefault("forms", {})
            if session_id is not None and form(session_id) in forms:
                return session_id  # of what it takes for the same
            created = self.inner.create_session(metadata=metadata, session_id=session_id)
            forms[form(created)] = created
            return created

        def append_events(self, session_id, events, *, expected_seq=None):
            name = self.__dict__.get("forms", {}).get(form(session_id), session_id)
            return self.inner.append_events(name, events, expected_seq=expected_seq)

        def put_blob(self, session_id, data):
            return self.inner.put_blob(self.__dict__.get("forms", {}).get(form(session_id), session_id), data)

    return Store


@caught_by(APART)
class IdsAreCut(same_ids(lambda name: name[:100])):
    pass


@caught_by(APART)
class IdsAreNumbersWhereTheyCan(
    same_ids(
        lambda name: str(float(name)) if name.strip("+-. 0123456789e") == "" and any(map(str.isdigit, name)) else name
    )
):
    pass


@caught_by(APART)
class IdsDoNotDistinguishCaseOutsideOfAscii(same_ids(lambda name: name if name.isascii() else name.casefold())):
    pass


@caught_by(APART)
class IdsEndBeforeDots(same_ids(lambda name: name.rstrip(". ") or name)):
    pass


@caught_by("a_part_of_an_id_finds_its_sessions_and_is_none")
class ThePartOfAnIdIsAPattern(Wrapped):
    def ids_beginning(self, start):
        pattern = start.replace("%", "*").replace("_", "?")
        return [name for name in self.inner.list_sessions() if start and fnmatch.fnmatchcase(name, f"{pattern}*")]


@caught_by("a_part_of_an_id_finds_its_sessions_and_is_none")
class NoPartOfAnIdIsAll(Wrapped):
    def ids_beginning(self, start):
        return self.inner.ids_beginning(start) if start else self.inner.list_sessions()


@caught_by("blobs_come_back_as_they_were_and_belong_to_one_session")
class TheSameBlobGoesWithTheFirstWhoIsDeleted(Wrapped):
    def put_blob(self, session_id, data):
        digest = self.inner.put_blob(session_id, data)
        self.__dict__.setdefault("owners", {}).setdefault(digest, set()).add(session_id)
        return digest

    def delete_session(self, session_id, *, expected_seq=None):
        self.inner.delete_session(session_id, expected_seq=expected_seq)
        gone = [digest for digest, owners in self.__dict__.get("owners", {}).items() if session_id in owners]
        self.__dict__.setdefault("gone", set()).update(gone)

    def read_blob(self, session_id, sha256):
        if sha256 in self.__dict__.get("gone", ()):
            raise StorageError("no such blob", session_id=session_id)
        return self.inner.read_blob(session_id, sha256)


@caught_by(REPLACED)
class ABlobThatIsDeletedIsGoneFromCopies(KnowsSources):
    def delete_blobs(self, session_id, digests):
        self.inner.delete_blobs(session_id, digests)
        self.__dict__.setdefault("gone", set()).update((session_id, digest) for digest in digests)

    def read_blob(self, session_id, sha256):
        if (self.source_of(session_id), sha256) in self.__dict__.get("gone", ()):
            raise StorageError("no such blob", session_id=session_id)
        return self.inner.read_blob(session_id, sha256)


@caught_by(OWN_WAY)
class ACopyFollowsItsSource(KnowsSources):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        yield from self.inner.iter_events(session_id, after_seq=after_seq, limit=limit)
        source = self.source_of(session_id)
        if limit is None and source is not None and source != session_id and self.inner.session_exists(source):
            yield from self.inner.iter_events(source, after_seq=max(after_seq, self.inner.last_seq(session_id)))


@caught_by(CLAIMS)
class ACopyHasTheClaimsOfItsSource(KnowsSources):
    def claim_request(self, session_id, request_id):
        owner = self.inner.claim_request(session_id, request_id)
        copies = [copy for copy, source in self.__dict__.get("sources", {}).items() if source == owner]
        return copies[-1] if copies and self.inner.session_exists(copies[-1]) else owner


@caught_by(CLAIMS)
class AClaimComesBackWithTheId(Wrapped):
    def claim_request(self, session_id, request_id):
        kept = self.__dict__.setdefault("claims", {})
        owner = kept.get(request_id)
        if owner is None or not self.inner.session_exists(owner):
            owner = kept[request_id] = self.inner.claim_request(session_id, request_id)
        self.inner.claim_request(session_id, request_id)
        return owner


@caught_by(CLAIMS)
class ClaimsDoNotDistinguishCase(Wrapped):
    def claim_request(self, session_id, request_id):
        return self.inner.claim_request(session_id, request_id.casefold())


@caught_by(CLAIMS)
class ClaimsAreCut(Wrapped):
    def claim_request(self, session_id, request_id):
        return self.inner.claim_request(session_id, request_id[:255])


@caught_by("nobody_reads_past_an_event_that_is_gone")
class AHoleInFrontIsTheEnd(Wrapped):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        has_begun = False
        try:
            for event in self.inner.iter_events(session_id, after_seq=after_seq, limit=limit):
                has_begun = True
                yield event
        except LogCorruptError:
            if has_begun:
                raise


@caught_by("lists_can_be_filtered_and_paged")
class ListsFindWholeWordsOnly(Wrapped):
    def list_session_summaries(self, **how):
        words = (how.get("query") or "").casefold().split()
        rows = self.inner.list_session_summaries(**{**how, "limit": None, "offset": 0})
        found = [row for row in rows if all(word in (row.last_prompt or "").casefold().split() for word in words)]
        first = how.get("offset") or 0
        return found[first:] if how.get("limit") is None else found[first : first + how["limit"]]


@caught_by("lists_find_titles_tags_models_and_ids_as_they_are_now")
class ListsFindPromptsOnly(Wrapped):
    def list_session_summaries(self, **how):
        words = (how.get("query") or "").casefold().split()
        rows = self.inner.list_session_summaries(**how)
        return [row for row in rows if all(word in (row.first_prompt + row.last_prompt).casefold() for word in words)]


@caught_by("lists_find_titles_tags_models_and_ids_as_they_are_now")
class ListsFindWhatOnceWas(Wrapped):
    def list_session_summaries(self, **how):
        once = self.__dict__.setdefault("once", {})
        rows = self.inner.list_session_summaries(**how)
        if how.get("query"):
            kept = once.setdefault(how["query"], {})
            kept.update({row.id: row for row in rows})
            return list(kept.values())
        return rows


@caught_by("the_sessions_of_subagents_are_listed_only_when_asked_for")
class ChildrenOfChildrenAreChildren(Wrapped):
    def list_children(self, session_id):
        children = self.inner.list_children(session_id)
        return [*children, *(name for child in children for name in self.inner.list_children(child))]


def rows_with(change: Callable[[Any], Any]) -> type:
    """A store whose rows are changed in this way, wherever they are shown."""

    class Store(Wrapped):
        def read_summary(self, session_id):
            return change(self.inner.read_summary(session_id))

        def list_session_summaries(self, **how):
            return [change(row) for row in self.inner.list_session_summaries(**how)]

    return Store


SUMMARY = "the_summary_is_the_fold_of_the_log_however_it_was_split"


@caught_by(SUMMARY)
class TagsAreSorted(rows_with(lambda row: changed(row, tags=tuple(sorted(row.tags))))):
    pass


@caught_by(SUMMARY)
class TagsAreInLowerCase(rows_with(lambda row: changed(row, tags=tuple(tag.lower() for tag in row.tags)))):
    pass


@caught_by(SUMMARY)
class TagsAreSplitAtCommas(
    rows_with(lambda row: changed(row, tags=tuple(part.strip() for tag in row.tags for part in tag.split(","))))
):
    pass


@caught_by(SUMMARY)
class EqualTagsAreOne(rows_with(lambda row: changed(row, tags=tuple(dict.fromkeys(row.tags))))):
    pass


@caught_by("an_append_that_expects_another_position_changes_nothing")
class NothingIsAppendedAnywhere(Wrapped):
    def append_events(self, session_id, events, *, expected_seq=None):
        return self.inner.append_events(session_id, events, expected_seq=expected_seq if events else None)


@caught_by("an_imported_session_keeps_ids_numbers_and_times")
class TheBeginningOfTimeIsNow(Wrapped):
    def import_session(self, session_id, events, *, metadata=None, created_at=None, blobs=()):
        how = {"metadata": metadata, "created_at": created_at or None, "blobs": blobs}
        return self.inner.import_session(session_id, events, **how)


@caught_by("words_are_found_with_session_seq_and_context")
class NoHitAtAllIsNoLimit(Wrapped):
    def search(self, query, *, limit=50, tenant=None):
        return self.inner.search(query, limit=limit or 50, tenant=tenant)


@caught_by("a_message_comes_back_as_it_was_put_or_is_refused_whole")
class TheSameMessageIsPutOnce(Wrapped):
    def put_message(self, session_id, message):
        for each in self.inner.read_messages([session_id]):
            if each.message == message:
                return each.number
        return self.inner.put_message(session_id, message)
