"""Private servers for a test, on free ports of 127.0.0.1, which it may stop, suspend and restart."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from ..ports import free_port, until_listens
from ..waiting import until


def postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def server_user() -> str | None:
    """The user to run Postgres and pgbouncer as, since both refuse root; None for the current user."""
    if os.geteuid() != 0:
        return None
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise unittest.SkipTest("these servers refuse to run as root, and there is no other user")


def own_folder() -> Path:
    place = Path(tempfile.mkdtemp(prefix="own-server-"))
    if user := server_user():
        shutil.chown(place, user)
    return place


class OwnPostgres:
    """A Postgres server with a data folder of its own."""

    def __init__(self, *settings: str, standby_of: OwnPostgres | None = None) -> None:
        programs = postgres_programs()
        if programs is None:
            raise unittest.SkipTest("the programs of a Postgres server are not installed")
        self.programs = programs
        self.place = own_folder()
        self.port = free_port()
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        data = str(self.place / "data")
        if standby_of is None:
            self.run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        else:
            source = ("-h", "127.0.0.1", "-p", str(standby_of.port), "-U", "postgres")
            self.run("pg_basebackup", "-D", data, *source, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        self.start()

    def url(self, database: str = "postgres", user: str = "postgres", port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(command, user=server_user(), cwd=self.place, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)

    def start(self) -> None:
        command = [str(self.programs / "postgres"), "-D", str(self.place / "data"), "-p", str(self.port)]
        for setting in (
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.place}",
            "fsync=off",
            *self.settings,
        ):
            command += ["-c", setting]
        with open(self.place / "log", "ab") as log:
            self.process = subprocess.Popen(command, user=server_user(), cwd=self.place, stdout=log, stderr=log)
        until_listens(self.port, self.process)
        ready = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        until(lambda: not subprocess.run(ready).returncode, "the server has recovered from the crash")

    def stop(self, kind: int = signal.SIGQUIT) -> None:
        """Stop the server: SIGQUIT simulates a crash, SIGINT is an orderly shutdown."""
        if self.process is not None:
            self.signal(signal.SIGCONT)
            self.process.send_signal(kind)
            self.process.wait()
            self.process = None

    def signal(self, kind: int) -> None:
        """Send a signal to the server and all its child processes."""
        assert self.process is not None
        for pid in [*children_of(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kind)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.place, ignore_errors=True)


class OwnBouncer:
    """A pgbouncer in front of a Postgres server."""

    def __init__(self, port: int, mode: str) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            raise unittest.SkipTest("the program pgbouncer is not installed")
        self.place = own_folder()
        self.port = free_port()
        settings = self.place / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={port}\n[pgbouncer]\nlisten_addr=127.0.0.1\n"
            f"listen_port={self.port}\nauth_type=any\npool_mode={mode}\ndefault_pool_size=8\nmax_client_conn=500\n"
            f"unix_socket_dir=\nlogfile={self.place}/log\n"
        )
        # With auth_type=any a database line must name the user that the pooler becomes.
        settings.write_text(settings.read_text().replace(f"port={port}", f"port={port} user=postgres"))
        self.process = subprocess.Popen([program, "-q", str(settings)], user=server_user(), cwd=self.place)
        until_listens(self.port, self.process)

    def remove(self) -> None:
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)


class OwnRedis:
    """A Redis server with a folder of its own."""

    def __init__(self, *settings: str) -> None:
        if shutil.which("redis-server") is None:
            raise unittest.SkipTest("the program redis-server is not installed")
        self.place = Path(tempfile.mkdtemp(prefix="own-server-"))
        self.port = free_port()
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.place)]
        self.process = subprocess.Popen([*command, *self.settings], stdout=subprocess.DEVNULL)
        until_listens(self.port, self.process)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, kind: int) -> None:
        assert self.process is not None
        self.process.send_signal(kind)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.place, ignore_errors=True)


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.parent.name))
    return found
