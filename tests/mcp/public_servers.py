"""Start public MCP servers that work without a network, and keep the facts of their tools: names, schemas, lengths of
texts.

    python -m tests.mcp.public_servers FOLDER [--only NAME ...] [--call] [--write]

Installs each server of `SERVERS` into FOLDER (npm without scripts, pip; both kept for the next run), starts it through this
library and prints a row of a table. `--call` calls each of its tools once with arguments that fit its schema; any answer of
the server is accepted, as long as the call ends. `--write` regenerates `fixtures/mcp/public_tools.json` without
descriptions, titles and examples, which are the work of others; of descriptions only the length is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from openagentic_sdk import McpServer
from openagentic_sdk.errors import OpenAgentSdkError
from openagentic_sdk.ground.frozen import frozen
from openagentic_sdk.kernel.tool import BareTool
from openagentic_sdk.parts.mcp.servers import Servers
from openagentic_sdk.parts.mcp.tools import RemoteTool
from openagentic_sdk.tools.base import ToolContext

FIXTURE = Path(__file__).parents[2] / "fixtures" / "mcp" / "public_tools.json"
_TEXTS = frozenset(
    [
        "description",
        "title",
        "examples",
        "example",
        "$comment",
        "markdownDescription",
        "errorMessage",
        "enumDescriptions",
    ]
)
_MAX_DEFAULT_CHARS = 40
_CALL_S = 20.0
_AT_ONCE = 8


@frozen
class PublicServer:
    """A server from npm or PyPI. `command` is a program of its package with arguments, in which HERE is a fresh folder."""

    package: str
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    is_npm: bool = True
    # Tools that run their input, or end the server: listed, but not called.
    is_called: bool = True

    @property
    def name(self) -> str:
        """The package's name in a form that can name a folder and a server."""
        return re.sub("[^a-z0-9]+", "-", self.package.lower()).strip("-")


_KEY = "0123456789abcdef0123456789abcdef"
SERVERS: tuple[PublicServer, ...] = (
    PublicServer("@modelcontextprotocol/server-everything", "mcp-server-everything stdio"),
    PublicServer("@modelcontextprotocol/server-filesystem", "mcp-server-filesystem HERE"),
    PublicServer("@modelcontextprotocol/server-memory", "mcp-server-memory", {"MEMORY_FILE_PATH": "HERE/memory.json"}),
    PublicServer("@modelcontextprotocol/server-sequential-thinking", "mcp-server-sequential-thinking"),
    PublicServer("@modelcontextprotocol/server-github", "mcp-server-github", {"GITHUB_PERSONAL_ACCESS_TOKEN": _KEY}),
    PublicServer("@modelcontextprotocol/server-gitlab", "mcp-server-gitlab", {"GITLAB_PERSONAL_ACCESS_TOKEN": _KEY}),
    PublicServer(
        "@modelcontextprotocol/server-slack", "mcp-server-slack", {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_TEAM_ID": "T0"}
    ),
    PublicServer("@playwright/mcp", "playwright-mcp --headless"),
    PublicServer("chrome-devtools-mcp", "chrome-devtools-mcp --headless"),
    PublicServer("@notionhq/notion-mcp-server", "notion-mcp-server", {"NOTION_TOKEN": f"ntn_{_KEY}"}),
    PublicServer("@twilio-alpha/mcp", f"twilio-mcp-server AC{_KEY}/SK{_KEY}:{_KEY}"),
    PublicServer("firecrawl-mcp", "firecrawl-mcp", {"FIRECRAWL_API_KEY": f"fc-{_KEY}"}),
    PublicServer("tavily-mcp", "tavily-mcp", {"TAVILY_API_KEY": f"tvly-{_KEY}"}),
    PublicServer("exa-mcp-server", "exa-mcp-server", {"EXA_API_KEY": _KEY}),
    PublicServer("@brave/brave-search-mcp-server", "brave-search-mcp-server", {"BRAVE_API_KEY": _KEY}),
    PublicServer("figma-developer-mcp", "figma-developer-mcp --stdio", {"FIGMA_API_KEY": _KEY}),
    PublicServer("@antv/mcp-server-chart", "mcp-server-chart"),
    PublicServer("@zereight/mcp-gitlab", "mcp-gitlab", {"GITLAB_PERSONAL_ACCESS_TOKEN": _KEY}),
    PublicServer("@hubspot/mcp-server", "mcp-hubspot", {"PRIVATE_APP_ACCESS_TOKEN": f"pat-na1-{_KEY}"}),
    PublicServer("@mapbox/mcp-server", "mcp-server", {"MAPBOX_ACCESS_TOKEN": "pk.eyJ1IjoieCJ9.x"}),
    PublicServer("mcp-server-kubernetes", "mcp-server-kubernetes"),
    PublicServer("@line/line-bot-mcp-server", "line-bot-mcp-server", {"CHANNEL_ACCESS_TOKEN": _KEY}),
    PublicServer("airtable-mcp-server", "airtable-mcp-server", {"AIRTABLE_API_KEY": f"pat{_KEY}"}),
    PublicServer("@circleci/mcp-server-circleci", "mcp-server-circleci", {"CIRCLECI_TOKEN": _KEY}),
    PublicServer("@wonderwhy-er/desktop-commander", "desktop-commander", {"HOME": "HERE"}, is_called=False),
    PublicServer("mongodb-mcp-server", "mongodb-mcp-server", {"MDB_MCP_TELEMETRY": "disabled"}),
    PublicServer("@upstash/context7-mcp", "context7-mcp"),
    PublicServer("@eslint/mcp", "mcp"),
    PublicServer("mcp-server-time", "mcp-server-time --local-timezone UTC", is_npm=False),
    PublicServer("mcp-server-fetch", "mcp-server-fetch", is_npm=False),
    PublicServer("mcp-server-git", "mcp-server-git", is_npm=False),
    PublicServer(
        "mcp-atlassian",
        "mcp-atlassian",
        {
            "JIRA_URL": "https://x.atlassian.net",
            "JIRA_USERNAME": "x@example.com",
            "JIRA_API_TOKEN": _KEY,
            "CONFLUENCE_URL": "https://x.atlassian.net/wiki",
            "CONFLUENCE_USERNAME": "x@example.com",
            "CONFLUENCE_API_TOKEN": _KEY,
        },
        is_npm=False,
    ),
    PublicServer("excel-mcp-server", "excel-mcp-server stdio", is_npm=False),
    PublicServer("redis-mcp-server", "redis-mcp-server --url redis://127.0.0.1:1/0", is_npm=False),
    PublicServer(
        "mcp-clickhouse",
        "mcp-clickhouse",
        {"CLICKHOUSE_HOST": "127.0.0.1", "CLICKHOUSE_USER": "x", "CLICKHOUSE_PASSWORD": "x"},
        is_npm=False,
    ),
    PublicServer("office-word-mcp-server", "word_mcp_server", is_npm=False),
    PublicServer("arxiv-mcp-server", "arxiv-mcp-server --storage-path HERE", is_npm=False),
    PublicServer("mcp-alchemy", "mcp-alchemy", {"DB_URL": "sqlite:///HERE/x.db"}, is_npm=False),
    PublicServer("workspace-mcp", "workspace-mcp --single-user", {"GOOGLE_OAUTH_CLIENT_ID": "x"}, is_npm=False),
    PublicServer("meta-ads-mcp", "meta-ads-mcp", {"META_ACCESS_TOKEN": _KEY}, is_npm=False),
)


def install(server: PublicServer, folder: Path) -> Path:
    """The folder of the package's programs, installed if it is missing. Raises `CalledProcessError`."""
    place = folder / server.name
    programs = place / "node_modules" / ".bin" if server.is_npm else place / "bin"
    if (programs / server.command.partition(" ")[0]).exists():
        return programs
    place.mkdir(parents=True, exist_ok=True)
    if server.is_npm:
        (place / "package.json").write_text('{"private": true}')
        words = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", server.package]
    else:
        venv.create(place, with_pip=True)
        # -I: the tests turn warnings into errors through the environment, and pip emits some.
        words = [str(programs / "python"), "-I", "-m", "pip", "install", "-q", server.package]
    subprocess.run(words, cwd=place, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return programs


def version_of(server: PublicServer, folder: Path) -> str:
    """The version of a package that `install` installed."""
    place = folder / server.name
    if server.is_npm:
        about = json.loads((place / "node_modules" / server.package / "package.json").read_text())
        return str(about["version"])
    shown = subprocess.run(
        [str(place / "bin" / "python"), "-I", "-c", f"import importlib.metadata as m; print(m.version({server.package!r}))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return shown.stdout.strip()


def settings_for(server: PublicServer, programs: Path, here: str) -> McpServer:
    """The settings that start an installed server in its own folder."""
    words = server.command.replace("HERE", here).split()
    env = {key: value.replace("HERE", here) for key, value in server.env.items()}
    path = os.pathsep.join((str(programs), os.environ.get("PATH", "")))
    return McpServer(
        command=str(programs / words[0]), args=words[1:], env={"PATH": path, **env}, connect_timeout_s=120.0
    )


def facts(raw: Any, *, is_name: bool = False) -> Any:
    """A definition without its texts; with `is_name`, the keys of `raw` are property names and not keywords."""
    if isinstance(raw, list):
        return [facts(item) for item in raw]
    if not isinstance(raw, Mapping):
        return raw
    made = {}
    for key, value in raw.items():
        if not is_name and (key in _TEXTS or (key == "default" and len(json.dumps(value)) > _MAX_DEFAULT_CHARS)):
            continue
        made[key] = facts(value, is_name=not is_name and key in ("properties", "$defs", "definitions"))
    return made


def fitting(schema: Any, root: Mapping[str, Any], depth: int = 6) -> Any:
    """A value that usually fits a schema: only what is required, as short as possible."""
    if not isinstance(schema, Mapping) or depth < 0:
        return "x"
    if isinstance(reference := schema.get("$ref"), str):
        target: Any = root
        for step in reference.lstrip("#/").split("/"):
            target = target.get(step, {}) if isinstance(target, Mapping) else {}
        return fitting(target, root, depth - 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return fitting(schema[key][0], root, depth - 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: fitting(properties.get(name), root, depth - 1) for name in schema.get("required", ())}
    if kind == "array":
        return [fitting(schema.get("items"), root, depth - 1)] * int(schema.get("minItems", 1))
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
    return {"boolean": False, "null": None}.get(kind, "x" * max(1, int(schema.get("minLength", 1))))


async def call_all(tools: Sequence[BareTool]) -> dict[str, int]:
    """The number of calls by outcome: `ok`, `refused` (by the server) and `late`. Raises what no call may raise."""
    ends = dict.fromkeys(("ok", "refused", "late"), 0)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def call(tool: BareTool) -> None:
        async with turns:
            try:
                await asyncio.wait_for(tool.run(fitting(tool.input_schema, tool.input_schema), ToolContext()), _CALL_S)
                ends["ok"] += 1
            except TimeoutError:
                ends["late"] += 1
            except (OpenAgentSdkError, ValueError):
                ends["refused"] += 1

    await asyncio.gather(*(call(tool) for tool in tools if isinstance(tool, RemoteTool)))
    return ends


async def try_server(
    server: PublicServer, programs: Path, *, calls: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a server for the table, and the facts of its tools."""
    with tempfile.TemporaryDirectory() as here:
        servers = Servers({server.name: settings_for(server, programs, here)}, cwd=here)
        servers.hold()
        began = time.monotonic()
        try:
            await servers.ready()
            took_s = time.monotonic() - began
            [event] = servers.changes({})
            tools = [tool for tool in servers.tools() if isinstance(tool, RemoteTool)]
            row: dict[str, Any] = {"package": server.package, "protocol": event.protocol_version, "tools": len(tools),
                   "left_out": event.left_out, "error": event.error_message, "seconds": round(took_s, 1)}  # fmt: skip
            if calls and server.is_called:
                row["calls"] = await call_all(tools)
            return row, [_facts_of(server, tool) for tool in tools]
        finally:
            await servers.release()


def _facts_of(server: PublicServer, tool: RemoteTool) -> dict[str, Any]:
    raw = tool.definition.raw
    return {
        "server": server.name,
        "name": raw["name"],
        "description_chars": len(str(raw.get("description") or "")),
        "inputSchema": facts(raw.get("inputSchema")),
    }


def main(words: Iterable[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--call", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args([*words])
    rows: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for server in SERVERS:
        if args.only and server.name not in args.only:
            continue
        try:
            programs = install(server, args.folder.resolve())
            row, found = asyncio.run(try_server(server, programs, calls=args.call))
            row["version"] = version_of(server, args.folder.resolve())
        except subprocess.SubprocessError as error:
            row, found = {"package": server.package, "tools": 0, "error": str(error)}, []
        why = f"  {str(row['error'])[-300:]}" if row.get("error") else ""
        left = f"  left out: {row['left_out']}" if row.get("left_out") else ""
        print(f"{server.package:46} {row.get('version', '')!s:14} {row.get('protocol')!s:11} {row['tools']:4}"
              f" {row.get('seconds')!s:>6} s {row.get('calls') or ''}{left}{why}", flush=True)  # fmt: skip
        rows.append(row)
        tools += found
    works = [row for row in rows if row["tools"]]
    print(f"{len(works)} of {len(rows)} servers, {len(tools)} tools, {sum(len(r['left_out']) for r in works)} left out")
    if args.write:
        FIXTURE.parent.mkdir(exist_ok=True)
        servers = [{key: row[key] for key in ("package", "version", "protocol", "tools")} for row in works]
        lines = [json.dumps(tool, ensure_ascii=True, separators=(",", ":")) for tool in tools]
        head = json.dumps(servers, indent=1)
        FIXTURE.write_text(f'{{"servers": {head},\n"tools": [\n' + ",\n".join(lines) + "\n]}\n")
    return 0 if len(works) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
