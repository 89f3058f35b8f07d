"""A typed function as a tool: what stands in JSON arrives as the types that the function names."""

import enum
import unittest
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from openagentic_sdk import ToolContext, tool
from openagentic_sdk.errors import MissingServiceError, OptionsError, ToolInputError
from openagentic_sdk.kernel.tool import Deps, Services


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Line:
    start: Point
    end: Point
    colour: Colour | None = None


def arrives_as(annotation: Any, value: Any) -> Any:
    """What a function gets for a JSON value of a parameter with this annotation."""
    got: list[Any] = []

    def take(value: Any) -> None:
        """Take it."""
        got.append(value)

    take.__annotations__["value"] = annotation
    tool(take).run_sync({"value": value}, ToolContext(cwd="."))
    return got[0]


class ContextOfACall(unittest.TestCase):
    def test_a_function_gets_the_dependencies_of_its_run_through_a_context_that_names_their_type(self) -> None:
        @tool
        def total(context: ToolContext[dict[str, int]], item: str) -> int:
            """Price of an item."""
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

    def test_what_is_of_no_such_type_is_refused_before_the_function_runs(self) -> None:
        for annotation, value in (
            (tuple[int, str], [1]),
            (tuple[int, str], [1, "a", "b"]),
            (Colour | None, "green"),
            (Point | Line, {"z": 1}),
        ):
            with self.subTest(str(annotation)), self.assertRaises(ToolInputError):
                arrives_as(annotation, value)

    def test_a_type_that_json_cannot_say_is_no_parameter(self) -> None:
        for annotation in (complex, type[int], object()):
            with self.subTest(str(annotation)), self.assertRaises(OptionsError):
                arrives_as(annotation, 1)

    def test_what_a_function_returns_is_json(self) -> None:
        @tool
        def draw() -> Any:
            "Draw."
            return {"line": Line(Point(1), Point(2), Colour.RED), "seen": {1}, "at": (1, Colour.BLUE)}

        point = {"x": 1, "y": 0}
        self.assertEqual(
            draw.run_sync({}, ToolContext(cwd=".")),
            {"line": {"start": point, "end": {"x": 2, "y": 0}, "colour": "red"}, "seen": [1], "at": [1, "blue"]},
        )
