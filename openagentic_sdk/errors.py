"""All errors of this library, as one tree.

    OpenAgentSdkError
    |- OptionsError (ValueError)             an invalid setting
    |  |- AnswerRefusedError                 an invalid answer to a question: nothing was stored
    |  |- ApiKeyError                        a missing API key
    |  |- FleetStoreError                    a store without a shared database cannot hold a fleet
    |  |- RoomMissingError (ImportError)     a room of this package that is not installed
    |  |- SuiteError                         an invalid eval suite: which field, and on which line
    |- BudgetError                           a limit is used up; a run ends with stop_reason `budget` instead
    |- AgentNotFoundError (LookupError)      no agent of this name can be started here
    |- FoldNotFoundError (LookupError)       a session's view lacks the requested fold
    |- EventLoopError (RuntimeError)         an async call without an event loop, or a blocking one inside it
    |- EventError
    |  |- UnknownEventTypeError              a type unknown to this version, met by a strict reader
    |  |- InvalidEventError (ValueError)     not JSON, or a field is missing or of the wrong type
    |- SessionError
    |  |- SessionNotFoundError (LookupError)
    |  |- SessionExistsError
    |  |- SessionLockedError                 another run holds the session
    |  |- QuestionOpenError                  it waits for a person, and the prompt's sender may not answer
    |  |- SessionHeldError                   it is on hold, or retained for longer
    |  |- ConcurrencyError                   the log's last event is not the one expected
    |  |  |- LeaseLostError                  another run took the session over while this one hung
    |  |- StorageError                       the disk or server behind a store failed
    |  |  |- StorageTimeoutError             it did not answer in time
    |  |- RequestConflictError               a request id was used for another prompt or session
    |  |- FilesChangedError                  files differ from what the session left: none was restored
    |  |- LogCorruptError                    a record is damaged in a way that no crash explains
    |- ProviderError                         the model endpoint failed
    |  |- ProviderHTTPError                  an error response, with its status
    |  |  |- ContextLengthError              the prompt exceeds the model's context window
    |  |- ProviderConnectionError            no answer: refused, unreachable, broken off
    |  |- ProviderTimeoutError               no answer in time
    |  |- ProviderResponseError              not a valid model response
    |  |  |- GarbledResponseError            its pieces are inconsistent: retried once
    |  |- IncompleteResponseError            the answer broke off
    |  |- CircuitOpenError                   not sent: this endpoint has failed too often recently
    |- ToolError                             a tool failed; the model reads the message
    |  |- ToolNotFoundError
    |  |- ToolInputError (ValueError)        arguments that do not fit the tool's schema
    |  |- AddressRefusedError (ValueError)   a URL that leads to a forbidden address
    |  |- UnknownOutcomeError                a call that may or may not have taken effect
    |  |- ModelRetryError                    a tool or an output validator requests that the model try again
    |  |- McpError                           an MCP server is unreachable or violates the protocol
    |  |  |- McpAuthError                    it requires a login, or the login failed
    |- SkillNotFoundError (FileNotFoundError)
    |- FileRefusedError (OSError)            a project file that was not read: outside, too large, not text
    |- PermissionRuleError (ValueError)      an invalid permission rule
    |- MissingServiceError (LookupError)     a tool or part requested a service that no part offers
    |- PartError                             a caller's own part failed, or returned an invalid value
    |- StructuredOutputError                 the final answer does not fit `output_schema`
    |- RunFailedError                        a run without a complete answer; only with `raise_on_error` and from an `Agent`
    |  |- GuardrailTrippedError              a guardrail stopped it
    |- RequestRefusedError                   a server refused a client's request
    |- FleetError                            a run of a fleet is not in the requested state
    |  |- RunNotFoundError (LookupError)     the fleet has no run with this number
    |  |- RunLostError                       the lease expired: another worker takes over
    |- WorkflowError                         a workflow cannot continue
    |  |- WorkflowChangedError               its body makes a different step from the one in its log
    |  |- StepFailedError                    a step ended with an error
    |  |  |- StepUnknownError                it was started, and may or may not have taken effect
    |- ReplayMismatchError                   a replayed session differs from its recording
    |- RpcError                              an error on a JSON-RPC connection, received or sent
    |- ScriptError                           a scripted model received a request that its script does not cover
    |  |- ScriptMismatchError (AssertionError)  a request differs from the script's `expect`

Most classes carry the values in their message as attributes. A tool may raise anything: the loop turns it into a
`tool.result` for the model. A provider may raise anything: the run ends with a `result` whose `stop_reason` is `error`.
"""

from __future__ import annotations

import copyreg
import time
from collections.abc import Sequence
from typing import Any


class OpenAgentSdkError(Exception):
    """The root: `except OpenAgentSdkError` catches everything that this library raises deliberately."""

    def __reduce__(self) -> tuple[Any, ...]:
        # `BaseException` would call the constructor with `args`, which is the message here; one error that cannot be
        # unpickled breaks a whole pool of processes.
        return copyreg.__newobj__, (type(self),), {**self.__dict__, "args": self.args}  # type: ignore[attr-defined]


class OptionsError(OpenAgentSdkError, ValueError):
    """An invalid setting; the message gives its name, its value and the accepted values."""


class BudgetError(OpenAgentSdkError):
    """A limit is used up; the message names the limit, and when or how work can continue."""


class AgentNotFoundError(OpenAgentSdkError, LookupError):
    """The registry has no agent of this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"unknown agent {name!r:.100}" + (f": the agents are {', '.join(known)}" if known else ""))
        self.name, self.known = name, known


class AnswerRefusedError(OptionsError):
    """An invalid answer to the question `question_id`; `choices` are the valid ones."""

    def __init__(self, question_id: str, answer: str | bool, choices: tuple[str, ...]) -> None:
        valid = ", ".join(f"{choice:.200}" for choice in choices)
        super().__init__(
            f"{answer!r:.200} is not a valid answer to question {question_id!r:.200}: "
            + (f"choose one of {valid}" if valid else "answer in your own words")
        )
        self.question_id, self.answer, self.choices = question_id, answer, choices


class ApiKeyError(OptionsError):
    """A missing API key; the message names the place where it is expected."""


class FleetStoreError(OptionsError):
    """A store without a shared database, which cannot hold a fleet."""

    def __init__(self, store: str) -> None:
        super().__init__(
            f"{store} cannot store a fleet: use Postgres (postgresql://...), or SQLite on one host (sqlite:///path)"
        )
        self.store = store


class RoomMissingError(OptionsError, ImportError):
    """A room of this package that is not installed; `purpose` is the feature that needs it."""

    def __init__(self, room: str, purpose: str) -> None:
        super().__init__(
            f"the {room} room is not installed, which {purpose} need: install openagentic_sdk with its folder "
            f"{room.replace('.', '/')}"
        )
        self.room, self.purpose = room, purpose


class SuiteError(OptionsError):
    """An invalid suite of evals: `field` is the wrong field, on `line` of `source`, if known."""

    def __init__(self, message: str, *, field: str = "", source: str = "", line: int | None = None) -> None:
        where = f"{source}:{line}" if source and line else source
        super().__init__(": ".join(part for part in (where, field, message) if part))
        self.message, self.field, self.source, self.line = message, field, source, line


class FoldNotFoundError(OpenAgentSdkError, LookupError):
    """A session's view lacks this fold."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"this view has no fold {name!r}, only {', '.join(known) or 'the state of the kernel'}: "
            "name the fold when creating the view (SessionView, load_view, AgentRuntime.folds)"
        )
        self.name, self.known = name, known


class EventLoopError(OpenAgentSdkError, RuntimeError):
    """An async call without a running asyncio event loop (under trio, for example), or a blocking call inside one."""


class EventError(OpenAgentSdkError):
    """Data that is not a valid event."""


class UnknownEventTypeError(EventError):
    """An event type unknown to this version, met by a strict reader."""

    def __init__(self, event_type: str) -> None:
        super().__init__(f"unknown event type {event_type!r}: read with strict=False to keep it unchanged")
        self.event_type = event_type


class InvalidEventError(EventError, ValueError):
    """Data that is not an event: not a JSON object, or with a field that is missing or of the wrong type."""


class SessionError(OpenAgentSdkError):
    """A session cannot be used as requested."""

    def __init__(self, message: str, *, session_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id


class SessionNotFoundError(SessionError, LookupError):
    """The store has no session with this id."""

    def __init__(
        self,
        session_id: str,
        where: str = "this store",
        advice: str = "`openagentic-sdk sessions list` lists the sessions",
    ) -> None:
        super().__init__(f"no session {session_id!r:.220} in {where}: {advice}", session_id=session_id)


class SessionExistsError(SessionError):
    """A session with this id already exists."""

    def __init__(self, session_id: str, why: str = "already exists: resume it or choose another id") -> None:
        super().__init__(f"session {session_id!r} {why}", session_id=session_id)


class SessionLockedError(SessionError):
    """Another run holds the session; nothing was changed.

    `retry_after_s` is the time after which a dead holder's lock expires; None if the system releases it immediately.
    """

    def __init__(self, session_id: str, holder: str = "another run", retry_after_s: float | None = None) -> None:
        until = "" if retry_after_s is None else f" (if that has died, for another {retry_after_s:.1f} s)"
        super().__init__(
            f"session {session_id!r} is in use by {holder}{until}: wait until it ends, open it read-only, or fork it",
            session_id=session_id,
        )
        self.holder, self.retry_after_s = holder, retry_after_s


class QuestionOpenError(SessionError):
    """The session awaits answers to `question_ids`, and the prompt's sender may not answer; nothing was changed."""

    def __init__(self, session_id: str, question_ids: Sequence[str]) -> None:
        super().__init__(
            f"session {session_id!r} awaits an answer to question{'s' * (len(question_ids) > 1)} {', '.join(question_ids)}, "
            "which a prompt would close: answer first, or send the prompt as somebody who may answer questions",
            session_id=session_id,
        )
        self.question_ids = tuple(question_ids)


class SessionHeldError(SessionError):
    """A session on hold, or retained until `until` (epoch seconds; None on hold): it must not be deleted or erased from."""

    def __init__(self, session_id: str, doing: str, until: float | None) -> None:
        why = "is held" if until is None else f"is to be kept until {time.strftime('%Y-%m-%d', time.gmtime(until))}"
        todo = f"sessions {'hold' if until is None else 'retain'} {session_id} --release"
        super().__init__(f"session {session_id!r} {why} and is not {doing}: `openagentic-sdk {todo}` ends that")
        self.session_id, self.until = session_id, until


class ConcurrencyError(SessionError):
    """The log's last event is not the one that the writer expected; nothing was written."""

    def __init__(self, session_id: str, expected_seq: int, actual_seq: int) -> None:
        super().__init__(
            f"session {session_id!r} is at seq {actual_seq}, not {expected_seq}: read it again before appending",
            session_id=session_id,
        )
        self.expected_seq, self.actual_seq = expected_seq, actual_seq


class RequestConflictError(SessionError):
    """The request id was used before, for another prompt or in another session; nothing ran and nothing was changed."""

    def __init__(self, request_id: str, session_id: str, difference: str) -> None:
        super().__init__(
            f"request id {request_id!r:.220} was used {difference} before (session {session_id!r}): repeat the same "
            "request for its answer, or use a new id",
            session_id=session_id,
        )
        self.request_id = request_id


class FilesChangedError(SessionError):
    """Files cannot be restored; none was touched. `files` maps each path to the reason."""

    def __init__(self, session_id: str, files: dict[str, str]) -> None:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in sorted(files.items())[:10])
        more = f" and {len(files) - 10} more" if len(files) > 10 else ""
        super().__init__(
            f"{len(files)} file{'s' * (len(files) != 1)} cannot be put back ({reasons}{more}): nothing was changed; pass "
            "conflicts='skip' to leave them as they are, or conflicts='overwrite' for those that something else changed",
            session_id=session_id,
        )
        self.files = dict(files)


class LeaseLostError(ConcurrencyError):
    """Another run took the session over; this writer's append was not written."""

    def __init__(self, session_id: str, expected_seq: int, actual_seq: int) -> None:
        super().__init__(session_id, expected_seq, actual_seq)
        self.args = (
            f"session {session_id!r} was taken over by another run (this run was at seq {expected_seq}, the log is at "
            f"{actual_seq}), so nothing was written: resume the session to continue, or fork it",
        )


class StorageError(SessionError):
    """The disk or server behind a store failed; everything acknowledged before is safe.

    `retryable` means that the same writer may be used again once the cause (a full disk) is gone; otherwise open a new one.
    """

    def __init__(self, message: str, *, session_id: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, session_id=session_id)
        self.retryable = retryable


class StorageTimeoutError(StorageError):
    """A store did not answer in time; whether its last operation took effect is unknown."""


class LogCorruptError(SessionError):
    """A stored record is damaged in a way that no crash explains.

    `seq` is the first record that cannot be trusted, `offset` its byte offset in the log, `kind` the kind of damage
    (`checksum`, `sequence`, `json`, `hole`, `durable-loss`). If the records show what was done to them, `change` is
    `edited`, `deleted`, `doubled`, `moved`, `interleaved` or `line ends`, and `detail` describes it with the numbers.
    """

    def __init__(
        self,
        session_id: str | None,
        seq: int,
        offset: int,
        kind: str,
        change: str | None = None,
        detail: str | None = None,
    ) -> None:
        name = f"session {session_id!r}" if session_id else "the log"
        super().__init__(
            f"{name} is damaged at seq {seq}, byte {offset} ({kind}){f', {detail}' if detail else ''}: "
            f"`openagentic-sdk sessions salvage {session_id or 'ID'}` copies the intact part into a new session",
            session_id=session_id,
        )
        self.seq, self.offset, self.kind, self.change, self.detail = seq, offset, kind, change, detail


class ProviderError(OpenAgentSdkError):
    """The model endpoint failed. `retryable` is true if the same request may succeed later."""

    retryable = False


class ProviderHTTPError(ProviderError):
    """The endpoint answered with an error.

    `status` is the HTTP status (200 for an error inside an accepted response), `code` the vendor's code if it sent one,
    `headers` has lower-case names, `body` the start of the response text. The retry table determines `retryable`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        body: str = "",
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers, self.body, self.retryable = status, code, headers or {}, body, retryable


class ContextLengthError(ProviderHTTPError):
    """The prompt exceeds the model's context window: the same request never succeeds, a compacted one may."""


class ProviderConnectionError(ProviderError):
    """No answer: the endpoint is unreachable, or the connection broke before an answer began.

    `was_sent` is False if the request never left, so nobody can have acted on it.
    """

    def __init__(self, message: str, *, retryable: bool = True, was_sent: bool = True) -> None:
        super().__init__(message)
        self.retryable, self.was_sent = retryable, was_sent


class ProviderTimeoutError(ProviderError):
    """No whole answer in time. `phase` is `connect`, `first_byte`, `idle` or `total`; only `total` is not retried."""

    def __init__(self, message: str, *, phase: str) -> None:
        super().__init__(message)
        self.phase, self.retryable = phase, phase != "total"


class ProviderResponseError(ProviderError):
    """An answer that is not a valid model response."""


class GarbledResponseError(ProviderResponseError):
    """An answer whose pieces are inconsistent: invalid JSON, two answers in one stream, a fragment of an unknown call.

    Failing proxies and workers send such answers occasionally, so the request is retried once.
    """

    retryable = True


class IncompleteResponseError(ProviderError):
    """The answer broke off without a finish reason or an end marker. `partial_text` is the part that arrived."""

    retryable = True

    def __init__(self, message: str, *, partial_text: str = "") -> None:
        super().__init__(message)
        self.partial_text = partial_text


class CircuitOpenError(ProviderError):
    """Not sent: the endpoint has failed too often recently; `retry_after_s` is the time until the next try."""

    def __init__(self, endpoint: str, retry_after_s: float) -> None:
        super().__init__(
            f"{endpoint} failed too often and is paused for another {retry_after_s:.0f} s: wait, or name a fallback model"
        )
        self.endpoint, self.retry_after_s = endpoint, retry_after_s


class ToolError(OpenAgentSdkError):
    """A tool failed; the message is for the model, and should name an alternative."""


class ToolNotFoundError(ToolError):
    """The model asked for a tool that does not exist."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no tool {name!r:.200}" + (f": the tools are {', '.join(known)}" if known else ""))
        self.name, self.known = name, known


def tool_missing(session_id: str, tool_name: str) -> str:
    """Explain why this process may neither answer nor run a call that a person was asked about."""
    return (
        f"this process lacks the tool {tool_name!r:.200}, and a person was asked about its call in session {session_id!r}: "
        "answer and resume it in the program that supplies the tool, or with `openagentic-sdk serve --agents MODULE:NAME`"
    )


class ToolInputError(ToolError, ValueError):
    """Arguments that do not fit the tool's schema; `path` locates the first invalid one (`edits[0].old`)."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class AddressRefusedError(ToolError, ValueError):
    """A URL that leads, or may lead, to a forbidden address; nothing was sent. `reason` explains the refusal."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url!r} is not fetched: {reason}")
        self.url, self.reason = url, reason


class ModelRetryError(ToolError):
    """The model must try again as described by the message; raised by a tool, or by a validator of an agent's output."""


class UnknownOutcomeError(ToolError):
    """A call that may or may not have taken effect: its result is `unknown`, and it is not repeated automatically."""


class McpError(ToolError):
    """An MCP server is unreachable or violates the protocol; `server` is its name.

    `code` is the server's error number, None for an error detected on this side, `data` the value sent with it. `stderr` is
    the last output of the server's process to standard error, up to 64 KiB. `in_flight` is true if the request had been
    sent, so that the server may have acted on it.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        code: int | None = None,
        data: Any = None,
        stderr: str = "",
        in_flight: bool = False,
    ) -> None:
        super().__init__(message)
        self.server = server
        self.code: int | str | None = code
        self.data, self.stderr, self.in_flight = data, stderr, in_flight


class McpAuthError(McpError):
    """A server requires a login, or the login failed; `code` is the authorization server's error code."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class SkillNotFoundError(OpenAgentSdkError, FileNotFoundError):
    """No skill has this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"unknown skill {name!r}" + (f": the skills are {', '.join(known)}" if known else ""))
        self.name, self.known = name, known

    def __str__(self) -> str:
        # Otherwise OSError formats its arguments as an errno.
        return str(self.args[0])


class FileRefusedError(OpenAgentSdkError, OSError):
    """A file of a project or skill that was not read: it is outside the folder, too large, or not a regular text file."""


class PermissionRuleError(OpenAgentSdkError, ValueError):
    """An invalid permission rule; `rule` is its text, `source` its location."""

    def __init__(self, rule: str, reason: str, source: str = "options") -> None:
        super().__init__(f"permission rule {rule!r} ({source}) cannot be used: {reason}")
        self.rule, self.reason, self.source = rule, reason, source


class MissingServiceError(OpenAgentSdkError, LookupError):
    """A tool or part requested a `service` that no part of this run offers."""

    def __init__(self, service: str) -> None:
        super().__init__(f"no part of this run offers {service}: add a part that does, or remove what requires it")
        self.service = service


class PartError(OpenAgentSdkError):
    """The caller's own part `part` failed in `seam`, or returned an invalid value there; `problem` gives the details."""

    def __init__(self, part: str, seam: str, problem: str) -> None:
        super().__init__(
            f"part {part!r} failed in {seam} ({problem}): fix it, or remove it from OpenAgenticOptions.parts; the "
            "session can be resumed either way"
        )
        self.part, self.seam, self.problem = part, seam, problem


class StructuredOutputError(OpenAgentSdkError):
    """The model's final answer did not fit `output_schema` in any of its attempts."""


class RunFailedError(OpenAgentSdkError):
    """A run ended without a complete answer; `result` is its `RunResult`."""

    def __init__(self, result: Any) -> None:
        kind = f"{result.error_type}: " if result.error_type and result.error_type not in globals() else ""
        why = f": {kind}{result.error_message}" if result.error_message else ""
        super().__init__(f"the run in session {result.session_id} ended with stop reason {result.stop_reason!r}{why}")
        self.result = result


class GuardrailTrippedError(RunFailedError):
    """A guardrail stopped a run: `kind` is `input` or `output`, `guardrail` its name, `reason` what it returned."""

    def __init__(self, result: Any, kind: str, guardrail: str, reason: str) -> None:
        super().__init__(result)
        self.kind, self.guardrail, self.reason = kind, guardrail, reason


class RequestRefusedError(OpenAgentSdkError):
    """A server refused a request: `status` is the HTTP status, `code` is for programs, `retry_after_s` the time to wait."""

    def __init__(self, status: int, message: str, code: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after_s = status, code, retry_after_s


class FleetError(OpenAgentSdkError):
    """A run of a fleet is not in the requested state; the message gives its actual state, `run_id` is its number."""

    def __init__(self, message: str, *, run_id: int | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFoundError(FleetError, LookupError):
    """The fleet has no run with this number."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"run {run_id} does not exist: `openagentic-sdk fleet runs` lists the runs", run_id=run_id)


class RunLostError(FleetError):
    """This process's lease on a run has expired: the run stops here, and another process may take it over."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"the lease of run {run_id} has expired: another worker may continue it", run_id=run_id)


class WorkflowError(OpenAgentSdkError):
    """A workflow cannot continue. `step` is the step's number, such as "3", and `error_type` the type of its error."""

    def __init__(self, message: str, *, step: str | None = None, error_type: str | None = None) -> None:
        super().__init__(message)
        self.step, self.error_type = step, error_type


class WorkflowChangedError(WorkflowError):
    """The body makes a different step from the one in its log: its code has changed, or is not deterministic."""


class StepFailedError(WorkflowError):
    """A step ended with an error, was denied, or returned an unreadable value."""


class StepUnknownError(StepFailedError):
    """A step was started and has no result: it may or may not have taken effect, and is not repeated automatically."""


class ReplayMismatchError(OpenAgentSdkError):
    """A replayed session differs from its recording; the message shows the first difference."""


class ScriptError(OpenAgentSdkError):
    """A scripted model received a request that its script does not cover, or the script is invalid."""


class ScriptMismatchError(ScriptError, AssertionError):
    """A request differs from the scripted model's `expect`; this fails the test, and is raised after the `result`."""


class RpcError(OpenAgentSdkError):
    """A JSON-RPC error: the other side's answer to a request, or the one that a handler returns.

    `code` is the error number of JSON-RPC or of the protocol above it, `data` any JSON value sent with it.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data
