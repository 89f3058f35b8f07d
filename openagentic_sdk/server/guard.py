"""Authorize requests: check the server name, the origin of the page, and the token, cookie or the operator's own rule.

Any web page open on this machine can reach a local server. So a request is accepted only if it names this server by its own
address or an allowed name (any other name could be made to resolve to it), does not come from a page of another origin
(unless that is allowed), and contains a secret. A secret is never read from the query: URLs are recorded in logs and
histories.
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
from ..ground.checks import shown
from ..ground.frozen import frozen
from ..ground.words import plural
from ..serialization import dumps_json, loads_json
from ..sessions.seal import read_key, sdk_home
from .connection import AsgiScope

TICKET_S = 600.0
COOKIE_S = 12 * 3600.0
MAX_TICKETS = 100
MIN_TOKEN_CHARS = 16
TOKEN_VARIABLE = "OPENAGENTIC_SDK_SERVER_TOKEN"


@frozen
class Principal:
    """The authenticated client. It sees only the sessions of its `tenant`; with "", only those that have no tenant.

    `name` is recorded with its answers; without `may_answer` it can neither answer questions nor choose a permission mode
    that asks less than the agent's own.
    """

    tenant: str = ""
    may_answer: bool = True
    name: str = "user"


Auth = Callable[[AsgiScope], "Principal | Awaitable[Principal | None] | None"]


class Guard:
    """The checks that each request to a server must pass.

    `auth` is the token, or a function from the ASGI scope to the `Principal`, or to None to refuse. `hosts` are names
    (`name` or `name:port`) of the server besides its own address; `origins` are other origins (`https://app.example.com`)
    whose pages may send requests, with a token and never with a cookie.
    """

    def __init__(self, auth: Auth | str, *, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        if not (isinstance(auth, str) or callable(auth)):
            raise OptionsError(f"auth must be a token, or a function from the scope to a Principal, not {shown(auth)}")
        if isinstance(auth, str) and len(auth) < MIN_TOKEN_CHARS:
            raise OptionsError(
                f"the token has {plural(len(auth), 'character')}: use one with at least {MIN_TOKEN_CHARS}"
            )
        self._auth = auth
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)
        # Cookies signed by one process are valid in all that have the token.
        secret = auth.encode() if isinstance(auth, str) else secrets.token_bytes(32)
        # A separate key, so that cookies do not help to guess the token.
        self._key = hashlib.sha256(b"openagentic-sdk cookie\0" + secret).digest()
        # Cookies are shared by all ports of a host (RFC 6265, section 8.5): two servers there must not overwrite each
        # other's.
        self._cookie_name = f"openagentic_{hashlib.sha256(self._key).hexdigest()[:8]}"
        self._tickets: dict[str, tuple[float, Principal]] = {}

    # --- source of a request -------------------------------------------------------------------------------------------

    def check_source(self, scope: AsgiScope) -> str | None:
        """Check where a request comes from; return its origin if that is one of `origins`, otherwise None.

        Raises `RequestRefusedError` for a wrong Host, Origin or Sec-Fetch-Site.
        """
        hosts, origins = headers_named(scope, b"host"), headers_named(scope, b"origin")
        if len(hosts) != 1 or not self._is_own(scope, hosts[0].lower()):
            raise RequestRefusedError(
                403,
                f"this server does not accept the Host header {', '.join(hosts)!r:.200}: allow it with "
                "--allow-host (in code: app(hosts=...))",
            )
        if len(origins) > 1:
            raise RequestRefusedError(403, "the request has more than one Origin header")
        origin = origins[0].lower() if origins else None
        if origin is not None and origin in self._origins:
            return origins[0]
        own = {f"https://{hosts[0].lower()}"}
        if scope["scheme"] in ("http", "ws"):
            own.add(f"http://{hosts[0].lower()}")
        if origin is not None and origin not in own:
            raise RequestRefusedError(
                403,
                f"pages of {origins[0]!r:.200} may not send requests here: allow it with --allow-origin "
                "(in code: app(origins=...))",
            )
        # A browser sends no Origin with a GET caused by a link or an image, but it does send this header.
        if any(site.lower() not in ("none", "same-origin") for site in headers_named(scope, b"sec-fetch-site")):
            raise RequestRefusedError(403, "pages of other sites may not send requests here")
        return None

    def _is_own(self, scope: AsgiScope, host: str) -> bool:
        if host in self._hosts:
            return True
        name, port = (scope.get("server") or (None, None))[:2]
        if not isinstance(port, int):  # a Unix socket: only this machine can connect
            return host.rsplit(":", 1)[0] in _LOOPBACK
        own = {f"[{name}]" if ":" in str(name) else str(name)}
        if is_loopback(str(name)):
            own |= _LOOPBACK
        default = 443 if scope["scheme"] in ("https", "wss") else 80
        return host in {f"{each}:{port}" for each in own} or (port == default and host in own)

    # --- secrets -------------------------------------------------------------------------------------------------------

    async def find_principal(self, scope: AsgiScope, foreign_page: str | None = None) -> Principal | None:
        """Return the principal of the bearer token (or of `auth`), otherwise of the cookie; None if neither is valid.

        With `foreign_page`, the origin that `check_source` returned, the cookie is ignored.
        """
        if isinstance(self._auth, str):
            principal = Principal() if self.knows_token(bearer_of(scope)) else None
        else:
            answer = self._auth(scope)
            principal = await answer if inspect.isawaitable(answer) else answer
        # A page of another origin, even a permitted one, must not act with the cookie of whoever visits it.
        if principal is None and foreign_page is None:
            principal = self._of_cookie(scope)
        if principal is not None and not isinstance(principal, Principal):
            raise TypeError(f"auth must return a Principal or None, not a {type(principal).__name__}")
        return principal

    async def find_by_token(self, scope: AsgiScope, token: str) -> Principal | None:
        """Return the principal of a token sent in a WebSocket message instead of a header; None if it is not valid."""
        others = [
            (name, value) for name, value in scope["headers"] if name.lower() not in (b"authorization", b"cookie")
        ]
        header = (b"authorization", b"Bearer " + token.encode("ascii", "replace"))
        return await self.find_principal({**scope, "headers": [*others, header]})

    def knows_token(self, token: str) -> bool:
        """Whether this is the server's token; False if `auth` is a function."""
        return isinstance(self._auth, str) and hmac.compare_digest(token.encode(), self._auth.encode())

    # --- browsers ------------------------------------------------------------------------------------------------------

    def new_ticket(self, principal: Principal) -> str:
        """Create a secret that signs a browser in once, within `TICKET_S` seconds.

        If more than `MAX_TICKETS` are unused, the oldest become invalid.
        """
        now = time.monotonic()
        self._tickets = {name: entry for name, entry in self._tickets.items() if entry[0] > now}
        while len(self._tickets) >= MAX_TICKETS:
            self._tickets.pop(next(iter(self._tickets)))
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = now + TICKET_S, principal
        return ticket

    def redeem(self, ticket: str, *, secure: bool, path: str = "/") -> str | None:
        """Use up a ticket; return its `Set-Cookie` value, None if it was used before or has expired.

        `path` is where the application is mounted; with `secure`, browsers send the cookie over https only.
        """
        # `pop` uses the ticket up even if it has expired, and never twice for two requests.
        until, principal = self._tickets.pop(ticket, (0.0, Principal()))
        if time.monotonic() >= until:
            return None
        values = {spec.name: getattr(principal, spec.name) for spec in fields(Principal)}
        claims = {"expires": int(time.time() + COOKIE_S), **values}
        body = urlsafe_b64encode(dumps_json(claims).encode("ascii")).decode()
        rules = f"HttpOnly; SameSite=Strict; Path={path}; Max-Age={COOKIE_S:.0f}{'; Secure' if secure else ''}"
        return f"{self._cookie_name}={body}.{self._sign(body)}; {rules}"

    def _of_cookie(self, scope: AsgiScope) -> Principal | None:
        pairs = [pair.strip() for value in headers_named(scope, b"cookie") for pair in value.split(";")]
        mine = [pair.partition("=")[2] for pair in pairs if pair.startswith(f"{self._cookie_name}=")]
        for body, _, mark in (value.rpartition(".") for value in mine):
            if hmac.compare_digest(mark.encode(), self._sign(body).encode()):
                try:
                    claims = loads_json(urlsafe_b64decode(body))
                except (ValueError, InvalidEventError):
                    continue
                if claims.pop("expires") > time.time():
                    return Principal(**claims)
        return None

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


def read_token() -> str:
    """Return the token of this installation: $OPENAGENTIC_SDK_SERVER_TOKEN, or the content of its file.

    The file is created if it is missing; only its owner can read it. Raises `OptionsError` if there is no place for the
    file or others can read it.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token
    key = read_key(token_path(), create=True)
    assert key is not None, "the token was created"
    return key.decode("ascii", "replace")


def token_path() -> Path:
    """The file with the token of this installation. Raises `OptionsError` without a home folder."""
    return sdk_home() / "server.token"


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def is_loopback(host: str) -> bool:
    """Whether a server bound to this address or name is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def headers_named(scope: AsgiScope, name: bytes) -> list[str]:
    """All values of the header with this lower-case name."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]


def bearer_of(scope: AsgiScope) -> str:
    """The token of `Authorization: Bearer`; empty if the header is missing or repeated."""
    values = headers_named(scope, b"authorization")
    kind, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() if kind.lower() == "bearer" else ""
