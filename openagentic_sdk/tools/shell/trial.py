"""The trial of a command on a copy: its limits, the places that it sees, failures for lack of something, and its effects.

A trial changes nothing: its writes go to an overlay, and are applied or dropped once somebody has judged them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

from ...ground.disk import is_within, read_regular, walk
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...ground.system import user_home
from .overlay import FileEffect
from .process import CommandReport

MAX_EFFECTS = 500
MAX_CHANGED_BYTES = 256 * 1024 * 1024
_MAX_DIFF_FILES = 20
_MAX_DIFF_LINES = 400
_MAX_DIFFED_BYTES = 256 * 1024
_MAX_QUOTED = 200


@frozen
class TrialLimits:
    """The limits of one trial: seconds, bytes of memory and of one file, and processes, like `CodeLimits` for code."""

    seconds: float = 30.0
    memory_bytes: int = 8 << 30
    file_bytes: int = MAX_CHANGED_BYTES
    processes: int = 4096

    def as_rlimits(self) -> tuple[tuple[int, int], ...]:
        """The limits as rlimits, which the kernel enforces per process and, for `processes`, per user."""
        import resource

        return (
            (resource.RLIMIT_AS, self.memory_bytes),
            # For each process, in addition to the trial's own clock: a program on several cores uses more CPU time than
            # wall-clock time.
            (resource.RLIMIT_CPU, 2 * int(self.seconds) + 10),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_CORE, 0),
        )


# A trial has no network: a tool that tries to connect again and again would only delay the question. Without any retry, pip
# does not report why it found nothing.
WITHOUT_RETRIES: Mapping[str, str] = {
    "npm_config_fetch_retries": "0",
    "PIP_RETRIES": "1",
    "UV_HTTP_RETRIES": "0",
    "CARGO_NET_RETRY": "0",
}

# Messages of programs that lack something in a trial, by the reason to show to a person.
_OUT_OF_REACH = (
    (
        "it needs the network",
        regex(
            r"could not resolve|name or service not known|temporary failure in name resolution|network is unreachable"
            r"|no address associated with hostname|getaddrinfo|eai_again|enetunreach|enotfound|failed to lookup address"
            r"|nodename nor servname|unable to resolve host|unknown host|no route to host|dial (?:tcp|udp|unix)"
            r"|failed to establish a new connection|could not connect to the endpoint|max retries exceeded"
            r"|(?:cannot|can't|could not|couldn't|unable to|failed to) (?:connect|download|fetch|reach)"
            r"|err_internet_disconnected"
            r"|address family not supported by protocol|gaierror|socket: operation not permitted|no internet"
        ),
    ),
    (
        "it needs a service on this machine",
        regex(
            r"connection refused|is the docker daemon running|failed to connect to (?:the )?bus|system has not been booted"
            r"|could not connect to server|connection to .* failed|no such file or directory.*\.sock(?:et)?\b"
            r"|the connection to the server .* was refused|cannot open netlink|failed to open (?:a )?connection"
        ),
    ),
    ("it writes where a trial may not write", regex(r"read-only file system|erofs")),
    (
        "it needs permissions that a trial does not have",
        regex(r"operation not permitted|permission denied|must be (?:run as )?root|eperm|eacces"),
    ),
    ("it needs a terminal", regex(r"not a tty|no tty present|inappropriate ioctl for device|a terminal is required")),
)


def shortfall(command: str, report: CommandReport, covered: Sequence[str]) -> str | None:
    """A sentence about what a command lacked on the copy, by how it ended and its output; None if it lacked nothing.

    `covered` folders are empty there: a file in one of them that the command does not find may exist.
    """
    if report.ended_by == "timeout":
        return "it exceeded the time limit of a trial"
    if report.ended_by:
        return "it exceeded the output limit of a trial"
    if report.signal:
        return "it was ended by a signal, as happens to a command that exceeds a trial's limits"
    errors = _text(report.stderr.head) + _text(report.stderr.tail)
    # In the output of a command that succeeded, such words are its content.
    if report.exit_code:
        errors += _text(report.stdout.head) + _text(report.stdout.tail)
    for reason, pattern in _OUT_OF_REACH:
        if found := pattern.search(errors.lower()):
            # The program's own message names the host or the path.
            line = errors.split("\n")[errors.lower().count("\n", 0, found.start())].strip().rpartition("\r")[2]
            return f"{reason}, by its output: {line[:_MAX_QUOTED]!r}"
    if _HOME.search(command) or any(folder in command or folder in errors for folder in covered):
        printed = errors + _text(report.stdout.head) + _text(report.stdout.tail)
        return "it accesses hidden files" if _MISSING.search(printed.lower()) else None
    return None


_HOME = regex(r"(?:^|[\s=:'\"])~|\$\{?HOME\b")
_MISSING = regex(r"no such file|not found|cannot (?:open|stat|access)|does not exist|enoent")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# Folders in a home folder with what tools install or download, without personal data.
_CACHES = """
    .cargo/bin .cargo/registry .cargo/git .rustup .npm/_cacache .nvm .pyenv .rbenv .asdf .local/share/mise
    .local/bin .local/lib .local/share/uv .cache/pip .cache/uv .cache/go-build .cache/pypoetry .cache/pre-commit
    .cache/mypy .cache/ruff .cache/yarn .cache/node .cache/bazel go/pkg go/bin .m2/repository .gradle/caches
    .gradle/wrapper .deno .bun/bin .bun/install .sdkman/candidates .gem .bundle/cache .ghcup .cabal/packages
    .cabal/bin .stack/programs .opam .nuget/packages .dotnet .julia/packages .volta .local/share/pnpm .local/pipx
    miniconda3 anaconda3 .conda/pkgs Library/Caches .gitconfig .config/git/config
"""
# System files with data of other users, which root's command could read.
_OTHERS = """
    /etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers /etc/sudoers.d /etc/ssh /etc/ssl/private
    /var/mail /var/spool/mail /var/lib/docker /var/lib/mysql /var/lib/postgresql /root /home /Users
"""


def covered_folders(covered: Sequence[str]) -> tuple[str, ...]:
    """The `covered` folders, the home folders of this user and others, and system folders with users' data."""
    import pwd  # systems without trials may lack it

    homes = [user.pw_dir for user in pwd.getpwall() if user.pw_uid == 0 or user.pw_uid >= 1000]
    candidates = [*covered, user_home(), *homes, *(path for path in _OTHERS.split() if os.path.isdir(path))]
    # `nobody` has one of these two as its home, and covering `/` would hide everything.
    real = {os.path.realpath(path) for path in candidates if os.path.isdir(path)} - {"/", "/nonexistent"}
    return tuple(sorted(path for path in real if not any(is_within(path, other) for other in real if other != path)))


def hidden_files() -> tuple[str, ...]:
    """The existing system files with data of other users."""
    return tuple(path for path in _OTHERS.split() if os.path.isfile(path))


def shown_places() -> tuple[str, ...]:
    """The existing places in the home folder that a trial sees: toolchains and their caches."""
    home = user_home()
    return tuple(path for name in _CACHES.split() if os.path.exists(path := os.path.join(home, name)))


# Files and folders that tools for tests and checks create beside the files that they examine, only to be faster next time.
_TOOL_CACHES = frozenset(
    ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".eslintcache", ".stylelintcache")
)


@frozen
class Change:
    """A command's effect on one path. `before` and `after` are digests of the old and new content, empty for none.

    `problem` is the reason why the permissions for files do not cover it (a link, a device, a setuid bit); None if they do.
    """

    kind: str
    path: str
    is_folder: bool
    before: str
    after: str
    size_bytes: int
    problem: str | None = None


def is_cached(change: Change, root: str) -> bool:
    """Whether a change adds to a cache that a tool for tests or checks keeps below `root`. A deletion never does."""
    return change.kind != "deleted" and not _TOOL_CACHES.isdisjoint(os.path.relpath(change.path, root).split(os.sep))


def changes_of(folder: str, upper: str, effects: Sequence[FileEffect]) -> Iterator[Change]:
    """Yield the effects with digests of the old and new contents, including those inside deleted folders."""
    for effect in effects:
        path, source = os.path.join(folder, effect.path), os.path.join(upper, effect.path)
        # The effect names the folder alone, and a person should see each file that is lost with it.
        if effect.kind == "deleted" and effect.is_folder:
            for top, folders, names in walk(path):
                for name in (*folders, *names):
                    inner = os.path.join(top, name)
                    yield Change("deleted", inner, name in folders, digest(inner), "", 0)
        after = "" if effect.kind == "deleted" else digest(source)
        status = None if effect.kind == "deleted" else os.lstat(source)
        yield Change(
            effect.kind,
            path,
            effect.is_folder,
            digest(path),
            after,
            0 if status is None else status.st_size,
            None if status is None else _problem(status),
        )


def _problem(status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "it creates a link"
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return "it creates something that is not a file"
    return (
        "it changes the permissions with which a file runs" if status.st_mode & (stat.S_ISUID | stat.S_ISGID) else None
    )


def digest(path: str) -> str:
    """A digest of a path's type, mode and content; empty if the path does not exist, and `unreadable` with the number of the
    error if it cannot be read.
    """
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                hashed = sha256()
                while piece := file.read(1 << 20):
                    hashed.update(piece)
                content = hashed.digest()
        else:
            content = b""
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"unreadable {error.errno}"
    return sha256(f"{status.st_mode:o} ".encode() + content).hexdigest()


def shown_diff(changes: Sequence[Change], upper_of: Mapping[str, str], root: str) -> str:
    """The changes for people: a list, and the text differences as far as they fit. `upper_of` maps the path of each file
    that was not deleted to its new version.
    """
    from difflib import unified_diff  # most runs try no command

    files = [change for change in changes if not change.is_folder]
    lines = [f"{change.kind} {os.path.relpath(change.path, root)}{'/' * change.is_folder}" for change in changes[:100]]
    lines += [f"and {len(changes) - 100} more"] if len(changes) > 100 else []
    differences: list[str] = []
    for change in files[:_MAX_DIFF_FILES]:
        before = _lines(change.path)
        after = [] if change.kind == "deleted" else _lines(upper_of[change.path])
        name = os.path.relpath(change.path, root)
        if before is None or after is None:
            differences.append(f"{name}: not text, or too long to be shown")
        else:
            differences += unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="", n=2)
    if len(files) > _MAX_DIFF_FILES or len(differences) > _MAX_DIFF_LINES:
        differences = [*differences[:_MAX_DIFF_LINES], "the remaining differences are not shown"]
    return "\n".join([*lines, "", *differences])


def _lines(path: str) -> list[str] | None:
    try:
        if os.path.islink(path):
            return None
        data = read_regular(path, _MAX_DIFFED_BYTES)
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        return None
    return None if b"\0" in data else data.decode("utf-8", "replace").splitlines()
