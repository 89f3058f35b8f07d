"""The definitions of servers' tools that a session has listed, so that a decision about one never covers another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....events import Event, McpServerChanged, PermissionDecision
from ..view import Cut, Fold, SessionView

# A server may change a tool as often as it likes. Calls are compared with recent definitions, and rules with the first.
_MAX_LISTED = 50


class DefinitionsFold(Fold):
    """The definitions under which each server's tool was listed, and the newest call of it that somebody allowed.

    `listed` maps a tool to its definitions, the first and the newest ones: the `seq` of the event that introduced each, and
    its digest. `approved` maps a tool to the `seq` of the decision; decisions of another installation do not count.
    """

    name = "definitions"
    reads = (McpServerChanged, PermissionDecision)

    def __init__(self) -> None:
        self.listed: dict[str, list[tuple[int, str]]] = {}
        self.approved: dict[str, int] = {}

    def apply(self, event: McpServerChanged | PermissionDecision, view: SessionView) -> None:
        seq = event.seq or 0
        if isinstance(event, McpServerChanged):
            for tool, digest in _digests(event):
                listed = self.listed.setdefault(tool, [])
                if not listed or listed[-1][1] != digest:
                    del listed[1 : -_MAX_LISTED + 2]
                    listed.append((seq, digest))
        elif event.name in self.listed and event.allowed and event.answered_by is not None and view.is_ours(event):
            self.approved[event.name] = seq

    def listed_at(self, tool: str, seq: int | None) -> str | None:
        """The digest of a tool's definition before the event `seq` (None: the newest); None if it was not listed by then."""
        return next((digest for _, digest in _before(self.listed.get(tool, ()), seq)), None)

    def is_approved(self, tool: str, digest: str) -> bool:
        """Whether somebody allowed a call of the tool after this definition of it was introduced."""
        introduced = next((seq for seq, each in self.listed.get(tool, ()) if each == digest), None)
        return introduced is not None and self.approved.get(tool, 0) > introduced

    def in_force(self, view: SessionView, cut: Cut) -> Iterable[int]:
        """The `seq` of each listing under which an open call was made."""
        uses = (record.use for call_id, record in view.calls.items() if call_id in cut.open_call_ids)
        return [seq for use in uses for seq, _ in _before(self.listed.get(use.name, ()), use.seq)]

    def kept(self) -> Mapping[str, Any]:
        return {"listed": {tool: [*listed] for tool, listed in self.listed.items()}, "approved": dict(self.approved)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.listed = {tool: [(seq, digest) for seq, digest in listed] for tool, listed in kept["listed"].items()}
        self.approved = dict(kept["approved"])


def definition_at(events: Iterable[Event], tool: str, seq: int | None) -> str | None:
    """Like `DefinitionsFold.listed_at`, for code that has only the events."""
    listed = [
        (event.seq or 0, digest)
        for event in events
        if isinstance(event, McpServerChanged)
        for name, digest in _digests(event)
        if name == tool
    ]
    return next((digest for _, digest in _before(listed, seq)), None)


def _before(listed: Sequence[tuple[int, str]], seq: int | None) -> list[tuple[int, str]]:
    """The newest definition listed before the event `seq` (None: the newest of all), in a list; empty without one."""
    return [each for each in listed if seq is None or each[0] < seq][-1:]


def _digests(event: McpServerChanged) -> list[tuple[str, str]]:
    return [(str(tool.get("name")), tool["sha256"]) for tool in event.tools if isinstance(tool.get("sha256"), str)]
