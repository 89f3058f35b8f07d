"""Record a real endpoint's answers as a script for `ScriptedProvider`, with secrets removed."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from ..permissions.redact import Redactor
from ..providers.base import Message, ModelOutput, Provider, StreamEvent, ToolSpec
from ..providers.wrappers.answer import Pieces, ask
from ..providers.wrappers.wrap import StreamedProvider


class RecordingProvider(StreamedProvider):
    """A wrapper around a provider that passes its answers on, and writes each complete one to a cassette.

    The cassette is a script file (see `testing.scripted`), rewritten after each answer. `api_key` and the values of
    secret-looking environment variables are masked in it, like all tokens of known formats. Raises `OSError` if the file
    cannot be written.
    """

    def __init__(self, provider: Provider, path: str | os.PathLike[str], *, api_key: str | None = None) -> None:
        self.name = provider.name
        self._provider = provider
        self._path = Path(path)
        self._turns: list[dict[str, Any]] = []
        self._mask = Redactor.from_environment(os.environ, {"api_key": api_key} if api_key else None)

    async def stream(
        self, *, model: str, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), api_key: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream the provider's answer, and record it when it is complete."""
        pieces = Pieces()
        answer = ask(self._provider, model=model, messages=messages, tools=tools, api_key=api_key)
        try:
            async for event in answer:
                if (output := pieces.take(event)) is not None:
                    self._record(output, list(map(len, pieces.text)))
                yield event
        finally:
            await answer.aclose()

    def _record(self, output: ModelOutput, sizes: list[int]) -> None:
        calls = [
            {"id": call.tool_use_id, "name": call.name}
            | (
                {"arguments": dict(call.arguments)}
                if call.raw_arguments is None
                else {"raw_arguments": call.raw_arguments}
            )
            | ({"caller": dict(call.caller)} if call.caller is not None else {})
            for call in output.tool_calls
        ]
        turn = {
            "text": output.assistant_text or "",
            "tool_calls": calls,
            "reasoning": output.reasoning,
            "deltas": sizes,
            "usage": output.usage,
            "finish_reason": output.finish_reason,
        }
        self._turns.append(self._mask.value({key: value for key, value in turn.items() if value or key == "usage"}))
        script = {"name": self.name, "turns": self._turns}
        self._path.write_text(json.dumps(script, indent=1, ensure_ascii=True) + "\n", encoding="ascii")
