"""Every interleaving of three workers keeps the promises, and each rule of the protocol is necessary."""

from __future__ import annotations

import unittest

from ..size import LARGE
from .protocol import RULES, Protocol, search


class ProtocolTest(unittest.TestCase):
    def test_no_interleaving_of_three_workers_breaks_a_promise(self) -> None:
        states, broken, way = search(Protocol(mishaps=4 if LARGE else 1))
        self.assertIsNone(broken, way)
        self.assertGreater(states, 1_000)

    def test_without_any_one_of_its_rules_some_interleaving_breaks_a_promise(self) -> None:
        for rule in RULES:
            with self.subTest(without=rule):
                self.assertIsNotNone(search(Protocol(without=rule, mishaps=1))[1])


if __name__ == "__main__":
    unittest.main()
