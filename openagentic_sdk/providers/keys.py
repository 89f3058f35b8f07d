"""The source of a request's key: a string, a callable, or the environment of the key's own vendor.

A key that is merely present in the environment is sent only over https to its vendor's hosts, and to an address that the
environment also names (`OPENAI_BASE_URL`). It goes anywhere else only if the caller passes it explicitly.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import OptionsError, ProviderConnectionError, ProviderError
from ..ground.frozen import frozen
from ..ground.threads import ask_callable

# A token is renewed this many seconds before it expires: a request may wait in a queue before the token is checked.
RENEW_BEFORE_S = 120.0


@frozen
class Token:
    """A key that is used until shortly before `expires_at` (seconds since the epoch); None means for one request only."""

    value: str
    expires_at: float | None = None

    def __repr__(self) -> str:
        return f"Token(value='[hidden]', expires_at={self.expires_at!r})"


KeyGiver = Callable[[], str | Token | Awaitable[str | Token]]
ApiKey = str | KeyGiver
HeaderSource = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]


class KeySource:
    """A key, or a callable that returns one: sync (run in a thread) or async.

    A callable is called for each request, unless the `Token` that it returned last is valid for `RENEW_BEFORE_S` more
    seconds.
    """

    def __init__(self, source: ApiKey) -> None:
        self._source = source
        self._token: Token | None = None

    @property
    def is_renewable(self) -> bool:
        """Whether the source can return another key."""
        return not isinstance(self._source, str)

    async def key(self, *, fresh: bool = False) -> str:
        """Return the key; pass `fresh` if the last one was refused.

        Raises `OptionsError` if the callable returns no key. Also raises the errors of `call`.
        """
        if isinstance(self._source, str):
            return self._source.strip()
        token = None if fresh else self._token
        if token is None or token.expires_at is None or time.time() > token.expires_at - RENEW_BEFORE_S:
            value = await call(self._source, "api_key")
            token = self._token = value if isinstance(value, Token) else Token(value)
        if not isinstance(token.value, str) or not token.value.strip():
            raise OptionsError(
                f"api_key's callable must return non-blank text; it returned {type(token.value).__name__}"
            )
        return token.value.strip()


async def call(giver: Callable[[], Any], name: str) -> Any:
    """Call a user's callable, sync or async.

    Raises the callable's `OptionsError` or `ProviderError` unchanged, and `ProviderConnectionError` for any other
    `Exception`.
    """
    try:
        return await ask_callable(giver, f"openagentic-{name}")
    except (OptionsError, ProviderError):
        raise
    except Exception as error:  # the callable is the user's code and may raise anything
        raise ProviderConnectionError(f"the callable for {name} failed with {type(error).__name__}") from error


def is_host_of(hosts: tuple[str, ...], url: str) -> bool:
    """Whether a URL points to one of these hosts or a subdomain, over https."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        return False
    return parts.scheme == "https" and any(host == name or host.endswith("." + name) for name in hosts)
