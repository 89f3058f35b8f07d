"""Notices for people: of all that reading a project found, one line for each reason, with its places and what to do.

What changes nothing of a run, and what means nothing to Claude Code either, is left to those who look at the project itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...ground.diagnostic import Diagnostic
from ...skills.ledger import ASIDE, QUIET, word_of

# Places that one line names; the others are counted.
_MAX_PLACES = 3
_HIDDEN = "are hidden behind others of the same name: `openagentic-sdk why NAME` shows which one counts"


def for_a_run(notes: Iterable[Diagnostic], kind: str = "") -> list[Diagnostic]:
    """One finding for each reason, in the order of the first of each; `kind` is that of the files they are about."""
    groups: dict[tuple[str, str, bool], list[Diagnostic]] = {}
    for note in notes:
        if note.code == ASIDE and kind == "settings":
            key = (ASIDE, "", False)
        elif note.code in QUIET:
            continue
        else:
            key = (note.code, "" if note.code in _POOLED else note.message, note.is_error)
        groups.setdefault(key, []).append(note)
    return [_as_one(group) for group in groups.values()]


def _as_one(group: Sequence[Diagnostic]) -> Diagnostic:
    first = group[0]
    if first.code == ASIDE:
        named = ", ".join(dict.fromkeys(map(word_of, group)))
        text = f"only Claude Code's own programs use {named}: `openagentic-sdk doctor --project` says more"
        return replace(first, code="settings-key", message=text)
    if len(group) == 1:
        return first
    say = _POOLED.get(first.code)
    message = first.message if say is None else f"{len(group)} {say}"
    return replace(first, message=f"{message} ({_places(group)})", line=0, path="")


# Findings whose sentences differ for each file, and the sentence for several of them.
_POOLED: Mapping[str, str] = {
    "skill-shadowed": f"skills {_HIDDEN}",
    "command-shadowed": f"commands {_HIDDEN}",
    "agent-shadowed": f"agents {_HIDDEN}",
}


def _places(group: Sequence[Diagnostic]) -> str:
    """The first few files of a group, below the folder that holds them all, and how many there are."""
    located = {f"{note.path}:{note.line}" if note.line else note.path: None for note in group if note.path}
    if not located:
        return f"{len(group)} times"
    folder = os.path.commonpath([note.path for note in group if note.path])
    folder = folder if folder not in {note.path for note in group} else os.path.dirname(folder)
    named = [os.path.relpath(place, folder) for place in list(located)[:_MAX_PLACES]]
    more = f" and {len(located) - _MAX_PLACES} more" if len(located) > _MAX_PLACES else ""
    return f"{len(located)} places in {folder}: {', '.join(named)}{more}"
