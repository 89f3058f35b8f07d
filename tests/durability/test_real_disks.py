"""Power cuts on real file systems: a loop-mounted image is copied during writes, and the copy is mounted elsewhere.

Runs in the large size, as root with permission to mount: ext4, and XFS if `mkfs.xfs` and the kernel support it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openagentic_sdk.events import UserMessage
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.store import FileSessionStore
from tests.pythons import ROOT
from tests.size import LARGE
from tests.waiting import pause

CUTS = 12
# The minimum image size of each file system, in MiB.
SYSTEMS = {"ext4": 48, "xfs": 320}
# Appends prompts, which are on disk once acknowledged, between events that need not be.
WRITER = """
import sys
from openagentic_sdk.events import AssistantMessage, UserMessage
from openagentic_sdk.sessions.store import FileSessionStore

store = FileSessionStore(sys.argv[1], sys.argv[2])
store.create_session(session_id="s")
number = 0
with store.open_writer("s") as writer:
    while True:
        if number % 40 == 39:
            store.create_session(session_id=f"other{number}")
            print(f"other{number}", flush=True)
        if number % 3:
            writer.append([AssistantMessage("x" * (number * 37 % 9000))])
        else:
            print(writer.append([UserMessage(str(number))])[0].seq, flush=True)
        number += 1
"""


def mkfs(kind: str) -> str | None:
    """The program that creates such a file system, if installed."""
    return shutil.which(f"mkfs.{kind}", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    # A copied XFS has the UUID of its source, which is mounted too.
    how = "loop,nouuid" if image.name.startswith("xfs") else "loop"
    done = subprocess.run(["mount", "-o", how, image, place], capture_output=True, text=True)
    if done.returncode:
        raise unittest.SkipTest(f"{image.name} cannot be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@unittest.skipUnless(
    LARGE and sys.platform == "linux" and os.getuid() == 0, "the large size mounts file systems, as root"
)
class RealDisks(unittest.TestCase):
    def test_acknowledged_events_survive_a_power_cut_and_the_session_continues(self) -> None:
        for kind in SYSTEMS:
            for durability in ("barrier", "fsync"):
                with self.subTest(kind, durability=durability), tempfile.TemporaryDirectory() as place:
                    self.cut(Path(place), kind, durability)

    def cut(self, place: Path, kind: str, durability: str) -> None:
        program, image = mkfs(kind), place / f"{kind}.image"
        if program is None:
            self.skipTest(f"mkfs.{kind} is not installed")
        with image.open("wb") as file:
            file.truncate(SYSTEMS[kind] << 20)
        subprocess.run([program, "-q", image], check=True, capture_output=True)
        rng = random.Random(kind)
        with mounted(image, place / "disk") as disk:
            words = [sys.executable, "-c", WRITER, str(disk / "store"), durability]
            with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as writer:
                try:
                    assert writer.stdout is not None
                    os.set_blocking(writer.stdout.fileno(), False)
                    acknowledged, made, rest = 0, [], b""
                    for cut in range(CUTS):
                        pause(rng.uniform(0.05, 0.4), "the subject is the moment of the power cut")
                        writer.send_signal(signal.SIGSTOP)
                        *lines, rest = (rest + (writer.stdout.read() or b"")).split(b"\n")
                        for line in lines:
                            if line.isdigit():
                                acknowledged = int(line)
                            else:
                                made.append(line.decode())
                        # A new file each time: a loop device still attached to an earlier one could serve its old contents.
                        copy = place / f"{kind}.copy{cut}"
                        shutil.copyfile(image, copy)  # what reached the disk, without data still in the page cache
                        writer.send_signal(signal.SIGCONT)
                        with mounted(copy, place / "after") as after:
                            self.check(FileSessionStore(after / "store", "barrier"), acknowledged, made)
                        copy.unlink()
                    self.assertGreater(acknowledged, CUTS)
                finally:
                    writer.kill()

    def check(self, store: FileSessionStore, acknowledged: int, made: list[str]) -> None:
        if not acknowledged:
            return
        events = store.read_events("s")
        self.assertGreaterEqual(len(events), acknowledged)
        self.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
        for name in made:
            self.assertTrue(store.session_exists(name), name)
        store.append_event("s", UserMessage("and on"))
        self.assertEqual(verify_session(store, "s").problems, ())
        self.assertEqual(getattr(store.read_events("s")[-1], "text", ""), "and on")


if __name__ == "__main__":
    unittest.main()
