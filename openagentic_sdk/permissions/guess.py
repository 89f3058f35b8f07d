"""Over-approximate what a command line could run and touch; used only to forbid.

`loose_words` finds everything that could be a word of a command under some reading of the line. `loose_commands` reads the
line once, much as bash would, with a mark where only bash can determine the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product

from ..ground.frozen import frozen
from ..ground.patterns import regex
from .hold.steps import count_steps
from .shell import MAX_COMMAND_CHARS, RESERVED_WORDS

# The time of some comparisons grows with the square of the length; a longer line is asked about if any rule forbids.
MAX_COMPARED_CHARS = 3 * MAX_COMMAND_CHARS


@frozen
class LooseWord:
    """A word that may be part of a command. `starts` is true if a command could begin here; `open` if it contains an
    expansion that only bash can perform (`$`), so that it could be any word.
    """

    text: str
    starts: bool
    open: bool


_CONTINUED = regex(r"\\\n")
# Unquoted, it expands to whitespace, so that `rm${IFS}x` runs `rm`.
_SEPARATOR_VARIABLE = regex(r"\$\{IFS\b[^}]*\}|\$IFS\b")
_SHORT_SEPARATOR = regex(r"\$IFS\b")
# Places where the separator may differ from its default, whitespace.
_CHANGED_SEPARATOR = regex(r"\$\{IFS[^}\w]|\bIFS\+?=")
_QUOTES = regex(r"\$?[\"']|\\")
# The last alternative is a double quote that never closes: then no later one does, so that nothing is read twice.
_QUOTED = regex(r"""'[^']*'|"(?:[^"\\]|\\.)*"|(").*""", re.DOTALL)
_SINGLE_QUOTED = regex("'[^']*'")
_BLANK = regex(r"\s")


def loose_words(text: str) -> list[LooseWord]:
    """Everything in a line that could be a word of a command, whatever quotes, escapes and braces surround it."""
    continued = text
    # Bash removes a backslash with its line end before it reads words, so `r\` and `m` on the next line are `rm`.
    text = source_text = _CONTINUED.sub("", text)
    # `{}` is what find, xargs and parallel replace with names of files: it could be any word.
    text = _separated(text, " ").replace("`", "$(").replace("{}", "$")
    text = _ANSI_QUOTED.sub(lambda match: _ANSI_ESCAPE.sub(_decoded, match[1]), text)
    # Without quotes, because bash runs `r'm'`, `"rm"` and `\rm` alike.
    bare = _QUOTES.sub("", text)
    words = _split_loosely(bare, _LOOSE)
    if _CHANGED_SEPARATOR.search(source_text):
        words += _split_loosely(_QUOTES.sub("", _separated(source_text, "$")), _LOOSE)
    if "=" in bare:
        # A second reading, with quoted spaces as part of the word: `A="x y" rm z` runs `rm`, after an assignment.
        whole = _QUOTED.sub(_joined, text)
        words += _split_loosely(_QUOTES.sub("", whole), _LOOSE)
    for other in _other_readings(text, bare):
        words += _split_loosely(other, _LOOSE)
    if not {"{", "[", ","}.isdisjoint(bare):
        words += _split_loosely(bare, _IN_LISTS)
    if "#" in text and text is not continued and "\\\n" in continued:
        # A comment ends with its line, whatever precedes the line break.
        words += loose_words(continued.replace("\\\n", "\n"))
    count_steps(3 * len(words))
    return words


def _separated(text: str, separator: str) -> str:
    """Replace each use of the variable `IFS` in a text with a separator."""
    # After the last closing brace no brace is closed any more, and each search for its end would go through the rest.
    end = text.rfind("}") + 1
    return _SEPARATOR_VARIABLE.sub(separator, text[:end]) + _SHORT_SEPARATOR.sub(separator, text[end:])


def _joined(match: re.Match[str]) -> str:
    """Make one word of a quoted text, with `_` for whitespace."""
    if match[1]:
        return '"' + _SINGLE_QUOTED.sub(_joined_words, match[0][1:])
    return _joined_words(match)


def _joined_words(match: re.Match[str]) -> str:
    return _BLANK.sub("_", match[0])


_WORD = regex(r"[^\s;&|()<>]+")
_REDIRECTED = regex(r"(?<![0-9<>])[0-9]*+[<>]++[&|]?[ \t]*[^\s;&|()`<>]+")
# Options with their value in the same word: `-S'rm x'`, and those of env without quotes.
_GLUED_VALUE = regex(r"""(?<!\S)-[A-Za-z]+(?=["'])|(?<!\S)-[A-Za-z]*S(?=\S)""")
_WRITTEN_BLANK = regex(r"(?<!\\)\\+[nt_]")
_WRITTEN_LETTER = regex(r"\\0?(?=[xuU0-7])")


def _other_readings(text: str, bare: str) -> Iterator[str]:
    """Yield the line as it may reach a shell after part of it has been rewritten; `bare` is the line without its quotes."""
    if "=" in bare or ":" in bare:
        # Values after these signs may be programs: `--pager=less`, `core.editor:vi`, `PATH=a:b`.
        yield bare.replace("=", " ").replace(":", " ")
    if "{" in bare:  # expand braces to consecutive words; a range of letters could be any word
        yield _WORD.sub(lambda match: " ".join(_braced_words(match[0])), _LETTER_RANGE.sub("$", bare))
    # A redirection may be anywhere in a command, even between the words of a rule: `git >f push`.
    if "<" in bare or ">" in bare:
        yield _REDIRECTED.sub(" ", bare)
    if _GLUED_VALUE.search(text):
        yield _QUOTES.sub("", _GLUED_VALUE.sub(" ", text))
    # For `printf`, `echo -e` and `sed`, which turn these escapes into characters that a shell may then read.
    if "\\" in text:
        yield _QUOTES.sub("", _WRITTEN_BLANK.sub(" ", text))
        yield _QUOTES.sub("", _ANSI_ESCAPE.sub(_decoded, _WRITTEN_LETTER.sub(r"\\", text)))


# The most consecutive braces that are expanded.
_MAX_BRACES = 6
_BRACES = regex(r"\{([^{}]*)\}")
_LETTER_RANGE = regex(r"\{[A-Za-z]\.\.[A-Za-z](?:\.\.-?[0-9]+)?\}")


def _braced_words(word: str) -> list[str]:
    words = [word]
    for _ in range(_MAX_BRACES):
        wider: list[str] = []
        for one in words:
            braces = _BRACES.search(one)
            parts = braces[1].split(",") if braces else []
            if braces is None or len(parts) < 2:
                wider.append(one)
            else:
                wider += [one[: braces.start()] + part + one[braces.end() :] for part in parts]
        if len(wider) == len(words):
            return words
        # Each brace multiplies the words: 20 pairs in a line would be a million of them.
        if len(wider) * len(word) > 2 * MAX_COMMAND_CHARS:
            break
        words = wider
    # More braces than are expanded may produce anything.
    return [_BRACES.sub("$", one) for one in words]


_LOOSE = regex(r"[;&|()\n{}!]+|[^\s;&|(){}<>!]+")
_IN_LISTS = regex(r"[;&|()\n{},!\[\]]+|[^\s;&|(){}<>,!\[\]]+")
_ASSIGNMENT = regex(r"[A-Za-z_]\w*\+?=(.*)", re.DOTALL)


def _split_loosely(text: str, pattern: re.Pattern[str]) -> list[LooseWord]:
    words: list[LooseWord] = []
    starts = True
    for piece in pattern.findall(text):
        if piece[0] in ";&|()\n{},!":
            starts = True
            continue
        assigned = _ASSIGNMENT.fullmatch(piece)
        if assigned:
            # Not open, even with an expansion: the value runs only where the variable is used, and that word is open.
            words.append(LooseWord(assigned[1], starts, False))
            continue
        words.append(LooseWord(piece, starts, "$" in piece))
        # After `then`, `do`, `!` and the like the next word is a program again.
        starts = starts and piece in RESERVED_WORDS
    return words


_ANSI_QUOTED = regex(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ANSI_ESCAPE = regex(r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)


def _decoded(match: re.Match[str]) -> str:
    hexadecimal = match[1] or match[2] or match[3]
    if hexadecimal:
        return chr(min(int(hexadecimal, 16), 0x10FFFF))
    if match[4]:
        return chr(int(match[4], 8) & 0xFF)
    return {"n": "\n", "t": " ", "r": " ", "a": "", "b": "", "e": ""}.get(match[5], match[5])


# --- one reading, with marks ---------------------------------------------------------------------------------------------

# Replaces the parts of a word that only bash can expand.
UNKNOWN = "\0"
# The most expansions of a word, and the deepest nesting of commands: each level is read once more.
_MAX_READINGS = 50
_MAX_NESTED = 8

_NAME = regex(r"[A-Za-z_]\w*")
_SET = regex(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# A variable in a word that was read: its name between two marks.
_SEEN = regex(r"\x01(\w+)\x01")
_ENDS_COMMAND = "\n;&|()"
_ENDS_WORD = " \t\r<>" + _ENDS_COMMAND
_LITERAL = regex(r"[^\s;&|()<>\\'\"$`~#]+")
# Syntax that gives variables values other than the words in `for` and plain assignments.
_SETTERS = regex(
    r"\+=|=\(|\(\(|\$\{\w+:?=|IFS|REPLY|\[\[|-v"
    r"|\b(?:eval|source|read|mapfile|readarray|declare|typeset|local|export|readonly|let|getopts|exec|wait|set|coproc|function)\b"
)
_BEFORE_A_COMMAND = RESERVED_WORDS - {"for", "select", "case", "[[", "function"}


class _NestedTooDeep(Exception):
    """Commands are nested deeper than people write: the line could be anything."""


def loose_commands(text: str) -> list[tuple[str, ...]]:
    """The simple commands of a line and of everything nested in it, without assignments and reserved words.

    A word whose variables are set in the line itself appears in each of its readings. A word `<` or `>` precedes the file
    of a redirection.
    """
    raw: list[list[str]] = []
    try:
        _scan(text, raw, 0)
    except _NestedTooDeep:
        return [(UNKNOWN, UNKNOWN)]
    values: dict[str, list[str]] = {}
    # Without quotes, because bash runs `e"val"` as `eval`.
    is_known = _SETTERS.search(_QUOTES.sub("", text)) is None
    commands: list[list[str]] = []
    count_steps(8 * len(raw) + 2 * sum(map(len, raw)))
    for words in raw:
        at = 0
        while at < len(words) and (words[at] in _BEFORE_A_COMMAND or _SET.fullmatch(words[at])):
            assigned = _SET.fullmatch(words[at])
            if assigned:
                values.setdefault(assigned[1], []).append(assigned[2])
            at += 1
        row = words[at:]
        if row[:1] == ["for"]:
            is_known = is_known and row[2:3] == ["in"]
            values.setdefault("".join(row[1:2]), []).extend(row[3:])
        elif row:
            # A program whose name is a variable could be `eval` or `read`, which set variables; so could a sourced file
            # (`.`).
            is_known = is_known and not _SEEN.search(row[0]) and UNKNOWN not in row[0] and row[0] != "."
            commands.append(row)
    variables = values if is_known else {}
    return [tuple(reading for word in row for reading in _readings(word, variables)) for row in commands]


def _readings(word: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    if "\x01" not in word:
        return [word]
    names = tuple(dict.fromkeys(_SEEN.findall(word)))
    sets = [values.get(name, ()) for name in names]
    if any(not texts or any(UNKNOWN in text or "\x01" in text for text in texts) for texts in sets):
        return [_SEEN.sub(UNKNOWN, word)]
    combined = list(islice(product(*sets), _MAX_READINGS + 1))
    if len(combined) > _MAX_READINGS:
        return [_SEEN.sub(UNKNOWN, word)]
    readings: list[str] = []
    for way in combined:
        texts = dict(zip(names, way, strict=True))
        count_steps(sum(map(len, way)) * word.count("\x01") // 64 + 1)
        readings.append("".join(texts[part] if odd % 2 else part for odd, part in enumerate(_SEEN.split(word))))
    return readings


def _scan(text: str, commands: list[list[str]], depth: int) -> None:
    """Append the commands of a text to `commands`, each as a list of words. Raises `_NestedTooDeep`."""
    if depth > _MAX_NESTED:
        raise _NestedTooDeep
    row: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter not in _ENDS_WORD and letter != "#":
            word, at = _read_word(text, at, commands, depth)
            row += [one.replace("$", UNKNOWN) for one in _braced_words(word)] if "{" in word else [word]
            continue
        if letter in _ENDS_COMMAND and row:
            commands.append(row)
            row = []
        # `<<`, `>>` count once, and `<(` is a command, whose words follow.
        if letter in "<>" and text[at - 1 : at] not in ("<", ">") and text[at + 1 : at + 2] not in ("<", "("):
            row.append(letter)
        # A comment extends to the end of its line.
        at = _find(text, "\n", at) if letter == "#" else at + 1
    if row:
        commands.append(row)


def _read_word(text: str, at: int, commands: list[list[str]], depth: int) -> tuple[str, int]:
    """Read the word that begins at `at`; return it without quotes, and its end. Add the commands in its expansions."""
    word = ""
    if text[at] == "~":
        # `~name` is another user's home and `~+` the working directory: only bash can determine where they lead.
        word = "~" if text[at + 1 : at + 2] in ("", "/", " ", "\t", "\n", ";", "&", "|", ")") else UNKNOWN
        at += 1
    while at < len(text) and text[at] not in _ENDS_WORD:
        plain = _LITERAL.match(text, at)
        if plain is not None:
            word, at = word + plain[0], plain.end()
        elif text[at] in _READERS:
            piece, at = _READERS[text[at]](text, at, commands, depth)
            word += piece
        else:
            word, at = word + text[at], at + 1
    return word, at


def _escaped(text: str, at: int, commands: list[list[str]], depth: int) -> tuple[str, int]:
    # At the end of a line passed with `-c`, bash keeps the backslash.
    letter = text[at + 1 : at + 2] or "\\"
    return "" if letter == "\n" else letter, at + 2


def _single_quoted(text: str, at: int, commands: list[list[str]], depth: int) -> tuple[str, int]:
    end = _find(text, "'", at + 1)
    return text[at + 1 : end], end + 1


def _double_quoted(text: str, at: int, commands: list[list[str]], depth: int) -> tuple[str, int]:
    end = _end_of_double(text, at + 1, depth)
    return _unquoted(text[at + 1 : end], commands, depth), end + 1


def _find(text: str, letter: str, at: int) -> int:
    """The next position of a character, or the end of the text."""
    end = text.find(letter, at)
    return len(text) if end < 0 else end


def _unquoted(inner: str, commands: list[list[str]], depth: int) -> str:
    """Read the contents of double quotes; return them as text. Add the commands in their expansions."""
    if depth > _MAX_NESTED:
        raise _NestedTooDeep
    word, at = "", 0
    while at < len(inner):
        if inner[at] == "\\" and inner[at + 1 : at + 2] in ("$", "`", '"', "\\"):
            word, at = word + inner[at + 1], at + 2
        elif inner[at] in "$`":
            piece, at = _expanded(inner, at, commands, depth)
            word += piece
        else:
            word, at = word + inner[at], at + 1
    return word


def _expanded(text: str, at: int, commands: list[list[str]], depth: int) -> tuple[str, int]:
    """Read the expansion that begins at `at`; return its replacement, and its end. Add the commands inside it."""
    next_char = text[at + 1 : at + 2]
    if text[at] == "`" or next_char in ("(", "[", "{"):
        start = at + (1 if text[at] == "`" else 2)
        end = _closing(
            text, start, {"(": ")", "[": "]", "{": "}"}.get(next_char if text[at] == "$" else "", "`"), depth
        )
        inner = text[start:end]
        if next_char == "{" and text[at] == "$" and _NAME.fullmatch(inner):
            return f"\x01{inner}\x01", end + 1
        if next_char == "{" and text[at] == "$":
            _unquoted(inner, commands, depth + 1)
        else:
            _scan(inner, commands, depth + 1)
        return UNKNOWN, end + 1
    coded = _ANSI_QUOTED.match(text, at)
    if coded:
        return _ANSI_ESCAPE.sub(_decoded, coded[1]), coded.end()
    name = _NAME.match(text, at + 1)
    if name:
        return f"\x01{name[0]}\x01", name.end()
    if next_char in ("@", "*", "-", "!") or next_char.isdigit():
        return UNKNOWN, at + 2
    # `$?`, `$#` and `$$` are numbers; `$"..."` is a text to be translated, and here simply a text.
    return ("0", at + 2) if next_char in ("?", "#", "$") and next_char else ("" if next_char == '"' else "$", at + 1)


def _closing(text: str, at: int, closes: str, nested: int) -> int:
    """The position where the bracket opened before `at` closes; the end of the text if it does not."""
    if nested > _MAX_NESTED:
        raise _NestedTooDeep
    opens = {")": "(", "}": "{", "]": "["}.get(closes)
    depth = 1
    while at < len(text):
        letter = text[at]
        if letter == closes:
            depth -= 1
            if depth == 0:
                return at
        elif letter == opens:
            depth += 1
        elif letter == "\\":
            at += 1
        # Inside `${...}` in double quotes, a single quote is an ordinary character.
        elif letter == "'" and closes != "}":
            end = text.find("'", at + 1)
            at = end if end >= 0 else at
        elif letter == '"':
            at = _end_of_double(text, at + 1, nested)
        at += 1
    return len(text)


def _end_of_double(text: str, at: int, nested: int) -> int:
    """The position where double quotes opened before `at` end; the end of the text if they do not."""
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            at += 1
        elif text[at] == "`" or text[at : at + 2] in ("$(", "${"):
            closes = {"$(": ")", "${": "}"}.get(text[at : at + 2], "`")
            at = _closing(text, at + (1 if closes == "`" else 2), closes, nested + 1)
        at += 1
    return at


# Readers of the parts of a word that are not taken as written, by first character; each returns the part's text and end.
_READERS: Mapping[str, Callable[[str, int, list[list[str]], int], tuple[str, int]]] = {
    "\\": _escaped,
    "'": _single_quoted,
    '"': _double_quoted,
    "$": _expanded,
    "`": _expanded,
}
