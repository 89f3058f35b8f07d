"""Output styles: files whose text is added to the system prompt. Settings select one by name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from ...ground.diagnostic import Diagnostic
from ...ground.frozen import frozen
from ...ground.text import without_hidden
from ...skills.fields import Fields
from ...skills.files import read_text
from ...skills.frontmatter import read_frontmatter
from ...skills.names import name_key
from .claude import ClaudeFolders, MarkdownFile, markdown_files

MAX_STYLE_BYTES = 256 * 1024


@frozen
class OutputStyle:
    """The selected style; its fields are empty if none exists. `diagnostics` reports what was omitted."""

    name: str = ""
    path: str = ""
    text: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()


def read_output_style(folders: ClaudeFolders, name: str | None, more: Iterable[MarkdownFile] = ()) -> OutputStyle:
    """Read the style with this name, if a file defines it; `more` are files of plugins. `default` and None select none."""
    if name is None or name_key(name) == "default":
        return OutputStyle()
    problems: list[Diagnostic] = []
    for file in (*markdown_files(folders, "output-styles", problems), *more):
        try:
            text = read_text(file.path, boundary=file.boundary, max_bytes=MAX_STYLE_BYTES)
        except OSError as error:
            problems.append(Diagnostic.left_out("style", error, file.path))
            continue
        front = read_frontmatter(text)
        stem = os.path.basename(file.relative).removesuffix(".md")
        if name_key(name) in (name_key(Fields(front).text("name") or stem), name_key(stem)):
            problems += [replace(note, path=file.path) for note in Fields(front).without_effect("style")]
            return OutputStyle(name, file.path, without_hidden(front.body).strip("\n"), tuple(problems))
    missing = f"no file defines the output style {name[:80]!r}: it has no effect here"
    return OutputStyle(diagnostics=(*problems, Diagnostic("style-missing", missing)))
