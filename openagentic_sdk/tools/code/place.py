"""The place where a model's Python runs: an interpreter that sees its own library and one empty folder.

It is the shell's sandbox in its `closed` form (`tools.shell.sandbox`): no network, no files of this machine, no other
processes. Its levels are tried, the strongest first, until an interpreter runs in one; this process keeps the result.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import ToolError
from ...ground.disk import scratch_folder
from ...ground.frozen import frozen
from ..shell.process import ServerSpec
from ..shell.sandbox_plan import probe_sandbox, sandbox_plan, try_plan

# The folders of shared libraries, and of the zones of `zoneinfo`.
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_FOLDER = "/work"
_MAX_FILES = 64


@frozen
class CodeLimits:
    """The limits of one run of code: tool calls, seconds (excluding these calls), and bytes of memory, files and output."""

    max_calls: int = 100
    seconds: float = 60.0
    memory_bytes: int = 1 << 30
    folder_bytes: int = 64 << 20
    output_bytes: int = 8 << 20

    def as_rlimits(self) -> tuple[tuple[int, int], ...]:
        import resource

        return (
            (resource.RLIMIT_AS, self.memory_bytes),
            # The sum of all threads; only takes effect if the host is too busy to enforce the time limit.
            (resource.RLIMIT_CPU, 2 * int(self.seconds) + 30),
            (resource.RLIMIT_FSIZE, self.folder_bytes),
            (resource.RLIMIT_NOFILE, _MAX_FILES),
            (resource.RLIMIT_CORE, 0),
        )


@contextmanager
def code_place(source: str, limits: CodeLimits) -> Iterator[ServerSpec]:
    """Provide a sandbox during the block; yield the command that runs `source` in it.

    Raises `ToolError` if this machine supports no sandbox.
    """
    with scratch_folder("openagentic-code-") as scratch:
        # Use the strongest sandbox in which code runs here.
        report = probe_sandbox()
        works = {"namespaces": report.namespaces, "bwrap": report.bwrap, "landlock": report.landlock}
        rungs = tuple(name for name in works if works[name])
        # A level that works for the shell may not work for the interpreter: its libraries may be elsewhere.
        if rungs not in _levels:
            reasons = [report.reasons[name] for name in works if name in report.reasons]
            _levels[rungs] = _find_level(rungs, reasons)
        level, reason = _levels[rungs]
        if not level:
            raise ToolError(
                f"code runs only in a sandbox, and this machine supports none ({reason}): call the tools one by one"
            )
        plan = _closed_plan(level, scratch, limits)
        folder = plan["cwd"]
        yield ServerSpec(
            # No environment, no site-packages (which are not in the sandbox), and no compiled files.
            argv=(os.path.realpath(sys.executable), "-I", "-S", "-B", "-X", "utf8", "-c", source),
            # With one memory arena per thread, only few threads would fit.
            env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "2"},
            cwd=folder if plan["level"] == "landlock" else "/",
            grace_s=0.1,
            sandbox=plan,
        )


_levels: dict[tuple[str, ...], tuple[str, str]] = {}


def _find_level(rungs: Sequence[str], reasons: list[str]) -> tuple[str, str]:
    for level in rungs:
        with scratch_folder("openagentic-probe-") as scratch:
            plan = _closed_plan(level, scratch, CodeLimits())
            reason = try_plan(plan, (os.path.realpath(sys.executable), "-I", "-S", "-c", ""))
        if reason is None:
            return level, ""
        reasons.append(reason)
    return "", "; ".join(reasons[:2])


def _closed_plan(level: str, scratch: str, limits: CodeLimits) -> dict[str, Any]:
    folder = scratch if level == "landlock" else _FOLDER
    real = {os.path.realpath(path) for path in _LIBRARIES if os.path.exists(path)}
    real |= {os.path.realpath(sys.executable), os.path.dirname(os.path.realpath(sysconfig.get_path("stdlib")))}
    outermost = sorted(path for path in real if not any(path.startswith(f"{other}/") for other in real))
    links = [(path, os.path.realpath(path)) for path in _LIBRARIES if os.path.islink(path)]
    closed = {"root": scratch, "readable": outermost, "links": links, "folder_bytes": limits.folder_bytes}
    return sandbox_plan(level, cwd=folder, limits=limits.as_rlimits(), hidden=(), closed=closed)
