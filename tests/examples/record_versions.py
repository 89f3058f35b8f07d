"""Record a session with each given version of the library: python3 -m tests.examples.record_versions COMMIT...

fixtures/logs/versions/COMMIT contains the log as that version wrote it, and the messages that it folded the log into. Add
the newest landed version before a release, and never record one again: these logs are the promise that later versions read
them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

from .record_logs import LOGS, ROOT, WORKPLACE

VERSIONS = LOGS / "versions"
# It uses only names that no version has changed, so that every version runs it.
SCRIPT = """
import asyncio, json, sys
from openagentic_sdk import run
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.base import ModelOutput, ToolCall
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.store import FileSessionStore

class Script:
    name = "script"

    def __init__(self, turns):
        self.turns = list(turns)

    async def complete(self, *, model, messages, tools=(), api_key=None):
        text, calls = self.turns.pop(0)
        calls = [ToolCall(f"call_{len(self.turns)}_{at}", name, given) for at, (name, given) in enumerate(calls)]
        return ModelOutput(text, calls, usage={"input_tokens": 10, "output_tokens": 5})

PROMPTS = [
    ("Which version is this? Then clean up.", [
        ("I look it up.", [("Read", {"file_path": "src/version.py"}), ("Read", {"file_path": "missing.py"})]),
        ("", [("Bash", {"command": "rm -rf src"}), ("Write", {"file_path": "notes.txt", "content": "0.2.0"})]),
        ("It is 0.2.0; I may not clean up.", []),
    ]),
    ("What did I ask for?", [("The version.", [])]),
]

async def main(cwd, place):
    store, resumed = FileSessionStore(root_dir=place), {}
    for prompt, turns in PROMPTS:
        gate = PermissionGate(permission_mode="bypass", deny=("Bash(rm:*)",))
        options = OpenAgenticOptions(
            provider=Script(turns), model="scripted", cwd=cwd, permission_gate=gate, session_store=store, **resumed
        )
        result = await run(prompt=prompt, options=options)
        assert result.stop_reason == "end", result
        resumed["resume"] = result.session_id
    events = store.read_events(result.session_id)
    print(json.dumps([result.session_id, rebuild_messages(list(events), max_events=10_000, max_bytes=10_000_000)]))

asyncio.run(main(*sys.argv[1:]))
"""


def main() -> None:
    for commit in sys.argv[1:]:
        found = subprocess.run(
            ["git", "rev-parse", "--short=8", commit], cwd=ROOT, capture_output=True, text=True, check=True
        )
        record(found.stdout.strip())


def record(commit: str) -> None:
    """Record the version of a commit of this repository."""
    shutil.rmtree(WORKPLACE, ignore_errors=True)
    shutil.copytree(ROOT / "fixtures" / "projects" / "checklist", WORKPLACE)
    try:
        with tempfile.TemporaryDirectory() as code:
            tar = subprocess.run(
                ["git", "archive", commit, "openagentic_sdk"], cwd=ROOT, capture_output=True, check=True
            ).stdout
            subprocess.run(["tar", "-x", "-C", code], input=tar, check=True)
            home, place = WORKPLACE / "home", WORKPLACE / "store"
            environ = {"PATH": os.defpath, "PYTHONPATH": code, "HOME": str(home), "OPENAGENTIC_SDK_HOME": str(home)}
            command = [sys.executable, "-c", SCRIPT, str(WORKPLACE), str(place)]
            done = subprocess.run(command, env=environ, cwd=WORKPLACE, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{commit}: {done.stderr[-2000:]}")
        session_id, _, messages = done.stdout.strip().removeprefix('["').partition('", ')
        folder = VERSIONS / commit
        folder.mkdir(parents=True)
        shutil.copy(place / "sessions" / session_id / "events.jsonl", folder)
        (folder / "messages.json").write_text(messages.removesuffix("]") + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(WORKPLACE)


if __name__ == "__main__":
    main()
