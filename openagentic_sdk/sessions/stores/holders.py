"""This process as a holder of sessions on a server: its name there, its lease, and its heartbeat.

A session's row names its holder; the holder's lease is one row for all sessions of a process, so a heartbeat costs the same
for one session and for a thousand. When a process dies, its lease expires; on the same host, another process detects at
once that its file is no longer locked. A process that is wrongly considered dead does no harm: each append also carries its
writer's epoch.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import SessionError
from ...ground.system import start_daemon
from ..log.lock import LeaseFile, living_holder

LEASE_S = 15.0
BEAT_S = LEASE_S / 3
# How many releases are repeated after a restart of the server: more than a process makes in the seconds whose writes the
# server may lose.
RELEASES = 1000


class Holder:
    """A process as a holder of sessions. `renew(name)` extends its lease on the server to `LEASE_S` from now.

    The heartbeat is a thread that runs while the process holds a session, so neither a busy event loop nor a long tool lets
    the lease expire.
    """

    def __init__(self, renew: Callable[[str], None]) -> None:
        number = os.urandom(16).hex()
        # A random number, since process ids repeat, and different hosts and containers have the same ones.
        self.name = f"{number} process {os.getpid()} on {socket.gethostname()}"
        self._renew = renew
        self._guard = threading.Condition()
        self._claims: set[tuple[Any, int]] = set()
        self._unreleased: list[Callable[[], None]] = []
        self._released: deque[Callable[[], None]] = deque(maxlen=RELEASES)
        self._renewed = float("-inf")
        self._claiming: set[tuple[Any, int]] = set()
        self._beating = False
        self._file: LeaseFile | None = None
        if (folder := _folder()) is not None:
            with suppress(OSError):
                self._file = LeaseFile(folder / number)

    def claim(self, key: Any, epoch: int) -> bool | None:
        """Announce a claim of the session `key` at that epoch, and make sure that the process's lease is being renewed.

        All threads of a process have the same name on the server. Returns None while another thread makes the same claim,
        until that thread calls `claimed`; False if this process has made it before; otherwise True. After False, only a
        claim that changes the row is ours: a server that lost its last second may assign an epoch again.
        """
        with self._guard:
            if time.monotonic() - self._renewed > BEAT_S:
                self._beat()
            if not self._beating:
                # First: if no thread can start, nothing must be claimed, since nobody would renew it.
                start_daemon(self._run, "openagentic-lease")
                self._beating = True
            if (key, epoch) in self._claiming:
                return None
            is_new = (key, epoch) not in self._claims
            self._claiming.add((key, epoch))
            self._claims.add((key, epoch))
            return is_new

    def claimed(self, key: Any, epoch: int) -> None:
        """Announce the end of the claim: it took effect, failed, or will be released later."""
        with self._guard:
            self._claiming.discard((key, epoch))

    def drop(self, key: Any, epoch: int) -> None:
        """Announce that this process no longer holds the session."""
        with self._guard:
            self._claims.discard((key, epoch))
            self._guard.notify_all()

    def holds(self, key: Any, epoch: int) -> bool:
        """Whether this process has a writer of the session at that epoch, or is claiming one."""
        return (key, epoch) in self._claims

    def release_later(self, release: Callable[[], None]) -> None:
        """Release a session with the next heartbeat, because the server is unreachable now."""
        with self._guard:
            self._unreleased.append(release)

    def released(self, release: Callable[[], None]) -> None:
        """Remember a release, to repeat it if the server loses it. Only the newest `RELEASES` are kept."""
        with self._guard:
            self._released.append(release)

    def release_again(self) -> None:
        """Repeat the newest releases with this heartbeat: the server was restarted, and may have lost them."""
        with self._guard:
            self._unreleased.extend(self._released)

    def close(self) -> None:
        """Stop the heartbeat, drop all claims and unsent releases, and unlock this process's file."""
        with self._guard:
            self._claims.clear()
            self._unreleased.clear()
            self._released.clear()
            self._guard.notify_all()
        if self._file is not None:
            self._file.release()

    def _beat(self) -> None:
        # From before the request: the server's lease begins later than this, never earlier.
        began = time.monotonic()
        self._renew(self.name)
        self._renewed = began

    def _run(self) -> None:
        while True:
            with self._guard:
                self._guard.wait_for(lambda: not (self._claims or self._unreleased), BEAT_S)
                if not (self._claims or self._unreleased):
                    self._beating = False
                    return
                releases, self._unreleased = self._unreleased, []
            # The server is unreachable: the next beat retries, and the epochs protect sessions lost in the meantime.
            with suppress(SessionError):
                self._beat()
                with self._guard:
                    releases, self._unreleased = [*releases, *self._unreleased], []
                while releases:
                    releases[0]()
                    # Removed only after it succeeded: an error leaves it, and those after it, for the next beat.
                    releases.pop(0)
            with self._guard:
                self._unreleased.extend(releases)


def is_dead(name: str) -> bool:
    """Whether this holder was a process of this host that has died; False if that cannot be determined here."""
    folder = _folder()
    try:
        return folder is not None and living_holder(folder / name.partition(" ")[0], missing="unknown") is None
    except OSError:
        return False


def _folder() -> Path | None:
    """The folder in which this user's processes lock their files; None if it cannot be created or somebody else owns it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"openagentic-sdk-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
    except OSError:
        return None
    # In a shared temporary folder, anybody may have created this name first: a link, or a folder with forged locks.
    return folder if stat.S_ISDIR(info.st_mode) and (not hasattr(os, "getuid") or info.st_uid == user) else None
