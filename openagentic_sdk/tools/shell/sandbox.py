"""Confine a process in a sandbox before it becomes the command: Linux only, through ctypes.

It runs in the helper process, between fork and exec (`helper`), and so imports nothing slow. Its instructions are a plan, a
plain dict created by `sandbox_plan`:

`home`: `C` for namespaces without the machine's network, `O` for namespaces with it, `P` for everything else; `level`:
`namespaces` (own user, mount, pid and, without `network`, net namespace; the whole tree read-only), `bwrap` (the same by
the program of that name, called with the command line `bwrap`) or `landlock` (the kernel's path rules only); `mounts`: what
is mounted at places, the deeper ones last, as `(kind, place, source ...)`: `write` and `read` (the place itself is the
source), `hide` (an unreadable file or folder), `put` (another folder), `overlay` (the place, and where its writes go:
upper, work) and `cover` (an empty folder, which may contain later mounts); `network`; `unix_sockets`; `cwd`; `limits`: pairs
`(rlimit, value)`. `closed`: None, or for a program that must see nothing of this machine `root` (an empty folder to build
its tree on), `readable` (all that it can read), `links` (links in its tree) and `folder_bytes` (the capacity of `cwd`, which
is private and removed with it). Such a program cannot create other processes or send signals.

Three steps are omitted without an error if the kernel does not support them: a new /proc (the old one stays, read-only),
Landlock's rules in addition to mounts, and, unless `closed`, the system call filter on an unknown architecture. If anything
else fails, OSError is raised and the command does not start.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
SYS_MOUNT_SETATTR, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 442, 444, 445, 446
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SIGKILL, SIGCHLD, EINVAL = 9, 17, 22
# The values of `home` in a plan: the namespaces in which the process starts.
PLAIN, ONLINE, CUT_OFF = "P", "O", "C"
SYS_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
LAST_CAPABILITY = 63
# NET_ADMIN, NET_RAW, SYS_MODULE, SYS_RAWIO, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, SYS_BOOT, MKNOD, PERFMON, BPF,
# CHECKPOINT_RESTORE, DAC_READ_SEARCH (linux/capability.h)
_POWERS = (12, 13, 16, 17, 18, 19, 21, 22, 27, 38, 39, 40, 2)

SYS_PIVOT_ROOT, MNT_DETACH = (155, 41), 2

# The devices of the host's /dev that are kept: none that belongs to a person or to hardware.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_CLOSED_DEVICES = ("null", "zero", "urandom")

# Landlock's file-system rights, by the ABI version that introduced them (linux/landlock.h). Bits 4 to 12 remove and create
# entries of folders, bit 13 moves or links files between folders.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_CHANGE_RIGHTS = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_RIGHTS_BY_ABI = ((2, 1 << 13), (3, _TRUNCATE))
# Binding and connecting TCP sockets (ABI 4); reaching abstract sockets and signalling processes outside (ABI 6).
_NET_RIGHTS = 0b11
_SCOPES = 0b11
ABI_OF_SCOPES = 6

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# See `fork_into`: `CDLL` would release the interpreter's lock around the call.
_libc_of_forks = ctypes.PyDLL(None, use_errno=True)
_libc_of_forks.syscall.restype = ctypes.c_long


def prepare_sandbox() -> None:
    """Build the system call filters of most plans in advance."""
    for unix_sockets in (False, True):
        _filter_code(filter_families(True, unix_sockets), None)


def enter_sandbox(plan: dict[str, Any]) -> list[str]:
    """Confine this process right before exec; return the words to put before the command's.

    For the level `namespaces`, call it in the process in which `enter_namespaces` has returned.
    """
    _set_limits(plan["limits"])
    if plan["level"] == "bwrap":  # it may be a setuid program, so it does everything else
        families = filter_families(not plan["closed"], plan["unix_sockets"])
        return [*plan["bwrap"], *_filter_for_bwrap(families, plan["closed"]), "--"]
    # Without it, Landlock and seccomp refuse a process that is not root, and a setuid program would regain the rights that
    # are dropped here.
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if plan["level"] == "namespaces":
        if plan["closed"]:
            _build_root(plan["closed"], plan["cwd"])
        else:
            _arrange_mounts(plan)
        _mount_proc()
        os.chdir(plan["cwd"])  # the old working directory is still the one below the mounts
        # Last, because mounting needs them. Kept, they would let the command undo the mounts.
        _drop_capabilities(range(LAST_CAPABILITY + 1))
    else:
        # A root user's command keeps its rights to files, as without a sandbox, and has none over other processes.
        _drop_capabilities(_POWERS)
    abi = landlock_abi()
    # In addition to mounts, if the kernel has it: a mistake in the mounts alone would then still permit no write outside.
    if abi > 0:
        _restrict_paths(plan, abi)
    elif plan["level"] == "landlock":
        raise OSError("this kernel has no Landlock")
    # The filter comes last: it refuses calls that the steps above need. In a network namespace of its own a command may open
    # sockets, which reach nobody, so that programs see an unreachable network rather than a refused call.
    has_own_network = plan["level"] == "namespaces" and not plan["closed"]
    _filter_system_calls(filter_families(plan["network"] or has_own_network, plan["unix_sockets"]), plan["closed"])
    return []


def _set_limits(limits: list[tuple[int, int]]) -> None:
    if not limits:
        return
    # Only here: few plans have limits, and the module is not needed to start the helper.
    import resource

    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        # Raising a hard limit needs privileges, and the command must not be able to raise its own: both are set.
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (ceiling, ceiling))


# --- namespaces ------------------------------------------------------------------------------------------------------


def fork_into(home: str) -> int:
    """Like `os.fork`; unless `home` is `PLAIN`, the child must call `enter_namespaces` next."""
    if home == PLAIN:
        return os.fork()
    # `clone` and not `unshare`: the process must be the first one of its pid namespace, which only its creation can make it.
    number = SYS_CLONE.get(machine := os.uname().machine)
    if number is None:
        raise OSError(f"the sandbox cannot be set up: the system calls of {machine} are unknown")
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (CLONE_NEWNET if home == CUT_OFF else 0)
    # `PyDLL` keeps the interpreter's lock: this process has one thread, and its copy continues right here.
    pid = _libc_of_forks.syscall(number, ctypes.c_ulong(flags | SIGCHLD), 0, 0, 0, 0)
    _check(pid, "own namespaces")
    return int(pid)


def enter_namespaces(uid: int, gid: int) -> None:
    """Make the first process of new namespaces their reaper, and continue as its child, which becomes the command."""
    # If the supervisor is killed, this process and with it everything in its pid namespace ends.
    _prctl(PR_SET_PDEATHSIG, SIGKILL)
    # A process that changed its uid may not write its own uid_map without this.
    _prctl(PR_SET_DUMPABLE, 1)
    # In this order: the kernel accepts a gid_map from a process without rights outside only after setgroups is denied
    # (user_namespaces(7)).
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        file = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(file, text.encode())
        os.close(file)
    # Where the host's mounts are shared, as under systemd, ours would appear on the host otherwise.
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _fork_command()


def _arrange_mounts(plan: dict[str, Any]) -> None:
    """Make the whole tree read-only, then mount each place as planned."""
    # A protected place that does not exist needs no mount; a writable one must exist, so its absence is an error.
    mounts = [mount for mount in plan["mounts"] if mount[0] not in ("read", "hide") or os.path.lexists(mount[1])]
    # Before anything is covered or read-only: a source may be below it, and an overlay needs writable folders.
    for kind, place, *paths in mounts:
        if kind == "overlay":
            _mount_overlay(place, paths)
    # Opened before "/" becomes read-only and places are covered: later, the same path may lead to a covered folder.
    sources = [[os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths] for _, _, *paths in mounts]
    # Everything at once, then exceptions: a mount that the plan does not mention is read-only, not forgotten.
    _set_read_only("/", True)
    covers = []
    for (kind, place, *_), fds in zip(mounts, sources, strict=True):
        if kind == "cover":
            _make_place(place)
            _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=1m")
            covers.append(place)
        else:
            _make_place(place, fds[0])
            _mount(f"/proc/self/fd/{fds[0]}", place, None, MS_BIND | MS_REC)
        for fd in fds:
            os.close(fd)
        # A bind mount keeps the flags of its source's mount, which has just become read-only.
        if kind != "cover":
            _set_read_only(place, kind in ("read", "hide"))
    # Only now, because mount points were created inside the covers; not what is mounted there, which may be writable.
    for place in covers:
        _set_read_only(place, True, recursive=False)
    # A workspace in /dev/shm would disappear below the new /dev: then the host's is kept.
    mount_points = [mount[1] for mount in mounts if mount[0] in ("write", "put", "overlay")]
    _mount_dev(any(path.startswith("/dev/shm") for path in (*mount_points, plan["cwd"])))


def _make_place(path: str, like_fd: int | None = None) -> None:
    """Create a mount point below a covered folder if it is missing: a folder unless the descriptor is that of a file."""
    if os.path.lexists(path):
        return
    is_folder = like_fd is None or os.path.isdir(f"/proc/self/fd/{like_fd}")
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _build_root(closed: dict[str, Any], cwd: str) -> None:
    """Enter a new root with the readable paths, a few devices and an empty folder, and nothing else of this machine."""
    root = closed["root"]
    flags = MS_NOSUID | MS_NODEV
    _mount("tmpfs", root, "tmpfs", flags, "mode=755,size=1m")
    for path in (*closed["readable"], *(f"/dev/{name}" for name in _CLOSED_DEVICES)):
        place = root + path
        os.makedirs(os.path.dirname(place) if not os.path.isdir(path) else place, exist_ok=True)
        if not os.path.isdir(path):
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT, 0o600))
        _mount(path, place, None, MS_BIND | MS_REC)
    for name, target in closed["links"]:
        os.symlink(target, root + name)
    os.mkdir(root + cwd)
    _set_read_only(root, True)
    _mount("tmpfs", root + cwd, "tmpfs", flags | MS_NOEXEC, f"mode=700,size={closed['folder_bytes']},nr_inodes=10k")
    os.chdir(root)
    # Stacks the old root on the new one at ".", which needs no folder for it (pivot_root(2)); the next call removes it. A
    # process with an open descriptor outside could leave a plain `chroot` again.
    _check(_libc.syscall(SYS_PIVOT_ROOT[os.uname().machine == "aarch64"], b".", b"."), "a root of its own")
    _check(_libc.umount2(b".", MNT_DETACH), "leaving the machine's root")
    os.chdir("/")


def _mount_dev(keeps_shm: bool) -> None:
    """Mount a private /dev with a few harmless devices and new terminals: the person's terminal is not among them."""
    device_fds = {name: os.open(f"/dev/{name}", os.O_PATH) for name in _DEVICES if os.path.exists(f"/dev/{name}")}
    shm = os.open("/dev/shm", os.O_PATH) if keeps_shm else -1
    _mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755")
    for name, fd in device_fds.items():
        # A user namespace may not create device nodes: the host's are bound over empty files.
        os.close(os.open(f"/dev/{name}", os.O_WRONLY | os.O_CREAT, 0o600))
        _mount(f"/proc/self/fd/{fd}", f"/dev/{name}", None, MS_BIND)
        os.close(fd)
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}")
    _mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    if keeps_shm:
        _mount(f"/proc/self/fd/{shm}", "/dev/shm", None, MS_BIND | MS_REC)
        os.close(shm)
    else:
        _mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        os.symlink(target, f"/dev/{name}")


def _mount_overlay(folder: str, layers: list[str]) -> None:
    fds = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in layers]
    # By descriptor, because a path may contain the commas and colons that separate the options.
    lower_option, upper_option, work_option = (f"/proc/self/fd/{fd}" for fd in fds)
    # In a user namespace an overlay may not write `trusted.` attributes: `userxattr` keeps its notes as `user.` ones.
    options = f"lowerdir={lower_option},upperdir={upper_option},workdir={work_option},userxattr"
    _mount("overlay", folder, "overlay", 0, options)
    for fd in fds:
        os.close(fd)


def _mount_proc() -> None:
    """Mount a /proc of the new pid namespace. If the kernel refuses that, the old one stays, read-only."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    # Unchecked on purpose: containers mask parts of /proc, and the kernel then refuses a complete one (mount_namespaces(7)).
    # The tree of a closed program has no folder for it, so there this fails, too, and the program sees no processes.
    _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(flags), None)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mounting {kind or 'a bind'} at {target}")


def _set_read_only(path: str, is_read_only: bool, *, recursive: bool = True) -> None:
    bits = (MOUNT_ATTR_RDONLY, 0) if is_read_only else (0, MOUNT_ATTR_RDONLY)
    attributes = (ctypes.c_uint64 * 4)(*bits, 0, 0)
    below = AT_RECURSIVE if recursive else 0
    # Not a remount with `MS_RDONLY`, which would change one mount and lose its other flags (mount_setattr(2), Linux 5.12).
    arguments = (SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), below, attributes, ctypes.sizeof(attributes))
    _check(_libc.syscall(*arguments), f"making {path} {'read-only' if is_read_only else 'writable'}")


def _fork_command() -> None:
    """Continue as the command; the namespace's first process reaps zombies, and its end ends everything in it."""
    pid = os.fork()
    if not pid:
        return
    _close_all()  # the command's pipes too: their readers would see no end of file while this process lives
    ended, status = os.wait()
    while ended != pid:
        ended, status = os.wait()
    # The first process of a pid namespace cannot kill itself with a signal (pid_namespaces(7)): it reports one as shells do,
    # as 128 plus its number.
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _close_all() -> None:
    os.closerange(0, 65536)


def _drop_capabilities(dropped: Iterable[int]) -> None:
    """Drop these capabilities, even across exec: in its own user namespace an ordinary user's process begins with all."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    # Version 3 of the interface, which has two 32-bit halves (capget(2)).
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, for the lower and the upper 32
    _check(_libc.capget(header, capabilities), "reading capabilities")
    for capability in dropped:
        # Fails if there is none to drop, or if the kernel has no capability with that number.
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 and ctypes.get_errno() == EINVAL:
            break
        half, bit = divmod(capability, 32)
        for place in range(3):
            capabilities[half * 3 + place] &= ~(1 << bit)
    _check(_libc.capset(header, capabilities), "dropping capabilities")


# --- Landlock --------------------------------------------------------------------------------------------------------


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 for none."""
    # Without attributes and with the flag 1, the call returns the version instead of a ruleset (landlock_create_ruleset(2)).
    return max(0, int(_libc.syscall(SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def _restrict_paths(plan: dict[str, Any], abi: int) -> None:
    rights = _CHANGE_RIGHTS
    for since, right in _RIGHTS_BY_ABI:
        rights |= right if abi >= since else 0
    # Without mounts, the host's /dev is visible, with people's terminals in it: only a few of its devices can be opened.
    has_own_dev = plan["level"] != "landlock"
    rights |= 0 if has_own_dev else _READ_FILE
    closed = None if has_own_dev else plan["closed"]
    rights |= _EXECUTE | _READ_DIR if closed else 0
    # In a network namespace there is nothing to connect to, and a program gets the usual errors.
    network = _NET_RIGHTS if abi >= 4 and not plan["network"] and plan["level"] != "namespaces" else 0
    scopes = _SCOPES if abi >= ABI_OF_SCOPES else 0
    # An older kernel refuses a structure with fields that it does not know.
    fields = [rights, network, scopes][: 1 + (abi >= 4) + (abi >= ABI_OF_SCOPES)]
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    ruleset = _libc.syscall(SYS_LANDLOCK_CREATE, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)), 0)
    _check(ruleset, "a Landlock ruleset")
    # Landlock alone cannot mount a folder over another: the source folder is used at its own place.
    source = 1 if has_own_dev else 2
    writable = [mount[source] for mount in plan["mounts"] if mount[0] in ("write", "put", "overlay")]
    for path in (*writable, *([plan["cwd"]] if plan["closed"] else [])):
        _allow_below(ruleset, path, rights)
    if has_own_dev:
        _allow_below(ruleset, "/dev", rights)
    elif closed:
        for path in closed["readable"]:
            _allow_below(ruleset, path, _EXECUTE | _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0))
        for name in _CLOSED_DEVICES:
            _allow_below(ruleset, f"/dev/{name}", _READ_FILE | _WRITE_FILE)
    else:
        hidden = [mount[1] for mount in plan["mounts"] if mount[0] in ("hide", "cover")]
        for path in _readable_around("/", ["/dev", *hidden], writable):
            _allow_below(ruleset, path, _READ_FILE)
        for name in _DEVICES:
            if os.path.exists(f"/dev/{name}"):
                _allow_below(ruleset, f"/dev/{name}", (_READ_FILE | _WRITE_FILE | _TRUNCATE) & rights)
    _check(_libc.syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0), "the Landlock restriction")
    os.close(ruleset)


def _readable_around(folder: str, hidden: list[str], writable: list[str]) -> Iterable[str]:
    """Yield the readable paths in a folder: none that is hidden, except inside a writable folder, which is yielded whole."""
    for name in os.listdir(folder):
        path = f"{folder.rstrip('/')}/{name}"
        # A rule for a link would apply to its target, which may be hidden.
        if path in hidden or os.path.islink(path):
            continue
        if path not in writable and any(other.startswith(f"{path}/") for other in hidden):
            yield from _readable_around(path, hidden, writable)
        else:
            yield path


def _allow_below(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    # A packed structure of 12 bytes, without the padding that `ctypes.Structure` would add (landlock_add_rule(2)).
    attributes = rights.to_bytes(8, "little") + folder.to_bytes(4, "little")
    _check(_libc.syscall(SYS_LANDLOCK_ADD, ruleset, 1, attributes, 0), f"the Landlock rule for {path}")
    os.close(folder)


# --- seccomp ---------------------------------------------------------------------------------------------------------

# System calls that no command needs: (x86_64, aarch64). They reach into other processes, rearrange mounts, or open files by
# handles that no mount hides; io_uring performs its operations past this filter, and user namespaces, bpf, userfaultfd and
# perf are where most local exploits of the kernel begin.
_REFUSED_CALLS = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
}
# And those that no closed program needs: for other processes, and memory that outlives it. 0: no such call.
_REFUSED_WHEN_CLOSED = {
    "fork": (57, 0),
    "vfork": (58, 0),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "inotify_init": (253, 0),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "chroot": (161, 51),
}
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_CLONE_THREAD = 0x10000
# Audit number, column above, and the numbers of `socket` and `socketpair`.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0, 41, 53), "aarch64": (0xC00000B7, 1, 198, 199)}
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_KIND = 1, 5, 0xF
_LOAD, _AND, _JUMP_EQUAL, _JUMP_ABOVE, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_JUMP_SET = 0x45
_FIRST_ARGUMENT, _SECOND_ARGUMENT = 16, 24
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_UNKNOWN_CALL = 0x00050026  # ENOSYS: the C library then creates its threads with `clone`


def filter_families(network: bool, unix_sockets: bool) -> tuple[int, ...]:
    """The socket families that a command may use; never another (AF_VSOCK leads to the host of a virtual machine)."""
    return (*((_AF_INET, _AF_INET6) if network else ()), *((_AF_UNIX,) if unix_sockets else ()))


def _filter_system_calls(families: tuple[int, ...], closed: object) -> None:
    code = _filter_code(families, closed)
    if code is None:
        return
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    filled = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    # 2 is SECCOMP_MODE_FILTER.
    _check(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filled), 0, 0), "the system call filter")


def _filter_for_bwrap(families: tuple[int, ...], closed: object) -> list[str]:
    code = _filter_code(families, closed)
    if code is None:
        return []
    # The filter is smaller than any pipe's buffer, so this write cannot block.
    read_end, write_end = os.pipe()
    os.write(write_end, code)
    os.close(write_end)
    os.set_inheritable(read_end, True)
    return ["--seccomp", str(read_end)]


def _filter_code(families: tuple[int, ...], closed: object) -> bytes | None:
    """The filter in the kernel's format; None for an unknown architecture. Raises `OSError` there if `closed` is true."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        if closed:
            raise OSError(f"the sandbox cannot be set up: the system calls of {machine} are unknown")
        return None
    if (program := _filters.get((families, bool(closed)))) is not None:
        return program
    code = b"".join(
        op.to_bytes(2, "little") + bytes((true, false)) + value.to_bytes(4, "little")
        for op, true, false, value in filter_program(machine, families, is_closed=bool(closed))
    )
    _filters[families, bool(closed)] = code
    return code


_filters: dict[tuple[tuple[int, ...], bool], bytes] = {}


def filter_program(
    machine: str, families: tuple[int, ...], *, is_closed: bool = False
) -> list[tuple[int, int, int, int]]:
    """The BPF program: instructions `(code, jump if true, jump if false, value)`.

    System calls of another architecture kill the process, because the numbers would mean something else; refused calls
    return EPERM. A closed program can start threads but no processes, and change only its own limits. Sockets are those of
    `families`. Socket pairs are AF_UNIX, and without that family only connected ones: a datagram pair can send to anybody's
    socket.
    """
    audit, column, socket_call, pair_call = _ARCHITECTURES[machine]
    # Offsets in struct seccomp_data: 0 the call's number, 4 the architecture, 16 the first argument (seccomp(2)).
    program = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the x32 variants of the same calls
        program += [(_JUMP_ABOVE, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for numbers in (*_REFUSED_CALLS.values(), *(_REFUSED_WHEN_CLOSED.values() if is_closed else ())):
        if numbers[column]:
            program += [(_JUMP_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _REFUSE)]
    if is_closed:
        # The arguments of `clone3` are in memory, which a filter cannot read: it must look as if the kernel lacked the
        # call.
        program += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _UNKNOWN_CALL)]
        is_thread = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_JUMP_SET, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _REFUSE)]
        program += [(_JUMP_EQUAL, 0, 4, _CLONE[column]), *is_thread, (_LOAD, 0, 0, 0)]
        # Process 0 is the caller itself: the limits of other processes stay out of reach.
        program += _allowed_values(_PRLIMIT[column], _FIRST_ARGUMENT, ~0, (0,))
    program += _allowed_values(socket_call, _FIRST_ARGUMENT, ~0, families)
    program += _allowed_values(pair_call, _FIRST_ARGUMENT, ~0, (_AF_UNIX,))
    if _AF_UNIX not in families:
        program += _allowed_values(pair_call, _SECOND_ARGUMENT, _SOCK_KIND, (_SOCK_STREAM, _SOCK_SEQPACKET))
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _allowed_values(call: int, argument: int, mask: int, values: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Instructions that refuse a call whose argument is not one of the values, and then load the call's number again."""
    # Only the lower half of the argument (on little-endian machines) is loaded: the kernel itself reads these as `int`.
    checks = [(_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    body = [
        (_LOAD, 0, 0, argument),
        (_AND, 0, 0, mask & 0xFFFFFFFF),
        *checks,
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, 0),
    ]
    return [(_JUMP_EQUAL, 0, len(body), call), *body]


def _prctl(option: int, argument: int) -> None:
    _check(_libc.prctl(option, argument, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(f"the sandbox cannot be set up ({what}: {os.strerror(number)})")
