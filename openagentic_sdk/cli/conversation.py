"""The conversation of `chat`, for both input modes: its session, its options, and its turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from ..assemble import build_agent, newest_session
from ..errors import OpenAgentSdkError
from ..events import Event, UserMessage, UserQuestion
from ..ground.text import printable
from ..options import OpenAgenticOptions
from ..permissions.gate import PermissionGate
from ..prompts import OnePrompt
from ..runs.background import answer_question, check_tools, open_questions
from ..runs.turns import Turns
from ..sessions.base import SessionStore
from ..sessions.folds.features.all import ALL_FOLDS
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from .output.render import EventPrinter
from .output.terminal import Screen
from .output.turn import Stopped, Turn

AskPerson = Callable[[UserQuestion], Awaitable[str]]
MakeTurn = Callable[[Turns], Turn]


class Chat:
    """A conversation in `chat`. `make_turn` creates the turn that shows a prompt's run, `ask` asks the person a question."""

    def __init__(self, options: OpenAgenticOptions, screen: Screen, ask: AskPerson, make_turn: MakeTurn) -> None:
        self.turns = Turns(replace(options, part="first"))
        self.screen = screen
        self.ask = ask
        self.turn: Turn | None = None
        self.store_flag = ""  # for the command that continues it
        self._make_turn = make_turn
        self._is_open = False

    @property
    def session_id(self) -> str | None:
        """The id of the current session; None before a new one has begun."""
        return self.turns.session_id

    @session_id.setter
    def session_id(self, session_id: str | None) -> None:
        self.turns.go_to(session_id)

    @property
    def store(self) -> SessionStore:
        """The store of the conversation's sessions."""
        store = self.turns.options.session_store
        assert isinstance(store, SessionStore), "build_options has opened it"
        return store

    @property
    def gate(self) -> PermissionGate:
        """The gate configured by the flags."""
        gate = self.turns.options.permission_gate
        assert isinstance(gate, PermissionGate), "build_options has created it"
        return gate

    async def go_to(self, session_id: str | None) -> None:
        """Run the session_end hooks of the current session, and switch to another one; None means a new one."""
        await self.end("clear" if session_id is None else "resume")
        self.session_id = session_id

    async def pick_up(self) -> None:
        """Show the end of a resumed session, ask its open questions, and continue the run that waited for the answers.

        An empty answer leaves the remaining questions open. For a new session, nothing happens. Raises `OptionsError` if
        this process lacks a tool that one of the questions is about.
        """
        if self.turns.options.resume is None and not self.turns.options.continue_last:
            return
        session_id = self.turns.options.resume or newest_session(self.store, str(self.turns.options.cwd))
        view, _ = load_view(self.store, session_id, ALL_FOLDS, seal=Seal(self.turns.options.key_file))
        prompts = [event.seq or 0 for event in view.events if isinstance(event, UserMessage) and event.origin == "user"]
        printer = EventPrinter(self.screen, transcript=True)
        for event in view.events:
            if prompts and (event.seq or 0) >= prompts[-1] and not isinstance(event, UserQuestion):
                printer.show(event)
        open_ones = open_questions(self.store, session_id, Seal(self.turns.options.key_file))
        # Some questions may have been answered meanwhile; their calls wait for a run.
        answered_ids = {
            record.use.tool_use_id for record in view.open_calls() if view.has_answer(record.use.tool_use_id)
        }
        answered = [e for e in view.events if isinstance(e, UserQuestion) and e.tool_use_id in answered_ids]
        # Before the person is asked: an answer that no call could use would be lost.
        check_tools(build_agent(self.turns.options).tools, view, session_id, [*open_ones, *answered])
        for question in open_ones:
            answer = await self.ask(question)
            if not answer:
                self.screen.line("The question stays open.")
                return
            await answer_question(
                self.store, session_id, question.question_id, answer, key_file=self.turns.options.key_file
            )
        if open_ones or answered:
            await self.take_turn(None)

    async def take_turn(self, prompt: OnePrompt | None) -> None:
        """Run one prompt to its end or to Ctrl-C; None continues the session. An error of this library is only printed.

        Raises `Stopped` if a signal ends the command.
        """
        turn = self.turn = self._make_turn(self.turns)
        try:
            if not self._is_open:
                self.turns.open()
                self._is_open = True
            await turn.show_events(prompt)
        except OpenAgentSdkError as error:
            self.screen.line(printable(str(error)))
        if turn.stopped_by is not None:
            raise Stopped(turn.stopped_by)

    async def end(self, reason: str = "prompt_input_exit") -> list[Event]:
        """Run the session_end hooks of the current session; return their events."""
        return await self.turns.end_conversation(reason)

    async def close(self) -> None:
        """Run the session_end hooks of the current session, and release the tool servers."""
        await self.end()
        await self.turns.close()

    def say_how_to_go_on(self) -> None:
        """Print the command that continues this conversation, unless it has no session yet."""
        if self.session_id:
            self.screen.line(
                f"Continue with: openagentic-sdk chat --resume {printable(self.session_id)}{self.store_flag}"
            )
