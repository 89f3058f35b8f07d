"""A disk that does not answer is not an empty one: a session that cannot be found is not missing, nor is a request id."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openagentic_sdk.errors import SessionNotFoundError, StorageError
from openagentic_sdk.ground.disk import remove_tree
from openagentic_sdk.sessions.store import FileSessionStore


@contextmanager
def no_more_files(left: int = 0) -> Iterator[None]:
    """Opening more files than are `left` fails with EMFILE, as in a server with too many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(left + 1)]
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1] if left else 0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class UnreadableStoreTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.store = FileSessionStore(self.folder / "store")
        for name in ("a", "b"):
            self.store.create_session(session_id=name)

    def test_a_request_id_that_cannot_be_read_is_not_given_to_another_session(self) -> None:
        self.assertEqual(self.store.claim_request("a", "order-17"), "a")
        with no_more_files(), self.assertRaisesRegex(StorageError, "cannot look up a request id: Too many open files"):
            self.store.claim_request("b", "order-17")
        self.assertEqual(self.store.claim_request("b", "order-17"), "a")

    @unittest.skipUnless(hasattr(os, "mkfifo"), "this system has no named pipes")
    def test_a_pipe_in_place_of_the_metadata_is_not_waited_for(self) -> None:
        meta = self.store.session_dir("a") / "meta.json"
        meta.unlink()
        os.mkfifo(meta)
        # Bounds failure: a reader that waits receives this.
        late = threading.Timer(30, meta.write_bytes, (b"{}",))
        late.start()
        self.addCleanup(late.cancel)
        self.assertEqual(self.store.read_metadata("a")["metadata"], {})
        self.assertEqual(sorted(row.id for row in self.store.list_session_summaries()), ["a", "b"])
        self.assertTrue(late.is_alive())

    @unittest.skipUnless(hasattr(os, "seteuid"), "this system has no users to test with")
    def test_a_session_that_cannot_be_created_leaves_nothing_behind(self) -> None:
        outcomes = set()
        for left in range(1, 7):
            name = f"new-{left}"
            with no_more_files(left):
                try:
                    outcomes.add(self.store.create_session(session_id=name) == name)
                except StorageError:
                    outcomes.add(False)
            self.assertEqual([path.name for path in (self.folder / "store/sessions").glob(".*")], [], left)
        self.assertEqual(outcomes, {True, False})
        tree = self.folder / "tree"
        (tree / "inner/most").mkdir(parents=True)
        (tree / "inner/file").touch()
        (tree / "link").symlink_to(self.folder)
        with no_more_files(1):
            remove_tree(tree)
        self.assertEqual((tree.exists(), self.folder.exists()), (False, True))

    def test_a_session_that_cannot_be_found_is_not_missing(self) -> None:
        self.folder.chmod(0o755)
        self.store.claim_request("a", "order-17")
        user, sessions = os.geteuid(), self.folder / "store" / "sessions"
        sessions.chmod(0)
        os.seteuid(65534 if user == 0 else user)
        try:
            for act in (self.store.session_exists, self.store.session_dir, self.store.read_events):
                with self.assertRaisesRegex(StorageError, "'a' cannot be looked up: Permission denied") as caught:
                    act("a")
                self.assertEqual(caught.exception.session_id, "a")
            with self.assertRaises(StorageError):
                self.store.claim_request("b", "order-17")
        finally:
            os.seteuid(user)
            sessions.chmod(0o700)
        self.assertEqual(self.store.claim_request("b", "order-17"), "a")
        with self.assertRaises(SessionNotFoundError):
            self.store.read_events("c")
        self.assertFalse(self.store.session_exists("c" * 128))


if __name__ == "__main__":
    unittest.main()
