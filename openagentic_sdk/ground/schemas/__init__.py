"""JSON schemas as data: read once, then used to check values in a bounded number of steps."""

from __future__ import annotations

from .reading import Schema, compiled, require_checkable, validate

__all__ = ["Schema", "compiled", "require_checkable", "validate"]
