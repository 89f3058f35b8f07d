"""Build the system prompt from base, memory, server instructions and the skill index: a pure function of its arguments.

A session keeps its initial prompt, so that the prefix that a provider has cached stays valid: later changes of the project,
and the text of a skill that becomes active, are sent as messages. Text from files is put in tags that it cannot close,
without invisible characters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ...events import SkillActivated
from ...ground.patterns import regex
from ...ground.text import one_line, without_hidden
from ...ground.words import shortened
from ...kernel.context import PromptPart, SystemPrompt
from ...skills.index import SkillInfo
from ...skills.render import fill_arguments, has_place
from .memory import MemoryFile, ProjectMemory
from .output_style import OutputStyle

INDEX_BUDGET_CHARS = 8000
MAX_SUMMARY_CHARS = 1536
# With fewer characters per skill, a summary is useless, and only names are listed.
_LEAST_SUMMARY_CHARS = 20

DEFAULT_BASE = (
    "You are an agent that works in a project with the tools that you are given. Look before you change anything, "
    "do what was asked and nothing else, and say plainly what you did and what failed."
)

# The kinds of sections that may change during a session; `base` and `output-style` stay, as does `active-skill`, which older
# sessions have.
_CHANGING = ("memory", "rules", "mcp-server", "skill-index")
_TAGS = "memory|memories|output-style|rule|rules-for-some-files|skill-index|active-skill|arguments|mcp-server"
_TAG = regex(rf"<(?=\s*+/?\s*+(?:{_TAGS})\b)", re.IGNORECASE)


def build_system_prompt(
    *,
    base: str = DEFAULT_BASE,
    style: OutputStyle | None = None,
    memory: ProjectMemory | None = None,
    servers: Sequence[tuple[str, str]] = (),
    skills: Sequence[SkillInfo] = (),
) -> SystemPrompt:
    """Build the prompt; equal arguments produce identical bytes."""
    sections: list[tuple[str, str, str]] = [("base", "", base.strip())]
    if style is not None and style.text:
        text = f'<output-style name="{_attribute(style.name)}">\n{contain(style.text)}\n</output-style>'
        sections.append(("output-style", style.path, text))
    if memory is not None:
        for file in memory.files:
            sections.append(("memory", file.path, memory_block(file)))
        if memory.rules:
            listing = "\n".join(
                f"- {contain(one_line(', '.join(rule.paths)))}: {_attribute(rule.path)}" for rule in memory.rules
            )
            text = f"<rules-for-some-files>\n{_RULES_INTRO}\n{listing}\n</rules-for-some-files>"
            sections.append(("rules", "", text))
    sections += [("mcp-server", name, server_block(name, text)) for name, text in servers]
    listed = [skill for skill in skills if skill.model_invocable and not skill.paths]
    if listed:
        text = f"<skill-index>\n{_INDEX_INTRO}\n{index_text(listed)}\n</skill-index>"
        sections.append(("skill-index", "", text))
    sections = [section for section in sections if section[2]]
    parts: list[PromptPart] = []
    start = 0
    for kind, source, text in sections:
        parts.append(PromptPart(kind, source, start, start + len(text)))
        start += len(text) + 2
    return SystemPrompt("\n\n".join(text for _, _, text in sections), tuple(parts), _CHANGING)


def contain(text: str) -> str:
    """Make a text from a file safe inside one of the prompt's tags."""
    return _TAG.sub("&lt;", without_hidden(text))


def _attribute(value: str) -> str:
    return one_line(value).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def memory_block(file: MemoryFile) -> str:
    """The text of one memory file for the model."""
    return f'<memory path="{_attribute(file.path)}" scope="{file.scope}">\n{contain(file.text)}\n</memory>'


def server_block(name: str, text: str) -> str:
    """The instructions of an MCP server for the model."""
    return f'<mcp-server name="{_attribute(name)}">\n{contain(text)}\n</mcp-server>'


def rule_message(rule: MemoryFile) -> str:
    """The message with a rule for some files, sent once the model has seen such a file."""
    about = _attribute(", ".join(rule.paths))
    return f'<rule path="{_attribute(rule.path)}" for="{about}">\n{contain(rule.text)}\n</rule>'


def offer_message(skill: SkillInfo) -> str:
    """The message that offers a skill for some files, sent once the model has seen such a file."""
    listed = _index_lines([skill], [shortened(contain(skill.summary), MAX_SUMMARY_CHARS, "…")])
    return f"<skill-index>\nA skill for the files that you look at:\n{listed}\n</skill-index>"


_RULES_INTRO = (
    "The rules next to a pattern are sent to you when you read a file that matches it. "
    "Read them yourself before you create such a file:"
)

# --- the index of skills ---------------------------------------------------------------------------------------------

_INDEX_INTRO = (
    "Skills are instructions for particular tasks. When one fits the task, read it with SkillLoad or activate it with "
    "SkillActivate before you begin."
)


def index_text(skills: Sequence[SkillInfo]) -> str:
    """The skills in at most `INDEX_BUDGET_CHARS`: with summaries, else shorter ones, else names, else their number."""
    summaries = [shortened(contain(skill.summary), MAX_SUMMARY_CHARS, "…") for skill in skills]
    full = _index_lines(skills, summaries)
    if len(full) <= INDEX_BUDGET_CHARS:
        return full
    note = "\n(Summaries are cut. SkillList with a query finds skills by their whole summary.)"
    room = INDEX_BUDGET_CHARS - len(note) - len(_index_lines(skills, [""] * len(skills)))
    total_chars = sum(len(summary) for summary in summaries)
    if room >= _LEAST_SUMMARY_CHARS * len(skills):
        cut = [shortened(summary, len(summary) * room // total_chars, "…") for summary in summaries]
        return _index_lines(skills, cut) + note
    names = ", ".join(contain(skill.name) for skill in skills)
    names += "\n(Only names fit here. SkillList with a query shows what they are for and where they are.)"
    if len(names) <= INDEX_BUDGET_CHARS:
        return names
    return f"There are {len(skills)} skills, too many to list: find the ones for a task with SkillList and a query."


def _index_lines(skills: Sequence[SkillInfo], summaries: Sequence[str]) -> str:
    return "\n".join(
        f"- {contain(skill.name)}: {summary} ({_attribute(skill.path)})"
        for skill, summary in zip(skills, summaries, strict=True)
    )


# --- active skills ---------------------------------------------------------------------------------------------------


def skill_message(skill: SkillActivated) -> str:
    """The text of an active skill for the model; its placeholders are filled only if the skill has arguments."""
    body, arguments = skill.body, ""
    if skill.arguments and has_place(body, skill.argument_names):
        body = fill_arguments(body, skill.arguments, names=skill.argument_names)
    elif skill.arguments:
        arguments = f"\n<arguments>\n{contain(skill.arguments)}\n</arguments>"
    where = ""
    if skill.path:
        where = f' path="{_attribute(skill.path)}" folder="{_attribute(os.path.dirname(skill.path))}"'
    return (
        f'<active-skill name="{_attribute(skill.name)}" scope="{_attribute(skill.scope or "")}"{where}>\n'
        f"{contain(body)}{arguments}\n</active-skill>"
    )
