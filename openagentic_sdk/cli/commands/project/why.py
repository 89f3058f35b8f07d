"""`openagentic-sdk why NAME`: what a name refers to here, from which file, what it hides, and what it is granted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ....assemble import configured_servers, open_project
from ....errors import OptionsError
from ....ground.diagnostic import Diagnostic
from ....ground.frozen import frozen
from ....ground.text import on_one_line
from ....ground.words import look_alikes
from ....options import SETTING_SOURCES, OpenAgenticOptions
from ....parts.project.settings import Settings
from ....permissions.layers import rules_of_settings
from ....skills.index import IndexResult, SkillInfo, find_skill
from ....skills.ledger import rows
from ....skills.names import name_key
from ...exits import OK
from ...output.terminal import Screen
from ...project_report import Look, look_at, matches_nothing

_STATES: Mapping[str, str] = {
    "does": "does here what Claude Code documents",
    "narrower": "does less here",
    "no": "does nothing here",
    "nothing": "has no effect in Claude Code either",
    "ours": "is a word of this library",
}


@frozen
class Reason:
    """One thing that a name refers to: its `kind`, its location, and facts about it."""

    kind: str
    name: str
    path: str = ""
    scope: str = ""
    lines: tuple[str, ...] = ()

    def shown(self, screen: Screen) -> Iterator[str]:
        """Yield the lines to print."""
        place = f" is {on_one_line(self.path)}" if self.path else ""
        scope = f" [{self.scope}]" if self.scope else ""
        yield f"{screen.styled(self.kind, 'bold')} {on_one_line(self.name)}{place}{scope}"
        yield from (f"  {on_one_line(line)}" for line in self.lines)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "why",
        description="Show what a name refers to in this project: a skill, command, agent, rule, hook, server or plugin, "
        "or a "
        "word that Claude Code documents; which file it is from, what it hides, and what it is granted.",
    )
    parser.add_argument("name", metavar="NAME", help="such as deploy, /review, Bash, PreToolUse, github or statusLine")
    parser.add_argument("--cwd", metavar="DIR", help="look from this folder (default: this one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stdout)
    options = OpenAgenticOptions(cwd=args.cwd, setting_sources=SETTING_SOURCES)
    trust = open_project(options).trust
    look = look_at(options if trust.is_trusted else replace(options, trust_project=True))
    matches = list(reasons(look, args.name))
    if not matches:
        near = look_alikes(args.name, known_names(look), 0.6)
        advice = f"did you mean {' or '.join(near)}?" if near else "`openagentic-sdk skills sources` lists what exists"
        raise OptionsError(f"nothing here is named {args.name[:80]!r}: {advice}")
    data = {
        "name": args.name,
        "trusted": trust.is_trusted,
        "found": [{**vars(each), "lines": list(each.lines)} for each in matches],
    }
    lines = [line for each in matches for line in each.shown(screen)]
    if not trust.is_trusted and any(each.scope in ("project", "local") for each in matches):
        note = (
            f"the project is not trusted ({trust.reason}): the grants of its files take effect once `openagentic-sdk "
            "trust add` "
        )
        lines.append(screen.styled(on_one_line(f"{note}has trusted them"), "yellow"))
    screen.tell(args.json, data, lines)
    return OK


def reasons(look: Look, name: str) -> Iterator[Reason]:
    """Yield everything that the name refers to."""
    plain = name.removeprefix("/")
    index = look.project.skills()
    skill = find_skill(plain, index.skills, index.hidden)
    if skill is not None:
        yield skill_reason(index, skill)
    yield from _file_reasons(look, plain, skill)
    if not name.startswith("/"):
        yield from _hooks(look, name)
        yield from _rules(look, name)
        yield from _servers(look, name)
        yield from _words(name)


def known_names(look: Look) -> list[str]:
    """The names that `why` can explain in this project."""
    project = look.project
    index = project.skills()
    configured = configured_servers(project)
    return [
        *(name for skill in index.skills for name in skill.names),
        *(command.name for command in project.commands.commands),
        *(agent.name for agent in project.agents.agents),
        *(plugin.name for plugin in project.plugins.plugins),
        *(hook.event for hook in project.settings.hooks),
        *(one.entry.name for one in (configured.found if configured is not None else ())),
        *(word for kind in rows().values() for word in kind),
    ]


def skill_reason(index: IndexResult, skill: SkillInfo) -> Reason:
    """Explain which skill with this name takes effect, and which ones it hides."""
    hidden = next((pair for pair in index.shadowed if pair.loser is skill), None)
    winner = hidden.winner if hidden else skill
    losers = [pair for pair in index.shadowed if pair.winner is winner]
    lines = []
    for pair in losers:
        lines.append(f"hidden: {pair.loser.path} [{pair.loser.scope}]")
        lines.append(f"  because {pair.reason}; it answers to {pair.loser.id}")
    lines += [] if losers else ["no other skill has this name"]
    lines += [] if winner.model_invocable else ["only people can start it"]
    lines += [] if winner.user_invocable else ["only the model can start it"]
    lines += [f"its turn pre-approves {', '.join(winner.allowed_tools)}"] if winner.allowed_tools else []
    return Reason("skill", winner.name, winner.path, winner.scope, tuple(lines))


def _file_reasons(look: Look, name: str, skill: SkillInfo | None) -> Iterator[Reason]:
    """Yield the command, the agents and the plugins with this name."""
    project = look.project
    command = project.commands.find(name)
    if command is not None:
        lines = [f"the skill {skill.name} is used in its place"] if skill is not None and skill.user_invocable else []
        lines += _hidden(project.commands.diagnostics, "command", command.name)
        lines += [f"its turn pre-approves {', '.join(command.allowed_tools)}"] if command.allowed_tools else []
        yield Reason("command", f"/{command.name}", command.path, command.scope, tuple(lines))
    for agent in project.agents.agents:
        if name_key(agent.name) == name_key(name):
            finding = look.agent_file(agent)
            lines = [finding.detail, *([finding.advice] if finding.advice else [])]
            lines += _hidden(project.agents.diagnostics, "agent", agent.name)
            yield Reason("agent", agent.name, agent.path, agent.scope, tuple(lines))
    for plugin in project.plugins.plugins:
        if name in (plugin.id, plugin.name):
            lines = [
                f"contains {kind}: {', '.join(each) or 'none'}"
                for kind, each in _parts_of_plugin(look, plugin.name).items()
            ]
            yield Reason("plugin", plugin.id, plugin.root, plugin.scope, tuple(lines))


def _parts_of_plugin(look: Look, plugin: str) -> dict[str, list[str]]:
    project, prefix = look.project, f"{plugin}:"
    names = {
        "skills": [skill.name for skill in project.skills().skills],
        "commands": [command.name for command in project.commands.commands],
        "agents": [agent.name for agent in project.agents.agents],
    }
    return {kind: [name for name in group if name.startswith(prefix)] for kind, group in names.items()}


def _hidden(notes: tuple[Diagnostic, ...], kind: str, name: str) -> list[str]:
    prefix = name_key(f"the {kind} {name} is hidden by ")
    return [f"hidden: {note.path}" for note in notes if name_key(note.message).startswith(prefix)]


def _hooks(look: Look, name: str) -> Iterator[Reason]:
    """Yield the hooks of this event or tool, or with this word in their command."""
    project = look.project
    for hook in (*project.settings.hooks, *project.skill_hooks()):
        line = " ".join((hook.command, *(hook.args or ())))
        if name == hook.event or (len(name) > 3 and name in line) or name in hook.matcher.replace(",", "|").split("|"):
            finding = look.hook(hook)
            lines = [finding.detail, *([finding.advice] if finding.advice else [])]
            yield Reason("hook", finding.name, hook.source, hook.scope, tuple(lines))


def _rules(look: Look, name: str) -> Iterator[Reason]:
    """Yield the rules with this text, or about this tool."""
    settings = look.project.settings
    for effect in ("allow", "ask", "deny"):
        for rule in getattr(settings, effect):
            if name not in (rule.text, rule.text.partition("(")[0]):
                continue
            one: dict[str, Any] = {"allow": (), "ask": (), "deny": (), effect: (rule,)}
            rules = rules_of_settings(replace(Settings(), **one), look.project.root, look.project.cwd)
            lines = [note.message for note in rules.diagnostics]
            for parsed in (*rules.allow, *rules.ask, *rules.deny) if not lines else ():
                reason, advice = matches_nothing(parsed, look.agent.tools.names())
                lines += [f"matches nothing: {reason}", advice] if reason else []
            place = f"{rule.source}:{rule.line}" if rule.line else rule.source
            yield Reason(f"{effect} rule", rule.text, place, rule.scope, tuple(lines))


def _servers(look: Look, name: str) -> Iterator[Reason]:
    configured = configured_servers(look.project)
    for one in configured.found if configured is not None else ():
        if one.entry.name == name:
            status = "starts with a run" if one.state == "ready" else one.reason
            yield Reason("server", name, one.entry.source, one.entry.scope, (status,))


def _words(name: str) -> Iterator[Reason]:
    """Yield the entries for this name in the table of documented words."""
    for kind, by_word in rows().items():
        row = by_word.get(name)
        if row is not None:
            page = (f"see https://code.claude.com/docs/en/{row.page}",) if row.page else ()
            how = (row.how,) if row.how else ()
            yield Reason(f"word ({kind})", name, lines=(row.fact, _STATES[row.state], *how, *page))
