"""Rewrite a compound command line as a plain one that runs at least the same commands.

Groups, `if`, `for` over words that are written out, `while read`, `[[ ]]`, here-strings and here-documents, braces,
`<(...)`, variables that the line sets, `$HOME`, `$PWD` and, where a text is only printed or compared, variables and the
output of commands are replaced, and every command is listed, whether or not its condition holds. The result is read by
`parse_command`, which refuses everything else. It is used only to permit: rules that forbid judge the line itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from ..ground.frozen import frozen
from ..ground.patterns import regex
from .programs import PRINT_WORDS, compares_texts, hazard, read_only
from .shell import IS_GLOB, MAX_COMMAND_CHARS, CommandLine, hidden_character, parse_command

_MAX_LOOP_WORDS = 20
# A backslash at the end of a line, after a space, continues the command.
_BLANK = regex(r"(?:[ \t]+(?:\\\n[ \t]*)*|(?<![^\s;|()])#[^\n]*)+")
_BLANK_LINES = regex(r"(?:[ \t\n]+|(?<=[ \t])\\\n|(?<![^\s;|()])#[^\n]*)+")
_END = regex(r"&&|\|\|?|;(?![;&])|\n")
_REDIRECT = regex(r"[0-9]?(?:>>|>&(?=[0-9])|>\||[<>](?![<>&(]))|&>>?")
_VARIABLE = r"\$(?:[A-Za-z_]\w*+|\{[A-Za-z_]\w*\}|\?)"
_ARITHMETIC = r"\$\(\([0-9 +*/%-]*\)\)"
# A command whose output is used; its quotes contain nothing that could hide where it ends.
_COMMAND = rf"(?:[^()'\"\\$`\n#]|'[^'\"()\\`\n]*'|\"(?:[^\"()\\$`\n]|{_VARIABLE})*\"|{_VARIABLE})*"
_OUTPUT = rf"{_ARITHMETIC}|\$\((?!\(){_COMMAND}\)"
_DOUBLE = rf"\"(?>(?:[^\"`\\$]|{_VARIABLE}|{_OUTPUT})*)\""
# A word in pieces: plain letters, single quotes, double quotes without escapes, a variable, an escaped letter, `{}`.
_WORD = regex(
    rf"(?:[A-Za-z0-9_./:=@%+,^~*?\[\]!#-]+|'[^']*'|{_DOUBLE}|{_VARIABLE}|{_ARITHMETIC}"
    r"|\\[^\n]|\{\})+"
)
_PIECE = regex(rf"'[^']*'|{_DOUBLE}|\\[^\n]|{_VARIABLE}|{_ARITHMETIC}|[^'\"\\$]+")
_WRITTEN_OUTPUT = regex(_OUTPUT)
_ASSIGNED = regex(rf"([A-Za-z_]\w*)=(?=[^\s;|&()])(?:(\"?)({_OUTPUT})\2(?=[\s;)&|]|\Z))?", re.ASCII)
# The last word of a command: the output of another one, whose words become arguments.
_LISTED = regex(rf"(?<!\S)\$\((?!\()({_COMMAND})\)(?=[ \t]*(?:[;\n|)]|&&|\Z))")
_FED_BY = regex(rf"(?<!\S)<\(({_COMMAND})\)(?=[\s;|)]|\Z)")
_IN_BRACES = r"[A-Za-z0-9_./*?-]*"
_BRACED = regex(rf"(?<!\S)(?=\S*\{{)(?:{_IN_BRACES}\{{{_IN_BRACES}(?:,{_IN_BRACES})+\}})+{_IN_BRACES}(?=[\s;|&)]|\Z)")
_SOURCE = regex(r"[ \t]*<(?![<>&(])")
_HERE_STRING = regex(r"<<<[ \t]*")
_HERE_DOCUMENT = regex(r"<<(-?)[ \t]*(?:([A-Za-z_]\w*)|'([A-Za-z_]\w*)'|\"([A-Za-z_]\w*)\")(?=[ \t\n;|&>])", re.ASCII)
# The rest of the line on which a here-document begins; it contains nothing that could hide where the line ends.
_REST_OF_LINE = regex(r"[\w ./:=@%+,;|&>-]*\n", re.ASCII)
_OF_ENVIRONMENT = regex(r"[A-Z_][A-Z0-9_]*")
# Variables whose values are words of the line itself, or folders: unquoted, a wildcard in them lists any folder.
_OF_LINE = regex(r"_|BASH_\w*|(?:OLD)?PWD|DIRSTACK")
_NUMBER = r"(0|[1-9][0-9]{0,2})"
_RANGE = regex(rf"(?:\{{{_NUMBER}\.\.{_NUMBER}\}}|\$\(seq (?:{_NUMBER} )?{_NUMBER}\))(?=[\s;])")
_NAMED = regex(r"\$(?:\{(\w+)\}|(\w+|\?))")
_ASSIGNS = regex(r"[A-Za-z_]\w*=")
# A variable that no program reads and to which the shell gives no meaning.
_LOOP_NAME = regex(r"[a-z][a-z0-9]{0,15}")
# Script variables that no read-only program takes as a setting, even if they are exported.
_SCRIPT_NAME = regex(r"BASE|BRANCH|COUNT|DIR|FILE|FILES|HASH|N|NAME|OUT|RESULT|ROOT|SHA|SRC|TARGET|TOTAL|VERSION")
_PLAIN_VALUE = regex(r"[A-Za-z0-9_./:@%+,-]+")
_QUOTED_VALUE = regex(r"[^\"`\\$!]*")
_HARMLESS_REDIRECTS = regex(r"(?:[ \t]*(?:[12&]?>[ \t]*/dev/null|2>&1)(?=[\s;|&)]|\Z))*[ \t]*")
_TESTS = regex(r"-[defhLrswx]")
_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
# Programs that read a file of any kind and do nothing else with it: a pipe in its place is read, too.
_READ_ANY = frozenset({"cat", "cmp", "comm", "diff", "grep", "head", "join", "paste", "sort", "tail", "wc"})
# Programs that list files.
_LIST_FILES = frozenset({"egrep", "fd", "fdfind", "fgrep", "find", "grep", "ls", "rg"})
_INTEGER = regex(r"-?\d{1,9}")
# Any expansion in a here-document, and those of environment variables.
_EXPANDED = regex(r"\$(?:\{[^}]*\}?|[A-Za-z0-9_]+|[@*#?!$(\[-])")
_VALUE_OF_ENVIRONMENT = regex(r"\$(?:[A-Z_][A-Z0-9_]*|\{[A-Z_][A-Z0-9_]*\})", re.ASCII)
_TESTS_TEXTS = frozenset({"[", "[[", "test"})
# Programs that only print or compare the output of a command.
_TAKE_TEXTS = _TESTS_TEXTS | {"echo"}
_LEAVE_INPUT = PRINT_WORDS | _TESTS_TEXTS | {"break", "continue", "exit", "false", "true"}
_QUOTES = regex(r"[\"'\\]")
_MOVES = regex(r"\b(?:cd|pushd|popd|dirs)\b")
# The command that runs another one for each name.
_EACH = "xargs -n1"
# Represents a pipe that a command of the line, or the shell with an input text, fills.
_PIPE = "/dev/null"
_MAX_BRACED = 64
_MAX_NESTED = 20
_MAX_STEPS = 2_000


class _Refused(Exception):
    """The line contains something that is not rewritten."""


@frozen
class _LoopValue:
    """The value of a variable: a text, a wildcard as written (each of its matches is one value), or an unknown line of
    input or word of output (of the pipeline `source`, if set).
    """

    text: str
    is_glob: bool = False
    is_unknown: bool = False
    source: str = ""


class _UnfinishedCommand:
    """A simple command as far as it is read. `pieces` are its text, `words` its words without redirections, `feeds` the
    pipeline whose output `xargs` appends to them. `is_target` is true if the target of a redirection is next, `is_fed` if
    the line itself contains the command's input.
    """

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.words: list[str] = []
        self.program = self.feeds = ""
        self.is_target = self.is_fed = False

    def accepts_texts_of(self) -> str:
        """The program to whose rules the variables in the next word are held; "" for a redirection's target."""
        if self.is_target:
            return ""
        # `printf` only prints what follows its format.
        return "echo" if self.program == "printf" and len(self.words) > 1 else self.program

    def add(self, word: str, replaced: str) -> None:
        """Append a word, `replaced` with its variables replaced; the first that is not an assignment names the program."""
        self.pieces.append(replaced)
        if not (self.program or self.is_target or _ASSIGNS.match(word)):
            self.program = word
        if self.program and not self.is_target:
            self.words.append(replaced)
        self.is_target = False

    def tested(self) -> list[str]:
        """The arguments, without the bracket that closes `[`."""
        return self.words[1:-1] if self.program == "[" and self.words[-1] == "]" else self.words[1:]

    def as_written(self) -> str:
        """The command's text, behind the pipeline that feeds it; refused if the command may run its input or expand
        wildcards in it.
        """
        command = "".join(self.pieces).strip()
        # A rule about `bash` alone was not written for this text.
        if self.is_fed and (self.feeds or _may_run_its_input(command)):
            raise _Refused
        if not self.feeds:
            return command
        if self.program in PRINT_WORDS or not _PLAIN_VALUE.fullmatch(self.program):
            raise _Refused  # the shell also expands the wildcards in them
        return f"{self.feeds} {command}"  # xargs appends the words of that output


def read_compound(text: str, variables: Mapping[str, str]) -> CommandLine | None:
    """Parse a compound line; return None if any of its syntax is not known to be harmless.

    `variables` are the values of those that may be used, unless the line also names them without `$` and so may change them.
    """
    if len(text) > MAX_COMMAND_CHARS or hidden_character(text):
        return None
    values = {
        name: _LoopValue(value)
        for name, value in variables.items()
        if _PLAIN_VALUE.fullmatch(value) and not re.search(rf"(?<![\w$])(?<!\$\{{){name}(?!\w)", text)
    }
    reader = _CompoundReader(text, values)
    try:
        reader.commands_until(frozenset())
    except _Refused:
        return None
    line = parse_command("\n".join(reader.commands))
    if not isinstance(line, CommandLine):
        return None
    # If such a variable is exported already, whatever follows has it in its environment.
    only_reads = not reader.sets_script_names or all(
        command.argv[0] == "cd" or read_only(command.argv, trusted=True) is not None for command in line.commands
    )
    return line if only_reads else None


class _CompoundReader:
    """One pass over a line, which collects simple commands as text; the body of a loop is read once for each word."""

    def __init__(self, text: str, values: dict[str, _LoopValue]) -> None:
        self.text, self.values = text, values
        self.at = self.size = self.depth = self.steps = 0
        self.commands: list[str] = []
        self.sets_script_names = self.has_unknown = False
        self.source = ""

    def commands_until(self, closers: frozenset[str]) -> str:
        """Read commands up to a closing word, and return it; empty at the end of the line."""
        joined_by, is_empty, is_single = "", True, False
        while True:
            self.skip(newlines=True)
            word = self.peek()
            if self.at == len(self.text) or word in closers:
                if joined_by not in ("", ";", "\n") or (closers and (is_empty or not word)):
                    raise _Refused
                self.at += len(word)
                return word
            if word in ("!", "time") and joined_by[:1] == "|" and joined_by != "||":
                raise _Refused  # inside a pipeline, it is the program of this name, which runs the next word
            is_empty = False
            before = len(self.commands)
            self.source = self.commands[-1] if joined_by == "|" and is_single else ""
            if not (joined_by in ("", ";", "\n") and self.assignment()):
                self.command(word)
            if joined_by == "|" and is_single and len(self.commands) == before + 1:
                self.commands[-2:] = [" | ".join(self.commands[-2:])]
            is_single = len(self.commands) == before + (joined_by != "|")
            self.skip(newlines=False)
            operator = _END.match(self.text, self.at)
            joined_by = operator[0] if operator else ""
            self.at += len(joined_by)

    def command(self, word: str) -> None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise _Refused  # the words of nested loops multiply
        if word not in ("!", "time", "if", "for", "while", "{", "(", "[["):
            self.simple()
            return
        self.depth += 1
        if self.depth > _MAX_NESTED:
            raise _Refused
        self.compound(word)
        self.depth -= 1

    def compound(self, word: str) -> None:
        match word:
            case "!" | "time":
                self.at += len(word)
                self.skip(newlines=False)
                self.command(self.peek())
                return
            case "if":
                self.at += 2
                self.commands_until(frozenset({"then"}))
                while (closed := self.commands_until(frozenset({"elif", "else", "fi"}))) != "fi":
                    if closed == "elif":
                        self.commands_until(frozenset({"then"}))
            case "for":
                self.loop()
            case "while":
                self.read_lines()
            case "[[":
                self.conditional()
            case "{":
                self.at += 1
                self.commands_until(frozenset({"}"}))
            case _:
                self.at += 1
                if self.text.startswith("(", self.at):
                    raise _Refused  # arithmetic, which evaluates the values of variables as code
                self.commands_until(frozenset({")"}))
        redirects = _matched(_HARMLESS_REDIRECTS.match(self.text, self.at))
        self.at = redirects.end()
        if "&1" in redirects[0]:
            self.add("true")  # so that no single command prints all of the output, which may contain error texts
        if self.is_in_command():
            raise _Refused

    def assignment(self) -> bool:
        """Read a command that only sets a variable to a text or the output of a command; return False for any other."""
        match = _ASSIGNED.match(self.text, self.at)
        if match is None:
            return False
        name, _, output = match.groups()
        began, self.at = self.at, match.end()
        word = "" if output else self.next_word()
        rest = self.text[:began] + self.text[self.at :]
        self.skip(newlines=False)
        operator = _END.match(self.text, self.at)
        if (self.at < len(self.text) and operator is None) or (operator is not None and operator[0] == "|"):
            self.at = began  # it is set for one program, or in another process
            return False
        is_script_name = _SCRIPT_NAME.fullmatch(name) is not None
        # Inside a condition or loop it may not get set, and where its name appears without `$` the line could set it again.
        is_named = re.search(rf"(?<![\w$-])(?<!\$\{{){name}(?!\w)", rest)
        if self.depth or name in self.values or is_named or not (is_script_name or _LOOP_NAME.fullmatch(name)):
            raise _Refused
        self.sets_script_names = self.sets_script_names or is_script_name
        if output:
            value = _LoopValue(_WRITTEN_OUTPUT.sub(self.printed, output), is_unknown=True)
        else:
            value = _value_of(self.substituted(word, ""))
        if value.is_glob:
            raise _Refused
        self.values[name] = value
        return True

    def conditional(self) -> None:
        """Read `[[ ... ]]`: tests of files, which are listed, and comparisons of texts."""
        self.at += 2
        words: list[str] = []
        self.has_unknown = False
        word = ""
        while word != "]]":
            self.skip(newlines=False)
            is_joined = self.text.startswith(("&&", "||"), self.at)
            self.at += 2 if is_joined else 0
            word = "&&" if is_joined else self.substituted(self.next_word(), "[[")
            if word in ("&&", "]]"):
                self.add(self.tested(words[1:] if words[:1] == ["!"] else words))
                words, self.has_unknown = [], False
            else:
                words.append(word)

    def tested(self, words: list[str]) -> str:
        """A command that reads the same files as one test between double brackets."""
        # Unlike `[`, they evaluate what they compare as numbers, and so run a command in it.
        if len(words) == 3 and words[1] in _COMPARES_NUMBERS:
            if self.has_unknown or not (_INTEGER.fullmatch(words[0]) and _INTEGER.fullmatch(words[2])):
                raise _Refused
            return "true"
        if compares_texts(words) or (len(words) == 1 and not words[0].startswith("-")):
            return "true"
        if len(words) != 2 or not _TESTS.fullmatch(words[0]) or IS_GLOB.search(words[1]) or self.has_unknown:
            raise _Refused
        return f"[ {words[0]} {words[1]} ]"

    def loop(self) -> None:
        self.at += len("for")
        name, keyword = self.next_word(), self.next_word()
        self.skip(newlines=False)
        if not _LOOP_NAME.fullmatch(name) or keyword != "in" or name in self.values:
            raise _Refused
        words: list[str] = []
        listed = None if _RANGE.match(self.text, self.at) else _LISTED.match(self.text, self.at)
        while listed is None and self.at < len(self.text) and self.text[self.at] not in ";\n":
            self.skip(newlines=False)
            numbers = _RANGE.match(self.text, self.at)
            if numbers is not None:
                words += _numbers(*numbers.groups())
                self.at = numbers.end()
            else:
                words.append(self.substituted(self.next_word(), ""))
            self.skip(newlines=False)
        if listed is not None:
            self.at = listed.end()
            self.skip(newlines=False)
        if self.text[self.at : self.at + 1] not in (";", "\n"):
            raise _Refused
        self.at += 1
        self.skip(newlines=True)
        values = [_value_of(word) for word in words]
        if listed is not None:
            values = [_LoopValue("x", is_unknown=True, source=self.pipeline(listed[1]))]
        if self.next_word() != "do" or not values or len(values) > _MAX_LOOP_WORDS:
            raise _Refused
        if any(value.is_glob for value in values):
            self.add(f"echo {' '.join(words)}")  # the loop itself lists the folder
        body = self.at
        for value in values:
            self.at, self.values[name] = body, value
            self.commands_until(frozenset({"done"}))
        if any(value.is_glob or value.is_unknown for value in values):
            self.refuse_moves(body)
        del self.values[name]

    def read_lines(self) -> None:
        """Read a `while read` loop, over the lines of its input."""
        self.at += len("while")
        words = [self.next_word(), self.next_word()]
        if words[0] == "IFS=":
            words = [words[1], self.next_word()]
        if words[1] == "-r":
            words[1] = self.next_word()
        self.skip(newlines=False)
        if words[0] != "read" or not _LOOP_NAME.fullmatch(words[1]) or words[1] in self.values:
            raise _Refused
        if self.text[self.at : self.at + 1] not in (";", "\n"):
            raise _Refused
        self.at += 1
        self.skip(newlines=True)
        if self.next_word() != "do":
            raise _Refused
        body, before, listing = self.at, len(self.commands), self.source
        self.values[words[1]] = _LoopValue("x", is_unknown=True, source=listing)
        self.commands_until(frozenset({"done"}))
        self.refuse_moves(body)
        # A command in the loop could read the names, too, and leave only part of one for the loop.
        if listing and not all(_leaves_input(each, listing) for each in self.commands[before:]):
            raise _Refused
        del self.values[words[1]]
        source = _SOURCE.match(self.text, self.at)
        if source is not None:
            if listing:
                raise _Refused  # the names are read from this file instead
            self.at = source.end()
            self.add(f"cat < {self.next_word()}")

    def refuse_moves(self, body: int) -> None:
        """Refuse a loop whose body, from position `body` on, may change the folder: it is read once, for the first folder
        only.
        """
        if may_move(self.text[body : self.at]):
            raise _Refused

    def simple(self) -> None:
        """Read one simple command, as written except for its variables."""
        command = _UnfinishedCommand()
        self.has_unknown = False
        while self.is_in_command() and not command.feeds:
            if self.text.startswith("<<", self.at):
                self.input_text(command)
            elif not (self.listed_words(command) or self.blank_or_redirect(command)):
                self.word(command)
        if self.has_unknown and command.program in ("[", "test") and not compares_texts(command.tested()):
            raise _Refused  # it could be the name of a file
        self.add(command.as_written())

    def is_in_command(self) -> bool:
        """Whether the simple command continues here."""
        return self.at < len(self.text) and self.text[self.at] != ")" and not _END.match(self.text, self.at)

    def input_text(self, command: _UnfinishedCommand) -> None:
        """Read a here-string or here-document as a redirection from a pipe."""
        if self.text[self.at - 1].isdigit() or command.is_target:
            raise _Refused
        self.skip_input_text()
        command.is_fed = True
        command.pieces.append(f" < {_PIPE} ")

    def listed_words(self, command: _UnfinishedCommand) -> bool:
        """Read an argument that stands for other words: braces, `<(...)` or listed files; return False if none is next."""
        if not command.program or command.is_target:
            return False
        stand_ins = self.stand_ins(command.program)
        if stand_ins:
            command.words += stand_ins
            command.pieces.append(" ".join(stand_ins))
        else:
            command.feeds = self.feeding_pipeline(command.program)
        return bool(stand_ins or command.feeds)

    def blank_or_redirect(self, command: _UnfinishedCommand) -> bool:
        """Read blanks, comments or a redirection's operator, whose target is then next; return False if none is next."""
        redirect = _REDIRECT.match(self.text, self.at)
        match = _BLANK.match(self.text, self.at) or redirect
        if match is None:
            return False
        command.pieces.append(" " if "#" in match[0] or "\n" in match[0] else match[0])
        command.is_target = command.is_target or redirect is not None
        self.at = match.end()
        return True

    def word(self, command: _UnfinishedCommand) -> None:
        """Read a word that contains no blanks outside quotes: the program, an argument, or the target of a redirection."""
        word = self.next_word()
        # Bash looks for assignments, descriptors (`2>f`) and its own words before it replaces variables.
        is_open_target = command.is_target and word[0] != '"'
        if "$" in word and (is_open_target or not command.program or self.text[self.at : self.at + 1] in ("<", ">")):
            raise _Refused
        command.add(word, self.substituted(word, command.accepts_texts_of()))

    def skip_input_text(self) -> None:
        """Skip a here-string or a here-document, both of which are only input."""
        here = _HERE_STRING.match(self.text, self.at)
        if here is None:
            self.cut_here_document()
            return
        self.at = here.end()
        if "$" in self.next_word():
            raise _Refused

    def cut_here_document(self) -> None:
        """Remove a here-document, whose text is only input, from the line."""
        operator = _matched(_HERE_DOCUMENT.match(self.text, self.at))
        dash, plain, *quoted = operator.groups()
        begin = _matched(_REST_OF_LINE.match(self.text, operator.end())).end()
        tabs = r"\t*" if dash else ""
        last_line = re.compile(f"^{tabs}{plain or quoted[0] or quoted[1]}$", re.MULTILINE)
        end = _matched(last_line.search(self.text, begin))
        # A loop would read it again, and bash expands it unless its delimiter is quoted.
        if self.depth or (plain and not _only_prints(self.text[begin : end.start()])):
            raise _Refused
        self.text = self.text[:begin] + self.text[end.end() + 1 :]
        self.at = operator.end()

    def substituted(self, word: str, program: str) -> str:
        """Replace the variables in a word with their values, and command substitutions with stand-ins."""
        if "$" not in word:
            return word
        parts: list[str] = []
        for piece in _PIECE.findall(word):
            if piece[0] == "'" or piece[0] == "\\" or "$" not in piece:
                parts.append(piece)
                continue
            if "$(" in piece:
                if program not in _TAKE_TEXTS:
                    raise _Refused
                self.has_unknown = True
                piece = _WRITTEN_OUTPUT.sub(self.printed, piece)
            is_quoted = piece[0] == '"'
            whole = _NAMED.fullmatch(piece[1:-1] if is_quoted else piece)
            value = self.values.get(whole[1] or whole[2]) if whole else None
            if value is not None and value.is_glob and is_quoted and piece == word:
                return value.text
            parts.append(_NAMED.sub(partial(self.inserted, is_quoted, program), piece))
        return "".join(parts)

    def printed(self, match: re.Match[str]) -> str:
        """Return a stand-in for a number, or for the output of a command, after listing that command."""
        if not match[0].startswith("$(("):
            self.nested(match[0][2:-1])
        return "0"

    def stand_ins(self, program: str) -> list[str]:
        """Read braces, or a `<(...)` that the program reads from; return the words that replace it, or an empty list."""
        fed_by = _FED_BY.match(self.text, self.at) if program in _READ_ANY else None
        if fed_by is not None:
            self.at = fed_by.end()
            self.nested(fed_by[1])
            return [_PIPE]
        braced = _BRACED.match(self.text, self.at)
        self.at = braced.end() if braced is not None else self.at
        return [] if braced is None else _expanded(braced[0])

    def feeding_pipeline(self, program: str) -> str:
        """Read the last words of a command, if they are listed files, and return the pipeline to put before it, or ""."""
        listed = _LISTED.match(self.text, self.at)
        if listed is not None:
            self.at = listed.end()
            return f"{self.pipeline(listed[1])} | xargs"
        word = _WORD.match(self.text, self.at)
        named = _NAMED.fullmatch(word[0].strip('"')) if word is not None else None
        value = self.values.get(named[1] or named[2]) if named is not None else None
        if word is None or value is None or not value.source or program in _TAKE_TEXTS:
            return ""
        self.at = word.end()
        self.skip(newlines=False)
        if self.is_in_command():
            raise _Refused
        return f"{value.source} | {_EACH}"

    def pipeline(self, text: str) -> str:
        """Read the pipeline of a substitution, which must list files."""
        inner = _CompoundReader(text, {})
        inner.depth, inner.steps = self.depth + 1, self.steps
        inner.commands_until(frozenset())
        self.steps = inner.steps
        if len(inner.commands) != 1 or inner.commands[0].partition(" ")[0] not in _LIST_FILES:
            raise _Refused  # a loop over any other output may be endless
        return inner.commands[0]

    def nested(self, text: str) -> None:
        """List the commands of a substitution, which runs in a separate process."""
        inner = _CompoundReader(text, self.values)
        inner.depth, inner.steps = self.depth + 1, self.steps
        if inner.depth > _MAX_NESTED:
            raise _Refused
        inner.commands_until(frozenset())
        self.steps = inner.steps
        for command in inner.commands:
            self.add(command)

    def inserted(self, is_quoted: bool, program: str, match: re.Match[str]) -> str:
        """The value of a variable inside a word, or a stand-in where a text is only printed or compared. A wildcard is
        accepted only in double quotes after `echo`, which reads no file.
        """
        name = match[1] or match[2]
        if name == "?" and program == "echo":
            return "0"  # a number
        value = self.values.get(name)
        is_from_elsewhere = value.is_unknown if value is not None else _OF_ENVIRONMENT.fullmatch(name) is not None
        if program in _TESTS_TEXTS and is_quoted and is_from_elsewhere:
            self.has_unknown = True
            return "x"
        if value is None and program == "echo" and _OF_ENVIRONMENT.fullmatch(name):
            if not is_quoted and _OF_LINE.fullmatch(name):
                raise _Refused
            return "x"  # printenv would print it, too
        if value is None or ((value.is_glob or value.is_unknown) and not (is_quoted and program == "echo")):
            raise _Refused
        if not (_QUOTED_VALUE if is_quoted else _PLAIN_VALUE).fullmatch(value.text):
            raise _Refused
        return value.text

    def add(self, command: str) -> None:
        self.size += len(command) + 1
        # A command without words, or a longer line than is ever judged.
        if not command or self.size > MAX_COMMAND_CHARS:
            raise _Refused
        self.commands.append(command)

    def skip(self, *, newlines: bool) -> None:
        """Skip whitespace and comments."""
        while match := (_BLANK_LINES if newlines else _BLANK).match(self.text, self.at):
            self.at = match.end()

    def peek(self) -> str:
        """The next word as written, or a bracket."""
        if self.at < len(self.text) and self.text[self.at] in "(){}" and not self.text.startswith("{}", self.at):
            is_word = self.text[self.at] in "()" or re.match(r"[\s;|)]|\Z", self.text[self.at + 1 : self.at + 2])
            return self.text[self.at] if is_word else ""
        match = _WORD.match(self.text, self.at)
        return match[0] if match else ""

    def next_word(self) -> str:
        self.skip(newlines=False)
        match = _matched(_WORD.match(self.text, self.at))
        self.at = match.end()
        return match[0]


def _only_prints(document: str) -> bool:
    """Whether bash replaces nothing in a here-document but environment variables."""
    if not {"`", "\\"}.isdisjoint(document):
        return False
    return all(_VALUE_OF_ENVIRONMENT.fullmatch(match[0]) for match in _EXPANDED.finditer(document))


def _expanded(word: str) -> list[str]:
    """The words of a brace expansion, such as `{a,b}.py`."""
    results = [""]
    for piece in re.findall(r"\{[^}]*\}|[^{]+", word):
        choices = piece[1:-1].split(",") if piece[0] == "{" else [piece]
        results = [f"{one}{choice}" for one in results for choice in choices]
        if len(results) > _MAX_BRACED:
            raise _Refused
    if not all(results):
        raise _Refused  # bash drops an empty word
    return results


def may_move(text: str) -> bool:
    """Whether part of a line may change the shell's folder."""
    return _MOVES.search(_QUOTES.sub("", text)) is not None


def _leaves_input(command: str, listing: str) -> bool:
    """Whether it is certain that a pipeline in a loop over the names of a listing does not read these names: it only prints
    or tests, or it reads nothing but the file with the name.
    """
    call = command.removeprefix(f"{listing} | {_EACH} ")
    line = parse_command(call)
    if not isinstance(line, CommandLine):
        return False
    argv = line.commands[0].argv
    reads = read_only((*argv, "./a")) if call != command and "-" not in argv else None
    return argv[0] in _LEAVE_INPUT or (reads is not None and reads.paths == ("./a",))


def _may_run_its_input(command: str) -> bool:
    line = parse_command(command)
    return not isinstance(line, CommandLine) or any(hazard(each.argv) is not None for each in line.commands)


def _numbers(first: str | None, last: str | None, start: str | None, end: str | None) -> list[str]:
    """The numbers of `{first..last}` or `$(seq start end)`, cut at one more than a loop may have."""
    if first is None or last is None:
        return [str(one) for one in range(int(start or 1), int(end or 0) + 1)][: _MAX_LOOP_WORDS + 1]
    step = 1 if int(first) <= int(last) else -1
    return [str(one) for one in range(int(first), int(last) + step, step)][: _MAX_LOOP_WORDS + 1]


def _matched(match: re.Match[str] | None) -> re.Match[str]:
    if match is None:
        raise _Refused
    return match


def _value_of(word: str) -> _LoopValue:
    """The value of a word without its quotes; a wildcard stays as written."""
    pieces = _PIECE.findall(word)
    if any(IS_GLOB.search(piece) for piece in pieces if piece[0] not in "'\"\\"):
        return _LoopValue(word, is_glob=True)
    text = "".join(piece[1:-1] if piece[0] in "'\"" else piece[1:] if piece[0] == "\\" else piece for piece in pieces)
    if "~" in word:
        raise _Refused
    return _LoopValue(text)
