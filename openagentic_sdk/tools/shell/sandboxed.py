"""Put a Bash call into a sandbox, list what it changed, and keep or drop that.

Modes: `off`; `auto` takes the best rung of this machine and says once which; `require` refuses to run without namespaces,
made here or by bubblewrap: only they protect `.git` and settings too. Effects, independent of the mode: `preview` runs on an
overlay and drops what was written, `commit` runs on an overlay and then applies it, None writes directly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from typing import Any, Literal

from ...errors import OptionsError, ToolError
from ...ground.disk import is_within, remove_tree
from ...ground.frozen import frozen, mutable
from .overlay import Effect, apply_effects, read_effects, touched_files
from .sandbox_plan import (
    SandboxReport,
    probe_sandbox,
    protected_paths,
    sandbox_plan,
    sockets_outside,
)
from .settings_found import BARE_FOLDERS, BARE_HEAD, SETTINGS, find_settings, set_aside_new

SandboxMode = Literal["off", "auto", "require"]
EffectsMode = Literal["commit", "preview"]
MAX_LISTED_EFFECTS = 500
# Of a command that touches more files than so many, the rest is not kept, and undoing it names the command.
MAX_TOUCHED = 1_000


@mutable
class Confinement:
    """How one command is confined: the plan (None: not at all), variables it needs, and the overlays to read afterwards.

    `touched` are the files that applying them created, changed or deleted.
    """

    level: str = "none"
    plan: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[tuple[str, str]] = ()
    notes: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)

    def effects(self) -> list[tuple[str, str, list[Effect]]]:
        """For each workspace folder its upper layer and what the command did to it."""
        return [(folder, upper, read_effects(folder, upper)) for folder, upper in self.layers]


@frozen
class BashSandbox:
    """What is wanted of the sandbox. `writable` are folders besides workspace and temp, `protected` paths besides the usual.

    `unix_sockets` allows local sockets, those of other programs outside of the workspace hidden (`sockets_outside` says how
    far); without it a command has none but connected pairs. `limits` are `(resource.RLIMIT_..., value)` pairs.
    """

    mode: SandboxMode = "off"
    network: bool = False
    unix_sockets: bool = False
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    limits: tuple[tuple[int, int], ...] = ()
    effects: EffectsMode | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("off", "auto", "require"):
            raise OptionsError(f"sandbox={self.mode!r}: it is 'off', 'auto' or 'require'")
        if self.effects not in (None, "commit", "preview"):
            raise OptionsError(f"bash_effects={self.effects!r}: it is None, 'commit' or 'preview'")

    @property
    def description(self) -> str:
        """What a model should know of it before it tries."""
        parts = []
        if self.mode != "off":
            network = "" if self.network else " There is no network."
            parts.append(f" Only the workspace and temp can be written, and not .git and settings in it.{network}")
        if self.effects == "preview":
            parts.append(" This is a dry run: what a command writes is listed and then dropped.")
        return "".join(parts)

    @contextmanager
    def confine(self, cwd: str, roots: Sequence[str], session_dir: str | None = None) -> Iterator[Confinement]:
        """Prepare one command's confinement; raises `ToolError` when what is required is not to be had here.

        `session_dir` is protected too: no command writes its own record.
        """
        if self.mode == "off" and self.effects is None:
            yield Confinement()
            return
        report = probe_sandbox()
        if self.mode == "require" and not report.is_mounted:
            reason = report.reasons.get("namespaces", "")
            raise ToolError(
                f"commands run only in a sandbox here, and this machine gives none ({reason}): use other tools"
            )
        if self.effects == "preview" and not report.overlay:
            reason = report.reasons.get("overlay", "")
            raise ToolError(f"a command's effects cannot be previewed on this machine ({reason}): use other tools")
        with ExitStack() as stack:
            # The folders that lie in no other of them.
            outermost: list[str] = []
            for root in sorted({os.path.realpath(root) for root in roots if os.path.isdir(root)}):
                if not any(is_within(root, outer) for outer in outermost):
                    outermost.append(root)
            kept = (*self.protected, *_existing([session_dir] if session_dir else []))
            if self.effects is not None and report.overlay:
                yield self._overlaid(stack, cwd, outermost, kept)
            elif self.mode == "off" or report.level == "none":
                yield Confinement(notes=[self.says(report)])
            else:
                yield self._confined(stack, cwd, outermost, kept, report)

    def says(self, report: SandboxReport) -> str:
        """What it gives on the machine that the report is about, in one sentence."""
        if self.effects is not None and report.overlay:
            return f"commands run on a copy (overlay, {self._network()}), which lists what they write"
        if self.mode == "off" or report.level == "none":
            if self.effects is not None:
                return f"commands write directly, their effects are not listed: {report.reasons.get('overlay', '')}"
            return f"this machine gives no sandbox, commands run without: {report.reasons.get('namespaces', '')}"
        notes = [report.level, self._network()]
        if self.unix_sockets and not self._has_unix_sockets(report):
            notes.append("no local sockets, as those of other programs cannot be hidden here")
        guarded = "" if report.is_mounted else "; .git and settings are not protected by it"
        seen = "; what other programs run with can be read" if report.sees_environments else ""
        return f"commands run in a sandbox ({', '.join(notes)}{guarded}{seen})"

    def _has_unix_sockets(self, report: SandboxReport) -> bool:
        """Whether local sockets can be given without those of other programs: files need mounts, abstract names a wall."""
        if not self.unix_sockets or not report.is_mounted:
            return False
        return not self.network or (report.level == "namespaces" and report.hides_abstract_sockets)

    def _network(self) -> str:
        return "network on" if self.network or self.mode == "off" else "network off"

    def _confined(
        self, stack: ExitStack, cwd: str, roots: list[str], kept: Sequence[str], report: SandboxReport
    ) -> Confinement:
        import tempfile

        is_mounted = report.is_mounted
        found = find_settings(roots)
        unix_sockets = self._has_unix_sockets(report)
        plan = sandbox_plan(
            report.level,
            cwd=cwd,
            writable=_existing([*roots, tempfile.gettempdir(), *self.writable]),
            protected=stack.enter_context(protected_paths(roots, found, kept)) if is_mounted else (),
            network=self.network,
            unix_sockets=unix_sockets,
            hidden=sockets_outside(_existing([*roots, *self.writable])) if unix_sockets else None,
            limits=self.limits,
        )
        notes = [self.says(report)]
        if not found.is_whole:
            notes.append("the workspace is too large to be looked through: settings deep in it are not protected")
        stack.callback(set_aside_new, found, roots, notes)
        return Confinement(report.level, plan, notes=notes)

    def _overlaid(self, stack: ExitStack, cwd: str, roots: list[str], kept: Sequence[str]) -> Confinement:
        import tempfile

        scratch = tempfile.mkdtemp(prefix="openagentic-effects-")
        stack.callback(_remove_scratch, scratch)
        overlays = []
        for index, root in enumerate(roots):
            upper, work = (os.path.join(scratch, f"{kind}{index}") for kind in ("upper", "work"))
            os.mkdir(upper)
            os.mkdir(work)
            os.chmod(upper, os.stat(root).st_mode & 0o7777)
            overlays.append((root, upper, work))
        temp = os.path.join(scratch, "tmp")
        os.mkdir(temp)
        # Without a sandbox the overlay alone decides: nothing is protected, as all of it is only tried.
        is_off = self.mode == "off"
        plan = sandbox_plan(
            "namespaces",
            cwd=cwd,
            writable=_existing([temp, *self.writable]),
            protected=() if is_off else [*find_settings(roots).to_protect(roots), *kept],
            overlays=overlays,
            network=self.network or is_off,
            unix_sockets=is_off or self.unix_sockets,
            hidden=sockets_outside(_existing([*roots, *self.writable])) if self.unix_sockets and not is_off else None,
            limits=self.limits,
        )
        layers = [(root, upper) for root, upper, _ in overlays]
        return Confinement("overlay", plan, {"TMPDIR": temp}, layers)

    def settle(
        self, confinement: Confinement, shown_root: str, keep_files: Callable[[Sequence[str]], None]
    ) -> dict[str, Any] | None:
        """Apply or drop what a command did, and say what it was; None without an overlay.

        `keep_files` gets the files before they change.

        `{"created", "changed", "deleted", "applied", "total"}`: paths relative to `shown_root`, at most 500 of them.
        """
        if not confinement.layers:
            return None
        result: dict[str, Any] = {
            "created": [],
            "changed": [],
            "deleted": [],
            "applied": self.effects == "commit",
            "total": 0,
        }
        for folder, upper, every_effect in confinement.effects():
            effects = [effect for effect in every_effect if self.mode == "off" or not _is_setting(upper, effect.path)]
            if len(effects) < len(every_effect):
                confinement.notes.append("what the command did to .git and settings in the workspace was dropped")
            if self.effects == "commit":
                touched = touched_files(folder, effects)
                confinement.touched += touched
                keep_files(touched[:MAX_TOUCHED])
                try:
                    apply_effects(folder, upper, effects)
                except OSError as error:
                    raise ToolError(
                        f"what the command did could not be applied whole to {folder} ({error}): look at it again"
                    ) from error
            for effect in effects:
                result["total"] += 1
                if result["total"] <= MAX_LISTED_EFFECTS:
                    path = os.path.relpath(os.path.join(folder, effect.shown_path), shown_root)
                    result[effect.kind].append(path + "/" * effect.is_folder)
        return result


def _is_setting(upper: str, path: str) -> bool:
    """Whether a path that a command wrote is one that other programs trust, or makes its folder such a one."""
    if not SETTINGS.isdisjoint(path.split(os.sep)):
        return True
    folder = os.path.dirname(os.path.join(upper, path))
    return os.path.basename(path) == BARE_HEAD and all(os.path.isdir(os.path.join(folder, n)) for n in BARE_FOLDERS)


def _existing(paths: Sequence[str]) -> list[str]:
    return [os.path.realpath(path) for path in paths if os.path.isdir(path)]


def _remove_scratch(scratch: str) -> None:
    # overlayfs leaves a folder that its owner may not even list; empty, it can be removed all the same.
    for name in os.listdir(scratch):
        inner = os.path.join(scratch, name, "work")
        if name.startswith("work") and os.path.isdir(inner):
            os.chmod(inner, 0o700)
    remove_tree(scratch)
