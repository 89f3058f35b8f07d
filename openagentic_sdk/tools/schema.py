"""Write a tool's JSON schema concisely; `ground.schemas` checks arguments against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ground.schemas import validate

__all__ = ["array", "boolean", "integer", "number", "object_schema", "string", "validate"]


def object_schema(properties: Mapping[str, Any], **keywords: Any) -> dict[str, Any]:
    """The schema of an object with these properties; `keywords` are further JSON Schema keywords, such as `required`."""
    return {"type": "object", "properties": properties, **keywords}


def string(about: str, **keywords: Any) -> dict[str, Any]:
    """The schema of a string; `about` is its description for the model, here and in the four functions below."""
    return {"type": "string", **keywords, "description": about}


def integer(about: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "integer", **keywords, "description": about}


def number(about: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "number", **keywords, "description": about}


def array(about: str, **keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords, "description": about}


def boolean(about: str) -> dict[str, Any]:
    return {"type": "boolean", "description": about}
