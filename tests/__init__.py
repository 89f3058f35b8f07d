"""All tests, by room."""

from __future__ import annotations

import os
import signal
import unittest
from typing import Any

from .parallel import spread
from .size import LARGE, write_in_memory

# Tests start some hundred Pythons; told to write no bytecode, each of them would compile the whole package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
write_in_memory()
# Ctrl-C is for whoever is tested, too: a shell that starts this in the background has it ignored, also by what this starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Modes of files are compared with what most umasks make of them.
os.umask(0o022)


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """unittest asks here when all of them are discovered."""
    here = os.path.dirname(__file__)
    return spread(loader.discover(here, pattern or "test*.py", os.path.dirname(here)))


def _without_debug_mode(case: Any) -> None:
    _set_up_runner(case)
    case._asyncioRunner.get_loop().set_debug(False)


_set_up_runner: Any = unittest.IsolatedAsyncioTestCase._setupAsyncioRunner  # type: ignore[attr-defined]
if not LARGE:
    # In debug mode asyncio keeps a traceback for every task and future: a third of the time of all coroutine tests.
    unittest.IsolatedAsyncioTestCase._setupAsyncioRunner = _without_debug_mode  # type: ignore[attr-defined]
