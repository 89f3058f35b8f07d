"""The server's operations as methods, generated from the route table; the stub beside this file contains their types."""

from __future__ import annotations

from typing import Any

from .table import ENDPOINTS, Endpoint


class AsyncOperations:
    """The server's operations as coroutines."""


class Operations:
    """The server's operations as blocking calls."""


def _method(endpoint: Endpoint) -> Any:
    def operation(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._operate(endpoint, args, kwargs)

    operation.__name__, operation.__doc__ = endpoint.name, f"{endpoint.summary}."
    return operation


for _endpoint in ENDPOINTS:
    for _face in (AsyncOperations, Operations):
        setattr(_face, _endpoint.name, _method(_endpoint))
