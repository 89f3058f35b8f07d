"""Run the code of a plan: a small subset of Python over labelled values.

Its statements are assignments, `if`, `for`, `break`, `continue`, `pass` and expressions; only `lambda` defines functions,
and no Python object is accessible: each kind of expression, function and method is implemented explicitly here.

Computing a value joins the labels of its operands (see `values`). If `is_strict`, a value that influences control flow
adds its label, too: which branch is taken, how often a loop runs, which item of a container is taken. That label applies to
everything created or called there, to everything that the other branch would have changed, and to everything after a
possible exit from a loop.
"""

from __future__ import annotations

import ast
import asyncio
import operator
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from ....errors import ToolError
from ....ground.frozen import frozen
from ....ground.patterns import regex
from .values import CLEAN, MAX_CHARS, MAX_ITEMS, PlanValues, Value, ValueLabel

MAX_NESTING = 80
MAX_LAMBDAS = 8
_STEPS_AT_ONCE = 2_000
_SPEC = regex(r"(.?[<>=^])?[-+ ]?#?0?\d{0,3}[,_]?(\.\d{1,2})?[a-zA-Z%]?")
_CONVERSIONS: Mapping[int, Callable[[Any], Any]] = {ord("r"): repr, ord("a"): ascii, ord("s"): str}

# Calls a tool with these arguments; the label is that of whatever decided that the call is made.
CallFunction = Callable[[str, Mapping[str, Value], ValueLabel], Awaitable[Value]]


@frozen
class PlanFunction:
    """A tool as a function of a plan, with its arguments in order."""

    tool: str
    arguments: Sequence[str]


@frozen
class _PlanLambda:
    node: ast.Lambda
    names: Mapping[str, Value]


class _LoopExit(Exception):
    """Raised by `break` and `continue`."""

    def __init__(self, is_over: bool) -> None:
        self.is_over = is_over


def _multiply(left: Any, right: Any) -> Any:
    for times, other in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(other, str | list | tuple) and times * len(other) > MAX_ITEMS:
            raise ToolError(f"a product would have more than {MAX_ITEMS} items")
    return left * right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        raise ToolError("% does not format strings in a plan: use an f-string")
    return left % right


def _join(separator: str, parts: Iterable[str]) -> str:
    parts = [*parts]
    if sum(map(len, parts)) + len(separator) * len(parts) > MAX_CHARS:
        raise ToolError(f"a string would be longer than {MAX_CHARS} characters")
    return separator.join(parts)


def _replace(text: str, old: str, new: str) -> str:
    if text.count(old) * len(new) > MAX_CHARS:
        raise ToolError(f"a string would be longer than {MAX_CHARS} characters")
    return text.replace(old, new)


def _round(number: float, digits: int = 0) -> Any:
    return round(number, max(-100, min(digits, 100))) if digits else round(number)


def _sum(numbers: Iterable[Any], start: float = 0) -> float:
    if not all(isinstance(number, int | float) for number in (*numbers, start)):
        raise TypeError("only numbers can be added")
    return sum(numbers, start)


def _range(*bounds: int) -> list[int]:
    if len(range(*bounds)) > MAX_ITEMS:
        raise ToolError(f"a range contains more than {MAX_ITEMS} numbers")
    return [*range(*bounds)]


def _format(data: Any, conversion: int, form: str) -> str:
    if not _SPEC.fullmatch(form):
        raise ToolError(
            "a format specification is not supported: use alignment, sign, #, a width below 1,000, a group separator, a "
            'precision below 100, and a type, as in f"{x:>8,.2f}"'
        )
    return format(_CONVERSIONS.get(conversion, lambda same: same)(data), form)


_OPERATORS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: _multiply, ast.Div: operator.truediv, ast.Mod: _modulo,
    ast.FloorDiv: operator.floordiv, ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right,
    ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_TEXT_METHODS: Mapping[str, Callable[..., Any]] = {
    "join": _join, "replace": _replace, "capitalize": str.capitalize, "casefold": str.casefold, "count": str.count,
    "endswith": str.endswith, "find": str.find, "index": str.index, "isalnum": str.isalnum, "isalpha": str.isalpha,
    "isdigit": str.isdigit, "isspace": str.isspace, "lower": str.lower, "lstrip": str.lstrip, "partition": str.partition,
    "removeprefix": str.removeprefix, "removesuffix": str.removesuffix, "rfind": str.rfind, "rpartition": str.rpartition,
    "rsplit": str.rsplit, "rstrip": str.rstrip, "split": str.split, "splitlines": str.splitlines,
    "startswith": str.startswith, "strip": str.strip, "title": str.title, "upper": str.upper,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "str": str, "int": int, "float": float, "bool": bool, "abs": abs, "round": _round, "range": _range, "sum": _sum,
    "any": any, "all": all,
}  # fmt: skip
# These functions pass items on unchanged, each with its labels.
_SHAPING = ("list", "tuple", "len", "sorted", "reversed", "min", "max", "enumerate", "zip", "print")
FUNCTIONS = (*_FUNCTIONS, *_SHAPING)


class _Expressions:
    """An evaluator for the expressions of one plan, with the names and labels that its statements have set so far."""

    def __init__(
        self,
        values: PlanValues,
        functions: Mapping[str, PlanFunction],
        call: CallFunction,
        show: Callable[[str, ValueLabel], None],
        *,
        is_strict: bool,
    ) -> None:
        self.line = 0
        self._values, self._functions, self._call, self._show = values, functions, call, show
        self._is_strict = is_strict
        self._names: dict[str, Value] = {}
        self._decided = CLEAN  # the label of whatever decided that execution reaches this point
        self._steps = self._depth = 0

    def _deciding(self, label: ValueLabel) -> ValueLabel:
        return label if self._is_strict else CLEAN

    def _bound(self, target: ast.expr, value: Value) -> dict[str, Value]:
        """The names that a target binds, with their values."""
        if isinstance(target, ast.Name):
            return {target.id: value}
        if not isinstance(target, ast.Tuple | ast.List):
            raise _unknown(target)
        parts = self._items(value)
        if len(parts) != len(target.elts):
            raise ToolError(f"the number of values to unpack is not {len(target.elts)}")
        pairs = [self._bound(element, part) for element, part in zip(target.elts, parts, strict=True)]
        return {name: part for bindings in pairs for name, part in bindings.items()}

    def _put(self, container: Value, index: Value, value: Value) -> None:
        """Execute `container[index] = value`. The label of the index joins that of the container's shape."""
        key, label = self._values.plain(index), self._values.label_of(index)
        value = self._values.raised(value, label)
        if isinstance(container.data, dict):
            container.data[_as_key(key)] = (index, value)
        elif isinstance(container.data, list) and isinstance(key, int):
            container.data[key] = value
        else:
            raise TypeError("only items of dicts, and of lists by number, can be set")
        self._change(container, label)

    def _change(self, container: Value, label: ValueLabel) -> None:
        container.label = container.label.joined(label).joined(self._decided)
        self._values.check_size(container.data)

    def _eval(self, node: ast.expr, names: Mapping[str, Value]) -> Awaitable[Value]:
        """Evaluate an expression. Not a coroutine itself, which would double the frames of a deeply nested one."""
        evaluate = _EVALUATE.get(type(node))
        if evaluate is None:
            raise _unknown(node)
        self._values.spend(1)
        self._steps += 1
        if self._steps % _STEPS_AT_ONCE == 0:
            return self._eval_later(evaluate, node, names)
        return evaluate(self, node, names)

    async def _eval_later(self, evaluate: _Evaluate, node: ast.expr, names: Mapping[str, Value]) -> Value:
        await asyncio.sleep(0)  # a long plan must not block the event loop
        return await evaluate(self, node, names)

    async def _eval_constant(self, node: ast.Constant, names: Mapping[str, Value]) -> Value:
        return self._values.lift(node.value)

    async def _eval_name(self, node: ast.Name, names: Mapping[str, Value]) -> Value:
        if node.id not in names:
            raise ToolError(f"the name {node.id!r} is not defined")
        return names[node.id]

    async def _eval_await(self, node: ast.Await, names: Mapping[str, Value]) -> Value:
        return await self._eval(node.value, names)

    async def _eval_sequence(self, node: ast.List | ast.Tuple, names: Mapping[str, Value]) -> Value:
        items = [await self._eval(element, names) for element in node.elts]
        return Value(items if isinstance(node, ast.List) else tuple(items))

    async def _eval_dict(self, node: ast.Dict, names: Mapping[str, Value]) -> Value:
        if None in node.keys:  # `**other`
            raise _unknown(node)
        mapping = Value({})
        for key, item in zip(node.keys, node.values, strict=True):
            assert key is not None, "checked above"
            self._put(mapping, await self._eval(key, names), await self._eval(item, names))
        return mapping

    async def _eval_binary(self, node: ast.BinOp, names: Mapping[str, Value]) -> Value:
        return self._operate(node.op, await self._eval(node.left, names), await self._eval(node.right, names))

    async def _eval_unary(self, node: ast.UnaryOp, names: Mapping[str, Value]) -> Value:
        return self._operate(node.op, await self._eval(node.operand, names))

    async def _eval_bool(self, node: ast.BoolOp, names: Mapping[str, Value]) -> Value:
        label, value = CLEAN, Value(None)
        for operand in node.values:
            [value] = await self._eval_under(label, [operand], names)
            label = label.joined(self._values.label_of(value))
            if bool(value.data) != isinstance(node.op, ast.And):
                break
        return self._values.raised(value, label)

    async def _eval_compare(self, node: ast.Compare, names: Mapping[str, Value]) -> Value:
        value, result = await self._eval(node.left, names), Value(True)
        for operation, other in zip(node.ops, node.comparators, strict=True):
            [right] = await self._eval_under(result.label, [other], names)
            compared = self._operate(operation, value, right)
            result, value = Value(compared.data, compared.label.joined(result.label)), right
            if not result.data:
                break
        return result

    async def _eval_choice(self, node: ast.IfExp, names: Mapping[str, Value]) -> Value:
        condition = await self._eval(node.test, names)
        branch = node.body if condition.data else node.orelse
        [result] = await self._eval_under(self._values.label_of(condition), [branch], names)
        return result

    async def _eval_subscript(self, node: ast.Subscript, names: Mapping[str, Value]) -> Value:
        return await self._take(await self._eval(node.value, names), node.slice, names)

    async def _eval_text(self, node: ast.JoinedStr, names: Mapping[str, Value]) -> Value:
        texts = [await self._eval(part, names) for part in node.values]
        return self._values.compute(lambda *pieces: _join("", pieces), *texts)

    async def _eval_formatted(self, node: ast.FormattedValue, names: Mapping[str, Value]) -> Value:
        value = await self._eval(node.value, names)
        form = await self._eval(node.format_spec, names) if node.format_spec is not None else Value("")
        return self._values.compute(lambda data, text: _format(data, node.conversion, text), value, form)

    async def _eval_comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp, names: Mapping[str, Value]
    ) -> Value:
        if isinstance(node, ast.DictComp):
            return await self._comprehend([node.key, node.value], node.generators, names, Value({}))
        return await self._comprehend([node.elt], node.generators, names, Value([]))

    async def _eval_lambda(self, node: ast.Lambda, names: Mapping[str, Value]) -> Value:
        return Value(_PlanLambda(node, names))

    def _operate(self, operation: ast.AST, *operands: Value) -> Value:
        function = _OPERATORS.get(type(operation))
        if function is None:
            raise _unknown(operation)
        left, right = operands[0], operands[-1]
        if isinstance(operation, ast.Add) and isinstance(left.data, list) and isinstance(right.data, list):
            self._values.check_size(items := left.data + right.data)
            self._values.spend(len(items))
            return Value(items, left.label.joined(right.label))
        return self._values.compute(function, *operands)

    async def _eval_under(
        self, label: ValueLabel, nodes: Sequence[ast.expr], names: Mapping[str, Value]
    ) -> list[Value]:
        """Evaluate expressions whose evaluation was decided by a value with this label."""
        before, label = self._decided, self._deciding(label)
        self._decided = before.joined(label)
        try:
            return [self._values.raised(await self._eval(node, names), label) for node in nodes]
        finally:
            self._decided = before

    def _items(self, value: Value) -> list[Value]:
        """The items that a loop over the value visits."""
        data = value.data
        if isinstance(data, str):
            items = [Value(letter, value.label) for letter in data]
        elif isinstance(data, dict | list | tuple):
            items = [name for name, _ in data.values()] if isinstance(data, dict) else [*data]
        else:
            raise TypeError("only strings, lists, tuples and dicts can be iterated over")
        self._values.spend(len(items))
        return [self._values.raised(item, self._deciding(value.label)) for item in items]

    async def _take(self, container: Value, index: ast.expr, names: Mapping[str, Value]) -> Value:
        """Evaluate `container[index]`; the result also has the label of the index."""
        values, data = self._values, container.data
        if isinstance(index, ast.Slice):
            ends = [index.lower, index.upper, index.step]
            bounds = [Value(None) if end is None else await self._eval(end, names) for end in ends]
            if not isinstance(data, list | tuple):
                return values.compute(lambda text, *places: text[slice(*places)], container, *bounds)
            items = data[slice(*map(values.plain, bounds))]
            values.spend(len(items))
            return values.raised(Value(items, container.label), values.label_of(*bounds))
        key = await self._eval(index, names)
        return values.compute(operator.getitem, container, key) if isinstance(data, str) else self._item(container, key)

    def _item(self, container: Value, key: Value) -> Value:
        data, place = container.data, self._values.plain(key)
        if not isinstance(data, dict | list | tuple):
            raise TypeError("only strings, lists, tuples and dicts have items")
        item = data[_as_key(place)][1] if isinstance(data, dict) else data[place]
        return self._values.raised(item, self._values.label_of(key).joined(self._deciding(container.label)))

    async def _comprehend(
        self,
        parts: Sequence[ast.expr],
        generators: Sequence[ast.comprehension],
        names: Mapping[str, Value],
        collection: Value,
    ) -> Value:
        """Add the results of the innermost loop to `collection`.

        Filtered items affect the label of the collection's shape.
        """
        generator, *inner = generators
        over = await self._eval(generator.iter, names)
        collection.label = collection.label.joined(over.label)
        for item in self._items(over):
            inside, label, is_wanted = {**names, **self._bound(generator.target, item)}, over.label, True
            for condition in generator.ifs:
                [outcome] = await self._eval_under(label, [condition], inside) if is_wanted else [Value(False)]
                label = label.joined(self._values.label_of(outcome))
                is_wanted = bool(outcome.data)
            collection.label = collection.label.joined(label)
            before = self._decided
            self._decided = before.joined(self._deciding(label))
            if is_wanted and inner:
                await self._comprehend(parts, inner, inside, collection)
            elif is_wanted:
                pair = await self._eval_under(label, parts, inside)
                if isinstance(collection.data, dict):
                    self._put(collection, pair[0], pair[1])
                else:
                    collection.data += pair
                    self._values.check_size(collection.data)
            self._decided = before
        return collection

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _eval_call(self, node: ast.Call, names: Mapping[str, Value]) -> Value:
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            raise ToolError("a plan cannot unpack arguments with * and **: write each one out")
        target = await self._eval(node.func.value, names) if isinstance(node.func, ast.Attribute) else None
        args = [await self._eval(each, names) for each in node.args]
        kwargs = {str(each.arg): await self._eval(each.value, names) for each in node.keywords}
        match node.func:
            case ast.Attribute(_, name) if target is not None:
                return self._call_method(target, name, args, kwargs)
            case ast.Name(name) if name in self._functions:
                return await self._call_tool(self._functions[name], args, kwargs)
            case ast.Name(name) if name in _SHAPING:
                return await self._shape(name, args, kwargs)
            case ast.Name(name) if name in _FUNCTIONS and not kwargs:
                return self._values.compute(_FUNCTIONS[name], *args)
            case ast.Name(name) if name in names and not kwargs:
                return await self._apply(names[name], args)
        raise ToolError(f"the function {ast.unparse(node.func):.100} does not exist, or its arguments do not match")

    async def _call_tool(self, function: PlanFunction, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        arguments = dict(zip(function.arguments, args, strict=False))
        if len(args) > len(function.arguments) or arguments.keys() & kwargs.keys():
            raise ToolError(f"{function.tool} gets an argument twice, or too many positional ones")
        return self._values.raised(
            await self._call(function.tool, {**arguments, **kwargs}, self._decided), self._decided
        )

    async def _apply(self, function: Value, args: Sequence[Value]) -> Value:
        """Call a lambda of the plan."""
        lambda_value = function.data
        arguments = lambda_value.node.args if isinstance(lambda_value, _PlanLambda) else None
        if arguments is None or len(arguments.args) != len(args) or self._depth == MAX_LAMBDAS:
            raise ToolError(
                "only a lambda can be called here, with one positional argument for each of its parameters, and calls of "
                f"lambdas may be nested at most {MAX_LAMBDAS} deep"
            )
        inside = {**lambda_value.names, **dict(zip((each.arg for each in arguments.args), args, strict=True))}
        self._depth += 1
        try:
            return self._values.raised(await self._eval(lambda_value.node.body, inside), function.label)
        finally:
            self._depth -= 1

    def _call_method(self, target: Value, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        data, values = target.data, self._values
        match data, name, args:
            case str(), _, _ if name in _TEXT_METHODS and not kwargs:
                return values.compute(_TEXT_METHODS[name], target, *args)
            case dict(), "get", [key, *usual] if not kwargs and len(usual) < 2:
                if _as_key(values.plain(key)) in data:
                    return self._item(target, key)
                default = usual[0] if usual else Value(None)
                return values.raised(default, values.label_of(key).joined(self._deciding(target.label)))
            case dict(), "keys" | "values" | "items", [] if not kwargs:
                values.spend(len(data))
                pairs = [*data.values()]
                if name == "items":
                    return Value([Value(pair, target.label) for pair in pairs], target.label)
                return Value([pair[name == "values"] for pair in pairs], target.label)
        raise ToolError(f"a value has no method {name!r} that accepts this call")

    async def _shape(self, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Call a function that rearranges items without computing from them."""
        values = self._values
        match name, args:
            case "print", _ if not kwargs:
                line = values.compute(lambda *parts: _join(" ", map(str, parts)), *args)
                self._show(line.data, line.label.joined(self._decided))
                return Value(None)
            case "len", [Value(data=str() | dict() | list() | tuple() as whole)] if not kwargs:
                return Value(len(whole), args[0].label)
            case (("min" | "max" | "sorted"), [_, *_]):
                return await self._order(name, args, dict(kwargs))
            case "zip", _ if args and not kwargs:
                rows = zip(*map(self._items, args), strict=False)
                label = values.label_of(*(Value(None, each.label) for each in args))
                return Value([Value(row, label) for row in rows], label)
            case (("list" | "tuple" | "reversed" | "enumerate"), [whole]) if not kwargs:
                items, label = self._items(whole), whole.label
                if name == "enumerate":
                    items = [Value((Value(number, label), item), label) for number, item in enumerate(items)]
                items = items[::-1] if name == "reversed" else items
                return Value(tuple(items) if name == "tuple" else items, label)
        raise ToolError(f"{name} cannot be called with these arguments")

    async def _order(self, name: str, args: Sequence[Value], more: dict[str, Value]) -> Value:
        """Call `sorted`, whose items keep their labels, or `min` or `max`, whose result derives from all items."""
        values = self._values
        key, backwards, usual = more.pop("key", None), more.pop("reverse", Value(False)), more.pop("default", None)
        if more or (len(args) > 1 and name == "sorted"):
            raise ToolError(f"{name} cannot be called with these arguments")
        items = self._items(args[0]) if len(args) == 1 else [*args]
        keys = items if key is None else [await self._apply(key, [item]) for item in items]
        label = values.label_of(backwards, *keys).joined(args[0].label if len(args) == 1 else CLEAN)
        sortable = [*map(values.plain, keys)]
        is_backwards = name == "max" or bool(backwards.data)
        order = sorted(range(len(items)), key=sortable.__getitem__, reverse=is_backwards)
        if name == "sorted":
            return Value([values.raised(items[place], self._deciding(label)) for place in order], label)
        if not items and usual is None:
            raise ValueError(f"{name}() of an empty sequence")
        return values.raised(items[order[0]] if items or usual is None else usual, label)


_Evaluate = Callable[[_Expressions, Any, Mapping[str, Value]], Awaitable[Value]]
# All expressions that a plan may contain. The types are exact: `ast.parse` makes no nodes of subclasses.
_EVALUATE: Mapping[type[ast.expr], _Evaluate] = {
    ast.Constant: _Expressions._eval_constant,
    ast.Name: _Expressions._eval_name,
    ast.Await: _Expressions._eval_await,
    ast.List: _Expressions._eval_sequence,
    ast.Tuple: _Expressions._eval_sequence,
    ast.Dict: _Expressions._eval_dict,
    ast.BinOp: _Expressions._eval_binary,
    ast.UnaryOp: _Expressions._eval_unary,
    ast.BoolOp: _Expressions._eval_bool,
    ast.Compare: _Expressions._eval_compare,
    ast.IfExp: _Expressions._eval_choice,
    ast.Subscript: _Expressions._eval_subscript,
    ast.JoinedStr: _Expressions._eval_text,
    ast.FormattedValue: _Expressions._eval_formatted,
    ast.ListComp: _Expressions._eval_comprehension,
    ast.GeneratorExp: _Expressions._eval_comprehension,
    ast.DictComp: _Expressions._eval_comprehension,
    ast.Lambda: _Expressions._eval_lambda,
    ast.Call: _Expressions._eval_call,
}


class PlanInterpreter(_Expressions):
    """An interpreter for one plan.

    `functions` are the tools by their names in the plan, `show` receives printed text, and `line` is the current line.
    """

    async def run(self, code: str) -> None:
        """Run the code to its end.

        Raises `ToolError`, whose text contains no labelled value, and errors such as `ValueError` of the plan's operations.
        """
        try:
            level: Sequence[ast.AST] = [tree := ast.parse(code)]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.line = (error.lineno or 0) if isinstance(error, SyntaxError) else 0
            raise ToolError(f"the code is not Python: {error}") from None
        for _ in range(MAX_NESTING):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
        if level:
            raise ToolError(f"the code is nested more than {MAX_NESTING} deep: write it in steps")
        await self._run_all(tree.body)

    async def _run_all(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self.line = statement.lineno
            await self._run(statement)

    async def _run(self, node: ast.stmt) -> None:
        match node:
            # Only these statements change a value, so that `_changed_names` finds every change.
            case ast.Expr(ast.Call(ast.Attribute(holder, "append" | "extend" as method), [item], [])):
                added = await self._eval(item, self._names)
                items, label = ([added], CLEAN) if method == "append" else (self._items(added), added.label)
                await self._extend(holder, items, label)
            case ast.Expr(value):
                await self._eval(value, self._names)
            case ast.Assign(targets, value):
                result = await self._eval(value, self._names)
                for target in targets:
                    await self._assign(target, result)
            case ast.AugAssign(target, operation, value) if isinstance(target, ast.Name | ast.Subscript):
                old = await self._eval(target, self._names)
                await self._assign(target, self._operate(operation, old, await self._eval(value, self._names)))
            case ast.If(test, body, orelse):
                condition = await self._eval(test, self._names)
                branch = body if condition.data else orelse
                await self._under(self._values.label_of(condition), node, self._run_all(branch))
            case ast.For(target, iterable, body, []):
                over = await self._eval(iterable, self._names)
                await self._under(over.label, node, self._loop(target, self._items(over), body))
            case ast.Break() | ast.Continue():
                raise _LoopExit(isinstance(node, ast.Break))
            case ast.Pass():
                return
            case _:
                raise _unknown(node)

    async def _loop(self, target: ast.expr, items: Sequence[Value], body: Sequence[ast.stmt]) -> None:
        for item in items:
            await self._assign(target, item)
            try:
                await self._run_all(body)
            except _LoopExit as end:
                if end.is_over:
                    return

    async def _under(self, label: ValueLabel, node: ast.If | ast.For, work: Awaitable[None]) -> None:
        """Run a statement's body under the label that decided it, and label everything that it could have changed."""
        before = self._decided
        self._decided = before.joined(self._deciding(label))
        try:
            await work
        finally:
            reached = self._decided
            leaves = isinstance(node, ast.If) and any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(node))
            self._decided = reached if leaves else before  # the code after a possible exit from a loop depends on it
            for name in _changed_names(node) & self._names.keys() if reached else ():
                self._names[name] = self._values.raised(self._names[name], reached)

    async def _assign(self, target: ast.expr, value: Value) -> None:
        value = self._values.raised(value, self._decided)
        if isinstance(target, ast.Subscript):
            container = await self._eval(target.value, self._names)
            self._put(container, await self._eval(target.slice, self._names), value)
            return
        for name, part in self._bound(target, value).items():
            if name in self._functions or name in FUNCTIONS:
                raise ToolError(f"{name} is the name of a function: choose another name")
            self._names[name] = part

    async def _extend(self, holder: ast.expr, items: Sequence[Value], label: ValueLabel) -> None:
        container = await self._eval(holder, self._names)
        if not isinstance(container.data, list):
            raise TypeError("only lists can be appended to")
        container.data += [self._values.raised(item, self._decided) for item in items]
        self._change(container, label)


def _as_key(key: Any) -> Any:
    if isinstance(key, list | dict | tuple):
        raise TypeError("a key of a dict cannot be a list, a tuple or a dict")
    return key


def _changed_names(node: ast.AST) -> set[str]:
    """The names that a statement could rebind, or whose values it could mutate."""
    names: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
        is_set = isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store)
        if is_set or (isinstance(each, ast.Attribute) and each.attr in ("append", "extend")):
            names |= {name.id for name in ast.walk(each) if isinstance(name, ast.Name)}
    return names


def _unknown(node: ast.AST) -> ToolError:
    return ToolError(f"{type(node).__name__} is not supported in plans: express it differently")
