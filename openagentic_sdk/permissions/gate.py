"""Whether a call may run: the one door that every tool call passes, and the answer that goes into the log.

The order is fixed: a hook's deny, deny rules, ask rules, the mode, allow rules, then a hook's allow, the callback or a
question. Nobody to ask means no. Authority only shrinks on the way down: a narrowed gate asks every layer above it too.
"""

from __future__ import annotations

import inspect
import os
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..clock import Clock, SystemClock
from ..errors import InvalidEventError, OpenAgentSdkError
from ..events import Event, PermissionDecision, UserAnswer, UserQuestion
from ..serialization import loads_json
from ..sessions.request import json_sha256
from .decide import decide, details_of
from .display import preview, visible
from .interactive import InteractiveApprover
from .layers import deny_rule, make_policy, policy_text, read_mode, understood_rules, usable_rules
from .offers import offered_rules
from .paths import Follower, compile_pattern, expand_glob, is_inside, matches_any
from .policy import Mode, Policy, Verdict, together
from .rules import EDIT_TOOLS, Rule, RuleBook
from .subject import Subject, Workspace, describe

UserAnswerer = Callable[[UserQuestion], Awaitable[str]]
Approver = Callable[[str, Mapping[str, Any], Mapping[str, Any]], Any]

_REMEMBERED_CALLS = 1000
_NOBODY = "nobody is there to ask"


@dataclass(frozen=True)
class ApprovalResult:
    """Whether a call may run, and why; true when it may.

    `category` is what decided: `input`, `hook`, `deny_rule`, `ask_rule`, `mode`, `allow_rule`, `path`, `tools`, `callback`,
    `answer`, `nobody`. `input_sha256` is the digest of the arguments that were judged; `updated_input` is set when a
    person or callback put others in their place, which were judged too. `details` is for the log, `question` what a person
    was asked.
    """

    allowed: bool
    reason: str = ""
    mode: str = "default"
    category: str = ""
    rule: str | None = None
    source: str | None = None
    hook: str | None = None
    answered_by: str | None = None
    waited_s: float | None = None
    input_sha256: str = ""
    updated_input: Mapping[str, Any] | None = None
    policy_sha256: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    question: UserQuestion | None = None

    def __bool__(self) -> bool:
        return self.allowed


@dataclass
class _Memory:
    """What a gate and all that were narrowed from it remember: rules that people kept, and paths of approved calls."""

    rules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    paths: OrderedDict[str, frozenset[tuple[str, bool]]] = field(default_factory=OrderedDict)
    roots: dict[str, str] = field(default_factory=dict)

    def keep_paths(self, tool_use_id: str, paths: Iterable[tuple[str, bool]]) -> None:
        self.paths[tool_use_id] = self.paths.get(tool_use_id, frozenset()) | frozenset(paths)
        while len(self.paths) > _REMEMBERED_CALLS:
            self.paths.popitem(last=False)

    def real_root(self, path: str) -> str:
        """A workspace folder as it was resolved the first time: replacing it by a link later moves nothing."""
        if path not in self.roots:
            self.roots[path] = os.path.realpath(path)
        return self.roots[path]


class PermissionGate:
    """The policy of a run and the way to the person behind it.

    permission_mode     default, acceptEdits, plan, dontAsk, bypass (bypassPermissions), prompt, callback or deny; None is
                        default unless settings choose another
    allow, ask, deny    rules in the syntax of Claude Code's settings; `source` says where they stand, `root` is the folder
                        of patterns that begin with one slash (default: the project)
    user_answerer       async (UserQuestion) -> answer: "yes", "no because ...", "always", "always save", "edit ..."
    interactive         ask at the terminal, through `interactive_approver`
    approver            (tool_name, tool_input, context) -> bool or ApprovalResult, sync or async: asked before people
    cwd, workspace_roots, protected_paths    defaults for what a call's context does not say
    trusted             the project's own configuration may run (git's, for one)
    save_rule           called with a rule's text when a person wants it kept in settings; with it "always save" is a choice

    Raises `OptionsError` for an unknown mode and `PermissionRuleError` for a rule that cannot be understood.
    """

    def __init__(
        self,
        *,
        permission_mode: str | None = None,
        interactive: bool = False,
        interactive_approver: InteractiveApprover | None = None,
        user_answerer: UserAnswerer | None = None,
        approver: Approver | None = None,
        allow: Iterable[str | Rule] = (),
        ask: Iterable[str | Rule] = (),
        deny: Iterable[str | Rule] = (),
        source: str = "options",
        root: str | None = None,
        cwd: str | None = None,
        workspace_roots: Sequence[str] = (),
        protected_paths: Sequence[str] = (),
        trusted: bool = False,
        save_rule: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.mode: Mode = read_mode("default" if permission_mode is None else permission_mode)
        self.is_mode_given = permission_mode is not None
        self.user_answerer = user_answerer
        self.interactive_approver = interactive_approver or (InteractiveApprover() if interactive else None)
        self.approver = approver
        self.cwd = cwd
        self.workspace_roots = tuple(workspace_roots)
        self.protected_paths = tuple(protected_paths)
        self.trusted = trusted
        self.save_rule = save_rule
        self.clock = clock or SystemClock()
        self._layers: tuple[Policy, ...] = (make_policy(self.mode, allow, ask, deny, None, source, root),)
        self._memory = _Memory()
        self._digests: dict[tuple[str, ...], str] = {}

    # --- other gates made from this one ----------------------------------------------------------------------------------

    def with_rules(
        self,
        *,
        allow: Iterable[str | Rule] = (),
        ask: Iterable[str | Rule] = (),
        deny: Iterable[str | Rule] = (),
        source: str = "options",
        root: str | None = None,
        trusted: bool | None = None,
        workspace_roots: Sequence[str] | None = None,
    ) -> PermissionGate:
        """The same gate with more rules in its last layer, for settings and options."""
        *above, last = self._layers
        more = make_policy(last.mode, allow, ask, deny, None, source, root)
        joined = Policy(
            last.mode,
            RuleBook((*last.allow.rules, *more.allow.rules)),
            RuleBook((*last.ask.rules, *more.ask.rules)),
            RuleBook((*last.deny.rules, *more.deny.rules)),
            last.only,
        )
        gate = self._copy((*above, joined))
        gate.trusted = self.trusted if trusted is None else trusted
        gate.workspace_roots = self.workspace_roots if workspace_roots is None else tuple(workspace_roots)
        return gate

    def with_mode(self, permission_mode: str) -> PermissionGate:
        """The same gate in another mode. Raises `OptionsError` for an unknown one."""
        *above, last = self._layers
        mode = read_mode(permission_mode)
        gate = self._copy((*above, replace(last, mode=mode)))
        gate.mode, gate.is_mode_given = mode, True
        return gate

    def narrowed(
        self,
        *,
        permission_mode: str | None = None,
        tools: Iterable[str | Rule] | None = None,
        allow: Iterable[str | Rule] = (),
        ask: Iterable[str | Rule] = (),
        deny: Iterable[str | Rule] = (),
        source: str = "subagent",
        root: str | None = None,
    ) -> PermissionGate:
        """A gate for a subagent or skill: what it allows, this gate allows too.

        `tools`, when given, are names and rules of all that may be used. Without a `permission_mode` of its own the child
        is only held to this gate's mode. What cannot be understood takes authority away instead of raising: a tool of that
        kind is not usable, a deny rule of that kind forbids its whole tool.
        """
        mode = "bypass" if permission_mode is None else read_mode(permission_mode)
        only = None if tools is None else understood_rules(tools, source, root)
        forbidden = [rule if isinstance(rule, Rule) else deny_rule(rule, source, root) for rule in deny]
        gate = self._copy((*self._layers, make_policy(mode, allow, ask, forbidden, only, source, root)))
        gate.mode = self.mode if permission_mode is None else mode
        return gate

    def _copy(self, layers: tuple[Policy, ...]) -> PermissionGate:
        gate = PermissionGate.__new__(PermissionGate)
        gate.__dict__.update(self.__dict__)
        gate._layers = layers
        gate._digests = {}
        return gate

    # --- the people behind it --------------------------------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        """Whether this gate knows somebody who answers questions."""
        return self.user_answerer is not None or self.interactive_approver is not None

    async def answer(self, question: UserQuestion) -> str:
        """The answer to a question; empty when there is nobody to ask."""
        if self.user_answerer is not None:
            return await self.user_answerer(question)
        if self.interactive_approver is not None:
            return await self.interactive_approver.answer(question)
        return ""

    # --- the decision ----------------------------------------------------------------------------------------------------

    async def approve(
        self, tool_name: str, tool_input: Mapping[str, Any], context: Mapping[str, Any] | None = None
    ) -> ApprovalResult:
        """Whether this call may run with exactly this input.

        `context` may hold `cwd`, `session_cwd` (where the first command of the session ran, when this one runs elsewhere),
        `project_dir`, `workspace_roots`, `protected_paths`, `session_id`, `tool_use_id`,
        `effect`, `grants` and `disallowed_tools` (rules for this turn), `hook_permission` with `hook` and `hook_reason`,
        `names_of` (the input of a skill tool -> all names of its skill), `trusted`, and `ask`, through which a question goes
        out when it is given. `permission_request`, an async function of name and input, is asked first: an `ApprovalResult`
        answers in a person's place (with `allowed`, `reason`, `hook`, `updated_input`), None does not.
        """
        context = context or {}
        known: dict[str, Any] = {"mode": self.mode, "hook": context.get("hook")}
        try:
            known["input_sha256"] = json_sha256(dict(tool_input))
        except (TypeError, ValueError, RecursionError) as error:
            return ApprovalResult(False, f"{tool_name}: the input is not JSON: {error}", category="input", **known)
        if context.get("hook_permission") == "deny":
            reason = str(context.get("hook_reason") or "a hook denied this call")
            return ApprovalResult(False, reason, category="hook", **known)
        subject = self._subject(tool_name, tool_input, context)
        layers, notes = self._layers_for(context)
        known["policy_sha256"], known["details"] = self._digest(layers), {**details_of(subject), **notes}
        verdict = together([decide(layer, subject) for layer in layers])
        result = await self._settled(known, verdict, subject, layers, context)
        if result.allowed and context.get("tool_use_id"):
            judged = (
                subject if result.updated_input is None else self._subject(tool_name, result.updated_input, context)
            )
            kept = ((access.places.real, access.write) for access in judged.accesses)
            self._memory.keep_paths(str(context["tool_use_id"]), kept)
        return result

    def judge_by_rule(
        self, tool_name: str, tool_input: Mapping[str, Any], context: Mapping[str, Any] | None = None
    ) -> ApprovalResult:
        """Whether an allow rule lets this call run: no mode, hook, callback or person stands in for one.

        For calls that no model and no person asked for. What forbids a call forbids this one too. `context` as in `approve`.
        """
        context = context or {}
        subject = self._subject(tool_name, tool_input, context)
        layers, notes = self._layers_for(context)
        verdict = together([decide(layer, subject) for layer in layers])
        if verdict.outcome == "allow":
            verdict = _by_rule([decide(replace(layer, mode="prompt"), subject) for layer in layers])
        return ApprovalResult(
            verdict.outcome == "allow" and verdict.rule is not None,
            verdict.reason,
            self.mode,
            verdict.category,
            input_sha256=json_sha256(dict(tool_input)),
            policy_sha256=self._digest(layers),
            details={**details_of(subject), **notes},
            **_rule_of(verdict),
        )

    async def _settled(
        self,
        known: Mapping[str, Any],
        verdict: Verdict,
        subject: Subject,
        layers: Sequence[Policy],
        context: Mapping[str, Any],
    ) -> ApprovalResult:
        """The result of a verdict; what is still open goes to the hook's wish, the callback or a person."""
        wish = context.get("hook_permission")
        allowed = verdict.outcome == "allow" and wish != "ask"
        result = ApprovalResult(allowed, verdict.reason, category=verdict.category, **_rule_of(verdict), **known)
        if allowed:
            return result
        if verdict.outcome == "deny":
            return replace(result, reason=f"{subject.tool} is denied: {verdict.reason}")
        if wish == "allow" and not verdict.firm:
            return replace(result, allowed=True, reason="a hook allowed this call", category="hook")
        if any(layer.mode == "dontAsk" for layer in layers):
            reason = f"{subject.tool} is denied: mode dontAsk asks nobody, and {_reason(verdict, wish)}"
            return replace(result, reason=f"{reason}. {_advice(subject)}")
        result = replace(result, reason=_reason(verdict, wish))
        spoken = await self._ask_hooks(result, verdict, subject, context)
        if spoken is not None:
            return spoken
        if self.approver is not None:
            return await self._ask_callback(result, self.approver, subject, context)
        return await self._ask_person(result, subject, context)

    async def _ask_hooks(
        self, result: ApprovalResult, verdict: Verdict, subject: Subject, context: Mapping[str, Any]
    ) -> ApprovalResult | None:
        """What the permission_request hooks say in a person's place; an allow does not answer an ask rule."""
        request = context.get("permission_request")
        answer: ApprovalResult | None = None if request is None else await request(subject.tool, subject.input)
        if answer is None or (answer.allowed and verdict.firm):
            return None
        said = "allowed" if answer.allowed else "denied"
        reason = answer.reason or f"a hook {said} this call"
        result = replace(
            result, allowed=answer.allowed, reason=reason, category="hook", hook=answer.hook, answered_by="hook"
        )
        if answer.allowed and answer.updated_input is not None:
            return self._with_input(result, answer.updated_input, subject, context)
        return result

    async def _ask_callback(
        self, result: ApprovalResult, approver: Approver, subject: Subject, context: Mapping[str, Any]
    ) -> ApprovalResult:
        began = self.clock.monotonic()
        try:
            answer = approver(subject.tool, subject.input, context)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001 - a callback is anybody's code, and one that fails has not said yes
            answer = ApprovalResult(False, f"the approver failed: {error!r}")
        waited = self.clock.monotonic() - began
        result = replace(result, category="callback", answered_by="callback", waited_s=waited)
        if isinstance(answer, ApprovalResult):
            result = replace(result, allowed=answer.allowed, reason=answer.reason or result.reason)
            if answer.updated_input is not None and answer.allowed:
                return self._with_input(result, answer.updated_input, subject, context)
            return result
        said = answer is True
        return replace(result, allowed=said, reason=f"the approver {'allowed' if said else 'refused'} {subject.tool}")

    async def _ask_person(self, result: ApprovalResult, subject: Subject, context: Mapping[str, Any]) -> ApprovalResult:
        ask: Callable[[UserQuestion], Awaitable[Any]] | None = context.get("ask") or (
            self.answer if self.can_ask else None
        )
        if ask is None:
            return self._nobody(result, subject)
        offers = offered_rules(subject) if result.category not in ("ask_rule", "path") else ()
        question = _question(subject, result, offers, context, can_save=self.save_rule is not None)
        began = self.clock.monotonic()
        answer = await ask(question)
        waited = self.clock.monotonic() - began
        said, by = (answer.answer, answer.answered_by) if isinstance(answer, UserAnswer) else (answer, "user")
        said = said.strip() if isinstance(said, str) else ""
        if not said and not self.can_ask:
            return self._nobody(result, subject)
        answered = replace(result, category="answer", answered_by=by, waited_s=waited, question=question)
        return self._answered(answered, said, offers, subject, context)

    def _nobody(self, result: ApprovalResult, subject: Subject) -> ApprovalResult:
        why = "mode callback has no approver" if self.mode == "callback" else _NOBODY
        reason = f"{subject.tool} needs approval and {why}: {result.reason}. {_advice(subject)}"
        return replace(result, reason=reason, category="nobody")

    def _answered(
        self,
        result: ApprovalResult,
        said: str,
        offers: Sequence[str],
        subject: Subject,
        context: Mapping[str, Any],
    ) -> ApprovalResult:
        """What an answer means: y, yes and always allow, edit replaces the input, everything else does not allow."""
        word, _, rest = said.partition(" ")
        word = word.lower().rstrip(",.:")
        if said.lower() in ("y", "yes"):
            return replace(result, allowed=True, reason="the person said yes")
        if said.lower() in ("always", "always save"):
            return self._remembered(result, offers, said.lower() == "always save", context)
        if word == "edit" and rest.strip():
            return self._edited(result, rest.strip(), subject, context)
        if word in ("n", "no"):
            return replace(result, reason=f"the person said no{': ' + rest.strip() if rest.strip() else ''}")
        return replace(result, reason=f"the person answered {said!r}, which is not yes")

    def _remembered(
        self, result: ApprovalResult, offers: Sequence[str], save: bool, context: Mapping[str, Any]
    ) -> ApprovalResult:
        if offers:
            self.remember(_session_of(context), offers)
        details = dict(result.details)
        if offers:
            details |= {"remembered": list(offers), **(self._saved(offers) if save else {"remembered_in": "session"})}
        return replace(result, allowed=True, reason="the person said always", details=details)

    def _saved(self, offers: Sequence[str]) -> dict[str, Any]:
        """Where rules are kept; settings that cannot be written take nothing from the answer, the log says so."""
        if self.save_rule is None:
            return {"remembered_in": "session"}
        try:
            for rule in offers:
                self.save_rule(rule)
        except (OpenAgentSdkError, OSError) as error:
            return {"remembered_in": "session", "not_saved": str(error)}
        return {"remembered_in": "settings"}

    def _edited(
        self, result: ApprovalResult, text: str, subject: Subject, context: Mapping[str, Any]
    ) -> ApprovalResult:
        if subject.tool == "Bash" and not text.startswith("{"):
            return self._with_input(result, {**subject.input, "command": text}, subject, context)
        try:
            changed = loads_json(text)
        except InvalidEventError as error:
            return replace(result, reason=f"the person's edit cannot be read: {error}")
        if not isinstance(changed, dict):
            return replace(result, reason="the person's edit is no JSON object")
        return self._with_input(result, changed, subject, context)

    def _with_input(
        self, result: ApprovalResult, changed: Mapping[str, Any], subject: Subject, context: Mapping[str, Any]
    ) -> ApprovalResult:
        """An approval for other input: everything that denies is asked again about it."""
        layers, _ = self._layers_for(context)
        other = self._subject(subject.tool, changed, context)
        verdict = together([decide(layer, other) for layer in layers])
        details = {**details_of(other), "asked_about_sha256": result.input_sha256}
        result = replace(result, input_sha256=json_sha256(dict(changed)), details=details)
        if verdict.outcome == "deny":
            reason = f"{subject.tool} is denied as it was edited: {verdict.reason}"
            return replace(result, allowed=False, reason=reason, category=verdict.category, **_rule_of(verdict))
        reason = f"{result.answered_by} allowed it with other input"
        return replace(result, allowed=True, reason=reason, updated_input=dict(changed))

    async def permits_path(self, path: str, write: bool, context: Mapping[str, Any] | None = None) -> bool:
        """Whether a running call may touch one more path, without a question.

        By policy, or because the call was approved for it: for this very path, or for a folder above it that no ask rule
        speaks about.
        """
        context = context or {}
        subject = self._subject("Edit" if write else "Read", {"file_path": path}, context)
        approved = self._memory.paths.get(str(context.get("tool_use_id")), frozenset())
        layers, _ = self._layers_for(context)
        verdict = together([decide(layer, subject) for layer in layers])
        if verdict.outcome != "ask":
            return verdict.outcome == "allow"
        if verdict.firm:
            return all((access.places.real, access.write) in approved for access in subject.accesses)
        folders = [name for name, writes in approved if writes == write]
        return all(is_inside(access.places.real, folders) for access in subject.accesses)

    # --- rules that people kept ------------------------------------------------------------------------------------------

    def remember(self, session_id: str, rules: Iterable[str]) -> None:
        """Allow what these rules cover for the rest of the session."""
        known = self._memory.rules.get(session_id, ())
        self._memory.rules[session_id] = tuple(dict.fromkeys((*known, *rules)))

    def restore(self, session_id: str, events: Iterable[Event]) -> None:
        """Remember again what the log of a resumed session says was remembered."""
        for event in events:
            if isinstance(event, PermissionDecision) and event.allowed:
                kept = event.details.get("remembered")
                self.remember(session_id, kept if isinstance(kept, list) else ())

    # --- what others may know of the policy ------------------------------------------------------------------------------

    def offered_tools(self, names: Iterable[str]) -> tuple[str, ...]:
        """The tools worth showing to a model: all but those that a deny rule forbids whatever their input."""
        return tuple(name for name in names if not any(self._is_hidden(layer, name) for layer in self._layers))

    def _is_hidden(self, layer: Policy, name: str) -> bool:
        if layer.deny.for_tool(name) is not None:
            return True
        return layer.only is not None and not any(rule.covers(name) for rule in layer.only.rules)

    def read_filter(self, cwd: str, roots: Sequence[str] = ()) -> Callable[[str], bool] | None:
        """A quick test of paths for Grep and Glob: False for what a deny or ask rule keeps from being read.

        None when no rule could. A path is tested by its own name and by where it leads.
        """
        rules = [rule for layer in self._layers for book in (layer.deny, layer.ask) for rule in book.paths]
        rules = [rule for rule in rules if rule.tool not in EDIT_TOOLS]
        if not rules:
            return None
        workspace = self._workspace({"cwd": cwd, "workspace_roots": roots})
        bases = {workspace.base, workspace.cwd, *workspace.roots}
        patterns = [compile_pattern(rule.pattern, b, rule.root or b, wide=True) for rule in rules for b in bases]
        folders: dict[str, str] = {}

        def permits(path: str) -> bool:
            whole = path if path.startswith("/") else f"{workspace.cwd}/{path}"
            folder, _, name = whole.rpartition("/")
            if folder not in folders:
                folders[folder] = os.path.realpath(folder or "/")
            real = f"{folders[folder].rstrip('/')}/{name}"
            names = [whole, real, os.path.realpath(real)] if os.path.islink(real) else [whole, real]
            return not any(matches_any(pattern, names) for pattern in patterns)

        return permits

    @property
    def policy_sha256(self) -> str:
        """The digest of modes and rules, as it stands in decisions of a session without rules of its own."""
        return self._digest(self._layers)

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _subject(self, tool: str, input: Mapping[str, Any], context: Mapping[str, Any]) -> Subject:
        return describe(tool, input, context.get("effect"), self._workspace(context), context.get("names_of"))

    def _workspace(self, context: Mapping[str, Any]) -> Workspace:
        cwd = os.path.abspath(context.get("cwd") or self.cwd or os.getcwd())
        base = os.path.abspath(context.get("project_dir") or self.cwd or cwd)
        roots = context.get("workspace_roots") or self.workspace_roots or (base, cwd)
        protected = (*self.protected_paths, *(context.get("protected_paths") or ()))
        real = self._memory.real_root
        return Workspace(
            cwd=cwd,
            base=base,
            roots=tuple(dict.fromkeys([real(root) for root in roots])),
            protected=tuple([real(path) for path in protected]),
            follow=Follower().follow,
            expand=expand_glob,
            trusted=bool(context.get("trusted", self.trusted)),
            started_in=self._moved_from(cwd, context.get("session_cwd")),
        )

    def _moved_from(self, cwd: str, session_cwd: str | None) -> str | None:
        """The folder that commands began in, when it is another one than this."""
        if session_cwd is None or os.path.abspath(session_cwd) == cwd:
            return None
        began = self._memory.real_root(session_cwd)
        return None if began == cwd else began

    def _layers_for(self, context: Mapping[str, Any]) -> tuple[tuple[Policy, ...], dict[str, Any]]:
        """The layers with what holds for this session and turn, and what of it could not be understood."""
        grants = (*self._memory.rules.get(_session_of(context), ()), *(context.get("grants") or ()))
        disallowed = context.get("disallowed_tools") or ()
        if not grants and not disallowed:
            return self._layers, {}
        allow, unusable = usable_rules(grants)
        deny = [deny_rule(text) for text in disallowed]
        notes = {"ignored_grants": unusable} if unusable else {}
        return tuple(layer.plus(allow=allow, deny=deny) for layer in self._layers), notes

    def _digest(self, layers: Sequence[Policy]) -> str:
        key = tuple(policy_text(layer) for layer in layers) if layers is not self._layers else ()
        if key not in self._digests:
            if len(self._digests) > _REMEMBERED_CALLS:
                self._digests.clear()
            self._digests[key] = json_sha256([policy_text(layer) for layer in layers])
        return self._digests[key]


def _session_of(context: Mapping[str, Any]) -> str:
    return str(context.get("session_id") or "")


def _by_rule(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of the first layer whose rules allow a call, else that of the first layer."""
    return next((verdict for verdict in verdicts if verdict.outcome == "allow" and verdict.rule), verdicts[0])


def _rule_of(verdict: Verdict) -> dict[str, Any]:
    rule = verdict.rule
    return {"rule": rule.text if rule else None, "source": rule.source if rule else None}


def _reason(verdict: Verdict, wish: str | None) -> str:
    return "a hook wants this call asked" if wish == "ask" and verdict.outcome == "allow" else verdict.reason


def _advice(subject: Subject) -> str:
    """What would let the call pass, for the person who reads the denial."""
    offers = offered_rules(subject)
    rules = "rules such as " if len(offers) > 1 else "a rule such as "
    named = rules + " and ".join(visible(offer) for offer in offers[:3]) if offers else f"the rule {subject.tool}"
    mode = " or mode acceptEdits" if subject.tool in EDIT_TOOLS else ""
    return f"To allow it, add {named}{mode}, or give somebody to ask."


def _question(
    subject: Subject,
    result: ApprovalResult,
    offers: Sequence[str],
    context: Mapping[str, Any],
    *,
    can_save: bool,
) -> UserQuestion:
    always = ("always", "always save") if can_save else ("always",)
    return UserQuestion(
        uuid.uuid4().hex,
        f"Allow {visible(subject.tool)}?",
        ("yes", "no", *(always if offers else ())),
        kind="permission",
        tool_use_id=context.get("tool_use_id"),
        details={
            "tool_name": subject.tool,
            "input": dict(subject.input),
            "input_sha256": result.input_sha256,
            "preview": preview(subject.tool, subject.input, subject.workspace.cwd),
            "reason": result.reason,
            "offers": list(offers),
        },
    )
