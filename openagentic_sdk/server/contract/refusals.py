"""Convert errors to refusals: a status, a code for programs, a sentence for people, and when to retry."""

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
    "invalid_request": (400, "a part of the request is invalid; the message names it"),
    "unauthorized": (401, "the token is missing or invalid"),
    "forbidden": (403, "the principal, the host or the page lacks permission"),
    "question_open": (403, "the session waits for an answer, which the principal may not give"),
    "not_found": (404, "the path or the object does not exist, or the object belongs to another tenant"),
    "session_not_found": (404, "the session does not exist, or belongs to another tenant"),
    "agent_not_found": (404, "no agent has this name"),
    "method_not_allowed": (405, "the path does not support the method; Allow lists those it does"),
    "not_acceptable": (406, "the server can send none of the types in Accept"),
    "timeout": (408, "the request did not arrive in time"),
    "conflict": (409, "the session's state does not permit the request"),
    "session_busy": (409, "the session has a run in progress"),
    "session_kept": (409, "the session is under a hold or its retention period has not ended"),
    "question_not_open": (409, "the question has been answered or was never asked"),
    "no_run": (409, "the session has no run in progress"),
    "cursor_beyond_log": (409, "the cursor exceeds the end of the log: read the log again from the start"),
    "in_progress": (409, "the same request is being processed"),
    "too_large": (413, "the body is too large"),
    "uri_too_long": (414, "the request line is too long"),
    "unsupported_media_type": (415, "the body is not plain JSON"),
    "expectation_failed": (417, "Expect may only contain 100-continue"),
    "unprocessable": (422, "the request is well-formed but cannot be carried out"),
    "key_reused": (422, "the Idempotency-Key was used for a different request"),
    "prompt_refused": (422, "a hook or guardrail refused the prompt; it was not stored"),
    "too_many_requests": (429, "too many runs or requests; retry after the time in Retry-After"),
    "headers_too_large": (431, "the request's headers are too large"),
    "internal": (500, "the server failed unexpectedly"),
    "not_implemented": (501, "the server does not support this"),
    "unavailable": (503, "temporarily unavailable; retry after the time in Retry-After"),
    "draining": (503, "the server is shutting down; retry, or use another server"),
}
_OF_STATUS = {CODES[code][0]: code for code in reversed(list(CODES))}

_BUSY = "a run is in progress in this session: follow it, send it a message, cancel it, or fork it"
# For each error: its code, a sentence if its own text is not suited to clients, and the seconds after which to retry.
_REFUSED: tuple[tuple[type[Exception], str, str, str], ...] = (
    (SessionNotFoundError, "session_not_found", "session {error.session_id!r:.220} does not exist", ""),
    (AgentNotFoundError, "agent_not_found", "", ""),
    (SessionLockedError, "session_busy", _BUSY, "1"),
    (QuestionOpenError, "question_open", "", ""),
    (SessionHeldError, "session_kept", "", ""),
    (SessionExistsError, "in_progress", "the same request is being answered: send it again later", "1"),
    (ConcurrencyError, "conflict", "", ""),
    (RequestConflictError, "key_reused", "", ""),
    (RoomMissingError, "not_implemented", "", ""),
    (OptionsError, "invalid_request", "", ""),
    (InvalidEventError, "invalid_request", "", ""),
    (StorageError, "unavailable", "the session store does not respond: send the request again", "2"),
)
REFUSALS: tuple[type[Exception], ...] = (RequestRefusedError, *(kind for kind, *_ in _REFUSED))


def code_of(error: Exception) -> str:
    """The code, a key of `CODES`, of an error in `REFUSALS`."""
    if isinstance(error, RequestRefusedError):
        return error.code or _OF_STATUS.get(error.status, "internal")
    return next(code for kind, code, *_ in _REFUSED if isinstance(error, kind))


def refusal_of(error: Exception) -> tuple[int, str, dict[str, str]]:
    """The status, message and headers of the response to an error in `REFUSALS`."""
    if isinstance(error, RequestRefusedError):
        again = error.retry_after_s
        return error.status, str(error), {} if again is None else {"Retry-After": f"{again:.0f}"}
    _, code, sentence, later_s = next(row for row in _REFUSED if isinstance(error, row[0]))
    return CODES[code][0], sentence.format(error=error) or str(error), {"Retry-After": later_s} if later_s else {}


def error_body(error: Exception) -> dict[str, Any]:
    """The JSON body of the response to an error in `REFUSALS`."""
    status, message, _ = refusal_of(error)
    return {"error": {"status": status, "code": code_of(error), "message": message}}
