"""The contract detects every known fault: each faulty store fails the test named for it."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import unittest
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import TestResult

from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.testing import store_contract

from ..pythons import contract_python
from ..size import LARGE, drawn, full_size
from . import servers
from .faulty import FAULTS
from .holes import lose_event
from .subtle_faults import open_faulty

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
REDIS_URL = os.environ.get("OPENAGENTIC_TEST_REDIS_URL", "")
# Faults that a file store cannot have: the kernel manages its lock.
_TAKES_OVER = {
    "TheEpochStays",
    "AReplacedHolderWrites",
    "AReplacedHolderWritesAfterItsReplacement",
    "TwoWritersAreAccepted",
}
# And these ids it refuses.
_OTHER_IDS = {"IdsDoNotDistinguishCaseOutsideOfAscii", "LookUpsNormalise"}
_LIVES_ON = ("process", "kill", "reopen", "opened_again")


def result_of(fault: str, url: str) -> TestResult:
    """Run the contract test of a fault against the faulty store, and return its result."""

    class Contract(store_contract.StoreContract):
        def make_store(self) -> SessionStore:
            return open_faulty(fault, url)

        def process_source(self) -> str | None:
            return f"from tests.stores.subtle_faults import open_faulty\nstore = open_faulty({fault!r}, {url!r})\n"

        python = contract_python

        def lose_event(self, session_id: str, seq: int) -> bool:
            return lose_event(url, getattr(self.store, "inner", None), session_id, seq)

        def setUp(self) -> None:
            super().setUp()
            self.addTypeEqualityFunc(list, self.assert_same)  # skip the slow diff of two long lists

        def assert_same(self, first: list[Any], second: list[Any], msg: str | None = None) -> None:
            self.assertTrue(first == second, msg)

        def open_store(self) -> SessionStore:
            # A memory store must stay the same object; the others can be opened again by URL.
            if not url.startswith("memory") or "store" not in self.__dict__:
                return super().open_store()
            return self.store

    result = TestResult()
    Contract(FAULTS[fault][0]).run(result)
    return result


class FaultTest(unittest.TestCase):
    def places(self) -> dict[str, Callable[[], str]]:
        """Functions that create a fresh URL, by kind of store: all kinds if a server is configured, otherwise SQLite."""
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        kinds = {"sqlite": lambda: f"sqlite:{place.name}/s.db?durability=flush"}
        if LARGE or POSTGRES_URL or REDIS_URL:
            kinds["memory"] = lambda: "memory:"
            kinds["file"] = lambda: f"file:{place.name}/files?durability=flush"
        if POSTGRES_URL and importlib.util.find_spec("psycopg"):
            kinds["postgres"] = partial(servers.own_postgres_schema, self, POSTGRES_URL)
        if REDIS_URL and importlib.util.find_spec("redis"):
            kinds["redis"] = partial(servers.own_redis_prefix, self, REDIS_URL)
        return kinds

    def test_there_are_two_hundred_or_more(self) -> None:
        self.assertGreaterEqual(len(FAULTS), 200)
        for test, _ in FAULTS.values():
            self.assertTrue(hasattr(store_contract.StoreContract, test), test)

    def check(self, fault: str) -> None:
        test, _ = FAULTS[fault]
        places = self.places()
        if any(part in test for part in _LIVES_ON):
            places.pop("memory", None)
        if fault in _TAKES_OVER | _OTHER_IDS:
            places.pop("file", None)
        # The fault is in the wrapper and the contract is the same for all: the small size tests one kind per fault, in turn.
        kinds = list(places) if LARGE else [list(places)[list(FAULTS).index(fault) % len(places)]]
        for kind in kinds:
            with self.subTest(kind):
                result = result_of(fault, places[kind]())
                self.assertEqual(result.skipped, [])
                self.assertTrue(result.failures or result.errors, f"{test} accepts {fault} on {kind}")


def _one(fault: str) -> None:
    def check(self: FaultTest) -> None:
        self.check(fault)

    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in fault)
    # These test the contract's tests, not the package: README's command draws some.
    runs_here = fault in drawn(FAULTS, 3)
    setattr(FaultTest, f"test_the_contract_finds{words}", check if runs_here else full_size(check))


for _fault in FAULTS:
    _one(_fault)
