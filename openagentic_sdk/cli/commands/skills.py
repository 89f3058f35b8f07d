"""`openagentic-sdk skills ...`: list, show and check skills, and show which of several with one name wins."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from ...assemble import open_project, project_findings
from ...ground.diagnostic import Diagnostic
from ...ground.text import on_one_line, printable
from ...ground.words import plural
from ...options import SETTING_SOURCES, OpenAgenticOptions
from ...parts.project.project import OpenedProject
from ...skills.files import list_resources
from ...skills.index import SkillInfo, load_skill
from ...skills.lint import check_path
from ...skills.names import name_key
from ..actions import ActionList
from ..exits import FAILED, OK
from ..output.terminal import Screen


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("skills", description="List, read and check skills.")
    actions = ActionList(parser, _add_common)
    rows = actions.add("list", _list, "list the skills of this project and of the user")
    rows.add_argument("query", nargs="*", metavar="WORD", help="only those with these words in name or summary")
    show = actions.add("show", _show, "print one skill: its text, checklist and files")
    show.add_argument("name", metavar="NAME", help="the skill's name, its folder's name, or project:NAME, user:NAME")
    why = actions.add("why", _why, "show which skill a name refers to, which ones it hides, and why")
    why.add_argument("name", metavar="NAME", help="the name of the skill")
    actions.add("sources", _sources, "list the files that a run here reads: settings, memory, commands, agents, skills")
    check = actions.add("check", _check, "check a skill, or a tree of them, against the specification")
    check.add_argument("path", nargs="?", metavar="PATH", help="a SKILL.md or a folder (default: this project)")
    check.add_argument("--strict", action="store_true", help="treat warnings as failures")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cwd", metavar="DIR", help="look from this folder (default: this one)")
    parser.add_argument("--project-only", action="store_true", help="omit the user's skills")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: one object per row of a list, otherwise one object"
    )


def run(args: argparse.Namespace) -> int:
    code: int = args.run_action(args, Screen(sys.stdout))
    return code


def _project(args: argparse.Namespace) -> OpenedProject:
    """Read the project as a run in the folder of `--cwd` does; `--project-only` omits the user's files."""
    options = OpenAgenticOptions(cwd=args.cwd, setting_sources=("project", "local"))
    return open_project(options if args.project_only else replace(options, setting_sources=SETTING_SOURCES))


def _list(args: argparse.Namespace, screen: Screen) -> int:
    index = _project(args).skills()
    words = name_key(" ".join(args.query)).split()
    rows = [skill for skill in index.skills if all(word in name_key(f"{skill.name} {skill.summary}") for word in words)]
    for skill in rows:
        name = screen.styled(on_one_line(skill.name), "bold")
        who = "" if skill.model_invocable else " (only people can start it)"
        row = f"{name} [{skill.scope}]{who}  {on_one_line(skill.summary, 100)}"
        screen.tell(args.json, _as_json(skill), [row])
    if args.json:
        return OK
    if not rows:
        screen.line("no skills")
    lines = [f"hidden: {_place(p.loser)}, see `skills why {on_one_line(p.loser.name)}`" for p in index.shadowed]
    lines += [_finding(note) for note in index.diagnostics if note.is_error]
    screen.lines(screen.styled(line, "yellow") for line in lines)
    return OK


def _as_json(skill: SkillInfo) -> dict[str, object]:
    return {
        "name": skill.name,
        "summary": skill.summary,
        "path": skill.path,
        "scope": skill.scope,
        "model_invocable": skill.model_invocable,
        "user_invocable": skill.user_invocable,
    }


def _show(args: argparse.Namespace, screen: Screen) -> int:
    skill = _project(args).skills().find(args.name)
    doc = load_skill(skill)
    files, more = list_resources(os.path.dirname(skill.path), 50)
    rows = [
        ("name", skill.name),
        ("id", skill.id),
        ("path", skill.path),
        ("summary", doc.summary),
        ("arguments", doc.argument_hint),
        ("allowed-tools", ", ".join(doc.allowed_tools)),
        ("disallowed", ", ".join(doc.disallowed_tools)),
        ("license", doc.license),
        ("checklist", plural(len(doc.checklist), "item") if doc.checklist else ""),
        ("files", ", ".join(files) + (f" and {more} more" if more else "")),
        *[("note", _finding(note)) for note in skill.diagnostics],
    ]
    lines = [f"{screen.styled(f'{label:13}', 'dim')}  {on_one_line(value)}" for label, value in rows if value]
    data = {
        **_as_json(skill),
        "id": skill.id,
        "argument_hint": doc.argument_hint,
        "allowed_tools": doc.allowed_tools,
        "disallowed_tools": doc.disallowed_tools,
        "license": doc.license,
        "version": doc.version,
        "metadata": doc.metadata,
        "checklist": doc.checklist,
        "files": files,
        "more_files": more,
        "diagnostics": [vars(note) for note in skill.diagnostics],
        "body": doc.body,
    }
    screen.tell(args.json, data, [*lines, "", printable(doc.body.strip("\n"))])
    return OK


def _why(args: argparse.Namespace, screen: Screen) -> int:
    index = _project(args).skills()
    skill = index.find(args.name)
    hidden = next((pair for pair in index.shadowed if pair.loser is skill), None)
    winner = hidden.winner if hidden else skill
    losers = [pair for pair in index.shadowed if pair.winner is winner]
    rows = [{**_as_json(pair.loser), "id": pair.loser.id, "reason": pair.reason} for pair in losers]
    lines = [f"{on_one_line(winner.name)} is {_place(winner)}"]
    for pair in losers:
        lines.append(f"hidden: {_place(pair.loser)}")
        lines.append(f"  because {on_one_line(pair.reason)}; it answers to {on_one_line(pair.loser.id)}")
    if not losers:
        lines.append("no other skill has this name")
    screen.tell(args.json, {"winner": _as_json(winner), "hidden": rows}, lines)
    return OK


def _place(skill: SkillInfo) -> str:
    return f"{on_one_line(skill.path)} [{skill.scope}]"


def _sources(args: argparse.Namespace, screen: Screen) -> int:
    project = _project(args)
    root, trust, notes = project.root, project.trust, project_findings(project)
    data = {
        "project": root,
        "trust": {"is_trusted": trust.is_trusted, "reason": trust.reason},
        "files": [vars(file) for file in project.files()],
        "diagnostics": [vars(note) for note in notes],
    }
    lines = [f"{on_one_line(root)} is {'' if trust.is_trusted else 'not '}trusted: {on_one_line(trust.reason)}"]
    for file in project.files():
        scope = f" [{file.scope}]" if file.scope else ""
        lines.append(f"{file.kind:<8}  {on_one_line(file.path)}{scope}  {on_one_line(file.name)}".rstrip())
    lines += [screen.styled(_finding(note), "yellow") for note in notes]
    screen.tell(args.json, data, lines)
    return OK


def _check(args: argparse.Namespace, screen: Screen) -> int:
    findings, count = check_path(args.path or OpenAgenticOptions(cwd=args.cwd).project_root())
    errors = sum(note.is_error for note in findings)
    for note in findings:
        style = "red" if note.is_error else "yellow"
        screen.tell(args.json, vars(note), [screen.styled(_finding(note), style)])
    if not args.json:
        warnings = plural(len(findings) - errors, "warning")
        screen.line(f"{plural(count, 'skill')}: {plural(errors, 'error')}, {warnings}")
    return FAILED if errors or (args.strict and findings) else OK


def _finding(note: Diagnostic) -> str:
    place = f"{note.path}:{note.line}: " if note.path and note.line else f"{note.path}: " if note.path else ""
    return on_one_line(f"{place}{'error' if note.is_error else 'warning'}: {note.message} [{note.code}]")
