"""Frozen classes that share their methods do what the standard ones do."""

from __future__ import annotations

import copy
import pickle
import unittest
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

from openagentic_sdk.frozen import frozen


@dataclass(frozen=True)
class StandardBase:
    kind: ClassVar[str] = "base"
    seq: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Standard(StandardBase):
    kind: ClassVar[str] = "point"
    name: str
    tags: Sequence[str] = field(default_factory=list)
    meta: Any = None


@frozen
class SharedBase:
    kind: ClassVar[str] = "base"
    seq: int | None = field(default=None, kw_only=True)


@frozen
class Shared(SharedBase):
    kind: ClassVar[str] = "point"
    name: str
    tags: Sequence[str] = field(default_factory=list)
    meta: Any = None


@frozen
class Named:
    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"


class FrozenTest(unittest.TestCase):
    def test_objects_are_made_from_the_same_arguments_and_look_the_same(self) -> None:
        cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            (("a",), {}),
            (("a", ["t"], 3), {"seq": 4}),
            ((), {"meta": None, "name": "b"}),
        ]
        for given, named in cases:
            ours, theirs = Shared(*given, **named), Standard(*given, **named)
            with self.subTest(given=given, named=named):
                self.assertEqual(repr(ours), repr(theirs).replace("Standard", "Shared"))
                self.assertEqual(asdict(ours), asdict(theirs))
                self.assertEqual([one.name for one in fields(ours)], [one.name for one in fields(theirs)])

    def test_arguments_that_do_not_fit_are_refused_in_the_same_words(self) -> None:
        wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((), {}), (("a", [], 3, 4), {}), (("a",), {"name": "b"}), (("a",), {"other": 1}),
        ]  # fmt: skip
        for given, named in wrong:
            with self.subTest(given=given, named=named):
                with self.assertRaises(TypeError) as theirs:
                    Standard(*given, **named)
                with self.assertRaises(TypeError) as ours:
                    Shared(*given, **named)
                self.assertEqual(str(ours.exception), str(theirs.exception).replace("Standard", "Shared"))

    def test_an_object_that_holds_itself_is_shown_once(self) -> None:
        for cls in (Shared, Standard):
            held: list[Any] = []
            held.append(one := cls("a", held))
            self.assertEqual(repr(one), f"{cls.__name__}(seq=None, name='a', tags=[...], meta=None)")

    def test_a_default_that_is_made_is_made_for_each_object(self) -> None:
        self.assertIsNot(Shared("a").tags, Shared("a").tags)

    def test_equality_and_hash_come_from_the_class_and_its_values(self) -> None:
        one, same, other = Shared("a", (), seq=1), Shared("a", (), seq=1), Shared("a", (), seq=2)
        self.assertEqual((one == same, hash(one) == hash(same), one == other), (True, True, False))
        self.assertNotEqual(one, Standard("a", (), seq=1))
        with self.assertRaises(TypeError):
            hash(Shared("a", []))

    def test_nothing_can_be_changed(self) -> None:
        shared = Shared("a")
        for change in (lambda: setattr(shared, "name", "b"), lambda: delattr(shared, "name")):
            with self.assertRaises(FrozenInstanceError):
                change()
        self.assertEqual(shared.name, "a")

    def test_the_tools_for_dataclasses_work(self) -> None:
        shared = Shared("a", ["t"])
        self.assertTrue(is_dataclass(Shared))
        self.assertEqual(replace(shared, name="b"), Shared("b", ["t"]))
        self.assertEqual([copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))], [shared, shared])
        match shared:
            case Shared(name, tags):
                self.assertEqual((name, tags), ("a", ["t"]))

    def test_a_method_that_the_class_defines_stays(self) -> None:
        self.assertEqual(repr(Named("x")), "<x>")


if __name__ == "__main__":
    unittest.main()
