"""What `doctor` says of where it stands: the sandbox that this machine gives, and the files that a run here reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..project.claude import claude_folders, find_project_root
from ..project.loaded import LoadedFiles, what_is_loaded
from ..project.trust import TrustAnswer
from ..skills.index import SkillIndex
from ..tools.shell.sandbox_plan import SandboxReport, probe_sandbox
from .keep_rule import trust_store
from .terminal import Screen, on_one_line

_SOURCES = ("user", "project", "local")


@dataclass(frozen=True)
class Surroundings:
    """This machine's sandbox and this folder's project."""

    sandbox: SandboxReport
    root: str
    trust: TrustAnswer
    loaded: LoadedFiles


def read_surroundings(cwd: Path) -> Surroundings:
    """Tries every rung of the sandbox for real, and reads the project's files without running anything of them."""
    root = find_project_root(cwd)
    trust = trust_store().look_up(root)
    skills = SkillIndex(root, cwd=cwd, setting_sources=("user",)).read()
    folders = claude_folders(root, cwd=cwd, setting_sources=_SOURCES)
    return Surroundings(probe_sandbox(), root, trust, what_is_loaded(folders, skills, trusted=trust.is_trusted))


def as_json(around: Surroundings) -> dict[str, Any]:
    """Keys `sandbox` and `project`."""
    rungs = [{"name": name, "works": works, "detail": detail} for name, works, detail in around.sandbox.rungs()]
    files = [
        {"kind": file.kind, "name": file.name, "path": file.path, "scope": file.scope} for file in around.loaded.files
    ]
    notes = [
        {"code": note.code, "message": note.message, "path": note.path, "is_error": note.is_error}
        for note in around.loaded.diagnostics
    ]
    project = {"root": around.root, "trusted": around.trust.is_trusted, "files": files, "notes": notes}
    return {"sandbox": {"level": around.sandbox.level, "rungs": rungs}, "project": project}


def show(screen: Screen, around: Surroundings) -> None:
    """The same for people."""
    screen.line(f"sandbox for Bash on this machine: {around.sandbox.level}")
    for name, works, detail in around.sandbox.rungs():
        mark = screen.styled("yes" if works else "no ", "green" if works else "yellow")
        screen.line(f"  {mark} {name:18} {on_one_line(detail, 300)}")
    trusted = "trusted" if around.trust.is_trusted else "not trusted"
    screen.line(f"project {on_one_line(around.root)}, {trusted}: {on_one_line(around.trust.reason)}")
    for file in around.loaded.files:
        screen.line(f"  {file.kind:8} {on_one_line(file.path)}  {on_one_line(file.name)}".rstrip())
    for note in around.loaded.diagnostics:
        place = f"{note.path}: " if note.path else ""
        screen.line(screen.styled(f"  {on_one_line(f'{place}{note.message}')}", "red" if note.is_error else "yellow"))
