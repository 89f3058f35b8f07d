"""The countdown until the model is asked again."""

import asyncio
import io
import unittest

from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.cli.output.turn import Countdown


class Terminal(io.StringIO):
    def isatty(self):
        return True


class CountdownTest(unittest.IsolatedAsyncioTestCase):
    async def test_it_counts_on_one_line_and_leaves_nothing_behind(self):
        out = Terminal()
        countdown = Countdown(Screen(out, colour=False, environ={"TERM": "xterm"}))
        countdown.start(3)
        await asyncio.sleep(0)
        countdown.stop()
        self.assertEqual(out.getvalue(), "\r\x1b[K  in 3 s\r\x1b[K")
        self.assertEqual(
            [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.cancelling()], []
        )

    async def test_it_is_silent_for_short_waits_and_where_no_line_can_be_rewritten(self):
        for out, delay_s, plain in ((io.StringIO(), 30, False), (Terminal(), 0.2, False), (Terminal(), 30, True)):
            countdown = Countdown(Screen(out, plain=plain, environ={"TERM": "xterm"}))
            countdown.start(delay_s)
            await asyncio.sleep(0)
            countdown.stop()
            self.assertEqual(out.getvalue(), "")


if __name__ == "__main__":
    unittest.main()
