"""Label rules from settings files: managed settings and those of an untrusted project can only tighten others."""

from __future__ import annotations

from dataclasses import replace

from ...errors import PermissionRuleError
from ...ground.diagnostic import Diagnostic
from ..project.settings import Settings
from .rules import LabelRule, read_label_rules

# Replaces an invalid rule: a typo must not remove protection.
_INSTEAD = "guard"


def label_rules_of_settings(settings: Settings, *, is_trusted: bool) -> tuple[tuple[LabelRule, ...], list[Diagnostic]]:
    """Parse the rules of `permissions.labels`; for an invalid one, add a diagnostic and use `guard` in its place."""
    rules: list[LabelRule] = []
    notes: list[Diagnostic] = []
    for entry in settings.labels:
        layer = "options"
        if entry.scope == "managed" or (entry.scope != "user" and not is_trusted):
            layer = entry.scope
        try:
            entry_rules = read_label_rules([entry.text], entry.source)
        except PermissionRuleError as error:
            text = f"the rule on labels {entry.text[:200]!r} is not understood and is treated as {_INSTEAD}: {error.reason}"
            notes.append(Diagnostic("label-not-understood", text, entry.line, entry.source, is_error=True))
            entry_rules = read_label_rules(_INSTEAD)
        rules += [replace(rule, layer=layer) for rule in entry_rules]
    return tuple(rules), notes
