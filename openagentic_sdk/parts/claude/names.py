"""Translate tool calls between Claude Code's names and ours: different names for the same tools and values.

A hook written for Claude Code reads `tool_input.old_string` where our Edit tool has `old`, so it receives both. It may
change either name; if it changes both to different values, the call is blocked. A model trained with Claude Code's names
may use them in its calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from ...errors import ToolInputError
from ...events import ToolUse
from ...ground.loose import as_mappings
from ...hooks.engine import PATH_KEYS, absolute_path
from ...kernel.part import Part
from ...kernel.registry import ToolRegistry

# Our names of inputs and Claude Code's, by tool.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "Edit": {"old": "old_string", "new": "new_string"},
    "Grep": {"query": "pattern", "root": "path", "file_glob": "glob"},
    "Glob": {"root": "path"},
    "Task": {"agent": "subagent_type"},
    "SkillActivate": {"name": "skill", "arguments": "args"},
    "SkillLoad": {"name": "skill"},
}
# Tools with another name in Claude Code.
_TOOLS = {
    "SkillActivate": "Skill",
    "SkillLoad": "Skill",
    "Task": "Agent",
    "BashOutput": "TaskOutput",
    "KillBash": "TaskStop",
}
# Our names that a matcher with one of Claude Code's names (tools, notifications, compactions) matches too.
MATCHED: Mapping[str, tuple[str, ...]] = {
    "Skill": ("SkillActivate", "SkillLoad"),
    "SlashCommand": ("SkillActivate", "SkillLoad"),
    "Agent": ("Task",),
    "MultiEdit": ("Edit",),
    "TaskOutput": ("BashOutput",),
    "TaskStop": ("KillBash",),
    "KillShell": ("KillBash",),
    "permission_prompt": ("permission",),
    "elicitation_dialog": ("question",),
    "auto": ("overflow",),
}
# The subagent for a call or skill that names none.
GENERAL_AGENT = "general-purpose"
# Our tool for each of Claude Code's tools.
ALSO = {
    "Skill": "SkillActivate",
    "SlashCommand": "SkillActivate",
    "Agent": "Task",
    "MultiEdit": "Edit",
}


def tool_name_of(name: str) -> str:
    """Claude Code's name of our tool."""
    return _TOOLS.get(name, name)


def with_their_names(tool: str, input: Mapping[str, Any], cwd: str | None = None) -> dict[str, Any]:
    """The input with Claude Code's names in addition to ours; with `cwd`, relative paths in it become absolute."""
    result = dict(input)
    if cwd is not None:
        paths = {key: absolute_path(str(input[key]), cwd) for key in PATH_KEYS.get(tool, ()) if key in input}
        result.update((key, path) for key, path in paths.items() if path is not None)
    for ours, theirs in _NAMES.get(tool, {}).items():
        if ours in input:
            result.setdefault(theirs, result[ours])
    if tool == "Edit":
        if input.get("count") == 0:
            result.setdefault("replace_all", True)
        if _is_list_of_maps(edits := input.get("edits")):
            result["edits"] = [with_their_names(tool, edit) for edit in edits]
    if tool == "Bash" and isinstance(input.get("timeout_s"), int | float):
        result.setdefault("timeout", int(input["timeout_s"] * 1000))
    return result


def with_our_names(
    tool: str, input: Mapping[str, Any], changed: Mapping[str, Any], cwd: str | None = None
) -> dict[str, Any]:
    """A hook's change of the input from `with_their_names`, in our names; unchanged paths keep their original form.

    Raises `ToolInputError` if one value was changed to two different ones.
    """
    original = with_their_names(tool, input, cwd)
    as_was = {
        key: input[key] for key in PATH_KEYS.get(tool, ()) if key in input and changed.get(key) == original.get(key)
    }
    result = {**changed, **as_was}
    pairs = {theirs: ours for ours, theirs in _NAMES.get(tool, {}).items()}
    for theirs, ours in pairs.items():
        if theirs not in changed or theirs in input:
            continue
        value = result.pop(theirs)
        if ours not in changed or (
            value != original.get(theirs) and changed[ours] in (input.get(ours), original.get(ours))
        ):
            result[ours] = input[ours] if ours in input and value == original.get(theirs) else value
        elif value not in (original.get(theirs), changed[ours]):
            raise ToolInputError(f"{ours} and {theirs} are the same argument, and have different values")
    if tool == "Edit" and "replace_all" not in input and "replace_all" in result:
        replace_all = result.pop("replace_all")
        if replace_all != original.get("replace_all", False):
            count = 0 if replace_all else 1
            if result.get("count", input.get("count")) not in (input.get("count"), count):
                raise ToolInputError("count and replace_all are the same argument, and have different values")
            result["count"] = count
    if tool == "Edit" and _is_list_of_maps(edits := result.get("edits")):
        before = [*as_mappings(input.get("edits")), *([{}] * len(edits))]
        result["edits"] = [with_our_names(tool, old, new) for old, new in zip(before, edits, strict=False)]
    if tool == "Bash" and "timeout" not in input and "timeout" in result:
        timeout = result.pop("timeout")
        if timeout != original.get("timeout") and isinstance(timeout, int | float):
            if result.get("timeout_s") not in (input.get("timeout_s"), timeout / 1000):
                raise ToolInputError("timeout_s and timeout are the same argument, and have different values")
            result["timeout_s"] = timeout / 1000
    return result


def _is_list_of_maps(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def in_our_names(use: ToolUse, tools: ToolRegistry) -> ToolUse:
    """The call in our tools' names, for a model trained with Claude Code's: `Skill`, `SlashCommand`, `subagent_type`."""
    name, input, tool_names = use.name, dict(use.input), tools.names()
    if name not in tool_names and ALSO.get(name) in tool_names:
        name = ALSO[name]
        if use.name == "SlashCommand" or (use.name == "Skill" and "skill" not in input):
            words = str(input.pop("command", "")).strip().removeprefix("/").split(None, 1)
            input |= dict(zip(("name", "arguments"), words, strict=False))
    properties = tools.get(name).input_schema.get("properties") or {} if name in tool_names else {}
    if name == "Task" and not input.keys() & {"agent", "subagent_type"}:
        agents = properties.get("agent")
        if isinstance(agents, Mapping) and GENERAL_AGENT in agents.get("enum", ()):
            input["agent"] = GENERAL_AGENT
    if name not in _NAMES or name not in tool_names or not input.keys() - properties.keys():
        return use if name == use.name and input == use.input else replace(use, name=name, input=input)
    changed = with_our_names(name, {}, input)
    return use if name == use.name and changed == use.input else replace(use, name=name, input=changed)


class ClaudeNames(Part):
    """Translates the calls of a model trained with Claude Code's names of tools and inputs to the agent's tools."""

    def read_call(self, use: ToolUse, tools: ToolRegistry) -> ToolUse:
        return in_our_names(use, tools)
