"""Find the subcommand, run it, and convert any error to one sentence and an exit code.

A subcommand is a module of `commands` with `add_parser(subparsers)` and `run(args) -> int`. The list of subcommands imports
none of them, so that `--help` answers at once.
"""

from __future__ import annotations

import _thread
import argparse
import errno
import importlib
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from ..errors import OpenAgentSdkError, OptionsError, PermissionRuleError
from ..ground.patterns import regex
from ..ground.signals import STOP_SIGNALS, end_at_next, handled_signals, send_to_main_thread
from ..ground.system import working_dir
from ..ground.text import printable
from ..ground.words import look_alikes
from ..version import __version__
from .commands import ADMIN, COMMANDS, FIRST_COMMANDS, Subcommand, load_command
from .exits import FAILED, INTERRUPTED, MEANINGS, USAGE
from .streams import flush_or_discard, open_streams

_EPILOG = f"exit codes: {', '.join(f'{code} {text}' for code, text in MEANINGS.items())}, 128 + n stopped by signal n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    If a command does not handle SIGTERM and SIGHUP itself, they end it like Ctrl-C, so that no unfinished file remains; a
    second signal ends the process at once.
    """
    stops: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        end_at_next(number)
        stops.append(number)
        ctrl_c = signal.getsignal(signal.SIGINT)
        (ctrl_c if callable(ctrl_c) else signal.default_int_handler)(signal.SIGINT, frame)

    def prepare_repeat() -> int:
        """Reinstall the handler of the signal that stopped this command; return the signal to send again."""
        if stops:
            signal.signal(stops[0], interrupt)
        return stops[0] if stops else signal.SIGINT

    open_streams()
    try:
        handled = [each for each in STOP_SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
        with _repeated_interrupts(prepare_repeat), handled_signals(handled, interrupt):
            code = _run(sys.argv[1:] if argv is None else argv)
    except SystemExit as stop:  # argparse has printed its help or its complaint
        code = stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        code = INTERRUPTED
    if stops and code in (INTERRUPTED, FAILED):  # a command also fails if its terminal has gone
        code = _complain(f"stopped by {signal.Signals(stops[0]).name}", 128 + stops[0])
    if (error := flush_or_discard(sys.stdout)) is not None:
        code = code or _fail(error)
    flush_or_discard(sys.stderr)
    return code


@contextmanager
def _repeated_interrupts(prepare_repeat: Callable[[], int]) -> Iterator[None]:
    """During the block, resend an interrupt that Python drops because an object, such as a generator, is being released."""
    is_over = False

    def repeat(number: int) -> None:
        time.sleep(_MOMENT_S)  # until `hook` has ended: an interrupt inside it would be dropped too
        if not is_over:
            send_to_main_thread(number)

    def hook(dropped: Any) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            # Without `threading`, whose locks the interrupted code may hold.
            _thread.start_new_thread(repeat, (prepare_repeat(),))
        else:
            report(dropped)

    report, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        is_over, sys.unraisablehook = True, report


_MOMENT_S = 0.02


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests corrections of an unknown command, action or flag."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:  # the parser of the action shows its own usage, and suggests its own flags
            self._parser_of(args or ()).error(f"unrecognized arguments: {' '.join(unknown)}")
        return values

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split()
        known_names, kind = set(self._option_string_actions), "flags"
        if wrong := _CHOICE.search(message):
            unknown, known_names, kind = [wrong[1]], {*re.findall(r"[\w-]+", wrong[2])}, "choices"
            message = message[: wrong.start()] + f"there is no {wrong[1]!r}"
        elif wrong := _TYPE.search(message):
            message = f"{message[: wrong.start()]}{wrong[2]} is not {_NUMBERS[wrong[1]]}"
        near = [name for word in unknown for name in look_alikes(word.partition("=")[0], known_names, 0.6)]
        # A missing argument is chosen from a list only if it is a command, an action or the like.
        is_missing = message.startswith("the following arguments are required")
        has_choices = bool(unknown) or (is_missing and any(each.required and each.choices for each in self._actions))
        help_text = "; --help lists the choices" if has_choices else ""
        usage = self.format_usage()
        if usage.count("\n") > _MAX_USAGE_LINES:  # the one of `run` has 18 lines, which hide the message below them
            usage, help_text = "", f"; {self.prog} --help lists the {kind}"
        text = f"{message}; did you mean {' or '.join(near)}?" if near else message + help_text
        self.exit(USAGE, f"{usage}{self.prog}: error: {text}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:  # argparse would ignore a failed write
            file.write(message)
        else:
            super()._print_message(message, file)

    def _parser_of(self, words: Sequence[str]) -> argparse.ArgumentParser:
        """The parser of the command and action that the words select."""
        parser: argparse.ArgumentParser = self
        for word in words:
            choices = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
            parser = choices[0].get(word, parser) if choices else parser
        return parser


_MAX_USAGE_LINES = 8
_TYPE = regex(r"invalid (int|float|positive|seconds|tcp_port) value: (.*)")
_NUMBERS = {
    "float": "a number",
    "seconds": "a number",
    **dict.fromkeys(("int", "positive", "tcp_port"), "a whole number"),
}
_CHOICE = regex(r"invalid choice: '([^']*)' \(choose from (.*)\)")


def read_command_line(argv: Sequence[str]) -> tuple[Subcommand, argparse.Namespace]:
    """Parse the command line; return the subcommand and its arguments. Raises `SystemExit` for help and for wrong usage."""
    argv = argv[1:] if len(argv) > 1 and argv[0] == ADMIN and argv[1] in COMMANDS else argv
    name = argv[0] if argv and argv[0] in COMMANDS else None
    command = load_command(name) if name else None
    is_admin = list(argv[:1]) == [ADMIN]
    parser: argparse.ArgumentParser = CommandParser(
        prog="openagentic-sdk", description="Run an LLM agent whose every step is a durable event.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if command is not None:
        command.add_parser(subparsers)  # alone: setting up the other parsers takes longer than many commands
    for other, summary in COMMANDS.items() if command is None else ():
        if (other in FIRST_COMMANDS) is is_admin:
            subparsers.add_parser(other, add_help=False)  # known, and not listed here
        else:
            subparsers.add_parser(other, help=summary, add_help=False)
    if is_admin:
        if argv[1:] and not argv[1].startswith("-"):
            parser.parse_args(argv[1:])
        parser.print_help()
        raise SystemExit(0 if {"-h", "--help"} & {*argv} else USAGE)
    subparsers.add_parser(ADMIN, help="list the other commands, which work with or without this word", add_help=False)
    if "-h" in argv or "--help" in argv:
        examples = importlib.import_module(".examples", __package__)
        examples.add_examples(parser)
        if name:
            examples.add_examples(subparsers.choices[name], name)
    args = parser.parse_args(argv)
    assert command is not None, "argparse accepts subcommands only"
    return command, args


def _run(argv: Sequence[str]) -> int:
    # A character that the terminal's encoding lacks must not end a run, nor a byte that is invalid in it.
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        reconfigure = getattr(stream, "reconfigure", None)  # replaced streams of an embedding program lack it
        if reconfigure is not None:
            with suppress(OSError):  # something was read from it before
                reconfigure(errors=errors)
    try:
        command, args = read_command_line(argv)
        return command.run(args)
    except (OptionsError, PermissionRuleError) as error:
        return _complain(error, USAGE)
    except OpenAgentSdkError as error:
        return _complain(f"{error}{_way_out(error)}", FAILED)
    except OSError as error:
        return _fail(error)
    except MemoryError:
        return _complain("the memory that this process may use is exhausted: raise its limit (ulimit -v)", FAILED)
    except RecursionError:
        # The JSON reader of newer Pythons reads deeper values of other tools' logs than our code can show.
        problem = "a value is nested too deeply to be shown"
        return _complain(
            f"{problem}: `openagentic-sdk sessions salvage ID` makes a session with its JSON as text", FAILED
        )


# A disk, a quota or a file that is full, a device that fails, a stream that is open for reading only.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def _fail(error: OSError) -> int:
    """Report an error of a file, or of the output, whose errors name no file; return the exit code.

    Nothing is printed if the reader of the output has gone.
    """
    if isinstance(error, BrokenPipeError):
        return FAILED
    where = error.filename or ("the output cannot be written" if error.errno in _OUTPUT_ERRORS else "")
    if where:
        discard = "" if error.filename or error.errno != errno.EBADF else "; redirect it to /dev/null to discard it"
        return _complain(f"{where}: {error.strerror or error}{discard}{_way_out(error)}", FAILED)
    try:
        working_dir()
    except OptionsError as removed:  # a relative path in a folder that is gone also fails without a name
        return _complain(removed, USAGE)
    return _complain(f"{error.strerror or error}{_way_out(error)}", FAILED)


def _way_out(error: BaseException | None) -> str:
    """Advice to raise the limit of open files, if that caused the error and its message does not mention it; otherwise
    empty.
    """
    if "(ulimit -n)" in str(error):
        return ""
    while error is not None and not (isinstance(error, OSError) and error.errno == errno.EMFILE):
        error = error.__cause__ or error.__context__
    if error is None:
        return ""
    import resource  # here: Windows has none, and no such error

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"; this process may have {limit} open files: raise that limit (ulimit -n)"


def _complain(error: object, code: int) -> int:
    with suppress(OSError):  # there is nowhere to report it
        print(f"openagentic-sdk: {printable(str(error))}", file=sys.stderr, flush=True)
    return code
