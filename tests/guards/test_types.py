"""Type checking: the Python in the docs passes `mypy --strict`, and events narrow by type and class."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import get_args

from openagentic_sdk import AnyEvent
from openagentic_sdk.events import Event, UnknownEvent

from .source import ROOT
from .test_docs import PAGES, RECIPE_BLOCK

NARROWING = """
from typing import assert_never, assert_type

from openagentic_sdk import AnyEvent
from openagentic_sdk.events import AssistantMessage, Result, ToolResult, UnknownEvent


def narrow(event: AnyEvent) -> None:
    if event.type == "tool.result":
        assert_type(event, ToolResult)
    elif event.type == "result":
        assert_type(event, Result)
    elif isinstance(event, UnknownEvent):
        assert_type(event, UnknownEvent)
    match event:
        case AssistantMessage(text=text):
            assert_type(text, str)
        case UnknownEvent(data=data):
            print(data["type"])
        case _:
            print(event.seq)
    match event.type:
        case "tool.result":
            assert_type(event, ToolResult)
    assert_type([e.final_text for e in [event] if e.type == "result"], list[str])
"""
# Leniency for pages: functions used only on the page need no annotations, and each block is a program of its own or a cell
# of a notebook.
LOOSE = (
    *("--allow-untyped-defs", "--allow-untyped-calls", "--allow-redefinition"),
    *("--disable-error-code=no-redef", "--disable-error-code=top-level-await"),
)


def subclasses(cls: type) -> set[type]:
    return {cls for one in cls.__subclasses__() for cls in (one, *subclasses(one))}


class Types(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed (extra `dev`)")
    def test_the_python_of_each_page_is_well_typed_and_events_narrow(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for page in [*PAGES, ROOT / "README.md"]:
            text = page.read_text(encoding="utf-8")
            lines = [""] * (text.count("\n") + 1)
            for found in RECIPE_BLOCK.finditer(text):
                # Blocks that need a package are left out; the others keep their line numbers in the page.
                if found[2] == "python" and not found[1]:
                    first = text.count("\n", 0, found.start(2)) + 1
                    block = found[3].splitlines()
                    lines[first : first + len(block)] = block
            (folder / f"page_{re.sub(r'[^a-z0-9]', '_', page.stem.lower())}.py").write_text("\n".join(lines))
        (folder / "narrowing.py").write_text(NARROWING)
        cache = f"--cache-dir={folder / 'cache'}"
        flags = ("--strict", "--follow-imports=silent", "--no-error-summary", cache, *LOOSE)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *flags, "--config-file=", "."],
            cwd=folder,
            env={**env, "MYPYPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_every_event_is_in_the_union_and_has_a_literal_type(self) -> None:
        known = {cls for cls in subclasses(Event) if cls.__module__ == Event.__module__}
        self.assertEqual(known, set(get_args(AnyEvent)))
        for cls in known - {UnknownEvent}:
            self.assertIn(f"Literal['{cls.type}'", cls.__annotations__["type"].replace('"', "'"))

    def test_an_editable_installation_is_a_path_that_type_checkers_follow(self) -> None:
        # Without this setting setuptools installs an import hook, through which mypy and pyright cannot find the package.
        with (ROOT / "pyproject.toml").open("rb") as file:
            self.assertEqual(tomllib.load(file)["tool"]["setuptools"]["package-dir"], {"": "."})


if __name__ == "__main__":
    unittest.main()
