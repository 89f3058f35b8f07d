"""`openagentic-sdk chat`: turn by turn on one session, with questions answered in place.

Ctrl-C stops the running turn and keeps the session; at the prompt it clears the line. Ctrl-D or /quit ends the chat.
SIGTERM and SIGHUP also end it, and leave an open question to the next chat.

On a terminal keys are read one by one, even during a turn; with --plain, and if stdin is not a terminal, whole lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...assemble import open_project
from ...ground.signals import handled_signals
from ...ground.text import printable
from ...options import OpenAgenticOptions
from ...parts.record.folds.window import WindowMeter
from ...runs.turns import Turns
from ...sessions.seal import data_home
from ..conversation import Chat
from ..exits import OK
from ..flags import add_run_flags, build_options, with_files
from ..loop import event_loop
from ..output.files import write_for_one
from ..output.piped import piped_stdin
from ..output.questions import Asker, build_gate, somebody_is_there
from ..output.render import EventPrinter
from ..output.terminal import Screen
from ..output.turn import Countdown, Stopped, Turn, on_stop_signals
from ..output.widths import wrapped
from ..screen.console import Console
from ..screen.editor import LineEditor
from ..screen.live import CallOutputs, LivePrinter
from ..slash import Leave, SlashCommands, completions
from ..stored.stores import store_flag
from ..streams import kept_terminal
from .trust import ask_about_servers, ask_for_trust, check_mode, check_prompt

_HELP = "/help lists commands, Ctrl-C stops the turn, Ctrl-D or /quit ends the chat; a line that ends with \\ continues"
_HINT = "/help lists commands · Ctrl-C stops the turn · Ctrl-D leaves"
MAX_HISTORY = 1_000
MAX_HISTORY_BYTES = 1 << 20
MAX_ENTRY_BYTES = 1 << 16


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("chat", description="Talk with an agent, turn by turn.", epilog=_HELP)
    add_run_flags(parser)


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stdout, plain=args.plain)
    is_live = screen.can_rewrite and sys.stdin.isatty() and sys.platform != "win32"
    chat: _LiveChat | _LineChat = _LiveChat(screen) if is_live else _LineChat(screen)
    options = build_options(args, build_gate(args, chat.asker))
    if somebody_is_there():
        ask_for_trust(options, screen)
        ask_about_servers(options, screen)
    check_mode(args, options)
    for row in wrapped(_HINT, screen.width - 1):
        screen.line(screen.styled(row, "dim"))
    chat.begin(options)
    chat.conversation.store_flag = store_flag(args)
    try:
        with event_loop() as runner, on_stop_signals(_stop):
            return chat.talk(runner)
    except Stopped as stopped:
        with contextlib.suppress(OSError):
            screen.end_line()
            chat.conversation.say_how_to_go_on()
        return 128 + stopped.number


def _stop(number: int) -> None:
    raise Stopped(number)


class _LineChat:
    """A chat that reads whole lines from stdin."""

    conversation: Chat

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.asker = Asker(screen)

    def begin(self, options: OpenAgenticOptions) -> None:
        def make_turn(turns: Turns) -> Turn:
            printer = EventPrinter(self._screen, window=options.max_context_tokens)
            return Turn(turns, printer, Countdown(self._screen))

        self.conversation = Chat(options, self._screen, self.asker, make_turn)
        self.asker.park = lambda: self.conversation.turn is not None and self.conversation.turn.park()
        if sys.stdin.isatty():  # arrow keys and history at the prompt, where Python was built with them
            with contextlib.suppress(ImportError):
                importlib.import_module("readline")

    def talk(self, runner: asyncio.Runner) -> int:
        """Take turns until the end of input or /quit; return the exit code. Raises `Stopped` at a stop signal."""
        conversation, options = self.conversation, self.conversation.turns.options
        commands = SlashCommands(conversation, CallOutputs())
        self._until_interrupted(runner, conversation.pick_up)
        with contextlib.suppress(Leave), kept_terminal():
            while (line := _read_prompt(self._screen)) is not None:
                if not line.strip() or runner.run(commands.run(line)):
                    continue
                if wrong := check_prompt(options, line):
                    self._screen.line(printable(wrong))
                else:
                    prompt = with_files(line, str(options.cwd), typed=sys.stdin.isatty())
                    self._until_interrupted(runner, partial(conversation.take_turn, prompt))
        runner.run(conversation.close())
        conversation.say_how_to_go_on()
        return OK

    def _until_interrupted(self, runner: asyncio.Runner, act: Callable[[], Any]) -> None:
        """Call `act`, which shows a turn. If a second Ctrl-C, or one at a question, ends that, show what the turn still
        logged.
        """
        try:
            runner.run(act())
        except KeyboardInterrupt:
            if self.conversation.turn is not None:
                self.conversation.turn.show_ending()
            self._screen.end_line()


def _read_prompt(screen: Screen) -> str | None:
    """Read the next prompt; None at end of input. Ctrl-C clears the typed text."""
    lines: list[str] = []
    while True:
        screen.end_line()
        mark, piped = "... " if lines else "> ", piped_stdin()
        try:
            if piped is not None:
                screen.write(mark)
            line = input(mark) if piped is None else piped.next_line_now()
        except EOFError:
            line = None
        except KeyboardInterrupt:
            screen.write("\n")
            lines.clear()
            continue
        if line is None:
            screen.write("\n")
            return None
        if not sys.stdin.isatty():  # piped input is not echoed
            screen.write(line + "\n")
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)


class _LiveChat:
    """A chat that reads keys one by one: text typed during a turn is delivered before its next step."""

    conversation: Chat

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._outputs = CallOutputs()
        self._printer = LivePrinter(screen, outputs=self._outputs, hint="ctrl-c interrupts · type to steer")
        self._console = Console(screen, self._printer)
        self._leaving = 0.0

    @property
    def asker(self) -> Console:
        """The console, which also asks questions."""
        return self._console

    def begin(self, options: OpenAgenticOptions) -> None:
        self._printer.meter = WindowMeter(options.max_context_tokens)
        make_turn = partial(Turn, printer=self._printer, tick=self._printer.tick)
        self.conversation = Chat(options, self._screen, self._console, make_turn)
        cwd, project = str(options.cwd), open_project(options)
        own = [command.name for command in project.commands.commands]
        own += [skill.name for skill in project.skills().skills if skill.user_invocable]
        names = [f"/{name}" for name in own]
        models = [str(options.model)] if options.model else []
        self._history = _History(cwd)
        self._console.editor = LineEditor(
            history=self._history.read(),
            complete=lambda word, is_first: completions(word, is_first, cwd=cwd, names=names, models=models),
        )

    def talk(self, runner: asyncio.Runner) -> int:
        """Take turns until the person leaves; return the exit code. Raises `Stopped` at a stop signal."""
        with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C
            runner.run(self._talk())
        self._screen.end_line()
        runner.run(self.conversation.close())
        self.conversation.say_how_to_go_on()
        return OK

    async def _talk(self) -> None:
        conversation, console = self.conversation, self._console
        commands = SlashCommands(conversation, self._outputs)
        console.show_output = commands.show
        loop = asyncio.get_running_loop()

        def clear_or_leave(number: int, frame: object) -> None:
            loop.call_soon_threadsafe(self._clear_or_leave)

        with handled_signals([signal.SIGINT], clear_or_leave), console.listening(), contextlib.suppress(Leave):
            await self._turn(conversation.pick_up, commands)
            while (line := await console.read_line()) is not None:
                self._history.add(line)
                if await commands.run(line):
                    continue
                if wrong := check_prompt(conversation.turns.options, line):
                    self._screen.line(printable(wrong))
                else:
                    prompt = with_files(line, str(conversation.turns.options.cwd), typed=True)
                    await self._turn(partial(conversation.take_turn, prompt), commands)

    async def _turn(self, act: Callable[[], Any], commands: SlashCommands) -> None:
        """Show a turn; lines typed during it are sent to the run, except `/show`, which prints at once."""
        console = self._console

        def steer(line: str) -> None:
            if line.startswith("/show"):
                commands.show(line.removeprefix("/show").strip())
            elif self.conversation.turn is not None and self.conversation.turn.steer(line):
                text = printable(line).replace("\n", "\n  ")
                self._screen.line(self._screen.styled(f"» {text}  (read before the next step)", "dim"))
            else:
                console.put_back(line)

        console.steer = steer
        try:
            await act()
        finally:
            console.steer = None
            console.editor.take_back("\n".join(message.text for message in self.conversation.turns.take_back()))
            console.draw()

    def _clear_or_leave(self) -> None:
        """Handle Ctrl-C between turns: it clears the line, and twice within 2 s on an empty line, it leaves the chat."""
        now = asyncio.get_running_loop().time()
        if self._console.clear_line():
            return
        if now - self._leaving < 2.0:
            self._console.put_back(None)
            return
        self._leaving = now
        self._screen.line(self._screen.styled("ctrl-c again, or ctrl-d, leaves", "dim"))


class _History:
    """The inputs typed in this folder, newest last, in a file readable only by its owner."""

    def __init__(self, cwd: str) -> None:
        digest = hashlib.sha256(cwd.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        home = data_home()
        self._path: Path | None = home / "history" / f"{digest}.jsonl" if home is not None else None

    def read(self) -> list[str]:
        """The newest inputs, oldest first; empty if nothing can be read."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                start = max(file.seek(0, os.SEEK_END) - MAX_HISTORY_BYTES, 0)
                file.seek(start)
                lines = file.read(MAX_HISTORY_BYTES).splitlines()[bool(start) :][-MAX_HISTORY:]
            texts = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            return []
        return [text for text in texts if isinstance(text, str)]

    def add(self, text: str) -> None:
        """Add an entry. Does nothing for a text that is too long, or if the home folder is not writable."""
        if self._path is None or not text.strip() or len(json.dumps(text)) > MAX_ENTRY_BYTES:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lines = [json.dumps(each) + "\n" for each in [*self.read(), text][-MAX_HISTORY:]]
            excess = sum(map(len, lines)) - MAX_HISTORY_BYTES
            while excess > 0:
                excess -= len(lines.pop(0))
            write_for_one(self._path, "".join(lines))
