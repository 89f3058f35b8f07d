"""Decide whether a call may run: the single gate for every tool call, and the decision that goes into the log.

The order is fixed: a hook's deny, deny rules, a mode that forbids, ask rules, a mode that permits, allow rules, then a
hook's allow, the callback or a question. If nobody can be asked, the call is denied. A narrowed gate also consults every
layer above it, so it allows no more than they do; only the list of tools in a subagent's definition does not bind the
subagents that it starts.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, field, replace
from functools import partial
from typing import Annotated, Any

from ..errors import OptionsError
from ..events import Event, Mode, PermissionDecision, UserAnswer, UserQuestion
from ..ground.checks import PATHS, TEXT, check_settings, is_a, list_of, path
from ..ground.clock import Clock, SystemClock
from ..ground.frozen import changed, frozen, mutable
from ..ground.loose import as_list
from ..ground.settings import Doors, WithAdvice, check_fields, described
from ..ground.system import working_dir
from ..ground.threads import ask_callable
from ..kernel.gate import ApprovalResult, CallContext, Gate
from ..sessions.request import json_sha256
from ..sessions.seal import data_home
from ..tools.shell.file_policy import FilePolicy, outermost
from ..tools.shell.protected import Protected, git_places_above, protected_places
from ..tools.shell.settings_found import linked_files
from .asking import Approver, People, UserAnswerer, ask, ask_person
from .decide import is_left_open, judge, judge_by_rule, judge_rules
from .facts import Facts, read_context
from .hold.files import closed_files
from .hold.git import writes_git
from .interactive import InteractiveApprover, typed_here
from .layers import (
    SettingsRules,
    deny_rule,
    layer_record,
    make_policy,
    read_layer,
    read_mode,
    under_settings,
    understood_rules,
    usable_rules,
)
from .paths import LinkFollower, compile_pattern, is_inside, matches_any
from .policy import STRICTEST_FIRST, PermissionMode, Policy, Verdict
from .rules import EDIT_TOOLS, Rule, parse_rules
from .subject import Subject, Workspace, describe

__all__ = ["ApprovalResult", "Approver", "CallContext", "PermissionGate", "UserAnswerer", "permission_gate"]

GateContext = CallContext | Mapping[str, Any] | None

_REMEMBERED_CALLS = 1000
# Checks only the types: creating the gate parses the rules.
RULES = list_of(is_a(str | Rule, "a rule"), "names or rules")


@mutable
class _GateMemory:
    """The shared memory of a gate and the gates narrowed from it: rules that people kept, paths of approved calls, and the
    targets of the workspace's folders when first seen, so that replacing a folder with a link later has no effect.
    """

    rules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    paths: OrderedDict[str, frozenset[tuple[str, bool]]] = field(default_factory=OrderedDict)
    roots: dict[str, str] = field(default_factory=dict)
    digests: dict[tuple[str, ...], str] = field(default_factory=dict)
    named_by_git: dict[str, list[str]] = field(default_factory=dict)
    protected: dict[tuple[tuple[str, ...], tuple[str, ...]], Protected] = field(default_factory=dict)

    def places(self, roots: tuple[str, ...], paths: tuple[str, ...]) -> Protected:
        """The protected places of a workspace as of the first request: no call can reduce them."""
        key = roots, paths
        if key not in self.protected:
            for root in roots:
                if root not in self.named_by_git:
                    self.named_by_git[root] = git_places_above(root)
            git_paths = [path for root in roots for path in self.named_by_git[root]]
            real = [each for path in paths for each in (path, self.real_root(path))]
            self.protected[key] = protected_places(roots, (*real, *git_paths))
        return self.protected[key]

    def real_root(self, path: str) -> str:
        if path not in self.roots:
            self.roots[path] = os.path.realpath(path)
        return self.roots[path]


def _require_question(answerer: UserAnswerer) -> None:
    """Raise `OptionsError` for a function that cannot be called with a question alone."""
    try:
        inspect.signature(answerer).bind(None)
    except TypeError as error:
        raise OptionsError(
            f"interactive_approver cannot be called with the question as its only argument ({error}): pass PermissionGate "
            "a function of (tool_name, tool_input, context) as `approver`"
        ) from error
    except ValueError:  # a callable in C may not reveal its parameters
        return


@described
@frozen(kw_only=True, eq=False, repr=False)
class PermissionGate(WithAdvice):
    """The policy of a run and the channel to the person behind it, as a frozen value.

    `dataclasses.replace` creates a gate with other fields. It also accepts a mode, which replaces that of the last layer,
    and rules, which are added to those of the last layer.

    Raises `OptionsError` for an unknown mode or an invalid setting, and `PermissionRuleError` for an invalid rule.
    """

    permission_mode: InitVar[Annotated[PermissionMode | None, Doors("--permission-mode", toml=True)]] = None
    """default, acceptEdits, plan, dontAsk, bypass (bypassPermissions), prompt, callback or deny; None is default unless
    settings choose another.
    """
    allow: InitVar[Annotated[Iterable[str | Rule], RULES, Doors("--allow, settings.json", toml=True)]] = ()
    """Rules, in the syntax of Claude Code's settings, for calls that need no approval."""
    ask: InitVar[Annotated[Iterable[str | Rule], RULES, Doors("settings.json", toml=True)]] = ()
    """Rules for calls that need approval whatever else allows them."""
    deny: InitVar[Annotated[Iterable[str | Rule], RULES, Doors("--deny, settings.json", toml=True)]] = ()
    """Rules for calls that are never allowed."""
    source: InitVar[str] = "options"
    """Where these rules come from, for messages and the log."""
    root: InitVar[Annotated[str, path] | None] = None
    """The folder for patterns that begin with one slash (default: the project)."""
    interactive: bool = False
    """Ask on the terminal, through `interactive_approver`."""
    interactive_approver: InteractiveApprover | UserAnswerer | None = None
    """The channel to the person at the terminal (default: one over `input`, if `interactive`), or a function of the
    question, sync or async, that returns the answer like `user_answerer`.
    """
    user_answerer: UserAnswerer | None = None
    """(UserQuestion) -> answer, sync or async: True, False, "yes", "no because ...", "always", "always save", "edit ...",
    or a UserAnswer that names who gave it.
    """
    approver: Approver | None = None
    """(tool_name, tool_input, context) -> bool or ApprovalResult, sync or async: asked instead of people."""
    cwd: Annotated[str, path] | None = None
    """The default working directory of calls."""
    workspace_roots: Annotated[Sequence[str], PATHS] = ()
    """The default workspace of calls."""
    protected_paths: Annotated[Sequence[str], PATHS] = ()
    """Paths whose change needs approval even if a rule allows it (not in mode bypass), in addition to those in a call's
    context.
    """
    trusted: bool = False
    """Whether the project's own configuration may run programs (git's, for example)."""
    save_rule: Callable[[str], None] | None = None
    """Called with the text of a rule to save in settings; enables the answer "always save"."""
    clock: Clock | None = None
    """The source of time (default: the machine's clock)."""
    layers: tuple[Policy, ...] = ()
    """The result of the mode and rules above, and everything that narrowed it: all layers must allow a call."""
    is_mode_given: bool = False
    """Whether a mode was given, so that settings do not choose another."""
    memory: _GateMemory = field(default_factory=_GateMemory)
    """The memory of earlier calls, shared with all gates derived from this one."""

    def __post_init__(
        self,
        permission_mode: PermissionMode | None,
        allow: Iterable[str | Rule],
        ask: Iterable[str | Rule],
        deny: Iterable[str | Rule],
        source: str,
        root: str | None,
    ) -> None:
        check_fields(self, "PermissionGate: ", source=source, root=root)
        if self.interactive_approver is not None and not isinstance(self.interactive_approver, InteractiveApprover):
            _require_question(self.interactive_approver)
        *above, last = self.layers or (make_policy("default", (), (), (), None, source, root),)
        if permission_mode is not None:
            last = replace(last, mode=read_mode(permission_mode))
        last = last.plus(
            allow=parse_rules(allow, "allow", source, root),
            ask=parse_rules(ask, "ask", source, root),
            deny=parse_rules(deny, "deny", source, root),
        )
        vars(self).update(
            layers=(*above, last),
            is_mode_given=self.is_mode_given or permission_mode is not None,
            workspace_roots=tuple(self.workspace_roots),
            protected_paths=tuple(self.protected_paths),
        )

    @property
    def mode(self) -> Mode:
        """The mode in effect: the strictest of the layers."""
        if len(self.layers) == 1:
            return self.layers[0].mode
        return min([layer.mode for layer in self.layers], key=STRICTEST_FIRST.index)

    # --- gates derived from this one -------------------------------------------------------------------------------------

    def with_rules(
        self,
        *,
        allow: Iterable[str | Rule] = (),
        ask: Iterable[str | Rule] = (),
        deny: Iterable[str | Rule] = (),
        source: str = "options",
        root: str | None = None,
    ) -> PermissionGate:
        """Return the gate with more rules in its last layer, for settings and options; `root` is the folder for patterns
        that begin with one slash. Raises `PermissionRuleError` for an invalid rule.
        """
        return replace(self, allow=allow, ask=ask, deny=deny, source=source, root=root)

    def with_first_rules(self, allow: Iterable[str | Rule], root: str) -> PermissionGate:
        """Return the gate with more allow rules in its first layer, which contains those of settings. Raises
        `PermissionRuleError` for an invalid rule.
        """
        first, *inner = self.layers
        more = parse_rules(allow, "allow", "suggested", root)
        return changed(self, layers=(first.plus(allow=more), *inner))

    def with_mode(self, permission_mode: PermissionMode) -> PermissionGate:
        """Return the gate with another mode in its last layer. Raises `OptionsError` for an unknown mode."""
        return replace(self, permission_mode=read_mode(permission_mode))

    def narrowed(
        self,
        *,
        permission_mode: PermissionMode | None = None,
        tools: Iterable[str | Rule] | None = None,
        allow: Iterable[str | Rule] = (),
        ask: Iterable[str | Rule] = (),
        deny: Iterable[str | Rule] = (),
        source: str = "subagent",
        root: str | None = None,
    ) -> PermissionGate:
        """Return a gate for a subagent or skill that allows nothing beyond what this gate allows.

        `tools`, if given, are the names and rules of everything that may be used. Without its own `permission_mode`, the
        child is only bound to this gate's mode. An invalid entry of `tools` is not usable, and an invalid deny rule forbids
        its whole tool. Raises `PermissionRuleError` for an invalid allow or ask rule, `OptionsError` for an unknown mode.
        """
        # Every layer must allow a call, so the loosest mode adds no restriction of its own.
        mode = "bypass" if permission_mode is None else read_mode(permission_mode)
        only = None if tools is None else understood_rules(tools, source, root)
        forbidden = [rule if isinstance(rule, Rule) else deny_rule(rule, source, root) for rule in deny]
        return changed(self, layers=(*self.layers, make_policy(mode, allow, ask, forbidden, only, source, root)))

    def for_subagent(self, tools: Iterable[str | Rule] | None, source: str) -> PermissionGate:
        """Return a gate for a subagent with `tools` (None: all) instead of those in its starter's definition."""
        layers = tuple([replace(layer, only=None) if layer.only_itself else layer for layer in self.layers])
        gate = changed(self, layers=layers)
        if tools is None:
            return gate
        *outer, inner = gate.narrowed(tools=tools, source=source).layers
        return changed(self, layers=(*outer, replace(inner, only_itself=True)))

    def moved(self, old: PermissionGate, new: PermissionGate) -> PermissionGate:
        """Return this gate, which was narrowed from `old`, as if it had been narrowed from `new`."""
        own = self.layers[len(old.layers) :]
        # A list that applies only to the starter was omitted from the subagent's gate, and stays omitted.
        new_layers = [
            replace(layer, only=None) if layer.only_itself and before.only is None else layer
            for layer, before in zip(new.layers, self.layers, strict=False)
        ]
        return changed(self, layers=(*new_layers, *own))

    def forgetful(self) -> PermissionGate:
        """Return the gate with a separate memory, so that approvals are not shared."""
        return changed(self, memory=_GateMemory())

    # --- approvers ---------------------------------------------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer this gate's questions; an `approver` does not count."""
        return self.user_answerer is not None or self._at_terminal is not None

    @property
    def _at_terminal(self) -> InteractiveApprover | UserAnswerer | None:
        return self.interactive_approver or (InteractiveApprover() if self.interactive else None)

    async def answer(self, question: UserQuestion) -> str | UserAnswer:
        """Return the answer to a question; empty if nobody can be asked or the answer is neither text nor a boolean."""
        terminal = self._at_terminal
        if self.user_answerer is None and isinstance(terminal, InteractiveApprover):
            return typed_here(question, await terminal.answer(question))
        answerer = self.user_answerer or terminal
        if answerer is None:
            return ""
        assert not isinstance(answerer, InteractiveApprover), "an InteractiveApprover has answered above"
        reply = await ask_callable(partial(answerer, question), "openagentic-answerer")
        if isinstance(reply, UserAnswer):
            return reply
        text = reply if isinstance(reply, str) else "yes" if reply is True else "no" if reply is False else ""
        return text if self.user_answerer is not None else typed_here(question, text)

    # --- the decision ----------------------------------------------------------------------------------------------------

    async def approve(
        self, tool_name: str, tool_input: Mapping[str, Any], context: GateContext = None
    ) -> ApprovalResult:
        """Decide whether this call may run, asking if need be: with exactly this input, or with the `updated_input` of the
        result. `context` holds the fields of `CallContext`.
        """
        check_settings({"tool_name": tool_name}, {"tool_name": TEXT})
        call_context = read_context(context)
        try:
            facts = self._facts(tool_name, tool_input, call_context)
        except _NotJson as error:
            return ApprovalResult(False, str(error), self.mode, "input", hook=call_context.hook)
        verdict = judge(facts)
        if verdict.outcome == "ask":
            result = await ask(facts, verdict, self._people())
        else:
            result = facts.result(verdict)
        if result.allowed and call_context.tool_use_id:
            # The paths of the call that will run, which a person may have edited.
            judged = facts if result.updated_input is None else facts.with_input(result.updated_input)
            if not judged.subject.accesses:
                return result
            earlier_paths = self.memory.paths.get(call_context.tool_use_id, frozenset())
            paths = {(access.places.real, access.write) for access in judged.subject.accesses}
            self.memory.paths[call_context.tool_use_id] = earlier_paths | paths
            while len(self.memory.paths) > _REMEMBERED_CALLS:
                self.memory.paths.popitem(last=False)
        return result

    def _people(self) -> People:
        answer = self.answer if self.can_ask else None
        return People(self.approver, answer, self.remember, self.save_rule, self.clock or SystemClock())

    def verdict(self, tool_name: str, tool_input: Mapping[str, Any], context: GateContext = None) -> Verdict:
        """The verdict of mode, rules and a hook's request, before anybody is asked: `allow`, `ask` or `deny`.

        `context` is as in `approve`; nothing is remembered.
        """
        try:
            return judge(self._facts(tool_name, tool_input, read_context(context)))
        except _NotJson as error:
            return Verdict("deny", str(error), "input")

    def trial(
        self, tool_name: str, tool_input: Mapping[str, Any], context: GateContext = None
    ) -> ApprovalResult | None:
        """The decision that lets a call be tried on a copy of the workspace; None unless the call only lacks a rule.

        Always None if an `approver` decides.
        """
        if self.approver is not None:
            return None
        try:
            facts = self._facts(tool_name, tool_input, read_context(context))
        except _NotJson:
            return None
        reason = "no rule covers this call: it is tried on a copy, and its effects there are evaluated"
        return facts.result(Verdict("allow", reason, "trial")) if is_left_open(facts) else None

    async def ask_to_keep(
        self,
        tool_name: str,
        tool_input: Mapping[str, Any],
        context: GateContext,
        tried: ApprovalResult,
        shown: Mapping[str, Any],
    ) -> ApprovalResult:
        """Ask a person whether to keep the effects that a call had on a copy; `shown` are the details that describe them."""
        facts = self._facts(tool_name, tool_input, read_context(context))
        prompt, open_result = "Keep what {} changed?", replace(tried, allowed=False)
        answer = await ask_person(facts, open_result, self._people(), prompt, shown)
        if answer.updated_input is None:
            return replace(answer, input_sha256=facts.input_sha256)
        return replace(open_result, reason="a call that was tried can no longer be edited: ask for another call")

    def subject(self, tool_name: str, tool_input: Mapping[str, Any], context: GateContext = None) -> Subject:
        """The subject of a call as this gate reads it. Raises `OptionsError` for input that is not JSON."""
        try:
            return self._facts(tool_name, tool_input, read_context(context)).subject
        except _NotJson as error:
            raise OptionsError(str(error)) from None

    def judge_by_rule(
        self, tool_name: str, tool_input: Mapping[str, Any], context: GateContext = None
    ) -> ApprovalResult:
        """Decide a call that neither a model nor a person asked for: only an allow rule permits it, or reading alone.

        No mode looser than `default`, hook, callback or person can permit it; everything that forbids calls applies.
        `context` is as in `approve`.
        """
        facts = self._facts(tool_name, tool_input, read_context(context))
        verdict = judge_by_rule(facts)
        return facts.result(verdict)

    async def permits_path(self, path: str, write: bool, context: GateContext = None) -> bool:
        """Decide, without a question, whether a running call may read or, with `write`, change one more path.

        It may if the policy permits it, or if the call was approved for this very path or, unless an ask rule covers the
        path, for a folder above it.
        """
        call_context = read_context(context)
        facts = self._facts("Edit" if write else "Read", {"file_path": path}, call_context, only_reads=not write)
        verdict = judge_rules(facts)
        if verdict.outcome != "ask":
            return verdict.outcome == "allow"
        approved = self.memory.paths.get(str(call_context.tool_use_id), frozenset())
        # An ask rule covers this very path: approval of a folder above it does not answer the rule.
        if verdict.firm:
            return all((access.places.real, access.write) in approved for access in facts.subject.accesses)
        folders = [name for name, writes in approved if writes == write]
        return all(is_inside(access.places.real, folders) for access in facts.subject.accesses)

    # --- remembered rules --------------------------------------------------------------------------------------------------

    def remember(self, session_id: str, rules: Iterable[str]) -> None:
        """Allow what these rules cover for the rest of the session."""
        earlier_rules = self.memory.rules.get(session_id, ())
        self.memory.rules[session_id] = tuple(dict.fromkeys((*earlier_rules, *rules)))

    def restore(self, session_id: str, events: Iterable[Event]) -> None:
        """Remember the rules that were kept with approvals in the log of a resumed session."""
        for event in events:
            if isinstance(event, PermissionDecision) and event.allowed:
                self.remember(session_id, as_list(event.details.get("remembered")))

    # --- queries of the policy ---------------------------------------------------------------------------------------------

    def offered_tools(self, names: Iterable[str]) -> tuple[str, ...]:
        """The tools to show to a model: all but those excluded for every input, by a deny rule or a list of usable tools."""
        tools = tuple(names)
        for layer in self.layers:
            if layer.only is not None:
                tools = tuple([name for name in tools if any(rule.covers(name) for rule in layer.only.rules)])
            if layer.deny.tools:
                tools = tuple([name for name in tools if layer.deny.for_tool(name) is None])
        return tools

    def read_filter(self, cwd: str, roots: Sequence[str] = ()) -> Callable[[str], bool] | None:
        """A quick test of paths for Grep and Glob: False for a path that a deny or ask rule protects from being read.

        None if there is no such rule. A path is tested by its own name, its target's and, for a hard link, by the file.
        """
        rules = [rule for rule in self.forbidding_paths if rule.tool not in EDIT_TOOLS]
        if not rules:
            return None
        workspace = self._workspace(CallContext(cwd=cwd, workspace_roots=roots))
        bases = {workspace.base, workspace.cwd, *workspace.roots}

        @functools.cache  # compiled for the first path: few runs need them
        def patterns() -> list[re.Pattern[str]]:
            return [compile_pattern(rule.pattern, b, rule.root or b, wide=True) for rule in rules for b in bases]

        @functools.cache
        def linked() -> set[tuple[int, int]]:
            return linked_files(closed_files(rules, tuple(bases)).hidden, bases)

        folders: dict[str, str] = {}

        def permits(path: str) -> bool:
            whole = path if path.startswith("/") else f"{workspace.cwd}/{path}"
            folder, _, name = whole.rpartition("/")
            if folder not in folders:
                folders[folder] = os.path.realpath(folder or "/")
            real = f"{folders[folder].rstrip('/')}/{name}"
            names = [whole, real, os.path.realpath(real)] if os.path.islink(real) else [whole, real]
            if any(matches_any(pattern, names) for pattern in patterns()):
                return False
            try:
                status = os.stat(real)
            except OSError:  # there is nothing to read
                return True
            # A hard link has another name for the same file, which no pattern of names can match.
            return status.st_nlink < 2 or (status.st_dev, status.st_ino) not in linked()

        return permits

    def file_policy(self, command: str, context: GateContext = None, *, asked: bool) -> FilePolicy:
        """The file access of a command, for mounts and for keeping its effects. `asked` is true if a person approved this
        very call, which answers ask rules.
        """
        facts = self._facts("Bash", {"command": command}, read_context(context))
        workspace = facts.subject.workspace
        books = [book for layer in facts.layers for book in ((layer.deny,) if asked else (layer.deny, layer.ask))]
        closed = closed_files([rule for book in books for rule in book.rules], workspace.bases)
        home, session = data_home(), [root for root in workspace.roots if root not in self.writable_roots(workspace)]
        return FilePolicy(
            roots=outermost(self.writable_roots(workspace)),
            protected=workspace.protected,
            hidden=closed.hidden,
            covered=() if home is None else (os.path.realpath(home),),
            shown=tuple(session),
            readonly=closed.readonly,
            forbids=closed.forbids,
            git_writes=writes_git(command),
            problem=None if asked else closed.problem,
        )

    @staticmethod
    def writable_roots(workspace: Workspace) -> list[str]:
        """The folders of the workspace, except those in which tools store long outputs."""
        return [
            root for root in workspace.roots if not any(is_inside(root, (path,)) for path in workspace.protected.paths)
        ]

    @property
    def forbidding_paths(self) -> list[Rule]:
        """The deny and ask rules about paths, of all layers."""
        return [rule for layer in self.layers for book in (layer.deny, layer.ask) for rule in book.paths]

    @property
    def policy_sha256(self) -> str:
        """The digest of modes and rules, as recorded in decisions of a session without its own rules."""
        return self._digest(self.layers)

    def record(self) -> dict[str, Any]:
        """The modes and rules of all layers as JSON, with the gate's own trust, protected paths and workspace."""
        return {
            "layers": [layer_record(layer) for layer in self.layers],
            "trusted": self.trusted,
            "protected": list(self.protected_paths),
            "roots": list(self.workspace_roots),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], rules: SettingsRules | None = None) -> PermissionGate:
        """Rebuild a gate from its `record`, without the workspace and with nobody to ask; `rules` replace those of its
        settings and options. Raises `OptionsError` for an invalid record.
        """
        layers = record.get("layers")
        if not isinstance(layers, list) or not all(isinstance(each, Mapping) for each in layers) or not layers:
            raise OptionsError("the log contains no permission policy that can be read")
        first, *inner = map(read_layer, layers)
        return cls(
            layers=(first if rules is None else under_settings(first, rules), *inner),
            is_mode_given=True,
            trusted=record.get("trusted") is True,
            protected_paths=tuple(map(str, as_list(record.get("protected")))),
        )

    @property
    def policy_text(self) -> str:
        """The modes and rules of each layer, one per line, for people."""
        return "\n".join(layer.text for layer in self.layers)

    # --- parts -----------------------------------------------------------------------------------------------------------

    def _facts(self, tool: str, input: Mapping[str, Any], context: CallContext, *, only_reads: bool = False) -> Facts:
        """Determine the facts of a call. Raises `_NotJson` for input that JSON cannot express."""
        try:
            input_sha256 = json_sha256(dict(input))
        except (TypeError, ValueError, RecursionError) as error:
            raise _NotJson(f"the input of {tool} cannot be written as JSON ({error})") from None
        workspace = self._workspace(context)
        if not only_reads and context.effect != "read":
            workspace.find_protected()  # before the call can change what defines them
        subject = describe(tool, input, context.effect, workspace, context.names_of, context.rule_names)
        layers, notes = self.layers, {}
        grants = (*self.memory.rules.get(context.session_id, ()), *context.grants)
        if grants or context.disallowed_tools:
            allow, unusable = usable_rules(grants)
            deny = [deny_rule(text) for text in context.disallowed_tools]
            # In every layer, because all of them must allow the call that the person has approved.
            layers = tuple(layer.plus(allow=allow, deny=deny) for layer in layers)
            notes = {"ignored_grants": unusable} if unusable else {}
        return Facts(subject, context, self.mode, layers, self._digest(layers), input_sha256, notes)

    def _workspace(self, context: CallContext) -> Workspace:
        real, follower = self.memory.real_root, LinkFollower()
        cwd = os.path.abspath(context.cwd or self.cwd or working_dir())
        folder = context.project_dir or self.cwd or cwd
        base = cwd if folder == context.cwd else os.path.abspath(folder)
        roots = context.workspace_roots or self.workspace_roots or (base, cwd)
        resolved = tuple(dict.fromkeys([real(root) for root in roots]))
        protected = (*self.protected_paths, *context.protected_paths)
        moved_from = None
        started = context.session_cwd
        if started is not None and started != context.cwd and os.path.abspath(started) != cwd:
            began = real(started)
            moved_from = None if began == cwd else began
        return Workspace(
            cwd=cwd,
            base=base,
            roots=resolved,
            find_protected=partial(self.memory.places, resolved, protected),
            follow=follower.follow,
            expand=follower.expand,
            kind=follower.kind,
            trusted=self.trusted if context.trusted is None else context.trusted,
            confined=context.confined is not None,
            started_in=moved_from,
        )

    def _digest(self, layers: Sequence[Policy]) -> str:
        key = tuple([layer.text for layer in layers])
        digests = self.memory.digests
        if key not in digests:
            if len(digests) > _REMEMBERED_CALLS:
                digests.clear()
            digests[key] = json_sha256(list(key))
        return digests[key]


def permission_gate(gate: Gate) -> PermissionGate:
    """The gate of an agent as a `PermissionGate`, for its additional features. Raises `OptionsError` for another class."""
    if not isinstance(gate, PermissionGate):
        raise OptionsError(f"permission_gate must be a PermissionGate for this, not {type(gate).__name__}")
    return gate


class _NotJson(Exception):
    """The input of a call cannot be expressed in JSON."""
