"""A real Ctrl-C is distinguished from code that raises `KeyboardInterrupt`, by documented properties of Python's signals."""

import asyncio
import signal
import threading
import unittest
from functools import partial

from openagentic_sdk.ground.threads import call_guest, is_ctrl_c


def handle(*_):
    raise KeyboardInterrupt


class Handling:
    def method(self, number, frame):
        handle()

    def __call__(self, number, frame):
        handle()


def interrupt():
    signal.raise_signal(signal.SIGINT)
    for _ in range(1000):  # the handler runs between two instructions of this thread
        pass


def say_so():
    raise KeyboardInterrupt


def is_ctrl_c_after(work):
    try:
        work()
    except KeyboardInterrupt as error:
        return is_ctrl_c(error)
    raise AssertionError("no KeyboardInterrupt was raised")


class CtrlCTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))

    def test_a_signal_is_recognised_whoever_handles_it(self):
        for handler in (
            signal.default_int_handler,
            handle,
            partial(handle, "more"),
            Handling().method,
            Handling(),
            lambda *_: handle(),
        ):
            with self.subTest(handler):
                signal.signal(signal.SIGINT, handler)
                self.assertTrue(is_ctrl_c_after(interrupt))

    def test_a_keyboard_interrupt_that_code_raises_is_not_a_ctrl_c(self):
        for handler in (handle, partial(handle, "more"), Handling().method, signal.SIG_IGN):
            with self.subTest(handler):
                signal.signal(signal.SIGINT, handler)
                self.assertFalse(is_ctrl_c_after(say_so))

    def test_a_thread_gets_no_ctrl_c(self):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(is_ctrl_c_after(say_so)))
        thread.start()
        thread.join()
        self.assertEqual(answers, [False])

    def test_a_guest_that_raises_one_ends_itself_alone_and_a_signal_goes_through(self):
        async def told(work):
            async def guest():
                work()

            await call_guest(guest, "the guest")

        with self.assertRaisesRegex(RuntimeError, "the guest raised KeyboardInterrupt"):
            asyncio.run(told(say_so))

        async def pressed_twice():
            # The first cancels the main task, the second raises, both as in `asyncio.run`.
            signal.raise_signal(signal.SIGINT)
            await told(interrupt)

        with self.assertRaises(KeyboardInterrupt):
            asyncio.run(pressed_twice())


if __name__ == "__main__":
    unittest.main()
