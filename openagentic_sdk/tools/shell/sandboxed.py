"""Run a Bash call in a sandbox, list its effects, and keep or drop them.

Modes: `off`; `auto` uses the best rung of this machine and announces it once; `require` refuses to run without namespaces,
made here or by bubblewrap: only these also protect `.git` and settings. Where overlays work, a command in a sandbox runs on
a copy of the workspace, and of its writes, those that the `FilePolicy` permits are kept. In every mode, effects can be
requested: `preview` drops and lists everything written, `commit` lists what was kept.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field, replace
from functools import cache
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Literal

from ...errors import OptionsError, ToolError
from ...ground.disk import SystemDisk, is_within, remove_tree, whole_file
from ...ground.frozen import frozen, mutable
from ...ground.patterns import regex
from ...ground.system import user_home
from .environment import search_path
from .file_policy import FilePolicy, forbids_nothing
from .git_settings import GitSettings
from .overlay import (
    FileEffect,
    apply_effects,
    meanwhile_changed,
    permitted_effects,
    read_effects,
    remove_layers,
    touched_files,
)
from .protected import program_places
from .sandbox_plan import (
    SandboxReport,
    control_sockets,
    placeholders,
    probe_sandbox,
    sandbox_plan,
    sockets_outside,
    try_plan,
)
from .settings_found import new_set_aside, other_names, survey

SandboxMode = Literal["off", "auto", "require"]
EffectsMode = Literal["commit", "preview"]
MAX_LISTED_EFFECTS = 500
# The most files of a command whose contents are kept; the rest cannot be undone, and undo names the command.
MAX_TOUCHED = 1_000


@mutable
class ConfinedCommand:
    """The confinement of one command: the plan (None: not confined), variables it needs, and overlays to read afterwards.

    `began_ns` is when the copies were made, by the file system's clock; `touched` are the files that applying them created,
    changed or deleted. `notes` are shown once in a run, `dropped` (effects that were not kept) each time.
    """

    level: str = "none"
    plan: Mapping[str, Any] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    layers: Sequence[tuple[str, str]] = ()
    began_ns: int = 0
    notes: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def has_mounts(self) -> bool:
        """Whether files are hidden from the command, or replaced by others."""
        return self.plan is not None and self.plan["level"] != "landlock"


@frozen
class BashSandbox:
    """The requested sandbox. `writable` are folders besides workspace and temp, `protected` paths besides the usual ones.

    With `network` None, a command has network access unless a sandbox is required. `unix_sockets` allows local sockets,
    except those of other programs outside the workspace (see `sockets_outside` for the limits); without it, a command has
    only connected socket pairs. `limits` are `(resource.RLIMIT_..., value)` pairs. With `counts_times`, a file on a copy
    whose time alone has changed is an effect, too.
    """

    mode: SandboxMode | None = "off"
    network: bool | None = None
    unix_sockets: bool = False
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    limits: tuple[tuple[int, int], ...] = ()
    effects: EffectsMode | None = None
    counts_times: bool = False

    def __post_init__(self) -> None:
        if self.mode not in (None, "off", "auto", "require"):
            raise OptionsError(f"sandbox={self.mode!r} is invalid: use 'off', 'auto' or 'require'")
        if self.effects not in (None, "commit", "preview"):
            raise OptionsError(f"bash_effects={self.effects!r} is invalid: use None, 'commit' or 'preview'")

    @property
    def has_network(self) -> bool:
        """Whether a command in the sandbox has network access."""
        return self.mode != "require" if self.network is None else self.network

    @property
    def confines(self) -> bool:
        """Whether a command runs in a sandbox, or on a copy."""
        return self.mode != "off" or self.effects is not None

    @property
    def description(self) -> str:
        """Sentences about the sandbox for the tool's description; empty if there is nothing to mention."""
        parts = []
        if self.mode != "off":
            network = "" if self.has_network else " There is no network."
            parts.append(f" Only the workspace and temp can be written, and not .git and settings in it.{network}")
        if self.effects == "preview":
            parts.append(" This is a dry run: what a command writes is listed and then dropped.")
        return "".join(parts)

    @contextmanager
    def confine(
        self,
        cwd: str,
        policy: FilePolicy,
        temp: str,
        *,
        direct: bool = False,
        foreign: Mapping[str, GitSettings] | None = None,
    ) -> Iterator[ConfinedCommand]:
        """Prepare the confinement of one command, which lasts for the block. Raises `ToolError` if a required feature is
        missing.

        `temp` is the folder for the command's temporary files. A `direct` command writes in place, not to a copy. With
        mounts, git reads only the harmless part of the `foreign` configurations.
        """
        if not self.confines:
            yield ConfinedCommand()
            return
        report = probe_sandbox()
        if self.mode == "require" and not report.is_mounted:
            reason = report.reasons.get("namespaces", "")
            raise ToolError(
                f"commands run only in a sandbox here, and this machine supports none ({reason}): use other tools"
            )
        if self.effects == "preview" and not report.overlay:
            reason = report.reasons.get("overlay", "")
            raise ToolError(f"a command's effects cannot be previewed on this machine ({reason}): use other tools")
        policy = replace(policy, protected=policy.protected.plus(self.protected))
        roots = (*policy.roots, *policy.git_dirs)
        on_copy = report.overlay and not direct and (self.mode != "off" or self.effects is not None)
        if on_copy and self.effects is None:
            # Effects were not requested, so where a copy is impossible the command writes directly.
            on_copy = report.level == "namespaces" and all(map(_takes_overlay, roots))
        if not on_copy and (self.mode == "off" or report.level == "none"):
            yield ConfinedCommand(notes=[self.protection(report)])
            return
        with ExitStack() as stack:
            yield self._confined(stack, cwd, roots, policy, temp, report, on_copy, foreign or {})

    def protection(self, report: SandboxReport) -> str:
        """One sentence about the confinement of commands on the machine that the report describes."""
        if self.effects is not None and report.overlay:
            return f"commands run on a copy (overlay, {self._network()}), which lists what they write"
        if self.mode == "off" or report.level == "none":
            if self.effects is not None:
                return f"commands write directly, so their effects are not listed: {report.reasons.get('overlay', '')}"
            return (
                f"this machine supports no sandbox, so commands run without one: {report.reasons.get('namespaces', '')}"
            )
        notes = [report.level, self._network()]
        if self.unix_sockets and not self._has_unix_sockets(report):
            notes.append("no local sockets, since those of other programs cannot be hidden here")
        guarded = (
            "" if report.is_mounted else "; denied files, .git and settings in the workspace are not protected by it"
        )
        leak = "; the environment of other programs can be read" if report.sees_environments else ""
        return f"commands run in a sandbox ({', '.join(notes)}{guarded}{leak})"

    def _has_unix_sockets(self, report: SandboxReport) -> bool:
        """Whether local sockets can be provided without those of other programs: mounts hide socket files, only isolation
        hides abstract sockets.
        """
        if not self.unix_sockets or not report.is_mounted:
            return False
        return not self.has_network or (report.level == "namespaces" and report.hides_abstract_sockets)

    def _network(self) -> str:
        return "network on" if self.has_network or self.mode == "off" else "network off"

    def _confined(
        self,
        stack: ExitStack,
        cwd: str,
        roots: tuple[str, ...],
        policy: FilePolicy,
        temp: str,
        report: SandboxReport,
        on_copy: bool,
        foreign: Mapping[str, GitSettings],
    ) -> ConfinedCommand:
        is_off = self.mode == "off"  # then everything happens in the copy, so nothing is protected
        is_mounted = on_copy or report.is_mounted
        command = ConfinedCommand(
            "overlay" if is_off or self.effects else report.level, notes=[self.protection(report)]
        )
        overlays: list[tuple[str, str, str]] = []
        if report.overlay and report.level == "namespaces" and not is_off:
            overlays += _caches(stack, f"{os.path.dirname(temp)}/caches", roots)
        if on_copy:
            copies = _overlays(stack, roots)
            overlays += copies
            command.layers = [(root, upper) for root, upper, _ in copies]
            command.began_ns = max(os.stat(upper).st_ctime_ns for _, upper in command.layers)
        # A copy needs none of this for its protection: `settle` applies no write that the policy refuses.
        readonly_paths = [] if on_copy else _guarded_in_place(stack, roots, policy, is_mounted, command.dropped)
        readonly_paths += [] if is_off else _readonly_places(policy, roots, git=not policy.git_writes)
        temps = _temporary_folders(roots)
        unix_sockets = is_off or self._has_unix_sockets(report)
        sockets = sockets_outside(_existing([*roots, *self.writable])) if unix_sockets and not is_off else None
        writable = [] if on_copy else [*roots, *_folders_on_the_way((*readonly_paths, *policy.hidden), roots)]
        writable += _existing([*self.writable, *policy.writable])
        command.plan = sandbox_plan(
            "namespaces" if on_copy else report.level,
            cwd=cwd,
            writable=writable,
            readable=[
                *readonly_paths,
                *_visible_in([*temps, *policy.covered], (cwd, *policy.shown), (*roots, *writable)),
            ],
            overlays=overlays,
            put=dict.fromkeys(temps, temp),
            hidden=[*policy.hidden, *(sockets or ())] if sockets is not None else [*policy.hidden, *control_sockets()],
            replaced=_harmless_copies(foreign, f"{os.path.dirname(temp)}/git") if is_mounted else {},
            covered=[] if is_off else [folder for folder in policy.covered if os.path.isdir(folder)],
            network=self.has_network or is_off,
            unix_sockets=unix_sockets,
            limits=self.limits,
        )
        bytecode = f"bytecode-{os.urandom(8).hex()}"
        stack.callback(remove_tree, f"{temp}/{bytecode}")
        command.environment = _environment(temps[0] if is_mounted and temps else temp, bytecode)
        return command

    def settle(
        self,
        confinement: ConfinedCommand,
        policy: FilePolicy,
        shown_root: str,
        keep_files: Callable[[Sequence[str]], None],
    ) -> dict[str, Any] | None:
        """Apply or drop a command's effects on a copy, and list them; None if there is no copy or effects are not requested.

        The list is `{"created", "changed", "deleted", "applied", "total"}`: at most 500 paths, relative to `shown_root`.
        `keep_files` receives the files before they change, if effects are requested. Raises `ToolError` if the effects
        cannot be read or were applied only in part.
        """
        names: dict[str, list[str]] = {"created": [], "changed": [], "deleted": []}
        total = 0
        for folder, upper in confinement.layers:
            with _commit:
                effects = self._settle_layer(confinement, folder, upper, policy, keep_files)
            for effect in effects:
                total += 1
                if total <= MAX_LISTED_EFFECTS:
                    path = os.path.relpath(os.path.join(folder, effect.shown_path), shown_root)
                    names[effect.kind].append(path + "/" * effect.is_folder)
        if self.effects is None or not confinement.layers:
            return None
        return {**names, "applied": self.effects == "commit", "total": total}

    def _settle_layer(
        self,
        confinement: ConfinedCommand,
        folder: str,
        upper: str,
        policy: FilePolicy,
        keep_files: Callable[[Sequence[str]], None],
    ) -> list[FileEffect]:
        """Apply or drop a command's effects on one folder; return those that may be kept."""
        effects = read_effects(folder, upper, times=self.effects is None or self.counts_times)
        if not effects:
            return effects
        forbids = forbids_nothing
        if self.mode != "off":
            special_paths = survey([folder], policy.refusal, files=False).named_places([folder])
            forbids = replace(policy, protected=policy.protected.plus((*self.protected, *special_paths))).refusal

        def refusal(path: str) -> str | None:
            is_lost = meanwhile_changed(folder, upper, path, confinement.began_ns)
            return forbids(path) or (_CHANGED_MEANWHILE if is_lost else None)

        effects, refused = permitted_effects(folder, effects, refusal)
        confinement.dropped += _refusal_notes(refused)
        if self.effects == "preview":
            return effects
        touched = touched_files(folder, effects) if self.effects else []
        confinement.touched += touched
        # Before anything is applied, so that an undo also covers what an error leaves half done.
        keep_files(touched[:MAX_TOUCHED])
        try:
            apply_effects(folder, upper, effects)
        except OSError as error:
            raise ToolError(
                f"the command's changes to {folder} were applied only in part ({error}): check the folder"
            ) from error
        return effects


def _guarded_in_place(
    stack: ExitStack, roots: tuple[str, ...], policy: FilePolicy, is_mounted: bool, dropped: list[str]
) -> list[str]:
    """Create placeholders for missing protected folders; return the paths that a command that writes in place may only read.

    Protected entries that appear elsewhere meanwhile are set aside when the stack is closed, and named in `dropped`.
    """
    result = survey(roots, policy.refusal)
    left_out = (".git",) if policy.git_writes else ()
    readonly_paths = [*stack.enter_context(placeholders(policy.roots, left_out))] if is_mounted else []
    readonly_paths += [path for path in result.kinds if path not in result.links and path not in readonly_paths]
    special_paths = result.named_places(roots)
    readonly_paths += [path for path in special_paths if os.path.exists(path)]
    readonly_paths += [path for path in other_names(readonly_paths, roots) if policy.refusal(path) is None]
    full_result = replace(
        result, kinds={**dict.fromkeys(filter(os.path.lexists, special_paths), "file"), **result.kinds}
    )
    bound = replace(policy, protected=policy.protected.plus(special_paths))
    stack.enter_context(new_set_aside(full_result, roots, bound.refusal, dropped))
    return readonly_paths


def _environment(temp: str, bytecode: str) -> dict[str, str]:
    """The variables that a confined command needs, with its temporary files in `temp` and its bytecode in a folder there."""
    caches = {name: f"{temp}/{place}" for name, place in _missing_caches().items()}
    # git treats the edge of the workspace, which is a mount, as the end of the repository that contains it.
    variables = {"TMPDIR": temp, "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"}
    # The SDK's folder for bytecode is hidden here, and `py_compile` would fail. A new one for each command: in a shared
    # one, a trial could leave code for a command that a rule allows.
    return {**variables, "PYTHONPYCACHEPREFIX": f"{temp}/{bytecode}", **caches}


# One at a time, so that no other command of this process replaces a file between its check and its replacement.
_commit = threading.Lock()
_CHANGED_MEANWHILE = "something else changed it while the command ran; check it and repeat the command"


_WORD = regex(r"[^\s'\"<>|;&()]+")


def named_channel(command: str, cwd: str, roots: Sequence[str]) -> str | None:
    """The first named pipe or socket that a command names, or that is at the top of its folders; None without one.

    A copy of the folder contains another pipe, which leads nowhere.
    """
    for word in _WORD.findall(command):
        path = os.path.join(cwd, word)
        if "\0" not in path and os.path.exists(path) and _is_channel(path):
            return str(word)
    for folder in dict.fromkeys((cwd, *roots)):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not (entry.is_symlink() or entry.is_file() or entry.is_dir()) and _is_channel(entry.path):
                    return entry.name
    return None


_MOVES_BY_GIT = regex(r"\bgit\b[^;&|\n]*\bmv\b")
_CROSSED = regex(rb"cross-device link|\bEXDEV\b")


def writes_in_place(command: str, policy: FilePolicy) -> bool:
    """Whether a command that may change git's data contains `git mv`. It renames folders only by the system call, which a
    copy of the workspace refuses, so the command must write directly.
    """
    return policy.git_writes and _MOVES_BY_GIT.search(command) is not None


def renaming_note(confinement: ConfinedCommand, *outputs: bytes) -> str | None:
    """The note about a rename that only the copy refused, if the output shows one."""
    if not confinement.layers or not any(map(_CROSSED.search, outputs)):
        return None
    return (
        "commands work on a copy, in which only `mv` can rename an existing folder: use `mv`, or let the command write "
        "directly with"
        " `run_in_background`"
    )


def _is_channel(path: str) -> bool:
    mode = os.stat(path).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


MAX_REFUSALS = 10


def _refusal_notes(refused: Mapping[str, str]) -> list[str]:
    notes = [
        f"the command's changes to {path} were discarded: {why}" for path, why in [*refused.items()][:MAX_REFUSALS]
    ]
    remaining = len(refused) - len(notes)
    return [*notes, f"its changes to {remaining} more such paths were discarded, too"] if remaining > 0 else notes


def _overlays(stack: ExitStack, roots: Sequence[str]) -> list[tuple[str, str, str]]:
    """Create folders for the writes to each root, as overlays `(root, upper, work)`; the stack removes them."""
    import tempfile

    scratch = os.path.realpath(tempfile.mkdtemp(prefix="openagentic-effects-"))
    stack.callback(remove_layers, scratch)
    overlays = []
    for index, root in enumerate(roots):
        upper, work = (os.path.join(scratch, f"{kind}{index}") for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        # The root of an overlay has the mode of its upper folder.
        os.chmod(upper, os.stat(root).st_mode & 0o7777)
        overlays.append((root, upper, work))
    return overlays


# Caches of tools for downloads and compiled files: the tools fail if these are not writable.
_CACHES = (".cache", ".npm", ".cargo", ".rustup", ".gradle", ".m2", ".ivy2", ".sbt", ".nuget", ".bun", ".deno", "go")


# The layers, by folder and number, that are mounted for a running command.
_mounted: set[tuple[str, int]] = set()
_mounting = threading.Lock()


def _caches(stack: ExitStack, layers: str, roots: Sequence[str]) -> list[tuple[str, str, str]]:
    """Create overlays over this user's caches: writes of commands belong to the run, and are removed with it.

    Commands of a run that follow each other share their layers. One that starts while another runs gets layers of its own:
    a mount clears the working folder, so mounts of others with the same one fail, or lose writes (overlayfs.rst).
    """
    with _mounting:
        number = next(number for number in count() if (layers, number) not in _mounted)
        _mounted.add((layers, number))
    stack.callback(_mounted.discard, (layers, number))
    home = os.path.realpath(user_home())
    folders = [os.path.join(home, name) for name in _CACHES]
    overlays = []
    for folder in folders:
        if not os.path.isdir(folder) or os.path.realpath(folder) != folder:
            continue
        is_apart = not any(is_within(root, folder) or is_within(folder, root) for root in roots)
        if is_apart and _takes_overlay(folder):
            upper, work = (f"{layers}/{kind}-{number}-{os.path.basename(folder)}" for kind in ("upper", "work"))
            os.makedirs(upper, exist_ok=True)
            os.makedirs(work, exist_ok=True)
            overlays.append((folder, upper, work))
    return overlays


def _missing_caches() -> dict[str, str]:
    """The variables of the caches that this user does not have, each with the name of a temporary folder to use instead."""
    home, variables = user_home(), {".cache": "XDG_CACHE_HOME", ".npm": "npm_config_cache", ".cargo": "CARGO_HOME"}
    return {variable: name for name, variable in variables.items() if not os.path.isdir(os.path.join(home, name))}


@cache
def _takes_overlay(root: str) -> bool:
    """Whether an overlay can copy a folder, which must contain neither the copy itself nor other file systems."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            places = [line.split()[4] for line in file]
    except OSError:
        places = []
    # An overlay shows the empty folder below a mount point instead of what is mounted on it.
    if any(place != root and is_within(place, root) for place in places):
        return False
    with ExitStack() as stack:
        return try_plan(sandbox_plan("namespaces", cwd=root, overlays=_overlays(stack, [root]))) is None


def _readonly_places(policy: FilePolicy, roots: Sequence[str], *, git: bool) -> list[str]:
    """Existing entries at the tops of the workspace, and named places, that may not change: writing them fails at once."""
    paths = [*policy.readonly, *policy.protected.paths, *policy.protected.around]
    for root in roots:
        tops = (entry.path for entry in os.scandir(root) if not entry.is_symlink())
        paths += [path for path in tops if policy.is_protected(path)]
    paths = [path for path in paths if os.path.exists(path) and (git or "/.git" not in path)]
    return [path for path in paths if path not in roots and any(is_within(path, root) for root in roots)]


def _folders_on_the_way(paths: Sequence[str], roots: Sequence[str]) -> list[str]:
    """The parents of these paths in the workspace: as mounts they cannot be renamed, which would move the paths away."""
    parents: dict[str, None] = {}
    for root in roots:
        for path in paths:
            while is_within(path := os.path.dirname(path), root) and path != root and path not in parents:
                parents[path] = None
    return list(parents)


def _harmless_copies(foreign: Mapping[str, GitSettings], folder: str) -> dict[str, str]:
    """Write the harmless part of each configuration to a file in a folder that no command can write; return them by path."""
    copies = {}
    for path, settings in foreign.items():
        copies[path] = f"{folder}/{sha256(settings.harmless_text.encode('utf-8', 'surrogateescape')).hexdigest()}"
        if not os.path.exists(copies[path]):
            os.makedirs(folder, exist_ok=True)
            with whole_file(SystemDisk(), Path(copies[path]), sync=False) as temporary:
                temporary.write_text(settings.harmless_text, encoding="utf-8", errors="surrogateescape")
    return copies


def _temporary_folders(roots: Sequence[str]) -> list[str]:
    """The machine's temporary folders, except those in the workspace."""
    import tempfile

    folders = [os.path.realpath(path) for path in (tempfile.gettempdir(), "/tmp", "/var/tmp") if os.path.isdir(path)]
    home = os.path.realpath(os.path.expanduser("~"))
    # The run's own temporary folder is mounted over each of these: over the root, or over a parent of the home folder, it
    # would hide everything.
    folders = [path for path in dict.fromkeys(folders) if path != "/" and not is_within(home, path)]
    return [path for path in folders if not any(is_within(path, root) for root in roots)]


def _visible_in(covers: Sequence[str], visible: Sequence[str], writable: Sequence[str]) -> list[str]:
    """The paths in covered folders that a command still sees: its own folder, programs, and explicit entries."""
    code, prefixes, others = program_places()
    searched = search_path(os.environ.get("PATH", ""), ())[0]
    places = {os.path.realpath(path) for path in (*visible, *code, *prefixes, *others, *searched, sys.prefix)}
    return [
        path
        for path in places
        if any(is_within(path, cover) and path != cover for cover in covers)
        and not any(is_within(path, folder) for folder in writable)
        and os.path.exists(path)
    ]


def _existing(paths: Sequence[str]) -> list[str]:
    return [os.path.realpath(path) for path in paths if os.path.isdir(path)]
