"""Expand environment variables in a server's entry: `${NAME}` and `${NAME:-default}`, and no other form.

Claude Code expands the same forms in the same places, except `oauth`. A variable that is set to an empty value counts as
set; a default is used verbatim. Unlike in Claude Code, a variable that is not set is an error, because a literal `${TOKEN}`
would otherwise reach a service as a password and fail there without explanation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ....errors import OptionsError
from ....ground.patterns import regex

_REFERENCE = regex(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}")

# The keys of an entry in which variables are expanded.
EXPANDED = ("command", "args", "env", "url", "headers", "oauth")


def variables_in(value: Any) -> tuple[str, ...]:
    """The names of the variables in a text, or in the texts of a list or an object, each once."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else (value,)
    matches = (_REFERENCE.finditer(part) for part in parts if isinstance(part, str))
    return tuple(dict.fromkeys(one["name"] for each in matches for one in each))


def expand_entry(entry: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Expand variables in an entry's command, args, env, url, headers and `oauth` settings.

    Raises an `OptionsError` that names the missing variables.
    """
    missing: dict[str, None] = {}

    def fill(match: re.Match[str]) -> str:
        value, default = environ.get(match["name"]), match["default"]
        if value is None and default is None:
            missing[match["name"]] = None
        return value if value is not None else (default or "")[2:]

    def expanded(value: Any) -> Any:
        # One pass: a variable's value that contains `${...}` itself is not expanded again.
        return _REFERENCE.sub(fill, value) if isinstance(value, str) else value

    whole = dict(entry)
    for key in EXPANDED:
        value = entry.get(key)
        if isinstance(value, Mapping):
            whole[key] = {name: expanded(each) for name, each in value.items()}
        elif value is not None:
            whole[key] = [expanded(each) for each in value] if isinstance(value, list) else expanded(value)
    if missing:
        names = ", ".join(f"${{{name}}}" for name in missing)
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise OptionsError(
            f"{names} {are} not set in the environment: set {them}, or write a default, as in ${{NAME:-default}}"
        )
    return whole
