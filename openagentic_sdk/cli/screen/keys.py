"""Keyboard input: bytes of a terminal become key names and text, without a thread and without blocking.

Sequences are those of ECMA-48 and xterm (CSI and SS3), and of bracketed paste, between whose marks everything is text.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...ground.signals import restored_at_death
from ..streams import restore_terminal

_SEQUENCES = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "[H": "home", "[F": "end", "[1~": "home", "[4~": "end",
    "[3~": "delete", "[5~": "page-up", "[6~": "page-down", "[Z": "shift-tab", "OA": "up", "OB": "down", "OC": "right",
    "OD": "left", "OH": "home", "OF": "end", "[1;5C": "word-right", "[1;5D": "word-left", "[1;3C": "word-right",
    "[1;3D": "word-left", "\r": "newline", "\n": "newline", "b": "word-left", "f": "word-right", "\x7f": "kill-word",
    "[13;2u": "newline", "[27;2;13~": "newline",
}  # fmt: skip
_CONTROLS = {
    "\r": "enter", "\n": "newline", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x01": "home", "\x02": "left",
    "\x04": "eof", "\x05": "end", "\x06": "right", "\x0b": "kill-end", "\x0c": "clear", "\x0e": "down", "\x0f": "show",
    "\x10": "up", "\x12": "search", "\x15": "kill-start", "\x17": "kill-word", "\x19": "yank", "\x1b": "escape",
}  # fmt: skip
_SEQUENCE = regex(r"\x1b(\[[0-9;?<=>]*[ -/]*[@-~]|O[@-~]|[^\[O])")
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
# Turn bracketed paste on and the terminal's cursor off; and the reverse.
_KEYS_ON, _KEYS_OFF = b"\x1b[?2004h\x1b[?25l", b"\x1b[?2004l\x1b[?25h"
MAX_PASTE_CHARS = 1 << 20


@frozen
class Key:
    """A key by name, or typed or pasted text (`name` is `text` or `paste`)."""

    name: str
    text: str = ""


class KeyParser:
    """A parser of bytes into keys; an incomplete sequence waits for the next bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[Key]:
        """Add bytes; return the complete keys."""
        self._rest += self._decoder.decode(data)
        return list(self._take())

    def flush(self) -> list[Key]:
        """Return the keys in the waiting bytes once no more bytes follow: a lone escape is the key Escape."""
        if not self._rest or self._rest.startswith(_PASTE):
            return []
        rest, self._rest = self._rest[1:], ""
        return [Key("escape"), *([Key("text", rest)] if rest and rest.isprintable() else [])]

    def _take(self) -> Iterator[Key]:
        while self._rest:
            if self._rest.startswith(_PASTE):
                end = self._rest.find(_PASTED)
                if end < 0 and len(self._rest) < MAX_PASTE_CHARS:
                    return
                end = len(self._rest) if end < 0 else end
                text = self._rest[len(_PASTE) : end].replace("\r\n", "\n").replace("\r", "\n")
                self._rest = self._rest[end + len(_PASTED) :]
                yield Key("paste", text)
            elif self._rest[0] == "\x1b":
                sequence = _SEQUENCE.match(self._rest)
                if sequence is None:
                    if len(self._rest) > 32:  # no terminal sends such a sequence
                        self._rest = self._rest[1:]
                        continue
                    return
                self._rest = self._rest[sequence.end() :]
                name = _SEQUENCES.get(sequence[1])
                if name is not None:
                    yield Key(name)
            elif self._rest[0] in _CONTROLS:
                yield Key(_CONTROLS[self._rest[0]])
                self._rest = self._rest[1:]
            else:
                controls = (at for at, letter in enumerate(self._rest) if letter < " " or letter == "\x7f")
                count = next(controls, len(self._rest))
                if count:
                    yield Key("text", self._rest[:count])
                self._rest = self._rest[max(count, 1) :]


class Keyboard:
    r"""The keys of the terminal, given to `on_key` one by one while the event loop runs.

    Signals are not affected: Ctrl-C, Ctrl-Z and Ctrl-\ are not keys.
    """

    def __init__(self, on_key: Callable[[Key], None]) -> None:
        self._on_key = on_key
        self._parser = KeyParser()
        self._flush: asyncio.TimerHandle | None = None
        self._terminal: int | None = None  # its file descriptor while keys are read
        self.is_gone = False  # the terminal has gone: no more keys will come

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the terminal out of line mode during the block, except while Ctrl-Z stops the process; always restore it."""
        import termios

        terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
        before = termios.tcgetattr(terminal)
        raw = termios.tcgetattr(terminal)
        raw[0] &= ~(termios.ICRNL | termios.IXON)
        raw[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)

        def restore() -> None:
            self._terminal = None
            restore_terminal(terminal, before, _KEYS_OFF)

        def take(mode: list[Any], marks: bytes) -> None:
            sys.stdout.flush()
            os.write(sys.stdout.fileno(), marks)
            termios.tcsetattr(terminal, termios.TCSADRAIN, mode)

        def stop() -> None:
            self._on_key(Key("stop"))
            take(before, _KEYS_OFF)
            # Back to the defaults: with a handler, SIGTSTP would not stop the process.
            loop.remove_signal_handler(signal.SIGCONT)
            loop.remove_signal_handler(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGTSTP)  # returns when the shell resumes the process
            loop.add_signal_handler(signal.SIGTSTP, stop)
            loop.add_signal_handler(signal.SIGCONT, go_on)
            go_on()

        def go_on() -> None:
            """Take the terminal again after SIGTSTP or SIGSTOP, unless the process is about to end."""
            if self._terminal is None:
                return
            take(raw, _KEYS_ON)
            self._on_key(Key("go-on"))

        with restored_at_death(restore):
            take(raw, _KEYS_ON)
            self._terminal = terminal
            loop.add_reader(terminal, self._read, loop, terminal)
            for number, act in ((signal.SIGTSTP, stop), (signal.SIGCONT, go_on)):
                loop.add_signal_handler(number, act)
            loop.add_signal_handler(signal.SIGWINCH, self._on_key, Key("resize"))
            try:
                yield
            finally:
                for number in (signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP):
                    loop.remove_signal_handler(number)
                loop.remove_reader(terminal)
                restore()

    def take_typed(self) -> None:
        """Pass on the keys that were typed while the event loop was busy."""
        if self._terminal is not None and select.select([self._terminal], [], [], 0)[0]:
            self._read(asyncio.get_running_loop(), self._terminal)

    def _read(self, loop: asyncio.AbstractEventLoop, terminal: int) -> None:
        if self._flush is not None:
            self._flush.cancel()
        if self._terminal is None:  # it was restored because the process is ending
            loop.remove_reader(terminal)
            return
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the terminal is gone: SIGHUP ends the process
            data = b""
        if not data:
            loop.remove_reader(terminal)
            self.is_gone = True
            self._on_key(Key("eof"))
            return
        for key in self._parser.feed(data):
            self._on_key(key)
        # The bytes of a sequence arrive together: after this pause, a waiting escape is the key Escape.
        self._flush = loop.call_later(0.05, self._end_sequence)

    def _end_sequence(self) -> None:
        for key in self._parser.flush():
            self._on_key(key)
