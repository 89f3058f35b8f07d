"""Read the metadata at the top of a Markdown file: the part of YAML that real files use, with every scalar a string.

A file is never refused. Invalid parts are read by the next rung of a ladder (lenient, line scan, body only), and each rung
leaves one diagnostic. For input that YAML accepts, the strict rung returns what PyYAML's BaseLoader does. Nothing here
touches a file; the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TypeAlias

from ..ground.diagnostic import Diagnostic
from ..ground.frozen import frozen
from ..ground.patterns import regex
from .yaml_subset import SourceText, Unreadable, Value, read_mapping

MAX_FRONTMATTER_CHARS = 64 * 1024

Metadata: TypeAlias = Mapping[str, Value]


@frozen
class Frontmatter:
    """A Markdown file, split into its metadata and its body.

    `data` contains only strings, lists and dicts. `sources` maps each top-level key to the text of its value as written in
    the file and its line. `rung` is `strict`, `lenient`, `scan`, `body` (nothing could be read) or `none` (there is no
    frontmatter). `body` is the unchanged text below it, and `body_line` the number of that text's first line in the file.
    """

    data: Metadata
    body: str
    body_line: int = 1
    rung: str = "none"
    sources: Mapping[str, SourceText] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()


@frozen
class _Split:
    yaml: str
    line: int
    body: str
    body_line: int
    diagnostics: tuple[Diagnostic, ...] = ()


def read_frontmatter(text: str) -> Frontmatter:
    """Split a file's text into metadata and body; for invalid metadata see this module's docstring."""
    split = _split(text)
    if split is None:
        return Frontmatter({}, text.removeprefix("\ufeff"))
    if len(split.yaml) > MAX_FRONTMATTER_CHARS:
        too_big = Diagnostic(
            "frontmatter-too-big",
            f"the frontmatter has {len(split.yaml)} characters, and the limit is {MAX_FRONTMATTER_CHARS}: move text to "
            "the body",
            split.line,
        )
        return _scan(split, Frontmatter({}, split.body, split.body_line, diagnostics=(*split.diagnostics, too_big)))
    try:
        data, sources, repeated = read_mapping(split.yaml, first_line=split.line)
    except Unreadable as problem:
        plain = _HINT.sub(lambda line: f"{line[1]}'{line[2].replace(chr(39), chr(39) * 2)}'", split.yaml)
        if plain == split.yaml:
            return _read_leniently(split, problem)
        # Commands write their arguments as `[a] [b]`, which is not YAML: it is read as plain text.
        try:
            data, sources, repeated = read_mapping(plain, first_line=split.line)
        except Unreadable:
            return _read_leniently(split, problem)
        sources = {**sources, _HINT_KEY: SourceText(str(data[_HINT_KEY]), sources[_HINT_KEY].line)}
    notes = tuple(_repeated_key(key, line) for key, line in repeated)
    return Frontmatter(data, split.body, split.body_line, "strict", sources, split.diagnostics + notes)


def _repeated_key(key: str, line: int) -> Diagnostic:
    return Diagnostic("repeated-key", f"{key!r} appears again here: the last one is used", line)


_HINT_KEY = "argument-hint"
_HINT = regex(r"^(argument-hint:[ \t]*)(\S[^\n]*?)[ \t]*$", re.MULTILINE)


# --- where the frontmatter is ----------------------------------------------------------------------------------------

_LINE_BREAKS = regex(r"\r\n?|\x85")
# The text that may precede the opening line: blank lines, one comment, one fence or one heading.
_BEFORE = regex(r"\s*+(?:(?:<!--.*?-->[ \t\r]*+|`{3,}+[^\n`]*+|#{1,6} [^\n]*+)\n\s*+)?", re.DOTALL)
_OPENER = regex(r"---[ \t]*(?:\r\n?|\n)")
_CLOSER = regex(r"^---[ \t\r]*(?:\n|\Z)", re.MULTILINE)
_CLOSER_BARE_CR = regex(r"(?:^|(?<=\r)|(?<=\n))---[ \t]*(?:\r\n?|\n|\Z)")
_COMMENTED_KEY = regex(
    r"""(?>(?:[ \t]*+(?:#[^\n]*+)?\r?\n)*)[ ]*+["']?(?:name|description)["']?[ \t]*+:(?=[ \t\r\n]|\Z)"""
)
_KEY_LINE = regex(r"""["']?[^\W\d][\w.-]*["']?[ \t]*:(?=[ \t\r\n]|\Z)""")


def _split(text: str) -> _Split | None:
    start = 1 if text.startswith("\ufeff") else 0
    opener = _OPENER.match(text, start)
    notes: tuple[Diagnostic, ...] = ()
    if opener is None:
        before = _BEFORE.match(text, start)
        opener = _OPENER.match(text, before.end()) if before else None
        if opener is None or not any(key.match(text, opener.end()) for key in (_KEY_LINE, _COMMENTED_KEY)):
            return None
        notes = (
            Diagnostic(
                "text-before-frontmatter",
                "the frontmatter should be at the start of the file: remove the text above it",
                1,
            ),
        )
    if "\n" in text:
        mark = text.find("\n---", opener.end() - 1)
        closer = _CLOSER.search(text, mark) if mark >= 0 else None
    else:
        closer = _CLOSER_BARE_CR.search(text, opener.end())
    line = _count_lines(text, 0, opener.end()) + 1
    if closer is None:
        # The lines after an opener that look like metadata, up to the first one that does not; None for a horizontal rule.
        normal = text[opener.end() :].replace("\r\n", "\n").replace("\r", "\n")
        match = _UNCLOSED.match(normal) if _KEY_LINE.match(normal) else None
        if match is None:
            return None
        missing = Diagnostic(
            "frontmatter-unclosed", "the frontmatter has no closing line ---: add one", line - 1, is_error=True
        )
        body_line = line + normal.count("\n", 0, match.end())
        return _Split(match[0], line, normal[match.end() :], body_line, (*notes, missing))
    body_line = line + _count_lines(text, opener.end(), closer.end())
    yaml = text[opener.end() : closer.start()]
    if "\r" in yaml or "\x85" in yaml:
        yaml = _LINE_BREAKS.sub("\n", yaml)
    return _Split(yaml, line, text[closer.end() :], body_line, notes)


_UNCLOSED = regex(r"""(?>(?:(?:["']?[^\W\d][\w.-]*["']?[ \t]*:(?:[ \t][^\n]*)?|[ \t]+\S[^\n]*|- [^\n]*)(?:\n|\Z))+)""")


def _count_lines(text: str, start: int, end: int) -> int:
    feeds = text.count("\n", start, end)
    return feeds if feeds else text.count("\r", start, end)


# --- lenient: what YAML refuses becomes text -------------------------------------------------------------------------

_TOP_KEY = regex(
    r"""(?:"([^"\n]*+)"[ \t]*+|'([^'\n]*+)'[ \t]*+|((?:[^\s#"'\[\]{}&*!|>%@`?,:-]|-[^\s\n:#])[^\n:#]*+)):(?=[ \t\n]|\Z)"""
)
_CONTINUES = ("-", "]", "}", " ", "\t")
_CONFLICT = regex(r"(?:<{7}|\|{7}|={7}|>{7})(?: |$)")
_BLOCK_MARK = regex(r"[|>][+-]?(?= |$)")
_REQUIRED_FIELDS = ("name", "description")


def _read_leniently(split: _Split, problem: Unreadable) -> Frontmatter:
    message = f"this is not valid YAML ({problem}); it was read as text where needed"
    notes = [*split.diagnostics, Diagnostic("frontmatter-invalid", message, problem.line)]
    data: dict[str, Value] = {}
    sources: dict[str, SourceText] = {}
    for line, key, lines in _chunks(split.yaml, split.line):
        if key in data:
            notes.append(_repeated_key(key, line))
        sources[key] = SourceText(_text_of(lines), line)
        data[key] = _chunk_value(key, lines)
    return _scan(split, Frontmatter(data, split.body, split.body_line, "lenient", sources, tuple(notes)))


def _chunks(yaml: str, first_line: int) -> list[tuple[int, str, list[str]]]:
    """Runs of lines that each begin with a key in the first column: line, key, and the lines from the colon on."""
    chunks: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(yaml.split("\n"), first_line):
        key = _TOP_KEY.match(line)
        if key is not None:
            name = next(name for name in key.groups() if name is not None)
            chunks.append((number, name.strip(), [line[key.end() :]]))
        elif chunks and not _CONFLICT.match(line):
            chunks[-1][2].append(line)
    return chunks


def _chunk_value(key: str, lines: list[str]) -> Value:
    """One key's value: as YAML if possible, with or without stray lines, otherwise as text."""
    if key == "name" and lines[0].strip():
        lines = lines[:1]
    without_strays = [lines[0], *(line for line in lines[1:] if line.startswith(_CONTINUES))]
    indented = [lines[0], *(line if line.startswith(_CONTINUES) else f"  {line}" for line in lines[1:])]
    ends_by_itself = lines[0].lstrip().startswith(("'", '"', "[", "{"))
    for attempt in (lines, without_strays, indented) if ends_by_itself else (lines, indented, without_strays):
        try:
            data, _, _ = read_mapping("value:" + "\n".join(attempt) + "\n")
        except Unreadable:
            continue
        return data["value"]
    return _text_of(lines)


def _text_of(lines: list[str]) -> str:
    text = " ".join(part for part in (line.strip() for line in lines) if part)
    if mark := _BLOCK_MARK.match(text):
        text = text[mark.end() :].lstrip()
    never_closed = text[:1] in ("'", '"') and text.count(text[0]) == 1
    return text[1:] if never_closed else text


# --- line scan: the two lines that matter ----------------------------------------------------------------------------

_NAMED_LINE = regex(
    r"""^([ \t]*+)[>*_"',&`-]*+[ \t]*+(name|description)[*_"']*+[ \t]*+[:=][ \t]*+(\S[^\n]*+)$""",
    re.MULTILINE | re.IGNORECASE,
)


def _scan(split: _Split, front: Frontmatter) -> Frontmatter:
    """Search the text for a `name` or `description` that `front` lacks; if it has other keys, in the first column only."""
    data, where = dict(front.data), dict(front.sources)
    head = split.yaml[:MAX_FRONTMATTER_CHARS]
    for match in _NAMED_LINE.finditer(head):
        key = match[2].lower()
        if key not in data and not (front.data and match[1]):
            data[key] = _scanned_value(match[3].strip(), head, match.end())
            where[key] = SourceText(match[3].strip(), split.line + head.count("\n", 0, match.start()))
        if all(key in data for key in _REQUIRED_FIELDS):
            break
    if len(data) == len(front.data) and any(key in data for key in _REQUIRED_FIELDS):
        return front
    rung = "scan" if len(data) > len(front.data) else "body"
    note = Diagnostic(*_RUNG_NOTES[rung], split.line, is_error=True)
    return replace(front, data=data, sources=where, rung=rung, diagnostics=(*front.diagnostics, note))


_RUNG_NOTES = {
    "scan": ("frontmatter-scanned", "name and description were found by looking for lines that begin with them"),
    "body": ("frontmatter-unreadable", "the frontmatter contains no name or description"),
}


def _scanned_value(text: str, head: str, end: int) -> str:
    if not _BLOCK_MARK.fullmatch(text):
        text = text.rstrip(",")
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    lines = []
    for line in head[end + 1 :].split("\n"):
        if not line.startswith((" ", "\t")):
            break
        lines.append(line.strip())
    return " ".join(lines)
