"""Every tool's definition is converted to one that each vendor accepts, and each call is converted back."""

from __future__ import annotations

import asyncio
import json
import random
import re
import unittest
from collections.abc import Iterator, Mapping
from typing import Any

from openagentic_sdk import MemorySessionStore, OpenAgenticOptions, run
from openagentic_sdk.errors import OptionsError, ProviderHTTPError, ToolInputError
from openagentic_sdk.events import ModelContext, ModelRetry, ToolUse
from openagentic_sdk.ground.schemas.reading import Schema
from openagentic_sdk.parts.mcp.definitions import read_schema
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.base import ProviderSession
from openagentic_sdk.providers.chat_request import RequestSettings, ToolNames, build_chat_request, write_tools
from openagentic_sdk.providers.definitions.accept import accepted
from openagentic_sdk.providers.definitions.refusals import refused_tool
from openagentic_sdk.providers.definitions.table import TABLE
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.quirks import OPENAI, STANDARD
from openagentic_sdk.tools.base import Tool, ToolContext
from tests.size import FULL, full_size

from .server import Connection, Request, Server

VENDORS = sorted({row.vendor for row in TABLE} - {"openai-strict"})
NAMES = ["id", "StartTime>", "StartTime<", "filter[id]", "a.b", "a_b", "über", "$top", "2fa", "", "x" * 90, "type"]
KINDS = ["string", "integer", "number", "boolean", "null"]


class SchemaMaker:
    """Random schemas of the kinds that servers send, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._defined = self._random.sample(["Node", "Page[Item]", "a/b", "c~d", "per%cent"], 3)

    def root(self) -> dict[str, Any]:
        choose = self._random.random
        made = self._object(3)
        made["$defs"] = {name: self._object(2) if choose() < 0.7 else self._any(1) for name in self._defined}
        if choose() < 0.2:
            made[self._random.choice(["anyOf", "oneOf", "allOf"])] = [self._object(1), self._object(1)]
        if choose() < 0.15:
            made["anyOf"] = [{"required": [name]} for name in made["properties"]] or [{"type": "object"}]
        if choose() < 0.1:
            return {"$ref": self._reference("Node"), "$defs": {**made["$defs"], "Node": made}}
        return made

    def _reference(self, name: str) -> str:
        step = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
        return "#/$defs/" + (step.replace("[", "%5B").replace("]", "%5D") if self._random.random() < 0.5 else step)

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randrange(5))
        made: dict[str, Any] = {"type": "object", "properties": {name: self._any(depth - 1) for name in names}}
        if self._random.random() < 0.5:
            made["required"] = self._random.sample(names, self._random.randrange(len(names) + 1))
        if self._random.random() < 0.3:
            made["additionalProperties"] = self._random.choice([False, True, {"type": "string"}])
        return made

    def _any(self, depth: int) -> Any:
        make = self._random.choice([self._plain, self._plain, self._odd, self._list, self._several, self._refer])
        if depth > 0 and self._random.random() < 0.4:
            return self._object(depth)
        made = make(depth)
        if isinstance(made, dict) and self._random.random() < 0.3:
            made |= {"description": "what it is", "default": None}
        return made

    def _plain(self, depth: int) -> Any:
        kind = self._random.choice(KINDS)
        more = {"string": {"format": "uri", "maxLength": 9}, "integer": {"minimum": 1, "exclusiveMaximum": 9}}
        return {"type": kind, **(more.get(kind, {}) if self._random.random() < 0.3 else {})}

    def _odd(self, depth: int) -> Any:
        odd = [{}, True, {"description": "anything"}, {"const": "x"}, {"enum": [1, 2]}, {"enum": ["", "a", None]}]
        odd += [{"type": ["string", "null"]}, {"type": ["integer", "object"], "minimum": 2}, {"not": {"type": "null"}}]
        odd += [{"type": "number", "minimum": 1, "exclusiveMinimum": True}, {"required": ["ghost"], "type": "object"}]
        return json.loads(json.dumps(self._random.choice(odd)))

    def _list(self, depth: int) -> Any:
        items = [
            {},
            {"items": self._any(depth - 1)},
            {"items": True},
            {"items": False, "prefixItems": [True]},
            {"items": [self._plain(0), self._plain(0)]},
        ]
        return {"type": "array", **self._random.choice([*items, {"prefixItems": [self._plain(0), self._plain(0)]}])}

    def _several(self, depth: int) -> Any:
        parts = [self._any(depth - 1), self._plain(0), *([{"type": "null"}] if self._random.random() < 0.5 else [])]
        return {self._random.choice(["anyOf", "oneOf", "allOf"]): parts}

    def _refer(self, depth: int) -> Any:
        return {"$ref": self._reference(self._random.choice(self._defined))}

    def value(self, schema: Any, root: Mapping[str, Any], depth: int = 6) -> Any:
        """A value that a model may send for a schema, valid most of the time."""
        if not isinstance(schema, Mapping) or depth < 0:
            return "x"
        if "$ref" in schema:
            return self.value(root["$defs"][schema["$ref"].rpartition("/")[2]], root, depth - 1)
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self.value(self._random.choice(schema[key]), root, depth - 1)
        if schema.get("enum"):
            return self._random.choice(schema["enum"])
        kinds = schema.get("type", "string")
        kind = self._random.choice(kinds) if isinstance(kinds, list) else kinds
        if kind == "object":
            named = schema.get("properties", {})
            needed = [name for name in named if name in schema.get("required", ()) or self._random.random() < 0.7]
            return {name: self.value(named[name], root, depth - 1) for name in needed}
        if kind == "array":
            return [self.value(schema.get("items", {}), root, depth - 1) for _ in range(self._random.randrange(3))]
        return {"integer": 3, "number": 2.5, "boolean": True, "null": None}.get(kind, "text")


def schemas_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all below it, found without the package's own tables."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key in ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"):
        for part in schema.get(key, {}).values():
            yield from schemas_in(part)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for part in schema.get(key, ()):
            yield from schemas_in(part)
    for key in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        yield from schemas_in(schema.get(key))


def refusals(vendor: str, root: Mapping[str, Any]) -> Iterator[str]:
    """A vendor's refusals of a schema, according to its published rules and cited refusals, implemented independently."""
    if root.get("type") != "object" or not isinstance(root.get("properties"), dict):
        yield "schema must have type 'object'"
    at_root = set(root)
    if at_root & {"anyOf", "oneOf", "allOf", "enum", "not", "$ref", "const"}:
        yield "no union at the top level"
    if vendor == "bedrock" and at_root - {"type", "properties", "required"}:
        yield f"extraneous key {at_root}"
    keys = {"anthropic": r"[a-zA-Z0-9_.-]{1,64}", "bedrock": r"[a-zA-Z0-9_.-]{1,64}"}
    keys |= dict.fromkeys(("gemini", "gemini-compatible"), r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
    is_google = vendor.startswith("gemini")
    for part in schemas_in(root):
        for name in part.get("properties", {}):
            if vendor in keys and not re.fullmatch(keys[vendor], name):
                yield f"Property keys should match pattern: {name!r}"
        if any(not isinstance(each, dict) for each in part.get("properties", {}).values()):
            yield "true is not an object"
        if "$ref" in part and (is_google or vendor in ("bedrock", "local")):
            yield "a reference"
        if "$ref" in part and part["$ref"].rpartition("/")[2] not in root.get(part["$ref"].split("/")[1], {}):
            yield f"nothing at {part['$ref']}"
        if (is_google or vendor == "openai") and part.get("type") == "array" and "items" not in part:
            yield "array schema missing items"
        if vendor != "standard" and part.get("items") is True:
            yield "schema must be an object"
        if isinstance(part.get("items"), list) or isinstance(part.get("exclusiveMinimum"), bool):
            yield "JSON schema is invalid. It must match JSON Schema draft 2020-12"
        has_ghost = not set(part.get("required", ())) <= set(part.get("properties", ()))
        if has_ghost and (vendor in ("groq", "local") or is_google):
            yield "required: property is not defined"
        if is_google:
            if "anyOf" in part and len(part) > 1:
                yield "specified other fields alongside any_of"
            if "anyOf" not in part and not isinstance(part.get("type"), str):
                yield "didn't specify the schema type field"
            if any(not isinstance(each, str) or not each for each in part.get("enum", ())):
                yield "enum: cannot be empty"
            if part.keys() & {"const", "oneOf", "allOf", "not", "default", "exclusiveMaximum", "maxLength", "$defs"}:
                yield "Unknown name"
            if vendor == "gemini-compatible" and "additionalProperties" in part:
                yield "Unknown name additionalProperties"
            if part.get("format") == "uri":
                yield "format is not supported"
        if vendor == "local" and not ("type" in part or "anyOf" in part):
            yield "Unrecognized schema"
        if vendor == "local" and part.keys() & {"not", "oneOf", "allOf", "const", "pattern"}:
            yield "JSON schema conversion failed"


class Vendors(unittest.TestCase):
    def test_every_vendor_takes_every_schema_and_each_call_comes_back_to_the_tools_own(self) -> None:
        refused, fitting, calls = [], 0, 0
        for seed in range(120 if FULL else 20):
            maker = SchemaMaker(seed)
            source = read_schema(maker.root())
            check = Schema(source)
            for vendor in VENDORS:
                found = accepted(vendor, source)
                json.dumps(found.parameters)
                refused += [(seed, vendor, why) for why in refusals(vendor, found.parameters)]
                said = maker.value(found.parameters, found.parameters)
                own = found.keys.as_own(said)
                self.assertFalse(set(found.keys.sent.values()) & set(texts_in(own)), (seed, vendor))
                self.assertEqual(found.keys.as_own(found.keys.as_sent(own)), own, (seed, vendor))
                calls += 1
                try:
                    check.check(own)
                    fitting += 1
                except ToolInputError as error:
                    self.assertIn("the arguments", str(error))
        self.assertEqual(refused[:3], [])
        self.assertGreater(fitting, calls / 2)

    def test_invalid_schemas_accept_anything_and_unsatisfiable_tools_are_omitted(self) -> None:
        odd: dict[str, Any] = {
            "type": "object",
            "properties": {
                "never": False,
                "kinds": {"type": ["string", {"a": 1}]},
                "one": {"anyOf": [False, {"type": "null"}]},
                "places": {"type": "array", "items": [False, False]},
                "list": {"type": "array", "items": True},
                "words": {"anyOf": "none", "required": 3, "properties": [], "enum": {}},
            },
            "required": ["never", {"a": 1}, "list"],
            "dependentRequired": {"list": ["words", {"a": 1}], "words": 3},
        }
        for source in (odd, read_schema({**odd, "properties": {**odd["properties"], "kinds": {}}})):
            for vendor in VENDORS:
                with self.subTest(vendor):
                    found = accepted(vendor, source)
                    self.assertEqual([*refusals(vendor, found.parameters)], [])
                    self.assertNotIn("never", found.parameters["properties"])
        self.assertEqual(read_schema(odd | {"properties": {}})["dependentRequired"], {"list": ["words"]})

    def test_a_schema_that_a_vendor_takes_stays_the_same_object(self) -> None:
        plain = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
        for vendor in VENDORS:
            self.assertIs(accepted(vendor, plain).parameters, plain)

    def test_omitted_keywords_are_stated_in_the_descriptions(self) -> None:
        schema = {
            "type": "object",
            "properties": {"from": {"type": "string", "format": "uri", "description": "whence"}, "at[0]": {"const": 1}},
            "oneOf": [{"required": ["from"]}, {"required": ["at[0]"]}],
        }
        found = accepted("gemini", schema)
        about = found.parameters["properties"]
        self.assertEqual(about["from"], {"type": "string", "description": "whence (format: uri)"})
        [sent] = found.keys.sent.values()
        self.assertEqual(about[sent], {"type": "integer", "description": '(enum: [1]) (its name is "at[0]")'})
        self.assertEqual(found.notes, f"The arguments take just one of these forms: {{from}}; {{{sent}}}.")

    def test_no_two_properties_get_one_name_whatever_a_server_calls_them(self) -> None:
        first = accepted("anthropic", {"type": "object", "properties": {"a>": {}}}).keys.sent["a>"]
        schema = {"type": "object", "properties": {"a>": {}, "a<": {}, first: {}, "a_": {"type": "object"}}}
        found = accepted("anthropic", schema)
        self.assertEqual(len(found.parameters["properties"]), 4)
        own = {"a>": 1, "a<": 2, first: 3, "a_": {"a>": 4}}
        self.assertEqual(found.keys.as_own(found.keys.as_sent(own)), own)

    @full_size
    def test_schemas_that_grow_without_end_are_written_in_bounded_size(self) -> None:
        doubling: dict[str, Any] = {}
        for n in range(40):
            below = {"$ref": f"#/$defs/d{n + 1}"}
            doubling[f"d{n}"] = {"type": "object", "properties": {"x": below, "y": below}}
        circle = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}, "c": {"allOf": [{"$ref": "#/$defs/c"}] * 9}}
        schema = {
            "type": "object",
            "$defs": {**doubling, "d40": {}, **circle},
            "properties": {name: {"$ref": f"#/$defs/{name}"} for name in ("d0", "a", "c")},
            "anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/c"}],
        }
        for vendor in VENDORS:
            self.assertLess(len(json.dumps(accepted(vendor, schema).parameters)), 400_000)

    def test_parameters_too_large_to_be_written_are_refused_in_one_sentence(self) -> None:
        deep: Any = {"type": "string"}
        for _ in range(5_000):
            deep = {"type": "array", "items": deep}
        for name, part in (("deep", deep), ("wide", {"enum": list(range(300_000))})):
            with self.subTest(name), self.assertRaisesRegex(OptionsError, rf"properties {name}\).*leave the tool out$"):
                accepted("openai", {"type": "object", "properties": {name: part}})

    def test_the_alternatives_of_a_root_are_compared_in_proportion_to_their_number(self) -> None:
        compared = 0

        class Part(dict[str, Any]):
            def __eq__(self, other: object) -> bool:
                nonlocal compared
                compared += 1
                return dict.__eq__(self, other)

        forms = [{"type": "object", "properties": {"a": Part(const=n)}} for n in range(200)]
        written = accepted("anthropic", {"type": "object", "anyOf": forms}).parameters
        self.assertEqual(len(written["properties"]["a"]["anyOf"]), 200)
        self.assertLess(compared, 1_000)

    def test_alternatives_may_have_values_whose_keys_do_not_compare(self) -> None:
        branches = [{"type": "object", "properties": {"a": {"default": value}}} for value in ({1: 2, "b": 3}, None)]
        for vendor in VENDORS:
            with self.subTest(vendor):
                accepted(vendor, {"anyOf": branches})

    def test_a_tool_is_strict_only_where_strict_mode_has_a_form_for_it(self) -> None:
        closed: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
        closed["additionalProperties"] = False
        changes: list[tuple[dict[str, Any], bool]] = [
            ({}, True),
            ({"required": []}, False),
            ({"minProperties": 1}, False),
        ]
        for change, is_strict in changes:
            parameters = {**closed, **change}
            tool = {"type": "function", "function": {"name": "t", "parameters": parameters, "strict": True}}
            self.assertIs(request([tool], OPENAI)[0]["tools"][0]["function"]["strict"], is_strict)


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from texts_in(each)


def request(tools: list[Any], quirks: Any = STANDARD, messages: Any = ()) -> tuple[dict[str, Any], ToolNames]:
    return build_chat_request(
        model="m", messages=messages or [{"role": "user", "content": "hi"}], tools=tools, settings=RequestSettings(),
        quirks=quirks, origin="host", stream=False,
    )  # fmt: skip


def entry(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}}


class Refusals(unittest.TestCase):
    def test_the_tool_that_an_endpoint_refuses_is_found_in_each_vendors_words(self) -> None:
        names = ["Read", "mcp__a__one", "mcp__a__on", "mcp__b__two"]
        function = (
            "Invalid schema for function 'mcp__b__two': In context=('properties', 'tools'), array schema missing items."
        )
        said = [
            (400, {"error": {"message": function, "param": "tools[3].function.parameters"}}),
            (400, {"error": {"message": function, "param": None}}),
            (400, {"error": {"message": "tools.3.custom.input_schema.properties: Property keys should match pattern"}}),
            (
                400,
                [{"error": {"message": "* GenerateContentRequest.tools[0].function_declarations[3].parameters: bad"}}],
            ),
            (400, {"error": {"message": "Unknown name \"x\" at 'tools[0].functionDeclarations[3].parameters'"}}),
            (400, {"error": {"message": "Unable to submit request because `mcp__b__two` functionDeclaration is bad"}}),
            (400, {"message": "#/toolConfig/tools/3/toolSpec/inputSchema/json: extraneous key [definitions]"}),
            (400, {"message": "Value '' at 'toolConfig.tools.4.member.toolSpec.name' failed to satisfy constraint"}),
            (
                400,
                {"error": {"message": "invalid JSON schema for tool mcp__b__two, tools[3].function.parameters: `x`"}},
            ),
            (
                422,
                {"object": "error", "message": {"detail": [{"loc": ["body", "tools", 3, "function", "parameters"]}]}},
            ),
            (400, {"message": "[{'type': 'x', 'loc': ('body', 'tools', 3, 'function', 'name'), 'msg': 'bad'}]"}),
        ]
        payload = {"tools": [entry(name) for name in names]}
        for status, body in said:
            with self.subTest(body):
                error = ProviderHTTPError("the endpoint answered", status=status, body=json.dumps(body))
                self.assertEqual(refused_tool(error, payload), "mcp__b__two")
        for status, body in (
            (500, said[0][1]),
            (400, {"message": "tools.9.custom: beyond"}),
            (400, {"message": "messages.3: bad"}),
            (400, {"message": "the model cannot Read this: mcp__a__ones"}),
        ):
            with self.subTest(body):
                error = ProviderHTTPError("it said no", status=status, body=json.dumps(body))
                self.assertIsNone(refused_tool(error, payload))

    def test_tools_beyond_a_vendors_limit_are_left_out_with_a_notice(self) -> None:
        tools = [entry(f"t{number}") for number in range(130)]
        payload, names = request(tools, OPENAI)
        self.assertEqual(len(payload["tools"]), 128)
        self.assertEqual(
            names.notices, ["the endpoint accepts at most 128 tools, so the request omits 2 tools: t128, t129"]
        )
        own = [{"type": "web_search", "name": f"own{number}"} for number in range(130)]
        written = write_tools(tools[:5], own, dict, names)
        self.assertEqual([each["name"] for each in written], [f"own{number}" for number in range(128)])
        self.assertEqual(len(request(tools)[0]["tools"]), 130)


class Odd(Tool):
    """A tool with a property whose name Anthropic refuses."""

    effect = "read"
    description = "Finds things."
    input_schema: Mapping[str, Any] = {
        "type": "object",
        "properties": {"at>": {"type": "integer"}},
        "required": ["at>"],
    }

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> str:
        return f"{self.name} at {input['at>']}"


class Runs(unittest.TestCase):
    def test_a_tool_that_an_endpoint_refuses_is_held_back_and_the_run_continues_even_after_a_resume(self) -> None:
        sent: list[Any] = []

        def script(connection: Connection, asked: Request) -> None:
            sent.append([tool["function"]["name"] for tool in asked.json["tools"]])
            for place, name in enumerate(sent[-1]):
                if name.startswith("bad"):
                    error = {"error": {"message": "Invalid schema", "param": f"tools[{place}].function.parameters"}}
                    connection.reply(json.dumps(error).encode(), status="400 Bad Request")
                    return
            said = {"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
            connection.reply(json.dumps({"choices": [said]}).encode())

        with Server(script) as server:
            self._go_twice(server, sent)

    def _go_twice(self, server: Server, sent: list[Any]) -> None:
        store = MemorySessionStore()
        provider = OpenAICompatibleProvider(base_url=server.url)
        host = provider.origin
        options = OpenAgenticOptions(
            provider=provider, model="m", session_store=store, session="s",
            tools=[Odd("good"), Odd("bad_1"), Odd("bad_2")],
        )  # fmt: skip
        result = asyncio.run(run(prompt="Go.", options=options))
        retries = [event for event in result.events if isinstance(event, ModelRetry)]
        self.assertEqual([event.control for event in retries], [f"hold_tool bad_1 {host}", f"hold_tool bad_2 {host}"])
        self.assertIn("bad_1 is withheld, because its definition is refused", retries[0].reason)
        self.assertEqual((result.final_text, sent[-1]), ("Done.", ["good"]))
        [context] = [event for event in result.events if isinstance(event, ModelContext)]
        self.assertEqual(len(context.tools), 3)
        sent.clear()
        again = asyncio.run(run(prompt="Again.", options=options))
        self.assertEqual((again.final_text, sent), ("Done.", [["good"]]))

    def test_descriptions_that_are_too_long_for_an_endpoint_are_cut_and_no_tool_is_held_back(self) -> None:
        sent: list[list[int]] = []

        def script(connection: Connection, asked: Request) -> None:
            sent.append([len(tool["function"]["description"]) for tool in asked.json["tools"]])
            if max(sent[-1]) > 1024:
                place = next(n for n, length in enumerate(sent[-1]) if length > 1024)
                message = (
                    f"Invalid 'tools[{place}].function.description': string too long. Expected a string with maximum "
                )
                message += f"length 1024, but got a string with length {sent[-1][place]} instead."
                connection.reply(json.dumps({"error": {"message": message}}).encode(), status="400 Bad Request")
                return
            said = {"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
            connection.reply(json.dumps({"choices": [said]}).encode())

        long = [Odd("one"), Odd("two"), Odd("three")]
        for tool in long[1:]:
            tool.description = "Finds things. " * 100
        with Server(script) as server:
            options = OpenAgenticOptions(
                provider=OpenAICompatibleProvider(base_url=server.url), model="m", tools=long, session="s",
                session_store=MemorySessionStore(),
            )  # fmt: skip
            result = asyncio.run(run(prompt="Go.", options=options))
            again = asyncio.run(run(prompt="Again.", options=options))
        self.assertEqual((result.final_text, again.final_text, len(sent)), ("Done.", "Done.", 3))
        self.assertEqual([len(lengths) for lengths in sent], [3, 3, 3])
        [retry] = [event for event in result.events if isinstance(event, ModelRetry)]
        self.assertTrue(str(retry.control).startswith("cut_descriptions 1024 "), retry.control)
        self.assertIn("descriptions of tools are truncated to 1024 characters", retry.reason)

    def test_an_endpoint_that_refuses_every_tool_is_asked_a_dozen_times_and_not_without_end(self) -> None:
        asked: list[int] = []

        def script(connection: Connection, request: Request) -> None:
            asked.append(len(request.json["tools"]))
            connection.reply(b'{"error": {"message": "tools.0.custom: not here"}}', status="400 Bad Request")

        with Server(script) as server:
            provider = OpenAICompatibleProvider(base_url=server.url).for_session(ProviderSession())
            with self.assertRaisesRegex(ProviderHTTPError, "not here"):
                asyncio.run(provider.complete(model="m", messages=[], tools=[entry(f"t{n}") for n in range(40)]))
        self.assertEqual(asked, [*range(40, 27, -1)])

    def test_a_tool_that_the_request_demands_is_not_held_back(self) -> None:
        def script(connection: Connection, asked: Request) -> None:
            connection.reply(b'{"error": "bad schema of function \'a\'"}', status="400 Bad Request")

        with Server(script) as server, self.assertRaises(ProviderHTTPError):
            provider = OpenAICompatibleProvider(base_url=server.url).with_settings(tool_choice="a")
            asyncio.run(provider.complete(model="m", messages=[], tools=[entry("a")]))

    def test_the_log_the_tool_and_the_model_each_have_their_own_names_of_properties(self) -> None:
        payloads: list[Any] = []

        def transport(url: str, headers: Any, payload: Mapping[str, Any]) -> dict[str, Any]:
            payloads.append(payload)
            [name] = payload["tools"][0]["input_schema"]["required"]
            use = {"type": "tool_use", "id": "t1", "name": "find", "input": {name: 3}}
            said = [use] if len(payloads) == 1 else [{"type": "text", "text": "Done."}]
            return {"type": "message", "role": "assistant", "model": "m", "content": said, "usage": {},
                    "stop_reason": "tool_use" if len(payloads) == 1 else "end_turn"}  # fmt: skip

        provider = AnthropicProvider(api_key="k", base_url="https://x.example", transport=transport)
        options = OpenAgenticOptions(
            provider=provider, model="m", session_store=MemorySessionStore(), tools=[Odd("find")],
            permission_gate=PermissionGate(allow=["find"]),
        )  # fmt: skip
        result = asyncio.run(run(prompt="Go.", options=options))
        [use] = [event for event in result.events if isinstance(event, ToolUse)]
        self.assertEqual(use.input, {"at>": 3})
        [output] = [event.output for event in result.events if event.type == "tool.result"]
        self.assertEqual(output, "find at 3")
        [name] = payloads[0]["tools"][0]["input_schema"]["properties"]
        self.assertRegex(name, r"\A[a-zA-Z0-9_.-]{1,64}\Z")
        blocks = [block for turn in payloads[1]["messages"] for block in turn["content"] if block["type"] == "tool_use"]
        self.assertEqual([block["input"] for block in blocks], [{name: 3}])


if __name__ == "__main__":
    unittest.main()
