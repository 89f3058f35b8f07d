"""What a sandboxed command may touch, and what this machine's kernel gives for it.

`probe_sandbox` tries every rung for real, by running a command in it: a kernel's version says little about what a container
or a distribution has switched off.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import ToolError
from .shell_process import CommandSpec, run_command

# In a workspace these decide what other programs run, so no command changes them: missing folders cannot be made either.
PROTECTED_FOLDERS = (".git", ".claude", ".vscode", ".husky")
PROTECTED_FILES = (".mcp.json", ".gitmodules", ".envrc", ".bashrc", ".bash_profile", ".profile", ".zshrc")
PROBE_LIMIT_S = 10.0


@dataclass(frozen=True)
class SandboxReport:
    """What works here, best rung first. `reasons` says for each rung that does not work why."""

    namespaces: bool
    overlay: bool
    landlock: bool
    reasons: Mapping[str, str]

    @property
    def level(self) -> str:
        """The best rung: `namespaces`, `landlock` or `none`."""
        return "namespaces" if self.namespaces else "landlock" if self.landlock else "none"

    def rungs(self) -> list[tuple[str, bool, str]]:
        """Name, whether it works, and what it gives or why it does not work, for people."""
        gives = {
            "namespaces": "read-only but for workspace and temp; .git and settings read-only; no network",
            "overlay": "a command's writes can be listed before they are applied",
            "landlock": "writes only to workspace and temp; no TCP",
        }
        return [(name, name not in self.reasons, self.reasons.get(name, text)) for name, text in gives.items()]


_probed: dict[int, SandboxReport] = {}


def probe_sandbox() -> SandboxReport:
    """What this machine's kernel gives this user; tried once per process."""
    uid = os.geteuid()
    if uid not in _probed:
        _probed[uid] = _probe()
    return _probed[uid]


def _probe() -> SandboxReport:
    if sys.platform != "linux":
        reason = f"a sandbox needs Linux, this is {sys.platform}"
        return SandboxReport(False, False, False, dict.fromkeys(("namespaces", "overlay", "landlock"), reason))
    with tempfile.TemporaryDirectory(prefix="openagentic-probe-") as folder:
        for name in ("lower", "upper", "work"):
            os.mkdir(os.path.join(folder, name))
        overlay = tuple(os.path.join(folder, name) for name in ("lower", "upper", "work"))
        plans = {
            "namespaces": sandbox_plan("namespaces", cwd=folder, writable=[folder]),
            "overlay": sandbox_plan("namespaces", cwd=overlay[0], overlays=[overlay]),
            "landlock": sandbox_plan("landlock", cwd=folder, writable=[folder]),
        }
        tried = {name: _try_plan(plan) for name, plan in plans.items()}
    reasons = {name: reason for name, reason in tried.items() if reason is not None}
    return SandboxReport("namespaces" not in reasons, "overlay" not in reasons, "landlock" not in reasons, reasons)


def _try_plan(plan: Mapping[str, Any]) -> str | None:
    """Why a command does not run under a plan; None when it does."""
    spec = CommandSpec(
        argv=("/bin/sh", "-c", ":"),
        env={},
        cwd=plan["cwd"],
        keep_bytes=1000,
        paths=(os.devnull, os.devnull),
        file_bytes=1000,
        sandbox=plan,
    )
    try:
        report = run_command(spec, timeout_s=PROBE_LIMIT_S)
    except ToolError as error:
        return str(error)
    return (
        None
        if report.exit_code == 0
        else report.stderr.head.decode("utf-8", "replace") or f"exit code {report.exit_code}"
    )


def sandbox_plan(
    level: str,
    *,
    cwd: str,
    writable: Sequence[str] = (),
    protected: Sequence[str] = (),
    overlays: Sequence[tuple[str, ...]] = (),
    network: bool = False,
    limits: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    """A plan as `sandbox` reads it; only what `marshal` can carry."""
    return {
        "level": level,
        "cwd": cwd,
        "writable": list(writable),
        "protected": list(protected),
        "overlays": [tuple(overlay) for overlay in overlays],
        "network": network,
        "limits": [tuple(limit) for limit in limits],
    }


@contextmanager
def protected_paths(roots: Sequence[str], extra: Sequence[str] = ()) -> Iterator[list[str]]:
    """The protected paths of the workspace. Missing folders exist, empty, for the length of the block.

    A read-only mount needs something to stand on, and a folder that is missing could be made by the command (the hole of
    CVE-2026-25725). Afterwards a folder is removed if it was made here and nobody has put anything into it.
    """
    made: list[str] = []
    paths: list[str] = []
    try:
        for root in roots:
            for name in PROTECTED_FOLDERS:
                path = os.path.join(root, name)
                if _make_folder(path):
                    made.append(path)
                if os.path.lexists(path) and not os.path.islink(path):
                    paths.append(path)
            files = (os.path.join(root, name) for name in PROTECTED_FILES)
            paths += [path for path in files if os.path.isfile(path) and not os.path.islink(path)]
        yield [*paths, *(path for path in extra if os.path.exists(path))]
    finally:
        for path in made:
            _remove_if_empty(path)


def _make_folder(path: str) -> bool:
    try:
        os.mkdir(path, 0o700)
    except OSError:  # there is one, or the workspace cannot be written anyway
        return False
    return True


def _remove_if_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError:  # someone outside the sandbox uses it now
        return
