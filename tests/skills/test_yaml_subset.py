"""The YAML subset returns the same as PyYAML, and never takes long."""

from __future__ import annotations

import json
import random
import time
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.skills.yaml_subset import Unreadable, read_mapping
from tests.size import sized

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]

PINNED = Path(__file__).parents[2] / "fixtures" / "skills" / "yaml.json"


def answer(text: str) -> Any:
    try:
        return read_mapping(text)[0]
    except Unreadable:
        return None


class PinnedTest(unittest.TestCase):
    def test_every_document_reads_as_it_is_written_down(self) -> None:
        for case in json.loads(PINNED.read_text(encoding="ascii")):
            with self.subTest(case["yaml"]):
                self.assertEqual(answer(case["yaml"]), case["data"])

    def test_there_are_a_few_hundred_of_them(self) -> None:
        self.assertGreaterEqual(len(json.loads(PINNED.read_text(encoding="ascii"))), 200)


@unittest.skipIf(yaml is None, "PyYAML is not installed (pip install -e .[dev]): pinned answers are tested alone")
class AgainstPyYamlTest(unittest.TestCase):
    """If valid here and for PyYAML: the same value. If refused here: refused there, or one of the unsupported features."""

    def check(self, text: str) -> None:
        try:
            expected = yaml.load(text, Loader=yaml.BaseLoader)
        except (yaml.YAMLError, ValueError):
            return
        ours = answer(text)
        if isinstance(expected, dict) and not uses_more_than_the_subset(text):
            self.assertEqual(ours, expected, text)
        elif expected is None:
            self.assertEqual(ours, {}, text)

    def test_the_pinned_documents(self) -> None:
        for case in json.loads(PINNED.read_text(encoding="ascii")):
            with self.subTest(case["yaml"]):
                self.check(case["yaml"])

    def test_generated_documents(self) -> None:
        source = random.Random(6)
        for _ in range(sized(30, 100, 400)):
            text = document(source)
            self.assertIsNotNone(answer(text), text)
            self.check(text)

    def test_documents_with_random_changes(self) -> None:
        source = random.Random(7)
        for _ in range(sized(100, 300, 1_500)):
            self.check(mutated(source, document(source)))


def uses_more_than_the_subset(text: str) -> bool:
    """Whether it uses anchors, tags, complex keys or marks, which the subset deliberately excludes, anywhere in the text."""
    return any(mark in text for mark in "&!?") or "---" in text or "..." in text or "\t" in text


WORDS = (
    "a",
    "read me",
    "x-1",
    "Bash(git:*)",
    "http://a.b/c#d",
    "it's",
    "a:b",
    "-1",
    "ü",
    "12",
    "true",
    "# no",
    "[x",
    "k: v",
)
PLAIN = tuple(word for word in WORDS if word not in ("# no", "[x", "k: v"))


def scalar(source: random.Random, indent: int) -> str:
    word = source.choice(WORDS)
    match source.randrange(8):
        case 0:
            return json.dumps(word)
        case 1:
            return "'" + word.replace("'", "''") + "'"
        case 2:
            header = source.choice(("|", ">", "|-", ">-", "|+", ">+"))
            lines = [source.choice((*WORDS, "", "  deeper")) for _ in range(source.randrange(1, 5))]
            return header + "\n" + "\n".join(" " * (indent + 2) + line if line else "" for line in ["first", *lines])
        case 3:
            return source.choice(PLAIN) + "\n" + " " * (indent + 2) + source.choice(PLAIN)
        case 4:
            return "\n" + " " * (indent + 2) + source.choice(PLAIN)
        case 5:
            return json.dumps([word, {"k": word, "l": [1, ""]}])
        case _:
            return source.choice(PLAIN)


def block(source: random.Random, indent: int, depth: int) -> str:
    lines = []
    for number in range(source.randrange(1, 4)):
        key = source.choice(("k", "name", '"q k"', "a b", "x.y"))
        pad = " " * indent
        kind = source.randrange(6) if depth < 4 else 5
        if kind == 0:
            lines.append(f"{pad}{key}{number}:" if '"' not in key else f"{pad}{key}:")
            lines.append(block(source, indent + source.choice((1, 2, 4)), depth + 1))
        elif kind == 1:
            lines.append(f"{pad}l{number}:")
            deeper = indent + source.choice((0, 2))
            lines += [f"{' ' * deeper}- {scalar(source, deeper)}" for _ in range(source.randrange(1, 3))]
        elif kind == 2:
            lines.append(f"{pad}m{number}:")
            lines.append(f"{pad}- a: {scalar(source, indent + 2)}")
            lines.append(f"{pad}  b: {scalar(source, indent + 2)}")
        else:
            lines.append(f"{pad}s{number}: {scalar(source, indent)}")
        if source.random() < 0.1:
            lines.append(source.choice(("", "# a comment", "  # another")))
    return "\n".join(lines)


def document(source: random.Random) -> str:
    return block(source, 0, 1) + source.choice(("\n", "", "\n\n"))


def mutated(source: random.Random, text: str) -> str:
    for _ in range(source.randrange(1, 3)):
        at = source.randrange(len(text) + 1)
        new = source.choice((*"\n:#-[]{},'\"|> abc", "  ", ": ", "- ", ""))
        text = text[:at] + new + text[at + source.choice((0, 1)) :]
    return text


class HostileTest(unittest.TestCase):
    def test_every_input_takes_time_in_proportion_to_its_length(self) -> None:
        size = 60_000
        for name, text in (
            ("open brackets", "a: " + "[" * size),
            ("open braces", "a: " + "{" * size),
            ("quotes", "a: " + '"' * size),
            ("backslashes", 'a: "' + "\\" * size),
            ("spaces", "a: b" + " " * size + "c"),
            ("spaces in quotes", 'a: "' + " " * size + 'x"'),
            ("colons", "a" + ":" * size),
            ("hashes", "a: b" + " #" * size),
            ("dashes", "- " * size),
            ("keys", "".join(f"k{i}: v\n" for i in range(size // 8))),
            ("blank lines", "a: |\n" + "\n" * size + "b"),
            ("deep maps", "".join(" " * i + "a:\n" for i in range(300))),
            ("commas", "a: [" + "," * size),
            ("words", "a: " + "b " * size + ": c"),
            ("lines", "a: b\n" + "  c\n" * (size // 4)),
            ("escaped spaces", 'a: "' + "\\ " * (size // 2)),
        ):
            with self.subTest(name):
                began = time.process_time()
                answer(text)
                self.assertLess(time.process_time() - began, 20.0)


if __name__ == "__main__":
    unittest.main()
