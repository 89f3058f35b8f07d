"""The forked interpreters of `tests.pythons`, used from several threads."""

from __future__ import annotations

import unittest
from concurrent.futures import ThreadPoolExecutor

from tests.size import full_size

from ..pythons import Python, run_python


class Threads(unittest.TestCase):
    @full_size
    def test_threads_that_start_interpreters_at_once_get_each_its_own_output_and_exit_code(self) -> None:
        def run(number: int) -> tuple[str, int]:
            process = run_python("-c", f"print({number}); raise SystemExit({number})", text=True)
            return process.stdout.strip(), process.returncode

        with ThreadPoolExecutor(6) as pool:
            self.assertEqual(list(pool.map(run, range(60))), [(str(number), number) for number in range(60)])

    def test_threads_that_look_at_one_interpreter_at_once_see_the_same_exit_code(self) -> None:
        for _ in range(5):
            with Python("-c", "raise SystemExit(7)") as python, ThreadPoolExecutor(6) as pool:
                waits = [pool.submit(python.wait, 60) for _ in range(3)]
                while python.poll() is None:
                    pass
                self.assertEqual([wait.result() for wait in waits] + [python.poll()], [7, 7, 7, 7])
