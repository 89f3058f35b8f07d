"""Where a request's key comes from: given as a text, asked of a callable, or found in the environment for its own vendor.

A key that merely lies in the environment goes to the hosts of the vendor that it belongs to, over https, and to an address
that the environment names too (`OPENAI_BASE_URL`). Anywhere else it goes only when the caller passes it on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import OptionsError, ProviderConnectionError, ProviderError
from ..ground.frozen import frozen
from ..ground.threads import ask_callable

# A token is renewed this long before it ends: a request may wait in a queue before it is looked at.
RENEW_BEFORE_S = 120.0


@frozen
class Token:
    """A key that ends: `expires_at` is in seconds since the epoch. It is used until shortly before that."""

    value: str
    expires_at: float | None = None

    def __repr__(self) -> str:
        return f"Token(value='[hidden]', expires_at={self.expires_at!r})"


KeyGiver = Callable[[], str | Token | Awaitable[str | Token]]
ApiKey = str | KeyGiver
Headers = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]


class KeySource:
    """A key, or what gives one: a callable, sync (it runs in a thread) or async.

    A callable is asked for each request, unless it gave a `Token` that has not ended.
    """

    def __init__(self, given: ApiKey) -> None:
        self._given = given
        self._token: Token | None = None

    @property
    def is_renewable(self) -> bool:
        """Whether asking again may give another key."""
        return not isinstance(self._given, str)

    async def key(self, *, fresh: bool = False) -> str:
        """The key; `fresh` when the last one was refused. Raises `OptionsError` when the callable gave no key."""
        if isinstance(self._given, str):
            return self._given.strip()
        token = None if fresh else self._token
        if token is None or token.expires_at is None or time.time() > token.expires_at - RENEW_BEFORE_S:
            given = await call(self._given, "api_key")
            token = self._token = given if isinstance(given, Token) else Token(given)
        if not isinstance(token.value, str) or not token.value.strip():
            raise OptionsError(f"the callable of api_key gave {type(token.value).__name__} and no key")
        return token.value.strip()


async def call(giver: Callable[[], Any], name: str) -> Any:
    """What a callable of the user's gives, be it sync or async. Its failure is a failure to reach the endpoint."""
    try:
        return await ask_callable(giver, f"openagentic-{name}")
    except (OptionsError, ProviderError):
        raise
    except Exception as error:
        raise ProviderConnectionError(f"the callable of {name} failed with {type(error).__name__}") from error


def is_host_of(hosts: tuple[str, ...], url: str) -> bool:
    """Whether a URL leads to one of these hosts, or to one below them, over https."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        return False
    return parts.scheme == "https" and any(host == name or host.endswith("." + name) for name in hosts)
