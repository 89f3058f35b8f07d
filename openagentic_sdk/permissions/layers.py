"""Layers of authority from text: modes by name, rule books from lists, and the treatment of invalid rules."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ..errors import OptionsError, PermissionRuleError
from ..events import Mode
from ..ground.checks import shown
from ..ground.diagnostic import Diagnostic
from ..ground.frozen import frozen
from ..ground.loose import as_list, as_mappings
from ..parts.project.settings import Settings, SettingsRule
from .policy import MODES, Policy
from .rules import PermissionEffect, Rule, RuleBook, parse_rule, parse_rules, rule_book


def read_mode(name: str) -> Mode:
    """The mode with this name, or with this name in Claude Code. Raises `OptionsError` for an unknown one."""
    name = {"bypassPermissions": "bypass", "manual": "default"}.get(name, name)
    for mode in MODES:
        if mode == name:
            return mode
    raise OptionsError(f"permission_mode {shown(name)} is unknown: use one of {', '.join(MODES)}")


def make_policy(
    mode: Mode,
    allow: Iterable[str | Rule],
    ask: Iterable[str | Rule],
    deny: Iterable[str | Rule],
    only: Iterable[str | Rule] | None,
    source: str,
    root: str | None,
) -> Policy:
    """Build one layer from rules; `only`, unless None, lists everything that may be used. Raises `PermissionRuleError`."""
    # `only` is parsed like a deny rule, in which any tool name may have wildcards: the list grants nothing by itself.
    return Policy(
        mode,
        rule_book(parse_rules(allow, "allow", source, root)),
        rule_book(parse_rules(ask, "ask", source, root)),
        rule_book(parse_rules(deny, "deny", source, root)),
        None if only is None else rule_book(parse_rules(only, "deny", source, root)),
    )


def usable_rules(grants: Sequence[str]) -> tuple[list[Rule], list[str]]:
    """The valid rules among some grants, and the errors of the invalid ones, which grant nothing."""
    rules: list[Rule] = []
    unusable: list[str] = []
    for text in grants:
        try:
            rules.append(parse_rule(text, "allow", "session"))
        except PermissionRuleError as error:
            unusable.append(str(error))
    return rules, unusable


@frozen
class SettingsRules:
    """The rules of settings files; `diagnostics` names those that were ignored or extended to their whole tool."""

    allow: tuple[Rule, ...]
    ask: tuple[Rule, ...]
    deny: tuple[Rule, ...]
    diagnostics: tuple[Diagnostic, ...]


def rules_of_settings(settings: Settings, root: str, cwd: str | None = None) -> SettingsRules:
    """Read the rules of settings. An invalid rule in a file never stops a run and never permits more: an invalid allow rule
    is ignored, an invalid deny or ask rule makes every use of its tool need approval.

    A path like `/x` is relative to `root`. If `cwd`, the folder where the session began, is given, such a path is relative
    to `~/.claude` in the user's own settings, to `cwd` in local ones, and to the folder that contains `.claude` in a
    project's.
    """
    by_effect: dict[PermissionEffect, list[Rule]] = {"allow": [], "ask": [], "deny": []}
    notes: list[Diagnostic] = []
    settings_rules: dict[PermissionEffect, tuple[SettingsRule, ...]] = {
        "allow": settings.allow,
        "ask": settings.ask,
        "deny": settings.deny,
    }
    for effect, rules in settings_rules.items():
        for rule in rules:
            try:
                by_effect[effect].append(parse_rule(rule.text, effect, rule.source, _anchor(rule, root, cwd)))
                continue
            except PermissionRuleError as error:
                reason = error.reason
            if effect == "allow":
                outcome = "is ignored"
            else:
                tool = _tool_named(rule.text)
                by_effect["ask"].append(replace(parse_rule(tool, "ask", rule.source, root), text=rule.text))
                outcome = f"makes every use of {'every tool' if tool == '*' else tool} need approval"
            text = f"the {effect} rule {rule.text[:200]!r} is not understood and {outcome}: {reason}"
            notes.append(Diagnostic("rule-not-understood", text, rule.line, rule.source, is_error=True))
    return SettingsRules(tuple(by_effect["allow"]), tuple(by_effect["ask"]), tuple(by_effect["deny"]), tuple(notes))


def _anchor(rule: SettingsRule, root: str, cwd: str | None) -> str:
    """The folder to which a path like `/x` of a rule is relative."""
    if cwd is None or rule.scope not in ("user", "local", "project"):
        return root
    folder = os.path.dirname(rule.source)
    return {"user": folder, "local": cwd, "project": os.path.dirname(folder)}[rule.scope]


def _tool_named(text: str) -> str:
    """The tool at the beginning of a rule; `*` if it cannot be determined."""
    name = re.match(r"[A-Za-z_]\w*", text.strip())
    return name[0] if name else "*"


def understood_rules(tools: Iterable[str | Rule], source: str, root: str | None) -> list[Rule]:
    """The valid rules in a list of usable tools; without the invalid ones, fewer tools are usable."""
    rules: list[Rule] = []
    for tool in tools:
        with contextlib.suppress(PermissionRuleError):
            rules.append(tool if isinstance(tool, Rule) else parse_rule(tool, "deny", source, root))
    return rules


def deny_rule(text: str, source: str = "session", root: str | None = None) -> Rule:
    """Parse a deny rule; an invalid one forbids the whole tool that it names, or every tool if it names none."""
    with contextlib.suppress(PermissionRuleError):
        return parse_rule(text, "deny", source, root)
    # Wider than it was meant to be: a deny rule that nobody understands must not permit anything.
    return parse_rule(_tool_named(text), "deny", source, root)


# --- layers as JSON, for the record in the log ---------------------------------------------------------------------------

# Rules from these sources are not settings: changed settings do not affect them.
KEPT_SOURCES = ("built in", "options.memory")


def layer_record(layer: Policy) -> dict[str, Any]:
    """A layer as JSON: its mode, and its rules grouped by source."""
    books = {"allow": layer.allow, "ask": layer.ask, "deny": layer.deny}
    record: dict[str, Any] = {"mode": layer.mode}
    for effect, book in {**books, "only": layer.only}.items():
        if book is not None and (book.rules or effect == "only"):
            places = groupby(book.rules, key=lambda rule: (rule.source, rule.root))
            record[effect] = [
                {"from": source, "root": root, "rules": [r.text for r in rules]} for (source, root), rules in places
            ]
    return record


def read_layer(record: Mapping[str, Any]) -> Policy:
    """Rebuild a layer from its `layer_record`. The record may come from anywhere: an invalid rule is ignored in `allow` and
    `only`, and applies to its whole tool in `ask` and `deny`. Raises `OptionsError` for an unknown mode.
    """
    allow, ask, deny, only = (
        RuleBook(list(_read_rules(record, effect))) for effect in ("allow", "ask", "deny", "only")
    )
    return Policy(
        read_mode(str(record.get("mode"))), allow, ask, deny, only if isinstance(record.get("only"), list) else None
    )


def _read_rules(record: Mapping[str, Any], effect: str) -> Iterator[Rule]:
    for place in as_mappings(record.get(effect)):
        for text in as_list(place.get("rules")):
            source, root = (None if place.get(key) is None else str(place[key]) for key in ("from", "root"))
            if effect in ("ask", "deny"):
                yield deny_rule(str(text), source or "log", root)
                continue
            with contextlib.suppress(PermissionRuleError):
                yield parse_rule(str(text), "allow" if effect == "allow" else "deny", source or "log", root)


def under_settings(layer: Policy, rules: SettingsRules) -> Policy:
    """Return the layer with these rules instead of all those from settings and options."""

    def kept(book: RuleBook) -> list[Rule]:
        return [rule for rule in book.rules if rule.source in KEPT_SOURCES]

    return Policy(
        layer.mode,
        RuleBook((*kept(layer.allow), *rules.allow)),
        RuleBook((*kept(layer.ask), *rules.ask)),
        RuleBook((*kept(layer.deny), *rules.deny)),
        layer.only,
    )
