"""The definitions of servers' tools that a session has listed, so that a decision about one never covers another."""

from __future__ import annotations

from collections.abc import Iterable

from ....events import Event, McpServerChanged, PermissionDecision


def listed_digests(events: Iterable[Event], tool: str) -> list[tuple[int, str]]:
    """Each definition under which a tool was listed: the `seq` of the event that introduced it, and its digest."""
    found: list[tuple[int, str]] = []
    for event in events:
        if isinstance(event, McpServerChanged):
            digest = next((str(one.get("sha256")) for one in event.tools if one.get("name") == tool), None)
            if digest is not None and "None" != digest != (found[-1][1] if found else ""):
                found.append((event.seq or 0, digest))
    return found


def digest_at(listed: Iterable[tuple[int, str]], seq: int | None) -> str | None:
    """The digest of the definition in force when the event `seq` was stored; None if the tool was not listed by then."""
    return next((digest for at, digest in reversed(list(listed)) if seq is None or at < seq), None)


def is_approved_since(events: Iterable[Event], tool: str, seq: int) -> bool:
    """Whether somebody was asked about a call of the tool after the event `seq`, and allowed it."""
    return any(
        isinstance(event, PermissionDecision)
        and event.name == tool
        and event.allowed
        and event.answered_by is not None
        and (event.seq or 0) > seq
        for event in events
    )
