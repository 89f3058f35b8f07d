"""Determine what label rules would have decided about the calls in a log.

A log recorded with labels contains everything that the live judgement depends on: the labels of results, each tool's
declaration, and content that arrived in other ways. In an older log, built-in tools are recognized by name, and all other
tools get the most cautious labels. The live gate and this module judge a call with the same functions and at the same place
in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ...events import Event, PartState, PermissionDecision, SystemInit, ToolResult, ToolUse, UserQuestion
from ...ground.loose import as_list, as_mapping
from ...kernel.gate import Objection
from ...kernel.tool import BareTool
from ...sessions.authority import Authority
from ...sessions.folds.features.untrusted import LABELS_STATE, UntrustedFold
from ...sessions.folds.view import SessionView
from ...tools.base import Tool
from ...tools.defaults import default_tools
from .carried import CarriedLabels
from .fold import LabelsFold
from .judgement import ActingTool, object_to
from .marks import ProjectPlace, label_result
from .rules import LabelRule


class RecordedSession:
    """A log that is read event by event; `view` is the session's state up to the event read last.

    `authority` identifies the events that this installation wrote; with None, all count as its own. `starters` are the
    views of the sessions from which this one, a subagent's, was started.
    """

    def __init__(
        self, events: Iterable[Event], authority: Authority | None = None, starters: Sequence[SessionView] = ()
    ) -> None:
        self._events = list(events)
        self.view = _RecordedView(_seqs_of_ours(self._events, authority))
        self._starters = starters
        self._tools: dict[str, ActingTool] = {}
        self._place = ProjectPlace(("/",), is_trusted=False)
        decisions = [event for event in self._events if isinstance(event, PermissionDecision)]
        # The decision contains the tool's names for rules; it may come after the question.
        self._facts = {event.tool_use_id: as_mapping(event.details.get("facts")) for event in decisions}
        self._waiting: dict[str, ToolUse] = {}

    def read_until(self, child_session_id: str) -> SessionView:
        """Read the events before the one that started this subagent's session; return the view at that point.

        If no event starts it, all events are read.
        """
        for event in self._events:
            if getattr(event, "child_session_id", None) == child_session_id:
                break
            self._take(event)
        return self.view

    def objections(self, rules: Sequence[LabelRule]) -> dict[str, Objection | None]:
        """Read the log; return the rules' objection to each call that reached the gate, by id; None if they have none."""
        objections: dict[str, Objection | None] = {}
        for event in self._events:
            for tool_use_id, name, input in self._judged_here(event):
                if tool_use_id not in objections:
                    objections[tool_use_id] = self._objection(rules, tool_use_id, name, input)
            self._take(event)
        return objections

    def _judged_here(self, event: Event) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield the id, name and input of the calls judged by the time of this event.

        They are the event's own call and, if it is a question, the calls that waited before that one.
        """
        if isinstance(event, UserQuestion) and event.kind == "permission" and event.tool_use_id is not None:
            for use in [*self._waiting.values()]:
                if use.tool_use_id == event.tool_use_id:
                    break
                yield use.tool_use_id, use.name, self._input_of(use.tool_use_id, use.input)
            if "input" in event.details:
                yield event.tool_use_id, str(event.details.get("tool_name")), as_mapping(event.details["input"])
        elif isinstance(event, PermissionDecision):
            pending_use = self._waiting.get(event.tool_use_id)
            yield (
                event.tool_use_id,
                event.name,
                self._input_of(event.tool_use_id, {} if pending_use is None else pending_use.input),
            )

    def _input_of(self, tool_use_id: str, model_input: Mapping[str, Any]) -> Mapping[str, Any]:
        """The input that was judged: the one in the decision's facts, otherwise the one that the model wrote."""
        judged = self._facts.get(tool_use_id, {}).get("input")
        return judged if isinstance(judged, Mapping) else model_input

    def _objection(
        self, rules: Sequence[LabelRule], tool_use_id: str, name: str, input: Mapping[str, Any]
    ) -> Objection | None:
        facts = self._facts.get(tool_use_id, {})
        names = tuple(map(str, as_list(facts.get("rule_names"))))
        tool = self._tools.get(name) or _recorded_tool(name, str(facts.get("effect")))
        record = self.view.calls.get(tool_use_id)
        carried = None if record is None else CarriedLabels.of(record.use)
        return object_to(rules, tool, lambda input: names, input, (self.view, *self._starters), carried)

    def _take(self, event: Event) -> None:
        match event:
            case SystemInit():
                roots = (event.cwd, *(event.workspace_roots or (event.cwd,)))
                self._place = ProjectPlace(roots, self._place.is_trusted)
            case PermissionDecision():
                policy = as_mapping(event.details.get("policy"))
                if policy:
                    self._place = ProjectPlace(self._place.folders, policy.get("trusted") is True)
                self._waiting.pop(event.tool_use_id, None)
            case ToolUse():
                self._waiting[event.tool_use_id] = event
            case PartState() if event.part == LABELS_STATE:
                for name, record in as_mapping(as_mapping(event.data).get("tools")).items():
                    self._tools[name] = ActingTool.from_record(name, as_mapping(record))
            case ToolResult():
                self._waiting.pop(event.tool_use_id, None)
                event = self._labelled(event)
        self.view.apply(event)

    def _labelled(self, result: ToolResult) -> ToolResult:
        """The result with its recorded label, or with the one that it would have received; unchanged if its call never
        started.
        """
        record = self.view.calls.get(result.tool_use_id)
        if record is None or record.started is None or "label" in (result.meta or {}):
            return result
        started, name = record.started, record.use.name
        tool = _built_in().get(name)
        labels = tool.labels if isinstance(tool, Tool) else None
        input = record.use.input if started.input is None else started.input
        return label_result(result, name, input, started.effect, labels, self.view.fold(LabelsFold), self._place)


class _RecordedView(SessionView):
    """A view with a given set of events that count as ours, because adding labels breaks the chain of digests."""

    def __init__(self, ours: frozenset[int | None] | None) -> None:
        super().__init__((UntrustedFold, LabelsFold))
        self._ours = ours

    def is_ours(self, event: Event) -> bool:
        return self._ours is None or event.seq in self._ours


def _seqs_of_ours(events: Sequence[Event], authority: Authority | None) -> frozenset[int | None] | None:
    if authority is None:
        return None
    for event in events:
        authority.apply(event)
    return frozenset(event.seq for event in events if authority.is_ours(event))


@cache
def _built_in() -> Mapping[str, BareTool]:
    return {tool.name: tool for tool in default_tools()}


def _recorded_tool(name: str, effect: str) -> ActingTool:
    """The built-in tool of this name, otherwise a stand-in made from the name and the recorded effect."""
    tool = _built_in().get(name)
    if tool is not None:
        return ActingTool.of(tool, tool.labels if isinstance(tool, Tool) else None)
    changes = effect != "read"
    return ActingTool.from_record(name, {"changes": changes, "is_sink": changes})
