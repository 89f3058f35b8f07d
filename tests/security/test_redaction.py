"""No secret is stored by accident: not in an event, not in a file beside the log, not on either side of a cut."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import unittest
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from openagentic_sdk import OpenAgenticOptions, PermissionGate, events, run
from openagentic_sdk.cli.main import main
from openagentic_sdk.events import Event, PermissionDecision, ToolUse, UserAnswer
from openagentic_sdk.ground.text import CUT_MARGIN, safe_cut
from openagentic_sdk.parts.masking import EXACT, mask_event, shown
from openagentic_sdk.permissions.redact import Redactor, secrets_of
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.tools.base import Secrets, Services, ToolContext
from openagentic_sdk.tools.grep import GrepTool
from openagentic_sdk.tools.read import ReadTool
from openagentic_sdk.tools.shell.environment import is_dropped, is_secret_name
from openagentic_sdk.tools.shell.output import keep_text
from tests.size import full_size, sized

SECRET = "hunter2-hunter2-hunter2"
TOKEN = "ghp_" + "Ab1" * 13
KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEow\n" * 300 + "-----END RSA PRIVATE KEY-----\n"
redact = Redactor({"MY_PASS": SECRET})


def event_types() -> list[type[Event]]:
    return [one for one in vars(events).values() if isinstance(one, type) and issubclass(one, Event) and one.type]


def filled(cls: type[Event], text: str) -> Event:
    """An event of a class with `text` in each field that can hold one, nested values included."""
    values: dict[str, Any] = {}
    for field in fields(cls):
        kind = str(field.type)
        if field.name in ("seq", "ts"):
            continue
        if "Mapping" in kind and "Sequence" in kind:
            values[field.name] = [{"a": {"b": [text]}}]
        elif "Mapping" in kind or kind == "Any":
            values[field.name] = {"a": {"b": [text, 5]}}
        elif "Sequence" in kind:
            values[field.name] = [text]
        elif "str" in kind:
            values[field.name] = text
        elif field.default is MISSING and field.default_factory is MISSING:
            values[field.name] = "ok" if kind in ("StopReason", "Outcome") else 1
    return cls(**values)


class EveryEvent(unittest.TestCase):
    def test_every_text_of_every_kind_of_event_is_masked_but_for_what_must_stay_exact(self) -> None:
        for cls in event_types():
            event = filled(cls, f"x {SECRET} {TOKEN} y")
            masked = mask_event(event, redact)
            for field in fields(cls):
                if field.name in EXACT or (cls.type, field.name) == ("system.init", "tools"):
                    continue
                with self.subTest(type=cls.type, field=field.name):
                    self.assertNotIn(SECRET, repr(getattr(masked, field.name)))
                    self.assertNotIn(TOKEN, repr(getattr(masked, field.name)))

    def test_texts_that_must_stay_exact_are_not_masked(self) -> None:
        use = ToolUse("call_1", "Bash", {"command": f"login {SECRET}"})
        self.assertEqual(mask_event(use, redact), use)
        self.assertNotIn(SECRET, repr(shown(use, redact)))
        edited = UserAnswer("q", f'edit {{"command": "login {SECRET}"}}')
        self.assertEqual(mask_event(edited, redact), edited)
        self.assertNotIn(SECRET, repr(shown(edited, redact)))
        self.assertNotIn(SECRET, mask_event(UserAnswer("q", f"use {SECRET}"), redact).answer)

    def test_an_event_without_secrets_is_the_same_object(self) -> None:
        for cls in event_types():
            event = filled(cls, "nothing to see")
            self.assertIs(mask_event(event, redact), event)

    def test_a_rule_that_holds_a_secret_is_not_kept_as_another_rule(self) -> None:
        decision = PermissionDecision("c", "Bash", True, "default", "0" * 64, "yes")
        for rules, kept in (([f"Bash(login {SECRET}:*)"], False), (["Bash(ls:*)"], True)):
            details = {"remembered": rules, "command": f"login {SECRET}"}
            masked = mask_event(replace(decision, details=details), redact)
            self.assertEqual("remembered" in masked.details, kept)
            self.assertNotIn(SECRET, repr(masked))

    def test_vendor_fields_that_no_longer_fit_what_they_sign_are_left_out(self) -> None:
        block = {"type": "thinking", "thinking": f"The password is {SECRET}.", "signature": "s"}
        message = events.AssistantMessage("Done.", extras={"anthropic_content": [block]})
        self.assertIsNone(mask_event(message, redact).extras)


class Names(unittest.TestCase):
    def test_names_that_suggest_secrets_count_for_the_log_and_for_commands_alike(self) -> None:
        secret = """SSHPASS DB_PASS DB_PASS2 PASS_DB MYSQL_PWD PGPASSWORD ADMIN_PW MY_JWT JWT_TOKEN SENTRY_DSN API_KEY
            OPENAI_API_KEY AWS_SECRET_ACCESS_KEY NPM_TOKEN GH_PAT CLIENT_SECRET2 KEY_PASSPHRASE FTP_PASSWD PASSWORD_FILE1
            CREDS AZURE_CONN_STR SERVICE_ACCOUNT_CREDENTIALS RABBITMQ_DEFAULT_PASS SESSION_COOKIE mysql_pass PASSPHRASE"""
        for name in secret.split():
            with self.subTest(name):
                self.assertTrue(is_secret_name(name) and is_dropped(name))
                self.assertIn(name, secrets_of({name: SECRET}))
        for name in [
            "PATH",
            "HOME",
            "PWD",
            "OLDPWD",
            "COMPASS_DIR",
            "BYPASS_CACHE",
            "MONKEY",
            "KEYBOARD",
            "LANG",
            "PASSIVE_MODE",
            "AUTHOR",
            "DESKTOP",
        ]:
            with self.subTest(name):
                self.assertFalse(is_secret_name(name))
                self.assertEqual(secrets_of({name: SECRET}), {})

    def test_a_password_in_any_address_counts(self) -> None:
        url = f"mongodb+srv://me:{SECRET}@db.example/x?tls=1"
        self.assertTrue(is_dropped("WHERE", f"jdbc {url}"))
        self.assertEqual(secrets_of({"WHERE": url}), {"WHERE": SECRET})

    def test_limits_and_paths_are_not_secrets(self) -> None:
        self.assertEqual(secrets_of({"MAX_OUTPUT_TOKENS": "32000000", "SSL_KEY": "/etc/ssl/private/key.pem"}), {})


class Cuts(unittest.TestCase):
    def test_no_half_of_a_secret_remains_at_a_cut_wherever_it_falls(self) -> None:
        for secret in (SECRET, TOKEN, KEY):
            text = "a line of output\n" * 20 + secret + "\nmore output" * 200
            begin = text.index(secret)
            places = {
                *range(begin - 3, begin + min(len(secret), 60) + 3),
                begin + len(secret) // 2,
                begin + len(secret),
            }
            for at in sorted(places):
                for forward in (False, True):
                    cut = safe_cut(text, at, redact, forward=forward)
                    with self.subTest(secret=secret[:10], at=at, forward=forward):
                        self.assertFalse(begin < cut < begin + len(secret.rstrip()))
                        self.assertTrue(cut >= at if forward else cut <= at)

    def test_a_redactor_that_only_masks_is_cut_at_lines_that_it_leaves_whole(self) -> None:
        text = "a line of output\n" * 20 + KEY + "more output\n" * 200
        begin = text.index(KEY)
        for at in range(begin + 1, begin + len(KEY) - 1, sized(1600, 400, 10)):
            for forward in (False, True):
                cut = safe_cut(text, at, lambda text: redact(text), forward=forward)
                self.assertFalse(begin < cut < begin + len(KEY) - 1)

    def test_both_ends_of_long_output_are_masked_before_they_are_cut(self) -> None:
        for secret in (SECRET, TOKEN, KEY):
            for shift in range(0, 80, 3):
                data = ("x" * (495 + shift - len(secret) // 2) + " " + secret + " " + "y" * 30_000).encode()
                data += (" " + secret + " " + "z" * (495 + shift - len(secret) // 2)).encode()
                margin = 1_000 + 2 * CUT_MARGIN
                head, tail = data[: margin // 2 + 500], data[-margin // 2 :]
                kept = keep_text(head, tail, len(data), 1_000, redact)
                with self.subTest(secret=secret[:10], shift=shift):
                    self.assertLessEqual(len(kept.text.encode()), 1_000)
                    for start in range(0, len(secret) - 8, 7):
                        self.assertNotIn(secret[start : start + 8], kept.text.replace("[masked: MY_PASS]", ""))

    def test_long_lines_of_files_are_cut_between_tokens(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            text = "x " * 990 + TOKEN + " " + "y " * 2_000 + "needle " + "z " * 230 + TOKEN + " w" * 400
            Path(folder, "long.txt").write_text(text + "\n")
            ctx = ToolContext(cwd=folder, services=Services({Secrets: Secrets(redact)}))
            read = ReadTool().run_sync({"file_path": "long.txt"}, ctx)["content"]
            found = GrepTool().run_sync({"query": "needle"}, ctx)["matches"][0]["text"]
            for shown_text in (read, found):
                self.assertFalse(any(TOKEN[:n] in shown_text and TOKEN not in shown_text for n in (8, 16, 30)))

    @full_size
    def test_a_long_text_that_begins_like_a_secret_everywhere_is_masked_in_the_time_of_any_other(self) -> None:
        token = "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4"
        for filler in ("a" * 400_000, "eyJ-" * 100_000, "eyJ12345678-" * 30_000, "://x:" * 80_000):
            masked = Redactor()(f"{filler} https://me:{SECRET}@db.example {filler}-{token}")
            with self.subTest(filler[:12]):
                self.assertFalse(SECRET in masked or token[-18:] in masked)


class OnDisk(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.addCleanup(os.environ.pop, "TEST_DB_PASS", None)
        os.environ["TEST_DB_PASS"] = SECRET
        (self.folder / "work").mkdir()
        (self.folder / "work/config.txt").write_text(f"password = {SECRET}\n{KEY}")
        (self.folder / "work/CLAUDE.md").write_text(f"The database's password is {SECRET}.\n")

    def play(self, *turns: Any, **settings: Any) -> Any:
        store = FileSessionStore(root_dir=self.folder / "store")
        options = OpenAgenticOptions(
            provider=ScriptedProvider([*turns, f"All done with {SECRET}."]),
            model="scripted",
            cwd=str(self.folder / "work"),
            setting_sources=("project",),
            permission_gate=PermissionGate(permission_mode="bypass"),
            session_store=store,
            **settings,
        )
        return asyncio.run(run(prompt=f"Use {SECRET}", options=options))

    def stored(self) -> list[tuple[str, bytes]]:
        return [(str(path), path.read_bytes()) for path in self.folder.joinpath("store").rglob("*") if path.is_file()]

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return {"tool_calls": [{"name": name, "arguments": arguments}]}

    @full_size
    def test_nothing_in_the_store_holds_a_secret_that_a_run_met(self) -> None:
        command = f"{sys.executable} -c \"print(open('config.txt').read() * 4000)\""
        background = {**self.call("Bash", command="cat config.txt; sleep 60", run_in_background=True)}
        self.play(
            self.call("Bash", command=command),
            self.call("Read", file_path="config.txt"),
            background,
            self.call("BashOutput", shell_id="shell_1", wait_s=1),
            self.call("TodoWrite", todos=[{"content": "read the password", "status": "pending"}]),
            session_metadata={"title": f"about {SECRET}", "note": SECRET},
            blob_bytes=2_000,
        )
        kinds = {Path(path).name.partition("-")[0] for path, _ in self.stored()}
        self.assertIn("events.jsonl", kinds)
        self.assertTrue(any("outputs" in path for path, _ in self.stored()), "the long output must be in a file")
        for path, data in self.stored():
            with self.subTest(path):
                self.assertFalse(SECRET.encode() in data or b"MIIEow" in data)

    def test_the_input_of_a_call_is_stored_as_it_runs_and_shown_with_a_mask(self) -> None:
        done = self.play(self.call("Bash", command=f"echo {SECRET} | wc -c"))
        with_secret = [line for path, data in self.stored() for line in data.split(b"\n") if SECRET.encode() in line]
        self.assertTrue(with_secret)
        self.assertTrue(all(b'"type":"tool.use"' in line.replace(b" ", b"") for line in with_secret), with_secret)
        for path, _ in self.stored():
            self.assertEqual(os.stat(path).st_mode & 0o077, 0, path)
        store = ("--store", str(self.folder / "store"))
        page = self.folder / "page.html"
        for arguments in (
            ("sessions", "show", done.session_id, *store),
            ("sessions", "show", done.session_id, "--json", *store),
            ("export", done.session_id, *store),
            ("export", done.session_id, "--format", "json", *store),
            ("view", done.session_id, "-o", str(page), *store),
        ):
            with self.subTest(arguments[0]):
                output = self.output_of(arguments) + (page.read_text() if page.exists() else "")
                self.assertNotIn(SECRET, output)
        self.assertIn(SECRET, self.output_of(("export", done.session_id, "--format", "json", "--no-redact", *store)))

    def output_of(self, arguments: Sequence[str]) -> str:
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(main(list(arguments)), 0)
        return out.getvalue()

    def test_redaction_can_be_turned_off(self) -> None:
        done = self.play(self.call("Read", file_path="config.txt"), redact=False)
        self.assertIn(SECRET, done.final_text)

    def test_requests_of_a_masked_session_are_rebuilt_from_its_log(self) -> None:
        done = self.play(self.call("Read", file_path="config.txt"))
        store = ("--store", str(self.folder / "store"))
        # It exits with 0 only if every request equals the recorded one.
        self.output_of(("replay", done.session_id, *store))


if __name__ == "__main__":
    unittest.main()
