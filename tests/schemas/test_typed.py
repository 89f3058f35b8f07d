"""Common types, in JSON and back: one table for schemas, values and refusals."""

import collections
import dataclasses
import datetime
import decimal
import enum
import importlib.util
import ipaddress
import pathlib
import sys
import typing
import unittest
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, Required, TypedDict, TypeVar

from openagentic_sdk.errors import OptionsError, ToolError, ToolInputError
from openagentic_sdk.ground.schemas import require_checkable, validate
from openagentic_sdk.ground.schemas.typed import json_schema, json_type, require_writable, to_json

T = TypeVar("T")
UserId = typing.NewType("UserId", int)
Tree = dict[str, "Tree"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Slug(str):
    pass


@dataclasses.dataclass
class Node:
    name: str
    children: list["Node"] = dataclasses.field(default_factory=list)
    parent: Optional["Node"] = None


@dataclasses.dataclass(frozen=True)
class Box(Generic[T]):
    held: T
    more: tuple[T, ...] = ()


@dataclasses.dataclass(frozen=True)
class Boxes(Box[int]):
    label: str = ""


@dataclasses.dataclass
class Checked:
    count: int
    doubled: int = dataclasses.field(init=False)
    start: dataclasses.InitVar[int] = 0

    def __post_init__(self, start: int) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")
        self.doubled = 2 * self.count + start


@dataclasses.dataclass
class Forest:
    trees: Tree


class Place(NamedTuple):
    x: int
    y: float = 0.5


class Movie(TypedDict, total=False):
    title: Required[str]
    year: int


class Film(TypedDict):
    title: "str"
    year: "NotRequired[int]"


class Wrapped(TypedDict, Generic[T]):
    value: T


@dataclasses.dataclass(frozen=True)
class Limit:
    """A constraint in the form of annotated_types."""

    gt: Any = None
    ge: Any = None
    lt: Any = None
    min_length: Any = None
    max_length: Any = None
    pattern: Any = None
    func: Any = None


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def read(annotation: Any, value: Any) -> Any:
    """The value that JSON represents, once the schema and the reader have accepted it."""
    kind = json_type(annotation)
    require_checkable(kind.schema, "the schema")
    return kind.read(validate(value, kind.schema))


class PlainTypes(unittest.TestCase):
    def test_each_type_comes_out_of_json_as_itself_and_goes_back(self) -> None:
        moment = datetime.datetime(2024, 5, 31, 12, 0, tzinfo=datetime.UTC)
        key = "12345678-1234-5678-1234-567812345678"
        for annotation, plain, wanted in (
            (int, 3, 3),
            (float, 2.5, 2.5),
            (UserId, 7, 7),
            (Slug, "a-b", Slug("a-b")),
            (uuid.UUID, key, uuid.UUID(key)),
            (decimal.Decimal, "12.50", decimal.Decimal("12.50")),
            (datetime.datetime, "2024-05-31T12:00:00+00:00", moment),
            (datetime.date, "2024-05-31", datetime.date(2024, 5, 31)),
            (datetime.time, "12:30:00", datetime.time(12, 30)),
            (datetime.timedelta, "P1DT5.5S", datetime.timedelta(days=1, seconds=5.5)),
            (datetime.timedelta, "-P0DT90S", datetime.timedelta(seconds=-90)),
            (bytes, "AP8=", b"\0\xff"),
            (pathlib.Path, "a/b", pathlib.Path("a/b")),
            (ipaddress.IPv4Address, "127.0.0.1", ipaddress.ip_address("127.0.0.1")),
            (Colour, "red", Colour.RED),
            (Rank, 2, Rank.HIGH),
            (Literal["a", 1, Colour.BLUE], "blue", Colour.BLUE),
            (int | None, None, None),
            (float | int, 3, 3),
            (uuid.UUID | Colour | str, "red", Colour.RED),
            (datetime.date | str, "soon", "soon"),
            (list[datetime.date], ["2024-05-31"], [datetime.date(2024, 5, 31)]),
            (Sequence[Colour], ["red"], [Colour.RED]),
            (Set[Rank], [1], {Rank.LOW}),
            (tuple[int, Colour], [1, "red"], (1, Colour.RED)),
            (tuple[()], [], ()),
            (collections.deque[int], [1], collections.deque([1])),
            (dict[int, Colour], {"3": "red"}, {3: Colour.RED}),
            (Mapping[Colour, int], {"red": 1}, {Colour.RED: 1}),
            (dict[datetime.date, int], {"2024-05-31": 1}, {datetime.date(2024, 5, 31): 1}),
            (Place, {"x": 1, "y": 2.0}, Place(1, 2.0)),
            (Movie, {"title": "M"}, {"title": "M"}),
            (Film, {"title": "M"}, {"title": "M"}),
            (Wrapped[Colour], {"value": "red"}, {"value": Colour.RED}),
            (Box[Colour], {"held": "red", "more": ["blue"]}, Box(Colour.RED, (Colour.BLUE,))),
            (Box[Box[int]], {"held": {"held": 1, "more": []}, "more": []}, Box(Box(1))),
            (Boxes, {"held": 1, "more": [2], "label": "x"}, Boxes(1, (2,), "x")),
            (Forest, {"trees": {"a": {"b": {}}}}, Forest({"a": {"b": {}}})),
            (
                Node,
                {"name": "a", "children": [{"name": "b", "children": [], "parent": None}], "parent": None},
                Node("a", [Node("b")]),
            ),
        ):
            with self.subTest(str(annotation), plain=plain):
                found = read(annotation, plain)
                self.assertEqual((found, type(found)), (wanted, type(wanted)))
                self.assertEqual(to_json(found), [*plain] if annotation == Set[Rank] else plain)

    def test_other_forms_of_a_value_are_taken_too(self) -> None:
        for annotation, plain, wanted in (
            (decimal.Decimal, 12.5, decimal.Decimal("12.5")),
            (
                datetime.datetime,
                "2024-05-31T12:00:00Z",
                datetime.datetime(2024, 5, 31, 12, tzinfo=datetime.UTC),
            ),
            (datetime.timedelta, "PT1H30M", datetime.timedelta(minutes=90)),
            (datetime.timedelta, "P2W", datetime.timedelta(weeks=2)),
            (int, 3.0, 3),
            (float, 3, 3.0),
            (Checked, {"count": 2, "start": 1}, 5),
        ):
            with self.subTest(str(annotation), plain=plain):
                found = read(annotation, plain)
                self.assertEqual(found.doubled if isinstance(found, Checked) else found, wanted)

    def test_a_value_of_another_type_is_reported_with_its_path(self) -> None:
        for annotation, plain, path in (
            (uuid.UUID, "x", ""),
            (datetime.date, "2024-13-01", ""),
            (datetime.timedelta, "PT", ""),
            (datetime.timedelta, "a day", ""),
            (decimal.Decimal, "1,5", ""),
            (bytes, "é", ""),
            (list[datetime.date], ["2024-05-31", "soon"], "[1]"),
            (dict[str, list[uuid.UUID]], {"a": ["x"]}, "a[0]"),
            (dict[int, int], {"x": 1}, "x"),
            (Checked, {"count": -1}, ""),
            (Box[Checked], {"held": {"count": -1}}, "held"),
            (tuple[int, str], ["a", 1], "[0]"),
            (Node, {"name": "a", "children": [{"name": 1}]}, "children[0].name"),
        ):
            with self.subTest(str(annotation), plain=plain), self.assertRaises(ToolInputError) as caught:
                json_type(annotation).read(plain)
            self.assertEqual(caught.exception.path, path, str(caught.exception))

    def test_a_recursive_type_refers_to_itself_and_an_outermost_one_is_an_object(self) -> None:
        schema = json_schema(Node)
        self.assertEqual(schema["type"], "object")
        self.assertEqual(schema["properties"]["children"]["items"], {"$ref": "#/$defs/Node"})
        self.assertEqual(schema["$defs"]["Node"]["required"], ["name"])
        self.assertNotIn("$defs", json_schema(Box[int]))
        pair = json_schema(tuple[Box[int], Box[str]])["items"]["anyOf"]
        self.assertEqual([one["properties"]["held"]["type"] for one in pair], ["integer", "string"])

    def test_typed_dicts_require_their_keys_even_with_annotations_as_texts(self) -> None:
        self.assertEqual(json_schema(Movie)["required"], ["title"])
        self.assertEqual(json_schema(Film)["required"], ["title"])

    def test_limits_are_in_the_schema_and_hold(self) -> None:
        day = datetime.date(2024, 1, 1)
        for annotation, keywords, good, bad in (
            (Annotated[int, Limit(gt=0, lt=5)], {"exclusiveMinimum": 0, "exclusiveMaximum": 5}, 3, 5),
            (Annotated[str, Limit(min_length=2)], {"minLength": 2}, "ab", "a"),
            (Annotated[str, Limit(pattern="^a")], {"pattern": "^a"}, "ab", "b"),
            (Annotated[list[int], Limit(max_length=1)], {"maxItems": 1}, [1], [1, 2]),
            (Annotated[dict[str, int], Limit(min_length=1)], {"minProperties": 1}, {"a": 1}, {}),
            (Annotated[int | None, Limit(ge=1)], {"minimum": 1}, None, 0),
            (Annotated[decimal.Decimal, Limit(gt=0)], {"exclusiveMinimum": 0}, "0.01", "0"),
            (Annotated[datetime.date, Limit(ge=day)], {}, "2024-01-01", "2023-12-31"),
            (Annotated[bytes, Limit(max_length=2)], {}, "AAA=", "AAAA"),
            (Annotated[set[int], Limit(min_length=2)], {"minItems": 2}, [1, 2], [1, 1]),
            (Annotated[int, Limit(func=lambda value: value % 2 == 0)], {}, 2, 3),
        ):
            with self.subTest(str(annotation)):
                schema = json_schema(annotation)
                self.assertEqual({**schema, **keywords}, schema)
                read(annotation, good)
                with self.assertRaises(ToolInputError):
                    json_type(annotation).read(bad)

    def test_a_union_takes_the_first_type_whose_limits_hold(self) -> None:
        positive = Annotated[int, Limit(gt=0)]
        self.assertEqual(read(positive | Literal[-1] | str, -1), -1)
        with self.assertRaises(ToolInputError):
            json_type(positive | str).read(-2)

    def test_a_type_without_a_json_form_is_refused_with_a_remedy(self) -> None:
        class Bare:
            pass

        for annotation in (
            complex,
            type[int],
            object(),
            Bare,
            list[Bare],
            Callable[[int], int],
            Iterator[int],
            set[list[int]],
            dict[tuple[int, int], str],
            dict[Box[int], str],
            tuple[int, *tuple[str, ...]],
            enum.Enum("Empty", []),  # type: ignore[misc]
            "NoSuchName",
        ):
            with self.subTest(str(annotation)), self.assertRaisesRegex(OptionsError, "use |define|cannot be"):
                json_type(annotation)

    def test_results_that_json_cannot_hold_are_refused(self) -> None:
        class Bare:
            pass

        for annotation in (Iterator[int], Bare, list[Bare], int | Bare, complex):
            with self.subTest(str(annotation)), self.assertRaises(OptionsError):
                require_writable(annotation)
        for annotation in (None, int, Any, object, collections.Counter[str], Node, Sequence[Place], typing.NoReturn, T):
            require_writable(annotation)
        loop: list[Any] = []
        loop.append(loop)
        for value in (Bare(), {1: Bare()}, iter([]), 1j, loop):
            with self.subTest(repr(value)), self.assertRaises(ToolError):
                to_json(value)

    def test_names_of_the_function_around_are_found(self) -> None:
        @dataclasses.dataclass
        class Inner:
            next: "Inner | None" = None
            other: "Other | None" = None

        @dataclasses.dataclass
        class Other:
            count: int = 0

        self.assertEqual(read(Inner, {"next": {"other": {"count": 1}}}), Inner(Inner(other=Other(1))))

    @unittest.skipIf(sys.version_info < (3, 12), "`type Name = ...` came with Python 3.12")
    def test_an_alias_may_hold_itself(self) -> None:
        names: dict[str, Any] = {}
        exec("type Json = dict[str, Json] | list[Json] | int\ntype Pair[T] = tuple[T, T]", names)
        self.assertEqual(read(names["Json"], {"a": [1, {"b": 2}]}), {"a": [1, {"b": 2}]})
        with self.assertRaises(ToolInputError):
            json_type(names["Json"]).read({"a": ["x"]})
        self.assertEqual(read(names["Pair"][Colour], ["red", "blue"]), (Colour.RED, Colour.BLUE))


@unittest.skipUnless(has("pydantic"), "pydantic is not installed (extra `dev`)")
class Pydantic(unittest.TestCase):
    def setUp(self) -> None:
        import pydantic

        self.pydantic = pydantic
        names: dict[str, Any] = {"__name__": __name__}
        exec(PYDANTIC, names)
        self.names = names

    def test_a_model_describes_and_checks_itself_wherever_it_occurs(self) -> None:
        order, item = self.names["Order"], self.names["Item"]
        plain = {
            "key": "12345678-1234-5678-1234-567812345678",
            "at": "2024-05-31T12:00:00Z",
            "items": [{"price": "2.50"}],
        }
        found = read(order, plain)
        self.assertEqual((found.items[0].price, found.at.year), (decimal.Decimal("2.50"), 2024))
        self.assertEqual(to_json(found)["items"], [{"price": "2.50"}])
        self.assertEqual(read(dict[str, list[item]], {"a": [{"price": 1}]})["a"][0].price, 1)
        with self.assertRaises(ToolInputError) as caught:
            json_type(list[order]).read([{**plain, "items": [{"price": "-1"}]}])
        self.assertEqual(caught.exception.path, "[0].items[0].price")
        self.assertNotIn("pydantic.dev", str(caught.exception))

    def test_definitions_of_two_models_of_one_name_stay_apart(self) -> None:
        order, other = self.names["Order"], self.names["OtherOrder"]
        schema = json_schema(tuple[order, other, order])
        require_checkable(schema, "the schema")
        self.assertEqual(sorted(schema["$defs"]), ["Item", "Item_2", "Order"])
        tree = self.names["Tree"]
        self.assertEqual(json_schema(tree)["type"], "object")
        self.assertEqual(read(tree, {"kids": [{"kids": []}]}).kids[0].kids, [])

    def test_fields_and_validators_of_pydantic_hold_outside_of_models(self) -> None:
        Field = self.pydantic.Field
        schema = json_schema(Annotated[int, Field(gt=0, le=9, description="How many.", examples=[3])])
        wanted = {"type": "integer", "exclusiveMinimum": 0, "maximum": 9, "description": "How many.", "examples": [3]}
        self.assertEqual(schema, wanted)
        self.assertEqual(read(Annotated[str, self.names["stripped"]], " a "), "a")
        self.assertEqual(str(read(self.pydantic.HttpUrl, "http://a.example/")), "http://a.example/")
        self.assertEqual(to_json(read(self.pydantic.HttpUrl, "http://a.example/")), "http://a.example/")
        self.assertEqual(read(self.names["Strict"], {"day": "2024-05-31"}).day, datetime.date(2024, 5, 31))
        self.assertEqual(read(self.names["Data"], {"count": 2}).count, 2)
        with self.assertRaises(ToolInputError):
            json_type(self.names["Data"]).read({"count": -2})


PYDANTIC = """
import datetime, decimal, uuid
import pydantic
from pydantic import BaseModel, ConfigDict, Field

class Item(BaseModel):
    price: decimal.Decimal = Field(ge=0)

class Order(BaseModel):
    key: uuid.UUID
    at: datetime.datetime
    items: list[Item]

FirstOrder = Order

def other():
    class Item(BaseModel):
        weight: float

    class Order(BaseModel):
        items: list[Item]

    return Order

OtherOrder = other()

class Tree(BaseModel):
    kids: list["Tree"]

class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: datetime.date

@pydantic.dataclasses.dataclass
class Data:
    count: int = Field(gt=0)

stripped = pydantic.AfterValidator(str.strip)
"""


@unittest.skipUnless(has("attrs"), "attrs is not installed (extra `dev`)")
class Attrs(unittest.TestCase):
    def test_an_attrs_class_is_an_object_of_its_arguments(self) -> None:
        import attrs

        @attrs.define
        class Part:
            _key: uuid.UUID
            count: int = attrs.field(default=1, validator=attrs.validators.gt(0))
            tags: list[str] = attrs.field(factory=list)
            twice: int = attrs.field(init=False, default=0)

        plain = {"key": "12345678-1234-5678-1234-567812345678"}
        found = read(Part, plain)
        self.assertEqual(found, Part(uuid.UUID(plain["key"])))
        self.assertEqual(json_schema(Part)["required"], ["key"])
        self.assertEqual(to_json(found), {**plain, "count": 1, "tags": [], "twice": 0})
        with self.assertRaises(ToolInputError):
            json_type(Part).read({**plain, "count": 0})


@unittest.skipUnless(has("msgspec"), "msgspec is not installed (extra `dev`)")
class Msgspec(unittest.TestCase):
    def test_a_struct_is_an_object_of_its_encoded_names_and_its_tag(self) -> None:
        import msgspec

        class Cat(msgspec.Struct, tag=True, rename="camel"):
            full_name: str
            lives: Annotated[int, msgspec.Meta(gt=0, description="How many.")] = 9

        class Dog(msgspec.Struct, tag=True):
            name: str

        found = read(list[Cat | Dog], [{"type": "Cat", "fullName": "Tom"}, {"type": "Dog", "name": "Rex"}])
        self.assertEqual(found, [Cat("Tom"), Dog("Rex")])
        self.assertEqual(to_json(found[0]), {"type": "Cat", "fullName": "Tom", "lives": 9})
        self.assertEqual(json_schema(Cat)["required"], ["type", "fullName"])
        with self.assertRaises(ToolInputError):
            json_type(Cat).read({"type": "Cat", "fullName": "Tom", "lives": 0})


if __name__ == "__main__":
    unittest.main()
