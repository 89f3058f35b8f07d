"""Fill in the placeholders of a skill's or command's text, in one pass: a value is never scanned again.

`$ARGUMENTS` is everything that was passed, `$ARGUMENTS[0]` its first word. `$1` is also the first word, unless the text
uses `$0`: then counting starts there, and `$1` is the second. `$name` is the word of a declared name, and a backslash
before any of these makes it plain text. Words are split as in a shell. Nothing is executed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence

from ..ground.frozen import mutable
from ..ground.patterns import regex

# The limit of a result: a long argument and a text of many placeholders would otherwise multiply.
MAX_FILLED_CHARS = 1024 * 1024

_VARIABLE = regex(r"\$\{([A-Z_]+)\}|\{baseDir\}")
_PLACEHOLDER = regex(
    r"\\(\$(?:ARGUMENTS|\d|[A-Za-z_]\w*))|\$\{([A-Z_]+)\}|(\{baseDir\})"
    r"|\$ARGUMENTS(?:\[(\d{1,4})\]|\b)|\$(\d{1,4})(?!\w)|\$([A-Za-z_][\w-]*)"
)


# A word of a shell command, and its escaped and quoted parts. They replace `shlex`, whose time grows with the square of a
# word's length.
_WORD = regex(r"""(?>(?:[^ \t\r\n'"\\]++|\\.|'[^']*+'|"[^"\\]*+(?>(?:\\.[^"\\]*+)*)")+)|[^ \t\r\n]""", re.DOTALL)
_MARKED = regex(r"""\\(.)|'([^']*+)'|"([^"\\]*+(?>(?:\\.[^"\\]*+)*))\"""", re.DOTALL)
_ESCAPED = regex(r"""\\(["\\])""")


def split_words(arguments: str) -> list[str]:
    """Split a line into words with a shell's quoting; a line with unbalanced quotes is split at white space."""
    words = _WORD.findall(arguments)
    if any(word in ("'", '"', "\\") for word in words):
        return arguments.split()
    return [_MARKED.sub(lambda part: part[1] or part[2] or _ESCAPED.sub(r"\1", part[3] or ""), word) for word in words]


def fill_variables(text: str, variables: Mapping[str, str]) -> str:
    """Replace `${NAME}`, and `{baseDir}` as `${CLAUDE_SKILL_DIR}`, if `variables` has a value; keep everything else."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or "CLAUDE_SKILL_DIR", match[0])

    return _VARIABLE.sub(value, text)


def plugin_variables(root: str, data: str, *texts: str) -> dict[str, str]:
    """Return the values of `${...}` in a plugin's text: its folder and its data folder; empty without a `root`.

    The data folder survives updates of the plugin. It is created if one of the `texts` refers to it.
    """
    if data and any("CLAUDE_PLUGIN_DATA" in text for text in texts):
        with contextlib.suppress(OSError):  # the program that uses the folder reports the problem
            os.makedirs(data, exist_ok=True)
    values = {"CLAUDE_PLUGIN_ROOT": root, "CLAUDE_PLUGIN_DATA": data}
    return {name: value for name, value in values.items() if root and value}


@mutable
class _Filling:
    """The values for one text, whether an argument was used, and the `room`: how many characters may still be filled in."""

    arguments: str
    words: list[str]
    names: Sequence[str]
    first: int
    used: bool = False
    room: int = MAX_FILLED_CHARS

    def value(self, match: re.Match[str]) -> str:
        """The value of one placeholder; the placeholder itself once there is no more `room`."""
        value = self._value(match)
        self.room -= len(value)
        return value if self.room >= 0 else match[0]

    def _value(self, match: re.Match[str]) -> str:
        escaped, variable, base, index, number, name = match.groups()
        if escaped:
            return escaped
        if variable or base:
            return match[0]
        if index is not None or number is not None:
            return self.word(int(index) if index else int(number) - self.first, match[0])
        if name is not None:
            return self.named_argument(name, match[0])
        self.used = True
        return self.arguments

    def word(self, position: int, placeholder: str) -> str:
        if not 0 <= position < len(self.words):
            return placeholder
        self.used = True
        return self.words[position]

    def named_argument(self, name: str, placeholder: str) -> str:
        if name not in self.names:
            return placeholder
        self.used = True
        position = self.names.index(name)
        return self.words[position] if position < len(self.words) else ""


def has_place(text: str, names: Sequence[str] = ()) -> bool:
    """Whether a text has a placeholder for arguments, including those with the given names."""
    return any(
        not match[1] and not match[2] and not match[3] and (match[6] is None or match[6] in names)
        for match in _PLACEHOLDER.finditer(text)
    )


def first_number(text: str) -> int:
    """0 if the text refers to its first word as `$0`, otherwise 1."""
    return 0 if re.search(r"(?<!\\)\$0(?!\w)", text) else 1


# A placeholder counts in a command only as a word of its own, so that its value remains one word whatever it contains.
_SHELL_WORD = regex(r'(?<!\S)("?)(\$(?:ARGUMENTS(?:\[\d{1,4}\])?|\d{1,4}|[A-Za-z_][\w-]*))\1(?!\S)')
_SHELL_QUOTED = regex(r"""'[^']*+'|"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"|\\.""", re.DOTALL)
# Quotes may begin or end elsewhere than they seem to because of these: substitutions, comments, here-documents.
_UNCLEAR = regex(r"""[`#]|\$[({'"]|<<""")
_NEEDS_NO_QUOTES = regex(r"[\w@%+=:,./ -]*", re.ASCII)


def fill_command(command: str, arguments: str, *, names: Sequence[str] = (), first: int = 1) -> str:
    """Fill the arguments into a command line, each quoted for the shell; a placeholder without a value is kept.

    A placeholder inside the line's own quotes is kept as well, because ours would not work there, unless its value needs no
    quotes. `first` is the number of the first word, see `first_number`.
    """
    words = [shlex.quote(word) for word in split_words(arguments)]
    filling = _Filling(" ".join(words), words, names, first)
    # The positions of placeholders that are certainly outside quotes; none if only the shell can tell.
    bare = _SHELL_QUOTED.sub(
        lambda quoted: quoted[0] if _SHELL_WORD.fullmatch(quoted[0]) else "_" * len(quoted[0]), command
    )
    places = frozenset(match.start() for match in _SHELL_WORD.finditer(bare))
    is_clear = not _UNCLEAR.search(command) and not re.search("['\"]", _SHELL_WORD.sub("", bare))
    open_places = places if is_clear else frozenset()

    def value(match: re.Match[str]) -> str:
        placeholder = _PLACEHOLDER.fullmatch(match[2])
        filled = filling.value(placeholder) if placeholder else match[2]
        is_safe = match.start() in open_places or _NEEDS_NO_QUOTES.fullmatch(filled)
        return filled if is_safe and filled != match[2] else match[0]

    return _SHELL_WORD.sub(value, command)


def fill_arguments(
    text: str,
    arguments: str,
    *,
    names: Sequence[str] = (),
    first: int | None = None,
) -> str:
    """Fill the arguments into the text; without a placeholder for them they are appended, so that nothing is lost.

    `first` is the number of the first word, None to derive it from the text.
    """
    number = first_number(text) if first is None else first
    filling = _Filling(arguments, split_words(arguments), names, number)
    filled = _PLACEHOLDER.sub(filling.value, text)
    if arguments.strip() and not filling.used:
        return f"{filled.rstrip()}\n\nARGUMENTS: {arguments}\n"
    return filled
