"""Who may talk to a server: by the name it is reached under, by the page that asks, and by a token, a cookie or the
operator's own rule.

Every page in a browser on the machine can reach a local server. So a request counts only when it names this server by an
address of its own (a stranger's name could be made to lead here), comes from no other page, and brings a secret, never in
the query: addresses end up in logs and histories.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import os
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path

from ..errors import InvalidEventError, OptionsError, RequestRefusedError
from ..ground.frozen import frozen
from ..serialization import dumps_json, loads_json
from ..sessions.seal import read_key, sdk_home
from .connection import Scope

TICKET_S = 600.0
COOKIE_S = 12 * 3600.0
MAX_TICKETS = 100
MIN_TOKEN_CHARS = 16
TOKEN_VARIABLE = "OPENAGENTIC_SDK_SERVER_TOKEN"


@frozen
class Principal:
    """Who asks. It sees the sessions of its `tenant` and no others; "" is the tenant of sessions without one.

    `name` is what its answers are recorded under; without `may_answer` it answers no question, and chooses no permission
    mode that asks less than the agent's own.
    """

    tenant: str = ""
    may_answer: bool = True
    name: str = "user"


Auth = Callable[[Scope], "Principal | Awaitable[Principal | None] | None"]


class Guard:
    """`auth` is the one token, or a function of the ASGI scope that gives the `Principal`, or None to refuse.

    `hosts` are names (`name` or `name:port`) under which the server is reached besides its own address; `origins` other
    pages (`https://app.example.com`) that may ask, with a token and never with a cookie.
    """

    def __init__(self, auth: Auth | str, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        if isinstance(auth, str) and len(auth) < MIN_TOKEN_CHARS:
            raise OptionsError(f"the token has {len(auth)} characters: take one of {MIN_TOKEN_CHARS} or more")
        self._auth = auth
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)
        # All processes that know the token know each other's cookies.
        secret = auth.encode() if isinstance(auth, str) else secrets.token_bytes(32)
        self._key = hashlib.sha256(b"openagentic-sdk cookie\0" + secret).digest()
        self._cookie_name = f"openagentic_{hashlib.sha256(self._key).hexdigest()[:8]}"
        self._tickets: dict[str, tuple[float, Principal]] = {}

    # --- the page that asks --------------------------------------------------------------------------------------------

    def check_source(self, scope: Scope) -> str | None:
        """The foreign page that may ask, when one does. Raises `RequestRefusedError` for a wrong Host, Origin or site."""
        hosts, origins = headers_named(scope, b"host"), headers_named(scope, b"origin")
        if len(hosts) != 1 or not self._is_own(scope, hosts[0].lower()):
            raise RequestRefusedError(403, "this server is not known under that name: see the option for more hosts")
        if len(origins) > 1:
            raise RequestRefusedError(403, "the header Origin stands there twice")
        origin = origins[0].lower() if origins else None
        if origin is not None and origin in self._origins:
            return origins[0]
        own = {f"https://{hosts[0].lower()}"}
        if scope["scheme"] in ("http", "ws"):
            own.add(f"http://{hosts[0].lower()}")
        if origin is not None and origin not in own:
            raise RequestRefusedError(403, "pages of this origin may not ask here: see the option for more origins")
        if any(site.lower() not in ("none", "same-origin") for site in headers_named(scope, b"sec-fetch-site")):
            raise RequestRefusedError(403, "pages of other sites may not ask here")
        return None

    def _is_own(self, scope: Scope, host: str) -> bool:
        if host in self._hosts:
            return True
        name, port = (scope.get("server") or (None, None))[:2]
        if not isinstance(port, int):  # a socket of the file system: only this machine reaches it
            return host.rsplit(":", 1)[0] in _LOOPBACK
        own = {f"[{name}]" if ":" in str(name) else str(name)}
        if is_loopback(str(name)):
            own |= _LOOPBACK
        default = 443 if scope["scheme"] in ("https", "wss") else 80
        return host in {f"{each}:{port}" for each in own} or (port == default and host in own)

    # --- the secret ----------------------------------------------------------------------------------------------------

    async def find_principal(self, scope: Scope, foreign_page: str | None = None) -> Principal | None:
        """Who asks, by `Authorization: Bearer` or whatever `auth` reads, else by the cookie; None when neither is valid."""
        if isinstance(self._auth, str):
            found = Principal() if self.knows_token(bearer_of(scope)) else None
        else:
            given = self._auth(scope)
            found = await given if inspect.isawaitable(given) else given
        if found is None and foreign_page is None:
            found = self._of_cookie(scope)
        if found is not None and not isinstance(found, Principal):
            raise TypeError(f"auth must give a Principal or None, not a {type(found).__name__}")
        return found

    async def find_by_token(self, scope: Scope, token: str) -> Principal | None:
        """The principal of a token that came in a message of a WebSocket instead of a header."""
        others = [
            (name, value) for name, value in scope["headers"] if name.lower() not in (b"authorization", b"cookie")
        ]
        header = (b"authorization", b"Bearer " + token.encode("ascii", "replace"))
        return await self.find_principal({**scope, "headers": [*others, header]})

    def knows_token(self, token: str) -> bool:
        """Whether it is the one token; False where `auth` is a function."""
        return isinstance(self._auth, str) and hmac.compare_digest(token.encode(), self._auth.encode())

    # --- browsers ------------------------------------------------------------------------------------------------------

    def new_ticket(self, principal: Principal) -> str:
        """A secret that signs a browser in once, within `TICKET_S`."""
        now = time.monotonic()
        self._tickets = {name: kept for name, kept in self._tickets.items() if kept[0] > now}
        while len(self._tickets) >= MAX_TICKETS:
            self._tickets.pop(next(iter(self._tickets)))
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = now + TICKET_S, principal
        return ticket

    def redeem(self, ticket: str, *, secure: bool, path: str = "/") -> str | None:
        """The `Set-Cookie` for a ticket, which ends with this; None for one that was used or is too old. `path` is where the
        application is."""
        until, principal = self._tickets.pop(ticket, (0.0, Principal()))
        if time.monotonic() >= until:
            return None
        known = {known.name: getattr(principal, known.name) for known in fields(Principal)}
        said = {"expires": int(time.time() + COOKIE_S), **known}
        body = urlsafe_b64encode(dumps_json(said).encode("ascii")).decode()
        rules = f"HttpOnly; SameSite=Strict; Path={path}; Max-Age={COOKIE_S:.0f}{'; Secure' if secure else ''}"
        return f"{self._cookie_name}={body}.{self._sign(body)}; {rules}"

    def _of_cookie(self, scope: Scope) -> Principal | None:
        pairs = [pair.strip() for value in headers_named(scope, b"cookie") for pair in value.split(";")]
        mine = [pair.partition("=")[2] for pair in pairs if pair.startswith(f"{self._cookie_name}=")]
        for body, _, mark in (value.rpartition(".") for value in mine):
            if hmac.compare_digest(mark.encode(), self._sign(body).encode()):
                try:
                    said = loads_json(urlsafe_b64decode(body))
                except (ValueError, InvalidEventError):
                    continue
                if said.pop("expires") > time.time():
                    return Principal(**said)
        return None

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


def read_token() -> str:
    """The token of this installation: $OPENAGENTIC_SDK_SERVER_TOKEN, else a file that is made once, for its owner alone.

    Raises `OptionsError` when there is no place for it, or others may read it.
    """
    named = os.environ.get(TOKEN_VARIABLE, "").strip()
    if named:
        return named
    kept = read_key(token_path(), create=True)
    assert kept is not None, "it was made"
    return kept.decode("ascii", "replace")


def token_path() -> Path:
    """Where the token of this installation is kept. Raises `OptionsError` when there is no home folder."""
    return sdk_home() / "server.token"


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that is bound to this address or name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def headers_named(scope: Scope, name: bytes) -> list[str]:
    """All values of a header."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]


def bearer_of(scope: Scope) -> str:
    """The token of `Authorization: Bearer`; empty when there is none, or more than one header."""
    values = headers_named(scope, b"authorization")
    kind, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() if kind.lower() == "bearer" else ""
