"""Access control: every route against every attack, isolated tenants, and a browser's sign-in."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.agents import Agents, NamedAgent
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import PermissionDecision, UserAnswer
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.contract.table import ENDPOINTS
from openagentic_sdk.server.guard import Guard, Principal, read_token
from openagentic_sdk.sessions.memory import MemorySessionStore

from .support import ASK, AUTH, TOKEN, Gate, agents, ask, bearer, by_tenant, options, until

NORTH, BERT, SOUTH = (
    bearer(token) for token in ("token-of-anna-at-north", "token-of-bert-at-north", "token-of-carl-at-south")
)
BODIES = {
    "sessions": {"prompt": "x"},
    "runs": {"prompt": "x"},
    "answers": {"question_id": "q", "answer": "yes"},
    "messages": {"prompt": "x"},
    "rewind": {"turns": 1},
    "rename": {"title": "x"},
    "delete": {"confirm": "x"},
}
OPEN = [("openapi.json",), ("health",), ("ready",), ("healthz",), ("signin", None)]
ROUTES = [(each.method, each.parts) for each in ENDPOINTS if not each.is_open]


class GuardCase(unittest.IsolatedAsyncioTestCase):
    def app(self, auth=TOKEN, **more):
        self.store = MemorySessionStore()
        made = app(agents(tea=[ASK, "Tea."]), store=self.store, auth=auth, **more)
        self.addAsyncCleanup(made.desk.drain, 2.0)
        return made

    async def until_parked(self, session_id):
        """Wait until its run has sent its last event: the question is visible before that."""

        async def look():
            return self.store.read_events(session_id)[-1].type == "result"

        await until(look)

    def logs(self):
        return {name: self.store.last_seq(name) for name in self.store.list_sessions()}


class Attacks(GuardCase):
    async def test_no_attack_gets_through_any_route_or_leaves_an_event(self):
        application = self.app()
        session_id = (await ask(application, "POST", "/v1/sessions", {"prompt": "Go."})).json["session_id"]
        await self.until_parked(session_id)
        before = self.logs()
        # name: (status, headers, other changes to the request)
        attacks = {
            "no token": (401, {"Authorization": None}, {}),
            "a wrong token": (401, {"Authorization": "Bearer wrong"}, {}),
            "an empty token": (401, {"Authorization": "Bearer "}, {}),
            "the token by another scheme": (401, {"Authorization": f"Basic {TOKEN}"}, {}),
            "half of the token": (401, {"Authorization": f"Bearer {TOKEN[:-1]}"}, {}),
            "the token in the query": (401, {"Authorization": None}, {"query": f"token={TOKEN}&access_token={TOKEN}"}),
            "the token in a cookie": (401, {"Authorization": None, "Cookie": f"token={TOKEN}"}, {}),
            "two tokens": (401, {}, {"raw_headers": [(b"authorization", b"Bearer x")]}),
            "a foreign host": (403, {"Host": "evil.example:8000"}, {}),
            "a host that begins like ours": (403, {"Host": "localhost.evil:8000"}, {}),
            "a host that ends like ours": (403, {"Host": "evil.localhost:8000"}, {}),
            "another port": (403, {"Host": "127.0.0.1:8001"}, {}),
            "no port": (403, {"Host": "127.0.0.1"}, {}),
            "a host with a user": (403, {"Host": "127.0.0.1:8000@evil"}, {}),
            "no host": (403, {"Host": None}, {}),
            "two hosts": (403, {}, {"raw_headers": [(b"host", b"evil")]}),
            "a host in other letters": (403, {"Host": "１27.0.0.1:8000".encode().decode("latin-1")}, {}),
            "a page without an origin": (403, {"Origin": "null"}, {}),
            "a page elsewhere": (403, {"Origin": "https://evil.example"}, {}),
            "a page on another port": (403, {"Origin": "http://127.0.0.1:3000"}, {}),
            "a page of another name for us": (403, {"Origin": "http://localhost:8000"}, {}),
            "an empty origin": (403, {"Origin": ""}, {}),
            "another site": (403, {"Sec-Fetch-Site": "cross-site"}, {}),
            "another port of this machine": (403, {"Sec-Fetch-Site": "same-site"}, {}),
            "a site that nobody knows": (403, {"Sec-Fetch-Site": "x"}, {}),
            "DELETE": (405, {}, {"method": "DELETE"}),
            "TRACE": (405, {}, {"method": "TRACE"}),
            "another method for a read": (405, {}, {"method": "PUT"}),
        }
        for method, parts in ROUTES:
            path = "/" + "/".join(session_id if part is None else part for part in parts).replace(
                "ag-ui/" + session_id, "ag-ui/tea"
            )
            body = BODIES.get(parts[-1] if parts else "", {}) if method == "POST" else None
            for name, (status, headers, change) in attacks.items():
                with self.subTest(name, method=method, path=path):
                    target = f"{path}?{change['query']}" if "query" in change else path
                    raw = change.get("raw_headers")
                    asked = change.get("method", method)
                    answer = await ask(application, asked, target, body, headers=headers, raw_headers=raw)
                    self.assertEqual(answer.status, status, answer.body)
                    self.assertNotIn("access-control-allow-origin", answer.headers)
            if method == "POST":
                posts = {
                    "by GET": (200 if parts == ("v1", "sessions") else 405, {"method": "GET", "body": None}),
                    "a form": (415, {"headers": {"Content-Type": "application/x-www-form-urlencoded"}}),
                    "plain text": (415, {"headers": {"Content-Type": "text/plain"}}),
                    "no kind": (415, {"headers": {"Content-Type": None}}),
                    "nearly JSON": (415, {"headers": {"Content-Type": "application/json-patch+json"}}),
                    "compressed": (415, {"headers": {"Content-Encoding": "gzip"}}),
                    "5 MiB": (413, {"body": b" " * (5 << 20)}),
                    "5 MiB in pieces": (413, {"pieces": [b" " * (1 << 20)] * 5}),
                    "no JSON": (400, {"body": b"{"}),
                    "nothing": (404 if parts[-3:-1] == ("responses", None) else 400, {"body": b""}),
                    "deep": (400, {"body": b"[" * 100_000}),
                    "not a number": (400, {"body": b'{"prompt": NaN}'}),
                    "another encoding": (400, {"body": '{"prompt": "é"}'.encode("latin-1")}),
                }
                for name, (status, change) in posts.items():
                    with self.subTest(name, path=path):
                        given = {"method": method, "body": body, "headers": {}, **change}
                        given["headers"] = {"Accept": "application/json, text/event-stream", **given["headers"]}
                        answer = await ask(application, given.pop("method"), path, given.pop("body"), **given)
                        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(self.logs(), before)

    async def test_a_post_without_a_body_needs_no_media_type_where_none_is_taken_and_only_beside_a_token(self):
        application = self.app()
        path = "/v1/responses/resp_none_000000000000/cancel"
        for body, headers, status in (
            (b"", {"Content-Type": None}, 404),
            (b"", {"Content-Type": None, "Authorization": None}, 401),
            (b"{}", {"Content-Type": None}, 415),
            (b"{}", {"Content-Type": None, "Content-Length": "2"}, 415),
            (b"", {"Content-Type": "text/plain"}, 415),
        ):
            answer = await ask(application, "POST", path, body, headers=headers)
            self.assertEqual(answer.status, status, (body, headers, answer.body))
        cookie = application.guard.redeem(application.guard.new_ticket(Principal(name="anna")), secure=False, path="/")
        signed_in = {"Cookie": cookie.partition(";")[0], "Authorization": None}
        for kind, status in ((None, 415), ("application/json", 404)):
            answer = await ask(application, "POST", path, b"", headers={**signed_in, "Content-Type": kind})
            self.assertEqual(answer.status, status, answer.body)

    async def test_paths_that_could_mean_another_path_are_refused(self):
        application = self.app()
        for path, status in (
            ("/v1/sessions/..%2f..%2fetc", 400),
            ("/v1/sessions/%2e%2e", 400),
            ("/v1/sessions/../../etc/passwd", 400),
            ("/v1/sessions/./x", 400),
            ("/v1/sessions/a%00b", 400),
            ("/v1/sessions/a%0d%0ab", 400),
            ("/v1/sessions/%c0%af", 400),
            ("/v1/sessions/%ff", 400),
            ("/v1/sessions/a%5cb", 400),
            ("/v1/sessions/%", 404),
            ("/v1/sessions/%zz", 404),
            ("/v1/sessions/" + "a" * 5000, 404),
            ("/v1/sessions//events", 404),
            ("//v1/sessions", 404),
            ("/v1//sessions", 404),
            ("/v1/sessions/", 404),
            ("/V1/sessions", 404),
            ("/v1/sessions;x=1", 404),
        ):
            self.assertEqual((await ask(application, "GET", path)).status, status, path)

    async def test_the_headers_for_other_origins_allow_only_what_is_needed(self):
        application = self.app(origins=["https://app.example.com"])
        plain = await ask(application, "OPTIONS", "/v1/sessions", headers={"Authorization": None})
        self.assertEqual((plain.status, plain.headers["allow"]), (204, "GET, POST"))
        self.assertFalse([name for name in plain.headers if name.startswith("access-control")])
        self.assertEqual((await ask(application, "OPTIONS", "/none")).status, 404)
        listed = {"Origin": "https://app.example.com", "Sec-Fetch-Site": "cross-site"}
        before = await ask(application, "OPTIONS", "/v1/sessions", headers={**listed, "Authorization": None})
        self.assertEqual(before.headers["access-control-allow-origin"], "https://app.example.com")
        self.assertNotIn("access-control-allow-credentials", before.headers)
        self.assertEqual((await ask(application, "GET", "/v1/sessions", headers=listed)).status, 200)
        ticket = application.guard.redeem(application.guard.new_ticket(Principal()), secure=False)
        cookie = {"Cookie": ticket.partition(";")[0], "Authorization": None}
        self.assertEqual((await ask(application, "GET", "/v1/sessions", headers=cookie)).status, 200)
        self.assertEqual((await ask(application, "GET", "/v1/sessions", headers={**cookie, **listed})).status, 401)

    async def test_names_and_addresses_of_the_server(self):
        application = self.app(hosts=["Agents.Example.com", "agents.example.com:8443"])
        for host, status, server in (
            ("agents.example.com", 200, ("10.0.0.5", 8000)),
            ("AGENTS.example.com:8443", 200, ("10.0.0.5", 8000)),
            ("10.0.0.5:8000", 200, ("10.0.0.5", 8000)),
            ("localhost:8000", 403, ("10.0.0.5", 8000)),
            ("localhost:8000", 200, ("127.0.0.1", 8000)),
            ("localhost", 200, ("127.0.0.1", 80)),
            ("[::1]:8000", 200, ("::1", 8000)),
            ("localhost", 200, None),
            ("evil.example", 403, None),
        ):
            answer = await ask(application, "GET", "/v1/agents", headers={"Host": host}, server=server)
            self.assertEqual(answer.status, status, (host, server))

    async def test_every_answer_protects_itself_in_a_browser(self):
        application = self.app()
        for path in ("/", "/v1/agents", "/none", "/healthz"):
            answer = await ask(application, "GET", path)
            self.assertEqual(answer.headers["x-content-type-options"], "nosniff")
            self.assertEqual(answer.headers["referrer-policy"], "no-referrer")
            self.assertEqual(answer.headers["x-frame-options"], "DENY")
            self.assertIn("frame-ancestors 'none'", answer.headers["content-security-policy"])


class Tickets(GuardCase):
    async def test_a_ticket_signs_in_once_and_leads_to_pages_of_this_server_only(self):
        application = self.app()
        self.assertEqual(
            (await ask(application, "POST", "/v1/tickets", {}, headers={"Authorization": None})).status, 401
        )
        path = (await ask(application, "POST", "/v1/tickets", {})).json["path"]
        nobody = {"Authorization": None}
        first = await ask(application, "GET", f"{path}?to=/sessions/x", headers=nobody)
        self.assertEqual((first.status, first.headers["location"]), (303, "/sessions/x"))
        cookie = first.headers["set-cookie"]
        for rule in ("HttpOnly", "SameSite=Strict", "Path=/"):
            self.assertIn(rule, cookie)
        self.assertNotIn("Secure", cookie)
        self.assertEqual((await ask(application, "GET", path, headers=nobody)).status, 401)
        signed_in = {"Cookie": f"other=1; {cookie.partition(';')[0]}", "Authorization": None}
        self.assertEqual((await ask(application, "GET", "/v1/agents", headers=signed_in)).status, 200)
        name, _, value = cookie.partition(";")[0].partition("=")
        body, _, mark = value.rpartition(".")
        for forged in (f"{body}.{'0' * 64}", f"{body}x.{mark}", f".{mark}", body, "", f"{mark}.{body}"):
            headers = {"Cookie": f"{name}={forged}", "Authorization": None}
            self.assertEqual((await ask(application, "GET", "/v1/agents", headers=headers)).status, 401)
        for target in ("//evil.example", "https://evil.example", "/%5cevil.example", "x", "/a%0d%0ab: c", "%2f%2fevil"):
            path = (await ask(application, "POST", "/v1/tickets", {})).json["path"]
            answer = await ask(application, "GET", f"{path}?to={target}", headers=nobody)
            self.assertEqual((answer.status, answer.headers.get("set-cookie")), (400, None), target)
        self.assertEqual((await ask(application, "GET", "/signin/guessed", headers=nobody)).status, 401)

    async def test_a_cookie_is_accepted_by_every_process_with_the_token_and_by_no_other(self):
        one, same, other = (Guard(token) for token in (TOKEN, TOKEN, TOKEN + "2"))
        cookie = one.redeem(one.new_ticket(Principal("", False, "eve")), secure=True)
        self.assertIn("Secure", cookie)
        scope = {"headers": [(b"cookie", cookie.partition(";")[0].encode())]}
        self.assertEqual(await same.find_principal(scope), Principal("", False, "eve"))
        self.assertIsNone(await other.find_principal(scope))

    def test_short_tokens_are_refused_and_the_one_of_the_installation_is_its_owners_alone(self):
        for short in ("", "x", "123456789012345"):
            with self.assertRaises(OptionsError):
                Guard(short)
        with tempfile.TemporaryDirectory() as folder:
            before = dict(os.environ)
            self.addCleanup(os.environ.update, before)
            self.addCleanup(os.environ.clear)
            os.environ["OPENAGENTIC_SDK_HOME"] = folder
            os.environ.pop("OPENAGENTIC_SDK_SERVER_TOKEN", None)
            token = read_token()
            self.assertEqual((read_token(), len(token)), (token, 64))
            path = Path(folder, "server.token")
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            path.chmod(0o644)
            with self.assertRaisesRegex(OptionsError, "owner"):
                read_token()
            os.environ["OPENAGENTIC_SDK_SERVER_TOKEN"] = "from the environment"
            self.assertEqual(read_token(), "from the environment")


class Tenants(GuardCase):
    async def test_unknown_and_foreign_sessions_answer_alike_by_every_route(self):
        application = self.app(by_tenant)
        key = {"Idempotency-Key": "k"}
        made = (
            await ask(application, "POST", "/v1/sessions", {"prompt": "secret word"}, headers={**NORTH, **key})
        ).json
        session_id = made["session_id"]
        await self.until_parked(session_id)
        before = self.logs()
        routes = [(method, parts) for method, parts in ROUTES if None in parts and not {"ag-ui", "models"} & set(parts)]
        for method, parts in routes:
            body = BODIES.get(parts[-1], {}) if method == "POST" else None
            for headers in ({}, {"Accept": "text/event-stream"}, key):
                answers = []
                for name in (session_id, "0" * len(session_id)):
                    path = "/" + "/".join(name if part is None else part for part in parts)
                    got = await ask(
                        application, method, path, body, headers={**SOUTH, **headers, "X-Request-Id": "one"}
                    )
                    answers.append((got.status, got.headers, got.body.replace(name.encode(), b"ID")))
                with self.subTest(method=method, parts=parts):
                    self.assertEqual(answers[0], answers[1])
                    self.assertEqual(answers[0][0], 404)
        for path in ("/v1/sessions", "/v1/sessions?query=secret", "/v1/search?query=secret", "/"):
            self.assertNotIn(session_id.encode(), (await ask(application, "GET", path, headers=SOUTH)).body)
            self.assertIn(session_id.encode(), (await ask(application, "GET", path, headers=BERT)).body)
        self.assertEqual(self.logs(), before)
        # The same key of another tenant is another key, and an id cannot be taken by guessing it.
        south = await ask(application, "POST", "/v1/sessions", {"prompt": "mine"}, headers={**SOUTH, **key})
        self.assertEqual(south.status, 201)
        self.assertNotEqual(south.json["session_id"], session_id)

    async def test_only_authorized_principals_answer_and_the_log_names_them(self):
        application = self.app(by_tenant)
        registry = agents(
            tea=options([{"tool_calls": [{"name": "AskUserQuestion", "arguments": {"question": "?"}}]}, "Tea."])
        )
        application.desk._agents = registry
        session_id = (await ask(application, "POST", "/v1/sessions", {"prompt": "x"}, headers=NORTH)).json["session_id"]
        await self.until_parked(session_id)
        row = (await ask(application, "GET", f"/v1/sessions/{session_id}", headers=BERT)).json
        body = {"question_id": row["open_questions"][0]["question_id"], "answer": "yes"}
        path = f"/v1/sessions/{session_id}/answers"
        self.assertEqual((await ask(application, "POST", path, body, headers=BERT)).status, 403)
        self.assertEqual((await ask(application, "POST", path, body, headers=SOUTH)).status, 404)
        self.assertEqual((await ask(application, "POST", path, body, headers=NORTH)).status, 202)
        events = self.store.read_events(session_id)
        self.assertEqual([event.answered_by for event in events if isinstance(event, UserAnswer)], ["anna"])
        self.assertFalse(
            [event for event in events if isinstance(event, PermissionDecision) and event.answered_by == "bert"]
        )

    async def test_who_may_not_answer_cannot_choose_a_looser_mode_and_a_decision_names_who_allowed_it(self):
        call = {"tool_calls": [{"name": "hold", "arguments": {}}]}
        gate = Gate()
        gate.open.set()
        tea = NamedAgent(options([call, "Held."], gate.tool(), mode="prompt"), client_modes=("acceptEdits",))
        application = self.app(by_tenant)
        application.desk._agents = Agents({"tea": tea})
        loose = {"prompt": "x", "options": {"permission_mode": "acceptEdits"}}
        self.assertEqual((await ask(application, "POST", "/v1/sessions", loose, headers=BERT)).status, 400)
        strict = {"prompt": "x", "options": {"permission_mode": "prompt"}}
        made = await ask(application, "POST", "/v1/sessions", strict, headers=BERT)
        session_id = made.json["session_id"]
        await self.until_parked(session_id)
        [question_id] = self.store.read_summary(session_id).open_questions
        body = {"question_id": question_id, "answer": "yes"}
        await ask(application, "POST", f"/v1/sessions/{session_id}/answers", body, headers=NORTH)

        async def decided():
            found = [event for event in self.store.read_events(session_id) if isinstance(event, PermissionDecision)]
            return found and found[-1].allowed and found[-1]

        self.assertEqual((await until(decided)).answered_by, "anna")

    async def test_an_auth_that_gives_nobody_or_nonsense_lets_nobody_in(self):
        async def nobody(scope):
            return None

        for auth in (nobody, lambda scope: None):
            self.assertEqual((await ask(self.app(auth), "GET", "/v1/agents")).status, 401)
        with self.assertRaisesRegex(TypeError, "Principal"):
            await ask(self.app(lambda scope: True), "GET", "/v1/agents")

    def test_the_routes_that_need_no_secret_are_these(self):
        self.assertEqual([each.parts for each in ENDPOINTS if each.is_open], OPEN)
        self.assertEqual(AUTH["Authorization"], f"Bearer {TOKEN}")


if __name__ == "__main__":
    unittest.main()
