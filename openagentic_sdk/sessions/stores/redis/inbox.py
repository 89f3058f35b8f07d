"""Messages to the runs of sessions in Redis: a hash beside each session, and one that finds a message by its number."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from ...arguments import cut_number, cut_numbers, is_possible_id
from ...inbox import MAX_WAITING, InboxMessage, dumps_message, full_inbox, loads_message
from .listed import ListedRedis
from .scripts import run

# Within this time, a message that is put again because the answer was lost counts as the same one, and a create that
# arrives late finds that its session was deleted.
TOKEN_S = 600


class RedisInbox(ListedRedis):
    """The inbox methods of `RedisSessionStore`."""

    has_inbox = True

    def put_message(self, session_id: str, message: Mapping[str, Any]) -> int:
        text = dumps_message(message)
        names = ("head", session_id), ("inbox", session_id), ("inboxes", "all"), ("message", "last")
        keys = [self._key(*name) for name in (*names, ("message", uuid4().hex), ("followers", session_id))]
        number = self._call(session_id, partial(run, "put_message", keys, [MAX_WAITING, TOKEN_S, session_id, text]))
        if number < 0:
            raise full_inbox(session_id)
        if not number:
            self._position(session_id)  # raises the reason, or migrates a session of format 1
            return self.put_message(session_id, message)
        return int(number)

    def read_messages(self, session_ids: Collection[str], *, after: int = 0) -> list[InboxMessage]:
        after = cut_number("after", after)
        names = list(filter(is_possible_id, session_ids))

        def ask(client: Any) -> list[Any]:
            with client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hget(self._key("head", name), "key")
                    pipe.hgetall(self._key("inbox", name))
                return list(pipe.execute())

        answers = self._call(None, ask) if names else []
        waiting: list[InboxMessage] = []
        for place, name in enumerate(names):
            key, messages = answers[2 * place], answers[2 * place + 1]
            # With another key, the messages are for an earlier session of this id.
            if key is not None and messages.pop(b"key", None) == key:
                waiting += [loads_message(int(number), name, text.decode()) for number, text in messages.items()]
        return sorted((each for each in waiting if each.number > after), key=lambda each: each.number)

    def remove_messages(self, numbers: Collection[int]) -> None:
        numbers = cut_numbers(numbers)
        if numbers:
            keys, arguments = [self._key("inboxes", "all")], [self._key("inbox", ""), *numbers]
            self._call(None, partial(run, "remove_messages", keys, arguments))

    def _doomed(self, session_id: str) -> list[str]:
        """The keys to delete with the session; the session's entries in the lists are not keys of their own."""
        beside = [self._key(kind, session_id) for kind in ("followers", "inbox")]
        return [*self._own(session_id), beside[0], self._server.old_name("head", session_id), beside[1]]
