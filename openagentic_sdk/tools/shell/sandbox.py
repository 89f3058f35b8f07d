"""Shut a process into a sandbox before it becomes the command: Linux, ctypes only.

It runs in the helper process, between fork and exec (`shell_helper`), and so imports nothing slow. What is asked for comes
as a plan, a plain dict made by `sandbox_plan`:

`level`: `namespaces` (own user, mount, pid and, without `network`, net namespace; the whole tree read-only), `bwrap` (the
same by the program of that name, called as `bwrap` says) or `landlock` (the kernel's path rules only); `writable`: folders;
`protected`: paths in them that stay read-only; `overlays`: `(folder, upper, work)` whose writes go to `upper`; `hidden`:
sockets that lead nowhere; `network`; `cwd`; `limits`: pairs `(rlimit, value)`.

Whatever the kernel refuses raises OSError, and then the command does not start: a sandbox has no half.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
SIGKILL = 9
LAST_CAPABILITY = 63

# Landlock's file-system rights, by the ABI that brought them (linux/landlock.h). Reading is not restricted.
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGE_RIGHTS = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_RIGHTS_BY_ABI = ((2, 1 << 13), (3, _TRUNCATE))
_NET_RIGHTS = 0b11
_SCOPES = 0b11

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def entrance(plan: dict[str, Any], failure_w: int) -> Callable[[], list[str]]:
    """What to call right before exec; it gives the words to put before the command's.

    The end of the pipe `failure_w` says that the command runs.
    """
    return lambda: _enter(plan, failure_w)


def _enter(plan: dict[str, Any], failure_w: int) -> list[str]:
    _set_limits(plan["limits"])
    if plan["level"] == "bwrap":  # it may be a setuid program, so everything else is left to it
        return [*plan["bwrap"], *_filter_for_bwrap(), "--"]
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if plan["level"] == "namespaces":
        _enter_namespaces(plan)
        _fork_init(failure_w)
        _mount_proc()
        _fork_command(failure_w)
        os.chdir(plan["cwd"])
        _drop_capabilities()
    abi = landlock_abi()
    if abi > 0:
        _restrict_paths(plan, abi)
    elif plan["level"] == "landlock":
        raise OSError("this kernel has no Landlock")
    _filter_system_calls(allow_network=plan["network"] or plan["level"] == "namespaces")
    return []


def _set_limits(limits: list[tuple[int, int]]) -> None:
    import resource

    for kind, value in limits:
        _, hard = resource.getrlimit(kind)
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (ceiling, ceiling))


# --- namespaces ------------------------------------------------------------------------------------------------------


def _enter_namespaces(plan: dict[str, Any]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (0 if plan["network"] else CLONE_NEWNET)
    # A process that changed its uid may not write its own uid_map without this.
    _prctl(PR_SET_DUMPABLE, 1)
    _check(_libc.unshare(flags), "own namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _arrange_mounts(plan)


def _arrange_mounts(plan: dict[str, Any]) -> None:
    """The whole tree read-only, then the writable folders writable, then what is protected inside them read-only again."""
    writable = [*plan["writable"], *(folder for folder, _, _ in plan["overlays"])]
    for folder, upper, work in plan["overlays"]:
        _mount_overlay(folder, upper, work)
    for path in plan["writable"]:
        _mount(path, path, None, MS_BIND | MS_REC)
    _set_read_only("/", True)
    for path in writable:
        _set_read_only(path, False)
    for path in plan["hidden"]:
        _mount(os.devnull, path, None, MS_BIND)
    for path in plan["protected"]:
        _mount(path, path, None, MS_BIND | MS_REC)
        _set_read_only(path, True)


def _mount_overlay(folder: str, upper: str, work: str) -> None:
    fds = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (folder, upper, work)]
    # By descriptor: a path may hold the commas and colons that separate the options.
    lower_option, upper_option, work_option = (f"/proc/self/fd/{fd}" for fd in fds)
    options = f"lowerdir={lower_option},upperdir={upper_option},workdir={work_option},userxattr"
    _mount("overlay", folder, "overlay", 0, options)
    for fd in fds:
        os.close(fd)


def _mount_proc() -> None:
    """A /proc of the new pid namespace. Where parts of /proc are hidden it is refused: the old one stays, read-only."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(flags), None)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mounting {kind or 'a bind'} at {target}")


def _set_read_only(path: str, is_read_only: bool) -> None:
    bits = (MOUNT_ATTR_RDONLY, 0) if is_read_only else (0, MOUNT_ATTR_RDONLY)
    attributes = (ctypes.c_uint64 * 4)(*bits, 0, 0)
    arguments = (SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, attributes, ctypes.sizeof(attributes))
    _check(_libc.syscall(*arguments), f"making {path} {'read-only' if is_read_only else 'writable'}")


def _fork_init(failure_w: int) -> None:
    """Go on as the first process of the pid namespace; the process outside waits for it and ends as it ended."""
    pid = os.fork()
    if pid:
        _close_all()
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    _prctl(PR_SET_PDEATHSIG, SIGKILL)


def _fork_command(failure_w: int) -> None:
    """Go on as the command; the namespace's first process collects what ends, and with it ends everything in here."""
    pid = os.fork()
    if not pid:
        return
    _close_all()
    ended, status = os.wait()
    while ended != pid:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _close_all() -> None:
    os.closerange(0, 65536)


def _drop_capabilities() -> None:
    """None now, none by running a program: in its own user namespace even an ordinary user began with all of them."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    empty = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, empty), "dropping capabilities")


# --- Landlock --------------------------------------------------------------------------------------------------------


def landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0 for none."""
    return max(0, int(_libc.syscall(SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def _restrict_paths(plan: dict[str, Any], abi: int) -> None:
    rights = _CHANGE_RIGHTS
    for since, right in _RIGHTS_BY_ABI:
        rights |= right if abi >= since else 0
    network = _NET_RIGHTS if abi >= 4 and not plan["network"] else 0
    scopes = _SCOPES if abi >= 6 else 0
    fields = [rights, network, scopes][: 1 + (abi >= 4) + (abi >= 6)]
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    ruleset = _libc.syscall(SYS_LANDLOCK_CREATE, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)), 0)
    _check(ruleset, "a Landlock ruleset")
    for path in (*plan["writable"], *(folder for folder, _, _ in plan["overlays"])):
        _allow_below(ruleset, path, rights)
    _allow_below(ruleset, "/dev", (_WRITE_FILE | _TRUNCATE) & rights)
    _check(_libc.syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0), "the Landlock restriction")
    os.close(ruleset)


def _allow_below(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    attributes = rights.to_bytes(8, "little") + folder.to_bytes(4, "little")
    _check(_libc.syscall(SYS_LANDLOCK_ADD, ruleset, 1, attributes, 0), f"the Landlock rule for {path}")
    os.close(folder)


# --- seccomp ---------------------------------------------------------------------------------------------------------

# System calls that a command has no business with: (x86_64, aarch64).
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
_ARCHITECTURES = {"x86_64": (0xC000003E, 0, 41), "aarch64": (0xC00000B7, 1, 198)}
_AF_UNIX = 1
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000


def _filter_system_calls(*, allow_network: bool) -> None:
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return
    code = _filter_code(machine, allow_network=allow_network)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    filled = Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _check(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filled), 0, 0), "the system call filter")


def _filter_for_bwrap() -> list[str]:
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return []
    read_end, write_end = os.pipe()
    os.write(write_end, _filter_code(machine, allow_network=True))
    os.close(write_end)
    os.set_inheritable(read_end, True)
    return ["--seccomp", str(read_end)]


def _filter_code(machine: str, *, allow_network: bool) -> bytes:
    return b"".join(
        op.to_bytes(2, "little") + bytes((true, false)) + value.to_bytes(4, "little")
        for op, true, false, value in filter_program(machine, allow_network=allow_network)
    )


def filter_program(machine: str, *, allow_network: bool) -> list[tuple[int, int, int, int]]:
    """The BPF program: instructions `(code, jump if true, jump if false, value)`.

    Another architecture's calls kill the process, as the numbers would mean something else; refused calls give EPERM.
    """
    audit, column, socket_call = _ARCHITECTURES[machine]
    refused = [numbers[column] for numbers in _REFUSED_CALLS.values()]
    program = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":  # the x32 variants of the same calls
        program += [(_JUMP_ABOVE, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for number in refused:
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    if not allow_network:
        program += [
            (_JUMP_EQUAL, 0, 3, socket_call),
            (_LOAD, 0, 0, 16),
            (_JUMP_EQUAL, 1, 0, _AF_UNIX),
            (_RETURN, 0, 0, _REFUSE),
        ]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _prctl(option: int, argument: int) -> None:
    _check(_libc.prctl(option, argument, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(f"the sandbox cannot be set up: {what}: {os.strerror(number)}")
