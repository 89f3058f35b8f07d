"""OpenAI's chat completions, and the engine for every endpoint that supports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from .base import Message, ModelOutput, StreamEvent, ToolSpec
from .chat_request import ToolNames, build_chat_request, used_call_ids
from .endpoint import EndpointArguments, EndpointProvider
from .failures import unexpected
from .openai_stream_assembler import ChatAssembler
from .quirks import OPENAI, Quirks, quirks_for
from .wire.reading import LINGER_AFTER_FINISH_S, Reading

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_HOSTS = ("api.openai.com",)  # including its regional hosts: eu.api.openai.com ...


class ChatProvider(EndpointProvider):
    """A provider for any chat-completions endpoint; its `quirks` default to those of the endpoint's host."""

    name = "chat-completions"
    operation = "/chat/completions"

    def __init__(self, *, base_url: str | None, quirks: Quirks | None, **endpoint: Unpack[EndpointArguments]) -> None:
        super().__init__(base_url=base_url, **endpoint)
        self.quirks = quirks or quirks_for(self.base_url)
        self.has_response_format = self.quirks.response_format
        self.inputs = self.quirks.inputs

    def url(self, model: str) -> str:
        return self.address(self.operation)

    def prepare(
        self, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec], *, stream: bool
    ) -> tuple[dict[str, Any], Reading, ToolNames]:
        payload, names = build_chat_request(
            model=model,
            messages=messages,
            tools=tools,
            settings=self.settings,
            quirks=self.quirks,
            origin=self.origin,
            stream=stream,
        )
        # The same key for all requests of a session sends them to the machine that has their prefix in its cache.
        if self.quirks.cache_key and self._session.cache_key and "prompt_cache_key" not in self.settings.extra_body:
            payload["prompt_cache_key"] = self._session.cache_key
        assembler = ChatAssembler(
            used_ids=used_call_ids(messages),
            think_tags=self.quirks.think_tags,
            origin=self.origin,
            has_choices=payload.get("n", 1) != 1,
        )
        return payload, ChatReading(assembler), names


class OpenAIProvider(ChatProvider):
    """A provider for OpenAI's own endpoint. The key is that of the call, else `api_key`, else OPENAI_API_KEY.

    `base_url` defaults to OPENAI_BASE_URL, then to OpenAI's address. `transport(url, headers, payload)` returns the body as
    a dict, `stream_transport` (with the same arguments) an iterable of its chunks as bytes; they replace the sockets.
    """

    name = "openai"
    usual_url = OPENAI_URL
    url_variable = "OPENAI_BASE_URL"
    key_variable = "OPENAI_API_KEY"
    hosts = OPENAI_HOSTS
    needs_key = True

    def __init__(
        self, *, base_url: str | None = None, quirks: Quirks = OPENAI, **endpoint: Unpack[EndpointArguments]
    ) -> None:
        super().__init__(base_url=base_url, quirks=quirks, **endpoint)


class ChatReading(Reading):
    """A reader of a chat completion."""

    def __init__(self, assembler: ChatAssembler) -> None:
        super().__init__()
        self._assembler = assembler

    def take_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        events = self._assembler.apply(chunk)
        # Usage may follow, and then `[DONE]`; some servers send neither, and keep the connection open.
        if self._assembler.has_finish_reason and self.linger_s is None:
            self.linger_s = LINGER_AFTER_FINISH_S
        return events

    def take_whole(self, body: Mapping[str, Any]) -> list[StreamEvent]:
        if not isinstance(body.get("choices"), list) or not body["choices"]:
            raise unexpected("answer has no choices", body)
        self._assembler.end_marker()
        return self._assembler.apply(body)

    def take_marker(self) -> None:
        super().take_marker()
        self._assembler.end_marker()

    def conclude(self) -> tuple[list[StreamEvent], ModelOutput]:
        return self._assembler.finish()
