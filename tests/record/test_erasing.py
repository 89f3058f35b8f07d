"""Erased values are gone from every file of a store and cannot be guessed, and the proof of the rest remains valid."""

from __future__ import annotations

import base64
import json
import os
import random
import unittest
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from openagentic_sdk.errors import OptionsError, SessionHeldError, SessionLockedError
from openagentic_sdk.events import (
    Event,
    ModelRequest,
    RecordErased,
    RecordErasing,
    RecordKept,
    RecordSigned,
    SubagentStarted,
    SystemInit,
    ToolResult,
    ToolUse,
    UserMessage,
)
from openagentic_sdk.options import AgentDefinition, OpenAgenticOptions
from openagentic_sdk.parts.record.archive import archive_session
from openagentic_sdk.parts.record.bundle import read_bundle
from openagentic_sdk.parts.record.commit import ERASED, leaves
from openagentic_sdk.parts.record.erase import (
    Erasure,
    erase,
    finish_each,
    finish_erasures,
    has_unfinished_erasure,
    unfinished_erasures,
)
from openagentic_sdk.parts.record.lifecycle import copy_missing, export_session, fork_session
from openagentic_sdk.parts.record.places import Needles, erase_places, find_places, value_at
from openagentic_sdk.parts.record.sign import sign_session
from openagentic_sdk.parts.record.verify import verify_record
from openagentic_sdk.parts.record.verify_log import foreign_authority, salvage, verify_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.runs.background import submit
from openagentic_sdk.serialization import dumps_event, event_to_dict
from openagentic_sdk.sessions.authority import Authority, with_mac
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.rewriting import Rewrite
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing.faults import FaultyOS
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.testing.validity import find_fault
from tests.size import LARGE, full_size, sized
from tests.stores.servers import own_postgres_schema, own_redis_prefix

from .support import RecordCase, turn

SECRET = 'IBAN DE89 "3704" 0044\u00fc'


def stored_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder; archives are unpacked."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        found[str(path)] = str(path.name).encode() + (path.read_bytes() if path.is_file() else b"")
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as file:
                found.update({f"{path}/{name}": file.read(name) for name in file.namelist()})
    return found


def forms(secret: str) -> list[bytes]:
    """The forms in which a value may occur in a file."""
    whole = secret.encode()
    texts = [secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret)[1:-1])[1:-1], sha256(whole).hexdigest()]
    made = [base64.b64encode(b"x" * before + whole)[4:-4].decode() for before in range(3)]
    return [text.encode("utf-8") for text in (*texts, *made, whole.hex())]


class StoppedAt:
    """Raises KeyboardInterrupt before the `at`-th change of a store, during the block."""

    def __init__(self, store: SessionStore, at: int) -> None:
        self._store = store
        self._left = at
        self.is_stopped = False

    def __enter__(self) -> StoppedAt:
        for name in self.CHANGES:
            setattr(self._store, name, partial(self._change, getattr(self._store, name)))
        return self

    def __exit__(self, *error: object) -> None:
        for name in self.CHANGES:
            delattr(self._store, name)

    CHANGES = ("append_event", "append_events", "rewrite_events", "scrub", "delete_blobs", "update_metadata")

    def _change(self, change: Callable[..., object], *args: object, **how: object) -> object:
        self._left -= 1
        if self._left == 0:
            self.is_stopped = True
            raise KeyboardInterrupt
        return change(*args, **how)


class Erasing(RecordCase):
    def stores(self) -> list[SessionStore]:
        made: list[SessionStore] = [
            FileSessionStore(self.folder / "files"),
            SqliteSessionStore(self.folder / "sessions.db"),
            MemorySessionStore(),
        ]
        # The servers' own files cannot be inspected; their answers can.
        if url := os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL"):
            made.append(open_store(own_postgres_schema(self, url)))
        if url := os.environ.get("OPENAGENTIC_TEST_REDIS_URL"):
            made.append(open_store(own_redis_prefix(self, url)))
        for store in made:
            self.addCleanup(store.close)
        return made

    def erased(self, store: SessionStore, **how: object) -> Erasure:
        return erase(store, "s", seal=self.seal, **how)  # type: ignore[arg-type]

    def test_a_value_is_erased_with_what_is_inside_it_beside_any_number_of_other_places(self) -> None:
        store = MemorySessionStore()
        self.addCleanup(store.close)
        store.create_session(session_id="s")
        output = {"a": {SECRET: 1, "x": SECRET}, **{f"a-{number:02}": SECRET for number in range(60)}}
        store.append_events("s", [UserMessage("x"), ToolUse("c", "Get", {}), ToolResult("c", output)])
        self.erased(store, texts=[SECRET])
        self.assertNotIn(SECRET, "".join(map(dumps_event, store.read_events("s"))))

    def family(self, store: SessionStore, secret: str) -> None:
        """A session with a fork, a child and a grandchild that contain the value in every conceivable place."""
        self.filled(store, turns=(1, 2), secret=secret)
        blob = store.put_blob("s", f"big output with {secret} in it".encode())
        encoded = base64.b64encode(f"a{secret}".encode()).decode()
        events: list[Event] = [
            ModelRequest(1, 1, "ab" * 32, 3),
            ToolUse("big", "Read", {"file_path": "/x", "deep": {"er": [secret]}}),
            ToolResult(
                "big", {"kept": blob, "encoded": encoded, secret: "a name tells it"}, meta={"sha256": "cd" * 32}
            ),
            SubagentStarted("big", "helper", "child", f"look for {secret}"),
            UserMessage("see", attachments=[{"type": "image", "media_type": "image/png", "size": 3, "sha256": blob}]),
        ]
        self.goes_on(store, "s", events)
        child = {"parent_session_id": "s", "parent_tool_use_id": "big", "agent_name": "helper"}
        store.create_session(session_id="child", metadata=child)
        self.goes_on(store, "child", [SystemInit("child", "/", "0", model="m"), UserMessage(f"look for {secret}")])
        store.update_metadata("s", {"note": f"about {secret}"})
        sign_session(store, "s", [self.key])
        self.goes_on(store, "s", turn(3, secret))
        fork_session(store, "s", session_id="fork", seal=self.seal)
        sign_session(store, "fork", [self.key])
        store.create_session(session_id="bystander")
        store.append_event("bystander", UserMessage("nothing to do with it"))
        store.search("IBAN")

    @full_size
    def test_an_erased_field_leaves_no_trace_in_any_file_of_a_store_and_the_proof_holds(self) -> None:
        for store in self.stores():
            with self.subTest(type(store).__name__):
                self.family(store, SECRET)
                before = {name: store.last_seq(name) for name in store.list_sessions()}
                self.erased(store, fields=[(8, "/output/stdout")], texts=[SECRET])
                for path, data in stored_bytes(self.folder).items():
                    for form in forms(SECRET):
                        self.assertNotIn(form, data, path)
                for name in before:
                    self.assertFalse(any(SECRET in repr(event) for event in store.iter_events(name)))
                    self.assertEqual(store.search("IBAN"), [])
                self.assertEqual(store.list_blobs("s"), [])
                for name in ("s", "fork"):
                    report = self.report(store, name)
                    self.assertEqual(report.problems, ())
                    self.assertTrue(all(each.is_vouched for each in report.ranges))
                    self.assertTrue(report.erased)
                    self.assertEqual(foreign_authority(name, store.iter_events(name), self.seal), [])
                self.assertIsNone(find_fault(rebuild_messages(store.read_events("s"))))
                self.assertEqual(store.last_seq("bystander"), before["bystander"])
                store.read_summary("s")
            if not isinstance(store, MemorySessionStore):
                store.close()

    def test_files_that_crashes_and_damage_left_are_cleaned(self) -> None:
        store = FileSessionStore(self.folder / "files")
        self.filled(store, secret=SECRET)
        folder = store.session_dir("s")
        half = SECRET[: len(SECRET) // 2].encode()
        for name in ("events.jsonl.torn-5-00000000", ".summary.json.abc.tmp", "checkpoint.json", "blobs/.x.tmp"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"..." + half)
        (folder / "summary.json.lost-1-2").write_bytes(SECRET.encode())
        for name in (".new-0123", ".deleted-0123"):
            (folder.parent / name).mkdir()
            (folder.parent / name / "events.jsonl").write_bytes(SECRET.encode())
        self.erased(store, texts=[SECRET])
        for path, data in stored_bytes(self.folder / "files").items():
            self.assertNotIn(half, data, path)
        self.assertTrue((folder / "summary.json.lost-1-2").exists())
        self.assertTrue(verify_session(store, "s").ok)

    def test_outputs_that_calls_kept_beside_the_log_go_with_what_names_them(self) -> None:
        store = FileSessionStore(self.folder / "files")
        self.filled(store)
        outputs = store.session_dir("s") / "outputs"
        outputs.mkdir()
        for name, text in (("holds.txt", f"x {SECRET} y"), ("belongs.txt", "more of it"), ("other.txt", "no")):
            (outputs / name).write_text(text)
        for name in ("holds", "belongs", "other"):
            text = SECRET if name == "belongs" else "short"
            self.goes_on(store, "s", [ToolResult(name, {"stdout": text, "stdout_file": str(outputs / f"{name}.txt")})])
        done = self.erased(store, texts=[SECRET])
        self.assertEqual(sorted(path.name for path in outputs.iterdir()), ["other.txt"])
        places = [pointer for _, pointer in done.sessions[0].places]
        self.assertEqual(sorted(places), ["/output/stdout", "/output/stdout_file", "/output/stdout_file"])

    def test_a_short_value_cannot_be_guessed_from_what_is_left(self) -> None:
        store = MemorySessionStore()
        self.filled(store, secret="4711")
        sign_session(store, "s", [self.key])
        signed = store.read_events("s")[-1]
        self.erased(store, fields=[(2, "/text")], texts=["4711"])
        left = b"".join(line.encode() for line in store._sessions["s"].lines)
        for seed in (signed.opening["seed"],):  # type: ignore[attr-defined]
            self.assertNotIn(seed.encode(), left)
        # Trying every value with every remaining salt yields none of the remaining digests.
        salts = [bytes.fromhex(word) for word in _hex_words(left, 32)]
        digests = {bytes.fromhex(word) for word in _hex_words(left, 64)}
        for guess in ("4711", "0000"):
            text = f'"text":"What is number 1? {guess}"'
            self.assertFalse({sha256(salt + text.encode()).digest() for salt in (*salts, b"")} & digests)
            self.assertFalse({sha256(text.encode()).digest(), sha256(guess.encode()).digest()} & digests)

    def test_only_what_was_named_goes_when_nothing_else_is_to_be_looked_for(self) -> None:
        store = MemorySessionStore()
        self.filled(store, secret=SECRET)
        sign_session(store, "s", [self.key])
        done = self.erased(store, fields=[(3, "/input/command")], spread=False)
        self.assertIn((3, "/input/command"), done.sessions[0].places)
        use, message = store.read_events("s")[2], store.read_events("s")[1]
        self.assertEqual((use.input, SECRET in message.text), ({"command": ERASED, "timeout_s": 5}, True))  # type: ignore[attr-defined]
        self.assertEqual(self.report(store).problems, ())

    def test_a_field_can_be_erased_after_another_of_the_same_event(self) -> None:
        store = MemorySessionStore()
        self.filled(store, secret=SECRET)
        sign_session(store, "s", [self.key])
        for pointer in ("/input/command", "/input/timeout_s", "/input"):
            self.erased(store, fields=[(3, pointer)], spread=False)
            self.assertEqual(self.report(store).problems, ())
        self.assertEqual(store.read_events("s")[2].input, {})  # type: ignore[attr-defined]
        sign_session(store, "s", [self.key])
        self.assertTrue(self.report(store).ok)

    def test_content_inserted_in_place_of_erased_content_is_detected(self) -> None:
        store = MemorySessionStore()
        self.filled(store, secret=SECRET)
        sign_session(store, "s", [self.key])
        self.erased(store, fields=[(2, "/text")], spread=False)
        events = store.read_events("s")
        for text in ("something else", ""):
            forged = [*events]
            forged[1] = UserMessage(text, seq=2, ts=events[1].ts)
            kinds = [problem.kind for problem in verify_record("s", forged, self.trust).problems]
            self.assertEqual(kinds, ["changed"])

    def test_other_fields_of_an_event_that_lost_one_are_still_vouched_for(self) -> None:
        store = MemorySessionStore()
        self.filled(store, secret=SECRET)
        sign_session(store, "s", [self.key])
        self.erased(store, fields=[(8, "/output/stdout")], spread=False)
        events = store.read_events("s")
        self.assertEqual(events[7].output, {"stdout": ERASED, "exit_code": 0})  # type: ignore[attr-defined]
        forged = [*events]
        forged[7] = ToolResult("call-1", {"stdout": ERASED, "exit_code": 1}, seq=8, ts=events[7].ts)
        self.assertEqual([problem.kind for problem in verify_record("s", forged, self.trust).problems], ["changed"])

    def test_an_erasure_that_nobody_wrote_down_is_found(self) -> None:
        store = MemorySessionStore()
        self.filled(store, secret=SECRET)
        sign_session(store, "s", [self.key])
        store.rewrite_events("s", lambda events: erase_places("s", events, [(2, "/text")], self.seal))
        self.assertEqual([(p.kind, p.seq) for p in self.report(store).problems], [("erasure", 2)])

    def test_a_log_from_elsewhere_cannot_have_what_holds_it_together_erased(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        places = [
            {"seq": 3, "path": "/tool_use_id"},
            {"seq": 99, "path": "/x"},
            {"seq": "a"},
            {"seq": 2, "path": ""},
        ]
        store.append_event("s", RecordErasing("made up", "elsewhere", places))
        before = store.read_events("s")
        finish_erasures(store, "s", seal=self.seal)
        self.assertEqual(store.read_events("s")[: len(before)], before)

    def test_erasing_lists_the_forks_and_children_that_have_copies(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        fork_session(store, "s", at_seq=1, session_id="fork", seal=self.seal)
        fork_session(store, "fork", session_id="fork of fork", seal=self.seal)
        done = self.erased(store, fields=[(2, "/text")], reason="asked for by the person", by="dpo")
        self.assertEqual(done.told, ("fork", "fork of fork"))
        for name in done.told:
            last = store.read_events(name)[-1]
            assert isinstance(last, RecordErased)
            self.assertEqual((last.source_session_id, last.reason, last.by), ("s", "asked for by the person", "dpo"))

    def test_erasing_a_protected_place_is_refused_before_anything_is_changed(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        before = store.read_events("s")
        bound = ((2, "/ts"), (2, "/seq"), (3, "/tool_use_id"), (3, "/name"))
        for place in (*bound, (2, "/nothing"), (2, "text"), (99, "/text")):
            with self.subTest(place=place), self.assertRaises(OptionsError):
                self.erased(store, fields=[place])
        with self.assertRaises(OptionsError):
            self.erased(store)
        with store.open_writer("s"), self.assertRaises(SessionLockedError):
            self.erased(store, fields=[(2, "/text")])
        store.append_event("s", RecordKept(held=True))
        with self.assertRaises(SessionHeldError):
            self.erased(store, fields=[(2, "/text")])
        self.assertEqual(store.read_events("s")[:-1], before)

    def test_a_dry_run_lists_what_would_be_erased_and_changes_nothing(self) -> None:
        store = MemorySessionStore()
        self.family(store, SECRET)
        before = {name: store.read_events(name) for name in store.list_sessions()}
        would = self.erased(store, texts=[SECRET], dry_run=True)
        self.assertEqual({name: store.read_events(name) for name in store.list_sessions()}, before)
        done = self.erased(store, texts=[SECRET])
        self.assertEqual(would.sessions, done.sessions)

    def test_archives_are_written_again(self) -> None:
        store = FileSessionStore(self.folder / "files")
        self.family(store, SECRET)
        for name, text in (("holds.txt", f"x {SECRET} y"), ("other.txt", "no")):
            store.add_output("s", name, text.encode())
            self.goes_on(store, "s", [ToolResult(f"call_{len(name)}", {"stdout_file": f"/log/{name}"})])
        archive_session(store, "s", self.folder / "s.zip")
        self.erased(store, texts=[SECRET], archives=[self.folder / "s.zip"])
        for path, data in stored_bytes(self.folder).items():
            for form in forms(SECRET):
                self.assertNotIn(form, data, path)
        with zipfile.ZipFile(self.folder / "s.zip") as file:
            self.assertEqual([name for name in file.namelist() if "/outputs/" in name], ["0/outputs/other.txt"])
        events = read_bundle(self.folder / "s.zip")["s"]
        self.assertEqual(verify_record("s", events, self.trust).problems, ())

    def test_an_unusable_key_is_refused_before_anything_is_changed(self) -> None:
        store = FileSessionStore(self.folder / "files")
        self.family(store, SECRET)
        archive_session(store, "s", self.folder / "s.zip")
        unusable = self.folder / "bad.key"
        unusable.write_bytes(b"short")
        unusable.chmod(0o600)
        before = {path: data for path, data in stored_bytes(self.folder).items() if not path.endswith("/bad.key")}
        request = partial(erase, store, "s", texts=[SECRET], seal=Seal(unusable))
        for erasure in (request, partial(request, archives=[self.folder / "s.zip"]), partial(request, dry_run=True)):
            with self.assertRaisesRegex(OptionsError, "the key .* cannot be used"):
                erasure()
        after = stored_bytes(self.folder)
        self.assertEqual({path: after[path] for path in before}, before)

    def test_any_value_goes_without_a_trace(self) -> None:
        draw = random.Random(11)
        letters = 'aZ09 "\\/<>\n\t\u00e9\u2028\U0001f600{}[]:,%+='
        for round_ in range(sized(1, 3, 24)):
            secret = "x" + "".join(draw.choice(letters) for _ in range(draw.randrange(8, 40))) + "x"
            with self.subTest(secret=secret):
                store = FileSessionStore(self.folder / str(round_))
                self.family(store, secret)
                self.erased(store, texts=[secret])
                for path, data in stored_bytes(self.folder / str(round_)).items():
                    for form in forms(secret):
                        self.assertNotIn(form, data, path)
                self.assertEqual(self.report(store).problems, ())

    @full_size
    @unittest.skipUnless(hasattr(os, "fork"), "this system cannot fork")
    def test_an_erasure_that_is_killed_anywhere_is_finished_later(self) -> None:
        def prepared(name: str) -> FileSessionStore:
            store = FileSessionStore(self.folder / name)
            self.filled(store, secret=SECRET)
            store.put_blob("s", SECRET.encode())
            self.goes_on(store, "s", [UserMessage("x", attachments=[{"sha256": sha256(SECRET.encode()).hexdigest()}])])
            sign_session(store, "s", [self.key])
            fork_session(store, "s", session_id="fork", seal=self.seal)
            return store

        counted = FaultyOS()
        prepared("counted")
        erase(FileSessionStore(self.folder / "counted", disk=counted), "s", texts=[SECRET], seal=self.seal)
        writing = [
            at for at, name in enumerate(counted.operations, 1) if name not in ("open", "read", "fstat", "lseek")
        ]
        self.assertGreater(len(writing), 12)
        killed = 0
        for at in writing if LARGE else sorted({*writing[::8], *writing[-2:]}):
            name = f"killed-{at}"
            prepared(name)
            child = os.fork()
            if not child:
                try:
                    faulty = FaultyOS(at=at, fault="kill before")
                    erase(FileSessionStore(self.folder / name, disk=faulty), "s", texts=[SECRET], seal=self.seal)
                finally:
                    os._exit(0)
            status = os.waitpid(child, 0)[1]  # if the folder lists the fork first, there may be one operation less
            killed += os.WIFSIGNALED(status)
            self.assertTrue(os.WIFSIGNALED(status) or status == 0, status)
            with self.subTest(at=at, operation=counted.operations[at - 1]):
                store = FileSessionStore(self.folder / name)
                begun = any(isinstance(event, RecordErasing) for event in store.iter_events("s"))
                if begun:
                    self.assertEqual([p.kind for p in self.report(store).problems][:1], self._unfinished(store))
                    finish_erasures(store, "s", seal=self.seal)
                else:
                    erase(store, "s", texts=[SECRET], seal=self.seal)
                    for other in ("s", "fork"):
                        finish_erasures(store, other, seal=self.seal)
                for path, data in stored_bytes(self.folder / name).items():
                    for form in forms(SECRET):
                        self.assertNotIn(form, data, path)
                for other in ("s", "fork"):
                    self.assertEqual(self.report(store, other).problems, ())
                    self.assertTrue(verify_session(store, other).ok)
        self.assertGreater(killed, 3)

    def _signed_with_a_blob(self, store: SessionStore) -> None:
        """Store and sign a session with the secret in its events and in a blob."""
        self.filled(store, secret=SECRET)
        blob = store.put_blob("s", SECRET.encode())
        self.goes_on(store, "s", [ToolResult("blob", {"kept": blob})])
        sign_session(store, "s", [self.key])

    def test_forks_made_between_the_beginning_and_the_end_of_an_erasure_are_erased_too(self) -> None:
        for store in self.stores():
            with self.subTest(type(store).__name__):
                self._signed_with_a_blob(store)
                store.rewrite_events = partial(self._rewrite_after_forks, store)  # type: ignore[method-assign]
                self.erased(store, texts=[SECRET])
                self._assert_erased(store, "s", "late", "early", "nested", "before")
            store.close()

    def test_finishing_an_erasure_that_was_killed_also_erases_from_the_forks_made_since(self) -> None:
        for store in self.stores():
            with self.subTest(type(store).__name__):
                self._signed_with_a_blob(store)
                store.rewrite_events = self._killed  # type: ignore[method-assign]
                with self.assertRaises(KeyboardInterrupt):
                    self.erased(store, texts=[SECRET])
                del store.rewrite_events
                self._forks(store)
                self.assertEqual(len(finish_erasures(store, "s", seal=self.seal)), 1)
                self._assert_erased(store, "s", "late", "early", "nested", "before")
                self.assertEqual(finish_erasures(store, "s", seal=self.seal), [])
            store.close()

    @full_size
    def test_an_erasure_stopped_anywhere_looks_unfinished_and_is_completed(self) -> None:
        """At every change of the store, by the same request or by finishing it and then the same request."""
        at, is_complete = 0, False
        while not is_complete:
            at += 1
            for repeats in (True, False):
                with self.subTest(at=at, repeats=repeats):
                    store = MemorySessionStore()
                    self._signed_with_a_blob(store)
                    fork_session(store, "s", session_id="fork", seal=self.seal)
                    with StoppedAt(store, at) as stopping, suppress(KeyboardInterrupt):
                        self.erased(store, texts=[SECRET])
                    is_complete = not stopping.is_stopped
                    logs = {name: store.read_events(name) for name in ("s", "fork")}
                    is_left = any(SECRET in repr(event) for events in logs.values() for event in events)
                    touched = [name for name, events in logs.items() if has_unfinished_erasure(events)]
                    self.assertTrue(is_complete or is_left or touched)
                    finished = [] if repeats else unfinished_erasures(store)
                    finish_each(store, finished, seal=self.seal)
                    if repeats or not all(each.is_recorded for each in finished) or not (finished or is_complete):
                        self.erased(store, texts=[SECRET])
                    for name in ("s", "fork"):
                        self.assertFalse(any(SECRET in repr(event) for event in store.read_events(name)))
                        self.assertEqual(self.report(store, name).problems, ())
                    self.assertEqual(unfinished_erasures(store), [])
        self.assertGreater(at, 5)

    def test_a_copy_to_another_store_during_an_erasure_is_from_before_or_after_it(self) -> None:
        marker = RecordErasing("id", "s", [{"seq": 1, "path": "/text"}])
        for is_finished in (True, False):
            source, target = MemorySessionStore(), MemorySessionStore()
            self.filled(source, secret=SECRET)
            erased = partial(self.erased, source, texts=[SECRET])
            works: list[Callable[[], object]] = [erased if is_finished else partial(source.append_event, "s", marker)]
            source.iter_events = partial(self._meanwhile, source.iter_events, works)  # type: ignore[method-assign]
            self.assertEqual(list(copy_missing(source, target, "s")), [("s", True)])
            self.assertEqual((works, target.read_events("s")), ([], source.read_events("s")))
            self.assertEqual(has_unfinished_erasure(target.read_events("s")), not is_finished)

    @staticmethod
    def _meanwhile(
        read: Callable[..., Iterator[Event]], works: list[Callable[[], object]], name: str, **how: Any
    ) -> Iterator[Event]:
        """The events of a session; after the second one, do the work that is left."""
        for count, event in enumerate(read(name, **how), 1):
            yield event
            while count == 2 and works:
                works.pop()()

    def test_a_fork_made_while_the_session_is_searched_is_erased_too(self) -> None:
        store = MemorySessionStore()
        self.filled(store, secret=SECRET)
        store.update_metadata("s", {"note": f"about {SECRET}"})
        real = store.refuse_kept

        def refuse_kept(*args: object, **how: object) -> None:
            fork_session(store, "s", session_id="during", seal=self.seal)
            real(*args, **how)  # type: ignore[arg-type]

        store.refuse_kept = refuse_kept  # type: ignore[method-assign]
        self.erased(store, texts=[SECRET])
        self._assert_erased(store, "s", "during")
        self.assertEqual(store.read_metadata("during")["metadata"]["note"], ERASED)

    def _killed(self, name: str, change: Rewrite) -> None:
        raise KeyboardInterrupt

    def _rewrite_after_forks(self, store: SessionStore, name: str, change: Rewrite) -> None:
        if not store.session_exists("late"):
            self._forks(store)
        type(store).rewrite_events(store, name, change)

    def _forks(self, store: SessionStore) -> None:
        """Forks of a session with an unfinished erasure: after it began, before, one of these, and before the values."""
        fork_session(store, "s", session_id="late", seal=self.seal)
        fork_session(store, "s", session_id="early", at_seq=9, seal=self.seal)
        fork_session(store, "early", session_id="nested", seal=self.seal)
        fork_session(store, "s", session_id="before", at_seq=1, seal=self.seal)

    def _assert_erased(self, store: SessionStore, *names: str) -> None:
        for name in names:
            events = store.read_events(name)
            self.assertFalse(any(Needles([SECRET]).are_in(event_to_dict(event)) for event in events), name)
            self.assertEqual(store.list_blobs(name), [], name)
            self.assertEqual(len([event for event in events if isinstance(event, RecordErased)]), 1, name)
            self.assertEqual(self.report(store, name).problems, (), name)
            if isinstance(store, FileSessionStore):
                self.assertTrue(verify_session(store, name).ok, name)
            self.assertEqual(foreign_authority(name, events, self.seal), [], name)

    def test_an_erasure_that_was_killed_is_finished_in_the_salvaged_copy(self) -> None:
        store = FileSessionStore(self.folder)
        self.filled(store, secret=SECRET)
        sign_session(store, "s", [self.key])
        events = store.read_events("s")
        places = find_places(events, (), Needles([SECRET]), ())[0]
        self.assertGreater(len(places), 4)
        fields = [{"seq": seq, "path": pointer} for seq, pointer in places]
        store.append_events("s", [RecordErasing("id", "s", fields), UserMessage("damaged")])
        path = store.session_dir("s") / "events.jsonl"
        path.write_bytes(path.read_bytes().replace(b"damaged", b"changed"))
        saved = salvage(store, "s").session_id
        store.delete_session("s")
        self.assertEqual(finish_erasures(store, saved, seal=self.seal), ["id"])
        for file, data in stored_bytes(self.folder).items():
            for form in forms(SECRET):
                self.assertNotIn(form, data, file)
        after = store.read_events(saved)
        # Only the salts that no erased value was digested with may stay; in a copy they cannot be told apart.
        self.assertEqual([event.opening for event in after if isinstance(event, RecordSigned)], [{}])
        for seq, pointer in places:
            self.assertEqual(value_at(after[seq], pointer), ERASED)

    def test_what_this_installation_wrote_stays_its_own_in_a_salvaged_copy_and_in_forks_of_forks(self) -> None:
        store = FileSessionStore(self.folder / "files")
        store.seal = self.seal
        self.filled(store)
        fork_session(store, "s", session_id="fork", seal=self.seal)
        self.goes_on(store, "fork", turn(2))
        copies = [salvage(store, "fork").session_id, fork_session(store, "fork", session_id="inner", seal=self.seal)]
        copies += [salvage(store, "inner").session_id, fork_session(store, copies[0], seal=self.seal), "fork", "s"]
        for name in copies:
            before = self._ours(store, name)
            self.assertGreater(len(before), 4)
            prompt = next(event.seq or 0 for event in store.iter_events(name) if isinstance(event, UserMessage))
            erase(store, name, [(prompt, "/text")], spread=False, seal=self.seal)
            self.assertEqual(self._ours(store, name), before, name)
            self.assertEqual([each.kind for each in self.report(store, name).problems], [], name)

    def test_a_fork_of_a_fork_keeps_what_this_installation_wrote_wherever_it_is_cut(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        fork_session(store, "s", session_id="fork", seal=self.seal)
        self.goes_on(store, "fork", turn(2))
        fork_session(store, "fork", session_id="inner", seal=self.seal)
        self.goes_on(store, "inner", turn(3))
        for source in ("fork", "inner", fork_session(store, "inner", at_seq=5, seal=self.seal)):
            ours = self._ours(store, source)
            for at_seq in range(1, store.last_seq(source) + 1, 3):
                copy = fork_session(store, source, at_seq=at_seq, seal=self.seal)
                self.assertEqual(store.read_summary(copy).parent, source)
                found = [seq for seq in self._ours(store, copy) if seq <= at_seq]
                self.assertEqual(found, [seq for seq in ours if seq <= at_seq], (source, at_seq))
        # A marker that somebody else wrote vouches for nothing in the fork either.
        foreign = [
            with_mac(event, None) if event.type == "session.forked" else event for event in store.read_events("fork")
        ]
        store.import_session("foreign", foreign, metadata=store.read_metadata("fork")["metadata"])
        self.assertEqual(self._ours(store, fork_session(store, "foreign", at_seq=5, seal=self.seal)), [6])

    def _ours(self, store: SessionStore, name: str) -> list[int]:
        """The events that this installation wrote, except those of an erasure."""
        authority = Authority(name, self.seal)
        events = store.read_events(name)
        for event in events:
            authority.apply(event)
        return [event.seq or 0 for event in events if event.mac is not None and authority.is_ours(event)]

    def _unfinished(self, store: SessionStore) -> list[str]:
        ended = any(isinstance(event, RecordErased) for event in store.iter_events("s"))
        return [] if ended else ["erasure"]


def _hex_words(data: bytes, size: int) -> list[str]:
    words = "".join(chr(byte) if chr(byte) in "0123456789abcdef" else " " for byte in data).split()
    return [word for word in words if len(word) == size]


class OpenCalls(RecordCase, unittest.IsolatedAsyncioTestCase):
    """A run that was parked when its values were erased."""

    def options(self, *turns: Any, **more: Any) -> OpenAgenticOptions:
        made = {"session_store": self.store, **self.how, **more}
        return OpenAgenticOptions(provider=ScriptedProvider(turns), model="scripted", cwd=str(self.folder), **made)

    def setUp(self) -> None:
        super().setUp()
        self.store = MemorySessionStore()
        self.how: dict[str, Any] = {
            "permission_gate": PermissionGate(permission_mode="acceptEdits"),
            "key_file": self.key.path,
        }
        question = {"question": "Sure?", "header": "", "options": [{"label": label} for label in ("yes", "no")]}
        write = {"file_path": "new.txt", "content": "the key is 3704-0044"}
        self.calls = {
            "tool_calls": [
                {"name": "AskUserQuestion", "arguments": {"questions": [question]}},
                {"name": "Write", "arguments": write},
            ]
        }

    async def parked(self, *turns: Any, **more: Any) -> str:
        run = submit("go", self.options(*turns, **more))
        self.assertEqual((await run.wait()).stop_reason, "waiting")
        return run.session_id

    async def test_a_call_that_lost_its_input_before_it_ran_never_runs(self) -> None:
        session_id = await self.parked(self.calls)
        places = [event.seq or 0 for event in self.store.read_events(session_id) if event.type == "tool.use"]
        for how in ({"texts": ["3704-0044"]}, {"fields": [(places[1], "/input")], "spread": False}):
            with self.subTest(how):
                copy = MemorySessionStore()
                export_session(self.store, copy, session_id)
                notices = erase(copy, session_id, **how, seal=self.seal).notices
                self.assertEqual(len(notices), 1, notices)
                self.assertIn(f"the run of session {session_id!r} was ended", notices[0])
                self.assertEqual(copy.open_question_ids(session_id), ())
                await submit(None, self.options("Done.", session_store=copy, resume=session_id)).wait()
                results = [event for event in copy.read_events(session_id) if isinstance(event, ToolResult)]
                self.assertEqual([event.outcome for event in results], ["cancelled", "cancelled"])
        self.assertFalse((self.folder / "new.txt").exists())

    async def test_an_erasure_elsewhere_in_the_log_leaves_a_parked_run_as_it_is(self) -> None:
        session_id = await self.parked(self.calls)
        seen = self.store.open_question_ids(session_id)
        prompt = [event.seq or 0 for event in self.store.read_events(session_id) if event.type == "user.message"]
        self.assertEqual(erase(self.store, session_id, [(prompt[0], "/text")], seal=self.seal).notices, ())
        self.assertEqual(self.store.open_question_ids(session_id), seen)

    async def test_the_run_of_the_session_that_started_a_subagent_ends_too(self) -> None:
        helper = AgentDefinition("helps", "Help.", provider=ScriptedProvider([self.calls]), model="scripted")
        task = {"tool_calls": [{"name": "Task", "arguments": {"agent": "helper", "prompt": "write"}}]}
        parent = await self.parked(task, agents={"helper": helper})
        child = self.store.list_children(parent)[0]
        erase(self.store, child, texts=["3704-0044"], seal=self.seal)
        self.assertEqual(self.store.open_question_ids(parent), ())
        run = submit(None, self.options("Done.", resume=parent, agents={"helper": helper}))
        self.assertEqual((await run.wait()).stop_reason, "end")
        self.assertFalse((self.folder / "new.txt").exists())
        for name in (parent, child):
            self.assertTrue(verify_session(self.store, name).ok)


class FindingValues(unittest.TestCase):
    def test_a_value_is_found_in_every_usual_form(self) -> None:
        needles = Needles([SECRET])
        whole = SECRET.encode()
        table: dict[str, Callable[[], str]] = {
            "as it is": lambda: f"a {SECRET} b",
            "JSON in a text": lambda: json.dumps({"a": SECRET}),
            "JSON that keeps letters": lambda: json.dumps({"a": SECRET}, ensure_ascii=False),
            "JSON in JSON": lambda: json.dumps(json.dumps({"a": SECRET})),
            "base64": lambda: base64.b64encode(whole).decode(),
            "base64 behind one": lambda: base64.b64encode(b"1" + whole + b"2").decode(),
            "base64 behind two": lambda: base64.b64encode(b"12" + whole + b"3").decode(),
            "base64 for URLs": lambda: base64.urlsafe_b64encode(b"123" + whole).decode(),
            "hex": lambda: whole.hex(),
            "its digest": lambda: sha256(whole).hexdigest(),
            "in a URL": lambda: "q=IBAN%20DE89%20%223704%22%200044%C3%BC",
        }
        for name, made in table.items():
            with self.subTest(name):
                self.assertTrue(needles.are_in(made()))
        self.assertFalse(needles.are_in("IBAN DE89"))
        self.assertTrue(Needles(["123456"]).are_in({"a": [123456]}))
        self.assertFalse(Needles(["abc"]).are_in("abc"))

    def test_checkpoints_have_no_leaf_of_their_salts(self) -> None:
        signed = RecordSigned("s", 1, 1, "0" * 64, "0" * 64, "", opening={"seed": "secret"})
        self.assertNotIn("secret", repr(leaves(signed)))
