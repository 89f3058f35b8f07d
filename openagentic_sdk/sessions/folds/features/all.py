"""The folds of all features of this package, for an agent with all of them and for readers that show everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....events import (
    FilesRestored,
    FilesRestoring,
    PartState,
    SessionForked,
    SessionRewound,
    SubagentFinished,
    SubagentStarted,
    TextCommandFinished,
    TextCommandStarted,
    TodoUpdated,
    ToolResult,
    ToolsLoaded,
)
from ..view import Cut, Fold, SessionView
from .listed import DefinitionsFold
from .skills import SkillsFold
from .untrusted import UntrustedFold


class ObservedFilesFold(Fold):
    """The files that the session has seen: a tool may change one only in the state that the model last saw.

    `digests` maps each file's path to the digest of that state.
    """

    name = "observed_files"
    reads = (ToolResult, FilesRestored)

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    def apply(self, event: ToolResult | FilesRestored, view: SessionView) -> None:
        if isinstance(event, FilesRestored):
            self._restored(event, view)
            return
        files = event.meta and event.meta.get("files")
        if files and isinstance(files, Mapping):
            self.digests.update({str(path): str(digest) for path, digest in files.items()})

    def _restored(self, event: FilesRestored, view: SessionView) -> None:
        """Let a model that was rewound as well change restored files without reading them again: it has seen that state."""
        journal = next((e for e in reversed(view.events) if isinstance(e, FilesRestoring)), None)
        for file in journal.files if journal is not None else ():
            path, digest = str(file.get("path")), file.get("sha256")
            if path in event.paths and isinstance(digest, str):
                self.digests[path] = digest
            elif path in event.paths:
                self.digests.pop(path, None)

    def kept(self) -> Mapping[str, Any]:
        return {"digests": dict(self.digests)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.digests = dict(kept["digests"])


class TextCommandsFold(Fold):
    """The shell commands run by the text of skills and commands.

    `ends` maps the id of each to its end, None until it ends.
    """

    name = "text_commands"
    reads = (TextCommandStarted, TextCommandFinished)

    def __init__(self) -> None:
        self.ends: dict[str, TextCommandFinished | None] = {}

    def apply(self, event: TextCommandStarted | TextCommandFinished, view: SessionView) -> None:
        self.ends[event.command_id] = event if isinstance(event, TextCommandFinished) else None

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        """The `seq` of each event of the current turn, so that commands that ran before a crash do not run again."""
        mine = (event.seq or 0 for event in view.events if isinstance(event, self.reads))
        return [seq for seq in mine if seq > cut.prompt_seq]


class SubagentsFold(Fold):
    """The subagents that have started and not ended: `open` maps the session of each to the event that started it.

    Subagents of the session from which a fork was made belong to that session.
    """

    name = "subagents"
    version = 2
    reads = (SubagentStarted, SubagentFinished, SessionForked)

    def __init__(self) -> None:
        self.open: dict[str, SubagentStarted] = {}

    def apply(self, event: SubagentStarted | SubagentFinished | SessionForked, view: SessionView) -> None:
        if isinstance(event, SessionForked):
            self.open.clear()
        elif isinstance(event, SubagentStarted):
            self.open[event.child_session_id] = event
        else:
            self.open.pop(event.child_session_id, None)

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        """The `seq` of the events of open subagents, of their calls, and of calls that the model still waits for."""
        open_ids = {started.tool_use_id for started in self.open.values()}
        calls = [view.calls[call_id] for call_id in open_ids if call_id in view.calls]
        records = (part for record in calls for part in (record.use, record.result) if part is not None)
        return [event.seq or 0 for event in (*self.open.values(), *records)] + [
            event.seq or 0
            for event in view.events
            if isinstance(event, SubagentStarted | SubagentFinished) and event.tool_use_id in cut.open_call_ids
        ]


class PartStatesFold(Fold):
    """The states of the caller's own parts in the log that no rewind removed, oldest first."""

    name = "part_states"
    reads = (PartState, SessionRewound)

    def __init__(self) -> None:
        self.events: list[PartState] = []

    def apply(self, event: PartState | SessionRewound, view: SessionView) -> None:
        if isinstance(event, SessionRewound):
            self.events = [earlier for earlier in self.events if (earlier.seq or 0) <= event.to_seq]
        else:
            self.events.append(event)

    def newest(self, part: str) -> PartState | None:
        """The current state of the part with this name; None if it has none."""
        return next((event for event in reversed(self.events) if event.part == part), None)

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return {event.part: event.seq or 0 for event in self.events}.values()


class LoadedToolsFold(Fold):
    """The deferred tools whose definitions the model has: `names`, in the order in which they were found."""

    name = "loaded_tools"
    reads = (ToolsLoaded,)

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def apply(self, event: ToolsLoaded, view: SessionView) -> None:
        self.names.update(dict.fromkeys(event.names))

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return [event.seq or 0 for event in view.events if isinstance(event, ToolsLoaded)]


class TodosFold(Fold):
    """A fold that keeps the newest state of the model's to-do list across compactions.

    It has no state of its own: code that shows the list, or puts it into a summary, reads the newest event.
    """

    name = "todos"

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        return [event.seq or 0 for event in cut.standing if isinstance(event, TodoUpdated)][-1:]


ALL_FOLDS: tuple[type[Fold], ...] = (
    SkillsFold,
    TextCommandsFold,
    LoadedToolsFold,
    ObservedFilesFold,
    UntrustedFold,
    SubagentsFold,
    TodosFold,
    PartStatesFold,
    DefinitionsFold,
)
