"""Group the findings about a project into notices for people: one line per reason, with its places and the remedy.

Findings that do not affect a run, or that have no meaning for Claude Code either, are only shown on request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...ground.diagnostic import Diagnostic
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...skills.ledger import ASIDE, QUIET, word_of

# The maximum numbers of places and names in one line; the others are counted.
_MAX_PLACES = 3
_MAX_NAMES = 12


@frozen
class _Alike:
    """A pattern for findings whose sentences differ only in a name, and one sentence for several of them.

    The pattern's group `name` matches what differs, its other groups belong to the reason; `{names}` in the sentence
    stands for the names.
    """

    pattern: re.Pattern[str]
    sentence: str


def _alike(pattern: str, sentence: str) -> _Alike:
    return _Alike(regex(pattern, re.DOTALL), sentence)


_HIDDEN = "are hidden by others of the same name: `openagentic-sdk why NAME` shows which one is used"
_ALIKE: dict[str, tuple[_Alike, ...]] = {
    "skill-shadowed": (_alike("(?P<name>'.*') is hidden by .*", f"the skills {{names}} {_HIDDEN}"),),
    "command-shadowed": (_alike("the command (?P<name>.*) is hidden by .*", f"the commands {{names}} {_HIDDEN}"),),
    "agent-shadowed": (_alike("the agent (?P<name>.*) is hidden by .*", f"the agents {{names}} {_HIDDEN}"),),
    "rule-not-understood": (
        _alike(
            "the (?P<effect>allow|ask|deny) rule (?P<name>.*?) is not understood and is (?P<outcome>.*)",
            "the {effect} rules {names} are not understood, and each is {outcome}",
        ),
    ),
    "plugin-missing": (
        _alike(
            "the plugin (?P<name>'.*') is not installed: .*",
            "the plugins {names} are not installed: get their folders, and run `openagentic-sdk plugins add DIR` for each",
        ),
    ),
    "mcp-pending": (
        _alike(
            "the server (?P<name>'.*') is not started: nobody has approved .*",
            "the servers {names} are not started: nobody has approved them yet: review and approve each with "
            "`openagentic-sdk mcp trust NAME`",
        ),
    ),
    "mcp-server": (
        _alike(
            "the server (?P<name>'.*') is not started: .* not set in the environment: .*",
            "the servers {names} are not started: some of their variables are not set: set them in the environment, or "
            "give them defaults as ${{NAME:-default}} (`openagentic-sdk why NAME` names them)",
        ),
    ),
}


def for_a_run(notes: Iterable[Diagnostic], kind: str = "") -> list[Diagnostic]:
    """One finding per reason, except findings that do not affect a run; `kind` is the kind of the files.

    For "settings", one more finding names the keys that only Claude Code's own programs use.
    """
    loud: list[Diagnostic] = []
    quiet_notes: list[Diagnostic] = []
    for note in notes:
        (quiet_notes if note.code in QUIET else loud).append(note)
    words = dict.fromkeys(word_of(note) for note in quiet_notes if note.code == ASIDE and kind == "settings")
    if words:
        text = f"only Claude Code's own programs use {', '.join(words)}: `openagentic-sdk doctor --project` has details"
        first = next(note for note in quiet_notes if note.code == ASIDE)
        loud.append(replace(first, code="settings-key", message=text))
    return grouped(loud)


def grouped(notes: Iterable[Diagnostic]) -> list[Diagnostic]:
    """One finding per reason, in order of first occurrence."""
    groups: dict[tuple[str, str, bool], list[Diagnostic]] = {}
    for note in notes:
        groups.setdefault((note.code, _reason(note), note.is_error), []).append(note)
    return [group[0] if len(group) == 1 else _as_one(reason, group) for (_, reason, _), group in groups.items()]


def _reason(note: Diagnostic) -> str:
    """The sentence for findings like this one, with `{names}` for the name; its own message if no others can be like it."""
    for each in _ALIKE.get(note.code, ()):
        if match := each.pattern.fullmatch(note.message):
            fixed = {key: value.replace("{", "{{") for key, value in match.groupdict().items() if key != "name"}
            return each.sentence.replace("{names}", "\0").format(**fixed).replace("\0", "{names}")
    return note.message


def _as_one(reason: str, group: Sequence[Diagnostic]) -> Diagnostic:
    names = [
        match["name"]
        for note in group
        for each in _ALIKE.get(note.code, ())
        if (match := each.pattern.fullmatch(note.message))
    ]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    message = reason.replace("{names}", ", ".join(names[:_MAX_NAMES]) + more)
    places = {f"{note.path}:{note.line}" if note.line else note.path: note.path for note in group if note.path}
    if len(set(places.values())) == 1:
        lines = [str(note.line) for note in group if note.line]
        return replace(group[0], message=message if len(lines) < 2 else f"{message} (lines {', '.join(lines)})")
    if places:
        message = f"{message} ({_shown(places)})"
    return replace(group[0], message=message, line=0, path="")


def _shown(places: dict[str, str]) -> str:
    """The first few places, relative to their common folder, and the number of places."""
    folder = os.path.commonpath(list(places.values()))
    paths = [os.path.relpath(place, folder) for place in list(places)[:_MAX_PLACES]]
    more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
    return f"{len(places)} places in {folder}: {', '.join(paths)}{more}"
