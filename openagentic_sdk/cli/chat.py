"""`openagentic-sdk chat`: turn by turn on one session, questions answered in place.

Ctrl-C stops the turn that runs and keeps the session; at the prompt it clears the line. Ctrl-D or /exit ends the chat.
SIGTERM and SIGHUP end it too, and leave a question that is open to the next chat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
from dataclasses import replace

from ..assemble import end_conversation, newest_session
from ..errors import OpenAgentSdkError
from ..events import UserMessage, UserQuestion
from ..options import OpenAgenticOptions
from ..runs.background import answer_question
from ..runtime.prompt import Prompt
from ..sessions.base import SessionStore
from ..sessions.resume import load_view
from ..sessions.seal import Seal
from ..text import printable
from .attach import with_files
from .exits import OK
from .flags import add_agent_flags, add_session_flags, build_options
from .screen.countdown import Countdown
from .screen.questions import Asker, build_gate, somebody_is_there
from .screen.render import EventPrinter
from .screen.terminal import Screen
from .screen.turn import Stopped, Turn, on_stop_signals
from .trust import ask_about_servers, ask_for_trust, check_mode, check_prompt

_HELP = "/exit or Ctrl-D ends the chat, Ctrl-C stops the turn; a line that ends with \\ goes on in the next one"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("chat", description="Talk with an agent, turn by turn.", epilog=_HELP)
    add_session_flags(parser)
    add_agent_flags(parser)


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stdout)
    asker = Asker(screen)
    options = build_options(args, build_gate(args, asker))
    _edit_lines()
    if somebody_is_there():
        ask_for_trust(options, screen)
        ask_about_servers(options, screen)
    check_mode(args, options)
    screen.line(screen.styled(_HELP, "dim"))
    chat = _Chat(options, screen, asker)
    try:
        with asyncio.Runner() as runner, on_stop_signals(_stop):
            return chat.talk(runner)
    except Stopped as stopped:
        with contextlib.suppress(OSError):
            screen.end_line()
            chat.say_how_to_go_on()
        return 128 + stopped.number


def _stop(number: int) -> None:
    raise Stopped(number)


class _Chat:
    """One conversation: the session that it goes on with, and the options of its next turn."""

    def __init__(self, options: OpenAgenticOptions, screen: Screen, asker: Asker) -> None:
        self._options = replace(options, part="first")
        self._screen = screen
        self._asker = asker
        self._session_id = options.resume

    def talk(self, runner: asyncio.Runner) -> int:
        """Turn by turn to the end of input; returns the exit code. Raises `Stopped`."""
        options = self._options
        if options.resume is not None or options.continue_last:
            self._pick_up(runner)
        while (prompt := _read_prompt(self._screen)) is not None:
            if wrong := check_prompt(options, prompt):
                self._screen.line(printable(wrong))
            elif prompt.strip():
                self._take_turn(runner, with_files(prompt, str(options.cwd), typed=sys.stdin.isatty()))
        if self._session_id and self._options.part == "next":
            runner.run(end_conversation(self._options, self._session_id, "prompt_input_exit"))
        self.say_how_to_go_on()
        return OK

    def say_how_to_go_on(self) -> None:
        """The command that takes this conversation up again."""
        if self._session_id:
            self._screen.line(f"Go on with: openagentic-sdk chat --resume {printable(self._session_id)}")

    def _pick_up(self, runner: asyncio.Runner) -> None:
        """Show where an old session stands; a question that waits there is answered before anything else is said."""
        store = self._options.session_store
        assert isinstance(store, SessionStore), "build_options has opened it"
        session_id = self._options.resume or newest_session(store, str(self._options.cwd))
        view, _ = load_view(store, session_id, seal=Seal(self._options.key_file))
        prompts = [event.seq or 0 for event in view.events if isinstance(event, UserMessage) and event.origin == "user"]
        printer = EventPrinter(self._screen, transcript=True)
        for event in view.events:
            if prompts and (event.seq or 0) >= prompts[-1] and not isinstance(event, UserQuestion):
                printer.show(event)
        waiting = {record.use.tool_use_id for record in view.open_calls()}
        answered = False
        for question in [question for question in view.open_questions() if question.tool_use_id in waiting]:
            try:
                answer = runner.run(self._asker(question))
            except KeyboardInterrupt:
                answer = ""
            if not answer:
                self._screen.line("The question stays open.")
                return
            runner.run(
                answer_question(store, session_id, question.question_id, answer, key_file=self._options.key_file)
            )
            answered = True
        if answered:
            self._take_turn(runner, None)

    def _take_turn(self, runner: asyncio.Runner, prompt: Prompt) -> None:
        """One prompt to its end, to Ctrl-C or to an error. Raises `Stopped` when a signal wants the command to end."""
        turn = Turn(self._options, EventPrinter(self._screen), Countdown(self._screen))
        try:
            turn.play(runner, prompt)
        except OpenAgentSdkError as error:
            self._screen.line(printable(str(error)))
        self._session_id = turn.session_id or self._session_id
        self._options = replace(
            self._options,
            resume=self._session_id,
            continue_last=self._options.continue_last and self._session_id is None,
            part="next" if turn.session_id else self._options.part,
        )
        if turn.stopped_by is not None:
            raise Stopped(turn.stopped_by)


def _edit_lines() -> None:
    """Arrow keys and history at the prompt, where Python was built with them."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")


def _read_prompt(screen: Screen) -> str | None:
    """The next prompt, None at the end. Ctrl-C clears what was typed."""
    lines: list[str] = []
    while True:
        screen.end_line()
        try:
            line = input("... " if lines else "> ")
        except EOFError:
            screen.write("\n")
            return None
        except KeyboardInterrupt:
            screen.write("\n")
            lines.clear()
            continue
        if not sys.stdin.isatty():  # nobody echoes what comes from a pipe
            screen.write(line + "\n")
        if not lines and line.strip() in ("/exit", "/quit"):
            return None
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)
