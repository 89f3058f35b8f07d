"""`openagentic-sdk plugins ...`: show the plugins in effect here, and add and remove those of this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence

from ....assemble import open_project, plugin_registry
from ....ground.diagnostic import Diagnostic
from ....ground.rooms import is_installed
from ....ground.text import on_one_line
from ....ground.words import plural
from ....options import SETTING_SOURCES, OpenAgenticOptions
from ....parts.project.agents import read_agents
from ....parts.project.claude import claude_folders
from ....parts.project.commands import read_commands
from ....parts.project.marketplace import is_marketplace, listed_plugins
from ....parts.project.notices import for_a_run, grouped
from ....parts.project.plugins import Plugin, load_plugin
from ....skills.index import SkillIndex, claude_home
from ....skills.lint import check_path
from ...actions import ActionList
from ...exits import FAILED, OK
from ...output.terminal import Screen


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("plugins", description="List, add, remove and check plugins. Nothing is downloaded.")
    actions = ActionList(parser)
    actions.add("list", _list, "list the plugins that are active in this folder, and those that are not")
    for name, action, target, help_text, summary in (
        (
            "add",
            _add,
            "DIR",
            "the folder of the plugin or marketplace",
            "trust the plugin or marketplace in a folder, in the current state of its files",
        ),
        ("remove", _remove, "NAME", "the plugin's name, or its id NAME@MARKETPLACE", "forget a plugin that was added"),
        (
            "check",
            _check,
            "DIR",
            "the folder of the plugin or marketplace",
            "show what a plugin, or each plugin of a marketplace, contains, and what is wrong or has no effect",
        ),
    ):
        actions.add(name, action, summary).add_argument("target", metavar=target, help=help_text)


def run(args: argparse.Namespace) -> int:
    code: int = args.run_action(args, Screen(sys.stdout))
    return code


def _add(args: argparse.Namespace, screen: Screen) -> int:
    registry = plugin_registry()
    wrong: list[Diagnostic] = []
    names = registry.add(args.target, wrong)
    for name in names:
        screen.line(f"added {on_one_line(name)}")
        added = registry.load(name, [])
        screen.lines(_servers(added) if added is not None else ())
    screen.lines(_how_to_enable(names))
    _tell(for_a_run(wrong), screen)
    return OK


def _how_to_enable(names: Sequence[str]) -> Iterator[str]:
    """Yield lines that state which of the added plugins are enabled, with the setting that disables or enables one."""
    switches = open_project(OpenAgenticOptions(setting_sources=SETTING_SOURCES)).settings.plugins
    on = [name for name in names if switches.get(name, name.endswith("@local"))]
    off = [name for name in names if name not in on]
    if on:
        setting = json.dumps({"enabledPlugins": {on[0]: False}})
        takes = "takes" if len(on) == 1 else "take"
        yield f"{_some(on)} {takes} effect from now on: {setting} in settings disables one"
    if off:
        place, setting = os.path.join(claude_home(), "settings.json"), json.dumps({"enabledPlugins": {off[0]: True}})
        takes, which = ("takes", "it") if len(off) == 1 else ("take", "them")
        yield f"{_some(off)} {takes} effect once settings enable {which}: write {setting} into {place}"


def _some(names: Sequence[str]) -> str:
    return on_one_line(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more")


def _remove(args: argparse.Namespace, screen: Screen) -> int:
    is_known = plugin_registry().remove(args.target)
    screen.line(f"{on_one_line(args.target)} {'is removed' if is_known else 'was not added'}")
    return OK if is_known else FAILED


def _list(args: argparse.Namespace, screen: Screen) -> int:
    plugins = open_project(OpenAgenticOptions(setting_sources=SETTING_SOURCES)).plugins
    screen.lines(f"{on_one_line(each.id)} [{each.scope}]  {on_one_line(each.root)}" for each in plugins.plugins)
    return _tell(plugins.diagnostics, screen)


def _tell(notes: Sequence[Diagnostic], screen: Screen) -> int:
    for note in notes:
        screen.line(screen.styled(on_one_line(note.located), "red" if note.is_error else "yellow"))
    return FAILED if any(note.is_error for note in notes) else OK


def _check(args: argparse.Namespace, screen: Screen) -> int:
    folder, notes = os.path.realpath(args.target), list[Diagnostic]()
    if not os.path.isdir(folder):
        return _tell([Diagnostic.left_out("plugin", "it is not a folder", folder)], screen)
    if is_marketplace(folder):
        listed = listed_plugins(folder, notes)
        screen.line(f"marketplace {on_one_line(folder)}: {plural(len(listed), 'plugin')} of its own")
        plugins = [(one.id, load_plugin(one.id, one.folder, "plugin", notes, one)) for one in listed]
    else:
        plugins = [(os.path.basename(folder), load_plugin(os.path.basename(folder), folder, "plugin", notes))]
    for name, plugin in plugins:
        if plugin is None:
            screen.line(f"plugin {on_one_line(name)}: cannot be used")
        else:
            _show(plugin, notes, screen)
    return _tell(grouped(notes), screen)


def _show(plugin: Plugin, notes: list[Diagnostic], screen: Screen) -> None:
    """Print the contents of a plugin, and add its problems to `notes`."""
    screen.line(f"plugin {on_one_line(plugin.name)}")
    nowhere = claude_folders(plugin.root, setting_sources=(), managed_dir=None)
    commands = read_commands(nowhere, plugin.markdown("commands", "commands", notes))
    agents = read_agents(nowhere, plugin.markdown("agents", "agents", notes))
    notes += (*commands.diagnostics, *agents.diagnostics)
    names = {
        "commands": [f"/{command.name}" for command in commands.commands],
        "agents": [agent.name for agent in agents.agents],
    }
    for kind, items in names.items():
        screen.line(f"  {kind}: {on_one_line(', '.join(items)) or 'none'}")
    roots = plugin.skill_roots()
    skills = SkillIndex(plugins=roots).read().skills
    screen.line(f"  skills: {on_one_line(', '.join(skill.name for skill in skills)) or 'none'}")
    notes += [note for root in roots for note in check_path(root.folder)[0]]
    for hook in plugin.hooks(notes):
        screen.line(f"  at {on_one_line(hook.event)} run: {on_one_line(' '.join((hook.command, *(hook.args or ()))))}")
    screen.lines(_servers(plugin))


def _servers(plugin: Plugin) -> list[str]:
    """The lines about each MCP server of the plugin, for the person who decides about it."""
    if "mcpServers" not in plugin.manifest and not os.path.lexists(os.path.join(plugin.root, ".mcp.json")):
        return []
    if not is_installed("parts.mcp"):
        return ["  its MCP servers are not started: the parts.mcp room is not installed"]
    from ....parts.mcp.configured.consent import definition_of, describe
    from ....parts.mcp.configured.read import plugin_entries

    return [
        f"  server {on_one_line(entry.name)} {line}"
        for entry in plugin_entries(plugin, [], "")
        for line in describe(definition_of(entry))
    ]
