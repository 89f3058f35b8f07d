"""Logs written by landed versions are read, checked and continued by this one."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, run
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.testing import ScriptedProvider
from tests.size import full_size

from .record_versions import VERSIONS

FOLDERS = sorted(VERSIONS.iterdir())


class VersionLogs(unittest.TestCase):
    maxDiff = None

    def stored(self, folder: Path) -> tuple[FileSessionStore, Path]:
        """A store with a version's log as session `s`, and the path of its file."""
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        log = root / "sessions" / "s" / "events.jsonl"
        log.parent.mkdir(parents=True)
        shutil.copy(folder / "events.jsonl", log)
        meta = {"session_id": "s", "created_at": 0.0, "metadata": {}}
        (log.parent / "meta.json").write_text(json.dumps(meta), encoding="ascii")
        return FileSessionStore(root), log

    def test_a_log_folds_into_the_messages_that_its_version_made_of_it(self) -> None:
        for folder in FOLDERS:
            with self.subTest(folder.name):
                store, _ = self.stored(folder)
                recorded = json.loads((folder / "messages.json").read_bytes())
                self.assertEqual(rebuild_messages(store.read_events("s")), recorded)

    @full_size
    def test_a_log_is_whole_and_continues_without_a_change_of_what_it_holds(self) -> None:
        for folder in FOLDERS:
            with self.subTest(folder.name):
                store, log = self.stored(folder)
                before = log.read_bytes()
                self.assertEqual(verify_session(store, "s").problems, ())
                model = ScriptedProvider([{"text": "It is.", "expect": {"contains": "It is 0.2.0"}}])
                options = OpenAgenticOptions(provider=model, model="scripted", session_store=store, resume="s")
                result = asyncio.run(run(prompt="Is it still so?", options=options))
                self.assertEqual((result.stop_reason, result.final_text), ("end", "It is."))
                self.assertTrue(log.read_bytes().startswith(before))

    def test_the_versions_of_many_landings_are_here(self) -> None:
        self.assertGreaterEqual(len(FOLDERS), 13)


if __name__ == "__main__":
    unittest.main()
