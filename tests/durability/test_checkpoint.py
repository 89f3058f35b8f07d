"""Resuming reads from the last compaction on, and uses a checkpoint only if this installation wrote it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import AssistantMessage, Event, SessionCompacted, SessionRewound, UserMessage
from openagentic_sdk.parts.record.archive import archive_session, restore_session
from openagentic_sdk.parts.record.verify_log import verify_session
from openagentic_sdk.sessions.folds.view import SessionView
from openagentic_sdk.sessions.log.checkpoint_file import CHECKPOINT_NAME
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.sessions.seal import Seal, read_key
from openagentic_sdk.testing.faults import FaultyOS
from tests.pythons import Python, run_python
from tests.size import full_size, sized

from .scenes import CountingDisk, SceneTest

ROOT = Path(__file__).parent.parent.parent


class CheckpointTest(SceneTest):
    def setUp(self) -> None:
        super().setUp()
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.seal = Seal(Path(home.name) / "key")
        self.store = self.make_store(seal=self.seal)
        self.disk = CountingDisk()
        self.reader = self.make_store(seal=self.seal, disk=self.disk)
        self.fill("s")
        self.checkpoint = self.path.with_name(CHECKPOINT_NAME)
        self.resume()

    def fill(self, name: str) -> None:
        talk: list[Event] = [event for n in range(400) for event in (UserMessage(f"{n}"), AssistantMessage("x" * 900))]
        self.store.append_events(name, [*talk, SessionCompacted(799, "they talked")])
        self.store.append_event(name, UserMessage("and then"))

    def resume(self, name: str = "s") -> int:
        """Open the session as a run does, and return how many bytes of its log were read."""
        with self.reader.open_writer(name) as writer:
            self.disk.read_bytes = 0
            view, kept = load_view(self.reader, name)
            read = self.disk.read_bytes
            if kept is not None:
                writer.keep_view(kept)
        messages = view.conversation.messages()
        self.assertEqual(messages[-1], {"role": "user", "content": "and then"})
        self.assertEqual(len(messages), 3)
        return read

    def test_a_resume_reads_what_came_since_the_last_compaction(self) -> None:
        self.assertLess(self.resume(), 2_000)
        self.assertGreater(self.path.stat().st_size, 400_000)

    def test_a_checkpoint_that_is_deleted_comes_back(self) -> None:
        self.checkpoint.unlink()
        self.assertGreater(self.resume(), 400_000)
        self.assertLess(self.resume(), 2_000)

    @full_size
    def test_a_checkpoint_that_somebody_changed_is_not_used(self) -> None:
        good = self.checkpoint.read_bytes()
        digest, body = good.split(b"\n")[:2]
        known = json.loads(body)
        for bad in (
            good.replace(b"they talked", b"they waited"),
            good[:-9],
            b"",
            b"\xff\n{}",
            b"0" * 64 + b"\n" + body + b"\n",
            digest + b"\n" + json.dumps({**known, "seq": 3}).encode() + b"\n",
        ):
            self.checkpoint.write_bytes(bad)
            self.assertGreater(self.resume(), 400_000)
            self.checkpoint.write_bytes(good)
        self.assertLess(self.resume(), 2_000)

    def test_a_checkpoint_of_another_session_or_installation_is_not_used(self) -> None:
        self.store.create_session(session_id="t")
        self.fill("t")
        shutil.copy(self.checkpoint, self.store.session_dir("t"))
        self.assertGreater(self.resume("t"), 400_000)
        with tempfile.TemporaryDirectory() as other:
            self.reader = self.make_store(seal=Seal(Path(other) / "key"), disk=self.disk)
            self.assertGreater(self.resume(), 400_000)

    def test_a_checkpoint_of_an_end_that_the_log_lost_is_not_used(self) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        self.path.write_bytes(b"".join(lines[:799]))
        self.store.append_events("s", [SessionCompacted(798, "another summary" * 9), UserMessage("and then")])
        with self.reader.open_writer("s"):
            view, _ = load_view(self.reader, "s")
        self.assertIn("another summary", view.conversation.messages()[0]["content"])

    def test_a_rewind_to_before_the_compaction_folds_the_whole_log(self) -> None:
        self.store.append_event("s", SessionRewound(4))
        with self.reader.open_writer("s"):
            view, kept = load_view(self.reader, "s")
        self.assertEqual((len(view.conversation.messages()), kept), (4, None))

    def test_an_archive_contains_no_checkpoint(self) -> None:
        archive = self.place / "a.zip"
        archive_session(self.store, "s", archive)
        self.store.delete_session("s")
        restore_session(self.store, archive)
        self.assertFalse(self.checkpoint.exists())
        self.assertGreater(self.resume(), 400_000)

    def test_damage_before_the_checkpoint_is_for_verify_to_find(self) -> None:
        content = self.path.read_bytes()
        self.path.write_bytes(content.replace(b'"text":"7"', b'"text":"8"'))
        self.assertLess(self.resume(), 2_000)
        self.assertFalse(verify_session(self.store, "s").ok)

    def test_without_a_usable_key_everything_works_and_nothing_is_kept(self) -> None:
        self.checkpoint.unlink()
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "key").write_text("x" * 64)
            os.chmod(Path(place) / "key", 0o644)
            self.reader = self.make_store(seal=Seal(Path(place) / "key"), disk=self.disk)
            self.assertGreater(self.resume(), 400_000)
        self.assertFalse(self.checkpoint.exists())


class KeyTest(SceneTest):
    def test_the_key_is_made_once_and_is_its_owners_alone(self) -> None:
        path = self.place / "home" / "key"
        source = "import sys; from openagentic_sdk.sessions.seal import Seal; print(Seal(sys.argv[1]).digest(b'a'))"
        makers = [Python("-c", source, str(path), cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        digests = {maker.communicate(timeout=300)[0] for maker in makers}
        self.assertEqual(digests, {Seal(path).digest(b"a") + "\n"})
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(os.listdir(path.parent), ["key"])

    def test_parts_have_different_digests_and_digests_need_the_key(self) -> None:
        seal = Seal(self.place / "key")
        digest = seal.digest(b"ab", b"c")
        self.assertTrue(seal.matches(digest, b"ab", b"c"))
        self.assertFalse(seal.matches(digest, b"a", b"bc"))
        self.assertFalse(seal.matches("ä", b"ab", b"c"))
        self.assertFalse(Seal(self.place / "other").matches(digest, b"ab", b"c"))
        self.assertFalse((self.place / "other").exists(), "a check must not create a key")

    def test_a_key_that_others_can_read_or_that_is_too_short_or_a_link_is_refused_with_its_name(self) -> None:
        good, short, open_key = (self.place / name for name in ("good", "short", "open"))
        Seal(good).digest(b"a")
        for path, text in ((short, "x"), (open_key, "x" * 64)):
            path.write_text(text)
            os.chmod(path, 0o600)
        os.chmod(open_key, 0o640)
        (self.place / "link").symlink_to(good)
        for path in (short, open_key, self.place / "link", self.place):
            with self.assertRaises(OptionsError) as caught:
                read_key(path)
            self.assertIn(str(path), str(caught.exception))

    def test_the_key_is_the_named_file_else_in_the_home_folder(self) -> None:
        source = "from openagentic_sdk.sessions.seal import key_path; print(key_path())"
        for named, expected in (("", "/h/installation.key"), ("/etc/fleet.key", "/etc/fleet.key")):
            environment = {**os.environ, "OPENAGENTIC_SDK_HOME": "/h", "OPENAGENTIC_SDK_KEY": named}
            done = run_python("-c", source, cwd=ROOT, env=environment, text=True)
            self.assertEqual(done.stdout, expected + "\n", done.stderr)


class KillTest(SceneTest):
    def test_a_process_killed_at_any_operation_of_a_compaction_leaves_a_session_that_resumes_as_before(self) -> None:
        seal = Seal(self.place / "key")
        seal.digest(b"made before, so that each life asks the disk for the same")
        talk: list[Event] = [event for n in range(30) for event in (UserMessage(f"{n}"), AssistantMessage("x" * 50))]
        for at in range(1, 60, sized(5, 2, 1)):
            name = self.store.create_session(session_id=f"s{at}")
            child = os.fork()
            if child == 0:
                try:
                    self.live(FaultyOS(at=at, fault="kill middle"), seal, name, talk)
                finally:
                    os._exit(0)
            status = os.waitpid(child, 0)[1]
            store = self.make_store(seal=seal)
            with store.open_writer(name) as writer:
                view, _ = load_view(store, name)
                whole = SessionView().extend(store.iter_events(name))
                self.assertEqual(view.conversation.messages(), whole.conversation.messages(), at)
                writer.append([UserMessage("and on")])
            self.assertEqual(verify_session(store, name).problems, (), at)
            if status == 0:
                return
        self.fail("the compaction never came to its end")

    def live(self, disk: FaultyOS, seal: Seal, name: str, talk: list[Event]) -> None:
        store = self.make_store(seal=seal, disk=disk)
        with store.open_writer(name) as writer:
            view = SessionView()
            for up_to in (20, 50):
                compacted = SessionCompacted(up_to, f"summary {up_to}")
                view.extend(writer.append([*talk, compacted]))
                kept = view.kept()
                writer.keep_view(kept)
                view.forget(kept)
