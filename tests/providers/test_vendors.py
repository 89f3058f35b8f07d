"""Each habit of `profiles.json` in a miniature, and each line of the docs against a vendor with its habits."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import tempfile
import unittest
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from openagentic_sdk.cli.exits import OK
from openagentic_sdk.errors import ProviderHTTPError
from openagentic_sdk.providers.named import HOSTED, LOCAL_SERVERS
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.testing.wire_check.check import check_exchange
from openagentic_sdk.testing.wire_check.habits import PROFILES, new_habits, profile_of
from openagentic_sdk.testing.wire_check.plain import plain_answer, protocol_of_answer, read_plainly
from openagentic_sdk.testing.wire_check.recordings import Exchange
from openagentic_sdk.testing.wire_check.rules import find_broken_rules
from tests.cli.test_main import CommandCase
from tests.size import drawn, full_size

from .miniatures import answer, events, refusal
from .server import Connection, Request, Server, _read_request

CALLS = [("Glob", {"pattern": "*.txt"}), ("Glob", {"pattern": "*.md"})]
# An answer with these habits is neither whole nor assembled.
APART = {"errors behind a 200", "finish never comes", "no blocks"}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "providers.md"
FIFTEEN = {
    "openai": "api.openai.com",
    "azure": "acme.openai.azure.com",
    "anthropic": "api.anthropic.com",
    "bedrock": "bedrock-runtime.us-east-1.amazonaws.com",
    "vertex": "aiplatform.googleapis.com",
    "gemini": "generativelanguage.googleapis.com",
    **{name: urlsplit(url).netloc for name, (url, _) in HOSTED.items()},
    **{name: urlsplit(url).netloc for name, url in LOCAL_SERVERS.items()},
}
PATHS = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
    "/invoke-with-response-stream": "invoke",
    ":streamGenerateContent": "gemini",
    ":streamRawPredict": "messages",
}
_RESPONSES_ONLY = {
    "messages have a phase",
    "reasoning is encrypted",
    "deltas have no output_index",
    "[DONE] behind the end",
}
_OF_RESPONSES = {*_RESPONSES_ONLY, "output of the end is empty", "ids rotate", "comments keep the line open"}
_OF_GEMINI = {"calls are signed", "signature beside an empty text", "calls come in pieces"}
_OF_MESSAGES = {"calls in the vendor's own code", "no blocks", "no message_stop"}


def exchange(host: str, body: bytes) -> Exchange:
    return Exchange(host, f"https://{host}/v1/x", 200, {}, None, body)


def protocols_of(habit: str) -> list[str]:
    """The protocols in which a vendor can have a habit."""
    if habit in _OF_GEMINI:
        return ["gemini"]
    if habit in _OF_MESSAGES:
        return ["messages"]
    if habit in _RESPONSES_ONLY or habit == "output of the end is empty":
        return ["responses"]
    return ["chat", "responses"] if habit in _OF_RESPONSES else ["chat"]


class Miniatures(unittest.TestCase):
    def check(self, host: str, protocol: str, habits: set[str]) -> list[str]:
        """The habits detected in an answer with these, after checking that it is read as intended, wherever it is cut."""
        body = answer(protocol, habits, "Let me look.", CALLS)
        checked = check_exchange(exchange(host, body))
        assert checked is not None
        self.assertEqual((checked.differences, checked.refusal), ([], None))
        self.assertGreater(checked.cuts, 2)
        chunks = read_plainly(body)
        text, calls = plain_answer(checked.protocol, chunks)
        found = [(name, json.loads(given) if isinstance(given, str) else given) for name, given in calls]
        self.assertEqual((text, found), ("Let me look.", CALLS))
        return list(checked.habits)

    @full_size
    def test_each_habit_alone_is_reported_and_read_as_intended(self) -> None:
        for vendor, profile in PROFILES.items():
            for habit in profile["habits"].keys() - APART:
                for protocol in drawn(sorted(protocols_of(habit)), 2):
                    with self.subTest(vendor=vendor, habit=habit, protocol=protocol):
                        self.assertIn(habit, self.check(profile["hosts"][0], protocol, {habit}))

    @full_size
    def test_all_habits_of_a_vendor_together_are_reported_and_none_is_new(self) -> None:
        for vendor, profile in PROFILES.items():
            habits = profile["habits"].keys() - APART
            for protocol in {one for habit in habits for one in protocols_of(habit)}:
                with self.subTest(vendor=vendor, protocol=protocol):
                    wanted = {habit for habit in habits if protocol in protocols_of(habit)}
                    shown = self.check(profile["hosts"][0], protocol, wanted)
                    self.assertEqual(new_habits(profile["hosts"][0], shown), [])

    def test_an_answer_as_it_is_documented_shows_no_habit(self) -> None:
        for protocol in ("chat", "responses", "messages", "gemini"):
            self.assertEqual(self.check("api.example.com", protocol, set()), [], protocol)

    def test_errors_behind_a_200_and_calls_in_pieces_run_nothing(self) -> None:
        part = {"functionCall": {"name": "Glob", "willContinue": True}}
        chunk = {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}
        said = {"choices": [{"index": 0, "delta": {"content": "x"}}]}
        for host, body, habit in (
            ("api.groq.com", events([said]) + refusal(), "errors behind a 200"),
            ("api.groq.com", events([said, said]), "finish never comes"),
            ("aiplatform.googleapis.com", events([chunk, chunk]), "calls come in pieces"),
            ("127.0.0.1:8080", answer("messages", {"no blocks"}, "", ()), "no blocks"),
        ):  # fmt: skip
            with self.subTest(habit):
                checked = check_exchange(exchange(host, body))
                assert checked is not None
                self.assertIn(habit, checked.habits)
                self.assertEqual([one.kind for one in checked.differences if one.kind in ("cut", "bytes")], [])

    def test_a_habit_missing_from_a_profile_is_reported_with_its_vendor(self) -> None:
        checked = check_exchange(exchange("api.groq.com", answer("chat", {"finish repeats"}, "Hi.")))
        assert checked is not None
        self.assertEqual((checked.vendor, checked.new_habits), ("groq", ["finish repeats"]))
        unknown = check_exchange(exchange("api.example.com", answer("chat", {"finish repeats"}, "Hi.")))
        assert unknown is not None
        self.assertEqual((unknown.vendor, unknown.habits, unknown.new_habits), (None, ["finish repeats"], []))

    def test_every_profile_has_hosts_a_date_and_habits_that_are_known(self) -> None:
        self.assertLessEqual(FIFTEEN.keys(), PROFILES.keys())
        for vendor, profile in PROFILES.items():
            self.assertRegex(profile["read"], r"20\d\d-\d\d")
            self.assertEqual([profile_of(host) for host in profile["hosts"]], [vendor] * len(profile["hosts"]))
            for since in profile["habits"].values():
                self.assertRegex(since, r"20\d\d-\d\d")
        for vendor, host in FIFTEEN.items():
            self.assertEqual(profile_of(host), vendor)


class World:
    """A proxy that answers for every host as the vendor with its habits would: two calls, then a word."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self.asked: list[tuple[str, Request]] = []
        self.answered: list[bytes] = []

    def __call__(self, connection: Connection, request: Request) -> None:
        if request.method != "CONNECT":
            self.answer(connection, request, urlsplit(request.path).netloc or request.headers["host"])
            return
        connection.head("200 Connection established")
        connection.keep = False
        with self._tls.wrap_socket(connection.sock, server_side=True) as sock:
            sock.settimeout(60)
            inner = Connection(sock, connection.closing)
            while inner.keep and (request := _read_request(sock)):  # type: ignore[assignment]
                self.answer(inner, request, request.headers["host"])

    def answer(self, connection: Connection, request: Request, host: str) -> None:
        path = urlsplit(request.path).path
        protocol = next((one for end, one in PATHS.items() if path.endswith(end)), None)
        if protocol is None:
            connection.reply(b'{"error": {"message": "nothing is served here"}}', "404 Not Found")
            return
        self.asked.append((host, request))
        profile: Mapping[str, Any] = PROFILES[profile_of(host) or ""]
        is_second = len(self.asked) > 1
        text, calls = ("Good day.", ()) if is_second else ("Let me look.", CALLS)
        body = answer(protocol, profile["habits"].keys() - APART, text, calls, len(self.asked))
        self.answered.append(body)
        framed = protocol == "invoke"
        kind = "application/vnd.amazon.eventstream" if framed else "text/event-stream"
        connection.head(Content_Type=kind, Transfer_Encoding="chunked")
        for at in range(0, len(body), 50):
            connection.chunk(body[at : at + 50])
        connection.send(b"0\r\n\r\n")
        connection.keep = not is_second
        if profile.get("closes"):
            connection.reset()


class Lines(CommandCase):
    """Each line of the page runs unchanged; only the contents of the environment are ours."""

    keys: ClassVar[Path]
    tls: ClassVar[ssl.SSLContext]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.keys = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        if shutil.which("openssl") is None:
            raise unittest.SkipTest("the openssl command is needed to make a certificate")
        names = ",".join(f"DNS:{host}" for host in FIFTEEN.values() if ":" not in host)
        subject = ["-subj", "/CN=test", "-addext", f"subjectAltName={names}"]
        files = ["-keyout", str(cls.keys / "key.pem"), "-out", str(cls.keys / "cert.pem")]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
        subprocess.run(command, check=True, capture_output=True)
        cls.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        cls.tls.load_cert_chain(cls.keys / "cert.pem", cls.keys / "key.pem")

    def test_the_page_has_a_line_for_each_of_the_fifteen(self) -> None:
        self.assertEqual(set(lines()), set(FIFTEEN))

    @full_size
    def test_each_line_asks_its_endpoint_with_its_key_and_answers(self) -> None:
        for vendor, line in lines().items():
            with self.subTest(vendor):
                self.run_line(vendor, line)

    def run_line(self, vendor: str, line: str) -> None:
        words = shlex.split(re.sub(r"\$\([^)]*\)", "token-of-a-tool", line))
        given = dict(word.split("=", 1) for word in words[: words.index("openagentic-sdk")])
        argv = words[words.index("openagentic-sdk") + 1 :]
        world = World(self.tls)
        with (
            Server(world) as server,
            environment(
                **given,
                HTTPS_PROXY=server.url,
                HTTP_PROXY=server.url,
                NO_PROXY="",
                SSL_CERT_FILE=str(self.keys / "cert.pem"),
            ),
        ):
            code, out, err = self.command(*argv)
        self.assertEqual((code, err), (OK, ""), out)
        self.assertIn("Good day.", out)
        self.assertEqual([host for host, _ in world.asked], [FIFTEEN[vendor]] * 2)
        secrets = [value for name, value in given.items() if re.search("KEY|TOKEN", name)]
        for _, request in world.asked:
            shown = json.dumps(request.headers)
            keys = [one for one in secrets if one in shown]
            if vendor == "bedrock":
                self.assertIn("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/", shown)
            else:
                self.assertEqual(keys, secrets)
        chunks = read_plainly(world.answered[0])
        protocol = protocol_of_answer(chunks)
        assert protocol is not None
        broken = list(find_broken_rules(protocol, FIFTEEN[vendor].partition(":")[0], world.asked[1][1].json, chunks))
        self.assertEqual(broken, [])


class ClosingServers(unittest.IsolatedAsyncioTestCase):
    async def test_a_server_that_closes_after_every_stream_without_saying_so_fails_no_turn(self) -> None:
        said = 0

        def serve(connection: Connection, request: Request) -> None:
            nonlocal said
            said += 1
            connection.stream([answer("chat", PROFILES["llama.cpp"]["habits"].keys() - APART, f"Turn {said}.")])
            connection.reset()

        with Server(serve) as server:
            provider = OpenAICompatibleProvider(base_url=f"{server.url}/v1")
            self.addCleanup(provider.http.close)
            texts = []
            for _ in range(30):
                output = await provider.complete(model="m", messages=[{"role": "user", "content": "Hi."}])
                texts.append(output.assistant_text)
        self.assertEqual(texts, [f"Turn {n}." for n in range(1, 31)])

    async def test_an_error_behind_a_200_is_the_vendors_own_words(self) -> None:
        with Server(lambda connection, request: connection.stream([refusal()])) as server:
            provider = OpenAICompatibleProvider(base_url=f"{server.url}/v1")
            self.addCleanup(provider.http.close)
            with self.assertRaisesRegex(ProviderHTTPError, "the model is overloaded"):
                await provider.complete(model="m", messages=[{"role": "user", "content": "Hi."}])


def lines() -> dict[str, str]:
    """The lines of the page by vendor: the word before the colon after `--model`, or after `--provider`."""
    found = re.findall(r"^(?:[A-Z_]+=\S+ |[A-Z_]+=\$\([^)]*\) )*openagentic-sdk run .*$", PAGE.read_text(), re.M)
    named = {}
    for line in found:
        word = re.search(r"--model (\S+?):", line)
        assert word is not None, line
        named[word[1]] = line
    return named


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """An environment with these variables, and no others that name a key, a proxy or a cloud."""
    before = dict(os.environ)
    for name in before:
        if re.search(r"API_KEY|PROXY|proxy|AWS_|GOOGLE_", name):
            del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    unittest.main()
