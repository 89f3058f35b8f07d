"""Run the Lua scripts of the Redis store without a server: each is translated into a Python function once.

It knows as much of Lua as these scripts use; anything else fails the schedule. Texts are `bytes`, nil is None, and an answer
of Redis that is missing is False, as in Redis; 0 and the empty text count as true, as in Lua.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

_TOKEN = re.compile(
    r"--[^\n]*|\s+|(?P<text>'[^']*')|(?P<number>\d+)|(?P<name>\w+)|(?P<sign>\.\.|[=~<>]=|[-+*/#.,(){}\[\]<>=])"
)
_ORDER = (("or",), ("and",), ("==", "~=", "<", ">", "<=", ">="), ("..",), ("+", "-"), ("*", "/"))
_KEYWORDS = frozenset(("end", "else", "elseif", "", "until"))
Script = Callable[[Sequence[bytes], Sequence[bytes], Callable[..., Any]], Any]


@cache
def translated(source: str) -> Script:
    """The script as a function of its keys, its arguments and a function that executes a command."""
    names: dict[str, Any] = dict(_LIBRARY)
    exec(_Translation(source).program(), names)
    return names["script"]  # type: ignore[no-any-return]


class _Translation:
    def __init__(self, source: str) -> None:
        found = (match for match in _TOKEN.finditer(source) if match.lastgroup)
        self.tokens = [(str(match.lastgroup), match[0]) for match in found]
        self.tokens.append(("end", ""))
        self.at = 0

    def program(self) -> str:
        return "\n".join(("def script(KEYS, ARGV, call):", *self.block(1), " return None"))

    @property
    def next(self) -> str:
        return self.tokens[self.at][1]

    def take(self, *wanted: str) -> str:
        _kind, word = self.tokens[self.at]
        if wanted and word not in wanted:
            raise SyntaxError(f"{word!r} instead of {wanted} after {self.tokens[max(0, self.at - 8) : self.at]}")
        self.at += 1
        return word

    def takes(self, word: str) -> bool:
        if self.next == word:
            self.at += 1
            return True
        return False

    # --- statements --------------------------------------------------------------------------------------------------

    def block(self, depth: int) -> list[str]:
        lines: list[str] = []
        while self.next not in _KEYWORDS:
            lines += self.statement(depth)
        return lines or [" " * depth + "pass"]

    def statement(self, depth: int) -> Iterator[str]:
        pad = " " * depth
        match self.next:
            case "local" | "function":
                self.takes("local")
                if self.takes("function"):
                    name, names = self.take(), self.names("(", ")")
                    yield f"{pad}def {name}({', '.join(names)}):"
                    yield from self.block(depth + 1)
                    self.take("end")
                else:
                    yield pad + self.assignment(self.names("", "="))
            case "return":
                self.take()
                yield pad + "return " + ("None" if self.next in _KEYWORDS else self.expression())
            case "break":
                yield pad + self.take()
            case "if":
                self.take()
                yield f"{pad}if {self.condition()}:"
                self.take("then")
                yield from self.block(depth + 1)
                while self.next in ("elseif", "else"):
                    if self.take() == "elseif":
                        yield f"{pad}elif {self.condition()}:"
                        self.take("then")
                    else:
                        yield f"{pad}else:"
                    yield from self.block(depth + 1)
                self.take("end")
            case "while":
                self.take()
                yield f"{pad}while {self.condition()}:"
                yield from self.body(depth)
            case "for":
                self.take()
                yield pad + self.loop()
                yield from self.body(depth)
            case _:
                target = self.suffixed()
                if self.takes("="):
                    owner, _, index = target.removeprefix("_at(").rpartition(", ")
                    value = self.expression()
                    yield pad + (f"_put({owner}, {index[:-1]}, {value})" if owner else f"{target} = {value}")
                else:
                    yield pad + target

    def body(self, depth: int) -> Iterator[str]:
        self.take("do")
        yield from self.block(depth + 1)
        self.take("end")

    def names(self, first: str, last: str) -> list[str]:
        """Names separated by commas, up to `last`, which a declaration without a value lacks."""
        if first:
            self.take(first)
        names = []
        while not self.takes(last):
            names.append(self.take())
            if not self.takes(","):
                self.take(last)
                break
        return names

    def assignment(self, names: list[str]) -> str:
        values = self.list_of_values()
        if len(names) == 1:
            return f"{names[0]} = {values[0]}"
        if len(values) > 1:
            return f"{', '.join(names)} = {', '.join(values)}"
        return f"{', '.join(names)} = _several({values[0]}, {len(names)})"

    def loop(self) -> str:
        names = [self.take()]
        if self.takes("="):
            first, last, *step = self.list_of_values()
            return f"for {names[0]} in _count({', '.join((first, last, *step))}):"
        while self.takes(","):
            names.append(self.take())
        self.take("in")
        return f"for {', '.join(names)} in {self.expression()}:"

    # --- expressions -------------------------------------------------------------------------------------------------

    def list_of_values(self) -> list[str]:
        values = [self.expression()]
        while self.takes(","):
            values.append(self.expression())
        return values

    def condition(self) -> str:
        return _truth(self.expression())

    def expression(self, level: int = 0) -> str:
        if level == len(_ORDER):
            return self.unary()
        left = self.expression(level + 1)
        while self.next in _ORDER[level]:
            left = _joined(left, self.take(), self.expression(level + 1))
        return left

    def unary(self) -> str:
        if self.takes("not"):
            return f"(not {_truth(self.unary())})"
        if self.takes("#"):
            return f"len({self.unary()})"
        if self.takes("-"):
            return f"(-{self.unary()})"
        return self.suffixed()

    def suffixed(self) -> str:
        kind, word = self.tokens[self.at]
        self.at += 1
        if kind == "text":
            # The only escape in the scripts is the highest byte.
            return repr(word[1:-1].encode().replace(rb"\255", b"\xff"))
        if kind == "number":
            return word
        if word == "(":
            value = f"({self.expression()})"
            self.take(")")
        elif word == "{":
            value = f"_Table([{', '.join(self.arguments('}'))}])"
        elif kind == "name":
            value = {"nil": "None", "_true": "True", "false": "False"}.get(word, word)
        else:
            raise SyntaxError(f"{word!r} after {self.tokens[max(0, self.at - 8) : self.at]}")
        while self.next in (".", "[", "("):
            mark = self.take()
            if mark == ".":
                value = f"{value}.{self.take()}"
                value = {"redis.call": "call"}.get(value, value.replace("string.", "string_"))
            elif mark == "[":
                value = f"_at({value}, {self.expression()})"
                self.take("]")
            else:
                value = f"{value}({', '.join(self.arguments(')'))})"
        return value

    def arguments(self, last: str) -> list[str]:
        values: list[str] = []
        while not self.takes(last):
            value = self.expression()
            values.append(f"*{value}" if value.startswith("unpack(") else value)
            self.takes(",")
        return values


def _joined(left: str, sign: str, right: str) -> str:
    if sign in ("or", "and"):
        return f"{'_either' if sign == 'or' else '_both'}({left}, lambda: {right})"
    if sign in ("==", "~="):
        return f"({'not ' if sign == '~=' else ''}_same({left}, {right}))"
    if sign == "..":
        return f"(_text({left}) + _text({right}))"
    if sign in ("<", ">", "<=", ">="):
        return f"({left} {sign} {right})"
    return f"(_number({left}) {sign} _number({right}))"


def _truth(value: str) -> str:
    """A condition in Python; comparisons are one already."""
    return value if value.startswith(("(not ", "(_same(")) else f"_true({value})"


class Table(list[Any]):
    """A Lua table that is an array."""


def true(value: object) -> bool:
    return value is not None and value is not False


def text(value: object) -> bytes:
    return value if isinstance(value, bytes) else b"%d" % value  # type: ignore[operator]


def number(value: Any) -> Any:
    if isinstance(value, bytes):
        return int(value) if value.lstrip(b"-").isdigit() else float(value)
    return value


def _tonumber(value: Any) -> Any:
    """The number in a text, or nil."""
    try:
        return number(value)
    except ValueError:
        return None


def _at(values: Sequence[Any], place: int) -> Any:
    return values[place - 1] if 0 < place <= len(values) else None


def _put(values: list[Any], place: int, value: object) -> None:
    values[place - 1 : place] = [value]


def _several(values: Any, size: int) -> list[Any]:
    found = list(values) if isinstance(values, list | tuple) else [values]
    return (found + [None] * size)[:size]


def _groups(found: re.Match[bytes] | None) -> Any:
    if found is None:
        return None
    return found.groups() if len(found.groups()) > 1 else found[len(found.groups())]


@cache
def _pattern(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern.replace(b"%", b"\\"), re.DOTALL)


_LIBRARY: dict[str, Any] = {
    "_Table": Table,
    "_true": true,
    "_text": text,
    "_number": number,
    "_at": _at,
    "_put": _put,
    "_several": _several,
    "_either": lambda left, right: left if true(left) else right(),
    "_both": lambda left, right: right() if true(left) else left,
    "_same": lambda left, right: left == right and isinstance(left, bool) == isinstance(right, bool),
    "_count": lambda first, last, step=1: range(number(first), number(last) + 1, step),
    "unpack": lambda values, first=1, last=None: values[first - 1 : last],
    "ipairs": lambda values: enumerate(values, 1),
    "tonumber": _tonumber,
    "tostring": text,
    "math": type("math", (), {"min": min}),
    "table": type("table", (), {"concat": lambda values, mark: mark.join(map(text, values))}),
    "string_byte": lambda value, first, last: list(value[first - 1 : last]),
    "string_match": lambda value, pattern: _groups(_pattern(pattern).search(value)),
    "string_gmatch": lambda value, pattern: _pattern(pattern).findall(value),
}
