"""The common base of stores on servers: writer exclusion, and exactly-once appends even if answers are lost.

Nothing is held on the server while a run waits: a session's row names its holder, and each append is one step that only
takes effect for its writer's epoch and the expected `seq`. If an answer is lost, it is uncertain whether the step took
effect; then the log is compared, word for word, with what was sent.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import ref

from ...errors import (
    ConcurrencyError,
    LeaseLostError,
    SessionError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from ...events import Event
from ...ground.backoff import Backoff
from ...ground.frozen import changed, frozen
from ...ground.garbage import when_collected
from ...serialization import loads_json
from ..arguments import check_news, cut_number, cut_wait, find_possible, is_possible_id
from ..base import dumps_all_stored, stamp_events
from ..core import SessionWriter, check_expected_seq
from ..folds.summary import SessionSummary, moves_summary, start_summary, time_after
from ..folds.view import KeptView
from ..inbox import refuse_message
from ..rewriting import Rewrite
from .database import DatabaseStore, SessionRow, changed_metadata
from .families import Cells, FamilyFold, FamilyTable, SumsFamilies, forget_family, sum_families, summary_or_error
from .holders import Holder, is_dead
from .log_state import LogHead
from .per_process import PerProcess, SharedByName, check_open, check_own
from .server import StoreServer

T = TypeVar("T")
PATIENCE_S = 30.0
# How long a takeover waits while other threads become the writer: some seconds at most.
_FASTER = Backoff(0.001, 0.1, jitter=0.5)


@frozen
class Batch:
    """An append as it is sent: the events as lines, the log's time after each, the log's head after all of them, and whether
    the events change more than the head's counters.
    """

    expected_seq: int
    lines: tuple[str, ...]
    times: tuple[float, ...]
    head: LogHead
    moves: bool

    @classmethod
    def of(cls, head: LogHead, stamped: Sequence[Event]) -> Batch:
        # First, because it refuses anything that is not an event.
        lines = tuple(dumps_all_stored(stamped))
        expected_seq, updated, times = head.last_seq, head.updated, []
        for event in stamped:
            updated = time_after(updated, event.ts)
            times.append(updated)
        moves = not stamped or any(map(moves_summary, stamped))
        head = head.after(stamped) if moves else head.counted(expected_seq + len(stamped), updated)
        return cls(expected_seq, lines, tuple(times), head, moves)


S = TypeVar("S", bound=StoreServer)


def _leave(servers: SharedByName[S], joined: PerProcess[S]) -> None:
    if server := joined.take():
        servers.leave(server)


class RemoteStore(SumsFamilies, DatabaseStore, Generic[S]):
    """A store on a server. Subclasses implement the atomic steps."""

    is_remote = True
    _patience_s: float
    _first_s = 0.0
    _servers: SharedByName[S]
    _joined: PerProcess[S]

    @property
    def _server(self) -> S:
        """The server, as shared by the stores of this process."""
        return self._joined.get()

    def _wait_for_server(self, patience_s: float | None) -> None:
        """Limit every wait for the server; None means `PATIENCE_S`, and no retries until a connection has succeeded."""
        self._patience_s, self._first_s = (PATIENCE_S, 0.0) if patience_s is None else (patience_s, patience_s)

    def _join(self, *name: Any) -> None:
        """Share the server of this name with the other stores of this process, from first use on."""
        self.place = self._servers, name
        self._joined = PerProcess(partial(self._servers.join, *name))
        when_collected(self, _leave, self._servers, self._joined)

    def close(self) -> None:
        _leave(self._servers, self._joined)

    @abstractmethod
    def _position_on(self, db: Any, session_id: str) -> SessionRow:
        """The session's row. Raises `SessionNotFoundError`."""

    @abstractmethod
    def _event_rows_on(self, db: Any, at: SessionRow, after_seq: int, size: int) -> list[tuple[int, str]]:
        """The `seq` and the JSON of each of the next events after `after_seq`, at most `size`."""

    @abstractmethod
    def _send(self, db: Any, at: SessionRow, batch: Batch, epoch: int, holder: str) -> bool:
        """Append the batch if epoch, holder, revision and last `seq` are still those of `at`; return whether it did.

        The row then has this `epoch` and `holder`.
        """

    @abstractmethod
    def _claim(self, db: Any, at: SessionRow, holder: str) -> bool:
        """Give the session the next epoch and this holder if epoch and holder are still those of `at`.

        Return whether it did. The holder "" releases the session.
        """

    @abstractmethod
    def _delete(self, db: Any, at: SessionRow) -> bool:
        """Delete the session if epoch, holder and last `seq` are still those of `at`; return whether it did."""

    @abstractmethod
    def _change_metadata(self, db: Any, at: SessionRow, metadata: str, head: LogHead) -> bool:
        """Set metadata and summary, and increment the revision, if revision and last `seq` are still those of `at`.

        Return whether it did.
        """

    @abstractmethod
    def _families(self) -> FamilyTable | None:
        """The sums over families of sessions; None if the server cannot keep them."""

    def _call(self, session_id: str | None, work: Callable[[Any], T]) -> T:
        if session_id is not None:
            find_possible(session_id, self._server.where)
        return self._server.call(session_id, work, self._patience_s, first_s=self._first_s)

    def _position(self, session_id: str) -> SessionRow:
        name = find_possible(session_id, self._server.where)
        return self._call(name, lambda db: self._position_on(db, name))

    def _event_rows(self, at: SessionRow, after_seq: int, size: int) -> Sequence[tuple[int, str]]:
        return self._call(at.id, lambda db: self._event_rows_on(db, at, after_seq, size))

    # --- writer exclusion ---------------------------------------------------------------------------------------------

    def open_writer(self, session_id: str) -> SessionWriter:
        at = self._position(session_id)
        self._refuse_if_held(at)
        writer = self._writer_at(at)
        if writer is None:
            raise SessionLockedError(session_id, "a run that was faster")
        return writer

    def take_over(self, session_id: str) -> SessionWriter:
        for wait_s in islice(_FASTER.waits(), 100):
            writer = self._writer_at(self._position(session_id))
            if writer is not None:
                return writer
            time.sleep(wait_s)
        raise SessionLockedError(session_id, "another run of this process")

    def _writer_at(self, at: SessionRow) -> SessionWriter | None:
        """Become the writer after that position; return None if another writer, or another thread here, was faster."""
        holder, epoch = self._server.holder, at.epoch + 1
        # Before the server is asked: the heartbeat must already run if the claim takes effect and its answer is lost.
        is_new = holder.claim(at.key, epoch)
        if is_new is None:
            return None
        try:
            if self._call(at.id, lambda db: self._claim_once(db, at, holder.name, is_new=is_new)):
                # Read again: the row may have changed between the first reading and the claim, and this is the writer's
                # starting point.
                now = self._position(at.id)
                if (now.key, now.epoch, now.holder) == (at.key, epoch, holder.name):
                    return RemoteWriter(self, now, holder)
        except BaseException:  # also on Ctrl-C: give up a claim that nobody uses, and that may have taken effect
            unused = changed(at, epoch=epoch, holder=holder.name)
            holder.release_later(partial(self._release_unused, unused))
            if is_new:
                holder.drop(at.key, epoch)
            raise
        finally:
            holder.claimed(at.key, epoch)
        if is_new:
            holder.drop(at.key, epoch)
        return None

    def _claim_once(self, db: Any, at: SessionRow, holder: str, *, is_new: bool) -> bool:
        """Claim the session, and recognize our own claim if its answer was lost."""
        if (is_claimed := self._claim(db, at, holder)) or not is_new:
            return is_claimed
        now = self._position_on(db, at.id)
        return (now.key, now.epoch, now.holder) == (at.key, at.epoch + 1, holder)

    def _lock_of(self, at: SessionRow) -> SessionLockedError | None:
        # A holder counts as alive while its lease lasts, unless it was a process of this host that has died.
        if not at.holder or at.lease_left_s <= 0:
            return None
        holder = self._server.holder
        # A valid lease does not prove that this process has a writer: the answer to its claim may have been lost.
        if at.holder == holder.name:
            is_ours = holder.holds(at.key, at.epoch)
            return SessionLockedError(at.id, "another run of this process") if is_ours else None
        return None if is_dead(at.holder) else SessionLockedError(at.id, at.holder.partition(" ")[2], at.lease_left_s)

    def _release(self, at: SessionRow) -> None:
        """Release the session, unless somebody else holds it by now, or it was deleted."""
        with suppress(SessionNotFoundError):
            self._server.call(at.id, lambda db: self._claim(db, at, ""), min(self._patience_s, 1.0))

    def _release_unused(self, at: SessionRow) -> None:
        """Release a claim that nobody uses, if it took effect and no writer of this process has the same epoch by now."""
        with suppress(SessionNotFoundError):
            # Read before `holds` is called: a later claim that this row shows is announced by then.
            took_effect = self._position(at.id).epoch == at.epoch
            if took_effect and not self._server.holder.holds(at.key, at.epoch):
                self._release(at)

    # --- appending ---------------------------------------------------------------------------------------------------

    def append_events(
        self, session_id: str, events: Sequence[Event], *, expected_seq: int | None = None
    ) -> list[Event]:
        while True:
            at = self._position(session_id)
            self._refuse_if_held(at)
            check_expected_seq(session_id, expected_seq, at.head.last_seq)
            stamped = stamp_events(events, first_seq=at.head.last_seq + 1, now=self._clock.now())
            # A holder wrongly considered dead must not append after us.
            epoch = at.epoch + 1 if at.holder else at.epoch
            if self._store_once(at, Batch.of(at.head, stamped), epoch, ""):
                return stamped

    def _store_once(self, at: SessionRow, batch: Batch, epoch: int, holder: str) -> bool:
        """Store the batch after that position, once; False if the session's log no longer ends there."""
        attempts = 0

        def attempt(db: Any) -> bool:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and self._is_stored(db, at, batch):
                return True
            # An earlier attempt may also take effect just before this one.
            return self._send(db, at, batch, epoch, holder) or (attempts > 1 and self._is_stored(db, at, batch))

        return self._call(at.id, attempt)

    def _is_stored(self, db: Any, at: SessionRow, batch: Batch) -> bool:
        """Whether a batch whose answer was lost took effect: the log contains it, word for word, at its position."""
        rows = self._event_rows_on(db, at, batch.expected_seq, len(batch.lines))
        return bool(rows) and [text for _, text in rows] == list(batch.lines)

    # --- other changes ------------------------------------------------------------------------------------------------

    def update_metadata(self, session_id: str, changes: Any) -> None:
        while True:
            at = self._position(session_id)
            new = changed_metadata(at.metadata, changes)
            if new == at.metadata:
                return
            old_start, start = (
                start_summary(session_id, at.created_at, loads_json(each)) for each in (at.metadata, new)
            )
            head = at.head
            if start != old_start:
                # The summary starts from the metadata: fold the log again from the new metadata.
                head = LogHead(start).after(self.iter_events(session_id, limit=at.head.last_seq))
            change = partial(self._change_metadata, at=at, metadata=new, head=head)
            if head.last_seq == at.head.last_seq and self._call(session_id, change):
                return

    def _keep_folded(self, at: SessionRow, folded: SessionSummary) -> None:
        if at.head.last_seq == folded.events:
            self._call(at.id, partial(self._change_metadata, at=at, metadata=at.metadata, head=LogHead(folded)))

    def delete_session(self, session_id: str, *, expected_seq: int | None = None) -> None:
        self.refuse_kept(session_id)
        sent_row: SessionRow | None = None
        while True:
            try:
                at = self._position(session_id)
            except SessionNotFoundError:
                # The answer to the previous attempt may have been lost.
                if sent_row is None:
                    raise
                return
            # Deleted by the previous attempt; this is a new session with the same id.
            if sent_row is not None and sent_row.key != at.key:
                return
            self._refuse_if_held(at)
            check_expected_seq(session_id, expected_seq, at.head.last_seq)
            sent_row = at
            if self._call(session_id, partial(self._delete, at=at)):
                self._forget_family(session_id)
                return

    # --- sums ---------------------------------------------------------------------------------------------------------

    def family_sums(self, fold: FamilyFold, kinds: Sequence[str]) -> Cells | None:
        table = self._families()
        return None if table is None else sum_families(table, fold, kinds, self.index_progress)

    def rewrite_events(self, session_id: str, change: Rewrite) -> None:
        super().rewrite_events(session_id, change)
        self._forget_family(session_id)

    def _forget_family(self, session_id: str) -> None:
        """Remove the session's family from the sums, which contain names from its log.

        If that fails, the next report does it.
        """
        with suppress(StorageError):
            if (table := self._families()) is not None:
                forget_family(table, session_id)

    def _summary_in(self, at: SessionRow) -> SessionSummary | None:
        return at.head.summary if at.head.is_kept else summary_or_error(self.kept_summary, at.id, self._failed_row)

    def _row(self, session_id: str) -> SessionSummary:
        row = summary_or_error(self.read_summary, session_id, self._failed_row)
        return row or super()._failed_row(session_id, SessionNotFoundError(session_id, self._server.where))

    def _failed_row(self, session_id: str, error: Exception) -> SessionSummary:
        # Filters would drop the row, and a list without it, or a sum, would look complete.
        if self._server.is_unreachable(error):
            raise error
        return super()._failed_row(session_id, error)

    # --- news ---------------------------------------------------------------------------------------------------------

    def wait_for_events(self, session_id: str, *, after_seq: int, timeout_s: float) -> bool:
        after_seq, timeout_s = cut_number("after_seq", after_seq), cut_wait(timeout_s)
        find_possible(session_id, self._server.where)
        news = self._server.news.wait({session_id: after_seq}, None, timeout_s)
        # A deleted session raises here.
        return bool(news) and (news[session_id] or self.last_seq(session_id) > after_seq)

    def wait_for_news(
        self, known: Mapping[str, int], *, timeout_s: float, messages_after: int | None = None
    ) -> set[str]:
        check_news(known, messages_after)
        timeout_s = cut_wait(timeout_s)
        if messages_after is not None and not self.has_inbox:
            raise refuse_message()
        unknown = {name for name in known if not is_possible_id(name)}
        return unknown or set(self._server.news.wait(known, messages_after, timeout_s))


class RemoteWriter(SessionWriter):
    """A writer that tracks the end of its log, which each append verifies."""

    def __init__(self, store: RemoteStore[Any], at: SessionRow, holder: Holder) -> None:
        self.session_id = at.id
        self.epoch = at.epoch
        self._store = store
        self._at = at
        self._holder = holder
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._open = True
        # Set during an append: after an interrupt, the log shows whether it took effect.
        self._in_doubt = False

    @property
    def last_seq(self) -> int:
        return self._at.head.last_seq

    def append(self, events: Sequence[Event]) -> list[Event]:
        check_own(self.session_id, self._pid)
        with self._lock:
            check_open(self.session_id, self._open)
            was_in_doubt = self._in_doubt
            if was_in_doubt:
                self._look()
            while True:
                at = self._at
                stamped = stamp_events(events, first_seq=at.head.last_seq + 1, now=self._store._clock.now())
                batch = Batch.of(at.head, stamped)
                if self._sent(batch):
                    self._in_doubt = False
                    return stamped
                self._look()
                # The metadata changed, or an uncertain append arrived only now; nobody else has our epoch.
                if self._at.revision == at.revision and not was_in_doubt:
                    raise ConcurrencyError(self.session_id, at.head.last_seq, self._at.head.last_seq)
                was_in_doubt = False

    def _sent(self, batch: Batch) -> bool:
        self._in_doubt = True
        try:
            if not self._store._store_once(self._at, batch, self.epoch, self._holder.name):
                return False
        except BaseException:
            # Ctrl-C, or a server that was unreachable for too long: find out what is stored while that is easy.
            self._look_briefly()
            raise
        self._at = changed(self._at, head=batch.head)
        return True

    def _look(self) -> None:
        """Read the end of the log. Raises `LeaseLostError` if somebody else holds the session by now."""
        now = self._store._position(self.session_id)
        if not self._is_mine(now):
            raise LeaseLostError(self.session_id, self.last_seq, now.head.last_seq)
        self._at = now

    def _look_briefly(self) -> None:
        try:
            work = self._store._position_on
            now = self._store._server.call(self.session_id, lambda db: work(db, self.session_id), 1.0)
        except SessionError:
            return
        if self._is_mine(now):
            self._at = now

    def _is_mine(self, now: SessionRow) -> bool:
        # A server that lost its last second may assign an epoch again, to another holder.
        return (now.key, now.epoch, now.holder) == (self._at.key, self.epoch, self._holder.name)

    def keep_view(self, kept: KeptView) -> None:
        self._store.keep_view(self.session_id, kept)

    def close(self) -> None:
        with self._lock:
            if not self._open or self._pid != os.getpid():
                return
            self._open = False
        at = self._at
        try:
            self._store._release(at)
            # A weak reference: the release is remembered for a thousand sessions, and must not keep a store that nobody
            # uses.
            self._holder.released(partial(_release_through, ref(self._store), at))
        except SessionError:
            # The server is unreachable: release the session here now, and on the server with a heartbeat.
            self._holder.release_later(partial(self._store._release, at))
        self._holder.drop(at.key, self.epoch)


def _release_through(store: ref[RemoteStore[Any]], at: SessionRow) -> None:
    """Release the session once more, if the store is still in use and no writer of this process has it again."""
    if (found := store()) is not None:
        found._release_unused(at)
