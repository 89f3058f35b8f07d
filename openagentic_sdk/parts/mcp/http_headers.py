"""The headers that repeat parts of a modern request (2026-07-28, transports, "Request metadata headers").

Gateways route by these headers, and servers refuse a request whose headers and body differ.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

# For each method, the parameter that names its subject; it is repeated in the header Mcp-Name.
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_ANNOTATION = "x-mcp-header"
# The keywords besides `properties` that map names to schemas.
_NAMED_PARTS = ("patternProperties", "$defs", "definitions", "dependentSchemas")
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, section 5.6.2
_PLAIN = r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?"

# For one tool: the path to each argument that is repeated in a header, and the header's name.
ParamHeaders = Mapping[tuple[str, ...], str]


def encode_header_value(text: str) -> str:
    """Encode a text as a header value: unchanged if it is a valid one, else as `=?base64?...?=` of its UTF-8."""
    if re.fullmatch(_PLAIN, text) and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode('ascii')}?="


def decode_header_value(value: str) -> str:
    """Decode a header value to its text; empty if its base64 or UTF-8 is invalid."""
    if value.startswith("=?base64?") and value.endswith("?="):
        try:
            return base64.b64decode(value[9:-2], validate=True).decode("utf-8")
        except ValueError:
            return ""
    return value.strip(" \t")


def request_headers(method: str, params: Mapping[str, Any], copied: ParamHeaders | None = None) -> dict[str, str]:
    """The headers that repeat parts of a request; `copied` locates the tool arguments to repeat."""
    headers = {"Mcp-Method": method}
    name = params.get(NAMED_BY.get(method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_header_value(name)
    for way, header in (copied or {}).items():
        value: Any = params.get("arguments")
        for step in way:
            value = value.get(step) if isinstance(value, Mapping) else None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int | str):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            headers[f"Mcp-Param-{header}"] = encode_header_value(text)
    return headers


def param_headers(schema: Any) -> ParamHeaders:
    """The arguments of a tool to repeat in headers, by its input schema. Raises ValueError for an invalid annotation."""
    headers: dict[tuple[str, ...], str] = {}
    for way, annotated in _annotations(schema):
        header = annotated[_ANNOTATION]
        if way is None or not way:
            raise ValueError(f"{_ANNOTATION} is allowed only below `properties`")
        if not isinstance(header, str) or re.fullmatch(_TOKEN, header) is None:
            raise ValueError(f"{_ANNOTATION} {header!r:.100} is not a valid header name")
        if header.lower() in (other.lower() for other in headers.values()):
            raise ValueError(f"two arguments use the header {header!r:.100}")
        if annotated.get("type") not in ("string", "integer", "boolean"):
            raise ValueError(
                f"{_ANNOTATION} applies to a string, an integer or a boolean, not {annotated.get('type')!r:.60}"
            )
        headers[way] = header
    return headers


def _annotations(schema: Any) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Yield every annotated schema with its path through `properties`, or None if the path contains another keyword."""
    waiting: list[tuple[Any, tuple[str, ...] | None]] = [(schema, ())]
    while waiting:
        part, way = waiting.pop()
        if isinstance(part, list):
            waiting += [(item, None) for item in part]
        if not isinstance(part, Mapping):
            continue
        if _ANNOTATION in part:
            yield way, part
        for key, below in part.items():
            if key == "properties" and isinstance(below, Mapping):
                waiting += [(item, None if way is None else (*way, name)) for name, item in below.items()]
            elif key in _NAMED_PARTS and isinstance(below, Mapping):
                waiting += [(item, None) for item in below.values()]
            elif key not in ("default", "examples", "const", "enum"):
                waiting.append((below, None))
