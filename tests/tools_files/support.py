"""A scratch folder for one test, and tools called in it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openagentic_sdk.sessions.folds.features.all import ObservedFilesFold
from openagentic_sdk.tools.base import PathRules, Services, Tool, ToolContext

FIXTURES = Path(__file__).parent.parent.parent / "fixtures" / "tools_files"


def load_cases(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    return cases


class Rules(PathRules):
    """Permits and shows the paths that plain functions select."""

    def __init__(
        self, permits: Callable[[str], bool] = lambda path: True, shows: Callable[[str], bool] | None = None
    ) -> None:
        self._permits, self._shows = permits, shows

    async def permits(self, ctx: ToolContext, path: str, *, write: bool = False) -> bool:
        return self._permits(path)

    def read_filter(self) -> Callable[[str], bool] | None:
        return self._shows


class ScratchCase(unittest.TestCase):
    """`self.root` is an empty folder, as a real path."""

    def setUp(self) -> None:
        self.root = Path(os.path.realpath(tempfile.mkdtemp(prefix="tools-files-")))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def context(
        self, *services: object, observed: dict[str, str] | None = None, rules: PathRules | None = None
    ) -> ToolContext:
        """A context with these services; `observed` are the digests of files as a model last saw them."""
        fold = ObservedFilesFold()
        fold.digests.update(observed or {})
        offered = {type(service): service for service in (fold, *services)}
        return ToolContext(cwd=str(self.root), services=Services({PathRules: rules or PathRules(), **offered}))

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
