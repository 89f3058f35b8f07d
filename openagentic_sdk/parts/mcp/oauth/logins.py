"""Store logins: one file per server address, mode 0600, with the tokens and the client for each issuer.

Two processes never renew the same token at the same time, because issuers treat a reused refresh token as stolen.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from ....errors import McpAuthError
from ....ground.frozen import frozen
from ....ground.loose import as_mapping
from ....ground.system import BINARY
from ....sessions.log.lock import try_lock, unlock
from ...project.private_json import KeptFile
from .grant import OAuthClient, Tokens

_RENEWAL_S = 60.0
_LOOK_AGAIN_S = 0.05


@frozen
class Login:
    """A login at one issuer: the client, its tokens, the endpoint that renews them, and the `resource` they are for."""

    issuer: str
    client: OAuthClient | None = None
    tokens: Tokens | None = None
    token_endpoint: str = ""
    resource: str = ""


class Logins:
    """The logins for one server. `folder` None stores them only in this object."""

    def __init__(self, folder: str | os.PathLike[str] | None, server_url: str) -> None:
        name = hashlib.sha256(server_url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._file = None if folder is None else KeptFile(os.path.join(folder, f"{name}.json"), "login")
        self._server_url = server_url
        self._own: dict[str, Any] = {}

    def current(self) -> Login | None:
        """Return the latest login, or None. Raises `StorageError`."""
        data = self._read()
        issuer = data.get("issuer")
        return self.at(issuer) if isinstance(issuer, str) else None

    def at(self, issuer: str) -> Login | None:
        """Return the login at one issuer; None without a usable one. Raises `StorageError`."""
        entry = as_mapping(as_mapping(self._read().get("issuers")).get(issuer))
        if not entry:
            return None
        client, tokens = entry.get("client"), entry.get("tokens")
        try:
            login = Login(
                issuer,
                OAuthClient(**client) if client else None,
                Tokens(**tokens) if tokens else None,
                str(entry.get("token_endpoint") or ""),
                str(entry.get("resource") or ""),
            )
            if login.tokens is not None:
                # Compares `expires_at`: a value of another type fails here, where the login counts as missing.
                login.tokens.is_valid(0.0)
        except TypeError:  # written by another version, or edited: log in again
            return None
        return login

    def keep(self, login: Login) -> None:
        """Store this login as the current one. Raises `StorageError` if it cannot be written."""
        entry = {
            "client": None if login.client is None else dict(vars(login.client)),
            "tokens": None if login.tokens is None else dict(vars(login.tokens)),
            "token_endpoint": login.token_endpoint,
            "resource": login.resource,
        }
        with self._changing() as data:
            issuers = data.get("issuers")
            data["server"], data["issuer"] = self._server_url, login.issuer
            data["issuers"] = {**(issuers if isinstance(issuers, dict) else {}), login.issuer: entry}

    def drop_client(self, issuer: str) -> None:
        """Delete the client and the tokens for an issuer. Raises `StorageError`."""
        login = self.at(issuer)
        if login is not None:
            self.keep(replace(login, client=None, tokens=None))

    def forget(self) -> bool:
        """Delete everything stored about the server; return False if there was nothing. Raises `StorageError`."""
        with self._changing() as data:
            is_known = bool(data)
            data.clear()
        return is_known

    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Hold the lock on renewals, shared by all processes, during the block. Raises `McpAuthError` after 60 s of waiting.

        Where nothing can be stored, no lock is needed.
        """
        if self._file is None:
            yield
            return
        try:
            os.makedirs(os.path.dirname(self._file.path), mode=0o700, exist_ok=True)
            lock_fd = os.open(self._file.path + ".renewal", os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        except OSError:  # nothing can be stored here, so no other process uses these tokens
            yield
            return
        try:
            until = time.monotonic() + _RENEWAL_S
            # Not a blocking lock: it would hold up the event loop, in which another task may hold it.
            while not try_lock(lock_fd):
                if time.monotonic() > until:
                    raise McpAuthError(f"another process has been refreshing the login for {_RENEWAL_S:g} s: try again")
                await asyncio.sleep(_LOOK_AGAIN_S)
            yield
        finally:
            with contextlib.suppress(OSError):
                unlock(lock_fd)
            os.close(lock_fd)

    def _read(self) -> Mapping[str, Any]:
        return self._own if self._file is None else self._file.read()

    @contextlib.contextmanager
    def _changing(self) -> Any:
        if self._file is None:
            yield self._own
            return
        with self._file.changing() as data:
            yield data
