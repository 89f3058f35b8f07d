"""Uses of an `Agent` whose inferred types mypy and pyright check in `test_types.py`; never run."""

from dataclasses import dataclass
from typing import Any, assert_type

from openagentic_sdk import Agent, AgentResult, HookDecision, OpenAgenticOptions, ToolContext, tool
from openagentic_sdk.agent import AgentStream
from openagentic_sdk.events import ToolResult
from openagentic_sdk.options import Limits, Session


@dataclass
class Shop:
    orders: dict[str, str]


@dataclass
class Verdict:
    ok: bool


def look_up(ctx: ToolContext[Shop], order: str) -> str:
    assert_type(ctx.deps, Shop)
    return ctx.deps.orders[order]


@tool
async def refund(ctx: ToolContext[Shop], order: str) -> bool:
    return order in ctx.deps.orders


def of_any_deps(ctx: ToolContext) -> Any:
    assert_type(ctx.deps, Any)
    return ctx.deps


def orders(ctx: ToolContext[Shop]) -> str:
    return str(len(ctx.deps.orders))


async def validate(ctx: ToolContext[Shop], verdict: Verdict) -> Verdict:
    return verdict


async def guard_input(ctx: ToolContext[Shop], prompt: str) -> str | None:
    return None


def guard_output(ctx: ToolContext[Shop], verdict: Verdict) -> str | None:
    return None


def hook(ctx: ToolContext[Shop], payload: dict[str, Any]) -> HookDecision | None:
    return None


plain = Agent("openai:gpt-4o")
assert_type(plain, Agent[None, str])
with_deps = Agent("openai:gpt-4o", deps=Shop, instructions=["Be kind.", orders], tools=[look_up, refund, "files"])
assert_type(with_deps, Agent[Shop, str])
listed = Agent("openai:gpt-4o", output=list[int])
assert_type(listed, Agent[None, list[int]])
either = Agent("openai:gpt-4o", output=Verdict | Shop)
assert_type(either, Agent[None, Verdict | Shop])
judge = Agent(
    "openai:gpt-4o",
    name="judge",
    deps=Shop,
    output=Verdict,
    output_validators=[validate, lambda ctx, verdict: verdict],
    input_guardrails=[guard_input],
    output_guardrails=[guard_output],
    hooks={"pre_tool_use": [hook]},
)
assert_type(judge, Agent[Shop, Verdict])
triage = Agent("openai:gpt-4o", deps=Shop, output=Verdict, handoffs=[judge], tools=[judge.as_tool()])
assert_type(triage, Agent[Shop, Verdict])


async def runs(shop: Shop) -> None:
    result = await judge.run("Is it paid?", deps=shop, session="s", max_steps=3)
    assert_type(result, AgentResult[Verdict])
    assert_type(result.output, Verdict)
    assert_type(result.new_messages(), list[dict[str, Any]])
    assert_type(judge.run_sync("Is it paid?", deps=shop).output, Verdict)
    assert_type((await plain.run("Hello.", message_history=result.new_messages())).output, str)
    async with judge.stream("Is it paid?", deps=shop) as stream:
        assert_type(stream, AgentStream[Verdict])
        async for text in stream.text():
            assert_type(text, str)
        async for partial in stream.output():
            assert_type(partial, Verdict)
        assert_type((await stream.result()).output, Verdict)


async def mistakes(shop: Shop) -> None:
    await judge.run("Is it paid?", deps=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await judge.run("Is it paid?", deps=shop, max_turns=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Agent("m", deps=int, instructions=orders)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent("m", output=Verdict, output_validators=[orders])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent("m", deps=int, input_guardrails=[guard_input])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent("m", deps=int, hooks={"stop": [hook]})  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent("m", deps=int, output=Verdict, handoffs=[judge])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


grouped = OpenAgenticOptions(model="m", groups=[Limits(max_steps=3), Session(session="s")])
assert_type(grouped.max_steps, int)
OpenAgenticOptions(groups=[Limits(max_steps="3")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
OpenAgenticOptions(groups=[Limits(session="s")])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def events() -> None:
    async for event in plain.iter("Hello."):
        if event.type == "tool.result":
            assert_type(event, ToolResult)
