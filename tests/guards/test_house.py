"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import builtins
import graphlib
import importlib
import re
import subprocess
import sys
import unittest
from collections.abc import Iterator
from typing import Literal, get_origin

from openagentic_sdk import errors
from tests.size import full_size

from .source import (
    PACKAGE,
    ROOT,
    Module,
    forget_modules,
    functions_of,
    helpers_used_once,
    imports_of,
    lines_for_type_checkers,
    lines_of,
    nodes_of,
    ours_imported_by,
    package_modules,
    read_modules,
)

# From top to bottom as in DESIGN section 2, planned rooms included. Rooms in one row may not import each other; where the
# design has one row but one of its rooms is built on another, this table has two rows.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("server", "server.acp"),
    ("viewer",),
    ("evals", "fleet"),
    ("flows",),
    ("client", "agent"),
    ("runs",),
    ("api",),
    ("assemble",),
    ("agents",),
    ("options",),
    ("testing",),
    ("parts",),
    ("prompts",),
    ("parts.mcp",),
    ("permissions",),
    ("tools",),
    ("parts.project",),
    ("parts.record",),
    ("skills",),
    ("hooks",),
    ("kernel",),
    ("sessions",),
    ("providers",),
    ("ground.stdio",),
    ("ground.jsonrpc",),
    ("serialization",),
    ("events",),
    ("ground",),
    ("errors", "version"),
)
FLOOR = {room: len(LAYERS) - row for row, rooms in enumerate(LAYERS) for room in rooms}
# A driver may be imported only by the modules of its own store.
DRIVERS = {
    "redis": (f"{PACKAGE}.sessions.redis", f"{PACKAGE}.sessions.stores.redis."),
    "psycopg": (f"{PACKAGE}.sessions.postgres", f"{PACKAGE}.sessions.stores.postgres."),
    "psycopg_pool": (f"{PACKAGE}.sessions.stores.postgres.",),
}
MAX_FUNCTION_LINES = 60
MAX_METHODS = 35
MAX_ROOMS = 16
MAX_ENTRIES = 25
MAX_PRIVATE_PER_PUBLIC = 0.8
MAX_USED_ONCE = 0.14
# A signal between the loop and the code that drives it; callers receive a `result` event instead.
OPEN_SIGNALS = {f"{PACKAGE}.kernel.lifetime.RunStopped"}
# Code from the model sees our error's name in tracebacks but runs where the package cannot be imported: a second definition.
SHARED_CLASS_NAMES = {"ToolError"}
SLOW_TO_IMPORT = {"sqlite3", "http.client", "urllib.request", "ctypes", "difflib", "html", "tomllib"}


def tearDownModule() -> None:
    forget_modules()


class Layers(unittest.TestCase):
    def test_every_room_is_in_the_list_of_layers(self) -> None:
        rooms = {module.room for module in package_modules().values()} - {""}
        self.assertEqual(rooms - set(FLOOR), set())

    def test_a_newcomer_can_name_the_rooms(self) -> None:
        folders = {module.path.parent for module in package_modules().values()} - {ROOT / PACKAGE}
        self.assertLessEqual(sum(path.parent == ROOT / PACKAGE for path in folders), MAX_ROOMS)
        entries = {path: {entry for entry in path.iterdir() if entry.is_file() or entry in folders} for path in folders}
        full = {str(path): len(names) for path, names in entries.items() if len(names) > MAX_ENTRIES}
        self.assertEqual(full, {}, "split the folder into rooms")

    def test_imports_point_down(self) -> None:
        upward = [
            f"{module.path}:{line} imports {target}"
            for module in package_modules().values()
            for target, line in ours_imported_by(module)
            if not self._points_down(module.room, package_modules()[target].room)
        ]
        self.assertEqual(upward, [])

    def _points_down(self, room: str, target: str) -> bool:
        # The package re-exports names from every room, and every room may import the package itself.
        return "" in (room, target) or room == target or FLOOR[target] < FLOOR[room]

    @full_size
    def test_there_is_no_import_knot_even_inside_functions(self) -> None:
        graph = {
            module.name: {
                target
                for target, _ in ours_imported_by(module, at_run_time=True)
                if not module.name.startswith(target + ".")
            }
            for module in package_modules().values()
        }
        graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle

    def test_the_kernels_side_of_the_log_is_small_and_imports_no_feature(self) -> None:
        reached, waiting = set[str](), [f"{PACKAGE}.sessions.resume"]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += [found for found, _ in ours_imported_by(package_modules()[name])]
        log = [name for name in reached if name.split(".")[1] == "sessions"]
        self.assertEqual({name.partition(".folds.")[2] for name in log} - {""}, {"requests", "usage", "view"})
        lines = sum(len(package_modules()[name].path.read_bytes().splitlines()) for name in log)
        self.assertLessEqual(len(log), 14, sorted(log))
        self.assertLessEqual(lines, 2_900)

    @full_size
    def test_every_import_is_ours_or_the_standard_librarys(self) -> None:
        foreign = [
            f"{module.path}:{line} imports {name}"
            for module in [*package_modules().values(), *read_modules("examples")]
            for name, line in imports_of(module)
            if name.split(".")[0] not in {*sys.stdlib_module_names, PACKAGE}
            and line not in lines_for_type_checkers(module)
            and not (module.path.parent / f"{name.split('.')[0]}.py").exists()
            and not module.name.startswith(DRIVERS.get(name.split(".")[0], "-"))
        ]
        self.assertEqual(foreign, [])

    @full_size
    def test_only_documented_names_of_the_standard_library_are_used(self) -> None:
        found = [
            f"{module.path}:{line} uses {name}"
            for module in package_modules().values()
            for name, line in _private_names_used(module)
            if name not in _ALLOWED_PRIVATE_NAMES
        ]
        self.assertEqual(found, [])

    def test_every_benchmark_can_be_imported_with_the_standard_library_alone(self) -> None:
        foreign = [
            f"{module.path}:{line} imports {name}"
            for module in read_modules("benchmarks")
            for name, line in imports_of(module, top_level=True)
            if name.split(".")[0] not in {*sys.stdlib_module_names, PACKAGE, "benchmarks"}
        ]
        self.assertEqual(foreign, [])


class Startup(unittest.TestCase):
    def _loaded_by(self, *arguments: str) -> set[str]:
        # Without site-packages: what is installed there may load anything when an interpreter starts.
        command = [sys.executable, "-S", "-X", "importtime", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}

    def test_importing_the_package_loads_nothing_slow(self) -> None:
        self.assertEqual(self._loaded_by("-c", f"import {PACKAGE}") & SLOW_TO_IMPORT, set())

    @full_size
    def test_importing_what_everybody_needs_loads_nothing_slow(self) -> None:
        loaded = self._loaded_by("-c", f"from {PACKAGE} import OpenAgenticOptions, query, run")
        # shutil and tempfile load the compression modules.
        unneeded = {"shutil", "tempfile", "importlib.resources", "sysconfig", f"{PACKAGE}.tools.code"}
        self.assertEqual(loaded & {*SLOW_TO_IMPORT, *unneeded}, set())

    def test_the_help_text_loads_nothing_slow(self) -> None:
        self.assertEqual(self._loaded_by("-m", PACKAGE, "--help") & {*SLOW_TO_IMPORT, "asyncio"}, set())

    def test_no_driver_is_loaded_by_naming_the_stores(self) -> None:
        loaded = self._loaded_by("-c", f"import {PACKAGE}.sessions.store")
        self.assertEqual(loaded & set(DRIVERS), set())


class PublicNames(unittest.TestCase):
    def test_every_all_is_sorted(self) -> None:
        for module in package_modules().values():
            try:
                names = getattr(importlib.import_module(module.name), "__all__", None)
            except ModuleNotFoundError as error:
                self.assertIn((error.name or "").partition(".")[0], DRIVERS, module.name)
                continue
            if names is not None and module.path.name != "__main__.py":
                with self.subTest(module.name):
                    self.assertEqual(list(names), sorted(names))

    def test_every_public_name_exists_and_is_documented(self) -> None:
        package = importlib.import_module(PACKAGE)
        for name in package.__all__:
            with self.subTest(name):
                value = getattr(package, name)
                explains_itself = isinstance(value, str) or get_origin(value) is Literal
                self.assertTrue(explains_itself or (value.__doc__ or "").strip(), f"{name} has no docstring")

    def test_every_module_has_a_docstring(self) -> None:
        modules = [*package_modules().values(), *read_modules("examples"), *read_modules("benchmarks")]
        silent = [str(module.path) for module in modules if not ast.get_docstring(module.tree)]
        self.assertEqual(silent, [])


class Errors(unittest.TestCase):
    def _tree(self) -> dict[str, list[str]]:
        """The bases of each class according to the tree drawn in the docstring of `errors`."""
        bases: dict[str, list[str]] = {}
        above: list[str] = []
        for row in re.finditer(r"^ {4}((?:\|  )*(?:\|- )?)(\w+)(?: \((\w+)\))?", errors.__doc__ or "", re.MULTILINE):
            branches, name, builtin_base = row.groups()
            del above[len(branches) // 3 :]
            bases[name] = above[-1:] + ([builtin_base] if builtin_base else [])
            above.append(name)
        return bases

    def test_the_drawn_tree_is_the_real_one(self) -> None:
        real = {
            name: [base.__name__ for base in value.__bases__ if base is not Exception]
            for name, value in vars(errors).items()
            if isinstance(value, type) and issubclass(value, Exception)
        }
        self.assertEqual(self._tree(), real)

    @full_size
    def test_an_exception_outside_the_tree_is_a_signal_that_never_leaves_its_room(self) -> None:
        signals = {f"{module.name}.{name}": module.room for module, name in self._exceptions_elsewhere()}
        for module in package_modules().values():
            for name, line in imports_of(module):
                if name in signals and name not in OPEN_SIGNALS:
                    with self.subTest(f"{module.path}:{line}"):
                        self.assertEqual(module.room, signals[name], f"move {name} to errors.py")

    def _exceptions_elsewhere(self) -> Iterator[tuple[Module, str]]:
        known = {name for space in (builtins, errors) for name, value in vars(space).items() if _is_exception(value)}
        for module in package_modules().values():
            for node in nodes_of(module) if module.name != errors.__name__ else ():
                bases = node.bases if isinstance(node, ast.ClassDef) else ()
                if bases and known & {ast.unparse(base).rpartition(".")[2] for base in bases}:
                    yield module, node.name


# Documented in spite of their names; or types in the signatures of argparse's public functions in typeshed; or explained in
# docs/decisions/0005-helper-process.md.
_ALLOWED_PRIVATE_NAMES = {
    "os._exit", "sys._getframe", "_thread", "argparse._SubParsersAction", "argparse._ActionsContainer", "_socket",
}  # fmt: skip


def _private_names_used(module: Module) -> Iterator[tuple[str, int]]:
    """Names of the standard library that begin with an underscore, with the lines that use them."""
    modules: set[str] = set()
    for node in nodes_of(module):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names] if node.level == 0 else []
        for name in names:
            if name.partition(".")[0] in sys.stdlib_module_names and name.partition(".")[0] != "__future__":
                modules.add(name.partition(".")[0])
                if name.startswith("_") or "._" in name:
                    yield name.partition(".")[0] if name.startswith("_") else name, node.lineno
    for node in nodes_of(module):
        if isinstance(node, ast.Attribute) and node.attr[:1] == "_" and node.attr[1:2].isalpha():
            name = ast.unparse(node)
            if name.partition(".")[0] in modules:
                yield name, node.lineno


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


class Shape(unittest.TestCase):
    @full_size
    def test_no_function_is_too_long_to_hold(self) -> None:
        long = [
            f"{module.path}:{function.lineno} {function.name} has {lines_of(function)} lines"
            for module in package_modules().values()
            for function in functions_of(module)
            if lines_of(function) > MAX_FUNCTION_LINES
        ]
        self.assertEqual(long, [])

    def test_no_class_has_too_many_methods_to_know(self) -> None:
        large = [
            f"{module.path}:{node.lineno} {node.name} has {len(methods)} methods"
            for module in package_modules().values()
            if module.room != "testing"
            for node in nodes_of(module)
            if isinstance(node, ast.ClassDef)
            and len(methods := [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)])
            > MAX_METHODS
        ]
        self.assertEqual(large, [])

    @full_size
    def test_functions_are_whole_sentences_and_not_split_for_the_count(self) -> None:
        names = [function.name for module in package_modules().values() for function in functions_of(module)]
        private = sum(name.startswith("_") and not name.endswith("__") for name in names)
        public = sum(not name.startswith("_") for name in names)
        once = [
            f"{module.path}:{function.lineno} {function.name} ({lines_of(function)} lines)"
            for module, function in helpers_used_once()
        ]
        self.assertLessEqual(private, MAX_PRIVATE_PER_PUBLIC * public, f"{private} private, {public} public functions")
        self.assertLessEqual(len(once), MAX_USED_ONCE * len(names), f"of {len(names)} functions: " + "\n".join(once))

    def test_a_value_class_is_spelled_in_one_way(self) -> None:
        others = [
            f"{module.path}:{line} uses {name}"
            for module in package_modules().values()
            for name, line in imports_of(module)
            if name == "dataclasses.dataclass" and module.name != f"{PACKAGE}.ground.frozen"
        ]
        self.assertEqual(others, [])

    def test_no_two_classes_share_a_name_whether_private_or_not(self) -> None:
        places: dict[str, list[str]] = {}
        for module in package_modules().values():
            for node in nodes_of(module):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name.lstrip("_"), []).append(f"{module.name}:{node.lineno}")
        shared = {name: where for name, where in places.items() if len(where) > 1 and name not in SHARED_CLASS_NAMES}
        self.assertEqual(shared, {})

    def test_no_pattern_is_compiled_by_an_import(self) -> None:
        early = [
            f"{module.path}:{node.lineno}"
            for module in package_modules().values()
            for statement in module.tree.body
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            for node in ast.walk(statement)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
        ]
        self.assertEqual(early, [])

    @full_size
    def test_no_pattern_repeats_a_group_possessively(self) -> None:
        # Python before 3.11.5 handles it incorrectly (python/cpython#106052): write `(?>(?:...)*)` for `(?:...)*+`.
        texts = {
            f"{module.path}:{node.lineno}": node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            for module in package_modules().values()
            for node in nodes_of(module)
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        }
        found = [place for place, text in texts.items() if re.search(r"(?<![\\(])\)(?:[*+?]|\{\d*,?\d*\})\+", text)]
        self.assertEqual(found, [])

    def test_no_test_uses_mocks(self) -> None:
        mocked = [
            f"{path}:{number}"
            for path in (ROOT / "tests").rglob("*.py")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if re.match(r"\s*(import|from)\b.*\bmock\b", line)
        ]
        self.assertEqual(mocked, [])

    @full_size
    def test_no_test_sleeps_but_where_all_of_them_wait(self) -> None:
        sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
        sleeps = [
            f"{path}:{node.lineno} {ast.unparse(node)}"
            for path, source in sources.items()
            if path != ROOT / "tests" / "waiting.py" and "sleep(" in source
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep", "sleep")
            if ast.unparse(node) != "asyncio.sleep(0)"  # which only yields to other tasks
        ]
        self.assertEqual(sleeps, [], "wait for an event, or use tests.waiting")

    def test_every_test_folder_is_found_by_the_test_command(self) -> None:
        homeless = {
            path.parent for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()
        }
        self.assertEqual(homeless, set())


if __name__ == "__main__":
    unittest.main()
