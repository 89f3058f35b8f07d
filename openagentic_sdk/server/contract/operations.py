"""The operations of the server as methods: each is made from its row of the table, with the types of the stub beside."""

from __future__ import annotations

from typing import Any

from .table import ENDPOINTS, Endpoint


class AsyncOperations:
    """What a server can be asked, to be awaited."""


class Operations:
    """What a server can be asked."""


def _method(endpoint: Endpoint) -> Any:
    def operation(self: Any, *given: Any, **named: Any) -> Any:
        return self._operate(endpoint, given, named)

    operation.__name__, operation.__doc__ = endpoint.name, f"{endpoint.summary}."
    return operation


for _endpoint in ENDPOINTS:
    for _face in (AsyncOperations, Operations):
        setattr(_face, _endpoint.name, _method(_endpoint))
