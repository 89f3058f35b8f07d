"""Labels at the gate: where each result came from, and what untrusted text may not decide.

Each result that is stored has its label in `meta["label"]`, and a source that is not trusted in `meta["untrusted"]`. Before
a call that changes something or sends something away, each of its control arguments is looked for in what the session may
trust (see `fold`); the gate hears of one that stands in no trusted text, and of secrets that the call may carry away.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...events import ToolResult
from ...ground.frozen import changed, frozen
from ...ground.text import on_one_line
from ...kernel.agent import Run
from ...kernel.gate import CallContext, Objection
from ...kernel.part import Part
from ...kernel.tool import BareTool
from ...kernel.tool_call import Permitted
from ...serialization import dumps_json
from ...sessions.folds.features.untrusted import UntrustedFold, short_source, untrusted_source
from ...sessions.folds.view import SessionView
from ...tools.base import Tool
from ...tools.bash import BashTool
from ...tools.labels import ToolLabels
from ...tools.shell.file_policy import CommandRules
from ...tools.shell.sandbox_plan import probe_sandbox
from ..mcp.tools import OwnTool, RemoteTool
from .fold import LabelsFold
from .rules import LabelName, LabelRule, deciding_rule
from .values import KnownText, leaves, property_names

_MAX_FINDINGS = 10
_MAX_VALUE_CHARS = 200
_MAX_LINE_CHARS = 240
# A command that reaches no network sends nothing, and the sandbox holds what it changes.
_CLOSED_SHELL = ToolLabels("derived", control=(), sink=False)


@frozen
class LabelFinding:
    """One reason against a call. `argument` is a dotted name, `value` what stands there; `source`, `seq` and `line` tell
    where it was read, None where no event that is in view holds it."""

    label: LabelName
    argument: str
    value: str
    source: str
    seq: int | None = None
    line: str | None = None

    def sentence(self) -> str:
        """The finding for the person who is asked."""
        if self.label == "secret -> outside":
            return f"{self.source} may be told to its readers only, and {self.argument or 'this call'} is none of them"
        where = f"comes from {self.source}, event {self.seq}" if self.seq else f"may come from {self.source}"
        quoted = f": “{self.line}”" if self.line else ""
        return f"{self.argument} {self.value!r} {where}, which you did not write{quoted}"


class Labels(Part):
    """The labels of a run. `is_trusted` is true where the project's files are trusted."""

    def __init__(self, run: Run, rules: Sequence[LabelRule], is_trusted: bool) -> None:
        super().__init__(run)
        self._rules, self._is_trusted = rules, is_trusted

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        if tool is None or tool not in self.run.agent.tools:
            return context
        return changed(context, objection=self._objection)

    def _objection(self, name: str, input: Mapping[str, Any]) -> Objection | None:
        tool = self.run.agent.tools.get(name)
        labels = self._labels_of(tool)
        views = [self.run.view]
        run = self.run.parent
        while run is not None:  # a subagent may use what its starter may
            views.append(run.view)
            run = run.parent
        return object_to(self._rules, tool, labels, input, views)

    def _labels_of(self, tool: BareTool) -> ToolLabels:
        if isinstance(tool, BashTool):
            sandbox = tool.sandbox_under(self.run.parts.services.find(CommandRules) or CommandRules())
            if sandbox.mode != "off" and not sandbox.has_network and probe_sandbox().is_mounted:
                return _CLOSED_SHELL
        return declared_labels(tool)

    async def after_call(self, call: Permitted, result: ToolResult) -> ToolResult:
        labels = self._labels_of(call.tool)
        if labels.source == "files" and call.tool.effect != "read":
            labels = changed(labels, source="derived")  # it gives back what the model wrote
        agent, known = self.run.agent, dict(result.meta or {})
        place = (agent.cwd, *(agent.workspace_roots or (agent.cwd,)))
        label: dict[str, Any] = {}
        source = known.get("untrusted") or untrusted_source(call.use.name, call.input, result, place[0], place[1:])
        if source is None:
            source = self._source_of(call, result, labels)
            if labels.source != "derived" or source is not None:
                label["source"] = source
            if source is None and labels.source not in ("derived", "files"):
                label["is_structured"] = True
        else:
            label["source"] = source
        if source is not None:
            known["untrusted"] = source
            if labels.trusted_fields:
                label["trusted_fields"] = list(labels.trusted_fields)
        if labels.secret and result.outcome == "ok":
            label["readers"] = [] if labels.secret is True else list(labels.secret)
            label["name"] = short_source(f"{call.use.name} {dumps_json(dict(call.input))}")
        return changed(result, meta={**known, "label": label}) if label else result

    def _source_of(self, call: Permitted, result: ToolResult, labels: ToolLabels) -> str | None:
        """Where an untrusted result came from, beyond what its name and input tell; None for a trusted one."""
        name = call.use.name
        if callable(labels.source):
            source = labels.source(call.input, result.output)
            return short_source(source) if source is not None else None
        if labels.source == "untrusted":
            return short_source(f"tool {name}" + ("" if _declares(call.tool) else ", which declares no source"))
        if labels.source == "files":
            if not self._is_trusted:
                return short_source(f"a file of a project that nobody trusts ({name})")
            fold = self.run.view.fold(LabelsFold)
            if fold.shell_source is not None:
                return short_source(f"a file that a command may have written after {fold.shell_source}")
            files = (result.meta or {}).get("files") or {}
            written = next((path for path in files if path in fold.written), None)
            if written is None and fold.written and not files:
                written = next(iter(fold.written))
            return short_source(f"{written}, written after {fold.written[written]}") if written is not None else None
        return None


def _declares(tool: BareTool) -> bool:
    inner = tool.inner if isinstance(tool, OwnTool) else tool
    return isinstance(inner, Tool) and inner.labels is not None


def declared_labels(tool: BareTool) -> ToolLabels:
    """The labels that a tool declares, and the careful ones for what declares nothing."""
    inner = tool.inner if isinstance(tool, OwnTool) else tool
    if isinstance(inner, Tool) and inner.labels is not None:
        return inner.labels
    if isinstance(tool, RemoteTool):
        hints = tool.definition.raw.get("annotations")
        hints = hints if isinstance(hints, Mapping) else {}
        # What a server that only reads is asked leaves the machine unless it says that it reaches nothing else.
        closed = hints.get("openWorldHint") is False and hints.get("readOnlyHint") is True
        return ToolLabels(sink=not closed)
    return ToolLabels()


def object_to(
    rules: Sequence[LabelRule],
    tool: BareTool,
    labels: ToolLabels,
    input: Mapping[str, Any],
    views: Sequence[SessionView],
) -> Objection | None:
    """What the rules have against a call at this point of a session, None for nothing.

    `views` are the session's own and, for a subagent, those of the sessions that it was started from.
    """
    view = views[0]
    fold, sources = view.fold(LabelsFold), view.fold(UntrustedFold).sources
    is_sink = tool.effect != "read" if labels.sink is None else labels.sink
    findings: list[LabelFinding] = []
    control = list(input) if labels.control is None else labels.control
    known = property_names(tool.input_schema).union(labels.control or ())
    if sources and (is_sink or tool.effect != "read"):
        findings += untrusted_arguments("untrusted", {name: input.get(name) for name in control}, known, views)
    if sources and is_sink and any(rule.label == "untrusted content" for rule in rules):
        content = {name: value for name, value in input.items() if name not in control}
        findings += untrusted_arguments("untrusted content", content, known, views)
    if is_sink and fold.secrets:
        findings += _secrets_carried(control, input, fold)
    names = (tool.name, *tool.rule_names(input))
    deciding = [
        (rule, finding)
        for finding in findings[:_MAX_FINDINGS]
        if (rule := deciding_rule(rules, finding.label, names)) is not None and rule.effect != "allow"
    ]
    for outcome in ("deny", "ask", "watch"):
        found = [(rule, finding) for rule, finding in deciding if rule.effect == outcome]
        if found:
            reason = "; ".join(finding.sentence() for _, finding in found)
            told = {"rule": found[0][0].text, "outcome": outcome, "findings": [_as_json(each) for _, each in found]}
            return Objection(outcome, f"{reason} ({found[0][0].text})", found[0][0].text, {"labels": told})
    return None


def _as_json(finding: LabelFinding) -> dict[str, Any]:
    made = {name: getattr(finding, name) for name in ("label", "argument", "value", "source", "seq", "line")}
    return {name: value for name, value in made.items() if value is not None}


def untrusted_arguments(
    label: LabelName, arguments: Mapping[str, Any], names: Container[str], views: Sequence[SessionView]
) -> Iterator[LabelFinding]:
    """What in these arguments is found in no trusted text; `names` are those of fields that the tool's schema fixes."""
    for name, argument in arguments.items():
        opened = () if name in names or argument is None else (("name", name),)
        for place, value in (*opened, *leaves(argument, name, names)):
            if not any(view.fold(LabelsFold).trusts(value) for view in views):
                source, seq, line = origin_of(value, views[0])
                yield LabelFinding(label, place, on_one_line(str(value), _MAX_VALUE_CHARS), source, seq, line)


def _secrets_carried(names: Iterable[str], input: Mapping[str, Any], fold: LabelsFold) -> Iterator[LabelFinding]:
    """What the session learned that only some may learn, and this call goes to others or does not tell to whom."""
    goes_to = [(place, value) for name in names for place, value in leaves(input.get(name), name) if value is not None]
    for secret, readers in fold.secrets.items():
        known = [KnownText(reader) for reader in readers]
        others = [place for place, value in goes_to if all(reader.place_of(value) is None for reader in known)]
        if others or not goes_to:
            yield LabelFinding("secret -> outside", ", ".join(others), "", secret)


def origin_of(value: Any, view: SessionView) -> tuple[str, int | None, str | None]:
    """The untrusted source, event and line in which a value was read last; the newest source where no event holds it."""
    for record in reversed(view.calls.values()):
        result = record.result
        source = (result.meta or {}).get("untrusted") if result is not None else None
        if result is None or not isinstance(source, str):
            continue
        for _, leaf in leaves([result.output, result.error_message], "", ()):
            for line in str(leaf).splitlines() if KnownText(str(leaf)).place_of(value) is not None else ():
                if KnownText(line).place_of(value) is not None:
                    return source, result.seq, on_one_line(line, _MAX_LINE_CHARS)
    newest = next(reversed(view.fold(UntrustedFold).sources), "untrusted text")
    return newest, None, None
