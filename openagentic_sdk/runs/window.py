"""The use of a stored session's context window, even during a run."""

from __future__ import annotations

from ..parts.masking import environment_redactor, shown
from ..parts.record.folds.window import ContextWindow, read_window
from ..sessions.base import SessionStore


def session_window(store: SessionStore, session_id: str, window: int | None = None) -> ContextWindow:
    """The use of the window by kind of content, and what a compaction would drop; texts are masked.

    `window` is the window's size in tokens; None takes it from the log, otherwise from the packaged table. Raises the
    errors of `iter_events`.
    """
    redact = environment_redactor()
    return read_window([shown(event, redact) for event in store.iter_events(session_id)], window)
