"""Expand named prompts: `/name arguments` becomes the text of a file in `.claude/commands`, or activates a skill.

A skill takes precedence over a command with the same name. Folders below `commands` are part of a name: `front/page.md` is
`/front:page`. Files named as `@file` are attached. Nothing in the text is executed here: its commands become a draft.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from ...events import CommandExpanded
from ...ground.diagnostic import Diagnostic
from ...ground.disk import is_within
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...ground.text import one_line, without_hidden
from ...ground.words import look_alikes
from ...skills.activation import grantable, skill_request
from ...skills.fields import Fields, served_model
from ...skills.files import read_text
from ...skills.frontmatter import read_frontmatter
from ...skills.index import SkillInfo, find_skill, load_skill, nested_variants
from ...skills.names import name_key
from ...skills.outline import read_outline
from ...skills.render import fill_arguments, fill_variables, first_number, plugin_variables
from ...skills.text_commands import Draft, draft_of
from .claude import ClaudeFolders, MarkdownFile, read_named
from .memory import import_targets

MAX_COMMAND_BYTES = 256 * 1024
MAX_ATTACHMENTS = 20
_PROMPT = regex(r"/((?:[^\s/:]+/)+[^\s/:]+:[^\s/]+|[^\s/]+)(?:\s+(.*))?\Z", re.DOTALL)
MAX_STACKED = 6
_FILE_TAG = regex(r"<(?=\s*+/?\s*+attached-file\b)", re.IGNORECASE)


@frozen
class Command:
    """A command, defined by a file in `.claude/commands` or a plugin. `allowed_tools` are rules for the turn if it is
    trusted.

    `variables` are the values of `${...}` in its body, besides the project's folder.
    """

    name: str
    description: str
    body: str
    path: str
    scope: str
    argument_hint: str = ""
    arguments: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    model: str = ""
    model_invocable: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)


@frozen
class CommandSet:
    """The commands, the nearest one of each name; `diagnostics` reports hidden and unreadable ones."""

    commands: tuple[Command, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def find(self, name: str) -> Command | None:
        """Find the command with this name, ignoring case; return None if none exists."""
        key = name_key(name)
        return next((command for command in self.commands if name_key(command.name) == key), None)


@frozen
class Expansion:
    """An expanded prompt: `text` is for the model. `skill`, if set, is to be activated with `arguments`.

    `stacked` are further skills that the same prompt names after it, with the same arguments.

    `draft`, if set, is the text with gaps for commands that must run before the model reads it. `files` are the project's
    files that the text names as `@file`, to be attached if the gate allows reading them (`attached_file`).
    """

    text: str
    arguments: str = ""
    command: Command | None = None
    skill: SkillInfo | None = None
    stacked: tuple[SkillInfo, ...] = ()
    draft: Draft | None = None
    files: tuple[str, ...] = ()


def read_commands(folders: ClaudeFolders, more: Iterable[MarkdownFile] = ()) -> CommandSet:
    """Read the commands of the project, its user and `more`; the first of each name applies."""
    return CommandSet(*read_named(folders, "commands", more, MAX_COMMAND_BYTES, parse_command))


def parse_command(text: str, file: MarkdownFile) -> tuple[Command, list[Diagnostic]]:
    """Parse one command file; return the command and the problems."""
    front = read_frontmatter(text)
    fields = Fields(front)
    command = Command(
        name=file.prefix + one_line(file.relative.removesuffix(".md").replace(os.sep, ":")),
        description=one_line(fields.text("description") or read_outline(front.body).paragraph),
        body=without_hidden(front.body).strip("\n"),
        path=file.path,
        scope=file.scope,
        argument_hint=fields.source("argument-hint"),
        arguments=fields.words("arguments"),
        allowed_tools=fields.rules("allowed-tools"),
        model=fields.text("model"),
        model_invocable=not fields.flag("disable-model-invocation", False),
        variables=plugin_variables(file.plugin_root, file.plugin_data),
    )
    return command, [*front.diagnostics, *fields.diagnostics, *fields.without_effect("command")]


def expand_prompt(
    prompt: str,
    commands: CommandSet,
    skills: Sequence[SkillInfo],
    folders: ClaudeFolders,
    *,
    hidden: Sequence[SkillInfo] = (),
    trusts: Callable[[Command], bool] | None = None,
    names_files: bool = True,
    session_id: str = "",
) -> Expansion:
    """Expand `/name arguments` if a skill or command has this name; else return the prompt unchanged.

    Skills that are `hidden` by another one are found by their ids. `trusts` decides which texts may run commands; if it is
    `None`, none may. Without `names_files`, only files that the command's own file names are attached.
    """
    prompt_text = prompt.strip()
    match = _PROMPT.match(prompt_text) if prompt_text.startswith("/") else None
    if match is None:
        may_name = names_files and (folders.reads_project or folders.user_dir)
        return Expansion(prompt, files=_named_files(prompt, folders) if may_name else ())
    name, arguments = match[1], (match[2] or "").strip()
    invocable = [[s for s in group if s.user_invocable] for group in (skills, hidden)]
    skill = find_skill(name, *invocable)
    if skill is not None:
        stacked, arguments = _stacked(skill, arguments, lambda name: find_skill(name, *invocable))
        requests = [
            skill_request(each.name, arguments, nested_variants(each, skills) if each in skills else ())
            for each in (skill, *stacked)
        ]
        return Expansion("\n".join(requests), arguments, skill=skill, stacked=stacked)
    command = commands.find(name)
    if command is None:
        return Expansion(prompt)
    variables = {"CLAUDE_PROJECT_DIR": folders.project_dir, **command.variables}
    variables |= {"CLAUDE_SESSION_ID": session_id} if session_id else {}
    # Only to create the plugin's data folder, if the body names it: the variables themselves are known.
    plugin_variables(variables.get("CLAUDE_PLUGIN_ROOT", ""), variables.get("CLAUDE_PLUGIN_DATA", ""), command.body)
    rules = tuple(fill_variables(rule, variables) for rule in command.allowed_tools)
    command = replace(command, body=fill_variables(command.body, variables), allowed_tools=rules)
    draft = None
    if trusts is not None and trusts(command):
        draft = draft_of(
            command.body,
            name=f"command /{command.name}",
            path=command.path,
            grants=grantable(command.allowed_tools)[0],
            arguments=arguments,
            argument_names=command.arguments,
        )
    body = command.body if draft is None else draft.text
    first = first_number(command.body)
    text = fill_arguments(body, arguments.replace("\0", ""), names=command.arguments, first=first)
    files = _named_files(text, folders)
    if not names_files:
        files = tuple(file for file in _named_files(command.body, folders) if file in files)
    if draft is not None:
        draft = replace(draft, text=text)
        text = draft.as_written
    return Expansion(text, arguments, command=command, draft=draft, files=files)


def _stacked(
    first: SkillInfo, arguments: str, find: Callable[[str], SkillInfo | None]
) -> tuple[tuple[SkillInfo, ...], str]:
    """The skills named after the first one, and the arguments of all. A skill that runs in a subagent is never stacked."""
    stack = [first]
    while len(stack) < MAX_STACKED and arguments.startswith("/") and not _runs_apart(stack[-1]):
        match = _PROMPT.match(arguments)
        skill = find(match[1]) if match is not None else None
        if match is None or skill is None or skill in stack or _runs_apart(skill):
            break
        stack.append(skill)
        arguments = (match[2] or "").strip()
    return tuple(stack[1:]), arguments


def _runs_apart(skill: SkillInfo) -> bool:
    try:
        return load_skill(skill).runs_apart
    except OSError:
        return False


def unknown_name(prompt: str, names: Iterable[str]) -> str | None:
    """The message for a person whose prompt is `/name` with an unknown name; None for any other prompt."""
    match = _PROMPT.match(prompt.strip())
    known_names = list(names)
    if match is None or "/" in match[1] or name_key(match[1]) in map(name_key, known_names):
        return None  # with another slash in it, it may be a path
    near = [f"/{name}" for name in look_alikes(match[1], known_names, 0.5)]
    advice = f"did you mean {' or '.join(near)}?" if near else "/ begins a command or skill"
    return f"unknown command or skill {match[1][:80]!r}: {advice}"


def expanded_event(
    command: Command, arguments: str, *, trusted: bool, model_names: Mapping[str, str] | None = None
) -> CommandExpanded:
    """The event that records the command that a prompt invoked. It contains grants only if `trusted`."""
    return CommandExpanded(
        name=command.name,
        path=command.path,
        scope=command.scope,
        arguments=arguments or None,
        grants=grantable(command.allowed_tools)[0] if trusted else (),
        model=served_model(command.model, model_names),
    )


def _named_files(text: str, folders: ClaudeFolders) -> tuple[str, ...]:
    """The project's files among the first `MAX_ATTACHMENTS` existing files that a text names as `@file`."""
    targets = import_targets(text, folders.folders[-1])[:MAX_ATTACHMENTS]
    return tuple(path for path in targets if is_within(os.path.realpath(path), folders.boundary))


def attached_file(path: str, folders: ClaudeFolders) -> str | None:
    """A file's content in a tag; None if it cannot be read, since a name in a text need not be that of a file."""
    try:
        content = read_text(path, boundary=folders.boundary, max_bytes=MAX_COMMAND_BYTES)
    except OSError:
        return None
    return f'<attached-file path="{path}">\n{_FILE_TAG.sub("&lt;", without_hidden(content))}\n</attached-file>'
