"""The meaning of schemas, what they may cost, and what every entry point does with one."""

from __future__ import annotations

import time
import tracemalloc
import unittest
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openagentic_sdk import McpServer, MemorySessionStore, OpenAgenticOptions, PermissionGate, run
from openagentic_sdk.errors import OptionsError, ToolInputError
from openagentic_sdk.events import PermissionDecision, ToolResult, ToolStarted
from openagentic_sdk.ground.schemas import compiled, require_checkable
from openagentic_sdk.ground.schemas.checker import MAX_STEPS
from openagentic_sdk.ground.schemas.expressions import Expression, expression
from openagentic_sdk.ground.schemas.reading import MAX_VALUES, Schema
from openagentic_sdk.parts.mcp.definitions import read_definitions, read_schema
from openagentic_sdk.parts.mcp.questions import elicit
from openagentic_sdk.parts.mcp.tools import RemoteTool
from openagentic_sdk.parts.structured import read_output_schema
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.base import Tool, ToolContext
from openagentic_sdk.tools.function import tool

from ..size import LARGE, full_size
from .support import words

EVIL = {"x-t": {"pattern": "^(a+)+$"}, "properties": {"v": {"$ref": "#/x-t"}}}
LETTERS = "a" * 60 + "!"


class Given(Tool):
    """A tool with a given schema, which returns its input."""

    name, description = "given", "x"
    effect = "read"

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.input_schema = schema

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        return dict(input)


async def results(schema: Mapping[str, Any], *inputs: Mapping[str, Any], **settings: Any) -> list[Any]:
    """The results that a run stores when the model calls a tool of this schema with these inputs."""
    turns = [{"tool_calls": [{"name": "given", "arguments": input}]} for input in inputs]
    options = OpenAgenticOptions(
        provider=ScriptedProvider([*turns, "Done."]),
        model="scripted",
        tools=[Given(schema)],
        permission_gate=PermissionGate(permission_mode="bypass"),
        session_store=MemorySessionStore(),
        **settings,
    )
    result = await run(prompt="Go.", options=options)
    assert result.stop_reason == "end", result
    return list(result.events)


class Meaning(unittest.TestCase):
    def check(self, cases: list[tuple[Any, list[Any], list[Any]]]) -> None:
        """Check each schema with values that fit it, and values that do not."""
        for schema, good, bad in cases:
            for value in good:
                with self.subTest(schema=schema, fits=value):
                    self.assertEqual(words(value, schema), "")
            for value in bad:
                with self.subTest(schema=schema, does_not_fit=value):
                    self.assertNotEqual(words(value, schema), "")

    def test_true_is_not_1_and_1_is_1_0(self) -> None:
        self.check([
            ({"const": 1}, [1, 1.0], [True, "1"]),
            ({"const": True}, [True], [1, 1.0]),
            ({"enum": [0, [1, {"a": False}]]}, [0, 0.0, -0.0, [1.0, {"a": False}]], [False, [True, {"a": False}], [1, {}]]),
            ({"uniqueItems": True}, [[1, True, 0, False], [[1], [True]], ["1", 1]], [[1, 1.0], [{"a": 1}, {"a": 1.0}]]),
        ])  # fmt: skip

    def test_limits_that_were_ignored_are_checked(self) -> None:
        self.check([
            ({"type": "integer", "exclusiveMinimum": 0}, [1, 10**400], [0, -5, 0.5]),
            ({"minimum": 0, "exclusiveMinimum": True}, [0.1], [0]),  # draft 4
            ({"multipleOf": 0.01}, [4.35, 0.07, 3, 1e308], [4.355, float("inf")]),
            ({"multipleOf": 10**400}, [0, 10**401], [10**399, 1e308]),
            ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [3, 5.5], [7, 1.5]),
            ({"not": {"enum": ["a"]}}, ["b"], ["a"]),
            ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {}], [{"a": 1}]),
            ({"dependencies": {"a": ["b"], "c": {"minProperties": 3}}}, [{"a": 1, "b": 1}], [{"a": 1}, {"c": 1}]),
            ({"items": [{"type": "string"}], "additionalItems": False}, [["a"], []], [["a", "b"], [1]]),
            ({"type": "object", "nullable": True}, [None, {}], ["", 0]),
            ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": {"enum": ["a"]}}}, [None, "a"], ["b"]),
            ({"format": "email", "description": "x"}, ["nobody"], []),
        ])  # fmt: skip

    def test_references_lead_wherever_a_schema_was_read_and_nowhere_else(self) -> None:
        number = {"type": "integer"}
        shape = {"properties": {"from": {"anyOf": [{"type": "null"}, number]}}}
        for pointer, place in (
            ("#/properties/from/anyOf/1", shape),
            ("#/$defs/Page%5BItem%5D", {"$defs": {"Page[Item]": number}}),
            ("#/definitions/a~1b~0c", {"definitions": {"a/b~c": number}}),
            ("#here", {"$defs": {"a": {"$anchor": "here", **number}}}),
            ("https://x.org/b#/not", {"$id": "https://x.org/a", "$defs": {"b": {"$id": "b", "not": number}}}),
        ):
            with self.subTest(pointer):
                schema: dict[str, Any] = {**place, "prefixItems": [{"$ref": pointer}]}
                self.assertEqual(Schema(schema).problems, [])
                self.assertEqual((words([3], schema), words(["x"], schema) == ""), ("", False))
        for pointer in ("#/x-t", "#/enum/0", "#/properties/from/anyOf/2", "#/properties", "#nowhere", "http://x.org/y"):
            with self.subTest(pointer):
                schema = {**shape, "x-t": number, "enum": [number], "items": {"$ref": pointer}}
                self.assertIn("refers to", Schema(schema).problems[0])

    def test_a_required_property_with_a_default_is_filled_in(self) -> None:
        item = {"properties": {"n": {"type": "integer", "default": 1}, "m": {"default": [0]}}, "required": ["n", "m"]}
        schema = {"properties": {"list": {"items": item}, "x": {"default": 5}}, "required": ["list"]}
        given = {"list": [{}, {"n": 2}]}
        filled = Schema(schema).check(given)
        self.assertEqual(filled, {"list": [{"n": 1, "m": [0]}, {"n": 2, "m": [0]}]})
        self.assertEqual(given, {"list": [{}, {"n": 2}]})
        filled["list"][0]["m"].append(1)
        self.assertEqual(item["properties"]["m"]["default"], [0])
        whole = {"list": [{"n": 1, "m": 2}]}
        self.assertIs(Schema(schema).check(whole), whole)
        self.assertIn(
            "a is missing", words({}, {"properties": {"a": {"type": "string", "default": 3}}, "required": ["a"]})
        )
        # A default decides between forms only when none fits without it.
        forms = {"oneOf": [item, {"required": ["k"]}]}
        self.assertEqual(Schema(forms).check({"k": 1}), {"k": 1})
        self.assertEqual(Schema(forms).check({}), {"n": 1, "m": [0]})

    def test_an_error_names_the_place_and_what_was_expected(self) -> None:
        card = {"properties": {"kind": {"const": "card"}, "digits": {"type": "string"}}, "required": ["kind", "digits"]}
        cash = {"properties": {"kind": {"const": "cash"}}, "required": ["kind"]}
        schema = {"properties": {"pay": {"items": {"anyOf": [cash, card]}}}, "additionalProperties": False}
        self.assertEqual(
            words({"pay": [{"kind": "card", "digits": 4}]}, schema), "it: pay[0].digits must be a string, not 4"
        )
        self.assertEqual(words({"pya": 1}, schema), "it: pya is not known; the names are pay")
        self.assertEqual(
            words({"pay": 3}, {"properties": {"pay": {"minimum": 4}}}), "it: pay must be at least 4, not 3"
        )

    @full_size
    def test_an_error_is_short_whatever_it_is_about(self) -> None:
        huge: list[Any] = [10**5000, "x" * 10**6, list(range(10**5)), {str(n): n for n in range(10**5)}, 1e308]
        for value in huge:
            nulls = {"type": ["null"] * 5000}
            for schema in ({"enum": huge}, {"const": huge}, nulls, {"properties": {"a" * 5000: False}}):
                given = {"a" * 5000: value} if "properties" in schema else value
                if said := words(given, schema):
                    self.assertLess(len(said), 1_000)
                    self.assertTrue(said.isprintable())


class Patterns(unittest.TestCase):
    def found(self, pattern: str, text: str) -> bool:
        return expression(pattern).is_in(text, lambda steps: None)

    def test_patterns_are_those_of_ecma_262(self) -> None:
        for pattern, good, bad in (
            (r"^\d{2,3}$", ["12", "123"], ["1", "1234", "\u0661\u0662", "12\n"]),
            (r"^\w+$", ["a_1"], ["\u00e9"]),
            (r"^[^\W\d]\S*$", ["a-b"], ["1", "a b", "a\u00a0b"]),
            (r"\bcat\b", ["a cat", "cat."], ["cats", "concat"]),
            (r"^\p{Lu}\P{L}[\p{Nd}x]$", ["\u00c4-3", "A x"], ["a-3", "AB3"]),
            (r"^[a-f\-\]]+$", ["a-]"], ["g"]),
            (r"^(?:a|bc){2}$", ["abc", "bcbc"], ["a", "abca"]),
            (r"^\u{1F600}|\ud83d\ude01$", ["\U0001f600", "\U0001f601"], ["x"]),
            (r"^(?<year>\d{4})-\d\d$", ["2026-01"], ["26-01"]),
            (r"^a{,2}$|^.{3}$", ["a{,2}", "a\u00fcx"], ["a", "a\nx"]),
            (r"^(?!\.)(?!.*\.\.)([\w.]*)\w@(\w+\.)+[a-z]{2,}$", ["a.b@c.de"], [".a@c.de", "a..b@c.de"]),
            ("", ["", "a"], []),
            (r"^(a*)*$", ["", "aaa"], ["b"]),
        ):
            with self.subTest(pattern):
                self.assertEqual([text for text in good if not self.found(pattern, text)], [])
                self.assertEqual([text for text in bad if self.found(pattern, text)], [])

    def test_keywords_outside_the_subset_are_refused_with_a_reason(self) -> None:
        for pattern in (
            "(", ")", "[a", "a**", "*", "a{3,1}", r"(a)\1", r"(?<=a)b", "a(?=b)", "(?i)a", r"\p{Script=Greek}", r"[z-a]",
            "a{9999}{99}", "(" * 500 + ")" * 500, r"\u12", r"\q", "\\", r"\x{", r"\ud83dx\ud83d\u0041", "(?:a{99999})",
        ):  # fmt: skip
            with self.subTest(pattern[:20]), self.assertRaises(ValueError):
                expression(pattern)
            self.assertEqual(len(Schema({"pattern": pattern}).problems), 1)

    def test_no_pattern_explodes(self) -> None:
        for pattern in (
            "^(a+)+$",
            "^(a|a)*$",
            "(a|aa)+$",
            "(.*)*x",
            "a*a*a*a*a*a*b",
            "^(([a-z])+.)+[A-Z]$",
            "(a?){30}a{30}b",
        ):
            spent: list[int] = []
            self.assertFalse(expression(pattern).is_in("a" * 300 + "!", spent.append), pattern)
            self.assertLess(sum(spent), 20_000)

    def test_reading_a_pattern_looks_at_each_character_a_few_times(self) -> None:
        class Counted(str):
            looked_at = 0

            def __getitem__(self, place: Any) -> str:
                text = super().__getitem__(place)
                Counted.looked_at += len(text)
                return text

            def find(self, text: str, *places: Any) -> int:  # type: ignore[override]
                start, end, _ = slice(*places).indices(len(self))
                Counted.looked_at += end - start
                return super().find(text, *places)

        for pattern in (r"\d" * 3_000, "a{" * 3_000, "a{" * 3_000 + "}"):
            Counted.looked_at = 0
            Expression(Counted(pattern))
            self.assertLess(Counted.looked_at, 20 * len(pattern), pattern[:4])

    @full_size
    def test_a_pattern_does_not_grow_with_the_texts_that_it_was_compared_with(self) -> None:
        for pattern in ("^" + r"[^\0]?" * 150 + r"\0", "^" + r"[^\0]?" * 1_500 + r"\0"):
            texts = ["".join(map(chr, range(start, start + 20))) for start in range(0x4E00, 0x4E00 + 1_000, 20)]
            tracemalloc.start()
            self.addCleanup(tracemalloc.stop)
            for text in texts if len(pattern) < 2_000 else texts[:3]:
                expression(pattern).is_in(text, lambda steps: None)
            self.assertLess(tracemalloc.get_traced_memory()[0], 4_000_000)
            tracemalloc.stop()


def _timed(value: Any, schema: Any) -> tuple[str, float]:
    began = time.thread_time()
    return words(value, schema), time.thread_time() - began


class Hostile(unittest.TestCase):
    @full_size
    def test_work_is_counted_and_ends(self) -> None:
        loop = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}, "$ref": "#/$defs/a"}
        tree: Any = {"type": "null"}
        for _ in range(30):
            tree = {"anyOf": [tree, tree]} if _ % 2 else {"allOf": [{"oneOf": [tree, tree]}]}
        deep: Any = []
        for _ in range(3_000):
            deep = [deep]
        cyclic: dict[str, Any] = {}
        cyclic["not"] = cyclic
        branch = {"$ref": "#/$defs/b"}
        wide = {"$defs": {"b": {"items": {"anyOf": [branch] * 8}, "minItems": 1}}, "$ref": "#/$defs/b"}
        nested: Any = 1
        for _ in range(20):
            nested = [nested]
        cases: list[tuple[Any, Any]] = [
            (EVIL, {"v": LETTERS}),
            ({"pattern": "^(a+)+$"}, "a" * 500_000 + "!"),
            ({"pattern": "(.?){3000}x"}, "a" * 5_000),
            ({"items": {"pattern": "(.?){3000}x"}}, ["a"] * 5_000),
            ({"$ref": "#"}, 1),
            (loop, 1),
            (tree, {"a": 1}),
            (cyclic, 1),
            (wide, nested),
            ({"items": {"$ref": "#"}}, deep),
            ({"uniqueItems": True}, [n * (2**61 - 1) for n in range(30_000)]),
            ({"uniqueItems": True}, [deep, deep]),
            ({"const": deep}, deep),
            ({"enum": list(range(200_000))}, -1),
            ({"items": {"enum": [[n] for n in range(1_000)]}}, [[n] * 500 for n in range(3_000)]),
            ({"patternProperties": {f"a{n}": {} for n in range(2_000)}}, {f"b{n}": 1 for n in range(2_000)}),
            ({"required": [f"a{n}" for n in range(10**5)], "items": {"$ref": "#"}}, [{}] * 100),
            ({"multipleOf": 1e-300}, 10**4000),
            ({"multipleOf": 0.1}, float("nan")),
            ({"maximum": 10**400}, 1e999),
            ({"type": "integer"}, float("inf")),
            ({"minLength": float("inf"), "required": "x", "type": "text", "items": 3, "allOf": [], "enum": 3}, "x"),
            ([], 1),
            ({1: 2, None: 3}, {1: 2}),
            ({"properties": {"a": {"required": ["n"], "properties": {"n": {"default": [0] * 10**5}}}}}, {"a": {}}),
            ({"items": {"required": ["n"], "properties": {"n": {"default": [0] * 10**4}}}}, [{}] * 10**4),
            ({"enum": [object()], "const": {1, 2}}, object()),
        ]
        for number, (schema, value) in enumerate(cases):
            with self.subTest(number):
                began = time.process_time()
                said = words(value, schema)
                self.assertLess(len(said), 1_000)
                self.assertLess(time.process_time() - began, 20)  # formerly without end; counted steps limit it
        self.assertIn(f"{MAX_STEPS:,} steps", words("a" * 500_000 + "!", {"pattern": "^(a+)+$"}))
        self.assertIn("nested deeper", words(1, loop))

    @full_size
    def test_no_step_costs_more_than_a_moment(self) -> None:
        texts = [str(n) * 50 for n in range(1_000)]
        letters = "".join(map(chr, range(0x10000, 0x20000)))
        ranges = "".join(f"{chr(n)}-{chr(n)}" for n in range(0x4E00, 0x9000, 2))
        deep: Any = {"contains": {"anyOf": [False] * 200}, "minContains": 0}
        inside: Any = [1] * 100_000
        for _ in range(90):
            deep, inside = {"properties": {"a": deep}}, {"a": inside}
        many = [1] * 600_000
        cases: list[tuple[Any, Any]] = [
            # Defects in parts that are never read.
            ({"contains": {"contains": {"enum": texts}}, "minContains": 0}, [[1]] * 300_000),
            ({"contains": {"not": {"enum": [1, *texts]}}, "minContains": 0}, many),
            ({"contains": {"propertyNames": {"enum": texts}}, "minContains": 0}, [{"z": 1}] * 300_000),
            (deep, inside),
            # Character classes, and strings that are never equal.
            ({"pattern": f"[{ranges}]{{2}}"}, letters),
            ({"pattern": "[" + r"\p{Lu}" * 4_000 + "]{2}"}, letters),
            # Long values with many comparisons.
            ({"items": {"anyOf": [{"const": [1]}] * 10_000}}, [["abc"] * 30_000] * 10),
            ({"contains": {"const": 10**4000}, "minContains": 0}, [10**4001] * 600_000),
        ]
        for number, (schema, value) in enumerate(cases if LARGE else cases[::2]):
            with self.subTest(number):
                # In a thread, which has a fresh stack: where a call crosses into the next chunk of CPython's stack,
                # each call costs some 20 times as much, and the depth of the test runner is unknown.
                with ThreadPoolExecutor(1) as apart:
                    said, cpu_s = apart.submit(_timed, value, schema).result()
                self.assertIn(f"{MAX_STEPS:,} steps", said)
                self.assertLess(cpu_s, 10)  # formerly up to minutes

    @full_size
    def test_reading_a_schema_ends_soon_and_takes_little_memory(self) -> None:
        many: dict[str, Any] = {str(n): {} for n in range(15_000)}
        apart: Any = {"properties": many}
        for number in range(60):
            apart = {"$id": f"http://a/{number}", "properties": {"a": apart}}
        cases: list[Any] = [
            {"properties": {"x" * 20_000: {"properties": many}}},
            apart,
            {"$id": "http://a/" + "b/" * 20_000, "properties": {name: {"$ref": "c#"} for name in list(many)[:5_000]}},
            {"properties": {name: {"pattern": name + "a|" * 500} for name in list(many)[: 5_000 if LARGE else 1_500]}},
            {"pattern": "a" * 1_000_000},
        ]
        for number, schema in enumerate(cases):
            with self.subTest(number):
                tracemalloc.start()
                self.addCleanup(tracemalloc.stop)
                said = words({}, schema)
                most = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                self.assertIn("in bounded time", said)
                self.assertLess(most, 80_000_000)

    def test_a_schema_of_too_many_values_or_levels_is_not_read(self) -> None:
        deep: Any = 1
        for _ in range(MAX_VALUES):
            deep = [deep]
        for source in ({"enum": [0] * MAX_VALUES}, {"examples": [0] * MAX_VALUES}, {"const": deep}):
            problems = Schema(source).problems
            self.assertRegex(
                str(problems), r"the schema contains more than 200,000 values, or is nested deeper than 250"
            )
            with self.assertRaisesRegex(OptionsError, "200,000 values"):
                require_checkable(source, "output_schema")

    def test_the_steps_of_a_check_are_the_same_each_time(self) -> None:
        schema = {"items": {"pattern": "(x+x+)+y"}}
        for length in (900, 901):
            said = {words(["x" * length] * 200, schema) for _ in range(3)}
            self.assertEqual(len(said), 1)


class Doors(unittest.IsolatedAsyncioTestCase):
    async def test_whatever_is_wrong_with_a_call_is_a_tool_error_and_the_run_continues(self) -> None:
        schema = {
            "type": "object",
            "properties": {
                "v": {"type": "string", "pattern": "^(a+)+$"},
                "n": {"exclusiveMinimum": 0},
                "t": {"$ref": "#"},
            },
        }
        deep: dict[str, Any] = {}
        for _ in range(150):
            deep = {"t": deep}
        events = await results(schema, {"v": LETTERS}, {"n": -5}, deep, {"v": "aaa", "n": 1})
        outcomes = [(event.outcome, event.error_type) for event in events if isinstance(event, ToolResult)]
        self.assertEqual(outcomes, [("error", "ToolInputError")] * 3 + [("ok", None)])

    async def test_the_input_with_its_defaults_is_judged_run_and_logged(self) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer", "default": 7}}, "required": ["n"]}
        events = await results(schema, {})
        started = next(event for event in events if isinstance(event, ToolStarted))
        judged = next(event for event in events if isinstance(event, PermissionDecision))
        result = next(event for event in events if isinstance(event, ToolResult))
        self.assertEqual((started.input, result.output), ({"n": 7}, {"n": 7}))
        self.assertEqual(started.input_sha256, judged.input_sha256)
        self.assertEqual(Given(schema).run_sync({}, ToolContext()), {"n": 7})

    async def test_a_schema_of_ones_own_of_which_a_part_is_not_checked_is_refused_when_it_is_given(self) -> None:
        for part, reason in (
            ({"minimun": 3}, "'minimun' is not a supported keyword"),
            ({"pattern": r"(a)\1"}, "cannot be checked"),
            ({"type": "text"}, "must be one or more of object"),
            ({"$ref": "#/$defs/none"}, "which does not exist"),
            ({"$ref": "https://example.com/x"}, "never fetched"),
        ):
            schema = {"type": "object", "properties": {"v": part}}
            with self.subTest(reason):
                with self.assertRaisesRegex(OptionsError, f"given.input_schema: .*{reason}"):
                    await results(schema, {})
                with self.assertRaisesRegex(OptionsError, reason):
                    McpServer(tools=[Given(schema)])
                for spec in (schema, part):
                    with self.assertRaisesRegex(OptionsError, f"output_schema: .*{reason}"):
                        read_output_schema(spec)
        with self.assertRaisesRegex(OptionsError, "refers to '#/x-t'"):
            await results(EVIL, {"v": LETTERS})
        for empty in ({"properties": []}, {"anyOf": []}, {"required": None}):
            await results({"type": "object", **empty}, {})
        notes = {"title": "x", "x-order": 3, "deprecated": True, "format": "date", "examples": [1], "readOnly": True}
        await results({"type": "object", "properties": {"v": notes}, "$schema": "x"}, {"v": 1})

    async def test_a_strangers_tool_stays_and_what_is_not_checked_is_named(self) -> None:
        offered = {"name": "t", "inputSchema": {"properties": {"v": {"frobnicate": 3, "x-note": 1, "minLength": 2}}}}
        made, left = read_definitions("srv", McpServer(command="x"), [offered])
        self.assertEqual(left, [])

        class Seat:
            name, settings = "srv", McpServer(command="x")

            async def call_tool(self, *args: Any) -> Mapping[str, Any]:
                return {}

        remote = RemoteTool(Seat(), made[0])
        self.assertIn("'frobnicate' is not a supported keyword", remote.unchecked()["unchecked"][0])
        self.assertEqual(len(compiled(remote.input_schema).problems), 1)
        with self.assertRaisesRegex(ToolInputError, "v must be at least 2 characters, not 1"):
            compiled(remote.input_schema).check({"v": "x"})
        with self.assertRaisesRegex(ValueError, "does not exist"):
            read_schema(EVIL)
        zod = {
            "properties": {
                "from": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "to": {"$ref": "#/properties/from/anyOf/0"},
            }
        }
        self.assertEqual(words({"to": 3}, read_schema(zod)), "it: to must be a string, not 3")

    async def test_a_form_is_checked_by_the_same_rules(self) -> None:
        asked: list[str] = []
        answers = iter(["0", "5", "ab", "AB"])

        async def ask(text: str, choices: tuple[str, ...], details: Mapping[str, Any]) -> str:
            asked.append(text)
            return next(answers)

        fields = {"n": {"type": "integer", "exclusiveMinimum": 0}, "code": {"type": "string", "pattern": "^[A-Z]+$"}}
        form = {"requestedSchema": {"type": "object", "properties": fields, "required": ["n", "code"]}}
        self.assertEqual(await elicit("srv", form, ask), {"action": "accept", "content": {"n": 5, "code": "AB"}})
        self.assertIn("must be above 0, not 0", asked[1])

    async def test_true_is_not_1_where_a_function_chooses_between_types(self) -> None:
        @tool(effect="read")
        def choose(value: int | bool) -> str:
            """x"""
            return type(value).__name__

        self.assertEqual(choose.run_sync({"value": True}, ToolContext()), "bool")
        answer = read_output_schema({"enum": [1, "a"]})
        self.assertEqual(answer.read_text("1"), 1)
        with self.assertRaises(ToolInputError):
            answer.read_text("true")


if __name__ == "__main__":
    unittest.main()
