"""The garbage collector may run while any lock is held, and no finalizer it triggers waits for a lock."""

from __future__ import annotations

import ast
import faulthandler
import gc
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import count
from typing import Any

from tests.size import full_size
from tests.waiting import until

from ..guards.source import PACKAGE, ROOT, modules_with, nodes_of

# The modules that register finalizers, with the ways in which they may.
FINALIZERS = {
    ("openagentic_sdk.ground.garbage", "weakref.finalize"),  # delegates to a thread
    ("openagentic_sdk.kernel.opening", "when_collected"),
    ("openagentic_sdk.providers.wire.http", "weakref.finalize"),  # takes no lock
    ("openagentic_sdk.server.contract.client", "when_collected"),
    ("openagentic_sdk.sessions.stores.remote", "when_collected"),
    ("openagentic_sdk.sessions.sqlite", "when_collected"),
    ("openagentic_sdk.ground.threads", "__del__"),  # `SimpleQueue.put` takes no lock
    ("openagentic_sdk.tools.shell.background", "when_collected"),
    ("openagentic_sdk.tools.shell.file_policy", "when_collected"),
}
OWNERS = {"Client", "HttpTransport", "RemoteStore", "SqliteSessionStore", "RunShells", "RunTemp", "_OpenRun"}
# Locks that the walk does not take, because they need a Postgres server.
NOT_TAKEN = {
    "openagentic_sdk.sessions.stores.postgres.link",
    "openagentic_sdk.sessions.stores.postgres.tables",
    "openagentic_sdk.fleet.lease",
}
ON_SERVERS = {f"openagentic_sdk.sessions.stores.{name}" for name in ("server", "news", "holders", "remote")}
LIMIT_S = 300.0
# The finalizer's thread holds a lock for a moment, and the process forks during that.
_FORKS_MEANWHILE = """
import os, threading, warnings
from openagentic_sdk.ground.garbage import when_collected

class Owner: ...

def work():
    with lock:
        held.set()
        threading.Event().wait(0.2)

warnings.simplefilter("ignore", DeprecationWarning)
lock, held, owner = threading.Lock(), threading.Event(), Owner()
when_collected(owner, work)
del owner
held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if lock.acquire(timeout=5) else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
# From Python 3.12 on, no thread can be started after the main thread has ended.
_FORGETS_LATE = """
import sys, threading
from openagentic_sdk import open_store

def work():
    threading.main_thread().join()
    store = open_store(f"sqlite:{sys.argv[1]}/s.db")
    store.create_session()
    del store

threading.Thread(target=work).start()
"""


def modules_with_lock(call: str) -> set[str]:
    """The modules that create a lock of this kind."""
    found = set()
    for module in modules_with(f"{call}("):
        if module.room != "testing" and any(
            isinstance(node, ast.Call) and ast.unparse(node.func) in (call, f"threading.{call}")
            for node in nodes_of(module)
        ):
            found.add(module.name)
    return found


class FinalizerTest(unittest.TestCase):
    @full_size
    def test_every_finalizer_of_the_package_is_in_the_table_that_the_walk_covers(self) -> None:
        found, owners = set(), set()
        for module in modules_with("__del__", "weakref", "finalize", "when_collected"):
            for node in nodes_of(module):
                if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                    found.add((module.name, "__del__"))
                if not isinstance(node, ast.Call):
                    continue
                called = ast.unparse(node.func)
                has_callback = (
                    called.endswith((".ref", "proxy", "WeakMethod")) and "weakref" in called and len(node.args) > 1
                )
                if called in ("weakref.finalize", "finalize", "when_collected") or has_callback:
                    found.add((module.name, called))
            for made in (node for node in nodes_of(module) if isinstance(node, ast.ClassDef)):
                if any(
                    isinstance(node, ast.Call) and ast.unparse(node.func) in ("weakref.finalize", "when_collected")
                    for node in ast.walk(made)
                ):
                    owners.add(made.name)
        self.assertEqual(found, FINALIZERS)
        self.assertEqual(owners, OWNERS)

    @full_size
    def test_no_generator_of_the_package_holds_a_lock_where_it_may_be_forgotten(self) -> None:
        """A collected generator is closed at its `yield`; only context managers for `with` blocks may yield while holding a
        lock.
        """
        for module in modules_with("yield"):
            for function in (node for node in nodes_of(module) if isinstance(node, ast.FunctionDef)):
                if any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
                    continue
                for block in (node for node in ast.walk(function) if isinstance(node, ast.With)):
                    held = ", ".join(ast.unparse(item.context_expr) for item in block.items)
                    waits = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(block))
                    if waits:
                        self.assertNotRegex(
                            held, r"lock|guard|changed|reading\(|transaction\(", f"{module.name}.{function.name}"
                        )

    def test_a_store_that_a_thread_forgets_while_the_process_ends_is_closed_without_a_word(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        done = subprocess.run(
            [sys.executable, "-c", _FORGETS_LATE, place.name], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(
            sorted(os.listdir(place.name)), ["s.db", "s.db-leases"], "a closed database has no write-ahead log"
        )

    def test_a_fork_waits_for_what_threads_are_ending(self) -> None:
        done = subprocess.run([sys.executable, "-c", _FORKS_MEANWHILE], cwd=ROOT, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, "the child waits for a lock that is never released")

    @full_size
    def test_the_collector_may_run_inside_every_lock_that_the_package_takes(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.stores.test_garbage"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S + 20,
        )
        self.assertEqual(done.returncode, 0, done.stderr[-6000:])


# --- the walk, in a separate process that uses our instrumented locks -------------------------------------------------

_local = threading.local()
_real: dict[str, Callable[[], Any]] = {"Lock": threading.Lock, "RLock": threading.RLock}
_collected_in: dict[str, int] = {}
_waited_for: list[str] = []
_stock: list[list[Any]] = []  # sets of garbage prepared in advance, one object of each kind per collection
TIMES_EACH, SETS = 2, 50


def _place() -> str:
    """The module of the package that is creating a lock; empty for other code."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "threading":
        frame = frame.f_back  # type: ignore[assignment]
    name = str(frame.f_globals.get("__name__", ""))
    return name if name.startswith(PACKAGE) else ""


class _Lock:
    """A lock that triggers a collection of garbage of every kind as soon as it is acquired."""

    def __init__(self, kind: str) -> None:
        self._lock = _real[kind]()
        self._place = _place()
        if self._place:
            _collected_in.setdefault(self._place, 0)
        for name in ("_is_owned", "_release_save", "_acquire_restore", "_at_fork_reinit", "locked"):
            if hasattr(self._lock, name):
                setattr(self, name, getattr(self._lock, name))

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if getattr(_local, "collects", False):
            taken_by = "".join(traceback.format_stack(limit=16))
            _waited_for.append(f"{self._place or 'a lock of somebody else'}, taken by\n{taken_by}")
        is_acquired = self._lock.acquire(blocking, timeout)
        if (
            is_acquired
            and _collected_in.get(self._place, TIMES_EACH) < TIMES_EACH
            and not getattr(_local, "is_busy", False)
        ):
            _local.is_busy = True
            try:
                self._collect()
            finally:
                _local.is_busy = False
        return is_acquired

    def _collect(self) -> None:
        try:
            cycle = _stock.pop()
        except (
            IndexError
        ):  # not filled yet, or used up: threads that arrive together at a lock collect more often than counted
            return
        cycle.append(cycle)
        _collected_in[self._place] += 1
        _local.collects = True
        del cycle
        gc.collect()
        _local.collects = False

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Small(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: Any) -> None:
        """Suppress the request log."""


def _walk() -> None:
    """Acquire the package's locks while abandoned stores, transports and shells wait for collection."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    for kind in _real:
        setattr(threading, kind, partial(_Lock, kind))
    modules = [module.name for module in modules_with("Lock(", "Condition(", "Semaphore(")]
    gc.disable()
    import asyncio

    from openagentic_sdk import open_store
    from openagentic_sdk.events import UserMessage
    from openagentic_sdk.kernel.opening import _OpenRun
    from openagentic_sdk.kernel.tool import RunResources
    from openagentic_sdk.providers.wire.http import HttpTransport
    from openagentic_sdk.providers.wire.timeouts import Timeouts
    from openagentic_sdk.server import Client
    from openagentic_sdk.sessions.stores.per_process import SharedByName
    from openagentic_sdk.sessions.stores.remote import RemoteStore
    from openagentic_sdk.tools.shell.background import RunShells
    from openagentic_sdk.tools.shell.file_policy import RunTemp
    from openagentic_sdk.tools.shell.process import CommandSpec, run_command

    place = tempfile.mkdtemp()
    ended: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Small)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"

    class Shared:
        users = 0

        def __init__(self, number: int) -> None:
            self.number = number

        def close(self) -> None:
            ended.append("shared")

    servers, numbers = SharedByName(Shared), count(1)

    class Remote(RemoteStore[Any]):
        """The common base of server stores, without a server."""

        _servers = servers

    Remote.__abstractmethods__ = frozenset()

    def forgotten_remote() -> object:
        store = Remote()  # type: ignore[abstract]
        store._join(next(numbers))
        assert store._server.users == 1
        return store

    def forgotten_sqlite() -> object:
        store = open_store(f"sqlite:{place}/{time.monotonic_ns()}.db?durability=flush")
        store.create_session()
        return store

    def forgotten_transport() -> object:
        transport = HttpTransport()
        transport.pool.give(transport.find_target(read_url(url)), connected())
        return transport

    def forgotten_shells() -> object:
        return RunShells()

    def forgotten_temp() -> object:
        return RunTemp()

    def forgotten_client() -> object:
        return Client(url)

    class Recorder:
        """Whatever the writer of a run is noted for."""

    def forgotten_run() -> object:
        async def note() -> object:
            store, recorder = open_store("memory:"), Recorder()
            _OpenRun.note(recorder, store.open_writer(store.create_session()), store.place)  # type: ignore[arg-type]
            return recorder

        return asyncio.run(note())

    from http.client import HTTPConnection

    from openagentic_sdk.providers.wire.http import read_url

    def connected() -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", server.server_port)
        connection.connect()
        return connection

    _local.is_busy = True
    for _ in range(SETS):
        _stock.append(
            [
                make()
                for make in (
                    forgotten_remote,
                    forgotten_sqlite,
                    forgotten_transport,
                    forgotten_shells,
                    forgotten_temp,
                    forgotten_client,
                    forgotten_run,
                )
            ]
        )
    gc.collect()
    _local.is_busy = False

    for _ in range(3):
        servers.leave(servers.join(0))
    urls = [f"sqlite:{place}/mine.db", f"file:{place}/files", "memory:"]
    redis, kept = None, []
    if importlib.util.find_spec("redis"):
        from .own_servers import OwnRedis

        redis = OwnRedis("--appendonly", "no", "--save", "")
        urls.append(redis.url)
    for name in urls:
        store = open_store(name)
        session_id = store.create_session()
        with store.open_writer(session_id) as writer:
            writer.append([UserMessage("tea")])
        waiting = threading.Thread(target=partial(store.wait_for_events, session_id, after_seq=1, timeout_s=120.0))
        waiting.start()
        store.append_event(session_id, UserMessage("more tea"))
        waiting.join()
        store.close()
        kept.append(store)

    async def ask() -> None:
        transport = HttpTransport(timeouts=Timeouts(connect_s=120.0))
        answer = await transport.request(url, {})
        await answer.read_all()
        await answer.aclose()
        transport.close()

    asyncio.run(ask())
    with Client(url) as client:
        client._loop.run(asyncio.sleep(0))
    paths = (f"{place}/out", f"{place}/err")
    spec = CommandSpec(argv=("/bin/true",), env={}, cwd="/", keep_bytes=100, paths=paths, file_bytes=100)
    run_command(spec, timeout_s=120.0)
    shells = RunResources().get(RunShells)
    shells.start("true", spec, lambda: None, [])
    shells.close()
    if redis is not None:
        redis.remove()

    assert not _waited_for, "a finalizer took a lock while the collector ran: " + "\n".join(sorted(set(_waited_for)))
    # Take the module-level locks, and those of objects still alive.
    for name in modules:
        with suppress(ImportError):  # a driver that is not installed
            import_module(name)
    for lock in [each for each in gc.get_objects() if isinstance(each, _Lock)]:
        if lock.acquire(False):
            lock.release()
    assert not _waited_for, "a finalizer took a lock while the collector ran: " + "\n".join(sorted(set(_waited_for)))
    made = {name for kind in ("Lock", "RLock", "Condition", "BoundedSemaphore") for name in modules_with_lock(kind)}
    missing = made - {place for place, times in _collected_in.items() if times} - NOT_TAKEN
    missing -= set() if redis is not None else ON_SERVERS
    assert not missing, f"the collector never ran inside a lock of {sorted(missing)}"
    until(lambda: "shared" in ended, "the abandoned objects are closed")
    os._exit(0)


if __name__ == "__main__":
    _walk()
