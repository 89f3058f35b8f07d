"""A class created by `@frozen` or `@mutable` cannot be distinguished from one created by the standard decorator.

Each case below is the source of a small module. It runs twice, once with each decorator; every expression must then return
the same value or fail with the same message in both.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import unittest
from typing import Any

from openagentic_sdk.ground.frozen import changed, frozen, mutable, values_of
from tests.size import full_size

HEADER = """
from __future__ import annotations
import abc, copy, inspect, pickle, pprint, typing
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, asdict, astuple, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar
T = TypeVar("T")

def shown(cls):
    return [(f.name, f.type, f.default, f.init, f.repr, f.compare, f.hash, f.kw_only, dict(f.metadata)) for f in fields(cls)]

def matched(value, cls):
    match value:
        case cls(first, second):
            return first, second
    return None

def again(value):
    return [pickle.loads(pickle.dumps(value, number)) == value for number in range(2, 6)]
"""

POINT = """
@value
class Point:
    x: int
    y: int = 2
    tags: list = field(default_factory=list)
"""
ON_POINT = (
    *("Point(1)", "Point(1, 3, ['a'])", "Point(x=1, y=3)", "Point(1, tags=['b'])", "Point(1).tags is Point(1).tags"),
    *("Point()", "Point(1, 2, [], 4)", "Point(1, x=2)", "Point(1, z=2)", "Point(1, **{'not a name': 2})"),
    *("Point(1) == Point(1)", "Point(1) == Point(2)", "Point(1) == (1, 2, [])", "Point(1) != Point(1)"),
    *("Point(1) < Point(2)", "hash(Point(1))", "hash(Point(1, 2, ())) == hash((1, 2, ()))", "len({Point(1, 2, ())})"),
    *("setattr(Point(1), 'x', 2)", "setattr(Point(1), 'other', 2)", "delattr(Point(1), 'x')", "delattr(Point(1), 'z')"),
    *(
        "inspect.signature(Point)",
        "Point.__doc__",
        "Point(1).__doc__",
        "Point.__match_args__",
        "matched(Point(1), Point)",
    ),
    *("Point.__init__.__qualname__", "Point.__repr__.__qualname__", "Point.__init__.__module__"),
    *("inspect.ismethod(Point(1).__init__)", "inspect.signature(Point(1).__init__)", "vars(Point(y=3, x=1))"),
    *("Point.__init__.__annotations__", "typing.get_type_hints(Point)", "Point.__annotations__"),
    *("is_dataclass(Point)", "is_dataclass(Point(1))", "shown(Point)", "Point.__dataclass_params__"),
    *("asdict(Point(1, tags=[Point(2)]))", "astuple(Point(1))", "replace(Point(1), y=5)", "replace(Point(1), z=5)"),
    *("copy.copy(Point(1))", "copy.deepcopy(Point(1))", "again(Point(1, 2, [Point(3)]))", "vars(Point(1))"),
    *("Point.y", "Point.tags", "sorted(set(dir(Point)) - set(dir(object)))", "hasattr(Point, '__replace__')"),
    *("isinstance(Point.__hash__(Point(1, 2, ())), int)", "getattr(copy, 'replace', replace)(Point(1), y=7)"),
    *("Point.__eq__(Point(1), 1)", "(lambda n: Point(n) == Point(n))(float('nan'))", "Point(1).__init__(4)"),
    "(lambda tags: tags.append(Point(1, 2, tags)) or tags)([])",
)

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "a plain class": (POINT, ON_POINT),
    "what tools that read classes ask for": (
        "@value\nclass A:\n    names: Sequence[str]\n    call: Callable[[int], Any] = abs\n"
        "    more: dict[str, Any] = field(default_factory=dict)\n",
        (
            *(
                "typing.get_type_hints(A.__init__)",
                "inspect.signature(A, eval_str=True)",
                "A.__init__.__globals__ is globals()",
            ),
            *("inspect.signature(A.__repr__)", "inspect.signature(A.__eq__)", "inspect.signature(A.__setattr__)"),
            *("pprint.pformat(A(['a' * 50, 'b' * 50]))", "hasattr(A.__repr__, '__wrapped__')"),
        ),
    ),
    "a documented class": (
        "@value\nclass A:\n    '''Says so.'''\n    x: int",
        ("A.__doc__", "A(1)", "inspect.getdoc(A)"),
    ),
    "no fields": (
        "@value\nclass A:\n    pass",
        ("A()", "A() == A()", "hash(A())", "A(1)", "setattr(A(), 'x', 1)", "A.__doc__", "A.__match_args__"),
    ),
    "one field": (
        "@value\nclass A:\n    x: int",
        ("A(1)", "hash(A(1)) == hash((1,))", "A(1) == A(1.0)", "astuple(A(1))"),
    ),
    "the standard decorator extends it": (
        POINT + "@dataclass(frozen=True)\nclass Sub(Point):\n    z: int = 9\n",
        (
            *("Sub(1)", "Sub(1, z=2) == Sub(1, z=2)", "Sub(1) == Point(1)", "shown(Sub)", "replace(Sub(1), x=4)"),
            *(
                "setattr(Sub(1), 'x', 1)",
                "setattr(Sub(1), 'z', 1)",
                "again(Sub(1))",
                "matched(Sub(1), Sub)",
                "asdict(Sub(1))",
            ),
            *("hash(Sub(1, 2, ()))  == hash((1, 2, (), 9))", "inspect.signature(Sub)", "Sub.__doc__", "Point.__doc__"),
        ),
    ),
    "the standard decorator extends it without comparing": (
        POINT + "@dataclass(frozen=True, eq=False, repr=False)\nclass Sub(Point):\n    z: int = 9\n",
        ("Sub(1, z=1) == Sub(1, z=2)", "Sub(1, z=1)", "hash(Sub(1, 2, (), 1)) == hash(Sub(1, 2, (), 2))"),
    ),
    "the standard decorator extends it with slots and an order": (
        POINT + "@dataclass(frozen=True, slots=True, order=True)\nclass Sub(Point):\n    z: int = 9\n",
        ("Sub(1)", "Sub(1) < Sub(2)", "again(Sub(1))", "Sub.__slots__", "setattr(Sub(1), 'z', 1)"),
    ),
    "it extends the standard one": (
        "@dataclass(frozen=True)\nclass Base:\n    x: int\n    kept: list = field(default_factory=list)\n"
        "@value\nclass Sub(Base):\n    z: int = 9\n",
        (
            "Sub(1)",
            "Sub(1, [], 2)",
            "setattr(Sub(1), 'x', 1)",
            "again(Sub(1))",
            "shown(Sub)",
            "Sub()",
            "Sub.__match_args__",
        ),
    ),
    "it extends a standard one with slots": (
        "@dataclass(frozen=True, slots=True)\nclass Base:\n    x: int\n@value\nclass Sub(Base):\n    z: int = 9\n",
        ("Sub(1)", "Sub(1).x", "vars(Sub(1))", "again(Sub(1))", "Sub(1) == Sub(1)"),
    ),
    "it extends a plain class with slots": (
        "class Base:\n    __slots__ = ('x',)\n@value\nclass Sub(Base):\n    x: int\n    z: int = 9\n",
        ("Sub(1)", "Sub(1).x", "vars(Sub(1))", "shown(Sub)"),
    ),
    "it extends its own kind": (
        POINT + "@value\nclass Sub(Point):\n    y: int = 5\n    z: ClassVar[int] = 3\n    more: str = 'm'\n",
        (
            *("Sub(1)", "Sub.__match_args__", "shown(Sub)", "setattr(Sub(1), 'z', 1)", "setattr(Sub(1), 'x', 1)"),
            *("Sub(1) == Point(1)", "Point(1)", "Sub.z", "again(Sub(1))", "inspect.signature(Sub)"),
        ),
    ),
    "it extends two of its own kind": (
        "@value\nclass A:\n    x: int = 1\n@value\nclass B:\n    y: int = 2\n@value\nclass C(A, B):\n    z: int = 3\n",
        ("C()", "C(1, 2, 3)", "shown(C)", "C.__mro__", "inspect.signature(C)"),
    ),
    "a default that only a base names": (
        "class Base:\n    x = 4\n@value\nclass A(Base):\n    x: int\n",
        ("A()", "A(1)", "inspect.signature(A)"),
    ),
    "a plain class extends it": (
        POINT + "class Sub(Point):\n    def __init__(self, x):\n        super().__init__(x + 1)\n",
        (
            *(
                "Sub(1)",
                "Sub(1) == Sub(1)",
                "Sub(1) == Point(2)",
                "setattr(Sub(1), 'x', 1)",
                "setattr(Sub(1), 'other', 1)",
            ),
            *("delattr(Sub(1), 'other')", "replace(Sub(1), x=3)", "Sub.__match_args__", "is_dataclass(Sub)"),
        ),
    ),
    "its base is used first through a plain class": (
        POINT + "class Sub(Point):\n    pass\n",
        ("Sub(1)", "Sub(1, 2)", "Sub.__init__.__qualname__", "Point(1)", "Sub.__doc__"),
    ),
    "fields by name only": (
        "@value(kw_only=True)\nclass A:\n    x: int = 1\n    y: int\n    z: int = field(default=3, kw_only=False)\n",
        ("A(y=1)", "A(9, y=1)", "A(1, 2)", "A.__match_args__", "inspect.signature(A)", "A()", "A.__dataclass_params__"),
    ),
    "fields by name only after a mark": (
        "@value\nclass A:\n    x: int\n    _: KW_ONLY\n    y: int = 1\n    z: int\n",
        ("A(1, z=2)", "A(1, 2)", "A.__match_args__", "shown(A)", "inspect.signature(A)"),
    ),
    "some fields by name only": (
        "@value\nclass A:\n    x: int = field(default=1, kw_only=True)\n    y: int\n",
        ("A(2)", "A(2, x=3)", "A(2, 3)", "inspect.signature(A)", "A.__match_args__"),
    ),
    "work after the constructor": (
        "@value\nclass A:\n    x: int\n    def __post_init__(self):\n"
        "        if self.x < 0:\n            raise ValueError(self.x)\n"
        "@value\nclass B(A):\n    y: int = 1\n",
        ("A(1)", "A(-1)", "B(-1)", "replace(A(1), x=-1)"),
    ),
    "a field that the work after it fills": (
        "@value\nclass A:\n    x: int\n    y: int = field(init=False)\n"
        "    def __post_init__(self):\n        object.__setattr__(self, 'y', self.x + 1)\n",
        ("A(1)", "A(1, 2)", "replace(A(1), x=5)", "replace(A(1), y=5)", "again(A(1))", "A.__match_args__"),
    ),
    "fields that no argument sets": (
        "@value\nclass A:\n    x: int = field(init=False, default=3)\n"
        "    y: list = field(init=False, default_factory=list)\n",
        ("A()", "vars(A())", "A(1)", "A.x"),
    ),
    "a field never filled": (
        "@value\nclass A:\n    x: int = field(init=False)\n",
        ("A()", "vars(A())", "A() == A()"),
    ),
    "values for the constructor alone": (
        "@value\nclass A:\n    x: int\n    scale: InitVar[int] = 2\n    y: int = field(default=0)\n"
        "    def __post_init__(self, scale):\n        object.__setattr__(self, 'y', self.x * scale)\n",
        ("A(3)", "A(3, 4)", "shown(A)", "A.__match_args__", "inspect.signature(A)", "replace(A(3), x=1)"),
    ),
    "fields left out of one thing each": (
        "@value\nclass A:\n    x: int = field(default=1, repr=False)\n    y: int = field(default=2, compare=False)\n"
        "    z: int = field(default=3, hash=False)\n    w: int = field(default=4, compare=False, hash=True)\n",
        ("A()", "A(1, 2) == A(1, 9)", "A(5) == A(1)", "hash(A()) == hash((1, 4))", "shown(A)"),
    ),
    "metadata": ("@value\nclass A:\n    x: int = field(default=1, metadata={'unit': 's'})", ("shown(A)", "A.x")),
    "own methods": (
        "@value\nclass A:\n    x: int\n    def __repr__(self):\n        return f'<{self.x}>'\n"
        "    def __eq__(self, other):\n        return True\n",
        ("A(1)", "A(1) == A(2)", "hash(A(1)) == hash((1,))"),
    ),
    "an own hash": (
        "@value\nclass A:\n    x: list\n    def __hash__(self):\n        return 7\n",
        ("hash(A([]))", "A([]) == A([])"),
    ),
    "no hash at all": ("@value\nclass A:\n    x: int\n    __hash__ = None\n", ("hash(A(1))",)),
    "an own hash and an own comparison": (
        "@value\nclass A:\n    x: list\n    def __hash__(self):\n        return 7\n"
        "    def __eq__(self, other):\n        return False\n",
        ("hash(A([]))", "A([]) == A([])"),
    ),
    "an own constructor": (
        "@value\nclass A:\n    x: int\n    def __init__(self, text):\n        object.__setattr__(self, 'x', int(text))\n",
        ("A('3')", "A()", "inspect.signature(A)", "A.__match_args__"),
    ),
    "own match arguments": (
        POINT.replace("x: int", "__match_args__ = ('y', 'x')\n    x: int"),
        ("matched(Point(1), Point)",),
    ),
    "slots": (
        "@value(slots=True)\nclass A:\n    x: int\n    y: int = 2\n",
        ("A(1)", "A.__slots__", "again(A(1))", "hasattr(A(1), '__dict__')", "setattr(A(1), 'z', 1)"),
    ),
    "slots of its own": (
        "@value\nclass A:\n    __slots__ = ('x',)\n    x: int\n",
        ("A(1)", "hasattr(A(1), '__dict__')"),
    ),
    "an order": (
        "@value(order=True)\nclass A:\n    x: int\n    y: int = 2\n",
        ("sorted([A(2), A(1)])", "A(1) <= A(1)", "A(1) < 3", "hash(A(1)) == hash((1, 2))"),
    ),
    "no comparison": ("@value(eq=False)\nclass A:\n    x: list\n", ("A([]) == A([])", "isinstance(hash(A([])), int)")),
    "a type parameter": (
        "@value\nclass A(Generic[T]):\n    x: T\n    y: Callable[[T], T] = abs\n",
        ("A(1)", "A[int](2)", "A(1).y(-3)", "again(A(1))", "A[int]"),
    ),
    "a protocol above it": (
        "class Named(Protocol):\n    @property\n    def name(self) -> str: ...\n@value\nclass A(Named):\n    name: str\n",
        ("A('n')", "A('n').name"),
    ),
    "an abstract base": (
        "class Base(abc.ABC):\n    @abc.abstractmethod\n    def name(self): ...\n"
        "@value\nclass A(Base):\n    x: int\n@value\nclass B(A):\n    def name(self):\n        return 'b'\n",
        ("A(1)", "B(1).name()"),
    ),
    "an abstract method that the decorator fills": (
        "class Base(abc.ABC):\n    @abc.abstractmethod\n    def __eq__(self, other): ...\n"
        "@value\nclass A(Base):\n    x: int\n",
        ("A(1) == A(1)",),
    ),
    "an exception": (
        "@value\nclass A(Exception):\n    text: str\n",
        ("A('t')", "A('t').args", "isinstance(A('t'), Exception)"),
    ),
    "a function as default": (
        "def twice(n):\n    return 2 * n\n@value\nclass A:\n    f: Callable = twice\n",
        ("A().f(2)", "A(abs).f(-2)", "shown(A)[0][2] is twice"),
    ),
    "a property in the place of a default": (
        "class Held:\n    def __get__(self, found, owner):\n        return 5 if found is None else found.__dict__['_x']\n"
        "    def __set__(self, found, value):\n        found.__dict__['_x'] = value + 1\n"
        "@value\nclass A:\n    x: int = Held()\n",
        ("A()", "A(2).x", "vars(A(2))"),
    ),
    "awkward names": (
        "@value\nclass A:\n    self: int\n    MISSING: int = 1\n"
        "    values: list = field(default_factory=list)\n    cls: int = 0\n",
        ("A(1)", "A(self=1, cls=2)", "A()", "inspect.signature(A)"),
    ),
    "types that are not text": (
        "A = value(type('A', (), {'__annotations__': {'x': int, 'y': ClassVar[int]}, 'y': 3, '__module__': __name__}))\n",
        ("A(1)", "A(1, 2)", "shown(A)"),
    ),
    "a value for the constructor whose type is not text": (
        "A = value(type('A', (), {'__annotations__': {'x': InitVar[int]}, '__module__': __name__,"
        " '__post_init__': lambda self, x: object.__setattr__(self, 'seen', x)}))\n",
        ("A(1).seen", "A(1)"),
    ),
    "class variables in every spelling": (
        "import typing as t\nfrom typing import ClassVar as CV\nclass Own: pass\n@value\nclass A:\n    x: int\n"
        "    a: ClassVar = 1\n    b: 'ClassVar[int]' = 2\n    c: typing.ClassVar[int] = 3\n    d: t.ClassVar[int] = 4\n"
        "    e: CV[int] = 5\n    f: dict[str, 'ClassVar'] = 6\n    g: ClassVarious = 7\n"
        "    h: Callable[[ClassVar], int] = 8\n",
        ("A(1)", "shown(A)", "list(A.__dataclass_fields__)", "A.a", "replace(A(1), x=2)"),
    ),
    "class variables alone": (
        "@value\nclass A:\n    x: int\n    a: ClassVar[int] = 1\n    b: ClassVar = 2\n    c: 'ClassVar[list]' = (1,)\n",
        ("A(1)", "shown(A)", "[(f.name, f.kw_only) for f in A.__dataclass_fields__.values()]", "A.c", "A(1, 2)"),
    ),
    "names of another module's": (
        "from typing import ClassVar as CV\nfrom dataclasses import InitVar as IV\n@value\nclass A:\n    x: int\n"
        "    a: CV[int] = 1\n    b: CV = 2\n@value\nclass B:\n    x: int\n    y: IV[int] = 1\n"
        "    def __post_init__(self, y): ...\n",
        ("A(1)", "A(1, 2)", "shown(A)", "B(1, 2)", "shown(B)", "inspect.signature(B)"),
    ),
    "another mark": (
        "from dataclasses import KW_ONLY as KO\n@value\nclass A:\n    x: int\n    _: KO\n    y: int = 1\n    z: int\n",
        ("A(1, z=2)", "A(1, 2)", "inspect.signature(A)"),
    ),
    "another ClassVar": (
        "ClassVar = dict\n@value\nclass A:\n    x: ClassVar[str, int] = None\n",
        ("A({1: 2})", "shown(A)"),
    ),
    "a class variable that is a field": (
        "@value\nclass A:\n    x: ClassVar[int] = field(default=3)\n    y: int = 1\n",
        ("A()", "A.x", "shown(A)"),
    ),
    "a class inside a class": (
        "class Outer:\n    @value\n    class Inner:\n        x: int\n",
        ("Outer.Inner(1)", "Outer.Inner()", "again(Outer.Inner(1))", "Outer.Inner.__init__.__qualname__"),
    ),
}

REFUSED = {
    "a list as default": "@value\nclass A:\n    x: list = []\n",
    "a dict in a field": "@value\nclass A:\n    x: dict = field(default={})\n",
    "a required field after a default": "@value\nclass A:\n    x: int = 1\n    y: int\n",
    "a required field after a made default": "@value\nclass A:\n    x: list = field(default_factory=list)\n    y: int\n",
    "a required field after the base's default": "@value\nclass A:\n    x: int = 1\n@value\nclass B(A):\n    y: int\n",
    "a default put before the base's required field": (
        "@value\nclass A:\n    x: int\n    y: int\n@value\nclass B(A):\n    x: int = 1\n"
    ),
    "a field without a type": "@value\nclass A:\n    x = field(default=1)\n",
    "two marks": "@value\nclass A:\n    _: KW_ONLY\n    x: int\n    __: KW_ONLY\n",
    "a setter of its own": "@value\nclass A:\n    x: int\n    def __setattr__(self, name, value): ...\n",
    "a base that can change": "@dataclass\nclass A:\n    x: int\n@value\nclass B(A):\n    y: int\n",
    "an extension that can change": "@value\nclass A:\n    x: int\n@dataclass\nclass B(A):\n    y: int\n",
    "a made default for the constructor alone": "@value\nclass A:\n    x: InitVar[list] = field(default_factory=list)\n",
    "a made default for a class variable": "@value\nclass A:\n    x: ClassVar[list] = field(default_factory=list)\n",
    "a class variable by name only": "@value\nclass A:\n    x: ClassVar[int] = field(default=1, kw_only=True)\n",
    "slots with a default in the class": "@value(slots=True)\nclass A:\n    __slots__ = ('x',)\n    x: int\n",
    "an order without a comparison": "@value(order=True, eq=False)\nclass A:\n    x: int\n",
}


def standard(cls: Any = None, /, **settings: Any) -> Any:
    return dataclasses.dataclass(frozen=True, **settings)(cls) if cls else lambda cls: standard(cls, **settings)


def told(decorator: Any, text: str, expressions: tuple[str, ...], first: str = "") -> list[str]:
    """The observations of a program that defines the classes of `text` with the decorator and then evaluates each
    expression.

    `first` runs between the two.
    """
    module = types.ModuleType("values_under_test")
    module.__dict__["value"] = decorator
    sys.modules[module.__name__] = module
    try:
        exec(compile(HEADER + text, module.__name__, "exec", dont_inherit=True), module.__dict__)
        exec(first, module.__dict__)
        return [seen(expression, module.__dict__) for expression in expressions]
    except (TypeError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        del sys.modules[module.__name__]


def seen(expression: str, names: dict[str, Any]) -> str:
    try:
        return repr(eval(expression, names))
    except Exception as error:  # noqa: BLE001 - every failure is compared
        return f"{type(error).__name__}: {error}"


# The first objects of a class are filled manually: compile all constructors beforehand.
COMPILE_ALL = (
    "[vars(one).get('__init__') and one.__init__ for one in list(globals().values()) if isinstance(one, type)]"
)


class ContractTest(unittest.TestCase):
    @full_size
    def test_every_use_gives_what_the_standard_decorator_gives(self) -> None:
        for name, (text, expressions) in CASES.items():
            ours, theirs = told(frozen, text, expressions), told(standard, text, expressions)
            compiled = told(frozen, text, expressions, COMPILE_ALL)
            self.assertEqual(len(theirs), len(expressions), f"{name}: {theirs}")
            for expression, our, of_compiled, their in zip(expressions, ours, compiled, theirs, strict=True):
                with self.subTest(name, expression=expression):
                    self.assertEqual(our, their)
                    self.assertEqual(of_compiled, their)

    def test_every_use_of_a_class_that_can_change_gives_what_the_standard_decorator_gives(self) -> None:
        setter = "    def __setattr__(self, name, value):\n        super().__setattr__(name, (name, value))\n"
        more = {
            "a setter of its own": ("@value\nclass A:\n    x: int\n" + setter, ("A(1)", "setattr(A(1), 'x', 2)")),
            "a base with a setter": (f"class B:\n{setter}@value\nclass A(B):\n    x: int\n", ("A(1)", "vars(A(1))")),
            "changes": (POINT, ("(lambda p: (setattr(p, 'x', 5), p, delattr(p, 'x'), vars(p)))(Point(1))",)),
            "a base that cannot change": (
                "@dataclass(frozen=True)\nclass A:\n    x: int\n@value\nclass B(A):\n    y: int",
                (),
            ),
        }
        for name, (text, expressions) in {**CASES, **more}.items():
            ours, theirs = told(mutable, text, expressions), told(dataclasses.dataclass, text, expressions)
            for expression, our, their in zip(expressions, ours, theirs, strict=len(theirs) > 1):
                with self.subTest(name, expression=expression):
                    self.assertEqual(our, their)
            self.assertEqual(len(ours), len(theirs))

    def test_each_expression_gives_the_same_when_it_is_the_first_use(self) -> None:
        for expression in ON_POINT:
            with self.subTest(expression=expression):
                self.assertEqual(told(frozen, POINT, (expression,)), told(standard, POINT, (expression,)))

    def test_a_mistake_is_refused_when_the_class_is_defined_and_in_the_same_words(self) -> None:
        for name, text in REFUSED.items():
            with self.subTest(name):
                their = told(standard, text, ("'was accepted'",))
                self.assertNotEqual(their, ["'was accepted'"])
                self.assertEqual(told(frozen, text, ("'was accepted'",)), their)

    def test_the_fields_of_a_value_are_found_where_its_class_was_extended_with_slots(self) -> None:
        @frozen
        class Point:
            x: int
            y: int = 2

        @dataclasses.dataclass(frozen=True, slots=True)
        class Named(Point):
            name: str = "n"

        self.assertEqual(values_of(Point(1)), {"x": 1, "y": 2})
        self.assertEqual(values_of(Named(1)), {"x": 1, "y": 2, "name": "n"})
        self.assertEqual(changed(Named(1), y=5), Named(1, 5))

    def test_nothing_is_made_before_it_is_asked_for(self) -> None:
        @frozen
        class Point:
            x: int

        lazy = ("__repr__", "__eq__", "__hash__", "__dataclass_fields__")
        untouched = {name: type(vars(Point)[name]).__name__ for name in lazy}
        self.assertEqual(untouched, dict.fromkeys(lazy, "_AtFirstUse"))
        self.assertEqual(vars(Point(1)), {"x": 1})
        self.assertNotIsInstance(vars(Point)["__init__"], types.FunctionType)
        points = [Point(1) for _ in range(20)]
        self.assertIsInstance(vars(Point)["__init__"], types.FunctionType)
        self.assertEqual(points, [Point(1)] * 20)


if __name__ == "__main__":
    unittest.main()
