"""Two parts of the topic `record`: adding up the costs of sessions, and judging recorded calls under other rules."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace

from openagentic_sdk import PermissionGate
from openagentic_sdk.events import (
    Event,
    ModelResponse,
    PermissionDecision,
    SystemInit,
    ToolResult,
    ToolStarted,
    ToolUse,
)
from openagentic_sdk.parts.project.settings import Settings, SettingsRule
from openagentic_sdk.parts.record.folds.costs import BY, cost_report
from openagentic_sdk.permissions.hindsight.calls import backtest, recorded_calls
from openagentic_sdk.permissions.layers import rules_of_settings
from openagentic_sdk.serialization import dumps_event, loads_event
from openagentic_sdk.sessions.base import stamp_events
from openagentic_sdk.sessions.folds.summary import (
    fold_session_summary,
    start_summary,
    summary_from_dict,
    summary_to_dict,
)
from openagentic_sdk.sessions.request import json_sha256

from . import Row, best_cpu_s

SESSIONS = 10_000
DECISIONS = 100_000


def costs() -> list[Row]:
    """Measure the report on costs: the sessions last two days, with twenty answers of two models and five tools each."""
    events: list[Event] = []
    for step in range(20):
        usage = {"input_tokens": 1000, "cached_input_tokens": 900, "output_tokens": 50}
        events.append(ModelResponse(step, 1, usage=usage, cost_usd=0.01, model=f"m{step % 2}", ts=1.7e9 + step * 8_640))
        events += [ToolUse(f"c{step}", tool, {}) for tool in ("Bash", "Read", "Edit", "Grep", "Write")[: step % 6]]
    one = fold_session_summary(start_summary("s", 1.7e9, {}), events)
    rows = [replace(one, id=str(n), cwd=f"/p{n % 50}", tags=(f"t{n % 9}",)) for n in range(SESSIONS)]
    kept = [json.dumps(summary_to_dict(row)) for row in rows]
    floor_s = best_cpu_s(lambda: [summary_from_dict(json.loads(text)) for text in kept], 3)
    slowest_s = max(best_cpu_s(lambda by=by: cost_report(rows, by), 3) for by in BY)  # type: ignore[misc]
    name = f"costs of {SESSIONS:,} sessions from their summaries, the slowest split"
    return [Row(name, slowest_s * 1000, "ms", slowest_s / floor_s, "reading those summaries as JSON", "ratio <= 0.3")]


def backtests() -> list[Row]:
    """Judge recorded decisions about commands and files again, each of them once, under some 200 other rules."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [dumps_event(event) for event in _decisions(folder)]
        found: list[int] = []
        began = time.process_time()
        calls = recorded_calls("s", (loads_event(line) for line in lines))
        settings = Settings(
            allow=tuple(SettingsRule(f"Bash(program{n} sub:*)", "f", "user") for n in range(100)),
            ask=tuple(SettingsRule(f"Edit(locked{n}/**)", "f", "user") for n in range(10)),
            deny=tuple(SettingsRule(f"Bash(bad{n} command:*)", "f", "user") for n in range(90)),
        )
        rules = rules_of_settings(settings, folder)
        found.append(backtest(calls, lambda place: rules).judged)
        took_s = time.process_time() - began
        if found != [DECISIONS]:
            raise AssertionError(f"{found[0]} of {DECISIONS} decisions were judged")
        floor_s = best_cpu_s(lambda: [loads_event(line) for line in lines], 1)
    return [
        Row(
            f"judging {DECISIONS:,} recorded calls again",
            took_s,
            "s",
            took_s / floor_s,
            "reading the log",
            "ratio <= 4",
        )
    ]


def _decisions(folder: str) -> list[Event]:
    gate = PermissionGate(cwd=folder)
    policy = {**gate.record(), "project_dir": folder, "roots": [folder]}
    events: list[Event] = [SystemInit("s", folder, "1", permission_mode="default")]
    for n in range(DECISIONS):
        is_command = n % 2 == 0
        name = "Bash" if is_command else "Read"
        input = (
            {"command": f"program{n % 150} sub --file src/unit{n}.py"} if is_command else {"file_path": f"src/{n}.py"}
        )
        digest, details = (
            json_sha256(input),
            {"facts": {"effect": "unsafe" if is_command else "read"}, "category": "mode"},
        )
        details |= {"policy": policy} if n == 0 else {}
        events += [
            ToolUse(f"c{n}", name, input),
            PermissionDecision(f"c{n}", name, True, "default", digest, policy_sha256="p", details=details),
            ToolStarted(f"c{n}", name, "unsafe", digest, "k"),
            ToolResult(f"c{n}", "done"),
        ]
    return stamp_events(events, first_seq=1, now=1.7e9)
