"""Fold a stored session for a run, starting at its last compaction if that is stored."""

from __future__ import annotations

from collections.abc import Sequence

from ..events import SessionCompacted, SessionRewound
from .authority import Authority, KeyedDigests
from .core import StoreCore
from .folds.view import Fold, KeptView, SessionView
from .untracked import untrack

# The number of events untracked together; a log of fewer events does not burden the garbage collector.
_UNTRACKED_TOGETHER = 1000


def load_view(
    store: StoreCore,
    session_id: str,
    folds: Sequence[type[Fold]] = (),
    *,
    provider: str | None = None,
    seal: KeyedDigests | None = None,
) -> tuple[SessionView, KeptView | None]:
    """Return the session's view with these folds, without what compactions removed, and the state that a store should keep
    for the next time.

    The latter is None if it would save nothing. A stored state without one of the folds, or with another version of it,
    is not used: then the whole log is read. A rewind to before a compaction needs what was released: then the log is also
    folded from its start, and nothing is released up to that rewind. With a `seal`, the view distinguishes this
    installation's events. Raises the errors of `iter_events`.
    """
    stored_view, events = store.read_kept_view(session_id)
    authority = None if seal is None else Authority(session_id, seal)
    if stored_view is None or not stored_view.has(folds) or (authority is not None and not stored_view.authority):
        view, events = SessionView(folds, provider=provider, authority=authority), store.iter_events(session_id)
    else:
        if authority is not None:
            authority.restore(stored_view.authority)
        view = SessionView.restored(stored_view, folds, provider=provider, authority=authority)
    keep_all_up_to = 0
    view_to_store: KeptView | None = None
    while True:
        blocks = 0
        for count, event in enumerate(events, start=1):
            if count % _UNTRACKED_TOGETHER == 0:
                untrack(view.events[-_UNTRACKED_TOGETHER:])
                untrack(view.calls.values())
                untrack(view.conversation.view[blocks:])
                blocks = len(view.conversation.view)
            if isinstance(event, SessionRewound) and max(0, event.to_seq) < view.conversation.horizon:
                keep_all_up_to = event.seq or 0
                break
            view.apply(event)
            if isinstance(event, SessionCompacted) and (event.seq or 0) > keep_all_up_to:
                view_to_store = view.kept()
                view.forget(view_to_store)
        else:
            # Render them here, in a thread, because the first request needs all of them.
            view.conversation.messages()
            return view, view_to_store
        authority = None if seal is None else Authority(session_id, seal)
        view, view_to_store = SessionView(folds, provider=provider, authority=authority), None
        events = store.iter_events(session_id)
