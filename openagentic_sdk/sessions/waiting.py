"""Wait for others' changes to a session: new events, and messages to its run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from ..errors import SessionError
from ..ground.backoff import Backoff
from .arguments import check_news, cut_number, cut_wait
from .core import StoreCore
from .inbox import InboxMessage, refuse_message

# How often a follower polls if the store has no better way: soon after news, then less and less often.
POLLS = Backoff(0.002, 0.03)


class PollingStore(StoreCore):
    """A store that waits by polling; a backend with notifications overrides the methods."""

    # Whether a message (`put_message`) from any process that uses the store reaches a session's run.
    has_inbox: ClassVar[bool] = False

    def wait_for_events(self, session_id: str, *, after_seq: int, timeout_s: float) -> bool:
        """Block until the log has an event after `after_seq`; return False on timeout. Raises `SessionNotFoundError`."""
        after_seq, timeout_s = cut_number("after_seq", after_seq), cut_wait(timeout_s)
        deadline, polls = time.monotonic() + timeout_s, POLLS.waits()
        while True:
            if any(True for _ in self.iter_events(session_id, after_seq=after_seq, limit=1)):
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(next(polls), left_s))

    def wait_for_news(
        self, known: Mapping[str, int], *, timeout_s: float, messages_after: int | None = None
    ) -> set[str]:
        """Block until one of the sessions in `known` has an event after the given `seq`, or until the timeout.

        With `messages_after`, also until one has a message with a higher number. Returns the ids of those with news, and of
        those that cannot be read, so that reading them reports the reason. News of a session that this process already
        follows may be missing from the result until the server has notified the process.
        """
        check_news(known, messages_after)
        timeout_s = cut_wait(timeout_s)
        look = self._news_finder(known, messages_after)
        deadline, polls = time.monotonic() + timeout_s, POLLS.waits()
        while True:
            began = time.monotonic()
            news = look(timeout_s if len(known) == 1 and messages_after is None else 0.0)
            now = time.monotonic()
            if news or now >= deadline:
                return news
            # Polling many sessions slows down their writers, so it takes at most about a twentieth of the time.
            time.sleep(min(max(next(polls), 20 * (now - began)), deadline - now))

    def _news_finder(self, last_seqs: Mapping[str, int], messages_after: int | None) -> Callable[[float], set[str]]:
        """Return a function that checks once for news of these sessions; it may block for the given time."""

        def look(timeout_s: float) -> set[str]:
            news = {session_id for session_id, seq in last_seqs.items() if self._has_news(session_id, seq, timeout_s)}
            if messages_after is not None:
                news.update(message.session_id for message in self.read_messages(last_seqs, after=messages_after))
            return news

        return look

    def _has_news(self, session_id: str, after_seq: int, timeout_s: float) -> bool:
        try:
            return self.wait_for_events(session_id, after_seq=after_seq, timeout_s=timeout_s)
        except SessionError:
            return True

    # --- messages to the run of a session -------------------------------------------------------------------------------

    def put_message(self, session_id: str, message: Mapping[str, Any]) -> int:
        """Store a message, a JSON object, durably for the run of the session; return its number.

        Wakes `wait_for_news`. Raises `SessionNotFoundError`, `InvalidEventError` for a message that is not JSON or exceeds
        256 KiB, `StorageError` if too many are waiting, and `OptionsError` if the store has no inbox.
        """
        raise refuse_message()

    def read_messages(self, session_ids: Collection[str], *, after: int = 0) -> list[InboxMessage]:
        """Return the messages of these sessions that wait and have a number above `after`, oldest first.

        An unknown session has none. Numbers increase in the order in which messages become readable: no number below one
        that was already read appears later.
        """
        raise refuse_message()

    def remove_messages(self, numbers: Collection[int]) -> None:
        """Remove messages once their content is in the log. An unknown number is not an error."""
        raise refuse_message()
