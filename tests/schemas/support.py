"""Shared helpers for the tests of schemas."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import ToolInputError
from openagentic_sdk.ground.schemas.checker import TYPES
from openagentic_sdk.ground.schemas.reading import Schema

SUITE = os.environ.get("OPENAGENTIC_TEST_SCHEMA_SUITE")
NO_SUITE = "OPENAGENTIC_TEST_SCHEMA_SUITE names no folder of json-schema-org/JSON-Schema-Test-Suite"


def words(value: Any, schema: Any) -> str:
    """The misfit in words; empty if the value fits."""
    try:
        Schema(schema).check(value, "it")
    except ToolInputError as error:
        return str(error)
    return ""


def suite_groups(draft: str) -> list[tuple[str, dict[str, Any]]]:
    """The groups of tests in the official suite, with their files."""
    files = sorted(Path(SUITE or "", "tests", draft).glob("*.json"))
    return [(file.stem, group) for file in files for group in json.loads(file.read_text(encoding="utf-8"))]


class Random:
    """Random schemas and JSON values, some of them hostile; the same for the same seed."""

    PATTERNS = (
        *(
            "^a+$",
            "[a-c]{2,5}",
            "b",
            "",
            "(a+)+$",
            "^(a|a)*b",
            "(a*)*",
            "a{0,300}",
            "(",
            "[z-a]",
            "(?=a)a",
            r"\1",
            r"\p{L}",
        ),
    )
    NAMES = ("a", "b", "c", "a/b", "x~y", "")

    def __init__(self, seed: int, is_plain: bool = False) -> None:
        self.pick = random.Random(seed)
        self._has_loops = True  # the target may itself contain references
        self._is_plain = is_plain  # only valid values, according to the specification

    def value(self, depth: int = 0) -> Any:
        kinds = ["null", "bool", "int", "float", "text", "list", "object"]
        kind = self.pick.choice(kinds if depth < 3 else kinds[:5])
        if kind == "list":
            return [self.value(depth + 1) for _ in range(self.pick.randrange(4))]
        if kind == "object":
            return {self.pick.choice(self.NAMES): self.value(depth + 1) for _ in range(self.pick.randrange(4))}
        large = [] if self._is_plain else [10**400, -(10**400), 1e308, float("inf"), float("nan"), -0.0]
        return self.pick.choice({
            "null": [None],
            "bool": [True, False],
            "int": [0, 1, 2, -1, 7, *large],
            "float": [0.0, 1.0, 1.5, 0.1, *large],
            "text": ["", "a", "ab", "aaa", "a" * 60, "\u00fc", "1"],
        }[kind])  # fmt: skip

    def schema(self, depth: int = 0) -> Any:
        if self.pick.random() < (0.1 if depth else 0.02):
            return self.pick.choice([True, False])
        made: dict[str, Any] = {}
        for _ in range(self.pick.randrange(1, 4)):
            # Elsewhere a default is an annotation; here it may replace a missing required property.
            keyword = self.pick.choice(_KEYWORDS[: -1 if self._is_plain else None])
            if keyword == "$ref" and not self._has_loops:
                continue
            made[keyword] = self._of(keyword, depth)
            if not self._is_plain and self.pick.random() < 0.05:
                made[keyword] = self.pick.choice([self.value(), self.schema(3), "x", [], {}])
        if depth == 0:
            self._has_loops = not self._is_plain
            made["$defs"] = {"d": self.schema(2), "e": self.schema(2)}
        return made

    def _of(self, keyword: str, depth: int) -> Any:
        below = (lambda: self.pick.choice([True, {"type": "integer"}])) if depth > 2 else lambda: self.schema(depth + 1)
        if keyword == "type":
            return self.pick.choice([*TYPES, ["string", "null"]])
        if keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            return self.pick.choice([0, 1, 1.5, -1])
        if keyword == "multipleOf":
            return self.pick.choice([1, 2, 0.5] if self._is_plain else [1, 2, 0.5, 0.01, 1e-300, 10**400])
        if keyword in ("enum", "required"):
            return [self.value(2) if keyword == "enum" else self.pick.choice(self.NAMES)]
        if keyword == "const":
            return self.value(1)
        if keyword == "uniqueItems":
            return self.pick.choice([True, False])
        if keyword == "pattern":
            return self.pick.choice(self.PATTERNS[: 3 if self._is_plain else None])
        if keyword.startswith(("min", "max")):
            return self.pick.randrange(3)
        if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            return [below() for _ in range(self.pick.randrange(1, 4))]
        if keyword in ("properties", "dependentSchemas"):
            return {self.pick.choice(self.NAMES): below() for _ in range(2)}
        if keyword == "patternProperties":
            return {self.pick.choice(self.PATTERNS[: 3 if self._is_plain else None]): below()}
        if keyword == "dependentRequired":
            return {self.pick.choice(self.NAMES): [self.pick.choice(self.NAMES)]}
        if keyword == "$ref":
            return self.pick.choice(
                ["#/$defs/d", "#/$defs/e"] if self._is_plain else ["#", "#/$defs/d", "#/x", "/a", "#d%"]
            )
        if keyword == "default":
            return self.value(1)
        return below()


_KEYWORDS = """
    type enum const required properties additionalProperties patternProperties propertyNames minProperties maxProperties
    dependentRequired dependentSchemas items prefixItems contains minContains maxContains minItems maxItems uniqueItems
    minLength maxLength pattern minimum maximum exclusiveMinimum exclusiveMaximum multipleOf allOf anyOf oneOf not if then
    else unevaluatedProperties unevaluatedItems $ref default
""".split()  # noqa: SIM905
