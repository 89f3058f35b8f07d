"""A typed function as a tool: JSON values arrive as the types in its signature."""

import datetime
import enum
import functools
import importlib.util
import unittest
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

from openagentic_sdk import (
    MemorySessionStore,
    OpenAgenticOptions,
    PermissionGate,
    ToolContext,
    ToolOutput,
    run,
    tool,
)
from openagentic_sdk.errors import MissingServiceError, OptionsError, ToolError, ToolInputError
from openagentic_sdk.ground.schemas.typed import to_json
from openagentic_sdk.kernel.tool import Deps, Services
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.base import BlockingTool, Tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Place(NamedTuple):
    name: str
    floor: int


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Line:
    start: Point
    end: Point
    colour: Colour | None = None


def arrives_as(annotation: Any, value: Any) -> Any:
    """The value a function receives for a JSON value if its parameter has this annotation."""
    values: list[Any] = []

    def take(value: Any) -> None:
        """Take it."""
        values.append(value)

    take.__annotations__["value"] = annotation
    tool(take).run_sync({"value": value}, ToolContext(cwd="."))
    return values[0]


class ContextOfACall(unittest.TestCase):
    def test_each_parameter_for_the_context_receives_it(self) -> None:
        @tool
        def same(ctx: ToolContext, item: str, context: ToolContext) -> bool:
            """Compare."""
            return ctx is context

        self.assertEqual([*same.input_schema["properties"]], ["item"])
        self.assertIs(same.run_sync({"item": "x"}, ToolContext()), True)

    def test_a_function_gets_the_dependencies_of_its_run_through_a_context_that_names_their_type(self) -> None:
        @tool
        def total(context: ToolContext[dict[str, int]], item: str) -> int:
            """Return the price of an item."""
            return context.deps[item]

        self.assertNotIn("context", total.input_schema["properties"])
        services = Services({Deps: Deps({"tea": 3})})
        self.assertEqual(total.run_sync({"item": "tea"}, ToolContext(services=services)), 3)
        with self.assertRaisesRegex(MissingServiceError, "Deps"):
            total.run_sync({"item": "tea"}, ToolContext())


class TypedFunctions(unittest.TestCase):
    def test_json_arrives_as_the_type_that_the_parameter_names(self) -> None:
        line = {"start": {"x": 1}, "end": {"x": 2, "y": 3}, "colour": "red"}
        for annotation, value, wanted in (
            (Point, {"x": 1}, Point(1)),
            (Line, line, Line(Point(1), Point(2, 3), Colour.RED)),
            (Line | None, None, None),
            (Colour, "blue", Colour.BLUE),
            (Colour | None, "blue", Colour.BLUE),
            (Colour | str, "green", "green"),
            (Literal["all"] | Colour, "red", Colour.RED),
            (Point | Line | str, line, Line(Point(1), Point(2, 3), Colour.RED)),
            (Point | Line | str, "none", "none"),
            (list[Point | int], [{"x": 1}, 2], [Point(1), 2]),
            (dict[str, Point] | None, {"a": {"x": 1}}, {"a": Point(1)}),
            (Annotated[list[Annotated[Colour, "each"]], "all"] | None, ["red"], [Colour.RED]),
            (set[int], [1, 1, 2], {1, 2}),
            (frozenset[Colour] | None, ["red"], frozenset({Colour.RED})),
            (tuple[Point, ...], [{"x": 1}, {"x": 2}], (Point(1), Point(2))),
            (tuple[int, str, Colour], [1, "a", "red"], (1, "a", Colour.RED)),
        ):
            with self.subTest(str(annotation)):
                self.assertEqual(arrives_as(annotation, value), wanted)

    def test_a_parameter_may_have_any_name(self) -> None:
        @tool
        def look(path: str, make: str, args: str, kwargs: str, value: str, name: str, input: str, function: str) -> str:
            return f"{path}{make}{args}{kwargs}{value}{name}{input}{function}"

        names = ("path", "make", "args", "kwargs", "value", "name", "input", "function")
        self.assertEqual(look.run_sync({name: name[0] for name in names}, ToolContext()), "pmakvnif")

    def test_arguments_of_another_type_are_refused_before_the_function_runs(self) -> None:
        for annotation, value in (
            (tuple[int, str], [1]),
            (tuple[int, str], [1, "a", "b"]),
            (Colour | None, "green"),
            (Point | Line, {"z": 1}),
        ):
            with self.subTest(str(annotation)), self.assertRaises(ToolInputError):
                arrives_as(annotation, value)

    def test_a_type_without_a_json_form_is_not_a_parameter(self) -> None:
        for annotation in (complex, type[int], object()):
            with self.subTest(str(annotation)), self.assertRaises(OptionsError):
                arrives_as(annotation, 1)

    def test_the_return_value_of_a_function_becomes_json(self) -> None:
        @tool
        def draw() -> Any:
            "Draw."
            return {"line": Line(Point(1), Point(2), Colour.RED), "seen": {1}, "at": (1, Colour.BLUE)}

        point = {"x": 1, "y": 0}
        self.assertEqual(
            draw.run_sync({}, ToolContext(cwd=".")),
            {"line": {"start": point, "end": {"x": 2, "y": 0}, "colour": "red"}, "seen": [1], "at": [1, "blue"]},
        )

    def test_a_result_is_written_as_its_type_is_read(self) -> None:
        day = datetime.date(2024, 5, 31)
        for result, plain in (
            (day, "2024-05-31"),
            ({day: {Colour.RED}}, {"2024-05-31": ["red"]}),
            (ToolOutput(Point(1)), {"x": 1, "y": 0}),
            (b"\0", "AA=="),
        ):
            with self.subTest(repr(result)):
                self.assertEqual(tool(functools.partial(returned, result)).run_sync({}, ToolContext()), plain)
        with self.assertRaisesRegex(ToolError, "JSON cannot represent .* return text"):
            tool(functools.partial(returned, object())).run_sync({}, ToolContext())

    def test_a_result_that_json_cannot_hold_is_refused_when_the_tool_is_made(self) -> None:
        def stream() -> Iterator[int]:
            """Count."""
            yield 1

        def connect() -> functools.partial[int]:
            """Connect."""
            raise NotImplementedError

        for function in (stream, connect):
            with self.subTest(function.__name__), self.assertRaises(OptionsError):
                tool(function)

    def test_a_name_that_only_type_checkers_see_is_refused_with_a_remedy(self) -> None:
        def look(key: "NowhereImported") -> str:  # type: ignore[name-defined]  # noqa: F821
            """Look."""
            return ""

        with self.assertRaisesRegex(OptionsError, "NowhereImported.*TYPE_CHECKING"):
            tool(look)


def returned(result: Any) -> Any:
    """Return it."""
    return result


class ResultsOfClasses(unittest.IsolatedAsyncioTestCase):
    async def test_a_class_gives_whatever_a_function_gives(self) -> None:
        day = datetime.datetime(2024, 5, 31, 12, tzinfo=datetime.UTC)
        known = (day, {"at": day}, Decimal("1.50"), uuid.UUID(int=7), {1}, b"a", Colour.RED, {Colour.RED: 1}, Level.LOW)
        records = (Point(1), [Point(1)], Place("a", 1), [Place("a", 1)])
        values = (*known, *records, [Level.LOW], (1, 2), float("nan"), {"n": [float("-inf")]}, "text", 7)

        class Given(Tool):
            name, description, input_schema, effect = "given", "Give it.", {"type": "object"}, "read"

            async def run(self, input: Any, ctx: ToolContext) -> Any:
                return ToolOutput(values[input["at"]], {"at": day}) if input.get("wrapped") else values[input["at"]]

        class Blocking(BlockingTool):
            name, description, input_schema, effect = "blocking", "Give it.", {"type": "object"}, "read"

            def execute(self, input: Any, ctx: ToolContext) -> Any:
                return values[input["at"]]

        def function(at: int, wrapped: bool = False) -> Any:
            """Give it."""
            return values[at]

        names = [("function", {}), ("given", {}), ("given", {"wrapped": True}), ("blocking", {})]
        calls = [{"name": name, "arguments": {"at": at, **more}} for at in range(len(values)) for name, more in names]
        options = OpenAgenticOptions(
            provider=ScriptedProvider([{"tool_calls": calls}, "Done."]),
            model="m",
            tools=[Given(), Blocking(), tool(effect="read")(function)],
            session_store=MemorySessionStore(),
        )
        results = [event for event in (await run(prompt="Go.", options=options)).events if event.type == "tool.result"]
        for at, value in enumerate(values):
            of_function, *others = [(event.outcome, event.output) for event in results[4 * at : 4 * at + 4]]
            with self.subTest(repr(value)):
                self.assertEqual(others, [of_function] * 3)
                self.assertEqual(of_function, ("ok", to_json(value)))
                self.assertNotIn("not a JSON value", str(of_function))
        self.assertEqual(results[2].meta, {"at": "2024-05-31T12:00:00+00:00"})
        self.assertEqual(Given().run_sync({"at": 0}, ToolContext()), "2024-05-31T12:00:00+00:00")
        self.assertEqual(Blocking().run_sync({"at": 9}, ToolContext()), {"x": 1, "y": 0})


class Shop:
    """Tools of every kind that a class can define."""

    def __init__(self, name: str) -> None:
        self.name = name

    @tool(name="find", effect="read")
    async def lookup(self, order: int, ctx: ToolContext) -> str:
        """Look an order up."""
        return f"{self.name} {order} {ctx.cwd}"

    @tool
    def copy_of(self, other: "Line") -> Line:
        """Copy it."""
        return other

    def plain(self, order: int) -> str:
        """Look."""
        return f"{self.name} {order}"

    @tool
    @classmethod
    def of_class(cls, order: int) -> str:
        """Look."""
        return f"{cls.__name__} {order}"

    @classmethod
    @tool
    def in_class(cls, order: int) -> str:
        """Look."""
        return f"{cls.__name__} {order}"

    @tool
    @staticmethod
    def beside(order: int) -> str:
        """Look."""
        return f"beside {order}"

    @staticmethod
    @tool
    def aside(order: int) -> str:
        """Look."""
        return f"aside {order}"


class Finder:
    """Find an order."""

    async def __call__(self, order: int) -> str:
        """Find it."""
        return f"found {order}"


def charge(order: int, key: str, note: str = "") -> str:
    """Charge it."""
    return f"{order} {key}"


class MethodsAndObjects(unittest.IsolatedAsyncioTestCase):
    def test_only_what_is_not_bound_is_asked_of_the_model(self) -> None:
        shop = Shop("corner")
        for made, name, result in (
            (shop.lookup, "find", "corner 7 ."),
            (tool(shop.plain), "plain", "corner 7"),
            (shop.of_class, "of_class", "Shop 7"),
            (Shop.of_class, "of_class", "Shop 7"),
            (tool(shop.in_class), "in_class", "Shop 7"),
            (Shop.beside, "beside", "beside 7"),
            (shop.aside, "aside", "aside 7"),
            (tool(Finder()), "Finder", "found 7"),
            (tool(functools.partial(charge, key="secret")), "charge", "7 secret"),
        ):
            with self.subTest(name):
                self.assertEqual(made.name, name)
                self.assertEqual(made.input_schema["properties"]["order"], {"type": "integer"})
                self.assertEqual(made.input_schema["required"], ["order"])
                self.assertNotIn("secret", str(made.input_schema))
                self.assertEqual(made.run_sync({"order": 7}, ToolContext(cwd=".")), result)
        self.assertEqual(shop.copy_of.effect, "unsafe")
        self.assertEqual(shop.lookup.effect, "read")

    async def test_a_method_without_its_object_is_refused_with_a_remedy(self) -> None:
        options = OpenAgenticOptions(provider=ScriptedProvider(["x"]), model="m", tools=[Shop.lookup])
        with self.assertRaisesRegex(OptionsError, r"find is a method: .* `Shop\(\)\.lookup`"):
            await run(prompt="Look.", options=options)

    async def test_a_method_and_a_class_of_values_work_in_a_run(self) -> None:
        shop = Shop("corner")
        calls = {"tool_calls": [{"name": "copy_of", "arguments": {"other": {"start": {"x": 1}, "end": {"x": 2}}}}]}
        result = await run(
            prompt="Copy.",
            options=OpenAgenticOptions(
                provider=ScriptedProvider([calls, "Done."]),
                model="m",
                tools=[shop.copy_of],
                permission_gate=PermissionGate(permission_mode="bypass"),
                session_store=MemorySessionStore(),
                setting_sources=(),
            ),
        )
        ended = next(event for event in result.events if event.type == "tool.result")
        self.assertEqual(
            (ended.outcome, ended.output),
            ("ok", {"start": {"x": 1, "y": 0}, "end": {"x": 2, "y": 0}, "colour": None}),
        )


@unittest.skipUnless(importlib.util.find_spec("pydantic"), "pydantic is not installed (extra `dev`)")
class FieldsOfPydantic(unittest.TestCase):
    def test_fields_give_limits_names_and_defaults_to_parameters(self) -> None:
        from pydantic import Field

        def order(
            count: int = Field(gt=0, description="How many."),
            tags: list[str] = Field(default_factory=lambda: ["new"]),  # noqa: B008
            kind: Annotated[str, Field(alias="type")] = "tea",
        ) -> Any:
            """Order it."""
            return [count, tags, kind]

        made = tool(order)
        self.assertEqual(made.input_schema["required"], ["count"])
        self.assertEqual(list(made.input_schema["properties"]), ["count", "tags", "type"])
        self.assertEqual(made.input_schema["properties"]["count"]["description"], "How many.")
        self.assertEqual(made.run_sync({"count": 1}, ToolContext()), [1, ["new"], "tea"])
        self.assertEqual(made.run_sync({"count": 1, "type": "milk"}, ToolContext()), [1, ["new"], "milk"])
        with self.assertRaises(ToolInputError):
            made.run_sync({"count": 0}, ToolContext())
