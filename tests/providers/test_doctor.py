"""`doctor` against local servers: its findings, its advice, and its exit code."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.commands.endpoint import doctor
from openagentic_sdk.cli.doctor_endpoints import endpoint_lines
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.parts.project.claude import find_project_root
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from tests.pythons import run_python
from tests.size import full_size

from .server import Connection, Request, Server, delta, sse


def good(connection: Connection, request: Request) -> None:
    """An endpoint that supports everything."""
    if request.path.endswith("/models"):
        connection.reply(b'{"object": "list", "data": [{"id": "tiny"}]}')
        return
    asked, text = request.json, str(request.json["messages"][-1]["content"])
    message: dict[str, Any] = {"role": "assistant", "content": "ready", "reasoning_content": "Hm."}
    if "response_format" in asked:
        message["content"] = '{"name": "Ulm", "country": "Germany"}'
    elif asked.get("tools") and "Use the tool" in text:
        function = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
        calls = [{"id": f"c{n}", "type": "function", "function": function} for n in range(2 if "twice" in text else 1)]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    if asked.get("stream"):
        connection.stream(sse(delta("re"), delta("ady"), delta(finish="stop"), {"choices": [], "usage": usage}))
    else:
        body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        connection.reply(json.dumps(body).encode())


def only_text(connection: Connection, request: Request) -> None:
    """An endpoint that lists no models and supports no tools."""
    if request.path.endswith("/models"):
        connection.reply(b"not found", "404 Not Found")
    elif request.json.get("tools"):
        connection.reply(b'{"error": {"message": "tools are not supported"}}', "400 Bad Request")
    else:
        good(connection, request)


def examine(*argv: str) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    doctor.add_parser(parser.add_subparsers())
    args, out = parser.parse_args(["doctor", *argv]), io.StringIO()
    with contextlib.redirect_stdout(out):
        code = doctor.run(args)
    return code, out.getvalue()


class Doctor(unittest.TestCase):
    def test_an_endpoint_that_can_do_everything(self) -> None:
        with Server(good) as server:
            code, text = examine("--base-url", server.url + "/v1", "--json")
        found = json.loads(text)
        works = {row["name"]: row["works"] for row in found["findings"]}
        self.assertEqual((code, found["model"], found["works"]), (0, "tiny", True))
        self.assertEqual({name for name, value in works.items() if not value}, set())
        self.assertGreaterEqual(
            set(works), {"reachable", "models", "plain answer", "streaming", "tool call", "parallel calls", "reasoning"}
        )

    def test_an_endpoint_without_tools_fails_in_the_table(self) -> None:
        with Server(only_text) as server:
            code, text = examine("--base-url", server.url + "/v1", "--model", "m")
        self.assertEqual(code, 1)
        self.assertRegex(text, "no  tool call +.*tools are not supported")
        self.assertRegex(text, "yes streaming")
        self.assertIn("an agent cannot run there yet", text)

    def test_no_model_to_ask(self) -> None:
        with Server(only_text) as server:
            code, text = examine("--base-url", server.url + "/v1")
        self.assertEqual(code, 1)
        self.assertIn("--model", text)

    def test_without_an_endpoint_it_reports_on_this_machine_and_this_project(self) -> None:
        code, text = examine("--json")
        found = json.loads(text)
        self.assertEqual((code, found["base_url"], found["works"], found["findings"]), (0, None, None, []))
        rungs = probe_sandbox().rungs()
        self.assertEqual([(row["name"], row["works"], row["detail"]) for row in found["sandbox"]["rungs"]], rungs)
        self.assertEqual(found["project"]["root"], find_project_root(os.getcwd()))
        code, shown = examine()
        self.assertEqual(code, 0)
        for name, works, _ in rungs:
            self.assertRegex(shown, f"(?m)^  {'yes' if works else 'no '} {name} ")
        self.assertIn(f"project {find_project_root(os.getcwd())}, ", shown)

    @full_size
    def test_it_recommends_the_sandbox_where_rules_allow_commands(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder, "home")
            (home / ".claude").mkdir(parents=True)
            project = Path(folder, "project")
            project.mkdir()
            for rules, expected in ((["Read(./x)"], False), (["Bash(npm test:*)", "Read(./x)"], True)):
                settings = {"permissions": {"allow": rules}}
                (home / ".claude" / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
                environment = {**os.environ, "HOME": str(home), "PYTHONPATH": os.getcwd()}
                done = run_python("-m", "openagentic_sdk", "doctor", cwd=project, env=environment, text=True)
                self.assertEqual("1 rule allows commands" in done.stdout, expected, done.stdout + done.stderr)

    def test_flags_for_an_endpoint_need_one(self) -> None:
        with self.assertRaisesRegex(OptionsError, "--base-url"):
            examine("--model", "m")

    def test_a_word_for_provider_and_model_names_the_endpoint(self) -> None:
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        with Server(good) as server:
            os.environ |= {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{server.url}/v1"}
            code, text = examine("--model", "openai:tiny", "--json")
        found = json.loads(text)
        self.assertEqual((code, found["model"], found["works"]), (0, "tiny", True))
        self.assertEqual(found["base_url"], f"{server.url}/v1")
        self.assertIn("openai: $OPENAI_API_KEY is set", found["endpoints"])
        self.assertEqual({one.headers["authorization"] for one in server.requests}, {"Bearer sk-test"})
        self.assertNotIn("sk-test", text)

    def test_each_endpoint_that_the_environment_names_is_listed_with_what_it_lacks(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            token = Path(home, "token")
            token.write_text("t")
            aws = {"HOME": home, "AWS_REGION": "eu-west-1"}
            keys = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret-of-aws"}
            role = {"AWS_ROLE_ARN": "arn:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(token)}
            container = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/creds?secret=1"}
            azure, place = {"AZURE_OPENAI_ENDPOINT": "https://a.openai.azure.com"}, {"GOOGLE_CLOUD_PROJECT": "p"}
            table: list[tuple[dict[str, str], str]] = [
                ({}, ""),
                ({"GROQ_API_KEY": "gsk"}, "groq: $GROQ_API_KEY is set"),
                ({"GROQ_API_KEY": " "}, ""),
                (azure, "azure: $AZURE_OPENAI_API_KEY is not set"),
                ({"AZURE_OPENAI_API_KEY": "k"}, "azure: $AZURE_OPENAI_ENDPOINT is not set"),
                (
                    {**azure, "AZURE_OPENAI_API_KEY": "k"},
                    "azure: https://a.openai.azure.com with $AZURE_OPENAI_API_KEY",
                ),
                ({"HOME": home, "AWS_PROFILE": "none"}, "bedrock: no region: set AWS_REGION"),
                ({**aws, **keys}, "bedrock: region eu-west-1, credentials from $AWS_ACCESS_KEY_ID"),
                ({**aws, "AWS_BEARER_TOKEN_BEDROCK": "b"}, "credentials from $AWS_BEARER_TOKEN_BEDROCK"),
                ({**aws, **role}, f"credentials from the role arn:role/r for the token in {token}"),
                ({**aws, **container}, "the container, at http://169.254.170.2/v2/creds"),
                (
                    {**aws, "AWS_EC2_METADATA_DISABLED": "true"},
                    "bedrock: no AWS credentials, and AWS_EC2_METADATA_DISABLED",
                ),
                (aws, "the instance's role, if this is an instance that has one"),
                (place, "vertex: region '' is not a Google Cloud region"),
                (
                    {**place, "GOOGLE_CLOUD_LOCATION": "global"},
                    "vertex: projects/p/locations/global; give the token with",
                ),
            ]
            for environ, told in table:
                with self.subTest(environ):
                    said = "\n".join(endpoint_lines(environ))
                    self.assertIn(told, said)
                    self.assertEqual(bool(said), bool(told))
                    self.assertNotRegex(said, "gsk|secret|AKID")

    def test_nobody_there(self) -> None:
        with Server(good) as server:
            url = server.url
        code, text = examine("--base-url", url, "--json")
        self.assertEqual(code, 1)
        self.assertIs(json.loads(text)["findings"][0]["works"], False)

    def test_a_key_that_is_missing(self) -> None:
        with Server(lambda c, r: c.reply(b'{"error": "no key"}', "401 Unauthorized")) as server:
            code, text = examine("--base-url", server.url, "--model", "m")
        self.assertEqual(code, 1)
        self.assertIn("--api-key-env", text)


if __name__ == "__main__":
    unittest.main()
