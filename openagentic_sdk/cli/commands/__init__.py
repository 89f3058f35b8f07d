"""The subcommands by name, and the only place that imports their modules."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

COMMANDS = {
    "run": "run one prompt to completion",
    "chat": "talk with an agent, turn by turn",
    "sessions": "list, read, compare, check and repair sessions",
    "verify": "check a session, and with --signed show who signed its record",
    "acp": "serve an editor (Zed, JetBrains, Neovim, Emacs ...) that starts this command",
    "replay": "play a session again from its log and compare every request",
    "whatif": "continue a copy of a session under other conditions",
    "eval": "run a suite of recorded sessions and prompts, and compare the results",
    "workflow": "run functions whose steps are durable, inspect them, check their code",
    "view": "show a session as a page in the browser",
    "serve": "serve named agents and their sessions over HTTP",
    "fleet": "queue runs for many hosts, execute them, answer and end them",
    "export": "write a session for other programs: OpenTelemetry, messages, Markdown, JSON",
    "bundle": "bundle the package into one file that a plain Python runs",
    "why": "show what a name refers to here: a skill, command, agent, rule, hook, server or documented word",
    "skills": "list, read and check skills",
    "memory": "list, explain, check and delete the notes that agents keep for later sessions",
    "plugins": "list, add and check plugins",
    "mcp": "add, inspect, approve and test MCP servers, or act as one",
    "permissions": "evaluate recorded calls under other rules, and suggest useful rules",
    "trust": "show or decide whether a project's own files may grant permissions",
    "import": "import conversations of other programs",
    "store": "create the tables of a store",
    "completion": "print the completion script for bash, zsh or fish",
    "wire": "check recorded exchanges with endpoints: what is read differently, and what truncation would change",
    "doctor": "report what this machine, this project and an endpoint offer an agent, and what to configure",
}
# The commands that most people need; the others are listed under `admin`, and also work without that word.
FIRST_COMMANDS = ("run", "chat", "sessions", "replay", "eval", "workflow", "view", "serve", "doctor")
ADMIN = "admin"
# Modules with another name (`import` is a keyword of Python), and those of a folder below.
_MODULES = {
    "import": "importing",
    "doctor": "endpoint.doctor",
    "wire": "endpoint.wire",
    "plugins": "project.plugins",
    "why": "project.why",
}


class Subcommand(Protocol):
    """The interface of a module in this folder."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def load_command(name: str) -> Subcommand:
    """Import the module of the subcommand with this name."""
    return cast(Subcommand, importlib.import_module(f".{_MODULES.get(name, name)}", __package__))
