"""Patterns and file types of Glob and Grep: which names of a folder's files match."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ...errors import ToolInputError
from ...ground import globs
from ...ground.globs import MAX_ALTERNATIVES, MAX_CHARS, SPECIAL, folder_regex, name_regex, split_path

Fits = Callable[[str], object]
Names = list[str]


class GlobPattern:
    """A compiled pattern. Its folder part is evaluated once per folder, its name part for each file."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern. Raises `ToolInputError` if it is empty, too long, or expands to too many alternatives."""
        names_by_folder: dict[str, list[str]] = {}
        for alternative in expand_braces(pattern):
            folder, name = split_path(alternative)
            names_by_folder.setdefault(folder, []).append(name)
        self._parts: list[tuple[Fits | None, Callable[[Names], Names]]] = []
        try:
            for folder, names in names_by_folder.items():
                fits = None if folder == "**" else re.compile(folder_regex(folder), re.DOTALL).fullmatch
                self._parts.append((fits, name_filter(names)))
        except ValueError as error:
            raise ToolInputError(f"{pattern!r}: {error}", path="pattern") from None

    def in_folder(self, prefix: str) -> Callable[[Names], Names] | None:
        """Return a function that selects the matching file names in a folder; None if there can be none.

        `prefix` is the folder's path with a trailing slash, or empty.
        """
        pick = [pick for fits, pick in self._parts if fits is None or fits(prefix)]
        if len(pick) < 2:
            return pick[0] if pick else None
        return lambda names: list(dict.fromkeys(name for one in pick for name in one(names)))


def name_filter(patterns: list[str]) -> Callable[[Names], Names]:
    """Return a function that selects the names that match any of several patterns, fast for common kinds of patterns."""
    if "*" in patterns:
        return lambda names: names
    suffixes = tuple(pattern[1:] for pattern in patterns if pattern[0] == "*" and not SPECIAL.intersection(pattern[1:]))
    if len(suffixes) == len(patterns):
        return lambda names: [name for name in names if name.endswith(suffixes)]
    fits = re.compile("|".join(map(name_regex, patterns)), re.DOTALL).fullmatch
    return lambda names: [name for name in names if fits(name)]


def expand_braces(pattern: str) -> list[str]:
    """Expand the braces of a pattern. Raises `ToolInputError` for an unusable one."""
    if not 1 <= len(pattern) <= MAX_CHARS:
        raise ToolInputError(
            f"a glob pattern must have 1 to {MAX_CHARS} characters, not {len(pattern)}", path="pattern"
        )
    alternatives = globs.expand_braces(pattern, MAX_ALTERNATIVES)
    if alternatives is None:
        raise ToolInputError(f"{pattern!r} expands to more than {MAX_ALTERNATIVES} patterns: use fewer braces")
    return alternatives


# The kinds of files that both tools accept as `type`, and their file name suffixes.
FILE_TYPES: Mapping[str, tuple[str, ...]] = {
    "c": (".c", ".h"),
    "cpp": (".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".h"),
    "cs": (".cs",),
    "css": (".css", ".scss", ".sass", ".less"),
    "go": (".go",),
    "html": (".html", ".htm"),
    "java": (".java",),
    "js": (".js", ".jsx", ".mjs", ".cjs"),
    "json": (".json", ".jsonl"),
    "kotlin": (".kt", ".kts"),
    "lua": (".lua",),
    "md": (".md", ".markdown"),
    "php": (".php",),
    "py": (".py", ".pyi"),
    "rb": (".rb", ".rake", "Gemfile", "Rakefile"),
    "rust": (".rs",),
    "sh": (".sh", ".bash", ".zsh"),
    "sql": (".sql",),
    "swift": (".swift",),
    "toml": (".toml",),
    "ts": (".ts", ".tsx", ".mts", ".cts"),
    "txt": (".txt",),
    "xml": (".xml", ".xsd", ".xsl", ".svg"),
    "yaml": (".yaml", ".yml"),
}
_OTHER_NAMES = {"python": "py", "javascript": "js", "typescript": "ts", "markdown": "md", "ruby": "rb", "bash": "sh"}


def type_suffixes(name: str) -> tuple[str, ...]:
    """The suffixes of a file type. Raises `ToolInputError` for an unknown type."""
    suffixes = FILE_TYPES.get(_OTHER_NAMES.get(name, name))
    if suffixes is None:
        raise ToolInputError(f"unknown file type {name!r}: use a glob pattern, or one of {', '.join(FILE_TYPES)}")
    return suffixes
