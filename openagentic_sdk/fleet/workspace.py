"""The files of a run that can continue on any host: a folder that all hosts share, or the run's own checkout.

Each run of a repository gets a clone that borrows the objects of the host's copy (`git clone --shared`) and not a linked
worktree, whose configuration, refs and hooks all runs would share. When we run git on files that a model has written,
its index and objects are outside that clone: nothing in the checkout, including its `.git`, controls
what git does. Only the registry chooses the repository; git runs no hook, filter, submodule or helper.

After each call that may have changed files, and before its result is in the log, the changes are stored as a patch among
the session's blobs. An event in the log names it (`workspace.kept`), and another host starts with the same commit and that
patch. Files ignored by git are not kept.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..agents import NamedAgent, Repository, check_ref
from ..errors import FleetError, OptionsError, StorageError, ToolError
from ..events import Event, HookEvent, WorkspaceKept
from ..ground.backoff import Backoff
from ..ground.disk import remove_tree, walk
from ..ground.frozen import frozen
from ..ground.system import BINARY
from ..ground.text import existing, one_line
from ..hooks.engine import HookEngine
from ..hooks.models import HookDecision, HookMatcher
from ..options import OpenAgenticOptions
from ..permissions.rules import EDIT_TOOLS, READ_TOOLS, TASK_TOOLS
from ..permissions.subject import NETWORK_TOOLS, SESSION_TOOLS
from ..sessions.base import SessionStore
from ..sessions.log.lock import hold, let_go, try_lock
from ..tools.shell.environment import find_program
from ..tools.shell.git_config import overruling
from ..tools.shell.process import CommandSpec, run_command
from ..tools.shell.sandbox_plan import probe_sandbox, sandbox_plan

HOOK = "openagentic.workspace"
MAX_PATCH_BYTES = 32 * 1024 * 1024
NETWORK_S = 900.0
LOCAL_S = 300.0
# The delays before a failed fetch is retried, and the most attempts.
PAUSES, MAX_FETCHES = Backoff(0.2, 1.0, factor=5.0), 3
# Tools that only use files or commands. What an agent's own tools use is its owner's responsibility.
FILE_TOOLS = frozenset({*READ_TOOLS, *EDIT_TOOLS, "Bash", "BashOutput", "KillBash"})
# Calls to these tools change nothing in a workspace.
_QUIET = frozenset({*READ_TOOLS, *NETWORK_TOOLS, *(SESSION_TOOLS - TASK_TOOLS)})
_NO_FILES = (
    "this run has no workspace, and files of one host do not exist on the next one: the owner of the agent can name a "
    "workspace for it in the registry"
)
# The variables of this process's environment that git and ssh need to reach a server.
_REACHING = (
    "HOME", "USER", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "https_proxy", "HTTPS_PROXY",
    "http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY",
)  # fmt: skip
# Without these, git could change the bytes of files, start maintenance in the background, or enter repositories inside the
# tree.
_SETTINGS = {
    "http.followRedirects": "false",  # send a header with a token to its own host only
    "gc.auto": "0",
    "maintenance.auto": "false",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "advice.addEmbeddedRepo": "false",
    "submodule.recurse": "false",
    "diff.ignoreSubmodules": "all",
    "fetch.recurseSubmodules": "false",
}
_ZERO: Callable[[], bool] = lambda: False  # noqa: E731


@frozen
class Wish:
    """The requested workspace: its name in the registry, and the ref of a repository, empty for the one in the registry."""

    name: str
    ref: str = ""


@frozen
class KeptCheckout:
    """The workspace that a session's log records: its checkout's commit, and the newest patch, empty before the first."""

    name: str
    commit: str
    patch: str = ""


def read_wish(agent: NamedAgent, text: str | None) -> Wish | None:
    """The workspace that `NAME` or `NAME@REF` means for this agent.

    Without `text`, it is the agent's workspace `default`, or None if the agent has no such workspace.

    Raises `OptionsError` for a name that is not in the registry, and for an invalid ref.
    """
    if text is None:
        return Wish("default") if "default" in agent.workspaces else None
    name, _, ref = text.partition("@") if isinstance(text, str) else ("", "", "")
    place = agent.workspaces.get(name)
    if place is None:
        names = existing("workspaces", agent.workspaces, "for this agent")
        raise OptionsError(f"unknown workspace {text!r:.100}: {names}")
    if ref or text.endswith("@"):
        if not isinstance(place, Repository):
            raise OptionsError(f"workspace {name!r} is a folder and has no ref {ref!r:.100}: omit the ref")
        check_ref(ref)
    return Wish(name, ref)


def kept_workspace(events: Iterable[Event]) -> KeptCheckout | None:
    """The checkout of a session and its newest patch, according to the session's log; None if it never had one."""
    checkout: KeptCheckout | None = None
    for event in events:
        if isinstance(event, WorkspaceKept):
            checkout = KeptCheckout(event.workspace, event.commit, event.patch)
        elif isinstance(event, HookEvent) and event.name == HOOK:
            # Logs of older versions have no `workspace.kept`: the fields are words in the action.
            word, *words = (event.action or "").split(" ")
            if word == "opened" and len(words) == 2:
                checkout = KeptCheckout(words[0], words[1], checkout.patch if checkout is not None else "")
            elif word == "kept" and checkout is not None:
                checkout = KeptCheckout(checkout.name, checkout.commit, words[0] if words else "")
    return checkout


@contextmanager
def open_workspace(
    agent: NamedAgent,
    options: OpenAgenticOptions,
    wish: Wish | None,
    *,
    store: SessionStore,
    session_id: str,
    root: Path,
    is_cancelled: Callable[[], bool] = _ZERO,
) -> Iterator[OpenAgenticOptions]:
    """Open the workspace of a run; yield the run's options in it. A checkout is deleted after the block, a folder stays.

    Without a wish, the run gets no workspace, and its tools for files and commands are refused. Entering and leaving block:
    do both in a thread. `root` is the folder of this host for copies and checkouts. Raises `OptionsError` and
    `FleetError` if the workspace is unavailable, and `StorageError` if the run was cancelled in the meantime.
    """
    if wish is None:
        refuse = HookMatcher(HOOK, "|".join(sorted(FILE_TOOLS)), lambda _: HookDecision(True, _NO_FILES))
        yield replace(options, hooks=_with_hooks(options.hooks, pre_tool_use=[refuse]))
        return
    place = agent.workspaces[wish.name]
    if not isinstance(place, Repository):
        if not os.path.isdir(place):
            raise OptionsError(
                f"the folder {str(place)!r} of workspace {wish.name!r} does not exist on this host: mount it"
            )
        yield replace(options, cwd=place, project_dir=None)
        return
    kept_checkout = kept_workspace(store.iter_events(session_id)) if store.session_exists(session_id) else None
    if kept_checkout is not None and kept_checkout.name != wish.name:
        raise OptionsError(
            f"session {session_id!r} works in workspace {kept_checkout.name!r}: name that one, or start a "
            f"new session in {wish.name!r}"
        )
    git = _Git(place, is_cancelled)
    with ExitStack() as stack:
        home = stack.enter_context(_own_folder(root / "trees", session_id))
        copy, commit = _copy_of(
            git, root / "copies", kept_checkout.commit if kept_checkout else wish.ref or place.ref, is_cancelled
        )
        checkout = _Checkout(git, copy, home, wish.name, commit)
        patch = store.read_blob(session_id, kept_checkout.patch) if kept_checkout and kept_checkout.patch else None
        checkout.fill(patch)
        hooks = _CheckoutHooks(checkout, store, session_id, kept_checkout, patch)
        yield replace(
            options,
            cwd=checkout.tree,
            project_dir=None,
            hooks=_with_hooks(
                options.hooks,
                session_start=[HookMatcher(HOOK, hook=hooks.opened, fail_closed=True)],
                post_tool_use=[
                    HookMatcher(
                        HOOK,
                        hook=hooks.keep,
                        timeout_s=LOCAL_S,
                        when=lambda payload: payload["tool_name"] not in _QUIET,
                    )
                ],
                session_end=[
                    HookMatcher(HOOK, hook=hooks.keep, timeout_s=LOCAL_S),
                    HookMatcher(f"{HOOK}.push", hook=hooks.push, timeout_s=NETWORK_S, when=hooks.has_branch),
                ],
            ),
        )


class _CheckoutHooks:
    """Hooks that record the state of a checkout in the log while its run continues."""

    def __init__(
        self,
        checkout: _Checkout,
        store: SessionStore,
        session_id: str,
        kept_checkout: KeptCheckout | None,
        patch: bytes | None,
    ) -> None:
        self._checkout = checkout
        self._store = store
        self._session_id = session_id
        self._kept_checkout = kept_checkout
        self._patch = patch or b""
        self._sha256 = kept_checkout.patch if kept_checkout is not None else ""

    def opened(self, _: dict[str, Any]) -> HookDecision:
        checkout, message = self._checkout, None
        if self._kept_checkout is not None:
            message = (
                f"This session continues in a new checkout of {checkout.commit}, with the changes that it had when its last "
                "call ended. Files that git ignores, running programs, and changes of an interrupted call are missing."
            )
        return HookDecision(action="opened", additional_context=message, log_as=self._log_as())

    def keep(self, _: dict[str, Any]) -> HookDecision | None:
        try:
            patch, left_out = self._checkout.patch()
        except (FleetError, StorageError) as error:
            message = (
                f"The changes so far could not be kept ({error}): if another host continues, they will be missing."
            )
            return HookDecision(action="not_kept", additional_context=message)
        if patch == self._patch:
            return None
        self._sha256 = self._store.put_blob(self._session_id, patch) if patch else ""
        self._patch = patch
        note = f"If another host continues, some changes will be missing ({left_out.strip('; ')})" if left_out else None
        return HookDecision(action="kept", additional_context=note, log_as=self._log_as())

    def has_branch(self, payload: Mapping[str, Any]) -> bool:
        """Whether the changes of a run that ended this way are pushed to a branch."""
        ended = payload["context"].get("stop_reason") == "end"
        return ended and bool(self._patch) and bool(self._checkout.git.place.branches)

    def push(self, _: dict[str, Any]) -> HookDecision:
        branch = f"{self._checkout.git.place.branches}{self._session_id}"
        self._checkout.push(branch)
        return HookDecision(action="pushed", log_as=self._log_as(branch=branch))

    def _log_as(self, **more: Any) -> Callable[..., HookEvent]:
        checkout = self._checkout
        return partial(WorkspaceKept, workspace=checkout.name, commit=checkout.commit, patch=self._sha256, **more)


class _Checkout:
    """One working tree: the run sees `home/<name>`; the rest of `home` is private to this package."""

    def __init__(self, git: _Git, copy: Path, home: Path, name: str, commit: str) -> None:
        self.git = git
        self.name = name
        self.commit = commit
        self.tree = home / name
        self._home = home
        self._copy = copy
        self._tree_id = ""
        self._last: tuple[bytes, str] = b"", ""

    def fill(self, patch: bytes | None) -> None:
        """Write the commit's files, with the patch applied, into a repository of the run's own."""
        git, own = self.git, {"GIT_DIR": f"{self.tree}/.git", "GIT_WORK_TREE": str(self.tree)}
        self.tree.mkdir()
        (self._home / "objects").mkdir()
        # An empty template: the machine's own could contain hooks.
        git.run("init", "--quiet", "--template=", str(self.tree), home=self._home)
        (self.tree / ".git/objects/info").mkdir(exist_ok=True)
        # The clone borrows the copy's objects, so a checkout of a large repository is quick and small.
        (self.tree / ".git/objects/info/alternates").write_text(f"{self._copy}/objects\n", encoding="utf-8")
        git.run("update-ref", "--no-deref", "HEAD", self.commit, home=self._home, env=own)
        git.run("read-tree", self.commit, home=self._home, env=own)
        if patch:
            (self._home / "patch").write_bytes(patch)
            git.run("apply", "--cached", "--whitespace=nowarn", f"{self._home}/patch", home=self._home, env=own)
        git.run("checkout-index", "--quiet", "--all", "--force", "--index", home=self._home, env=own, cwd=self.tree)
        # A copy of our own, because the run may change or replace the one in its `.git`.
        shutil.copyfile(self.tree / ".git/index", self._home / "index")

    def patch(self) -> tuple[bytes, str]:
        """Compute all differences from the commit as a patch; return it with a note on what is missing, empty if nothing."""
        env = {
            "GIT_DIR": str(self._copy),
            "GIT_WORK_TREE": str(self.tree),
            "GIT_INDEX_FILE": f"{self._home}/index",
            "GIT_OBJECT_DIRECTORY": f"{self._home}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{self._copy}/objects",
        }
        git, home = self.git, self._home
        # A nested repository has its own configuration, with filters that git would run to compare its files.
        nested = _nested_repositories(self.tree)
        places = [b".", *(b":(exclude,literal)" + os.fsencode(place) for place in nested)]
        (home / "places").write_bytes(b"\0".join(places))
        path_args = (f"--pathspec-from-file={home}/places", "--pathspec-file-nul")
        added = git.run("add", "--all", "--ignore-errors", *path_args, home=home, env=env, cwd=self.tree, may_fail=True)
        left_out = f"repositories in it: {', '.join(nested)}; " * bool(nested) + added.problem
        tree_id = git.run("write-tree", home=home, env=env, cwd=self.tree).text
        if tree_id != self._tree_id:
            # An external diff or a text conversion is a program that attributes in the tree may name.
            options = ("-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv")
            diff = git.run("diff-tree", *options, self.commit, tree_id, home=home, env=env)
            self._tree_id, self._last = tree_id, (diff.data, one_line(left_out)[:300])
        return self._last

    def push(self, branch: str) -> None:
        """Commit the newest patch with `self.commit` as its parent, and force-push the result to the branch."""
        env = {
            "GIT_DIR": str(self._copy),
            "GIT_OBJECT_DIRECTORY": f"{self._home}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{self._copy}/objects",
            **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _IDENTITY.items()},
        }
        git, home = self.git, self._home
        commit = git.run(
            "commit-tree", "-p", self.commit, "-m", f"Changes of {branch}", self._tree_id, home=home, env=env
        ).text
        target = f"+{commit}:refs/heads/{branch}"
        git.reach("push", "--quiet", "--", git.place.url, target, home=home, env=env)


_IDENTITY = {"NAME": "openagentic-sdk", "EMAIL": "agent@invalid"}


@frozen
class _GitOutput:
    data: bytes
    problem: str

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace").strip()


class _Git:
    """A runner of git for one repository, without configuration of the host or the repository, and with no program but ssh.

    Commands on a working tree (`run`) get no token and no ssh agent, and are confined to `home` if this machine has a
    sandbox; commands that get them (`reach`) touch no working tree.
    """

    def __init__(self, place: Repository, is_cancelled: Callable[[], bool]) -> None:
        self.place = place
        self._is_cancelled = is_cancelled
        program = find_program("git")
        if program is None:
            raise OptionsError("workspaces in repositories need git, which is not installed on this host: install it")
        self._program = program
        reaching = dict(_SETTINGS)
        if place.token_env is not None:
            token = os.environ.get(place.token_env)
            if not token:
                raise OptionsError(f"${place.token_env} must contain the token for {place.url!r} and is not set here")
            credentials = base64.b64encode(f"x-access-token:{token}".encode()).decode()
            reaching[f"http.{place.url}.extraHeader"] = f"Authorization: Basic {credentials}"
        # With an empty PATH, git cannot start a second git in a repository that a model has put into the tree.
        nowhere = dict.fromkeys(("HOME", "PATH", "GIT_EXEC_PATH"), "/nonexistent")
        # Work on a tree needs no network, so a URL that a model wrote into it leads nowhere either.
        self._env = {**_environment(_SETTINGS), **nowhere, "GIT_ALLOW_PROTOCOL": "none"}
        self._reaching_env = {
            **{name: os.environ[name] for name in _REACHING if name in os.environ},
            **_environment(reaching),
            "GIT_ALLOW_PROTOCOL": place.transport,
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        }

    def reach(self, *arguments: str, home: Path, env: Mapping[str, str]) -> _GitOutput:
        """Run git with access to the server, outside any working tree. Raises the errors of `run`."""
        return self._run(arguments, home, {**self._reaching_env, **env}, home, False, NETWORK_S, None)

    def run(
        self,
        *arguments: str,
        home: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        may_fail: bool = False,
    ) -> _GitOutput:
        """Run git on the files of a run or of this host's copy, without network and token; return its output.

        With `may_fail`, an exit code is ignored. Raises `FleetError` with git's message, and `StorageError` if the run was
        cancelled or git could not be started.
        """
        try:
            level = probe_sandbox().level
        except ToolError as error:
            raise FleetError(str(error)) from error
        place = str(cwd or home)
        plan = None if level == "none" else sandbox_plan(level, cwd=place, writable=[str(home.resolve())])
        return self._run(arguments, home, {**self._env, **(env or {})}, cwd or home, may_fail, LOCAL_S, plan)

    def _run(
        self,
        arguments: Sequence[str],
        home: Path,
        env: Mapping[str, str],
        cwd: Path,
        may_fail: bool,
        timeout_s: float,
        plan: Mapping[str, Any] | None,
    ) -> _GitOutput:
        paths = (f"{home}/stdout", f"{home}/stderr")
        spec = CommandSpec(
            argv=(self._program, *arguments),
            env=env,
            cwd=str(cwd),
            keep_bytes=4096,
            paths=paths,
            file_bytes=MAX_PATCH_BYTES,
            spool=True,
            sandbox=plan,
        )
        try:
            report = run_command(spec, timeout_s=timeout_s, is_cancelled=self._is_cancelled)
            problem = (report.stderr.head or report.stderr.tail).decode("utf-8", "replace")
            data = Path(paths[0]).read_bytes() if os.path.exists(paths[0]) else report.stdout.head
        except (OSError, ToolError) as error:
            raise StorageError(f"git {arguments[0]} could not be run: {error}") from error
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)
        if report.ended_by or (report.exit_code and not may_fail):
            why = {"timeout": f"it took longer than {timeout_s:g} s", "cancel": "the run was cancelled"}.get(
                report.ended_by, f"it wrote more than {MAX_PATCH_BYTES} bytes" if report.ended_by else problem
            )
            # A `StorageError` queues the run again, which a cancelled command needs; what git refuses here, it also refuses
            # for the next worker.
            kind = StorageError if report.ended_by == "cancel" else FleetError
            raise kind(f"git {arguments[0]} for {self.place.url!r} failed: {one_line(why)[:500]}")
        return _GitOutput(data, problem)


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment for a git process: these settings, and none of this machine or its user."""
    return {
        "PATH": os.defpath,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(settings)},
        **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(settings.values())},
        **overruling(len(settings)),
    }


def _nested_repositories(tree: Path) -> list[str]:
    """The folders below the top of a working tree, as relative paths, that contain a `.git` in any letter case.

    Links are not followed.
    """
    repositories = []
    for folder, folders, files in walk(str(tree)):
        is_top = folder == str(tree)
        if not is_top and any(name.lower() == ".git" for name in (*folders, *files)):
            repositories.append(os.path.relpath(folder, tree))
            folders.clear()
        elif is_top:
            folders[:] = [name for name in folders if name.lower() != ".git"]
    return sorted(repositories)


def _copy_of(git: _Git, root: Path, ref: str, is_cancelled: Callable[[], bool]) -> tuple[Path, str]:
    """Update this host's copy of the repository; return its path and the commit that `ref` names.

    A commit that the copy already has is not fetched again. Only branches, tags and the HEAD are ever fetched, so a commit
    that exists only in a fork is unavailable.
    """
    copy = root / f"{hashlib.sha256(git.place.url.encode()).hexdigest()[:32]}.git"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(root / f"{copy.name}.lock", is_cancelled):
        if not (copy / "HEAD").exists():
            shutil.rmtree(copy, ignore_errors=True)
            git.run("init", "--quiet", "--bare", "--template=", str(copy), home=root)
        env = {"GIT_DIR": str(copy)}
        # The lengths of SHA-1 and SHA-256 in hexadecimal.
        is_commit = len(ref) in (40, 64) and not set(ref) - set("0123456789abcdef")

        def find(name: str) -> str:
            return git.run(
                "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", home=root, env=env, may_fail=True
            ).text

        commit = find(ref) if is_commit else ""
        if not commit:
            specs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", "+HEAD:refs/openagentic/HEAD")
            options = (
                "--quiet",
                "--no-write-fetch-head",
                "--no-recurse-submodules",
                "--prune",
                "--force",
                "--no-auto-gc",
            )
            fetch = ("fetch", *options, "--", git.place.url, *specs)
            for tries, pause_s in enumerate(PAUSES.waits(), 1):
                try:
                    git.reach(*fetch, home=root, env=env)
                    break
                except FleetError:
                    if tries == MAX_FETCHES:
                        raise
                    time.sleep(pause_s)
            is_whole = is_commit or ref.startswith(("refs/heads/", "refs/tags/"))
            names = (ref,) if is_whole else (f"refs/heads/{ref}", f"refs/tags/{ref}")
            names = ("refs/openagentic/HEAD",) if ref == "HEAD" else names
            commit = next(filter(None, map(find, names)), "")
    if not commit:
        raise OptionsError(f"{git.place.url!r} has no branch, tag or commit {ref!r}")
    return copy, commit


@contextmanager
def _own_folder(root: Path, session_id: str) -> Iterator[Path]:
    """Create a folder for one checkout, which exists during the block; also remove what dead processes have left behind.

    The folder has the same name on each host if that is free.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    name, fd = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:24], -1
    with _locked(root / "lock", _ZERO):
        dead_folders = _sweep(root)
        number = 0
        while fd < 0:
            home = root / (f"{name}-{number}" if number else name)
            fd, number = _take(f"{home}.lock"), number + 1
        home.mkdir(mode=0o700)
    try:
        _remove(dead_folders)
        yield home
    finally:
        with _locked(root / "lock", _ZERO):
            # Under the folder's lock: otherwise another process could lock the file just before its name is removed,
            # and a third one a new file of that name.
            os.unlink(f"{home}.lock")
            let_go(fd)
            os.close(fd)
            over = home.rename(root / f".gone-{os.urandom(8).hex()}")
        _remove([over])


def _take(path: str) -> int:
    """Lock a file; return its descriptor, -1 if another process or run has locked it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
    if try_lock(fd):
        hold(fd)
        return fd
    os.close(fd)
    return -1


def _sweep(root: Path) -> list[Path]:
    """Move aside the folders of dead processes, and return all paths to delete."""
    for lock in root.glob("*.lock"):
        fd = _take(str(lock))
        if fd >= 0:
            home = lock.with_suffix("")
            if home.is_dir():
                home.rename(root / f".gone-{os.urandom(8).hex()}")
            lock.unlink()
            let_go(fd)
            os.close(fd)
    return list(root.glob(".gone-*"))


def _remove(folders: Iterable[Path]) -> None:
    """Delete folders, including unwritable ones; whatever cannot be deleted is left for the next sweep."""
    for folder in folders:
        with suppress(OSError):  # another process of this host sweeps the same folder
            os.chmod(folder, stat.S_IRWXU)
            for parent, names, _ in walk(str(folder)):
                for name in names:
                    if not os.path.islink(path := os.path.join(parent, name)):
                        os.chmod(path, stat.S_IRWXU)
        remove_tree(folder)


@contextmanager
def _locked(path: Path, is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Hold an exclusive lock on a file during the block. Raises `StorageError` if the run is cancelled before."""
    while (fd := _take(str(path))) < 0:
        if is_cancelled():
            raise StorageError(f"the run was cancelled while another one held {str(path)!r}")
        time.sleep(0.02)
    try:
        yield
    finally:
        let_go(fd)
        os.close(fd)


def _with_hooks(hooks: HookEngine | None, **ours: Sequence[HookMatcher]) -> HookEngine:
    """The hooks with ours before the others at the same points, so that no other hook can prevent ours from running."""
    hooks = hooks or HookEngine()
    together: dict[str, Any] = {point: (*matchers, *getattr(hooks, point)) for point, matchers in ours.items()}
    return replace(hooks, **together)
