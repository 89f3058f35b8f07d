"""Every vendor accepts the tools of public MCP servers, judged by the cited refusals and by what vendors publish.

`tests.mcp.public_servers` regenerates the fixture from the servers themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.parts.mcp.definitions import ToolDefinition, read_definitions
from openagentic_sdk.parts.mcp.server_config import McpServer
from openagentic_sdk.providers.definitions.accept import AcceptedParameters, accepted
from openagentic_sdk.providers.definitions.table import TABLE
from tests.mcp.public_servers import FIXTURE, fitting
from tests.providers.test_definitions import refusals
from tests.size import full_size, sized

VENDORS = sorted({row.vendor for row in TABLE})
PYTHON = os.environ.get("OPENAGENTIC_TEST_VENDORS_PYTHON")


def public_tools(step: int = sized(40, 15, 1)) -> list[ToolDefinition]:
    """The tools of the fixture as a run would offer them; one in every few of each server."""
    rows: dict[str, list[Any]] = {}
    for tool in json.loads(FIXTURE.read_text())["tools"]:
        rows.setdefault(tool["server"], []).append({**tool, "description": "d" * tool["description_chars"]})
    found: list[ToolDefinition] = []
    for server, raws in rows.items():
        made, left = read_definitions(server, McpServer(command="x"), raws[::step])
        assert not left, (server, left)
        found += made
    return found


class PublicTools(unittest.TestCase):
    @full_size
    def test_no_vendor_refuses_a_tool_of_a_public_server_and_calls_come_back_as_the_server_has_them(self) -> None:
        refused, unfit, tools = [], [], public_tools()
        for tool in tools:
            own = fitting(tool.input_schema, tool.input_schema)
            for vendor in VENDORS:
                found = accepted(vendor, tool.input_schema)
                refused += [(vendor, tool.shown, why) for why in refusals(vendor, found.parameters)]
                sent = found.keys.as_sent(own)
                if found.keys.as_own(sent) != own:
                    unfit.append((vendor, tool.shown, own))
        self.assertEqual((refused[:5], unfit[:5]), ([], []))
        self.assertGreater(len(tools), sized(35, 90, 900))

    @full_size
    @unittest.skipUnless(PYTHON, "OPENAGENTIC_TEST_VENDORS_PYTHON names no Python with the vendors' packages")
    def test_the_vendors_published_schemas_accept_every_public_tool_and_refuse_invalid_ones(self) -> None:
        tools = public_tools(sized(40, 30, 1))
        sent = [definition(vendor, tool, accepted(vendor, tool.input_schema)) for tool in tools for vendor in VENDORS]
        self.assertEqual(judged(sent)[:5], [])
        odd = {"type": "object", "properties": {"a": {"exclusiveMinimum": True}, "b": {"$ref": "#/$defs/none"}}}
        as_it_came = [{"vendor": vendor, "name": "odd", "description": "d", "parameters": odd} for vendor in VENDORS]
        self.assertEqual({row["vendor"] for row in judged(as_it_came)}, set(VENDORS))


def definition(vendor: str, tool: ToolDefinition, found: AcceptedParameters) -> dict[str, Any]:
    """The definition of a tool as sent to a vendor."""
    about = " ".join(filter(None, (tool.description, found.notes)))
    return {"vendor": vendor, "name": tool.shown, "description": about, "parameters": found.parameters}


def judged(definitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The definitions that `published.py` refuses."""
    assert PYTHON is not None
    judge, sent = Path(__file__).with_name("published.py"), "".join(json.dumps(each) + "\n" for each in definitions)
    done = subprocess.run([PYTHON, str(judge)], input=sent, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    unittest.main()
