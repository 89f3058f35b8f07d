"""Files written beside the store: private, and never outside it, whatever the id looks like."""

from __future__ import annotations

import io
import os
import tempfile
import unittest
from contextlib import chdir, redirect_stdout
from pathlib import Path

from openagentic_sdk.cli.main import main
from openagentic_sdk.events import UserMessage
from openagentic_sdk.parts.record.archive import archive_session
from openagentic_sdk.sessions.sqlite import SqliteSessionStore


class WrittenFiles(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.work = self.folder / "work"
        self.work.mkdir()
        self.url = f"sqlite:///{self.folder}/store.db"
        self.store = SqliteSessionStore(self.folder / "store.db")
        self.addCleanup(self.store.close)
        self.addCleanup(os.umask, os.umask(0))

    def test_archives_pages_and_exports_are_for_their_owner_alone(self) -> None:
        session_id = self.store.create_session(session_id="plain")
        self.store.append_event(session_id, UserMessage("hi"))
        archive_session(self.store, session_id, self.work / "a.zip")
        (self.work / "old.md").write_text("open to all", encoding="utf-8")
        with chdir(self.work), redirect_stdout(io.StringIO()):
            self.assertEqual(main(["view", "plain", "--store", self.url]), 0)
            for form, name in (("markdown", "old.md"), ("json", "new.json")):
                self.assertEqual(main(["export", "plain", "--format", form, "-o", name, "--store", self.url]), 0)
        modes = {path.name: path.stat().st_mode & 0o777 for path in self.work.iterdir()}
        self.assertEqual(modes, dict.fromkeys(("a.zip", "plain.html", "old.md", "new.json"), 0o600))

    def test_an_id_that_looks_like_a_path_names_no_file_elsewhere(self) -> None:
        ids = ("../outside", "/tmp/outside-of-the-folder", "..", ".bashrc", "a/../../b", "x\\..\\y")
        for session_id in ids:
            self.store.append_event(self.store.create_session(session_id=session_id), UserMessage("hi"))
        with chdir(self.work), redirect_stdout(io.StringIO()):
            for session_id in ids:
                with self.subTest(session_id=session_id):
                    self.assertEqual(main(["view", session_id, "--store", self.url]), 0)
        elsewhere = {path.name for path in self.folder.iterdir() if not path.name.startswith("store.db")}
        self.assertEqual(elsewhere, {"work"})
        self.assertFalse(Path("/tmp/outside-of-the-folder.html").exists())
        names = [path.name for path in self.work.iterdir()]
        self.assertEqual(len(names), len(ids))
        self.assertTrue(all(name.endswith(".html") and not name.startswith(".") for name in names), names)


if __name__ == "__main__":
    unittest.main()
