"""The commands of `chat` itself: `/help`, `/model`, `/undo` and so on. Other names are commands of the project."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..api import compact_session
from ..assemble import build_agent
from ..errors import OpenAgentSdkError, OptionsError
from ..events import UserQuestion
from ..ground.text import on_one_line
from ..ground.words import plural
from ..options import with_model
from ..parts.masking import environment_redactor
from ..parts.record.folds.costs import cost_report
from ..parts.record.folds.export import to_markdown
from ..parts.record.folds.prices import price_setting
from ..parts.record.lifecycle import fork_session, rewind_point, rewind_session
from ..parts.record.undo import plan_restore
from ..permissions.gate import permission_gate
from ..permissions.layers import read_mode
from ..runs.window import session_window
from ..sessions.seal import Seal
from .conversation import Chat
from .output.files import write_for_one
from .output.render import cost_words
from .output.widths import wrapped
from .screen.live import CallOutputs
from .stored.files import newest_restore, plan_lines, restored_lines, show_file_changes
from .stored.stores import find_session


class Leave(Exception):
    """An exception that ends the chat."""


class SlashCommands:
    """The slash commands of one conversation."""

    def __init__(self, conversation: Chat, outputs: CallOutputs) -> None:
        self._conversation = conversation
        self._outputs = outputs

    async def run(self, line: str) -> bool:
        """Execute a line that is one of these commands, and print its error; return False for any other line.

        Raises `Leave` for `/quit` and `/exit`.
        """
        name, _, rest = line.strip().partition(" ")
        if name == "/exit":
            name = "/quit"
        command = COMMANDS.get(name)
        if command is None:
            return False
        try:
            await command[0](self, rest.strip())
        except (
            OpenAgentSdkError,
            OSError,
            ValueError,
        ) as error:  # a path may contain characters that no file system accepts
            self._say(str(error))
        return True

    def _say(self, *lines: str) -> None:
        screen = self._conversation.screen
        for line in lines:
            for row in wrapped(on_one_line(line), screen.width - 1) if screen.is_terminal else (on_one_line(line),):
                screen.line(row)

    def _session(self) -> str:
        """The session's id. Raises `OptionsError` if nothing was sent yet."""
        if self._conversation.session_id is None:
            raise OptionsError("there is no session yet: send a prompt first")
        return self._conversation.session_id

    async def _choose(self, what: str, choices: Sequence[str]) -> str:
        return await self._conversation.ask(UserQuestion(os.urandom(16).hex(), what, tuple(choices)))

    async def _help(self, rest: str) -> None:
        self._say(*(f"{name:<14} {about}" for name, (_, about) in COMMANDS.items()))
        self._say(
            "ctrl-c        interrupts the run, twice leaves; alt-enter or \\ at the end begins a new line; tab completes; "
            "ctrl-o shows the last output; text typed during a run is read before its next step"
        )

    async def _clear(self, rest: str) -> None:
        await self._conversation.go_to(None)
        self._say("a new session begins with the next prompt")

    async def _compact(self, rest: str) -> None:
        self._session()
        done = await compact_session(options=replace(self._conversation.turns.options, part="whole"))
        self._say("the older part is summarized" if done else "there is nothing to summarize yet")

    async def _model(self, rest: str) -> None:
        turns = self._conversation.turns
        if rest:
            turns.change(with_model(turns.options, rest))
        self._say(f"model: {build_agent(turns.options).model}")

    async def _mode(self, rest: str) -> None:
        conversation = self._conversation
        if rest:
            gate = conversation.gate.with_mode(read_mode(rest))
            conversation.turns.change(replace(conversation.turns.options, permission_gate=gate))
        self._say(f"permission mode: {build_agent(conversation.turns.options).gate.mode}")

    async def _permissions(self, rest: str) -> None:
        gate = permission_gate(build_agent(self._conversation.turns.options).gate)
        self._say(*gate.policy_text.split("\n"))

    async def _cost(self, rest: str) -> None:
        row = self._conversation.store.read_summary(self._session())
        self._say(
            f"{plural(row.turns, 'turn')}, {plural(row.steps, 'step')}, {row.tokens:,} tokens, {cost_words(row.cost_usd)}"
        )
        unpriced = cost_report([row], "model").unpriced_models
        self._say(*(f"no price of {name or 'the model'} is known: {price_setting(name)}" for name in unpriced))

    async def _context(self, rest: str) -> None:
        conversation = self._conversation
        window = conversation.turns.options.max_context_tokens
        self._say(*session_window(conversation.store, self._session(), window).lines())

    async def _diff(self, rest: str) -> None:
        conversation = self._conversation
        show_file_changes(conversation.store, self._session(), as_json=False, screen=conversation.screen)

    async def _undo(self, rest: str) -> None:
        """Show what would change, then undo the newest turns, with or without their file changes, as the person chooses."""
        conversation, session_id = self._conversation, self._session()
        turns = _number(rest or "1")
        if not turns:
            self._say(f"/undo accepts the number of turns to undo, as in /undo 2, not {rest!r}")
            return
        to_seq = rewind_point(conversation.store, session_id, turns=turns)
        roots, seal = build_agent(conversation.turns.options).workspace_roots, Seal(conversation.turns.options.key_file)
        plan = plan_restore(conversation.store, session_id, to_seq=to_seq, roots=roots, seal=seal)
        self._say(*plan_lines(plan))
        choices = ["conversation and files", "only the conversation", "neither"]
        if any(file.action == "refuse" for file in plan.files):
            choices[0] = "conversation, and the files that nothing else changed"
        if not any(file.action != "keep" for file in plan.files):
            choices = choices[1:]
        what = "Undo this turn?" if turns == 1 else f"Undo these {turns} turns?"
        choice = await self._choose(what, choices)
        if choice not in choices[:-1]:
            self._say("nothing was undone")
            return
        files = choice == choices[0] and len(choices) == 3
        rewind_session(
            conversation.store, session_id, to_seq=to_seq, files=files, conflicts="skip", roots=roots, seal=seal
        )
        self._say(f"undone back to event {to_seq}")
        if files:
            self._say(*restored_lines(newest_restore(conversation.store, session_id, to_seq)))

    async def _resume(self, rest: str) -> None:
        conversation = self._conversation
        rows = conversation.store.list_session_summaries(cwd=str(conversation.turns.options.cwd), limit=9)
        if not rest and rows:
            labels = [f"{row.id[:8]} {on_one_line(row.label, 60)}" for row in rows]
            rest = (await self._choose("Which session?", labels)).partition(" ")[0]
        if rest:
            await conversation.go_to(find_session(conversation.store, rest))
            await conversation.pick_up()

    async def _fork(self, rest: str) -> None:
        await self._conversation.go_to(fork_session(self._conversation.store, self._session()))
        self._say(f"this continues in a copy, {self._conversation.session_id}; the original is unchanged")

    async def _show(self, rest: str) -> None:
        self.show(rest)

    def show(self, rest: str = "") -> None:
        """Print the stored output of the call with this number, by default of the newest call."""
        number = _number(rest) if rest else self._outputs.newest
        text = None if number is None else self._outputs.text(number)
        if number is None or text is None:
            self._say(f"there is no output {rest or 'yet'}: give a number that is shown after a call, as in /show 3")
            return
        screen = self._conversation.screen
        screen.line(screen.styled(f"[{number}] {on_one_line(self._outputs.title(number))}", "bold"))
        screen.line(text)

    async def _export(self, rest: str) -> None:
        session_id = self._session()
        path, is_there = _place(str(self._conversation.turns.options.cwd), rest or f"{session_id}.md")
        if is_there and await self._choose(f"{path} exists: replace it?", ("replace it", "keep it")) != "replace it":
            self._say("nothing was written")
            return
        write_for_one(path, to_markdown(self._conversation.store.read_events(session_id), environment_redactor()))
        self._say(f"wrote {path}")

    async def _quit(self, rest: str) -> None:
        raise Leave


COMMANDS: dict[str, tuple[Callable[[SlashCommands, str], Awaitable[None]], str]] = {
    "/help": (SlashCommands._help, "show this list"),
    "/clear": (SlashCommands._clear, "begin a new session"),
    "/compact": (SlashCommands._compact, "summarize the older part of the conversation"),
    "/model": (SlashCommands._model, "show the model, or switch to another: /model NAME"),
    "/mode": (SlashCommands._mode, "show the permission mode, or change it: /mode acceptEdits"),
    "/permissions": (SlashCommands._permissions, "show the mode and the rules in force"),
    "/context": (SlashCommands._context, "show how full the model's window is, and what a compaction would drop"),
    "/cost": (SlashCommands._cost, "show the turns, tokens and cost of this session"),
    "/diff": (SlashCommands._diff, "show which files this session changed"),
    "/undo": (SlashCommands._undo, "undo the newest turn, with its files: /undo 2 for two turns"),
    "/resume": (SlashCommands._resume, "continue another session of this folder"),
    "/fork": (SlashCommands._fork, "continue in a copy of this session"),
    "/show": (SlashCommands._show, "show the whole output of a call: /show 3"),
    "/export": (SlashCommands._export, "write the conversation as Markdown: /export FILE"),
    "/quit": (SlashCommands._quit, "leave; the session is kept"),
}


def _place(cwd: str, name: str) -> tuple[Path, bool]:
    """The named file, and whether it exists."""
    path = Path(cwd, os.path.expanduser(name))
    return path, os.path.lexists(path)


def _number(text: str) -> int:
    """The typed number; 0, which is not valid anywhere here, for any other text."""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def completions(word: str, is_first: bool, *, cwd: str, names: Sequence[str], models: Sequence[str] = ()) -> list[str]:
    """The completions of a word: a command at the start of a line, `@` and a file of the folder, a model's name."""
    if is_first and word.startswith("/"):
        return sorted(name for name in {*COMMANDS, *names} if name.startswith(word))
    if word.startswith("@"):
        folder, _, name = word[1:].rpartition("/")
        try:
            entries = sorted(os.scandir(os.path.join(cwd, folder)), key=lambda entry: entry.name)[:5_000]
        except OSError:
            return []
        prefix = f"@{folder}/" if folder else "@"
        matches = [
            entry for entry in entries if entry.name.startswith(name) and (name or not entry.name.startswith("."))
        ]
        return [f"{prefix}{entry.name}{'/' if os.path.isdir(entry) else ''}" for entry in matches[:200]]
    return sorted(name for name in models if word and name.startswith(word))
