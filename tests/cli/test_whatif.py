"""`whatif` on the command line."""

import asyncio
import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk import FileSessionStore, OpenAgenticOptions, PermissionGate, run, tool
from openagentic_sdk.cli.main import main
from openagentic_sdk.cli.stored.bisect import find_flip
from openagentic_sdk.testing import ScriptedProvider

AGENT = """
from openagentic_sdk import OpenAgenticOptions, PermissionGate, tool
from openagentic_sdk.testing import ScriptedProvider


@tool(effect="read")
def count(item: str) -> int:
    raise RuntimeError("it is not called: the recorded result is used")


def make():
    gate = PermissionGate(permission_mode="bypass")
    return OpenAgenticOptions(provider=ScriptedProvider([]), tools=[count], permission_gate=gate, setting_sources=())
"""


STOCKED = """
from openagentic_sdk import OpenAgenticOptions
from openagentic_sdk.providers.base import ModelOutput


class Stocked:
    name = "stocked"

    async def complete(self, *, model, messages, tools=(), api_key=None):
        names = ", ".join(spec["function"]["name"] for spec in tools)
        return ModelOutput(f"{model} has {names}", ())


def make():
    return OpenAgenticOptions(provider=Stocked(), model="small", tools=[], setting_sources=())
"""
MOODY = """
from openagentic_sdk import OpenAgenticOptions
from openagentic_sdk.providers.base import ModelOutput


class Moody:
    name = "moody"

    async def complete(self, *, model, messages, tools=(), api_key=None):
        return ModelOutput("A zoo." if "zoo" in str(messages[0]) else "4 packs.", ())


def make():
    return OpenAgenticOptions(provider=Moody(), model="m", setting_sources=())
"""


@tool(effect="read")
def count(item: str) -> int:
    """Count."""
    return 3


class WhatIfTest(unittest.TestCase):
    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*arguments])
        return code, out.getvalue(), err.getvalue()

    def test_a_fork_runs_with_another_system_prompt_from_a_file_and_stops_at_the_first_new_call(self):
        with tempfile.TemporaryDirectory() as folder:
            script, other, system = (Path(folder, name) for name in ("script.json", "other.json", "system.txt"))
            glob = {"name": "Glob", "arguments": {"pattern": "*"}}
            script.write_text(json.dumps({"turns": [{"tool_calls": [glob]}, "Done."]}))
            new = {"name": "Glob", "arguments": {"pattern": "*.new"}}
            turns = [{"tool_calls": [glob], "expect": {"contains": "Be brief."}}, {"tool_calls": [new]}, "never"]
            other.write_text(json.dumps({"turns": turns}))
            system.write_text("Be brief.")
            store = ["--store", str(Path(folder, "store")), "--cwd", folder, "--setting-sources", "none"]
            code, _, err = self.call("run", "--script", str(script), *store, "look")
            self.assertEqual(code, 0, err)
            arguments = ("whatif", "newest", "--at", "2", "--script", str(other), "--system", str(system), *store)
            code, out, err = self.call(*arguments, "--json")
            events = [json.loads(line) for line in out.splitlines()]
            self.assertEqual((code, events[-1]["stop_reason"]), (1, "interrupted"), err)
            outcomes = [event["outcome"] for event in events if event["type"] == "tool.result"]
            self.assertEqual(outcomes, ["ok", "error"])

    def test_an_agent_of_ones_own_keeps_its_tools_and_no_other_is_offered(self):
        with tempfile.TemporaryDirectory() as folder:
            module = f"shop_{Path(folder).name.replace('-', '_')}"
            Path(folder, f"{module}.py").write_text(AGENT)
            files, script = FileSessionStore(Path(folder, "store")), Path(folder, "script.json")
            wish = {"name": "count", "arguments": {"item": "tea"}}
            options = OpenAgenticOptions(
                provider=ScriptedProvider([{"tool_calls": [wish]}, "Three."]), model="scripted", tools=[count],
                session_store=files, permission_gate=PermissionGate(permission_mode="bypass"), setting_sources=(),
            )  # fmt: skip
            session_id = asyncio.run(run(prompt="How many?", options=options)).session_id
            turn = {"tool_calls": [wish], "expect": {"tools": ["count"]}}
            script.write_text(json.dumps({"turns": [turn, {"text": "3", "expect": {"tool_results": {"count": "3"}}}]}))
            for own in (["--agent", f"{module}:make", "--app-dir", folder], []):
                flags = ["--script", str(script), "--store", str(files.root_dir), "--json"]
                code, out, err = self.call("whatif", session_id, "--at", "2", *own, *flags)
                results = [json.loads(line) for line in out.splitlines() if '"tool.result"' in line]
                self.assertEqual((code, [each["output"] for each in results]), (0, [3]), err + out)

    def test_the_change_that_flips_the_outcome_is_found_and_its_price_is_announced_first(self):
        with tempfile.TemporaryDirectory() as folder:
            module = f"moody_{Path(folder).name.replace('-', '_')}"
            Path(folder, f"{module}.py").write_text(MOODY)
            files = FileSessionStore(Path(folder, "store"))
            options = OpenAgenticOptions(
                provider=ScriptedProvider(["4 packs."]), model="m", session_store=files, setting_sources=()
            )
            session_id = asyncio.run(run(prompt="Is there tea?", options=options)).session_id
            flags = [
                "--agent",
                f"{module}:make",
                "--app-dir",
                folder,
                "--passes",
                "packs",
                "--store",
                str(files.root_dir),
            ]
            changes = ["prompt=Be brief.", "deny=Write", "prompt=You keep a zoo.", "without=Bash"]
            named = [word for change in changes for word in ("--change", change)]
            code, out, err = self.call("sessions", "bisect", session_id, *named, *flags)
            self.assertEqual(code, 0, err)
            lines = out.splitlines()
            self.assertEqual(lines[0], "4 changes: at most 4 runs of about 1 model call each, 4 in all")
            self.assertEqual(lines[-1], "the outcome flips with prompt=You keep a zoo.")
            self.assertEqual(len(lines), 6)
            code, out, _ = self.call("sessions", "bisect", session_id, "--change", "deny=Write", *flags)
            self.assertEqual((code, out.splitlines()[-1]), (1, "the changes do not flip the outcome"))
            code, out, _ = self.call("sessions", "bisect", session_id, *named, *flags, "--dry-run")
            self.assertEqual((code, len(out.splitlines())), (0, 1))

    def test_another_model_is_asked_by_the_agents_own_provider_and_a_tool_left_out_is_not_offered(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "stocked.py").write_text(STOCKED)
            flags = ("--agent", "stocked:make", "--app-dir", folder, "--store", folder)
            store = FileSessionStore(folder)
            model = ScriptedProvider([{"tool_calls": [{"name": "count", "arguments": {"item": "tea"}}]}, "3."])
            options = OpenAgenticOptions(
                provider=model,
                model="small",
                tools=[count],
                session_store=store,
                permission_gate=PermissionGate(permission_mode="bypass"),
                setting_sources=(),
            )
            source = asyncio.run(run(prompt="Is there tea?", options=options)).session_id
            code, out, err = self.call("whatif", source, "--at", "2", "--model", "large", *flags)
            self.assertEqual(code, 0, err)
            self.assertIn("large has count", out)
            change = ("--change", "deny=Write", "--change", "without=count")
            code, out, err = self.call("sessions", "bisect", source, *change, "--passes", "has count", *flags)
            self.assertEqual((code, err), (0, ""))
            self.assertIn("the outcome flips with without=count", out)
            code, _, err = self.call("sessions", "bisect", source, *change, "--passes", "(((", *flags)
            self.assertEqual((code, err.count("\n")), (2, 1))
            self.assertIn("--passes '(((' is not a regular expression", err)

    def test_bisecting_finds_each_place_within_its_number_of_runs(self):
        for count in range(1, 20):
            for place in range(1, count + 1):
                tried = []

                async def passes(first, place=place, tried=tried):
                    tried.append(first)
                    return first >= place

                self.assertEqual(asyncio.run(find_flip(count, passes)), place)
                self.assertLessEqual(len(tried), 2 + (count - 1).bit_length())

    def test_flags_that_a_what_if_cannot_honour_are_refused_and_the_session_stays_unchanged(self):
        with tempfile.TemporaryDirectory() as folder:
            module = f"kept_{Path(folder).name.replace('-', '_')}"
            Path(folder, f"{module}.py").write_text(AGENT)
            script = Path(folder, "script.json")
            script.write_text('{"turns": ["Hi."]}')
            store = ["--store", str(Path(folder, "store"))]
            self.call("run", "--script", str(script), *store, "--cwd", folder, "hi")
            files = FileSessionStore(Path(folder, "store"))
            [session_id] = files.list_sessions()
            before = files.last_seq(session_id)
            scripted = ["--script", str(script), "--cwd", folder]
            own = ["--agent", f"{module}:make", "--app-dir", folder, "--deny", "Bash"]
            for flags, expected in (
                ([*scripted, "--resume", session_id], "is not a fork of"),
                (own, "--deny does not apply to the options of --agent"),
                ([*scripted, "--continue"], "unrecognized arguments: --continue"),
            ):
                with self.subTest(flags=flags):
                    code, _, err = self.call("whatif", session_id, "--at", "2", *store, *flags)
                    self.assertEqual(code, 2)
                    self.assertIn(expected, err)
                    self.assertEqual((files.list_sessions(), files.last_seq(session_id)), ([session_id], before))

    def test_a_position_that_is_not_there_is_one_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.json")
            script.write_text('{"turns": ["Hi."]}')
            store = ["--store", str(Path(folder, "store")), "--cwd", folder]
            self.call("run", "--script", str(script), *store, "hi")
            code, _, err = self.call("whatif", "newest", "--at", "99", "--script", str(script), *store)
            self.assertEqual((code, err.count("\n")), (2, 1))
            self.assertIn("cannot be forked at 99", err)


if __name__ == "__main__":
    unittest.main()
