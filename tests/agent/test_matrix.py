"""Common types in each place where an agent accepts one: a tool's input and result, the output, deps."""

import asyncio
import collections
import dataclasses
import datetime
import enum
import fractions
import functools
import importlib.util
import ipaddress
import json
import pathlib
import unittest
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Protocol, TypedDict, TypeVar, Union

from openagentic_sdk import OptionsError, ToolContext, tool
from openagentic_sdk.errors import ToolInputError
from openagentic_sdk.parts.structured import read_output_schema
from tests.size import full_size

from .support import calling, scripted

T = TypeVar("T")
Json = Union[dict[str, "Json"], list["Json"], str, int, None]  # noqa: UP007 - texts have no `|`
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Plain:
    x: int
    _: dataclasses.KW_ONLY
    tags: list[str] = field(default_factory=list)
    start: dataclasses.InitVar[int] = 0


@dataclass(frozen=True, slots=True)
class Slotted:
    x: int


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class Node:
    children: list["Node"] = field(default_factory=list)


class Place(NamedTuple):
    name: str
    floor: int = 0


class Options(TypedDict, total=False):
    a: int


class Talks(Protocol):
    def talk(self) -> str: ...


ID = uuid.UUID(int=7)
DAY = datetime.datetime(2024, 5, 31, 12, tzinfo=datetime.UTC)
# A type, a value of it in JSON, and the value.
TAKEN: Sequence[tuple[Any, Any, Any]] = (
    (str, "a", "a"), (int, 3, 3), (float, 1.5, 1.5), (bool, True, True), (Any, {"a": [1]}, {"a": [1]}), (object, 1, 1),
    (Literal[Colour.RED, Level.LOW], "red", Colour.RED), (Colour, "red", Colour.RED), (Level, 1, Level.LOW),
    (Right, 3, Right.READ | Right.WRITE), (pathlib.Path, "a/b", pathlib.Path("a/b")), (bytes, "YQ==", b"a"),
    (datetime.datetime, "2024-05-31T12:00:00+00:00", DAY), (datetime.date, "2024-05-31", DAY.date()),
    (datetime.time, "12:00:00", datetime.time(12)), (datetime.timedelta, "P1DT2S", datetime.timedelta(1, 2)),
    (Decimal, "1.50", Decimal("1.50")), (fractions.Fraction, "1/3", fractions.Fraction(1, 3)), (uuid.UUID, str(ID), ID),
    (ipaddress.IPv4Address, "127.0.0.1", ipaddress.IPv4Address("127.0.0.1")), (UserId, 4, 4),
    (list[int], [1], [1]), (frozenset[int], [1], frozenset({1})), (tuple[int, ...], [1, 2], (1, 2)),
    (set[str], ["a"], {"a"}),
    (tuple[int, str], [1, "a"], (1, "a")), (collections.deque[int], [1], collections.deque([1])), (Sequence[int], [1], [1]),
    (Mapping[str, int], {"a": 1}, {"a": 1}), (dict[Colour, list[int]], {"red": [1]}, {Colour.RED: [1]}),
    (list[int | None] | None, [1, None], [1, None]), (int | None, None, None), (Slotted | None, {"x": 1}, Slotted(1)),
    (Plain, {"x": 1, "tags": ["a"]}, Plain(1, tags=["a"])),
    (Slotted, {"x": 1}, Slotted(1)), (Box[int], {"value": 1}, Box(1)),
    (Box[Box[Colour]], {"value": {"value": "red"}}, Box(Box(Colour.RED))), (Options, {"a": 1}, {"a": 1}),
    (Node, {"children": [{"children": []}]}, Node([Node()])), (Place, {"name": "a", "floor": 1}, Place("a", 1)),
    (Json, {"a": [1, None, "b"]}, {"a": [1, None, "b"]}), (Annotated[int, "How many."], 2, 2),
)  # fmt: skip
# Types that JSON cannot represent, and whether they are also refused as results.
REFUSED: Sequence[tuple[Any, bool]] = (
    (complex, True), (Callable[[], int], True), (Awaitable[int], True), (AsyncIterator[int], True), (Iterator[int], True),
    (Talks, False), (type[int], True), (memoryview, False), (dict[tuple[int, int], int], False), (range, False),
    (list[complex], True), (dict[str, Callable[[], int]], True), (Box[complex], False), (complex | None, True),
)  # fmt: skip


def taking(kind: Any, seen: list[Any]) -> Callable[..., Any]:
    """A function that accepts a value of this type and returns it."""

    def take(value: Any) -> Any:
        """Take it."""
        seen.append(value)
        return value

    take.__annotations__ = {"value": kind, "return": kind}
    return take


def callables(kind: Any, seen: list[Any]) -> dict[str, Any]:
    """The same function in each form that a tool may have."""
    plain = taking(kind, seen)

    async def later(value: Any) -> Any:
        """Take it."""
        return plain(value)

    later.__annotations__ = plain.__annotations__

    @functools.wraps(plain)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    def with_more(value: Any, more: int, ctx: ToolContext[Any]) -> Any:
        """Take it."""
        return plain(value)

    with_more.__annotations__ |= plain.__annotations__

    def method(self: Any, value: Any) -> Any:
        """Take it."""
        return plain(value)

    method.__annotations__ = {"self": Any, **plain.__annotations__}
    holder = type("Holder", (), {"take": method, "of_class": classmethod(method), "beside": staticmethod(plain)})
    called = type("Called", (), {"__call__": method, "__doc__": "Take it."})
    return {
        "function": plain,
        "async function": later,
        "decorated": decorated,
        "partial": functools.partial(with_more, more=1),
        "method": holder().take,
        "class method": holder.of_class,
        "static method": holder.beside,
        "object": called(),
    }


class TypesInEachPlace(unittest.TestCase):
    @full_size
    def test_a_type_works_as_input_result_output_and_deps(self) -> None:
        for at, (kind, plain, value) in enumerate(TAKEN):
            with self.subTest(kind=str(kind)):
                seen: list[Any] = []
                made = tool(taking(kind, seen))
                self.assertEqual(made.run_sync({"value": plain}, ToolContext()), plain)
                self.assertEqual(seen, [value])
                answer = {"value": plain} if read_output_schema(kind).is_wrapped else plain
                call = {"tool_calls": [{"name": "final_answer", "arguments": answer}]}
                form_turns: list[tuple[str, Any]] = [("tool", call), ("text", json.dumps(answer))]
                for form, turn in form_turns[at % 2 :: 2]:
                    turn = plain if kind is str else turn
                    agent = scripted(turn, output=kind, settings={"output_form": form})
                    self.assertEqual(asyncio.run(agent.run("Hi.")).output, value)
                agent = scripted(calling("given"), "Done.", tools=[given], deps=kind)
                if value is not None and at % 3 == 0:
                    asyncio.run(agent.run("Hi.", deps=value))
                    self.assertIs(GIVEN.pop(), value)

    def test_a_type_that_json_cannot_hold_is_refused_when_the_tool_or_agent_is_made(self) -> None:
        for kind, is_no_result in REFUSED:
            with self.subTest(kind=str(kind)):

                def take(value: Any) -> None:
                    """Take it."""

                def give() -> Any:
                    """Give it."""

                take.__annotations__["value"], give.__annotations__["return"] = kind, kind
                with self.assertRaisesRegex(OptionsError, "tool take: .*(use|write)"):
                    tool(take)
                with self.assertRaises(OptionsError):
                    scripted("Hi.", output=kind)
                if is_no_result:
                    with self.assertRaisesRegex(OptionsError, "tool give: .* cannot be returned as JSON: "):
                        tool(give)

    @full_size
    def test_each_form_of_a_function_takes_and_gives_each_type(self) -> None:
        for kind, plain, value in TAKEN[-9:]:
            seen: list[Any] = []
            for name, function in callables(kind, seen).items():
                with self.subTest(kind=str(kind), form=name):
                    made = tool(function)
                    self.assertEqual(list(made.input_schema["properties"]), ["value"])
                    self.assertEqual(made.run_sync({"value": plain}, ToolContext()), plain)
                    self.assertEqual(seen.pop(), value)

    @unittest.skipUnless(importlib.util.find_spec("annotated_types"), "annotated_types is not installed")
    def test_each_constraint_of_annotated_types_holds(self) -> None:
        import annotated_types as at

        aware, naive, elsewhere = "2024-05-31T12:00:00Z", "2024-05-31T12:00:00", "2024-05-31T12:00:00+02:00"
        for kind, good, bad in (
            (Annotated[int, at.Gt(1), at.Le(3)], [2, 3], [1, 4]),
            (Annotated[int, at.Interval(ge=1, lt=3), at.MultipleOf(2)], [2], [1, 4]),
            (Annotated[str, at.Len(1, 2)], ["a"], ["", "abc"]),
            (Annotated[list[int], at.MinLen(1)], [[1]], [[]]),
            (Annotated[str, at.Predicate(str.islower)], ["a"], ["A"]),
            (at.LowerCase[str], ["a"], ["A"]),
            (Annotated[datetime.date, at.Ge(datetime.date(2024, 1, 1))], ["2024-05-31"], ["2023-05-31"]),
            (Annotated[datetime.datetime, at.Timezone(None)], [naive], [aware, elsewhere]),
            (Annotated[datetime.datetime, at.Timezone(...)], [aware, elsewhere], [naive]),
            (Annotated[datetime.datetime, at.Timezone(datetime.UTC)], [aware], [naive, elsewhere]),
            (list[Annotated[int, at.Gt(0)]], [[1]], [[0]]),
        ):
            seen: list[Any] = []
            made = tool(taking(kind, seen))
            for value in good:
                with self.subTest(kind=str(kind), good=value):
                    made.run_sync({"value": value}, ToolContext())
            for value in bad:
                with self.subTest(kind=str(kind), bad=value), self.assertRaises(ToolInputError):
                    made.run_sync({"value": value}, ToolContext())


GIVEN: list[Any] = []


def given(ctx: ToolContext[Any]) -> str:
    """Look at the deps."""
    GIVEN.append(ctx.deps)
    return "seen"


if __name__ == "__main__":
    unittest.main()
