"""Serve agents and sessions over HTTP to programs in any language.

`app` returns the ASGI application; `Client` and `AsyncClient` send requests to a server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .asgi import app as app
    from .contract.client import AsyncClient as AsyncClient
    from .contract.client import Client as Client
    from .guard import Principal as Principal

__all__ = ["AsyncClient", "Client", "Principal", "app"]

# Serving over stdio needs no HTTP, so each module is imported on first use.
_HOMES = {"AsyncClient": "contract.client", "Client": "contract.client", "Principal": "guard", "app": "asgi"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
