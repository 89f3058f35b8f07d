"""Erase from a Redis store: replace events in one transaction, and make the server rewrite its append-only file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ....errors import LeaseLostError, SessionError
from ..database import SessionRow
from ..log_state import LogHead
from ..remote import RemoteStore
from .link import SERVERS, RedisServer
from .scripts import FORMAT, run


class RewritingRedis(RemoteStore[RedisServer]):
    """The erasing methods of `RedisSessionStore`."""

    _servers = SERVERS

    @abstractmethod
    def _own(self, session_id: str) -> list[str]:
        """The keys of the session's row, log and blobs."""

    @abstractmethod
    def _key(self, kind: str, rest: str) -> str:
        """A key of this store."""

    def delete_blobs(self, session_id: str, digests: Collection[str]) -> None:
        head, _, blobs = self._own(session_id)

        if digests and not self._call(session_id, partial(run, "drop_blobs", [head, blobs], list(digests))):
            self._position(session_id)  # raises the reason

    def scrub(self, *session_ids: str) -> Sequence[str]:
        """Make the server rewrite its append-only file, if it has one; return where the data remains."""
        with suppress(SessionError):
            self._call(None, lambda client: client.bgrewriteaof())
        return (
            f"{self._server.where} keeps the replaced data in its append-only file and snapshots until these are "
            "rewritten, and in its backups",
        )

    def _put_in_place(self, at: SessionRow, rows: Sequence[tuple[int, str]], head: LogHead) -> None:
        key, log, _ = self._own(at.id)

        def replace_all(client: Any) -> None:
            with client.pipeline(transaction=True) as pipe:
                pipe.watch(key)
                found = [each or b"" for each in pipe.hmget(key, "key", "epoch", "format")]
                if found != [str(each).encode() for each in (at.key, at.epoch, FORMAT)]:
                    raise LeaseLostError(at.id, at.head.last_seq, at.head.last_seq)
                pipe.multi()
                for seq, text in rows:
                    pipe.lset(log, seq - 1, text)
                pipe.hset(key, "summary", head.to_json() or "")
                pipe.hdel(key, "checkpoint")
                # A process that read the old words no longer adds them to the index.
                pipe.hincrby(key, "revision", 1)
                run("forget", [self._key("by", "all")], [self._key("index", ""), at.id], pipe)
                pipe.execute()

        self._call(at.id, replace_all)
