"""Use a store while one system call after another fails, and print every error that is not one of ours.

    python system_errors.py URL FOLDER ERRNO FIRST EVERY

Each use of a path below FOLDER and each call on a descriptor counts as a place. The store is used again with each `EVERY`th
place failing, from number FIRST on.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from openagentic_sdk.errors import OpenAgentSdkError
from openagentic_sdk.events import AssistantMessage, SessionMeta, UserMessage
from openagentic_sdk.parts.record.erase import erase
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.sessions.base import stamp_events
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.locate import open_store

URL, FOLDER, NUMBER, FIRST, EVERY = sys.argv[1], sys.argv[2], getattr(errno, sys.argv[3]), *map(int, sys.argv[4:6])
PATH_EVENTS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.listdir",
    "os.scandir",
    "os.truncate",
    "os.link",
}
PATH_CALLS, FD_CALLS = (
    ("stat", "lstat"),
    ("write", "fsync", "fdatasync", "fstat", "lseek", "pread", "read", "ftruncate"),
)


class Failing:
    """Count the system calls, and make one of them fail."""

    def __init__(self) -> None:
        self.is_on = False
        self.count = 0
        self.at = -1
        self.places: list[str] = []

    def call(self, place: str) -> None:
        if self.is_on:
            self.count += 1
            self.places.append(place)
            if self.count - 1 == self.at:
                raise OSError(NUMBER, os.strerror(NUMBER))

    def hear(self, event: str, arguments: Any) -> None:
        is_ours = event in PATH_EVENTS and str(arguments[0]).startswith(FOLDER)
        if is_ours or event in ("fcntl.flock", "fcntl.lockf"):
            self.call(event)

    def wrap(self, name: str, *, takes_path: bool) -> None:
        real = getattr(os, name)

        def call(first: Any, *how: Any, **named: Any) -> Any:
            if not takes_path or str(first).startswith(FOLDER):
                self.call(f"os.{name}")
            return real(first, *how, **named)

        setattr(os, name, call)


def use(store: Any, attempt: Callable[[Callable[[], object]], None]) -> None:
    def write() -> None:
        with store.open_writer("a") as writer:
            writer.append([UserMessage("one"), AssistantMessage("two"), SessionMeta(title="t")])

    events = stamp_events([UserMessage("imported")], first_seq=1, now=1.0)
    steps: tuple[Callable[[], object], ...] = (
        lambda: store.create_session(session_id="a", metadata={"cwd": "/x"}),
        lambda: store.append_event("a", UserMessage("hello words")),
        write,
        lambda: store.read_blob("a", store.put_blob("a", b"x" * 1000)),
        lambda: store.update_metadata("a", {"k": 1}),
        lambda: store.read_metadata("a"),
        lambda: store.list_session_summaries(query="hello"),
        lambda: store.list_sessions(),
        lambda: store.search("words"),
        lambda: store.ids_beginning("a"),
        lambda: fork_session(store, "a"),
        lambda: store.import_session("i", events, blobs=[b"q"]),
        lambda: store.claim_request("a", "request"),
        lambda: store.put_message("a", {}),
        lambda: store.read_messages(["a"]),
        lambda: store.keep_checkpoint("a", b"z"),
        lambda: store.read_checkpoint("a"),
        lambda: (store.is_held("a"), store.list_blobs("a"), store.read_events("a"), store.list_outputs("a")),
        lambda: store.wait_for_events("a", after_seq=0, timeout_s=0.01),
        lambda: erase(store, "a", texts=["hello words"]),
        lambda: store.delete_session("a"),
        lambda: store.close(),
    )
    for step in steps:
        attempt(step)


def main() -> None:
    failing = Failing()
    sys.addaudithook(failing.hear)
    for name in PATH_CALLS:
        failing.wrap(name, takes_path=True)
    for name in FD_CALLS:
        failing.wrap(name, takes_path=False)
    FileSessionStore.index_from = 1  # build the index at once, as in a folder of many sessions
    at, total = -1, 1
    while at < total:
        failing.is_on = False
        shutil.rmtree(FOLDER, ignore_errors=True)
        os.makedirs(FOLDER)
        failing.at, failing.count, failing.places, failing.is_on = at, 0, [], True
        wrong: list[BaseException] = []

        def attempt(step: Callable[[], object], wrong: list[BaseException] = wrong) -> None:
            try:
                step()
            except OpenAgentSdkError as error:
                if "\n" in str(error):
                    wrong.append(error)
            except Exception as error:  # noqa: BLE001 - any other error is a finding
                wrong.append(error)

        use(open_store(URL), attempt)
        failing.is_on = False
        for each in wrong:
            print(f"place {at} of {total} ({failing.places[at]}): {type(each).__name__}: {each}", flush=True)
        total = failing.count if at < 0 else total
        at = FIRST if at < 0 else at + EVERY
    print(f"done {total}")


if __name__ == "__main__":
    main()
