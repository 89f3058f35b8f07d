"""Damage that no crash explains is never read as an event, never repaired silently, and always located."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sqlite3
import tempfile
import threading
import unittest
import zlib
from itertools import accumulate
from typing import Any

from openagentic_sdk.agent import Agent
from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import LogCorruptError, OptionsError, SessionExistsError, SessionNotFoundError
from openagentic_sdk.events import (
    AssistantMessage,
    Event,
    FileKept,
    LogFragment,
    LogSalvaged,
    SessionCompacted,
    SessionForked,
    SessionRewound,
    ToolResult,
    ToolStarted,
    ToolUse,
    UnknownEvent,
    UserMessage,
)
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.record.verify_log import Problem, salvage, verify_session
from openagentic_sdk.serialization import MAX_DEPTH
from openagentic_sdk.sessions.folds.view import SessionView
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import LOG_NAME
from openagentic_sdk.testing import ScriptedProvider
from tests.size import LARGE, sized

from .scenes import SceneTest, small_batches, three_turns, without_stamps


class BitFlipTest(SceneTest):
    def test_no_flipped_bit_is_taken_for_what_was_written(self) -> None:
        """Every read returns the exact prefix, and either reports where the log is damaged or ends before the flip.

        The small size flips one bit in three, so that every byte is hit, and every bit position in some byte.
        """
        events = self.write(three_turns() if LARGE else small_batches(8))
        content = self.path.read_bytes()
        for bit in range(0, len(content) * 8, sized(23, 7, 1)):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            self.path.write_bytes(flipped)
            read, error = self.read_until_damage()
            self.assertEqual(read, events[: len(read)], bit)
            self.assertLess(len(read), len(events), bit)
            if error is None:
                self.assert_only_the_end_is_lost(read, events, bit)
            else:
                self.assertLessEqual(error.offset, bit // 8, bit)

    def assert_only_the_end_is_lost(self, read: list[Event], events: list[Event], bit: int) -> None:
        self.assertEqual(read, events[:-1], bit)
        self.assertEqual([problem.kind for problem in verify_session(self.store, "s").problems], ["torn-tail"], bit)

    def read_until_damage(self) -> tuple[list[Event], LogCorruptError | None]:
        read: list[Event] = []
        try:
            for event in self.store.iter_events("s"):
                read.append(event)
        except LogCorruptError as error:
            return read, error
        return read, None


class CorruptionTest(SceneTest):
    def setUp(self) -> None:
        super().setUp()
        self.events = self.write(three_turns())
        self.lines = self.path.read_bytes().splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, self.lines))]

    def assert_damaged(self, lines: list[bytes], seq: int, kinds: tuple[str, ...], change: str | None = None) -> None:
        self.path.write_bytes(b"".join(lines))
        with self.assertRaises(LogCorruptError) as caught:
            self.store.read_events("s")
        error = caught.exception
        self.assertEqual((error.seq, error.offset), (seq, self.starts[seq - 1]))
        self.assertIn(error.kind, kinds)
        report = verify_session(self.store, "s")
        (problem,) = report.problems
        self.assertEqual((problem.seq, problem.offset, problem.kind), (error.seq, error.offset, error.kind))
        self.assertIn("salvage", str(problem))
        for found in (error.change, problem.change):
            self.assertEqual(found, change)
        if change is not None:
            self.assertIn(change, str(error))
            self.assertIn(change, str(problem))
            self.assertNotIn("safely on disk", str(problem))
        self.assertFalse(report.ok)

    def test_an_edited_event_is_found_and_named(self) -> None:
        for index in (0, 5, len(self.lines) - 1):
            for old, new, kind in ((b'"type":"', b'"type":"x', "checksum"), (b',"crc":"', b',"crc":', "json")):
                edited = self.lines[index].replace(old, new, 1)
                lines = [*self.lines[:index], edited, *self.lines[index + 1 :]]
                self.assert_damaged(lines, index + 1, (kind,), "edited")

    def test_a_line_rewritten_by_another_program_is_reported_as_edited(self) -> None:
        anew = json.dumps(json.loads(self.lines[4]), sort_keys=True).encode() + b"\n"
        self.assert_damaged([*self.lines[:4], anew, *self.lines[5:]], 5, ("checksum",), "edited")

    def test_deleted_doubled_and_moved_events_are_named_as_that(self) -> None:
        lines, kinds = self.lines, ("sequence",)
        for behind, missing in (5, "it is missing"), (9, "events 5 to 9 are missing"):
            self.assert_damaged([*lines[:4], *lines[behind:]], 5, kinds, "deleted")
            self.assertIn(missing, str(verify_session(self.store, "s").problems[0]))
        self.assert_damaged(lines[1:], 1, kinds, "deleted")
        half = len(lines[8]) // 2
        cut = [*lines[:4], lines[4][:half] + lines[8][half:], *lines[9:]]
        self.assert_damaged(cut, 5, ("checksum",), "deleted")
        self.assert_damaged([*lines[:5], lines[4], *lines[5:]], 6, kinds, "doubled")
        self.assert_damaged([*lines[:9], *lines[2:6], *lines[9:]], 10, kinds, "doubled")
        self.assert_damaged([*lines[:4], lines[9], *lines[4:]], 5, kinds, "doubled")
        self.assert_damaged([*lines[:4], lines[5], lines[4], *lines[6:]], 5, kinds, "moved")
        self.assert_damaged([*lines[:4], *lines[5:], lines[4]], 5, kinds, "moved")
        self.assert_damaged([*lines[:4], lines[9], *lines[4:9], *lines[10:]], 5, kinds, "moved")

    def test_lines_of_a_second_writer_are_named_as_interleaved(self) -> None:
        def appended(texts: str) -> list[bytes]:
            with self.store.open_writer("s") as writer:
                for text in texts:
                    writer.append([UserMessage(text)])
            added = self.path.read_bytes().splitlines(keepends=True)[len(self.lines) :]
            self.path.write_bytes(b"".join(self.lines))
            return added

        (a1, a2), (b1, b2), seq = appended("ab"), appended("cd"), len(self.lines) + 1
        self.starts += [self.starts[-1] + len(a1), self.starts[-1] + len(a1) + len(a2)]
        self.assert_damaged([*self.lines, a1, b1, a2, b2], seq + 1, ("sequence",), "interleaved")
        self.assert_damaged([*self.lines, a1, a2, b1, b2], seq + 2, ("sequence",), "interleaved")
        glued = self.lines[4][: len(self.lines[4]) // 2] + self.lines[5]
        self.assert_damaged(
            [*self.lines[:4], glued, *self.lines[6:]], 5, ("checksum", "sequence", "json"), "interleaved"
        )
        pieces = self.lines[4][:30] + self.lines[5][:-1] + self.lines[4][30:]
        self.assert_damaged(
            [*self.lines[:4], pieces, *self.lines[6:]], 5, ("checksum", "sequence", "json"), "interleaved"
        )

    def test_a_line_of_another_session_is_found(self) -> None:
        self.store.create_session(session_id="other")
        self.store.append_events("other", [UserMessage(str(n)) for n in range(10)])
        foreign = (self.store.session_dir("other") / LOG_NAME).read_bytes().splitlines(keepends=True)
        self.assert_damaged([*self.lines[:4], foreign[4], *self.lines[5:]], 5, ("checksum",), "edited")
        self.assert_damaged([*self.lines[:7], foreign[4], *self.lines[7:]], 8, ("sequence",), "interleaved")

    def test_line_ends_that_an_editor_converted_are_named_and_undone_by_salvage(self) -> None:
        content, kinds = b"".join(self.lines), ("json", "checksum", "sequence")
        for converted in (
            content.replace(b"\n", b"\r\n"),
            b"\xef\xbb\xbf" + content,
            b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"),
        ):
            self.assert_damaged([converted], 1, kinds, "line ends")
            saved = salvage(self.store, "s")
            self.assertEqual((saved.events, saved.dropped_bytes), (len(self.lines), 0))
            events = self.store.read_events(saved.session_id)
            self.assertEqual(without_stamps(events[1 : len(self.lines) + 1]), without_stamps(self.events))
            self.assertEqual(self.path.read_bytes(), converted)
        half = len(self.lines) // 2
        mixed = [*self.lines[:half], *(line.replace(b"\n", b"\r\n") for line in self.lines[half:])]
        self.assert_damaged(mixed, half + 1, kinds, "line ends")
        self.assertEqual(salvage(self.store, "s").events, len(self.lines))

    def test_a_log_that_was_saved_in_another_form_is_not_a_torn_tail_and_stays_unchanged(self) -> None:
        text = b"".join(self.lines).decode()
        array = json.dumps([json.loads(line) for line in self.lines])
        for content in (
            *(text.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")),
            text.replace("\n", "\r").encode(),
            array.encode(),
            zlib.compress(text.encode()),
            b"<html>Not found" * 9,
        ):
            with self.subTest(content=content[:9]):
                self.path.write_bytes(content)
                for use in (self.store.open_writer, self.store.read_events):
                    with self.assertRaises(LogCorruptError) as caught:
                        use("s")
                    self.assertEqual(caught.exception.seq, 1)
                self.assertEqual(self.path.read_bytes(), content)
                self.assertFalse(verify_session(self.store, "s").ok)

    def test_a_hole_in_what_was_on_disk_is_a_loss_and_no_torn_tail(self) -> None:
        content = bytearray(b"".join(self.lines) * 1)
        start = self.starts[3] + 10
        end = -(-start // 512) * 512
        content[start:end] = bytes(end - start)
        self.assert_damaged([bytes(content)], 4, ("durable-loss",))

    def test_zeros_that_no_lost_sector_explains_are_damage(self) -> None:
        store = self.make_store(durability="flush")
        store.create_session(session_id="t")
        store.append_events("t", [UserMessage(f"some words {n}") for n in range(9)])
        path = store.session_dir("t") / LOG_NAME
        path.write_bytes(path.read_bytes().replace(b"words 4", b"words\x004"))
        with self.assertRaises(LogCorruptError) as caught:
            store.read_events("t")
        self.assertEqual((caught.exception.seq, caught.exception.kind), (5, "hole"))

    def test_a_foreign_line_after_the_end_is_read_when_an_older_tool_wrote_it_and_refused_otherwise(self) -> None:
        content = b"".join(self.lines)
        self.path.write_bytes(content + b'{"type": "user.message", "text": "by hand"}\n')
        events = self.store.read_events("s")
        self.assertEqual(without_stamps(events[-1:]), [UserMessage("by hand")])
        self.assert_goes_on(events)
        self.path.write_bytes(content + b"and a note\n")
        with self.assertRaises(LogCorruptError) as caught:
            self.store.open_writer("s")
        self.assertEqual((caught.exception.seq, caught.exception.kind), (len(self.lines) + 1, "json"))

    def test_a_damaged_end_keeps_writers_out_and_the_file_unchanged(self) -> None:
        content = b"".join(self.lines).replace(b"done 3", b"gone 3")
        self.path.write_bytes(content)
        with self.assertRaises(LogCorruptError):
            self.store.open_writer("s")
        self.assertEqual(self.path.read_bytes(), content)
        self.assertEqual(
            sorted(path.name for path in self.path.parent.iterdir()), ["events.jsonl", "meta.json", "summary.json"]
        )

    def test_salvage_copies_the_intact_events_into_a_new_session_whose_first_event_records_this(self) -> None:
        good, bad = self.store.put_blob("s", b"good"), self.store.put_blob("s", b"bad")
        (self.path.parent / "blobs" / bad).write_bytes(b"rot")
        rng = random.Random(7)
        for index in (0, 1, 9, len(self.lines) - 1):
            damaged = bytearray(b"".join(self.lines))
            damaged[self.starts[index] + rng.randrange(len(self.lines[index]) - 1)] ^= 1
            self.path.write_bytes(damaged)
            saved = salvage(self.store, "s")
            self.assertEqual(saved.events, index)
            self.assertEqual(saved.dropped_bytes, len(damaged) - self.starts[index])
            self.assertEqual(self.path.read_bytes(), damaged)
            first, *events = self.store.read_events(saved.session_id)
            assert isinstance(first, LogSalvaged)
            self.assertEqual((first.source_session_id, first.events), ("s", index))
            self.assertEqual(first.dropped_bytes, saved.dropped_bytes)
            self.assertIn("edited", first.damage)
            self.assertEqual(without_stamps(events[:index]), without_stamps(self.events[:index]))
            self.assertEqual([event.ts for event in events[:index]], [event.ts for event in self.events[:index]])
            self.assertEqual(without_stamps(events[index : index + 1]), [SessionForked("s", index)])
            self.assertEqual({event.type for event in events[index + 1 :]}, {"tool.result"} if index == 9 else set())
            self.assertEqual(self.store.list_blobs(saved.session_id), [good])
            self.store.append_event(saved.session_id, UserMessage("and on"))
            self.assertEqual(verify_session(self.store, saved.session_id).problems, ())

    def test_a_call_that_the_damage_leaves_open_is_in_doubt_and_never_run_again(self) -> None:
        started = next(n for n, event in enumerate(self.events) if isinstance(event, ToolStarted))
        damaged = b"".join(self.lines).replace(self.lines[started + 1], b"x" * 50 + b"\n")
        self.path.write_bytes(damaged)
        saved = salvage(self.store, "s")
        view = SessionView().extend(self.store.iter_events(saved.session_id))
        self.assertEqual(view.open_calls(), [])
        self.assertEqual({record.result.outcome for record in view.calls.values() if record.result}, {"unknown"})

    def test_salvage_keeps_the_positions_to_which_events_refer(self) -> None:
        talk: list[Event] = [UserMessage("one"), AssistantMessage("a"), UserMessage("two"), AssistantMessage("b")]
        talk += [SessionCompacted(2, "short"), UserMessage("three"), SessionRewound(5), UserMessage("four")]
        self.store.create_session(session_id="t")
        stored = self.store.append_events("t", [*talk, UserMessage("damaged")])
        path = self.store.session_dir("t") / LOG_NAME
        path.write_bytes(path.read_bytes().replace(b"damaged", b"changed"))
        saved = salvage(self.store, "t")
        self.assertEqual(rebuild_messages(self.store.iter_events(saved.session_id)), rebuild_messages(stored[:-1]))

    def test_salvage_keeps_events_of_a_newer_version_with_digests_of_another_installation(self) -> None:
        self.store.create_session(session_id="t")
        newer = UnknownEvent({"type": "of.tomorrow", "value": 5, "mac": "0" * 64})
        self.store.append_events("t", [UserMessage("one"), newer])
        saved = salvage(self.store, "t")
        events = self.store.read_events(saved.session_id)
        self.assertEqual([(event.type, event.mac) for event in events[2:3]], [("of.tomorrow", None)])
        assert isinstance(events[2], UnknownEvent)
        self.assertEqual(events[2].data["value"], 5)

    def test_values_nested_deeper_than_this_version_writes_do_not_stop_a_run(self) -> None:
        value: list[Any] = []
        for _ in range(MAX_DEPTH + 50):
            value = [value]
        lines = [{"type": "user.message", "text": "one"}, {"type": "tool.use", "tool_use_id": "c", "name": "Read"}]
        lines[1]["input"] = {"file_path": value}
        self.store.create_session(session_id="t")
        (self.store.session_dir("t") / LOG_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.assertTrue(verify_session(self.store, "t").ok)
        agent = Agent(ScriptedProvider(["on"]), options=OpenAgenticOptions(session_store=self.store))
        self.assertEqual(agent.run_sync("two", session="t").output, "on")

    def test_definitions_without_a_name_and_lists_of_anything_stop_neither_a_run_nor_a_command(self) -> None:
        misfits = [None, 5, [], {}, {"function": 5}]
        lines: list[dict[str, Any]] = [
            {"type": "user.message", "text": "one", "attachments": [*misfits, {"type": "image", "size": "x"}]},
            {"type": "model.context", "model": "m", "provider": "p", "system_prompt": "", "tools": misfits},
            {"type": "model.request", "step": 1, "attempt": 1, "request_sha256": "x", "message_count": 1},
            {"type": "todo.updated", "todos": misfits},
            {"type": "session.meta", "tags": misfits},
            {"type": "assistant.message", "text": "a", "citations": misfits},
        ]
        self.store.create_session(session_id="t")
        (self.store.session_dir("t") / LOG_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
        agent = Agent(ScriptedProvider(["on"]), options=OpenAgenticOptions(session_store=self.store))
        self.assertEqual(agent.run_sync("two", session="t").output, "on")
        for words in ("sessions show t", "sessions explain t", "sessions context t", "sessions search one", "replay t"):
            with (
                self.subTest(words),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                self.assertIn(main([*words.split(), "--store", str(self.store.root_dir)]), (0, 1))

    def test_intact_events_after_the_damage_are_counted_and_kept_as_records_on_request(self) -> None:
        total = len(self.lines)
        edited = self.lines[4].replace(b'"type":"', b'"type":"x', 1)
        for lines, behind in (
            ([*self.lines[:4], edited, *self.lines[5:]], [(seq, True) for seq in range(6, total + 1)]),
            (
                [*self.lines[:4], *self.lines[6:]],
                [(seq, seq > 7) for seq in range(7, total + 1)],
            ),
            (
                [*self.lines[:4], self.lines[3], *self.lines[4:]],
                [(5, True), *((s, True) for s in range(6, total + 1))][1:],
            ),
            ([*self.lines[:4], b"\0" * 700 + b"\n", *self.lines[6:]], [(seq, seq > 7) for seq in range(7, total + 1)]),
        ):
            self.path.write_bytes(b"".join(lines))
            self.assertEqual(salvage(self.store, "s").kept_behind, 0)
            saved = salvage(self.store, "s", keep_behind=True)
            events = self.store.read_events(saved.session_id)
            kept = [event for event in events if isinstance(event, LogFragment)]
            if lines[4] == self.lines[3]:
                behind = [(event.source_seq, event.is_proved) for event in kept]
                self.assertGreaterEqual(len(behind), total - 6)
            self.assertEqual([(event.source_seq, event.is_proved) for event in kept], behind)
            self.assertEqual((saved.report.behind, saved.kept_behind), (len(behind), len(behind)))
            for event in kept:
                self.assertEqual(event.event["type"], self.events[event.source_seq - 1].type)
            plain = [event for event in events if not isinstance(event, LogFragment)]
            self.assertEqual(rebuild_messages(events), rebuild_messages(plain))
            self.assertEqual(verify_session(self.store, saved.session_id).problems, ())

    def test_salvage_into_a_taken_id_changes_nothing(self) -> None:
        self.store.create_session(session_id="taken")
        with self.assertRaises(SessionExistsError):
            salvage(self.store, "s", target_id="taken")
        self.assertEqual(self.store.read_events("taken"), [])

    def test_a_damaged_blob_is_named(self) -> None:
        digest = self.store.put_blob("s", b"data")
        (self.path.parent / "blobs" / digest).write_bytes(b"rot!")
        (problem,) = verify_session(self.store, "s").problems
        self.assertEqual((problem.kind, problem.blob), ("blob", digest))


class LossDetectionTest(SceneTest):
    """Losses that the log itself does not show are detected from the files beside it."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.write(three_turns())
        self.lines = self.path.read_bytes().splitlines(keepends=True)

    def assert_told(self, witness: str, *words: str) -> None:
        for _ in range(2):
            report = verify_session(self.store, "s")
            self.assertFalse(report.ok)
            problems = [problem for problem in report.problems if problem.witness == witness]
            self.assertEqual(len(problems), 1, report.problems)
            for word in (witness, *words):
                self.assertIn(word, str(problems[0]))
            self.store.list_session_summaries()  # listing must not overwrite the summary, which is the better witness

    def test_the_summary_reveals_a_log_without_its_last_lines_or_any_lines(self) -> None:
        total = str(len(self.lines))
        for kept in (0, 1, len(self.lines) - 1):
            self.path.write_bytes(b"".join(self.lines[:kept]))
            self.assert_told("summary.json", f"records {total} events", f"ends after event {kept}")
        self.path.write_bytes(b"".join(self.lines[:-2]) + self.lines[-2][:20])
        self.assert_told("summary.json", "cut off")

    def test_an_append_to_a_log_that_was_cut_keeps_what_the_summary_knew(self) -> None:
        total = len(self.lines)
        for kept in (1, total - 1):
            with self.subTest(kept=kept):
                self.setUp()
                self.path.write_bytes(b"".join(self.lines[:kept]))
                for number in range(total):
                    self.store.append_event("s", UserMessage(f"more {number}"))
                    self.assertEqual(self.store.read_summary("s"), self.store.fold_summary("s"))
                (note,) = verify_session(self.store, "s").notes
                self.assertTrue(note.startswith(f"summary.json.lost-{kept}-{total}: "), note)
                self.assertIn(
                    f"ended after event {kept} when a writer opened it, and had contained {total} events", note
                )

    def test_a_torn_last_line_that_had_been_complete_is_reported_with_it(self) -> None:
        self.path.write_bytes(b"".join(self.lines)[:-30])
        (problem,) = verify_session(self.store, "s").problems
        self.assertEqual(problem.kind, "torn-tail")
        self.assertIn("summary.json records", str(problem))

    def test_a_log_that_lacks_its_last_line_end_has_lost_nothing(self) -> None:
        self.path.write_bytes(b"".join(self.lines)[:-1])
        report = verify_session(self.store, "s")
        self.assertEqual((report.ok, report.events), (True, len(self.lines)))
        self.assertIn("line end after it is missing", str(report.problems[0]))
        self.store.append_event("s", UserMessage("more"))
        self.assertEqual(verify_session(self.store, "s").problems, ())

    def test_the_summary_or_the_metadata_reveals_a_removed_log(self) -> None:
        folder = self.path.parent
        self.path.unlink()
        for witness, words in (
            ("summary.json", f"records {len(self.lines)} events"),
            ("meta.json", "describes a session"),
        ):
            (problem,) = verify_session(self.store, "s").problems
            self.assertIn(f"{witness}: it {words}, and the log is missing", str(problem))
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                for which in ("s", "--all"):
                    code = main(["sessions", "verify", which, "--store", f"file:{self.store.root_dir}"])
                    self.assertEqual((code, "s: damaged" in shown.getvalue()), (1, True))
            (folder / "summary.json").unlink(missing_ok=True)

    def test_the_summary_reveals_a_log_that_was_exchanged(self) -> None:
        self.store.create_session(session_id="t")
        self.store.append_events("t", [UserMessage("x" * 400)] * 40)
        self.path.write_bytes((self.store.session_dir("t") / LOG_NAME).read_bytes())
        self.assert_told("summary.json", "a log that differs")

    def test_the_checkpoint_reveals_a_truncated_log(self) -> None:
        self.store = self.make_store(seal=Seal(self.place / "key"))
        self.store.append_event("s", SessionCompacted(3, "short"))
        with self.store.open_writer("s") as writer:
            _, kept = load_view(self.store, "s")
            assert kept is not None
            writer.keep_view(kept)
        (self.path.parent / "summary.json").unlink()
        self.path.write_bytes(b"".join(self.lines))
        self.assert_told("checkpoint.json", f"records {len(self.lines) + 1} events")

    def test_blobs_and_subagents_reveal_missing_events(self) -> None:
        digest = self.store.put_blob("s", b"data")
        call = ToolUse("task", "Task", {})
        stored = self.store.append_events("s", [call, ToolResult("task", {"truncated": True, "blob": digest})])
        links = {"parent_session_id": "s", "parent_tool_use_id": "task"}
        self.store.create_session(session_id="child", metadata=links)
        self.assertEqual(verify_session(self.store, "s").problems, ())
        whole = self.path.read_bytes()
        (self.path.parent / "summary.json").unlink()
        self.path.write_bytes(b"".join(self.lines))
        self.assert_told("session child", "'task'")
        self.assertIn("1 blob belongs to no event", verify_session(self.store, "s").notes[0])
        self.path.write_bytes(b"")
        self.assert_told("blobs", "no event in the log")
        self.path.write_bytes(whole)
        (self.path.parent / "blobs" / digest).unlink()
        (problem,) = verify_session(self.store, "s").problems
        self.assertEqual((problem.kind, problem.blob), ("missing", digest))
        self.assertEqual(len(stored), 2)

    def test_earlier_content_of_files_and_whole_output_of_code_belong_to_their_events(self) -> None:
        digest, printed = self.store.put_blob("s", b"before"), self.store.put_blob("s", b"the whole output of Code")
        self.store.append_events("s", [ToolUse("c", "Code", {}), ToolResult("c", "text", meta={"blob": printed})])
        self.store.append_event("s", FileKept("w", "/tmp/f.txt", digest, 0o644))
        report = verify_session(self.store, "s")
        self.assertEqual((report.problems, report.notes), ((), ()))
        (self.path.parent / "blobs" / digest).unlink()
        (problem,) = verify_session(self.store, "s").problems
        self.assertEqual((problem.kind, problem.blob), ("missing", digest))

    def test_a_session_that_is_being_written_is_never_reported_as_truncated(self) -> None:
        reports: list[list[Problem]] = []
        rounds = 40 if LARGE else 6

        next_round = threading.Semaphore()

        def write() -> None:
            with self.store.open_writer("s") as writer:
                while len(reports) < rounds:
                    next_round.acquire()
                    for _ in range(100):  # or else each round would read a multiple of the round before
                        writer.append([UserMessage("more")])

        thread = threading.Thread(target=write)
        thread.start()
        while len(reports) < rounds:
            reports.append([p for p in verify_session(self.store, "s").problems if p.kind == "witness"])
            next_round.release()
        thread.join()
        self.assertEqual([report for report in reports if report], [])


class OtherStores(unittest.TestCase):
    def test_sessions_in_a_database_are_verified_and_salvaged_by_the_same_functions(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            stores = (MemorySessionStore(), SqliteSessionStore(f"{folder}/runs.db"))
            for store in stores:
                with contextlib.closing(store):
                    store.create_session(session_id="s")
                    store.append_events("s", [UserMessage("tea"), UserMessage("cake"), UserMessage("jam")])
                    report = verify_session(store, "s")
                    self.assertEqual((report.problems, report.events, report.foreign), ((), 3, ()))
                    self.assertEqual(len(store.read_events(salvage(store, "s", target_id="t").session_id)), 5)
                    with self.assertRaises(SessionNotFoundError):
                        verify_session(store, "none")
                    with self.assertRaisesRegex(OptionsError, "keep_behind"):
                        salvage(store, "s", keep_behind=True)
            store = SqliteSessionStore(f"{folder}/runs.db")
            with contextlib.closing(store), contextlib.closing(sqlite3.connect(store.path)) as db:
                db.execute("UPDATE events SET data = '{' WHERE data LIKE '%cake%' AND place < (2 << 32)")
                db.commit()
                (problem,) = verify_session(store, "s").problems
                self.assertEqual((problem.kind, problem.seq), ("json", 2))
                self.assertEqual(salvage(store, "s").events, 1)
