"""Programs connect: agents and sessions over HTTP, for any language; `app` is the ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .asgi import app as app
    from .guard import Principal as Principal

__all__ = ["Principal", "app"]


def __getattr__(name: str) -> Any:
    # A face over stdio needs none of HTTP, so it is imported when it is asked for.
    if name == "app":
        from .asgi import app

        return app
    if name == "Principal":
        from .guard import Principal

        return Principal
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
