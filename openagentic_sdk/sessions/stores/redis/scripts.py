"""The Lua scripts of the Redis store: each change is one script, so the server applies it completely or not at all.

Each receives the names of its keys, and reports problems by its result instead of failing. A session is identified by its
`key`, which no other session with the same id ever has. Sessions of another `format` are left unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ....ground.packaged import read_packaged

# The version of a session's keys and their contents. It is also part of their names: versions that do not check a format,
# and would write incomplete data, find only a string under the names of format 1, to which Redis refuses to append.
FORMAT = 2


@cache
def _scripts() -> dict[str, str]:
    head, *scripts = read_packaged(__spec__, "scripts.lua").split("\n-- script ")
    parts = (script.partition("\n") for script in scripts)
    return {name: f"local FORMAT = '{FORMAT}'\n{head}\n{script}" for name, _, script in parts}


def run(script: str, keys: Sequence[str], arguments: Sequence[Any], client: Any) -> Any:
    """Run the script with this name in `scripts.lua` and return its answer."""
    return client.register_script(_scripts()[script])(keys, arguments)
