"""The command from the outside: its output on both streams, and its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openagentic_sdk.cli.commands import COMMANDS, FIRST_COMMANDS
from openagentic_sdk.cli.exits import FAILED, INTERRUPTED, OK, USAGE
from openagentic_sdk.cli.main import main
from openagentic_sdk.cli.output.turn import READING_S, JsonPrinter, ResultPrinter, Turn
from openagentic_sdk.events import Event
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.prompts import Prompt
from openagentic_sdk.runs.turns import Turns
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from tests.looptime import skip_time
from tests.size import full_size

from ..ports import free_port, until_listens
from ..pythons import Python

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "fixtures" / "projects" / "checklist"


class CommandCase(unittest.TestCase):
    """Run the command in this process, with a separate store and folder."""

    maxDiff = None

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.store = self.folder / "store"
        self._set_environment(HOME=folder.name, OPENAGENTIC_SDK_STORE=str(self.store))

    def _set_environment(self, **values: str) -> None:
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        for name in [name for name in os.environ if name.startswith(("OPENAI_", "OPENAGENTIC_"))]:
            del os.environ[name]
        os.environ.update(values)

    def script(self, *turns: dict[str, Any] | str) -> str:
        """A script file with these turns."""
        path = self.folder / "script.json"
        path.write_text(json.dumps({"turns": list(turns)}), encoding="utf-8")
        return str(path)

    def command(self, *argv: str, stdin: str = "") -> tuple[int, str, str]:
        """Run the command; return exit code, stdout and stderr."""
        out, err, before = io.StringIO(), io.StringIO(), sys.stdin
        sys.stdin = io.StringIO(stdin)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(argv)
        finally:
            sys.stdin = before
        return code, out.getvalue(), err.getvalue()

    def session_ids(self) -> list[str]:
        return FileSessionStore(self.store).list_sessions()


class Help(CommandCase):
    def test_the_help_text_names_the_command_and_its_subcommands(self) -> None:
        code, out, _ = self.command("--help")
        self.assertEqual(code, OK)
        self.assertIn("usage: openagentic-sdk", out)
        for name in FIRST_COMMANDS:
            self.assertIn(f"    {name} ", out)
        code, others, _ = self.command("admin", "--help")
        self.assertEqual(code, OK)
        for name in {*COMMANDS} - {*FIRST_COMMANDS}:
            self.assertRegex(others, rf"\n    {name}\s")
            self.assertNotRegex(out, rf"\n    {name}\s")

    def test_commands_beside_the_first_ones_work_with_admin_before_them_and_without(self) -> None:
        self.assertEqual(
            self.command("skills", "list", "--help")[:2], self.command("admin", "skills", "list", "--help")[:2]
        )
        self.assertEqual(self.command("admin")[0], USAGE)

    def test_an_unknown_command_action_flag_or_choice_suggests_a_similar_one(self) -> None:
        for argv, near in (
            (("sesions", "list"), "sessions"),
            (("admin", "trsut"), "trust"),
            (("sessions", "lst"), "list"),
            (("run", "--alow", "x", "hi"), "--allow"),
            (("sessions", "delete", "--yse", "x"), "--yes"),
            (("run", "--permission-mode", "pln", "hi"), "plan"),
        ):
            with self.subTest(argv):
                code, out, err = self.command(*argv)
                self.assertEqual((code, out), (USAGE, ""))
                self.assertRegex(err.splitlines()[-1], f"did you mean .*{near}")

    def test_the_version_is_the_packages(self) -> None:
        from openagentic_sdk import __version__

        self.assertEqual(self.command("--version"), (OK, f"openagentic-sdk {__version__}\n", ""))

    def test_wrong_usage_exits_with_2(self) -> None:
        for argv in (
            (),
            ("fly",),
            ("run", "--flag-that-is-none", "x"),
            ("run", "--max-steps", "0", "x"),
            ("sessions",),
        ):
            with self.subTest(argv):
                code, out, err = self.command(*argv)
                self.assertEqual((code, out), (USAGE, ""))
                self.assertEqual("usage: openagentic-sdk" in err, "run" not in argv)
                self.assertIn(": error: ", err)

    def test_a_wrong_flag_of_a_command_with_many_is_one_line(self) -> None:
        for flag, advice in (
            ("--modle", "did you mean --model"),
            ("--zzz", "openagentic-sdk run --help lists the flags"),
            ("--provider", "there is no 'x'; openagentic-sdk run --help lists the choices"),
        ):
            with self.subTest(flag):
                code, _, err = self.command("run", "Hi", flag, "x")
                self.assertEqual((code, err.count("\n")), (USAGE, 1))
                self.assertIn(advice, err)

    def test_a_file_that_cannot_be_read_is_named_once(self) -> None:
        for argv in (
            ("run", "Hi", "--script", "none.json"),
            ("serve", "--agents", "none.toml"),
            ("run", "Hi", "--script", self.script("Hi."), "--output-schema", "none.json"),
            ("verify", "--signed", "newest", "--receipt", "none.json"),
        ):
            with self.subTest(argv):
                _, _, err = self.command(*argv)
                self.assertEqual((err.count("none."), "Errno" in err), (1, False), err)


class Running(CommandCase):
    def test_quiet_prints_the_answer_alone_and_json_result_one_object(self) -> None:
        answer = 'Here: {"n": 3}'
        schema = self.folder / "schema.json"
        schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
        look = {"tool_calls": [{"name": "Read", "arguments": {"file_path": "src/version.py"}}]}

        def printed(*flags: str) -> tuple[int, str, str]:
            return self.command(
                "run", "--script", self.script(look, answer), "--cwd", str(PROJECT), *flags, "How many?"
            )

        self.assertEqual(printed("--quiet"), (OK, f"{answer}\n", ""))
        self.assertEqual(printed("--quiet", "--output-schema", str(schema)), (OK, '{"n": 3}\n', ""))
        code, out, err = printed("--json-result", "--output-schema", str(schema))
        result = json.loads(out)
        self.assertEqual((code, result["structured_output"], result["final_text"]), (OK, {"n": 3}, answer))
        self.assertEqual((result["stop_reason"], result["session_id"] in self.session_ids()), ("end", True))
        self.assertIn("[Read] src/version.py", err)
        code, out, err = printed("--quiet", "--max-steps", "1")
        self.assertEqual((code, out, "max_steps is 1" in err), (FAILED, "", True))
        code, out, err = printed("--json-result", "--max-steps", "1")
        self.assertEqual((code, json.loads(out)["stop_reason"]), (FAILED, "max_steps"))
        schema.write_text("[]")
        self.assertEqual(printed("--output-schema", str(schema))[0], USAGE)
        self.assertEqual(printed("--output-schema", str(self.folder / "missing"))[0], USAGE)

    def test_a_run_prints_text_calls_and_a_closing_line(self) -> None:
        script = self.script(
            {"text": "Looking.", "tool_calls": [{"name": "Read", "arguments": {"file_path": "src/version.py"}}]},
            "0.2.0",
        )
        code, out, err = self.command("run", "--script", script, "--cwd", str(PROJECT), "Which version?")
        self.assertEqual((code, err), (OK, ""))
        lines = out.splitlines()
        self.assertEqual(lines[0], "Looking.")
        self.assertRegex(lines[1], r"^  \[Read\] src/version\.py - ok, \d+ ms$")
        self.assertEqual(lines[2], "0.2.0")
        session_id = self.session_ids()[0]
        self.assertRegex(lines[3], rf"^Ended: session {session_id}, 2 steps, [\d,]+ \+ [\d,]+ tokens, cost unknown, ")

    def test_the_prompt_may_come_from_stdin(self) -> None:
        for argv in ((), ("-",)):
            with self.subTest(argv):
                script = self.script({"text": "ok", "expect": {"last": "from a pipe"}})
                code, out, err = self.command("run", "--script", script, *argv, stdin="from a pipe\n")
                self.assertEqual((code, err), (OK, ""), out)

    def test_an_empty_prompt_is_wrong_usage(self) -> None:
        code, _, err = self.command("run", "--script", self.script("ok"), stdin="\n")
        self.assertEqual(code, USAGE)
        self.assertIn("the prompt is empty", err)
        _, _, err = self.command("run", "--resume", "abc", stdin="\n")
        self.assertIn("describe the task; `openagentic-sdk sessions why abc` shows how to continue without one", err)

    def test_json_prints_every_event_and_nothing_else(self) -> None:
        code, out, err = self.command("run", "--json", "--script", self.script("Hello"), "hi")
        self.assertEqual((code, err), (OK, ""))
        events = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((events[0]["type"], events[-1]["type"]), ("system.init", "result"))
        self.assertIn("assistant.delta", {event["type"] for event in events})

    def test_a_session_continues_by_id_by_its_start_and_as_the_newest_of_the_folder(self) -> None:
        script = self.script("first")
        self.command("run", "--script", script, "--cwd", str(PROJECT), "one")
        session_id = self.session_ids()[0]
        for argv in (("--resume", session_id), ("--resume", session_id[:8]), ("--resume", "newest"), ("--continue",)):
            with self.subTest(argv):
                script = self.script({"text": "second", "expect": {"contains": "first"}})
                code, out, _ = self.command("run", "--script", script, "--cwd", str(PROJECT), *argv, "two")
                self.assertEqual(code, OK, out)
        self.assertEqual(self.session_ids(), [session_id])

    def test_a_run_that_reaches_a_limit_exits_with_1_and_prints_how_to_continue(self) -> None:
        script = self.script({"tool_calls": [{"name": "Glob", "arguments": {"pattern": "*"}}]}, "never")
        code, out, _ = self.command("run", "--script", script, "--cwd", str(PROJECT), "--max-steps", "1", "look")
        self.assertEqual(code, FAILED)
        self.assertIn("Stopped (max_steps)", out)
        self.assertIn(self.session_ids()[0], out)

    def test_a_call_that_nobody_can_allow_is_denied_and_the_run_continues(self) -> None:
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "touch made"}}]}
        code, out, _ = self.command("run", "--script", self.script(call, "no"), "--cwd", str(self.folder), "make it")
        self.assertEqual(code, OK)
        self.assertIn("[Bash] touch made - denied", out)
        self.assertFalse((self.folder / "made").exists())

    def test_an_allowed_call_runs(self) -> None:
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "touch made"}}]}
        argv = (
            "run",
            "--script",
            self.script(call, "done"),
            "--cwd",
            str(self.folder),
            "--allow",
            "Bash(touch:*)",
            "make it",
        )
        code, out, _ = self.command(*argv)
        self.assertEqual(code, OK, out)
        self.assertTrue((self.folder / "made").exists(), out)


class Sandbox(CommandCase):
    """The flags of Bash's sandbox; missing support of this machine is reported, and then nothing runs or everything is
    written.
    """

    @full_size
    def test_the_flags_reach_bash(self) -> None:
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "echo x > made"}}]}
        for flags, rung, makes in (
            (("--sandbox", "auto"), "", True),
            (("--bash-effects", "preview"), "overlay", False),
        ):
            with self.subTest(flags=flags):
                if rung in probe_sandbox().reasons:
                    self.skipTest(f"this machine does not offer {rung}: {probe_sandbox().reasons[rung]}")
                argv = ("run", "--json", "--script", self.script(call, "ok"), "--cwd", str(self.folder), *flags)
                code, out, err = self.command(
                    *argv, "--allow", "Bash(echo:*)", "--permission-mode", "acceptEdits", "go"
                )
                self.assertEqual(code, OK, err)
                events = [json.loads(line) for line in out.splitlines()]
                codes = [event["code"] for event in events if event["type"] == "system.notice"]
                self.assertEqual("sandbox.level" in codes, "--sandbox" in flags)
                self.assertEqual((self.folder / "made").exists(), makes)
                (self.folder / "made").unlink(missing_ok=True)


class Modes(CommandCase):
    """The permission mode: the flag's, otherwise that of settings which may choose one."""

    def _mode(self, settings: str, *flags: str) -> tuple[int, str]:
        home = self.folder / ".claude"
        home.mkdir(exist_ok=True)
        (home / "settings.json").write_text(settings, encoding="utf-8")
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        argv = ("run", "--json", "--script", self.script("ok"), "--cwd", str(project), *flags, "hi")
        code, out, err = self.command(*argv)
        return code, json.loads(out.splitlines()[0])["permission_mode"] if out else err

    def test_the_users_settings_choose_and_the_flag_wins(self) -> None:
        settings = '{"permissions": {"defaultMode": "acceptEdits"}}'
        self.assertEqual(self._mode(settings), (OK, "acceptEdits"))
        self.assertEqual(self._mode(settings, "--permission-mode", "plan"), (OK, "plan"))
        self.assertEqual(self._mode(settings, "--setting-sources", "none"), (OK, "default"))

    def test_an_unknown_mode_falls_back_to_the_default_one(self) -> None:
        self.assertEqual(self._mode('{"permissions": {"defaultMode": "yolo"}}'), (OK, "default"))

    def test_bypass_can_be_switched_off(self) -> None:
        settings = '{"permissions": {"disableBypassPermissionsMode": "disable"}}'
        code, complaint = self._mode(settings, "--permission-mode", "bypassPermissions")
        self.assertEqual(code, USAGE)
        self.assertIn("--permission-mode", complaint)

    def test_whatif_keeps_to_the_same_settings(self) -> None:
        self._mode('{"permissions": {"defaultMode": "plan"}}')
        (session_id,) = self.session_ids()
        argv = ("whatif", session_id, "--at", "0", "--prompt", "hi", "--json", "--script", self.script("ok"))
        argv += ("--cwd", str(self.folder / "project"))
        code, out, err = self.command(*argv)
        self.assertEqual(code, OK, err)
        opened = next(event for event in map(json.loads, out.splitlines()) if event["type"] == "system.init")
        self.assertEqual(opened["permission_mode"], "plan")

    def test_an_untrusted_project_loosens_nothing(self) -> None:
        settings = self.folder / "project" / ".claude" / "settings.json"
        settings.parent.mkdir(parents=True)
        settings.write_text('{"permissions": {"defaultMode": "bypassPermissions"}}', encoding="utf-8")
        self.assertEqual(self._mode("{}"), (OK, "default"))


class ChatFromAPipe(CommandCase):
    def test_each_line_is_a_turn_and_the_end_of_input_ends_the_chat(self) -> None:
        script = self.script("Hello.", {"text": "Again.", "expect": {"contains": "Hello."}})
        code, out, err = self.command("chat", "--script", script, "--cwd", str(self.folder), stdin="one\n\ntwo\n")
        self.assertEqual((code, err), (OK, ""))
        self.assertIn("> one\nHello.\n", out)
        self.assertIn("> two\nAgain.\n", out)
        (session_id,) = self.session_ids()
        self.assertTrue(out.endswith(f"Continue with: openagentic-sdk chat --resume {session_id}\n"), out)

    @full_size
    def test_the_next_line_answers_a_question_and_the_end_of_input_allows_nothing(self) -> None:
        call = {"tool_calls": [{"name": "Bash", "arguments": {"command": "touch made"}}]}
        for answer, made in (("", False), ("no\n", False), ("yes\n", True)):
            with self.subTest(answer):
                argv = ("chat", "--script", self.script(call, "ok"), "--cwd", str(self.folder))
                code, out, _ = self.command(*argv, stdin="make it\n" + answer)
                self.assertEqual(code, OK, out)
                self.assertEqual((self.folder / "made").exists(), made, out)


class UsageErrors(CommandCase):
    """Errors are one sentence on stderr that includes the remedy."""

    def assert_complains(self, code: int, *says: str, argv: tuple[str, ...]) -> None:
        actual, out, err = self.command(*argv)
        self.assertEqual((actual, out), (code, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("openagentic-sdk: "), err)
        for text in says:
            self.assertIn(text, err)

    def test_wrong_numbers_are_explained_and_choices_are_named_only_where_there_are_some(self) -> None:
        for argv, says in (
            (
                ("fleet", "answer", "cmd2", "yes"),
                "'cmd2' is not the number of a run (`openagentic-sdk fleet runs` lists",
            ),
            (("fleet", "status", "0"), "'0' is not the number of a run"),
            (("fleet", "runs", "--limit", "x"), "argument --limit: 'x' is not a whole number"),
            (("whatif", "s", "--at", "x"), "argument --at: 'x' is not a whole number"),
            (("fleet", "work", "--lease", "x"), "argument --lease: 'x' is not a number"),
            (("serve", "--port", "x"), "argument --port: 'x' is not a whole number"),
            (("serve", "--grace", "x"), "argument --grace: 'x' is not a number"),
            (("serve", "--grace", "nan"), "argument --grace: must be a number of seconds from 0 to "),
            (("serve", "--notice", "inf"), "argument --notice: must be a number of seconds from 0 to "),
            (("mcp", "serve", "--wait-s", "-1"), "argument --wait-s: must be a number of seconds from 0 to "),
            (("whatif", "s", "--at"), "argument --at: expected one argument"),
            (("fleet", "runs", "--state", "xyzzy"), "--help lists the choices"),
            (("fleet",), "--help lists the choices"),
        ):
            with self.subTest(argv):
                code, _, err = self.command(*argv)
                self.assertEqual(code, USAGE)
                self.assertIn(says, err)
                self.assertEqual("lists the choices" in err, "lists the choices" in says, err)

    def test_a_missing_key_names_the_variable_to_set(self) -> None:
        self.assert_complains(USAGE, "OPENAI_API_KEY", "--script", argv=("run", "--model", "m", "hi"))

    def test_a_missing_model_names_the_flag(self) -> None:
        self.assert_complains(USAGE, "--model", argv=("run", "--base-url", "http://127.0.0.1:9/v1", "hi"))

    def test_an_unknown_session_is_an_error_that_names_where_to_look(self) -> None:
        script = self.script("x")
        self.assert_complains(
            FAILED, "nope", "sessions list", argv=("run", "--script", script, "--resume", "nope", "hi")
        )
        self.assert_complains(FAILED, "''", "sessions list", argv=("run", "--script", script, "--resume", "", "hi"))
        self.assert_complains(FAILED, "nope", "sessions list", argv=("sessions", "show", "nope"))

    def test_a_script_that_is_missing_is_named(self) -> None:
        self.assert_complains(FAILED, "/nowhere.json", argv=("run", "--script", "/nowhere.json", "hi"))

    def test_a_folder_that_is_missing_is_named(self) -> None:
        self.assert_complains(
            USAGE, "/nowhere", "--cwd", argv=("run", "--script", self.script("x"), "--cwd", "/nowhere", "hi")
        )

    def test_a_rule_that_cannot_be_understood_is_named(self) -> None:
        self.assert_complains(USAGE, "Bash(", argv=("run", "--script", self.script("x"), "--allow", "Bash(", "hi"))

    def test_an_unreachable_endpoint_is_named_in_the_closing_lines(self) -> None:
        argv = ("run", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--timeout", "120", "hi")
        code, out, _ = self.command(*argv)
        self.assertEqual(code, FAILED)
        self.assertIn("127.0.0.1:9", out)


class Attaching(CommandCase):
    def test_a_file_goes_along_with_what_was_typed_and_the_transcript_names_it(self) -> None:
        picture = self.folder / "a.png"
        picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
        (self.folder / "notes.txt").write_text("tea at five", encoding="utf-8")
        script = self.script({"text": "Seen.", "expect": {"contains": "tea at five"}})
        run = ("run", "--script", script, "--cwd", str(self.folder))
        code, out, err = self.command(*run, "--attach", str(picture), "When is @notes.txt? Ask @nobody.")
        self.assertEqual((code, err), (OK, ""), out)
        event = next(
            e for e in FileSessionStore(self.store).read_events(self.session_ids()[0]) if e.type == "user.message"
        )
        self.assertEqual([(part["name"], part["media_type"]) for part in event.attachments], [("a.png", "image/png")])
        self.assertIn("[image a.png, image/png, 48 bytes]", self.command("sessions", "show")[1])
        self.assertIn("[image a.png, image/png, 48 bytes]", self.command("export", "--format", "markdown")[1])

    def test_a_prompt_through_a_pipe_names_no_files(self) -> None:
        (self.folder / "notes.txt").write_text("tea at five", encoding="utf-8")
        script = self.script({"text": "Seen.", "expect": {"last": "read @notes.txt"}})
        code, out, err = self.command("run", "--script", script, "--cwd", str(self.folder), stdin="read @notes.txt\n")
        self.assertEqual((code, err), (OK, ""), out)

    def test_a_file_that_is_not_there_is_named(self) -> None:
        code, _, err = self.command("run", "--script", self.script("x"), "--attach", "nowhere.png", "look")
        self.assertEqual(code, USAGE)
        self.assertIn("nowhere.png' is not a file", err)


class Sessions(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.command("run", "--script", self.script("The kettle boils."), "--cwd", str(PROJECT), "Is the tea ready?")
        self.session_id = self.session_ids()[0]

    def test_list_shows_the_newest_first_with_its_first_prompt(self) -> None:
        self.command("run", "--script", self.script("No."), "--cwd", str(self.folder), "Is it \x1b[2Jraining?")
        code, out, err = self.command("sessions", "list")
        self.assertEqual((code, err), (OK, ""))
        self.assertIn("raining?", out.splitlines()[0])
        self.assertNotIn("\x1b", out)
        self.assertIn(self.session_id, out.splitlines()[1])

    def test_list_filters_by_words_and_folder(self) -> None:
        self.command("run", "--script", self.script("No."), "--cwd", str(self.folder), "Is it raining?")
        self.assertEqual(len(self.command("sessions", "list", "tea")[1].splitlines()), 1)
        self.assertEqual(len(self.command("sessions", "list", "--cwd", str(PROJECT))[1].splitlines()), 1)
        self.assertEqual(self.command("sessions", "list", "coffee")[1], "no sessions\n")

    def test_list_shows_no_time_for_one_that_no_calendar_has(self) -> None:
        url = f"sqlite:{self.folder}/s.db"
        open_store(url).import_session("odd", (), created_at=1e20)
        code, out, err = self.command("sessions", "list", "--store", url)
        self.assertEqual((code, out.split(), err), (OK, ["odd", "0", "odd"], ""))

    def test_list_as_json_is_one_object_per_session(self) -> None:
        rows = [json.loads(line) for line in self.command("sessions", "list", "--json")[1].splitlines()]
        self.assertEqual([row["id"] for row in rows], [self.session_id])

    def test_show_prints_a_transcript_of_the_newest_or_the_named_one(self) -> None:
        for argv in ((), (self.session_id,), (self.session_id[:6],), ("newest",)):
            with self.subTest(argv):
                code, out, err = self.command("sessions", "show", *argv)
                self.assertEqual((code, err), (OK, ""))
                self.assertEqual(out.splitlines()[:2], ["> Is the tea ready?", "The kettle boils."])

    def test_show_as_json_prints_the_stored_events(self) -> None:
        events = [json.loads(line) for line in self.command("sessions", "show", "--json")[1].splitlines()]
        self.assertEqual([event["seq"] for event in events], list(range(1, len(events) + 1)))

    def test_search_finds_the_text_of_messages(self) -> None:
        code, out, _ = self.command("sessions", "search", "kettle")
        self.assertEqual(code, OK)
        self.assertIn(self.session_id, out)
        self.assertEqual(self.command("sessions", "search", "nothing-like-it")[0], FAILED)

    def test_delete_removes_only_the_whole_id(self) -> None:
        self.assertEqual(self.command("sessions", "delete", self.session_id[:6])[0], FAILED)
        code, out, err = self.command("sessions", "delete", self.session_id)
        self.assertEqual((code, out, self.session_ids()), (FAILED, "", [self.session_id]))
        self.assertIn("Give --yes", err)
        self.assertEqual(self.command("sessions", "delete", self.session_id, "--yes")[0], OK)
        self.assertEqual(self.session_ids(), [])

    def _log(self) -> Path:
        return self.store / "sessions" / self.session_id / "events.jsonl"

    def test_verify_finds_an_intact_session_intact(self) -> None:
        self.assertEqual(self.command("sessions", "verify"), (OK, f"{self.session_id}: intact\n", ""))
        code, out, _ = self.command("sessions", "verify", "--all")
        self.assertEqual((code, out.splitlines()[-1]), (OK, "1 session, 0 damaged"))

    def test_verify_names_the_damage_and_salvage_saves_what_is_good(self) -> None:
        data = bytearray(self._log().read_bytes())
        data[len(data) // 2] ^= 1
        self._log().write_bytes(data)
        code, out, _ = self.command("sessions", "verify", self.session_id)
        self.assertEqual(code, FAILED)
        self.assertIn("damaged", out)
        self.assertIn(f"sessions salvage {self.session_id}", out)
        code, out, err = self.command("sessions", "salvage", self.session_id)
        self.assertEqual((code, err), (OK, ""))
        self.assertEqual(bytes(data), self._log().read_bytes())
        saved = out.split("session ")[1].split()[0]
        self.assertEqual(self.command("sessions", "verify", saved), (OK, f"{saved}: intact\n", ""))

    def test_a_damaged_session_is_one_sentence_in_every_other_command(self) -> None:
        self._log().write_bytes(self._log().read_bytes().replace(b"kettle", b"cattle"))
        code, _, err = self.command("sessions", "show", self.session_id)
        self.assertEqual((code, err.count("\n")), (FAILED, 1))
        self.assertIn("sessions salvage", err)

    def test_a_session_is_forked_renamed_tagged_and_rewound(self) -> None:
        code, forked, _ = self.command("sessions", "fork", self.session_id)
        self.assertEqual(code, OK)
        forked = forked.strip()
        self.assertEqual(self.command("sessions", "rename", forked, "Tea\x1b[2J time")[0], OK)
        self.assertEqual(self.command("sessions", "tag", forked, "hot", "green"), (OK, "hot, green\n", ""))
        self.assertEqual(self.command("sessions", "tag", forked, "^hot"), (OK, "green\n", ""))
        self.assertIn("to undo, not 0", self.command("sessions", "rewind", forked, "--turns", "0")[2])
        self.assertEqual(self.command("sessions", "rewind", forked)[0], OK)
        row = json.loads(self.command("sessions", "list", "--json", "time")[1])
        self.assertEqual((row["id"], row["tags"]), (forked, ["green"]))
        self.assertEqual(self.command("sessions", "verify", "--all")[0], OK)

    def test_how_many_rows_is_a_number_from_1_on(self) -> None:
        for action in (["list"], ["search", "tea"]):
            for wrong in ("0", "-1", "9" * 30):
                code, out, err = self.command("sessions", *action, "--limit", wrong)
                self.assertEqual((code, out), (USAGE, ""))
                self.assertIn(f"--limit: must be from 1 to 10 ** 15, not {wrong}", err)
            self.assertEqual(self.command("sessions", *action, "--limit", str(10**15))[0], OK)

    def test_diff_exits_with_1_when_sessions_differ(self) -> None:
        self.command("run", "--script", self.script("The kettle boils."), "--cwd", str(PROJECT), "Is the tea ready?")
        same, other = self.session_ids()
        self.assertEqual(self.command("sessions", "diff", same, other), (OK, "no difference\n", ""))
        self.command("run", "--script", self.script("It is cold."), "--cwd", str(PROJECT), "Is the tea ready?")
        code, out, _ = self.command("sessions", "diff", same, "newest")
        self.assertEqual(code, FAILED)
        self.assertIn("they diverge at step 1\n  step 1: B writes It is cold. instead of The kettle boils.\n", out)
        code, out, _ = self.command("sessions", "diff", same, "newest", "--json")
        self.assertEqual((code, json.loads(out)["same"]), (FAILED, False))
        self.assertEqual(self.command("sessions", "diff", same, "newest", "--ignore-text")[0], OK)

    def test_explain_takes_a_request_apart(self) -> None:
        code, out, _ = self.command("sessions", "explain", self.session_id, "--step", "1")
        self.assertEqual(code, OK, out)
        self.assertIn("Is the tea ready?", out)
        self.assertIn("its digest is the recorded one", out)
        self.assertEqual(self.command("sessions", "explain", self.session_id, "--step", "9")[0], USAGE)
        data = json.loads(self.command("sessions", "explain", "--json")[1])
        self.assertEqual(data["step"], 1)

    def test_cost_prints_the_spending_of_each_agent_and_its_cached_share(self) -> None:
        usage = {"input_tokens": 1000, "cached_input_tokens": 900, "output_tokens": 5}
        script = self.script({"text": "The kettle boils.", "usage": usage})
        self.command("run", "--script", script, "--cwd", str(PROJECT), "--resume", self.session_id, "And now?")
        code, out, _ = self.command("sessions", "cost", self.session_id)
        self.assertEqual(code, OK, out)
        whole = json.loads(self.command("sessions", "cost", self.session_id, "--json")[1])
        self.assertIn(f"{whole['cached_share']:.1%} of the prompts cached", out)
        self.assertIn('prices={"scripted": {"input": USD', out)
        self.assertIn("context: 1,000 tokens in the last request", out)
        self.assertEqual(whole["by"][0]["usage"], whole["usage"])
        self.assertEqual((whole["usage"]["cached_input_tokens"], whole["misses"]), (900, []))

    def test_tail_prints_the_newest_events(self) -> None:
        code, out, _ = self.command("sessions", "tail", "-n", "2")
        self.assertEqual((code, out.splitlines()[0]), (OK, "The kettle boils."))
        self.assertEqual(len(self.command("sessions", "tail", "-n", "3", "--json")[1].splitlines()), 3)

    def test_replay_makes_every_request_again(self) -> None:
        self.assertEqual(self.command("replay"), (OK, "1 of 1 requests were repeated: the same\n", ""))

    def test_an_archive_restores_a_session(self) -> None:
        file = str(self.folder / "tea.zip")
        before = self.command("sessions", "show", "--json", self.session_id)[1]
        self.assertEqual(self.command("sessions", "archive", self.session_id, file, "--remove")[0], OK)
        self.assertEqual(self.session_ids(), [])
        self.assertEqual(self.command("sessions", "restore", file), (OK, f"{self.session_id}\n", ""))
        self.assertEqual(self.command("sessions", "show", "--json", self.session_id)[1], before)

    def test_archiving_a_session_in_use_writes_a_complete_archive_and_removes_nothing(self) -> None:
        file = str(self.folder / "tea.zip")
        with FileSessionStore(self.store).open_writer(self.session_id):
            code, out, err = self.command("sessions", "archive", self.session_id, file, "--remove")
        self.assertEqual((code, out, self.session_ids()), (FAILED, "", [self.session_id]))
        self.assertRegex(
            err, "tea.zip is complete, but not everything in it was removed from the store: .* is in use by"
        )
        self.assertEqual(self.command("sessions", "delete", self.session_id, "--yes")[0], OK)
        self.assertEqual(self.command("sessions", "restore", file), (OK, f"{self.session_id}\n", ""))

    def test_an_empty_store_prints_how_to_create_a_session(self) -> None:
        code, _, err = self.command("sessions", "show", "--store", str(self.folder / "empty"))
        self.assertEqual(code, USAGE)
        self.assertIn("openagentic-sdk run", err)


@unittest.skipUnless(Path("/dev/full").exists(), "needs /dev/full, a disk that is full")
class Output(CommandCase):
    """Output that nobody can write or read, in processes whose output is buffered."""

    def outcome(
        self, *argv: str, stdout: int | None = None, stderr: int | None = None, **environ: str
    ) -> tuple[int, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with subprocess.Popen(
            [sys.executable, "-m", "openagentic_sdk", *argv],
            cwd=ROOT,
            env={**inherited, "OPENAGENTIC_TEST_PAYMENTS": str(self.folder), **environ},
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
        ) as process:
            return process.wait(300), (process.stderr.read().decode() if process.stderr else "")

    @full_size
    def test_a_full_disk_is_one_sentence_and_a_closed_pipe_none(self) -> None:
        self.command("run", "--script", self.script("Tea."), "Tea?")
        full = os.open("/dev/full", os.O_WRONLY)
        self.addCleanup(os.close, full)
        sentence = f"openagentic-sdk: the output cannot be written: {os.strerror(errno.ENOSPC)}\n"
        store = f"sqlite:{self.folder / 'runs.db'}"
        work = ("fleet", "work", "--until-idle", "--agents", "tests.fleet.payments:agents", "--store", store)
        for argv in (("sessions", "list"), work, ("run", "--json", "--script", self.script("Tea."), "Tea?")):
            with self.subTest(argv):
                self.assertEqual(self.outcome(*argv, stdout=full), (FAILED, sentence))
        for unbuffered in ("", "1"):
            self.assertEqual(self.outcome("--help", stdout=full, PYTHONUNBUFFERED=unbuffered), (FAILED, sentence))
        self.assertEqual(self.outcome("sessions", "show", "nonsense", stderr=full), (FAILED, ""))
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        for argv, code in ((("sessions", "list"), FAILED), (("--help",), FAILED), (work, OK)):
            with self.subTest(argv):
                self.assertEqual(self.outcome(*argv, stdout=writer), (code, ""))
        unwritable = os.open(os.devnull, os.O_RDONLY)  # as a stdout that was closed at the start
        self.addCleanup(os.close, unwritable)
        self.assertEqual(self.outcome(*work, stdout=unwritable), (OK, ""))

    @full_size
    def test_a_server_serves_whoever_reads_its_output_and_fails_at_the_end_if_that_was_lost(self) -> None:
        full, nobody = os.open("/dev/full", os.O_WRONLY), os.open(os.devnull, os.O_RDONLY)
        for stdout, code in ((full, FAILED), (nobody, OK)):
            self.addCleanup(os.close, stdout)
            port = free_port()
            command = [sys.executable, "-m", "openagentic_sdk", "serve", "--port", str(port)]
            with subprocess.Popen(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
                until_listens(port, process)
                process.send_signal(signal.SIGTERM)
                _, err = process.communicate(timeout=300)
            self.assertEqual(process.returncode, code, err)
            self.assertEqual("the output cannot be written" in err, code == FAILED)

    def test_a_file_that_cannot_be_written_is_named_as_it_was_typed(self) -> None:
        self.command("run", "--script", self.script("Tea."), "Tea?")
        missing = str(self.folder / "none" / "page.html")
        for path, number in (("/dev/full", errno.ENOSPC), (missing, errno.ENOENT), (str(self.folder), errno.EISDIR)):
            for command in ("view", "export"):
                with self.subTest(command, path=path):
                    expected = (FAILED, "", f"openagentic-sdk: {path}: {os.strerror(number)}\n")
                    self.assertEqual(self.command(command, "newest", "-o", path), expected)
        expected = (FAILED, "", f"openagentic-sdk: {missing}: {os.strerror(errno.ENOENT)}\n")
        self.assertEqual(self.command("sessions", "archive", "newest", missing), expected)


class Interrupting(CommandCase):
    """Ctrl-C, as a signal to a separate process."""

    def _start(self, *argv: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = Python("-m", "openagentic_sdk", *argv, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
        self.addCleanup(_end, process)
        return process

    def test_a_run_whose_wait_was_cancelled_twice_ends_as_interrupted(self) -> None:
        class CancelledTurn(Turn):
            async def show_events(self, prompt: Prompt) -> int:
                raise asyncio.CancelledError

        turns = Turns(OpenAgenticOptions(model="m", provider=ScriptedProvider([]), session_store="memory:"))
        with asyncio.Runner() as runner:
            self.assertEqual(CancelledTurn(turns, JsonPrinter()).play(runner, "hi"), INTERRUPTED)

    def test_a_notice_explains_the_wait_for_a_long_log(self) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

            def write(self, text: str) -> int:
                shown.set()
                return super().write(text)

        class LongLog(MemorySessionStore):
            def iter_events(self, session_id: str, *, after_seq: int = 0, limit: int | None = None) -> Iterator[Event]:
                loop.call_soon_threadsafe(skip_time, READING_S)
                was_shown.append(shown.wait(120))
                return super().iter_events(session_id, after_seq=after_seq, limit=limit)

        shown, was_shown, store = threading.Event(), list[bool](), LongLog()
        session_id = store.create_session()
        provider = ScriptedProvider(["Tea."])
        options = OpenAgenticOptions(model="m", provider=provider, session_store=store, resume=session_id)
        err = Terminal()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err), asyncio.Runner() as runner:
            loop = runner.get_loop()
            self.assertEqual(Turn(Turns(options), ResultPrinter(None)).play(runner, "hi"), OK)
        self.assertEqual(set(was_shown), {True})
        self.assertEqual(err.getvalue(), "reading the session: its log is long or its store is slow (Ctrl-C to stop)\n")

    def test_a_run_whose_result_is_recorded_when_a_signal_comes_shows_it_and_ends_with_its_code(self) -> None:
        class LateSignal(FileSessionStore):
            def open_writer(self, session_id: str) -> SessionWriter:
                writer = super().open_writer(session_id)
                close = writer.close

                def close_late() -> None:
                    writer.close = close  # type: ignore[method-assign]
                    signal.raise_signal(numbers.pop())
                    close()

                writer.close = close_late  # type: ignore[method-assign]
                return writer

        numbers = [signal.SIGTERM, signal.SIGINT]
        while numbers:
            store = LateSignal(self.store)
            turns = Turns(OpenAgenticOptions(model="m", provider=ScriptedProvider(["Tea."]), session_store=store))
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), asyncio.Runner() as runner:
                turn = Turn(turns, ResultPrinter(None))
                code = turn.play(runner, "hi")
                turn.say_how_to_go_on()
            self.assertEqual((code, out.getvalue(), err.getvalue()), (OK, "Tea.\n", ""))

    @full_size
    def test_a_signal_does_not_wait_for_a_line_from_a_pipe(self) -> None:
        call = {"tool_calls": [{"name": "Write", "arguments": {"file_path": "a.txt", "content": "x"}}]}
        script = self.script(call, "never asked for")
        for said, shown, reason in (("write\n", "[yes/no", "waiting"), ("", "> ", None)):
            process = self._start("chat", "--script", script, "--cwd", str(self.folder))
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(said + "ye")  # the beginning of a line that never ends
            process.stdin.flush()
            seen = ""
            while shown not in seen:
                seen += process.stdout.read(1)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(120), 128 + signal.SIGTERM)
            if reason is not None:
                row = FileSessionStore(self.store).list_session_summaries()[0]
                self.assertEqual((row.state, len(row.open_questions)), (reason, 1))
        # Input that arrives in one piece is read line by line.
        process = self._start("chat", "--script", script, "--cwd", str(self.folder))
        out, _ = process.communicate("write\nno\n", timeout=300)
        self.assertIn("never asked for", out)
        self.assertFalse((self.folder / "a.txt").exists())

    @full_size
    def test_a_signal_ends_a_run_in_order_and_prints_how_to_continue(self) -> None:
        waiting = {"text": "Waiting", "tool_calls": [{"name": "Bash", "arguments": {"command": "sleep 60"}}]}
        process = self._start(
            "run", "--script", self.script(waiting), "--allow", "Bash(sleep:*)", "--cwd", str(self.folder), "x"
        )
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "Waiting\n")
        self._wait_for_start()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
        session_id = self.session_ids()[0]
        hint = f"Stopped by SIGTERM. Continue with: openagentic-sdk chat --resume {session_id}\n"
        self.assertEqual((process.returncode, err), (128 + signal.SIGTERM, hint))
        self.assertEqual(FileSessionStore(self.store).read_events(session_id)[-1].type, "result")

    def test_a_signal_before_the_first_event_also_prints_how_to_continue(self) -> None:
        arguments = ("run", "--script", self.script("x"), "--store", f"{self.store} 2", "--cwd", str(self.folder), "x")
        with Python(
            "-c", _STOPPED_AT_THE_BEGINNING, *arguments, cwd=ROOT, text=True, stderr=subprocess.PIPE
        ) as process:
            _, err = process.communicate(timeout=300)
        (session_id,) = FileSessionStore(f"{self.store} 2").list_sessions()
        hint = f"Continue with: openagentic-sdk chat --resume {session_id} --store '{self.store} 2'\n"
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertEqual(err, f"{hint}openagentic-sdk: stopped by SIGTERM\n")
        arguments = (
            "run",
            "--script",
            self.script("on"),
            "--store",
            f"{self.store} 2",
            "--resume",
            session_id,
            "go on",
        )
        self.assertEqual(self.command(*arguments)[0], OK)

    @full_size
    def test_a_what_if_that_is_stopped_names_the_fork_to_continue(self) -> None:
        self.command("run", "--script", self.script("first"), "--cwd", str(self.folder), "one")
        source = self.session_ids()[0]
        waiting = {"text": "Waiting", "tool_calls": [{"name": "Bash", "arguments": {"command": "sleep 60"}}]}
        seq = next(e.seq for e in FileSessionStore(self.store).read_events(source) if e.type == "user.message")
        words = (
            "whatif",
            source,
            "--at",
            str(seq),
            "--on-new",
            "live",
            "--allow",
            "Bash(sleep:*)",
            "--cwd",
            str(self.folder),
        )
        process = self._start(*words, "--script", self.script(waiting))
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "Waiting\n":
            self.assertNotEqual(line, "")
        (fork,) = {*self.session_ids()} - {source}
        self._wait_for_start(fork)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
        how = f"openagentic-sdk whatif {source} --at {seq} --resume {fork}"
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertIn(f"to continue, with the other flags as before: {how}\n", err)
        _, out, err = self.command(*words, "--script", self.script("Done."), "--resume", fork)
        self.assertIn("Done.\n", out, err)
        self.assertEqual(self.command("sessions", "verify", fork)[0], OK)

    @full_size
    def test_ctrl_c_ends_a_run_cleanly_and_the_session_continues(self) -> None:
        waiting = {"text": "Waiting", "tool_calls": [{"name": "Bash", "arguments": {"command": "sleep 60"}}]}
        process = self._start(
            "run", "--script", self.script(waiting), "--allow", "Bash(sleep:*)", "--cwd", str(self.folder), "x"
        )
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "Waiting\n")
        self._wait_for_start()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        self.assertEqual((process.returncode, err), (INTERRUPTED, ""))
        session_id = self.session_ids()[0]
        self.assertIn(f"--resume {session_id}", out)
        events = FileSessionStore(self.store).read_events(session_id)
        self.assertEqual((events[-1].type, getattr(events[-1], "stop_reason", "")), ("result", "interrupted"))
        code, out, _ = self.command(
            "run", "--script", self.script("on"), "--cwd", str(self.folder), "--continue", "go on"
        )
        self.assertEqual(code, OK, out)

    def _wait_for_start(self, session_id: str | None = None) -> None:
        """Wait until the log, by default that of the only session, contains the start of the call."""
        store = FileSessionStore(self.store)
        session_id = session_id or self.session_ids()[0]
        seq = 0
        while not any(event.type == "tool.started" for event in store.read_events(session_id)):
            self.assertTrue(store.wait_for_events(session_id, after_seq=seq, timeout_s=120))
            seq = store.read_events(session_id)[-1].seq or 0

    def test_a_follower_shows_what_comes_and_ends_with_ctrl_c(self) -> None:
        self.command("run", "--script", self.script("first"), "--cwd", str(self.folder), "one")
        follower = self._start("sessions", "tail", "-f", "-n", "2")
        assert follower.stdout is not None
        self.assertEqual(follower.stdout.readline(), "first\n")
        self.command("run", "--script", self.script("second"), "--cwd", str(self.folder), "--continue", "two")
        while (line := follower.stdout.readline()) != "second\n":
            self.assertNotEqual(line, "")
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=300)
        self.assertEqual((follower.returncode, err), (INTERRUPTED, ""))

    def test_a_signal_leaves_no_unfinished_file_of_a_command_that_runs_no_agent(self) -> None:
        self.command("run", "--script", self.script("first"), "--cwd", str(self.folder), "one")
        files = self.session_ids()[0], str(self.folder / "a.zip")
        for number, code, said in (
            (signal.SIGTERM, 128 + signal.SIGTERM, "openagentic-sdk: stopped by SIGTERM\n"),
            (signal.SIGHUP, 128 + signal.SIGHUP, "openagentic-sdk: stopped by SIGHUP\n"),
            (signal.SIGINT, INTERRUPTED, ""),
        ):
            arguments = [str(int(number)), "sessions", "archive", *files]
            with Python(
                "-c", _STOPPED_BEFORE_RENAME, *arguments, cwd=ROOT, text=True, stderr=subprocess.PIPE
            ) as process:
                _, err = process.communicate(timeout=300)
            self.assertEqual((process.returncode, err), (code, said))
            self.assertEqual([path.name for path in self.folder.iterdir() if "zip" in path.name], [])

    def test_a_signal_that_python_drops_still_ends_the_command(self) -> None:
        for number, code, said in (
            (signal.SIGTERM, 128 + signal.SIGTERM, "openagentic-sdk: stopped by SIGTERM\n"),
            (signal.SIGINT, INTERRUPTED, ""),
        ):
            arguments = [str(int(number)), "completion", "bash"]
            with Python("-c", _DROPPED, *arguments, cwd=ROOT, text=True, stderr=subprocess.PIPE) as process:
                _, err = process.communicate(timeout=300)
            self.assertEqual((process.returncode, err), (code, said))

    @full_size
    def test_ctrl_c_before_and_after_the_command_prints_nothing(self) -> None:
        (self.folder / "sitecustomize.py").write_text(_INTERRUPTED_OUTSIDE, encoding="utf-8")
        path = os.pathsep.join((str(self.folder), str(ROOT)))
        modules = ("openagentic_sdk.ground.rooms", "signal", "openagentic_sdk.cli.main")
        cases = [(False, False, module) for module in modules] + [(False, True, ""), (True, False, modules[0])]
        for ignored, at_exit, module in cases:
            with self.subTest(ignored=ignored, at_exit=at_exit, module=module):
                arguments = [sys.executable, "-m", "openagentic_sdk", "--version"]
                names = {"TEST_IGNORED": str(ignored), "TEST_AT_EXIT": str(at_exit), "TEST_MODULE": module}
                environment = {**os.environ, **names, "PYTHONPATH": path}
                ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300)
                code = 0 if ignored else INTERRUPTED if module == "signal" else -signal.SIGINT
                self.assertEqual((ended.returncode, ended.stderr), (code, ""))
                self.assertEqual(bool(ended.stdout), ignored or at_exit)

    def test_an_erasure_that_is_stopped_prints_how_it_is_continued(self) -> None:
        self.command("run", "--script", self.script("first"), "--cwd", str(self.folder), "the secret word")
        session_id = self.session_ids()[0]
        (self.folder / "secret").write_text("secret word")
        arguments = ["sessions", "erase", session_id, "--yes", "--text-file", str(self.folder / "secret")]
        script = _STOPPED_BEFORE_RENAME.replace(".zip", "events.jsonl")
        number = str(int(signal.SIGTERM))
        with Python("-c", script, number, *arguments, cwd=ROOT, text=True, stderr=subprocess.PIPE) as process:
            _, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertIn("the same command completes it", err)
        self.assertEqual(self.command(*arguments)[0], OK)
        log = (self.store / "sessions" / session_id / "events.jsonl").read_text()
        self.assertNotIn("secret word", log)
        self.assertEqual(self.command("sessions", "verify", session_id)[0], OK)

    def test_a_reader_that_leaves_early_causes_no_traceback(self) -> None:
        script = self.script({"text": "word\n" * 50_000, "deltas": 4_000})
        process = self._start("run", "--script", script, "--cwd", str(self.folder), "x")
        assert process.stdout is not None and process.stderr is not None
        self.assertEqual(process.stdout.readline(), "word\n")
        process.stdout.close()
        process.wait(timeout=300)
        self.assertEqual(process.stderr.read(), "")


# The command, stopped once its run has begun and before any event was shown.
_STOPPED_AT_THE_BEGINNING = """
import os, signal, sys
from openagentic_sdk.cli.main import main
from openagentic_sdk.runs.turns import Turns

begin = Turns.begin

async def begin_and_stop(*arguments):
    task = await begin(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
    return task

Turns.begin = begin_and_stop
sys.exit(main(sys.argv[1:]))
"""

# The command, to which a signal comes while Python closes an abandoned generator, so that its exception is lost.
_DROPPED = """
import os, signal, sys, threading
from openagentic_sdk.cli.commands import completion
from openagentic_sdk.cli.main import main

def generator():
    try:
        yield
    finally:
        os.kill(os.getpid(), int(sys.argv[1]))

def run(args):
    next(generator())
    threading.Event().wait(300)
    return 0

completion.run = run
sys.exit(main(sys.argv[2:]))
"""

# A site that interrupts the command while it imports a module, or while the interpreter ends.
_INTERRUPTED_OUTSIDE = """
import atexit, os, signal, sys

if os.environ["TEST_IGNORED"] == "True":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.modules.pop("signal")  # this module has imported it

def interrupt(event, values):
    if event == "import" and values[0] == os.environ["TEST_MODULE"]:
        os.kill(os.getpid(), 2)

if os.environ["TEST_AT_EXIT"] == "True":
    atexit.register(os.kill, os.getpid(), 2)
sys.addaudithook(interrupt)
"""

# The command, stopped by the signal with the given number just before it renames or links its unfinished file.
_STOPPED_BEFORE_RENAME = """
import os, sys
from openagentic_sdk.cli.main import main

def stop(event, values):
    if event in ("os.link", "os.rename") and str(values[1]).endswith(".zip"):
        os.kill(os.getpid(), int(sys.argv[1]))

sys.addaudithook(stop)
sys.exit(main(sys.argv[2:]))
"""


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


if __name__ == "__main__":
    unittest.main()
