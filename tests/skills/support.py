"""Projects in temporary folders, as described by the fixtures' cases."""

from __future__ import annotations

import asyncio
import os
import tempfile
import unittest
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from openagentic_sdk.api import RunResult, run
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider


class ProjectTestCase(unittest.TestCase):
    """Each test has a separate empty project; `outside` is a folder beside it that contains a skill."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.parent = Path(folder.name).resolve()
        self.project = self.parent / "project"
        self.project.mkdir()
        self.write({"../outside/x/SKILL.md": "---\nname: x\ndescription: d\n---\n"})

    def write(
        self, files: Mapping[str, str], links: Mapping[str, str] | None = None, fifos: Iterable[str] = ()
    ) -> None:
        for name, text in files.items():
            self._place(name).write_text(text, encoding="utf-8", newline="")
        for name, target in (links or {}).items():
            self._place(name).symlink_to(target)
        for name in fifos:
            os.mkfifo(self._place(name))

    def skill(self, name: str, body: str = "Do it.\n", **fields: str) -> Path:
        lines = [f"{key.replace('_', '-')}: {value}" for key, value in fields.items()]
        text = "\n".join(["---", f"name: {name}", f"description: About {name}.", *lines, "---", body])
        self.write({f".claude/skills/{name}/SKILL.md": text})
        return self.project / f".claude/skills/{name}/SKILL.md"

    def _place(self, name: str) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class RunTestCase(ProjectTestCase):
    """Runs in the project with a scripted model; `defaults` are options of every run."""

    defaults: Mapping[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()
        self.store = FileSessionStore(root_dir=self.parent / "store")
        self.provider = ScriptedProvider([])

    def run_script(self, *turns: Any, prompt: str = "Go.", **options: Any) -> RunResult:
        self.provider = ScriptedProvider(turns)
        settings: dict[str, Any] = {
            "cwd": self.project,
            "setting_sources": ("project",),
            "session_store": self.store,
            "home": self.parent / "home",
            "permission_gate": PermissionGate(permission_mode="dontAsk", allow=("Skill", "Read")),
            **self.defaults,
            **options,
        }
        made = OpenAgenticOptions(provider=self.provider, **{"model": "m", **settings})
        return asyncio.run(run(prompt=prompt, options=made))
