"""All tests, by room."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import unittest

from .parallel import spread

if "OPENAGENTIC_SDK_KEY" not in os.environ:
    # Runs make the key of their installation: not in the home folder of whoever tests.
    _place = tempfile.mkdtemp(prefix="openagentic-test-key-")
    atexit.register(shutil.rmtree, _place, ignore_errors=True)
    os.environ["OPENAGENTIC_SDK_KEY"] = os.path.join(_place, "key")


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """unittest asks here when all of them are discovered."""
    here = os.path.dirname(__file__)
    return spread(loader.discover(here, pattern or "test*.py", os.path.dirname(here)))
