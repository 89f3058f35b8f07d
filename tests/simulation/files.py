"""Sessions in files, written by processes that die, stop, meet full and failing disks, other versions and power cuts."""

from __future__ import annotations

import gc
import os
import random
import re
import tempfile
import zlib
from functools import cache
from typing import Any

from openagentic_sdk.errors import (
    ConcurrencyError,
    LogCorruptError,
    OptionsError,
    SessionExistsError,
    SessionLockedError,
    StorageError,
)
from openagentic_sdk.events import AssistantMessage, Event, LogRecovered, ToolStarted, UserMessage
from openagentic_sdk.ground.disk import SystemDisk
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.log.folder import SUMMARY_NAME
from openagentic_sdk.sessions.log.line import decode_line
from openagentic_sdk.sessions.log.unsynced import DISTRUSTED
from openagentic_sdk.sessions.store import LOG_NAME, FileSessionStore
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.crash import Killed
from openagentic_sdk.testing.simulated_disk import KILLS, WRITE_ERRORS, ProcessDisk, SimulatedDisk

from .history import History
from .older import OlderStore, landed_logs, plain_log

SIZES = (3, 3, 40, 300, 2000, 9000)
SESSION = "s"
# Of older versions no more is asked than they promised: a sync that failed they believed the next time.
FULL = tuple(fault for fault in WRITE_ERRORS if "EIO" not in fault)


def content(path: str) -> bytes:
    try:
        with open(path, "rb", 0) as file:
            return file.readall()
    except FileNotFoundError:
        return b""


@cache
def created_files(place: str) -> tuple[tuple[str, bytes], ...]:
    """The files of a new session, as the store makes them."""
    with tempfile.TemporaryDirectory(dir=place) as root:
        FileSessionStore(root, clock=FakeClock(1_700_000_000.0)).create_session(session_id=SESSION)
        folder = f"{root}/sessions/{SESSION}"
        return tuple((name, content(f"{folder}/{name}")) for name in sorted(os.listdir(folder)))


class Process:
    """One process with a store, and perhaps the writer of the session."""

    def __init__(
        self, number: int, disk: ProcessDisk, root: str, durability: Any, rng: random.Random, *, is_older: bool
    ) -> None:
        self.number, self.disk, self.is_older = number, disk, is_older
        self.clock = FakeClock(1_700_000_000.0 + rng.choice((0, 0, 3600, -3600, 1e9)))
        store = OlderStore if is_older else FileSessionStore
        self.store = store(root, durability, clock=self.clock, disk=disk)
        self.writer: Any = None
        self.has_failed = False
        self.distrusted: set[tuple[int, int]] = set()

    def __str__(self) -> str:
        return f"older process {self.number}" if self.is_older else f"process {self.number}"


class Files:
    """One schedule. The model consists of `certain`, the events that the log shows, and `maybe`, those that may follow."""

    ordinal = 0  # how many schedules of this kind came before

    def __init__(self, seed: int, place: str) -> None:
        self.rng = random.Random(seed)
        self.history = History(seed)
        self.root = os.path.join(place, "store")
        os.mkdir(self.root)
        failing = 0.15 if self.rng.random() < 0.35 else 0.0
        self.versions = random.Random(f"versions {seed}")
        self.has_older = not failing and self.versions.random() < 0.25
        self.errors = FULL if self.has_older else (*WRITE_ERRORS, "lost")
        self.disk = SimulatedDisk(self.root, self.rng, failing_syncs=0.0)
        self.durability = self.rng.choice(("flush", "barrier", "barrier", "fsync"))
        self.folder = f"{self.root}/sessions/{SESSION}"
        self.path = f"{self.folder}/{LOG_NAME}"
        self.processes: list[Process] = []
        self.made = 0
        self.count = 0
        self.certain: list[str] = []
        self.maybe: list[str] = []
        self.safe = 0
        self.blobs: dict[str, bytes] = {}
        self.is_over = self.is_ending = False
        self.is_foreign = False
        self.tails: list[bytes] = []
        self.metadata: set[Any] = {None}
        self.owner: str | None = None
        first = self.begin(is_older=False)
        if self.rng.random() < 0.15:
            self.do(first, "create", lambda: first.store.create_session(session_id=SESSION))
        else:
            self.copy_created(place, first.disk)
        self.disk.failing_syncs = failing

    def copy_created(self, place: str, disk: ProcessDisk) -> None:
        """Begin with what `create_session` leaves. The summary, a cache, is not on disk, and with "flush" nothing is."""
        self.history.lines.append("created before")
        os.mkdir(os.path.dirname(self.folder))
        os.mkdir(self.folder)
        synced = SystemDisk()
        for name, created in created_files(place):
            is_older = name == LOG_NAME and self.has_older
            data = self.older_log() if is_older else created
            writes = disk if name == SUMMARY_NAME or (self.durability == "flush" and not is_older) else synced
            fd = writes.open(f"{self.folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o600)
            writes.write(fd, data)
            writes.close(fd)
        if self.durability == "flush":
            self.disk.note_name("moved", self.folder, f"{self.root}/sessions/.new-0")

    def older_log(self) -> bytes:
        """The first lines of a log that an older version wrote, or the line of a tool that knew no seals."""
        if self.versions.random() < 0.3:
            log = plain_log(self.next_text(3))
        else:
            lines = self.versions.choice(landed_logs()).splitlines(keepends=True)
            log = b"".join(lines[: self.versions.choice((1, 2, 2, 2, 2, 2, 2, 6))])
        self.history.lines.append(f"an older version wrote {len(log)} bytes")
        self.certain = [text_of(decode_line(line, n)) for n, line in enumerate(log.split(b"\n")[:-1], 1)]
        self.safe = len(self.certain)
        return log

    # --- processes ---------------------------------------------------------------------------------------------------

    def begin(self, *, is_older: bool | None = None) -> Process:
        """Start a process; in schedules with an older version, at times one of that version."""
        if is_older is None:
            is_older = self.has_older and self.versions.random() < 0.5
        self.made += 1
        disk = self.disk.process()
        process = Process(self.made, disk, self.root, self.durability, self.rng, is_older=is_older)
        self.processes.append(process)
        return process

    def end(self, process: Process) -> None:
        """Mark the process as dead; none of its code runs any more."""
        process.disk.kill()
        self.processes.remove(process)
        if not self.processes:
            self.begin()

    def do(self, process: Process, what: str, work: Any, *expected: type[BaseException]) -> Any:
        """Let a process do something; hide from it what it cannot know of other processes."""
        DISTRUSTED.clear()
        DISTRUSTED.update(process.distrusted)
        came = self.history.invoke(process, what, work, Killed, *expected)
        process.distrusted = set(DISTRUSTED)
        if process.disk.is_dead and process in self.processes:
            self.end(process)
        return came

    def run(self) -> None:
        if self.ordinal % 2 == 0:
            self.SCENARIOS[self.ordinal // 2 % len(self.SCENARIOS)](self)
        for _ in range(self.rng.choice((1, 2, 3))):
            if self.is_over:
                break
            if self.has_older and self.versions.random() < 0.5:
                self.take_turns()
            else:
                self.rng.choices(self.ACTIONS, self.WEIGHTS)[0](self)
        if not self.is_over and self.holder() is not None and self.versions.random() < 0.1:
            self.delete(self.begin(is_older=False))
        self.finish()
        for process in self.processes:
            process.disk.kill()
        DISTRUSTED.clear()

    # --- what the model says -----------------------------------------------------------------------------------------

    def read(self, process: Process) -> list[str] | None:
        """Read the texts in the log, and check that the model allows them."""
        events = self.do(process, "read", lambda: process.store.read_events(SESSION))
        if isinstance(events, Killed):
            return None
        self.history.require([e.seq for e in events] == list(range(1, len(events) + 1)), "the numbers have a hole")
        texts = [text_of(event) for event in events if not isinstance(event, LogRecovered)]
        return self.judge(texts)

    def judge(self, texts: list[str]) -> list[str]:
        allowed = self.certain + self.maybe
        self.history.require(
            texts[: len(self.certain)] == self.certain,
            lambda: f"the log shows {brief(texts)}, not {brief(self.certain)}",
        )
        self.history.require(
            texts == allowed[: len(texts)], lambda: f"the log shows {brief(texts)} of {brief(allowed)}"
        )
        return texts

    def free(self) -> Process:
        """A live process without a writer."""
        found = [process for process in self.processes if process.writer is None]
        return self.rng.choice(found) if found else self.begin()

    def today(self) -> Process:
        """A live process of the current version."""
        found = [process for process in self.processes if not process.is_older]
        return self.rng.choice(found) if found else self.begin(is_older=False)

    def holder(self) -> Process | None:
        return next((process for process in self.processes if process.writer is not None), None)

    # --- actions -----------------------------------------------------------------------------------------------------

    def take_turns(self) -> None:
        """Let an older version append, list or delete between turns of the current one, which must show the same then."""
        process = next((process for process in self.processes if process.is_older), None) or self.begin(is_older=True)
        if self.holder() is not process and self.versions.random() < 0.6:
            self.close()
        if self.holder() is None and self.versions.random() < 0.15:
            return self.delete(process)
        if self.holder() is not process:
            self.open(process)
        has_written = self.holder() is process
        if has_written:
            self.append()
        if process in self.processes and self.versions.random() < 0.4:
            self.do(process, "list", lambda: process.store.kept_summary(SESSION).title)
        if self.holder() is process and self.versions.random() < 0.6:
            self.close()
        if has_written and not self.is_over and self.versions.random() < 0.6:
            self.look(self.today())

    def open(self, process: Process | None = None) -> None:
        holder, process = self.holder(), process or self.free()
        before = self.content()
        end = before.rfind(b"\n") + 1
        reported = before[:end].count(b'"type":"log.recovered"')  # a torn tail may contain half of a report
        if before[end:].strip(b"\0") and not before[end:].endswith(b"}"):
            self.tails.append(before[end:])
        if not self.is_ending and self.rng.random() < (0.75 if self.tails else 0.2):
            kills = KILLS * (3 if self.tails else 1)
            process.disk.faults = {self.rng.randrange(1, 14): self.rng.choice((*kills, *self.errors))}
        came = self.do(process, "open", lambda: process.store.open_writer(SESSION), StorageError, SessionLockedError)
        process.disk.faults = {}
        if holder is not None:
            self.history.require(not hasattr(came, "append"), "two processes write one session")
            self.history.require(isinstance(came, SessionLockedError | Killed), f"a second writer got {came!r}")
            return
        if isinstance(came, Killed | Exception):
            self.history.require(not isinstance(came, SessionLockedError), "a session that nobody holds is locked")
            return
        process.writer = came
        process.has_failed = False
        after = self.content()
        if not after.startswith(before):
            kept = next(
                (at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(after)
            )
            torn = self.torn_files()
            self.history.require(
                before[kept:] in torn or before[kept:].strip(b"\n\0") == b"" or self.any_ends(torn, before),
                "a torn tail is nowhere",
            )
            self.history.require(after.count(b'"type":"log.recovered"') > reported, "a repair is not reported")
        kept_aside = self.torn_files() if self.tails else []
        for tail in self.tails:
            is_kept = tail in after or any(tail in each or each in tail for each in kept_aside)
            self.history.require(is_kept, "a torn tail was cut off and is nowhere")
        self.tails.clear()
        events = process.store.read_events(SESSION)
        texts = [text_of(event) for event in events if not isinstance(event, LogRecovered)]
        self.certain, self.maybe = self.judge(texts), []
        if self.durability != "flush" and not process.is_older:
            self.safe = len(self.certain)

    def content(self) -> bytes:
        """The current content of the log; empty if it is missing."""
        return content(self.path)

    def overwrite(self, data: bytes) -> None:
        with open(self.path, "wb") as file:
            file.write(data)

    def torn_files(self) -> list[bytes]:
        names = os.listdir(self.folder)
        return [content(f"{self.folder}/{name}") for name in names if name.startswith(f"{LOG_NAME}.torn-")]

    def any_ends(self, torn: list[bytes], before: bytes) -> bool:
        return any(before.endswith(tail) for tail in torn)

    def tear(self) -> None:
        """Kill a process in the middle of a write, and at times the next one in its repair."""
        if self.holder() is None:
            self.open()
        if self.holder() is not None:
            self.append(faults=False, fault="kill middle")

    def lose_pages(self) -> None:
        """Let a sync fail, whose pages the disk has lost, and go on as after any failure."""
        if self.holder() is None:
            self.open()
        if self.holder() is not None and not self.has_older:
            self.append(faults=False, fault="lost")

    def append(self, *, faults: bool = True, fault: str = "", is_quiet: bool = False) -> None:
        if self.holder() is None and faults and self.rng.random() < 0.4:
            self.open()
        process = self.holder()
        if process is None or (faults and self.rng.random() < 0.1):
            return self.append_alone()
        batch = self.batch(is_quiet=is_quiet)
        texts = [text_of(event) for event in batch]
        if faults and self.rng.random() < 0.4:
            process.disk.faults = {self.rng.randrange(1, 4): self.rng.choice((*KILLS, *self.errors))}
        if fault:
            process.disk.faults = {1: fault}
        if self.rng.random() < 0.02:
            gc.collect(1)  # what a schedule left is young
        came = self.do(
            process, f"append {brief(texts)}", lambda: process.writer.append(batch), StorageError, ConcurrencyError
        )
        process.disk.faults = {}
        self.came_back(process, came, batch, texts)

    def came_back(self, process: Process, came: Any, batch: list[Event], texts: list[str]) -> None:
        if isinstance(came, Killed):
            self.maybe = self.maybe + texts
            if not self.content().endswith(b"\n"):
                self.open()
            return
        if isinstance(came, Exception):
            self.history.require(not self.is_foreign or isinstance(came, ConcurrencyError | StorageError), "unnoticed")
            retryable = isinstance(came, StorageError) and came.retryable
            self.history.require(
                not isinstance(came, StorageError)
                or ("open the session again" in str(came) or "open it again" in str(came)) != retryable,
                f"the way out is another than retryable={retryable}: {came}",
            )
            is_full = process.disk.struck in ("short", "torn ENOSPC", "ENOSPC")
            is_lost = process.disk.struck in ("lost", "EIO", "torn EIO")
            self.history.require(not is_full or self.disk.failing_syncs or retryable, f"a full disk is {came!r}")
            self.history.require(not (is_lost and retryable), f"a disk that cannot say what it holds is {came!r}")
            if retryable:
                self.go_on(process)
            else:
                process.has_failed = True
                self.maybe = self.maybe + texts
                self.distrust(process)
            return
        self.history.require(
            not process.has_failed, "a writer goes on after an error that it cannot know the outcome of"
        )
        self.history.require(not self.is_foreign, "what another wrote in spite of the lock was not noticed")
        self.history.require([text_of(event) for event in came] == texts, "other events came back than were appended")
        self.check_claim()
        self.certain += texts
        if self.durability == "fsync" or (self.durability == "barrier" and any(map(matters, batch))):
            self.safe = len(self.certain)

    def check_claim(self) -> None:
        """Check that everything the last line claims to be on disk is there."""
        found = self.disk.files.get(os.stat(self.path).st_ino)
        said = re.search(rb'"dur":([0-9]+),"crc":"[0-9a-f]{8}"}\n$', self.content()[-80:])
        if found is not None and said is not None and not self.disk.failing_syncs:
            self.history.require(
                int(said[1]) <= bytes(found.base).count(b"\n"), "a line is said to be on disk and is not"
            )

    def go_on(self, process: Process) -> None:
        """Retry with the same writer once there is room again; the power may be cut at any time."""
        self.read(process)
        failing, self.disk.failing_syncs = self.disk.failing_syncs, 0.0
        batch = self.batch()
        texts = [text_of(event) for event in batch]
        came = self.do(
            process, f"try again {brief(texts)}", lambda: process.writer.append(batch), StorageError, ConcurrencyError
        )
        self.history.require(isinstance(came, list), f"a full disk that has room again is {came!r}")
        self.came_back(process, came, batch, texts)
        self.disk.failing_syncs = failing
        if self.rng.random() < 0.5:
            self.cut()

    def distrust(self, process: Process) -> None:
        """Let a sync fail, the next one succeed, and the power go: no event acknowledged in between may be lost."""
        if self.rng.random() < 0.15:
            return
        failing, self.disk.failing_syncs = self.disk.failing_syncs, 0.0
        if self.rng.random() < 0.5:
            self.end(process)
        else:
            self.close()
        if self.rng.random() < 0.3:
            self.append_alone()
        else:
            self.open()
            if self.holder() is not None and self.rng.random() < 0.8:
                self.append(faults=False)
        self.disk.failing_syncs = failing
        self.cut()

    def shorten(self) -> None:
        """Cut off the last line: the summary beside the log must reveal it, even after it was listed."""
        raw = self.at_rest()
        process = self.today()
        if raw.count(b"\n") < 2:
            return
        row = self.do(process, "summary", lambda: process.store.read_summary(SESSION))
        if isinstance(row, Killed) or not raw.rfind(b'{"v":1') > raw[:-1].rfind(b"\n"):
            return
        self.overwrite(raw[: raw[:-1].rfind(b"\n") + 1])
        self.do(process, "list", lambda: len(process.store.list_session_summaries()))
        problems = verify_session(process.store, SESSION).problems
        self.history.require(problems or self.durability == "flush", "a log lost its last line, and nobody says so")
        self.is_over = True

    def append_alone(self) -> None:
        """Append without holding the session, like a program that answers a question."""
        holder, process, batch = self.holder(), self.free(), self.batch()
        texts = [text_of(event) for event in batch]
        if holder is None and self.rng.random() < 0.2:
            process.disk.faults = {self.rng.randrange(1, 16): self.rng.choice((*KILLS, *self.errors))}
        came = self.do(
            process,
            f"append alone {brief(texts)}",
            lambda: process.store.append_events(SESSION, batch),
            StorageError,
            SessionLockedError,
        )
        process.disk.faults = {}
        if holder is not None:
            self.history.require(isinstance(came, SessionLockedError | Killed), "an append passed a writer by")
        elif isinstance(came, Exception | Killed):
            self.history.require(not isinstance(came, SessionLockedError), "a session that nobody holds is locked")
            self.settle(texts)
        else:
            shown = [
                text_of(event) for event in process.store.read_events(SESSION) if not isinstance(event, LogRecovered)
            ]
            self.history.require(shown[-len(texts) :] == texts, "what was appended is not the end of the log")
            self.judge(shown[: -len(texts)])
            self.certain, self.maybe = shown, []
            if self.durability == "fsync" or (self.durability == "barrier" and any(map(matters, batch))):
                self.safe = len(self.certain)

    def settle(self, texts: list[str]) -> None:
        """Update what the log may contain after it may have been opened and appended to."""
        events = self.free().store.read_events(SESSION)
        shown = [text_of(event) for event in events if not isinstance(event, LogRecovered)]
        for kept in range(len(self.maybe), -1, -1):
            allowed = self.certain + self.maybe[:kept] + texts
            if shown == allowed[: len(shown)] and len(shown) >= len(self.certain):
                is_settled = len(shown) > len(self.certain) + kept or kept < len(self.maybe)
                self.maybe = (self.maybe[:kept] if is_settled else self.maybe) + texts
                return
        self.judge(shown)

    def close(self) -> None:
        process = self.holder()
        if process is not None:
            writer, process.writer = process.writer, None
            self.do(process, "close", writer.close)
            process.has_failed = False

    def kill(self) -> None:
        process = self.rng.choice(self.processes)
        self.history.lines.append(f"{process}: killed")
        self.end(process)

    def cut(self) -> None:
        self.history.lines.append("the power is cut")
        if self.rng.random() < 0.4 and self.holder() is None:
            self.append()
        elif self.holder() is not None and not self.is_foreign and self.rng.random() < 0.4:
            for _ in range(3):  # so much that a later page may come back without an earlier one
                self.append(faults=False)
        self.disk.cut_power()
        self.tails.clear()
        self.processes.clear()
        process = self.begin()
        self.maybe = (self.certain + self.maybe)[self.safe :]
        self.certain = self.certain[: self.safe]
        self.is_foreign = False
        if not os.path.exists(self.path):
            self.history.require(self.durability == "flush", "a session that was created is gone")
            self.is_over = True
            return
        for digest, data in self.blobs.items():
            found = self.do(
                process, "read a blob", lambda digest=digest: process.store.read_blob(SESSION, digest), StorageError
            )
            self.history.require(found == data or self.durability == "flush", "a blob is gone that was on disk")
        if self.durability == "flush":
            self.blobs.clear()
        self.check_metadata(process)

    def find_and_cut(self) -> None:
        """Let a writer find what another one wrote, and cut the power: what it found was on disk."""
        if self.holder() is not None:
            self.end(self.holder())  # type: ignore[arg-type]
        self.open()
        self.cut()

    def change_and_cut(self) -> None:
        """Change the metadata, or store a blob, and cut the power: both are on disk once they returned."""
        self.rng.choice((self.change_metadata, self.put_blob))()
        self.cut()

    def leave_and_find(self) -> None:
        """Kill a writer whose events are not all on disk, and let another one find them before the power is cut."""
        if self.holder() is None:
            self.open()
        if self.holder() is not None:
            self.append(faults=False, is_quiet=True)
            self.find_and_cut()

    def look(self, process: Process | None = None) -> None:
        process = process or self.rng.choice(self.processes)
        if self.read(process) is None or self.is_foreign:
            return
        row = self.do(process, "summary", lambda: process.store.read_summary(SESSION))
        folded = self.do(process, "fold", lambda: process.store.fold_summary(SESSION))
        self.history.require(
            row.events == folded.events and row.title == folded.title, lambda: f"the summary is {row}, not {folded}"
        )
        self.check_metadata(process)

    def put_blob(self) -> None:
        process, data = self.rng.choice(self.processes), self.rng.randbytes(20)
        came = self.do(process, "put a blob", lambda: process.store.put_blob(SESSION, data), StorageError)
        if isinstance(came, str):
            self.blobs[came] = data

    def change_metadata(self) -> None:
        process, value = self.rng.choice(self.processes), self.rng.randrange(10**6)
        came = self.do(
            process, f"metadata {value}", lambda: process.store.update_metadata(SESSION, {"n": value}), StorageError
        )
        self.metadata = (
            {*self.metadata, value} if isinstance(came, Exception | Killed) or self.durability == "flush" else {value}
        )

    def check_metadata(self, process: Process) -> None:
        found = self.do(process, "read metadata", lambda: process.store.read_metadata(SESSION))
        if not isinstance(found, Killed):
            value = found["metadata"].get("n")
            self.history.require(value in self.metadata, f"the metadata say {value}, not one of {self.metadata}")

    def at_rest(self) -> bytes:
        """The log as soon as nobody writes it and all of it is on disk; empty if that never happens."""
        self.close()
        if self.maybe or self.safe < len(self.certain) or not self.certain:
            self.open()
            if self.holder() is not None and not self.certain:
                self.append(faults=False)
            self.close()
        raw = self.content()
        is_whole = self.holder() is None and not self.maybe and self.safe == len(self.certain)
        return raw if is_whole and raw.endswith(b"\n") else b""

    def write_by_hand(self) -> None:
        """Append as a program without locks and checksums, like tools of older versions."""
        if self.holder() is None and self.rng.random() < 0.5:
            self.open()
        holder = self.holder()
        if self.content()[-1:] not in (b"\n", b"") or self.maybe or self.safe < len(self.certain):
            return
        text = self.next_text(3)
        with open(self.path, "ab") as file:
            file.write(b'{"type":"user.message","text":"%b"}\n' % text.encode())
        inode = os.stat(self.path).st_ino
        if inode in self.disk.files:
            file_known = self.disk.files[inode]
            if file_known.steps:
                self.certain.append(text)
                self.is_over = True  # what is on disk of it, nothing says
                return
            file_known.base = self.content()
        self.history.lines.append(f"an older tool appends {text}")
        self.certain.append(text)
        self.safe = len(self.certain)
        self.is_foreign = holder is not None
        if holder is not None:
            batch = self.batch()
            came = self.do(
                holder, "append behind it", lambda: holder.writer.append(batch), StorageError, ConcurrencyError
            )
            self.history.require(
                isinstance(came, Exception | Killed), "what another wrote in spite of the lock was not noticed"
            )
            self.end(holder)
            self.is_foreign = False

    def write_by_newer(self) -> None:
        """Append a line in the format of a newer version: this version must read it, and write nothing after it."""
        everything = self.at_rest()
        if not everything or not everything.splitlines()[-1].startswith(b'{"v":1,'):
            return
        events = self.processes[0].store.read_events(SESSION)
        body = b'{"v":2,"seq":%d,"ts":1,"type":"user.message","text":"newer","dur":0' % (len(events) + 1)
        line = body + b',"crc":"%08x"}\n' % zlib.crc32(body, zlib.crc32(everything))
        with open(self.path, "ab") as file:
            file.write(line)
        process = self.free()
        came = self.do(
            process, "open what a newer version wrote", lambda: process.store.open_writer(SESSION), StorageError
        )
        self.history.require(isinstance(came, StorageError | Killed), "a log of a newer format is written to")
        self.is_over = True

    def edit(self) -> None:
        """Change bytes on disk: no process may read past the change."""
        raw = bytearray(self.at_rest())
        if not raw:
            return
        if self.rng.random() < 0.3:
            return self.lose_a_sector(bytes(raw))
        numbers = [found.start() for found in re.finditer(rb"(?<=~)[0-9]", raw)]
        places = [at for at in numbers if raw.rfind(b'{"v":1', 0, at) > raw.rfind(b"\n", 0, at)]
        if not places:
            return
        at = self.rng.choice(places)
        is_zero = self.rng.random() < 0.3
        raw[at] = 0 if is_zero else (raw[at] ^ 1)
        self.overwrite(bytes(raw))
        process = self.free()
        came = self.do(
            process, f"read what was edited at {at}", lambda: process.store.read_events(SESSION), LogCorruptError
        )
        if is_zero and isinstance(came, list):
            self.history.require(False, "zeros that no lost sector explains pass for one")
        self.history.require(isinstance(came, LogCorruptError | Killed), "an event that was edited is shown")
        self.is_over = True

    def lose_a_sector(self, raw: bytes) -> None:
        """Replace a sector that was on disk by zeros: a later line records that it was there."""
        last = re.search(rb'"dur":([0-9]+),"crc":"[0-9a-f]{8}"}\n$', raw)
        if last is None or int(last[1]) < 1 or raw[:-1].rfind(b"\n") < 512 or not raw.startswith(b'{"v":1'):
            return
        self.overwrite(b"\0" * 512 + raw[512:])
        process = self.free()
        came = self.do(process, "read what lost a sector", lambda: process.store.read_events(SESSION), LogCorruptError)
        self.history.require(isinstance(came, LogCorruptError | Killed), "what was on disk is gone, and nobody says so")
        self.is_over = True

    def delete(self, process: Process | None = None) -> None:
        holder, process = self.holder(), process or self.free()
        if self.rng.random() < 0.7 and holder is None and not process.is_older:
            return
        if holder is None and process.is_older:
            self.claim()
        came = self.do(
            process, "delete", lambda: process.store.delete_session(SESSION), StorageError, SessionLockedError
        )
        if holder is not None:
            self.history.require(isinstance(came, SessionLockedError | Killed), "a session in use was deleted")
            return
        if came is None:
            if self.durability != "flush":
                self.disk.cut_power()
                self.processes.clear()
                process = self.begin()
            self.history.require(not process.store.session_exists(SESSION), "a session that was deleted is there again")
            self.claim_of_deleted()
        self.is_over = True

    def claim(self) -> None:
        process = self.today()
        came = self.do(process, "claim a request id", lambda: process.store.claim_request(SESSION, "r"), StorageError)
        if isinstance(came, str):
            self.history.require(came == SESSION, f"the request id belongs to {came}")

    def claim_of_deleted(self) -> None:
        """Claim the request id of the deleted session for another session, which must get it."""
        if self.has_older:
            process = self.today()
            self.do(process, "create another", lambda: process.store.create_session(session_id="next"))
            came = self.do(process, "claim its request id", lambda: process.store.claim_request("next", "r"))
            self.history.require(came == "next", f"the request id of a deleted session belongs to {came}")

    def create_again(self) -> None:
        process = self.rng.choice(self.processes)
        came = self.do(
            process,
            "create again",
            lambda: process.store.create_session(session_id=SESSION),
            SessionExistsError,
            StorageError,
        )
        self.history.require(isinstance(came, Exception | Killed), "a session was created twice")
        for name in ("../out", "a/b"):
            came = self.do(
                process, f"create {name}", lambda name=name: process.store.create_session(session_id=name), OptionsError
            )
            self.history.require(isinstance(came, OptionsError), f"a session is called {name}")

    def create_and_cut(self) -> None:
        """Create a session, then cut the power: once its id was returned, it must exist afterwards."""
        if self.durability == "flush":
            return
        process = self.rng.choice(self.processes)
        came = self.do(
            process,
            "create another",
            lambda: process.store.create_session(session_id="other"),
            StorageError,
            SessionExistsError,
        )
        self.disk.cut_power()
        self.processes.clear()
        self.maybe = (self.certain + self.maybe)[self.safe :]
        self.certain = self.certain[: self.safe]
        found = self.begin().store.session_exists("other")
        self.history.require(found or not isinstance(came, str), "a session that was created is gone")

    def finish(self) -> None:
        """Check that the session opens again, accepts events and is intact, whatever happened before."""
        if self.is_over:
            return
        self.disk.failing_syncs, self.is_ending, self.has_older = 0.0, True, False
        for process in self.processes:
            process.disk.kill()
        self.processes.clear()
        self.open(self.begin())
        process = self.holder()
        if process is None:
            raise self.history.broken("the session does not open again")
        came = self.do(process, "go on", lambda: process.writer.append([UserMessage("and on")]))
        self.history.require(isinstance(came, list), "the session does not go on")
        self.certain.append("and on")
        self.close()
        if self.rng.random() < 0.92:
            return
        self.look()
        found = verify_session(process.store, SESSION).problems
        problems = [problem for problem in found if self.durability != "flush" or problem.kind != "blob"]
        self.history.require(not problems, f"verify finds {problems}")

    # --- events ------------------------------------------------------------------------------------------------------

    def next_text(self, size: int) -> str:
        self.count += 1
        return f"~{self.count:03d}" + "x" * size

    def batch(self, *, is_quiet: bool = False) -> list[Event]:
        """One or more events; with `is_quiet`, none of which is promised to be a barrier."""
        size = self.rng.choice(SIZES)
        kind = AssistantMessage if is_quiet else self.rng.choice((UserMessage, AssistantMessage, AssistantMessage))
        made: list[Event] = [kind(self.next_text(size)) for _ in range(self.rng.choice((1, 1, 3)))]
        if not is_quiet and self.rng.random() < 0.2:
            made.append(ToolStarted(self.next_text(1), "pay", "unsafe", "0" * 64, "key"))
        return made

    # Every second schedule begins with one of these in turn, so that each comes often.
    SCENARIOS = (tear, lose_pages, change_and_cut, leave_and_find, lose_pages, create_again, tear, change_and_cut)
    ACTIONS = (
        *(open, append, close, kill, cut, look, put_blob, change_metadata, write_by_hand, write_by_newer, edit, delete),
        *(claim, create_again, create_and_cut, shorten, find_and_cut),
    )
    WEIGHTS = (8, 14, 2, 2, 5, 1.5, 1, 1, 1, 0.4, 1.6, 0.4, 0.3, 0.3, 0.3, 0.4, 1)


def matters(event: Event) -> bool:
    """Whether the event is promised to be a barrier: a prompt, or the start of a call that is not read-only."""
    return isinstance(event, UserMessage | ToolStarted)


def text_of(event: Any) -> str:
    return str(event.tool_use_id if isinstance(event, ToolStarted) else getattr(event, "text", event.type))


def brief(texts: list[str]) -> str:
    return "[" + " ".join(text[:8] for text in texts) + "]"
