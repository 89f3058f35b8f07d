"""Handlers of signals for the length of a block, with the signal of this process that nothing else uses."""

import contextlib
import os
import signal
import threading
import unittest
from collections.abc import Iterator

from openagentic_sdk.ground.signals import handled_signals


@contextlib.contextmanager
def handler_of(handler: object) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


class HandledSignals(unittest.TestCase):
    def test_a_signal_is_handled_in_the_block_only(self) -> None:
        outside, inside = list[int](), list[int]()
        with handler_of(lambda number, frame: outside.append(number)):
            with handled_signals([signal.SIGUSR2], lambda number, frame: inside.append(number)) as before:
                os.kill(os.getpid(), signal.SIGUSR2)
                before[signal.SIGUSR2](signal.SIGUSR2, None)
            os.kill(os.getpid(), signal.SIGUSR2)
        self.assertEqual((inside, outside), ([signal.SIGUSR2], [signal.SIGUSR2] * 2))

    def test_an_ignored_signal_stays_ignored(self) -> None:
        seen = list[int]()
        with handler_of(signal.SIG_IGN):
            with handled_signals([signal.SIGUSR2], lambda number, frame: seen.append(number)):
                os.kill(os.getpid(), signal.SIGUSR2)
            self.assertEqual(signal.getsignal(signal.SIGUSR2), signal.SIG_IGN)
        self.assertEqual(seen, [])

    def test_other_threads_change_nothing(self) -> None:
        before, seen = signal.getsignal(signal.SIGUSR2), list[object]()

        def change() -> None:
            with handled_signals([signal.SIGUSR2], lambda number, frame: None):
                seen.append(signal.getsignal(signal.SIGUSR2))

        thread = threading.Thread(target=change)
        thread.start()
        thread.join()
        self.assertEqual(seen, [before])


if __name__ == "__main__":
    unittest.main()
