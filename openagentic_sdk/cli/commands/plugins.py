"""`openagentic-sdk plugins ...`: which plugins count here, and adding and removing those of this machine."""

from __future__ import annotations

import argparse
import os
import sys

from ...assemble import open_project, plugin_registry
from ...mcp.configured.consent import definition_of, describe
from ...mcp.configured.read import plugin_entries
from ...options import SETTING_SOURCES, OpenAgenticOptions
from ...project.plugins import Plugin, load_plugin
from ...skills.frontmatter import Diagnostic
from ...skills.lint import check_path
from ...text import on_one_line
from ..exits import FAILED, OK
from ..screen.terminal import Screen


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("plugins", description="List, add, remove and check plugins. Nothing is downloaded.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, target, summary in (
        ("list", None, "name the plugins that count in this folder, and those that do not"),
        ("add", "DIR", "trust the plugin, or the marketplace, in a folder with the files that it has now"),
        ("remove", "NAME", "forget a plugin that was added"),
        ("check", "DIR", "say what a plugin brings, and what of it is wrong or has no effect"),
    ):
        action = actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if target:
            action.add_argument("target", metavar=target)


def run(args: argparse.Namespace) -> int:
    screen, registry = Screen(sys.stdout), plugin_registry()
    notes: list[Diagnostic] = []
    if args.action == "add":
        for name in registry.add(args.target):
            screen.line(f"added {on_one_line(name)}")
            added = load_plugin(name, registry.entries()[name]["root"], "plugin", notes)
            screen.lines(_servers(added) if added is not None else ())
        return OK
    if args.action == "remove":
        is_known = registry.remove(args.target)
        screen.line(f"{on_one_line(args.target)} {'is removed' if is_known else 'was not added'}")
        return OK if is_known else FAILED
    if args.action == "list":
        found = open_project(OpenAgenticOptions(setting_sources=SETTING_SOURCES)).plugins
        for plugin in found.plugins:
            screen.line(f"{on_one_line(plugin.id)} [{plugin.scope}]  {on_one_line(plugin.root)}")
        notes += found.diagnostics
    else:
        folder = os.path.realpath(args.target)
        checked = load_plugin(os.path.basename(folder), folder, "plugin", notes) if os.path.isdir(folder) else None
        if checked is None:
            notes = notes or [Diagnostic.left_out("plugin", "is no folder", folder)]
        else:
            _show(checked, notes, screen)
    for note in notes:
        screen.line(screen.styled(on_one_line(note.located), "red" if note.is_error else "yellow"))
    return FAILED if any(note.is_error for note in notes) else OK


def _show(plugin: Plugin, notes: list[Diagnostic], screen: Screen) -> None:
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


def _servers(plugin: Plugin) -> list[str]:
    """A line about each of its MCP servers, for the person who decides about the plugin."""
    if "mcpServers" not in plugin.manifest and not os.path.lexists(os.path.join(plugin.root, ".mcp.json")):
        return []
    return [
        f"  server {on_one_line(entry.name)} {line}"
        for entry in plugin_entries(plugin, [], "")
        for line in describe(definition_of(entry))
    ]
