"""`openagentic-sdk plugins ...`: which plugins count here, and adding and removing those of this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ...assemble import open_project, plugin_registry
from ...ground.diagnostic import Diagnostic
from ...ground.rooms import is_installed
from ...ground.text import on_one_line
from ...options import SETTING_SOURCES, OpenAgenticOptions
from ...parts.project.plugins import Plugin, load_plugin
from ...skills.lint import check_path
from ..actions import ActionList
from ..exits import FAILED, OK
from ..output.terminal import Screen


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("plugins", description="List, add, remove and check plugins. Nothing is downloaded.")
    actions = ActionList(parser)
    actions.add("list", _list, "name the plugins that count in this folder, and those that do not")
    for name, action, target, summary in (
        ("add", _add, "DIR", "trust the plugin, or the marketplace, in a folder with the files that it has now"),
        ("remove", _remove, "NAME", "forget a plugin that was added"),
        ("check", _check, "DIR", "say what a plugin brings, and what of it is wrong or has no effect"),
    ):
        actions.add(name, action, summary).add_argument("target", metavar=target)


def run(args: argparse.Namespace) -> int:
    code: int = args.run_action(args, Screen(sys.stdout))
    return code


def _add(args: argparse.Namespace, screen: Screen) -> int:
    registry = plugin_registry()
    for name in registry.add(args.target):
        screen.line(f"added {on_one_line(name)}")
        added = load_plugin(name, registry.entries()[name]["root"], "plugin", [])
        screen.lines(_servers(added) if added is not None else ())
    return OK


def _remove(args: argparse.Namespace, screen: Screen) -> int:
    is_known = plugin_registry().remove(args.target)
    screen.line(f"{on_one_line(args.target)} {'is removed' if is_known else 'was not added'}")
    return OK if is_known else FAILED


def _list(args: argparse.Namespace, screen: Screen) -> int:
    found = open_project(OpenAgenticOptions(setting_sources=SETTING_SOURCES)).plugins
    screen.lines(f"{on_one_line(each.id)} [{each.scope}]  {on_one_line(each.root)}" for each in found.plugins)
    return _tell(found.diagnostics, screen)


def _tell(notes: Sequence[Diagnostic], screen: Screen) -> int:
    for note in notes:
        screen.line(screen.styled(on_one_line(note.located), "red" if note.is_error else "yellow"))
    return FAILED if any(note.is_error for note in notes) else OK


def _check(args: argparse.Namespace, screen: Screen) -> int:
    folder, notes = os.path.realpath(args.target), list[Diagnostic]()
    plugin = load_plugin(os.path.basename(folder), folder, "plugin", notes) if os.path.isdir(folder) else None
    if plugin is None:
        return _tell(notes or [Diagnostic.left_out("plugin", "is no folder", folder)], screen)
    screen.line(f"plugin {on_one_line(plugin.name)}")
    for kind in ("commands", "agents"):
        names = [file.relative.removesuffix(".md") for file in plugin.markdown(kind, kind, notes)]
        screen.line(f"  {kind}: {on_one_line(', '.join(names)) or 'none'}")
    for root in plugin.skill_roots():
        findings, count = check_path(root.folder)
        screen.line(f"  skills in {on_one_line(root.folder)}: {count}")
        notes += findings
    for hook in plugin.hooks(notes):
        screen.line(f"  at {on_one_line(hook.event)} run: {on_one_line(' '.join((hook.command, *(hook.args or ()))))}")
    screen.lines(_servers(plugin))
    return _tell(notes, screen)


def _servers(plugin: Plugin) -> list[str]:
    """A line about each of its MCP servers, for the person who decides about the plugin."""
    if "mcpServers" not in plugin.manifest and not os.path.lexists(os.path.join(plugin.root, ".mcp.json")):
        return []
    if not is_installed("parts.mcp"):
        return ["  its MCP servers are not started: the parts.mcp room is not installed"]
    from ...parts.mcp.configured.consent import definition_of, describe
    from ...parts.mcp.configured.read import plugin_entries

    return [
        f"  server {on_one_line(entry.name)} {line}"
        for entry in plugin_entries(plugin, [], "")
        for line in describe(definition_of(entry))
    ]
