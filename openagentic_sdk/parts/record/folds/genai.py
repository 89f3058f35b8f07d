"""The names of OpenTelemetry's GenAI semantic conventions that this package writes, in one place.

They live in a repository of their own, github.com/open-telemetry/semantic-conventions-genai (`model/gen-ai/*.yaml`), and are
in development: a name may change there. `fixtures/wire/genai_conventions.json` holds the published names these were compared
with, and of which state they are.
"""

from __future__ import annotations

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
OUTPUT_MESSAGES = "gen_ai.output.messages"
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

# What the conventions call the providers that have another name here.
_PROVIDERS = {
    "openai-responses": "openai",
    "chat-completions": "openai",
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
    """What the conventions call a provider; a name that they do not know stays."""
    return None if name is None else _PROVIDERS.get(name, name)


def operation_of(provider: str | None) -> str:
    """The operation of a request to a model there."""
    return GENERATE_CONTENT if provider in _GENERATES else CHAT
