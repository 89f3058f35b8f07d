"""Isolated schemas and key prefixes for tests, on the servers named in the environment."""

from __future__ import annotations

import unittest
import uuid
from urllib.parse import quote


def own_postgres_schema(test: unittest.TestCase, url: str) -> str:
    """Create a schema, and return a URL whose connections use it; it is dropped after the test."""
    import psycopg

    schema = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {schema}")

    def drop() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA {schema} CASCADE")

    test.addCleanup(drop)
    return f"{url}{'&' if '?' in url else '?'}options={quote(f'-csearch_path={schema}')}"


def own_redis_prefix(test: unittest.TestCase, url: str) -> str:
    """Return a URL whose keys have a new prefix; they are deleted after the test."""
    import redis

    prefix = f"test-{uuid.uuid4().hex[:12]}"

    def drop() -> None:
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(match=f"{{{prefix}}}:*", count=1000):
                client.delete(key)

    test.addCleanup(drop)
    return f"{url}{'&' if '?' in url else '?'}prefix={prefix}"
