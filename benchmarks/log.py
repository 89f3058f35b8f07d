"""The cost of a durable log: appends compared with a bare write, syncs with the disk's own, reads with json.loads.

The proof also has a large size: `OPENAGENTIC_TEST_LARGE=1 python3 -m unittest discover -s tests/durability -t .` kills
10,000 writers, cuts the power 18,000 times, cuts a tool session's log at every byte, flips each of its bits, and runs the
room's tests against each deliberate defect of the package; that takes about half an hour.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from zlib import crc32

from openagentic_sdk.events import AssistantMessage
from openagentic_sdk.ground.disk import SystemDisk
from openagentic_sdk.serialization import event_to_dict
from openagentic_sdk.sessions.log.scan import LogReader
from openagentic_sdk.sessions.store import LOG_NAME, FileSessionStore

from . import Row

EVENTS = 100_000
SYNCS = 60
_TEXT = "The quick brown fox jumps over the lazy dog. " * 26
_BATCH = 100


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=os.environ.get("OPENAGENTIC_BENCH_DIR")) as place:
        root = Path(place)
        return [*_flush_rows(root), *_open_rows(root), *_sync_rows(root), *_read_rows(root)]


def _event(number: int) -> AssistantMessage:
    return AssistantMessage(f"{number} {_TEXT}")


def _flush_rows(root: Path) -> list[Row]:
    store = FileSessionStore(root, "flush")
    store.create_session(session_id="long")
    store.create_session(session_id="short")
    with store.open_writer("long") as writer:
        for start in range(0, EVENTS, _BATCH):
            writer.append([_event(start + index) for index in range(_BATCH)])
    event = _event(0)
    data = event_to_dict(event)
    with store.open_writer("short") as short, store.open_writer("long") as long, _raw_file(root) as raw:
        for _ in range(100):
            short.append([event])
        at_100, at_100_000, floor = _medians_us(
            [
                lambda: short.append([event]),
                lambda: long.append([event]),
                lambda: os.write(raw.fd, json.dumps(data).encode() + b"\n"),
            ],
            rounds=4000,
        )
    floor_name = "json.dumps + os.write"
    return [
        Row(f"{floor_name} of a 1.3 KB event, p50", floor, "us"),
        Row("append 1.3 KB, flush, p50", at_100, "us", at_100 / floor, floor_name, "ratio <= 3"),
        Row("... at 100,000 events", at_100_000, "us", at_100_000 / at_100, "the same at 100", "ratio <= 1.2"),
    ]


def _open_rows(root: Path) -> list[Row]:
    """Appends outside a run, each of which opens the log and releases it again."""
    store = FileSessionStore(root, "flush")
    event = _event(0)
    works = []
    for name, events in (("opened", 100), ("long", 0)):
        if events:
            store.create_session(session_id=name)
            store.append_events(name, [event] * events)
        store.append_event(name, event)
        works.append(lambda name=name: store.append_event(name, event))
    at_100, at_100_000 = _medians_us(works, rounds=400)
    return [
        Row("append_event outside of a run, at 100 events, p50", at_100, "us"),
        Row("... at 100,000 events", at_100_000, "us", at_100_000 / at_100, "the same at 100", "ratio <= 1.3"),
    ]


def _sync_rows(root: Path) -> list[Row]:
    """Appends with a sync each.

    What an append adds to the sync does not depend on the disk: JSON, checksum, a look at the file, and the summary beside
    it take about 50 us of processor time. So the bar is met where a sync takes a third of a millisecond or more, and
    missed on a virtual disk that answers sooner.
    """
    store = FileSessionStore(root, "fsync")
    store.create_session(session_id="synced")
    event = _event(0)
    line = json.dumps(event_to_dict(event)).encode() + b"\n"
    with store.open_writer("synced") as writer, _raw_file(root) as raw:

        def write_and_sync() -> None:
            os.write(raw.fd, line)
            os.fdatasync(raw.fd)

        ours, floor = _medians_us([lambda: writer.append([event]), write_and_sync], rounds=SYNCS * 4)
    return [
        Row("os.write + os.fdatasync, p50", floor, "us"),
        Row("append 1.3 KB, fsync, p50", ours, "us", ours / floor, "write + fdatasync", "ratio <= 1.15"),
    ]


def _read_rows(root: Path) -> list[Row]:
    store = FileSessionStore(root, "flush")
    path = store.session_dir("long") / LOG_NAME
    lines = path.read_bytes().splitlines()
    size_mb = path.stat().st_size / 1e6
    checked, crc_floor = _bests_s([lambda: _check_lines(path), lambda: _read_and_crc(path)])
    read, json_floor = _bests_s(
        [lambda: sum(1 for _ in store.iter_events("long")), lambda: sum(1 for line in lines if json.loads(line))]
    )
    opened, short = _bests_s([partial(_open_and_read_last, store, name) for name in ("long", "short")])
    name = f"{len(lines):,} events, {size_mb:.0f} MB"
    return [
        Row(f"verify {name}", checked, "s", checked / crc_floor, "read + CRC of the file", "ratio <= 3"),
        Row(f"read all of {name}", read, "s", read / json_floor, "json.loads of its lines", "ratio <= 2"),
        Row(
            f"open for append and read the last of {name}",
            opened * 1e3,
            "ms",
            opened / short,
            "of a few MB",
            "ratio <= 2",
        ),
    ]


def _check_lines(path: Path) -> None:
    """The first step of each reader and each check of a log: numbers and checksums of all its lines."""
    with path.open("rb", buffering=0) as file:
        for _ in LogReader(SystemDisk(), file.fileno(), "long").blocks():
            pass


def _read_and_crc(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 18):
            crc = crc32(chunk, crc)
    return crc


def _open_and_read_last(store: FileSessionStore, session_id: str) -> None:
    with store.open_writer(session_id) as writer:
        (last,) = store.iter_events(session_id, after_seq=writer.last_seq - 1)
        assert last.seq == writer.last_seq


class _raw_file:
    """A bare file to append to, for the floors."""

    def __init__(self, root: Path) -> None:
        self.fd = os.open(root / "raw", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __enter__(self) -> _raw_file:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _medians_us(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The median time of each, taken in turns so that a busy moment affects all of them."""
    times: list[list[int]] = [[] for _ in works]
    for _ in range(rounds):
        for work, taken in zip(works, times, strict=True):
            began = time.perf_counter_ns()
            work()
            taken.append(time.perf_counter_ns() - began)
    return [statistics.median(taken) / 1e3 for taken in times]


def _bests_s(works: Sequence[Callable[[], object]]) -> list[float]:
    best = [float("inf")] * len(works)
    for _ in range(5):
        for index, work in enumerate(works):
            began = time.perf_counter()
            work()
            best[index] = min(best[index], time.perf_counter() - began)
    return best
