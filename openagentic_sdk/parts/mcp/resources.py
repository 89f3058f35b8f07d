"""Servers' resources and prompts: tools that list and read resources, `@server:uri` in a prompt, `/mcp__server__prompt`.

Their content is untrusted text. Resources are fetched only through the server that lists them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from ...errors import McpError, ToolInputError
from ...ground.frozen import frozen
from ...ground.loose import as_list, as_mapping, as_mappings, as_text
from ...ground.text import existing
from ...kernel.tool import ToolContext, ToolOutput
from ...tools.base import Tool
from ...tools.labels import ToolLabels
from ...tools.schema import object_schema, string
from .content import Content
from .definitions import clean_text
from .session import RequestHooks
from .tools import hooks_of

MAX_LISTED = 200
MAX_MENTIONS = 10
MAX_TEXT_CHARS = 200_000
_MENTION = r"(?<![^\s(])@([A-Za-z0-9_-]+):([^\s@]+)"
_PROMPT = r"/mcp__([A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*)__(\S+)(?:\s+(.*))?\Z"


class Readable(Protocol):
    """A server whose resources and prompts can be requested."""

    name: str

    async def ready(self) -> None: ...

    async def ask(
        self, method: str, params: Mapping[str, Any], hooks: RequestHooks | None = None
    ) -> Mapping[str, Any]: ...

    async def list_all(self, method: str, member: str) -> list[Any]: ...


class ListResourcesTool(Tool):
    """A tool that lists resources: `{"resources": [{"server", "uri" or "uri_template", "name"?, ...}], "note"?}`.

    The note contains errors, and the number of resources beyond `MAX_LISTED`.
    """

    name = "ListMcpResources"
    labels = ToolLabels(control=(), sink=False)
    description = (
        "List the resources of the MCP servers: documents, records and files to read. An entry with a uri_template is a "
        "family of resources: fill in the braces and read the result."
    )
    input_schema = object_schema({"server": string("List only this server's resources; default: all servers'")})
    effect = "read"  # names and addresses only

    def __init__(self, seats: Mapping[str, Readable]) -> None:
        self._seats = seats

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        server = input.get("server")
        seats = [_seat(self._seats, server)] if server is not None else list(self._seats.values())
        entries, notes = [], []
        for seat in seats:
            for method, member, key in (
                ("resources/list", "resources", "uri"),
                ("resources/templates/list", "resourceTemplates", "uriTemplate"),
            ):
                try:
                    listed = as_mappings(await seat.list_all(method, member))
                except McpError as error:
                    # Many servers list resources but do not support templates: the model has no use for that error.
                    notes += [str(error)] if method == "resources/list" else []
                    continue
                entries += [_entry(seat.name, one, key) for one in listed if isinstance(one.get(key), str)]
        if len(entries) > MAX_LISTED:
            notes.append(f"{len(entries) - MAX_LISTED} more are not shown: name a server")
        note = {"note": "; ".join(notes)} if notes else {}
        return {"resources": entries[:MAX_LISTED], **note}


def _entry(server: str, one: Mapping[str, Any], key: str) -> dict[str, Any]:
    entry = {"server": server, "uri" if key == "uri" else "uri_template": clean_text(one[key], 1000)}
    for name, theirs in (("name", "name"), ("description", "description"), ("media_type", "mimeType")):
        text = clean_text(as_text(one.get(theirs)), 300)
        entry |= {name: text} if text else {}
    return entry


class ReadResourceTool(Tool):
    """A tool that reads a resource: the result is its text; images and the like are attached."""

    name = "ReadMcpResource"
    labels = ToolLabels(control=("server", "uri"), sink=True)
    description = "Read a resource of an MCP server, by the uri that ListMcpResources or a tool's result names."
    input_schema = object_schema(
        {"server": string("The server's name"), "uri": string("The resource's uri", minLength=1)},
        required=["server", "uri"],
    )
    effect = "idempotent"

    def __init__(self, seats: Mapping[str, Readable]) -> None:
        self._seats = seats

    def rule_names(self, input: Mapping[str, Any]) -> tuple[str, ...]:
        return (f"mcp__{input['server']}__{self.name}",) if isinstance(input.get("server"), str) else ()

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        content = await _read(_seat(self._seats, input["server"]), input["uri"], ctx)
        return ToolOutput(content.text, attachments=content.attachments)


def _seat(seats: Mapping[str, Readable], name: str) -> Readable:
    if name not in seats:
        raise ToolInputError(f"no server {name!r:.100} has resources: {existing('servers', seats)}", path="server")
    return seats[name]


async def _read(seat: Readable, uri: str, ctx: ToolContext | None = None) -> Content:
    result = await seat.ask("resources/read", {"uri": uri}, None if ctx is None else hooks_of(ctx))
    content = Content()
    for part in as_list(result.get("contents")):
        content.add_resource(as_mapping(part))
    return content


# --- in prompts ------------------------------------------------------------------------------------------------------


@frozen
class PromptExpansion:
    """The expansion of a prompt: text that replaces it, text to append to it, and parts (images and the like).

    `sources` names the origin of each addition.
    """

    instead: str | None = None
    behind: str = ""
    parts: Sequence[Mapping[str, Any]] = ()
    sources: Sequence[str] = ()


async def expand_prompt(
    text: str, servers: Mapping[str, Readable], permits: Callable[[str, str], Awaitable[bool]]
) -> PromptExpansion | None:
    """Expand `/mcp__server__prompt arguments`, or the resources that a prompt names as `@server:uri`; None if there is
    nothing to expand.

    Up to `MAX_MENTIONS` resources are read, except those that `permits` rejects; one that cannot be read is mentioned in the
    text. Raises `McpError` for a prompt that the server does not return.
    """
    called = re.match(_PROMPT, text, re.DOTALL)
    if called is not None and called[1] in servers:
        content = await _get_prompt(await _ready(servers[called[1]]), called[2], called[3] or "")
        sources = [f"MCP: prompt {called[2]} of {called[1]}"]
        return PromptExpansion(content.text[:MAX_TEXT_CHARS], parts=content.sendable, sources=sources)
    mentions = dict.fromkeys(re.findall(_MENTION, text))
    # A mention at the end of a sentence is followed by punctuation that belongs to the sentence.
    resources = [(name, uri.rstrip(".,;:!?)")) for name, uri in mentions if name in servers]
    resources = [one for one in resources[:MAX_MENTIONS] if await permits(*one)]
    if not resources:
        return None
    blocks: list[str] = []
    parts: list[Mapping[str, Any]] = []
    for name, uri in resources:
        try:
            content = await _read(await _ready(servers[name]), uri)
            body = content.text[:MAX_TEXT_CHARS]
            parts += content.sendable
        except McpError as error:
            body = f"(it could not be read: {error})"
        blocks.append(f"\n\nThe resource {clean_text(uri, 500)} of the MCP server {name}:\n{body}")
    sources = [f"MCP: {name} {uri}" for name, uri in resources]
    return PromptExpansion(behind="".join(blocks), parts=parts, sources=sources)


async def _ready(seat: Readable) -> Readable:
    await seat.ready()
    return seat


async def _get_prompt(seat: Readable, name: str, text: str) -> Content:
    """Request a prompt from a server. Its arguments in `text` are words in the prompt's own order, or `name=value`.

    Raises `McpError` if there is no such prompt, if a required argument is missing, or if the request fails.
    """
    prompts = as_mappings(await seat.list_all("prompts/list", "prompts"))
    prompt = next((one for one in prompts if one.get("name") == name), None)
    if prompt is None:
        prompt_names = existing("prompts", [clean_text(as_text(one.get("name")), 60) for one in prompts[:50]])
        raise McpError(f"the server {seat.name} has no prompt {name!r:.100}: {prompt_names}", server=seat.name)
    parameters = [as_text(one.get("name")) for one in as_mappings(prompt.get("arguments"))]
    needed = [as_text(one.get("name")) for one in as_mappings(prompt.get("arguments")) if one.get("required") is True]
    try:
        words = shlex.split(text)
    # An apostrophe in a sentence is not an open quote.
    except ValueError:
        words = text.split()
    values: dict[str, str] = {}
    free = []
    for word in words:
        key, is_named, value = word.partition("=")
        if is_named and key in parameters:
            values[key] = value
        else:
            free.append(word)
    open_ones = [name for name in parameters if name not in values]
    if len(free) > len(open_ones) and open_ones:  # the last one gets the rest, so that a sentence needs no quotes
        free = [*free[: len(open_ones) - 1], " ".join(free[len(open_ones) - 1 :])]
    arguments = {**values, **dict(zip(open_ones, free, strict=False))}
    missing = [argument for argument in needed if argument not in arguments]
    if missing:
        raise McpError(
            f"/mcp__{seat.name}__{name} needs {', '.join(parameters)}: {missing[0]} is missing", server=seat.name
        )
    result = await seat.ask("prompts/get", {"name": name, "arguments": arguments})
    content = Content()
    for message in as_mappings(result.get("messages")):
        if message.get("role") == "assistant":
            content.texts.append("(The assistant said:)")
        content.add(message.get("content"))
    return content
