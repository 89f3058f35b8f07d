"""The report of `doctor` on this machine and folder: the working sandbox, and the files that a run reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..assemble import open_project, project_findings
from ..ground.frozen import frozen
from ..ground.text import on_one_line
from ..ground.words import plural
from ..options import SETTING_SOURCES, OpenAgenticOptions
from ..parts.project.project import OpenedProject
from ..parts.record.folds.prices import price_date
from ..tools.shell.sandbox_plan import SandboxReport, probe_sandbox
from .output.terminal import Screen


@frozen
class Surroundings:
    """This machine's sandbox and this folder's project."""

    sandbox: SandboxReport
    project: OpenedProject


def read_surroundings(cwd: Path) -> Surroundings:
    """Try every kind of sandbox, and read the project's files without running anything in them."""
    options = OpenAgenticOptions(cwd=cwd, setting_sources=SETTING_SOURCES)
    return Surroundings(probe_sandbox(), open_project(options))


def sandbox_advice(around: Surroundings) -> str | None:
    """Advice on rules that allow commands, which name a command and not its effects; None without such rules."""
    rules = [rule.text for rule in around.project.settings.allow if rule.text.startswith("Bash")]
    if not rules:
        return None
    allowing = f"{plural(len(rules), 'rule')} {'allows' if len(rules) == 1 else 'allow'} commands"
    if around.sandbox.level == "none":
        return f"{allowing}, and no sandbox confines them here: run in a container or a virtual machine"
    allowed = f"{allowing} ({rules[0]})"
    if not around.sandbox.is_mounted:
        return f"{allowed}, and Landlock alone protects nothing in the workspace"
    return f"{allowed}: they run in this sandbox unless --sandbox off is given, and keep network access"


def as_json(around: Surroundings) -> dict[str, Any]:
    """The report as JSON, with the keys `sandbox`, `project` and `prices`."""
    rungs = [{"name": name, "works": works, "detail": detail} for name, works, detail in around.sandbox.rungs()]
    project = {
        "root": around.project.root,
        "trusted": around.project.trust.is_trusted,
        "files": [vars(file) for file in around.project.files()],
        "notes": [vars(note) for note in project_findings(around.project)],
    }
    sandbox = {"level": around.sandbox.level, "rungs": rungs, "advice": sandbox_advice(around)}
    return {"sandbox": sandbox, "project": project, "prices": {"as_of": price_date()}}


def shown_lines(screen: Screen, around: Surroundings) -> Iterator[str]:
    """Yield the report on the machine and the project, line by line, for people."""
    yield f"sandbox for Bash on this machine: {around.sandbox.level}"
    for name, works, detail in around.sandbox.rungs():
        mark = screen.styled("yes" if works else "no ", "green" if works else "yellow")
        yield f"  {mark} {name:18} {on_one_line(detail, 300)}"
    advice = sandbox_advice(around)
    if advice is not None:
        yield screen.styled(f"  {on_one_line(advice, 300)}", "yellow")
    yield f"prices of models: the table of {price_date()}; the option `prices` replaces or adds to it"
    trusted = "trusted" if around.project.trust.is_trusted else "not trusted"
    yield f"project {on_one_line(around.project.root)}, {trusted}: {on_one_line(around.project.trust.reason)}"
    for file in around.project.files():
        yield f"  {file.kind:8} {on_one_line(file.path)}  {on_one_line(file.name)}".rstrip()
    for note in project_findings(around.project):
        yield screen.styled(f"  {on_one_line(note.located)}", "red" if note.is_error else "yellow")
