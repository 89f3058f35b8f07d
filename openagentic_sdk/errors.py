"""Everything that can go wrong, as one tree.

    OpenAgentSdkError
    |- OptionsError (ValueError)             a setting that cannot be used
    |  |- AnswerRefusedError                 words that are no answer to a question: nothing was stored
    |  |- ApiKeyError                        there is no API key where one was to be found
    |  |- FleetStoreError                    a store that is no database has no place for a fleet
    |  |- RoomMissingError (ImportError)     a room of this package that was left out of the installation
    |  |- SuiteError                         an eval's suite cannot be used: which field, and on which line
    |- BudgetError                           what may be spent is spent; a run ends with stop_reason `budget` instead
    |- AgentNotFoundError (LookupError)      no agent of this name may be started here
    |- FoldNotFoundError (LookupError)       a session's view was made without the fold that is asked for
    |- EventLoopError (RuntimeError)         called without asyncio's event loop, or from within it
    |- EventError
    |  |- UnknownEventTypeError              a strict reader met a type it does not know
    |  |- InvalidEventError (ValueError)     not an event: no JSON, a field missing or of the wrong kind
    |- SessionError
    |  |- SessionNotFoundError (LookupError)
    |  |- SessionExistsError
    |  |- SessionLockedError                 another run holds the session
    |  |- QuestionOpenError                  it waits for a person, in whose place nobody else may speak
    |  |- SessionHeldError                   it is held, or is to be kept for longer
    |  |- ConcurrencyError                   the log is not where the writer expected it
    |  |  |- LeaseLostError                  another run took the session over while this one hung
    |  |- StorageError                       the disk or the server refused
    |  |  |- StorageTimeoutError             it did not answer at all
    |  |- RequestConflictError               a request id came with another prompt, or in another session, before
    |  |- FilesChangedError                  files are not as the session left them: none was put back
    |  |- LogCorruptError                    a record is damaged in a way that no crash explains
    |- ProviderError                         the model's side failed
    |  |- ProviderHTTPError                  an answer that is an error, with its status
    |  |  |- ContextLengthError              the prompt is longer than the model's window
    |  |- ProviderConnectionError            no answer: refused, unreachable, cut
    |  |- ProviderTimeoutError               no answer in time
    |  |- ProviderResponseError              an answer that cannot be understood
    |  |  |- GarbledResponseError            its pieces do not fit together: asked again once
    |  |- IncompleteResponseError            the answer stopped in the middle
    |  |- CircuitOpenError                   not asked: this endpoint failed too often just now
    |- ToolError                             a tool could not do it; the model reads the text
    |  |- ToolNotFoundError
    |  |- ToolInputError (ValueError)        arguments that do not fit the tool's schema
    |  |- AddressRefusedError (ValueError)   a URL that leads where nothing may be fetched
    |  |- UnknownOutcomeError                a call that may or may not have taken effect
    |  |- ModelRetryError                    the model is to try again: a tool's call, or the answer that a validator refused
    |  |- McpError                           an MCP server cannot be reached, or does not do as it should
    |  |  |- McpAuthError                    it lets nobody in without a login, or the login failed
    |- SkillNotFoundError (FileNotFoundError)
    |- FileRefusedError (OSError)            a project's file that is not read: outside, too large, no text
    |- PermissionRuleError (ValueError)      a rule that cannot be understood
    |- MissingServiceError (LookupError)     a tool or part needs what no part of this run offers
    |- PartError                             a part of the caller's own failed, or gave what cannot be used
    |- StructuredOutputError                 the final answer does not fit `output_schema`
    |- RunFailedError                        a run did not come to its end; only with `raise_on_error` and from an `Agent`
    |  |- GuardrailTrippedError              a guardrail stopped it
    |- RequestRefusedError                   a server refuses what a client asked for
    |- FleetError                            a run of a fleet is not as was asked for
    |  |- RunNotFoundError (LookupError)     there is none with this number
    |  |- RunLostError                       the lease ran out: another worker goes on
    |- WorkflowError                         a workflow, or what its body does, cannot go on so
    |  |- WorkflowChangedError               it makes another step than the one that its log holds
    |  |- StepFailedError                    a step ended with an error
    |  |  |- StepUnknownError                it was started, and may or may not have run
    |- ReplayMismatchError                   a replayed session does something else than was recorded
    |- RpcError                              the other side of a JSON-RPC connection refused, or is refused
    |- ScriptError                           a scripted model was asked for something that its script does not hold
    |  |- ScriptMismatchError (AssertionError)  a request is not what its script expects

Every class carries the values of its sentence as attributes. A tool may raise anything: the loop turns it into a
`tool.result` for the model. A provider may raise anything: the run ends with a `result` whose `stop_reason` is `error`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any


class OpenAgentSdkError(Exception):
    """The root: `except OpenAgentSdkError` catches what this library raises on purpose."""


class OptionsError(OpenAgentSdkError, ValueError):
    """A setting that cannot be used; the text names the setting, its value and what is accepted."""


class BudgetError(OpenAgentSdkError):
    """What a limit leaves is spent: the text names the limit, and when or how it goes on."""


class AgentNotFoundError(OpenAgentSdkError, LookupError):
    """The registry of named agents has none of this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no agent {name!r:.100}: the agents are {', '.join(known)}")
        self.name, self.known = name, known


class AnswerRefusedError(OptionsError):
    """Words that are no answer to the question `question_id`; `choices` are what may be answered."""

    def __init__(self, question_id: str, answer: str | bool, choices: tuple[str, ...]) -> None:
        wanted = ", ".join(f"{choice:.200}" for choice in choices)
        super().__init__(f"{answer!r:.200} is no answer to question {question_id!r:.200}: answer {wanted or 'a text'}")
        self.question_id, self.answer, self.choices = question_id, answer, choices


class ApiKeyError(OptionsError):
    """There is no API key where one was to be found; the text says where that is."""


class FleetStoreError(OptionsError):
    """A store that is no database that several processes share: it has no place for a fleet."""

    def __init__(self, store: str) -> None:
        super().__init__(
            f"{store} has no place for a fleet: keep its sessions in Postgres (postgresql://...), or on one host in SQLite "
            "(sqlite:///path)"
        )
        self.store = store


class RoomMissingError(OptionsError, ImportError):
    """A room of this package that was left out of the installation; `purpose` is what needs it."""

    def __init__(self, room: str, purpose: str) -> None:
        super().__init__(
            f"the {room} room is not installed, which {purpose} need: install openagentic_sdk with its folder "
            f"{room.replace('.', '/')}"
        )
        self.room, self.purpose = room, purpose


class SuiteError(OptionsError):
    """A suite of evals that cannot be used: `field` is what is wrong, `source` and `line` where that stands."""

    def __init__(self, message: str, *, field: str = "", source: str = "", line: int | None = None) -> None:
        where = f"{source}:{line}" if source and line else source
        super().__init__(": ".join(part for part in (where, field, message) if part))
        self.message, self.field, self.source, self.line = message, field, source, line


class FoldNotFoundError(OpenAgentSdkError, LookupError):
    """A session's view does not have this fold."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"this view has no fold {name!r}, only {', '.join(known) or 'the state of the kernel'}: "
            "name the fold where the view is made (SessionView, load_view, AgentRuntime.folds)"
        )
        self.name, self.known = name, known


class EventLoopError(OpenAgentSdkError, RuntimeError):
    """Called where no asyncio event loop runs, as under trio, or plain code called where one does."""


class EventError(OpenAgentSdkError):
    """What was read is no event."""


class UnknownEventTypeError(EventError):
    """A strict reader met an event type that this version does not know."""

    def __init__(self, event_type: str) -> None:
        super().__init__(f"unknown event type {event_type!r}: read with strict=False to keep it as it is")
        self.event_type = event_type


class InvalidEventError(EventError, ValueError):
    """Not an event: no JSON object, or a field is missing or of the wrong kind."""


class SessionError(OpenAgentSdkError):
    """A session cannot be used as asked."""

    def __init__(self, message: str, *, session_id: str | None = None) -> None:
        super().__init__(message)
        self.session_id = session_id


class SessionNotFoundError(SessionError, LookupError):
    """There is no session with this id in this store."""

    def __init__(self, session_id: str, where: str = "this store") -> None:
        super().__init__(
            f"no session {session_id!r} in {where}: `openagentic-sdk sessions list` shows what there is",
            session_id=session_id,
        )


class SessionExistsError(SessionError):
    """A session with this id exists already."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} exists already: resume it or choose another id", session_id=session_id
        )


class SessionLockedError(SessionError):
    """Another run holds the session; nothing was changed.

    `retry_after_s` says when a holder that has died is known to be dead; None where the system says it at once.
    """

    def __init__(self, session_id: str, holder: str = "another run", retry_after_s: float | None = None) -> None:
        until = "" if retry_after_s is None else f" (if that one died, until {retry_after_s:.1f} s from now)"
        super().__init__(
            f"session {session_id!r} is in use by {holder}{until}: wait until it ends, open it read-only, or fork it",
            session_id=session_id,
        )
        self.holder, self.retry_after_s = holder, retry_after_s


class QuestionOpenError(SessionError):
    """A session waits for the answer to `question_ids`, and a prompt of somebody who may not answer would end them;
    nothing was changed.
    """

    def __init__(self, session_id: str, question_ids: Sequence[str]) -> None:
        super().__init__(
            f"session {session_id!r} waits for an answer to question {', '.join(question_ids)}, which a prompt would end: "
            "let somebody send it, or answer first, who may answer questions",
            session_id=session_id,
        )
        self.question_ids = tuple(question_ids)


class SessionHeldError(SessionError):
    """A session that must not go: it is held, or is to be kept until `until` (epoch seconds, None while it is held)."""

    def __init__(self, session_id: str, doing: str, until: float | None) -> None:
        why = "is held" if until is None else f"is to be kept until {time.strftime('%Y-%m-%d', time.gmtime(until))}"
        todo = "sessions hold ID --release" if until is None else "sessions retain ID --release"
        super().__init__(f"session {session_id!r} {why} and is not {doing}: `openagentic-sdk {todo}` ends that")
        self.session_id, self.until = session_id, until


class ConcurrencyError(SessionError):
    """The log's last event is not the one that the writer expected; nothing was written."""

    def __init__(self, session_id: str, expected_seq: int, actual_seq: int) -> None:
        super().__init__(
            f"session {session_id!r} stands at seq {actual_seq}, not at {expected_seq}: read it again before appending",
            session_id=session_id,
        )
        self.expected_seq, self.actual_seq = expected_seq, actual_seq


class RequestConflictError(SessionError):
    """A request id came with another prompt, or in another session, before; nothing was run and nothing was changed."""

    def __init__(self, request_id: str, session_id: str, difference: str) -> None:
        super().__init__(
            f"request id {request_id!r:.220} came {difference} before, in session {session_id!r}: send the same again for "
            "its answer, or take a new id",
            session_id=session_id,
        )
        self.request_id = request_id


class FilesChangedError(SessionError):
    """Files cannot be put back as they were; none was touched. `files` says why, by path."""

    def __init__(self, session_id: str, files: dict[str, str]) -> None:
        shown = "; ".join(f"{path}: {reason}" for path, reason in sorted(files.items())[:10])
        more = f" and {len(files) - 10} more" if len(files) > 10 else ""
        super().__init__(
            f"{len(files)} files cannot be put back ({shown}{more}): nothing was changed; say conflicts='skip' to leave "
            "them as they are, or conflicts='overwrite' for those that something else changed",
            session_id=session_id,
        )
        self.files = dict(files)


class LeaseLostError(ConcurrencyError):
    """Another run took the session over; what this writer wanted to append was not written."""

    def __init__(self, session_id: str, expected_seq: int, actual_seq: int) -> None:
        super().__init__(session_id, expected_seq, actual_seq)
        self.args = (
            f"session {session_id!r} was taken over by another run (this one stood at seq {expected_seq}, the log at "
            f"{actual_seq}); nothing was written: resume the session to go on, or fork it",
        )


class StorageError(SessionError):
    """The disk or the server behind a store refused; what was acknowledged before is safe.

    `retryable` says that the same writer may be used again when the cause (a full disk) is gone; otherwise open a new one.
    """

    def __init__(self, message: str, *, session_id: str | None = None, retryable: bool = False) -> None:
        super().__init__(message, session_id=session_id)
        self.retryable = retryable


class StorageTimeoutError(StorageError):
    """A store did not answer in time: whether it did what it was asked last is not known."""


class LogCorruptError(SessionError):
    """A stored record is damaged in a way that no crash explains.

    `seq` is the first record that cannot be trusted, `offset` its byte offset in the log, `kind` what is wrong with it
    (`checksum`, `sequence`, `json`, `hole`, `durable-loss`). Where the records tell what was done to them, `change` is
    `edited`, `deleted`, `doubled`, `moved`, `interleaved` or `line ends`, and `detail` says it with the numbers.
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
            f"`openagentic-sdk sessions salvage {session_id or 'ID'}` copies what is intact into a new session",
            session_id=session_id,
        )
        self.seq, self.offset, self.kind, self.change, self.detail = seq, offset, kind, change, detail


class ProviderError(OpenAgentSdkError):
    """The model's side failed. `retryable` says whether the same request may succeed later."""

    retryable = False


class ProviderHTTPError(ProviderError):
    """The endpoint answered with an error.

    `status` is the HTTP status (200 for an error inside an accepted response), `code` the vendor's code if it sent one,
    `headers` has lower-case names, `body` the start of the response's text. `retryable` is judged by the retry table.
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
    """The prompt is longer than the model's window: the same request never succeeds, a compacted one may."""


class ProviderConnectionError(ProviderError):
    """No answer: the endpoint cannot be reached, or the connection was cut before an answer began.

    `was_sent` is False when nobody can have acted upon the request, because it never left.
    """

    def __init__(self, message: str, *, retryable: bool = True, was_sent: bool = True) -> None:
        super().__init__(message)
        self.retryable, self.was_sent = retryable, was_sent


class ProviderTimeoutError(ProviderError):
    """No answer in time; `phase` is `connect`, `first_byte`, `idle` or `total`. When all of the time is used up (`total`),
    there is none left to ask again in.
    """

    def __init__(self, message: str, *, phase: str) -> None:
        super().__init__(message)
        self.phase, self.retryable = phase, phase != "total"


class ProviderResponseError(ProviderError):
    """An answer that cannot be understood as a model's response."""


class GarbledResponseError(ProviderResponseError):
    """An answer whose pieces do not fit together: no JSON, two answers in one stream, a piece of nothing.

    A proxy or a worker that fails now and then sends such things, so it is asked again, once.
    """

    retryable = True


class IncompleteResponseError(ProviderError):
    """The answer stopped in the middle: neither a finish reason nor an end marker came. `partial_text` is what came."""

    retryable = True

    def __init__(self, message: str, *, partial_text: str = "") -> None:
        super().__init__(message)
        self.partial_text = partial_text


class CircuitOpenError(ProviderError):
    """Not asked: the endpoint failed too often just now; `retry_after_s` is when it will be tried again."""

    def __init__(self, endpoint: str, retry_after_s: float) -> None:
        super().__init__(
            f"{endpoint} failed too often and is not asked for another {retry_after_s:.0f} s: wait, or name a fallback model"
        )
        self.endpoint, self.retry_after_s = endpoint, retry_after_s


class ToolError(OpenAgentSdkError):
    """A tool could not do what it was asked; the text is written for the model and says what to do instead."""


class ToolNotFoundError(ToolError):
    """The model asked for a tool that does not exist here."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no tool {name!r}: the tools are {', '.join(known) or '(none)'}")
        self.name, self.known = name, known


class ToolInputError(ToolError, ValueError):
    """Arguments that do not fit the tool's schema; `path` points at the first wrong one (`edits[0].old`)."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class AddressRefusedError(ToolError, ValueError):
    """A URL that leads, or may lead, where nothing may be fetched; nothing was sent. `reason` says what is wrong with it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url!r} is not fetched: {reason}")
        self.url, self.reason = url, reason


class ModelRetryError(ToolError):
    """The model is to try again, as the text says: raised by a tool, or by a validator of an agent's output."""


class UnknownOutcomeError(ToolError):
    """A call that may or may not have taken effect: its result is `unknown`, and it is not made again by itself."""


class McpError(ToolError):
    """An MCP server cannot be reached, or does not do as it should; `server` is its name.

    `code` is the number that the server gave its error, None for what was found out on this side, `data` what stood
    beside it. `stderr` is what the
    server's process wrote last to its standard error, up to 64 KiB. `in_flight` says that the request was on its way, so
    that the server may have acted upon it.
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
    """A server lets nobody in without a login, or the login failed; `code` is what an authorization server calls it."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class SkillNotFoundError(OpenAgentSdkError, FileNotFoundError):
    """There is no skill with this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"there is no skill {name!r}: the skills are {', '.join(known) or '(none)'}")
        self.name, self.known = name, known

    def __str__(self) -> str:
        # OSError formats its arguments as an errno otherwise.
        return str(self.args[0])


class FileRefusedError(OpenAgentSdkError, OSError):
    """A file of a project or skill that is not read: it lies outside, is too large, or is no regular text file."""


class PermissionRuleError(OpenAgentSdkError, ValueError):
    """A permission rule that cannot be understood; `rule` is its text, `source` where it stands."""

    def __init__(self, rule: str, reason: str, source: str = "options") -> None:
        super().__init__(f"permission rule {rule!r} ({source}) cannot be used: {reason}")
        self.rule, self.reason, self.source = rule, reason, source


class MissingServiceError(OpenAgentSdkError, LookupError):
    """A tool or part asked for a `service` that no part of this run offers."""

    def __init__(self, service: str) -> None:
        super().__init__(f"no part of this run offers {service}: add the part that does, or leave out what needs it")
        self.service = service


class PartError(OpenAgentSdkError):
    """The caller's own part `part` failed in `seam`, or returned there what cannot be used; `problem` says how."""

    def __init__(self, part: str, seam: str, problem: str) -> None:
        super().__init__(
            f"part {part!r} failed in {seam}: {problem}. Mend it, or take it out of OpenAgenticOptions.parts: the session "
            "can be resumed either way"
        )
        self.part, self.seam, self.problem = part, seam, problem


class StructuredOutputError(OpenAgentSdkError):
    """The model's final answer did not fit `output_schema`, however often it was sent back."""


class RunFailedError(OpenAgentSdkError):
    """A run ended in another way than by its answer; `result` is its `RunResult`."""

    def __init__(self, result: Any) -> None:
        why = f": {result.error_message}" if result.error_message else ""
        super().__init__(f"the run in session {result.session_id} ended as {result.stop_reason!r}{why}")
        self.result = result


class GuardrailTrippedError(RunFailedError):
    """A guardrail stopped a run: `kind` is `input` or `output`, `guardrail` its name, `reason` what it returned."""

    def __init__(self, result: Any, kind: str, guardrail: str, reason: str) -> None:
        super().__init__(result)
        self.kind, self.guardrail, self.reason = kind, guardrail, reason


class RequestRefusedError(OpenAgentSdkError):
    """A server refuses a request. `status` is HTTP's, `code` a word for programs; `retry_after_s` says when to ask again."""

    def __init__(self, status: int, message: str, code: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after_s = status, code, retry_after_s


class FleetError(OpenAgentSdkError):
    """A run of a fleet is not as was asked for; the text says how it stands, `run_id` is its number."""

    def __init__(self, message: str, *, run_id: int | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFoundError(FleetError, LookupError):
    """The fleet has no run of this number."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"there is no run {run_id}: `openagentic-sdk fleet runs` shows what there is", run_id=run_id)


class RunLostError(FleetError):
    """This process's lease of a run is over: it starts nothing more and writes nothing more, and another one goes on."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"the lease of run {run_id} is over: another worker goes on with it", run_id=run_id)


class WorkflowError(OpenAgentSdkError):
    """A workflow cannot go on so: `step` is the number of the step in question, `error_type` names what that raised."""

    def __init__(self, message: str, *, step: str | None = None, error_type: str | None = None) -> None:
        super().__init__(message)
        self.step, self.error_type = step, error_type


class WorkflowChangedError(WorkflowError):
    """The body makes another step than the one that its log holds: its code was changed, or is not deterministic."""


class StepFailedError(WorkflowError):
    """A step ended with an error, was denied, or gave what cannot be read."""


class StepUnknownError(StepFailedError):
    """A step was started and has no result: it may or may not have taken effect, and is not repeated by itself."""


class ReplayMismatchError(OpenAgentSdkError):
    """A replayed session does something else than was recorded; the text shows the first difference."""


class ScriptError(OpenAgentSdkError):
    """A scripted model was asked for something that its script does not hold, or its script cannot be read."""


class ScriptMismatchError(ScriptError, AssertionError):
    """A request is not what the scripted model's `expect` says: it fails the test, raised behind the run's `result`."""


class RpcError(OpenAgentSdkError):
    """An error of JSON-RPC: the other side answered a request with it, or a handler gives it as its answer.

    `code` is the number that JSON-RPC or the protocol above it gives this kind of error, `data` any JSON value beside it.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data
