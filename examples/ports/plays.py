"""The model of a port: the one that the original example names, or, without a key for it, a script in its place."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# So that `python3 examples/ports/claude_hooks.py` works in a checkout where nothing is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from openagentic_sdk.testing import ScriptedProvider

KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


def model(word: str, *turns: Mapping[str, Any] | str) -> str | ScriptedProvider:
    """A model for `Agent`: `word` if its key is set, otherwise these turns."""
    return word if os.environ.get(KEYS[word.partition(":")[0]]) else ScriptedProvider(turns)


def settings(word: str, *turns: Mapping[str, Any] | str) -> dict[str, Any]:
    """The options `provider` and `model` of `OpenAgenticOptions` for such a model."""
    found = model(word, *turns)
    return {"model": found} if isinstance(found, str) else {"provider": found, "model": "scripted"}


def call(name: str, /, text: str = "", **arguments: Any) -> dict[str, Any]:
    """A turn with one call."""
    return {"text": text, "tool_calls": [{"name": name, "arguments": arguments}]}


def answer(**value: Any) -> dict[str, Any]:
    """A turn with the final answer of an agent that has an output type."""
    return call("final_answer", **value)
