"""Match patterns of JSON Schema (ECMA-262, `u` flag) without catastrophic backtracking.

A pattern becomes an automaton, and all its states advance through the text in parallel (Thompson 1968): nothing is tried
twice. Back references, lookbehind, and lookahead except right after a leading `^` have no such automaton and are
rejected with a ValueError.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeAlias

MAX_STATES = 20_000
_MAX_GROUPS = 40  # nested in one another
_MAX_QUANTIFIER = len("{99999,99999}")
_MAX_REMEMBERED = 20_000  # states in the remembered transitions of one pattern
_MAX_CACHED = 64
_MAX_CACHED_STATES = 1_000  # larger patterns are read again for each check, which pays for it in steps
_DIGITS = frozenset("0123456789")
_WORD = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_LINE_ENDS = frozenset("\n\r\u2028\u2029")
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_CATEGORIES = {
    "Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Mark": "M", "Number": "N", "Decimal_Number": "Nd",
    "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z", "Other": "C",
}  # fmt: skip

Fits: TypeAlias = Callable[[str], bool]
# ("char", fits, cost), ("at", place), ("all", parts), ("any", parts), ("times", part, least, most or None)
Part: TypeAlias = tuple[Any, ...]
# The test for a character or a place in the text, the next states, and the cost of the test.
_State: TypeAlias = tuple[Fits | None, str, Iterable[int], int]


_cached: dict[str, Expression] = {}


def expression(pattern: str) -> Expression:
    """Return the parsed pattern. Raises ValueError if it is outside the supported subset."""
    parsed = _cached.get(pattern)
    if parsed is None:
        parsed = Expression(pattern)
        if parsed.size <= _MAX_CACHED_STATES and len(pattern) <= _MAX_CACHED_STATES:
            if len(_cached) >= _MAX_CACHED:
                _cached.clear()
            _cached[pattern] = parsed
    return parsed


class Expression:
    """A parsed pattern. `size` is an upper bound on the number of its states, which are created for the first search."""

    def __init__(self, pattern: str) -> None:
        reader = _ExpressionReader(pattern)
        self._lookaheads: list[tuple[bool, _Automaton]] = []
        while reader.begins(("(?=", "(?!"), after_start=not self._lookaheads):
            is_wanted = reader.take(3).endswith("=")
            self._lookaheads.append((is_wanted, _Automaton(("all", [("at", "^"), reader.choice()]))))
            reader.expect(")")
        part = reader.choice()
        if reader.rest():
            raise ValueError("it closes a group that was not opened")
        if self._lookaheads and part[0] == "any":
            raise ValueError("its lookahead is inside one of several alternatives")
        self._main = _Automaton(("all", [("at", "^"), part]) if self._lookaheads else part)
        self.size = self._main.size + sum(automaton.size for _, automaton in self._lookaheads)
        if self.size > MAX_STATES:
            raise ValueError(f"it needs more than {MAX_STATES:,} states")

    def is_in(self, text: str, spend: Callable[[int], None]) -> bool:
        """Whether the pattern occurs in the text; `spend` receives the number of steps before they are taken."""
        return all(
            automaton.is_in(text, spend) == must_match for must_match, automaton in self._lookaheads
        ) and self._main.is_in(text, spend)


class _ExpressionReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._groups = 0

    def rest(self) -> str:
        return self._text[self._at :]

    def take(self, count: int = 1) -> str:
        chars = self._text[self._at : self._at + count]
        if len(chars) < count:
            raise ValueError("it ends too early")
        self._at += count
        return chars

    def expect(self, text: str) -> None:
        if self.take(len(text)) != text:
            raise ValueError(f"{text!r} is missing")

    def begins(self, words: tuple[str, ...], after_start: bool = False) -> bool:
        """Whether one of these words comes next; with `after_start`, after a `^`, which is then consumed."""
        is_next = self._text.startswith(tuple("^" + word for word in words) if after_start else words, self._at)
        self._at += is_next and after_start
        return is_next

    def until(self, end: str) -> str:
        position = self._text.find(end, self._at)
        text = self.take(max(position - self._at, 0) if position >= 0 else len(self._text))
        self.expect(end)
        return text

    def choice(self) -> Part:
        self._groups += 1
        if self._groups > _MAX_GROUPS:
            raise ValueError(f"its groups are nested deeper than {_MAX_GROUPS} levels")
        options: list[Part] = []
        while True:
            parts: list[Part] = []
            while self._at < len(self._text) and self._text[self._at] not in "|)":
                parts.append(self._repeated(self._atom()))
            options.append(("all", parts))
            if not self.begins(("|",)):
                break
            self.take()
        self._groups -= 1
        return options[0] if len(options) == 1 else ("any", options)

    def _repeated(self, part: Part) -> Part:
        sign = self._text[self._at : self._at + 1]
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (-1, None))
        if least < 0:
            end = self._text.find("}", self._at, self._at + _MAX_QUANTIFIER) if sign == "{" else -1
            low, comma, high = self._text[self._at + 1 : end].partition(",") if end > 0 else ("", "", "")
            if not (_is_count(low) and (_is_count(high) or not high)):
                return part  # not a quantifier: the bracket is a literal
            least, most = int(low), int(high) if high else None if comma else int(low)
            self._at = end
        self.take()
        if self.begins(("?",)):
            self.take()  # lazy: changes which match is found, not whether there is one
        if most is not None and most < least:
            raise ValueError("a quantifier's minimum exceeds its maximum")
        if self.begins(("*", "+", "?")):
            raise ValueError("a quantifier directly follows another one")
        return ("times", part, least, most)

    def _atom(self) -> Part:
        char = self.take()
        if char in "^$":
            return ("at", char)
        if char == ".":
            return ("char", lambda other: other not in _LINE_ENDS, 1)
        if char == "[":
            return ("char", *self._class())
        if char == "\\":
            place = self._text[self._at : self._at + 1]
            if place in ("b", "B", "A", "Z", "z"):  # \A and \Z exist only in Python
                self.take()
                return ("at", {"A": "^", "Z": "$", "z": "$"}.get(place, place))
            letter = self._escape()
            return ("char", letter if callable(letter) else letter.__eq__, 1)
        if char == "(":
            if self.begins(("?",)):
                self._group_kind()
            inner = self.choice()
            self.expect(")")
            return inner
        if char in "*+?":
            raise ValueError("a quantifier has nothing to repeat")
        return ("char", char.__eq__, 1)

    def _group_kind(self) -> None:
        if self.begins(("?:",)):
            self.take(2)
        elif self.begins(("?<", "?P<")) and not self.begins(("?<=", "?<!")):
            self.until(">")
        else:
            raise ValueError("it contains a lookaround or a flag that cannot be matched in bounded time")

    def _class(self) -> tuple[Fits, int]:
        is_negated = self.begins(("^",)) and bool(self.take())
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        kinds: list[Fits] = []
        while not self.begins(("]",)):
            low = self._class_member()
            if self.begins(("-",)) and not self.begins(("-]",)):
                self.take()
                high = self._class_member()
                if callable(low) or callable(high) or low > high:
                    raise ValueError("a range in a class must consist of two characters in ascending order")
                ranges.append((low, high))
            elif callable(low):
                kinds.append(low)
            else:
                singles.add(low)
        self.take()

        def fits(char: str) -> bool:
            inside = char in singles or any(a <= char <= b for a, b in ranges) or any(kind(char) for kind in kinds)
            return inside is not is_negated

        return fits, 2 + len(ranges) // 4 + len(kinds)

    def _class_member(self) -> Fits | str:
        char = self.take()
        if char != "\\":
            return char
        if self.begins(("b",)):
            self.take()
            return "\b"
        return self._escape()

    def _escape(self) -> Fits | str:
        char = self.take()
        if char.lower() in _KINDS:
            kind = _KINDS[char.lower()]
            return kind if char.islower() else lambda other: not kind(other)
        if char in "pP":
            self.expect("{")
            of_category = _of_category(self.until("}"))
            return of_category if char == "p" else lambda other: not of_category(other)
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "c":
            return chr(ord(self.take()) % 32)
        if char == "x":
            return self._code(self.take(2))
        if char == "u":
            return self._unit()
        if char.isalnum():
            raise ValueError(f"\\{char} cannot be matched in bounded time, or has no meaning")
        return char

    def _unit(self) -> str:
        if self.begins(("{",)):
            self.take()
            return self._code(self.until("}"))
        first = self._code(self.take(4))
        if "\ud800" <= first <= "\udbff" and self.begins(("\\u",)):
            self.take(2)
            return (first + self._code(self.take(4))).encode("utf-16", "surrogatepass").decode("utf-16")
        return first

    def _code(self, digits: str) -> str:
        if not digits or not digits.isascii() or not digits.isalnum() or len(digits) > 6:
            raise ValueError(f"{digits!r:.20} is not a character code")
        return chr(int(digits, 16))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


def _is_space(char: str) -> bool:
    return char in "\t\n\v\f\r\ufeff\u2028\u2029" or unicodedata.category(char) == "Zs"


_KINDS: dict[str, Fits] = {"d": _DIGITS.__contains__, "w": _WORD.__contains__, "s": _is_space}


def _of_category(name: str) -> Fits:
    name = name.removeprefix("General_Category=").removeprefix("gc=")
    category = _CATEGORIES.get(name, name)
    if name == "Alphabetic":
        return str.isalpha
    if len(category) > 2 or category[:1] not in tuple("LMNPSZC") or not category.isascii():
        raise ValueError(f"\\p{{{name:.40}}} is not a general category of Unicode")
    return lambda char: unicodedata.category(char).startswith(category)


def _size(part: Part) -> int:
    """An upper bound on the number of states of a part; counting stops soon after the limit."""
    if part[0] == "times":
        times: int = max(part[2] if part[3] is None else part[3], 1)
        return min(MAX_STATES + 1, (_size(part[1]) + 1) * times + 1)
    if part[0] in ("all", "any"):
        return min(MAX_STATES + 1, 1 + sum(1 + _size(inner) for inner in part[1]))
    return part[2] if part[0] == "char" else 1


class _Automaton:
    """The states of a pattern, which are numbered; 0 is the final one."""

    def __init__(self, part: Part) -> None:
        self.size = _size(part)
        self._part: Part = part
        self._states: list[_State] = []
        self._start = 0
        self._remembered: dict[Any, tuple[frozenset[int] | None, int]] = {}
        self._remembered_states = 0

    def is_in(self, text: str, spend: Callable[[int], None]) -> bool:
        if not self._states:
            # Thread-safe, because complete lists are assigned, and concurrent threads compute equal ones.
            state_list: list[_State] = [(None, "end", (), 1)]
            self._start = _add(self._part, 0, state_list)
            self._states = state_list
        states: frozenset[int] = frozenset()
        before = ""
        # The empty string stands for the end of the text, where `$` and `\b` may match.
        for char in chain(text, ("",)):
            key = (states, before, char)
            step = self._remembered.get(key)
            if step is None:
                step = self._step(states, before, char)
                self._remembered_states += 5 + len(step[0] or ())
                if self._remembered_states > _MAX_REMEMBERED:
                    self._remembered.clear()
                    self._remembered_states = 0
                self._remembered[key] = step
            spend(step[1])
            if step[0] is None:
                return True
            states = step[0]
            before = "w" if char in _WORD else "-"
        return False

    def _step(self, states: frozenset[int], before: str, char: str) -> tuple[frozenset[int] | None, int]:
        """Return the states after a character, or None once the whole pattern is found, and the cost of the step."""
        is_border = (before == "w") is not (char in _WORD)
        places = {"": True, "^": before == "", "$": char == "", "b": is_border, "B": not is_border}
        waiting, reachable = [self._start, *states], set(states) | {self._start}
        after: set[int] = set()
        total_cost = 2
        while waiting:
            fits, place, targets, cost = self._states[waiting.pop()]
            total_cost += cost
            if place == "end":
                return None, total_cost // 2
            if fits is not None:
                if char and fits(char):
                    after.update(targets)
            elif places[place]:
                new = [target for target in targets if target not in reachable]
                reachable.update(new)
                waiting += new
        return frozenset(after), total_cost // 2


def _add(part: Part, next_state: int, states: list[_State]) -> int:
    """Add the states of a part that leads to the state `next_state`; return the number of its first state."""
    kind = part[0]
    if kind == "all":
        for inner in reversed(part[1]):
            next_state = _add(inner, next_state, states)
        return next_state
    if kind == "times":
        _, inner, least, most = part
        if most is None:
            again: list[int] = [next_state]
            states.append((None, "", again, 1))
            next_state = len(states) - 1
            again.append(_add(inner, next_state, states))
        end = next_state
        for _ in range(0 if most is None else most - least):
            states.append((None, "", (_add(inner, next_state, states), end), 1))
            next_state = len(states) - 1
        for _ in range(least):
            next_state = _add(inner, next_state, states)
        return next_state
    if kind == "any":
        states.append((None, "", [_add(inner, next_state, states) for inner in part[1]], 1))
    else:
        states.append((part[1], "", (next_state,), part[2]) if kind == "char" else (None, part[1], (next_state,), 1))
    return len(states) - 1
