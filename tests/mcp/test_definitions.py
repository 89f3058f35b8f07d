"""Names, rules and schemas of other people's tools, as tables."""

from __future__ import annotations

import json
import unittest
from typing import Any

from openagentic_sdk.errors import InvalidEventError, ToolInputError
from openagentic_sdk.kernel.tool import ToolOutput
from openagentic_sdk.parts.mcp.content import read_long_result
from openagentic_sdk.parts.mcp.definitions import clean_text, read_definitions, read_schema, shown_name, tool_digest
from openagentic_sdk.parts.mcp.http_headers import encode_header_value, param_headers
from openagentic_sdk.parts.mcp.protocol import LONG_BYTES, read_long_message, read_message
from openagentic_sdk.parts.mcp.server_config import McpServer
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.tools.schema import validate
from tests.size import full_size

SETTINGS = McpServer(command="x")
LONG = "a_tool_with_a_name_that_is_longer_than_any_endpoint_takes_delete"


def offered(*names: str, settings: McpServer = SETTINGS) -> dict[str, str]:
    """The names shown to the model, by the server's own names."""
    made, _ = read_definitions("srv", settings, [{"name": name, "inputSchema": {}} for name in names])
    return {one.name: one.shown for one in made}


class Names(unittest.TestCase):
    def test_a_name_is_cut_and_numbered_so_that_every_endpoint_takes_it_and_no_two_are_equal(self) -> None:
        shown = offered("get", "get.it", "get it", "a/b", "ä", LONG, LONG + "2", "_x")
        self.assertEqual((shown["get"], shown["_x"], shown["a/b"]), ("mcp__srv__get", "mcp__srv___x", "mcp__srv__a_b"))
        self.assertEqual(len(set(shown.values())), len(shown))
        for name in shown.values():
            self.assertRegex(name, r"\Amcp__srv__[A-Za-z0-9_-]+\Z")
            self.assertLessEqual(len(name), 64)
        # Two tools whose names would collide get a digest; alone, each has its plain name.
        self.assertRegex(shown["get.it"], r"\Amcp__srv__get_it_[0-9a-f]{8}\Z")
        self.assertRegex(shown["get it"], r"\Amcp__srv__get_it_[0-9a-f]{8}\Z")
        self.assertEqual(offered("get it"), {"get it": "mcp__srv__get_it"})
        self.assertEqual(shown[LONG], shown_name("srv", LONG))
        # A server may even name a tool like the digest of another: only one of them is offered.
        forged = shown["get it"].removeprefix("mcp__srv__")
        self.assertEqual(len(offered("get it", "get.it", forged)), 2)

    def test_the_longest_server_name_leaves_its_rule_whole(self) -> None:
        server = "s" * 40
        self.assertTrue(shown_name(server, LONG).startswith(f"mcp__{server}__a_"))

    def test_allow_and_deny_lists_name_tools_as_the_server_does(self) -> None:
        listed = McpServer(command="x", allow=["get*", "put"], deny=["get_secret"])
        self.assertEqual(list(offered("get_a", "get_secret", "put", "drop", settings=listed)), ["get_a", "put"])

    def test_the_digest_of_a_tools_definition_does_not_depend_on_the_order_of_keys(self) -> None:
        one = {"name": "a", "description": "b", "inputSchema": {"x": 1, "y": 2}, "_meta": {"seen": 1}}
        other = {"inputSchema": {"y": 2, "x": 1}, "description": "b", "name": "a", "icons": []}
        self.assertEqual(tool_digest(one), tool_digest(other))
        self.assertNotEqual(tool_digest(one), tool_digest({**one, "annotations": {"readOnlyHint": True}}))


class Rules(unittest.IsolatedAsyncioTestCase):
    async def test_a_rule_about_a_tool_holds_under_the_name_that_it_was_given_for(self) -> None:
        shown, full = shown_name("srv", LONG), f"mcp__srv__{LONG}"
        names = {"rule_names": lambda input: (full,)}
        for rule in ("mcp__srv", "mcp__srv__*", full, "mcp__srv__*_delete"):
            with self.subTest(rule):
                denied = await PermissionGate(permission_mode="bypass", deny=[rule]).approve(shown, {}, names)
                self.assertFalse(denied.allowed)
                allowed = await PermissionGate(allow=[rule]).approve(shown, {}, names)
                self.assertTrue(allowed.allowed)
        for rule in ("mcp__sr", "mcp__srvx__*", "mcp__srv__a"):
            self.assertFalse((await PermissionGate(allow=[rule]).approve(shown, {}, names)).allowed)

    async def test_a_tool_declared_as_reading_by_the_user_is_still_asked_about(self) -> None:
        answer = await PermissionGate().approve("mcp__srv__get", {}, {"effect": "read"})
        self.assertFalse(answer.allowed)


class Schemas(unittest.TestCase):
    def test_definitions_with_a_clear_meaning_are_repaired(self) -> None:
        empty = {"type": "object", "properties": {}}
        cases: list[tuple[Any, Any]] = [
            (None, empty),
            ({}, empty),
            ({"properties": None, "required": "a"}, empty),
            ({"$schema": "http://json-schema.org/draft-07/schema#", "type": ["object"]}, empty),
            ({"type": "object", "required": ["a", 3, "a"]}, {**empty, "required": ["a"]}),
            (
                {"properties": {"a": {"type": "array"}}},
                {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
            ),
            (
                {"properties": {"a": {"type": "string", "default": None, "format": "uri"}, "required": ["a"]}},
                {"type": "object", "properties": {"a": {"type": "string", "default": None, "format": "uri"}}},
            ),
            (
                {"anyOf": [{"properties": {"a": {}}}, 3]},
                {"type": "object", "properties": {}, "anyOf": [{"properties": {"a": {}}}]},
            ),
            (
                {"properties": {"a": {"items": [{"type": "string"}], "type": "array"}}},
                {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
            ),
            (
                {"properties": {"a": {"pattern": "(a+)+$", "description": "An a."}}},
                {"type": "object", "properties": {"a": {"description": "An a. (pattern: (a+)+$)"}}},
            ),
            ({"additionalProperties": "no", "description": "a\u202eb"}, {**empty, "description": "ab"}),
        ]
        for given, wanted in cases:
            with self.subTest(json.dumps(given)):
                self.assertEqual(read_schema(given), wanted)

    def test_references_as_the_official_sdks_write_them_cost_no_tool(self) -> None:
        union = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"x": {"type": "integer"}}}]}
        pair = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
        defined = {"Page[Item]": union, "a/b": union, "c~d": union, "e%5B": union, "f g": {"$anchor": "here", **union}}
        for reference, fits, where in (
            ("#/properties/from/anyOf/1", {"x": 1}, {"from": union}),
            ("#/properties/pair/items/1", 3, {"pair": pair}),
            ("#/$defs/Page%5BItem%5D", "a", {}),
            ("#/$defs/Page[Item]", "a", {}),
            ("#/$defs/a~1b", "a", {}),
            ("#/$defs/c~0d", "a", {}),
            ("#/$defs/e%255B", "a", {}),
            ("#/$defs/e%5B", "a", {}),
            ("#/$defs/f%20g", "a", {}),
            ("#here", "a", {}),
            ("https://x.example/tool#/$defs/a~1b", "a", {}),
        ):
            with self.subTest(reference):
                properties = {**where, "to": {"$ref": reference}}
                read = read_schema({"$id": "https://x.example/tool", "$defs": defined, "properties": properties})
                validate({"to": fits}, read)
                with self.assertRaises(ToolInputError):
                    validate({"to": [None]}, read)
        self.assertEqual(read_schema({"type": ["object", "null"]})["type"], "object")
        self.assertEqual(
            read_schema({"properties": {"a": {"type": None}, "b": {"type": "String"}}})["properties"]["a"], {}
        )

    def test_the_note_on_a_cut_text_counts_all_that_is_omitted(self) -> None:
        for text, shown in (
            ("x" * 10, "x" * 10),
            ("x" * 11, f"{'x' * 10} ... (1 more characters are omitted)"),
            ("x" * 1_000_000, f"{'x' * 10} ... (999990 more characters are omitted)"),
            ("\u202e" * 30 + "x" * 10, "x" * 10),
        ):
            self.assertEqual(clean_text(text, 10), shown)

    def test_a_server_with_very_much_to_read_costs_its_last_tools(self) -> None:
        schema = {"properties": {"a": {"const": "x" * 60_000}}}
        tools = [{"name": f"t{n}", "inputSchema": schema} for n in range(90)]
        made, left = read_definitions("srv", SETTINGS, tools)
        self.assertEqual((len(made), len(left)), (70, 20))
        self.assertRegex(left[0].message, "more than 4,194,304 bytes")

    def test_meaningless_definitions_are_refused_with_the_reason(self) -> None:
        deep: Any = {}
        for _ in range(40):
            deep = {"properties": {"a": deep}}
        cases = {
            "must be an object, not a value of type list": [1],
            "arguments must be an object": {"type": "array"},
            "never fetched": {"properties": {"a": {"$ref": "https://example.com/a.json"}}},
            "that schema does not exist": {"properties": {"a": {"$ref": "#/$defs/none"}}},
            "an invalid type": {"properties": {"a": {"type": "text"}}},
            "nested deeper": deep,
            "bytes, and the limit": {"properties": {f"name{n}": {"description": "x" * 100} for n in range(1000)}},
        }
        for reason, schema in cases.items():
            with self.subTest(reason), self.assertRaisesRegex(ValueError, reason):
                read_schema(schema)

    @full_size
    def test_no_schema_that_is_taken_can_break_the_check_of_arguments(self) -> None:
        values: list[Any] = [None, True, 3, -1, 1.5, "x", [], [1], {}, {"a": 1}, ["a", {}]]
        keywords = [
            "type",
            "enum",
            "const",
            "required",
            "properties",
            "additionalProperties",
            "items",
            "minItems",
            "maxItems",
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
            "pattern",
            "anyOf",
            "oneOf",
            "allOf",
            "$ref",
            "$defs",
            "not",
            "if",
            "then",
            "prefixItems",
            "default",
            "format",
        ]
        arguments: list[Any] = [{}, {"a": "x"}, {"a": 3}, {"a": [1]}, {"a": {"b": None}}, {"b": 1}]
        checked = 0
        for keyword in keywords:
            for value in values:
                for schema in ({keyword: value}, {"properties": {"a": {keyword: value}}}):
                    try:
                        taken = read_schema(schema)
                    except ValueError:
                        continue
                    for given in arguments:
                        checked += 1
                        try:
                            validate(given, taken)
                        except ToolInputError:
                            continue  # it does not match, which is a result
        self.assertGreater(checked, 1000)


class LongMessages(unittest.IsolatedAsyncioTestCase):
    async def test_a_long_message_is_read_alike_in_a_thread(self) -> None:
        padding = f', "text": "{"x" * LONG_BYTES}"}}'
        for text in (
            '{"a": [1, 2.5, NaN, 1e999, "\\u00e9", null, true]',
            '{"a": {"b": {}}',
            '{"a": tru',
            '{"a": ' + "[" * 9000,
        ):
            whole = (text + padding).encode()
            with self.subTest(text[:60]):
                try:
                    expected = read_message(whole)
                except InvalidEventError:
                    with self.assertRaises(InvalidEventError):
                        await read_long_message(whole)
                else:
                    self.assertEqual(await read_long_message(whole), expected)

    async def test_a_result_is_read_alike_in_a_thread_and_keeps_no_foreign_content_that_a_log_cannot_hold(self) -> None:
        deep: Any = "x"
        for _ in range(900):
            deep = {"a": deep}
        for part, is_kept in (
            ({"type": "zip", "x": "y"}, True),
            ({"type": "zip", "x": "y" * 70_000}, False),
            (deep, False),
        ):
            result = {"content": [part, {"type": "text", "text": "a\u202eb"}]}
            longer = {**result, "_meta": ["x" * 300_000]}
            with self.subTest(is_kept=is_kept):
                short, long = await read_long_result(result), await read_long_result(longer)
                assert isinstance(short, ToolOutput)
                self.assertEqual(short, long)
                self.assertTrue(short.output.endswith("which cannot be shown]\nab"))
                self.assertEqual(short.meta, {"mcp": {"unknown": [part]}} if is_kept else None)


class Headers(unittest.TestCase):
    def test_a_value_goes_as_it_is_or_as_marked_base64(self) -> None:
        cases = {
            "plain": "plain",
            "two words": "two words",
            "": "=?base64??=",
            " x": "=?base64?IHg=?=",
            "grün": "=?base64?Z3LDvG4=?=",
            "a\r\nb": "=?base64?YQ0KYg==?=",
            "=?base64?eA==?=": "=?base64?PT9iYXNlNjQ/ZUE9PT89?=",
        }
        self.assertEqual({text: encode_header_value(text) for text in cases}, cases)

    def test_an_invalid_annotation_is_reported_with_its_reason(self) -> None:
        schema = {"properties": {"a": {"properties": {"b": {"type": "string", "x-mcp-header": "B"}}}}}
        self.assertEqual(param_headers(schema), {("a", "b"): "B"})
        wrong: dict[str, Any] = {
            "not a valid header name": {"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}},
            "a string, an integer or a boolean": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
            "two arguments": {
                "properties": {
                    "a": {"type": "string", "x-mcp-header": "A"},
                    "b": {"type": "string", "x-mcp-header": "a"},
                }
            },
            "only below `properties`": {"properties": {"a": {"items": {"type": "string", "x-mcp-header": "A"}}}},
        }
        for reason, bad in wrong.items():
            with self.subTest(reason), self.assertRaisesRegex(ValueError, reason):
                param_headers(bad)


if __name__ == "__main__":
    unittest.main()
