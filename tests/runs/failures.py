"""Forty failed sessions and the facts about each: recorded by scripted models, not derived from the code that judges them.

Each entry has its kind, the type of the event at which it failed, and words that the explanation must contain. `RECORDED`
entries have a function that creates the log; `WRITTEN` ones are logs whose cause needs no run (a lost server, a dead
process).
"""

import asyncio
import contextlib

from openagentic_sdk import AgentDefinition, MemorySessionStore, OpenAgenticOptions, PermissionGate, run, tool
from openagentic_sdk.errors import RunFailedError
from openagentic_sdk.events import (
    McpServerChanged,
    ModelRequest,
    ModelResponse,
    Result,
    SessionCompacted,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
)
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.parts.custom import CustomPart, EndRun
from openagentic_sdk.providers.base import ModelOutput
from openagentic_sdk.runs.background import submit
from openagentic_sdk.testing.scripted import ScriptedProvider

FREE = PermissionGate(permission_mode="bypass")
STOCK = {"tea": 3}


def find(item):
    return STOCK[item]


@tool
def order(item: str, count: int = 1) -> int:
    """Order something."""
    return find(item) - count


@tool(effect="read")
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing is at {place}"


def calls(*wishes):
    """A turn that makes these calls, each a name and its arguments."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in wishes]}


def call(name, **arguments):
    return calls((name, arguments))


def record(*turns, prompt="Order tea and coffee.", store=None, **changes):
    """Play the turns; return the store and the session's id."""
    store = store or MemorySessionStore()
    settings = {
        "provider": ScriptedProvider(turns),
        "model": "scripted",
        "tools": [order, look],
        "permission_gate": FREE,
        "session_store": store,
        "setting_sources": (),
    }
    result = asyncio.run(run(prompt=prompt, options=OpenAgenticOptions(**{**settings, **changes})))
    return store, result.session_id


def hooks(point, *decisions, name="the guard"):
    def hook(payload):
        decision = decisions[0]
        if isinstance(decision, Exception):
            raise decision
        return decision

    return HookEngine(**{point: (HookMatcher(name, hook=hook),)})


BLOCK = HookDecision(block=True, block_reason="not on Mondays")
COFFEE = call("order", item="coffee")


def gone_on(store, session_id, prompt, *turns, **changes):
    return record(*turns, prompt=prompt, store=store, resume=session_id, **changes)


def compacted(fact, question, answer, summary="The person greeted."):
    """A fact, a compaction whose summary lacks it, and a question about it."""
    store, session_id = record("Noted.", prompt=fact)
    last = store.read_events(session_id)[-1].seq
    store.append_event(session_id, SessionCompacted(last, summary))
    return gone_on(store, session_id, question, answer)


class Endless:
    """A provider that never answers."""

    name = "endless"

    async def complete(self, *, model, messages, tools=(), api_key=None):
        await asyncio.Event().wait()
        return ModelOutput("", ())


def told_to_end(how):
    """A run that is asked to end while the model works."""
    store = MemorySessionStore()
    options = OpenAgenticOptions(
        provider=Endless(), model="m", session_store=store, setting_sources=(), permission_gate=FREE
    )

    async def main():
        background = submit("Wait for ever.", options)
        async for event in background.events():
            if event.type == "model.request":
                await getattr(background, how)()
        return background.session_id

    return store, asyncio.run(main())


class Tired(CustomPart):
    name = "tired"

    def see_answer(self, answer):
        raise EndRun("the part has seen enough", "interrupted")


class Clumsy(CustomPart):
    name = "clumsy"

    def before_step(self):
        raise LookupError("no ledger")


def parked(*turns, **changes):
    store = MemorySessionStore()
    options = OpenAgenticOptions(
        provider=ScriptedProvider(turns),
        model="scripted",
        tools=[order, look],
        session_store=store,
        setting_sources=(),
        permission_gate=changes.pop("gate", PermissionGate(permission_mode="default")),
        **changes,
    )

    async def main():
        background = submit("Order coffee.", options)
        await background.wait()
        return background.session_id

    return store, asyncio.run(main())


def written(*events):
    """A log with these events after the first event of a run."""
    store = MemorySessionStore()
    session_id = store.create_session()
    store.append_events(session_id, [SystemInit(session_id, "/srv", "1"), *events])
    return store, session_id


def in_workflow(runs=1, child=False):
    from openagentic_sdk import Flow, workflow

    @workflow
    async def restock(flow: Flow) -> int:
        await flow.step(find, "tea")
        return await flow.step(find, "coffee")

    @workflow
    async def shop(flow: Flow) -> int:
        return await flow.child(restock)

    store = MemorySessionStore()
    for _ in range(runs):
        options = OpenAgenticOptions(session_store=store, setting_sources=())
        with contextlib.suppress(RunFailedError):
            asyncio.run((shop if child else restock).run(options=options, session="w1"))
    return store, "w1"


def subagents(*turns, depth=1):
    """A subagent fails: `turns` are those of all agents, the parent's without an agent, the others' by their prompts."""
    agents = {"buyer": AgentDefinition("buys", "You are the buyer.", tools=("order", "Task"))}
    agents["clerk"] = AgentDefinition("writes", "You are the clerk.", tools=("order",))
    return record(*turns, agents=agents)


def guarded(kind):
    from openagentic_sdk import Agent

    def no_coffee(ctx, value):
        return "coffee is out"

    store = MemorySessionStore()
    options = OpenAgenticOptions(session_store=store, setting_sources=())
    agent = Agent(ScriptedProvider(["Here is coffee."]), options=options, **{f"{kind}_guardrails": [no_coffee]})
    with contextlib.suppress(RunFailedError):
        agent.run_sync("Coffee!", session="g1")
    return store, "g1"


def fallback():
    from openagentic_sdk.providers.wrappers.fallback import Fallback, FallbackProvider

    other, down = ScriptedProvider(["Ordered."]), ScriptedProvider([http(529, "overloaded")])
    return record(provider=FallbackProvider(down, [Fallback("small", other)]))


def http(status, message):
    return {"error": {"message": message, "type": "http", "status": status}}


GLOB, STUCK = call("look", place="shelf"), call("order", item="coffee", count=2)
SCHEMA = {"type": "object", "properties": {"cups": {"type": "integer"}}, "required": ["cups"]}
WRITE = call("Write", file_path="/srv/notes.txt", content="x")
MCP_CALL = ToolUse("c1", "mcp__stock__count", {})

# name: (kind, type of the event, words in the explanation, how it is recorded)
FAILURES = {
    "a tool raises": (
        "tool",
        "tool.result",
        ["KeyError", "coffee", "failures.py", "in find"],
        lambda: record(COFFEE, "I cannot."),
    ),
    "a tool raises, again and again": (
        "tool",
        "tool.result",
        ["3 times", "KeyError", "failures.py"],
        lambda: record(*[call("order", item=f"coffee {n}") for n in range(3)], "never", max_steps=3),
    ),
    "a tool raises behind an error that was mended": (
        "tool",
        "tool.result",
        ["'coffee'"],
        lambda: record(call("look", at="shelf"), GLOB, call("order", item="tea"), COFFEE, "Sorry."),
    ),
    "a tool that there is not": (
        "tool",
        "tool.result",
        ["there is no tool 'buy'"],
        lambda: record(call("buy"), "Sorry."),
    ),
    "arguments that do not fit": (
        "tool",
        "tool.result",
        ["count"],
        lambda: record(call("order", item="tea", count="many"), "Sorry."),
    ),
    "a command fails": (
        "tool",
        "tool.result",
        ["exit code 3", "no beans"],
        lambda: record(call("Bash", command="echo no beans >&2; exit 3"), "It failed.", tools=None, sandbox="off"),
    ),
    "one call again and again": (
        "loop",
        "tool.use",
        ["look", "period 1", "12 times"],
        lambda: record(*[GLOB] * 12, "never", max_steps=12),
    ),
    "two calls in turn": (
        "loop",
        "tool.use",
        ["period 2", "5 times"],
        lambda: record(*[GLOB, call("look", place="cellar")] * 5, "never", max_steps=10),
    ),
    "three calls in turn, until the budget is gone": (
        "loop",
        "tool.use",
        ["period 3", "budget"],
        lambda: record(*[call("look", place=p) for _ in range(9) for p in "abc"], max_tokens=2000),
    ),
    "a loop behind a good beginning": (
        "loop",
        "tool.use",
        ["period 1", "6 times"],
        lambda: record(call("order", item="tea"), call("look", place="a"), *[GLOB] * 6, "never", max_steps=8),
    ),
    "tokens, and what spent them": (
        "budget",
        "result",
        ["look", "max_tokens"],
        lambda: record(*[call("look", place=str(n) * 900) for n in range(9)], max_tokens=1500),
    ),
    "a model without a price": (
        "budget",
        "result",
        ["price of a call is unknown", "prices"],
        lambda: record(GLOB, "never", max_cost_usd=1.0),
    ),
    "an answer that is too long": (
        "budget",
        "result",
        ["max_answer_bytes"],
        lambda: record("word " * 900, max_answer_bytes=1000),
    ),
    "a hook blocks a call": (
        "hook",
        "hook.event",
        ["the guard", "not on Mondays", "order"],
        lambda: record(COFFEE, "Sorry.", hooks=hooks("pre_tool_use", BLOCK)),
    ),
    "a hook blocks the prompt": (
        "hook",
        "hook.event",
        ["the guard", "not on Mondays"],
        lambda: record("never", hooks=hooks("user_prompt_submit", BLOCK)),
    ),
    "a hook lets no answer be the last": (
        "hook",
        "hook.event",
        ["the guard", "not on Mondays", "4 times"],
        lambda: record(*["Done."] * 4, max_steps=4, hooks=hooks("stop", BLOCK)),
    ),
    "a hook fails, and what it guards is stopped": (
        "hook",
        "hook.event",
        ["the guard", "no rules"],
        lambda: record(COFFEE, "Sorry.", hooks=hooks("pre_tool_use", LookupError("no rules"))),
    ),
    "nobody can be asked": (
        "denied",
        "permission.decision",
        ["Write", "Edit(//srv/notes.txt)"],
        lambda: record(WRITE, "I may not.", tools=None, permission_gate=PermissionGate()),
    ),
    "a rule denies it": (
        "denied",
        "permission.decision",
        ["Write", "deny rule Edit(//srv/**)"],
        lambda: record(
            WRITE,
            "Sorry.",
            tools=None,
            permission_gate=PermissionGate(permission_mode="bypass", deny=["Edit(//srv/**)"]),
        ),
    ),
    "no rule allows the command": (
        "denied",
        "permission.decision",
        ["Bash(make coffee)"],
        lambda: record(
            call("Bash", command="make coffee"),
            "Sorry.",
            tools=None,
            permission_gate=PermissionGate(permission_mode="dontAsk"),
        ),
    ),
    "a person says no": (
        "denied",
        "permission.decision",
        ["order", "no"],
        lambda: record(
            call("order", item="tea"),
            "Sorry.",
            permission_gate=PermissionGate(permission_mode="callback", interactive_approver=lambda *_: False),
        ),
    ),
    "a compaction drops a fact": (
        "compaction",
        "session.compacted",
        ["event 2", "BLUEFIN"],
        lambda: compacted(
            "The codename of the launch is BLUEFIN-7.", "What was the codename of the launch?", "I do not know."
        ),
    ),
    "a compaction drops the output of a call": (
        "compaction",
        "session.compacted",
        ["4711"],
        lambda: compacted(
            "The badge number of Ada is 4711. Greet her.", "Print the badge number of Ada.", "Which badge number?"
        ),
    ),
    "the key is wrong": ("vendor", "model.response", ["invalid key"], lambda: record(http(401, "invalid key"))),
    "the request is refused": (
        "vendor",
        "model.response",
        ["content policy"],
        lambda: record(GLOB, http(400, "violates the content policy")),
    ),
    "no connection": (
        "vendor",
        "model.response",
        ["no route"],
        lambda: record({"error": {"message": "no route", "type": "connection"}}),
    ),
    "the answer was filtered": (
        "vendor",
        "model.response",
        ["content_filter"],
        lambda: record({"text": "I", "finish_reason": "content_filter"}),
    ),
    "the answer was cut": (
        "cut",
        "model.response",
        ["length"],
        lambda: record({"text": "I", "finish_reason": "length"}),
    ),
    "the disk is full": (
        "store",
        "result",
        ["no space left"],
        lambda: written(Result("", "s", "error", error_type="StorageError", error_message="no space left on device")),
    ),
    "too few steps": (
        "max_steps",
        "result",
        ["max_steps is 3", "look"],
        lambda: record(*[call("look", place=str(n)) for n in range(4)], max_steps=3),
    ),
    "too little time": (
        "timeout",
        "result",
        ["timeout_s", "a request to the model was open", "the model 599 s"],
        lambda: written(
            ModelRequest(1, 1, "0" * 64, 1),
            ModelResponse(1, 1, complete=False, error_type="Cancelled", total_s=599.0),
            Result("", "s", "timeout", error_message="timeout_s has passed"),
        ),
    ),
    "a person ends it": (
        "interrupted",
        "result",
        ["person", "a request to the model was open"],
        lambda: told_to_end("cancel"),
    ),
    "its process is told to end": ("suspended", "result", ["process"], lambda: told_to_end("suspend")),
    "it waits for a person": ("waiting", "user.question", ["order"], lambda: parked(COFFEE)),
    "another model answers": ("fallback", "model.retry", ["small", "overloaded"], fallback),
    "the answer never fits": (
        "output",
        "user.message",
        ["output_schema", "2 repair"],
        lambda: record(*["None."] * 9, output_schema=SCHEMA),
    ),
    "a guardrail of the prompt": (
        "guardrail",
        "system.notice",
        ["no_coffee", "coffee is out"],
        lambda: guarded("input"),
    ),
    "a guardrail of the answer": (
        "guardrail",
        "system.notice",
        ["no_coffee", "coffee is out"],
        lambda: guarded("output"),
    ),
    "a part ends it": ("part", "result", ["seen enough"], lambda: record("Hi.", parts=[Tired])),
    "a part fails": ("part", "result", ["clumsy", "no ledger"], lambda: record("Hi.", parts=[Clumsy])),
    "a server is gone": (
        "mcp",
        "mcp.server",
        ["stock", "exit status 1"],
        lambda: written(
            McpServerChanged("stock", "started", "stdio"),
            MCP_CALL,
            McpServerChanged("stock", "lost", "stdio", error_message="exit status 1"),
            ToolResult(
                "c1", is_error=True, error_type="McpError", error_message="the server has ended", outcome="error"
            ),
            Result("I cannot count.", "s", "end"),
        ),
    ),
    "a subagent's tool raises, two sessions down": (
        "subagent",
        "tool.result",
        ["KeyError", "buyer", "clerk", "failures.py"],
        lambda: subagents(
            call("Task", agent="buyer", prompt="Buy."),
            "It failed.",
            {"agent": "the buyer", **call("Task", agent="clerk", prompt="Write.")},
            {"agent": "the clerk", **COFFEE},
            {"agent": "the clerk", "text": "It failed."},
            {"agent": "the buyer", "text": "The clerk failed."},
        ),
    ),
    "a step of a workflow raises": ("workflow", "tool.result", ["find", "KeyError", "failures.py"], in_workflow),
    "the process dies in a call": (
        "dead",
        "tool.started",
        ["order"],
        lambda: written(ToolUse("c1", "order", {"item": "tea"}), ToolStarted("c1", "order", "unsafe", "0" * 64, "k")),
    ),
}
