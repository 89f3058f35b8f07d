"""The methods of ACP 1: validate an editor's requests and keep its open sessions.

Every method for which `initialize` offers a capability is here. A client names sessions, folders and its own MCP servers;
rules, tools and the more permissive permission modes come from the command that started this process.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count
from typing import Any

from ...assemble import open_project
from ...errors import ApiKeyError, OpenAgentSdkError, OptionsError, RpcError, SessionError, SessionNotFoundError
from ...events import Event, SubagentStarted
from ...ground.checks import NAME, check_settings
from ...ground.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, AnswerThen, Json, Peer
from ...ground.loose import as_mapping
from ...ground.text import on_one_line
from ...ground.threads import run_in_thread
from ...options import OpenAgenticOptions
from ...parts.project.claude import find_project_root
from ...parts.project.commands import unknown_name
from ...parts.project.project import OpenedProject
from ...parts.record.lifecycle import delete_session
from ...sessions.base import SessionStore
from ...sessions.core import new_session_id
from ...version import __version__
from .calls import plain
from .prompts import read_blocks
from .session import Editor, EditorSession
from .view import replay, with_subagents

PROTOCOL_VERSION = 1
AUTH_REQUIRED, NOT_FOUND = -32000, -32002
_CODES = ((ApiKeyError, AUTH_REQUIRED), (SessionNotFoundError, NOT_FOUND), (OptionsError, INVALID_PARAMS))
_MAX_ERROR_CHARS = 1_000
PAGE_SESSIONS = 100
# The time limit for the shutdown after the editor has disconnected: editors kill a process that takes longer.
LEAVE_S = 2.0

Method = Callable[[Mapping[str, Any]], Awaitable[Any]]
# Creates the options for a session in a folder when an editor opens one: a missing setting is then an error response, not
# an exit of the process.
MakeOptions = Callable[[str], OpenAgenticOptions]


class EditorAgent:
    """A connection to one editor. Outgoing lines go to `send`; incoming lines go to `peer.receive`.

    `store` contains all sessions; `models` are offered in addition to the one that the options name.
    """

    def __init__(
        self,
        make_options: MakeOptions,
        store: SessionStore,
        send: Callable[[bytes], Awaitable[None]],
        *,
        models: Sequence[str] = (),
    ) -> None:
        self.peer = Peer(send, self._request, self._hear)
        self._make_options = make_options
        self._store = store
        self._models = models
        self._editor: Editor | None = None
        self._sessions: dict[str, EditorSession] = {}
        self._names: dict[str, list[str]] = {}  # commands and skills by session id
        self._opening: set[str] = set()
        self._methods: dict[str, Method] = {
            "authenticate": self._authenticate,
            "initialize": self._initialize,
            "session/close": self._close,
            "session/delete": self._delete,
            "session/list": self._list,
            "session/load": partial(self._reopen, tells=True),
            "session/new": self._new,
            "session/prompt": self._prompt,
            "session/resume": partial(self._reopen, tells=False),
            "session/set_config_option": self._set_option,
            "session/set_mode": self._set_mode,
        }

    async def leave(self) -> None:
        """Suspend the running turns and close all sessions, then the peer: the editor has disconnected.

        Wait up to `LEAVE_S` seconds for the sessions, and again for the peer.
        """
        sessions, self._sessions = list(self._sessions.values()), {}
        if sessions:
            tasks = [asyncio.create_task(session.close("park")) for session in sessions]
            await asyncio.wait(tasks, timeout=LEAVE_S)
        await asyncio.wait({asyncio.create_task(self.peer.close())}, timeout=LEAVE_S)

    async def _request(self, method: str, params: Mapping[str, Any]) -> Any:
        handler = self._methods.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {method!r:.100}")
        if self._editor is None and method != "initialize":
            raise RpcError(INVALID_REQUEST, f"{method} came before initialize")
        try:
            return await handler(params)
        except RpcError:
            raise
        except OpenAgentSdkError as error:
            code = next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL_ERROR)
            raise RpcError(code, plain(str(error)[:_MAX_ERROR_CHARS]), {"type": type(error).__name__}) from error

    async def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        session = self._sessions.get(str(params.get("sessionId")))
        if method == "session/cancel" and session is not None:
            await session.stop("cancel")

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _initialize(self, params: Mapping[str, Any]) -> Json:
        # Not compared: an agent answers with the version that it supports, and the editor decides (Agent Client
        # Protocol, Initialization).
        version = params.get("protocolVersion")
        if not isinstance(version, int) or isinstance(version, bool):
            raise OptionsError(f"protocolVersion must be a whole number, not {version!r:.100}")
        can = as_mapping(params.get("clientCapabilities"))
        sessions = as_mapping(can.get("session"))
        name = as_mapping(params.get("clientInfo")).get("name")
        self._editor = Editor(
            self.peer,
            name=on_one_line(name, 60) if isinstance(name, str) and name else "editor",
            has_forms=isinstance(as_mapping(can.get("elicitation")).get("form"), Mapping),
            reads_files=as_mapping(can.get("fs")).get("readTextFile") is True,
            takes_notices=isinstance(sessions.get("notices"), Mapping),
            takes_compaction=isinstance(sessions.get("compaction"), Mapping),
        )
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "openagentic-sdk", "title": "openagentic", "version": __version__},
            "authMethods": [],
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": True},
                "sessionCapabilities": {
                    "list": {},
                    "resume": {},
                    "close": {},
                    "delete": {},
                    "additionalDirectories": {},
                },
            },
        }

    async def _authenticate(self, params: Mapping[str, Any]) -> Json:
        raise OptionsError(
            f"this agent has no sign-in method {params.get('methodId')!r:.100}: set API keys in the environment"
        )

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def _new(self, params: Mapping[str, Any]) -> AnswerThen:
        session_id = new_session_id()
        session = await self._open(session_id, self._options(params))
        return self._opened(session, {"sessionId": session_id, **session.state()})

    async def _reopen(self, params: Mapping[str, Any], *, tells: bool) -> AnswerThen:
        """Open a stored session; with `tells`, send its whole history before the answer."""
        session_id = _text(params, "sessionId")
        if session_id in self._opening:
            raise RpcError(INVALID_REQUEST, f"session {session_id!r:.100} is already being opened")
        self._opening.add(session_id)
        try:
            options = self._options(params)
            if (open_session := self._sessions.get(session_id)) is not None and open_session.is_running:
                raise RpcError(INVALID_REQUEST, f"session {session_id!r:.100} is running here: cancel its turn first")
            await run_in_thread(partial(self._check_stored, session_id, str(options.cwd)))
            session = await self._open(session_id, options)
            updates = await run_in_thread(lambda: list(self._updates(session)))
            # Only now: if the session cannot be opened again, the editor keeps the one that it has.
            if open_session is not None:
                await open_session.close("cancel")
            for update in updates if tells else ():
                await session.update(update)
            return self._opened(session, session.state())
        finally:
            self._opening.discard(session_id)

    def _check_stored(self, session_id: str, cwd: str) -> None:
        """Raise for a session that does not exist, is damaged or in use, or belongs to another folder that still exists."""
        session_cwd = self._store.read_metadata(session_id)["metadata"].get("cwd")
        is_elsewhere = isinstance(session_cwd, str) and os.path.realpath(session_cwd) != os.path.realpath(cwd)
        if is_elsewhere and os.path.isdir(str(session_cwd)):
            # What people allowed in one folder is not allowed in another.
            raise OptionsError(
                f"session {session_id!r:.100} belongs to {session_cwd}, not to {cwd}: open it there, or fork it"
            )
        # Fails before the editor shows a history that could not be continued: another process has locked the session, or
        # its log is damaged.
        self._store.open_writer(session_id).close()

    def _updates(self, session: EditorSession) -> Iterable[Json]:
        store, session_id = self._store, session.id

        def read_child(started: SubagentStarted) -> Sequence[Event]:
            """Return a subagent's events. An imported log may name any session, so the child must name the call as well."""
            try:
                metadata = store.read_metadata(started.child_session_id)["metadata"]
                if metadata.get("parent_tool_use_id") != started.tool_use_id:
                    return []
                return store.read_events(started.child_session_id)
            except SessionError:
                return []

        return replay(session.view, with_subagents(store.iter_events(session_id), read_child))

    async def _open(self, session_id: str, options: OpenAgenticOptions) -> EditorSession:
        assert self._editor is not None, "call initialize before opening a session"
        session = EditorSession(self._editor, session_id, options, self._models)
        await session.open()
        return session

    def _opened(self, session: EditorSession, result: Json) -> AnswerThen:
        """The answer to a request that opened a session, followed by an update with the session's slash commands."""
        self._sessions[session.id] = session

        async def tell_commands() -> None:
            project = await run_in_thread(partial(open_project, session.turns.options))
            commands, self._names[session.id] = _commands(project)
            await session.update({"sessionUpdate": "available_commands_update", "availableCommands": commands})

        # Sent after the answer: before it, the editor has no session that the update could belong to.
        return AnswerThen(result, tell_commands)

    def _options(self, params: Mapping[str, Any]) -> OpenAgenticOptions:
        cwd = _folder(params.get("cwd"), "cwd")
        more = params.get("additionalDirectories") or []
        if not isinstance(more, list):
            raise OptionsError(f"additionalDirectories must be a list of folders, not {more!r:.100}")
        options = self._make_options(cwd)
        servers = {**options.mcp_servers, **_servers(params.get("mcpServers") or [])}
        return replace(
            options,
            cwd=cwd,
            project_dir=find_project_root(cwd),
            additional_dirs=[*options.additional_dirs, *(_folder(path, "additionalDirectories") for path in more)],
            session_store=self._store,
            mcp_servers=servers,
        )

    async def _list(self, params: Mapping[str, Any]) -> Json:
        cwd, cursor = params.get("cwd"), params.get("cursor") or "0"
        # `int` alone also accepts signs, spaces and underscores.
        if not isinstance(cursor, str) or not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 12:
            raise OptionsError(f"cursor must be one returned by session/list, not {cursor!r:.100}")
        folder = None if cwd is None else _absolute(cwd, "cwd")
        offset = int(cursor)
        page = partial(self._store.list_session_summaries, cwd=folder, limit=PAGE_SESSIONS + 1, offset=offset)
        rows = await run_in_thread(page)
        sessions = [
            {
                "sessionId": row.id,
                "cwd": row.cwd,
                "title": row.label,
                "updatedAt": datetime.fromtimestamp(row.updated, UTC).isoformat(timespec="milliseconds"),
            }
            for row in rows[:PAGE_SESSIONS]
            if row.cwd is not None and os.path.isabs(row.cwd)
        ]
        more = {"nextCursor": str(offset + PAGE_SESSIONS)} if len(rows) > PAGE_SESSIONS else {}
        return {"sessions": sessions, **more}

    async def _close(self, params: Mapping[str, Any]) -> Json:
        await self._let_go(self._session(params))
        return {}

    async def _delete(self, params: Mapping[str, Any]) -> Json:
        session_id = _text(params, "sessionId")
        if (session := self._sessions.get(session_id)) is not None:
            await self._let_go(session)
        with suppress(SessionNotFoundError):  # "a session that never existed, SHOULD succeed silently" (Session Delete)
            await run_in_thread(partial(delete_session, self._store, session_id))
        return {}

    async def _let_go(self, session: EditorSession) -> None:
        """Cancel the session's turn and forget the session; it remains in the store."""
        self._sessions.pop(session.id, None)
        self._names.pop(session.id, None)
        await session.close("cancel")

    # --- in a session ------------------------------------------------------------------------------------------------

    async def _prompt(self, params: Mapping[str, Any]) -> Json:
        session, prompt = self._session(params), read_blocks(params.get("prompt"))
        wrong = unknown_name(prompt.text, self._names[session.id]) if session.id in self._names else None
        if wrong is not None:
            raise OptionsError(wrong)
        return {"stopReason": await session.prompt(prompt)}

    async def _set_mode(self, params: Mapping[str, Any]) -> AnswerThen:
        session = self._session(params)
        session.set_option("mode", params.get("modeId"))
        update = {"sessionUpdate": "config_option_update", "configOptions": session.config_options()}
        return AnswerThen({}, partial(session.update, update))

    async def _set_option(self, params: Mapping[str, Any]) -> AnswerThen:
        session, name = self._session(params), _text(params, "configId")
        session.set_option(name, params.get("value"))

        async def tell_mode() -> None:
            if name == "mode":
                await session.update({"sessionUpdate": "current_mode_update", "currentModeId": session.mode})

        return AnswerThen({"configOptions": session.config_options()}, tell_mode)

    def _session(self, params: Mapping[str, Any]) -> EditorSession:
        session_id = _text(params, "sessionId")
        if session_id in self._opening:
            raise RpcError(INVALID_REQUEST, f"session {session_id!r:.100} is being opened: wait for the answer")
        if session_id not in self._sessions:
            raise RpcError(
                NOT_FOUND,
                f"session {session_id!r:.100} is not open here: open it with session/new, session/load or session/resume",
            )
        return self._sessions[session_id]


# --- parameters from the editor --------------------------------------------------------------------------------------


def _text(params: Mapping[str, Any], name: str) -> str:
    check_settings({name: params.get(name)}, {name: NAME})
    return str(params[name])


def _folder(path: Any, name: str) -> str:
    """The normalized path of an existing folder. Raises `OptionsError` for a relative path, or one that is not a folder."""
    folder = _absolute(path, name)
    if not os.path.isdir(folder):
        raise OptionsError(f"{name} {path!r:.1000} is not a folder: create it or name another")
    return folder


def _absolute(path: Any, name: str) -> str:
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        raise OptionsError(f"{name} must be an absolute path, not {path!r:.100}")
    return os.path.normpath(path)


def _servers(raw_servers: Any) -> dict[str, Any]:
    """Convert the editor's MCP servers to the form of `options.mcp_servers`.

    The user configured them in the editor, which runs with that user's rights and started this process with them: that is
    the consent to start them. Calls of their tools need permission like any other call.
    """
    if not isinstance(raw_servers, list):
        raise OptionsError(f"mcpServers must be a list of servers, not {type(raw_servers).__name__}")
    servers: dict[str, Any] = {}
    for number, server in enumerate(raw_servers, 1):
        match server:
            case {"name": str(name), "command": str(command)}:
                entry: Json = {"command": command, "args": server.get("args") or [], "env": _pairs(server.get("env"))}
            case {"name": str(name), "type": "http" | "sse" as kind, "url": str(url)}:
                entry = {"type": kind, "url": url, "headers": _pairs(server.get("headers"))}
            case _:
                raise OptionsError(
                    f"MCP server {number} needs a name, and either a command, or a url and the type http or sse"
                )
        # The name, reduced to the characters allowed in tool names, with a number if it is taken.
        base = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "-", name))[:36].strip("_-") or "server"
        names = chain([base], (f"{base}-{number}" for number in count(2)))
        servers[next(name for name in names if name not in servers)] = entry
    return servers


def _pairs(pairs: Any) -> Any:
    """`[{"name", "value"}]` as a mapping; any other value is returned as it is, for the options check to refuse."""
    is_list = isinstance(pairs, list) and all(isinstance(pair, Mapping) for pair in pairs)
    return {pair.get("name"): pair.get("value") for pair in pairs} if is_list else pairs or {}


def _commands(project: OpenedProject) -> tuple[list[Json], list[str]]:
    """The slash commands to offer, and all names that are accepted."""
    index = project.skills()
    skills = [skill for skill in index.skills if skill.user_invocable]
    hidden = [skill for skill in index.hidden if skill.user_invocable]
    entries = [(command.name, command.description, command.argument_hint) for command in project.commands.commands]
    entries += [(skill.name, skill.summary, skill.argument_hint) for skill in skills]
    by_name = {
        name: {
            "name": name,
            "description": on_one_line(about or name, 300),
            **({"input": {"hint": on_one_line(hint, 200)}} if hint else {}),
        }
        for name, about, hint in entries
    }
    names = [name for skill in (*skills, *hidden) for name in skill.names]
    return list(by_name.values()), [*(command.name for command in project.commands.commands), *names]
