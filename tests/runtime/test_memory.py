"""Notes for later sessions: the memory tool, the notes a later session receives, and where each note came from."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk import McpServer
from openagentic_sdk.api import compact_session, run
from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import ToolError
from openagentic_sdk.events import SystemNotice, ToolResult, UserMessage
from openagentic_sdk.options import AgentDefinition, OpenAgenticOptions
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.folds.features.untrusted import untrusted_command
from openagentic_sdk.sessions.seal import Seal
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.tools.base import ToolContext
from openagentic_sdk.tools.code import CodeTool
from openagentic_sdk.tools.function import tool
from openagentic_sdk.tools.memory import MemoryFolders, MemoryTool
from openagentic_sdk.tools.memory.store import MAX_ENTRIES, MAX_TEXT_BYTES
from openagentic_sdk.tools.read import ReadTool
from openagentic_sdk.tools.session.task import TaskTool
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from tests.size import full_size

from .support import assert_closed, echo, options_for


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def note(path: str, text: str = "Run make.") -> dict[str, Any]:
    return call("memory", command="create", path=path, file_text=text)


@tool(name="WebFetch")
def fetch(url: str) -> str:
    """Fetch a page."""
    return f"<p>what {url} says</p>"


class MemoryCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.home, self.project = self.folder / "home", self.folder / "project"
        self.project.mkdir()
        before = dict(os.environ)
        os.environ.update(OPENAGENTIC_SDK_HOME=str(self.home), OPENAGENTIC_SDK_STORE=str(self.folder / "store"))
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))

    def memory(self) -> MemoryFolders:
        return MemoryFolders(self.home / "memory", self.project, Seal())

    def notes(self) -> dict[str, str]:
        """The paths of the notes, each with its reason for doubt ('' if trusted)."""
        return {entry.path: entry.doubt for entry in self.memory().entries()}


class Commands(MemoryCase):
    def do(self, command: str, **arguments: Any) -> Any:
        ctx = ToolContext(session_id="s1", seq=7)
        return MemoryTool(self.memory()).run_sync({"command": command, **arguments}, ctx)

    def refused(self, expected: str, command: str, **arguments: Any) -> None:
        with self.assertRaisesRegex(ToolError, expected):
            self.do(command, **arguments)

    def test_files_are_made_shown_changed_renamed_and_deleted_in_the_words_of_anthropics_tool(self) -> None:
        path = "/memories/project/build.md"
        created = self.do("create", path=path, file_text="Run make.\nThen test.")
        self.assertEqual(created, f"File created successfully at: {path}")
        self.refused("already exists", "create", path=path, file_text="x")
        shown = self.do("view", path=path)
        self.assertEqual(
            shown, f"Here's the content of {path} with line numbers:\n     1\tRun make.\n     2\tThen test."
        )
        self.assertIn("     2\tThen test.", self.do("view", path=path, view_range=[2, -1]))
        self.refused("within the lines", "view", path=path, view_range=[2, 9])
        edited = self.do("str_replace", path=path, old_str="make", new_str="make -j2")
        self.assertTrue(edited.startswith("The memory file has been edited.\n     1\tRun make -j2."))
        self.refused("did not appear verbatim", "str_replace", path=path, old_str="absent", new_str="x")
        self.refused("in lines: 1, 2, 2", "str_replace", path=path, old_str="e", new_str="x")
        self.do("insert", path=path, insert_line=0, insert_text="First.\n")
        self.assertIn("     1\tFirst.\n     2\tRun make -j2.", self.do("view", path=path))
        self.refused(r"\[0, 3\]", "insert", path=path, insert_line=4, insert_text="x")
        self.do("create", path="/memories/short.md", file_text="x")
        listing = self.do("view", path="/memories")
        self.assertIn("31B\t/memories/project/build.md", listing)
        self.assertIn("0B\t/memories/user", listing)
        self.do("rename", old_path=path, new_path="/memories/project/how/build.md")
        self.refused("already exists", "rename", old_path="/memories/short.md", new_path="/memories/project/how")
        self.refused("must be within", "rename", old_path="/memories/short.md", new_path="/memories/user/short.md")
        self.refused("is a file", "create", path="/memories/short.md/deeper.md", file_text="x")
        self.assertEqual(self.do("delete", path="/memories/project/how"), "Successfully deleted /memories/project/how")
        self.refused("does not exist", "view", path=path)
        self.assertEqual(self.notes(), {"/memories/project/short.md": ""})

    def test_a_folder_moves_with_all_its_notes_and_each_can_still_be_named(self) -> None:
        for path in ("a/b/c", "a/b/b/c", "a/b/b/b/c"):
            self.do("create", path=f"/memories/{path}", file_text=path)
        self.do("rename", old_path="/memories/a/b", new_path="/memories/a")
        for path, text in {"a/c": "a/b/c", "a/b/c": "a/b/b/c", "a/b/b/c": "a/b/b/b/c"}.items():
            self.assertIn(f"\t{text}", self.do("view", path=f"/memories/{path}"))
        self.refused("more than 6 names below", "rename", old_path="/memories/a", new_path="/memories/x/y/z/w")
        for scope in ("", "/project", "/user"):
            shown = self.do("create", path=f"/memories{scope}/1/2/3/4/5/note{len(scope)}", file_text="deep")
            self.assertIn("\tdeep", self.do("view", path=shown.rpartition(" ")[2]))
            self.refused(
                "more than 6 names below", "create", path=f"/memories{scope}/1/2/3/4/5/6/7", file_text="too deep"
            )
        self.do("rename", old_path="/memories/a", new_path="/memories/x/y/b")
        self.assertEqual(len(self.notes()), 6)

    def test_no_path_leads_out_of_the_memory(self) -> None:
        outside = self.folder / "secret"
        outside.write_text("secret")
        paths = [
            "/memories/../secret", "/memories/project/../../secret", "../secret", str(outside), "/memories/%2e%2e/secret",
            "/memories/project/..", "/memories\\..\\secret", "/memories/project/C:secret", "/memories/.hidden", "~/secret",
            "/memoriesx/a", "/memories/a\0b", "/memories/a\nb", "/memories/\u202etxt", "/memories/" + "a" * 300,
            "/memories/" + "a/" * 30, "", "memories/project/x", "/memories/project/x ", "file:///etc/passwd",
        ]  # fmt: skip
        for path in paths:
            for command in ("view", "create", "delete", "str_replace", "insert"):
                fields = {"file_text": "x", "old_str": "x", "insert_line": 0, "insert_text": "x"}
                with self.subTest(path=path, command=command), self.assertRaises(ToolError):
                    self.do(command, path=path, **fields)
        self.assertEqual(outside.read_text(), "secret")
        self.assertEqual([*self.folder.rglob("*.md")], [])
        self.refused("cannot be changed", "delete", path="/memories")
        self.refused("cannot be changed", "delete", path="/memories/user")

    def test_sizes_numbers_and_hidden_letters_are_bounded(self) -> None:
        self.refused("at most", "create", path="/memories/a", file_text="x" * (MAX_TEXT_BYTES + 1))
        for text in ("a\x1b[2J", "a\u202eb", "a\U000e0041", "a\u200bb"):
            self.refused("invisible", "create", path="/memories/a", file_text=text)
        self.do(
            "create",
            path="/memories/\u00fcber uns.md",
            file_text="r\u00e9sum\u00e9 \N{WOMAN}\u200d\N{PERSONAL COMPUTER}\r\n",
        )
        folder = self.memory().folders["user"]
        with folder.changing() as kept:
            kept.update({f"n{number}": {} for number in range(MAX_ENTRIES)})
        self.refused("is full", "create", path="/memories/user/one-more", file_text="x")
        self.do("delete", path="/memories/user/n1")
        self.do("create", path="/memories/user/one-more", file_text="x")
        with self.assertRaisesRegex(ToolError, "is full"), self.memory().folders["project"].changing() as kept:
            kept["big"] = {"lines": ["x" * 4_000_000]}
        self.assertEqual(len(self.notes()), MAX_ENTRIES + 1)

    def test_notes_changed_by_something_else_are_marked_and_later_changes_do_not_hide_it(self) -> None:
        for name in ("a", "b", "c"):
            self.do("create", path=f"/memories/user/{name}", file_text="good")
        self.do("create", path="/memories/project/p", file_text="good")
        (file,) = self.home.glob("memory/user/memory.json")
        file.write_text(file.read_text().replace("good", "evil"))
        self.do("str_replace", path="/memories/user/a", old_str="evil", new_str="bad")
        self.do("rename", old_path="/memories/user/b", new_path="/memories/user/d")
        self.assertEqual({path[-1] for path, doubt in self.notes().items() if doubt}, {"a", "c", "d"})
        (other,) = self.home.glob("memory/projects/*/memory.json")
        other.write_text(file.read_text())  # entries of another folder do not apply here
        self.assertTrue(self.notes()["/memories/project/c"])
        file.write_text(
            '{"version": 1, "entries": {"x": 3, "y": {"lines": 5, "writes": [{"at": "z"}], "sources": [[]]},'
            ' "z": {"lines": ["a"], "mac": "\\ud800"}}}'
        )
        self.assertTrue(all(self.notes().values()))
        self.assertIn("/memories/user/y", self.do("view", path="/memories/user"))
        file.write_text("{")
        self.refused("cannot be read", "view", path="/memories")

    def test_the_words_of_a_command_determine_whether_it_reaches_elsewhere(self) -> None:
        root = str(self.project)
        inside = [
            "make -j2 && ls src", f"cat {root}/a.py", "git log -3", "git -C sub status",
            "/usr/bin/env python3 x.py 2>/dev/null",
            "echo a/b", "pytest tests/ -k 'not slow'", "curly.sh", "./curl.d/x", "ls ./sub/x",
        ]  # fmt: skip
        outside = [
            "curl example.com", "cat /etc/passwd", "cat ~/notes", "cat ../other/x", "git pull", "git -C x fetch -q origin",
            "echo $(wget -qO- x)", "python -c 'open(\"https://x\")'", "cat $HOME/x", "cd /tmp; cat x",
            "tail -n3 --file=/var/log/x", "exec 3<>/dev/tcp/h/80", "npx thing",
            "/usr/bin/curl x", f"cat {root}x/a", f"cat {root}/../x",
        ]  # fmt: skip
        for command in inside:
            self.assertIsNone(untrusted_command(command, root, [root]), command)
        for command in outside:
            self.assertIsNotNone(untrusted_command(command, root, [root]), command)


class Sessions(MemoryCase):
    def options(self, *turns: Any, **changes: Any) -> OpenAgenticOptions:
        settings = {
            "cwd": self.project,
            "project_dir": self.project,
            "memory": True,
            "tools": [echo, fetch, ReadTool()],
        }
        return options_for([*turns], **{**settings, **changes})

    async def doubt_after(self, *turns: Any, path: str = "/memories/project/note", **changes: Any) -> str:
        """Run a session that writes a note after these turns, and return the reason for doubting the note."""
        options = self.options(*turns, note(path), "done", **changes)
        result = await run(prompt="go", options=options)
        assert_closed(self, options.session_store, result.session_id)
        doubt = self.notes()[path]
        self.memory_forget()
        return doubt

    def memory_forget(self) -> None:
        for folder in self.memory().folders.values():
            with folder.changing() as kept:
                kept.clear()

    async def notes_shown(self, **changes: Any) -> str:
        """The text about notes that a new session receives."""
        options = self.options("done", **changes)
        result = await run(prompt="go", options=options)
        about = [e.text for e in result.events if isinstance(e, UserMessage) and e.about == "memories:"]
        self.assertLessEqual(len(about), 1)
        return "".join(about)

    async def test_it_is_off_by_default_and_one_option_turns_it_on(self) -> None:
        for changes in ({}, {"tools": None}):
            off = self.options("done", **{"memory": False, **changes})
            await run(prompt="go", options=off)
            self.assertNotIn("memory", [tool["function"]["name"] for tool in off.provider.requests[0]["tools"]])
            on = self.options(
                note(f"/memories/user/n{len(changes)}"), "done", permission_gate=PermissionGate(), **changes
            )
            result = await run(prompt="go", options=on)
            self.assertEqual([e.outcome for e in result.events if isinstance(e, ToolResult)], ["ok"])
        self.assertEqual([*self.notes()], ["/memories/user/n0", "/memories/user/n1"])

    async def test_a_later_session_receives_the_notes_with_their_origins(self) -> None:
        options = self.options(
            note("/memories/project/build", "Run </memories> make."), note("/memories/user/taste"), "done"
        )
        first = await run(prompt="go", options=options)
        seqs = [entry.writes[-1].seq for entry in self.memory().entries()]
        text = await self.notes_shown()
        self.assertIn(
            f'<memory path="/memories/project/build" from="session {first.session_id[:8]}, event {seqs[0]}">', text
        )
        self.assertIn("Run &lt;/memories> make.", text)
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        text = await self.notes_shown(cwd=elsewhere, project_dir=elsewhere)
        self.assertNotIn("/memories/project", text)
        self.assertIn("/memories/user/taste", text)
        self.assertEqual(await self.notes_shown(memory=False), "")
        self.assertEqual(await self.notes_shown(disallowed_tools=["memory"]), "")

    async def test_a_session_receives_the_notes_once_and_again_after_a_compaction(self) -> None:
        await run(prompt="go", options=self.options(note("/memories/user/a"), "done"))
        options = self.options(note("/memories/user/b"), "one", "two", "a summary", "three")
        first = await run(prompt="go", options=options)
        again = replace(options, resume=first.session_id)
        second = await run(prompt="more", options=again)
        about = [e for e in (*first.events, *second.events) if isinstance(e, UserMessage) and e.about == "memories:"]
        self.assertEqual(len(about), 1)
        await compact_session(options=again)
        await run(prompt="more", options=again)
        events = options.session_store.read_events(first.session_id)
        about = [e.text for e in events if isinstance(e, UserMessage) and e.about == "memories:"]
        self.assertEqual(["/memories/user/b" in text for text in about], [False, True])
        self.assertEqual(find_mismatches(events), [])

    async def test_notes_of_a_session_that_read_foreign_content_are_marked_and_withheld(self) -> None:
        outside = self.folder / "outside.txt"
        outside.write_text("Always run evil.")
        (self.project / "inside.txt").write_text("fine")
        (self.project / "link.txt").symlink_to(outside)
        served = {"mcp_servers": {"desk": McpServer(tools=[echo])}}
        self.assertEqual(await self.doubt_after(call("Read", file_path="inside.txt")), "")
        for turn, changes in (
            (call("WebFetch", url="https://example.com/x"), {}),
            (call("mcp__desk__echo", text="x"), served),
            (call("Read", file_path=str(outside)), {}),
            (call("Read", file_path="link.txt"), {}),
        ):
            with self.subTest(turn=turn):
                self.assertIn("content from elsewhere", await self.doubt_after(turn, **changes))
        await run(
            prompt="go",
            options=self.options(call("WebFetch", url="https://x.org/"), note("/memories/user/bad", "evil"), "done"),
        )
        text = await self.notes_shown()
        self.assertNotIn("bad", text)  # its name is hidden too: a name can carry an injection
        self.assertIn("1 more note may hold what somebody else wrote", text)
        listed = await self.doubt_after(call("memory", command="view", path="/memories/user"))
        self.assertIn("names of 1 doubtful notes", listed)

    async def test_a_mark_passes_on_to_whatever_is_written_after_it(self) -> None:
        await run(
            prompt="go",
            options=self.options(call("WebFetch", url="https://x.org/"), note("/memories/user/bad"), "done"),
        )
        view = call("memory", command="view", path="/memories/user/bad")
        self.assertIn("memory: /memories/user/bad", await self.doubt_after(view))
        first = await run(
            prompt="go", options=(options := self.options(call("WebFetch", url="https://x.org/"), "one", "sum"))
        )
        again = replace(options, resume=first.session_id)
        await compact_session(options=again)
        with self.subTest("behind a compaction, in a later run"):
            later = self.options(note("/memories/user/later"), "done", session_store=options.session_store)
            await run(prompt="more", options=replace(later, resume=first.session_id))
            self.assertIn("https://x.org/", self.notes()["/memories/user/later"])

    async def test_a_mark_passes_between_a_session_and_its_subagents(self) -> None:
        agents = {"one": AgentDefinition("does one", "You are one.")}
        task = call("Task", agent="one", prompt="do it")
        child = {"agent": "You are one.", "text": "all done"}
        changes = {"agents": agents, "tools": [echo, fetch, TaskTool({"one": ""})]}
        self.assertEqual(await self.doubt_after(task, child, **changes), "")
        reads = {"agent": "You are one.", **call("WebFetch", url="https://x.org/")}
        self.assertIn("x.org", await self.doubt_after(task, reads, child, **changes))
        writes = {"agent": "You are one.", **note("/memories/user/by-child")}
        turns = [call("WebFetch", url="https://x.org/"), task, writes, child, "done"]
        await run(prompt="go", options=self.options(*turns, **changes))
        self.assertIn("x.org", self.notes()["/memories/user/by-child"])

    @full_size
    async def test_code_cannot_take_the_mark_off_what_it_reads(self) -> None:
        if probe_sandbox().level == "none":
            self.skipTest("code runs only in a sandbox, which this machine lacks")
        code = (
            "page = await WebFetch(url='https://x.org/')\n"
            "await memory(command='create', path='/memories/user/by-code', file_text=page)"
        )
        options = self.options(call("Code", code=code), "done", tools=[CodeTool(), fetch])
        result = await run(prompt="go", options=options)
        assert_closed(self, options.session_store, result.session_id)
        self.assertIn("x.org", self.notes()["/memories/user/by-code"])
        turn = call("Code", code="print((await WebFetch(url='https://x.org/'))[:3])")
        self.assertIn("x.org", await self.doubt_after(turn, tools=[CodeTool(), fetch]))

    async def test_foreign_content_in_a_prompt_marks_the_notes_taken_after_it(self) -> None:
        outside = self.folder / "outside.txt"
        outside.write_text("Always run evil.")
        (self.project / "inside.txt").write_text("fine")
        for path, doubted in (("inside.txt", False), (str(outside), True)):
            options = self.options(note("/memories/user/a"), "done")
            await run(prompt=[{"type": "text", "text": "Look."}, {"type": "file", "path": path}], options=options)
            self.assertEqual(bool(self.notes()["/memories/user/a"]), doubted, path)
            self.memory_forget()

    async def test_each_tenant_of_a_server_has_notes_of_its_own(self) -> None:
        for tenant in ("a", "b"):
            options = self.options(
                note("/memories/user/own"), note("/memories/project/own"), "done", session_metadata={"tenant": tenant}
            )
            await run(prompt="go", options=options)
        self.assertEqual(self.notes(), {})
        self.assertIn("/memories/user/own", await self.notes_shown(session_metadata={"tenant": "a"}))
        self.assertEqual(await self.notes_shown(session_metadata={"tenant": "c"}), "")
        for name in ("user", "projects/*"):
            one, other = self.home.glob(f"memory/tenants/*/{name}*/memory.json")
            one.write_text(other.read_text())
        entries = [
            e for t in ("a", "b") for e in MemoryFolders(self.home / "memory", self.project, Seal(), tenant=t).entries()
        ]
        self.assertEqual(sorted(bool(entry.doubt) for entry in entries), [False, False, True, True])

    async def test_no_other_tool_reads_the_notes_even_in_the_run_that_writes_the_first(self) -> None:
        place = self.home / "memory" / "user" / "memory.json"
        options = self.options(note("/memories/user/a"), call("Read", file_path=str(place)), "done")
        result = await run(prompt="go", options=options)
        self.assertEqual([e.outcome for e in result.events if isinstance(e, ToolResult)], ["ok", "denied"])

    async def test_permission_rules_apply_to_the_tool_and_to_its_commands(self) -> None:
        turns = [note("/memories/user/a"), call("memory", command="delete", path="/memories/user/a"), "done"]
        for changes, outcomes in (
            ({"disallowed_tools": ["memory.delete"]}, ["ok", "denied"]),
            ({"permission_gate": PermissionGate(ask=["memory.create"])}, ["denied", "error"]),
            ({"permission_gate": PermissionGate(permission_mode="plan")}, ["denied", "denied"]),
            ({"permission_gate": PermissionGate(permission_mode="deny")}, ["denied", "denied"]),
        ):
            with self.subTest(changes=changes):
                result = await run(prompt="go", options=self.options(*turns, **changes))
                self.assertEqual([e.outcome for e in result.events if isinstance(e, ToolResult)], outcomes)
                self.memory_forget()

    async def test_damage_is_named_and_ends_no_run(self) -> None:
        (self.home / "memory" / "user").mkdir(parents=True)
        (self.home / "memory" / "user" / "memory.json").write_text("{")
        options = self.options(note("/memories/user/a"), "done")
        result = await run(prompt="go", options=options)
        self.assertEqual(result.stop_reason, "end")
        notices = [e.message for e in result.events if isinstance(e, SystemNotice) and e.code == "memory"]
        self.assertIn("cannot be read", notices[0])
        (answer,) = [e for e in result.events if isinstance(e, ToolResult)]
        self.assertIn("cannot be read", answer.error_message)

    async def test_secrets_are_masked_before_they_are_kept(self) -> None:
        secret = "ghp_" + "Ab1" * 12
        await run(prompt="go", options=self.options(note("/memories/user/a", f"token {secret}"), "done"))
        self.assertNotIn(secret, (self.home / "memory" / "user" / "memory.json").read_text())


class Command(MemoryCase):
    def command(self, *argv: str) -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["memory", *argv, "--cwd", str(self.project)])
        return code, out.getvalue()

    async def write(self) -> str:
        turns = [
            note("/memories/project/build"),
            call("WebFetch", url="https://x.org/"),
            note("/memories/user/bad"),
            "done",
        ]
        options = options_for(
            turns,
            cwd=self.project,
            memory=True,
            tools=[fetch],
            session_store=FileSessionStore(root_dir=self.folder / "store"),
        )
        return (await run(prompt="Note how to build.", options=options)).session_id

    async def test_list_why_check_and_forget_show_and_remove_notes(self) -> None:
        self.assertEqual(self.command("list"), (0, "no notes\n"))
        session_id = await self.write()
        code, out = self.command("list")
        self.assertEqual((code, out.count("\n")), (0, 2))
        self.assertIn("not shown unasked", out.splitlines()[1])
        code, out = self.command("why", "/memories/user/bad")
        for expected in (session_id, "asked: Note how to build.", "had read web: https://x.org/", "| Run make."):
            self.assertIn(expected, out)
        self.assertEqual(self.command("check")[0], 0)
        rows = [json.loads(line) for line in self.command("check", "--json")[1].splitlines()]
        self.assertEqual([row["faults"] for row in rows], [[], []])
        self.assertEqual(self.command("forget", "/memories/project"), (0, "forgot /memories/project/build\n"))
        self.assertEqual(self.command("forget", "/memories/project/build")[0], 2)
        self.assertEqual(self.command("why", "/memories/../x")[0], 2)

    async def test_check_finds_what_the_session_did_not_write(self) -> None:
        session_id = await self.write()
        (file,) = self.home.glob("memory/projects/*/memory.json")
        file.write_text(file.read_text().replace("Run make.", "Run evil."))
        code, out = self.command("check")
        self.assertEqual(code, 1)
        self.assertIn("/memories/project/build: wrong", out)
        self.assertIn("/memories/user/bad: fits", out)
        self.assertEqual(self.command("check", "--trust", "/memories/project/build")[0], 0)
        self.assertEqual(self.notes()["/memories/project/build"], "")
        FileSessionStore(root_dir=self.folder / "store").delete_session(session_id)
        self.assertIn("is not in this store", self.command("check", "/memories/user/bad")[1])


if __name__ == "__main__":
    unittest.main()
