"""Type checking: the public names, the docs and the examples under `mypy --strict`, and events narrow by type and class."""

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
PUBLIC = """
from typing import Annotated, assert_type
from openagentic_sdk import AgentDefinition, PermissionGate, Result, StopReason, ToolContext, run_sync, tool

@tool
def add(a: int, b: Annotated[int, "the second"] = 1) -> int:
    "Add."
    return a + b

@tool(effect="read")
async def look(name: str, ctx: ToolContext) -> str:
    "Look."
    return name

assert_type(add(1, b=2), int)
add("one")  # error
AgentDefinition("d", "p", permission_mode="acceptEdits")
AgentDefinition("d", "p", permission_mode="anything")  # error

def is_parked(result: Result) -> bool:
    if result.stop_reason == "parked":  # error
        return True
    return result.stop_reason == "waiting" or result.stop_reason == "blocked:session_start"
"""
# Leniency for pages: functions used only on the page need no annotations, and each block is a program of its own or a cell
# of a notebook.
CONFIGURATION = """
[mypy]
strict = true
follow_imports = silent

[mypy-pages.*]
disallow_untyped_defs = false
disallow_untyped_calls = false
disallow_incomplete_defs = false
allow_redefinition = true
disable_error_code = no-redef, top-level-await
"""
# Programs of the examples, and uses of an `Agent` with the types that mypy infers.
PROGRAMS = [
    ROOT / "tests/agent/typed_use.py",
    *(path for room in ("apps", "ports") for path in sorted(ROOT.glob(f"examples/{room}/*.py"))),
]


def subclasses(cls: type) -> set[type]:
    return {cls for one in cls.__subclasses__() for cls in (one, *subclasses(one))}


def write_blocks(page: Path, target: Path) -> None:
    """Write the Python blocks of a page on their lines in the page, without those that need a package."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for found in RECIPE_BLOCK.finditer(text):
        if found[2] == "python" and not found[1]:
            first = text.count("\n", 0, found.start(2)) + 1
            block = found[3].splitlines()
            lines[first : first + len(block)] = block
    target.write_text("\n".join(lines))


@unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed (extra `dev`)")
class Mypy(unittest.TestCase):
    """One run of mypy checks everything: most of its time goes to the package, which is read once."""

    problems: list[str]

    @classmethod
    def setUpClass(cls) -> None:
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (folder / "pages").mkdir()
        (folder / "pages/__init__.py").touch()
        for page in [*PAGES, ROOT / "README.md"]:
            write_blocks(page, folder / f"pages/page_{re.sub(r'[^a-z0-9]', '_', page.stem.lower())}.py")
        (folder / "narrowing.py").write_text(NARROWING)
        (folder / "public.py").write_text(PUBLIC)
        (folder / "mypy.ini").write_text(CONFIGURATION)
        flags = ("--no-error-summary", "--config-file=mypy.ini", "--cache-dir=cache")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *flags, ".", *map(str, PROGRAMS)],
            cwd=folder,
            env={**env, "MYPYPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        cls.problems = (done.stdout + done.stderr).splitlines()

    def test_only_the_mistakes_in_the_use_of_public_names_are_found(self) -> None:
        wrong = [number for number, line in enumerate(PUBLIC.splitlines(), 1) if line.endswith("# error")]
        found = {int(line.split(":")[1]) for line in self.problems if re.match(r"public\.py:\d+: error:", line)}
        self.assertEqual(sorted(found), wrong, self.problems)

    def test_pages_programs_and_uses_of_an_agent_are_well_typed_and_events_narrow(self) -> None:
        self.assertEqual([line for line in self.problems if not line.startswith("public.py:")], [])


class Types(unittest.TestCase):
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
