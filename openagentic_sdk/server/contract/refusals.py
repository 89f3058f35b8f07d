"""How errors are refused: for each one a status, a code for programs, a sentence for people, and when to retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import (
    AgentNotFoundError,
    ConcurrencyError,
    InvalidEventError,
    OptionsError,
    QuestionOpenError,
    RequestConflictError,
    RequestRefusedError,
    RoomMissingError,
    SessionExistsError,
    SessionHeldError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)

# Every code, its status and its meaning. A code never changes; later versions may add codes.
CODES: Mapping[str, tuple[int, str]] = {
    "invalid_request": (400, "something in the request cannot be used; the message names it"),
    "unauthorized": (401, "no token, or no valid one"),
    "forbidden": (403, "the principal, the host or the page may not do this"),
    "question_open": (403, "the session waits for an answer that the principal may not give"),
    "not_found": (404, "nothing is there, or somebody else's"),
    "session_not_found": (404, "no such session, or somebody else's"),
    "agent_not_found": (404, "no agent of this name"),
    "method_not_allowed": (405, "the path has no such method; Allow names them"),
    "not_acceptable": (406, "Accept names nothing that can be sent"),
    "timeout": (408, "the request was too slow in coming"),
    "conflict": (409, "the session is not as the request takes it to be"),
    "session_busy": (409, "a run goes on in the session"),
    "session_kept": (409, "the session is held, or is to be kept for longer"),
    "question_not_open": (409, "the question was answered, or never asked"),
    "no_run": (409, "no run goes on that could be told anything"),
    "cursor_beyond_log": (409, "the cursor lies behind the end of the log: read it again from the start"),
    "in_progress": (409, "the same request is being answered just now"),
    "too_large": (413, "the body is too large"),
    "uri_too_long": (414, "the request line is too long"),
    "unsupported_media_type": (415, "the body is no plain JSON"),
    "expectation_failed": (417, "nothing but 100-continue can be expected"),
    "unprocessable": (422, "the request can be read, and cannot be done"),
    "key_reused": (422, "the Idempotency-Key came with another request before"),
    "prompt_refused": (422, "a hook or guardrail refused the prompt: it was not stored"),
    "too_many_requests": (429, "too many runs or requests: Retry-After says when to ask again"),
    "headers_too_large": (431, "the head is too large"),
    "internal": (500, "the server failed"),
    "not_implemented": (501, "this server does not do that"),
    "unavailable": (503, "not now: Retry-After says when to ask again"),
    "draining": (503, "this server is about to end: ask another one, or again"),
}
_OF_STATUS = {CODES[code][0]: code for code in reversed(list(CODES))}

_BUSY = "a run goes on in this session: follow it, send it a message, cancel it, or fork it"
# For each error: its code, the sentence if its own text is not for clients, and the seconds after which to retry.
_REFUSED: tuple[tuple[type[Exception], str, str, str], ...] = (
    (SessionNotFoundError, "session_not_found", "there is no session {error.session_id!r:.220} here", ""),
    (AgentNotFoundError, "agent_not_found", "", ""),
    (SessionLockedError, "session_busy", _BUSY, "1"),
    (QuestionOpenError, "question_open", "", ""),
    (SessionHeldError, "session_kept", "", ""),
    (SessionExistsError, "in_progress", "the same request is being answered just now: ask again", "1"),
    (ConcurrencyError, "conflict", "", ""),
    (RequestConflictError, "key_reused", "", ""),
    (RoomMissingError, "not_implemented", "", ""),
    (OptionsError, "invalid_request", "", ""),
    (InvalidEventError, "invalid_request", "", ""),
    (StorageError, "unavailable", "the session store does not answer: ask again", "2"),
)
REFUSALS: tuple[type[Exception], ...] = (RequestRefusedError, *(kind for kind, *_ in _REFUSED))


def code_of(error: Exception) -> str:
    """The code of an error of `REFUSALS`."""
    if isinstance(error, RequestRefusedError):
        return error.code or _OF_STATUS.get(error.status, "internal")
    return next(code for kind, code, *_ in _REFUSED if isinstance(error, kind))


def refusal_of(error: Exception) -> tuple[int, str, dict[str, str]]:
    """The status, sentence and headers of the response for an error of `REFUSALS`."""
    if isinstance(error, RequestRefusedError):
        again = error.retry_after_s
        return error.status, str(error), {} if again is None else {"Retry-After": f"{again:.0f}"}
    _, code, said, later_s = next(row for row in _REFUSED if isinstance(error, row[0]))
    return CODES[code][0], said.format(error=error) or str(error), {"Retry-After": later_s} if later_s else {}


def error_body(error: Exception) -> dict[str, Any]:
    """The JSON body of the response for an error of `REFUSALS`."""
    status, message, _ = refusal_of(error)
    return {"error": {"status": status, "code": code_of(error), "message": message}}
