"""A real bash that executes nothing: it records the argument lists of the commands it would run."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

BASH = shutil.which("bash")

# This bash finds no command (no PATH, builtins disabled), so each simple command reaches the handler, which appends its
# arguments to the log and returns the requested status.
_RECORDER = r"""
PATH=/nonexistent
set -o pipefail
log=$1 status=$2 scratch=$3 list=$4 kept=$5
command_not_found_handle() {
  local args=("${@//$'\n'/$'\x1d'}")  # a line feed would cut the record into two writes
  builtin printf '%s\0' "$#" "${args[@]}" >> "$log"
  return "$status"
}
cd "$scratch" || exit 9
exec 8< "$list"
for name in $(compgen -b); do
  case " builtin printf enable read eval return local exec wait : $kept " in *" $name "*) ;; *) enable -n "$name" ;; esac
done
while IFS= builtin read -r -d '' line <&8; do
  builtin printf '%s\0' 'LINE' >> "$log"
  ( builtin eval "$line"; builtin wait ) 2> /dev/null < /dev/null
done
exec 8<&-  # the status of the last line is not that of the recorder
"""


def record_commands(
    lines: list[str], status: int, kept: str = "", env: Mapping[str, str] = MappingProxyType({"LC_ALL": "C.UTF-8"})
) -> list[list[tuple[str, ...]]]:
    """For each line, the argument lists that bash would run if every command ended with `status`.

    `kept` names builtins that stay enabled, `env` is the environment of this bash.
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder, "scratch")
        scratch.mkdir()
        log = Path(folder, "log")
        listing = Path(folder, "lines")
        listing.write_bytes(b"".join(line.encode() + b"\0" for line in lines))
        command = [BASH or "bash", "--noprofile", "--norc", "-c", _RECORDER, "bash"]
        subprocess.run(
            [*command, str(log), str(status), str(scratch), str(listing), kept],
            check=True,
            timeout=300,
            env=env,
            stdout=subprocess.DEVNULL,
        )
        return _calls_of(log.read_bytes())


def _calls_of(data: bytes) -> list[list[tuple[str, ...]]]:
    fields = data.decode().split("\0")[:-1]
    lines: list[list[tuple[str, ...]]] = []
    at = 0
    while at < len(fields):
        if fields[at] == "LINE":
            lines.append([])
            at += 1
            continue
        count = int(fields[at])
        lines[-1].append(tuple(field.replace("\x1d", "\n") for field in fields[at + 1 : at + 1 + count]))
        at += 1 + count
    return lines


def files_made(line: str) -> set[str]:
    """The files that a line creates in an empty folder if every command succeeds."""
    with tempfile.TemporaryDirectory() as folder:
        script = 'PATH=/nonexistent; command_not_found_handle() { return 0; }; eval "$1"; wait'
        subprocess.run(
            [BASH or "bash", "--noprofile", "--norc", "-c", script, "bash", line],
            cwd=folder,
            env={"LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=False,
        )
        return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


_WORDS = (
    "foo",
    "bar-baz",
    "x.py",
    "src/a_b.c",
    "--long",
    "--key=value",
    "-n",
    "-rf",
    "a:b",
    "user@host",
    "50%",
    "1,2",
    "A+B",
    "^top",
    "HEAD~1",
    "file~",
    "a#b",
    "x!y",
    "{}",
    "]",
    "[",
    "0",
    "12",
    "é",
    "naïve",
    "日本",
    "=x",
    "a=b=c",
    "k=",
    "+x",
)
_QUOTED = (
    "'single'",
    "'two words'",
    "'a;b'",
    "'$HOME'",
    "'`x`'",
    "'\\'",
    "''",
    '"double"',
    '"two  words"',
    '"a\'b"',
    '"a|b"',
    '"\\$x"',
    '"\\\\"',
    '"\\""',
    '"\\a"',
    '"\\`"',
    '""',
    '"#"',
    "'#'",
    '"~"',
    '"*"',
    "'?'",
    "'[a]'",
    "'new\nline'",
    '"t\tb"',
)
_ESCAPES = (
    "\\ ",
    "\\;",
    "\\&",
    "\\|",
    "\\$",
    "\\'",
    '\\"',
    "\\\\",
    "\\#",
    "\\~",
    "\\*",
    "\\a",
    "\\(",
    "\\{",
    "\\>",
    "\\-",
)
_TRICKS = (
    "$x",
    "${x}",
    "$(x)",
    "`x`",
    "$'a'",
    '$"a"',
    "~",
    "~/x",
    "a=~",
    "a:~",
    "{a,b}",
    "{1..3}",
    "*",
    "?",
    "[ab]",
    "*.py",
    "!",
    "!!",
    "(",
    ")",
    "{",
    "}",
    "#c",
    "<<E",
    "<<<x",
    "<(x)",
    "x=1",
    "x+=1",
    "if",
    "then",
    "for",
    "time",
    "function",
    "\\\n",
    "\r",
    "\x01",
    "\u00a0",
    "\u200b",
    "\u2028",
    "&>",
    "|&",
    ";;",
    ";&",
    "&&&",
    "|||",
    "<>",
    ">|",
    "2>",
    "10>",
    "a2>",
    ">&",
    "<&",
    "$",
    '"',
    "'",
    "\\",
    "\x7f",
    "\u202e",
    "\ufeff",
    "%1",
    "[[",
    "]]",
    "coproc",
    "case",
    "esac",
    "in",
    "-",
    "--",
    "~+",
    "@(a)",
)
_OPERATORS = (
    " && ",
    " || ",
    "; ",
    " | ",
    "&&",
    "||",
    ";",
    "|",
    "\n",
    " & ",
    "&",
    " |& ",
    "\n\n",
    " ;\n",
    " &&\n",
    "\n&& ",
    " ; ; ",
)
_REDIRECTS = (
    ">out",
    "> out",
    ">>out",
    "2>err",
    "2>&1",
    ">&2",
    "1>&-",
    "&>all",
    "&>>all",
    ">|out",
    "2> 'q t'",
    "</dev/null",
    "> /dev/null",
)


def random_line(rng: random.Random, trick: float) -> str:
    """A random command line of words, quotes, operators and redirections, with occasional tricky parts."""
    parts = []
    for index in range(rng.choice((1, 1, 2, 2, 3, 4))):
        if index:
            parts.append(rng.choice(_OPERATORS))
        parts.append(_random_command(rng, trick))
    line = "".join(parts)
    return line + rng.choice(("", "", "", " ", ";", "\n", " &")) if rng.random() < 0.3 else line


def _random_command(rng: random.Random, trick: float) -> str:
    words = [rng.choice(("cmd", "prog", "tool-x", "a.b", "run_it"))]
    words += [_random_word(rng, trick) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5)))]
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words) + 1), rng.choice(_REDIRECTS))
    if rng.random() < trick / 2:
        words.insert(0, rng.choice(_TRICKS))
    return rng.choice((" ", " ", " ", "  ", "\t")).join(words)


def _random_word(rng: random.Random, trick: float) -> str:
    pieces = [_random_piece(rng, trick) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return "".join(pieces)


def _random_piece(rng: random.Random, trick: float) -> str:
    if rng.random() < trick:
        return rng.choice(_TRICKS)
    return rng.choice(rng.choice((_WORDS, _WORDS, _QUOTED, _ESCAPES)))


# Ways to write a word that bash expands to "evil".
_DISGUISES = (
    "evil",
    "'evil'",
    '"evil"',
    "e'v'il",
    'ev""il',
    "\\evil",
    "e\\vil",
    "$'evil'",
    "$'\\x65vil'",
    "$'e\\166il'",
    '$"evil"',
    "ev\\\nil",
    "${x:-evil}",
    "$(echo evil)",
    "`echo evil`",
    "$X",
    '"$X"',
    "${X}",
    "${X:0:4}",
    "e${x}vil",
    "e$(echo vi)l",
    "{evil,}",
    "${X,,}",
    *("ev$'i'l", "$'\\145\\x76il'", "${Y/a/e}", "$(echo ev)il", "ev`echo i`l", 'e"vi"l', "$'\\u0065vil'"),
)
_SETTINGS = (
    "{}",
    "{} a b",
    "ok; {} a",
    "ok && {}",
    "no || {}",
    "ok | {}",
    "ok |& {} x",
    "ok & {}",
    "ok\n{} x",
    "ok;{}",
    "! {}",
    "({} a)",
    "{{ {} a; }}",
    "if {}; then ok; fi",
    "if ok; then {} x; fi",
    "for i in a; do {} $i; done",
    "while {}; do ok; break; done",
    "f() {{ {} a; }}; f",
    "function g {{ {}; }}; g",
    "case a in a) {} x;; esac",
    "echo $({} a)",
    "echo `{} a`",
    'echo "$({} a)"',
    "A=b {} c",
    "A=b B='c d' {} e",
    ">out {} a",
    "2>&1 {} a",
    "{} >out",
    "eval {} a",
    "eval '{} a'",
    "builtin eval {} x",
    "command {} a",
    "time {}",
    "coproc {}",
    "[[ -n $({}) ]]",
    "echo ${{x:-$({})}}",
    "cat <({} a)",
    "ok <<E\n$({} a)\nE",
    "ok <<< $({})",
    "until {}; do break; done",
    "\t{}\ta",
    "ok;\n\n{}",
    "ok # c\n{} a",
    "{} # c",
    "a[$({})]=1",
    "(( x = $({}) 0 ))",
    "trap '{} a' EXIT",
    "select s in a; do {}; break; done",
)


# A loop around a background command or another loop may never end.
_ENDING = tuple(setting for setting in _SETTINGS if "break" not in setting)


def disguised_line(rng: random.Random) -> str:
    """A line that may make bash run a command named evil."""
    line = rng.choice(_SETTINGS).format(rng.choice(_DISGUISES))
    while rng.random() < 0.3:
        line = rng.choice(_ENDING).format(line) if "\n" not in line else f"ok; {line}"
    return rng.choice(("", "", "X=evil; ", "X=evil Y=avil; ", "Y=avil\n")) + line
