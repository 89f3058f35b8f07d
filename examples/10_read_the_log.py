"""The log is the whole truth: what was requested, decided, started and answered, in order."""

import asyncio
import json
import tempfile
from pathlib import Path

from model import PROJECTS, call, model

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, run

TURNS = (
    {"text": "I look it up.", "tool_calls": [call("Read", file_path="src/version.py")]},
    "The version is 0.2.0.",
)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = OpenAgenticOptions(
            **model(*TURNS), cwd=PROJECTS / "checklist", session_store=FileSessionStore(folder)
        )
        result = await run(prompt="Which version is this?", options=options)
        log = Path(folder) / "sessions" / result.session_id / "events.jsonl"
        for line in log.read_text(encoding="ascii").splitlines():
            event = json.loads(line)
            about = event.get("text") or event.get("name") or event.get("outcome") or event.get("stop_reason") or ""
            print(f"{event['seq']:>2} {event['type']:<20} {about}".rstrip())


asyncio.run(main())
