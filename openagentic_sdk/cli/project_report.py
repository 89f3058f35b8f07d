"""Report which of a project's hooks, agents, commands, servers, rules and words work here, with the fix for the others.

An untrusted project is examined as if it were trusted: the first question is what its files would do.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..assemble import build_agent, configured_servers, open_project, project_findings
from ..errors import OptionsError
from ..ground.diagnostic import Diagnostic
from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..ground.text import on_one_line
from ..ground.words import look_alikes, plural
from ..kernel.agent import AgentRuntime
from ..kernel.gate import CallContext
from ..options import SETTING_SOURCES, OpenAgenticOptions
from ..parts.claude.command_hooks import EVENTS, TOOL_POINTS, matched_names, without_event
from ..parts.project.agents import AgentFile
from ..parts.project.granting import files_named
from ..parts.project.notices import grouped
from ..parts.project.project import OpenedProject
from ..parts.project.settings import CommandHook, SettingsRule
from ..permissions.gate import permission_gate
from ..permissions.layers import rules_of_settings
from ..permissions.rules import Rule
from ..providers.openai_compatible import OpenAICompatibleProvider
from ..skills.activation import filled_rules, grantable, render_body
from ..skills.fields import how_to_map, served_model, unmapped_model
from ..skills.index import SkillInfo, load_skill
from ..skills.ledger import QUIET, UNDOCUMENTED, row_of, word_of
from ..skills.render import fill_variables
from ..skills.text_commands import Draft, draft_of
from .finding import Finding

# The values that a matcher of an event without a tool can match here.
_MATCHES: Mapping[str, tuple[str, ...]] = {
    "SessionStart": ("startup", "resume", "compact"),
    "PreCompact": ("manual", "auto"),
    "PostCompact": ("manual", "auto"),
    "Notification": ("permission_prompt", "elicitation_dialog"),
}
_FIRST_WORD = regex(r"(?:\w+=\S+\s+)*([\w./+-]+)(?:\s|$)")


@frozen
class ProjectReport:
    """The findings, by kind. `project` is read as if it were trusted; `is_trusted` and `reason` state whether it is, and
    why.
    """

    project: OpenedProject
    is_trusted: bool
    reason: str
    sections: Mapping[str, Sequence[Finding]]


def look_at(options: OpenAgenticOptions) -> Look:
    """Read a project and build its agent, without running any of its code or starting a server."""
    project = open_project(options)
    # Nothing is sent to this endpoint.
    provider = OpenAICompatibleProvider(base_url="http://127.0.0.1:9/v1", api_key="none")
    agent = build_agent(replace(options, provider=provider, model=_model(project), session_store="memory:"))
    return Look(project, agent)


def read_report(cwd: str) -> ProjectReport:
    """Examine the project of a folder."""
    options = OpenAgenticOptions(cwd=cwd, setting_sources=SETTING_SOURCES)
    now = open_project(options)
    look = look_at(replace(options, trust_project=True))
    project = look.project
    sections = {
        "hooks": [look.hook(hook) for hook in (*project.settings.hooks, *project.skill_hooks())],
        "agents": [look.agent_file(file) for file in project.agents.agents],
        "commands in text": list(look.texts()),
        "servers": list(look.servers()),
        "rules": list(look.rules()),
        "other findings": list(look.findings()),
    }
    return ProjectReport(project, now.trust.is_trusted, now.trust.reason, sections)


def _model(project: OpenedProject) -> str:
    try:
        return served_model(project.settings.model or "", project.settings.model_names) or "the model of the run"
    except OptionsError:
        return "the model of the run"


@frozen
class Look:
    """One examination of a project, and of the agent built from it."""

    project: OpenedProject
    agent: AgentRuntime

    # --- hooks

    def hook(self, hook: CommandHook) -> Finding:
        """Check whether a hook ever runs, and whether its program exists."""
        line = on_one_line(" ".join((hook.command, *(hook.args or ()))), 120)
        name = f"{hook.event} {hook.matcher}".strip() + (f" if {hook.condition}" if hook.condition else "")
        reason, advice = self._why_never_run(hook)
        if reason:
            return Finding(name, False, f"never runs: {reason} ({line})", advice)
        missing = self._missing(hook)
        if missing:
            return Finding(name, False, f"fails: {missing} does not exist ({line})", "add it, or remove the hook")
        return Finding(name, True, f"runs {line}")

    def _why_never_run(self, hook: CommandHook) -> tuple[str, str]:
        point = EVENTS.get(hook.event)
        if point is None:
            return f"there is no event {hook.event!r} here", without_event(hook.event).partition(": ")[2]
        if not self.project.lets_hooks_run and hook.scope != "managed":
            return "settings disable hooks", "remove disableAllHooks or allowManagedHooksOnly from settings"
        if hook.condition and point not in TOOL_POINTS:
            return f"{hook.event} has no call that an `if` could match", "remove `if`, or use a tool event"
        if point in TOOL_POINTS:
            return self._no_tool(hook.matcher)
        values = _MATCHES.get(hook.event, self.agent.agent_names if hook.event.startswith("Subagent") else ())
        if hook.matcher in ("", "*") or not values or any(_matches(hook.matcher, each) for each in values):
            return "", ""
        return (
            f"nothing matches its matcher {hook.matcher!r}",
            f"use one of {', '.join(values)}, or leave the matcher out",
        )

    def _no_tool(self, matcher: str) -> tuple[str, str]:
        names = [*self.agent.tools.names(), "Task", *_aliases()]
        if "mcp__" in matcher or matcher in ("", "*") or any(_matches(matcher, name) for name in names):
            return "", ""
        row = row_of("tool", matcher)
        near = look_alikes(matcher, names, 0.6)
        advice = row.how if row is not None else f"did you mean {' or '.join(near)}?" if near else "name a tool"
        return f"no tool matches its matcher {matcher!r}", advice

    def _missing(self, hook: CommandHook) -> str:
        """The program or script of a hook that does not exist; empty if none is missing."""
        root = hook.root or os.path.realpath(hook.folder or self.project.root)
        values = {"CLAUDE_PROJECT_DIR": self.project.root, "CLAUDE_PLUGIN_ROOT": hook.root}
        line = " ".join((hook.command, *(hook.args or ())))
        for name in values:
            line = re.sub(rf"\$({name})\b", r"${\1}", line)
        line = fill_variables(line, {key: value for key, value in values.items() if value})
        if any(mark in line for mark in ("||", "[ -", "test -", "if ", "command -v")):
            return ""  # the command itself checks what exists
        missing = [name for name in files_named(line, root, or_missing=True) if not os.path.exists(f"{root}/{name}")]
        scripts = [name for name in missing if os.path.splitext(name)[1] in (".sh", ".py", ".js", ".ts", ".mjs", ".rb")]
        first = _FIRST_WORD.match(line.replace('"', ""))
        if not scripts and first is not None and "/" not in first[1] and not shutil.which(first[1]):
            return "" if first[1] in _SHELL_WORDS else f"the program {first[1]!r}"
        return scripts[0] if scripts else ""

    # --- agents

    def agent_file(self, file: AgentFile) -> Finding:
        """Check the model and the tools of an agent."""
        names = self.project.settings.model_names
        word = unmapped_model(file.model, names)
        try:
            model = served_model(file.model, names) or self.agent.model
        except OptionsError as error:
            return Finding(file.name, False, f"is refused: {error}")
        if file.isolation:
            return Finding(
                file.name, False, f"is refused: it requests isolation {file.isolation!r}", "remove `isolation`"
            )
        tool_names = {*self.agent.tools.names(), "Task", *_aliases()}
        listed_tools = dict.fromkeys(rule.partition("(")[0].strip() for rule in file.tools)
        unknown = [tool for tool in listed_tools if tool.isalnum() and tool not in tool_names]
        if listed_tools and len(unknown) == len(listed_tools):
            return Finding(file.name, False, f"is refused: none of its tools exists here ({', '.join(unknown)})")
        parts = [f"runs on {model}"]
        parts += [f"asks for {word!r}"] if word is not None else []
        parts += [f"without {', '.join(unknown)}"] if unknown else []
        advice = how_to_map(word) if word is not None else ""
        return Finding(file.name, None if word is not None or unknown else True, ", ".join(parts), advice)

    # --- commands in text

    def texts(self) -> Iterator[Finding]:
        """Yield findings on the commands inside the text of commands and skills, as if those were enabled."""
        findings = list(self._texts())
        if findings and not self.project.library.runs_commands:
            switch = "--text-commands, run_text_commands=True or enableSkillShellExecution in settings runs them"
            yield Finding(
                "all of them",
                None,
                "are disabled and remain text; the following lines describe what they would do",
                switch,
            )
        yield from findings

    def _texts(self) -> Iterator[Finding]:
        places = {"CLAUDE_PROJECT_DIR": self.project.root}
        for command in self.project.commands.commands:
            values = {**places, **command.variables}
            rules = tuple(fill_variables(rule, values) for rule in command.allowed_tools)
            yield from self._text(f"/{command.name}", draft_of(fill_variables(command.body, values)), rules)
        for skill in self.project.skills().skills:
            yield from self._text(skill.name, *self._skill(skill, places))

    def _skill(self, skill: SkillInfo, places: Mapping[str, str]) -> tuple[Draft | None, Sequence[str]]:
        try:
            draft = draft_of(render_body(skill, load_skill(skill), places))
        except OSError:
            return None, ()
        return draft, filled_rules(skill, skill.allowed_tools, places)

    def _text(self, name: str, draft: Draft | None, rules: Sequence[str]) -> Iterator[Finding]:
        if draft is None:
            return
        stops = []
        for line in draft.commands:
            context = CallContext(
                cwd=self.agent.cwd,
                session_cwd=self.agent.cwd,
                project_dir=self.agent.project_dir,
                workspace_roots=self.agent.workspace_roots,
                effect="unsafe",
                grants=grantable(rules)[0],
                trusted=True,
            )
            approval = permission_gate(self.agent.gate).judge_by_rule("Bash", {"command": line}, context)
            stops += [] if approval.allowed else [(line, approval.reason)]
        if not stops:
            yield Finding(
                name,
                True,
                f"its {plural(len(draft.commands), 'command')} {'runs' if len(draft.commands) == 1 else 'run'}",
            )
        for line, reason in stops[:3]:
            advice = (
                f'"allowed-tools: Bash({line.split()[0]} *)" in its file, or an allow rule of settings, lets it run'
            )
            yield Finding(name, False, f"does not run {line!r}: {reason}", advice)

    # --- servers, rules, words

    def servers(self) -> Iterator[Finding]:
        """Yield a finding for each MCP server."""
        configured = configured_servers(self.project)
        for one in configured.found if configured is not None else ():
            if one.state == "ready":
                yield Finding(one.entry.name, True, f"starts with a run ({one.entry.source})")
            elif one.state == "disabled":
                yield Finding(one.entry.name, None, f"is disabled ({one.entry.source})")
            else:
                reason, _, advice = one.reason.partition(": ")
                yield Finding(one.entry.name, False, f"does not start: {reason} ({one.entry.source})", advice)

    def rules(self) -> Iterator[Finding]:
        """Yield a finding for each rule that is invalid or matches nothing."""
        project = self.project
        rules = rules_of_settings(project.settings, project.root, project.cwd)
        for note in grouped(rules.diagnostics):
            yield Finding("rule", False, note.located)
        settings = project.settings
        by_text = {rule.text: rule for rule in (*settings.allow, *settings.ask, *settings.deny)}
        tools = self.agent.tools.names()
        for rule in (*rules.allow, *rules.ask, *rules.deny):
            reason, advice = matches_nothing(rule, tools)
            if reason:
                yield Finding(rule.text, False, f"matches nothing: {reason} ({_place(by_text, rule)})", advice)

    def findings(self) -> Iterator[Finding]:
        """Yield the other findings: words without effect here, and what was ignored."""
        seen = ("rule-not-understood", "hook", "mcp-server", "mcp-pending")
        notes = [note for note in project_findings(self.project) if note.code not in seen]
        for note in grouped(note for note in notes if note.code != UNDOCUMENTED):
            word, _, advice = note.message.partition(" has no effect here: ")
            where = note.located.removesuffix(note.message)
            if advice:
                advice, _, places = advice.partition(" (")
                text = f"{where}has no effect here" + (f" ({places}" if places else "")
                yield Finding(word, None if note.code in QUIET else False, text, advice)
            else:
                yield Finding(note.code, False if note.is_error else None, note.located)
        unknown = list(dict.fromkeys(word_of(note) for note in notes if note.code == UNDOCUMENTED))
        if unknown:
            more = f" and {len(unknown) - 12} more" if len(unknown) > 12 else ""
            yield Finding("words", None, f"Claude Code does not document {', '.join(unknown[:12])}{more}")


_SHELL_WORDS = frozenset(
    [
        "cd",
        "echo",
        "exit",
        "export",
        "printf",
        "read",
        "set",
        "source",
        "test",
        "true",
        "false",
        "[",
        ".",
        "for",
        "while",
        "eval",
    ]
)


def _aliases() -> Sequence[str]:
    """Claude Code's names of tools that exist here."""
    return ("Agent", "Skill", "SlashCommand", "MultiEdit", "KillShell", "TaskOutput", "TaskStop")


def _matches(matcher: str, name: str) -> bool:
    pattern, regex = matched_names(matcher)
    if regex is None:
        return pattern == "*" or name in pattern.split("|")
    try:
        return re.search(regex, name) is not None
    except re.error:
        return True


def matches_nothing(rule: Rule, tools: Sequence[str]) -> tuple[str, str]:
    """The reason why a rule never applies, and what to write instead; both empty if it can apply."""
    row = row_of("tool", rule.tool)
    if row is not None and row.state == "no":
        return f"no tool is called {rule.tool} here", "remove it, or write it for a tool that exists here"
    if rule.tool.isalnum() and row is None and not any(map(rule.covers, tools)):
        near = look_alikes(rule.tool, tools, 0.6)
        return f"no tool is called {rule.tool}", f"did you mean {' or '.join(near)}?" if near else "name a tool"
    inner = rule.text.partition("(")[2].rstrip(")")
    if rule.tool in ("Read", "Edit", "Write") and inner.startswith("/") and not inner.startswith("//"):
        first = inner.split("/")[1]
        anchor = str(rule.root or "")
        if (
            first
            and not set(first) & set("*?[")
            and os.path.isdir(f"/{first}")
            and not os.path.exists(f"{anchor}/{first}")
        ):
            return (
                f"/{first} in it is {anchor}/{first}, which does not exist",
                f"write /{inner} for a path from the root",
            )
    return "", ""


def _place(by_text: Mapping[str, SettingsRule], rule: Rule) -> str:
    entry = by_text.get(rule.text)
    return Diagnostic("", "", entry.line, entry.source).located.rstrip(": ") if entry is not None else rule.source
