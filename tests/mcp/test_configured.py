"""Servers named in files: which of them may start, and what a person's consent covers."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, ClassVar

from openagentic_sdk.errors import OptionsError, StorageError
from openagentic_sdk.parts.mcp.configured.consent import changes, definition_of, describe
from openagentic_sdk.parts.mcp.configured.expand import expand_entry, variables_in
from openagentic_sdk.parts.mcp.configured.home import McpHome
from openagentic_sdk.parts.mcp.configured.read import plugin_server_name
from openagentic_sdk.parts.mcp.configured.resolve import Configured, ConfiguredServers
from openagentic_sdk.parts.mcp.configured.write import add_entry, read_entry, remove_entry
from openagentic_sdk.parts.project.plugins import PluginRegistry, read_plugins
from openagentic_sdk.parts.project.project import OpenedProject, read_project
from openagentic_sdk.parts.project.trust import TrustAnswer
from openagentic_sdk.sessions.request import json_sha256
from tests.size import full_size
from tests.skills.support import ProjectTestCase

STDIO = {"command": "run-it", "args": ["-a"], "env": {"A": "${HOME_OF_IT:-x}"}}
SOURCES = ("user", "project", "local")


class ExpansionTest(ProjectTestCase):
    def test_the_table_of_claude_code_but_for_what_is_not_set(self) -> None:
        environ = {"T_SET": "val", "T_EMPTY": "", "NESTED": "${T_SET}"}
        for written, arrives in (
            ("${T_SET}", "val"),
            ("$T_SET", "$T_SET"),
            ("${T_UNSET:-dflt}", "dflt"),
            ("${T_EMPTY:-dflt}", ""),
            ("${T_EMPTY}", ""),
            ("${T_UNSET:-${T_SET}}", "${T_SET}"),
            ("a${T_SET}b${T_SET}", "avalbval"),
            ("${T_SET:+x}", "${T_SET:+x}"),
            ("${T_UNSET:-}", ""),
            ("${NESTED}", "${T_SET}"),
            ("${}", "${}"),
            ("${1}", "${1}"),
            ("${T SET}", "${T SET}"),
            ("$${T_SET}", "$val"),
            ("${T_SET", "${T_SET"),
        ):
            with self.subTest(written):
                entry = {"command": written, "args": [written], "env": {"${T_SET}": written}, "headers": {"H": written}}
                made = expand_entry({**entry, "url": written, "type": written}, environ)
                self.assertEqual(
                    [made["command"], *made["args"], made["env"]["${T_SET}"], made["headers"]["H"], made["url"]],
                    [arrives] * 5,
                )
                self.assertEqual(made["type"], written)
        with self.assertRaisesRegex(OptionsError, r"\$\{A\}, \$\{B\} are not set"):
            expand_entry({"command": "${A}", "args": ["${T_SET}"], "env": {"X": "${B}-${A}"}}, environ)
        self.assertEqual(variables_in(["${A}${B:-x}", "${A}", 5]), ("A", "B"))


class ConfiguredCase(ProjectTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.home = McpHome(self.parent / "kept" / "mcp")
        self.claude = self.parent / "home" / ".claude.json"
        self.claude.parent.mkdir()

    def project_files(self, *sources: str) -> OpenedProject:
        trust = TrustAnswer("unknown", str(self.project), None, "nobody was asked")
        return read_project(
            self.project,
            cwd=self.project,
            trust=trust,
            setting_sources=sources or SOURCES,
            home=self.parent / "home",
            managed_dir=None,
        )

    def servers(self, *sources: str, **environ: str) -> ConfiguredServers:
        return self.home.configured(self.project_files(*sources), environ)

    def one(self, name: str = "srv", **environ: str) -> Configured:
        return next(each for each in self.servers(**environ).found if each.entry.name == name)

    def name(self, entry: Any, name: str = "srv") -> None:
        self.write({".mcp.json": json.dumps({"mcpServers": {name: entry}})})

    def agree(self, name: str = "srv") -> None:
        entry = self.one(name).entry
        assert self.home.consents is not None
        self.home.consents.remember(entry, "agreed", definition=definition_of(entry))


class ScopeTest(ConfiguredCase):
    def test_a_local_entry_overrides_the_projects_and_the_users_of_the_same_name(self) -> None:
        self.name({"command": "project"})
        project = self.project_files()
        for scope in ("user", "local"):
            add_entry(self.home, project, scope, "srv", {"command": f"own-{scope}"})
        claude = {"mcpServers": {"srv": {"command": "claude-user"}, "other": {"command": "claude-other"}}}
        claude["projects"] = {str(self.project): {"mcpServers": {"third": {"command": "claude-local"}}}}  # type: ignore[dict-item]
        self.claude.write_text(json.dumps(claude))
        found = {each.entry.name: each for each in self.servers().found}
        self.assertEqual(sorted(found), ["other", "srv", "third"])
        self.assertEqual(
            (found["srv"].entry.entry["command"], found["srv"].entry.hides), ("own-local", ("project", "user"))
        )
        self.assertTrue(all(each.state == "ready" for each in found.values()))
        self.assertTrue(remove_entry(self.home, project, "local", "srv"))
        self.assertEqual((self.one().state, self.one().entry.scope), ("pending", "project"))
        remove_entry(self.home, project, "project", "srv")
        self.assertEqual(self.one().entry.entry["command"], "own-user")
        remove_entry(self.home, project, "user", "srv")
        self.assertEqual(self.one().entry.entry["command"], "claude-user")
        self.assertFalse(remove_entry(self.home, project, "user", "srv"))

    def test_only_the_sources_that_are_open_are_read(self) -> None:
        self.name({"command": "project"}, "of-project")
        project = self.project_files()
        for scope in ("user", "local"):
            add_entry(self.home, project, scope, f"of-{scope}", {"command": "x"})
        self.claude.write_text(json.dumps({"mcpServers": {"of-claude": {"command": "x"}}}))
        for sources, names in (
            (("project",), ["of-project"]),
            (("user",), ["of-claude", "of-user"]),
            (("local",), ["of-local"]),
        ):
            self.assertEqual([each.entry.name for each in self.servers(*sources).found], names)
        nothing = read_project(self.project, cwd=self.project, trust=project.trust, home=self.parent / "home")
        self.assertFalse(nothing.may_name_servers(self.parent / "kept/mcp/servers.json"))
        self.assertTrue(project.may_name_servers(None))

    def test_another_project_has_other_local_servers(self) -> None:
        add_entry(self.home, self.project_files(), "local", "srv", STDIO)
        self.write({"sub/.git/HEAD": ""})
        project = self.project_files()
        elsewhere = read_project(
            self.project / "sub",
            cwd=self.project,
            trust=project.trust,
            setting_sources=SOURCES,
            home=self.parent / "home",
        )
        self.assertEqual(self.home.configured(elsewhere, {}).found, ())

    def test_files_of_user_entries_are_private_and_those_of_the_project_are_shared(self) -> None:
        path = add_entry(self.home, self.project_files(), "user", "srv", STDIO)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        path = add_entry(self.home, self.project_files(), "project", "theirs", STDIO)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o644)
        self.assertEqual(self.one("theirs").state, "ready")

    def test_entries_that_could_not_be_used_are_not_added(self) -> None:
        project = self.project_files()
        add_entry(self.home, project, "user", "srv", STDIO)
        for name, entry in (
            ("srv", STDIO),
            ("a__b", STDIO),
            ("", STDIO),
            ("ok", {"args": []}),
            ("ok", {"command": 5}),
            ("ok", {"type": "http", "url": "ftp://x"}),
        ):
            with self.subTest(name, entry=entry), self.assertRaises(OptionsError):
                add_entry(self.home, project, "user", name, entry)
        for text in ("{", "[]", "5"):
            with self.subTest(text), self.assertRaises(OptionsError):
                read_entry(text)
        with self.assertRaisesRegex(OptionsError, "OPENAGENTIC_SDK_HOME"):
            add_entry(McpHome(None), project, "user", "srv", STDIO)

    def test_a_file_that_would_not_be_read_is_not_written_to(self) -> None:
        text = '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}'
        self.write({".mcp.json": text})
        with self.assertRaisesRegex(OptionsError, "twice"):
            add_entry(self.home, self.project_files(), "project", "srv", STDIO)
        self.assertEqual((self.project / ".mcp.json").read_text(), text)


class FileTest(ConfiguredCase):
    """Files written by strangers."""

    def problems(self) -> str:
        servers = self.servers()
        self.assertEqual(servers.ready(), {})
        return "\n".join(note.located for note in servers.diagnostics)

    def test_a_file_that_cannot_be_read_is_left_out_with_a_word(self) -> None:
        deep = "[" * 100_000
        for text, wanted in (
            ("{", "left out"),
            ("[]", "not a JSON object"),
            ('{"mcpServers": []}', "not an object"),
            ('{"mcpServers": {"a": {}, "a": {}}}', "'a' twice"),
            ('{"mcpServers": {"a": {"command": "x", "command": "y"}}}', "'command' twice"),
            ('{"mcpServers": {"a": {"command": NaN}}}', "NaN is not JSON"),
            (f'{{"mcpServers": {deep}', "left out"),
            (" " * 11_000_000, "larger than"),
            ('{"mcpServers": {"a": 5}}', "not an object"),
            ('{"mcpServers": {"a": {"command": "' + "x" * 20_000 + '"}}}', "16384 characters"),
            ("\x00", "left out"),
        ):
            with self.subTest(text[:60]):
                self.write({".mcp.json": text})
                self.assertIn(wanted, self.problems())

    def test_a_link_out_of_the_project_and_a_pipe_are_not_read(self) -> None:
        (self.parent / "outside.json").write_text(json.dumps({"mcpServers": {"srv": STDIO}}))
        self.write({}, links={".mcp.json": "../outside.json"})
        self.assertIn("leads to", self.problems())
        os.unlink(self.project / ".mcp.json")
        os.mkfifo(self.project / ".mcp.json")
        self.assertIn("not a regular file", self.problems())

    def test_entries_of_the_wrong_kind_are_refused_one_by_one(self) -> None:
        good = {"mcpServers": {"good": STDIO}}
        for name, entry in (
            ("a__b", STDIO),
            ("a b", STDIO),
            ("\x1b[31m", STDIO),
            ("x" * 200, STDIO),
            ("a", {}),
            ("a", {"command": ["x"]}),
            ("a", {"command": "x", "args": "y"}),
            ("a", {"command": "x", "env": {"A": 5}}),
            ("a", {"command": "x\x00y"}),
            ("a", {"command": "x", "args": ["\ud800"]}),
            ("a", {"url": "https://h"}),
            ("a", {"type": "http"}),
            ("a", {"type": "carrier-pigeon", "url": "https://h"}),
            ("a", {"type": "http", "url": "file:///etc/passwd"}),
            ("a", {"type": "http", "url": "https://h", "headers": {"A": "b\nc"}}),
            ("a", {"type": "http", "url": "https://h", "oauth": {"callbackPort": "x"}}),
            ("a", {"command": "${NOT_SET_ANYWHERE}"}),
        ):
            with self.subTest(name[:9], entry=entry):
                self.write({".mcp.json": json.dumps({"mcpServers": {**good["mcpServers"], name: entry}})})
                states = {each.entry.name: each.state for each in self.servers().found}
                self.assertEqual(states, {"good": "pending", name: "unusable"})
        self.assertIn("${NOT_SET_ANYWHERE}", self.problems())

    def test_a_file_of_ten_thousand_servers_is_cut(self) -> None:
        self.write({".mcp.json": json.dumps({"mcpServers": {f"s{i}": {"command": "x"} for i in range(10_000)}})})
        self.assertEqual(len(self.servers().found), 100)

    def test_settings_reserved_for_the_user_are_ignored_in_a_projects_entry(self) -> None:
        entry = {**STDIO, "effects": {"t": "read"}, "inheritEnv": True, "pin": False, "autoApprove": ["*"]}
        self.name(entry)
        self.agree()
        server = self.one().server
        assert server is not None
        self.assertEqual((server.effects, server.inherit_env, server.pin), ({}, False, True))
        notes = "\n".join(note.message for note in self.servers().diagnostics)
        for key in ("effects", "inheritEnv", "pin"):
            self.assertIn(f"{key} of 'srv' applies only in the user's own files", notes)
        self.assertIn("autoApprove of 'srv' has no effect here", notes)
        add_entry(self.home, self.project_files(), "user", "mine", {**STDIO, "effects": {"t": "read"}, "pin": False})
        mine = self.one("mine").server
        assert mine is not None
        self.assertEqual((mine.effects, mine.pin), ({"t": "read"}, False))

    def test_a_damaged_file_of_the_user_is_reported(self) -> None:
        add_entry(self.home, self.project_files(), "user", "srv", STDIO)
        assert self.home.own is not None
        with open(self.home.own.path, "w") as file:
            file.write("{")
        self.assertIn("move it aside", self.problems())


class ConsentTest(ConfiguredCase):
    def test_nothing_of_a_project_starts_before_somebody_agreed(self) -> None:
        self.name(STDIO)
        servers = self.servers()
        self.assertEqual((servers.ready(), list(servers.waiting())), ({}, ["srv"]))
        self.assertIn("`openagentic-sdk mcp trust srv`", servers.waiting()["srv"])
        self.agree()
        server = self.servers().ready()["srv"]
        self.assertEqual((server.command, list(server.args), dict(server.env)), ("run-it", ["-a"], {"A": "x"}))
        (kept,) = (self.parent / "kept/mcp").glob("consent.json")
        self.assertEqual(stat.S_IMODE(os.stat(kept).st_mode), 0o600)

    def test_every_other_word_is_another_agreement(self) -> None:
        base = {**STDIO, "headers": {"Authorization": "Bearer ${TOKEN}"}}
        self.name(base)
        (entry,) = (each.entry for each in self.servers().found)
        digest = json_sha256(definition_of(entry))

        def other(**change: Any) -> bool:
            self.name({**base, **change})
            (now,) = (each.entry for each in self.servers().found)
            return json_sha256(definition_of(now)) != digest

        for change in (
            {"command": "run-it2"},
            {"args": ["-a", ""]},
            {"args": ["-a", "-b"]},
            {"env": {"A": "${HOME_OF_IT:-y}"}},
            {"env": {"A": "x"}},
            {"env": {"B": "${HOME_OF_IT:-x}"}},
            {"env": {}},
            {"url": "https://h"},
            {"type": "http"},
            {"cwd": "/"},
            {"headers": {"Authorization": "Bearer ${OTHER}"}},
            {"headers": {}},
            {"inheritEnv": True},
            {"oauth": {"clientId": "c"}},
        ):
            with self.subTest(change):
                self.assertTrue(other(**change))
        for same in ({"type": "stdio"}, {"headers": {"Authorization": "Token ${TOKEN}"}}, {"type": None}):
            with self.subTest(same):
                self.assertFalse(other(**same))

    def test_a_changed_entry_is_shown_and_waits_for_agreement_again(self) -> None:
        self.name(STDIO)
        self.agree()
        self.name({**STDIO, "args": ["-a", "evil"], "env": {"A": "${HOME_OF_IT:-x}", "B": "${SECRET}"}})
        one = self.one(SECRET="s")
        self.assertEqual((one.state, one.server), ("pending", None))
        assert one.consent is not None
        self.assertEqual(
            changes(one.consent.before, describe(definition_of(one.entry))),
            ["- run: run-it -a", "+ run: run-it -a evil", "+ with the variable B=${SECRET}"],
        )
        self.name(STDIO)
        self.assertEqual(self.one().state, "ready")

    def test_a_refusal_is_kept_and_can_be_withdrawn(self) -> None:
        self.name(STDIO)
        entry = self.one().entry
        consents = self.home.consents
        assert consents is not None
        consents.remember(entry, "refused", definition=definition_of(entry))
        self.assertEqual((self.one().state, self.servers().waiting()), ("refused", {}))
        self.assertTrue(consents.forget(entry.root, "srv"))
        self.assertFalse(consents.forget(entry.root, "srv"))
        self.assertEqual(self.one().state, "pending")

    def test_every_letter_of_what_is_asked_can_be_seen(self) -> None:
        entry = {"command": "a\u202eb", "args": ["x y", "\x1b[2J", "; rm -rf /", " " * 90 + "evil"], "env": {"K": "\n"}}
        self.name(entry)
        text = "\n".join(describe(definition_of(self.one().entry)))
        self.assertIn(r"'a\u202eb' 'x y' '\x1b[2J' '; rm -rf /' '[90 spaces]evil'", text)
        self.assertIn(r"with the variable K=\n", text)
        self.name({"type": "http", "url": "https://h/${PATH_OF_IT}", "headers": {"X": "${AWS_SECRET}", "Y": "fixed"}})
        text = "\n".join(describe(definition_of(self.servers().found[0].entry)))
        self.assertIn("send the header X, from AWS_SECRET\nsend the header Y, from the file", text)
        self.assertIn("it receives this machine's variable PATH_OF_IT", text)

    def test_unreadable_agreements_count_as_missing(self) -> None:
        self.name(STDIO)
        self.agree()
        path = self.parent / "kept/mcp/consent.json"
        for text in ("{", '{"projects": []}', f'{{"projects": {{"{self.project}": 5}}}}', '{"projects": {}}'):
            path.write_text(text)
            with self.subTest(text):
                self.assertEqual(self.one().state, "pending")

    def test_without_a_home_nobody_agreed(self) -> None:
        self.name(STDIO)
        found = McpHome(None).configured(self.project_files(), {}).found
        self.assertEqual(
            [(each.state, each.reason[:26]) for each in found], [("pending", "this user has no home fold")]
        )

    def test_the_users_settings_grant_the_first_agreement_and_no_later_one(self) -> None:
        for settings in ({"enabledMcpjsonServers": ["srv"]}, {"enableAllProjectMcpServers": True}):
            with self.subTest(settings):
                self.name(STDIO)
                self.write({"../home/.claude/settings.json": json.dumps(settings)})
                self.assertEqual(self.one().state, "ready")
                self.name({**STDIO, "args": ["other"]})
                self.assertEqual(self.one().state, "pending")
                assert self.home.consents is not None
                self.home.consents.forget(os.path.realpath(self.project), "srv")

    def test_a_project_grants_itself_nothing_and_may_switch_off(self) -> None:
        self.name(STDIO)
        grants = {"enabledMcpjsonServers": ["srv"], "enableAllProjectMcpServers": True}
        self.write({".claude/settings.json": json.dumps(grants), ".claude/settings.local.json": json.dumps(grants)})
        self.assertEqual(self.one().state, "pending")
        notes = [note.message for note in self.project_files().settings.diagnostics]
        self.assertEqual(sum("the user's own settings only" in note for note in notes), 4)
        self.agree()
        add_entry(self.home, self.project_files(), "user", "mine", STDIO)
        self.write({".claude/settings.json": json.dumps({"disabledMcpjsonServers": ["srv", "mine"]})})
        self.assertEqual((self.one().state, self.one("mine").state), ("disabled", "ready"))

    def test_two_processes_lose_no_agreement(self) -> None:
        names = [f"s{i}" for i in range(6)]
        self.write({".mcp.json": json.dumps({"mcpServers": dict.fromkeys(names, STDIO)})})
        for name in names[:3]:
            self.agree(name)
        pid = os.fork()
        if pid == 0:
            for name in names[3:]:
                self.agree(name)
            os._exit(0)
        for name in names[:3]:
            self.agree(name)
        os.waitpid(pid, 0)
        self.assertEqual([each.state for each in self.servers().found], ["ready"] * 6)


class PluginTest(ConfiguredCase):
    def test_names_of_plugins_servers_stay_within_what_tools_may_be_called(self) -> None:
        self.assertEqual(plugin_server_name("notes", "db"), "plugin_notes_db")
        self.assertRegex(plugin_server_name("a.b", "x__y"), r"plugin_a-b_x_y-[0-9a-f]{8}\Z")
        self.assertEqual(len({plugin_server_name("a", name) for name in ("b", "b_", "b.", "b-", "b__")}), 5)
        long = plugin_server_name("p" * 30, "s" * 30)
        self.assertTrue(len(long) <= 40 and long != plugin_server_name("p" * 30, "s" * 31))

    def write_plugin(self, where: Path) -> None:
        manifest = {"name": "notes", "mcpServers": {"inline": {"command": "${CLAUDE_PLUGIN_ROOT}/bin/it"}}}
        files = {
            ".claude-plugin/plugin.json": json.dumps(manifest),
            ".mcp.json": json.dumps({"db": {"command": "db", "env": {"R": "${CLAUDE_PLUGIN_ROOT}"}}}),
        }
        for name, text in files.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_text(text)

    def test_servers_of_a_plugin_that_a_person_added_start_with_the_path_of_its_folder(self) -> None:
        plugin = self.parent / "plugins" / "notes"
        self.write_plugin(plugin)
        registry = PluginRegistry(self.parent / "kept" / "plugins.json")
        registry.add(str(plugin), [])
        project = read_project(
            self.project,
            cwd=self.project,
            trust=TrustAnswer("unknown", "", None, ""),
            setting_sources=("user",),
            home=self.parent / "home",
            registry=registry,
            managed_dir=None,
        )
        self.assertTrue(project.may_name_servers(None))
        found = self.home.configured(project, {}).ready()
        self.assertEqual(sorted(found), ["plugin_notes_db", "plugin_notes_inline"])
        self.assertEqual(found["plugin_notes_inline"].command, f"{plugin}/bin/it")
        env = dict(found["plugin_notes_db"].env)
        self.assertTrue(env.pop("CLAUDE_PLUGIN_DATA").endswith("/notes-local"))
        self.assertEqual(env, {"R": str(plugin), "CLAUDE_PLUGIN_ROOT": str(plugin)})
        (plugin / ".mcp.json").write_text("{}")
        self.assertEqual(read_plugins(project.settings, registry, str(self.project)).plugins, ())

    def test_those_of_a_plugin_in_the_project_wait_for_consent_although_the_project_is_trusted(self) -> None:
        market = {"name": "house", "plugins": [{"name": "notes", "source": "./notes"}]}
        source = {"source": {"source": "directory", "path": "./market"}}
        self.write(
            {
                "market/.claude-plugin/marketplace.json": json.dumps(market),
                ".claude/settings.json": json.dumps(
                    {"enabledPlugins": {"notes@house": True}, "extraKnownMarketplaces": {"house": source}}
                ),
            }
        )
        self.write_plugin(self.project / "market" / "notes")
        project = read_project(
            self.project,
            cwd=self.project,
            trust=TrustAnswer("trusted", "", None, ""),
            setting_sources=SOURCES,
            home=self.parent / "home",
            managed_dir=None,
        )
        states = {each.entry.name: (each.state, each.entry.scope) for each in self.home.configured(project, {}).found}
        self.assertEqual(set(states.values()), {("pending", "project")})
        self.assertEqual(len(states), 2)


class PinsTest(ConfiguredCase):
    TOOLS: ClassVar[list[dict[str, Any]]] = [
        {"name": "a", "description": "Does a.", "inputSchema": {"type": "object"}},
        {"name": "b"},
    ]

    def test_the_first_use_decides_what_a_tool_is(self) -> None:
        pins = self.home.pins("/p", "srv")
        self.assertEqual(pins.judge("srv", self.TOOLS), (self.TOOLS, []))
        changed = [{**self.TOOLS[0], "description": "Does a.\nSends it away."}, self.TOOLS[1], {"name": "c"}]
        offered, held = self.home.pins("/p", "srv").judge("srv", changed)
        self.assertEqual((offered, [name for name, _ in held]), ([self.TOOLS[1]], ["a", "c"]))
        self.assertRegex(held[0][1], "changed since .*`openagentic-sdk mcp trust srv`")
        self.assertIn("is new", held[1][1])
        first, new = pins.changes(changed)
        self.assertEqual((first.name, first.is_new, first.lines), ("a", False, ("+description: Sends it away.",)))
        self.assertEqual((new.name, new.is_new, new.lines), ("c", True, ("+name: c",)))
        pins.agree(changed)
        self.assertEqual(pins.judge("srv", changed), (changed, []))
        self.assertEqual(pins.judge("srv", self.TOOLS)[0], [self.TOOLS[1]])

    def test_display_fields_may_change_and_tools_may_be_missing(self) -> None:
        pins = self.home.pins("/p", "srv")
        pins.judge("srv", self.TOOLS)
        shown = [{**self.TOOLS[1], "_meta": {"a": 1}, "icons": []}]
        self.assertEqual(pins.judge("srv", shown), (shown, []))
        self.assertEqual(self.home.pins("/other", "srv").judge("srv", [{"name": "z"}])[0], [{"name": "z"}])

    def test_a_damaged_file_offers_nothing_and_no_home_is_always_the_first_use(self) -> None:
        pins = self.home.pins("/p", "srv")
        pins.judge("srv", self.TOOLS)
        (file,) = (self.parent / "kept/mcp/tools").glob("*.json")
        file.write_text("{")
        offered, held = pins.judge("srv", self.TOOLS)
        self.assertEqual((offered, len(held)), ((), 2))
        with self.assertRaises(StorageError):
            pins.changes(self.TOOLS)
        self.assertEqual(McpHome(None).pins("/p", "srv").judge("srv", self.TOOLS), (self.TOOLS, ()))

    @full_size
    def test_hostile_definitions(self) -> None:
        deep: dict[str, Any] = {}
        for _ in range(5000):
            deep = {"a": deep}
        odd: list[dict[str, Any]] = [
            {"name": "deep", "inputSchema": deep},
            {"name": "big", "description": "x" * 100_000},
            {"name": 5},
            {},
            {"name": "half", "description": "\ud800\x1b[31m"},
        ]
        pins = self.home.pins("/p", "srv")
        pins.judge("srv", odd)
        offered, held = pins.judge("srv", odd)
        # Some Pythons can serialize 5000 levels; such a schema is omitted by its reader.
        self.assertEqual([tool.get("name") for tool in offered][-4:], ["big", 5, None, "half"])
        self.assertLessEqual({name for name, _ in held}, {"deep"})
        (change,) = pins.changes([{"name": "half", "description": "\x1b[2J"}])
        self.assertEqual(change.lines[-1], r"+description: \x1b[2J")
        many = [{"name": f"t{i}", "description": "d" * 15_000} for i in range(1000)]
        pins.agree(many)
        self.assertEqual(pins.judge("srv", many), (many, []))
