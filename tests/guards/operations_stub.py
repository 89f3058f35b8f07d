"""The stub of the client's operations, generated from the table of routes: argument and return types for type checkers."""

from __future__ import annotations

import re
from typing import Any

from openagentic_sdk.events import EVENT_CLASSES
from openagentic_sdk.server.contract import values
from openagentic_sdk.server.contract.table import ENDPOINTS, Endpoint

from .source import PACKAGE, ROOT

STUB = ROOT / PACKAGE / "server" / "contract" / "operations.pyi"
HEAD = '''"""The operations of the server. Made by `python3 -m tests.guards.generated`."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from ... import events
from . import values
'''


def stub() -> str:
    """The text of the stub, formatted as by `ruff format`."""
    asynchronous = "\n".join(_method(endpoint, "async def") for endpoint in ENDPOINTS)
    plain = "\n".join(_method(endpoint, "def") for endpoint in ENDPOINTS)
    return f"{HEAD}\nclass AsyncOperations:\n{asynchronous}\n\nclass Operations:\n{plain}\n"


def _method(endpoint: Endpoint, word: str) -> str:
    placed = [f"{name}: str" for name in re.findall(r"\{(\w+)\}", endpoint.path)]
    named = [f"{name}: {_query_type(field)} | None = None" for name, field in endpoint.query.items()]
    if endpoint.has_key:
        named.append("key: str | None = None")
    fields = []
    if endpoint.body is not None and not hasattr(endpoint.body, "__required_keys__"):
        placed.append("body: Mapping[str, Any]")
    elif endpoint.body is not None and endpoint.body.__annotations__:
        fields = [f"**body: Unpack[values.{endpoint.body.__name__}]"]
    arguments = ["self", *placed, *(["/"] if placed else []), *(["*", *named] if named else []), *fields]
    result = " | ".join(dict.fromkeys(_result(kind, endpoint) for kind in endpoint.answers.values()))
    line = f"    {word} {endpoint.name}({', '.join(arguments)}) -> {result}: ..."
    if len(line) <= 120:
        return line
    short = f"        {', '.join(arguments)}"
    inner = short if len(short) <= 120 else "\n".join(f"        {argument}," for argument in arguments)
    return f"    {word} {endpoint.name}(\n{inner}\n    ) -> {result}: ..."


def _query_type(field: Any) -> str:
    if field.words:
        return f"Literal[{', '.join(map(_quoted, field.words))}]"
    return str(field.kind.__name__)


def _quoted(word: str) -> str:
    return f'"{word}"'


def _result(kind: Any, endpoint: Endpoint) -> str:
    if kind is None:
        return "str" if endpoint.name == "sign_in" else "None"
    if isinstance(kind, str):
        return "str" if "/" in kind else f"events.{EVENT_CLASSES[kind].__name__}"
    if hasattr(values, getattr(kind, "__name__", "")):
        return f"values.{kind.__name__}"
    return "dict[str, Any] | str" if endpoint.streams else "dict[str, Any]"
