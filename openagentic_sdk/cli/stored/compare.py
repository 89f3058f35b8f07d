"""`sessions diff`, `explain`, `why` and `tail`: examine what happened, or follow it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...errors import OptionsError
from ...events import Event, ModelContext, ModelRequest, UserMessage
from ...ground.loose import tool_name
from ...ground.system import working_dir
from ...ground.text import on_one_line
from ...ground.words import plural
from ...parts.masking import environment_redactor, mask_value, shown
from ...parts.record.folds.compare import SessionDiff, Thresholds, compare_sessions
from ...parts.record.folds.explain import StepExplanation, explain_step
from ...parts.record.folds.metrics import run_metrics
from ...runs.why import why_session
from ...sessions.base import SessionStore
from ...sessions.follow import follow
from ..actions import ActionList
from ..exits import FAILED, OK
from ..loop import run_async
from ..output.render import EventPrinter, cost_words
from ..output.terminal import Screen
from ..output.turn import JsonPrinter
from . import context, costs
from .files import show_file_changes
from .stores import NEWEST, add_id, find_session

_MAX_VALUE_CHARS = 200


def add_actions(actions: ActionList) -> None:
    """Add `diff`, `explain`, `why`, `cost`, `context` and `tail` to the command line."""
    diff = actions.add(
        "diff",
        _diff,
        "compare two sessions step by step, or show which files one changed; exit code 1 if there is a difference",
    )
    diff.add_argument("a", metavar="A", help="a session's id or a prefix of it")
    diff.add_argument("b", metavar="B", nargs="?", help="the id of the other session")
    diff.add_argument("--files", action="store_true", help="instead, show which files session A changed")
    diff.add_argument("--ignore-text", action="store_true", help="allow the model's text to differ")
    for name, noun in (("tokens", "tokens"), ("cost", "cost"), ("time", "duration")):
        diff.add_argument(
            f"--{name}",
            type=float,
            metavar="SHARE",
            help=f"report a difference in {noun} above this share of A's, such as 0.1",
        )
    diff.add_argument("--json", action="store_true", help="print one JSON object")
    explain = actions.add("explain", _explain, "explain the contents of the request of one step")
    add_id(explain, default=NEWEST)
    explain.add_argument("--step", type=int, metavar="N", help="the number of the model call (default: the last)")
    explain.add_argument("--json", action="store_true", help="print one JSON object, with the whole request")
    why = actions.add("why", _why, "show why a session ended as it did, where it went wrong, and how to continue")
    add_id(why, default=NEWEST)
    why.add_argument("--json", action="store_true", help="print one JSON object")
    costs.add_actions(actions)
    context.add_actions(actions)
    tail = actions.add("tail", _tail, "print the newest events of a session")
    add_id(tail, default=NEWEST)
    tail.add_argument("-f", "--follow", action="store_true", help="continue with new ones, until Ctrl-C")
    tail.add_argument(
        "-n",
        "--events",
        type=int,
        default=30,
        metavar="N",
        help="the number of events to begin with (default: %(default)s)",
    )
    tail.add_argument("--json", action="store_true", help="print the events as JSON lines")


def _diff(store: SessionStore, args: argparse.Namespace) -> int:
    if args.files == (args.b is not None):
        raise OptionsError(
            "give either two sessions to compare, or one session and --files to show the files it changed"
        )
    if args.files:
        return show_file_changes(store, find_session(store, args.a), as_json=args.json, screen=Screen(sys.stdout))
    a, b = (list(map(shown, store.iter_events(find_session(store, text)))) for text in (args.a, args.b))
    diff = compare_sessions(a, b, Thresholds(args.tokens, args.cost, args.time, args.ignore_text))
    Screen(sys.stdout).tell(args.json, diff.to_dict(), comparison_lines(a, b, diff))
    return OK if diff.same else FAILED


def comparison_lines(a: Sequence[Event], b: Sequence[Event], diff: SessionDiff) -> list[str]:
    """Compare two sessions in sentences: how B's conditions differed, where and how they diverge, and the cost of each."""
    if diff.same:
        return ["no difference"]
    first = next((difference.step for difference in diff.differences if difference.step is not None), None)
    until = "they are the same in every step" if first is None else f"they diverge at step {first}"
    same = f", and are the same in the {first - 1} before" if first is not None and first > 1 else ""
    changed = _conditions(a, b)
    lines = [*([f"B ran with {' and '.join(changed)}"] if changed else []), until + same]
    for each in diff.differences:
        form = _SENTENCES.get(each.kind, "step {step}, {kind}: {b} instead of {a}")
        lines.append("  " + form.format(step=each.step, kind=each.kind, a=_value(each.a), b=_value(each.b)))
    return [*lines, f"A: {_figures(a)}", f"B: {_figures(b)}"]


def _conditions(a: Sequence[Event], b: Sequence[Event]) -> list[str]:
    contexts = [[event for event in side if isinstance(event, ModelContext)] for side in (a, b)]
    if not all(contexts):
        return []
    one, other = contexts[0][-1], contexts[1][-1]
    tools = [{tool_name(spec) for spec in each.tools} for each in (one, other)]
    prompts = [
        [event.text for event in side if isinstance(event, UserMessage) and event.origin == "user"] for side in (a, b)
    ]
    more, fewer = (_names(sorted(names)) for names in (tools[1] - tools[0], tools[0] - tools[1]))
    differs = {
        f"model {on_one_line(other.model)} instead of {on_one_line(one.model)}": one.model != other.model,
        "another system prompt": one.system_prompt != other.system_prompt,
        "other prompts": prompts[0] != prompts[1],
        f"also the tools {more}": more,
        f"without the tools {fewer}": fewer,
    }
    return [text for text, is_so in differs.items() if is_so]


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(on_one_line, names))


_SENTENCES = {
    "tool_added": "step {step}: B also calls {b}",
    "tool_missing": "step {step}: B does not call {a}",
    "tools_reordered": "step {step}: B calls the same tools in another order, {b} instead of {a}",
    "arguments": "step {step}: B calls it with other arguments, {b} instead of {a}",
    "outcome": "step {step}: the call ends with {b} instead of {a}",
    "text": "step {step}: B writes {b} instead of {a}",
    "step_added": "step {step} is only in B: {b}",
    "step_missing": "step {step} is only in A: {a}",
    "stop_reason": "B ends with {b} instead of {a}",
    "tokens": "B uses {b} tokens instead of {a}",
    "cost": "B costs ${b} instead of ${a}",
    "time": "B's model takes {b} s instead of {a}",
}


def _figures(events: Sequence[Event]) -> str:
    figures = run_metrics(events)
    tokens = f"{figures.input_tokens:,} + {figures.output_tokens:,} tokens" if figures.usage else "tokens unknown"
    return f"{plural(figures.steps, 'step')}, {plural(figures.tool_calls, 'call')}, {tokens}, {cost_words(figures.cost_usd)}"


def _value(value: object) -> str:
    return on_one_line(value if isinstance(value, str) else json.dumps(value, default=str), _MAX_VALUE_CHARS)


def _explain(store: SessionStore, args: argparse.Namespace) -> int:
    events = store.read_events(find_session(store, args.id))
    steps = [event.step for event in events if isinstance(event, ModelRequest) and event.purpose == "turn"]
    if not steps:
        raise OptionsError("this session has not called a model yet, so there is no request to explain")
    explanation = explain_step(events, args.step if args.step is not None else steps[-1])
    data = mask_value(asdict(explanation), environment_redactor()) if args.json else None
    Screen(sys.stdout).tell(args.json, data, explanation_lines(explanation))
    return OK if explanation.matches else FAILED


def explanation_lines(explanation: StepExplanation) -> list[str]:
    """The components of a step's request, in sentences."""
    digest = "is the recorded one" if explanation.matches else "IS NOT THE RECORDED ONE"
    lines = [
        f"Step {explanation.step}, event {explanation.seq}, model {on_one_line(explanation.model)}; its digest {digest}"
    ]
    if explanation.rewritten_by_hook:
        lines.append("A hook rewrote the messages of this request.")
    lines.append("System prompt")
    for part in explanation.system:
        source = f"{on_one_line(part.kind)} {on_one_line(part.source)}"
        lines.append(f"  {part.chars:>7} chars  {source}: {on_one_line(part.preview, 80)}")
    lines.append("Messages")
    for message in explanation.messages:
        where = f"events {message.first_seq}-{message.last_seq}" if message.first_seq is not None else "no event"
        size = f"{message.index:>3} {message.role:<9} {message.bytes:>7} bytes"
        source = "" if message.untrusted is None else f", untrusted: {on_one_line(message.untrusted)}"
        lines.append(f"  {size}  {on_one_line(message.origin)} ({where}{source}): {on_one_line(message.preview, 80)}")
    lines.append(f"Tools: {_names(explanation.tools) or 'none'}")
    for call in explanation.labelled_calls:
        outcome = "went on" if call.allowed else "was refused"
        lines.append(f"{on_one_line(call.tool)} {outcome} (event {call.seq}, rule {on_one_line(call.rule)})")
        lines += [f"  {_provenance(finding)}" for finding in call.findings]
    # How much the vendor could have cached, why not more, and how much it reported as cached.
    same = (
        f"the first {explanation.prefix.same_bytes:,} of {explanation.prefix.previous_bytes:,} bytes of "
        "the previous request"
    )
    cache_line = f"Cache: it begins with {same}"
    if explanation.prefix.broke_at is not None:
        cache_line += (
            f"; it broke at message {explanation.prefix.broke_at}: {on_one_line(explanation.prefix.reason or '')}"
        )
    if explanation.prefix.cached_tokens is not None and explanation.prefix.after_s is not None:
        had = f"{explanation.prefix.cached_tokens:,} of {explanation.prefix.input_tokens:,} tokens"
        cache_line += f". The endpoint had {had}, {explanation.prefix.after_s:,.0f} s after it"
    return [*lines, cache_line]


def _why(store: SessionStore, args: argparse.Namespace) -> int:
    place = () if args.store is None else ("--store", args.store)
    cause = why_session(store, find_session(store, args.id), flags=place)
    Screen(sys.stdout).tell(args.json, vars(cause), cause.lines(*place, *cause.flags_outside(working_dir())))
    return OK if not cause.kind else FAILED


def _provenance(finding: Mapping[str, Any]) -> str:
    """The origin of a value in a call, as a sentence with the secrets of this environment masked."""
    fields = mask_value(
        {key: finding.get(key) for key in ("argument", "value", "source", "seq", "line")}, environment_redactor()
    )
    where = f"{fields['source']}, event {fields['seq']}" if fields["seq"] else f"{fields['source']}"
    quoted = f": “{fields['line']}”" if fields["line"] else ""
    return on_one_line(f"{fields['argument']} {fields['value']!r}: {finding.get('label')}, {where}{quoted}")


def _tail(store: SessionStore, args: argparse.Namespace) -> int:
    session_id = find_session(store, args.id)
    printer = JsonPrinter() if args.json else EventPrinter(Screen(sys.stdout), transcript=True)
    newest: deque[Event] = deque()
    last_seq = 0
    for event in store.iter_events(session_id):
        newest.append(event)
        last_seq = event.seq or last_seq
        if len(newest) > args.events:
            printer.learn(newest.popleft())
    for event in newest:
        printer.show(event)
    if args.follow:

        async def go_on() -> None:
            async for event in follow(store, session_id, after_seq=last_seq):
                printer.show(event)

        run_async(go_on())
    return OK
