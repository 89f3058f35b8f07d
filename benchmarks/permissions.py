"""The cost of a permission decision compared with the digest of its arguments, which every decision has to compute."""

from __future__ import annotations

import asyncio
import json
import shlex
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from openagentic_sdk.permissions.gate import PermissionGate

from . import Row, best_cpu_s

_CALLS = 2000
_LINE = (
    "npm run build --silent 'two words' src/index.js | tee-like sub -x -y -z && "
    'pytest -q tests/unit/test_one.py --maxfail 1 -k "not slow"; cargo build --release --target-dir out/target && '
    "echo done >/dev/null 2>&1"
)
# The standard library's, which is independent of our changes.
_DIGEST = "the sha256 of the same arguments as canonical JSON, by the standard library"
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def rows() -> list[Row]:
    """Microseconds for one decision of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "src").mkdir()
        Path(folder, "src", "a.py").write_text("x\n")
        return _decisions(folder)


def _decisions(folder: str) -> list[Row]:
    """Time decisions about single calls. The decision about a command misses its bar.

    The floor reads nothing of the line; `shlex.split`, which is measured beside it and finds words only, neither commands
    nor redirections, takes about 25 times as long as the floor.

    Of the decision, 28 % collect the paths that the line may read or write, with one `lstat` for each name on the way, 27 %
    compare its five commands with the rules that allow, and their words with protected places, 20 % compare them with the
    rules that forbid, 9 % parse the line, and 5 % find out whether its words show all that it does. None of this may be
    kept for the next decision: each line differs, and between two decisions the disk may have changed.

    Counted in instructions (cachegrind), the decision is 82 times the floor, 3.1 million to 37 thousand, and `shlex.split`
    24 times. In time the ratio is about 200: the floor is a short loop that stays in the processor's caches, which the
    decision, of about 1,800 calls, does not. So meeting the bar would mean halving their number. Half of them compare with
    the rules that forbid (which finds a forbidden program behind `env`, `xargs` or a path) or follow each word to the file
    that it means (which finds a link out of the workspace), and neither can be left out.
    """
    plain, ruled = PermissionGate(cwd=folder), PermissionGate(cwd=folder, **_rules())
    line = {"command": _LINE}
    return [
        _decision("a decision about a plain tool", plain, "TodoWrite", {"todos": []}, folder, "ratio <= 20"),
        _decision("a decision about reading a file", plain, "Read", {"file_path": "src/a.py"}, folder, "ratio <= 40"),
        _decision("the same with 200 rules", ruled, "Read", {"file_path": "src/a.py"}, folder, "ratio <= 55"),
        _decision(
            f"a decision about a command of {len(_LINE)} characters, 200 rules",
            ruled,
            "Bash",
            line,
            folder,
            "ratio <= 100",
        ),
        _split(),
    ]


def _split() -> Row:
    lines = [_numbered(_LINE, n) for n in range(_CALLS)]
    value = best_cpu_s(lambda: [*map(shlex.split, lines)]) / _CALLS * 1e6
    return Row(
        "shlex.split of the same command, for comparison", value, "us", value / _digest_us({"command": _LINE}), _DIGEST
    )


def _rules() -> dict[str, Any]:
    """150 command rules, four of which allow the line, and 50 path rules."""
    named = ("Bash(npm run build:*)", "Bash(tee-like sub -x -y -z)", "Bash(pytest:*)", "Bash(cargo build:*)")
    return {
        "allow": (*named, *(f"Bash(program{n} sub:*)" for n in range(96))),
        "deny": (*(f"Bash(bad{n} command:*)" for n in range(50)), *(f"Read(./secret{n}/**)" for n in range(40))),
        "ask": tuple(f"Edit(locked{n}/**)" for n in range(10)),
    }


def _decision(name: str, gate: PermissionGate, tool: str, input: Mapping[str, Any], folder: str, bar: str) -> Row:
    context = {"cwd": folder, "session_id": "s"}
    # No two commands are the same, as in real runs: nothing may be reused from one decision to the next.
    inputs = [{key: _numbered(value, n) for key, value in input.items()} for n in range(_CALLS)]

    async def decide() -> None:
        for each in inputs:
            if not await gate.approve(tool, each, context):
                raise AssertionError(f"{name}: the gate refused what this benchmark measures")

    value = best_cpu_s(lambda: asyncio.run(decide())) / _CALLS * 1e6
    return Row(name, value, "us", value / _digest_us(input), _DIGEST, bar)


def _digest_us(input: Mapping[str, Any]) -> float:
    return best_cpu_s(lambda: [sha256(_encode(dict(input)).encode()).hexdigest() for _ in range(_CALLS)]) / _CALLS * 1e6


def _numbered(value: Any, number: int) -> Any:
    return value.replace("unit", f"u{number % 1000:03}").replace("words", f"w{number:04}") if value is _LINE else value
