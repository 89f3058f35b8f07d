"""The cost of reading skills: a thousand of them cold, again without changes, and compared with PyYAML's Python loader."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable

from openagentic_sdk.skills.frontmatter import read_frontmatter
from openagentic_sdk.skills.index import SkillIndex, index_skills

from . import Row, best_cpu_s, best_s

SKILLS = 1000
_WORDS = (
    "read",
    "write",
    "check",
    "plan",
    "report",
    "file",
    "table",
    "image",
    "test",
    "build",
    "review",
    "search",
    "note",
)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as project:
        texts = _write_skills(project)
        cold = best_s(lambda: index_skills(project), 5)
        floor = best_s(lambda: _read_files(project), 3)
        index = SkillIndex(project)
        index.read()
        again = best_s(index.read, 20)
        against_pyyaml = _against_pyyaml(texts, lambda: index_skills(project))
    return [
        Row("index 1,000 skills, cold", cold * 1000, "ms", cold / floor, "open and read the same files", "ratio <= 30"),
        Row(
            "index again, nothing changed",
            again * 1000,
            "ms",
            again / floor,
            "open and read the same files",
            "ratio <= 2",
        ),
        *against_pyyaml,
    ]


def _against_pyyaml(texts: list[str], index: Callable[[], object]) -> list[Row]:
    try:
        import yaml
    except ImportError:
        return []

    class Loader(yaml.BaseLoader):
        """The pure Python loader, whatever else is installed."""

    ours = best_cpu_s(lambda: [read_frontmatter(text) for text in texts], 3)
    theirs = best_cpu_s(lambda: [yaml.load(text.split("---\n")[1], Loader=Loader) for text in texts], 3)
    cold = best_cpu_s(index, 5)
    floor = "PyYAML's pure Python loader on the same frontmatters"
    return [
        Row("index 1,000 skills, processor time", cold * 1000, "ms", cold / theirs, floor, "ratio <= 0.333"),
        Row("read 1,000 frontmatters", ours * 1000, "ms", ours / theirs, floor, "ratio <= 0.333"),
    ]


def _write_skills(project: str) -> list[str]:
    """Write skills of typical published sizes: a frontmatter of about 360 characters, a body of about 2,900."""
    source = random.Random(1)
    texts = []
    for number in range(SKILLS):
        folder = os.path.join(project, ".claude", "skills", f"skill-{number:04}")
        os.makedirs(os.path.join(folder, "references"))
        texts.append(_skill_text(f"skill-{number:04}", source))
        with open(os.path.join(folder, "SKILL.md"), "w", encoding="utf-8") as file:
            file.write(texts[-1])
    return texts


def _skill_text(name: str, source: random.Random) -> str:
    description = " ".join(source.choices(_WORDS, k=40))
    forms = (
        f"description: {description}",
        f'description: "{description}"',
        f"description: |\n  {description}\n  More.",
    )
    metadata = 'metadata: {"tool": {"requires": {"bins": ["git", "rg"]}, "always": true}}'
    fields = [f"name: {name}", source.choice(forms), "license: MIT", "allowed-tools: Read, Bash(git log:*)"]
    fields += source.choice(
        (["version: 1.0.0"], [metadata], ["metadata:", "  author: someone", "  tags:", "    - a", "    - b"])
    )
    body = "\n\n".join(" ".join(source.choices(_WORDS, k=60)) for _ in range(9))
    return "\n".join(["---", *fields, "---", "", f"# {name}", "", body, ""])


def _read_files(project: str) -> None:
    root = os.path.join(project, ".claude", "skills")
    for name in os.listdir(root):
        with open(os.path.join(root, name, "SKILL.md"), "rb") as file:
            file.read()
