"""The digest that identifies a request to a model exactly.

The canonical form of a request is lines of JSON (keys sorted, ASCII, compact): one line per message in order, the system
prompt first, then one line `{"model": ..., "tools": [...]}`. Its SHA-256 is recorded in `model.request`, so that anybody
can rebuild a request from the log and compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from ..serialization import dumps_canonical


def canonical_json(value: Any) -> bytes:
    """The value as one canonical line, without a newline."""
    return dumps_canonical(value).encode("ascii")


def json_sha256(value: Any) -> str:
    """The digest of one JSON value, independent of the order of its keys."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def request_sha256(model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Compute the digest of a request from scratch."""
    digest = RunningDigest(model, tools)
    digest.add(messages)
    return digest.hexdigest()


class RunningDigest:
    """The digest of a request whose messages are added one by one; it can be read at any time.

    `size_bytes` is the size of the messages in canonical form, `has_parts` is true if any of them is more than text.
    """

    def __init__(self, model: str, tools: Sequence[Mapping[str, Any]]) -> None:
        self.size_bytes = 0
        self.has_parts = False
        self._lines = hashlib.sha256()
        self._model = model
        self._last_line = _last_line(model, tools)

    def add(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Add more messages."""
        for message in messages:
            line = canonical_json(message)
            self.has_parts = self.has_parts or isinstance(message.get("content"), list)
            self.size_bytes += len(line)
            self._lines.update(line + b"\n")

    def copy(self) -> RunningDigest:
        """Return a copy that can continue independently."""
        other = copy(self)
        other._lines = self._lines.copy()
        return other

    def hexdigest(self, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The digest of the request so far; with `tools`, of the request with these tools instead."""
        whole = self._lines.copy()
        whole.update(self._last_line if tools is None else _last_line(self._model, tools))
        return whole.hexdigest()


def _last_line(model: str, tools: Sequence[Mapping[str, Any]]) -> bytes:
    # The JSON of the definitions, which are long, is usually cached.
    tools_json = dumps_canonical(tools if isinstance(tools, list) else [*tools])
    return f'{{"model":{dumps_canonical(model)},"tools":{tools_json}}}\n'.encode("ascii")
