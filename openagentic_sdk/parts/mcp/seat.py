"""One server of a run: not started yet, connected, or restarted after it died.

A server that died is restarted when it is next needed, with a longer delay after each quick death (1, 2, 4 and 8 s); a
program that has died quickly five times is not restarted. A call that was in progress may have taken effect: it is repeated
only if the user declared the tool repeatable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ...errors import McpError, UnknownOutcomeError
from ...events import Effect, McpServerChanged
from ...ground.backoff import Backoff
from ...ground.diagnostic import Diagnostic
from ...ground.loose import as_list, as_mapping
from ...ground.threads import error_words, run_in_thread
from ...kernel.tool import REPEATABLE, BareTool
from .definitions import ToolDefinition, clean_text, is_wanted, read_definitions
from .handshake import Era, again, connect
from .http import HttpAuth, HttpWire, SessionGoneError
from .http_headers import ParamHeaders, param_headers
from .protocol import HEADER_MISMATCH, URL_NEEDED, size_within
from .questions import elicit
from .server_config import McpServer
from .session import MAX_INSTRUCTIONS_CHARS, InputRound, McpSession, RequestHooks
from .stdio import StdioWire
from .tools import OwnTool, RemoteTool

# How long a server may take to connect; a run waits only for its connect timeout.
LATE_S = 300.0
# How long a step waits for a changed list.
LIST_S = 5.0
QUICK_DEATH_S = 60.0
_PAUSES = Backoff(1.0, QUICK_DEATH_S)
MAX_QUICK_DEATHS = 5
MAX_LEFT_OUT_SHOWN = 200
MAX_DEFINITION_SIZE = 1024 * 1024  # characters, and eight for each value
_READ_AT_ONCE, _READ_AT_ONCE_SIZE = 8, 256 * 1024


class ToolPins(Protocol):
    """The definitions of a server's tools that a person agreed to.

    `judge` returns those of a server's definitions that may be offered, and the names of the others with the reasons.
    """

    def judge(
        self, server: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]]: ...


PinsFor = Callable[[str, McpServer], "ToolPins | None"]


class Seat:
    """One server and its connection.

    `tools` are those that the server currently offers, `event` is its latest state, and `changes` counts state changes.
    """

    def __init__(
        self,
        name: str,
        settings: McpServer,
        cwd: str,
        roots: Sequence[str],
        auth: HttpAuth | None,
        pins: ToolPins | None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.tools: Sequence[BareTool] = ()
        self.instructions = ""
        self.event: McpServerChanged | None = None
        self.changes = 0
        self._cwd = cwd
        self._roots = roots
        self._auth = auth
        self._pins = pins
        self._session: McpSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._connecting: McpSession | None = None
        self._wait_until = 0.0
        self._listing: asyncio.Task[None] | None = None
        self._era: Era | None = None
        self._left_out: list[Diagnostic] = []
        self._copied: dict[str, ParamHeaders] = {}
        self._quick_deaths = 0
        self._came_at = self._died_at = 0.0

    def has(self, capability: str) -> bool:
        """Whether the server announces a capability, such as `resources` or `prompts`."""
        return self._session is not None and capability in self._session.capabilities

    def waiting_words(self) -> str:
        """A description of what the server's start is waiting for; empty unless it is being started."""
        if self._opening is None or self._opening.done():
            return ""
        wire = self._connecting and self._connecting.wire
        launcher = self.settings.launcher
        words = f"{launcher} starts it, and may be installing it" if launcher else "it has not responded yet"
        last_line = wire.stderr().strip().rpartition("\n")[2] if isinstance(wire, StdioWire) else ""
        return f"{words}: {last_line}" if last_line else words

    # --- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, unless the server is connected or connecting, or the delay after a failure has not passed."""
        if self._session is None and (self._opening is None or (self._opening.done() and self._pause_s() <= 0)):
            # A server that failed before is tried again, but the run does not wait for it again.
            self._begin(self.settings.wait_s if self._opening is None else 0.0)

    def _begin(self, wait_s: float, pause_s: float = 0.0) -> asyncio.Task[None]:
        self._wait_until = asyncio.get_running_loop().time() + pause_s + wait_s
        self._opening = asyncio.create_task(self._open(pause_s), name=f"mcp {self.name}")
        return self._opening

    async def ready(self) -> None:
        """Wait for a starting server, no longer than its connect timeout; read a running server's tools if they changed."""
        opening, session = self._opening, self._session
        if opening is not None and not opening.done():
            await self._wait(opening)
            if not opening.done() and (self.event is None or self.event.state != "failed"):
                settings, wire = self.settings, self._connecting and self._connecting.wire
                text = (
                    f"it has not responded within {settings.wait_s:g} s (connectTimeout in its entry, --connect-timeout, "
                    "connect_timeout_s in code): the run continues, and the server may still become available"
                )
                words = wire.last_words() if isinstance(wire, StdioWire) else ""
                self._say("failed", McpError(text + words, server=self.name))
        elif session is not None and session.lost is not None:
            if self.event is not None and self.event.state != "lost":
                self._say("lost", session.lost)
        elif session is not None and "tools" in session.stale:
            if self._listing is None or self._listing.done():
                self._wait_until = asyncio.get_running_loop().time() + min(LIST_S, self.settings.connect_timeout_s)
                self._listing = asyncio.create_task(self._list_again(session), name=f"mcp tools {self.name}")
            await self._wait(self._listing)

    async def _wait(self, task: asyncio.Task[None]) -> None:
        left_s = self._wait_until - asyncio.get_running_loop().time()
        # Not `wait_for`, which would cancel the task: a slow server may still become available for later steps.
        await asyncio.wait({task}, timeout=max(0.0, left_s))

    async def _list_again(self, session: McpSession) -> None:
        """Read the tools again; after a failure, keep the current ones and mark them to be read at the next step."""
        try:
            try:
                await self._read_tools(session)
            except SessionGoneError:
                await again(session)
                await self._read_tools(session)
        except Exception:  # noqa: BLE001 - as in `_open`; the tools offered so far remain
            session.stale.add("tools")

    async def session(self) -> McpSession:
        """Return the open session, after restarting a server that died. Raises `McpError`."""
        if self._session is not None and self._session.lost is None:
            return self._session
        if self._opening is None or self._opening.done():
            if self._quick_deaths >= MAX_QUICK_DEATHS:
                ended = f"ended {self._quick_deaths} times shortly after starting and is not restarted"
                raise McpError(f"the server {self.name} {ended}: {self._why()}", server=self.name)
            self._begin(0.0, max(0.0, self._pause_s()))
        assert self._opening is not None
        await asyncio.wait({self._opening}, timeout=max(0.0, self._pause_s()) + self.settings.wait_s)
        if self._session is None or self._session.lost is not None:
            raise McpError(f"the server {self.name} is not available: {self._why()}", server=self.name)
        return self._session

    async def close(self) -> None:
        """End the server, or the attempt to connect to it."""
        working = [task for task in (self._opening, self._listing) if task is not None]
        self._opening = self._listing = None
        for task in working:
            task.cancel()
        if working:
            await asyncio.wait(working)
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self.tools, self.event = (), None

    def _pause_s(self) -> float:
        """The seconds until the server may be started; 0 or less if it may be now."""
        if not self._quick_deaths:
            return 0.0
        return self._died_at + _PAUSES.wait_s(self._quick_deaths) - asyncio.get_running_loop().time()

    def _why(self) -> str:
        return (self.event.error_message if self.event is not None else None) or "it has not responded yet"

    async def _open(self, pause_s: float) -> None:
        if self.settings.kind == "tools":
            self.tools = [
                OwnTool(self.name, tool, self.settings)
                for tool in self.settings.tools
                if is_wanted(self.settings, tool.name)
            ]
            self._say("started")
            return
        await asyncio.sleep(pause_s)
        before, self._session = self._session, None
        session: McpSession | None = None
        try:
            async with asyncio.timeout(LATE_S):
                if before is not None:
                    await before.close()
                session = await connect(
                    self.name,
                    self.settings,
                    cwd=self._cwd,
                    roots=self._roots,
                    auth=self._auth,
                    era=self.settings.era or self._era,
                    began=self._note_connecting,
                )
                # Before `_say` replaces the event that contains the reason.
                why = McpError(self._why(), server=self.name) if before is not None else None
                await self._read_tools(session)
                self._session, self._era = session, "modern" if session.is_modern else "legacy"
                self._came_at = asyncio.get_running_loop().time()
                session.when_lost = self._died
                self.instructions = clean_text(session.instructions, MAX_INSTRUCTIONS_CHARS)
                self._say("started" if before is None else "restarted", why)
        except Exception as error:  # noqa: BLE001 - any failure (also of a login or pin) must affect this server only
            self._died()
            limit = McpError(f"it did not become available within {LATE_S:g} s", server=self.name)
            self._era = None  # its protocol may have changed with it
            self._say("failed", limit if isinstance(error, TimeoutError) else error)
        finally:
            if session is not None and session is not self._session:
                await session.close()

    def _note_connecting(self, session: McpSession) -> None:
        self._connecting = session

    def _died(self) -> None:
        now = asyncio.get_running_loop().time()
        # `_came_at` is not later than the last death if the server has not connected since.
        was_quick = self._came_at <= self._died_at or now - self._came_at < QUICK_DEATH_S
        # Only starts of a process are limited; a service behind a URL may be down for a while.
        is_counted = was_quick and (self.settings.kind == "stdio" or self._quick_deaths == 0)
        self._quick_deaths = self._quick_deaths + is_counted if was_quick else 1
        self._died_at = now

    # --- tools -------------------------------------------------------------------------------------------------------

    async def _read_tools(self, session: McpSession) -> None:
        """Request the list of tools and keep those that can be offered. Raises `McpError`."""
        # Before the request, so that a change announced while the list is being read marks it as stale again.
        session.stale.discard("tools")
        raws, problem = await session.list_all("tools/list", "tools") if "tools" in session.capabilities else ([], "")
        problems = [Diagnostic("list", problem)] if problem else []
        parse = partial(self._definitions, raws)
        # Megabytes of schemas take a second to read, and would block the event loop.
        is_long = len(raws) > _READ_AT_ONCE or size_within(raws, _READ_AT_ONCE_SIZE) is None
        definitions, refused = await run_in_thread(parse) if is_long else parse()
        offers = self._with_headers(session, definitions, problems)
        self._left_out = [*problems, *refused]
        before = {tool.definition.sha256: tool for tool in self.tools if isinstance(tool, RemoteTool)}
        tools = [
            # The same object for an unchanged tool, so that an unchanged list compares as equal.
            earlier_tool
            if (earlier_tool := before.get(one.sha256)) and earlier_tool.name == one.shown
            else RemoteTool(self, one)
            for one in offers
        ]
        is_other = [tool.name for tool in tools] != [tool.name for tool in self.tools] or any(
            new is not old for new, old in zip(tools, self.tools, strict=True)
        )
        self.tools = tools
        # While the server is being opened it is not yet `_session`: `_open` reports it once, with its tools.
        if is_other and session is self._session:
            self._say("changed")

    def _definitions(self, raws: Sequence[Any]) -> tuple[list[ToolDefinition], list[Diagnostic]]:
        """The definitions of the tools that can be offered (if pinned, only agreed ones), and why the others are not."""
        withheld: list[Diagnostic] = []
        fitting: list[Any] = []
        for raw in raws:
            # Before anything else reads it: computing the digest of a long definition would block every thread.
            if size_within(raw, MAX_DEFINITION_SIZE) is not None:
                fitting.append(raw)
                continue
            name = clean_text(str(as_mapping(raw).get("name")), 200)
            why = f"its definition has more than {MAX_DEFINITION_SIZE:,} characters"
            withheld.append(Diagnostic("schema", why, path=name))
        raws = fitting
        if self._pins is not None:
            raws, withheld_tools = self._pins.judge(self.name, [raw for raw in raws if isinstance(raw, Mapping)])
            withheld += [Diagnostic("pin", why, path=clean_text(name, 200)) for name, why in withheld_tools]
        definitions, refused = read_definitions(self.name, self.settings, raws)
        return definitions, [*withheld, *refused]

    def _with_headers(
        self, session: McpSession, definitions: Sequence[ToolDefinition], problems: list[Diagnostic]
    ) -> list[ToolDefinition]:
        """Return the definitions whose headers can be sent, and store the headers for calls. Add the others to `problems`.

        Only modern servers over HTTP use these headers.
        """
        self._copied = {}
        if not (session.is_modern and isinstance(session.wire, HttpWire)):
            return list(definitions)
        usable = []
        for one in definitions:
            try:
                self._copied[one.name] = param_headers(one.raw.get("inputSchema"))
                usable.append(one)
            except ValueError as error:
                problems.append(Diagnostic("header", str(error), path=one.name))
        return usable

    def _say(self, state: str, error: BaseException | None = None) -> None:
        session = self._session
        tools = [
            {"name": tool.name, "tool": tool.definition.name, "sha256": tool.definition.sha256, **tool.unchecked()}
            if isinstance(tool, RemoteTool)
            else {"name": tool.name, "tool": tool.inner.name}
            for tool in self.tools
            if isinstance(tool, RemoteTool | OwnTool)
        ]
        left_out = [{"tool": one.path, "code": one.code, "reason": one.message} for one in self._left_out]
        if len(left_out) > MAX_LEFT_OUT_SHOWN:
            more = {"tool": "", "code": "list", "reason": f"and {len(left_out) - MAX_LEFT_OUT_SHOWN} more"}
            left_out = [*left_out[:MAX_LEFT_OUT_SHOWN], more]
        self.event = McpServerChanged(
            self.name,
            state,
            self.settings.kind,
            protocol_version=session.version or None if session is not None else None,
            server=session.server_info or None if session is not None else None,
            tools=tools,
            left_out=left_out,
            error_message=None if error is None else error_words(error)[1],
        )
        self.changes += 1

    # --- requests ----------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        hooks: RequestHooks,
        effect: Effect,
        first_round: InputRound | None = None,
    ) -> Mapping[str, Any]:
        """Call a tool and return its result.

        Raises `McpError`, or `UnknownOutcomeError` if a call without a result may have taken effect and must not be
        repeated.
        """
        params = {"name": tool.name, "arguments": dict(arguments)}

        def call(session: McpSession) -> Awaitable[Mapping[str, Any]]:
            calling = session.call("tools/call", params, hooks, first_round)
            return calling if session.is_stdio else self._with_copied(session, tool.name, calling)

        try:
            return await self._twice(call, hooks, effect)
        except McpError as error:
            if error.in_flight:
                text = f"{error}. This call may or may not have taken effect: check before repeating it."
                raise UnknownOutcomeError(text) from error
            raise

    async def _with_copied(
        self, session: McpSession, tool_name: str, calling: Awaitable[Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Make a call over HTTP, and repeat in headers the arguments that the tool's definition names."""
        assert isinstance(session.wire, HttpWire)
        async with session.wire.copying(self._copied.get(tool_name)):
            return await calling

    async def _twice(
        self, make: Callable[[McpSession], Awaitable[Mapping[str, Any]]], hooks: RequestHooks, effect: Effect
    ) -> Mapping[str, Any]:
        """Send a request, and once more if that is useful and permitted."""
        session = self._session
        if session is None or session.lost is not None:
            session = await self.session()
        try:
            return await make(session)
        except McpError as error:
            if not await self._may_ask_again(session, error, hooks, effect):
                raise
        return await make(await self.session())

    async def _may_ask_again(self, session: McpSession, error: McpError, hooks: RequestHooks, effect: Effect) -> bool:
        """Prepare to repeat a request that failed with this error; return whether that is useful and permitted."""
        if isinstance(error, SessionGoneError):
            await again(session)
            return True
        if error.code == HEADER_MISMATCH:
            await self._read_tools(session)
            return True
        if error.code == URL_NEEDED:
            elicitations = as_list(as_mapping(error.data).get("elicitations"))
            answers = [
                await elicit(self.name, {**as_mapping(one), "mode": "url"}, hooks.ask) for one in elicitations[:5]
            ]
            return bool(answers) and all(answer["action"] == "accept" for answer in answers)
        # On a pipe that still works, the call timed out, and the server may still be executing it.
        return error.in_flight and effect in REPEATABLE and (session.lost is not None or not session.is_stdio)

    async def ask(self, method: str, params: Mapping[str, Any], hooks: RequestHooks | None = None) -> Mapping[str, Any]:
        """Send a request that changes nothing, and once more if the connection broke. Raises `McpError`."""
        request_hooks = hooks or RequestHooks()
        return await self._twice(lambda session: session.call(method, params, request_hooks), request_hooks, "read")

    async def list_all(self, method: str, member: str) -> list[Any]:
        """Request a list from the server; return its entries, possibly not all of them. Raises `McpError`."""
        return (await (await self.session()).list_all(method, member))[0]
