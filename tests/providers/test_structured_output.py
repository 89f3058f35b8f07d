"""Final answers that fit a schema: its strict form, the value in whatever text arrived, and the problems with it."""

from __future__ import annotations

import json
import random
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

from openagentic_sdk import run
from openagentic_sdk.errors import OptionsError, ToolInputError
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.structured import read_output_schema, strict_schema, without_added_nulls
from openagentic_sdk.providers.clouds.gemini import GeminiProvider
from openagentic_sdk.providers.openai import OpenAIProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.providers.wire.http import HttpTransport
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.tools.schema import validate
from tests.size import full_size, sized

from .server import Connection, Request, Server


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
        strict = strict_schema(SCHEMA) or {}
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
            read_output_schema(complex)

    def test_the_names_of_formats_are_usable(self) -> None:
        self.assertEqual(read_output_schema(City).response_format()["json_schema"]["name"], "City")


OPEN: dict[str, Any] = {
    "a map": {"type": "object", "additionalProperties": {"type": "number"}},
    "any object": {"type": "object"},
    "any object by name": {"type": "object", "properties": {}},
    "known names and others": {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
    "other names of a kind": {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {}},
    "names by pattern": {"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {"^x": {}}},
    "a name that is only required": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
    "or null": {"type": ["object", "null"]},
    "anything": {},
    "anything at all": True,
    "a list of anything": {"type": "array"},
    "a list of maps": {"type": "array", "items": {"type": "object"}},
    "one of a union": {"anyOf": [{"type": "object", "additionalProperties": {"type": "string"}}, {"type": "null"}]},
}
NAMED = {"type": "object", "properties": {"a": {"type": "string"}}}
REFUSED: dict[str, Any] = {
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    "allOf": {"type": "string", "allOf": [{"type": "string"}]},
    "not": {"type": "string", "not": {"const": "x"}},
    "if": {"type": "string", "if": {"const": "x"}},
    "dependentRequired": {**NAMED, "dependentRequired": {"a": ["a"]}},
    "propertyNames": {**NAMED, "propertyNames": {"pattern": "a"}},
    "prefixItems": {"type": "array", "items": {"type": "string"}, "prefixItems": [{"type": "string"}]},
    "contains": {"type": "array", "items": {"type": "string"}, "contains": {"const": "x"}},
    "nullable": {"type": "string", "nullable": True},
    "no type": {"properties": {"a": {"type": "string"}}},
    "a union with a type": {"type": "string", "anyOf": [{"type": "string"}]},
    "something beside $ref": {"$ref": "#/$defs/text", "type": "string"},
    "a reference into a property": {"$ref": "#/properties/v"},
}
# `output_schema` refuses these as well.
UNCHECKED: dict[str, dict[str, Any]] = {
    "a reference to nothing": {"$ref": "#/$defs/nothing"},
    "an anchor": {"$ref": "#text"},
    "a word of the future": {"type": "string", "futureKeyword": 1},
}


def holding(part: Any) -> dict[str, Any]:
    """A schema of an object that contains such a part, below a list."""
    inner = {"type": "object", "properties": {"v": part}, "required": ["v"]}
    properties = {"v": {"type": "array", "items": inner}}
    return {"type": "object", "properties": properties, "required": ["v"], "$defs": {"text": {"type": "string"}}}


def unfit_for_strict_mode(schema: Any) -> list[str]:
    """What OpenAI or Azure refuses in a schema in strict mode, according to their pages."""
    known = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref"}
    found = sorted(schema.keys() - known - {"$defs", "definitions", "title", "description"})
    found += ["no kind"] if not schema.keys() & {"type", "enum", "const", "anyOf", "$ref"} else []
    found += ["beside $ref"] if "$ref" in schema and len(schema) > 1 else []
    if "object" in str(schema.get("type")) and schema.get("additionalProperties") is not False:
        found.append("open")
    if set(schema.get("properties", ())) != set(schema.get("required", ())):
        found.append("optional")
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    parts += [part for key in ("properties", "$defs", "definitions") for part in schema.get(key, {}).values()]
    return found + [one for part in parts for one in unfit_for_strict_mode(part)]


class SchemasBeyondStrictMode(unittest.TestCase):
    def test_open_objects_and_refused_keywords_go_as_they_are_and_not_strict(self) -> None:
        for name, part in {**OPEN, **REFUSED}.items():
            with self.subTest(name):
                schema = holding(part)
                sent = read_output_schema(schema).response_format()["json_schema"]
                self.assertEqual((sent["strict"], sent["schema"]), (False, schema))
        for name, part in UNCHECKED.items():
            with self.subTest(name):
                self.assertIsNone(strict_schema(holding(part)))
        for kind in (dict[str, float], dict, list[dict[str, int]], dict[str, Any]):
            self.assertIs(read_output_schema(kind).response_format()["json_schema"]["strict"], False, kind)
        whole = {"$schema": "x", **OPEN["a map"]}
        self.assertEqual(read_output_schema(whole).response_format()["json_schema"]["schema"], OPEN["a map"])

    def test_assertions_about_one_value_are_described_and_checked_here(self) -> None:
        table: list[tuple[dict[str, Any], Any]] = [
            ({"type": "string", "minLength": 3}, "ab"),
            ({"type": "string", "pattern": "^a"}, "b"),
            ({"type": "integer", "minimum": 3}, 2),
            ({"type": "array", "items": {"type": "string"}, "minItems": 1}, []),
        ]
        for part, wrong in table:
            (keyword,) = part.keys() - {"type", "items"}
            with self.subTest(keyword):
                output = read_output_schema(holding({**part, "description": "A thing."}))
                sent = output.response_format()["json_schema"]
                self.assertEqual((sent["strict"], unfit_for_strict_mode(sent["schema"])), (True, []))
                said = sent["schema"]["properties"]["v"]["items"]["properties"]["v"]["description"]
                self.assertEqual(said, f"A thing. ({keyword}: {json.dumps(part[keyword])})")
                with self.assertRaises(ToolInputError):
                    output.read_value({"v": [{"v": wrong}]})

    def test_notes_are_left_out(self) -> None:
        noted = {"type": "string", "default": "x", "examples": ["x"], "x-order": 1, "deprecated": True, "title": "T"}
        beside = {"$ref": "#/$defs/text", "description": "A text.", "default": "x"}
        for part in (noted, beside):
            sent = read_output_schema(holding(part)).response_format()["json_schema"]
            self.assertEqual((sent["strict"], unfit_for_strict_mode(sent["schema"])), (True, []))

    def test_an_optional_constant_can_be_absent(self) -> None:
        schema = {"type": "object", "properties": {"kind": {"type": "string", "const": "a"}}}
        strict = read_output_schema(schema).response_format()["json_schema"]["schema"]
        self.assertEqual(strict["properties"]["kind"], {"anyOf": [{"type": "string", "const": "a"}, {"type": "null"}]})

    def test_the_same_schema_is_written_the_same(self) -> None:
        for schema in (SCHEMA, holding(OPEN["a map"])):
            sent = read_output_schema(schema).response_format()["json_schema"]["schema"]
            self.assertEqual([key for key in sent if key in schema], [key for key in schema if key in sent])

    @full_size
    def test_every_value_of_a_schema_survives_the_round_trip_through_its_strict_form(self) -> None:
        chance = random.Random(29)
        strict_forms = 0
        for _ in range(sized(150, 500, 20_000)):
            schema = {**random_schema(chance, 0, kinds=("object",)), "$defs": DEFINITIONS}
            sent = read_output_schema(schema).response_format()["json_schema"]
            value = random_value(chance, schema)
            validate(value, schema, "a random value")
            said = value
            if sent["strict"]:
                strict_forms += 1
                self.assertEqual(unfit_for_strict_mode(sent["schema"]), [], schema)
                said = with_nulls(value, schema)
                validate(said, sent["schema"], f"the value of {schema}")
            else:
                self.assertEqual(sent["schema"], schema)
            self.assertEqual(read_output_schema(schema).read_value(said), value, schema)
        self.assertGreater(strict_forms, 100)


class RunsWithASchema(unittest.IsolatedAsyncioTestCase):
    async def test_a_map_comes_back_whole_from_every_protocol_with_a_response_format(self) -> None:
        prices = {"tea": 2.5, "milk": 1.0}
        said = json.dumps({"prices": prices})
        http = HttpTransport(proxies={})
        self.addCleanup(http.close)
        cwd = self.enterContext(tempfile.TemporaryDirectory())

        def script(connection: Connection, request: Request) -> None:
            asked = request.json
            if "generationConfig" in asked:
                formats.append({"schema": asked["generationConfig"]["responseJsonSchema"]})
                body: Any = {"candidates": [{"content": {"parts": [{"text": said}]}, "finishReason": "STOP"}]}
            elif "input" in asked:
                formats.append(asked["text"]["format"])
                content = [{"type": "output_text", "text": said}]
                body = {"status": "completed", "output": [{"type": "message", "content": content}]}
            else:
                formats.append(asked["response_format"]["json_schema"])
                body = {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
            if formats[-1].get("strict") and unfit_for_strict_mode(formats[-1]["schema"]):
                connection.reply(b'{"error": {"message": "Invalid schema for response_format"}}', "400 Bad Request")
            else:
                connection.reply(json.dumps(body).encode())

        @dataclass
        class Market:
            prices: dict[str, float]

        formats: list[dict[str, Any]] = []
        with Server(script) as server:
            for provider in (
                OpenAIProvider(base_url=server.url, api_key="k", http=http),
                OpenAIResponsesProvider(base_url=server.url, api_key="k", http=http),
                GeminiProvider(base_url=server.url, api_key="k", http=http),
            ):
                options = OpenAgenticOptions(
                    provider=provider,
                    model="m",
                    cwd=cwd,
                    setting_sources=(),
                    session_store=MemorySessionStore(),
                    output_schema=Market,
                )
                result = await run(prompt="What does it cost?", options=options)
                self.assertEqual((result.stop_reason, result.structured_output), ("end", {"prices": prices}))
        self.assertEqual([one.get("strict") for one in formats], [False, False, None])
        for one in formats:
            self.assertEqual(one["schema"]["properties"]["prices"]["additionalProperties"], {"type": "number"})


DEFINITIONS: dict[str, Any] = {
    "text": {"type": "string"},
    "node": {
        "type": "object",
        "properties": {"size": {"type": "integer"}, "note": {"type": ["string", "null"]}},
        "required": ["note"],
    },
}
SIMPLE = ("string", "integer", "const", "text", "null or text", "minLength", "any")


def random_schema(chance: random.Random, depth: int, kinds: Sequence[str] = ()) -> dict[str, Any]:
    deep = (*SIMPLE, "object", "object", "object", "array", "array", "node", "union", "map")
    match chance.choice(kinds or (SIMPLE if depth > 2 else deep)):
        case "object":
            properties = {
                name: random_schema(chance, depth + 1) for name in chance.sample("abcd", chance.randint(1, 3))
            }
            # Strict mode cannot omit an optional property that may be null: null means absent there.
            required = [name for name, part in properties.items() if "null" in str(part) or chance.random() < 0.5]
            closed: dict[str, Any] = chance.choice(({}, {"additionalProperties": False}))
            return {"type": "object", "properties": properties, "required": required, **closed}
        case "array":
            return {"type": "array", "items": random_schema(chance, depth + 1)}
        case "node" | "text" as name:
            return {"$ref": f"#/$defs/{name}"}
        case "union":
            tagged = random_schema(chance, depth + 1, kinds=("object",))
            tagged["properties"]["kind"] = {"const": "tagged"}
            tagged["required"].append("kind")
            return {"anyOf": [tagged, {"type": "string"}]}
        case "map":
            return {"type": "object", "additionalProperties": {"type": "integer"}}
        case "const":
            return {"const": "fixed"}
        case "null or text":
            return {"type": ["string", "null"]}
        case "minLength":
            return {"type": "string", "minLength": 2}
        case "any":
            return chance.choice(({}, *[{"type": "string"}] * 9))
        case kind:
            return {"type": kind}


def random_value(chance: random.Random, schema: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return random_value(chance, DEFINITIONS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return random_value(chance, chance.choice(schema["anyOf"]))
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "object" if "properties" in schema:
            chosen = [name for name in schema["properties"] if name in schema["required"] or chance.random() < 0.5]
            return {name: random_value(chance, schema["properties"][name]) for name in chosen}
        case "object":
            return {name: chance.randrange(9) for name in chance.sample("xyz", chance.randint(0, 3))}
        case "array":
            return [random_value(chance, schema["items"]) for _ in range(chance.randrange(3))]
        case "integer":
            return chance.randrange(9)
        case "string":
            return "text"
    return chance.choice((None, "text"))


def with_nulls(value: Any, schema: Any) -> Any:
    """The value in strict mode's form: null for each absent property."""
    if "$ref" in schema:
        return with_nulls(value, DEFINITIONS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return with_nulls(value, schema["anyOf"][isinstance(value, str)])
    if isinstance(value, list):
        return [with_nulls(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    parts = schema["properties"].items()
    return {name: with_nulls(value[name], part) if name in value else None for name, part in parts}


class Values(unittest.TestCase):
    def test_nulls_inside_of_unions_and_references_are_taken_out_and_those_that_mean_null_stay(self) -> None:
        person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
        schema = {
            "type": "object",
            "properties": {
                "mayor": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
                "one": {"oneOf": [{"type": "string"}, {"type": "null"}]},
                "old": {"type": "string", "nullable": True},
                "any": {},
                "yes": True,
            },
            "$defs": {"person": person},
        }
        value = {"mayor": {"name": "A", "age": None}, "one": None, "old": None, "any": None, "yes": None}
        read = without_added_nulls(value, schema, schema)
        self.assertEqual(read, {**value, "mayor": {"name": "A"}})

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

    def test_a_schema_that_refers_to_itself_means_the_same_when_it_is_wrapped(self) -> None:
        words: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}]}
        numbers = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/items/anyOf/0"}]}}
        named = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#"}}}}
        apart = {"$id": "http://x/y", **named}
        constant = {"const": [{"$ref": "#"}]}
        for schema, value in (
            (words, ["a", ["b", ["c"]]]), (numbers, [1]), (named, [[], [[]]]), (apart, [[]]), (constant, [{"$ref": "#"}]),
        ):  # fmt: skip
            with self.subTest(schema):
                self.assertEqual(read_output_schema(schema).read_text(json.dumps({"value": value})), value)
        with self.assertRaises(ToolInputError):
            read_output_schema(words).read_text('{"value": ["a", [3]]}')

    def test_a_value_that_fits_as_it_is_stays_so(self) -> None:
        first = {"type": "object", "properties": {"x": {"type": ["null", "string"]}}}
        rest = {"type": "object", "properties": {"x": {"type": "string"}}}
        row = {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [first], "items": rest}}}
        self.assertEqual(read_output_schema(row).read_text('{"a": [{"x": null}]}'), {"a": [{"x": None}]})
        self.assertEqual(read_output_schema(row).read_text('{"a": [{}, {"x": null}]}'), {"a": [{}, {}]})
        node = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
        named = read_output_schema({"$ref": "#/$defs/n", "$defs": {"n": node}})
        for text in ('{"value": 1}', '{"value": {"value": 1}}'):
            self.assertEqual(named.read_text(text), {"value": 1})

    def test_an_invalid_value_is_reported_with_its_path(self) -> None:
        schema: Any = read_output_schema(City)
        for text, message in (
            ("no idea", "no JSON"),
            ('{"name": "Ulm"}', "people"),
            ('{"name": "Ulm", "people": "many"}', "people"),
            ('{"name": "Ulm", "people": NaN}', "no JSON|not JSON"),
            ("{" * 5000, "no JSON|not JSON"),
        ):
            with self.assertRaisesRegex(ToolInputError, message) as raised:
                schema.read_text(text)
            self.assertIn("corrected", schema.repair_prompt(raised.exception))

    @full_size
    def test_an_answer_of_any_depth_is_an_answer_or_a_mistake_of_the_model(self) -> None:
        tree = {"type": "object", "properties": {"in": {"$ref": "#"}, "any": {}}}
        for key in ("in", "any"):
            for depth in (100, 400, 700, 900, 950, 970, 980, 2000):
                text = f'{{"{key}": ' * depth + "{}" + "}" * depth
                with suppress(ToolInputError):
                    read_output_schema(tree).read_text(text)

    def test_values_among_other_kinds_are_named_too(self) -> None:
        schema = {"anyOf": [{"enum": ["ok", "error"]}, {"const": 7}, {"type": ["integer", "array"]}, {"type": "null"}]}
        with self.assertRaisesRegex(ToolInputError, "'error' or 7 or a whole number or a list or null, not 'no'"):
            validate("no", schema)


if __name__ == "__main__":
    unittest.main()
