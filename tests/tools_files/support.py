"""A scratch folder for one test, and tools called in it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.tools.base import Tool, ToolContext

FIXTURES = Path(__file__).parent.parent.parent / "fixtures" / "tools_files"


def load_cases(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return cases


class ScratchCase(unittest.TestCase):
    """`self.root` is an empty folder, real path and all."""

    def setUp(self) -> None:
        self.root = Path(os.path.realpath(tempfile.mkdtemp(prefix="tools-files-")))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def context(self, **fields: Any) -> ToolContext:
        return ToolContext(cwd=str(self.root), **fields)

    def call(self, tool: Tool, ctx: ToolContext | None = None, **input: Any) -> Any:
        return tool.run_sync({key.replace("dash_", "-"): value for key, value in input.items()}, ctx or self.context())

    def write(self, path: str, content: str | bytes = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return file

    def write_all(self, paths: list[str]) -> None:
        for path in paths:
            self.write(path)
