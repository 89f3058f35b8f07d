"""Check a skill against the Agent Skills specification (agentskills.io/specification): problem, location, remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from ..ground.diagnostic import Diagnostic
from ..ground.patterns import regex
from ..ground.text import without_hidden
from .files import Bounds, read_text, walk_files
from .index import MAX_SKILL_BYTES
from .ledger import UNDOCUMENTED, word_notes
from .outline import lines_outside_fences
from .parse import (
    MAX_COMPATIBILITY_CHARS,
    MAX_DESCRIPTION_CHARS,
    SkillDoc,
    parse_skill_markdown,
)

MAX_BODY_LINES = 500
_LINK = regex(r"\]\(([^()\s#?]+)(?:#[^()\s]*)?\)")
_CODE_SPAN = regex(r"`+[^`]*`+")
_UNPINNED = regex(r"\b(?:npx\s+(?:-y|--yes)|uvx|pip3?\s+install)\s+(?!-)(@?[\w./-]+)(?![\w@./=<>~-])")


def check_path(path: str | os.PathLike[str]) -> tuple[list[Diagnostic], int]:
    """Check the skills at `path` (a SKILL.md, its folder, or a tree of them); return the problems and the number of skills.

    The problems are sorted by file and line. Raises `FileNotFoundError` if `path` does not exist.
    """
    start = os.path.abspath(path)
    if not os.path.exists(start):
        raise FileNotFoundError(f"{start} does not exist: name a SKILL.md, or a folder with skills")
    problems: list[tuple[str, str]] = []
    files = [start]
    if os.path.isdir(start):
        bounds = Bounds(max_depth=12, max_folders=20_000, hidden=frozenset({".claude", ".agents"}))
        walked = walk_files(start, boundary=os.path.realpath(start), bounds=bounds, problems=problems)
        files = [file.path for _, folder_files in walked for file in folder_files if file.name.casefold() == "skill.md"]
    notes = [note for file in files for note in check_file(file)]
    notes += [Diagnostic.left_out("skill", reason, where) for where, reason in problems]
    return sorted(notes, key=lambda note: (note.path, note.line, note.code)), len(files)


def check_file(path: str) -> list[Diagnostic]:
    """Check one SKILL.md; return its problems."""
    try:
        text = read_text(path, boundary=None, max_bytes=MAX_SKILL_BYTES)
    except OSError as error:
        return [Diagnostic.left_out("skill", error, path)]
    doc = parse_skill_markdown(text, folder=os.path.basename(os.path.dirname(path)))
    notes = [*doc.diagnostics, *_check_fields(doc), *_check_body(doc, os.path.dirname(path))]
    name = os.path.basename(path)
    if name != "SKILL.md":
        notes.append(
            Diagnostic("file-name", f"the file is named {name}: rename it, because many clients only find SKILL.md")
        )
    return [replace(note, line=note.line or 1, path=path) for note in notes]


def _check_fields(doc: SkillDoc) -> Iterator[Diagnostic]:
    if doc.rung == "none":
        yield Diagnostic(
            "no-frontmatter",
            "most clients need frontmatter: begin the file with lines for ---, name, description and ---",
        )
        return
    if not doc.declared_name:
        yield Diagnostic("name-missing", "the name is missing: add it, equal to the folder's name", is_error=True)
    if not doc.described:
        yield Diagnostic(
            "description-missing",
            "the description is missing: describe what the skill does and when to use it",
            is_error=True,
        )
    yield from _too_long(doc, "description", doc.summary, MAX_DESCRIPTION_CHARS)
    yield from _too_long(doc, "compatibility", doc.compatibility, MAX_COMPATIBILITY_CHARS)
    for key, value in doc.metadata.items():
        if not isinstance(value, str):
            message = f"metadata.{key} is not text: the specification requires text"
            yield Diagnostic("metadata-kind", message, doc.lines.get("metadata", 0))
    for note in word_notes("skill", doc.extra, line=lambda key: doc.lines.get(key, 0)):
        is_known = note.code != UNDOCUMENTED
        unknown = f"{note.message}: put custom fields under metadata"
        yield note if is_known else replace(note, code="field-unknown", message=unknown)
    if doc.raw.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n") != without_hidden(doc.raw):
        yield Diagnostic("hidden-characters", "the file has invisible characters: remove them", is_error=True)


def _too_long(doc: SkillDoc, field: str, text: str, most: int) -> Iterator[Diagnostic]:
    if len(text) > most:
        message = f"the {field} has {len(text)} characters, and at most {most} are allowed: shorten it"
        yield Diagnostic(f"{field}-too-long", message, doc.lines.get(field, 0))


def _check_body(doc: SkillDoc, folder: str) -> Iterator[Diagnostic]:
    lines = doc.body.splitlines()
    if not doc.body.strip():
        yield Diagnostic("body-missing", "the instructions below the frontmatter are missing: add them", doc.body_line)
    if len(lines) > MAX_BODY_LINES:
        advice = f"the body has {len(lines)} lines: move what is not always needed to separate files"
        yield Diagnostic("body-too-long", advice, doc.body_line)
    for number, line in enumerate(lines, doc.body_line):
        if match := _UNPINNED.search(line):
            yield Diagnostic("unpinned-package", f"{match[1]} is fetched without a version: name one", number)
    for number, line in enumerate(lines_outside_fences(doc.body), doc.body_line):
        for match in _LINK.finditer(_CODE_SPAN.sub("", line)):
            target = match[1]
            if ":" in target or target.startswith("/") or os.path.exists(os.path.join(folder, target)):
                continue
            yield Diagnostic("link-broken", f"{target} is linked but missing: add it or remove the link", number)
