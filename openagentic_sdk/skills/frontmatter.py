"""Read the metadata at the top of a Markdown file: the part of YAML that real files use, every scalar a string.

A file is never refused. What cannot be read strictly is read by the next rung of a ladder (lenient, line scan, body only),
and each rung leaves one diagnostic. On input that YAML accepts, the strict rung answers what PyYAML's BaseLoader answers.
Nothing here touches a file; the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .yaml_subset import Source, Unreadable, Value, read_mapping

MAX_FRONTMATTER_CHARS = 64 * 1024

Metadata: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True)
class Diagnostic:
    """Something about a file that its author may want to know.

    `code` is for programs; `line` counts from 1, 0 is the whole file. `is_error` marks what loses something of the file.
    """

    code: str
    message: str
    line: int = 0
    path: str = ""
    is_error: bool = False


@dataclass(frozen=True)
class Frontmatter:
    """A file in two parts.

    `data` holds strings, lists and dicts only. `sources` has, for each top-level key, the text of its value as it stands
    in the file and its line. `rung` is `strict`, `lenient`, `scan`, `body` (nothing could be read) or `none` (there is no
    frontmatter). `body` is exact, `body_line` the line in the file where it starts.
    """

    data: Metadata
    body: str
    body_line: int = 1
    rung: str = "none"
    sources: Mapping[str, Source] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class _Split:
    yaml: str
    line: int
    body: str
    body_line: int
    diagnostics: tuple[Diagnostic, ...] = ()


def read_frontmatter(text: str) -> Frontmatter:
    """Take a file apart; see the module for what happens to files that are not valid."""
    split = _split(text)
    if split is None:
        return Frontmatter({}, text.removeprefix("\ufeff"))
    if len(split.yaml) > MAX_FRONTMATTER_CHARS:
        too_big = Diagnostic(
            "frontmatter-too-big",
            f"the frontmatter has {len(split.yaml)} characters, {MAX_FRONTMATTER_CHARS} are read: move text to the body",
            split.line,
        )
        return _scan(split, (too_big,))
    try:
        data, sources, repeated = read_mapping(split.yaml, first_line=split.line)
    except Unreadable as problem:
        return _read_leniently(split, problem)
    notes = tuple(_repeated_key(key, line) for key, line in repeated)
    return Frontmatter(data, split.body, split.body_line, "strict", sources, split.diagnostics + notes)


def _repeated_key(key: str, line: int) -> Diagnostic:
    return Diagnostic("repeated-key", f"{key!r} stands here a second time: the last one counts", line)


# --- where the frontmatter is ----------------------------------------------------------------------------------------

_LINE_BREAKS = re.compile(r"\r\n?|\x85")
# What may stand before the opening line: blank lines, one comment, one fence or one heading.
_BEFORE = re.compile(r"\s*+(?:(?:<!--.*?-->|`{3,}[^\n`]*|#{1,6} [^\n]*)[ \t\r]*\n\s*+)?", re.DOTALL)
_OPENER = re.compile(r"---[ \t]*(?:\r\n?|\n)")
_CLOSER = re.compile(r"^---[ \t\r]*(?:\n|\Z)", re.MULTILINE)
_CLOSER_BARE_CR = re.compile(r"(?:^|(?<=\r)|(?<=\n))---[ \t]*(?:\r\n?|\n|\Z)")
_KEY_LINE = re.compile(r"""["']?[^\W\d][\w.-]*["']?[ \t]*:(?=[ \t\r\n]|\Z)""")


def _split(text: str) -> _Split | None:
    start = 1 if text.startswith("\ufeff") else 0
    opener = _OPENER.match(text, start)
    notes: tuple[Diagnostic, ...] = ()
    if opener is None:
        before = _BEFORE.match(text, start)
        opener = _OPENER.match(text, before.end()) if before else None
        if opener is None or not _KEY_LINE.match(text, opener.end()):
            return None
        notes = (
            Diagnostic("text-before-frontmatter", "the frontmatter should open the file: remove what is above", 1),
        )
    closer = (_CLOSER if "\n" in text else _CLOSER_BARE_CR).search(text, opener.end())
    line = _count_lines(text, 0, opener.end()) + 1
    if closer is None:
        return _split_unclosed(text, opener.end(), line, notes)
    body_line = line + _count_lines(text, opener.end(), closer.end())
    yaml = _LINE_BREAKS.sub("\n", text[opener.end() : closer.start()])
    return _Split(yaml, line, text[closer.end() :], body_line, notes)


_UNCLOSED = re.compile(
    r"""(?:(?:["']?[^\W\d][\w.-]*["']?[ \t]*:(?:[ \t][^\n]*)?|[ \t]+\S[^\n]*|- [^\n]*)(?:\n|\Z))++"""
)


def _split_unclosed(text: str, start: int, line: int, notes: tuple[Diagnostic, ...]) -> _Split | None:
    """The lines behind an opener that look like metadata, up to the first one that does not; None for a mere rule."""
    normal = text[start:].replace("\r\n", "\n").replace("\r", "\n")
    match = _UNCLOSED.match(normal) if _KEY_LINE.match(normal) else None
    if match is None:
        return None
    missing = Diagnostic(
        "frontmatter-unclosed", "no line with --- ends the frontmatter: add one", line - 1, is_error=True
    )
    body_line = line + normal.count("\n", 0, match.end())
    return _Split(match[0], line, normal[match.end() :], body_line, (*notes, missing))


def _count_lines(text: str, start: int, end: int) -> int:
    feeds = text.count("\n", start, end)
    return feeds if feeds else text.count("\r", start, end)


# --- lenient: what YAML refuses becomes text -------------------------------------------------------------------------

_TOP_KEY = re.compile(
    r"""(?:"([^"\n]*+)"[ \t]*+|'([^'\n]*+)'[ \t]*+|((?:[^\s#"'\[\]{}&*!|>%@`?,:-]|-[^\s\n:#])[^\n:#]*+)):(?=[ \t\n]|\Z)"""
)
_CONTINUES = ("-", "]", "}", " ", "\t")


def _read_leniently(split: _Split, problem: Unreadable) -> Frontmatter:
    note = Diagnostic(
        "frontmatter-invalid", f"this is not valid YAML ({problem}); it was read as text where needed", problem.line
    )
    data: dict[str, Value] = {}
    sources: dict[str, Source] = {}
    notes: list[Diagnostic] = []
    for line, lines in _chunks(split.yaml, split.line):
        key = _TOP_KEY.match(lines[0])
        if key is None:
            continue
        name = (key[1] or key[2] or key[3] or "").strip()
        if name in data:
            notes.append(_repeated_key(name, line))
        sources[name] = Source(_text_of(lines, key.end()), line)
        data[name] = _chunk_value(lines, key.end())
    if not _says_what_it_is(data):
        return _scan(split, (note,), data, sources)
    return Frontmatter(data, split.body, split.body_line, "lenient", sources, (*split.diagnostics, note, *notes))


def _says_what_it_is(data: Metadata) -> bool:
    return bool(data.keys() & {"name", "description"})


def _chunks(yaml: str, first_line: int) -> list[tuple[int, list[str]]]:
    """Runs of lines that each begin with a key in the first column."""
    chunks: list[tuple[int, list[str]]] = []
    for number, line in enumerate(yaml.split("\n"), first_line):
        if _TOP_KEY.match(line):
            chunks.append((number, [line]))
        elif chunks:
            chunks[-1][1].append(line)
    return chunks


def _chunk_value(lines: list[str], value_start: int) -> Value:
    """One key's value: as YAML if it can be, without stray lines in the first column if that helps, else as text."""
    for attempt in (lines, _without_strays(lines)):
        try:
            data, _, _ = read_mapping("\n".join(attempt) + "\n")
        except Unreadable:
            continue
        return next(iter(data.values()), "")
    return _text_of(lines, value_start)


def _without_strays(lines: list[str]) -> list[str]:
    return [line for i, line in enumerate(lines) if i == 0 or not line or line.startswith(_CONTINUES)]


def _text_of(lines: list[str], value_start: int) -> str:
    kept = [lines[0][value_start:], *_without_strays(lines)[1:]]
    text = " ".join(part for part in (line.strip() for line in kept) if part)
    never_closed = text[:1] in ("'", '"') and text.count(text[0]) == 1
    return text[1:] if never_closed else text


# --- line scan: the two lines that matter ----------------------------------------------------------------------------

_NAMED_LINE = re.compile(
    r"""^[ \t>*_"'-]*+(name|description)[*_"']*+[ \t]*+[:=][ \t]*+(\S[^\n]*+)$""", re.MULTILINE | re.IGNORECASE
)


def _scan(
    split: _Split,
    notes: tuple[Diagnostic, ...],
    data: Metadata | None = None,
    sources: Mapping[str, Source] | None = None,
) -> Frontmatter:
    found: dict[str, Value] = dict(data or {})
    where = dict(sources or {})
    head = split.yaml[:MAX_FRONTMATTER_CHARS]
    for match in _NAMED_LINE.finditer(head):
        key, text = match[1].lower(), match[2].strip()
        if key not in found:
            found[key] = _without_quotes(text)
            where[key] = Source(text, split.line + head.count("\n", 0, match.start()))
        if len(found.keys() & {"name", "description"}) == 2:
            break
    rung = "scan" if _says_what_it_is(found) else "body"
    code, message = _RUNG_NOTES[rung]
    note = Diagnostic(code, message, split.line, is_error=True)
    return Frontmatter(found, split.body, split.body_line, rung, where, (*split.diagnostics, *notes, note))


_RUNG_NOTES = {
    "scan": ("frontmatter-scanned", "only lines that begin with name: or description: could be read"),
    "body": ("frontmatter-unreadable", "nothing could be read from the frontmatter; the body is used alone"),
}


def _without_quotes(text: str) -> str:
    text = text.rstrip(",")
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
