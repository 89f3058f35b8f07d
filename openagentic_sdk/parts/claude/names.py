"""Translate tool calls between Claude Code's names and ours: different names for the same tools and values.

A hook written for Claude Code reads `tool_input.old_string` where our Edit tool has `old`, so it receives both. The hook may
change the value under either name; if it sets two different values, the call is blocked. A model trained with Claude Code's
names may use them in its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from ...errors import ToolInputError
from ...events import ToolUse
from ...ground.frozen import frozen
from ...ground.loose import as_mappings
from ...hooks.engine import PATH_KEYS, absolute_path
from ...kernel.part import Part
from ...kernel.registry import ToolRegistry

# The result of a conversion if the value has no counterpart.
_ABSENT: Any = object()


def _same(value: Any) -> Any:
    return value


@frozen
class _Argument:
    """One argument under our name and Claude Code's.

    `default` is the value that Claude Code uses if the argument is not passed.
    """

    ours: str
    theirs: str
    default: Any = None
    to_theirs: Callable[[Any], Any] = _same
    to_ours: Callable[[Any], Any] = _same


def _milliseconds(seconds: Any) -> Any:
    return int(seconds * 1000) if isinstance(seconds, int | float) else _ABSENT


def _seconds(milliseconds: Any) -> Any:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else _ABSENT


def _replaces_all(count: Any) -> Any:
    return True if count == 0 else _ABSENT


# The arguments that Claude Code names differently, by our tool.
_ARGUMENTS: Mapping[str, Sequence[_Argument]] = {
    "Bash": (_Argument("timeout_s", "timeout", None, _milliseconds, _seconds),),
    "Edit": (
        _Argument("old", "old_string"),
        _Argument("new", "new_string"),
        _Argument("count", "replace_all", False, _replaces_all, lambda every: 0 if every else 1),
    ),
    "Grep": (_Argument("query", "pattern"), _Argument("root", "path"), _Argument("file_glob", "glob")),
    "Glob": (_Argument("root", "path"),),
    "Task": (_Argument("agent", "subagent_type"),),
    "SkillActivate": (_Argument("name", "skill"), _Argument("arguments", "args")),
    "SkillLoad": (_Argument("name", "skill"),),
}
# Tools with a different name in Claude Code.
_TOOLS = {
    "SkillActivate": "Skill",
    "SkillLoad": "Skill",
    "Task": "Agent",
    "BashOutput": "TaskOutput",
    "KillBash": "TaskStop",
}
# Our names that a matcher with one of Claude Code's names (tools, notifications, compactions) also matches.
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
# Our tool for each of Claude Code's tools that has another name here and may be called by it.
ALSO = {
    "Skill": "SkillActivate",
    "SlashCommand": "SkillActivate",
    "Agent": "Task",
    "MultiEdit": "Edit",
}


def tool_name_of(name: str) -> str:
    """Claude Code's name for our tool."""
    return _TOOLS.get(name, name)


def with_their_names(tool: str, input: Mapping[str, Any], cwd: str | None = None) -> dict[str, Any]:
    """The input with Claude Code's names in addition to ours; with `cwd`, relative paths in it become absolute."""
    result = dict(input)
    if cwd is not None:
        paths = {key: absolute_path(str(input[key]), cwd) for key in PATH_KEYS.get(tool, ()) if key in input}
        result.update((key, path) for key, path in paths.items() if path is not None)
    for each in _ARGUMENTS.get(tool, ()):
        if each.ours in input and (value := each.to_theirs(result[each.ours])) is not _ABSENT:
            result.setdefault(each.theirs, value)
    if tool == "Edit" and _is_list_of_maps(edits := input.get("edits")):
        result["edits"] = [with_their_names(tool, edit) for edit in edits]
    return result


def with_our_names(
    tool: str, input: Mapping[str, Any], changed: Mapping[str, Any], cwd: str | None = None
) -> dict[str, Any]:
    """The input from `with_their_names` as changed by a hook, in our names; unchanged paths keep their original form.

    Raises `ToolInputError` if one value was changed to two different ones.
    """
    original = with_their_names(tool, input, cwd)
    as_was = {
        key: input[key] for key in PATH_KEYS.get(tool, ()) if key in input and changed.get(key) == original.get(key)
    }
    result = {**changed, **as_was}
    for each in _ARGUMENTS.get(tool, ()):
        if each.theirs not in changed or each.theirs in input:
            continue
        theirs = result.pop(each.theirs)
        value = each.to_ours(theirs)
        if value is _ABSENT or theirs == original.get(each.theirs, each.default):
            # A hook may return only Claude Code's names; our argument then keeps its value.
            if each.ours in input:
                result.setdefault(each.ours, input[each.ours])
        elif changed.get(each.ours, value) in (value, input.get(each.ours), original.get(each.ours)):
            result[each.ours] = value
        else:
            raise ToolInputError(f"{each.ours} and {each.theirs} are the same argument, but have different values")
    if tool == "Edit" and _is_list_of_maps(edits := result.get("edits")):
        before = [*as_mappings(input.get("edits")), *([{}] * len(edits))]
        result["edits"] = [with_our_names(tool, old, new) for old, new in zip(before, edits, strict=False)]
    return result


def _is_list_of_maps(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def in_our_names(use: ToolUse, tools: ToolRegistry) -> ToolUse:
    """Convert a call from Claude Code's names, such as `Skill`, `SlashCommand` or `subagent_type`, to our tools' names."""
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
    # Rules may name Bash's `timeout`, so a call keeps it.
    if name not in _ARGUMENTS or name == "Bash" or name not in tool_names or not input.keys() - properties.keys():
        return use if name == use.name and input == use.input else replace(use, name=name, input=input)
    changed = with_our_names(name, {}, input)
    return use if name == use.name and changed == use.input else replace(use, name=name, input=changed)


class ClaudeNames(Part):
    """A part that translates calls with Claude Code's names of tools and arguments to those of the agent's tools."""

    def read_call(self, use: ToolUse, tools: ToolRegistry) -> ToolUse:
        return in_our_names(use, tools)
