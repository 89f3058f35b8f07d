"""README's size runs part of what the gate's size runs, and the gate's size leaves nothing out."""

from __future__ import annotations

import unittest

from tests.size import FULL, drawn, full_size_but


class Sizes(unittest.TestCase):
    def test_a_draw_is_everything_in_the_gate_and_an_even_part_of_it_in_readmes_size(self) -> None:
        for step in range(1, 8):
            cases = drawn(range(20), step)
            if FULL:
                self.assertEqual(cases, list(range(20)))
            else:
                self.assertEqual(cases, list(range(cases[0], 20, step)))
                self.assertLess(cases[0], step)

    def test_the_small_size_runs_only_the_named_inherited_tests(self) -> None:
        class Base(unittest.TestCase):
            def test_named(self) -> None:
                pass

            def test_other(self) -> None:
                pass

        @full_size_but("test_named")
        class Derived(Base):
            def test_own(self) -> None:
                pass

        for case, skipped in ((Derived, [] if FULL else ["test_other"]), (Base, [])):
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
            self.assertTrue(result.wasSuccessful())
            self.assertEqual([test.id().rpartition(".")[2] for test, _ in result.skipped], skipped)


if __name__ == "__main__":
    unittest.main()
