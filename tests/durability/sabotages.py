"""One-line breakages of the package, each with the tests that must detect it.

A row has a sentence that says what is wrong, the file of the package, the text to replace (it must occur exactly once), the
replacement, and the tests to run; at least one of them must fail.
"""

from __future__ import annotations

from typing import NamedTuple


class Sabotage(NamedTuple):
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


TAIL = "tests.durability.test_tail.TailTest."
WITNESS = "tests.durability.test_corruption.LossDetectionTest."
CORRUPTION = "tests.durability.test_corruption.CorruptionTest."
DISK = "tests.durability.test_disk_errors.DiskErrorTest."
FORMAT = "tests.durability.test_format."
PROCESSES = "tests.durability.test_processes."
STORE = "tests.durability.test_store."
POWER = "tests.durability.test_power"
UNSYNCED = "tests.durability.test_unsynced.UnsyncedTest."
RUNTIME = "tests.runtime."

SABOTAGES = (
    Sabotage(
        "a barrier does not wait for the disk",
        "sessions/log/file.py",
        "        try:\n            self._disk.fdatasync(self._fd)\n        except OSError as error:\n            # The",
        "        try:\n            pass\n        except OSError as error:\n            # The",
        (DISK + "test_barriers_are_synced_and_other_events_are_not",),
    ),
    Sabotage(
        "the sync comes before the write",
        "sessions/log/file.py",
        '            self._write(b"".join(lines), seq, crc)\n',
        '            self._sync()\n            self._write(b"".join(lines), seq, crc)\n            self._durable_seq += 1\n',
        (POWER, FORMAT + "EnvelopeTest.test_a_line_records_what_was_on_disk_when_it_was_written"),
    ),
    Sabotage(
        "a torn tail stays where it is",
        "sessions/log/file.py",
        "    if end.torn_bytes:\n",
        "    if False:\n",
        (TAIL + "test_the_first_event_after_a_torn_tail_is_not_glued_to_it",),
    ),
    Sabotage(
        "a torn tail is discarded",
        "sessions/log/file.py",
        "        write_durably(disk, path.with_name(moved_to), torn)\n",
        "",
        (TAIL + "test_a_torn_tail_is_moved_aside_and_reported_once",),
    ),
    Sabotage(
        "a torn tail is cut off before it is saved",
        "sessions/log/file.py",
        "        write_durably(disk, path.with_name(moved_to), torn)\n"
        "        cut_log(disk, fd, path, end.position.offset)\n",
        "        cut_log(disk, fd, path, end.position.offset)\n"
        "        write_durably(disk, path.with_name(moved_to), torn)\n",
        (TAIL + "test_a_repair_that_is_killed_at_any_step_is_finished_by_the_next",),
    ),
    Sabotage(
        "a repair is not reported",
        "sessions/log/file.py",
        "    if events:\n        writer.append(events)\n",
        "    if False:\n        writer.append(events)\n",
        (TAIL + "test_a_torn_tail_is_moved_aside_and_reported_once",),
    ),
    Sabotage(
        "the lock is not taken",
        "sessions/log/file.py",
        "        if not try_lock(fd):\n",
        "        if False:\n",
        (STORE + "FileSessionStoreTest.test_the_second_writer_is_refused_and_changes_nothing",),
    ),
    Sabotage(
        "a session in use can be deleted",
        "sessions/store.py",
        "            if not try_lock(fd):\n",
        "            if False:\n",
        (PROCESSES + "ProcessesTest.test_a_second_process_is_refused_at_once_until_the_first_ends_or_dies",),
    ),
    Sabotage(
        "the size is not checked before an append",
        "sessions/log/file.py",
        "        if size != self._end:\n",
        "        if False:\n",
        (DISK + "test_a_writer_that_ignores_the_lock_is_noticed_before_the_next_append",),
    ),
    Sabotage(
        "a forked child may write",
        "sessions/log/file.py",
        "        if os.getpid() != self._pid:\n            raise",
        "        if False:\n            raise",
        (DISK + "test_a_handle_inherited_over_fork_is_refused_and_the_parents_stays_good",),
    ),
    Sabotage(
        "a short write counts as complete",
        "sessions/log/file.py",
        "            if count != size:\n",
        "            if False:\n",
        (DISK + "test_a_full_disk_rolls_the_batch_back_and_writing_continues_when_there_is_room",),
    ),
    Sabotage(
        "a failed write leaves a partial line",
        "sessions/log/file.py",
        "            cut_log(self._disk, self._fd, self._path, self._end)\n",
        "            pass\n",
        (DISK + "test_a_full_disk_rolls_the_batch_back_and_writing_continues_when_there_is_room",),
    ),
    Sabotage(
        "the truncation after a failed write may reach the disk after later writes",
        "sessions/log/file.py",
        "        # Without this, a power loss could mix old bytes of the cut line with new ones.\n"
        "        disk.fdatasync(fd)\n",
        "",
        (POWER,),
    ),
    Sabotage(
        "a failed sync is tried again",
        "sessions/log/file.py",
        '            self._unusable = f"fdatasync failed ({error.strerror})"\n',
        "",
        (DISK + "test_after_an_unknown_error_or_a_failed_sync_the_handle_is_not_written_to_again",),
    ),
    Sabotage(
        "a sync is trusted after one that failed",
        "sessions/log/file.py",
        "            if marked is not None or (info.st_dev, info.st_ino) in DISTRUSTED:\n",
        "            if False:\n",
        (
            POWER + ".FailedSyncTest",
            UNSYNCED + "test_another_process_puts_the_log_into_a_new_file_before_it_trusts_a_sync",
        ),
    ),
    Sabotage(
        "another process trusts a sync after one that failed",
        "sessions/log/unsynced.py",
        "        disk.close(disk.open(mark, os.O_WRONLY | os.O_CREAT | BINARY | NO_FOLLOW, 0o600))\n",
        "        pass\n",
        (
            POWER + ".FailedSyncTest",
            UNSYNCED + "test_another_process_puts_the_log_into_a_new_file_before_it_trusts_a_sync",
        ),
    ),
    Sabotage(
        "a rewritten log is renamed before it is on disk",
        "sessions/log/unsynced.py",
        "    write_new_file(disk, unfinished, blocks, sync=True, mode=mode)\n",
        "    write_new_file(disk, unfinished, blocks, sync=False, mode=mode)\n",
        (POWER + ".FailedSyncTest",),
    ),
    Sabotage(
        "an I/O error is reported as a full disk",
        "sessions/log/file.py",
        "        if cause.errno not in _NO_ROOM:\n",
        "        if False:\n",
        (DISK + "test_after_an_unknown_error_or_a_failed_sync_the_handle_is_not_written_to_again",),
    ),
    Sabotage(
        "a line claims that it is on disk itself",
        "sessions/log/file.py",
        "dumps_time(now), self._durable_seq, self._seq",
        "dumps_time(now), self._seq, self._seq",
        (POWER, FORMAT + "EnvelopeTest.test_a_line_records_what_was_on_disk_when_it_was_written"),
    ),
    Sabotage(
        "the start of an unsafe tool is no barrier",
        "sessions/log/line.py",
        '        return event.effect != "read"\n',
        "        return False\n",
        (FORMAT + "EnvelopeTest.test_the_barriers_are_what_matters_afterwards",),
    ),
    Sabotage(
        "checksums are not checked",
        "sessions/log/line.py",
        """        if not line.endswith(b',"crc":"%08x"}' % own):\n""",
        "        if False:\n",
        (CORRUPTION + "test_an_edited_event_is_found_and_named",),
    ),
    Sabotage(
        "damage ends the log silently",
        "sessions/log/scan.py",
        "            raise LogCorruptError(self._session_id, here.seq + 1, here.offset, kind, change.name, change.text)\n",
        "            return\n",
        (CORRUPTION + "test_an_edited_event_is_found_and_named",),
    ),
    Sabotage(
        "a loss of durable data passes for a torn tail",
        "sessions/log/scan.py",
        "        if claimed_dur(self._disk, self._fd, here.offset) > here.seq:\n",
        "        if False:\n",
        (CORRUPTION + "test_a_hole_in_what_was_on_disk_is_a_loss_and_no_torn_tail",),
    ),
    Sabotage(
        "a page that was never written is reported as damage",
        "sessions/log/scan.py",
        '        elif any((here.offset + hole.end()) % SECTOR_BYTES == 0 for hole in re.finditer(rb"\\0+", line)):\n',
        "        elif False:\n",
        (POWER,),
    ),
    Sabotage(
        "any zero byte passes for a lost page",
        "sessions/log/scan.py",
        "(here.offset + hole.end()) % SECTOR_BYTES == 0",
        "(here.offset + hole.end()) % SECTOR_BYTES >= 0",
        (CORRUPTION + "test_zeros_that_no_lost_sector_explains_are_damage",),
    ),
    Sabotage(
        "only the last line is checked when a log is opened",
        "sessions/log/scan.py",
        "        anchor = _line_of(window, start, last.version, last.dur) if last and last.dur else None\n",
        "        anchor = _line_of(window, start, last.version, last.seq - 1) if last and last.seq > 1 else None\n",
        (POWER,),
    ),
    Sabotage(
        "a list overwrites a summary that is ahead of the log",
        "sessions/log/summary_beside.py",
        "        if fresh.position.terminated and keep and agrees:\n",
        "        if fresh.position.terminated and keep:\n",
        (WITNESS + "test_the_summary_reveals_a_log_without_its_last_lines_or_any_lines",),
    ),
    Sabotage(
        "a checkpoint is trusted whoever wrote it",
        "sessions/checkpoint.py",
        '        if not body or not seal.matches(digest.decode("ascii"), _PURPOSE, _name(session_id), body):\n',
        "        if not body:\n",
        ("tests.durability.test_checkpoint.CheckpointTest",),
    ),
    Sabotage(
        "a checkpoint is trusted whatever log it belongs to",
        "sessions/store.py",
        "                if is_at(self._disk, fd, position):\n",
        "                if True:\n",
        ("tests.durability.test_checkpoint.CheckpointTest",),
    ),
    Sabotage(
        "a new writer does not record what is on disk",
        "sessions/log/file.py",
        '    if durability != "flush" or end.position.offset - end.durable_offset > MAX_UNSYNCED_BYTES_FOUND:\n',
        "    if False:\n",
        (DISK + "test_a_writer_that_opens_a_log_records_its_events_as_on_disk",),
    ),
    Sabotage(
        "an event is stored after one that was refused",
        "kernel/recorder.py",
        "        if self._said_unsaved:\n",
        "        if False:\n",
        (RUNTIME + "test_storage.StorageTest.test_continue_stores_nothing_behind_an_event_that_was_refused",),
    ),
    Sabotage(
        "a log of a newer format is written to",
        "sessions/log/file.py",
        "    if end.version > FORMAT_VERSION:\n",
        "    if False:\n",
        (FORMAT + "OtherWritersTest.test_a_log_of_a_newer_format_can_be_read_and_not_be_written",),
    ),
    Sabotage(
        "a new session may vanish in a power cut",
        "sessions/log/folder.py",
        "                    rename_durably(disk, unfinished, folder, sync=sync)\n",
        "                    disk.rename(str(unfinished), str(folder))\n",
        (STORE + "FilesTest.test_a_new_session_is_on_disk_before_its_id_is_known",),
    ),
    Sabotage(
        "a file is renamed before its bytes are on disk",
        "ground/disk.py",
        "        if sync:\n            disk.fdatasync(fd)\n",
        "",
        (STORE + "FilesTest.test_a_blob_is_on_disk_before_its_digest_is_known",),
    ),
    Sabotage(
        "an id may lead out of the store",
        "sessions/log/folder.py",
        "not text.strip(_ID_LETTERS)",
        "bool(text.strip(_ID_LETTERS) or True)",
        (STORE + "FilesTest.test_only_plain_names_can_name_a_session",),
    ),
    Sabotage(
        "an unsafe call in doubt runs again after a crash",
        "kernel/settle.py",
        "    return harmless and (",
        "    return True or (",
        (RUNTIME + "test_crash.CrashMatrixTest.test_a_tool_call_killed_at_every_point_and_resumed",),
    ),
    Sabotage(
        "a call takes effect before its start is in the log",
        "kernel/tool_step.py",
        "        await run.record(*(event for call in permitted for",
        "        tuple((event for call in permitted for",
        (
            RUNTIME
            + "test_storage.StorageTest.test_a_full_disk_ends_the_run_before_its_next_effect_with_a_result_that_names_it",
        ),
    ),
    Sabotage(
        "an event is shown before it is stored",
        "kernel/recorder.py",
        "        stored_events = await self.store(*events)\n        await self.channel.send(*stored_events)\n",
        "        await self.channel.send(*events)\n        stored_events = await self.store(*events)\n",
        (RUNTIME + "test_loop.LoopTest.test_every_event_but_deltas_is_stored_before_it_is_seen",),
    ),
    Sabotage(
        "a prompt leaves open what waits for a person",
        "kernel/loop.py",
        '    ends = await supersede(run) if prompt.origin == "user" else ()\n',
        "    ends = ()\n",
        (
            "tests.runs.test_superseding.SupersedingTest.test_several_calls_and_what_had_not_begun_beside_them_end_together",
        ),
    ),
    Sabotage(
        "a prompt leaves a subagent's question open in its own log",
        "parts/subagents.py",
        "            finished: SubagentFinished = await off_loop(True, end, run.agent.store, started, run.agent.seal)\n",
        "            finished = SubagentFinished(started.tool_use_id, started.name, started.child_session_id, 'end')\n",
        ("tests.runs.test_superseding.SupersedingTest.test_questions_of_subagents_end_in_every_log",),
    ),
    Sabotage(
        "a cancelled run leaves its calls open",
        "kernel/loop.py",
        "    await run.record(*closing_events(calls, questions, ending.reason))\n",
        "",
        (RUNTIME + "test_cancel.CancelTest.test_closing_the_generator_after_every_event",),
    ),
    Sabotage(
        "a prompt that was answered is run again",
        "sessions/folds/requests.py",
        "        return None if request is None else request.answer\n",
        "        return None\n",
        (RUNTIME + "test_crash.RequestIdTest",),
    ),
    Sabotage(
        "an answer is returned for an earlier request that failed",
        "sessions/folds/requests.py",
        "for name in filter(None, self.asked):",
        "for name in [*self]:",
        (RUNTIME + "test_requests.AnswerTest",),
    ),
    Sabotage(
        "a call without a result gets none",
        "sessions/rebuild.py",
        '            messages.append({"role": "tool"',
        '            result and messages.append({"role": "tool"',
        ("tests.sessions.test_rebuild.EveryPrefixTest",),
    ),
    Sabotage(
        "the digest of a request leaves its tools out",
        "sessions/request.py",
        "    tools_json = dumps_canonical(tools if isinstance(tools, list) else [*tools])\n",
        '    tools_json = "[]"\n',
        ("tests.runs.test_replay.ReplayTest.test_a_request_with_other_tools_is_found",),
    ),
    Sabotage(
        "the end of a run leaves its questions open",
        "kernel/loop.py",
        "    questions = [question for question in run.view.open_questions() if question not in to_keep]\n",
        "    questions: list[UserQuestion] = []\n",
        (RUNTIME + "test_loop.EndingTest.test_a_question_that_is_open_when_the_time_is_over_ends_with_the_run",),
    ),
    Sabotage(
        "a result is assigned to a call that a rewind removed",
        "sessions/rebuild.py",
        "        self._by_call = {call_id: block for block in view for call_id in block.calls}\n",
        "",
        ("tests.sessions.test_rebuild.OperationsTest.test_a_result_after_a_rewind_is_that_of_the_call_in_view",),
    ),
    Sabotage(
        "the error of an abandoned writer says that it can be retried",
        "sessions/log/file.py",
        '"open the session again" if self._unusable else f"{more_room()} and try again"',
        'f"{more_room()} and try again"',
        (DISK + "test_after_an_unknown_error_or_a_failed_sync_the_handle_is_not_written_to_again",),
    ),
)
