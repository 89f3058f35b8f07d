"""The login to one MCP server: send tokens, renew them before they expire, and replace them if the server refuses them.

A run never opens a browser: without one, the error names the command that logs in. The reaction to each answer:

    401, a renewable token of this issuer    renew it
    401, nothing to renew                    discover the issuer, obtain a client there, ask the person
    403 with insufficient_scope              ask the person for the granted and the missing scopes together
    anything else                            not an authorization error
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from ....errors import McpAuthError, OptionsError, StorageError
from ....ground.text import visible
from .challenge import Challenge, read_challenge
from .fetch import OAuthRequests
from .grant import (
    OAuthClient,
    Tokens,
    authorize_url,
    joined_scopes,
    new_attempt,
    own_client,
    read_callback,
    read_registration,
    read_tokens,
    registration,
    token_request,
)
from .logins import Login, Logins
from .metadata import (
    Issuer,
    Resource,
    canonical_resource,
    is_document_url,
    is_same_issuer,
    is_sendable,
    issuer_urls,
    origin_of,
    read_address,
    read_issuer,
    read_resource,
    require_identified,
    resource_urls,
)

# Error codes that mean that the client does not exist, or no longer exists.
_FORGOTTEN = frozenset({"invalid_client", "invalid_grant", "unauthorized_client"})
# A missing callback of the browser counts as one, too: some issuers show unknown clients an error page.
NO_ANSWER = "no_answer"
# A request that a server must refuse without a login, and that has no effect without one.
_PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'


class Visit(Protocol):
    """A visit of a person's browser to an authorization server; it returns to `redirect_uri`."""

    @property
    def redirect_uri(self) -> str: ...

    async def go(self, url: str, state: str) -> Mapping[str, Sequence[str]]:
        """Open the URL; return the query of the browser's callback. Raises `McpAuthError` if it does not arrive."""
        ...


# Starts to listen for a browser at a required port (first) or at a preferred one (second).
Browser = Callable[[int | None, int | None], AbstractAsyncContextManager[Visit]]


def read_settings(name: str, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Check the `oauth` settings of a server's entry, and return those that are not None.

    The settings are `issuer`, `clientId`, `clientSecret`, `clientMetadataUrl`, `callbackPort` and `scopes`. Raises an
    `OptionsError` that names the server.
    """
    checks: Mapping[str, tuple[Callable[[Any], bool], str]] = {
        "issuer": (lambda value: isinstance(value, str) and value.startswith(("https://", "http://")), "an https URL"),
        "clientId": (is_sendable, "a string of printable characters"),
        "clientSecret": (is_sendable, "a string of printable characters"),
        "clientMetadataUrl": (
            lambda value: isinstance(value, str) and is_document_url(value),
            "an https URL with a path",
        ),
        "callbackPort": (lambda value: type(value) is int and 0 < value < 65536, "a port from 1 to 65535"),
        "scopes": (lambda value: isinstance(value, str) and value.isprintable(), "scopes separated by spaces"),
    }
    given_settings = {key: value for key, value in (settings or {}).items() if value is not None}
    for key, value in given_settings.items():
        if key not in checks:
            raise OptionsError(f"oauth.{key} of the server {name!r} is unknown: the keys are {', '.join(checks)}")
        fits, requirement = checks[key]
        if not fits(value):
            shown_value = f"a {type(value).__name__}" if key == "clientSecret" else f"{value!r:.100}"
            raise OptionsError(f"oauth.{key} of the server {name!r} must be {requirement}, not {shown_value}")
    return given_settings


class OAuth:
    """The tokens of one server, for one event loop. With `browser` None, nobody is ever asked.

    Raises `OptionsError` for invalid settings. Later errors are `McpAuthError`; neither their messages nor a `repr` here
    contains a token, a code or a secret.
    """

    def __init__(
        self,
        name: str,
        server_url: str,
        settings: Mapping[str, Any] | None = None,
        *,
        logins: Logins | None = None,
        browser: Browser | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._url = server_url
        self._settings = read_settings(name, settings)
        self._logins = logins or Logins(None, server_url)
        self._browser = browser
        self._now = now
        self._ask = OAuthRequests(server_url)
        self._turn = asyncio.Lock()
        self._login: Login | None = None
        self._is_read = False
        # The login as last read from storage, and whether storage failed to replace it by `_login`.
        self._stored: Login | None = None
        self._is_unstored = False
        # How often the token was sent, and whether it comes from a person's login just now or from a renewal.
        self._uses = 0
        self._is_fresh = self._is_renewed = False

    async def headers(self) -> dict[str, str]:
        """Return the headers for the next request: the token, renewed if it is about to expire; empty if none exists."""
        async with self._turn:
            tokens = self._tokens()
            if tokens is not None and not tokens.is_valid(self._now()):
                await self._renew(tokens)
                tokens = self._tokens()
            if tokens is None:
                return {}
            self._uses += 1
            return {"Authorization": f"Bearer {tokens.access}"}

    async def refused(self, status: int, challenge: str | None) -> bool:
        """React to a 401 or 403; return whether to send the request again with new `headers`.

        Raises `McpAuthError` if the login fails, or if only a person can help and there is no browser.
        """
        parsed_challenge = read_challenge(challenge)
        if status == 401:
            async with self._turn:
                return await self._after_401(parsed_challenge)
        if status != 403 or not parsed_challenge.wants_more_scope or not parsed_challenge.scope:
            return False
        async with self._turn:
            tokens = self._tokens()
            had = tokens.scope if tokens is not None else ""
            if set(parsed_challenge.scope.split()) <= set(had.split()):
                return False  # that scope is already granted
            if self._browser is None:
                login = f"openagentic-sdk mcp login {shlex.quote(self.name)}"
                scopes = shlex.quote(visible(joined_scopes(had, parsed_challenge.scope))[:400])
                raise McpAuthError(
                    f"the server {self.name!r} requires more scopes than were granted: run `{login} --scope {scopes}`"
                )
            resource = await self._discover(parsed_challenge)
            await self._authorize(resource, joined_scopes(had, parsed_challenge.scope))
            return True

    async def log_in(self, scope: str | None = None) -> Tokens:
        """Ask the person to log in, even if a login is stored. Raises `McpAuthError` if the login fails.

        If `scope` is None, the configured scopes and those that the server names are requested.
        """
        async with self._turn:
            reply = await self._ask.post_json(self._url, _PING)
            resource = await self._discover(read_challenge(reply.challenge))
            challenge_scope = read_challenge(reply.challenge).scope
            return await self._authorize(
                resource, scope if scope is not None else self._scope_to_request(challenge_scope, resource)
            )

    async def _after_401(self, challenge: Challenge) -> bool:
        before, uses = self._login, self._uses
        never_worked = before is not None and before.tokens is not None and uses == 1
        if never_worked and self._is_fresh:
            raise McpAuthError(f"the server {self.name!r} rejects the token that was just issued: log in again later")
        self._is_read = False
        tokens = self._tokens()
        if (
            tokens is not None
            and before is not None
            and before.tokens is not None
            and tokens.access != before.tokens.access
        ):
            return True  # another process has renewed it
        resource: Resource | None = None
        if tokens is not None and not (never_worked and self._is_renewed):
            with contextlib.suppress(McpAuthError):
                resource = await self._discover(challenge)
            ours = "" if self._login is None else self._login.issuer
            is_same = resource is None or any(is_same_issuer(ours, each) for each in resource.issuers)
            if is_same and await self._renew(tokens):
                return True
        if self._browser is None:
            raise McpAuthError(
                f"the server {self.name!r} requires a login: run `openagentic-sdk mcp login {shlex.quote(self.name)}`, or "
                "configure a token"
            )
        resource = resource or await self._discover(challenge)
        await self._authorize(resource, self._scope_to_request(challenge.scope, resource))
        return True

    def _scope_to_request(self, challenge_scope: str | None, resource: Resource) -> str:
        return joined_scopes(self._settings.get("scopes"), challenge_scope or " ".join(resource.scopes))

    def _tokens(self) -> Tokens | None:
        if not self._is_read:
            try:
                login = self._logins.current()
            except StorageError as error:
                raise McpAuthError(str(error)) from error
            # What is still stored is older than a login that could not be stored; anything else is newer.
            if not (self._is_unstored and login == self._stored):
                if login is None or self._login is None or login.tokens != self._login.tokens:
                    self._uses, self._is_fresh, self._is_renewed = 0, False, False
                self._login, self._is_unstored = login or self._login, False
            self._stored, self._is_read = login, True
        return None if self._login is None else self._login.tokens

    def _take(self, login: Login, *, is_fresh: bool) -> None:
        self._login, self._is_read, self._uses = login, True, 0
        self._is_fresh, self._is_renewed = is_fresh, not is_fresh
        try:
            self._logins.keep(login)
            self._is_unstored = False
        except StorageError as error:
            self._is_unstored = True
            if is_fresh:
                raise McpAuthError(f"the login cannot be stored: {error}") from error
            # The renewed tokens work in this process; the next process requires a login.

    def _at(self, issuer: str) -> Login | None:
        try:
            other = issuer[:-1] if issuer.endswith("/") else f"{issuer}/"
            return self._logins.at(issuer) or (self._logins.at(other) if is_same_issuer(issuer, other) else None)
        except StorageError as error:
            raise McpAuthError(str(error)) from error

    # --- renewal -----------------------------------------------------------------------------------------------------

    async def _renew(self, ended: Tokens) -> bool:
        """Renew these tokens, in only one process at a time. Returns False if they cannot be renewed."""
        async with self._logins.renewing():
            self._is_read = False
            # Read again under the lock: issuers may accept a refresh token only once (RFC 6749, section 6), and another
            # process may have used this one.
            tokens, login = self._tokens(), self._login
            if tokens is None or login is None:
                return False
            if tokens.access != ended.access and tokens.is_valid(self._now()):
                return True
            if tokens.refresh is None or login.client is None or not login.token_endpoint:
                return False
            form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh, "resource": login.resource}
            try:
                renewed = await self._request_tokens(login, form, before=tokens, scope=tokens.scope)
            except McpAuthError as error:
                if error.code not in _FORGOTTEN:
                    raise
                self._forget_client(login)
                return False
            self._take(replace(login, tokens=renewed), is_fresh=False)
            return True

    def _forget_client(self, login: Login) -> None:
        """Delete a client that its issuer no longer accepts, and its tokens."""
        try:
            self._logins.drop_client(login.issuer)
        except StorageError:
            self._is_unstored = True
        self._login = replace(login, client=None, tokens=None)

    async def _request_tokens(
        self, login: Login, form: Mapping[str, str], *, before: Tokens | None, scope: str
    ) -> Tokens:
        assert login.client is not None, "tokens are only requested by a registered client"
        whole, headers = token_request(login.client, form)
        reply = await self._ask.post_form(login.token_endpoint, whole, headers)
        sent_secrets = (
            *(whole.get(key, "") for key in ("refresh_token", "code", "code_verifier")),
            login.client.secret or "",
        )
        return read_tokens(
            reply.status,
            reply.data,
            login.issuer,
            now=self._now(),
            before=before,
            scope=scope,
            sent_secrets=sent_secrets,
        )

    # --- discovery ---------------------------------------------------------------------------------------------------

    async def _discover(self, challenge: Challenge) -> Resource:
        """Fetch the server's resource metadata; a server without any (before 2025-06-18) is its own authorization server."""
        failed = ""
        for url in resource_urls(self._url, challenge.resource_metadata):
            reply = await self._ask.get(url)
            if reply.status == 200 and reply.data:
                return read_resource(reply.data, self._url)
            if reply.status >= 500 or reply.status == 429:
                failed = failed or f"{url} answered {reply.status}"
        if failed:  # which does not prove that there is no metadata
            raise McpAuthError(f"the server {self.name!r} has no usable authorization metadata: {failed}")
        return Resource(canonical_resource(self._url), (origin_of(read_address(self._url, "the server's url")),))

    async def _find_issuer(self, resource: Resource) -> Issuer:
        """Fetch the metadata of the configured issuer, else of one with a stored login, else of the first listed.

        A configured secret is sent only to a configured issuer, never to one that only the server names.
        """
        pinned = self._settings.get("issuer")
        if pinned is None and "clientSecret" in self._settings:
            raise McpAuthError(
                f"oauth.clientSecret of the server {self.name!r} is not sent to an issuer that only the server names: "
                "set oauth.issuer in the entry to the issuer of the secret; the server names"
                f" {', '.join(resource.issuers)[:300]}"
            )
        issuers = [each for each in resource.issuers if pinned is None or is_same_issuer(pinned, each)]
        if not issuers:
            raise McpAuthError(
                f"the server {self.name!r} names the issuer {', '.join(resource.issuers)[:300]}, but its entry requires "
                f"{pinned} (oauth.issuer): nothing was sent"
            )
        issuer = next((each for each in issuers if self._at(each) is not None), issuers[0])
        tried: list[str] = []
        for url in issuer_urls(issuer):
            reply = await self._ask.get(url)
            if reply.status == 200 and reply.data:
                metadata = read_issuer(reply.data, issuer)
                for endpoint in (
                    metadata.authorization_endpoint,
                    metadata.token_endpoint,
                    metadata.registration_endpoint,
                ):
                    if endpoint is not None:
                        self._ask.check(endpoint, f"an endpoint of {issuer}")
                if pinned is None:
                    require_identified(metadata)
                return metadata
            tried.append(f"{url} answered {reply.status}")
        raise McpAuthError(f"the authorization server {issuer} has no usable metadata: {', '.join(tried)}")

    # --- asking the person -------------------------------------------------------------------------------------------

    async def _authorize(self, resource: Resource, scope: str) -> Tokens:
        """Obtain tokens with a person's consent. A client that the issuer has deleted is registered again, once."""
        issuer = await self._find_issuer(resource)
        # OpenID providers issue a refresh token only if this scope is requested (OpenID Connect Core 1.0, section 11).
        if scope and "offline_access" in issuer.scopes:
            scope = joined_scopes(scope, "offline_access")
        old_login = self._at(issuer.issuer)
        before = (
            old_login.client
            if old_login is not None and old_login.client is not None and old_login.client.is_registered
            else None
        )
        try:
            login, tokens = await self._visit(issuer, resource, scope, before)
        except McpAuthError as error:
            if before is None or old_login is None or error.code not in (*_FORGOTTEN, NO_ANSWER):
                raise
            self._forget_client(old_login)
            if error.code == NO_ANSWER:
                raise
            login, tokens = await self._visit(issuer, resource, scope, None)
        self._take(replace(login, tokens=tokens), is_fresh=True)
        return tokens

    async def _visit(
        self, issuer: Issuer, resource: Resource, scope: str, before: OAuthClient | None
    ) -> tuple[Login, Tokens]:
        assert self._browser is not None, "a login needs a browser"
        wish = urlsplit(before.redirect_uri).port if before is not None else None
        async with self._browser(self._settings.get("callbackPort"), wish) as visit:
            client = await self._who_we_are(issuer, before, visit.redirect_uri, scope)
            attempt = new_attempt()
            url = authorize_url(
                issuer, client, attempt, redirect_uri=visit.redirect_uri, scope=scope, resource=resource.resource
            )
            if client is before and await self._is_unknown(url):
                raise McpAuthError(f"{issuer.issuer} no longer recognizes this client", code="invalid_client")
            code = read_callback(await visit.go(url, attempt.state), attempt, issuer)
            login = Login(issuer.issuer, client, None, issuer.token_endpoint, resource.resource)
            form = {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": visit.redirect_uri,
                "code_verifier": attempt.verifier,
                "resource": resource.resource,
            }
            return login, await self._request_tokens(login, form, before=None, scope=scope)

    async def _is_unknown(self, url: str) -> bool:
        """Whether an issuer rejects a client before login: the browser would show an error page, without a callback."""
        with contextlib.suppress(McpAuthError):  # it redirects the browser, as expected
            return (await self._ask.get(url)).status in (400, 401)
        return False

    async def _who_we_are(
        self, issuer: Issuer, before: OAuthClient | None, redirect_uri: str, scope: str
    ) -> OAuthClient:
        """Return our client: configured by id or document, registered earlier for this address, or else registered now.

        Raises `McpAuthError` if the issuer does not register clients, or refuses to.
        """
        own = own_client(self._settings, issuer)
        if own is not None:
            return own
        if before is not None and before.redirect_uri == redirect_uri:
            return before
        if issuer.registration_endpoint is None:
            raise McpAuthError(
                f"{issuer.issuer} does not register clients automatically: get a client id from its operator, for the "
                "redirect address"
                f" {redirect_uri}, and put it into the server's entry as oauth.clientId"
            )
        reply = await self._ask.post_json(issuer.registration_endpoint, registration(redirect_uri, issuer, scope))
        return read_registration(reply.status, reply.data, issuer.issuer, redirect_uri)
