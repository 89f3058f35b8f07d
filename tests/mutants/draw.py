"""Draw mutants of the rooms on which safety depends: the operators of mutmut, and two of our own.

mutmut's own runner needs pytest and skips properties, so only its operators are used. A mutant is drawn by the digest of
its change: a commit elsewhere in the code leaves the sample unchanged.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).parent.parent.parent
PACKAGE = "openagentic_sdk"


class Room(NamedTuple):
    """Files of the package, and the folders of tests that must notice changes in them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "kernel": Room(("kernel/*.py",), ("runtime", "hooks", "parts", "runs")),
    "events": Room(
        ("events.py", "serialization.py", "sessions/rebuild.py", "sessions/folds/view.py"),
        ("sessions", "runtime", "durability", "parts", "runs"),
    ),
    "log": Room(("sessions/log/*.py", "sessions/store.py"), ("durability", "stores", "sessions", "record")),
    "permissions": Room(("permissions/**/*.py",), ("permissions", "security", "hooks", "runtime", "project")),
    "stores": Room(
        ("sessions/memory.py", "sessions/sqlite.py", "sessions/stores/*.py", "sessions/stores/sqlite/*.py"),
        ("stores", "durability", "record", "fleet"),
    ),
    "record": Room(
        ("parts/record/*.py", "parts/masking.py", "parts/undo.py"), ("record", "sessions", "security", "stores")
    ),
    "labels": Room(("parts/labels/**/*.py",), ("labels",)),
    "fleet": Room(("fleet/*.py",), ("fleet",)),
}
# These reveal nothing about behaviour: calls that mypy checks, and numbers of entries.
UNTOUCHED_CALLS = {"cast", "isinstance", "len", "TypeVar"}


class Mutant(NamedTuple):
    """One changed place. `before` and `after` are the lines that differ, without their indentation."""

    key: str
    room: str
    file: str
    function: str
    line: int
    last_line: int
    before: str
    after: str
    code: str


def functions_by_line(code: str) -> dict[int, str]:
    """The qualified name of the innermost function around each line."""
    names: dict[int, str] = {}

    def walk(node: ast.AST, name: str, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own = f"{name}.{child.name}".strip(".")
                is_function = inside or not isinstance(child, ast.ClassDef)
                if is_function and child.end_lineno is not None:
                    names.update(dict.fromkeys(range(child.lineno, child.end_lineno + 1), own))
                walk(child, own, is_function)
            else:
                walk(child, name, inside)

    walk(ast.parse(code), "", False)
    return names


def leave_out_call(node: cst.Expr) -> Iterator[cst.BaseSmallStatement]:
    """Replace a statement that only calls something by `pass`."""
    called = node.value.expression if isinstance(node.value, cst.Await) else node.value
    if isinstance(called, cst.Call):
        yield cst.Pass()


def turn_condition(node: cst.If) -> Iterator[cst.If]:
    """Negate the condition of an `if` that no other operator changes."""
    if not isinstance(node.test, (cst.Comparison, cst.UnaryOperation, cst.BooleanOperation)):
        test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


OPERATORS = (*mutation_operators, (cst.Expr, leave_out_call), (cst.If, turn_condition))


def _has_words(node: cst.CSTNode) -> bool:
    """Whether a node is a string for people: it contains blanks, or names a thread. UTF-8 is the default where tests run."""
    if isinstance(node, cst.SimpleString):
        return bool(re.search(r'\s|^"openagentic-(?!sdk)|^"utf-8"', node.value))
    if isinstance(node, cst.FormattedString):
        return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts)
    return isinstance(node, cst.ConcatenatedString)


def _is_windows(node: cst.If) -> bool:
    """`if sys.platform == "win32":`, whose body the tests do not run on Linux."""
    test = node.test
    left = test.left if isinstance(test, cst.Comparison) else None
    return isinstance(left, cst.Attribute) and left.attr.value == "platform"


def _is_number_of_event(node: cst.CSTNode) -> bool:
    """`event.seq or 0`: each event in a log has its number, so that the 0 is only for the type checker."""
    is_or = isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or)
    return is_or and isinstance(node.left, cst.Attribute) and node.left.attr.value == "seq"


def _sentences(node: cst.CSTNode) -> int:
    return _has_words(node) or sum(map(_sentences, node.children))


class _Places(cst.CSTVisitor):
    """Collects each change that an operator makes inside a function."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, cst.CSTNode, int, int]] = []
        self._functions = self._windows = 0
        self._statements: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        is_call = isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in UNTOUCHED_CALLS
        if isinstance(node, (cst.Annotation, cst.Decorator)) or is_call or _has_words(node):
            return False
        if isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            self._statements.append(node)
        self._functions += isinstance(node, cst.FunctionDef)
        if self._functions and not self._windows and not isinstance(node, cst.FunctionDef):
            self._change(node)
        return not _is_number_of_event(node)

    def on_leave(self, node: cst.CSTNode) -> None:
        self._functions -= isinstance(node, cst.FunctionDef)
        if self._statements and self._statements[-1] is node:
            self._statements.pop()

    def visit_If_body(self, node: cst.If) -> None:
        self._windows += _is_windows(node)

    def leave_If_body(self, node: cst.If) -> None:
        self._windows -= _is_windows(node)

    def _change(self, node: cst.CSTNode) -> None:
        around = self.get_metadata(PositionProvider, self._statements[-1])
        where = self.get_metadata(PositionProvider, node, around)
        last = where.start.line if isinstance(node, cst.BaseCompoundStatement) else where.end.line
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                changes = self._kept(node, operator(node))
                self.found += [(self._statements[0], node, changed, where.start.line, last) for changed in changes]

    def _kept(self, node: cst.CSTNode, changes: Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        """Drop changes of the wording of a sentence, and keep one change of a name or key instead of three."""
        for number, changed in enumerate(changes):
            if isinstance(node, cst.BaseString) and number:
                return
            if isinstance(node, (cst.Expr, cst.If)) or _sentences(node) == _sentences(changed):
                yield changed


class Change(NamedTuple):
    """A change of a node, which is not written into the code before the mutant is drawn."""

    key: str
    file: str
    function: str
    module: cst.Module
    statement: cst.CSTNode
    node: cst.CSTNode
    changed: cst.CSTNode
    first: int
    last: int


def changes_of(file: str, code: str) -> Iterator[Change]:
    """All changes that can be made in a file."""
    functions = functions_by_line(code)
    wrapper = MetadataWrapper(cst.parse_module(code))
    places = _Places()
    wrapper.visit(places)
    seen, module = Counter[str](), wrapper.module
    for statement, node, changed, first, last in places.found:
        what = f"{file}\n{functions[first]}\n{module.code_for_node(node)}\n{module.code_for_node(changed)}"
        seen[what] += 1
        key = hashlib.sha256(f"{what}\n{seen[what]}".encode()).hexdigest()
        yield Change(key, file, functions[first], module, statement, node, changed, first, last)


def mutant_of(room: str, change: Change) -> Mutant | None:
    """The changed code; None if it means the same to Python."""
    replaced = change.statement.deep_replace(change.node, change.changed)
    assert isinstance(replaced, cst.CSTNode)
    old, new = map(change.module.code_for_node, (change.statement, replaced))
    if ast.dump(ast.parse(old)) == ast.dump(ast.parse(new)):
        return None
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=0))[3:]
    before, after = (" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    code = change.module.code.replace(old, new, 1)
    return Mutant(change.key[:12], room, change.file, change.function, change.first, change.last, before, after, code)


def draw(count: int, seed: int, rooms: Iterable[str] = ROOMS) -> tuple[list[Mutant], int]:
    """Draw `count` mutants at random from all rooms together; return also the number of all mutants."""
    found = [
        (room, change)
        for room in rooms
        for pattern in ROOMS[room].files
        for path in sorted((ROOT / PACKAGE).glob(pattern))
        for change in changes_of(str(path.relative_to(ROOT / PACKAGE)), path.read_text())
    ]
    order = heapq.nsmallest(
        count + count // 5, found, key=lambda one: hashlib.sha256(f"{seed} {one[1].key}".encode()).digest()
    )
    written = (mutant for room, change in order if (mutant := mutant_of(room, change)))
    return list(islice(written, count)), len(found)
