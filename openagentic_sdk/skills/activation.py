"""The active skills, and what they allow: pure folds over a session's events, and the event that activates one.

Activation follows from the log alone. The text is in the event, so that a resumed or compacted session keeps it whether or
not the file still exists; a changed file is reported and never grants anything again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..events import (
    CommandExpanded,
    Event,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    SkillDrifted,
    UserMessage,
)
from ..ground.frozen import frozen
from ..ground.text import without_hidden
from .fields import served_model
from .index import SkillInfo
from .names import name_key
from .parse import SkillDoc
from .render import fill_variables, plugin_variables


def active_skills(events: Iterable[Event]) -> tuple[SkillActivated, ...]:
    """The active skills after these events, in the order of activation.

    Arguments are those of the current turn: a request of an earlier one must not be carried out again.
    """
    active: dict[str, SkillActivated] = {}
    for event in _standing(events):
        if isinstance(event, SkillActivated):
            active[name_key(event.name)] = event
        elif _begins_turn(event):
            active = {name: replace(skill, arguments=None) for name, skill in active.items()}
        elif isinstance(event, SkillDeactivated):
            active.pop(name_key(event.name), None)
    return tuple(active.values())


@frozen
class SkillPolicy:
    """The effect of the active skills and of this turn's command on tools and the model.

    For this turn, `grants` are rules for calls that need no question, `disallowed_tools` rules for tools to remove, and
    `model` is the model that answers. Each of `allowlists` is everything that one active skill permits: a call must match a
    rule of each. The skill tools themselves are never restricted, otherwise no skill could be deactivated.
    """

    grants: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    allowlists: tuple[tuple[str, ...], ...] = ()
    model: str | None = None


def skill_policy(events: Iterable[Event]) -> SkillPolicy:
    """The policy for the next call.

    Everything except the allowlists ends with a person's next prompt; a skill's grants and model also end when its file
    changes.
    """
    standing = _standing(events)
    active = active_skills(standing)
    names = {name_key(skill.name) for skill in active}
    of_turn = _of_this_turn(standing, names)
    with_drifted = _of_this_turn([event for event in standing if not isinstance(event, SkillDrifted)], names)
    return SkillPolicy(
        grants=_unique(rule for event in of_turn for rule in event.grants),
        disallowed_tools=_unique(
            rule for event in with_drifted if isinstance(event, SkillActivated) for rule in event.disallowed_tools
        ),
        allowlists=tuple(tuple(skill.allowed_only) for skill in active if skill.allowed_only is not None),
        model=next((event.model for event in reversed(of_turn) if event.model), None),
    )


def _of_this_turn(events: Sequence[Event], active: set[str]) -> list[CommandExpanded | SkillActivated]:
    """The turn's command and the skills activated in it that are still active.

    A subagent's own skills were activated before its only prompt, and belong to that turn.
    """
    turn_events: list[CommandExpanded | SkillActivated] = []
    is_first = True
    for event in events:
        if _begins_turn(event):
            turn_events = [
                earlier
                for earlier in turn_events
                if is_first and isinstance(earlier, SkillActivated) and earlier.requested_by == "config"
            ]
            is_first = False
        elif isinstance(event, CommandExpanded | SkillActivated):
            turn_events.append(event)
        elif isinstance(event, SkillDrifted):
            drifted = name_key(event.name)
            turn_events = [
                e for e in turn_events if not (isinstance(e, SkillActivated) and name_key(e.name) == drifted)
            ]
    # If a skill became active twice, only the last time counts.
    last = {name_key(event.name): event for event in turn_events if isinstance(event, SkillActivated)}
    return [
        e
        for e in turn_events
        if isinstance(e, CommandExpanded) or (last[name_key(e.name)] is e and name_key(e.name) in active)
    ]


def _begins_turn(event: Event) -> bool:
    return isinstance(event, UserMessage) and event.origin == "user"


def _standing(events: Iterable[Event]) -> list[Event]:
    """The events relevant to this module that no rewind removed."""
    live_events: list[Event] = []
    for event in events:
        if isinstance(event, SessionRewound):
            while live_events and (live_events[-1].seq or 0) > event.to_seq:
                live_events.pop()
        elif isinstance(event, CommandExpanded | SkillActivated | SkillDeactivated | SkillDrifted | UserMessage):
            live_events.append(event)
    return live_events


def _unique(rules: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rules))


# --- becoming active -------------------------------------------------------------------------------------------------

# Rules this wide include tools that are not known yet; a file may not allow them.
_TOO_WIDE = frozenset({"*", "mcp__*"})
# These ask a person; a rule that answered for the person would defeat them.
_INTERACTIVE = frozenset({"askuserquestion"})


def grantable(rules: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The rules that a trusted skill may grant, and the others: too wide ones, and those for AskUserQuestion.

    All of Bash is among the first, because settings of a trusted project may also allow it: deny and ask rules have
    priority.
    """
    granted: list[str] = []
    withheld: list[str] = []
    for rule in rules:
        plain = "".join(rule.split()).casefold()
        is_wide = plain in _TOO_WIDE or plain.removesuffix("(*)") in _TOO_WIDE
        (withheld if is_wide or plain.split("(")[0] in _INTERACTIVE else granted).append(rule)
    return tuple(granted), tuple(withheld)


def activation_event(
    info: SkillInfo,
    doc: SkillDoc,
    *,
    arguments: str | None = None,
    requested_by: str = "model",
    trusted: bool = False,
    enforce: bool = False,
    tree_sha256: str | None = None,
    variables: Mapping[str, str] | None = None,
    model_names: Mapping[str, str] | None = None,
) -> SkillActivated:
    """Build the event that activates a skill. Raises `OptionsError` if the skill's model names a provider.

    Grants require `trusted`. With `enforce`, only allowed-tools may be used while the skill is active. Arguments are kept
    separate from the instructions, so that a resumed session does not carry out an old request again.
    """
    body = render_body(info, doc, variables or {})
    # Called for its effect: the plugin's data folder is created if the text refers to it.
    plugin_variables(info.plugin_root, info.plugin_data, doc.body)
    allowed = filled_rules(info, doc.allowed_tools, variables or {})
    return SkillActivated(
        name=info.name,
        path=info.path,
        scope=info.scope,
        body=body,
        body_sha256=sha256_text(body),
        tree_sha256=tree_sha256,
        arguments=arguments,
        requested_by=requested_by,
        grants=grantable(allowed)[0] if trusted else (),
        disallowed_tools=filled_rules(info, doc.disallowed_tools, variables or {}),
        allowed_only=allowed if enforce and allowed else None,
        model=served_model(doc.model, model_names or {}),
        argument_names=doc.arguments,
    )


def skill_request(name: str, arguments: str, variants: Sequence[str] = ()) -> str:
    """The prompt that makes the model carry out a skill now. `variants` names its variants for folders of the project."""
    request = f"Follow the skill {name} now."
    request = f"{request} It is for: {arguments}" if arguments else request
    if variants:
        listed = ", ".join(variants)
        request += (
            f"\nFolders have skills of their own for this ({listed}): use each whose folder holds what you work on."
        )
    return request


def render_body(info: SkillInfo, doc: SkillDoc, variables: Mapping[str, str]) -> str:
    """The instructions as the model reads them: paths filled in, hidden characters removed, arguments left open."""
    return fill_variables(without_hidden(doc.body), skill_variables(info, variables)).strip("\n")


def filled_rules(info: SkillInfo, rules: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Rules with `${CLAUDE_SKILL_DIR}` and `${CLAUDE_PROJECT_DIR}` filled in."""
    values = skill_variables(info, variables)
    return tuple(fill_variables(rule, values) for rule in rules)


def skill_variables(info: SkillInfo, variables: Mapping[str, str]) -> dict[str, str]:
    """The values of `${...}` in this skill's text."""
    plugin = plugin_variables(info.plugin_root, info.plugin_data)
    return {**variables, **plugin, "CLAUDE_SKILL_DIR": os.path.dirname(info.path)}


def sha256_text(text: str) -> str:
    """The SHA-256 of a text as UTF-8, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def drift_event(active: SkillActivated, body_now: str | None) -> SkillDrifted | None:
    """The warning that an active skill's file has changed, or is gone (`body_now` None); None if the text is the same."""
    now = sha256_text(body_now) if body_now is not None else None
    if now == active.body_sha256:
        return None
    return SkillDrifted(name=active.name, old_sha256=active.body_sha256, new_sha256=now)
