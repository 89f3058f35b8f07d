"""The digest that says exactly what a model was asked.

The canonical form of a request is lines of JSON (keys sorted, ASCII, compact): one line per message in order, the system
prompt first, then one line `{"model": ..., "tools": [...]}`. Its sha256 stands in `model.request`, so that anybody can
rebuild a request from the log and compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

_CANONICAL = json.JSONEncoder(ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def canonical_json(value: Any) -> bytes:
    """One canonical line, without its newline."""
    return _CANONICAL.encode(value).encode("ascii")


def json_sha256(value: Any) -> str:
    """The digest of one JSON value, whatever the order of its keys."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def request_sha256(model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """The digest of a request from nothing."""
    return RequestDigest().of(model, messages, tools)


class RequestDigest:
    """The same digest for one request after another: only messages that were not there last time are read again.

    A message counts as the same when it is the same object; the conversation's fold keeps them.
    """

    def __init__(self) -> None:
        self._seen: list[Mapping[str, Any]] = []
        self._hash = hashlib.sha256()
        self._tools: Sequence[Mapping[str, Any]] | None = None
        self._tail = (b"", "")
        self.has_parts = False  # whether the last request had messages that are more than text

    @property
    def known(self) -> int:
        """How many messages of the last request need not be read again while they stay."""
        return len(self._seen)

    def of(self, model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        known = len(self._seen)
        if known > len(messages) or not all(map(is_, self._seen, messages)):
            known, self._hash, self.has_parts = 0, hashlib.sha256(), False
        for message in messages[known:]:
            self.has_parts = self.has_parts or isinstance(message.get("content"), list)
            self._hash.update(canonical_json(message) + b"\n")
        self._seen = list(messages)
        whole = self._hash.copy()
        whole.update(self._last_line(model, tools))
        return whole.hexdigest()

    def _last_line(self, model: str, tools: Sequence[Mapping[str, Any]]) -> bytes:
        if self._tools is not tools or self._tail[1] != model:
            self._tools = tools
            self._tail = (canonical_json({"model": model, "tools": list(tools)}) + b"\n", model)
        return self._tail[0]
