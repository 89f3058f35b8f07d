"""Names for kinds of files, as Glob and Grep take them in `type`, and the endings of their names."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import ToolInputError

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
    """The endings that belong to a type. Raises `ToolInputError` for a type that is not known."""
    suffixes = FILE_TYPES.get(_OTHER_NAMES.get(name, name))
    if suffixes is None:
        raise ToolInputError(f"there is no file type {name!r}: use a glob pattern, or one of {', '.join(FILE_TYPES)}")
    return suffixes
