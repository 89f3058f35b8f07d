"""A session that is open in an editor: its turns in sequence, prompts sent during a turn, and questions to the user."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from ...assemble import build_agent
from ...errors import OptionsError, RpcError, SessionError
from ...events import AssistantMessage, FileKept, Result, UserAnswer, UserQuestion
from ...ground.frozen import frozen
from ...ground.jsonrpc import INTERNAL_ERROR, Json, Peer
from ...ground.system import user_name
from ...ground.threads import run_in_thread
from ...hooks.engine import HookEngine
from ...kernel.prompt import Said
from ...options import OpenAgenticOptions, with_model
from ...permissions.gate import PermissionGate
from ...permissions.policy import PermissionMode
from ...runs.turns import Turns
from ...sessions.base import SessionStore
from .buffers import EDITS, find_unsaved, unsaved_guard
from .questions import NO_ANSWER, STOP, choice_params, chosen, form_answer, form_params, permission_params
from .view import EditorView

AcpStopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

MODE_TEXTS = {
    "default": ("Ask", "Asks before calls that no rule allows"),
    "acceptEdits": ("Accept edits", "Changes files of the workspace without asking"),
    "plan": ("Plan", "Reads and plans without changing anything"),
    "dontAsk": ("Don't ask", "Denies calls that no rule allows, without asking"),
    "prompt": ("Ask always", "Asks before every call"),
    "deny": ("Deny", "Denies every call"),
    "bypass": ("Bypass", "Allows everything that no rule denies"),
}
OFFERED_MODES: tuple[PermissionMode, ...] = ("default", "acceptEdits", "plan", "dontAsk")
_CANNOT_ASK = (
    "(This editor cannot ask for text. Put the question into your answer and end your turn: the person answers with the "
    "next prompt.)"
)


@frozen
class Editor:
    """The connected editor: its name, its peer, and the capabilities that it announced."""

    peer: Peer
    name: str = "editor"
    has_forms: bool = False
    reads_files: bool = False
    takes_notices: bool = False
    takes_compaction: bool = False


class EditorSession:
    """A session of an editor. `open` checks the options; a new session is stored with its first prompt."""

    def __init__(
        self, editor: Editor, session_id: str, options: OpenAgenticOptions, models: Sequence[str] = ()
    ) -> None:
        self.id = session_id
        self.cwd = str(options.cwd)
        self.mode: PermissionMode = "default"
        self.model = ""
        self.view = EditorView(
            self.cwd,
            context_tokens=options.max_context_tokens,
            notices=editor.takes_notices,
            compaction=editor.takes_compaction,
            read_blob=self._read_blob,
        )
        # Permissions granted in one session must not apply in another.
        gate = (options.permission_gate or PermissionGate(clock=options.clock)).forgetful()
        self._gate = replace(gate, user_answerer=self._ask)
        options = replace(options, permission_gate=self._gate, part="first")
        if editor.reads_files:
            hooks = options.hooks or HookEngine()
            guard = unsaved_guard(self._read_buffer)
            options = replace(options, hooks=replace(hooks, pre_tool_use=(*hooks.pre_tool_use, guard)))
        self.turns = Turns(options)
        assert isinstance(options.session_store, SessionStore), "the options were created with a store"
        self._store = options.session_store
        self._editor = editor
        self._models = list(models)
        self._modes: list[PermissionMode] = list(OFFERED_MODES)
        self._turn: asyncio.Task[AcpStopReason] | None = None
        self._stop: Literal["cancel", "park"] | None = None
        self._is_told = self._is_closed = False
        self._asking = asyncio.Lock()

    async def open(self) -> None:
        """Determine the mode and model that result from options and project. Raises the errors of `build_agent`."""
        agent = await run_in_thread(partial(build_agent, self.turns.options))
        self.mode, self.model = agent.gate.mode, agent.model
        self._modes = [*OFFERED_MODES, *([] if self.mode in OFFERED_MODES else [self.mode])]
        self._models = list(dict.fromkeys([self.model, *self._models]))

    @property
    def is_running(self) -> bool:
        """Whether a turn is in progress."""
        return self._turn is not None and not self._turn.done()

    async def update(self, update: Json) -> None:
        """Send an update about this session to the editor."""
        await self._editor.peer.notify("session/update", {"sessionId": self.id, "update": update})

    # --- turns -------------------------------------------------------------------------------------------------------

    async def prompt(self, prompt: Said) -> AcpStopReason:
        """Run a turn to its end. A prompt sent during a turn is delivered at that turn's next step and ends with it.

        Raises `RpcError` if the turn ended with an error, and any error that prevents a run from starting.
        """
        while self.is_running and self._stop is not None:  # a cancelled turn accepts no more prompts
            await asyncio.wait({self._running()})
        if self._is_closed:
            raise OptionsError(f"session {self.id!r:.100} was closed: load it again")
        self.turns.say(prompt)
        if not self.is_running:
            self._stop, self._is_told = None, False
            self._turn = asyncio.create_task(self._take_turn())
        turn = self._running()
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            await self.stop("cancel")
            return await turn

    async def stop(self, how: Literal["cancel", "park"]) -> None:
        """Ask the running turn to end: `cancel` closes its open question, `park` keeps the question for a later process.

        Returns at once; the turn's prompt is answered once the turn has ended.
        """
        if self.is_running:
            self._stop = self._stop or how
            self._tell_to_stop()

    async def close(self, how: Literal["cancel", "park"]) -> None:
        """End the running turn as in `stop`, wait for its end, and release the session."""
        self._is_closed = True
        await self.stop(how)
        if self._turn is not None:
            await asyncio.wait({self._turn})
            # The error, which `prompt` has raised, is read here: otherwise asyncio could report it as never retrieved.
            self._turn.cancelled() or self._turn.exception()
        await self.turns.close()
        await self.turns.end_conversation()

    def _running(self) -> asyncio.Task[AcpStopReason]:
        assert self._turn is not None
        return self._turn

    async def _take_turn(self) -> AcpStopReason:
        try:
            return await self._play()
        except Exception:
            # A cancel may make a tool, the provider or the store fail in any way:
            # "Agents MUST catch these errors and return the cancelled stop reason" (Prompt Turn, Cancellation).
            self.turns.take_back()
            if self._stop is None:
                raise
            return "cancelled"

    async def _play(self) -> AcpStopReason:
        """Run prompts until none is left; return why the last turn ended."""
        turns, is_refusal = self.turns, False
        if turns.session_id is None:
            turns.open()
            if await run_in_thread(partial(self._store.session_exists, self.id)):
                turns.go_to(self.id)
            else:
                turns.options = replace(turns.options, session_id=self.id)
        while (prompt := turns.next_prompt()) is not None:
            task = await turns.begin(prompt)
            try:
                while (event := await turns.next_event(task)) is not None:
                    self._tell_to_stop()
                    # The text of a file about to be replaced is read from the store, which blocks.
                    beside = isinstance(event, FileKept)
                    for update in (
                        await run_in_thread(partial(self.view.take, event)) if beside else self.view.take(event)
                    ):
                        await self.update(update)
                    if isinstance(event, AssistantMessage) and event.parent_tool_use_id is None:
                        is_refusal = event.refusal
            finally:
                await turns.end(task)
            if self._stop is not None:
                turns.take_back()
                return "cancelled"
        return stop_reason(turns.result, is_refusal)

    def _tell_to_stop(self) -> None:
        running = self.turns.running
        if self._stop is not None and not self._is_told and running is not None:
            self._is_told = True
            running.suspend() if self._stop == "park" else running.interrupt()

    # --- questions ---------------------------------------------------------------------------------------------------

    async def _ask(self, question: UserQuestion) -> UserAnswer:
        """Ask the user at the editor, one question at a time; an unclear answer allows nothing."""
        async with self._asking:
            put_question = self._ask_for_permission if question.kind == "permission" else self._ask_the_person
            try:
                answer = await put_question(question)
            except RpcError as error:
                answer = "cancel" if "mcp" in question.details else f"no because the editor could not ask: {error}"
        approver = {"name": user_name(), "how": "editor", "editor": self._editor.name}
        return UserAnswer(question.question_id, answer, f"acp:{self._editor.name}", approver)

    async def _ask_for_permission(self, question: UserQuestion) -> str:
        call = self.view.call_of(question.tool_use_id)
        params = await run_in_thread(partial(permission_params, question, call, self.cwd))
        option = chosen(await self._request("session/request_permission", params), params["options"])
        if option == STOP:
            await self.stop("cancel")
        if option not in ("yes", "always"):
            return "no"
        # Again: the user may have typed while the question was open.
        name, input = question.details.get("tool_name"), question.details.get("input")
        if not self._editor.reads_files or name not in EDITS or not isinstance(input, Mapping):
            return option
        unsaved = await find_unsaved(self._read_buffer, input, self.cwd)
        return option if unsaved is None else f"no because {unsaved}"

    async def _ask_the_person(self, question: UserQuestion) -> str:
        call = self.view.call_of(question.tool_use_id)
        # An MCP server expects one of the protocol's words as an answer; a model reads a sentence.
        is_servers = "mcp" in question.details
        if self._editor.has_forms:
            words = {"accept": ""} if is_servers else dict.fromkeys(("accept", "decline", "cancel"), NO_ANSWER)
            return form_answer(await self._request("elicitation/create", form_params(question, call)), question, words)
        if not question.choices:
            return "decline" if is_servers else _CANNOT_ASK
        params = choice_params(question, call)
        option = chosen(await self._request("session/request_permission", params), params["options"])
        if option is not None and option.isdecimal():
            return question.choices[int(option)]
        return "decline" if is_servers else NO_ANSWER

    def _read_blob(self, sha256: str) -> bytes | None:
        try:
            return self._store.read_blob(self.id, sha256)
        except SessionError:  # missing, or stored in a subagent's session
            return None

    async def _read_buffer(self, path: str) -> Any:
        return await self._request("fs/read_text_file", {"path": path})

    async def _request(self, method: str, params: Json) -> Any:
        return await self._editor.peer.request(method, {"sessionId": self.id, **params})

    # --- modes and options -------------------------------------------------------------------------------------------

    def state(self) -> Json:
        """The current modes and options; `modes` is the older form of the mode option."""
        modes = [{"id": mode, **_described(mode)} for mode in self._modes]
        return {"modes": {"currentModeId": self.mode, "availableModes": modes}, "configOptions": self.config_options()}

    def config_options(self) -> list[Json]:
        """All options with their current values."""
        modes = [{"value": mode, **_described(mode)} for mode in self._modes]
        models = [{"value": model, "name": model} for model in self._models]
        return [
            _select("mode", "Permission mode", "mode", self.mode, modes),
            _select("model", "Model", "model", self.model, models),
        ]

    def set_option(self, name: str, value: Any) -> None:
        """Set an option, effective from the next step of a running turn. Raises `OptionsError` unless it is offered."""
        if name == "mode" and value in self._modes:
            self.turns.change(replace(self.turns.options, permission_gate=self._gate.with_mode(value)))
            self.mode = value
        elif name == "model" and value in self._models:
            self.turns.change(with_model(self.turns.options, value))
            self.model = value
        else:
            choices = {"mode": ", ".join(self._modes), "model": ", ".join(self._models)}
            advice = f"{choices[name]} are offered" if name in choices else "the options are mode and model"
            raise OptionsError(f"option {name!r:.100} cannot be {value!r:.100}: {advice}")


def _described(mode: str) -> Json:
    name, text = MODE_TEXTS.get(mode, (mode, ""))
    return {"name": name, "description": text}


def _select(name: str, label: str, category: str, value: str, options: Sequence[Json]) -> Json:
    head = {"id": name, "name": label, "category": category, "type": "select"}
    return {**head, "currentValue": value, "options": list(options)}


def stop_reason(result: Result | None, is_refusal: bool) -> AcpStopReason:
    """The protocol's stop reason for a finished turn. Raises `RpcError` if the turn failed."""
    if result is None or result.stop_reason == "error":
        why = "the run ended without a result" if result is None else result.error_message or "the run failed"
        kind = None if result is None or result.error_type is None else {"type": result.error_type}
        raise RpcError(INTERNAL_ERROR, why, kind)
    if result.stop_reason == "interrupted":
        return "cancelled"
    if result.stop_reason in ("max_steps", "budget", "timeout"):
        return "max_turn_requests"
    if is_refusal:
        return "refusal"
    return "max_tokens" if result.cut_by == "length" else "end_turn"
