"""The official tests of JSON Schema, and random schemas compared with another implementation."""

from __future__ import annotations

import importlib.util
import unittest

from openagentic_sdk.errors import ToolInputError
from openagentic_sdk.ground.schemas import checker, reading
from openagentic_sdk.ground.schemas.checker import SchemaRun
from openagentic_sdk.ground.schemas.reading import Schema
from tests.size import LARGE, full_size

from .support import NO_SUITE, SUITE, Random, suite_groups, words


@unittest.skipUnless(SUITE, NO_SUITE)
class Official(unittest.TestCase):
    # Other documents, including custom metaschemas, are never fetched.
    REMOTE = ("refRemote", "vocabulary")

    def test_every_test_of_2020_12_passes_remote_references_aside(self) -> None:
        wrong, judged, remote = [], 0, 0
        for file, group in suite_groups("draft2020-12"):
            if any("which is in another document" in problem for problem in Schema(group["schema"]).problems):
                remote += 1
                continue
            for test in group["tests"] if file not in self.REMOTE else ():
                judged += 1
                if (words(test["data"], group["schema"]) == "") is not test["valid"]:
                    wrong.append((file, group["description"], test["description"]))
        self.assertEqual(wrong, [])
        self.assertGreater(judged, 1_200)
        self.assertLess(remote, 30)

    def test_spellings_of_older_drafts_are_read_too(self) -> None:
        files = {"items", "additionalItems", "dependencies", "definitions", "minimum", "maximum", "contains"}
        for draft, more in (("draft7", {"exclusiveMinimum", "if-then-else"}), ("draft4", set[str]())):
            groups = [(file, group) for file, group in suite_groups(draft) if file in files | more]
            wrong = [
                (draft, file, group["description"], test["description"])
                for file, group in groups
                for test in group["tests"]
                if not any("which is in another document" in problem for problem in Schema(group["schema"]).problems)
                and (words(test["data"], group["schema"]) == "") is not test["valid"]
            ]
            self.assertEqual(wrong, [])


class Randomly(unittest.TestCase):
    @full_size
    def test_no_schema_and_no_value_raises_anything_else_or_takes_more_than_its_steps(self) -> None:
        runs: list[SchemaRun] = []

        class Watched(SchemaRun):
            def __init__(self, is_filling: bool = False, steps_left: int = checker.MAX_STEPS) -> None:
                super().__init__(is_filling, steps_left)
                runs.append(self)

        reading.SchemaRun = Watched  # type: ignore[misc]
        self.addCleanup(setattr, reading, "SchemaRun", SchemaRun)
        fits = 0
        for seed in range(100_000 if LARGE else 3_000):
            made = Random(seed)
            schema = Schema(made.schema())
            for _ in range(3):
                runs.clear()
                try:
                    schema.check(made.value())
                    fits += 1
                except ToolInputError as error:
                    self.assertLess(len(str(error)), 1_500)
                    if f"{checker.MAX_STEPS:,} steps" in str(error):
                        continue
                self.assertTrue(all(0 <= run.left <= checker.MAX_STEPS for run in runs))
        self.assertGreater(fits, 1_000)

    @full_size
    @unittest.skipUnless(importlib.util.find_spec("jsonschema"), "the extra dev (jsonschema) is not installed")
    def test_the_judgement_is_that_of_another_implementation(self) -> None:
        from jsonschema import Draft202012Validator

        differ = []
        for seed in range(50_000 if LARGE else 2_000):
            made = Random(seed, is_plain=True)
            source = made.schema()
            schema = Schema(source)
            self.assertEqual(schema.problems, [], source)
            for _ in range(3):
                value = made.value()
                said = words(value, source)
                if (said == "") is not Draft202012Validator(source).is_valid(value):
                    differ.append((source, value, said))
        self.assertEqual(differ, [])


if __name__ == "__main__":
    unittest.main()
