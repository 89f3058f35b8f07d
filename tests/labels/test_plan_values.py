"""The language of plans: its computations, that no label is lost in them, and that all of them are bounded."""

from __future__ import annotations

import ast
import asyncio
import itertools
import unittest
from collections.abc import Mapping
from typing import Any

from openagentic_sdk.errors import ToolError
from openagentic_sdk.parts.labels.plans import interpreter
from openagentic_sdk.parts.labels.plans.interpreter import PlanFunction, PlanInterpreter
from openagentic_sdk.parts.labels.plans.values import CLEAN, PlanValues, Value, ValueLabel
from tests.size import drawn, full_size

MAIL = ValueLabel(frozenset([("mail", "call-1")]))
SECRET = ValueLabel(secrets=frozenset(["passport"]))
BOTH = MAIL.joined(SECRET)


class Played:
    """A finished plan: its output with labels, its calls of `send`, and its error.

    `read(value)` returns the value with the label of a mail.
    """

    def __init__(self, code: str, *, is_strict: bool = False, label: ValueLabel = MAIL) -> None:
        self.printed: list[tuple[str, ValueLabel]] = []
        self.sent: list[tuple[Any, ValueLabel, ValueLabel]] = []
        self.error: Exception | None = None
        self._label, self._values = label, PlanValues()
        functions = {"read": PlanFunction("read", ["value"]), "send": PlanFunction("send", ["to", "body"])}
        plan = PlanInterpreter(
            self._values, functions, self._call, lambda *shown: self.printed.append(shown), is_strict=is_strict
        )
        try:
            asyncio.run(plan.run(code))
        except Exception as error:  # noqa: BLE001 - the test checks which error it is
            self.error = error

    async def _call(self, tool: str, arguments: Mapping[str, Value], decided: ValueLabel) -> Value:
        plain = {name: self._values.plain(value) for name, value in arguments.items()}
        label = self._values.label_of(*arguments.values())
        if tool == "read":
            return self._values.lift(plain["value"], label.joined(self._label))
        self.sent.append((plain, label, decided))
        return self._values.lift("sent", label)

    @property
    def texts(self) -> list[str]:
        assert self.error is None, self.error
        return [text for text, _ in self.printed]

    @property
    def labels(self) -> list[ValueLabel]:
        assert self.error is None, self.error
        return [label for _, label in self.printed]


# Expressions that contain x or derive from it; together they use every operator, method and function of the language.
OF_TEXT = """
    x  -len(x)  x + 'a'  'a' + x  x * 2  2 * x  x[0]  x[-1:]  x[::2]  'abc'[len(x) % 3]  [1, 2, 3, 4][len(x) % 2]
    f'{x}'  f'{x!r:>9}'  f'{3:{len(x)}}'  x == 'a'  x != 'a'  x < 'b'  x <= 'b'  x > 'b'  x >= 'b'  x in 'abc'  'a' in x
    x not in ['b']  'b' not in [x]  x is None  x is not None  not x  x and 'c'  'c' and x  x or 'c'  '' or x
    1 < len(x) < 9  [x][0]  (x,)[0]  {'k': x}['k']  {x: 1}[x]  {x: 1}  {'a': 1}.get(x)  {'a': 1}.get(x, 2)
    {}.get('b', x)  {'k': x}.get('k')  {'k': x}.values()  {'k': x}.items()  {x: 1}.keys()  [y for y in [x]]
    [y for y in x]  [1 for y in x]  [1 for y in [1] if x]  {y: 1 for y in x}  {1: y for y in x}
    [y + z for y in x for z in 'ab']  (lambda y: y)(x)  len([1 for y in 'abc' if y in x])  x.join(['a', 'b'])
    ', '.join([x, 'b'])  x.replace('a', 'b')  'a'.replace('a', x)  x.capitalize()  x.casefold()  x.count('a')
    x.endswith('a')  x.find('a')  x.index(x)  x.isalnum()  x.isalpha()  x.isdigit()  x.isspace()  x.lower()  x.lstrip()
    x.partition(' ')  x.removeprefix('a')  x.removesuffix('a')  x.rfind('a')  x.rpartition(' ')  x.rsplit()  x.rstrip()
    x.split()  x.splitlines()  x.startswith('a')  x.strip()  x.title()  x.upper()  str(x)  bool(x)  any([x])  all([x])
    list(x)  tuple(x)  len(x)  sorted([x, 'a'])  sorted(x)  list(reversed(x))  min(x, 'a')  max([x, 'a'])
    max(['a', 'b'], key=lambda y: y in x)  min([], default=x)  list(enumerate(x))  list(enumerate([x]))
    list(zip(x, 'ab'))  sorted([1, 2], key=lambda y: x * y)  sorted([1, 2], reverse=len(x))  ['a', 'b'] + [x]  [x] * 2
    send(x)  read(x)
"""
OF_NUMBER = """
    x + 1  1 + x  x - 1  x * 2  x / 2  x // 2  x % 2  7 % x  -x  +x  x == 3  abs(x)  round(x)  round(2.5, x)  int(x)
    float(x)  sum([x, 1])  sum([1], x)  range(x)  range(0, 9, x)  [0, 1, 2, 3, 4][x]  'abcde'[x]  'a' * x
    [0, 1, 2, 3, 4][x:]  str(x)  f'{1.5:.{x}f}'  int('7') + x  {3: 'a'}[x]
"""


def expressions(texts: str) -> list[str]:
    return [each for line in texts.splitlines() for each in line.strip().split("  ") if each]


class LabelsOfValuesTest(unittest.TestCase):
    def test_whatever_is_computed_from_a_value_carries_its_labels(self) -> None:
        for data, texts in (("'ab c'", OF_TEXT), ("3", OF_NUMBER)):
            for text in expressions(texts):
                with self.subTest(text):
                    played = Played(f"x = read({data})\nprint({text.replace('(lambda y: y)(x)', 'x')})", label=BOTH)
                    self.assertEqual(played.labels, [BOTH])
                    clean = Played(
                        f"x = {data}\nprint({text.replace('(lambda y: y)(x)', 'x').replace('read(x)', 'x')})"
                    )
                    self.assertEqual(clean.labels, [CLEAN])

    def test_labels_are_kept_through_two_operations(self) -> None:
        chosen = [text for text in expressions(OF_TEXT) if text[-1] not in "]}" and "y" not in text]
        for first, second in drawn(itertools.product(chosen[::3], chosen[1::3]), 4):
            played = Played(f"y = read('ab c')\nx = str({first.replace('x', 'y')}) + 'a '\nprint({second})")
            if played.error is None:
                self.assertEqual(played.labels, [MAIL], (first, second))

    def test_every_operator_method_and_function_is_among_these_expressions(self) -> None:
        text = "\n".join([OF_TEXT, OF_NUMBER])
        tree = [ast.walk(ast.parse(each)) for each in expressions(text)]
        nodes = [node for walked in tree for node in walked]
        methods = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        self.assertLessEqual(interpreter._OPERATORS.keys(), {type(node) for node in nodes})
        self.assertLessEqual({*interpreter._TEXT_METHODS}, methods)
        self.assertLessEqual({*interpreter.FUNCTIONS} - {"print"}, names)

    def test_an_item_keeps_its_own_labels_in_a_container_and_a_container_has_those_of_all(self) -> None:
        code = (
            "m = read('a b')\nboth = ['mine', m]\nd = {'mine': 'mine', 'theirs': m}\n"
            "print(both[0])\nprint(both[1])\nprint(both)\nprint(d['mine'])\nprint(d['theirs'])\nprint(d)\nprint(len(both))"
        )
        self.assertEqual(Played(code).labels, [CLEAN, MAIL, MAIL, CLEAN, MAIL, MAIL, CLEAN])

    def test_an_item_added_to_a_container_is_in_it_under_every_name(self) -> None:
        code = (
            "m = read('a')\nx = []\ny = x\nx.append(m)\nprint(y[0])\nz = [[]]\nw = z[0]\nw.extend(m)\nprint(z)\n"
            "d = {}\ne = d\ne[m] = 1\nprint(len(d))\nl = [0]\nl[0] = m\nprint(l)\nl += [1]\nprint(l[1])\nprint(len(l))"
        )
        self.assertEqual(Played(code).labels, [MAIL, MAIL, MAIL, MAIL, CLEAN, CLEAN])

    def test_an_item_picked_by_an_untrusted_index_is_wholly_untrusted(self) -> None:
        code = "m = read('bob')\nbook = {'bob': {'iban': ['DE1']}}\nprint(book[m]['iban'][0])\nprint(book.get(m)['iban'][0])"
        self.assertEqual(Played(code).labels, [MAIL, MAIL])


# Each sends or prints something that an untrusted value decided without being part of it.
DECIDED = {
    "the branch taken": "s = 'a'\nif m:\n    s = 'b'\nprint(s)",
    "the branch not taken": "s = 'a'\nif not m:\n    s = 'b'\nprint(s)",
    "the list of a branch not taken": "s = ['a']\nt = s\nif not m:\n    t.append('b')\nprint(s)",
    "the list that a branch not taken extends": "s = ['a']\nt = s\nif not m:\n    t.extend(['b'])\nprint(s)",
    "the key of a branch not taken": "s = {'a': 1}\nif not m:\n    s['b'] = 2\nprint(s)",
    "the item of a branch not taken": "s = ['a']\nif not m:\n    s[0] = 'b'\nprint(s)",
    "the expression taken": "print('a' if m else 'b')",
    "a loop over it": "n = 0\nfor c in m:\n    n += 1\nprint(n)",
    "a loop that is left": "n = 0\nfor c in 'abc':\n    if c in m:\n        break\n    n += 1\nprint(n)",
    "a round that is left": "n = 0\nfor c in 'abc':\n    if c in m:\n        continue\n    n += 1\nprint(n)",
    "a filter": "print([c for c in 'abc' if c in m][0])",
    "the order": "print(sorted(['a', 'b'], key=lambda c: c in m)[0])",
    "what is printed": "if m:\n    print('a')",
}


class DecidedTest(unittest.TestCase):
    def test_values_decided_by_an_untrusted_one_are_untrusted_only_under_strict(self) -> None:
        for name, code in DECIDED.items():
            with self.subTest(name):
                self.assertEqual(Played(f"m = read('ab')\n{code}", is_strict=True).labels, [MAIL])
                self.assertEqual(Played(f"m = read('ab')\n{code}").labels, [CLEAN])

    def test_under_strict_a_call_has_the_label_of_what_decided_it(self) -> None:
        for code in (
            "if m:\n    send('a')",
            "for c in m[:1]:\n    send('a')",
            "x = m and send('a')",
            "x = send('a') if m else 1",
        ):
            with self.subTest(code):
                strict, normal = (Played(f"m = read('ab')\n{code}", is_strict=each).sent for each in (True, False))
                self.assertEqual([decided for _, _, decided in strict], [MAIL])
                self.assertEqual([decided for _, _, decided in normal], [CLEAN])

    def test_code_after_a_branch_does_not_have_its_label(self) -> None:
        code = (
            "m = read('ab')\nother = ['k']\nif m:\n    x = 1\nfor c in m:\n    x = 2\n"
            "send('a')\nprint('a')\nprint(other)\nprint(x)"
        )
        played = Played(code, is_strict=True)
        self.assertEqual([decided for _, _, decided in played.sent], [CLEAN])
        self.assertEqual(played.labels, [CLEAN, CLEAN, MAIL])


# Each would take too long, use too much memory, or escape.
HOSTILE = (
    "while True:\n    pass", "import os", "def f(): pass", "class A: pass", "x = ().__class__", "x = 'a'.__doc__",
    "x = open", "print(__builtins__)", "eval('1')", "x = [].append", "x = (lambda: 1)()",
    "try:\n    pass\nfinally:\n    pass", "with 1: pass", "del print", "x = 2 ** 9", "x = 1 << 9", "print = 3",
    "read = 3", "send(*[1])", "send(**{'to': 1})", "f = lambda y: f(y)\nf(1)", "x = 'a' * 10 ** 9",
    "x = 'a' * 1000000", "x = [1] * 1000000", "x = range(1000000000)",
    "x = 'a' * 99999\nx = x + x + x + x + x + x + x + x + x + x + x", "x = 9\nfor i in range(9999):\n    x = x * x",
    "x = [1]\nfor i in range(60):\n    x = [x, x]\nprint(x)", "x = []\nx.append(x)\nprint(x)",
    "x = []\nx.append(x)\nsend(x)", "x = 'a' * 99999\nx = x.replace('a', x)", "x = ('a' * 99999).join('b' * 99999)",
    "x = f'{1:999999999}'", "x = '%999999999d' % 1", "x = '{:999999999}'.format(1)", "x = 'a'.center(999999999)",
    "x = sum([[1]], [])", "x = b'a'", "for i in range(9999):\n    for j in range(9999):\n        pass",
    "x = [1 for i in range(9999) for j in range(9999)]", "1" + " + 1" * 500, "-" * 4000 + "1", "(" * 4000, "x = 1 +",
    "x = {[1]: 2}", "x = undefined", "x = (y := 1)", "async def f(): pass", "x = 1j", "x = ...",
    "match 1:\n    case 1: pass", "x: int = 1", "global x", "x = {1, 2}", "x, y = 1, 2, 3",
    "x = lambda *a: 1\nx(1, 2)",
)  # fmt: skip


class BoundsTest(unittest.TestCase):
    @full_size
    def test_hostile_code_ends_with_an_error(self) -> None:
        for code in HOSTILE:
            with self.subTest(code[:60]):
                played = Played(code)
                self.assertIsInstance(played.error, Exception)
                self.assertNotIsInstance(played.error, SystemError)
                self.assertEqual(played.sent, [])

    def test_calls_of_lambdas_nest_to_their_limit_and_no_deeper_however_many_there_are(self) -> None:
        most = interpreter.MAX_LAMBDAS
        chain = "f0 = lambda y: y\n" + "".join(f"f{n} = lambda y: f{n - 1}(y)\n" for n in range(1, most + 1))
        repeated = f"for i in range({2 * most}):\n    f0(i)\n"
        self.assertEqual(Played(f"{chain}{repeated}print(f{most - 1}(1))").texts, ["1"])
        self.assertRegex(str(Played(f"{chain}print(f{most}(1))").error), f"nested at most {most} deep")

    def test_an_error_of_the_language_itself_reveals_no_value(self) -> None:
        for code in ("m * 1000000", "f'{1:{m}}'", "[a for a, b in [[m]]]", "m.nothing()", "nothing(m)", "sorted(m, m)"):
            with self.subTest(code):
                error = Played(f"m = read('WORD')\nx = {code}").error
                self.assertIsInstance(error, ToolError)
                self.assertNotIn("WORD", str(error))

    def test_the_language_does_what_python_does(self) -> None:
        code = (
            "words = 'the quick brown fox'.split()\n"
            "sizes = {w: len(w) for w in words if w != 'the'}\n"
            "longest = max(sizes.items(), key=lambda pair: pair[1])\n"
            "total, n = 0, 1\n"
            "for i, w in enumerate(words):\n"
            "    if i == 3:\n        break\n"
            "    elif len(w) == 3:\n        continue\n"
            "    total += len(w) * n\n"
            "print(longest, total, sorted(words, reverse=True)[:2], sum([1, 2.5]), list(zip('ab', (1, 2))))\n"
            "print(f'{1234.5:,.2f}|{n:>3}|{words[0]!r}', 'x' in sizes, sizes.get('x', 0))\n"
            "print(-7 // 2, 7 % 3, min(3, 1, 2))\n"
            "nested = {'a': [{'b': 1}]}\nnested['a'][0]['c'] = [1]\nnested['a'][0]['c'].append(2)\n"
            "nested['a'] += [3]\nprint(nested, 1 < 2 < 3, 1 < 2 > 3, not [], [] or 'x', 0 and 1, None is None)\n"
            "print(' a,b '.strip().partition(','), '-'.join(reversed(['a', 'b'])), 'abc'[::-1])\n"
            "print([1, 2, 3][1:], round(2.567, 1))\n"
        )
        expected: list[str] = []
        exec(code, {"print": lambda *parts: expected.append(" ".join(map(str, parts)))})
        self.assertEqual(Played(code).texts, expected)


if __name__ == "__main__":
    unittest.main()
