"""Recorded logs are read today as they were when they were written."""

from __future__ import annotations

import json
import unittest

from openagentic_sdk.sessions.rebuild import rebuild_messages

from .record_logs import LOGS, facts, read_log

FOLDERS = sorted(path.parent for path in LOGS.glob("*/events.jsonl"))


class RecordedLogs(unittest.TestCase):
    maxDiff = None

    def test_messages_and_summary_match_those_stored_beside_the_log(self) -> None:
        for folder in FOLDERS:
            for file, value in facts(read_log(folder)).items():
                with self.subTest(log=folder.name, file=file):
                    recorded = json.loads((folder / file).read_bytes())
                    if isinstance(recorded, dict):  # facts added since then were not recorded
                        value = {name: known for name, known in value.items() if name in recorded}
                    self.assertEqual(value, recorded)

    def test_every_call_of_every_prefix_has_exactly_one_result_right_after_it(self) -> None:
        for folder in FOLDERS:
            events = read_log(folder)
            for length in range(len(events) + 1):
                with self.subTest(log=folder.name, length=length):
                    self._check(rebuild_messages(events[:length]))

    def _check(self, messages: list[dict[str, object]]) -> None:
        waiting: list[object] = []
        for message in messages:
            if message["role"] == "tool":
                self.assertTrue(waiting, "a result without its call")
                self.assertEqual(message["tool_call_id"], waiting.pop(0))
                continue
            self.assertEqual(waiting, [], "a call without its result")
            calls = message.get("tool_calls") or []
            assert isinstance(calls, list)
            waiting = [call["id"] for call in calls]
        self.assertEqual(waiting, [])

    def test_there_are_logs_of_each_kind(self) -> None:
        kinds = {"bare", "failed", "plain", "resumed", "subagent", "tools", "torn"}
        self.assertEqual({folder.name for folder in FOLDERS}, kinds)


if __name__ == "__main__":
    unittest.main()
