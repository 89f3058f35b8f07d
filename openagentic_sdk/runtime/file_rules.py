"""Rules of the project that hold for some files only: they come to the model once it has seen such a file.

What the model sees decides whether a rule has to come again: after a resume it is still there, after a compaction or a
rewind it may be gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..events import ToolResult, UserMessage
from .agent import Run


def note_rules(run: Run, input: Mapping[str, Any], result: ToolResult) -> None:
    """Put the rules for the files of a call behind its result, but for those that the model sees already."""
    texts = dict.fromkeys(text for path in _files(run, input, result) for text in run.agent.guidance.rules_for(path))
    if not texts:
        return
    seen = {note.text for note in run.notes}
    seen.update(str(message.get("content")) for message in run.view.conversation.messages())
    run.notes += [UserMessage(text, origin="rule") for text in texts if text not in seen]


def _files(run: Run, input: Mapping[str, Any], result: ToolResult) -> Iterator[str]:
    """The files that a call read or wrote; a file that was read in part stands only in the input."""
    if result.is_error:
        return
    yield from (result.meta or {}).get("files") or ()
    if isinstance(named := input.get("file_path"), str):
        yield os.path.join(run.agent.cwd, named)
