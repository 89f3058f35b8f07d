"""Send the spans of sessions to a collector from a dedicated thread, so that no run waits for it.

A run only notifies the exporter that its log has grown. The thread reads new events from the store, folds them into spans,
and sends spans that have ended in batches. A small file per session stores how far it was sent, so that after a collector
outage or a killed process the rest is sent later, from the log. Span ids derive from the log: a span sent twice is the
same.

Failures are handled according to OTLP (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP Response", "OTLP/HTTP Throttling"):
429, 502, 503, 504 and broken connections are retried, after `Retry-After` or with increasing back-off; other failures and
spans rejected by a partial success are not.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gzip
import json
import logging
import os
import ssl
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ....errors import InvalidEventError, OptionsError, ProviderError, SessionError, SessionNotFoundError
from ....events import Event, Result
from ....ground.backoff import Backoff
from ....ground.disk import SystemDisk, write_durably
from ....ground.frozen import mutable
from ....ground.system import reason_of
from ....ground.text import Redact, on_one_line
from ....ground.threads import error_words
from ....ground.words import plural
from ....providers.wire.http import HttpAnswer, HttpTransport
from ....providers.wire.timeouts import Timeouts
from ....providers.wrappers.retry import retry_after_s
from ....sessions.base import SessionStore
from ..folds.spans import Span, SpanFold, TracePlace, call_span_id, own_trace, trace_request
from .protobuf import encode, fields_of
from .settings import TelemetrySettings

_RETRIED = frozenset({429, 502, 503, 504})
_PAUSES, _LONGEST_RETRY_AFTER_S = Backoff(1.0, 30.0, jitter=0.5), 600.0
# How long process exit waits for the last spans.
CLOSING_S = 3.0
# The ended spans of one session in memory; the rest of its log is read once these are sent.
_MOST_WAITING = 2_048
_MAX_ANSWER_BYTES = 64 * 1024
_MAX_BODY_BYTES = 4 * 1024 * 1024
_MAX_DEPTH, _MAX_COMPLAINT_CHARS = 20, 1_000
_PROTOBUF = "application/x-protobuf"
_OLDEST_CURSOR_S = 30 * 86_400.0
_MOST_CURSORS = 2_000


@mutable
class Health:
    """The exporter's state for diagnosis: counts of sent and lost spans, and the last problem.

    `rejected` counts the spans that a successful response rejected, `dropped` those of requests that failed for good.
    """

    sent: int = 0
    rejected: int = 0
    dropped: int = 0
    requests: int = 0
    problem: str = ""
    complaint: str | None = None
    has_complained: bool = False

    def drop(self, spans: int, problem: str) -> None:
        """Record that spans were dropped and why; the first time, also keep this for a notice."""
        self.problem, self.dropped = problem, self.dropped + spans
        self.complain(f"traces are not accepted: {problem}")

    def complain(self, complaint: str) -> None:
        """Keep a sentence for a notice, unless there has been one."""
        if not self.has_complained:
            self.has_complained, self.complaint = True, on_one_line(complaint, _MAX_COMPLAINT_CHARS)

    def take_complaint(self) -> str | None:
        """Remove and return the pending notice, or None."""
        complaint, self.complaint = self.complaint, None
        return complaint


@mutable
class _ExportedSession:
    """A session whose log is being sent.

    `read` is the last folded event, `sent` the one up to which the collector has every ended span. `waiting` contains the
    other ended spans, each with the event that showed its end.
    """

    fold: SpanFold
    read: int
    sent: int
    waiting: list[tuple[int, Span]]


class Exporter:
    """A sender of one store's sessions to one collector. Runs only call `notify`.

    The thread exists, and the store is referenced, only during runs or while spans are left to send.
    """

    def __init__(
        self, store: SessionStore, settings: TelemetrySettings, folder: Path | None, mask: Redact | None = None
    ) -> None:
        self.health = Health()
        self._known_store = weakref.ref(store)
        self._store: SessionStore | None = None
        self._settings = settings
        self._mask = mask
        self._cursors = _Cursors(folder, settings.url)
        self._folds: OrderedDict[str, _ExportedSession] = OrderedDict()
        self._failures = 0
        self._grown_contexts: dict[str, Context] = {}  # the redactor reads its variables from here
        self._live: set[str] = set()  # sessions with an active run
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._lock = threading.Lock()
        self._has_healed = self._is_closing = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def notify(self, session_id: str, events: Sequence[Event]) -> None:
        """Report that these events were stored. Returns immediately, whatever the collector's state."""
        if not any(event.seq is not None for event in events):
            return
        ended = any(isinstance(event, Result) for event in events)
        with self._lock:
            if self._process != os.getpid():  # a forked process has no thread, and the parent sends what is waiting
                self._grown_contexts, self._live, self._thread = {}, set(), None
                self._folds, self._process = OrderedDict(), os.getpid()
            self._grown_contexts[session_id] = copy_context()
            (self._live.discard if ended else self._live.add)(session_id)
            self._idle.clear()
            self._store = self._store or self._known_store()
            if self._thread is None and self._store is not None and not self._is_closing:
                self._thread = threading.Thread(target=self._work, name="openagentic-otlp", daemon=True)
                self._thread.start()
        if ended:
            self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for all ended spans to be sent; return whether they were."""
        if self._thread is None:
            return True
        self._wake.set()
        return self._idle.wait(timeout_s)

    def close(self, timeout_s: float = CLOSING_S) -> None:
        """Send remaining spans for up to `timeout_s` seconds; the rest is sent from the logs later."""
        thread = self._thread
        if thread is None or self._process != os.getpid():
            return
        self._is_closing = True
        self._wake.set()
        thread.join(timeout_s)

    # --- the thread ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - a store may be third-party code, and telemetry must never end a program
            self.health.problem = ": ".join(error_words(error))
            with self._lock:
                self._thread = self._store = None
                self._idle.set()

    async def _serve(self) -> None:
        transport = _transport_for(self._settings)
        pause_s = 0.0
        try:
            while True:
                self._wait(pause_s or self._settings.delay_s, is_pause=pause_s > 0)
                if not self._has_healed:
                    self._heal()
                self._read_all()
                pause_s = await self._send_all(transport)
                if self._ends(pause_s > 0):
                    return
        finally:
            transport.close()

    def _ends(self, is_pause: bool) -> bool:
        """Whether nothing is left to do or the process exits; this thread then ends, and the next event starts a new one."""
        with self._lock:
            is_sent = not self._grown_contexts and not any(one.waiting for one in self._folds.values())
            if is_sent:
                self._idle.set()
            if not (is_sent and not self._live) and not (self._is_closing and (is_sent or is_pause)):
                return False
            self._folds.clear()
            self._thread = self._store = None
            return True

    def _wait(self, seconds: float, *, is_pause: bool) -> None:
        """Wait for more spans to batch, for a run to end, or for the back-off that a collector requested."""
        until = time.monotonic() + seconds
        while not self._is_closing:
            left_s = until - time.monotonic()
            if left_s <= 0 and (self._grown_contexts or is_pause):
                return
            # With nothing to send, no wake-up is scheduled.
            was_woken = self._wake.wait(max(left_s, 0.01) if self._grown_contexts or is_pause else seconds)
            self._wake.clear()
            if was_woken and not is_pause:
                return

    def _heal(self) -> None:
        """Resume sessions of this store that were not sent completely and that no run holds."""
        self._has_healed = True
        for session_id in self._cursors.open_sessions():
            with contextlib.suppress(SessionError, InvalidEventError, OSError):
                store = self._store
                if store is None or not store.session_exists(session_id) or store.is_held(session_id):
                    continue
                with self._lock:
                    self._grown_contexts.setdefault(session_id, copy_context())

    def _read_all(self) -> None:
        with self._lock:
            contexts, self._grown_contexts = self._grown_contexts, {}
        for session_id, context in contexts.items():
            try:
                context.run(self._read, session_id)
            except SessionNotFoundError:
                self._folds.pop(session_id, None)
                self._live.discard(session_id)
                self._cursors.drop(session_id)
            except (SessionError, InvalidEventError, OSError) as error:
                # An unavailable store is tried again when the session grows, or by the next process.
                self.health.problem = f"session {session_id} cannot be read: {error}"

    def _read(self, session_id: str) -> None:
        assert self._store is not None, "the thread holds it as long as it runs"
        one = self._folds.get(session_id)
        if one is None:
            place = trace_place(self._store, session_id)
            tags = self._store.read_summary(session_id).tags
            fold = SpanFold(session_id, place, mask=self._mask, with_content=self._settings.with_content, tags=tags)
            one = self._folds[session_id] = _ExportedSession(fold, 0, self._cursors.sent(session_id), [])
        if len(one.waiting) < _MOST_WAITING:
            for event in self._store.iter_events(session_id, after_seq=one.read):
                seq = event.seq or one.read + 1
                spans = one.fold.take(event)
                if seq > one.sent:
                    one.waiting += [(seq, span) for span in spans]
                one.read = seq
                if len(one.waiting) >= _MOST_WAITING:
                    break
        if len(one.waiting) >= _MOST_WAITING:  # the rest is read once these are sent
            with self._lock:
                self._grown_contexts.setdefault(session_id, copy_context())
        self._cursors.keep(session_id, one.sent, one.read)

    async def _send_all(self, transport: HttpTransport) -> float:
        """Send waiting spans; return the seconds until the next attempt, 0 if all were sent."""
        for session_id, one in list(self._folds.items()):
            while one.waiting:
                # The longest prefix that fits the span and byte limits of one request.
                size, count = 0, 0
                for _, span in one.waiting[: self._settings.max_spans]:
                    size += len(json.dumps(span))
                    if count and size > _MAX_BODY_BYTES:
                        break
                    count += 1
                batch = list(one.waiting[:count])
                wait_s = await self._send(transport, [span for _, span in batch])
                if wait_s is not None:
                    self._failures += 1
                    return wait_s or _PAUSES.wait_s(self._failures)
                self._failures = 0
                del one.waiting[: len(batch)]
                # Spans that ended with the same event may be in different requests.
                one.sent = one.waiting[0][0] - 1 if one.waiting else one.read
                self._cursors.keep(session_id, one.sent, one.read)
            one.sent = one.read
            self._cursors.keep(session_id, one.sent, one.read, is_done=session_id not in self._live)
        return 0.0

    async def _send(self, transport: HttpTransport, spans: Sequence[Span]) -> float | None:
        """Send one request; return None if these spans are done, else the back-off that the collector requested, in seconds.

        0.0 means that the spans must be sent again, and that it requested no back-off.
        """
        settings, health = self._settings, self.health
        health.requests += 1
        try:
            answer, body = await _post(transport, settings, spans)
        except (ProviderError, OptionsError) as error:
            if isinstance(error, ProviderError) and error.retryable:
                health.problem = str(error)
                return 0.0
            health.drop(len(spans), str(error))
            return None
        if answer.status in _RETRIED:
            health.problem = f"the collector responded with {answer.status}"
            asked_s = retry_after_s(answer.headers, time.time())
            return 0.0 if asked_s is None else min(max(asked_s, 0.001), _LONGEST_RETRY_AFTER_S)
        if not 200 <= answer.status < 300:
            health.drop(len(spans), _refusal(settings, answer, body))
            return None
        rejected, message = _partial(body, _is_protobuf(answer))
        if rejected:
            health.complain(
                f"{settings.url} rejects {plural(rejected, 'span')} of {len(spans)}: {message or 'no reason given'}"
            )
        health.rejected += min(rejected, len(spans))
        health.sent += max(len(spans) - rejected, 0)
        health.problem = message
        return None


def _transport_for(settings: TelemetrySettings) -> HttpTransport:
    """The connections to a collector. Raises `OptionsError` for certificates that cannot be used."""
    limit_s = settings.timeout_s
    timeouts = Timeouts(connect_s=limit_s, first_byte_s=limit_s, idle_s=limit_s, total_s=limit_s)
    return HttpTransport(timeouts=timeouts, ssl_context=tls_context(settings))


def tls_context(settings: TelemetrySettings) -> ssl.SSLContext | None:
    """The certificates to trust and to present; None for the system's alone.

    Raises `OptionsError` if they cannot be used.
    """
    if settings.certificate is None and settings.client_certificate is None:
        return None
    files = (settings.certificate, settings.client_certificate, settings.client_key)
    try:
        context = ssl.create_default_context(cafile=settings.certificate)
        if settings.client_certificate is not None:
            context.load_cert_chain(settings.client_certificate, settings.client_key, lambda: "")
    except (OSError, ValueError) as error:  # a missing file, a file without a certificate, or a key with a password
        where = ", ".join(repr(name) for name in files if name)
        raise OptionsError(
            f"the certificates for traces, set by $OTEL_EXPORTER_OTLP_CERTIFICATE, ..._CLIENT_CERTIFICATE and "
            f"..._CLIENT_KEY ({where}), cannot be used: {reason_of(error)}"
        ) from None
    return context


async def _post(
    transport: HttpTransport, settings: TelemetrySettings, spans: Sequence[Span]
) -> tuple[HttpAnswer, bytes]:
    """Send spans in one request; return the head and the body of the response."""
    request = trace_request(spans, dict(settings.resource))
    body = json.dumps(request).encode() if settings.as_json else encode(request)
    headers = {"Content-Type": "application/json" if settings.as_json else _PROTOBUF, **dict(settings.headers)}
    if settings.gzip:
        body, headers["Content-Encoding"] = gzip.compress(body, 5), "gzip"
    answer = await transport.request(settings.url, headers, body)
    try:
        return answer, await answer.read_all(_MAX_ANSWER_BYTES)
    finally:
        await answer.aclose()


async def try_collector(settings: TelemetrySettings) -> str | None:
    """Send an empty request to a collector; return the reason why it rejects traces, None if it accepts them.

    Raises `OptionsError` for certificates that cannot be used.
    """
    transport = _transport_for(settings)
    try:
        answer, body = await _post(transport, settings, ())
        return None if 200 <= answer.status < 300 else _refusal(settings, answer, body)
    except (ProviderError, OptionsError) as error:
        return str(error)
    finally:
        transport.close()


def _refusal(settings: TelemetrySettings, answer: HttpAnswer, body: bytes) -> str:
    """A rejection as a sentence: the request, the response, and the setting to change."""
    form, other = ("JSON", "http/protobuf") if settings.as_json else ("protobuf", "http/json")
    words = _status_words(body) if _is_protobuf(answer) else body.decode("utf-8", "replace")
    about = f": {on_one_line(' '.join(words.split()), 200)}" if words.strip() else ""
    todo = {
        401: "; set OTEL_EXPORTER_OTLP_HEADERS",
        403: "; set OTEL_EXPORTER_OTLP_HEADERS",
        404: "; check the path",
        415: f"; set OTEL_EXPORTER_OTLP_PROTOCOL={other}",
    }.get(answer.status, "")
    return f"{settings.url} refuses spans as {form} with {answer.status}{about}{todo}"


def _is_protobuf(answer: HttpAnswer) -> bool:
    return answer.headers.get("content-type", "").startswith(_PROTOBUF)


def _status_words(body: bytes) -> str:
    """The message of a `google.rpc.Status`, its field 2; empty if it has none or cannot be parsed."""
    with contextlib.suppress(ValueError):
        return next((v.decode("utf-8", "replace") for n, v in fields_of(body) if n == 2 and isinstance(v, bytes)), "")
    return ""


def _partial(body: bytes, is_protobuf: bool = False) -> tuple[int, str]:
    """The number of spans rejected in a successful response, and the collector's message; 0 and "" if it has none."""
    if is_protobuf:  # `partial_success` is field 1, and has `rejected_spans` and `error_message`
        with contextlib.suppress(ValueError):
            inner = next((value for number, value in fields_of(body) if number == 1 and isinstance(value, bytes)), b"")
            rejected = next((value for number, value in fields_of(inner) if number == 1 and isinstance(value, int)), 0)
            return rejected, _status_words(inner)
        return 0, ""
    try:
        data = json.loads(body) if body.strip() else {}
        partial = data.get("partialSuccess") or {}
        return max(int(partial.get("rejectedSpans") or 0), 0), str(partial.get("errorMessage") or "")
    # Any successful response means that the spans were accepted.
    except (ValueError, TypeError, AttributeError, RecursionError):
        return 0, ""


def trace_place(store: SessionStore, session_id: str) -> TracePlace | None:
    """The place of a subagent's spans: the root session's trace, below the call that started it. None for a root session."""
    parent: tuple[str, str] | None = None
    seen = [session_id]
    while len(seen) <= _MAX_DEPTH:
        try:
            metadata: Mapping[str, Any] = store.read_metadata(seen[-1])["metadata"]
        except (SessionError, InvalidEventError):
            break
        above, call = metadata.get("parent_session_id"), metadata.get("parent_tool_use_id")
        if not isinstance(above, str) or not isinstance(call, str) or above in seen:
            break
        parent = parent or (above, call)
        seen.append(above)
    return None if parent is None else TracePlace(own_trace(seen[-1]).trace_id, call_span_id(*parent))


class _Cursors:
    """A record of how far each session was sent, in a small file per session; without a folder, only in memory."""

    def __init__(self, folder: Path | None, url: str) -> None:
        self._folder = None if folder is None else folder / sha256(url.encode()).hexdigest()[:16]
        self._stored_cursors: dict[str, tuple[int, int, bool]] = {}

    def sent(self, session_id: str) -> int:
        """The event up to which the session was sent, 0 for a session not sent yet."""
        if session_id in self._stored_cursors:
            return self._stored_cursors[session_id][0]
        data = self._load(self._path(session_id))
        return data["sent"] if data is not None and data["session"] == session_id else 0

    def keep(self, session_id: str, sent_seq: int, read_seq: int, *, is_done: bool = False) -> None:
        """Store how far a session was sent and read. If writing fails, the position is kept in memory only."""
        if self._stored_cursors.get(session_id) == (sent_seq, read_seq, is_done):
            return
        self._stored_cursors[session_id] = sent_seq, read_seq, is_done
        path = self._path(session_id)
        if path is None:
            return
        data = json.dumps(
            {"session": session_id, "sent": sent_seq, "open": not is_done or sent_seq < read_seq}
        ).encode()
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(SystemDisk(), path, data, sync=False)
        if is_done and sent_seq >= read_seq and len(self._stored_cursors) > _MOST_CURSORS:
            # Only a cache: the files have the positions, and are read again when needed.
            self._stored_cursors.clear()

    def drop(self, session_id: str) -> None:
        self._stored_cursors.pop(session_id, None)
        path = self._path(session_id)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def open_sessions(self) -> list[str]:
        """List the sessions that were not sent completely, newest first; delete cursor files older than a month."""
        cursors: list[tuple[float, str]] = []
        try:
            entries = list(os.scandir(self._folder)) if self._folder is not None and self._folder.is_dir() else []
        except OSError:
            return []
        for entry in entries:
            with contextlib.suppress(OSError):
                mtime = entry.stat(follow_symlinks=False).st_mtime
                if mtime < time.time() - _OLDEST_CURSOR_S:
                    os.unlink(entry.path)
                    continue
                data = self._load(Path(entry.path))
                if data is not None and data.get("open"):
                    cursors.append((mtime, data["session"]))
        return [session_id for _, session_id in sorted(cursors, reverse=True)[:_MOST_CURSORS]]

    def _path(self, session_id: str) -> Path | None:
        name = sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
        return None if self._folder is None else self._folder / f"{name}.json"

    def _load(self, path: Path | None) -> dict[str, Any] | None:
        try:
            data = json.loads(path.read_bytes()) if path is not None else None
        except (OSError, ValueError):
            return None
        is_ours = isinstance(data, dict) and isinstance(data.get("session"), str) and isinstance(data.get("sent"), int)
        return data if is_ours else None


_EXPORTERS: WeakKeyDictionary[SessionStore, dict[TelemetrySettings, Exporter]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def exporter_for(
    store: SessionStore, settings: TelemetrySettings, folder: Path | None, mask: Redact | None
) -> Exporter:
    """The exporter that all runs of this process share for this store and these settings.

    Raises `OptionsError` for certificates that cannot be used.
    """
    with _LOCK:
        exporters = _EXPORTERS.setdefault(store, {})
        if settings not in exporters:
            tls_context(settings)  # a mistake in it is reported by the run that begins
            exporters[settings] = Exporter(store, settings, folder, mask)
        return exporters[settings]


def exporters_of(store: SessionStore) -> list[Exporter]:
    """The exporters of this process that send a store's sessions."""
    with _LOCK:
        return list(_EXPORTERS.get(store, {}).values())


def close_all(timeout_s: float = CLOSING_S) -> None:
    """Send the remaining spans of all sessions of this process, for up to `timeout_s` seconds in all; called at exit."""
    with _LOCK:
        open_ones = [exporter for exporters in _EXPORTERS.values() for exporter in exporters.values()]
    until = time.monotonic() + timeout_s
    for exporter in open_ones:
        exporter.close(max(until - time.monotonic(), 0.0))
        if (complaint := exporter.health.take_complaint()) is not None:
            logging.getLogger("openagentic_sdk").warning(complaint)  # no run is left to show the notice


atexit.register(close_all)
