"""The subcommands by name, and the only place that imports their modules."""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

COMMANDS = {
    "run": "run one prompt to its end",
    "chat": "talk with an agent, turn by turn",
    "sessions": "list, read, compare, check and repair sessions",
    "verify": "check a session, and with --signed say who vouches for its record",
    "acp": "serve an editor (Zed, JetBrains, Neovim, Emacs ...) that starts this command",
    "replay": "play a session again from its log and compare every request",
    "whatif": "go on with a copy of a session under other conditions",
    "eval": "run a suite of recorded sessions and prompts, and compare what came of it",
    "workflow": "run functions whose steps are durable, look at them, check their code",
    "view": "show a session as a page in the browser",
    "serve": "serve named agents and their sessions over HTTP",
    "fleet": "queue runs for many hosts, work on them, answer and end them",
    "export": "write a session for other programs: OpenTelemetry, messages, Markdown, JSON",
    "bundle": "write everything into one file that a bare Python runs",
    "why": "say what a name leads to here: a skill, command, agent, rule, hook, server or documented word",
    "skills": "list, read and check skills",
    "memory": "list, explain, check and delete what agents keep for later sessions",
    "plugins": "list, add and check plugins",
    "mcp": "add, look at, agree to and test MCP servers, and be one",
    "permissions": "judge recorded calls by other rules, and find rules worth having",
    "trust": "say whether a project's own files may grant anything",
    "import": "bring in the conversations of other programs",
    "store": "make the tables of a store",
    "completion": "print what bash, zsh or fish evaluate for completion",
    "wire": "check recorded exchanges with endpoints: what is read otherwise, and what a cut would change",
    "doctor": "say what this machine, this project and an endpoint give an agent, and what to set",
}
# What most people need; the others stand under `admin`, and work without that word too.
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
