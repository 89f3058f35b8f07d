"""An upper bound on the package's function calls for one tool call in a warm process."""

from __future__ import annotations

import sys
import tempfile
import threading
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import openagentic_sdk
from openagentic_sdk import FileSessionStore, OpenAgenticOptions, PermissionGate, run
from openagentic_sdk.server.asgi import app
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.server.support import TOKEN, agents, ask, until_free
from tests.size import full_size

_OURS = str(Path(openagentic_sdk.__file__).parent)
# Calls only before Python 3.12 (PEP 709).
_INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")
# Classes compile their constructors after a few objects (ground/frozen.py).
WARM_UP, REPEATS = 10, 2


async def count_calls(work: Callable[[], Awaitable[Any]]) -> int:
    """The minimum number of calls to this package's functions, in all threads, over several runs after a warm-up."""
    for _ in range(WARM_UP):
        await work()
    found = []
    for _ in range(REPEATS):
        calls = [0]

        def count(frame: FrameType, event: str, _: object, calls: list[int] = calls) -> None:
            code = frame.f_code
            calls[0] += event == "call" and code.co_filename.startswith(_OURS) and code.co_name not in _INLINED

        before = sys.getprofile(), threading.getprofile()
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            await work()
        finally:
            sys.setprofile(before[0])
            threading.setprofile(before[1])
        found.append(calls[0])
    return min(found)


class ShortWayTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.store = FileSessionStore(self.folder / "store")

    @full_size
    async def test_a_run_of_one_bash_call_takes_at_most_3000_calls_and_4100_in_the_sandbox(self):
        for sandbox, most in (("off", 3000), ("auto", 4100)):
            with self.subTest(sandbox):
                self.assertLessEqual(await count_calls(self.one_bash_call(sandbox)), most)

    def one_bash_call(self, sandbox):
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "true"}}]}
        made = [
            OpenAgenticOptions(
                provider=ScriptedProvider([call, "done"]),
                model="scripted",
                cwd=self.folder,
                session_store=self.store,
                permission_gate=PermissionGate(permission_mode="bypass"),
                sandbox=sandbox,
            )
            for _ in range(WARM_UP + REPEATS)
        ]

        async def work() -> None:
            self.assertEqual((await run(prompt="go", options=made.pop())).stop_reason, "end")

        return work

    async def test_a_post_that_starts_a_session_and_its_run_take_at_most_2200_calls(self):
        application = app(agents(), store=self.store, auth=TOKEN)
        self.addAsyncCleanup(application.desk.drain, 2.0)

        async def work() -> None:
            answer = await ask(application, "POST", "/v1/sessions", {"agent": "tea", "prompt": "go"})
            self.assertIn(answer.status, (200, 201, 202))
            await until_free(application)

        self.assertLessEqual(await count_calls(work), 2200)


if __name__ == "__main__":
    unittest.main()
