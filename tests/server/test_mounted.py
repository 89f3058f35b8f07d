"""The application under a prefix: all of its own addresses keep the prefix, and requests below it are found."""

from __future__ import annotations

import json
import re
import unittest
from urllib.parse import quote, unquote

from openagentic_sdk.server.asgi import app
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.size import full_size

from .support import AUTH, TOKEN, Answer, agents, ask, until_free

ROOTS = ("/agents", "/api/v2/agents", "/agents/", "/a b/\u00fc", "/v1", "/v1/sessions", "/50%25", "")


class Mounted(unittest.IsolatedAsyncioTestCase):
    def app(self):
        made = app(agents(), store=MemorySessionStore(), auth=TOKEN)
        self.addAsyncCleanup(made.desk.drain, 2.0)
        return made

    async def asked(self, application, root, method, target, body=None, *, raw=True, headers=None) -> Answer:
        """The response to a request below the mount, with a server that passes the path raw, or only decoded."""
        path, _, query = target.partition("?")
        whole = root.rstrip("/") + path

        async def mounted(scope, receive, send):
            scope = {**scope, "root_path": root, "path": whole, "raw_path": quote(whole).encode() if raw else None}
            await application({**scope, "query_string": query.encode()}, receive, send)

        return await ask(mounted, method, "/", body, headers=headers)

    @full_size
    async def test_links_tickets_and_redirects_keep_the_prefix_however_deep_or_odd(self):
        application = self.app()
        for root in ROOTS:
            for raw in (True, False):
                with self.subTest(root=root, raw=raw):
                    prefix = quote(root.rstrip("/"))
                    made = await self.asked(application, root, "POST", "/v1/sessions", {"prompt": "Hi."}, raw=raw)
                    self.assertEqual(made.status, 201, made.body)
                    session_id = made.json["session_id"]
                    self.assertEqual(made.headers["location"], f"{prefix}/v1/sessions/{session_id}")
                    await until_free(application)
                    row = await self.asked(application, root, "GET", f"/v1/sessions/{session_id}", raw=raw)
                    self.assertEqual(row.json["state"], "idle")
                    page = await self.asked(application, root, "GET", "/", raw=raw)
                    links = re.findall(r'href="([^"#]*)"', page.body.decode())
                    self.assertIn(f"{prefix}/sessions/{session_id}", links)
                    self.assertTrue(all(link.startswith(f"{prefix}/") for link in links), links)
                    page = await self.asked(application, root, "GET", f"/sessions/{session_id}", raw=raw)
                    self.assertIn(json.dumps(f"{prefix}/v1/sessions/{session_id}/events"), page.body.decode())
                    for to, target in (("", "/"), ("?to=/sessions/x", "/sessions/x"), (f"?to={quote(prefix)}/y", "/y")):
                        ticket = await self.asked(application, root, "POST", "/v1/tickets", {}, raw=raw)
                        self.assertTrue(ticket.json["path"].startswith(f"{prefix}/signin/"))
                        below = unquote(ticket.json["path"]).removeprefix(root.rstrip("/"))
                        signed = await self.asked(application, root, "GET", below + to, raw=raw)
                        self.assertEqual(
                            (signed.status, signed.headers["location"]), (303, prefix + target), signed.body
                        )
                        cookie = signed.headers["set-cookie"]
                        self.assertIn(f"; Path={prefix or '/'};", cookie)
                    headers = {"Authorization": None, "Cookie": cookie.partition(";")[0]}
                    again = await self.asked(application, root, "GET", "/v1/agents", raw=raw, headers=headers)
                    self.assertEqual(again.status, 200)

    async def test_a_path_that_only_resembles_the_prefix_is_outside_of_it(self):
        application = self.app()
        for root, path in (
            ("/agents", "/agentsv1/agents"),
            ("/agents", "/agents%2Fv1/agents"),
            ("/a/b", "/a/b/../v1/agents"),
        ):

            async def mounted(scope, receive, send, root=root, path=path):
                await application(
                    {**scope, "root_path": root, "path": unquote(path), "raw_path": path.encode()}, receive, send
                )

            answer = await ask(mounted, "GET", "/")
            self.assertIn(answer.status, (400, 404), path)

        # Older servers omit the prefix from the path.
        async def stripped(scope, receive, send):
            await application({**scope, "root_path": "/agents"}, receive, send)

        self.assertEqual((await ask(stripped, "GET", "/v1/agents")).status, 200)

    async def test_the_lifespan_of_a_host_opens_and_drains_the_application(self):
        application = self.app()
        async with application.lifespan(object()):
            self.assertEqual((await ask(application, "POST", "/v1/sessions", {"prompt": "Hi."})).status, 201)
        self.assertTrue(application.desk.is_draining)
        self.assertEqual((await ask(application, "POST", "/v1/sessions", {"prompt": "Hi."}, headers=AUTH)).status, 503)


if __name__ == "__main__":
    unittest.main()
