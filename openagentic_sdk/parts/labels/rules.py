"""Label rules: `ask(untrusted): send_money`, `deny(secret -> outside): *`, `allow(untrusted): mcp__mail__*`.

A rule consists of an effect, a label and tools. `untrusted` is a control argument found in no trusted text; `untrusted
choice` is one that no person wrote or named, although a trusted result contains it; `untrusted content` is any other
argument of a call that sends data away; `secret -> outside` is such a call to anyone else after the session has learned
something restricted to named readers. Among the rules that match a call, those that name its tool precede those with a
wildcard; otherwise, the order is deny, ask, allow, watch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, cast

from ...errors import PermissionRuleError
from ...ground.frozen import frozen
from ...ground.patterns import regex

RuleEffect = Literal["deny", "ask", "allow", "watch"]
LabelName = Literal["untrusted", "untrusted choice", "untrusted content", "secret -> outside"]
_STRICTEST_FIRST: tuple[RuleEffect, ...] = ("deny", "ask", "allow", "watch")
_RULE = regex(
    r"(allow|ask|deny|watch)\((untrusted|untrusted choice|untrusted content|secret -> outside)\): *([\w.*?-]+)"
)

# `guard` is recommended; `watch` only logs what it would ask. `strict` needs no person: a person must have written or
# named the target of each action, and nothing derived from untrusted text is sent away, not even a summary of a web
# page to someone whom the user named.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "off": (),
    "watch": ("watch(untrusted): *", "watch(secret -> outside): *"),
    "guard": ("ask(untrusted): *", "ask(secret -> outside): *"),
    "strict": (
        "deny(untrusted): *",
        "deny(untrusted choice): *",
        "deny(untrusted content): *",
        "deny(secret -> outside): *",
    ),
}


@frozen
class LabelRule:
    """One rule: the effect on calls of `tool` (which may contain `*` and `?`) that have `label`.

    Rules of one `layer` are evaluated together; across layers the strictest decision counts, so that no layer loosens
    another.
    """

    text: str
    effect: RuleEffect
    label: LabelName
    tool: str
    layer: str = "options"


# Not a rule but a mode: the model plans before it reads, see `labels.plans`. Alone, it implies `guard`.
PLAN = "plan"


def label_words(spec: str | Sequence[str]) -> tuple[str, ...]:
    """The presets, rules and modes in a list, or in a comma-separated string."""
    words = spec.split(",") if isinstance(spec, str) else spec
    return tuple([word.strip() for word in words])


def read_label_rules(spec: str | Sequence[str], source: str = "options.labels") -> tuple[LabelRule, ...]:
    """Parse a preset, or a list of presets and rules, into rules. Raises `PermissionRuleError` for anything else."""
    rules: list[LabelRule] = []
    words = label_words(spec)
    if PLAN in words and not {*words} & PRESETS.keys():
        words = ("guard", *words)
    for text in words:
        if text == PLAN:
            continue
        match = _RULE.fullmatch(text)
        if match is not None:
            effect, label, tool = match.groups()
            rules.append(LabelRule(text, cast(RuleEffect, effect), cast(LabelName, label), tool))
        elif text in PRESETS:
            rules += read_label_rules(PRESETS[text], source)
        else:
            example = "'ask(untrusted): send_money' or 'deny(secret -> outside): *'"
            problem = f"a rule on labels must be one of {', '.join((*PRESETS, PLAN))}, or like {example}"
            raise PermissionRuleError(text, problem, source)
    return tuple(rules)


def deciding_rule(rules: Sequence[LabelRule], label: LabelName, names: Sequence[str]) -> LabelRule | None:
    """The rule that decides on this label for a call with these names; None if no rule matches."""
    layers: dict[str, list[LabelRule]] = {}
    for rule in rules:
        if rule.label == label and any(fnmatchcase(name, rule.tool) for name in names):
            layers.setdefault(rule.layer, []).append(rule)
    exact = [[rule for rule in covering if rule.tool in names] or covering for covering in layers.values()]
    return min((_strictest(covering) for covering in exact), key=_strictness, default=None)


def _strictest(rules: Sequence[LabelRule]) -> LabelRule:
    return min(rules, key=_strictness)


def _strictness(rule: LabelRule) -> int:
    return _STRICTEST_FIRST.index(rule.effect)
