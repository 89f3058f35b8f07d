"""Parse a shell command line as bash does, or refuse to.

The accepted language is deliberately small: words, quotes, `&& || ; | |& &`, newlines and plain redirections. Anything that
could make bash run something other than the visible words (expansions, substitutions, here-documents, control structures,
control characters, invisible characters) is refused, so that an accepted line means exactly what this parser returns. A test
compares it with a real bash. `guess` does the opposite: it over-approximates.
"""

from __future__ import annotations

import re
import unicodedata
from fnmatch import fnmatchcase

from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..ground.text import is_plain

# `shlex` is not a substitute: it splits words and recognizes no commands. Compared with a real bash on 24,539 scripts that
# it accepts, its argument list was wrong for 38 %.
PARSER_VERSION = 1
# Judging takes time for each word; a longer command is asked about instead.
MAX_COMMAND_CHARS = 10_000
GLOB_LETTERS = "*?["
IS_GLOB = regex(r"[*?\[]")
# `[[:alpha:]]` and `[[=a=]]`: classes of the locale, which `fnmatch` reads as plain characters.
_NESTED_BRACKET = regex(r"\[[^\]]*\[")


def words(text: str) -> tuple[str, ...]:
    """The words of a text, for compact tables."""
    return tuple(text.split())


def word_set(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


def base_name(word: str) -> str:
    """The name of a program without its folder."""
    return word.rpartition("/")[2]


def shell_word(word: str) -> str:
    """A word in the notation of command rules."""
    # Before a colon, a rule names a parameter: a word that ends with one is quoted.
    is_plain = re.fullmatch(r"[A-Za-z0-9_./=@%+,:-]+", word) and not word.endswith(":")
    return word if is_plain else "'" + word.replace("'", "'\\''") + "'"


RESERVED_WORDS = word_set("""
    ! [[ ]] { } if then else elif fi case esac for select while until do done in function time coproc
""")


# Variables that select a language, a colour, a time zone, a log level or a build target, and nothing that is executed.
# In other locales, a byte of a character may be special to the shell.
_PLAIN_LOCALE = regex(r"=(?:|C|POSIX|(?:C|[a-z]{2}_[A-Z]{2})\.(?:utf8|UTF-8)|[a-z]{2})$")
_PLAIN_ZONE = regex(r"TZ=[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z][A-Za-z0-9_+-]*)*")  # anything else may name a file
HARMLESS_VARIABLES = word_set("""
    NODE_ENV LANG LANGUAGE LC_ALL LC_CTYPE LC_TIME LC_COLLATE LC_MESSAGES LC_NUMERIC TZ NO_COLOR FORCE_COLOR CLICOLOR
    COLORTERM LS_COLORS GREP_COLORS GCC_COLORS PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE RUST_BACKTRACE RUST_LOG GOOS
    GOARCH CGO_ENABLED GO111MODULE
""")


_NO_PAGER = word_set("GIT_PAGER= GIT_PAGER=cat PAGER= PAGER=cat")


@frozen
class Redirect:
    """A redirection: `operator` is one of `< > >> >| &> &>> >& <&`, `target` is a path, or for the last two a descriptor."""

    operator: str
    target: str

    @property
    def is_descriptor(self) -> bool:
        """Whether the redirection only copies a descriptor."""
        return self.operator in (">&", "<&")

    @property
    def writes(self) -> bool:
        """Whether the redirection opens its target for writing."""
        return not self.is_descriptor and self.operator != "<"


@frozen
class SimpleCommand:
    """A simple command: the arguments that bash would run and its redirections.

    `globs` are the positions of arguments with an unquoted `*`, `?` or `[`, `joined_by` is the operator before the command,
    empty for the first, and `assignments` are the `NAME=value` before its name.
    """

    argv: tuple[str, ...]
    redirects: tuple[Redirect, ...] = ()
    globs: frozenset[int] = frozenset()
    joined_by: str = ""
    assignments: tuple[str, ...] = ()

    @property
    def open_assignments(self) -> tuple[str, ...]:
        """The assignments that can change what a program does."""
        if not self.assignments:
            return ()
        return tuple(
            each
            for each in self.assignments
            if (each.partition("=")[0] not in HARMLESS_VARIABLES and each not in _NO_PAGER)
            or (each.startswith(("LC_", "LANG")) and not _PLAIN_LOCALE.search(each))
            or (each.startswith("TZ=") and not _PLAIN_ZONE.fullmatch(each))
        )


@frozen
class CommandLine:
    """A command line that was understood, as simple commands."""

    commands: tuple[SimpleCommand, ...]
    in_background: bool = False
    has_comment: bool = False


def as_fnmatch(wildcard: str) -> str | None:
    """A bash wildcard in the syntax of fnmatch; None for brackets that only bash understands (`[[:alpha:]]`)."""
    if "[" not in wildcard:
        return wildcard
    # Bash accepts both signs of negation, `fnmatch` only `!`.
    return None if _NESTED_BRACKET.search(wildcard) else wildcard.replace("[^", "[!")


def could_become(wildcard: str, word: str) -> bool:
    """Whether a wildcard could expand to a file of this name; also true if only bash understands its brackets."""
    pattern = as_fnmatch(wildcard)
    return pattern is None or fnmatchcase(word, pattern)


@frozen
class NotUnderstood:
    """A command line that was refused, and the reason."""

    reason: str


_SETS = regex(r"[A-Za-z_][A-Za-z0-9_]*=")
# Not `\s`: to bash, a form feed or a no-break space is part of a word.
# Whitespace, and a comment: from `#` at the beginning of a word to the end of the line, which no backslash continues.
_BLANK = regex(r"[ \t]*(?:#[^\n]*)?")
_BLANK_LINES = regex(r"(?:[ \t\n]|#[^\n]*)*")
# `&>` begins a redirection. The ends of a `case` branch (`;;`, `;&`, `;;&`) are matched only to be refused as a whole: as
# `;` and `&` they would look like ordinary operators.
_OPERATOR = regex(r"&&|\|\||\|&|;;&?|;&|[;|\n]|&(?![>])")
# One digit at most: a longer descriptor is left to `word`, which refuses it.
_REDIRECT = regex(r"([0-9]?)(<<<|<<-?|<>|<&|>&|>>|>\||<|>)|(&>>|&>)")
# A whole word without special characters, with the whitespace before it, like most words. It must not precede `<` or `>`,
# because digits there are a descriptor.
_LETTERS = r"[A-Za-z0-9_\-./:@%+,^][A-Za-z0-9_\-./:=@%+,^]*"
_WORD_ENDS = r"(?=[ \t\n;|&]|\Z)"
_SIMPLE = regex(rf"""[ \t]*(?:({_LETTERS})|'([^']*)'|"([^"$`\\]*)"){_WORD_ENDS}""")
# As many consecutive words of this kind as possible.
_SIMPLE_RUN = regex(rf"""(?:[ \t]*(?:{_LETTERS}|'[^']*'|"[^"$`\\]*"){_WORD_ENDS})+""")

_UNREADABLE = {
    "<<": "a here-document",
    "<<-": "a here-document",
    "<<<": "a here-string",
    "<>": "a file that is opened for reading and writing",
}
_REFUSED = {
    "$": "it contains an expansion ($)",
    "`": "it contains a command substitution (`)",
    "(": "it contains a subshell, a function or an array",
    ")": "it contains a subshell, a function or an array",
    "{": "it contains a group or a brace expansion",
    "}": "it contains a group or a brace expansion",
    '"': "a double quote is not closed, or contains an expansion",
    "'": "a single quote is not closed",
    "\\": "it contains a line continuation",
}


def parse_command(text: str) -> CommandLine | NotUnderstood:
    """Parse a line into the commands that bash would run, or return the reason why these cannot be determined."""
    # Checked before any pattern runs over the text.
    if len(text) > MAX_COMMAND_CHARS:
        return NotUnderstood(f"it has {len(text)} characters, more than {MAX_COMMAND_CHARS}")
    # Before anything else, because a person approves what the screen shows: bidirectional controls (CVE-2021-42574) and
    # escape sequences show a different line from the one that bash runs.
    hidden = hidden_character(text)
    if hidden:
        return NotUnderstood(hidden)
    return _ShellReader(text).read()


# Including the carriage return, which is a letter to bash and whitespace to other parsers.
_CONTROL = regex(r"[\x00-\x08\x0b-\x1f\x7f]")


def hidden_character(text: str) -> str | None:
    """The reason to refuse a line that contains an invisible or terminal-controlling character; None if it has none."""
    control = _CONTROL.search(text)
    if control:
        return f"it contains the control character {control[0]!r}"
    # The usual case, without looking at each character.
    if text.isascii():
        return None
    for letter in text:
        if letter > "\x7f" and not is_plain(letter):
            return f"it contains the invisible or unusual character U+{ord(letter):04X}"
    return None


class _ShellReader:
    """A reader of one command line, in one pass; setting `refusal` ends it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.refusal: str | None = None
        self.commands: list[SimpleCommand] = []
        self.in_background = self.has_comment = False

    def read(self) -> CommandLine | NotUnderstood:
        joined_by = ""
        while self.refusal is None:
            # A newline ends a command, but after an operator, and before the first command, bash skips any number of
            # them (POSIX XCU 2.10.2, `linebreak`).
            self.skip_blank(newlines=joined_by != "" or not self.commands)
            if self.at == len(self.text):
                break
            command = self.command(joined_by)
            if command is None:
                break
            self.commands.append(command)
            joined_by = self.operator()
        if self.refusal is None:
            self.refusal = self.unfinished(joined_by)
        if self.refusal is not None:
            return NotUnderstood(self.refusal)
        return CommandLine(tuple(self.commands), self.in_background, self.has_comment)

    def unfinished(self, joined_by: str) -> str | None:
        if not self.commands:
            return "it contains no command"
        return f"it ends with {joined_by!r}" if joined_by in ("&&", "||", "|", "|&") else None

    def skip_blank(self, *, newlines: bool) -> None:
        """Skip whitespace and comments before a word."""
        match = (_BLANK_LINES if newlines else _BLANK).match(self.text, self.at)
        if match:
            self.at = match.end()
            self.has_comment = self.has_comment or "#" in match[0]

    def operator(self) -> str:
        """Read the operator after a command; return it, empty at the end of the line."""
        match = _OPERATOR.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        if match[0][:2] in (";;", ";&"):
            self.refusal = f"it contains {match[0]!r}"
        self.in_background = self.in_background or match[0] == "&"
        return match[0]

    def command(self, joined_by: str) -> SimpleCommand | None:
        argv: list[str] = []
        redirects: list[Redirect] = []
        globs: list[int] = []
        assignments: list[str] = []
        while self.refusal is None:
            # The fast path for the words of nearly every command; whatever it does not match is read piece by piece
            # below.
            run = _SIMPLE_RUN.match(self.text, self.at)
            if run:
                self.at = run.end()
                forms = _SIMPLE.findall(run[0])
                # `forms[0][0]` is set only for an unquoted word: to bash, `'A=1'` is the name of a program, not an
                # assignment.
                while forms and not argv and "=" in forms[0][0] and _SETS.match(forms[0][0]):
                    assignments.append(forms.pop(0)[0])
                words = ["".join(form) for form in forms]
                if words and not argv:
                    self.check_first(words[0], False)
                argv += words
                continue
            self.skip_blank(newlines=False)
            if self.at == len(self.text) or _OPERATOR.match(self.text, self.at):
                break
            redirect = _REDIRECT.match(self.text, self.at)
            if redirect:
                self.redirect(redirect, redirects)
                continue
            # Checked before `word` removes the quotes, for the same reason.
            is_assignment = not argv and _SETS.match(self.text, self.at) is not None
            word, is_glob = self.word()
            # A value with a wildcard stays in `argv`, where `check_first` refuses it.
            if is_assignment and not is_glob:
                assignments.append(word)
                continue
            if is_glob:
                globs.append(len(argv))
            argv.append(word)
            if len(argv) == 1:
                self.check_first(word, is_glob)
        if self.refusal is None and not argv:
            # Alone, an assignment outlives its command: it can redirect the next one (`PATH=.; git status`).
            self.refusal = "a variable is set" if assignments else "a command is missing"
        if self.refusal is not None:
            return None
        return SimpleCommand(tuple(argv), tuple(redirects), frozenset(globs), joined_by, tuple(assignments))

    def check_first(self, word: str, is_glob: bool) -> None:
        if is_glob:
            self.refusal = "the name of a program is a wildcard"
        elif word in RESERVED_WORDS:
            self.refusal = f"it contains the shell keyword {word!r}"
        # An assignment whose name or value has quotes, such as `A"B"=1`: bash may take it for one or for a program.
        elif "=" in word:
            self.refusal = "a variable is set"
        # `%1` is a job of the shell, which continues whatever was stopped.
        elif not word or word[0] in "%-":
            self.refusal = f"{word!r} is not the name of a program"

    def redirect(self, match: re.Match[str], redirects: list[Redirect]) -> None:
        operator = match[3] or match[2]
        self.at = match.end()
        # The text of a here-document is not on this line, and `<>` opens a file for writing although it looks like
        # reading.
        if operator in ("<<", "<<-", "<<<", "<>"):
            self.refusal = f"it contains {_UNREADABLE[operator]} ({operator})"
            return
        target, is_glob = self.target(operator)
        if self.refusal is not None:
            return
        # `>&word` writes both streams to a file of that name, and `>&2-` moves a descriptor (Bash manual, 3.6.4 and
        # 3.6.9).
        if operator in (">&", "<&") and not re.fullmatch("[0-9]", target):
            self.refusal = f"{operator}{target} is not a copy of a descriptor"
        elif is_glob or not target:
            self.refusal = "the target of a redirection is a wildcard or empty"
        redirects.append(Redirect(operator, target))

    def target(self, operator: str) -> tuple[str, bool]:
        """Read the word that a redirection names; return it, and whether it is a wildcard."""
        simple = _SIMPLE.match(self.text, self.at)
        if simple:
            self.at = simple.end()
            return "".join(simple.groups("")), False
        self.skip_blank(newlines=False)
        # `> >f` is an error in bash, and `>;` has no target: neither may be taken for a redirection to the next word.
        if self.at == len(self.text) or _OPERATOR.match(self.text, self.at) or _REDIRECT.match(self.text, self.at):
            self.refusal = f"the target of {operator!r} is missing or not plain"
            return "", False
        return self.word()

    def word(self) -> tuple[str, bool]:
        """Read the next word; return it without its quotes, and whether it is a wildcard."""
        text = self.text
        parts: list[str] = []
        lead, has_mark = "", False
        plain_glob = quoted_glob = False
        while self.at < len(text):
            piece, kind = self.piece()
            if kind == "end":
                break
            lead = lead or piece[:1]
            # Also after `=` and `:`: outside POSIX mode bash expands an argument that looks like an assignment (`dd
            # of=~/x`; Bash manual, 3.5.2).
            if kind == "plain" and "~" in piece and (lead == "~" or has_mark or re.search(r"[:=].*~", piece)):
                self.refusal = "it contains a home folder (~)"
                break
            has_mark = has_mark or ":" in piece or "=" in piece
            plain_glob = plain_glob or kind == "glob"
            quoted_glob = quoted_glob or (kind == "quoted" and re.search(r"[*?\[\]\\]", piece) is not None)
            parts.append(piece)
        word = "".join(parts)
        # Bash reads `12>f` as descriptor 12, and not as an argument 12.
        if word.isdigit() and text[self.at : self.at + 1] in ("<", ">"):
            self.refusal = self.refusal or f"the descriptor {word} is redirected"
        # Alone, `[` is the command `test`; as a wildcard, it matches no file but one of that name.
        if plain_glob and word == "[":
            plain_glob = False
        # `argv` no longer shows which of the letters was quoted, so it would be unclear what the word matches.
        if plain_glob and quoted_glob:
            self.refusal = self.refusal or "a word mixes a wildcard with a quoted one"
        return word, plain_glob

    def piece(self) -> tuple[str, str]:
        text = self.text
        for pattern, kind in _PIECES:
            match = pattern.match(text, self.at)
            if match:
                self.at = match.end()
                if kind == "double":
                    return _IN_DOUBLE.sub(r"\1", match[1]), "quoted"
                return match[match.lastindex or 0], kind
        # No pattern fits here: the character ends the word, belongs to another script, or has a meaning to bash.
        letter = text[self.at]
        if letter in " \t\n;&|<>":
            return "", "end"
        # Letters, marks and digits of other scripts, which no locale counts as whitespace or operators.
        if letter > "\x7f" and unicodedata.category(letter)[0] in "LMN":
            self.at += 1
            return letter, "letter"
        self.refusal = self.refusal or _REFUSED.get(letter) or f"it contains the unquoted character {letter!r}"
        return "", "end"


# One piece of a word. The plain characters are ASCII without those that are special to bash; `#` and `~` are judged by
# their position. `!` and `^` are plain, since only an interactive shell expands its history (Bash manual, 9.3), and so is
# `{}`, which is not a brace expansion (3.5.1) and is needed for `find -exec`.
_PIECES = (
    (regex(r"(?:[A-Za-z0-9_\-./:=@%+,^!\]#~]|\{\})+"), "plain"),
    (regex(r"'([^']*)'"), "quoted"),
    (regex(r'"((?:[^"$`\\]|\\[^\n])*)"'), "double"),
    (regex(r"\\([^\n])"), "quoted"),
    (regex(r"[*?\[]+"), "glob"),
)
# Between double quotes a backslash is kept unless one of these follows (POSIX XCU 2.2.3): `"\d"` has two letters. `$` and a
# backquote without one never get here, and neither does a line continuation.
_IN_DOUBLE = regex(r'\\(["\\$`])')
