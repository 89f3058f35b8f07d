"""Broken agents as newcomers write them, using only README and the pages of `docs/`, with the facts about each.

Each entry has words that a person who knows the fault looks for; `tests.runs.test_why` looks for them in the command's
output.
"""

import http.server
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager

from openagentic_sdk import AgentDefinition, OpenAgenticOptions, PermissionGate, run_sync, tool
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.testing import ScriptedProvider


@tool(effect="read")
def weather(city: str) -> str:
    """The weather of a city."""
    return f"cloudy in {city}"


@tool
def parse_rate(text: str) -> float:
    """Parse an exchange rate."""
    return _inverse(json.loads(text))


def _inverse(rate):
    return 1 / rate["rate"]


@tool
def leave() -> str:
    """Leave."""
    raise SystemExit(3)


def use(name, **arguments):
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def play(store, *turns, prompt="Do the nightly job.", **changes):
    settings = {
        "provider": ScriptedProvider(turns),
        "model": "scripted",
        "session_store": store,
        "permission_gate": PermissionGate(permission_mode="bypass"),
        "setting_sources": (),
        "tools": (weather, parse_rate, leave),
    }
    return run_sync(prompt=prompt, options=OpenAgenticOptions(**{**settings, **changes})).session_id


@contextmanager
def vendor(status, error):
    """A vendor that refuses every request in this way."""

    class Refusal(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps({"error": error}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.HTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield OpenAICompatibleProvider(base_url=f"http://127.0.0.1:{server.server_port}/v1")
        finally:
            server.shutdown()
            thread.join()


def refused(store, status, **error):
    with vendor(status, error) as provider:
        return play(store, provider=provider, model="gpt-x")


def spent_by_subagent(store, **limits):
    small, large = {"input_tokens": 100, "output_tokens": 10}, {"input_tokens": 40_000, "output_tokens": 900}
    agents = {"researcher": AgentDefinition("researches", "You research.", tools=("weather",))}
    inside = [{"agent": "You research", "usage": large, **use("weather", city=str(n))} for n in range(5)]
    task = {"usage": small, **use("Task", agent="researcher", prompt="dig")}
    return play(store, task, *inside, *[{"text": "ok", "usage": small}] * 2, agents=agents, **limits)


def nested(store):
    agents = {"a": AgentDefinition("does a", "You plan.", tools=("Task",))}
    agents["b"] = AgentDefinition("does b", "You compute.", tools=("parse_rate",))
    inner = [
        {"agent": "You compute", **use("parse_rate", text='{"rate": 0}')},
        {"agent": "You compute", "text": "failed"},
    ]
    outer = {"agent": "You plan", **use("Task", agent="b", prompt="go b")}
    return play(
        store,
        use("Task", agent="a", prompt="go a"),
        outer,
        *inner,
        {"agent": "You plan", "text": "b failed"},
        "It did not work.",
        agents=agents,
    )


def freeze(payload):
    return HookDecision(block=True, block_reason="change freeze until Monday")


def ldap(payload):
    raise RuntimeError("ldap is down")


NOBODY = PermissionGate(permission_mode="dontAsk")
PUSH = use("Bash", command="git push origin main")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TWO = {"tool_calls": [{"name": "weather", "arguments": {"city": city}} for city in "AB"]}

# name: (kind, words that the lines must contain, how it is created in a store)
NEWCOMERS: dict[str, tuple[str, Sequence[str], Callable]] = {
    "a division by zero": (
        "tool",
        ["ZeroDivisionError", "newcomers.py", "in _inverse", 'return 1 / rate["rate"]'],
        lambda store: play(store, use("parse_rate", text='{"rate": 0}'), "Could not."),
    ),
    "a tool that ends the process": (
        "tool",
        ["SystemExit", "in leave"],
        lambda store: play(store, use("leave"), "Hm."),
    ),
    "one of two parallel calls": (
        "tool",
        ["JSONDecodeError", "in parse_rate"],
        lambda store: play(
            store, {"tool_calls": [*TWO["tool_calls"], *use("parse_rate", text="{")["tool_calls"]]}, "Half."
        ),
    ),
    "wrong arguments, each time others": (
        "tool",
        ["text is missing", "8 times", "--max-steps"],
        lambda store: play(store, *[use("parse_rate", txt=str(n)) for n in range(9)], max_steps=8),
    ),
    "a loop of two": (
        "loop",
        ["period 2", "weather(A)", "weather(B)"],
        lambda store: play(store, *[use("weather", city=c) for _ in range(5) for c in "AB"], max_steps=9),
    ),
    "a loop of three": (
        "loop",
        ["period 3", "3 times"],
        lambda store: play(store, *[use("weather", city=c) for _ in range(5) for c in "ABC"], max_steps=11),
    ),
    "a loop of an answer with two calls": (
        "loop",
        ["period 2", "6 times"],
        lambda store: play(store, *[TWO] * 7, max_steps=6),
    ),
    "a loop that the model gives up": (
        "loop",
        ["period 1", "9 times", "gave up"],
        lambda store: play(store, *[use("weather", city="A")] * 9, "I cannot go on."),
    ),
    "a loop of denied calls": (
        "loop",
        ["period 1", "was denied", "allowed by: Bash(git push origin main)", "--allow"],
        lambda store: play(store, *[PUSH] * 6, permission_gate=NOBODY, tools=None, max_steps=5),
    ),
    "tokens that a subagent spent": (
        "budget",
        ["max_tokens is 150000", "the subagent 'researcher' 163,600 tokens", "in the subagent", "weather 163,600"],
        lambda store: spent_by_subagent(store, max_tokens=150_000),
    ),
    "dollars that a subagent spent": (
        "budget",
        ["max_cost_usd is 0.2", "the subagent 'researcher' 0.2090 USD", "--max-cost 0.4182"],
        lambda store: spent_by_subagent(store, max_cost_usd=0.2, prices={"scripted": {"input": 1, "output": 2}}),
    ),
    "a hook that freezes": (
        "hook",
        ["'freeze'", "change freeze until Monday", "weather(A)"],
        lambda store: play(
            store,
            use("weather", city="A"),
            "It is blocked.",
            hooks=HookEngine(pre_tool_use=[HookMatcher("freeze", "weather", freeze)]),
        ),
    ),
    "a hook that fails": (
        "hook",
        ["'ldap'", "ldap is down"],
        lambda store: play(
            store, use("weather", city="A"), "Hm.", hooks=HookEngine(pre_tool_use=[HookMatcher("ldap", hook=ldap)])
        ),
    ),
    "a denied pipeline": (
        "denied",
        ["allowed by: Bash(git push), Bash(rm -rf build)"],
        lambda store: play(
            store,
            use("Bash", command="git push && rm -rf build"),
            "I may not.",
            permission_gate=NOBODY,
            tools=None,
        ),
    ),
    "a parameter that the vendor refuses": (
        "vendor",
        ["400", "max_tokens", "--base-url http://127.0.0.1"],
        lambda store: refused(store, 400, message="Unsupported parameter: 'max_tokens'", type="invalid_request_error"),
    ),
    "a key that the vendor refuses": (
        "vendor",
        ["401", "check the API key"],
        lambda store: refused(store, 401, message="Incorrect API key provided", code="invalid_api_key"),
    ),
    "a quota that is gone": (
        "vendor",
        ["429", "add credit"],
        lambda store: refused(store, 429, message="You exceeded your current quota", code="insufficient_quota"),
    ),
    "a typed answer that never fits": (
        "output",
        ["n must be a whole number", "its last answer"],
        lambda store: play(store, *['{"n": "three"}'] * 9, output_schema=SCHEMA),
    ),
    "an empty answer": ("empty", ["is empty", "'stop'"], lambda store: play(store, "")),
    "a failure two subagents down": (
        "subagent",
        ["subagent 'a'", "subagent 'b'", "ZeroDivisionError", "newcomers.py"],
        nested,
    ),
    "a command that takes too long": (
        "tool",
        ["Bash(sleep 30)", "timeout_s"],
        lambda store: play(
            store, use("Bash", command="sleep 30", timeout_s=0.2), "It hangs.", tools=None, sandbox="off"
        ),
    ),
    "a server that is not installed": (
        "mcp",
        ["'inv'", "No such file or directory"],
        lambda store: play(
            store,
            use("mcp__inv__count"),
            "There is no such tool.",
            mcp_servers={"inv": {"command": "/nonexistent/inv"}},
        ),
    ),
}
