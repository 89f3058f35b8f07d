"""Rules on labels: `ask(untrusted): send_money`, `deny(secret -> outside): *`, `allow(untrusted): mcp__mail__*`.

A rule names an effect, a label and tools. `untrusted` is a control argument that is found in no trusted text, `untrusted
choice` one that no person wrote or named, although a trusted result holds it; `untrusted content` is any other argument of a
call that sends something away, `secret -> outside` such a call after the session learned what only named readers may learn.
Of the rules that cover a call, those that name its tool decide before those with a wildcard, and then deny before ask, allow
and watch.
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

# `guard` is recommended; `watch` only logs what it would ask. `strict` needs no person: what a call acts on must be what a
# person wrote or named, and nothing that was made of untrusted text is sent away, not even a summary of a web page to
# somebody whom the user named.
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
    """One rule: what becomes of a call of `tool` (which may have `*` and `?`) that has `label`.

    Rules of one `layer` decide together; of several layers, the strictest decision holds, so that none loosens another.
    """

    text: str
    effect: RuleEffect
    label: LabelName
    tool: str
    layer: str = "options"


# No rule, but how the model works: by plans that it makes before it reads, see `labels.plans`. Alone it implies `guard`.
PLAN = "plan"


def label_words(written: str | Sequence[str]) -> tuple[str, ...]:
    """The presets, rules and modes of a list, or of a text that separates them with commas."""
    words = written.split(",") if isinstance(written, str) else written
    return tuple([word.strip() for word in words])


def read_label_rules(written: str | Sequence[str], source: str = "options.labels") -> tuple[LabelRule, ...]:
    """The rules of a preset's name, or of a list of presets and rules. Raises `PermissionRuleError`."""
    rules: list[LabelRule] = []
    words = label_words(written)
    if PLAN in words and not {*words} & PRESETS.keys():
        words = ("guard", *words)
    for text in words:
        if text == PLAN:
            continue
        found = _RULE.fullmatch(text)
        if found is not None:
            effect, label, tool = found.groups()
            rules.append(LabelRule(text, cast(RuleEffect, effect), cast(LabelName, label), tool))
        elif text in PRESETS:
            rules += read_label_rules(PRESETS[text], source)
        else:
            example = "'ask(untrusted): send_money' or 'deny(secret -> outside): *'"
            problem = f"a rule on labels is one of {', '.join(PRESETS)} and {PLAN}, or like {example}"
            raise PermissionRuleError(text, problem, source)
    return tuple(rules)


def deciding_rule(rules: Sequence[LabelRule], label: LabelName, names: Sequence[str]) -> LabelRule | None:
    """The rule that decides about this label of a call that goes by these names, None when no rule covers it."""
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
