"""The rules that an "always" answer may keep: no wider than the approved call, or than its tool if no rule is narrower."""

from __future__ import annotations

import re

from ..ground.text import visible
from .programs import hazard, read_only
from .rules import EDIT_TOOLS, TASK_TOOLS
from .shell import CommandLine, SimpleCommand, shell_word
from .subject import Subject

MAX_OFFERS = 10
# Words that make a program read its instructions from its input: `kubectl apply -f -`.
_INPUT_NAMES = frozenset({"-", "/dev/stdin"})


def offered_rules(subject: Subject) -> tuple[str, ...]:
    """Rules that cover this call: each command of a line word for word, the exact file, the host, the name. Empty if no rule
    is that narrow, or if a line has more than `MAX_OFFERS` commands.

    Rules cannot describe the input of other tools (custom ones, and those of MCP servers): for these the rule is the tool,
    whatever its input, as the question shows.
    """
    if subject.problem is not None:
        return ()
    if subject.command is not None:
        return _command_rules(subject, subject.line) if isinstance(subject.line, CommandLine) else ()
    if subject.accesses:
        tool = "Edit" if subject.tool in EDIT_TOOLS else "Read"
        return tuple(dict.fromkeys(f"{tool}(/{literal_pattern(access.places.real)})" for access in subject.accesses))
    if subject.tool == "WebFetch":
        return (f"WebFetch(domain:{subject.host})",) if re.fullmatch(r"[\w.-]+", subject.host or "") else ()
    if subject.name is not None:
        tool = "Task" if subject.tool in TASK_TOOLS else "Skill"
        return (f"{tool}({subject.name})",) if re.fullmatch(r"[\w.:/-]+", subject.name) else ()
    return (subject.tool,)


def _command_rules(subject: Subject, line: CommandLine) -> tuple[str, ...]:
    """A rule for each command, word for word, and for each file that a redirection reads or writes."""
    # A glob, or a relative path after `cd`, may mean other files the next time, so no rule can cover just this call.
    if len(line.commands) > MAX_OFFERS or any(command.globs or command.argv[0] == "cd" for command in line.commands):
        return ()
    if any(map(_runs_its_input, line.commands)):
        return ()

    def assigned(assignment: str) -> str:
        name, _, value = assignment.partition("=")
        return f"{name}={shell_word(value) if value else ''}"

    words = [[*map(assigned, command.open_assignments), *map(shell_word, command.argv)] for command in line.commands]
    rules = [f"Bash({' '.join(each)})" for each in words]
    for redirect in (redirect for command in line.commands for redirect in command.redirects):
        if not redirect.is_descriptor and redirect.target != "/dev/null":
            places = subject.workspace.follow(redirect.target, subject.workspace.cwd)
            rules.append(f"{'Edit' if redirect.writes else 'Read'}(/{literal_pattern(places.real)})")
    return tuple(dict.fromkeys(rules))


def _runs_its_input(command: SimpleCommand) -> bool:
    """Whether a command may run what it reads (`curl x | bash`, `xargs rm < list`): a rule would allow any other input."""
    argv = command.argv
    is_fed = command.joined_by in ("|", "|&") or any(redirect.operator == "<" for redirect in command.redirects)
    if not is_fed or read_only(argv, trusted=True) is not None:
        return False
    return hazard(argv) is not None or not _INPUT_NAMES.isdisjoint(argv[1:])


def literal_pattern(path: str) -> str:
    """A rule pattern that matches only this path."""
    return re.sub(r"([*?\[\]\\{])", r"\\\1", path)


def advice(subject: Subject) -> str:
    """Advice on how to permit the call, for the person who reads the denial."""
    offers = offered_rules(subject)
    rules = "rules such as " if len(offers) > 1 else "a rule such as "
    rule_list = rules + " and ".join(visible(offer) for offer in offers[:3]) if offers else f"the rule {subject.tool}"
    mode = " or mode acceptEdits" if subject.tool in EDIT_TOOLS else ""
    return f"To allow it, add {rule_list}{mode}, or run it where somebody can be asked."
