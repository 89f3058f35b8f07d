"""Threads that pass from one piece of a run's work to the next, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import re
import subprocess
import sys
import threading
import unittest

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run
from openagentic_sdk.ground.threads import KeptThreads, run_in_thread, start_thread
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.guards.source import PACKAGE, ROOT
from tests.size import full_size

WAIT_S = 120  # bounds failures only
_word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="")


class OthersStore(MemorySessionStore):
    """A store from outside this package, so each of its calls is made in a thread; records which one."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def open_writer(self, session_id):
        self.threads.append(threading.current_thread())
        return super().open_writer(session_id)

    def create_session(self, **given):
        self.threads.append(threading.current_thread())
        return super().create_session(**given)


class KeptThreadsTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.before = set(threading.enumerate())

    def left(self) -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - self.before]

    def keep(self) -> KeptThreads:
        threads = KeptThreads()
        threads.use()
        return threads

    async def test_one_thread_does_one_work_after_the_other_under_the_name_of_each(self):
        threads = self.keep()
        first = await run_in_thread(threading.current_thread, name="openagentic-a", keep=True)
        self.assertEqual(first.name, "openagentic-a")
        second = await run_in_thread(threading.current_thread, name="openagentic-b", keep=True)
        self.assertIs(second, first)
        self.assertEqual(second.name, "openagentic-b")
        threads.close()
        self.assertEqual(self.left(), [])

    async def test_work_that_may_leave_something_behind_has_a_thread_of_its_own(self):
        threads = self.keep()
        kept = await run_in_thread(threading.get_native_id, keep=True)
        self.assertNotEqual(await run_in_thread(threading.get_native_id), kept)
        threads.close()

    async def test_each_work_has_the_context_of_whoever_asked_for_it_and_failures_come_back(self):
        threads = self.keep()
        for word in ("one", "two"):
            _word.set(word)
            self.assertEqual(await run_in_thread(_word.get, keep=True), word)
            await run_in_thread(lambda: _word.set("inside"), keep=True)
            self.assertEqual(_word.get(), word)
        with self.assertRaises(ZeroDivisionError):
            await run_in_thread(lambda: 1 / 0, keep=True)
        threads.close()
        self.assertEqual(self.left(), [])

    async def test_a_thread_that_hangs_is_replaced_and_ends_after_its_work(self):
        threads, gate = self.keep(), threading.Event()
        hung = start_thread(lambda: (gate.wait(WAIT_S), threading.current_thread())[1], "openagentic-hung", keep=True)
        other = await run_in_thread(threading.current_thread, name="openagentic-other", keep=True)
        threads.close()
        self.assertEqual(self.left(), ["openagentic-hung"])
        gate.set()
        self.assertIsNot(await hung, other)
        await asyncio.sleep(0)  # its callbacks
        self.assertEqual(self.left(), [])

    async def test_a_future_that_was_cancelled_leaves_its_thread_to_end_by_itself(self):
        threads, gate = self.keep(), threading.Event()
        hung = start_thread(lambda: gate.wait(WAIT_S), "openagentic-hung", keep=True)
        hung.cancel()
        await asyncio.sleep(0)
        threads.close()
        [thread] = set(threading.enumerate()) - self.before
        del hung
        gate.set()
        await asyncio.to_thread(thread.join, WAIT_S)
        self.assertFalse(thread.is_alive())

    async def test_a_failure_that_nobody_waits_for_is_not_reported_by_python(self) -> None:
        complaints = list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        await asyncio.wait({start_thread(lambda: int("tea"), "openagentic-a")})
        gc.collect()
        self.assertEqual(complaints, [])

    async def test_after_the_close_and_in_another_loop_work_has_threads_of_its_own(self):
        threads = self.keep()
        kept = await run_in_thread(threading.current_thread, keep=True)

        def elsewhere() -> threading.Thread:
            return asyncio.run(run_in_thread(threading.current_thread, keep=True))

        self.assertIsNot(await run_in_thread(elsewhere, keep=True), kept)
        threads.close()
        await run_in_thread(lambda: None, keep=True)
        self.assertEqual(self.left(), [])

    @full_size
    def test_an_interpreter_without_daemon_threads_is_refused_in_one_sentence(self):
        script = (
            "import asyncio\nfrom openagentic_sdk import OpenAgenticOptions, run\n"
            "from openagentic_sdk.errors import EventLoopError\nfrom openagentic_sdk.testing import ScriptedProvider\n"
            "options = OpenAgenticOptions(provider=ScriptedProvider(['x']), model='m', session_store='memory:')\n"
            "try:\n    asyncio.run(run(prompt='hi', options=options))\n"
            "except EventLoopError as error:\n    print(error, flush=True)\n"
        )
        outer = (
            "import sys\ntry:\n    import _interpreters\nexcept ImportError:\n    sys.exit(77)\n"
            f"print(_interpreters.exec(_interpreters.create('isolated'), {script!r}) or 'ended')\n"
        )
        done = subprocess.run([sys.executable, "-c", outer], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
        if done.returncode == 77:
            self.skipTest("this Python has no module _interpreters")
        self.assertRegex(done.stdout, r"^a run needs daemon threads, and this subinterpreter allows none: .*\nended\n$")

    def test_threads_that_nobody_closes_end_with_whoever_holds_them(self):
        async def forget() -> threading.Thread:
            KeptThreads().use()
            return await run_in_thread(threading.current_thread, keep=True)

        thread = asyncio.run(forget())
        gc.collect()
        thread.join(WAIT_S)
        self.assertFalse(thread.is_alive())

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_process_starts_threads_of_its_own(self):
        async def here() -> int:
            threads = self.keep()
            await run_in_thread(lambda: None, keep=True)
            process = os.fork()
            if process == 0:  # the parent's loop does not belong to the child
                asyncio.events._set_running_loop(None)
                try:
                    ended = asyncio.run(asyncio.wait_for(run_in_thread(lambda: 7, keep=True), WAIT_S))
                    os._exit(ended)
                finally:
                    os._exit(1)
            threads.close()
            return process

        _, status = os.waitpid(asyncio.run(here()), 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 7)

    async def test_a_run_asks_its_store_in_one_thread_and_leaves_none(self):
        store = OthersStore()
        options = OpenAgenticOptions(provider=ScriptedProvider(["Tea."]), model="scripted", session_store=store)
        await run(prompt="go", options=options)
        self.assertEqual(self.left(), [])
        self.assertEqual([thread.name for thread in set(store.threads)], ["openagentic-store"])


class WaysOffTheLoop(unittest.TestCase):
    def test_blocking_work_leaves_the_event_loop_in_three_ways_alone(self) -> None:
        starts = re.compile(r"\b(start_thread|to_thread|run_in_executor|ThreadFeed)\(")
        found = {
            f"{path.relative_to(ROOT / PACKAGE)} {name}"
            for path in (ROOT / PACKAGE).rglob("*.py")
            for name in starts.findall(path.read_text(encoding="utf-8"))
            if "store_contract" not in path.parts
        }
        # `run_in_thread`; `ask_store`, below `off_loop`; and streams of an endpoint.
        feeds = {f"providers/wire/{name}.py ThreadFeed" for name in ("exchange", "http")}
        ways = {"ground/threads.py start_thread", "kernel/recorder.py start_thread", *feeds}
        self.assertEqual(found, ways)


if __name__ == "__main__":
    unittest.main()
