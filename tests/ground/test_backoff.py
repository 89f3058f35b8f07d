"""The one retry schedule of this package."""

from __future__ import annotations

import re
import unittest
from itertools import islice

from openagentic_sdk.ground.backoff import Backoff
from tests.guards.source import PACKAGE, ROOT
from tests.size import full_size


class BackoffTest(unittest.TestCase):
    def test_waits_grow_by_their_factor_up_to_the_longest(self) -> None:
        self.assertEqual([*islice(Backoff(0.5, 3.0).waits(), 5)], [0.5, 1.0, 2.0, 3.0, 3.0])
        self.assertEqual([*islice(Backoff(1.0, 30.0, factor=5.0).waits(), 4)], [1.0, 5.0, 25.0, 30.0])

    def test_any_number_of_failures_has_a_wait(self) -> None:
        self.assertEqual(Backoff(0.001, 60.0).wait_s(10**9), 60.0)

    def test_chance_only_shortens_a_wait_and_by_no_more_than_it_may(self) -> None:
        waits = [*islice(Backoff(8.0, 8.0, jitter=0.25).waits(), 500)]
        self.assertTrue(all(6.0 <= wait_s <= 8.0 for wait_s in waits))
        self.assertGreater(len(set(waits)), 400)

    @full_size
    def test_no_other_module_doubles_its_waits(self) -> None:
        doubled = re.compile(r"min\(.*(\b2(\.0)? ?\*\*?|\*\*? ?2\b)|\w*(wait|pause|poll|delay)_s \*= ")
        found = [
            f"{path}:{number}"
            for path in sorted((ROOT / PACKAGE).rglob("*.py"))
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if doubled.search(line) and "_s" in line
        ]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
