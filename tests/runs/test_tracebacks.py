"""The place of an error and its cause, read from tracebacks as Python prints them."""

import asyncio
import unittest

from openagentic_sdk.ground.threads import error_trace
from openagentic_sdk.runs.tracebacks import read_traceback

RATES = {"DE": 19}


def rate_of(country):
    return RATES[country]


def price(country):
    try:
        return 1 + rate_of(country)
    except KeyError as error:
        raise LookupError(f"no price in {country}") from error


async def share(parts):
    return 1 / parts


async def shares():
    async with asyncio.TaskGroup() as group:
        for parts in (1, 0):
            group.create_task(share(parts))


def trace_of(function, *arguments):
    try:
        found = function(*arguments)
    except (ArithmeticError, LookupError, ExceptionGroup) as error:
        return error_trace(error)
    raise AssertionError(f"{function} returned {found}")


class Tracebacks(unittest.TestCase):
    def test_the_deepest_frame_outside_of_libraries_is_the_place(self):
        (place,) = read_traceback(trace_of(rate_of, "XX"))
        self.assertRegex(place, r"^at .*test_tracebacks\.py:13 in rate_of: return RATES\[country\]$")
        (place,) = read_traceback(trace_of(asyncio.run, share(0)))
        self.assertIn("in share: return 1 / parts", place)

    def test_the_error_that_caused_it_follows_with_its_own_place(self):
        place, cause = read_traceback(trace_of(price, "XX"))
        self.assertIn("in price: raise LookupError(", place)
        self.assertRegex(cause, r"^caused by KeyError: 'XX', at .*:13 in rate_of: return RATES\[country\]$")

    def test_the_first_error_inside_a_group_is_reported(self):
        words, place = read_traceback(trace_of(asyncio.run, shares()))
        self.assertEqual(words, "the first error inside: ZeroDivisionError: division by zero")
        self.assertIn("in share: return 1 / parts", place)

        async def nested():
            async with asyncio.TaskGroup() as group:
                group.create_task(shares())

        self.assertEqual(read_traceback(trace_of(asyncio.run, nested()))[0], words)

    def test_text_that_is_not_a_traceback_has_no_place(self):
        for text in (
            "",
            "KeyError: 1",
            "Traceback (most recent call last):",
            "Exception Group Traceback (most recent call last):",
        ):
            self.assertEqual(read_traceback(text), (), text)
        cut = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n[...]\nValueError: no'
        self.assertEqual(read_traceback(cut), ("at a.py:3 in f: g()",))


if __name__ == "__main__":
    unittest.main()
