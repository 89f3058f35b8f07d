"""Logins at an issuer written by others (oidc-provider), from registration to a client that the issuer has forgotten."""

from __future__ import annotations

import asyncio
import http.cookiejar
import os
import subprocess
import tempfile
import unittest
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener, urlopen

from openagentic_sdk import McpServer
from openagentic_sdk.errors import McpError
from openagentic_sdk.parts.mcp.oauth.login import OAuth, Visit
from openagentic_sdk.parts.mcp.oauth.logins import Logins
from openagentic_sdk.parts.mcp.servers import Servers
from openagentic_sdk.parts.mcp.tools import RemoteTool
from openagentic_sdk.tools.base import ToolContext
from tests.ports import free_port, until_listens

NODE, MODULES = os.environ.get("OPENAGENTIC_TEST_NODE"), os.environ.get("OPENAGENTIC_TEST_NODE_MODULES")
PROVIDER = Path(MODULES or "/none") / "oidc-provider"
CALLBACK = "http://127.0.0.1:4321/callback"


class NobodyListens(HTTPRedirectHandler):
    """Follows an issuer's redirects, and keeps the one that leads back to the client."""

    back: str | None = None

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if newurl.startswith(CALLBACK):
            self.back = newurl
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Person:
    """A browser with cookies, whose owner agrees to everything; `visits` counts how often it was needed."""

    redirect_uri = CALLBACK

    def __init__(self) -> None:
        self.visits = 0

    @asynccontextmanager
    async def __call__(self, fixed: int | None, usual: int | None) -> AsyncIterator[Visit]:
        yield self

    async def go(self, url: str, state: str) -> Mapping[str, Sequence[str]]:
        self.visits += 1
        return await asyncio.to_thread(self._walk, url)

    def _walk(self, url: str) -> Mapping[str, Sequence[str]]:
        keeper = NobodyListens()
        browser = build_opener(keeper, HTTPCookieProcessor(http.cookiejar.CookieJar()))
        try:
            with browser.open(url, timeout=60):
                pass
        except OSError:
            if keeper.back is None:
                raise
        assert keeper.back is not None, "the issuer did not send the browser back"
        return parse_qs(urlsplit(keeper.back).query)


@unittest.skipUnless(NODE and PROVIDER.exists(), "OPENAGENTIC_TEST_NODE and ..._NODE_MODULES name no oidc-provider")
class OidcProvider(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        assert NODE is not None and MODULES is not None
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        # A module finds the packages of its own folder.
        (folder / "node_modules").symlink_to(Path(MODULES).resolve())
        (folder / "issuer.mjs").write_text(Path(__file__).with_name("issuer.mjs").read_text())
        self.port = free_port()
        words = [NODE, str(folder / "issuer.mjs"), str(self.port)]
        issuer = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(issuer.wait)
        self.addCleanup(issuer.kill)
        until_listens(self.port, issuer)
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.logins = folder / "logins"

    async def who(self, person: Person | None) -> str:
        """The answer of the server's tool to a separate process that uses the stored login."""
        auth = OAuth("peer", self.url, None, logins=Logins(self.logins, self.url), browser=person)
        servers = Servers({"peer": McpServer(url=self.url)}, cwd=".", auth_for=lambda name, settings: auth)
        servers.hold()
        try:
            await servers.ready()
            [event] = servers.changes({})
            if event.state == "failed":
                raise McpError(event.error_message or "", server="peer")
            [tool] = [tool for tool in servers.tools() if isinstance(tool, RemoteTool)]
            return str(await tool.run({}, ToolContext()))
        finally:
            await servers.release()

    async def forget(self, what: str = "") -> None:
        def post() -> None:
            with urlopen(Request(f"http://127.0.0.1:{self.port}/forget{what}", method="POST"), timeout=60):
                pass

        await asyncio.to_thread(post)

    async def test_a_login_is_kept_renewed_and_created_again_when_the_issuer_forgets(self) -> None:
        person = Person()
        self.assertIn("mcp:read", await self.who(person))
        self.assertEqual(person.visits, 1)
        self.assertIn("mcp:read", await self.who(None))  # the next process finds it
        await self.forget()
        self.assertIn("mcp:read", await self.who(None))  # refused on first use, and renewed
        await self.forget("?clients")
        with self.assertRaisesRegex(McpError, "openagentic-sdk mcp login peer"):
            await self.who(None)
        self.assertIn("mcp:read", await self.who(person))  # registered again
        self.assertIn("mcp:read", await self.who(None))


if __name__ == "__main__":
    unittest.main()
