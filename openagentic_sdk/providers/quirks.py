"""The differences between endpoints and OpenAI's, as data: one profile per vendor, found by its host.

Every profile can be overridden: `OpenAICompatibleProvider(quirks=replace(LOCAL, empty_content=None))`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ..ground.frozen import frozen


@frozen(kw_only=True)
class Quirks:
    """The rules for writing an endpoint's requests and reading its answers.

    `max_tokens_field` is the name of the output limit. `system_role` is the role of system messages, `one_system_message`
    joins consecutive ones. `stream_usage` requests usage at the end of a stream. `empty_content` is the content of an
    assistant message that has only calls: None (JSON null) or "". `tool_choice_object` means that one tool can be forced by
    name; otherwise only that tool is offered and a call is required. `strict_tools` allows the `strict` key in tools.
    `short_tool_ids` creates ids of nine letters and digits, `max_tool_id` limits the length of ids. `assistant_after_tool`
    inserts an assistant message between a result and a user message. `name_in_tool_result` repeats the tool's name in its
    result. `echo_fields` are the opaque fields of its own answers that the endpoint expects back. `think_tags` reads
    `<think>` at the start of a text as reasoning. `inputs` are the kinds of parts besides text that a message may have;
    `document_url` writes a file in Mistral's form. `response_format` means that requests may name a
    JSON schema for the answer (`response_format`). `seed_field` is the name of the seed. `keeps_parts` leaves parts
    unchanged, for protocols with their own forms. `cache_key` means that requests may name a key shared by those with the
    same prefix (`prompt_cache_key`). `accepts` is the vendor whose rules for tool definitions apply (`definitions.table`).
    """

    max_tokens_field: str = "max_tokens"
    system_role: str = "system"
    one_system_message: bool = False
    stream_usage: bool = True
    empty_content: str | None = None
    tool_choice_object: bool = True
    strict_tools: bool = False
    short_tool_ids: bool = False
    max_tool_id: int | None = None
    assistant_after_tool: bool = False
    name_in_tool_result: bool = False
    echo_fields: tuple[str, ...] = (
        "reasoning_content",
        "reasoning",
        "reasoning_text",
        "reasoning_details",
        "extra_content",
    )
    response_format: bool = False
    think_tags: bool = True
    inputs: tuple[str, ...] = ("image", "file", "audio")
    document_url: bool = False
    seed_field: str = "seed"
    keeps_parts: bool = False
    cache_key: bool = False
    accepts: str = "standard"


STANDARD = Quirks()
OPENAI = Quirks(
    accepts="openai",
    max_tokens_field="max_completion_tokens",
    strict_tools=True,
    response_format=True,
    echo_fields=(),
    think_tags=False,
    cache_key=True,
    max_tool_id=40,  # a longer one, as vLLM creates, is answered with 400
)
# Ollama and older LM Studio refuse null; LM Studio refuses the object form of tool_choice and llama.cpp ignores it.
LOCAL = Quirks(accepts="local", empty_content="", tool_choice_object=False, one_system_message=True)
MISTRAL = Quirks(
    accepts="mistral",
    stream_usage=False,
    short_tool_ids=True,
    assistant_after_tool=True,
    name_in_tool_result=True,
    document_url=True,
    seed_field="random_seed",
    cache_key=True,
)
# Groq and xAI refuse a reasoning field that is sent back; Gemini requires its thought signatures back, and only them.
GROQ = Quirks(accepts="groq", max_tokens_field="max_completion_tokens", echo_fields=(), inputs=("image",))
XAI = Quirks(echo_fields=(), inputs=("image",))
GEMINI = Quirks(accepts="gemini-compatible", echo_fields=("extra_content",), inputs=("image", "audio"))
# DeepSeek's models accept text only.
DEEPSEEK = Quirks(inputs=())
AZURE = OPENAI

_BY_HOST = {
    "api.openai.com": OPENAI,
    "api.mistral.ai": MISTRAL,
    "api.groq.com": GROQ,
    "api.x.ai": XAI,
    "api.deepseek.com": DEEPSEEK,
    "generativelanguage.googleapis.com": GEMINI,
    "openai.azure.com": AZURE,
    "services.ai.azure.com": AZURE,
    "cognitiveservices.azure.com": AZURE,
    "localhost": LOCAL,
    "127.0.0.1": LOCAL,
    "::1": LOCAL,
    "0.0.0.0": LOCAL,
    "host.docker.internal": LOCAL,
}


def quirks_for(base_url: str) -> Quirks:
    """The profile for an endpoint: that of its host or a parent domain, else the standard one."""
    try:
        host = (urlsplit(base_url).hostname or "").lower()
    except ValueError:
        return STANDARD
    host_name = next((name for name in _BY_HOST if host == name or host.endswith("." + name)), None)
    return _BY_HOST[host_name] if host_name else STANDARD
