"""Send a person's browser to a login, and receive its callback at a small server on 127.0.0.1 (RFC 8252, section 7.3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from urllib.parse import parse_qs, urlsplit

from ....errors import McpAuthError
from ....ground.threads import run_in_thread
from .login import NO_ANSWER

HOST = "127.0.0.1"
PATH = "/callback"
WAIT_S = 300.0
_MAX_HEAD_BYTES = 16 * 1024
_HEAD_S = 10.0

_PAGE = (
    "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n"
    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'\r\n\r\n{page}"
)

# Reads one line that a person types or pastes; None at end of file.
ReadLine = Callable[[], Awaitable[str | None]]


class LoopbackBrowser:
    """A login in a browser on this machine: sends the person there and listens for the callback.

    `tell` shows the person a line. `open_url` opens a browser (None: the person opens it). `paste`, if given, reads the
    address where a browser on another machine ended up.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        open_url: Callable[[str], object] | None,
        paste: ReadLine | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        self.tell = tell
        self.open_url = open_url
        self.paste = paste
        self.wait_s = wait_s

    @contextlib.asynccontextmanager
    async def __call__(self, port: int | None, wish: int | None) -> AsyncIterator[_LoopbackVisit]:
        """Listen for the callback during the block: on `port` or, without one, on `wish` if it is free, else on any port.

        Raises `McpAuthError` if no port can be opened.
        """
        visit = _LoopbackVisit(self)
        server: asyncio.Server | None = None
        for place in (port,) if port is not None else (wish or 0, 0):
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(visit.answer, HOST, place, limit=_MAX_HEAD_BYTES)
                break
        if server is None:
            advice = "stop the program that uses it, or choose another callbackPort"
            raise McpAuthError(
                f"port {port} on {HOST} cannot be opened: {advice}"
                if port
                else f"no port on {HOST} can be opened: let this program listen there, and try again"
            )
        visit.redirect_uri = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{PATH}"
        try:
            yield visit
        finally:
            server.close()


class _LoopbackVisit:
    def __init__(self, browser: LoopbackBrowser) -> None:
        self.redirect_uri = ""
        self._browser = browser
        self._state = ""
        self._came: asyncio.Future[Mapping[str, Sequence[str]]] = asyncio.get_running_loop().create_future()

    async def go(self, url: str, state: str) -> Mapping[str, Sequence[str]]:
        """Open the login page; return the query of the browser's callback. Raises `McpAuthError` after `wait_s` seconds."""
        self._state, browser = state, self._browser
        browser.tell(f"Log in to {urlsplit(url).netloc} in the browser that opens now, or at this address:")
        browser.tell(url)
        working = [asyncio.create_task(self._open(url)), asyncio.create_task(self._read_pasted())]
        try:
            return await asyncio.wait_for(asyncio.shield(self._came), browser.wait_s)
        except TimeoutError:
            raise McpAuthError(
                f"the login was not completed within {browser.wait_s:g} s: try again", code=NO_ANSWER
            ) from None
        finally:
            for task in working:
                task.cancel()

    async def _open(self, url: str) -> None:
        """Open the browser in a thread, because some browsers block their caller until they are closed."""
        open_url = self._browser.open_url
        if open_url is not None:
            with contextlib.suppress(OSError):
                await run_in_thread(lambda: open_url(url), name="openagentic-browser", moment_s=0)

    async def _read_pasted(self) -> None:
        if (paste := self._browser.paste) is None:
            return
        tell = self._browser.tell
        tell(f"(from another machine: paste the final address of its browser, {self.redirect_uri}?...)")
        while (line := await paste()) is not None:
            if not line.strip():
                continue
            if self._arrived(line.strip()):
                return
            tell("that is not the final address of this login")

    def _arrived(self, target: str) -> bool:
        """Accept a callback only if it belongs to this login, since anyone can send a request; return whether it does."""
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            return False
        if parts.path != PATH or not self._state or query.get("state") != [self._state]:
            return False
        if not self._came.done():
            self._came.set_result(query)
        return True

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request from a browser."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
            method, target, *_ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
            is_ours = method == "GET" and self._arrived(target)
            status, text = ("200 OK", "You are logged in. You can close this window.") if is_ours else (
                "404 Not Found", "This address does not belong to a login in progress."
            )  # fmt: skip
            page = f"<!doctype html><title>openagentic-sdk</title><p>{text}</p>"
            writer.write(_PAGE.format(status=status, length=len(page), page=page).encode("ascii"))
            await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # not an HTTP request, so not a browser
        finally:
            writer.close()
