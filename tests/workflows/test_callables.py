"""Any callable can be a step, and its value comes back with its type."""

from __future__ import annotations

import functools
import unittest
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from openagentic_sdk import Flow, RunFailedError, workflow

from .test_flow import FlowCase


@dataclass
class Shop:
    stock: int = 2

    def add(self, more: int, /) -> int:
        return self.stock + more

    def sell(self, count: int) -> int:
        return self.stock - count

    def __call__(self, *more: int) -> list[int]:
        return [self.stock, *more]


def positional(first: int, /, second: int = 2) -> list[int]:
    return [first, second]


async def open_ended(first: int, *others: Shop, **named: datetime) -> list[Any]:
    return [first, [shop.stock for shop in others], {name: time.year for name, time in named.items()}]


def gives_shop() -> Shop:
    return Shop(3)


def gives_tuple() -> tuple[datetime, set[str]]:
    return NEW_YEAR, {"a"}


NEW_YEAR = datetime(2020, 1, 1, tzinfo=UTC)
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = [
    (str.upper, ("x",), {}, "X"),
    (",".join, (["a", "b"],), {}, "a,b"),
    (len, ([1, 2],), {}, 2),
    (max, (1, 2), {}, 2),
    (sorted, ([1, 2],), {"reverse": True}, [2, 1]),
    (int, ("3",), {}, 3),
    (dict, (), {"a": 1}, {"a": 1}),
    (lambda x: x + 1, (1,), {}, 2),
    (Shop().add, (1,), {}, 3),
    (Shop(), (1, 4), {}, [2, 1, 4]),
    (Shop, (4,), {}, Shop(4)),
    (positional, (1,), {}, [1, 2]),
    (functools.partial(positional, 1), (), {"second": 3}, [1, 3]),
    (open_ended, (1, Shop(5)), {"then": NEW_YEAR}, [1, [5], {"then": 2020}]),
    (gives_shop, (), {}, Shop(3)),
    (gives_tuple, (), {}, (NEW_YEAR, {"a"})),
]
REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (positional, (1, 2, 3), {}, "step positional: too many positional arguments"),
    (positional, (1,), {"third": 3}, "step positional: got an unexpected keyword argument 'third'"),
    (positional, (), {}, "first is missing"),
    (Shop.sell, (Shop(), 1), {}, "is a method: use it from an object of its class"),
    (object, (), {}, "JSON"),
    (3, (), {}, r"flow.step\(\) accepts a function and its arguments, not 3"),
]


class Callables(FlowCase):
    async def test_every_callable_is_a_step_and_its_result_is_the_same_value_in_a_later_run(self) -> None:
        seen: list[list[Any]] = []

        @workflow
        async def work(flow: Flow) -> None:
            found = [await flow.step(function, *args, **kwargs) for function, args, kwargs, _ in CALLS]
            seen.append(found)
            await flow.ask("Go on?")

        for _ in range(2):
            await work.run(options=self.options(), session="s")
        expected = [result for *_, result in CALLS]
        self.assertEqual(seen, [expected, expected])

    async def test_a_call_that_cannot_be_is_refused_in_a_sentence(self) -> None:
        for number, (function, args, kwargs, words) in enumerate(REFUSED):

            @workflow
            async def work(flow: Flow) -> None:
                await flow.step(function, *args, **kwargs)  # noqa: B023 - called before the next iteration

            with self.subTest(words), self.assertRaises(RunFailedError) as caught:
                await work.run(options=self.options(), session=f"s{number}")
            self.assertRegex(str(caught.exception), words)


if __name__ == "__main__":
    unittest.main()
