"""Vendors' limits on tool definitions, as data: one row per rule, with its source and the date on which it was read.

| rule | limit |
|---|---|
| `names` | the maximum length of a tool's name, in letters, digits, _ and - |
| `tools` | the maximum number of tools in a request |
| `keys` | the pattern for property names |
| `root` | `plain`: no union, condition, reference or list of values at the root; else the only keywords allowed there |
| `keywords` | the only keywords allowed in a schema below the root |
| `formats` | the only values of `format` |
| `references` | `none`: each `$ref` is replaced by its target; `definitions`: only to `#/$defs/NAME` and the like |
| `items` | `needed`: each array has `items`, an object |
| `required` | `defined`: only names of defined properties |
| `enum` | `texts`: only strings, none of them empty |
| `anyOf` | `alone`: no other keyword beside it |
| `types` | every schema has a type; several are written as a `list`, or as a `union` with `anyOf` |
| `closed` | `strict`: objects that allow further properties, or do not require all of their own, are not strict |
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from ...ground.frozen import frozen


@frozen
class AcceptanceRule:
    """One limit that a vendor places on definitions; `source` is where it was read, on `date`."""

    vendor: str
    rule: str
    limit: str | int
    source: str
    date: str


_OPENAI_API = "github.com/openai/openai-openapi, FunctionObject and CreateChatCompletionRequest.tools"
_OPENAI_ROOT = "github.com/langchain-ai/langchainjs/issues/9804 (a refusal)"
_OPENAI_ITEMS = "github.com/sigoden/aichat/pull/1049 (a refusal)"
_STRICT = "developers.openai.com/api/docs/guides/structured-outputs, Supported schemas"
_ANTHROPIC_KEYS = "github.com/twilio-labs/mcp/issues/58 (a refusal)"
_ANTHROPIC_ROOT = "github.com/marianfoo/mcp-sap-docs/pull/51 (a refusal)"
_GEMINI_API = "googleapis/python-genai, types.FunctionDeclaration"
_GEMINI_SCHEMA = "ai.google.dev/api/generate-content, responseJsonSchema, and ai.google.dev/api/caching, Schema"
_GEMINI_ALONE = "github.com/anomalyco/opencode/issues/14700 (a refusal)"
_GEMINI_TYPES = "github.com/UKGovernmentBEIS/inspect_ai/pull/3097 (a refusal)"
_CONVERSE_API = "docs.aws.amazon.com/bedrock, ToolSpecification"
_CONVERSE_KEYS = (
    "github.com/aws-solutions-library-samples/accelerated-intelligent-document-processing-on-aws/issues/709 (a refusal)"
)
_NOVA = "docs.aws.amazon.com/nova, Defining a tool, and github.com/zed-industries/zed/issues/28521 (a refusal)"
_MISTRAL_API = "docs.mistral.ai/api, Function"
_GROQ_API = "console.groq.com/docs/api-reference, tools"
_GROQ_REQUIRED = "github.com/usestrix/strix/issues/1088 (a refusal)"
_OLLAMA = "github.com/ollama/ollama, api/types.go, ToolFunction"
_LLAMA = "github.com/ggml-org/llama.cpp, common/json-schema-to-grammar.cpp, and its issues 14227 and 16790 (refusals)"

_GEMINI_KEYWORDS = (
    "type description enum items properties required anyOf format minItems maxItems minimum maximum title"
)
_LOCAL_KEYWORDS = (
    "type description enum items prefixItems properties required anyOf minItems maxItems minLength maxLength minimum "
    "maximum additionalProperties title default"
)
_STRICT_KEYWORDS = (
    "type description enum const items properties required anyOf $ref $defs additionalProperties title format pattern "
    "minItems maxItems minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"
)
_READ = "2026-11-23"

TABLE: tuple[AcceptanceRule, ...] = tuple(
    AcceptanceRule(vendor, rule, limit, source, _READ)
    for vendors, rule, limit, source in (
        ("openai openai-strict", "names", 64, _OPENAI_API),
        ("openai openai-strict", "tools", 128, _OPENAI_API),
        ("openai openai-strict", "root", "plain", _OPENAI_ROOT),
        ("openai openai-strict", "items", "needed", _OPENAI_ITEMS),
        ("openai openai-strict", "references", "definitions", _STRICT),
        ("openai-strict", "keywords", _STRICT_KEYWORDS, _STRICT),
        ("openai-strict", "closed", "strict", _STRICT),
        ("anthropic", "names", 64, "platform.claude.com/docs, Tool use, name"),
        ("anthropic", "keys", r"[a-zA-Z0-9_.-]{1,64}", _ANTHROPIC_KEYS),
        ("anthropic", "root", "plain", _ANTHROPIC_ROOT),
        ("anthropic", "references", "definitions", "json-schema.org/draft/2020-12, which it holds schemas to"),
        ("gemini gemini-compatible", "names", 64, _GEMINI_API),
        ("gemini gemini-compatible", "tools", 128, _GEMINI_API),
        ("gemini gemini-compatible", "keys", r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", _GEMINI_API),
        ("gemini gemini-compatible", "root", "type description properties required", _GEMINI_API),
        ("gemini", "keywords", f"{_GEMINI_KEYWORDS} prefixItems additionalProperties", _GEMINI_SCHEMA),
        ("gemini-compatible", "keywords", f"{_GEMINI_KEYWORDS} nullable", _GEMINI_SCHEMA),
        ("gemini gemini-compatible", "formats", "enum date-time date time int32 int64 float double", _GEMINI_SCHEMA),
        ("gemini gemini-compatible", "references", "none", _GEMINI_SCHEMA),
        ("gemini gemini-compatible", "items", "needed", _GEMINI_SCHEMA),
        ("gemini gemini-compatible", "required", "defined", _GEMINI_SCHEMA),
        ("gemini gemini-compatible", "enum", "texts", _GEMINI_SCHEMA),
        ("gemini gemini-compatible", "anyOf", "alone", _GEMINI_ALONE),
        ("gemini gemini-compatible", "types", "union", _GEMINI_TYPES),
        ("bedrock", "names", 64, _CONVERSE_API),
        ("bedrock", "keys", r"[a-zA-Z0-9_.-]{1,64}", _CONVERSE_KEYS),
        ("bedrock", "root", "type properties required", _NOVA),
        ("bedrock", "references", "none", _NOVA),
        ("mistral", "names", 64, _MISTRAL_API),
        ("mistral", "root", "plain", _MISTRAL_API),
        ("groq", "names", 64, _GROQ_API),
        ("groq", "tools", 128, _GROQ_API),
        ("groq", "root", "plain", _GROQ_API),
        ("groq", "references", "definitions", _GROQ_API),
        ("groq", "required", "defined", _GROQ_REQUIRED),
        ("local", "names", 64, _OLLAMA),
        ("local", "root", "type description properties required additionalProperties", _OLLAMA),
        ("local", "keywords", _LOCAL_KEYWORDS, _LLAMA),
        ("local", "references", "none", _LLAMA),
        ("local", "required", "defined", _OLLAMA),
        ("local", "types", "list", _LLAMA),
        # Endpoints that copy OpenAI's protocol, with what most of them accept.
        ("standard", "names", 64, _OPENAI_API),
        ("standard", "root", "plain", _OPENAI_ROOT),
        ("standard", "references", "definitions", _OPENAI_API),
    )
    for vendor in vendors.split()
)


@frozen
class VendorRules:
    """The limits of one vendor, by rule name; None means no limit, except for `root`.

    Without `root`, the root must not have unions, conditions, references and lists of values.
    """

    names: int = 64
    tools: int | None = None
    keys: str | None = None
    root: frozenset[str] | None = None
    keywords: frozenset[str] | None = None
    formats: frozenset[str] | None = None
    references: Literal["any", "definitions", "none"] = "any"
    types: Literal["any", "list", "union"] = "any"
    needs_items: bool = False
    needs_defined: bool = False
    needs_texts: bool = False
    needs_lone_unions: bool = False
    is_strict: bool = False

    def takes(self, keyword: str) -> bool:
        """Whether this keyword is allowed in a schema below the root."""
        return self.keywords is None or keyword in self.keywords


_LISTS = ("keywords", "formats", "root")
# The rules that can have only one limit.
_NEEDS = {
    "items": "needs_items",
    "required": "needs_defined",
    "enum": "needs_texts",
    "anyOf": "needs_lone_unions",
    "closed": "is_strict",
}


@cache
def rules_of(vendor: str) -> VendorRules:
    """The limits of one vendor. Raises `KeyError` for a vendor that is not in the table."""
    rules: dict[str, Any] = {}
    for row in TABLE:
        if row.vendor == vendor and (row.rule, row.limit) != ("root", "plain"):
            listed = frozenset(str(row.limit).split()) if row.rule in _LISTS else row.limit
            rules[_NEEDS.get(row.rule, row.rule)] = True if row.rule in _NEEDS else listed
    if not rules:
        raise KeyError(vendor)
    return VendorRules(**rules)
