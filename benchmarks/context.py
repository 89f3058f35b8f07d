"""The share of a session's requests that the vendor's cache serves, as counted by an endpoint with the vendors' rules.

A session of 50 steps reads files, activates two skills and is summarized once. The endpoint
(`openagentic_sdk.testing.endpoint`) caches what the documentation of each protocol describes, and binds the model's
reasoning to everything that preceded it.

    python3 -m benchmarks context
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from . import Row

STEPS = 50
SKILL_STEPS = {8: "deploy", 20: "review"}
WINDOW_TOKENS = 38_000
CALLS = 100


def rows() -> list[Row]:
    return [
        *(row for protocol in ("messages", "responses", "chat") for row in _session_rows(protocol)),
        _many_tools_row(),
        *_code_rows(),
    ]


def _session_rows(protocol: str) -> list[Row]:
    from openagentic_sdk.testing.endpoint import CachingEndpoint

    with tempfile.TemporaryDirectory() as folder, CachingEndpoint(_script(), checks_binding=False) as endpoint:
        result = asyncio.run(_run(protocol, endpoint.url, Path(folder)))
        assert result.stop_reason == "end", result
        share = endpoint.cached_share()
        missed = sum(asked.cached_tokens == 0 for asked in endpoint.requests[1:])
    with tempfile.TemporaryDirectory() as folder, CachingEndpoint(_script()) as endpoint:
        asyncio.run(_run(protocol, endpoint.url, Path(folder)))
        refused = sum(asked.fault is not None for asked in endpoint.requests)
    return [
        Row(f"{protocol}: input tokens from the cache, 50 steps", round(share * 100, 1), "%", bar="value >= 90"),
        Row(f"{protocol}: requests that found nothing in the cache", missed, ""),
        Row(f"{protocol}: requests refused for reasoning that did not fit", refused, "", bar="value <= 0"),
    ]


def _many_tools_row() -> Row:
    """A request with five hundred tools of an MCP server beside one with twenty."""
    sizes = {count: _request_bytes(count) for count in (20, 500)}
    name = "a request with 500 MCP-like tools"
    return Row(name, sizes[500], "bytes", sizes[500] / sizes[20], "one with 20", "ratio <= 1.3")


def _request_bytes(count: int) -> int:
    from openagentic_sdk import McpServer, MemorySessionStore, OpenAgenticOptions, run, tool
    from openagentic_sdk.testing import ScriptedProvider

    def make(number: int) -> Any:
        @tool(name=f"handle_document_{number}", effect="read")
        def handle(title: str, body: str, priority: int = 0) -> str:
            """Handle one document of the workspace: it is stored, indexed, and announced to all watchers of its folder."""
            return title

        return handle

    provider = ScriptedProvider(["Done."])
    options = OpenAgenticOptions(
        provider=provider,
        model="m",
        session_store=MemorySessionStore(),
        mcp_servers={"office": McpServer(tools=[make(number) for number in range(count)])},
    )
    asyncio.run(run(prompt="Go.", options=options))
    return len(json.dumps(provider.requests[0], default=str))


def _code_rows() -> list[Row]:
    """Compare a call made by code with the same call in a separate answer, and as one of many in one answer.

    The store is one of files, and the calls run one after the other. Each row is the best of several, because other work on
    the machine only adds time.
    """
    from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox

    if probe_sandbox().level == "none":
        return []
    calls = [{"name": "act", "arguments": {"number": number}} for number in range(CALLS)]
    code = f"for number in range({CALLS}):\n    await act(number=number)"
    scripts: dict[str, list[Any]] = {
        "code": [{"tool_calls": [{"name": "Code", "arguments": {"code": code}}]}],
        "alone": [{"tool_calls": [call]} for call in calls],
        "in one": [{"tool_calls": calls}],
    }
    times = [{name: _seconds_between_calls(turns) for name, turns in scripts.items()} for _ in range(5)]
    best = {name: min(time[name] for time in times) for name in scripts}
    name, us = "a call that code makes", round(best["code"] * 1e6)
    return [
        Row(name, us, "us", best["code"] / best["alone"], "a plain call in an answer of its own", "ratio <= 1.5"),
        Row(name, us, "us", best["code"] / best["in one"], "one of 100 in one answer"),
    ]


def _seconds_between_calls(turns: list[Any]) -> float:
    """Seconds from one call's effect to the next one's."""
    from openagentic_sdk import CodeLimits, CodeTool, FileSessionStore, OpenAgenticOptions, PermissionGate, run, tool
    from openagentic_sdk.testing import ScriptedProvider

    moments = []

    @tool
    async def act(number: int) -> str:
        """Take effect."""
        moments.append(perf_counter())
        return f"acted {number}"

    with tempfile.TemporaryDirectory() as folder:
        options = OpenAgenticOptions(
            provider=ScriptedProvider([*turns, "Done."]),
            model="m",
            tools=[act, CodeTool(CodeLimits(max_calls=CALLS))],
            permission_gate=PermissionGate(permission_mode="bypass"),
            session_store=FileSessionStore(folder),
            max_steps=CALLS + 1,
        )
        asyncio.run(run(prompt="Go.", options=options))
    assert len(moments) == CALLS
    return (moments[-1] - moments[0]) / (CALLS - 1)


def _script() -> Any:
    from openagentic_sdk.testing.endpoint import Answer

    step = 0

    def answer(asked: Any) -> Any:
        nonlocal step
        if b"will be replaced by your summary" in asked.parts[-1].data:
            return Answer(
                "The user wants all files read. Files 0 to 30 were read and are fine. Go on with the next one."
            )
        step += 1
        if step in SKILL_STEPS:
            return Answer(calls=[{"name": "SkillActivate", "arguments": {"name": SKILL_STEPS[step]}}], thinking="Hm.")
        if step >= STEPS:
            return Answer("All files are read.", thinking="Done.")
        read = {"file_path": f"file_{step}.txt"}
        said = f"I have looked at everything up to file {step}, and found nothing. " * 30
        return Answer(said, [{"name": "Read", "arguments": read}], thinking=f"File {step} is next.")

    return answer


async def _run(protocol: str, url: str, folder: Path) -> Any:
    from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run
    from openagentic_sdk.providers.anthropic import AnthropicProvider
    from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
    from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider

    for name in SKILL_STEPS.values():
        place = folder / ".claude" / "skills" / name / "SKILL.md"
        place.parent.mkdir(parents=True)
        place.write_text(f"---\nname: {name}\ndescription: How to {name}.\n---\n" + f"Do {name} with care.\n" * 40)
    for number in range(STEPS + 1):
        lines = (f"line {line} of file {number}: nothing of interest stands here" for line in range(10))
        (folder / f"file_{number}.txt").write_text("\n".join(lines))
    providers: dict[str, Any] = {
        "messages": lambda: AnthropicProvider(base_url=url, api_key="none"),
        "responses": lambda: OpenAIResponsesProvider(base_url=url, api_key="none"),
        "chat": lambda: OpenAICompatibleProvider(base_url=url, api_key="none"),
    }
    provider = providers[protocol]()
    options = OpenAgenticOptions(
        provider=provider,
        model="claude-opus-5-5" if protocol == "messages" else "gpt-5",
        cwd=folder,
        project_dir=folder,
        home=folder / "home",
        setting_sources=("project",),
        session_store=MemorySessionStore(),
        permission_gate=PermissionGate(permission_mode="bypass"),
        max_context_tokens=WINDOW_TOKENS,
        max_steps=STEPS + 10,
    )
    try:
        return await run(prompt="Read all files, one after the other.", options=options)
    finally:
        provider.http.close()
