"""The names from OpenTelemetry's GenAI semantic conventions that this package writes, in one place.

The conventions have their own repository, github.com/open-telemetry/semantic-conventions-genai (`model/gen-ai/*.yaml`), and
are in development: names may change. `fixtures/wire/genai_conventions.json` contains the published names that these were
compared with, and their version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....ground.loose import as_mapping, as_mappings
from ....ground.words import shortened

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
AGENT = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION = "gen_ai.usage.cache_creation.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_DESCRIPTION = "gen_ai.tool.description"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
EVALUATION_EVENT = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"
EVALUATION_LABEL = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION = "gen_ai.evaluation.explanation"
OPENAI_TIER = "openai.response.service_tier"
OPENAI_FINGERPRINT = "openai.response.system_fingerprint"
ERROR = "error.type"

INVOKE_AGENT, EXECUTE_TOOL, CHAT, GENERATE_CONTENT = "invoke_agent", "execute_tool", "chat", "generate_content"

# The conventions' names of providers that have a different name here.
_PROVIDERS = {
    "openai-responses": "openai",
    "chat-completions": "openai",
    "azure": "azure.ai.openai",
    "azure-openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock-converse": "aws.bedrock",
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "vertex-gemini": "gcp.vertex_ai",
    "xai": "x_ai",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
}
_GENERATES = frozenset({"gemini", "vertex-gemini"})


def provider_name(name: str | None) -> str | None:
    """The conventions' name of a provider; a name that they lack is returned unchanged, and None for None."""
    return None if name is None else _PROVIDERS.get(name, name)


def operation_of(provider: str | None) -> str:
    """The conventions' operation name for a request to a model."""
    return GENERATE_CONTENT if provider in _GENERATES else CHAT


def call_part(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call as a message part of the conventions."""
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def message_of(message: Mapping[str, Any], most_chars: int) -> dict[str, Any]:
    """A request message in the form of the conventions; long texts are truncated, media are represented by their type."""
    content = message.get("content")
    pieces = [{"text": content}] if isinstance(content, str) else as_mappings(content)
    texts = [str(piece.get("text", f"[{piece.get('type')}]")) for piece in pieces]
    if message.get("role") == "tool":
        response = shortened("\n".join(texts), most_chars)
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": response}
        return {"role": "tool", "parts": [part]}
    parts = [{"type": "text", "content": shortened(text, most_chars)} for text in texts if text]
    for call in as_mappings(message.get("tool_calls")):
        function = as_mapping(call.get("function"))
        raw_arguments = str(function.get("arguments"))
        try:
            arguments = (
                json.loads(raw_arguments) if len(raw_arguments) <= most_chars else shortened(raw_arguments, most_chars)
            )
        except ValueError:
            arguments = raw_arguments
        parts.append(call_part(call.get("id"), function.get("name"), arguments))
    return {"role": str(message.get("role")), "parts": parts}
