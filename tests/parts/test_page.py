"""The examples of docs/parts.md behave as the page describes: through a real kill, and under the contract."""

import json
import re
import signal
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.assemble import build_agent
from openagentic_sdk.events import PartState
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing import part_contract
from tests.pythons import run_python
from tests.size import full_size

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "parts.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)
# The definitions in the first two blocks, without their runs.
LEDGER = BLOCKS[0].partition("\nasyncio.run(")[0]
BOARD = BLOCKS[1].partition("\nasked = ")[0]
NAMES: dict = {"__name__": "page"}
exec(compile(f"{LEDGER}\n{BOARD}", "parts.md", "exec"), NAMES)

KILLED = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
{LEDGER}

@tool(effect="read")
def die() -> str:
    "Kill the process."
    os.kill(os.getpid(), signal.SIGKILL)


given = options(buying("tea"), buying("milk", "tea"), {{"tool_calls": [{{"name": "die"}}]}}, parts=[Ledger])
given = OpenAgenticOptions(**{{**vars(given), "tools": [buy, die], "permission_gate": PermissionGate(allow=["buy", "die"])}})
asyncio.run(run(prompt="Buy.", options=given))
"""
RESUMED = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
{LEDGER}
asyncio.run(run(prompt="More.", options=options(buying("tea"), "Done.", parts=[Ledger])))
"""


class PageTest(unittest.TestCase):
    def test_the_ledger_has_its_state_after_a_kill(self):
        with tempfile.TemporaryDirectory() as folder:
            for script, code in ((KILLED, -signal.SIGKILL), (RESUMED, 0)):
                done = run_python("-c", script, cwd=folder, text=True, timeout=300)
                self.assertEqual(done.returncode, code, done.stderr)
            events = FileSessionStore(f"{folder}/shop").read_events("errands")
            kept = [event.data for event in events if isinstance(event, PartState)]
            self.assertEqual(json.loads(json.dumps(kept[-1])), {"tea": 18, "milk": 8})


class _Shop(part_contract.PartContract):
    part = NAMES["Ledger"]
    turns = tuple(
        {"text": "x" * 2000, **NAMES["buying"](*items)} for items in (["tea"], ["milk", "tea"], ["bread"], ["tea"])
    )
    turns = (*turns, "Done.")
    test_wherever_a_run_is_killed_it_ends_with_the_same_state_when_it_is_resumed = full_size(
        part_contract.PartContract.test_wherever_a_run_is_killed_it_ends_with_the_same_state_when_it_is_resumed
    )

    def make_agent(self, provider, store):
        return build_agent(
            OpenAgenticOptions(
                provider=provider,
                model="scripted",
                tools=[NAMES["buy"]],
                session_store=store,
                parts=[self.part],
                permission_gate=PermissionGate(allow=["buy"]),
            )
        )


class LedgerTest(_Shop):
    """The first example."""


class BoardTest(_Shop):
    """The second example."""

    part = NAMES["Board"]


del _Shop

if __name__ == "__main__":
    unittest.main()
