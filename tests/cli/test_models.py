"""Real endpoints from the command line: a server on 127.0.0.1, and which endpoint receives which key."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import unittest

from openagentic_sdk.cli.exits import FAILED, OK
from openagentic_sdk.errors import ApiKeyError, OptionsError
from openagentic_sdk.providers.named import find_provider
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from tests.providers.server import Connection, Request, Server

from .test_main import CommandCase


def answer(connection: Connection, request: Request) -> None:
    """Stream an answer of two words."""
    pieces = [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in ("Good ", "day.")
    ]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    lines = [f"data: {json.dumps(piece)}\n\n".encode() for piece in (*pieces, end)]
    connection.stream([*lines, b"data: [DONE]\n\n"])


class Endpoints(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        os.environ["OPENAI_API_KEY"] = "sk-not-for-strangers"
        os.environ["LOCAL_KEY"] = "local-secret"

    def test_a_base_url_is_asked_and_gets_no_key_that_was_not_named(self) -> None:
        with Server(answer) as server:
            code, out, err = self.command("run", "--base-url", f"{server.url}/v1", "--model", "m", "Hello")
        self.assertEqual((code, err), (OK, ""), out)
        self.assertIn("Good day.", out)
        self.assertNotIn("authorization", server.requests[0].headers)
        self.assertNotIn(b"sk-not", server.requests[0].body)

    def test_a_model_names_its_provider_in_the_flag_and_in_the_variable(self) -> None:
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            os.environ.pop(name, None)
        for word, key in (("anthropic:claude-x", "ANTHROPIC"), ("openai:gpt-4o", "OPENAI"), ("qwen3:8b", "OPENAI")):
            _, _, err = self.command("run", "--model", word, "Hello")
            self.assertIn(f"${key}_API_KEY contains no API key", err, word)
            os.environ["OPENAGENTIC_SDK_MODEL"] = word
            self.assertEqual(self.command("run", "Hello")[2], err, word)
            told = "'qwen3:8b' does not begin with any of the providers anthropic, openai, "
            self.assertEqual(told in err, word == "qwen3:8b", err)
        names = {"openai:gpt-4o": "openai:gpt-4o", "ollama:qwen3:8b": "qwen3:8b", "openai-compatible:m": "m"}
        for word, model in names.items():
            with Server(answer) as server:
                self.command("run", "--base-url", f"{server.url}/v1", "--model", word, "Hello")
            self.assertEqual(json.loads(server.requests[0].body)["model"], model)

    def test_the_command_of_why_asks_the_same_model_of_the_same_server(self) -> None:
        with Server(answer) as server:
            place = ("--base-url", f"{server.url}/v1", "--model", "team:shop-1")
            self.command("run", *place, "--max-steps", "1", "Hello")
            # A run that this process itself stopped before its end.
            self.command("run", *place, "--timeout", "0.000001", "Hello")
            out = self.command("sessions", "why", "newest")[1]
            line = next(line for line in out.splitlines() if line.startswith("to continue: openagentic-sdk "))
            words = shlex.split(line.removeprefix("to continue: openagentic-sdk "))
            code, out, err = self.command(*words)
        self.assertEqual((code, err), (OK, ""), out)
        self.assertEqual(json.loads(server.requests[-1].body)["model"], "team:shop-1")

    def test_a_model_of_no_known_provider_is_named_where_openai_has_no_key(self) -> None:
        with self.assertRaisesRegex(
            ApiKeyError, "'acme:llama-3' does not begin with any of the providers .* openai-compatible"
        ):
            find_provider(model="acme:llama-3", environ={})
        with self.assertRaises(ApiKeyError) as caught:
            find_provider("openai", model="ft:gpt-4o:us", environ={})
        self.assertNotIn("begins with", str(caught.exception))

    def test_a_key_goes_where_its_variable_is_named_and_into_no_log(self) -> None:
        with Server(answer) as server:
            flags = ("--base-url", f"{server.url}/v1", "--model", "m", "--api-key-env", "LOCAL_KEY")
            self.command("run", *flags, "Hello")
        self.assertEqual(server.requests[0].headers["authorization"], "Bearer local-secret")
        logs = [path.read_bytes() for path in self.store.rglob("*") if path.is_file()]
        self.assertTrue(logs)
        self.assertFalse(any(b"local-secret" in log for log in logs))

    def test_a_vendors_key_goes_to_no_other_address_unless_it_is_named(self) -> None:
        with Server(answer) as server:
            flags = ("--provider", "openai", "--base-url", f"{server.url}/v1", "--model", "m")
            code, _, err = self.command("run", *flags, "Hello")
            self.assertIn("--api-key-env", err)
            self.assertEqual((code == OK, server.requests), (False, []))
            self.command("run", *flags, "--api-key-env", "LOCAL_KEY", "Hello")
            self.assertEqual(server.requests[0].headers["authorization"], "Bearer local-secret")
            os.environ["OPENAI_BASE_URL"] = f"{server.url}/v1"
            self.addCleanup(os.environ.pop, "OPENAI_BASE_URL", None)
            self.command("run", "--provider", "openai", "--model", "m", "Hello")
        self.assertEqual(server.requests[1].headers["authorization"], "Bearer sk-not-for-strangers")

    def test_a_hosted_vendor_is_asked_at_its_own_address_with_its_own_key_alone(self) -> None:
        keys = {"GROQ_API_KEY": "gsk", "AZURE_OPENAI_API_KEY": "azk", "MINE": "mine"}
        at, azure = {"AZURE_OPENAI_ENDPOINT": "https://a.openai.azure.com/"}, "https://a.openai.azure.com/openai/v1"
        for name, given, url, headers in (
            ("groq", {}, "https://api.groq.com/openai/v1", {"Authorization": "Bearer gsk"}),
            ("groq", {"api_key_env": "MINE"}, "https://api.groq.com/openai/v1", {"Authorization": "Bearer mine"}),
            ("groq", {"base_url": "https://p/v1", "api_key_env": "MINE"}, "https://p/v1", {"Authorization": "Bearer mine"}),
            ("azure", {}, azure, {"api-key": "azk"}),
            ("azure", {"base_url": f"{azure}/"}, f"{azure}/", {"api-key": "azk"}),
        ):  # fmt: skip
            provider = find_provider(name, environ={**keys, **at}, **given)
            assert isinstance(provider, OpenAICompatibleProvider)
            sent = asyncio.run(provider.request_headers())
            self.assertEqual((provider.name, provider.base_url), (name, url.rstrip("/")))
            self.assertEqual({key: sent.get(key) for key in headers}, headers)
        for name, environ, given, told in (
            ("groq", {}, {}, ".GROQ_API_KEY contains no API key"),
            (
                "groq",
                keys,
                {"base_url": "https://evil/v1"},
                "GROQ_API_KEY is sent to https://api.groq.com/openai/v1 only",
            ),
            ("azure", keys, {}, "AZURE_OPENAI_ENDPOINT"),
            ("azure", keys, {"base_url": "https://evil/v1"}, "AZURE_OPENAI_API_KEY is sent to the address in"),
        ):
            with self.subTest(name=name, told=told), self.assertRaisesRegex(OptionsError, told):
                find_provider(name, environ=environ, **given)

    def test_a_refused_key_is_one_closing_line(self) -> None:
        def refuse(connection: Connection, request: Request) -> None:
            connection.reply(b'{"error": {"message": "no such key"}}', status="401 Unauthorized")

        with Server(refuse) as server:
            code, out, _ = self.command("run", "--base-url", f"{server.url}/v1", "--model", "m", "Hello")
        self.assertEqual(code, FAILED)
        self.assertIn("no such key", out)
        self.assertEqual(len(server.requests), 1)


if __name__ == "__main__":
    unittest.main()
