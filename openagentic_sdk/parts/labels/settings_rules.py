"""Label rules from settings files: managed settings and those of an untrusted project can only tighten others."""

from __future__ import annotations

from dataclasses import replace

from ...errors import PermissionRuleError
from ...ground.diagnostic import Diagnostic
from ..project.settings import Settings
from .rules import LabelRule, read_label_rules

# Replaces an invalid rule: a typing error must not remove protection.
_INSTEAD = "guard"


def label_rules_of_settings(settings: Settings, *, is_trusted: bool) -> tuple[tuple[LabelRule, ...], list[Diagnostic]]:
    """The rules of `permissions.labels`, and diagnostics for invalid ones, each of which counts as `guard`."""
    rules: list[LabelRule] = []
    notes: list[Diagnostic] = []
    for written in settings.labels:
        layer = "options"
        if written.scope == "managed" or (written.scope != "user" and not is_trusted):
            layer = written.scope
        try:
            found = read_label_rules([written.text], written.source)
        except PermissionRuleError as error:
            text = (
                f"the rule on labels {written.text[:200]!r} is not understood and counts as {_INSTEAD}: {error.reason}"
            )
            notes.append(Diagnostic("label-not-understood", text, written.line, written.source, is_error=True))
            found = read_label_rules(_INSTEAD)
        rules += [replace(rule, layer=layer) for rule in found]
    return tuple(rules), notes
