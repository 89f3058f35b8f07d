"""The person at a terminal whose keys are read one by one: lines between questions, answers during one.

Below the text are the state of the run and the line being typed. Text typed during a run is steering: it is passed to
`steer` at once. At most one question is shown at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ...errors import ToolError
from ...events import UserQuestion
from ...ground.text import on_one_line, visible
from ...permissions.interactive import question_text
from ...tools.edit import edited_text
from ...tools.session.ask_user_question import SEVERAL_ANSWERS
from ..output.diffs import shown_diff
from ..output.questions import show_question
from ..output.terminal import Screen
from ..output.widths import wrapped
from .boxes import Box, box_for
from .editor import LineEditor
from .keys import Key, Keyboard
from .live import LivePrinter, text_of

MAX_ASKED_ROWS = 2_000
# At most this much of a typed prompt is shown again.
MAX_SAID_ROWS = 20
MAX_SAID_CHARS = 2_000
# A person in the middle of a line has not seen the question yet: keys answer it after a pause of this length.
PAUSE_S = 0.6
_TERMINAL_KEYS = ("resize", "clear", "stop", "go-on")


class Console:
    """The keyboard, the rows and the open question of a chat. `steer` receives lines typed during a run; `show_output` is
    called on Ctrl-O.
    """

    def __init__(self, screen: Screen, printer: LivePrinter) -> None:
        self.screen = screen
        self.printer = printer
        self.editor = LineEditor()
        self.steer: Callable[[str], None] | None = None
        self.show_output: Callable[[], None] = lambda: None
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._box: tuple[Box, asyncio.Future[str]] | None = None
        self._question_rows: list[str] = []  # the rows of the open question
        self._one_at_a_time = asyncio.Lock()
        self._keyboard = Keyboard(self._press)
        self._still = asyncio.Event()  # set once no key was pressed for `PAUSE_S`
        self._until_still: asyncio.TimerHandle | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Read keys during the block."""
        try:
            with self._keyboard.listening():
                self.draw()
                yield
        finally:
            self.printer.footer = []
            self.printer.pause()

    async def read_line(self) -> str | None:
        """Return the next submitted line, and show it; None at end of input."""
        self.draw()
        line = await self._lines.get()
        if line:
            rows = [on_one_line(row, MAX_SAID_CHARS) for row in line.split("\n")]
            more = [self.screen.styled(f"({len(rows)} rows)", "dim")] if len(rows) > MAX_SAID_ROWS else []
            self.screen.line("\n" + self.screen.styled("> ", "prompt") + "\n  ".join([*rows[:MAX_SAID_ROWS], *more]))
        return line

    def put_back(self, line: str | None) -> None:
        """Queue a line as if it had been submitted; None queues the end of input."""
        self._lines.put_nowait(line)

    async def __call__(self, question: UserQuestion) -> str:
        """Ask a question below the text; return the answer, empty if the person dismisses the question."""
        async with self._one_at_a_time:
            styled = self.screen.styled
            self._question_rows = asked_rows(question, self.screen, self.printer.cwd)
            self.screen.lines(self._question_rows)
            try:
                # Keys that were typed before the question appeared must not answer it.
                self._keyboard.take_typed()
                if self.editor.text:
                    await self._still.wait()
                answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self._box = box_for(question), answer
                self.draw()
                reply = await answer
            finally:
                self._box, self._question_rows = None, []
                self.draw()
            self.screen.line(styled(f"  → {on_one_line(reply, 300) or '(no answer)'}", "dim"))
            return reply

    def tell(self, text: str) -> None:
        """Show a message that needs no answer."""
        self.screen.line(on_one_line(text, 300))

    def clear_line(self) -> bool:
        """Clear the line being typed; return False if it was empty."""
        had = bool(self.editor.text)
        self.editor.clear()
        self.draw()
        return had

    def draw(self) -> None:
        """Show the current line or box."""
        styled, width = self.screen.styled, self.screen.width
        if self._box is not None:
            self.printer.footer = self._box[0].rows(width, styled)
        else:
            mark = "» " if self.steer is not None else "> "
            self.printer.footer = self.editor.rows(
                styled(mark, "prompt"), width, lambda letter: styled(letter, "cursor")
            )
        self.printer.tick()

    def _press(self, key: Key) -> None:
        if key.name in _TERMINAL_KEYS:
            # Draw all rows again: the terminal has another size, was cleared, or was used by a shell meanwhile.
            if key.name == "stop":
                return self.printer.pause()
            if key.name == "resize":
                self.screen.resized()
            elif key.name == "clear":
                self.screen.clear()
            else:
                self.screen.begin_anew()
            if key.name != "resize":
                self.screen.lines(self._question_rows)
            self.draw()
        self._still.clear()
        if self._until_still is not None:
            self._until_still.cancel()
        self._until_still = asyncio.get_running_loop().call_later(PAUSE_S, self._still.set)
        if self._box is not None:
            box, answer = self._box
            # A busy machine hands over several keys at once. Those after the answer belong to nothing and are dropped.
            letters = [Key("text", letter) for letter in key.text] if key.name == "text" else [key]
            reply = next((each for each in map(box.press, letters) if each is not None), None)
            if reply is not None and not answer.done():
                answer.set_result(reply)
        elif key.name == "show":
            self.show_output()
        elif key.name == "eof" and (self._keyboard.is_gone or not self.editor.text):
            self._lines.put_nowait(None)
        else:
            text = self.editor.press(Key("delete") if key.name == "eof" else key)
            if text is not None and text.strip():
                (self.steer or self._lines.put_nowait)(text)
        self.draw()


def asked_rows(question: UserQuestion, screen: Screen, cwd: str) -> list[str]:
    """The question with its full subject: the whole command, or the change to the actual file."""
    if question.kind == "permission":
        diff = _change_rows(question, screen, cwd)
        shown_question = replace(question, details={**question.details, "preview": []}) if diff else question
        # The last line of the text lists the choices for people who type an answer; the box shows them.
        first, *lines = question_text(shown_question, colour=screen.has_colours).split("\n")[:-1]
        question_lines = [first, *diff, *lines]
    else:
        text = show_question(question).partition("\n    1 ")[0].removeprefix("? ")
        choice_lines = (SEVERAL_ANSWERS, *(f"{choice}: " for choice in question.choices))  # the box shows these
        question_lines = [line for line in text.split("\n") if not line.strip().startswith(choice_lines)]
    rows = [row for line in question_lines for row in wrapped(line, screen.width - 3)]
    return [screen.styled("? ", "yellow") + rows[0], *(f"  {row}" for row in rows[1:])]


def _change_rows(question: UserQuestion, screen: Screen, cwd: str) -> list[str]:
    """The change that Write or Edit would make to the current file; empty if it cannot be determined."""
    input, tool = question.details.get("input"), question.details.get("tool_name")
    if not isinstance(input, dict) or tool not in ("Write", "Edit"):
        return []
    path = str(input.get("file_path", ""))
    before = text_of(os.path.join(cwd, path))
    if before is None:
        return []
    try:
        after = str(input.get("content", "")) if tool == "Write" else edited_text(before, input)
    except (ToolError, ValueError, TypeError, AttributeError):  # the tool will report the problem
        return []
    rows = shown_diff(before, after, screen, indent="", columns=screen.width - 2, max_rows=MAX_ASKED_ROWS)
    return [f"{visible(path)} ({len(rows):,} rows)", *rows]
