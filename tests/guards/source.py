"""The package's source for the guards: modules, their syntax trees, and their imports, including those inside functions."""

from __future__ import annotations

import ast
import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "openagentic_sdk"
# Nested rooms with a layer of their own.
ROOMS_WITHIN = {"ground.jsonrpc", "ground.stdio", "parts.mcp", "parts.project", "parts.record", "server.acp"}


@dataclass(frozen=True)
class Module:
    """One source file. `name` is its dotted name."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree, parsed on first use: parsing the whole package takes seconds."""
        gc.disable()  # all nodes are kept, and scanning them for garbage would take most of the time
        try:
            return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))
        finally:
            gc.freeze()
            gc.enable()

    @property
    def room(self) -> str:
        """The room of the module: a folder or a top-level module of the package; empty for the package itself."""
        parts = self.name.split(".")[1:]
        within = ".".join(parts[:2])
        return within if within in ROOMS_WITHIN else ".".join(parts[:1])


@cache
def package_modules() -> dict[str, Module]:
    """All modules of the package by dotted name."""
    return {module.name: module for module in read_modules(PACKAGE)}


@cache
def read_modules(folder: str) -> tuple[Module, ...]:
    """All modules in a folder of the repository and below."""
    return tuple(_module(path) for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def modules_with(*words: str) -> tuple[Module, ...]:
    """The package's modules whose text contains at least one of the words."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    return tuple(_module(path) for path in paths if any(word in path.read_text(encoding="utf-8") for word in words))


@cache
def nodes_of(module: Module) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree except expression contexts (Load, Store, Del)."""
    nodes: list[ast.AST] = [module.tree]
    for node in nodes:  # the list grows during the loop; `ast.walk` takes three times as long
        for field in node._fields:
            value = None if field == "ctx" else getattr(node, field, None)
            if isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return tuple(nodes)


@cache
def _imports_in(module: Module) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(node for node in nodes_of(module) if isinstance(node, ast.Import | ast.ImportFrom))


def _module(path: Path) -> Module:
    return Module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path)


def forget_modules() -> None:
    """Release all trees: otherwise every later garbage collection in this process would scan a million objects."""
    for kept in (package_modules, read_modules, modules_with, nodes_of, _imports_in):
        kept.cache_clear()


def imports_of(module: Module, *, top_level: bool = False) -> Iterator[tuple[str, int]]:
    """The dotted names that a module imports, with their lines; relative names are resolved.

    With `top_level`, imports inside functions are left out.
    """
    for node in module.tree.body if top_level else _imports_in(module):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            for alias in node.names:
                yield (f"{base}.{alias.name}", node.lineno)


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    if module.path.name != "__init__.py":
        parts.pop()
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def ours_imported_by(module: Module, *, at_run_time: bool = False) -> Iterator[tuple[str, int]]:
    """The package's modules that a module imports, with line numbers; importing a name counts as importing its module.

    With `at_run_time`, imports under TYPE_CHECKING are left out.
    """
    known = package_modules()
    typed = lines_for_type_checkers(module) if at_run_time else frozenset()
    for name, line in imports_of(module):
        target = name if name in known else name.rpartition(".")[0]
        if target in known and target != module.name and line not in typed:
            yield target, line


def lines_for_type_checkers(module: Module) -> frozenset[int]:
    """The line numbers under `if TYPE_CHECKING`."""
    blocks = (
        node for node in nodes_of(module) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return frozenset(line for block in blocks for line in range(block.lineno, (block.end_lineno or 0) + 1))


def reach_of(name: str) -> dict[str, int]:
    """The import closure of a module, itself and imports inside functions included, with its lines of code and docstrings.

    Lines that are only a comment do not count, or a limit on lines would be a limit on explanations.
    """
    known, found, waiting = package_modules(), dict[str, int](), [name]
    while waiting:
        module = known[waiting.pop()]
        if module.name not in found:
            lines = module.path.read_text(encoding="utf-8").splitlines()
            found[module.name] = sum(not line.lstrip().startswith("#") for line in lines)
            waiting += [target for target, _ in ours_imported_by(module, at_run_time=True)]
    return found


def functions_of(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a module, including methods and nested functions."""
    return (node for node in nodes_of(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of lines of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    first = body[0].lineno if body else function.lineno
    return (function.end_lineno or first) - first + 1


def helpers_used_once() -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The private module-level functions that their own module uses once and no other module imports."""
    elsewhere = {name for module in package_modules().values() for name, _ in imports_of(module)}
    for module in package_modules().values():
        named = Counter(getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes_of(module))
        for node in module.tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("_"):
                continue
            if named[node.name] == 1 and f"{module.name}.{node.name}" not in elsewhere:
                yield module, node
