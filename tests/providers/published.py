"""Judge tool definitions by what vendors publish: the types of their SDKs, botocore's model, the rules of JSON Schema.

Run by a Python that has those packages, never imported by the tests: it reads one JSON object per line (`vendor`, `name`,
`description`, `parameters`), and writes one for each that is refused (the same `vendor` and `name`, and `why`).
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import anthropic.types
import botocore.session
import botocore.validate
import groq.types.chat
import mistralai.client.models
import ollama
import openai.types.chat
import openai.types.responses
import pydantic
from google.genai import types
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

warnings.simplefilter("ignore")

# Their own pattern of a name (OpenAPI documents, botocore's model, the discovery document).
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Documented for responseJsonSchema, and missing in the SDK's class of it.
_NOT_IN_CLASS = ("prefixItems",)


def _chat(tool: dict[str, Any]) -> dict[str, Any]:
    function = {key: tool[key] for key in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def _check_json_schema(tool: dict[str, Any]) -> None:
    """Check a schema of draft 2020-12; all of its references must lead to a schema in it."""
    Draft202012Validator.check_schema(tool["parameters"])
    resource = Resource.from_contents(tool["parameters"], default_specification=DRAFT202012)
    resolver = Registry().with_resource("", resource).resolver()
    waiting = [resource]
    while waiting:
        part = waiting.pop()
        if isinstance(part.contents, dict) and "$ref" in part.contents:
            resolver.lookup(part.contents["$ref"])
        waiting += part.subresources()


def _without(value: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_without(each, keys) for each in value]
    if isinstance(value, dict):
        return {key: _without(each, keys) for key, each in value.items() if key not in keys}
    return value


def _check_gemini(tool: dict[str, Any]) -> None:
    declared = {"name": tool["name"], "description": tool["description"], "parametersJsonSchema": tool["parameters"]}
    types.Tool.model_validate({"functionDeclarations": [declared]})
    types.JSONSchema.model_validate(_without(tool["parameters"], _NOT_IN_CLASS))


def _check_gemini_compatible(tool: dict[str, Any]) -> None:
    types.Schema.model_validate(tool["parameters"])


_converse = (
    botocore.session.get_session()
    .get_service_model("bedrock-runtime", api_version="2023-09-30")
    .operation_model("Converse")
    .input_shape.members["toolConfig"]
)


def _check_bedrock(tool: dict[str, Any]) -> None:
    schema = {"json": tool["parameters"]}
    spec = {"name": tool["name"], "description": tool["description"], "inputSchema": schema}
    report = botocore.validate.ParamValidator().validate({"tools": [{"toolSpec": spec}]}, _converse)
    if report.has_errors():
        raise ValueError(report.generate_report())


def _check_ollama(tool: dict[str, Any]) -> None:
    ollama.Tool.model_validate(_chat(tool))


def _typed(kind: Any, write: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], None]:
    adapter = pydantic.TypeAdapter(kind)
    return lambda tool: adapter.validate_python(write(tool)) and None


def _responses(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "strict": False, **_chat(tool)["function"]}


def _messages(tool: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}


_CHAT = _typed(openai.types.chat.ChatCompletionFunctionToolParam, _chat)
CHECKS: dict[str, list[Callable[[dict[str, Any]], None]]] = {
    "openai": [_CHAT, _typed(openai.types.responses.FunctionToolParam, _responses)],
    "openai-strict": [_CHAT],
    "anthropic": [_typed(anthropic.types.ToolParam, _messages)],
    "gemini": [_check_gemini],
    "gemini-compatible": [_check_gemini_compatible],
    "bedrock": [_check_bedrock],
    "mistral": [_typed(mistralai.client.models.Tool, _chat)],
    "groq": [_typed(groq.types.chat.ChatCompletionToolParam, _chat)],
    "local": [_check_ollama],
    "standard": [_CHAT],
}


def main() -> None:
    for line in sys.stdin:
        tool = json.loads(line)
        vendor = tool["vendor"]
        for check in (_check_json_schema, *CHECKS[vendor]):
            try:
                if not _NAME.fullmatch(tool["name"]):
                    raise ValueError("its name is refused")
                check(tool)
            except Exception as error:  # noqa: BLE001 - each package refuses with errors of its own
                why = f"{type(error).__name__}: {error}"[:600]
                print(json.dumps({"vendor": vendor, "name": tool["name"], "why": why}), flush=True)


if __name__ == "__main__":
    main()
