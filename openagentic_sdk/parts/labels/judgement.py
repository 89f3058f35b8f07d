"""The label rules' objections to a call: its arguments are searched for in the content that the session may trust."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from ...events import ToolResult
from ...ground.frozen import changed, frozen
from ...ground.text import on_one_line
from ...kernel.gate import Objection
from ...kernel.tool import BareTool
from ...sessions.folds.features.untrusted import UntrustedFold
from ...sessions.folds.view import SessionView
from ...tools.labels import ToolLabels
from .carried import CarriedLabels, ValueOrigin
from .fold import LabelsFold
from .rules import LabelName, LabelRule, deciding_rule
from .values import KnownText, leaves, property_names, spelled

_MAX_FINDINGS = 10
_MAX_VALUE_CHARS = 200
_MAX_LINE_CHARS = 240
_MAX_SEARCHED = 200


@frozen
class LabelFinding:
    """One reason against a call. `argument` is a dotted name, `value` its value, `source` the origin of the value.

    `seq` and `line` locate the event and the line where the value was read; each is None if unknown.
    """

    label: LabelName
    argument: str
    value: str
    source: str
    seq: int | None = None
    line: str | None = None

    def sentence(self) -> str:
        """The finding as a sentence for the person who is asked."""
        if self.label == "secret -> outside":
            return (
                f"{self.source} may be disclosed only to its readers, and {self.argument or 'this call'} is not one "
                "of them"
            )
        if self.label == "untrusted choice":
            what = f"{self.argument} {self.value!r}"
            return f"{what} was chosen after {self.source} was read, and you neither wrote nor named it"
        where = f"comes from {self.source}, event {self.seq}" if self.seq else f"may come from {self.source}"
        quoted = f": “{self.line}”" if self.line else ""
        return f"{self.argument} {self.value!r} {where}, which you did not write{quoted}"

    def as_json(self) -> dict[str, Any]:
        """The finding as JSON for the log."""
        return {name: value for name, value in vars(self).items() if value is not None}


@frozen
class ActingTool:
    """The properties of a tool that determine how its calls are judged.

    `changes` is true unless the tool only reads, and `is_sink` if it may send data to others. `control` contains the names
    of the arguments that select the target of the action (None: all of them), and `arguments` the names that the tool's
    schema fixes at any depth.
    """

    name: str
    changes: bool
    is_sink: bool
    control: tuple[str, ...] | None
    arguments: frozenset[str]

    @classmethod
    def of(cls, tool: BareTool, labels: ToolLabels | None) -> ActingTool:
        """Describe a tool by its declared labels, with cautious defaults for anything undeclared."""
        labels = labels or ToolLabels()
        changes = tool.effect != "read"
        fixed = property_names(tool.input_schema)
        control = labels.control
        if control is not None and fixed and not fixed.issuperset(control):
            control = None  # a name is misspelled, so that the intended argument is unknown
        is_sink = changes if labels.sink is None else labels.sink
        return cls(tool.name, changes, is_sink, None if control is None else tuple(control), fixed)

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> ActingTool:
        """Restore a tool from its `record`, with cautious defaults for anything that the log lacks."""
        control, arguments = record.get("control"), record.get("arguments")
        return cls(
            name,
            record.get("changes") is not False,
            record.get("is_sink") is not False,
            tuple(map(str, control)) if isinstance(control, list) else None,
            frozenset(map(str, arguments)) if isinstance(arguments, list) else frozenset(),
        )

    def record(self) -> dict[str, Any]:
        """The tool as JSON, for judging its calls again later."""
        control = None if self.control is None else list(self.control)
        return {
            "changes": self.changes,
            "is_sink": self.is_sink,
            "control": control,
            "arguments": sorted(self.arguments),
        }

    def split(self, input: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The control arguments of a call, and the others. Arguments that are not in the schema count as control."""
        control = {
            name: value
            for name, value in input.items()
            if self.control is None or name in self.control or name not in self.arguments
        }
        return control, {name: value for name, value in input.items() if name not in control}


def object_to(
    rules: Sequence[LabelRule],
    tool: ActingTool,
    rule_names: Callable[[Mapping[str, Any]], Sequence[str]],
    input: Mapping[str, Any],
    views: Sequence[SessionView],
    carried: CarriedLabels | None = None,
) -> Objection | None:
    """Return the rules' objection to a call at this point of a session; None if they have none.

    `views` are the views of the session and, for a subagent, of the sessions that started it, whose trusted content it may
    use and whose secrets it must keep. `carried` contains the labels of a plan's call.
    """
    findings = list(_findings({rule.label for rule in rules}, tool, input, views, carried))
    names = (tool.name, *rule_names(input)) if findings else ()
    deciding = [
        (rule, finding)
        for finding in findings
        if (rule := deciding_rule(rules, finding.label, names)) is not None and rule.effect != "allow"
    ]
    for outcome in ("deny", "ask", "watch"):
        matches = [(rule, finding) for rule, finding in deciding if rule.effect == outcome][:_MAX_FINDINGS]
        if matches:
            placed = [_with_origin(finding, views[0]) for _, finding in matches]
            text = matches[0][0].text
            reason = "; ".join(finding.sentence() for finding in placed)
            label_facts = {"rule": text, "outcome": outcome, "findings": [finding.as_json() for finding in placed]}
            return Objection(outcome, f"{reason} ({text})", text, {"labels": label_facts})
    return None


def _findings(
    labels: Container[LabelName],
    tool: ActingTool,
    input: Mapping[str, Any],
    views: Sequence[SessionView],
    carried: CarriedLabels | None,
) -> Iterator[LabelFinding]:
    """Yield the reasons against a call. `labels` are the labels that the rules mention."""
    control, content = tool.split(input)
    if views[0].fold(UntrustedFold).sources and (tool.is_sink or tool.changes):
        yield from _untrusted(control, tool, views, carried, chosen="untrusted choice" in labels)
        if carried is not None and carried.decided and (tool.is_sink or control):
            yield _carried_finding("the decision to call", tool.name, carried.decided[0], views[0])
        if tool.is_sink and "untrusted content" in labels:
            for finding in _untrusted(content, tool, views, carried):
                yield changed(finding, label="untrusted content")
    for fold in [view.fold(LabelsFold) for view in views] if tool.is_sink else ():
        if fold.secrets:
            yield from _secrets_carried(control, fold, fold.secrets if carried is None else carried.secrets)


def _untrusted(
    arguments: Mapping[str, Any],
    tool: ActingTool,
    views: Sequence[SessionView],
    carried: CarriedLabels | None,
    *,
    chosen: bool = False,
) -> Iterator[LabelFinding]:
    """Yield a finding for each argument that is in no trusted text and, if `chosen`, each that no person wrote or named."""
    folds = [view.fold(LabelsFold) for view in views]
    for name, argument in arguments.items():
        # The model chose the names of undeclared arguments, so a name counts as a value.
        opened = () if name in tool.arguments or argument is None else (("name", name),)
        for place, value in (*opened, *leaves(argument, name, tool.arguments)):
            origins = None if carried is None else carried.origins_of(place, value)
            if origins is not None:
                if origins:
                    yield _carried_finding(place, value, origins[0], views[0])
            elif not any(fold.trusts(value) for fold in folds):
                yield LabelFinding("untrusted", place, spelled(value), "")
            elif chosen and not any(fold.is_named(value) for fold in folds):
                yield LabelFinding("untrusted choice", place, spelled(value), "")


def _with_origin(finding: LabelFinding, view: SessionView) -> LabelFinding:
    if finding.source:
        return finding
    source, seq, line = origin_of(finding.value, view)
    value = on_one_line(finding.value, _MAX_VALUE_CHARS)
    return LabelFinding(finding.label, finding.argument, value, source, seq, line)


def _carried_finding(place: str, value: Any, origin: ValueOrigin, view: SessionView) -> LabelFinding:
    """The finding for a value that a plan computed from this origin."""
    source, call_id = origin
    record = view.calls.get(call_id)
    result, text = None if record is None else record.result, on_one_line(spelled(value), _MAX_VALUE_CHARS)
    seq = None if result is None else result.seq
    return LabelFinding("untrusted", place, text, source, seq, None if result is None else _line_of(value, result))


def _secrets_carried(
    control: Mapping[str, Any], fold: LabelsFold, carried_names: Container[str]
) -> Iterator[LabelFinding]:
    """Yield a finding for each secret in `carried_names` unless all control arguments of the call are its readers.

    A call without control arguments may have any readers, so it yields a finding, too.
    """
    goes_to = [each for name, argument in control.items() for each in leaves(argument, name) if each[1] is not None]
    for secret, readers in fold.secrets.items():
        if secret not in carried_names:
            continue
        known_readers = [KnownText(reader) for reader in readers]
        others = [place for place, value in goes_to if all(reader.place_of(value) is None for reader in known_readers)]
        if others or not goes_to:
            yield LabelFinding("secret -> outside", ", ".join(others), "", secret)


def origin_of(value: Any, view: SessionView) -> tuple[str, int | None, str | None]:
    """The untrusted source, event and line where a value was last read.

    Only the newest 200 untrusted results are searched; if none contains it, the newest source without event and line.
    """
    searched = 0
    for record in reversed(view.calls.values()):
        result = record.result
        source = (result.meta or {}).get("untrusted") if result is not None else None
        if result is None or not isinstance(source, str):
            continue
        searched += 1
        if searched > _MAX_SEARCHED:
            break
        if (line := _line_of(value, result)) is not None:
            return source, result.seq, line
    newest = next(reversed(view.fold(UntrustedFold).sources), "untrusted text")
    return newest, None, None


def _line_of(value: Any, result: ToolResult) -> str | None:
    """The line of a result that contains a value, shortened; None if none does."""
    for _, leaf in leaves([result.output, result.error_message], "", ()):
        text = spelled(leaf)
        # Lines are searched only if the text contains the value at all, which most texts do not.
        for line in text.splitlines() if KnownText(text).place_of(value) is not None else ():
            if KnownText(line).place_of(value) is not None:
                return on_one_line(line, _MAX_LINE_CHARS)
    return None
