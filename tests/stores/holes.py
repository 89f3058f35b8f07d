"""Damage to a store's data, done without going through the store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from openagentic_sdk.sessions.memory import MemorySessionStore


def lose_event(url: str, store: Any, session_id: str, seq: int) -> bool:
    """Remove one event from the middle of a log in `store`, which was opened from `url`."""
    kind, _, rest = url.partition(":")
    place = rest.partition("?")[0]
    match kind:
        case "memory":
            assert isinstance(store, MemorySessionStore)
            del store._sessions[session_id].lines[seq - 1]
        case "file":
            path = Path(place, "sessions", session_id, "events.jsonl")
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(lines[: seq - 1] + lines[seq:]))
        case "sqlite":
            with closing(sqlite3.connect("/" + place.lstrip("/"))) as db, db:
                key = "(SELECT key FROM sessions WHERE id = ?)"
                db.execute(f"DELETE FROM events WHERE place = ({key} << 32) + ?", (session_id, seq))
        case "postgresql":
            import psycopg

            with psycopg.connect(url, autocommit=True) as db:
                key = "(SELECT key FROM openagentic_sessions WHERE id = %s)"
                db.execute(f"DELETE FROM openagentic_events WHERE session = {key} AND seq = %s", (session_id, seq))
        case _:
            import redis

            prefix = parse_qs(urlsplit(url).query)["prefix"][0]
            with redis.Redis.from_url(url.partition("?")[0]) as client:
                log = f"{{{prefix}}}:2:log:{session_id}"
                client.lset(log, seq - 1, "lost")
                client.lrem(log, 1, "lost")
    return True
