"""Plan before reading: the model writes code from its prompt and the tools' signatures, and does not see results.

The results of the code's calls are values with labels (`values`, `interpreter`); each call passes the labels of its
arguments to the gate (`labels.carried`). Printed text goes to the user; the model reads only its trusted part, and of an
error only its type and line. This is the design of CaMeL (Debenedetti and others, "Defeating Prompt Injections by Design",
2025) on our log: a plan that a crash cut off is run again from its start, with the results that its calls already have.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any

from ....errors import ToolError
from ....events import CODE_CALLER, ModelRequest, Result, ToolResult, ToolUse, UserMessage
from ....ground.loose import as_list, as_mapping
from ....ground.threads import error_words, run_in_thread
from ....kernel.agent import Run
from ....kernel.loop import MAX_TEXT_TWICE
from ....kernel.part import Part
from ....kernel.registry import ToolRegistry, tool_spec
from ....kernel.tool import REPEATABLE, BareTool, ToolContext, ToolOutput, may_call
from ....providers.base import Provider
from ....serialization import dumps_json
from ....sessions.folds.features.untrusted import UntrustedFold
from ....sessions.folds.view import CallRecord, SessionView
from ....sessions.rebuild import result_text
from ....sessions.request import request_sha256
from ....tools.inner_calls import CallsInside, InnerCalls
from ...compaction import ask_beside
from ...record.folds.notes import printed_by_plan
from ..carried import is_planned
from .interpreter import PlanInterpreter
from .tools import EXTRACT, PlanRunner, TextReader, plan_functions, plan_signatures
from .values import CLEAN, PlanValues, Value, ValueLabel, labelled_leaves

MAX_CALLS = 100
MAX_ATTEMPTS = 3
_MAX_PRINTED_CHARS = 100_000
_MAX_TOLD_CHARS = 30_000
_MAX_PLACES = 200
# The tools that the planning model may call itself: their results contain nothing written by others.
_DIRECT = (CODE_CALLER, "AskUserQuestion", "SkillActivate", "SkillDeactivate")
_WITHHELD = "[The rest of the output was shown only to the user: it derives from untrusted text, or is too long.]"


class PlannerFold(UntrustedFold):
    """A fold of the untrusted sources and secrets that the planning model itself has read, without those that only its plans
    read.
    """

    name = "planner"

    def __init__(self) -> None:
        super().__init__()
        self.secrets: set[str] = set()

    def apply(self, event: Any, view: SessionView) -> None:
        if isinstance(event, ToolResult):
            record = view.calls.get(event.tool_use_id)
            if record is not None and is_planned(record.use):
                return
            self.secrets |= _own_label(event).secrets
        super().apply(event, view)

    def kept(self) -> Mapping[str, Any]:
        return {**super().kept(), "secrets": sorted(self.secrets)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        super().restore(kept)
        self.secrets = set(kept["secrets"])


def _own_label(result: ToolResult) -> ValueLabel:
    """The label of the result itself, without the labels of its call's arguments."""
    meta = result.meta or {}
    label, source = as_mapping(meta.get("label")), meta.get("untrusted")
    if "rewritten" in meta and source is None:
        source = "a hook, which replaced the result"
    sources = [(source, result.tool_use_id)] if isinstance(source, str) else []
    return ValueLabel(frozenset(sources), frozenset([str(label.get("name"))] if "readers" in label else []))


class Plans(Part, PlanRunner, TextReader):
    """A part that lets the model use tools only in plans, except those for questions, skills and the final answer.

    With `is_strict`, whatever untrusted values decide is untrusted, too. `provider` answers the calls of `extract`; None
    means the agent's own.
    """

    def __init__(self, run: Run, is_strict: bool, provider: Provider | None = None) -> None:
        super().__init__(run)
        self._is_strict, self._provider = is_strict, provider
        self._tools: tuple[BareTool, ...] = ()

    def services(self) -> Mapping[type, object]:
        return {PlanRunner: self, TextReader: self}

    async def before_step(self) -> None:
        """Offer the model its direct tools, and all other tools as functions of its code."""
        agent = self.run.agent
        tools = tuple(agent.tools)
        if len(tools) == len(self._tools) and all(map(is_, tools, self._tools)):
            return
        self._tools = tools
        offered_names = self.run.gate.offered_tools(tool.name for tool in tools if may_call(tool, CODE_CALLER))
        signatures = plan_signatures(tool for tool in tools if tool.name in offered_names)
        specs = [tool_spec(tool) for tool in tools if tool.is_answer or tool.name in _DIRECT]
        for spec in specs:
            if spec["function"]["name"] == CODE_CALLER:
                spec["function"]["description"] += signatures
        self.run.agent = replace(agent, tools=ToolRegistry(tools, specs))

    def read_call(self, use: ToolUse, tools: ToolRegistry) -> ToolUse:
        """Raise `ToolError` for a direct call of a tool that only plans may use, whose result the model would see."""
        is_direct = use.name in _DIRECT or (use.name in tools and tools.get(use.name).is_answer)
        if not use.is_inside and not is_direct:
            raise ToolError(f"you make plans and see no results here: call {use.name} as a function in {CODE_CALLER}")
        return use

    def continues(self, tool_use_id: str) -> bool:
        record = self.run.view.calls.get(tool_use_id)
        return record is not None and record.use.name == CODE_CALLER and record.attempts < MAX_ATTEMPTS

    def complete_result(self, result: Result) -> Result:
        """Put the text that the turn's plans printed for the user before the result's final text.

        A result with structured output is not changed.
        """
        printed: list[str] = []
        for event in reversed(self.run.view.events):
            if isinstance(event, UserMessage) and event.origin == "user":
                break
            use = self.run.view.calls[event.tool_use_id].use if isinstance(event, ToolResult) else None
            if isinstance(event, ToolResult) and use is not None and use.name == CODE_CALLER and not use.is_inside:
                printed += filter(None, [printed_by_plan(event)])
        if not printed or result.structured_output is not None:
            return result
        text = "\n\n".join([*reversed(printed), *([result.final_text] if result.final_text else [])])
        return replace(result, final_text=text[: MAX_TEXT_TWICE - 1])

    async def ask(self, messages: list[Mapping[str, Any]]) -> str:
        run = self.run
        digest = request_sha256(run.model, messages, ())
        request = ModelRequest(run.view.steps, 1, digest, len(messages), [*messages], EXTRACT, run.model)
        output = await ask_beside(run, self._provider, request, messages)
        return "" if output.tool_calls else output.assistant_text or ""

    async def run_plan(self, code: str, ctx: ToolContext) -> ToolOutput:
        inside = ctx.services.get(InnerCalls).inside(ctx)
        plan = _RunningPlan(self.run, inside, ctx.tool_use_id or "", self._is_strict)
        functions = plan_functions(plan.inside.tools())
        interpreter = PlanInterpreter(plan.values, functions, plan.call, plan.show, is_strict=self._is_strict)
        error = None
        try:
            await interpreter.run(code)
        except ToolError as failure:
            error = str(failure)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
        ) as failure:
            # What operations of a plan raise. The text may quote a value, so the model reads it only if no label is on it.
            kind, text = error_words(failure)
            error = kind
            plan.show(f"line {interpreter.line}: {kind}: {text}", plan.read)
            if not plan.read:
                error = f"{kind}: {text}"
        lines = [text for text, is_told in plan.printed if is_told]
        lines += [_WITHHELD] if len(lines) < len(plan.printed) else []
        lines += [f"[line {interpreter.line}: {error}]"] if error is not None else []
        meta = {"calls": plan.call_count, "printed": "\n".join(text for text, _ in plan.printed)}
        text = "\n".join(lines) or "(the plan ran to its end and printed nothing)"
        return ToolOutput(text, meta if plan.printed else {"calls": plan.call_count}, is_error=error is not None)


class _RunningPlan:
    """The calls and the printed text of one plan. `read` is the joined label of all results of its calls so far."""

    def __init__(self, run: Run, inside: CallsInside, use_id: str, is_strict: bool) -> None:
        self.inside = inside
        self.values = PlanValues()
        self.printed: list[tuple[str, bool]] = []
        self.call_count = 0
        self.read = CLEAN
        self._run, self._is_strict, self._chars = run, is_strict, 0
        records = [record for record in run.view.calls.values() if record.use.parent_tool_use_id == use_id]
        # The calls of an attempt that a crash cut off, in the order in which this attempt repeats them.
        self._earlier: deque[CallRecord] = deque(record for record in records if is_planned(record.use))

    def show(self, text: str, label: ValueLabel) -> None:
        self._chars += len(text)
        if self._chars > _MAX_PRINTED_CHARS:
            raise ToolError(f"the plan prints more than {_MAX_PRINTED_CHARS} characters")
        told_chars = sum(len(each) for each, is_told in self.printed if is_told)
        self.printed.append((text, not label and told_chars + len(text) <= _MAX_TOLD_CHARS))

    async def call(self, tool: str, arguments: Mapping[str, Value], decided: ValueLabel) -> Value:
        if self.call_count == MAX_CALLS:
            raise ToolError(f"a plan makes at most {MAX_CALLS} calls")
        self.call_count += 1
        input = {name: self.values.plain(value) for name, value in arguments.items()}
        input_label = self.values.label_of(*arguments.values()).joined(decided)
        result = await self._result(tool, input, self._labels(arguments, decided, input_label))
        own = _own_label(result)
        # The sources of the text given to `extract` are more specific than `extract` itself as a source.
        if tool == EXTRACT and input_label.sources:
            own = ValueLabel(frozenset(), own.secrets)
        label = own.joined(input_label)
        self.read = self.read.joined(label)
        if result.outcome != "ok":
            self._fail(tool, result, label)
        meta = result.meta or {}
        trusted = [] if "rewritten" in meta else as_list(as_mapping(meta.get("label")).get("trusted_fields"))
        paths = [str(path).split(".") for path in trusted]
        vouched = ValueLabel(input_label.sources, label.secrets)
        return self.values.lift(await self._output(result), label, paths, vouched)

    def _labels(
        self, arguments: Mapping[str, Value], decided: ValueLabel, input_label: ValueLabel
    ) -> Mapping[str, Any]:
        """The labels of a call in the log's form, see `CarriedLabels`."""
        planner = self._run.view.fold(PlannerFold)
        places: dict[str, set[tuple[str, str]]] = {}
        for name, value in arguments.items():
            for place, label in labelled_leaves(value, name, self._is_strict):
                if label.sources:
                    places.setdefault(place if len(places) < _MAX_PLACES else name, set()).update(label.sources)
        return {
            "arguments": {place: [[*pair] for pair in sorted(pairs)] for place, pairs in places.items()},
            "decided": [[*pair] for pair in sorted(decided.sources)],
            "secrets": sorted(input_label.secrets | planner.secrets),
            "tainted": bool(planner.sources),
        }

    async def _result(self, tool: str, input: Mapping[str, Any], labels: Mapping[str, Any]) -> ToolResult:
        """Return the call's result from an earlier attempt at this plan; without one, make the call.

        Raises `ToolError` if the earlier attempt made a different call here.
        """
        while self._earlier:
            record = self._earlier.popleft()
            result, started = record.result, record.started
            is_open = result is None or result.outcome in ("cancelled", "unknown")
            if is_open and (started is None or started.effect in REPEATABLE):
                continue  # it had no effect, or may be repeated
            if record.use.name != tool or dumps_json(record.use.input) != dumps_json(
                self._run.parts.masked(dict(input))
            ):
                raise ToolError(
                    "the plan behaves differently than before the interruption: check what was done, and continue"
                )
            assert result is not None, "open calls of an earlier run are closed before a plan continues"
            return result
        return await self.inside.make(tool, input, labels)

    async def _output(self, result: ToolResult) -> Any:
        """Return the whole output, even if the log has a truncated one, so that every attempt gets the same value."""
        stored_result = self._run.view.calls[result.tool_use_id].result
        output = result.output if stored_result is None else stored_result.output
        if not (
            isinstance(output, Mapping) and output.keys() == {"truncated", "bytes", "head", "tail", "blob", "note"}
        ):
            return output
        store, digest = self._run.agent.store, str(output["blob"])
        read_blob = partial(store.read_blob, self._run.session_id, digest)
        text = (await run_in_thread(read_blob, name="openagentic-plan-blob")).decode("utf-8", "surrogatepass")
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _fail(self, tool: str, result: ToolResult, label: ValueLabel) -> None:
        """Print the outcome of a call that did not succeed, and raise the `ToolError` for it."""
        text = result.error_message or result_text(result)
        self.show(f"{tool}: {result.outcome}: {text}", label)
        raise ToolError(f"{tool}: {result.outcome}" + ("" if label else f": {text}"))
