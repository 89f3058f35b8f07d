"""A small project on disk and a scripted person, for tests of the gate."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openagentic_sdk.events import UserQuestion
from openagentic_sdk.permissions.gate import ApprovalResult, PermissionGate

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "permissions"


def fixture(name: str) -> Any:
    """Load a table of cases."""
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


class Person:
    """A person who gives the same answer to every question, and records the questions."""

    def __init__(self, answer: str = "no") -> None:
        self.says = answer
        self.asked: list[UserQuestion] = []

    async def __call__(self, question: UserQuestion) -> str:
        self.asked.append(question)
        return self.says


class WorkspaceTestCase(unittest.TestCase):
    """Give each test a project in `self.root`, with links to places outside it and to secret files."""

    def setUp(self) -> None:
        self.runner = asyncio.Runner()
        self.addCleanup(self.runner.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.outside = Path(os.path.realpath(folder.name))
        self.root = self.outside / "project"
        for name in ("src", "secrets", ".git/hooks", ".claude", "docs/deep", "other"):
            (self.root / name).mkdir(parents=True)
        for name in ("src/a.py", "README.md", "secrets/key", ".env", ".git/config", "docs/deep/.env", "other/b.py"):
            (self.root / name).write_text("x\n", encoding="utf-8")
        # Not a default setting, but one that the environment overrides.
        (self.root / ".git/config").write_text("[core]\n\thooksPath = hooks\n", encoding="utf-8")
        (self.outside / "outside.txt").write_text("x\n", encoding="utf-8")
        links = {
            "link_out": "/etc",
            "link_file_out": str(self.outside / "outside.txt"),
            "link_secret": "secrets/key",
            "link_link": "link_secret",
            "link_dir": "src",
            "link_git": ".git",
            "loop": "loop",
        }
        for name, target in links.items():
            (self.root / name).symlink_to(target)

    def gate(self, person: Person | None = None, **policy: Any) -> PermissionGate:
        """A gate for the project."""
        return PermissionGate(cwd=str(self.root), user_answerer=person, **policy)

    def approve(self, gate: PermissionGate, tool: str, input: Mapping[str, Any], **context: Any) -> ApprovalResult:
        """Return the gate's decision on one call."""
        return self.runner.run(gate.approve(tool, input, {"cwd": str(self.root), **context}))

    def outcome(self, policy: Mapping[str, Any], tool: str, input: Mapping[str, Any], **context: Any) -> str:
        """`allow`, `ask` or `deny`, as a person at the terminal would see it."""
        person = Person()
        result = self.approve(self.gate(person, **policy), tool, input, **context)
        return "ask" if person.asked else "allow" if result else "deny"
