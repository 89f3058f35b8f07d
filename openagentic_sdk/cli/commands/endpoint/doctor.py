"""`openagentic-sdk doctor`: check this machine, this project and, if one is named, an endpoint."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....assemble import configured_servers, mcp_home
from ....errors import OpenAgentSdkError, OptionsError, ProviderError, ProviderHTTPError, ProviderResponseError
from ....ground.system import working_dir
from ....ground.text import on_one_line
from ....ground.words import plural
from ....parts.record.folds.costs import cost_report
from ....parts.record.folds.prices import price_setting
from ....providers.base import Done, ModelOutput, TextDelta
from ....providers.endpoint import EndpointProvider
from ....providers.named import find_provider, split_model
from ....providers.openai import ChatProvider
from ....providers.openai_compatible import OpenAICompatibleProvider
from ....providers.wire.connect import shown_url
from ....providers.wire.http import HttpTransport
from ....providers.wire.timeouts import Timeouts
from ....sessions.stores.locate import ENVIRONMENT_NAME
from ... import doctor_endpoints, doctor_machine
from ...exits import FAILED, OK
from ...finding import Finding
from ...loop import run_async
from ...output.terminal import Screen
from ...stored.stores import add_store_flag, open_session_store

if TYPE_CHECKING:
    from ....parts.mcp.configured.resolve import Configured
    from ....parts.project.project import OpenedProject

_ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
_CITY = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "country": {"type": "string"}},
            "required": ["name", "country"],
            "additionalProperties": False,
        },
    },
}
_MOST_ROWS = 1000


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        description="Report which sandbox this machine supports and which files a run in this folder reads, and test "
        "the MCP servers that they name and that have been approved;"
        " with --base-url or a model such as openai:gpt-4o, "
        "also send that endpoint a few small requests and report what works there. "
        "Exit code 1 if an agent cannot run on that endpoint.",
    )
    parser.add_argument(
        "--project",
        action="store_true",
        help="report only which parts of this project's .claude files work here, with a fix for each that does not",
    )
    parser.add_argument("--base-url", metavar="URL", help="the endpoint, such as http://127.0.0.1:11434/v1")
    parser.add_argument(
        "--model",
        help="the model's name there (default: the first one that the endpoint lists), or both as groq:NAME",
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable with the key, if one is needed")
    parser.add_argument(
        "--api-key-header", metavar="NAME", help="the header that contains the bare key (Azure: api-key)"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=60.0, metavar="SECONDS", help="the time limit of each request (default: 60)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    add_store_flag(parser)


def run(args: argparse.Namespace) -> int:
    provider, model = _named_endpoint(args)
    if args.project:
        return _about_project(args, Screen(sys.stdout))
    screen, around = Screen(sys.stdout), doctor_machine.read_surroundings(Path(working_dir()))

    def tell(lines: Iterable[str]) -> None:
        """Print lines immediately; JSON is printed as a whole at the end."""
        screen.lines(() if args.json else lines)

    tell(doctor_machine.shown_lines(screen, around))
    notices = _store_notices(args.store or os.environ.get(ENVIRONMENT_NAME))
    tell(f"store: {on_one_line(notice, 500)}" for notice in notices)
    unpriced = _unpriced_models(args.store)
    tell(
        f"price: the price of {on_one_line(name)} is unknown, and sessions of this store use it: {price_setting(name)}"
        for name in unpriced
    )
    endpoints = list(doctor_endpoints.endpoint_lines(os.environ))
    tell(f"endpoint: {on_one_line(line, 500)}" for line in endpoints)
    traces = traces_of(os.environ)
    tell(f"traces: {on_one_line(line, 500)}" for line in traces)
    configured = configured_servers(around.project)
    candidates = [one for one in configured.found if one.state != "disabled"] if configured is not None else []
    lines, servers = _look_at(screen, around.project, candidates) if candidates else ([], [])
    tell(line if line.startswith(" ") else f"server: {line}" for line in lines)
    model, findings = run_async(examine(provider, model)) if provider is not None else (None, [])
    works = all(finding.works for finding in findings if finding.needed)
    base_url = None if provider is None else args.base_url or provider.base_url
    if base_url is not None:
        tell([f"{on_one_line(shown_url(base_url))}, model {on_one_line(model or '(none)')}"])
        tell(line for finding in findings for line in finding.lines(screen))
        tell(["an agent can run there" if works else "an agent cannot run there yet"])
    rows = [asdict(finding) for finding in findings]
    endpoint = {"base_url": base_url, "model": model, "works": works if findings else None, "findings": rows}
    machine = {
        **doctor_machine.as_json(around),
        "store": notices,
        "unpriced_models": unpriced,
        "endpoints": endpoints,
        "traces": traces,
        "servers": servers,
    }
    screen.tell(args.json, {**endpoint, **machine}, ())
    return OK if works else FAILED


def _about_project(args: argparse.Namespace, screen: Screen) -> int:
    """Report which parts of the project work here; the exit code is 1 if something does not."""
    from ...project_report import read_report

    report = read_report(working_dir())
    sections = {kind: group for kind, group in report.sections.items() if group}
    trusted = "trusted" if report.is_trusted else "not trusted; examined as if it were"
    lines = [f"project {on_one_line(report.project.root)}, {trusted}: {on_one_line(report.reason)}"]
    if not report.is_trusted:
        lines.append(screen.styled("  `openagentic-sdk trust add` trusts the current state of its files", "yellow"))
    for kind, group in sections.items():
        works = sum(finding.works is True for finding in group)
        lines.append(f"{kind}: {works} of {len(group)} work" if kind != "other findings" else f"{kind}:")
        for finding, next_finding in zip(group, [*group[1:], None], strict=True):
            is_said_below = next_finding is not None and next_finding.advice == finding.advice
            lines += (replace(finding, advice="") if is_said_below else finding).lines(screen)
    if not sections:
        lines.append("  its files contain no hooks, agents, commands in text, servers or rules")
    data = {"root": report.project.root, "trusted": report.is_trusted, "reason": report.reason}
    rows = {kind: [asdict(finding) for finding in group] for kind, group in report.sections.items()}
    screen.tell(args.json, {**data, "sections": rows}, lines)
    return FAILED if any(finding.works is False for group in sections.values() for finding in group) else OK


def _look_at(
    screen: Screen, project: OpenedProject, candidates: list[Configured]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Test these MCP servers; the modules that do so are imported on call."""
    from ...servers.here import Here
    from ...servers.reach import look_at

    return look_at(Here(screen, project, mcp_home()), candidates)


def _store_notices(address: str | None) -> list[str]:
    """Notices about the named store: possible data loss, slow searches, or why it cannot be opened; empty without a name."""
    if not address:
        return []
    try:
        with closing(open_session_store(address)) as store:
            return [notice for notice in (store.durability_notice(), store.search_notice()) if notice]
    except OpenAgentSdkError as error:
        return [str(error)]


def _unpriced_models(address: str | None) -> list[str]:
    """The models without a known price in the store's newest 1,000 sessions; empty if the store cannot be read."""
    try:
        with closing(open_session_store(address)) as store:
            rows = store.list_session_summaries(limit=_MOST_ROWS, include_children=True)
            return [name for name in cost_report(rows, "model").unpriced_models if name]
    except OpenAgentSdkError:
        return []  # the commands that need the store report its problems


def _named_endpoint(args: argparse.Namespace) -> tuple[EndpointProvider | None, str | None]:
    """The endpoint and model that the flags name, if any. Raises `OptionsError` for flags that would need an endpoint."""
    timeouts = Timeouts(first_byte_s=args.timeout_s, idle_s=args.timeout_s, total_s=args.timeout_s)
    provider_name, model = split_model(args.model)
    if args.base_url:
        key = os.environ.get(args.api_key_env, "") if args.api_key_env else None
        if args.api_key_env and not key:
            raise OptionsError(f"${args.api_key_env} contains no API key: set it, or omit --api-key-env")
        http = HttpTransport(timeouts=timeouts)
        header = args.api_key_header
        return OpenAICompatibleProvider(
            base_url=args.base_url, api_key=key, api_key_header=header, http=http
        ), args.model
    if provider_name is None:
        flags = {"--model": args.model, "--api-key-env": args.api_key_env, "--api-key-header": args.api_key_header}
        if flag_names := [flag for flag, value in flags.items() if value]:
            raise OptionsError(
                f"{flag_names[0]} applies to requests to an endpoint: name one with --base-url, or as --model PROVIDER:MODEL"
            )
        return None, None
    provider = find_provider(provider_name, api_key_env=args.api_key_env, model=model)
    if not isinstance(provider, EndpointProvider):
        return None, None
    return provider.with_settings(timeouts=timeouts), model


def traces_of(environ: Mapping[str, str]) -> list[str]:
    """Send an empty request to the collector in the environment; return the outcome, empty without a collector."""
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in environ):
        return []
    try:
        from ....parts.record.telemetry.exporter import try_collector
        from ....parts.record.telemetry.settings import protocol_of, read_telemetry

        settings = read_telemetry(None, {}, environ)
        if settings is None:
            is_grpc = protocol_of(environ) == "grpc"
            way_out = "set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf and the collector's port for HTTP (4318)"
            return [f"none are sent, since OTLP over gRPC is not supported: {way_out}"] if is_grpc else []
        problem = run_async(try_collector(settings))
    except OpenAgentSdkError as error:
        return [str(error)]
    return [problem or f"{settings.url} accepts them as {'JSON' if settings.as_json else 'protobuf'}"]


async def examine(provider: EndpointProvider, model: str | None) -> tuple[str | None, list[Finding]]:
    """Check an endpoint, and close its connections; return the model and the findings.

    `model` None means the first one that the endpoint lists. Without an answer or a model, the other checks are skipped.
    """
    try:
        reachable, models = await _list_models(provider)
        model = model or (models[0] if models else None)
        if models:
            model_list = ", ".join(models[:5]) + (f" and {len(models) - 5} more" if len(models) > 5 else "")
            listed = Finding("models", True, model_list, "" if model in models else f"{model!r} is not among them")
        else:
            advice = "" if model else "name one with --model"
            listed = Finding("models", None, "the endpoint does not list its models", advice, needed=model is None)
        if not reachable.works or model is None:
            return model, [reachable, listed]
        return model, [reachable, listed, *await _Examination(provider, model).findings()]
    finally:
        provider.http.close()


class _Examination:
    """The checks of one model."""

    def __init__(self, provider: EndpointProvider, model: str) -> None:
        self._provider = provider
        self._model = model
        self._reasoning = False

    async def findings(self) -> list[Finding]:
        answer = await self.finding_of("plain answer", self.plain, needed=True)
        if not answer.works:
            return [answer]
        results = [
            answer,
            await self.finding_of("streaming", self.streaming, needed=True),
            await self.finding_of("tool call", self.tool_call, needed=True),
            await self.finding_of("tool result", self.tool_result),
            await self.finding_of("parallel calls", self.parallel),
            await self.finding_of("usage in streams", self.usage),
            await self.finding_of("structured output", self.structured),
        ]
        reasoning = "sent in a separate field or in tags" if self._reasoning else "none was sent"
        return [*results, Finding("reasoning", self._reasoning or None, reasoning)]

    async def finding_of(self, name: str, question: Callable[[], Awaitable[Finding]], needed: bool = False) -> Finding:
        try:
            return replace(await question(), name=name, needed=needed)
        except OpenAgentSdkError as error:
            return Finding(name, False, str(error), _advice(name, error), needed)

    async def ask(self, *messages: dict[str, Any], tools: Any = (), **settings: Any) -> ModelOutput:
        provider = self._provider.with_settings(**settings)
        output = await provider.complete(model=self._model, messages=list(messages), tools=tools)
        self._reasoning = self._reasoning or bool(output.reasoning)
        return output

    async def plain(self) -> Finding:
        began = time.perf_counter()
        output = await self.ask(_user("Answer with the word: ready"))
        answer = on_one_line(output.assistant_text or "", 40)
        detail = f"{answer!r} after {time.perf_counter() - began:.1f} s, finish reason {output.finish_reason!r}"
        return Finding(
            "",
            bool(output.assistant_text),
            detail,
            "" if answer else "the model returned an empty answer: try another one",
        )

    async def streaming(self) -> Finding:
        began, first, pieces = time.perf_counter(), 0.0, 0
        async for event in self._provider.stream(model=self._model, messages=[_user("Count from 1 to 20.")]):
            if isinstance(event, TextDelta):
                first = first or time.perf_counter() - began
                pieces += 1
        advice = "the endpoint sends its answers in one piece" if pieces == 1 else ""
        return Finding("", pieces > 0, f"{plural(pieces, 'piece')}, the first after {first:.2f} s", advice)

    async def tool_call(self) -> Finding:
        output = await self.ask(_user("What is 2 + 3? Use the tool add."), tools=[_ADD])
        if not output.tool_calls:
            advice = "use a model and a chat template that are made for tools (vLLM: --enable-auto-tool-choice)"
            return Finding("", False, "the model answered without calling the tool", advice)
        call = output.tool_calls[0]
        if call.raw_arguments is not None:
            return Finding("", False, f"arguments that are not JSON: {on_one_line(call.raw_arguments, 60)}")
        return Finding("", call.name == "add", f"{call.name}({json.dumps(call.arguments)})")

    async def tool_result(self) -> Finding:
        call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
        output = await self.ask(
            _user("What is 2 + 3? Use the tool add."),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "5"},
            tools=[_ADD],
        )
        answer = output.assistant_text or ("another call" if output.tool_calls else "")
        return Finding("", bool(answer), f"{on_one_line(answer, 40)!r}")

    async def parallel(self) -> Finding:
        text = "Use the tool add twice, in one answer: for 1 + 2, and for 3 + 4."
        output = await self.ask(_user(text), tools=[_ADD])
        count = len(output.tool_calls)
        advice = "" if count > 1 else "the agent works, one call at a time"
        return Finding("", count > 1, f"{plural(count, 'call')} in one answer", advice)

    async def usage(self) -> Finding:
        async for event in self._provider.stream(model=self._model, messages=[_user("Say: ok")]):
            if isinstance(event, Done) and event.usage:
                return Finding("", True, json.dumps(event.usage)[:80])
        return Finding("", False, "none was sent", "token budgets cannot be enforced there, since usage is unknown")

    async def structured(self) -> Finding:
        output = await self.ask(_user("Name a city and its country, as JSON."), response_format=_CITY)
        try:
            value = json.loads(output.assistant_text or "")
        except ValueError:
            value = None
        works = isinstance(value, Mapping) and set(value) == {"name", "country"}
        advice = "" if works else "output_schema falls back to a tool call"
        if works and isinstance(self._provider, ChatProvider) and not self._provider.quirks.response_format:
            advice = "set quirks=replace(provider.quirks, response_format=True) to use it for output_schema"
        return Finding("", works, on_one_line(output.assistant_text or "", 60), advice)


async def _list_models(provider: EndpointProvider) -> tuple[Finding, list[str]]:
    status, models = 200, list[str]()
    try:
        models = await provider.models()
    except ProviderHTTPError as error:
        status = error.status
    except ProviderResponseError:
        pass  # it answers, but lists nothing
    except ProviderError as error:
        return Finding("reachable", False, str(error), "start the server, or correct --base-url", True), []
    except OptionsError as error:  # there are no credentials for it
        return Finding("reachable", False, str(error), needed=True), []
    return Finding("reachable", True, f"status {status} from {shown_url(provider.models_url())}", needed=True), models


def _advice(name: str, error: Exception) -> str:
    if isinstance(error, ProviderHTTPError) and error.status in (401, 403):
        return "pass a key with --api-key-env"
    if isinstance(error, ProviderHTTPError) and error.status == 404:
        return "most endpoints want /v1 at the end of --base-url; check the model's name"
    if name == "structured output":
        return "output_schema falls back to a tool call"
    if name == "usage in streams" or "stream_options" in str(error):
        return "set quirks=replace(provider.quirks, stream_usage=False)"
    if name == "tool result":
        return 'set quirks=replace(provider.quirks, empty_content="")'
    return ""


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
