"""Count what an example demands of its reader: python3 -m tests.examples.count_ports FOLDER prints the rows of
docs/from-*.md.

FOLDER contains the unpacked source distributions of claude-agent-sdk, openai-agents and pydantic-ai-examples, each as
NAME-VERSION. Only lines with code are counted, not blank lines, comments or docstrings; ours include their scripts. Names
are those imported from outside the standard library and outside the examples themselves.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PORTS = sorted((ROOT / "examples" / "ports").glob("*_*.py"))
PAGES = {
    "claude-agent-sdk": "from-claude-agent-sdk",
    "openai-agents": "from-openai-agents",
    "pydantic-ai": "from-pydantic-ai",
}
_HEAD = re.compile(r'"""([\w/.]+) of ([\w-]+) (\d+\.\d+\.\d+): ')
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count(source: str) -> tuple[int, int]:
    """The number of lines of code in a module, and of the foreign names that it imports."""
    tree, said = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_foreign(node.module or ""):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names if _is_foreign(alias.name))
    return len(lines - said), len(names)


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in {*sys.stdlib_module_names, "examples", "plays"}


def head(port: Path) -> tuple[str, str, str]:
    """The example that a port declares as its original: its path, the distribution, and its version."""
    found = _HEAD.match(port.read_text(encoding="utf-8"))
    assert found is not None, f"{port.name} names no example"
    return found[1], found[2], found[3]


def row(port: Path, theirs: tuple[int, int]) -> str:
    """The row of a port in its page."""
    ours = count(port.read_text(encoding="utf-8"))
    name = f"[{port.stem}](../examples/ports/{port.name})"
    return f"| `{head(port)[0]}` | {name} | {theirs[0]} / {ours[0]} | {theirs[1]} / {ours[1]} |"


def _print_rows(folder: Path) -> None:
    for port in PORTS:
        path, name, version = head(port)
        roots = (folder / f"{name.replace('-', '_')}-{version}", folder / f"pydantic_ai_examples-{version}")
        [source] = [found for root in roots for found in root.rglob(path.removeprefix("examples/")) if found.is_file()]
        print(name, row(port, count(source.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    _print_rows(Path(sys.argv[1]))
