"""Erase from a Redis store: replace events in one transaction, and make the server rewrite its file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ....errors import LeaseLostError, SessionError
from ...base import Place, as_it_is
from ..database import SessionRow
from ..log_state import LogHead
from ..remote import RemoteStore
from .link import SERVERS, RedisServer
from .scripts import FORMAT, run

PAGE_ROWS = 100


class RewritingRedis(RemoteStore[RedisServer]):
    """The erasing and listing methods of `RedisSessionStore`."""

    _servers = SERVERS

    @abstractmethod
    def _own(self, session_id: str) -> list[str]:
        """The keys of the session's row, log and blobs."""

    @abstractmethod
    def _key(self, kind: str, rest: str) -> str:
        """A key of this store."""

    @abstractmethod
    def _adopt_all(self, db: Any) -> None:
        """Migrate the sessions of an older format."""

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        head, _, blobs = self._own(session_id)

        if digests and not self._call(session_id, partial(run, "drop_blobs", [head, blobs], list(digests))):
            self._position(session_id)  # raises the reason

    def _ids_behind(
        self, after: Place | None, *, query: str = "", cwd: str | None = None
    ) -> Iterator[tuple[Callable[[], Place], str]]:
        if self._server.evicts:
            yield from super()._ids_behind(after)
            return
        self._call(None, self._adopt_all)
        key, below = self._key("by", "all"), "+inf" if after is None else f"({after[0]:.0f}"
        while True:

            def read(client: Any, below: str = below) -> Any:
                return client.zrevrangebyscore(key, below, "-inf", 0, PAGE_ROWS, withscores=True)

            rows = self._call(None, read)
            for name, score in rows:
                below = f"({score:.0f}"
                yield partial(as_it_is, (score, 0.0, name.decode())), name.decode()
            if len(rows) < PAGE_ROWS:
                return

    def scrub(self, session_id: str) -> Sequence[str]:
        """Make the server rewrite its file, if it has one."""
        with suppress(SessionError):
            self._call(None, lambda client: client.bgrewriteaof())
        return (
            f"{self._server.where} keeps what was replaced in its append-only file and snapshots until it has written them "
            "anew, and in its backups",
        )

    def _put_in_place(self, at: SessionRow, rows: Sequence[tuple[int, str]], head: LogHead) -> None:
        key, log, _ = self._own(at.id)

        def replace_all(client: Any) -> None:
            with client.pipeline(transaction=True) as pipe:
                pipe.watch(key)
                if pipe.hmget(key, "key", "epoch", "format") != [
                    str(each).encode() for each in (at.key, at.epoch, FORMAT)
                ]:
                    raise LeaseLostError(at.id, at.head.last_seq, at.head.last_seq)
                pipe.multi()
                for seq, text in rows:
                    pipe.lset(log, seq - 1, text)
                pipe.hset(key, "summary", head.to_json() or "")
                pipe.hdel(key, "checkpoint")
                pipe.execute()

        self._call(at.id, replace_all)
