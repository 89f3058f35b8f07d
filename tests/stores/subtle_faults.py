"""More stores with one fault each, most of them in what is shared, looked up, copied or reported: see `faulty`."""

from __future__ import annotations

import contextlib
import copy
import threading
import unicodedata
from collections.abc import Callable
from typing import Any

from openagentic_sdk.errors import (
    InvalidEventError,
    LeaseLostError,
    LogCorruptError,
    SessionHeldError,
    SessionNotFoundError,
    StorageError,
)
from openagentic_sdk.events import UserMessage
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.sessions.base import SessionPage, read_cursor
from openagentic_sdk.sessions.folds.search import event_text

from .faulty import KnowsSources, Wrapped, WrappedWriter, _delegate, _texts, caught_by, open_faulty, writing

__all__ = ["open_faulty"]

VALUES = "metadata_are_values_of_json_or_are_refused_whole"
WHOLE = "imports_and_copies_of_copies_are_whole_even_when_their_sources_are_gone"
REPLACED = "events_are_replaced_together_or_not_at_all_and_in_no_other_session"
SHARED = "changing_what_was_passed_or_returned_changes_nothing_stored"
FOUND = "words_are_found_with_session_seq_and_context"
PAGES = "pages_by_cursor_give_each_session_once_though_others_are_made_written_to_and_deleted"
FILTERED = "lists_can_be_filtered_and_paged"
EXACT = "an_id_is_looked_up_as_it_was_created"
TOLD = "all_followers_of_a_session_learn_of_its_events_and_its_end_and_of_no_other"
FENCED = "a_holder_that_hangs_cannot_append_after_its_replacement_ended_or_its_session_began_anew"
SHOWN = "a_summary_says_what_a_list_shows"
QUESTIONS = "a_run_that_nobody_runs_any_more_is_stopped_and_questions_of_subagents_are_shown"
GONE = "a_deleted_session_is_gone_and_its_id_starts_clean"
KEPT = "a_session_on_hold_or_retained_is_not_deleted"
BLOBS = "blobs_come_back_as_they_were_and_belong_to_one_session"

_ALSO = ("page_sessions", "read_run_state", "open_question_ids", "is_held", "kept_summary")
Wider: Any = type("Wider", (Wrapped,), {name: _delegate(name) for name in _ALSO})


def with_metadata(change: Callable[[Any], Any]) -> type:
    """A store that returns metadata with each value changed."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: change(walk(each)) for key, each in value.items() if change(each) is not ...}
        return [walk(each) for each in value] if isinstance(value, list) else change(value)

    class Store(Wider):
        def read_metadata(self, session_id):
            return walk(self.inner.read_metadata(session_id))

    return Store


def with_rows(**values: Callable[[Any], Any]) -> type:
    """A store whose rows have changed fields, wherever they are shown."""

    def new(row):
        return changed(row, **{name: change(getattr(row, name)) for name, change in values.items()})

    class Store(Wider):
        def read_summary(self, session_id):
            return new(self.inner.read_summary(session_id))

        def list_session_summaries(self, **how):
            return [new(row) for row in self.inner.list_session_summaries(**how)]

    return Store


def looked_up(form: Callable[[str], str]) -> type:
    """A store that finds a session also by another spelling of its id."""

    def found(store, session_id):
        names = [name for name in store.inner.list_sessions() if form(name) == form(session_id)]
        return session_id if session_id in names or not names else names[0]

    def call(name):
        return lambda self, session_id, *how, **named: getattr(self.inner, name)(found(self, session_id), *how, **named)

    names = ("iter_events", "read_metadata", "last_seq", "session_exists", "open_writer", "read_blob")
    return type("Store", (Wider,), {name: call(name) for name in names})


def _ascii_lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


for _name, _test, _fault in (
    (
        "NumbersOfMetadataAreFloats",
        VALUES,
        with_metadata(lambda each: float(each) if type(each) is int and 2**53 < abs(each) < 2**99 else each),
    ),
    ("EmptyListsOfMetadataAreLost", VALUES, with_metadata(lambda each: ... if each == [] else each)),
    ("BatchesAreCutAt1000", "ten_thousand_events_are_complete_and_in_order", writing(lambda events: events[:1000])),
    ("TextsAreCutAt2Mb", "every_text_and_value_of_json_survives", _texts(lambda text: text[:2_000_000])),
    ("CostsAreInCents", SHOWN, with_rows(cost_usd=lambda cost: cost and round(cost, 2))),
    ("TokensHave32Bits", SHOWN, with_rows(tokens=lambda tokens: min(tokens, 2**31 - 1))),
    ("TitlesAreAscii", SHOWN, with_rows(title=lambda title: title and title.encode("ascii", "replace").decode())),
    ("LookUpsIgnoreCase", EXACT, looked_up(str.casefold)),
    ("LookUpsTrim", EXACT, looked_up(lambda name: name.strip(" ."))),
    ("LookUpsNormalise", EXACT, looked_up(lambda name: unicodedata.normalize("NFC", name))),
):
    caught_by(_test)(type(_name, (_fault,), {}))


@caught_by("ten_thousand_events_are_complete_and_in_order")
class ReadsAreCutAtOnePage(Wider):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        return self.inner.iter_events(session_id, after_seq=after_seq, limit=None if limit is None else min(limit, 500))


@caught_by(VALUES)
class BadMetadataAreStoredInPart(Wider):
    def update_metadata(self, session_id, changes):
        for key, value in changes.items():
            self.inner.update_metadata(session_id, {key: value})


@caught_by(VALUES)
class BadMetadataLeaveASession(Wider):
    def create_session(self, *, metadata=None, session_id=None):
        session_id = self.inner.create_session(session_id=session_id)
        self.inner.update_metadata(session_id, metadata or {})
        return session_id


@caught_by(WHOLE)
class AnImportKeepsOneBlob(Wider):
    def import_session(self, session_id, events, *, blobs=(), **how):
        return self.inner.import_session(session_id, events, blobs=list(blobs)[:1], **how)


@caught_by(WHOLE)
class AnImportLosesItsLastPage(Wider):
    def import_session(self, session_id, events, **how):
        events = list(events)
        return self.inner.import_session(session_id, events[: len(events) // 500 * 500 or None], **how)


@caught_by(WHOLE)
class CreationTimesHaveMilliseconds(Wider):
    def read_metadata(self, session_id):
        meta = self.inner.read_metadata(session_id)
        return {**meta, "created_at": round(meta["created_at"], 3)}


@caught_by(WHOLE)
class ATailIsTurnedAround(Wider):
    def copy_session(self, source_id, target_id, *, at_seq, tail, metadata):
        return self.inner.copy_session(source_id, target_id, at_seq=at_seq, tail=tail[::-1], metadata=metadata)


@caught_by(WHOLE)
class ACopyOfACopyNeedsTheFirst(KnowsSources):
    def iter_events(self, session_id, *, after_seq=0, limit=None):
        sources = self.__dict__.get("sources", {})
        source = sources.get(session_id)
        if source in sources and not self.inner.session_exists(source):
            raise LogCorruptError(session_id, 1, 0, "missing")
        return self.inner.iter_events(session_id, after_seq=after_seq, limit=limit)


@caught_by(WHOLE)
class TheNextSearchFindsCopies(Wider):
    def copy_session(self, source_id, target_id, **how):
        self.new = target_id
        return self.inner.copy_session(source_id, target_id, **how)

    def search(self, query, **how):
        new = self.__dict__.pop("new", None)
        return [hit for hit in self.inner.search(query, **how) if hit.session_id != new]


@caught_by(REPLACED)
class ReplacingReachesCopies(KnowsSources):
    def rewrite_events(self, session_id, change):
        self.inner.rewrite_events(session_id, change)
        for target, source in self.__dict__.get("sources", {}).items():
            if source == session_id:
                self.inner.rewrite_events(target, change)


@caught_by(REPLACED)
class ReplacingEndsAfterAPage(Wider):
    def rewrite_events(self, session_id, change):
        self.inner.rewrite_events(
            session_id,
            lambda events: {seq: event for seq, event in change(events).items() if not 500 < seq < 700},
        )


@caught_by(REPLACED)
class TheGoodPartIsReplaced(Wider):
    def rewrite_events(self, session_id, change):
        try:
            self.inner.rewrite_events(session_id, change)
        except InvalidEventError:
            self.inner.rewrite_events(
                session_id,
                lambda events: {seq: event for seq, event in change(events).items() if event.type == "user.message"},
            )
            raise


@caught_by(REPLACED)
class ADeletedBlobStaysDeleted(Wider):
    def delete_blobs(self, session_id, digests):
        self.inner.delete_blobs(session_id, digests)
        self.gone = set(digests)

    def read_blob(self, session_id, sha256):
        if sha256 in self.__dict__.get("gone", ()):
            raise StorageError("no such blob", session_id=session_id)
        return self.inner.read_blob(session_id, sha256)


@caught_by("events_that_are_replaced_are_gone_from_all_that_can_be_read")
class ReplacingEndsClaims(Wider):
    def rewrite_events(self, session_id, change):
        self.inner.rewrite_events(session_id, change)
        self.ended = session_id

    def claim_request(self, session_id, request_id):
        owner = self.inner.claim_request(session_id, request_id)
        return session_id if owner == self.__dict__.get("ended") else owner


@caught_by(BLOBS)
class BlobsAreStripped(Wider):
    def read_blob(self, session_id, sha256):
        return self.inner.read_blob(session_id, sha256).rstrip(b"\0\r\n ")


@caught_by(BLOBS)
class BlobsAreCutAt4Mb(Wider):
    def read_blob(self, session_id, sha256):
        return self.inner.read_blob(session_id, sha256)[: 4 << 20]


@caught_by(SHARED)
class BlobsAreThoseThatWerePut(Wider):
    def put_blob(self, session_id, data):
        digest = self.inner.put_blob(session_id, data)
        self.__dict__.setdefault("blobs", {})[digest] = data
        return digest

    def read_blob(self, session_id, sha256):
        return bytes(self.__dict__.get("blobs", {}).get(sha256) or self.inner.read_blob(session_id, sha256))


@caught_by(SHARED)
class ReturnedEventsAreThoseThatAreRead(Wider):
    def append_events(self, session_id, events, **how):
        stored = self.inner.append_events(session_id, events, **how)
        self.__dict__.setdefault("events", {}).update({(session_id, event.seq): event for event in stored})
        return stored

    def iter_events(self, session_id, **how):
        events = self.__dict__.get("events", {})
        for event in self.inner.iter_events(session_id, **how):
            yield copy.deepcopy(events.get((session_id, event.seq), event))


@caught_by(SHARED)
class ChangesOfMetadataAreThoseThatArePassed(Wider):
    def update_metadata(self, session_id, changes):
        self.inner.update_metadata(session_id, changes)
        self.__dict__.setdefault("values", {}).update(changes)

    def read_metadata(self, session_id):
        meta = self.inner.read_metadata(session_id)
        values = self.__dict__.get("values", {})
        metadata = {key: copy.deepcopy(values.get(key, value)) for key, value in meta["metadata"].items()}
        return {**meta, "metadata": metadata}


@caught_by("a_message_comes_back_as_it_was_put_or_is_refused_whole")
class MessagesAreThoseThatWerePut(Wider):
    def put_message(self, session_id, message):
        number = self.inner.put_message(session_id, message)
        self.__dict__.setdefault("messages", {})[number] = message
        return number

    def read_messages(self, session_ids, *, after=0):
        messages = self.__dict__.get("messages", {})
        return [
            changed(each, message=copy.deepcopy(messages.get(each.number, each.message)))
            for each in self.inner.read_messages(session_ids, after=after)
        ]


@caught_by("a_message_waits_until_it_is_removed_whoever_put_it_while_a_run_holds_the_session")
class RemovingAMessageRemovesThoseBefore(Wider):
    def remove_messages(self, numbers):
        last = max((number for number in numbers if number < 10**8), default=0)
        self.inner.remove_messages([*range(max(0, last - 10), last), *numbers])


@caught_by(FOUND)
class SearchReadsTheFirstTenThousandCharacters(Wider):
    def search(self, query, **how):
        hits = self.inner.search(query, **how)
        return [hit for hit in hits if len(event_text(self._event(hit))) < 10_000]

    def _event(self, hit):
        return self.inner.read_events(hit.session_id, after_seq=hit.seq - 1, limit=1)[0]


@caught_by(FOUND)
class SearchDistinguishesCaseOutsideOfAscii(SearchReadsTheFirstTenThousandCharacters):
    def search(self, query, **how):
        hits = self.inner.search(query, **how)
        return [
            hit for hit in hits if query.isascii() or _ascii_lower(query) in _ascii_lower(event_text(self._event(hit)))
        ]


@caught_by(FOUND)
class SearchEndsAtFifty(Wider):
    def search(self, query, *, limit=50, tenant=None):
        return self.inner.search(query, limit=min(limit, 50), tenant=tenant)


@caught_by("lists_find_titles_tags_models_and_ids_as_they_are_now")
class ListsDistinguishCaseOutsideOfAscii(Wider):
    def list_session_summaries(self, *, query=None, **how):
        rows = self.inner.list_session_summaries(query=query, **how)
        words = _ascii_lower(query or "").split()
        texts = {row.id: _ascii_lower(" ".join([row.title or "", row.id, *row.tags])) for row in rows}
        return [row for row in rows if all(word.isascii() or word in texts[row.id] for word in words)]


@caught_by("pages_make_up_the_whole_list_and_the_order_stays")
class ListsEndAtAHundred(Wider):
    def list_session_summaries(self, **how):
        return self.inner.list_session_summaries(**how)[:100]


@caught_by(PAGES)
class PagesIgnoreTheirQuery(Wider):
    def page_sessions(self, *, query=None, **how):
        return self.inner.page_sessions(**how)


@caught_by(PAGES)
class PagesHaveNoChildren(Wider):
    def page_sessions(self, *, include_children=False, **how):
        return self.inner.page_sessions(**how)


@caught_by(PAGES)
class ACursorEndsWithItsSession(Wider):
    def page_sessions(self, *, limit, after=None, **how):
        place = read_cursor(after)
        if place is not None and not self.inner.session_exists(place[2]):
            return SessionPage([])
        return self.inner.page_sessions(limit=limit, after=after, **how)


@caught_by(FILTERED)
class TheFolderIsAPrefix(Wider):
    def list_session_summaries(self, *, cwd=None, limit=None, offset=0, **how):
        rows = self.inner.list_session_summaries(**how)
        rows = [row for row in rows if cwd is None or (row.cwd or "").startswith(cwd)]
        return rows[offset:] if limit is None else rows[offset : offset + limit]


@caught_by(FILTERED)
class TheFolderIgnoresCase(Wider):
    def list_session_summaries(self, *, cwd=None, limit=None, offset=0, **how):
        rows = self.inner.list_session_summaries(**how)
        rows = [row for row in rows if cwd is None or (row.cwd or "").lower() == cwd.lower()]
        return rows[offset:] if limit is None else rows[offset : offset + limit]


@caught_by(FENCED)
class AReplacedHolderWritesAfterItsReplacement(Wider):
    class writer(WrappedWriter):
        store: Any

        def append(self, events):
            try:
                return self.inner.append(events)
            except LeaseLostError:
                return self.store.append_events(self.session_id, events)

    def open_writer(self, session_id):
        writer = self.writer(self.inner.open_writer(session_id))
        writer.store = self.inner
        return writer


@caught_by(TOLD)
class OneFollowerIsTold(Wider):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        lock = self.__dict__.setdefault("lock", threading.Lock())
        if not lock.acquire(blocking=False):
            return False
        with contextlib.ExitStack() as stack:
            stack.callback(lock.release)
            return self.inner.wait_for_events(session_id, after_seq=after_seq, timeout_s=timeout_s)


@caught_by(TOLD)
class EventsOfOthersAreNews(Wider):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        if self.inner.wait_for_events(session_id, after_seq=after_seq, timeout_s=min(timeout_s, 0.2)):
            return True
        return any(self.inner.last_seq(name) > after_seq for name in self.inner.list_sessions())


@caught_by(TOLD)
class TheEndIsNoNews(Wider):
    def wait_for_events(self, session_id, *, after_seq, timeout_s):
        try:
            return self.inner.wait_for_events(session_id, after_seq=after_seq, timeout_s=timeout_s)
        except SessionNotFoundError:
            return False


@caught_by(KEPT)
class HoldsAreIgnored(Wider):
    def delete_session(self, session_id, *, expected_seq=None):
        try:
            self.inner.delete_session(session_id, expected_seq=expected_seq)
        except SessionHeldError:
            self.inner.rewrite_events(
                session_id, lambda events: {event.seq: UserMessage("", seq=event.seq, ts=event.ts) for event in events}
            )
            self.inner.delete_session(session_id)


@caught_by(SHOWN)
class EveryRunIsIdle(Wider):
    def read_run_state(self, session_id):
        self.inner.read_run_state(session_id)
        return "idle"


@caught_by(QUESTIONS)
class SubagentsAskNobody(Wider):
    def open_question_ids(self, session_id):
        return self.inner.kept_summary(session_id).open_questions


@caught_by(GONE)
class TheDeletedAreEmpty(Wider):
    def iter_events(self, session_id, **how):
        return self.inner.iter_events(session_id, **how) if self.inner.session_exists(session_id) else iter(())


@caught_by(GONE)
class TheDeletedAreChildren(Wider):
    def delete_session(self, session_id, **how):
        row = self.inner.kept_summary(session_id)
        self.inner.delete_session(session_id, **how)
        self.__dict__.setdefault("gone", []).append(row)

    def list_children(self, session_id):
        gone = [row.id for row in self.__dict__.get("gone", []) if row.parent == session_id]
        return [*self.inner.list_children(session_id), *gone]


@caught_by(GONE)
class ChildrenGoWithTheirParent(Wider):
    def delete_session(self, session_id, **how):
        children = self.inner.list_children(session_id)
        self.inner.delete_session(session_id, **how)
        for child in children:
            self.inner.delete_session(child)
