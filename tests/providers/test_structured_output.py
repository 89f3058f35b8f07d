"""Final answers that fit a schema: its strict form, the value in whatever text came, and what is wrong with it."""

from __future__ import annotations

import unittest
from dataclasses import dataclass
from typing import Any, TypedDict

from openagentic_sdk.errors import OptionsError, ToolInputError
from openagentic_sdk.kernel.structured import read_output_schema, strict_schema
from openagentic_sdk.tools.schema import validate


@dataclass
class City:
    name: str
    people: int
    mayor: str | None = None


class Point(TypedDict):
    x: float
    y: float


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["a", "b"]},
        "default": {"type": "string", "default": "x"},
        "inner": {"$ref": "#/$defs/inner"},
    },
    "required": ["name"],
    "$defs": {"inner": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []}},
}


class Schemas(unittest.TestCase):
    def test_strict_mode_closes_every_object_and_makes_optional_properties_nullable(self) -> None:
        strict = strict_schema(SCHEMA)
        self.assertNotIn("$schema", strict)
        self.assertEqual(strict["required"], ["name", "kind", "default", "inner"])
        self.assertIs(strict["additionalProperties"], False)
        self.assertEqual(strict["properties"]["name"], {"type": "string"})
        self.assertEqual(strict["properties"]["kind"], {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]})
        self.assertEqual(strict["properties"]["default"], {"type": ["string", "null"]})
        inner = strict["$defs"]["inner"]
        self.assertEqual((inner["required"], inner["additionalProperties"]), (["n"], False))

    def test_dataclasses_typed_dicts_and_lists_have_schemas(self) -> None:
        self.assertEqual(read_output_schema(City).schema["required"], ["name", "people"])
        self.assertEqual(read_output_schema(Point).read_text('{"x": 1, "y": 2.5}'), {"x": 1, "y": 2.5})
        self.assertEqual(read_output_schema(list[int]).read_text('{"value": [1, 2]}'), [1, 2])
        self.assertEqual(read_output_schema(list[int]).read_text("[1, 2]"), [1, 2])
        self.assertEqual(read_output_schema({"type": "integer"}).read_text("7"), 7)
        with self.assertRaises(OptionsError):
            read_output_schema(bytes)

    def test_the_names_of_formats_are_usable(self) -> None:
        self.assertEqual(read_output_schema(City).response_format()["json_schema"]["name"], "City")


class Values(unittest.TestCase):
    def test_json_is_found_in_what_models_write(self) -> None:
        city = {"name": "Ulm", "people": 1}
        for text in (
            '{"name": "Ulm", "people": 1}',
            ' \n{"name": "Ulm", "people": 1, "mayor": null}\n',
            '```json\n{"name": "Ulm", "people": 1}\n```',
            'Here you are: {"name": "Ulm", "people": 1}. Anything else?',
            'I thought of {x}, then {"name": "Rom", "people": 2}, but: {"name": "Ulm", "people": 1}',
        ):
            value = read_output_schema(City).read_text(text)
            self.assertEqual({key: value[key] for key in city}, city, text)

    def test_nulls_that_strict_mode_added_are_taken_out_again(self) -> None:
        value = read_output_schema(SCHEMA).read_text(
            '{"name": "x", "kind": null, "default": null, "inner": {"n": null}}'
        )
        self.assertEqual(value, {"name": "x", "inner": {}})

    def test_what_does_not_fit_says_where(self) -> None:
        schema: Any = read_output_schema(City)
        for text, message in (
            ("no idea", "no JSON"),
            ('{"name": "Ulm"}', "people"),
            ('{"name": "Ulm", "people": "many"}', "people"),
            ('{"name": "Ulm", "people": NaN}', "no JSON"),
            ("{" * 5000, "no JSON"),
        ):
            with self.assertRaisesRegex(ToolInputError, message) as raised:
                schema.read_text(text)
            self.assertIn("corrected", schema.repair_prompt(raised.exception))

    def test_values_among_other_kinds_are_named_too(self) -> None:
        schema = {"anyOf": [{"enum": ["ok", "error"]}, {"const": 7}, {"type": ["integer", "array"]}, {"type": "null"}]}
        with self.assertRaisesRegex(ToolInputError, "'error' or 7 or a whole number or a list or null, not 'no'"):
            validate("no", schema)


if __name__ == "__main__":
    unittest.main()
