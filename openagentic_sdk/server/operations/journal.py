"""The server's log and metrics: one line for each request, finished run and drain, and the values of `/metrics`.

A line contains the request's id, which is also the response's `X-Request-Id`, and the trace id from the client's
`traceparent`. It never contains anything that could sign anyone in: no query, no ticket, and no other header.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from ...ground.frozen import mutable
from ...ground.patterns import regex
from ...ground.text import on_one_line
from ...parts.record.telemetry.exposition import Families, to_exposition
from ...serialization import dumps_json
from ...sessions.folds.trace import read_traceparent
from ..connection import AsgiScope

Form = Literal["text", "json"]
BUCKETS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
_ID = regex(rb"[A-Za-z0-9._-]{1,100}")
# Values that need no quotes in a line.
_BARE = regex(r"[A-Za-z0-9._~/:@+-]{1,300}")
# The client's position in a trace, from which a run is started: the option `traceparent`.
TRACEPARENT: ContextVar[str | None] = ContextVar("traceparent", default=None)


@mutable
class ServedRequest:
    """A request in progress. `trace` is its trace id, and `began` the reading of the monotonic clock when it arrived.

    `status` is 0 until the response starts, and remains 0 if the client disconnects first.
    """

    id: str
    method: str
    path: str
    trace: str | None
    began: float
    route: str = ""
    status: int = 0
    who: str | None = None
    tenant: str | None = None


class Journal:
    """The log of a server. `write` is called with each line, without its line end; if `write` is None, only metrics are
    collected.
    """

    def __init__(self, write: Callable[[str], object] | None = None, form: Form = "text") -> None:
        self._write = write
        self._form = form
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._took_s = 0.0
        self._open: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._webhooks: Counter[str] = Counter()

    # --- requests ------------------------------------------------------------------------------------------------------

    def begin(self, scope: AsgiScope) -> ServedRequest:
        """Register a request that has arrived, and set `TRACEPARENT` for it; call `end` after its response."""
        request_id, trace, is_known = b"", None, False
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                request_id = value if not request_id and _ID.fullmatch(value) else b""
            elif name == b"traceparent" and not is_known:
                trace, is_known = value.decode("latin-1"), True
        parent = None if trace is None else read_traceparent(trace)
        TRACEPARENT.set(None if parent is None else trace)
        kind = scope["type"]
        self._open[kind] += 1
        path = scope["path"]
        shown_path = "/signin/..." if "/signin/" in path else path
        name = request_id.decode() or os.urandom(8).hex()
        return ServedRequest(name, scope.get("method", "WS"), shown_path, parent and parent[0], time.monotonic())

    def end(self, request: ServedRequest, kind: str = "http") -> None:
        """Record the end of the response."""
        took_s = time.monotonic() - request.began
        self._open[kind] -= 1
        self._requests[request.route, request.method, request.status] += 1
        self._took_s += took_s
        self._within[next((most for most in BUCKETS_S if took_s <= most), float("inf"))] += 1
        if self._write is not None:
            facts = {
                "method": request.method,
                "path": request.path,
                "status": request.status,
                "ms": round(took_s * 1000, 1),
            }
            self._tell(
                "request",
                facts | {"id": request.id, "trace": request.trace, "who": request.who, "tenant": request.tenant},
            )

    # --- runs and the process --------------------------------------------------------------------------------------------

    def run_ended(self, session_id: str, stop_reason: str, error: str | None = None) -> None:
        """Record that a run of this process has stopped or could not be resumed."""
        self._runs[stop_reason] += 1
        if self._write is not None:
            self._tell("run", {"session": session_id, "stop_reason": stop_reason, "error": error})

    def webhook(self, outcome: str, **facts: Any) -> None:
        """Record the outcome of a webhook: `delivered`, `failed` (it will be retried), `given up` or `put off`."""
        self._webhooks[outcome] += 1
        if self._write is not None:
            self._tell("webhook", {"outcome": outcome, **facts})

    def note(self, what: str, **facts: Any) -> None:
        """Log a fact about the process, such as its drain."""
        if self._write is not None:
            self._tell(what, facts)

    def _tell(self, event: str, facts: dict[str, Any]) -> None:
        assert self._write is not None
        values = {name: value for name, value in facts.items() if value not in (None, "")}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self._form == "json":
            self._write(dumps_json({"time": now, "event": event, **values}))
        else:
            text = " ".join(f"{name}={_plain(value)}" for name, value in values.items())
            self._write(f"{now} {event} {text}")

    # --- metrics ------------------------------------------------------------------------------------------------------

    def to_text(self, *, running: int, is_draining: bool) -> str:
        """The metrics in Prometheus text exposition format 0.0.4."""
        families: Families = {
            (
                "openagentic_server_requests_total",
                "counter",
                "Answered requests; status 0 if the client disconnected.",
            ): {
                (("route", route), ("method", method), ("status", str(status))): count
                for (route, method, status), count in self._requests.items()
            },
            ("openagentic_server_open", "gauge", "Requests in progress, including streams."): {
                (("kind", kind),): count for kind, count in self._open.items()
            },
            ("openagentic_server_runs", "gauge", "Runs in progress in this process."): {(): running},
            ("openagentic_server_runs_ended_total", "counter", "Ended runs, by reason."): {
                (("stop_reason", reason),): count for reason, count in self._runs.items()
            },
            ("openagentic_server_webhooks_total", "counter", "Messages to other services."): {
                (("outcome", outcome),): count for outcome, count in self._webhooks.items()
            },
            ("openagentic_server_draining", "gauge", "1 once the process accepts no more runs."): {
                (): float(is_draining)
            },
        }
        return to_exposition(families) + "\n".join(self._histogram()) + "\n"

    def _histogram(self) -> Iterable[str]:
        name, so_far = "openagentic_server_request_seconds", 0
        yield f"# HELP {name} Seconds from a request to the end of its answer."
        yield f"# TYPE {name} histogram"
        for most in (*BUCKETS_S, float("inf")):
            so_far += self._within[most]
            yield f'{name}_bucket{{le="{"+Inf" if most > 1e9 else f"{most:g}"}"}} {so_far}'
        yield f"{name}_sum {self._took_s:.10g}"
        yield f"{name}_count {so_far}"


def _plain(value: Any) -> str:
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    text = on_one_line(text, 300)
    return dumps_json(text) if " " in text or '"' in text or "=" in text else text
