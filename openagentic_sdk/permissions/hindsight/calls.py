"""Judge recorded calls again: by the policy of their log, or with the rules of other settings instead.

The log holds what a judgement depends on: the input, and in the `details` of each decision the `facts` of the call and the
`policy` of its run (mode, trust, folders, rules). For older logs, which lack these two, the mode and the folders with which
their run began are used, without rules. Links and files are inspected as they are now. A verdict is `run`, `ask` (somebody
has to answer) or `refuse`; it only counts that people were asked, not what they answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import OptionsError
from ...events import (
    CommandExpanded,
    Event,
    HookEvent,
    PermissionDecision,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    SkillDrifted,
    SystemInit,
    TextCommandStarted,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserMessage,
    UserQuestion,
)
from ...ground.frozen import changed, frozen
from ...ground.loose import as_mapping
from ...kernel.gate import CallContext, Objection
from ...serialization import dumps_json
from ...sessions.request import json_sha256
from ...skills.activation import skill_policy
from ..gate import PermissionGate
from ..layers import SettingsRules
from ..policy import Verdict
from ..rules import READ_TOOLS, Rule

OUTCOMES = {"allow": "run", "ask": "ask", "deny": "refuse"}
# The second wording is that of logs from versions before 0.2.
_NOBODY = ("nobody can be asked", "nobody is there to ask", "mode callback has no approver")
_SKILL_EVENTS = (CommandExpanded, SessionRewound, SkillActivated, SkillDeactivated, SkillDrifted, UserMessage)
_MOST_REMEMBERED = 20_000
_STRICTEST_FIRST = ("deny", "ask", "allow")


@frozen
class RecordedCall:
    """A call that the gate has judged, and its verdict: `was` is `run`, `ask` or `refuse`.

    `policy` is the result of `Run.policy_record`, `facts` that of `Facts.record` plus a hook's request. `is_settled` is true
    for a call that no rule decides (a hook that blocks, the final answer), `by_rule` for a command in text, which only an
    allow rule permits. `input` is `None` if the log does not contain the judged input, `decision` is `None` while nobody
    has answered. `objection` is the objection that a part had, or would have, to the call.
    """

    session_id: str
    seq: int
    ts: float | None
    tool_use_id: str
    tool: str
    input: Mapping[str, Any] | None
    input_sha256: str
    was: str
    facts: Mapping[str, Any]
    policy: Mapping[str, Any]
    decision: PermissionDecision | None = None
    is_settled: bool = False
    by_rule: bool = False
    objection: Objection | None = None


@frozen
class ChangedVerdict:
    """A call whose verdict differs under other rules, and why: `rule` and `source` identify the deciding rule."""

    call: RecordedCall
    now: str
    reason: str
    rule: str | None = None
    source: str | None = None


@frozen
class Backtest:
    """The result of judging `judged` calls again. `left_out` counts those that could not be judged, by reason."""

    judged: int
    newly_run: tuple[ChangedVerdict, ...]
    newly_asked: tuple[ChangedVerdict, ...]
    newly_refused: tuple[ChangedVerdict, ...]
    left_out: Mapping[str, int]

    @property
    def is_same(self) -> bool:
        """Whether every verdict equals the recorded one."""
        return not (self.newly_run or self.newly_asked or self.newly_refused)


RulesFor = Callable[[str], SettingsRules]


def backtest(calls: Iterable[RecordedCall], rules_for: RulesFor | None) -> Backtest:
    """Judge the calls by the rules that `rules_for` returns for their project's folder; if `rules_for` is None, by the rules
    in their logs.
    """
    changes: dict[str, list[ChangedVerdict]] = {"run": [], "ask": [], "refuse": []}
    left_out: Counter[str] = Counter()
    judge, judged = PolicyJudge(rules_for), 0
    for call in calls:
        try:
            verdict = judge.verdict(call)
        except OptionsError as error:
            left_out[str(error)] += 1
            continue
        judged += 1
        now = call.was if verdict is None else OUTCOMES[verdict.outcome]
        if verdict is not None and now != call.was:
            rule = verdict.rule
            change = ChangedVerdict(
                call, now, verdict.reason, rule.text if rule else None, rule.source if rule else None
            )
            changes[now].append(change)
    return Backtest(judged, tuple(changes["run"]), tuple(changes["ask"]), tuple(changes["refuse"]), dict(left_out))


class PolicyJudge:
    """A judge of recorded calls, each by the policy of its log or, with `rules_for`, by the rules of other settings instead.

    `more_allow` are additional allow rules. The same call in the same place is judged once: files and links are assumed not
    to change meanwhile.
    """

    def __init__(self, rules_for: RulesFor | None = None, more_allow: Sequence[str] = ()) -> None:
        self._rules_for = rules_for
        self._more_allow = more_allow
        self._policies: dict[int, tuple[Mapping[str, Any], PermissionGate]] = {}
        self._gates: dict[str, PermissionGate] = {}
        self._verdicts: dict[tuple[Any, ...], Verdict] = {}

    def verdict(self, call: RecordedCall) -> Verdict | None:
        """The gate's verdict on the call before anybody is asked; None if no rule decides it.

        Raises `OptionsError` with the reason for a call that cannot be judged.
        """
        if call.is_settled:
            return None
        if call.input is None:
            raise OptionsError("the log does not contain the input that was evaluated")
        gate = self.gate(call.policy)
        key = (
            id(gate),
            id(call.policy),
            call.tool,
            call.input_sha256,
            call.by_rule,
            repr(call.facts),
            repr(call.objection),
        )
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = _judged(gate, call, call.input)
            if len(self._verdicts) >= _MOST_REMEMBERED:
                self._verdicts.clear()
            self._verdicts[key] = verdict
        return verdict

    def gate(self, policy: Mapping[str, Any]) -> PermissionGate:
        """The gate that judges the calls of this policy. Raises `OptionsError` for an invalid record."""
        entry = self._policies.get(id(policy))
        if entry is not None:
            return entry[1]
        if len(self._policies) >= _MOST_REMEMBERED:
            self._policies.clear()
            self._verdicts.clear()  # their keys are ids of objects that were just released
        folder = _text(policy, "project_dir") or "/"
        name = dumps_json([policy.get("layers"), policy.get("trusted"), folder])
        gate = self._gates.get(name)
        if gate is None:
            rules = None if self._rules_for is None else self._rules_for(folder)
            # Each call has its own protected places, which include the session's own files.
            gate = PermissionGate.from_record({**policy, "protected": []}, rules)
            gate = self._gates[name] = gate.with_first_rules(self._more_allow, folder) if self._more_allow else gate
        # Also keep the policy: while it exists, no other object has its id.
        self._policies[id(policy)] = policy, gate
        return gate


def call_context(call: RecordedCall) -> CallContext:
    """The gate's context for a call, besides its tool and input."""
    facts, policy = call.facts, call.policy
    folder = _text(policy, "cwd") or "/"
    names, rule_names = (_texts(facts.get(key)) for key in ("names", "rule_names"))
    return CallContext(
        cwd=_text(facts, "cwd") or folder,
        session_cwd=folder,
        project_dir=_text(policy, "project_dir"),
        workspace_roots=_texts(policy.get("roots")),
        protected_paths=_texts(policy.get("protected")),
        session_id=call.session_id,
        tool_use_id=call.tool_use_id,
        effect=_text(facts, "effect"),
        grants=_texts(facts.get("grants")),
        disallowed_tools=_texts(facts.get("disallowed")),
        confined=_text(facts, "confined"),
        hook_permission=_text(facts, "wish"),
        hook_reason=_text(facts, "wish_reason"),
        names_of=lambda input: names,
        rule_names=lambda input: rule_names,
        objection=None if call.objection is None else lambda name, input: call.objection,
    )


def _judged(gate: PermissionGate, call: RecordedCall, input: Mapping[str, Any]) -> Verdict:
    context = call_context(call)
    if not call.by_rule:
        return gate.verdict(call.tool, input, context)
    judgement = gate.judge_by_rule(call.tool, input, context)
    rule = Rule(judgement.rule, call.tool, "tool", judgement.source or "") if judgement.rule else None
    return Verdict("allow" if judgement.allowed else "deny", judgement.reason, judgement.category, rule)


def _text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    # A NUL in a path from a log would cause a system error instead of a verdict.
    return value if isinstance(value, str) and "\0" not in value else None


def _texts(value: Any) -> tuple[str, ...]:
    return (
        tuple(each for each in value if isinstance(each, str) and "\0" not in each)
        if isinstance(value, list | tuple)
        else ()
    )


# --- the calls of a log --------------------------------------------------------------------------------------------------


def recorded_calls(session_id: str, events: Iterable[Event], *, after_seq: int = 0) -> Iterator[RecordedCall]:
    """Yield the calls of a log after `after_seq` (earlier ones were copied by a fork), with everything that their judgement
    depends on.
    """
    log = _Log(session_id)
    for event in events:
        yield from (call for call in log.calls(event) if call.seq > after_seq)
    yield from (call for call in log.rest() if call.seq > after_seq)


class _Log:
    """The state of a log that affects the judgement of later calls, updated event by event."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._init: SystemInit | None = None
        self._policy: Mapping[str, Any] | None = None
        self._recorded_policy: Mapping[str, Any] | None = None  # the policy as recorded in the log
        self._uses: dict[str, ToolUse] = {}
        self._hooks: dict[str, list[Mapping[str, Any]]] = {}
        self._waiting: dict[str, RecordedCall] = {}  # until its start shows the input, or the call's effect
        self._questions: dict[str, UserQuestion] = {}
        self._remembered: tuple[str, ...] = ()
        self._skills: list[Event] = []
        self._effects: dict[str, str] = {}

    def calls(self, event: Event) -> Iterator[RecordedCall]:
        """Process an event; yield the calls about which everything is known by then."""
        match event:
            case SystemInit():
                self._init, self._policy, self._recorded_policy = event, None, None
            case ToolUse():
                self._uses[event.tool_use_id] = event
            case HookEvent() if event.tool_use_id is not None:
                self._hooks.setdefault(event.tool_use_id, []).append({"point": event.hook_point, **event.details})
            case UserQuestion() if event.kind == "permission" and event.tool_use_id is not None:
                self._questions[event.tool_use_id] = event
            case PermissionDecision():
                call = self._decided(event)
                if call.is_settled or (call.input is not None and "facts" in event.details):
                    yield call
                else:
                    yield from self._waiting_for(event.tool_use_id)
                    self._waiting[event.tool_use_id] = call
            case ToolStarted():
                self._effects.setdefault(event.name, event.effect)
                if event.effect == "unsafe":  # not that of a trial, which only reads
                    self._effects[event.name] = event.effect
                yield from self._waiting_for(event.tool_use_id, event.input, event.effect)
            case TextCommandStarted():
                yield from self._waiting_for(event.command_id, {"command": event.command})
            case ToolResult():
                yield from self._waiting_for(event.tool_use_id)
                for table in (self._uses, self._hooks):
                    table.pop(event.tool_use_id, None)
            case _ if isinstance(event, _SKILL_EVENTS):
                self._skills.append(event)

    def rest(self) -> Iterator[RecordedCall]:
        """Yield the remaining calls at the end of the log, including those that wait for a person."""
        yield from self._waiting.values()
        for tool_use_id, question in self._questions.items():
            use = self._uses.get(tool_use_id)
            digest = question.details.get("input_sha256")
            if use is None or not isinstance(digest, str):
                continue
            input = next((each for each in self._inputs(tool_use_id) if json_sha256(dict(each)) == digest), None)
            name = str(question.details.get("tool_name"))
            policy = self._policy_of(None)
            yield RecordedCall(
                self._session_id,
                question.seq or 0,
                question.ts,
                tool_use_id,
                name,
                input,
                digest,
                "ask",
                self._facts({}, name),
                policy,
                objection=_objection_in(question.details),
            )

    def _waiting_for(
        self, tool_use_id: str, input: Mapping[str, Any] | None = None, effect: str | None = None
    ) -> Iterator[RecordedCall]:
        call = self._waiting.pop(tool_use_id, None)
        if call is None:
            return
        if call.input is None and input is not None and json_sha256(dict(input)) == call.input_sha256:
            call = changed(call, input=input)
        if effect is not None and "effect" not in call.facts:
            call = changed(call, facts={**call.facts, "effect": effect})
        yield call

    def _decided(self, event: PermissionDecision) -> RecordedCall:
        details = event.details
        policy = details.get("policy")
        if isinstance(policy, Mapping):
            self._policy, self._recorded_policy = None, policy
        facts = self._facts(as_mapping(details.get("facts")), event.name)
        asked_digest = details.get("asked_about_sha256")
        digest = asked_digest if isinstance(asked_digest, str) else event.input_sha256
        inputs = (facts.get("input"), *self._inputs(event.tool_use_id))
        input = next((each for each in inputs if isinstance(each, Mapping) and json_sha256(dict(each)) == digest), None)
        facts.pop("input", None)
        self._questions.pop(event.tool_use_id, None)
        hooks = self._hooks.pop(event.tool_use_id, ())
        wishes = [
            hook for hook in hooks if hook["point"] == "pre_tool_use" and hook.get("permission") in _STRICTEST_FIRST
        ]
        if wishes:
            strictest = min(wishes, key=lambda hook: _STRICTEST_FIRST.index(hook["permission"]))
            facts["wish"] = strictest["permission"]
        is_text = "text_of" in details
        blocked = is_text and details.get("category") == "hook"
        new_rules = details.get("remembered")
        call = RecordedCall(
            self._session_id,
            event.seq or 0,
            event.ts,
            event.tool_use_id,
            event.name,
            input,
            digest,
            _outcome(event),
            facts,
            self._policy_of(event),
            event,
            is_settled=event.policy_sha256 is None or blocked,
            by_rule=is_text,
            objection=_objection_in(details),
        )
        if event.allowed and isinstance(new_rules, list):
            self._remembered = tuple(dict.fromkeys((*self._remembered, *_texts(new_rules))))
        return call

    def _facts(self, recorded_facts: Mapping[str, Any], tool: str) -> dict[str, Any]:
        """The facts of a call according to the log, or as far as an older log allows."""
        facts = dict(recorded_facts)
        if not recorded_facts:
            skills = skill_policy(self._skills)
            effect = self._effects.get(tool) or ("read" if tool in READ_TOOLS else None)
            skill_facts = {"effect": effect, "grants": skills.grants, "disallowed": skills.disallowed_tools}
            facts = {name: value for name, value in skill_facts.items() if value}
        if self._remembered:
            facts["grants"] = [*self._remembered, *_texts(facts.get("grants"))]
        return facts

    def _inputs(self, tool_use_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield the candidates in the log for the judged input: as changed by a hook, or as written by the model."""
        hook_inputs = [
            hook["tool_input"] for hook in self._hooks.get(tool_use_id, ()) if isinstance(hook.get("tool_input"), dict)
        ]
        use = self._uses.get(tool_use_id)
        yield from reversed(hook_inputs)
        if use is not None:
            yield use.input

    def _policy_of(self, decision: PermissionDecision | None) -> Mapping[str, Any]:
        """The policy in force, the same object as long as it is unchanged; for an older log, its mode without rules."""
        if self._policy is None:
            init, policy = self._init, self._recorded_policy
            cwd = init.cwd if init is not None else "/"
            if policy is None:
                mode = (init.permission_mode if init is not None else None) or (
                    decision.mode if decision is not None else "default"
                )
                policy = {
                    "layers": [{"mode": mode}],
                    "project_dir": cwd,
                    "roots": list(init.workspace_roots) if init else [],
                }
            self._policy = {**policy, "cwd": cwd}
        return self._policy


def _objection_in(details: Mapping[str, Any]) -> Objection | None:
    """The recorded objection to a call: of the rules on labels, or to the changed definition of a server's tool."""
    for key, sentence in (("labels", "the rule on labels {} covers it"), ("definition", "its definition had changed")):
        recorded = as_mapping(details.get(key))
        outcome, rule = recorded.get("outcome"), str(recorded.get("rule", ""))
        if outcome in ("ask", "deny", "watch"):
            return Objection(outcome, sentence.format(rule), rule, {key: recorded})
    return None


def _outcome(event: PermissionDecision) -> str:
    """The gate's verdict before anybody answered: `run`, `ask` or `refuse`."""
    category = event.details.get("category")
    if event.answered_by is not None or category == "nobody" or "trial" in event.details:
        return "ask"
    if category is None and not event.allowed and any(words in event.reason for words in _NOBODY):
        return "ask"
    return "run" if event.allowed else "refuse"
