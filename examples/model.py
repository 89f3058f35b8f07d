"""The model of the examples: the one named in the environment, otherwise a script that plays without a network.

Set OPENAI_API_KEY (and OPENAI_MODEL) to run an example against a real model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# So that `python3 examples/01_hello.py` works in a checkout where nothing is installed.
sys.path.insert(0, str(Path(__file__).parent.parent))

from openagentic_sdk import OpenAIProvider
from openagentic_sdk.testing import ScriptedProvider

PROJECTS = Path(__file__).parent.parent / "fixtures" / "projects"


def model(*turns: Mapping[str, Any] | str) -> dict[str, Any]:
    """The options `provider` and `model`; `turns` are the scripted model's answers, in order."""
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        return {"provider": OpenAIProvider(api_key=key), "model": os.environ.get("OPENAI_MODEL", "gpt-4o-mini")}
    return {"provider": ScriptedProvider(turns), "model": "scripted"}


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    """One tool call of a scripted turn."""
    return {"name": name, "arguments": arguments}
