"""Layers of authority made of texts: modes by name, rule books from lists, and what a rule that makes no sense becomes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence

from ..errors import OptionsError, PermissionRuleError
from .policy import MODES, Mode, Policy
from .rules import Rule, RuleBook, parse_rule, parse_rules


def read_mode(name: str) -> Mode:
    """The mode of this name, `bypassPermissions` being `bypass`. Raises `OptionsError` for an unknown one."""
    name = "bypass" if name == "bypassPermissions" else name
    for mode in MODES:
        if mode == name:
            return mode
    raise OptionsError(f"permission_mode {name!r} is unknown: use one of {', '.join(MODES)}")


def make_policy(
    mode: Mode,
    allow: Iterable[str | Rule],
    ask: Iterable[str | Rule],
    deny: Iterable[str | Rule],
    only: Iterable[str | Rule] | None,
    source: str,
    root: str | None,
) -> Policy:
    """One layer of rule texts. Raises `PermissionRuleError` for one that cannot be understood."""
    return Policy(
        mode,
        RuleBook(parse_rules(allow, "allow", source, root)),
        RuleBook(parse_rules(ask, "ask", source, root)),
        RuleBook(parse_rules(deny, "deny", source, root)),
        None if only is None else RuleBook(parse_rules(only, "deny", source, root)),
    )


def usable_rules(grants: Sequence[str]) -> tuple[list[Rule], list[str]]:
    """The rules among some grants; one that cannot be understood grants nothing."""
    rules: list[Rule] = []
    unusable: list[str] = []
    for text in grants:
        try:
            rules.append(parse_rule(text, "allow", "session"))
        except PermissionRuleError as error:
            unusable.append(str(error))
    return rules, unusable


def understood_rules(tools: Iterable[str | Rule], source: str, root: str | None) -> list[Rule]:
    """The rules of a list of usable tools that can be understood."""
    rules: list[Rule] = []
    for tool in tools:
        with contextlib.suppress(PermissionRuleError):
            rules.append(tool if isinstance(tool, Rule) else parse_rule(tool, "deny", source, root))
    return rules


def deny_rule(text: str, source: str = "session", root: str | None = None) -> Rule:
    """A rule that forbids; one that cannot be understood forbids the whole tool that it names, or every tool."""
    with contextlib.suppress(PermissionRuleError):
        return parse_rule(text, "deny", source, root)
    name = re.match(r"\w+", text.strip())
    return parse_rule(name[0] if name and not name[0][0].isdigit() else "*", "deny", source, root)
