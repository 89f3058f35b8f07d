"""Who vouches for which events, and the report on a log that somebody changed."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from openagentic_sdk import OpenAgenticOptions, PermissionGate, query, run
from openagentic_sdk.errors import OptionsError, SessionLockedError, StorageError
from openagentic_sdk.events import (
    Event,
    RecordSigned,
    Result,
    SessionCompacted,
    SessionRewound,
    SystemNotice,
    UnknownEvent,
    UserAnswer,
    UserMessage,
)
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.ground.system import user_name
from openagentic_sdk.parts.record.archive import archive_session
from openagentic_sdk.parts.record.bundle import read_bundle
from openagentic_sdk.parts.record.commit import ZERO, Opening, chain_digests, event_digest, leaves
from openagentic_sdk.parts.record.lifecycle import export_session, fork_session
from openagentic_sdk.parts.record.sign import RANGE_EVENTS, sign_session
from openagentic_sdk.parts.record.signers import InstallationKey, SshKey, Timestamp, Trust, Witness, timestamp_query
from openagentic_sdk.parts.record.verify import receipt_of, verify_record
from openagentic_sdk.parts.record.verify_log import salvage
from openagentic_sdk.permissions.interactive import InteractiveApprover
from openagentic_sdk.sessions.base import SessionStore
from openagentic_sdk.sessions.log.line import decode_line
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.seal import Seal, Signer
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing import ScriptedProvider
from tests.size import sized

from .support import HAS_SSH, RecordCase, turn

# From the first version that signed: every later one must compute it, or old signatures would become invalid.
GOLDEN_HEAD = "bf2005fb5377c83b3ba1a9933d84212951edc0780b51d60f16a6c648b700f040"


class Signing(RecordCase):
    def test_every_store_gives_the_same_chain(self) -> None:
        memory = MemorySessionStore()
        self.filled(memory, turns=(1, 2), secret="\ud83d lone, \u2028 and 1e-7")
        stores: list[SessionStore] = [
            FileSessionStore(self.folder / "files"),
            SqliteSessionStore(self.folder / "sessions.db"),
            MemorySessionStore(),
        ]
        for store in stores:
            export_session(memory, store, "s")
        seeds = Opening([b"0" * 16] * 100, {})
        digests = [
            [event_digest(seeds.leaf_digests(event, index)) for index, event in enumerate(store.iter_events("s"))]
            for store in (memory, *stores)
        ]
        for store in stores:
            store.close()
        self.assertEqual(digests, [digests[0]] * 4)

    def test_a_checkpoint_vouches_for_all_before_it_and_one_after_it_for_that_too(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        first = sign_session(store, "s", [self.key])
        self.goes_on(store, "s", turn(2))
        before = self.report(store)
        self.assertTrue(before.ok, before.problems)
        self.assertEqual(before.unsigned, 8)
        sign_session(store, "s", [self.key])
        report = self.report(store)
        self.assertEqual([(each.from_seq, each.to_seq) for each in report.ranges], [(1, first.to_seq), (1, 19)])
        self.assertEqual((report.ok, report.unsigned, report.problems), (True, 0, ()))

    def test_a_long_log_is_signed_in_parts_and_is_whole(self) -> None:
        store = MemorySessionStore()
        store.create_session(session_id="s")
        store.append_events("s", [UserMessage(f"prompt {number}") for number in range(RANGE_EVENTS + 5)])
        sign_session(store, "s", [self.key])
        store.append_event("s", UserMessage("more"))
        sign_session(store, "s", [self.key])
        report = self.report(store)
        self.assertTrue(report.ok, report.problems)
        self.assertEqual([(each.from_seq, each.to_seq) for each in report.ranges], [(1, 1005), (1, 1008)])
        events = store.read_events("s")
        del events[1002]
        self.assertEqual([(p.kind, p.text[:10]) for p in self.of(events).problems], [("removed", "event 1003")])

    def test_nothing_to_sign_and_a_session_in_use_are_refused(self) -> None:
        store = MemorySessionStore()
        store.create_session(session_id="s")
        with self.assertRaises(OptionsError):
            sign_session(store, "s", [self.key])
        store.append_event("s", UserMessage("x"))
        with store.open_writer("s"), self.assertRaises(SessionLockedError):
            sign_session(store, "s", [self.key])

    def test_a_signature_is_unchecked_without_a_key_and_invalid_with_another(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        sign_session(store, "s", [self.key])
        nobody = verify_record("s", store.iter_events("s"), Trust())
        self.assertEqual([each.vouchers[0].proof for each in nobody.ranges], ["unchecked"])
        self.assertFalse(nobody.ok)
        InstallationKey(str(self.folder / "other.key")).sign(b"makes the key")
        other = verify_record("s", store.iter_events("s"), Trust(Seal(self.folder / "other.key")))
        self.assertEqual([problem.kind for problem in other.problems], ["signature"])

    def test_an_archive_carries_all_that_a_check_needs(self) -> None:
        store = FileSessionStore(self.folder / "files")
        self.filled(store)
        sign_session(store, "s", [self.key])
        archive_session(store, "s", self.folder / "s.zip")
        [(name, events)] = read_bundle(self.folder / "s.zip").items()
        self.assertTrue(verify_record(name, events, self.trust).ok)

    def test_a_fork_keeps_what_its_parent_had_signed(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        sign_session(store, "s", [self.key])
        self.goes_on(store, "s", turn(2))
        fork_session(store, "s", session_id="fork", seal=self.seal)
        sign_session(store, "fork", [self.key])
        report = self.report(store, "fork")
        self.assertEqual([each.session_id for each in report.ranges], ["s", "fork"])
        self.assertTrue(report.ok, report.problems)

    def test_a_salvaged_copy_keeps_what_was_signed_although_positions_have_moved(self) -> None:
        store = FileSessionStore(self.folder / "files")
        self.filled(store)
        store.append_events("s", [SessionRewound(2), SessionCompacted(1, "The summary.")])
        for _ in range(2):
            sign_session(store, "s", [self.key])
        name = "s"
        for salvages in (1, 2):
            name = salvage(store, name).session_id
            sign_session(store, name, [self.key])
            report = self.report(store, name)
            # Only the events that say so themselves are new.
            added = [("added", place + 1) for place in range(salvages)]
            self.assertEqual([(problem.kind, problem.seq) for problem in report.problems], added)
            self.assertEqual({each.vouchers[0].proof for each in report.ranges}, {"valid"})
        events = store.read_events(name)
        edited = [replace(event, to_seq=1) if isinstance(event, SessionRewound) else event for event in events]
        report = verify_record(name, edited, self.trust)
        self.assertIn("changed", [problem.kind for problem in report.problems])

    def test_events_of_a_newer_version_are_covered_too(self) -> None:
        store = MemorySessionStore()
        store.create_session(session_id="s")
        store.append_event("s", UnknownEvent({"type": "future.event", "text": "as it was"}))
        sign_session(store, "s", [self.key])
        events = store.read_events("s")
        self.assertTrue(self.of(events).ok)
        events[0] = UnknownEvent({**events[0].data, "text": "as it is"})  # type: ignore[attr-defined]
        report = verify_record("s", events, self.trust)
        self.assertEqual([(problem.kind, problem.seq) for problem in report.problems], [("changed", 1)])

    def test_digests_stay_what_they_were_in_the_version_that_made_them(self) -> None:
        events = [changed(event, seq=seq, ts=1.5 * seq) for seq, event in enumerate(turn(1, "\u00e9 1e-7"), start=1)]
        opening = Opening.read({"seed": "00" * 16}, len(events))
        digests = [event_digest(opening.leaf_digests(event, index)) for index, event in enumerate(events)]
        self.assertEqual(chain_digests(ZERO, digests), GOLDEN_HEAD)

    def test_a_field_with_its_default_is_not_part_of_a_digest(self) -> None:
        said = {pointer for pointer, _ in leaves(UserMessage("x", seq=1, ts=1.0))}
        self.assertEqual(said, {"", "/text"})

    @unittest.skipUnless(HAS_SSH, "ssh-keygen is not installed")
    def test_a_persons_key_signs_and_an_allowed_signers_file_names_its_owner(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        key = self.ssh_key("alice")
        sign_session(store, "s", [SshKey(key)])
        events = store.read_events("s")
        [voucher] = verify_record("s", events, Trust()).ranges[0].vouchers
        self.assertEqual((voucher.proof, voucher.name[:7]), ("valid", "SHA256:"))
        allowed = self.folder / "allowed"
        allowed.write_text(f"alice@example.org {Path(key + '.pub').read_text()}")
        [voucher] = verify_record("s", events, Trust(allowed_signers=str(allowed))).ranges[0].vouchers
        self.assertEqual((voucher.proof, voucher.name), ("valid", "alice@example.org"))
        allowed.write_text(f"bob@example.org {Path(self.ssh_key('bob') + '.pub').read_text()}")
        report = verify_record("s", events, Trust(allowed_signers=str(allowed)))
        self.assertEqual([problem.kind for problem in report.problems], ["signature"])
        self.assertIn("does not allow", report.problems[0].text)
        forged = [replace(event, session_id="t") if isinstance(event, RecordSigned) else event for event in events]
        self.assertEqual([p.kind for p in verify_record("t", forged, Trust()).problems], ["signature"])

    def test_a_witness_is_asked_with_the_statement_and_asked_again_later(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        code = "import sys,hashlib;d=sys.stdin.buffer.read();print(hashlib.sha256(b'secret'+d).hexdigest())"
        sign_session(store, "s", [Witness([sys.executable, "-c", code])])
        check = (
            "import sys,hashlib;s,t=sys.stdin.buffer.read().split(b'\\n\\n');"
            "sys.exit(hashlib.sha256(b'secret'+s+b'\\n').hexdigest().encode()!=t.strip())"
        )
        events = store.read_events("s")
        [unchecked] = verify_record("s", events, Trust()).ranges[0].vouchers
        [valid] = verify_record("s", events, Trust(witness=[sys.executable, "-c", check])).ranges[0].vouchers
        [invalid] = (
            verify_record("s", events, Trust(witness=[sys.executable, "-c", "raise SystemExit(1)"])).ranges[0].vouchers
        )
        self.assertEqual([each.proof for each in (unchecked, valid, invalid)], ["unchecked", "valid", "invalid"])

    def test_a_witness_that_fails_leaves_the_log_unchanged(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        before = store.last_seq("s")
        for command in (
            ["/no/such/command"],
            [sys.executable, "-c", "raise SystemExit(3)"],
            [sys.executable, "-c", ""],
        ):
            with self.assertRaises(StorageError):
                sign_session(store, "s", [Witness(command)])
        self.assertEqual(store.last_seq("s"), before)

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
    def test_a_time_stamping_authority_vouches_for_when_it_was(self) -> None:
        store = MemorySessionStore()
        self.filled(store)
        ca = _authority(self.folder)
        sign_session(store, "s", [Timestamp(["sh", "-c", _reply_command(self.folder)])])
        events = store.read_events("s")
        [unchecked] = verify_record("s", events, Trust()).ranges[0].vouchers
        [valid] = verify_record("s", events, Trust(timestamp_ca=ca)).ranges[0].vouchers
        self.assertEqual([each.proof for each in (unchecked, valid)], ["unchecked", "valid"])
        self.assertRegex(valid.name, r"^\d{14}Z$")
        other = _authority(self.folder / "other")
        self.assertEqual(verify_record("s", events, Trust(timestamp_ca=other)).ranges[0].vouchers[0].proof, "invalid")

    def test_a_request_for_a_time_stamp_is_der(self) -> None:
        query = timestamp_query(b"\1" * 32, b"\xff" * 8)
        self.assertEqual((query[:2], len(query)), (bytes([0x30, len(query) - 2]), 69))
        self.assertIn(b"\x02\x08\x7f" + b"\xff" * 7, query)


def _authority(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    config = folder / "tsa.cnf"
    config.write_text(
        "[req]\ndistinguished_name=n\nprompt=no\nx509_extensions=v\n[n]\nCN=test authority\n[v]\n"
        "extendedKeyUsage=critical,timeStamping\nkeyUsage=critical,digitalSignature\n"
        "basicConstraints=critical,CA:true\n"
        "[tsa]\ndefault_tsa=t\n[t]\n"
        f"serial={folder}/serial\nsigner_cert={folder}/ca.pem\nsigner_key={folder}/ca.key\nsigner_digest=sha256\n"
        "default_policy=1.2.3.4\ndigests=sha256\n"
    )
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "30",
    ]
    made = ["-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.pem", "-config", str(config)]
    subprocess.run([*command, *made], check=True, capture_output=True, timeout=300)
    (folder / "serial").write_text("01")
    return f"{folder}/ca.pem"


def _reply_command(folder: Path) -> str:
    reply = f"openssl ts -reply -config {folder}/tsa.cnf -queryfile {folder}/q -out {folder}/r"
    return f"cat > {folder}/q && {reply} && cat {folder}/r"


class Tampering(RecordCase):
    """The report on a log edited by somebody who can create new checksums: written by hand, with each edit in one place."""

    def setUp(self) -> None:
        super().setUp()
        store = MemorySessionStore()
        self.filled(store, turns=(1,))
        sign_session(store, "s", [self.key])  # event 11
        self.goes_on(store, "s", turn(2))  # events 12 to 19
        sign_session(store, "s", [self.key])  # event 20
        self.goes_on(store, "s", turn(3))
        self.store = store
        self.events = store.read_events("s")

    def found(self, edit: Callable[[list[Event]], object], session_id: str = "s") -> list[tuple[str, int]]:
        events = list(self.events)
        edit(events)
        report = self.of(events, session_id)
        return [(problem.kind, problem.seq) for problem in report.problems]

    def test_each_change_is_named(self) -> None:
        def put(place: int, **values: object) -> Callable[[list[Event]], object]:
            return lambda events: events.__setitem__(place - 1, changed(events[place - 1], **values))

        def swap(events: list[Event]) -> None:
            events[2], events[6] = events[6], events[2]

        table: dict[str, tuple[Callable[[list[Event]], object], list[tuple[str, int]]]] = {
            "nothing": (lambda events: None, []),
            "a text": (put(2, text="What is number 7?"), [("changed", 2)]),
            "a time": (put(6, ts=1.0), [("changed", 6)]),
            "an outcome": (put(8, outcome="error"), [("changed", 8)]),
            "a field that had its default": (put(2, about="x"), [("changed", 2)]),
            "removed": (lambda events: events.pop(3 - 1), [("removed", 0)]),
            "two removed": (lambda events: events.__delitem__(slice(2, 4)), [("removed", 0), ("removed", 0)]),
            "added": (lambda events: events.insert(4, UserMessage("new", ts=1.0)), [("added", 5)]),
            "doubled": (lambda events: events.insert(2, events[1]), [("added", 3)]),
            "truncated in what is not signed": (lambda events: events.__delitem__(slice(22, None)), []),
        }
        for name, (edit, expected) in table.items():
            with self.subTest(name):
                said = [each for each in self.found(edit) if each[0] != "approver"]
                self.assertEqual(said, expected)
        self.assertEqual({kind for kind, _ in self.found(swap)} - {"approver"}, {"moved"})

    def test_only_the_changed_event_loses_its_vouchers(self) -> None:
        events = list(self.events)
        events[1] = changed(events[1], text="other")
        self.assertEqual([each.except_seqs for each in self.of(events).ranges], [(2,), (2,)])

    def test_a_checkpoint_that_was_changed_replaced_or_taken_away_is_named(self) -> None:
        first = next(index for index, event in enumerate(self.events) if isinstance(event, RecordSigned))
        kinds = self.found(lambda events: events.__setitem__(first, changed(events[first], head="0" * 64)))
        self.assertIn(("checkpoint", 11), kinds)
        kinds = self.found(lambda events: events.__setitem__(first, changed(events[first], opening={"seed": "0" * 32})))
        self.assertIn("changed", {kind for kind, _ in kinds})
        kinds = self.found(lambda events: events.__setitem__(first, changed(events[first], opening={"seeds": []})))
        self.assertIn(("salts", 11), kinds)
        self.assertIn("checkpoint", {kind for kind, _ in self.found(lambda events: events.pop(first))})
        # Somebody with another key signs an edited beginning again: the next checkpoint followed a different one.
        forged = MemorySessionStore()
        part = list(self.events[:first])
        part[1] = changed(part[1], text="other")
        forged.import_session("s", part)
        mine = sign_session(forged, "s", [InstallationKey(str(self.folder / "forger.key"))])

        def put_forged(events: list[Event]) -> None:
            events[: first + 1] = [*part, mine]

        kinds = self.found(put_forged)
        self.assertIn(("signature", 11), kinds)
        self.assertIn(("checkpoint", 20), kinds)

    def test_a_signature_of_another_range_or_session_is_named(self) -> None:
        places = [index for index, event in enumerate(self.events) if isinstance(event, RecordSigned)]
        one, two = (self.events[place] for place in places)
        assert isinstance(one, RecordSigned) and isinstance(two, RecordSigned)
        moved = changed(two, signatures=one.signatures)
        self.assertEqual(self.found(lambda events: events.__setitem__(places[1], moved)), [("replayed", 20)])
        self.assertIn(("replayed", 24), self.found(lambda events: events.insert(23, one)))
        self.assertIn(("replayed", 11), self.found(lambda events: None, session_id="another"))
        other = MemorySessionStore()
        self.filled(other, "o", turns=(1,))
        theirs = sign_session(other, "o", [self.key])
        self.assertIn(("replayed", 11), self.found(lambda events: events.__setitem__(places[0], theirs)))

    def test_a_log_spliced_from_two_is_named(self) -> None:
        other = MemorySessionStore()
        self.filled(other, "s", turns=(1,))
        sign_session(other, "s", [self.key])
        self.goes_on(other, "s", turn(2))
        sign_session(other, "s", [self.key])
        spliced = [*self.events[:11], *other.read_events("s")[11:]]
        report = self.of(spliced)
        self.assertIn(("checkpoint", 20), [(problem.kind, problem.seq) for problem in report.problems])

    def test_a_truncated_log_lacks_the_events_of_a_receipt(self) -> None:
        receipt = json.loads(json.dumps(receipt_of(self.events[19])))  # type: ignore[arg-type]
        whole = verify_record("s", self.events, self.trust, receipts=[receipt])
        self.assertEqual(whole.problems, ())
        cut = verify_record("s", self.events[:15], self.trust, receipts=[receipt])
        self.assertEqual([problem.kind for problem in cut.problems], ["receipt"])
        self.assertIn("installation", cut.problems[0].text)

    def test_a_forged_approver_is_found(self) -> None:
        place = next(index for index, event in enumerate(self.events) if isinstance(event, UserAnswer))
        forged = changed(self.events[place], approver={"name": "mallory", "how": "server token"})
        kinds = self.found(lambda events: events.__setitem__(place, forged))
        self.assertLessEqual({("changed", place + 1), ("approver", place + 1)}, set(kinds))
        # Also if nobody has signed yet.
        answer = UserAnswer("question-9", "yes", "mallory", {"name": "mallory", "how": "server token"}, ts=1.0)
        self.assertEqual(self.found(lambda events: events.append(answer)), [("approver", len(self.events) + 1)])
        said = {(each.name, each.how, each.is_recorded) for each in self.report(self.store).approvals}
        self.assertEqual(said, {("alice", "server token", True), ("alice", "as recorded in the decision", True)})

    def test_no_byte_of_what_was_signed_can_be_changed_unnoticed(self) -> None:
        store = FileSessionStore(self.folder / "files")
        export_session(self.store, store, "s")
        path = store.session_dir("s") / "events.jsonl"
        lines = path.read_bytes().split(b"\n")
        draw = random.Random(7)
        for _ in range(sized(100, 300, 300)):
            place = draw.randrange(20)
            body = lines[place]
            mac = body.rfind(b',"mac":')  # the other chain's, which `verify` compares
            at = draw.randrange(body.index(b'"type"'), mac if mac > 0 else body.index(b',"dur":'))
            byte = bytes([draw.choice(b'aZ0 ,:"}{')])
            edited = [*lines[:place], body[:at] + byte + body[at + 1 :], *lines[place + 1 :]]
            try:
                # For somebody who creates new checksums: the lines are read without theirs.
                events = [decode_line(line, seq) for seq, line in enumerate(edited[:-1], start=1)]
            except ValueError:
                continue  # it is no longer an event, which every reader reports
            if events == self.events:
                continue  # the byte was already the same
            with self.subTest(line=place + 1, at=at, byte=byte):
                self.assertNotEqual(verify_record("s", events, self.trust).problems, ())


class EndOfRun(RecordCase):
    def run_with(self, *signers: Signer) -> tuple[MemorySessionStore, list[Event]]:
        store = MemorySessionStore()

        async def collect() -> list[Event]:
            options = OpenAgenticOptions(
                provider=ScriptedProvider(["Hello."]),
                model="m",
                session_store=store,
                record_signers=signers,
                key_file=self.key.path,
            )
            return [event async for event in query(prompt="hi", options=options)]

        return store, asyncio.run(collect())

    def test_a_run_signs_its_record_when_it_ends_and_its_caller_sees_the_result_last(self) -> None:
        store, events = self.run_with(self.key)
        self.assertIsInstance(events[-1], Result)
        [session_id] = store.list_sessions()
        report = self.report(store, session_id)
        self.assertEqual((report.ok, report.unsigned), (True, 0), report.problems)
        self.assertEqual(store.read_summary(session_id).state, "idle")

    def test_a_signer_that_fails_is_a_notice_and_the_run_ends_well(self) -> None:
        store, events = self.run_with(Witness(["/no/such/command"]))
        codes = [event.code for event in events if isinstance(event, SystemNotice)]
        self.assertIn("record.unsigned", codes)
        self.assertEqual([event.stop_reason for event in events if isinstance(event, Result)], ["end"])
        [session_id] = store.list_sessions()
        self.assertFalse(any(isinstance(event, RecordSigned) for event in store.iter_events(session_id)))

    def test_an_invalid_signer_is_refused(self) -> None:
        with self.assertRaisesRegex(OptionsError, "record_signers"):
            self.run_with("key")  # type: ignore[arg-type]

    def test_an_answer_typed_at_the_terminal_is_attributed_to_the_user_of_the_system(self) -> None:
        store = MemorySessionStore()
        gate = PermissionGate(
            interactive_approver=InteractiveApprover(input_fn=lambda _: "y"), permission_mode="prompt"
        )
        script = [{"tool_calls": [{"name": "Bash", "arguments": {"command": "echo tea"}}]}, "Done."]
        options = OpenAgenticOptions(
            provider=ScriptedProvider(script),
            model="m",
            cwd=str(self.folder),
            session_store=store,
            permission_gate=gate,
            record_signers=[self.key],
            key_file=self.key.path,
        )
        result = asyncio.run(run(prompt="tea", options=options))
        said = {"name": user_name(), "how": "operating system"}
        self.assertEqual([event.approver for event in result.events if isinstance(event, UserAnswer)], [said])
        report = self.report(store, result.session_id)
        self.assertEqual((report.ok, {each.is_recorded for each in report.approvals}), (True, {True}), report.problems)
        self.assertIn((user_name(), "operating system"), [(each.name, each.how) for each in report.approvals])
