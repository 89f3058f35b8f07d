"""All tests, by room."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import unittest
from typing import Any

from .parallel import spread
from .size import LARGE, write_in_memory

# Tests start hundreds of interpreters; if none of them wrote bytecode, each would compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
write_in_memory()
# A shell ignores SIGINT in background jobs, nohup ignores SIGHUP, and children inherit that: restore both for the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# argparse searches the disk for translations of each of its messages, and again for every message of every parser.
argparse._ = functools.cache(argparse._)  # type: ignore[attr-defined]

# Tests compare file modes with those that the usual umask produces.
os.umask(0o022)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """Run all tests in parallel. unittest calls this hook only when it discovers the whole package."""
    here = os.path.dirname(__file__)
    return spread(loader.discover(here, pattern or "test*.py", os.path.dirname(here)))


def _without_debug_mode(case: Any) -> None:
    _set_up_runner(case)
    case._asyncioRunner.get_loop().set_debug(False)


_set_up_runner: Any = unittest.IsolatedAsyncioTestCase._setupAsyncioRunner  # type: ignore[attr-defined]
if not LARGE:
    # In debug mode asyncio keeps a traceback for each task and future: a third of the run time of all coroutine tests.
    unittest.IsolatedAsyncioTestCase._setupAsyncioRunner = _without_debug_mode  # type: ignore[attr-defined]
