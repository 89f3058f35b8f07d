"""Public servers in their current versions: each of their tools is offered, and each call of one ends."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from tests.mcp.public_servers import SERVERS, facts, fitting, install, try_server
from tests.size import LARGE


class PublicServers(unittest.TestCase):
    @unittest.skipUnless(LARGE and shutil.which("npm"), "installs forty servers: OPENAGENTIC_TEST_LARGE=1, and npm")
    def test_every_tool_of_a_public_server_is_offered_and_every_call_ends(self) -> None:
        begun, left = 0, {}
        with tempfile.TemporaryDirectory() as folder:
            for server in SERVERS:
                try:
                    row, tools = asyncio.run(try_server(server, install(server, Path(folder)), calls=True))
                except subprocess.SubprocessError:
                    continue  # an unavailable package is not a failure of ours
                begun += bool(tools)
                left |= {server.name: row["left_out"]} if row["left_out"] else {}
        self.assertEqual(left, {})
        self.assertGreater(begun, len(SERVERS) * 3 // 4)

    def test_the_facts_of_a_tool_hold_none_of_its_texts_and_a_value_is_made_that_fits(self) -> None:
        schema = {
            "type": "object",
            "description": "a text",
            "properties": {
                "description": {"type": "string", "title": "a text", "minLength": 2},
                "n": {"$ref": "#/$defs/n"},
            },
            "required": ["description", "n"],
            "$defs": {"n": {"type": "integer", "minimum": 3, "examples": ["a text"]}},
        }
        self.assertNotIn("a text", str(facts(schema)))
        self.assertIn("description", facts(schema)["properties"])
        self.assertEqual(fitting(schema, schema), {"description": "xx", "n": 3})


if __name__ == "__main__":
    unittest.main()
