"""Plan what a sandboxed command may touch, and determine which sandboxes this machine's kernel supports.

`probe_sandbox` tries every rung by running a command in it: a kernel's version reveals little about what a container or a
distribution has disabled.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

from ...errors import OptionsError, ToolError
from ...ground.disk import is_within, remove_tree, scratch_folder
from ...ground.frozen import frozen
from ...ground.system import user_home
from ...ground.text import on_one_line
from ...sessions.seal import key_path
from .process import HELPER_GONE, CommandSpec, run_command
from .settings_found import PLACEHOLDER_MODE, PLACEHOLDERS

if sys.platform != "win32":
    import fcntl

PROBE_LIMIT_S = 10.0
# A probe that fails for one of these reasons reveals nothing about the kernel: the next one may succeed.
_TOO_SLOW = f"it did not end within {PROBE_LIMIT_S:g} s"
_SHORTAGES = (
    _TOO_SLOW,
    HELPER_GONE,
    *map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO)),
)
RUNGS = ("namespaces", "bwrap", "overlay", "landlock")
# Never $PATH, which may contain a folder of the workspace.
BWRAP_PATH = "/usr/bin:/bin:/usr/local/bin"
# Whoever can talk to one of these controls the machine, or the person's session, from within any sandbox.
_CONTROL_SOCKETS = (
    "docker.sock",
    "containerd/containerd.sock",
    "crio/crio.sock",
    "podman/podman.sock",
    "dbus/system_bus_socket",
    "systemd/private",
    "snapd.socket",
    "libvirt/libvirt-sock",
)
_USER_SOCKETS = ("bus", "docker.sock", "podman/podman.sock", "systemd/private", "keyring/control", "gnupg/S.gpg-agent")


@frozen
class SandboxReport:
    """The kinds of sandbox ("rungs") that work on this machine; `reasons` explains why each of the others does not.

    `sees_environments` is true if in the best rung a command can still read the environment of this user's other processes,
    `hides_abstract_sockets` if sockets without a file are unreachable even with network access.
    """

    namespaces: bool
    overlay: bool
    landlock: bool
    reasons: Mapping[str, str]
    bwrap: bool = False
    sees_environments: bool = False
    hides_abstract_sockets: bool = False

    @property
    def level(self) -> str:
        """The strongest confinement that works here: `namespaces`, `bwrap`, `landlock` or `none`."""
        rungs = {"namespaces": self.namespaces, "bwrap": self.bwrap, "landlock": self.landlock}
        return next((name for name, works in rungs.items() if works), "none")

    @property
    def is_mounted(self) -> bool:
        """Whether the best rung has its own mounts, and so hides files and protects `.git` and settings."""
        return self.level in ("namespaces", "bwrap")

    def rungs(self) -> list[tuple[str, bool, str]]:
        """For each rung its name, whether it works, and what it provides or why it does not work, for people."""
        gives = {
            "namespaces": "read-only except for the workspace and a private /tmp; denied files, keys and sockets are hidden",
            "bwrap": "the same through the program bubblewrap, if this library may not create namespaces",
            "overlay": "commands write to a copy: protected files are not changed, and all changes can be listed",
            "landlock": "writes only to workspace and temp, but cannot keep modes, owners and times elsewhere from being"
            " changed (chmod, touch); hides nothing in the workspace and protects no settings; no local sockets",
        }
        return [(name, name not in self.reasons, self.reasons.get(name, text)) for name, text in gives.items()]


# By user: a process that has changed its uid may have other rights to namespaces.
_probed: dict[int, SandboxReport] = {}


def probe_sandbox() -> SandboxReport:
    """Determine the sandboxes that this machine's kernel supports for this user; each is tried once per process.

    Raises `ToolError` if that cannot be determined now, for example for lack of file descriptors: then a command must not
    run, since without a sandbox it would only run by mistake. The next call tries again.
    """
    uid = os.geteuid()
    if uid not in _probed:
        try:
            report = _probe()
        except OSError as error:
            raise _undetermined(error.strerror or str(error)) from error
        lacking = [reason for reason in report.reasons.values() if any(text in reason for text in _SHORTAGES)]
        if lacking:
            raise _undetermined(lacking[0])
        _probed[uid] = report
    return _probed[uid]


def _undetermined(reason: str) -> ToolError:
    return ToolError(
        f"the sandboxes of this machine cannot be tried now ({on_one_line(reason, 300)}), and nothing runs until "
        "they can: close other programs or raise the limits of this process (ulimit -a), and try again"
    )


def _probe() -> SandboxReport:
    if sys.platform != "linux":
        reason = f"a sandbox needs Linux, and this is {sys.platform}"
        return SandboxReport(False, False, False, dict.fromkeys(RUNGS, reason))
    from .sandbox import ABI_OF_SCOPES, landlock_abi

    with scratch_folder("openagentic-probe-") as folder:
        for name in ("lower", "upper", "work"):
            os.mkdir(os.path.join(folder, name))
        overlay = tuple(os.path.join(folder, name) for name in ("lower", "upper", "work"))
        plans = {
            "namespaces": sandbox_plan("namespaces", cwd=folder, writable=[folder]),
            "overlay": sandbox_plan("namespaces", cwd=overlay[0], overlays=[overlay], covered=[folder]),
            "landlock": sandbox_plan("landlock", cwd=folder, writable=[folder]),
        }
        tried = {name: try_plan(plan) for name, plan in plans.items()}
        bwrap = sandbox_plan("bwrap", cwd=folder, writable=[folder])
        tried["bwrap"] = try_plan(bwrap) if bwrap["bwrap"] else f"bwrap is not in {BWRAP_PATH}"
        reasons = {name: reason for name, reason in tried.items() if reason is not None}
        report = SandboxReport(**{name: name not in reasons for name in RUNGS}, reasons=reasons)
        best = {**plans, "bwrap": bwrap}.get(report.level)
        # Tried, not concluded from the level: a masked /proc of a container stays in place and shows all processes.
        peek = ("/bin/sh", "-c", f"head -c 1 /proc/{os.getpid()}/environ")
        return replace(
            report,
            sees_environments=best is not None and try_plan(best, peek) is None,
            hides_abstract_sockets=landlock_abi() >= ABI_OF_SCOPES,
        )


def try_plan(plan: Mapping[str, Any], argv: Sequence[str] = ("/bin/sh", "-c", ":")) -> str | None:
    """Run a command under a plan; return the reason if it does not run or fails, None if it succeeds."""
    spec = CommandSpec(
        argv=tuple(argv),
        env={"PATH": os.defpath},
        cwd="/" if plan["closed"] else plan["cwd"],
        keep_bytes=1000,
        paths=(os.devnull, os.devnull),
        file_bytes=1000,
        sandbox=plan,
    )
    try:
        report = run_command(spec, timeout_s=PROBE_LIMIT_S)
    except ToolError as error:
        return str(error)
    if report.ended_by == "timeout":
        return _TOO_SLOW
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
    readable: Sequence[str] = (),
    overlays: Sequence[tuple[str, ...]] = (),
    put: Mapping[str, str] | None = None,
    hidden: Sequence[str] | None = None,
    replaced: Mapping[str, str] | None = None,
    covered: Sequence[str] = (),
    network: bool = False,
    unix_sockets: bool = False,
    limits: Sequence[tuple[int, int]] = (),
    closed: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build a plan in the format of the module `sandbox`, of types that `marshal` supports.

    The deepest place decides; at one place the more restrictive entry does. `readable` paths cannot be changed; `put` maps
    places to the folders mounted there, `replaced` files to those read in their place. Nothing in a `hidden` path can be
    seen, except with Landlock in a `writable` folder; a `covered` folder is empty except for explicit entries. `hidden` is
    `control_sockets()` if None. The key of this installation is always hidden: with it, a command could forge approvals.
    """
    hidden_paths = control_sockets() if hidden is None else [path for path in hidden if os.path.lexists(path)]
    with suppress(OptionsError):
        hidden_paths += [key] if os.path.isfile(key := os.path.realpath(key_path())) else []
    hidden_paths, below = _outermost(hidden_paths)
    mounts: list[tuple[Any, ...]] = [("overlay", *overlay[:1], *overlay) for overlay in overlays]
    mounts += [("write", path, path) for path in writable] + [("put", *pair) for pair in (put or {}).items()]
    mounts += [("read", path, path) for path in readable]
    mounts += [("hide", *pair) for pair in (replaced or {}).items()]
    # What is below a hidden folder cannot be mounted, because its mount point would no longer be visible.
    mounts = [mount for mount in mounts if not f"{mount[1]}/".startswith(below)]
    file, folder = _nothing() if hidden_paths else ("", "")
    mounts += [("hide", path, folder if os.path.isdir(path) else file) for path in hidden_paths]
    mounts += [("cover", path) for path in dict.fromkeys(covered) if not f"{path}/".startswith(below)]
    plan = {
        "level": level,
        "home": "P" if level != "namespaces" else "O" if network else "C",
        "cwd": cwd,
        "mounts": [] if closed else sorted(dict.fromkeys(mounts), key=_by_depth),
        "network": network,
        "unix_sockets": unix_sockets,
        "limits": [tuple(limit) for limit in limits],
        "closed": None if closed is None else dict(closed),
    }
    return {**plan, "bwrap": bwrap_command(plan)} if level == "bwrap" else plan


# At one place, the later of these is mounted over the earlier one, and so decides.
_KINDS = ("cover", "put", "overlay", "write", "read", "hide")


def _by_depth(mount: tuple[Any, ...]) -> tuple[int, int, str]:
    return (mount[1].rstrip("/").count("/"), _KINDS.index(mount[0]), mount[1])


def _nothing() -> tuple[str, str]:
    """The file and the folder that replace hidden ones, created if missing; nobody can read them without privileges."""
    import atexit
    import tempfile

    global _nothing_in
    if not os.path.isdir(f"{_nothing_in}/folder") or not os.path.exists(f"{_nothing_in}/file"):
        _nothing_in = os.path.realpath(tempfile.mkdtemp(prefix="openagentic-nothing-"))
        atexit.register(remove_tree, _nothing_in)
        # Mode 0, so that a program gets an error instead of an empty file, which it could take for an answer.
        os.close(os.open(f"{_nothing_in}/file", os.O_WRONLY | os.O_CREAT, 0))
        os.mkdir(f"{_nothing_in}/folder", 0)
    return f"{_nothing_in}/file", f"{_nothing_in}/folder"


_nothing_in = ""


def bwrap_command(plan: Mapping[str, Any]) -> list[str]:
    """The bubblewrap command for a plan, up to its last option; empty if bubblewrap is not installed."""
    import shutil

    program = shutil.which("bwrap", path=BWRAP_PATH)
    if program is None:
        return []
    command = [program, "--die-with-parent", "--cap-drop", "ALL"]
    # Without a user namespace, root's command could regain its capabilities.
    command += ["--unshare-user-try", "--unshare-pid", "--unshare-ipc", *([] if plan["network"] else ["--unshare-net"])]
    cwd, mounts = plan["cwd"], list[tuple[str, ...]]()
    if closed := plan["closed"]:
        mounts += [("--ro-bind", path, path) for path in closed["readable"]]
        mounts += [("--symlink", target, name) for name, target in closed["links"]]
        mounts += [("--dev", "/dev"), ("--remount-ro", "/dev"), ("--size", str(closed["folder_bytes"]), "--tmpfs", cwd)]
        return [*command, *(word for mount in (*mounts, ("--remount-ro", "/")) for word in mount), "--chdir", cwd]
    command += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    options = {"write": "--bind", "put": "--bind", "read": "--ro-bind", "hide": "--ro-bind"}
    for kind, place, *sources in plan["mounts"]:
        mounts.append(("--tmpfs", place) if kind == "cover" else (options[kind], *sources[:1], place))
    mounts += [("--remount-ro", place) for kind, place, *_ in plan["mounts"] if kind == "cover"]
    return [*command, *(word for mount in mounts for word in mount), "--chdir", cwd]


def control_sockets() -> list[str]:
    """The existing sockets of services that would act outside the sandbox on a command's behalf."""
    paths = [os.path.join("/run", name) for name in _CONTROL_SOCKETS]
    paths += [os.path.join("/run/user", str(os.geteuid()), name) for name in _USER_SOCKETS]
    return [path for path in paths if os.path.exists(path)]


def sockets_outside(needed: Sequence[str]) -> list[str]:
    """Every named socket of this machine outside the `needed` folders, to be hidden from a command.

    If the folder of such a socket contains nothing that is needed, the folder is returned instead, so that sockets created
    in it later are hidden, too. Sockets of other network namespaces, and those created elsewhere while the command runs,
    are unknown here.
    """
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(maxsplit=7) for line in file]
    except OSError:
        rows = []
    socket_paths = {row[7].rstrip("\n") for row in rows if len(row) == 8 and row[7].startswith("/")}
    hidden = set()
    for path in {os.path.realpath(path) for path in (*socket_paths, *control_sockets()) if os.path.exists(path)}:
        if any(is_within(path, folder) for folder in needed):
            continue
        folder = os.path.dirname(path)
        # Hiding /run or a home folder as a whole would take away what the command needs; there only the socket is
        # hidden.
        is_shared = folder.count("/") < 2 or any(is_within(keep, folder) for keep in (*needed, user_home()))
        hidden.add(path if is_shared else folder)
    return sorted(_outermost(hidden)[0])


def _outermost(paths: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """The paths that are not inside another one, and the prefix of everything below each path, with a trailing slash."""
    unique_paths = [*dict.fromkeys(paths)]
    below = tuple([path.rstrip("/") + "/" for path in unique_paths])
    return [path for path in unique_paths if not path.startswith(below)], below


@contextmanager
def placeholders(roots: Sequence[str], left_out: Sequence[str] = ()) -> Iterator[list[str]]:
    """During the block, keep the folders of `PLACEHOLDERS`, except `left_out`, in existence at the tops of the workspace;
    yield those that exist.

    A read-only mount needs a mount point, and the command could create a missing folder (the hole of CVE-2026-25725).
    Afterwards an empty placeholder is removed, once no command of any session uses it.
    """
    with ExitStack() as stack:
        tops = [os.path.join(root, name) for root in roots for name in PLACEHOLDERS if name not in left_out]
        yield [path for path in tops if stack.enter_context(_claimed_folder(path))]


@contextmanager
def _claimed_folder(path: str) -> Iterator[bool]:
    """Keep a folder in existence during the block, as a placeholder if need be; yield False if none exists and none can be
    created.

    A claim is a shared lock on the folder. Removing a folder on which another command has a mount would remove that mount,
    so a placeholder is removed only under an exclusive lock.
    """
    folder = _locked_folder(path)
    if folder is None:
        yield False
        return
    try:
        yield True
    finally:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The unusual mode marks our own folders: one that somebody created meanwhile, even an empty one, is kept.
            if os.fstat(folder).st_mode & 0o7777 == PLACEHOLDER_MODE:
                os.rmdir(path)
        except OSError:  # another command has it mounted, or it is no longer empty: keep it
            pass
        finally:
            os.close(folder)


def _locked_folder(path: str) -> int | None:
    # Each failed attempt means that another command removed the folder in between; 100 in a row are not a coincidence.
    for _ in range(100):
        try:
            os.mkdir(path)
            os.chmod(path, PLACEHOLDER_MODE)
        except FileExistsError:
            pass
        except OSError:  # the workspace is not writable, so the command cannot create it either
            return None
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # removed in the meantime, at the end of another command
            continue
        except OSError:  # a file or a link, which is protected or ignored as such
            return None
        fcntl.flock(folder, fcntl.LOCK_SH)
        if os.path.lexists(path) and os.path.samestat(os.lstat(path), os.fstat(folder)):
            return folder
        os.close(folder)
    raise ToolError(f"{path} is created and removed too often to be protected: try again")
