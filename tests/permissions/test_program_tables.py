"""The tables of programs as data: each documents its contents and a source to verify them against."""

from __future__ import annotations

import json
import unittest

from openagentic_sdk.permissions import program_tables
from tests.guards.source import PACKAGE, ROOT


class ProgramTablesTest(unittest.TestCase):
    def test_each_table_names_its_source_and_is_read(self) -> None:
        data = json.loads((ROOT / PACKAGE / "permissions/reading/programs.json").read_text("utf-8"))
        for name, table in data.items():
            with self.subTest(name):
                self.assertTrue(table["about"].endswith(".") and table["manual"])
                self.assertEqual(len(table), 3)
                value = getattr(program_tables, name.upper())
                if "rows" in table:
                    programs = [program for row in table["rows"] for program in row.split()]
                    self.assertEqual(sorted(value), sorted(programs), "a program is in two rows")
                elif "words" in table:
                    self.assertEqual(sorted(value), sorted(" ".join(table["words"]).split()), "a word occurs twice")


if __name__ == "__main__":
    unittest.main()
