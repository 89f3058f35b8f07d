"""Determine which protocol a server speaks and open a session: the modern protocol, or one of the legacy versions.

A modern server answers `server/discover`. Anything else (an error of any code, silence, the end of the process) may come
from a legacy server, which then receives `initialize`. Only a server that lists its versions and has none in common with us
is refused permanently, and a legacy server if its entry requires the modern protocol. A network failure is not evidence of
either era.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from ...errors import McpError, RpcError
from ...ground.loose import as_mapping
from ...ground.text import without_hidden
from .definitions import clean_text
from .http import HttpAuth, HttpStatusError, HttpWire
from .protocol import (
    CAPABILITIES,
    LEGACY,
    MAX_ERROR_CHARS,
    MODERN,
    OURSELVES,
    UNSUPPORTED_VERSION,
    modern_meta,
    newest_common,
    versions_named,
)
from .server_config import McpServer, mask_secrets
from .session import McpSession
from .stdio import StdioWire

Era = Literal["modern", "legacy"]
# Long enough for servers that start slowly (4 s and more of imports).
PROBE_S = 10.0


async def connect(
    name: str,
    settings: McpServer,
    *,
    cwd: str,
    roots: Sequence[str],
    auth: HttpAuth | None = None,
    era: Era | None = None,
    began: Callable[[McpSession], None] = lambda session: None,
) -> McpSession:
    """Open a session with a server. If `era` is `legacy` (configured, or found before), the modern protocol is not tried.

    `began` receives the session with a program before the program starts, so that its output can be shown meanwhile. There
    is no time limit. Raises `McpError` after cleaning up.
    """
    if settings.kind != "stdio":
        session = McpSession(name, settings, roots)
        wire = HttpWire(name, settings, session.make_peer, session.on_lost, auth)
        session.wire = wire
        try:
            await _open_http(session, wire, era)
        except BaseException:  # also when cancelled: nothing of the server may remain
            await session.close()
            raise
        return session
    try:
        return await _open_stdio(name, settings, cwd, roots, era, began)
    except _DiedOnProbe:
        if settings.era == "modern":
            raise _no_modern(name) from None
        return await _open_stdio(name, settings, cwd, roots, "legacy", began)


class _DiedOnProbe(Exception):
    """Raised if the process ended after `server/discover`, as some legacy servers do."""


async def _open_stdio(
    name: str, settings: McpServer, cwd: str, roots: Sequence[str], era: Era | None, began: Callable[[McpSession], None]
) -> McpSession:
    session = McpSession(name, settings, roots)
    wire = StdioWire(name, settings, session.make_peer, session.on_lost)
    session.wire = wire
    began(session)
    try:
        await wire.open(cwd)
        if era == "legacy":
            await _initialize(session)
        else:
            # A third of the server's time limit, so that a server that ignores the probe has two thirds left for the
            # legacy handshake.
            await _find_era(session, wire, min(PROBE_S, settings.connect_timeout_s / 3))
        session.listen()
    except BaseException:  # also when cancelled: nothing of the server may remain
        await session.close()
        raise
    return session


async def _find_era(session: McpSession, wire: StdioWire, probe_s: float) -> None:
    """Send the modern request; if it gets no modern answer in time, send the legacy one too and use the first answer."""
    discovering = asyncio.create_task(_discover(session, MODERN[0]))
    try:
        await asyncio.wait({discovering}, timeout=probe_s)
        if discovering.done() and discovering.result():
            return
        if wire.lost is not None:
            raise _DiedOnProbe
        if session.settings.era == "modern":
            if not await discovering:
                raise _no_modern(session.name)
            return
        await _initialize_or(session, discovering)
    finally:
        discovering.cancel()
        await asyncio.wait({discovering})


async def _initialize_or(session: McpSession, discovering: asyncio.Task[bool]) -> None:
    """Initialize, unless a late answer to the probe shows that the server is modern after all."""
    initializing = asyncio.create_task(_initialize(session))
    try:
        waiting = {initializing, discovering} if not discovering.done() else {initializing}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if discovering in done and discovering.result():
                return
            if initializing in done:
                failure = initializing.exception()
                refused = isinstance(failure, McpError) and failure.code == UNSUPPORTED_VERSION
                if failure is not None and refused and await _discover(session, MODERN[0]):
                    return
                if failure is not None:
                    raise failure
                return
    finally:
        initializing.cancel()
        await asyncio.wait({initializing})


async def _discover(session: McpSession, version: str) -> bool:
    """Ask a server for its protocol versions; return False if the answer does not prove that it is modern.

    Raises `McpError` for a server that lists versions but supports none of this client's and, over HTTP, if the request
    fails.
    """
    assert session.wire is not None
    if isinstance(session.wire, HttpWire):
        session.wire.version = version
    # Twice: a server that refuses the newest version names those that it supports.
    for _ in range(2):
        try:
            answer = await session.wire.peer.request("server/discover", {"_meta": modern_meta(version)})
        except RpcError as error:
            versions = versions_named(error.data, "supported")
            common = newest_common(MODERN, versions)
            if error.code != UNSUPPORTED_VERSION or (common is None and newest_common(LEGACY, versions)):
                return False
            if common is None:
                raise _no_common_version(session, versions) from None
            version = common
            if isinstance(session.wire, HttpWire):
                session.wire.version = version
            continue
        except McpError:
            if isinstance(session.wire, HttpWire):
                raise
            return False  # the process ended, which the caller sees
        result = as_mapping(answer)
        common_version = newest_common(MODERN, versions_named(result, "supportedVersions"))
        if common_version is None:
            return False
        session.introduced(common_version, result)
        return True
    return False


async def _initialize(session: McpSession) -> None:
    """Perform the legacy handshake. Raises `McpError`."""
    wire = session.wire
    assert wire is not None
    if isinstance(wire, HttpWire):
        wire.version = None  # the version header is required on everything after `initialize`, and not allowed on it
    params = {"protocolVersion": LEGACY[0], "capabilities": CAPABILITIES, "clientInfo": OURSELVES}
    try:
        result = as_mapping(await wire.peer.request("initialize", params))
    except RpcError as error:
        versions = versions_named(error.data, "supported")
        words = ", ".join(versions) if versions else mask_secrets(session.settings, str(error)[:MAX_ERROR_CHARS])
        reason = without_hidden(words)[:500]
        raise McpError(
            f"the server {session.name} refused the handshake: {reason} ({error.code})",
            server=session.name,
            code=error.code,
        ) from error
    chosen_version = result.get("protocolVersion")
    if chosen_version not in LEGACY:
        raise _no_common_version(session, [str(chosen_version)[:40]])
    session.introduced(chosen_version, result)
    await wire.peer.notify("notifications/initialized", {})


def _no_modern(name: str) -> McpError:
    return McpError(
        f'the server {name} does not support {MODERN[0]}: remove "era": "modern" from its entry, or write "legacy"',
        server=name,
    )


def _no_common_version(session: McpSession, theirs: Sequence[str]) -> McpError:
    return McpError(
        f"the server {session.name} speaks {clean_text(', '.join(theirs), 200) or 'no version'}, and this client speaks "
        f"{', '.join((*MODERN, *LEGACY))}: update one of the two",
        server=session.name,
    )


async def _open_http(session: McpSession, wire: HttpWire, era: Era | None) -> None:
    if session.settings.is_sse:
        await wire.open_old_stream()
        await _initialize(session)
        return
    if era != "legacy":
        try:
            if await _discover(session, MODERN[0]):
                session.listen()
                return
        except HttpStatusError as refused:
            # A missing login or a failing server is not evidence of the era.
            if refused.status in (401, 403) or refused.status >= 500:
                raise
        if session.settings.era == "modern":
            raise _no_modern(session.name)
    try:
        await _initialize(session)
    except HttpStatusError as refused:
        if refused.status not in (400, 404, 405):
            raise
        try:
            await wire.open_old_stream()
        except McpError:
            raise refused from None  # the server's answer to the usual transport is more informative
        await _initialize(session)
    session.listen()


async def again(session: McpSession) -> None:
    """Initialize again with a legacy server that lost our session; its tools may have changed. Raises `McpError`."""
    await _initialize(session)
    session.stale.add("tools")
    session.listen()
