"""The end of a log, as a database stores it beside the log: the summary, and two counters that are always correct.

A summary written by another version of the fold is not used; then only id and counters of a head are reliable, and the row
is folded again when a list shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

from ...events import Event
from ...ground.frozen import changed, frozen
from ...serialization import dumps_json, loads_json
from ..folds.summary import SessionSummary, fold_session_summary, start_summary, summary_from_dict, summary_to_dict


@frozen
class LogHead:
    """The end of a log. `summary.events` is the last event's `seq`; `is_kept` is true if the rest is also up to date."""

    summary: SessionSummary
    is_kept: bool = True

    @cached_property
    def id(self) -> str:
        return self.summary.id

    @cached_property
    def last_seq(self) -> int:
        return self.summary.events

    @cached_property
    def updated(self) -> float:
        """The time of the last event, a lower bound for the next one's; 0.0 before the first."""
        return self.summary.updated if self.summary.events else 0.0

    def counted(self, last_seq: int, updated: float) -> LogHead:
        """The head after appending events up to `last_seq` that change only the counters."""
        return LogHead(changed(self.summary, events=last_seq, updated=updated), self.is_kept)

    def after(self, events: Iterable[Event]) -> LogHead:
        """The head after appending these stored events."""
        return LogHead(fold_session_summary(self.summary, events), self.is_kept)

    def to_json(self) -> str | None:
        """The summary to store; None if it is not up to date."""
        return dumps_json(summary_to_dict(self.summary)) if self.is_kept else None


class _StoredHead(LogHead):
    """The head in a row, whose summary is parsed at its first use: most calls need only the id and the counters."""

    def __init__(self, session_id: str, last_seq: int, updated: float, parse: Callable[[], LogHead]) -> None:
        self.__dict__.update(id=session_id, last_seq=last_seq, updated=updated, parse=parse)

    @cached_property
    def _parsed(self) -> LogHead:
        parsed: LogHead = self.__dict__["parse"]()
        return parsed

    @property
    def summary(self) -> SessionSummary:
        return self._parsed.summary

    @property
    def is_kept(self) -> bool:
        return self._parsed.is_kept


def read_head(
    session_id: str,
    created_at: float,
    metadata: str,
    summary_json: str | None,
    last_seq: int | None,
    updated: float | None,
) -> LogHead:
    """The head in a row of the database. `summary_json` is None, or of another version, if it must be folded again."""

    def parse() -> LogHead:
        summary = summary_from_dict(loads_json(summary_json)) if summary_json else None
        start = summary or start_summary(session_id, created_at, loads_json(metadata))
        latest = updated or start.updated
        if last_seq and (last_seq, latest) != (start.events, start.updated):
            start = changed(start, events=last_seq, updated=latest)
        return LogHead(start, summary is not None or not last_seq)

    # Without a counter, only the summary shows that events are missing.
    return _StoredHead(session_id, last_seq, updated, parse) if last_seq and updated else parse()


def copied_head(
    source: LogHead, source_start: SessionSummary, start: SessionSummary, at_seq: int, updated: float | None
) -> LogHead:
    """The head of a copy that ends at `at_seq`, whose last event set the row's time to `updated`.

    It is known immediately only for a complete copy, since folding part of a long log would delay the copy, and only if the
    copy's metadata names the same folder, model, agent and tags as the source's: events may override these.
    """
    if at_seq == 0:
        return LogHead(start)
    begins_alike = all(
        getattr(start, name) == getattr(source_start, name) for name in ("cwd", "model", "tags", "spent")
    )
    if not source.is_kept or source.last_seq != at_seq or not begins_alike:
        return LogHead(changed(start, events=at_seq, updated=updated or start.updated), False)
    mine = {name: getattr(start, name) for name in ("id", "created", "parent", "is_child", "tenant")}
    return LogHead(changed(source.summary, **mine))
