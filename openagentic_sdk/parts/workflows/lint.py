"""Find, without running it, what can make the body of a workflow behave differently when it is replayed.

`lint.json` lists calls and reads by their full names; this module resolves imports, aliases and simple values to such
names. It checks functions decorated with `workflow`, functions that take a `Flow`, and what they call in the same module.
The function passed to `flow.step` runs once and is recorded, so it may do all of this. A name that cannot be resolved is
ignored. `# workflow: allow` allows everything on its line, `# workflow: allow clock, files` only these kinds.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from ...errors import OptionsError
from ...ground.disk import read_regular
from ...ground.frozen import frozen, mutable
from ...ground.packaged import read_packaged
from ...ground.patterns import regex
from .tables import without_tables

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_ALLOWANCE = regex(r"#\s*workflow:\s*allow\b[ \t]*((?:[a-z]+\s*,\s*)*[a-z]+)?")
# One of them is in every file with a workflow.
_NAMES = regex(r"workflow|Flow")
_ERROR_NAME = regex(r"(?:Error|Exception|Warning|Timeout)\Z")
_CLASS_NAME = regex(r"(?:.*\.)?_?[A-Z]\w*\Z")
# Values are named after the call that creates them: `pathlib.Path()` is a path, `set()` a set, `flow()` a Flow.
_PATH, _SET, _FLOW = "pathlib.Path()", "set()", "flow()"
_MAX_BYTES = 4 << 20
_MAX_WHOLE_BYTES = 1 << 18  # a longer file is parsed without its tables


@frozen
class LintFinding:
    """One finding. `line` and `column` count from 1; `function` contains it, and `workflow` is the body that calls it."""

    path: str
    line: int
    column: int
    kind: str
    message: str
    function: str = ""
    workflow: str = ""

    def __str__(self) -> str:
        called = f" (in {self.function}, called by {self.workflow})" if self.function != self.workflow else ""
        return f"{self.path}:{self.line}:{self.column}: {self.kind}: {self.message}{called}"


@frozen
class LintReport:
    """The findings. `workflows` are the functions that were checked, as `path:name`; `files` is the number of files."""

    findings: tuple[LintFinding, ...] = ()
    workflows: tuple[str, ...] = ()
    files: int = 0


@frozen
class _LintRule:
    kind: str
    does: str
    instead: str
    arguments: int = 0
    """A call with at least this many arguments is harmless; 0 means that no call is."""


def _read_rules(table: Sequence[Mapping[str, Any]]) -> tuple[dict[str, _LintRule | None], dict[str, _LintRule]]:
    """The rules for calls (None if harmless) and for reads, by full name."""
    calls: dict[str, _LintRule | None] = {}
    reads: dict[str, _LintRule] = {}
    for row in table:
        about = (row["kind"], row["does"], row["instead"])
        for pattern in row["calls"]:
            name, _, arguments = pattern.partition("<")
            calls[name] = _LintRule(*about, int(arguments or 0))
        calls.update(dict.fromkeys(row.get("fine", ()), None))
        reads.update(dict.fromkeys(row.get("reads", ()), _LintRule(*about)))
    return calls, reads


def _by_name(groups: Mapping[str, str]) -> dict[str, str]:
    return {name: group for group, names in groups.items() for name in names.split()}


_TABLE = json.loads(read_packaged(__spec__, "lint.json"))
_CALLS, _READS = _read_rules(_TABLE["rules"])
# The value that a call of this name returns, and the value of a parameter with this annotation.
_MADE_BY, _TYPES = _by_name(_TABLE["made_by"]), _by_name(_TABLE["typed_as"])
# Callables that keep the order of their input, those whose result is independent of the order, those that call a function,
# and decorators that leave a function unchanged.
_ORDERED, _UNORDERED, _CALLING, _TRANSPARENT = (
    frozenset(_TABLE[key].split()) for key in ("ordered", "unordered", "calling", "transparent")
)
KINDS = frozenset({"order", *(rule.kind for rule in _CALLS.values() if rule)})


def _rule_for(name: str, arguments: int) -> _LintRule | None:
    """The rule against a call of this name: its own, or that of its longest prefix with a rule; None if it is harmless."""
    rule, head = _CALLS.get(name), name
    while name not in _CALLS and "." in head:
        head, _, tail = head.rpartition(".")
        # A method of a value, such as `set().pop`: a rule for the module of the class does not apply to it.
        if "()" in tail:
            return None
        if f"{head}.*" in _CALLS:
            rule = _CALLS[f"{head}.*"]
            break
    if rule is None or _ERROR_NAME.search(name) or (rule.arguments and arguments >= rule.arguments):
        return None
    return rule


@frozen
class _Local:
    """A function or a class of the file (or an instance of it), the scope of its names, and the class that it belongs to."""

    node: _FunctionNode | ast.Lambda | ast.ClassDef
    scope: _Scope
    owner: _Local | None = None

    @property
    def name(self) -> str:
        name = "lambda" if isinstance(self.node, ast.Lambda) else self.node.name
        return f"{self.owner.name}.{name}" if self.owner else name


_InferredValue = str | _Local | None


@mutable
class _Scope:
    """Names and their values, if known; `stars` are the modules of `from module import *`."""

    above: _Scope | None = None
    names: dict[str, _InferredValue] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    def look_up(self, name: str) -> _InferredValue:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            for star in scope.stars:
                # With a single star import, every unknown name that is not a builtin must come from it.
                is_only = len(scope.stars) == 1 and f"{star}.*" in _CALLS and not hasattr(builtins, name)
                if is_only or f"{star}.{name}" in _CALLS or f"{star}.{name}" in _READS:
                    return f"{star}.{name}"
            scope = scope.above
        return f"builtins.{name}"


# --- files -----------------------------------------------------------------------------------------------------------


def check_paths(paths: Iterable[str | os.PathLike[str]]) -> LintReport:
    """Check files, and all `*.py` below folders; nothing is imported or run. Raises `OptionsError` for a missing path."""
    files = dict.fromkeys(file for path in paths for file in _files_below(Path(path)))
    reports = [_check_file(file) for file in files]
    return LintReport(
        tuple(finding for report in reports for finding in report.findings),
        tuple(name for report in reports for name in report.workflows),
        len(reports),
    )


def _files_below(path: Path) -> Iterator[Path]:
    """Yield the file itself, or a folder's Python files, except in hidden folders, environments and installed packages."""
    if not path.exists():
        raise OptionsError(f"{str(path)!r} does not exist: name a Python file or a folder")
    if not path.is_dir():
        yield path
        return
    for folder, names, files in os.walk(path):
        left_out = [
            name for name in names if name.startswith(".") or name in ("__pycache__", "node_modules", "site-packages")
        ]
        names[:] = sorted(
            {*names} - {*left_out} - {name for name in names if Path(folder, name, "pyvenv.cfg").exists()}
        )
        yield from (
            Path(folder, name) for name in sorted(files) if name.endswith(".py") and Path(folder, name).is_file()
        )


def _check_file(path: Path) -> LintReport:
    try:
        return check_source(read_regular(path, _MAX_BYTES), str(path))
    except (OSError, ValueError) as error:
        return LintReport((LintFinding(str(path), 1, 1, "unreadable", str(error)),), files=1)


def check_source(source: bytes, path: str = "<source>") -> LintReport:
    """Check the source of one module. A source that cannot be parsed is a finding, not an error."""
    try:
        module = _Module(source, path)
        return LintReport(tuple(module.check()), tuple(f"{path}:{name}" for name in module.workflows), 1)
    except SyntaxError as error:
        finding = LintFinding(path, error.lineno or 1, error.offset or 1, "unreadable", f"not Python: {error.msg}")
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:  # null bytes, or malicious nesting
        finding = LintFinding(path, 1, 1, "unreadable", f"cannot be parsed: {str(error) or type(error).__name__}")
    return LintReport((finding,), files=1)


class _Module:
    def __init__(self, source: bytes, path: str) -> None:
        self.path = path
        self.workflows: list[str] = []
        is_whole = len(source) <= _MAX_WHOLE_BYTES
        self._tree = ast.parse(source if is_whole else b"", path)
        encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        text = io.TextIOWrapper(io.BytesIO(source), encoding).read()
        # Not `splitlines`, which also splits at form feeds and U+2028: the numbers would differ from those of `ast`.
        self._lines = text.split("\n")
        if not is_whole and (_NAMES.search(text) or not text.isascii()):  # whose names Python normalizes
            self._tree = ast.parse(without_tables(text), path)
        self._findings: dict[tuple[int, int, str], LintFinding] = {}
        self._allowed = {
            token.start[0]: frozenset((match[1] or "").replace(",", " ").split())
            for token in (tokenize.tokenize(io.BytesIO(source).readline) if _ALLOWANCE.search(text) else ())
            if token.type == tokenize.COMMENT and (match := _ALLOWANCE.search(token.string))
        }

    def check(self) -> list[LintFinding]:
        """Check the module; return all findings, in the order of the file."""
        self._discover(self._tree.body, _Scope(), None)
        for line, kinds in self._allowed.items():
            for kind in sorted(kinds - KINDS):
                kind_names = ", ".join(sorted(KINDS))
                message = f"there is no kind {kind!r} to allow: the kinds are {kind_names}"
                self._findings[line, 1, message] = LintFinding(self.path, line, 1, "allow", message)
        return [self._findings[key] for key in sorted(self._findings)]

    def _discover(self, body: Sequence[ast.stmt], scope: _Scope, owner: _Local | None) -> None:
        """Bind the names of a body, then check the workflows that are defined in it, at any depth."""
        reader = _Body(self, scope)
        for statement in body:
            reader.visit(statement)
        for node in _definitions(body):
            local = _Local(node, scope, owner)
            if isinstance(node, ast.ClassDef):
                self._discover(node.body, _Scope(scope), local)
                continue
            if reader.is_workflow(node):
                self.workflows.append(local.name)
                _Body(self, scope, local.name, local.name).follow(local, None)
            inner = _function_scope(node, scope)
            reader.bind_arguments(node, inner, owner, None)
            self._discover(node.body, inner, None)

    def note(self, node: ast.expr, kind: str, message: str, function: str, workflow: str) -> None:
        """Add one finding, unless a comment on its first or last line allows it."""
        for line in (node.lineno, node.end_lineno or node.lineno):
            if (kinds := self._allowed.get(line)) is not None and (not kinds or kind in kinds):
                return
        text = self._lines[node.lineno - 1] if node.lineno <= len(self._lines) else ""
        # `ast` counts columns in bytes of UTF-8, and editors count characters.
        column = len(text.encode()[: node.col_offset].decode(errors="replace")) + 1
        finding = LintFinding(self.path, node.lineno, column, kind, message, function, workflow)
        # Several workflows may call the same function: its findings are reported once, for the first of them.
        self._findings.setdefault((node.lineno, column, message), finding)


def _definitions(body: Sequence[ast.stmt]) -> Iterator[_FunctionNode | ast.ClassDef]:
    """Yield the functions and classes that these statements define, even in `if`, `try` etc., but not those inside them."""
    for statement in body:
        if isinstance(statement, _FunctionNode | ast.ClassDef):
            yield statement
            continue
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):
                yield from _definitions([inner])
            elif isinstance(inner, ast.ExceptHandler | ast.match_case):
                yield from _definitions(inner.body)


def _arguments(node: _FunctionNode | ast.Lambda) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _function_scope(node: _FunctionNode | ast.Lambda, above: _Scope) -> _Scope:
    """A scope in which every name that the function binds is unknown, so that it hides outer names."""
    scope, body = _Scope(above), [node.body] if isinstance(node, ast.Lambda) else node.body
    extra = [argument for argument in (node.args.vararg, node.args.kwarg) if argument]
    scope.names.update((argument.arg, None) for argument in [*_arguments(node), *extra])
    waiting: list[ast.AST] = list(body)
    elsewhere: set[str] = set()
    while waiting:
        each = waiting.pop()
        match each:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.ExceptHandler(name=str(name)):
                scope.names[name] = None
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                scope.names[name] = None
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                elsewhere.update(names)
        if isinstance(each, _FunctionNode | ast.ClassDef):
            scope.names[each.name] = None
        elif not isinstance(each, ast.Lambda):
            waiting.extend(ast.iter_child_nodes(each))
    for name in elsewhere:
        scope.names.pop(name, None)
    return scope


# --- one body --------------------------------------------------------------------------------------------------------


class _Body(ast.NodeVisitor):
    """A reader of statements, in order. Without a `workflow`, it only binds names and reports nothing."""

    def __init__(self, module: _Module, scope: _Scope, function: str = "", workflow: str = "") -> None:
        self._module = module
        self._scope = scope
        self._function = function
        self._workflow = workflow
        self._seen: set[object] = set()
        self._unordered: set[ast.expr] = set()

    def is_workflow(self, node: _FunctionNode) -> bool:
        decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
        return any(_is_ours(self.infer(each), "workflow") for each in decorators) or any(
            self.type_of(argument.annotation) == _FLOW for argument in _arguments(node)
        )

    # The values of names and expressions.

    def infer(self, node: ast.expr | None) -> _InferredValue:
        """The full name of an expression's value, or the function or class of this file; None if unknown."""
        match node:
            case ast.Name(id=name):
                return self._scope.look_up(name)
            case ast.Attribute(value=value, attr=attr):
                return self._attribute(self.infer(value), attr)
            case ast.Call():
                return self._result(node)
            case ast.Lambda():
                return _Local(node, self._scope)
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                return self.infer(value)
            case ast.IfExp(body=first, orelse=second):
                return self.infer(first) or self.infer(second)
            case ast.BoolOp(values=values):
                return next((result for value in values if (result := self.infer(value))), None)
            case ast.Set(elts=elements):
                # Hashes of integers are the same in every process, unlike those of strings (PYTHONHASHSEED).
                is_numbers = all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in elements)
                return None if is_numbers else _SET
            case ast.SetComp():
                return _SET
            case ast.BinOp(left=left, op=ast.Div()):
                return _PATH if self.infer(left) == _PATH else None
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return _SET if self._is_set_like(left) or self._is_set_like(right) else None
        return None

    def _is_set_like(self, node: ast.expr) -> bool:
        # `keys()` and `items()` combined with an operator are a set; without one they keep the order of the dict.
        is_view = (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")
        )
        return is_view or self.infer(node) == _SET

    def _attribute(self, base: _InferredValue, attr: str) -> _InferredValue:
        if isinstance(base, _Local):
            return self._member(base, attr, 0)
        if base is None or base == _FLOW:
            return None
        return _MADE_BY.get(f"{base}.{attr}", f"{base}.{attr}") if attr == "parent" else f"{base}.{attr}"

    def _member(self, owner: _Local, name: str, depth: int) -> _Local | None:
        """A method of a class of this file, or of its bases in this file, or None."""
        if not isinstance(owner.node, ast.ClassDef) or depth > 20:
            return None
        for node in _definitions(owner.node.body):
            if node.name == name:
                return _Local(node, owner.scope, owner)
        bases = (self.infer(base) for base in owner.node.bases)
        return next(
            (member for base in bases if isinstance(base, _Local) and (member := self._member(base, name, depth + 1))),
            None,
        )

    def _result(self, call: ast.Call) -> _InferredValue:
        callee, first = self.infer(call.func), call.args[0] if call.args else None
        if isinstance(callee, _Local):
            if isinstance(callee.node, ast.ClassDef):
                return callee
            return None if isinstance(callee.node, ast.Lambda) else self.type_of(callee.node.returns)
        if callee in ("builtins.getattr", "functools.partial", "importlib.import_module", "builtins.__import__"):
            attribute = call.args[1] if callee == "builtins.getattr" and len(call.args) > 1 else first
            text = attribute.value if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str) else None
            if callee == "builtins.getattr":
                return None if text is None else self._attribute(self.infer(first), text)
            return self.infer(first) if callee == "functools.partial" else text
        if callee is None or callee in _MADE_BY:
            return None if callee is None else _MADE_BY[callee]
        # The value of a call that is a finding is unknown, so that it causes no second finding.
        is_found = self._workflow and _rule_for(callee, len(call.args) + len(call.keywords))
        return None if is_found or not _CLASS_NAME.match(callee) else f"{callee}()"

    def type_of(self, annotation: ast.expr | None, depth: int = 0) -> _InferredValue:
        """The value of a parameter or variable with this annotation; None if unknown."""
        match annotation:
            case ast.Constant(value=str(text)) if depth < 5:
                try:
                    return self.type_of(ast.parse(text, mode="eval").body, depth + 1)
                except (SyntaxError, ValueError):
                    return None
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.type_of(left, depth) or self.type_of(right, depth)
            case ast.Subscript(value=value, slice=inner):
                name = self.infer(value)
                if name in ("typing.Optional", "typing.Annotated", "typing.Final", "typing.ClassVar"):
                    return self.type_of(inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner, depth)
                return self.type_of(value, depth)
            case ast.Name() | ast.Attribute():
                name = self.infer(annotation)
                if isinstance(name, _Local):
                    return name if isinstance(name.node, ast.ClassDef) else None
                if name is None or name in _TYPES or _is_ours(name, "Flow"):
                    return _FLOW if _is_ours(name, "Flow") else _TYPES[name] if name else None
                return f"{name}()" if _CLASS_NAME.match(name) else None
        return None

    # Statements that bind names.

    def bind_arguments(
        self, node: _FunctionNode | ast.Lambda, scope: _Scope, owner: _Local | None, call: ast.Call | None
    ) -> None:
        """Bind parameters: by their annotations, by a call's arguments, `self`, and the Flow of a decorated function."""
        arguments = _arguments(node)
        for argument in arguments:
            scope.names[argument.arg] = self.type_of(argument.annotation)
        positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        if owner is not None and positional and not (isinstance(node, _FunctionNode) and _has(node, "staticmethod")):
            scope.names[positional.pop(0)] = owner
        if isinstance(node, _FunctionNode) and call is None and self.is_workflow(node) and positional:
            scope.names[positional[0]] = scope.names[positional[0]] or _FLOW
        if call is not None:
            keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            # After a starred argument, the positions of the others are unknown.
            plain = [] if any(isinstance(value, ast.Starred) for value in call.args) else call.args
            for name, value in [*zip(positional, plain, strict=False), *keywords.items()]:
                if name in scope.names:
                    scope.names[name] = self.infer(value) or scope.names[name]

    def _bind(self, target: ast.expr, value: _InferredValue) -> None:
        if isinstance(target, ast.Name):
            self._scope.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(element.value if isinstance(element, ast.Starred) else element, None)
        else:
            self.visit(target)

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            head = each.name.partition(".")[0]
            self._scope.names[each.asname or head] = each.name if each.asname else head

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = "." * node.level + (node.module or "")
        for each in node.names:
            if each.name == "*":
                self._scope.stars.append(source)
            else:
                self._scope.names[each.asname or each.name] = f"{source}.{each.name}"

    def visit_Assign(self, node: ast.Assign) -> None:
        # A lambda is checked where it is called: only naming it does nothing.
        if not isinstance(node.value, ast.Lambda):
            self.visit(node.value)
        value = self.infer(node.value)
        for target in node.targets:
            is_pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            if is_pairs and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                for one, other in zip(target.elts, node.value.elts, strict=True):  # type: ignore[attr-defined]
                    self._bind(one, self.infer(other))
            else:
                self._bind(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not isinstance(node.value, ast.Lambda):
            self.visit(node.value)
        self._bind(node.target, self.infer(node.value) or self.type_of(node.annotation))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target, self.infer(node.value))

    def _visit_definition(self, node: _FunctionNode | ast.ClassDef) -> None:
        for each in node.decorator_list:
            self.visit(each)
        if isinstance(node, _FunctionNode):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        self._scope.names[node.name] = _Local(node, self._scope)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_definition

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.follow(_Local(node, self._scope), None)

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, self.infer(item.context_expr))
        for statement in node.body:
            self.visit(statement)

    visit_With = visit_AsyncWith = _visit_with

    # Statements and expressions that are executed.

    def _note(self, node: ast.expr, kind: str, message: str) -> None:
        if self._workflow:
            self._module.note(node, kind, message, self._function, self._workflow)

    def _note_order(self, node: ast.expr) -> None:
        if self.infer(node) == _SET:
            source = _shown(node)
            self._note(node, "order", f"{source} is a set, whose order differs between processes: use sorted(...)")

    def _note_read(self, node: ast.Name | ast.Attribute) -> bool:
        name = self.infer(node)
        rule = _READS.get(name) if isinstance(name, str) and isinstance(node.ctx, ast.Load) else None
        if rule is not None:
            self._note(node, rule.kind, f"{_shown(node)} {rule.does}: use {rule.instead}")
        return rule is not None

    def visit_Name(self, node: ast.Name) -> None:
        self._note_read(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._note_read(node):
            self.visit(node.value)

    def _visit_for(self, node: ast.For | ast.AsyncFor) -> None:
        self._note_order(node.iter)
        self.visit(node.iter)
        self._bind(node.target, None)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    visit_For = visit_AsyncFor = _visit_for

    def visit_Starred(self, node: ast.Starred) -> None:
        self._note_order(node.value)
        self.visit(node.value)

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        # The result has no order, so that of its source is harmless, unless it is awaited: then steps are created in
        # that order.
        is_set = isinstance(node, ast.SetComp) and not any(isinstance(each, ast.Await) for each in ast.walk(node))
        outside, self._scope = self._scope, _Scope(self._scope)
        for part in node.generators:
            if not is_set and node not in self._unordered:
                self._note_order(part.iter)
            self.visit(part.iter)
            self._bind(part.target, None)
            for condition in part.ifs:
                self.visit(condition)
        for element in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(element)
        self._scope = outside

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def visit_Call(self, node: ast.Call) -> None:
        func, callee = node.func, self.infer(node.func)
        if isinstance(func, ast.Attribute) and self.infer(func.value) == _FLOW:
            self._visit_flow_call(node, func.attr)
            return
        if isinstance(callee, _Local):
            self.follow(callee, node)
        elif callee is not None:
            self._check_call(func, callee, node)
        if isinstance(func, ast.Attribute) and func.attr in ("join", "extend") and node.args:
            self._note_order(node.args[0])
        if not isinstance(func, ast.Name):
            self.visit(func.value if isinstance(func, ast.Attribute) and not self._note_read(func) else func)
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(value)

    def _visit_flow_call(self, node: ast.Call, method: str) -> None:
        """Check a call of a Flow's method. A step's function may do anything; other functions are part of the body."""
        arguments = list(node.args)
        if method == "step" and arguments:
            function = arguments.pop(0)
            while isinstance(function, ast.Call) and self.infer(function.func) == "functools.partial" and function.args:
                arguments += [*function.args[1:], *(keyword.value for keyword in function.keywords)]
                function = function.args[0]
            # An expression that computes the step's function is evaluated by the body itself.
            if not isinstance(function, ast.Name | ast.Attribute | ast.Lambda):
                arguments.append(function)
        for value in (*arguments, *(keyword.value for keyword in node.keywords)):
            if method in ("gather", "map"):
                self._note_order(value)
            self._follow_reference(value)
            self.visit(value)

    def _check_call(self, func: ast.expr, callee: str, call: ast.Call) -> None:
        rule = _rule_for(callee, len(call.args) + len(call.keywords))
        if rule is not None:
            source, name = f"{_shown(func)}()", f"{callee.removeprefix('builtins.')}()"
            spelling = source if source == name else f"{source}, which is {name},"
            self._note(call, rule.kind, f"{spelling} {rule.does}: use {rule.instead}")
        last = callee.rpartition(".")[2]
        if callee == f"{_SET}.pop" and isinstance(func, ast.Attribute):
            self._note_order(func.value)
        is_known = callee.startswith(
            ("builtins.", "itertools.", "functools.", "collections.", "dataclasses.", "pydantic.")
        )
        if is_known and last in _ORDERED:
            for value in call.args:
                self._note_order(value)
        if is_known and last in _UNORDERED:
            self._unordered.update(call.args)
        if is_known and last in _CALLING:
            for value in (*call.args, *(keyword.value for keyword in call.keywords)):
                self._follow_reference(value)

    def _follow_reference(self, node: ast.expr) -> None:
        """Check a function that is passed, by name, to another one that calls it."""
        value = self.infer(node) if isinstance(node, ast.Name | ast.Attribute) else None
        if isinstance(value, _Local) and not isinstance(value.node, ast.ClassDef):
            self.follow(value, None)
        elif isinstance(value, str) and (rule := _rule_for(value, 0)):
            self._note(node, rule.kind, f"{_shown(node)} {rule.does}: use {rule.instead}")

    def follow(self, local: _Local, call: ast.Call | None) -> None:
        """Check the code that a call of a function of this file runs; one that a decorator may replace is skipped."""
        node = local.node
        if isinstance(node, ast.ClassDef):
            self._follow_class(local, call)
            return
        is_root = local.name == self._function == self._workflow and not self._seen
        if isinstance(node, _FunctionNode) and not is_root and (self.is_workflow(node) or not _is_transparent(node)):
            return
        scope = _function_scope(node, local.scope)
        self.bind_arguments(node, scope, local.owner, call)
        argument_values = (scope.names[argument.arg] for argument in _arguments(node))
        # The same function is followed again for other values of its parameters, and never twice for the same:
        # recursion ends.
        key = (node, *(value.node if isinstance(value, _Local) else value for value in argument_values))
        if key in self._seen or not self._workflow:
            return
        self._seen.add(key)
        before, self._scope = (self._scope, self._function), scope
        if isinstance(node, _FunctionNode):
            self._function = local.name
        if is_root and isinstance(node, _FunctionNode):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        for statement in [node.body] if isinstance(node, ast.Lambda) else node.body:
            self.visit(statement)
        self._scope, self._function = before

    def _follow_class(self, local: _Local, call: ast.Call | None) -> None:
        """Check the code that creating an instance runs: its constructor, and the factories of its fields."""
        for name in ("__new__", "__init__", "__post_init__"):
            if method := self._member(local, name, 0):
                self.follow(method, call)
        for statement in (
            local.node.body if isinstance(local.node, ast.ClassDef) and local.node not in self._seen else ()
        ):
            value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
            for keyword in value.keywords if isinstance(value, ast.Call) else ():
                if keyword.arg in ("default_factory", "factory"):
                    self._follow_reference(keyword.value)
                    self.visit(keyword.value)
        self._seen.add(local.node)


def _is_ours(name: _InferredValue, last: str) -> bool:
    """Whether this is `workflow` or `Flow` of this package, or of a module of the same project that re-exports it."""
    return isinstance(name, str) and name.startswith(("openagentic_sdk.", ".")) and name.rpartition(".")[2] == last


def _has(node: _FunctionNode, decorator: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == decorator for each in node.decorator_list)


def _is_transparent(node: _FunctionNode) -> bool:
    """Whether all decorators leave a function unchanged, as far as this check is concerned."""
    plain = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return all(
        (each.attr if isinstance(each, ast.Attribute) else each.id if isinstance(each, ast.Name) else "")
        in _TRANSPARENT
        for each in plain
    )


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
