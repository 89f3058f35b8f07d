"""Variables of the environment in a server's entry: `${NAME}` and `${NAME:-default}`, and nothing else.

The forms are those that Claude Code expands, in the same five places. A variable that is set counts, also when it is empty;
a default is taken as it stands. One thing differs: a variable that is not set refuses the server, because a literal
`${TOKEN}` would reach a service as a password and fail far from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ....errors import OptionsError
from ....ground.patterns import regex

_REFERENCE = regex(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}")

# The keys of an entry in which variables are filled in.
EXPANDED = ("command", "args", "env", "url", "headers", "oauth")


def variables_in(value: Any) -> tuple[str, ...]:
    """The names of the variables that a text, or the texts in a list or an object, ask for, each once."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else (value,)
    found = (_REFERENCE.finditer(part) for part in parts if isinstance(part, str))
    return tuple(dict.fromkeys(one["name"] for each in found for one in each))


def expand_entry(entry: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The entry with its command, args, env, url and headers expanded, and what `oauth` says.

    Raises `OptionsError` with the variables that are missing.
    """
    missing: dict[str, None] = {}

    def fill(found: re.Match[str]) -> str:
        value, default = environ.get(found["name"]), found["default"]
        if value is None and default is None:
            missing[found["name"]] = None
        return value if value is not None else (default or "")[2:]

    def expanded(value: Any) -> Any:
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
        raise OptionsError(f"{names} is not set in the environment: set it, or give it a default as ${{NAME:-default}}")
    return whole
