"""The contract: the server accepts and returns what its OpenAPI document describes, and each refusal has a code."""

from __future__ import annotations

import ast
import unittest
from pathlib import Path

import openagentic_sdk.server
from openagentic_sdk.errors import RequestRefusedError
from openagentic_sdk.events import EVENT_CLASSES, Event
from openagentic_sdk.ground.schemas import compiled
from openagentic_sdk.serialization import event_to_dict
from openagentic_sdk.server.asgi import app
from openagentic_sdk.server.contract.openapi import event_schema, openapi
from openagentic_sdk.server.contract.refusals import CODES, REFUSALS, code_of, error_body, refusal_of
from openagentic_sdk.server.contract.table import ENDPOINTS
from openagentic_sdk.server.guard import Principal
from openagentic_sdk.sessions.memory import MemorySessionStore
from tests.size import full_size

from .recorded import fixture_logs
from .support import ASK, TOKEN, agents, ask, until_free

ROOM = Path(openagentic_sdk.server.__file__).parent


def resolved(schema, known):
    """The schema without references."""
    if isinstance(schema, list):
        return [resolved(each, known) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {"type": "object", "required": ["type"]} if name == "Event" else resolved(known[name], known)
    return {name: resolved(each, known) for name, each in schema.items()}


class Document(unittest.IsolatedAsyncioTestCase):
    @full_size
    async def test_every_answer_of_the_native_protocol_matches_the_document(self):
        application = app(agents(tea=[ASK, "Milk it is."]), store=MemorySessionStore(), auth=TOKEN)
        self.addAsyncCleanup(application.desk.drain, 2.0)
        document = (await ask(application, "GET", "/openapi.json", headers={"Authorization": None})).json
        self.assertEqual(document, openapi())
        known = document["components"]["schemas"]

        async def check(method, path, body=None, **more):
            answer = await ask(application, method, path, body, **more)
            await until_free(application)
            place = path.partition("?")[0].replace((made and made["session_id"]) or "~", "{session_id}")
            operation = document["paths"][place][method.lower()]
            answers = operation["responses"]
            self.assertIn("default" if answer.status >= 400 else str(answer.status), answers, (path, answer.body))
            said = answers.get(str(answer.status), answers["default"])
            schema = resolved(said["content"]["application/json"]["schema"], known)
            compiled(schema).check(answer.json)
            if body is not None and answer.status < 400:
                compiled(resolved(operation["requestBody"]["content"]["application/json"]["schema"], known)).check(body)
            return answer.json

        made = None
        made = await check("POST", "/v1/sessions", {"prompt": "Tea?"})
        path = f"/v1/sessions/{made['session_id']}"
        row = await check("GET", path)
        asked = {"question_id": row["open_questions"][0]["question_id"], "answer": "milk"}
        for method, where, body in (
            ("GET", "/v1/agents", None),
            ("GET", "/v1/sessions?limit=1", None),
            ("GET", "/v1/questions", None),
            ("GET", "/v1/search?query=milk", None),
            ("GET", f"{path}/why", None),
            ("GET", f"{path}/context", None),
            ("GET", f"{path}/context?window=9000", None),
            ("GET", f"{path}/context?window=0", None),
            ("GET", f"{path}/events?limit=3", None),
            ("GET", f"{path}/events?after=999", None),
            ("POST", f"{path}/answers", asked),
            ("POST", f"{path}/answers", asked),
            ("POST", f"{path}/messages", {"prompt": "More."}),
            ("POST", f"{path}/cancel", {}),
            ("POST", f"{path}/runs", {"prompt": "And?", "agent": None}),
            ("POST", f"{path}/fork", {}),
            ("POST", f"{path}/rewind", {"turns": 1}),
            ("POST", f"{path}/rewind", {"turns": "one"}),
            ("POST", f"{path}/rename", {"title": "Tea"}),
            ("POST", f"{path}/archive", {}),
            ("POST", "/v1/tickets", {}),
            ("GET", "/healthz", None),
            ("POST", f"{path}/delete", {"confirm": made["session_id"]}),
            ("GET", path, None),
        ):
            with self.subTest(method=method, path=where):
                await check(method, where, body)

    def test_every_event_of_every_fixture_log_fits_its_schema(self):
        checks = {name: compiled(event_schema(kind)) for name, kind in EVENT_CLASSES.items()}
        seen = set()
        for name, events in fixture_logs().items():
            for event in events:
                if event.type in checks:
                    with self.subTest(name, seq=event.seq):
                        checks[event.type].check(event_to_dict(event))
                        seen.add(event.type)
        self.assertGreater(len(seen), 15)

    def test_each_operation_has_its_own_name_and_each_event_its_type(self):
        document = openapi("/agents")
        self.assertEqual(document["servers"], [{"url": "/agents"}])
        names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
        self.assertEqual(sorted(names), sorted(endpoint.name for endpoint in ENDPOINTS))
        schemas = document["components"]["schemas"]
        for name, kind in EVENT_CLASSES.items():
            self.assertEqual(schemas[kind.__name__]["properties"]["type"], {"const": name})
        self.assertTrue(issubclass(kind, Event))


class Codes(unittest.IsolatedAsyncioTestCase):
    @full_size
    def test_every_refusal_of_the_server_has_a_code_of_the_table_with_its_status(self):
        statuses = {status for status, _ in CODES.values()}
        found = 0
        for path in ROOM.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.Call) or ast.unparse(node.func) != "RequestRefusedError":
                    continue
                status = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
                if isinstance(status, int):
                    self.assertIn(status, statuses, f"{path}:{node.lineno}")
                    found += 1
                if len(node.args) > 2 and isinstance(node.args[2], ast.Constant):
                    self.assertEqual(CODES[node.args[2].value][0], status, f"{path}:{node.lineno}")
        self.assertGreater(found, 40)
        self.assertEqual(code_of(RequestRefusedError(404, "x")), "not_found")
        self.assertEqual(code_of(RequestRefusedError(409, "x", "no_run")), "no_run")
        self.assertTrue(all(issubclass(kind, Exception) for kind in REFUSALS))
        error = RequestRefusedError(503, "x", "draining", retry_after_s=1)
        self.assertEqual(refusal_of(error), (503, "x", {"Retry-After": "1"}))
        self.assertEqual(error_body(error), {"error": {"status": 503, "code": "draining", "message": "x"}})

    async def test_programs_can_distinguish_refusals_by_their_codes(self):
        application = app(agents(tea=["Tea."]), store=MemorySessionStore(), auth=lambda scope: Principal())
        self.addAsyncCleanup(application.desk.drain, 2.0)
        key = {"Idempotency-Key": "k"}
        made = (await ask(application, "POST", "/v1/sessions", {"prompt": "Tea?"}, headers=key)).json["session_id"]
        await until_free(application)
        path = f"/v1/sessions/{made}"
        for method, where, body, code, headers in (
            ("GET", "/v1/sessions/nobody", None, "session_not_found", {}),
            ("GET", "/v1/nothing", None, "not_found", {}),
            ("PUT", "/v1/sessions", None, "method_not_allowed", {}),
            ("POST", "/v1/sessions", {"prompt": "x", "agent": "nobody"}, "agent_not_found", {}),
            ("POST", "/v1/sessions", {"prompt": "x", "agnet": "tea"}, "invalid_request", {}),
            ("POST", "/v1/sessions", {"prompt": "Coffee?"}, "key_reused", key),
            ("POST", f"{path}/messages", {"prompt": "x"}, "no_run", {}),
            ("POST", f"{path}/answers", {"question_id": "q", "answer": "x"}, "question_not_open", {}),
            ("GET", f"{path}/events?after=999", None, "cursor_beyond_log", {}),
            ("GET", path, None, "forbidden", {"Host": "elsewhere"}),
        ):
            with self.subTest(code):
                answer = await ask(application, method, where, body, headers=headers)
                error = answer.json["error"]
                self.assertEqual((error["code"], error["status"]), (code, answer.status))
        self.assertEqual((await ask(application, "GET", "/v1/models/nobody")).json["error"]["code"], "agent_not_found")


if __name__ == "__main__":
    unittest.main()
