"""Shared objects for the tests of evals: an agent with a tool, its recorded session, and runs of suites in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, PermissionGate, run, tool
from openagentic_sdk.evals import EvalReport, Suite, run_suite
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.testing import ScriptedProvider

PRICES = {"scripted-1": {"input": 1.0, "output": 1.0}}
MILLION = {"input_tokens": 1_000_000, "output_tokens": 0}  # costs one dollar


@tool(effect="read")
def stock(item: str) -> str:
    """Return how much of it there is."""
    return f"{item}: 4"


TURNS: list[Any] = [{"tool_calls": [{"name": "stock", "arguments": {"item": "tea"}}]}, "There are 4 packs of tea."]


def options(*turns: Any, **changes: Any) -> OpenAgenticOptions:
    """An agent with a scripted model and one tool, under a gate that allows it by a rule."""
    settings: dict[str, Any] = {
        "provider": ScriptedProvider(turns or TURNS),
        "model": "scripted-1",
        "tools": [stock],
        "permission_gate": PermissionGate(permission_mode="default", allow=("stock",)),
        "system_prompt": "You keep a shop.",
        "prices": PRICES,
    }
    return OpenAgenticOptions(**{**settings, **changes})


def made(*turns: Any, **changes: Any) -> Callable[[], OpenAgenticOptions]:
    """The same, created for each run."""
    return lambda: options(*turns, **changes)


def recorded(store: SessionStore, *turns: Any, prompt: str = "Is there tea?", **changes: Any) -> str:
    """The id of a newly recorded session."""
    return asyncio.run(run(prompt=prompt, options=options(*turns, session_store=store, **changes))).session_id


def evaluate(suite: Suite, store: SessionStore | None = None, **settings: Any) -> EvalReport:
    """Run a suite and return its report."""
    return asyncio.run(run_suite(suite, store=store or MemorySessionStore(), **settings))


def scores_of(report: EvalReport, number: int = 0) -> dict[str, Any]:
    """The scores of one run, by name."""
    return {score["name"]: score for score in report.runs[number].scores}
