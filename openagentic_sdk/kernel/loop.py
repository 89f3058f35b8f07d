"""A run from its first event to its last: ask the model and run the calls that it makes, until it makes no more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Container
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

from ..errors import ContextLengthError, InvalidEventError, QuestionOpenError, ScriptMismatchError, StorageError
from ..events import (
    AssistantMessage,
    ModelResponse,
    Result,
    SessionCompacted,
    SystemInit,
    SystemNotice,
    ToolResult,
    ToolUse,
    UserMessage,
)
from ..ground.threads import Guest, call_guest, collect_left, error_words, run_in_thread, settled
from ..providers.base import cut_by
from ..sessions.closing import closing_events
from ..sessions.folds.requests import REFUSED
from ..sessions.folds.usage import cached_share
from ..sessions.folds.view import CallRecord
from ..sessions.rebuild import newest_standing
from ..version import __version__
from .agent import Run
from .lifetime import RunStopped
from .model_step import Reply, ask_model
from .part import IncomingPrompt, Part
from .prompt import Prompts, Said, prompt_sha256
from .settle import settle_open_calls, supersede, untouched_questions
from .tool import REPEATABLE, RunResources
from .tool_step import run_calls

# The time limit for closing what tools left open, such as background subagents and shells.
RESOURCE_MOMENT_S = 35.0
# A longer final text is complete only in its `assistant.message`; the result contains its beginning.
MAX_TEXT_TWICE = 1024 * 1024


@runtime_checkable
class Closable(Protocol):
    """A resource of a run, closed in a thread when the run ends."""

    def close(self) -> None: ...


async def run_session(run: Run, prompt: Said | Prompts | None) -> Result:
    """Run one prompt, or each prompt of an async iterable, on an opened session; return the `result`.

    Without `prompt`, continue where the session stopped. An earlier answer to the same request is returned; nothing runs.

    The first event is `system.init`, unless the store refuses it, and the last one `result`. Raises only `CancelledError`
    (once the session is closed), `StorageTimeoutError` if the store does not answer, since no result can be promised then,
    and `ScriptMismatchError` in a test.
    """
    # Before any foreign code runs: whatever it leaves running is named in the log at the end.
    run.lifetime.left = collect_left()
    try:
        result = run.view.requests.answer_to(run.request.request_id)
        if result is None or not isinstance(prompt, Said):
            return await _run_to_end(run, prompt)
        # It was answered before, and the caller asks again because the answer did not arrive: nothing may run twice.
        # Store nothing, so that open calls and questions, and pending requests, stay as they are.
        await run.recorder.show(_init(run))
        await run.recorder.close()
        result = replace(result, session_id=run.session_id)
        await run.recorder.channel.send(result)
        return result
    finally:
        if run.parts.at(Part.close):
            _, late = await settled(_close_parts(run))
            if late is not None:
                raise late


async def _close_parts(run: Run) -> None:
    for part in run.parts.at(Part.close):
        await part.close()


async def _run_to_end(run: Run, prompt: Said | Prompts | None) -> Result:
    cancelled: asyncio.CancelledError | None = None
    try:
        ending = await _converse_in_time(run, prompt)
    except asyncio.CancelledError as error:
        cancelled, run.lifetime.is_ending = error, True
        ending = RunStopped("suspended" if run.lifetime.stopping.asked == "suspend" else "interrupted")
        if run.questions.parked:
            ids = ", ".join(question.question_id for question in run.questions.parked.values())
            ending = RunStopped("waiting", f"stopped while waiting for an answer (question {ids})")
    result = await _close(run, ending)
    # An unmet expectation must fail the test, even in a subagent: the outermost run shares `stopping`, and raises it.
    if isinstance(ending.__cause__, ScriptMismatchError):
        run.lifetime.stopping.mismatch = ending.__cause__
    # `RunTask` cancels this task as a signal, and receives the result in return. Any other cancellation is the caller's
    # (`asyncio.timeout`, a task group) and must propagate; so must that of a subagent, which ends the parent's call as well.
    if cancelled is not None and (run.depth > 0 or run.lifetime.stopping.asked is None):
        raise cancelled
    if run.recorder.hung is not None:
        raise run.recorder.hung
    if run.lifetime.stopping.mismatch is not None and run.depth == 0:
        raise run.lifetime.stopping.mismatch
    return result


async def end_unbegun(run: Run) -> None:
    """Record the first and last event of a run that was interrupted before it began, and close its session."""
    await run.record(_init(run))
    await _close(run, RunStopped("interrupted"))


async def _converse_in_time(run: Run, prompt: Said | Prompts | None) -> RunStopped:
    """Hold the conversation until it ends by itself or because of a limit, a hook or an error; return how it ended."""
    try:
        # This timer uses the event loop's clock, which a test's clock does not move: each step also checks the deadline.
        async with asyncio.timeout(run.lifetime.deadline.remaining_s()) as timer:
            await _converse(run, prompt)
    except RunStopped as stopped:
        return stopped
    except TimeoutError as error:
        # Not this timer: a provider or a hook raised it.
        if not timer.expired():
            return _failure(error)
        run.lifetime.is_ending = True
        return RunStopped("timeout", "the time limit timeout_s has passed: raise it, or resume the session")
    except Exception as error:  # noqa: BLE001 - a provider, hook or prompt source may raise anything; the result reports it
        return _failure(error)
    return RunStopped("end")


def _failure(error: Exception) -> RunStopped:
    stopped = RunStopped("error", error_words(error)[1])
    stopped.__cause__ = error
    return stopped


async def _converse(run: Run, prompt: Said | Prompts | None) -> None:
    # One batch, so that no crash leaves a run that began without, for example, the skills that are active from the start.
    opening = [event for part in run.parts.at(Part.opening_events) for event in part.opening_events()]
    await run.record(_init(run), *opening)
    # Once for the whole conversation, not for each of its runs.
    if run.request.part != "next":
        await run.hooks.run_session_start("startup" if run.request.resume is None else "resume")
    for part in run.parts.at(Part.begin):
        await part.begin()
    is_due = run.view.requests.is_due(run.request.request_id)
    # A prompt that is already the newest one is not stored again, so it would not supersede what waits for a person.
    await settle_open_calls(run, prompt_follows=prompt is not None and is_due)
    if prompt is None:
        if _waits_for_the_model(run):
            await run_turn(run)
        return
    if isinstance(prompt, Said):
        if await accept_prompt(run, prompt, run.request.request_id):
            await run_turn(run)
        return
    prompts = _prompts(prompt, run.request.request_id)
    try:
        while (next_prompt := await call_guest(lambda: anext(prompts, None), "the source of prompts")) is not None:
            run.request = replace(run.request, request_id=next_prompt.request_id)
            if await accept_prompt(run, next_prompt, next_prompt.request_id):
                await run_turn(run)
    finally:
        # The error of a source that fails to close must not replace the one that ended the run; it is retrieved, or
        # asyncio would log it.
        closing, _ = await settled(_close_prompts(prompts))
        closing.exception()


async def _close_prompts(prompts: AsyncGenerator[Said, None]) -> None:
    await Guest(prompts.aclose, "the source of prompts").wait_a_moment()


def _waits_for_the_model(run: Run) -> bool:
    """Whether the model has something to continue: false if the last run ended by itself and nothing was sent since."""
    messages = run.view.conversation.messages()
    last = next((e for e in newest_standing(run.view.events) if isinstance(e, Result | UserMessage)), None)
    if isinstance(last, Result) and last.stop_reason == "end" and last.request_id in (None, *run.view.requests.asked):
        return False
    return bool(messages) and (messages[-1]["role"] != "assistant" or _pending_answer(run) is not None)


def _init(run: Run) -> SystemInit:
    agent, conversation = run.agent, run.view.conversation
    roots = agent.workspace_roots or (agent.cwd,)
    return SystemInit(
        run.session_id,
        agent.cwd,
        __version__,
        model=agent.model,
        provider=agent.provider.name,
        permission_mode=agent.gate.mode,
        tools=agent.tools.names(),
        agents=list(agent.agent_names),
        messages_from_seq=conversation.cut_seq(run.request.max_events, run.request.max_bytes),
        durability=agent.store.durability,
        workspace_roots=list(dict.fromkeys([*roots, *map(os.path.realpath, roots)])),
        untrusted=list(run.request.untrusted),
        traceparent=run.request.traceparent,
    )


async def _prompts(prompt: Prompts, request_id: str | None) -> AsyncGenerator[Said, None]:
    """Yield the prompts of a source; the first gets `request_id` unless it has its own."""
    async for item in prompt:
        yield replace(item, request_id=item.request_id or request_id)
        request_id = None


async def accept_prompt(run: Run, message: Said, request_id: str | None) -> bool:
    """Record a prompt as changed by hooks and commands, in one batch with the end of every open question and call.

    A prompt that is already the newest is not recorded again. Returns False if its request id was answered before. Raises
    `RequestConflictError` for the id of another prompt, `QuestionOpenError`, and `RunStopped` if a hook blocks the prompt.
    """
    digest = None if request_id is None else prompt_sha256(message)
    if request_id is not None and digest is not None:
        # A single prompt was already checked by `RunTask.start`; those of a source are checked only here.
        run.view.requests.check(request_id, digest, run.session_id)
    if not run.view.requests.is_due(request_id):
        result = run.view.requests.answer_to(request_id)
        if result is not None:
            # The result of this run repeats that answer.
            run.view.last_text = result.final_text
        return result is None
    open_ids = [question.question_id for question in run.view.open_questions()]
    if open_ids and not message.may_answer:  # from a source; others were refused before the run
        raise QuestionOpenError(run.session_id, open_ids)
    prompt = IncomingPrompt(message, message.text, request_id, sha256=digest, events=list(run.request.brings))
    prompt.is_expanded, prompt.sources = message.typed == "", [*message.sources]
    if not run.depth:  # a subagent's prompt is a model's text: only people's prompts are expanded
        for part in run.parts.at(Part.expand_prompt):
            await part.expand_prompt(prompt)
    text, events, decision = await run.agent.hooks.run_user_prompt_submit(
        prompt=prompt.text, context=run.hooks.context()
    )
    await run.record(*events)
    if decision is not None and (decision.block or decision.stops):
        raise RunStopped("blocked:user_prompt_submit", decision.block_reason or "")
    prompt.text = text
    await store_prompt(run, prompt)
    if decision is not None and decision.additional_context:
        await run.record(UserMessage(decision.additional_context, origin="hook"))
    return True


async def store_prompt(run: Run, prompt: IncomingPrompt) -> None:
    """Let the parts complete a prompt, and record it. One of origin `user` also ends everything that awaited an answer."""
    for part in run.parts.at(Part.fill_prompt):
        await part.fill_prompt(prompt)
    message = UserMessage(
        prompt.text + prompt.behind,
        request_id=prompt.request_id,
        origin=prompt.origin,
        attachments=[*prompt.said.attachments, *prompt.attachments],
        untrusted=prompt.sources,
        prompt_sha256=prompt.sha256,
    )
    # A message to the running turn neither answers nor closes a question.
    ends = await supersede(run) if prompt.origin == "user" else ()
    await run.record(*ends, message, *prompt.events)


async def run_turn(run: Run) -> None:
    """Call the model and run its calls until an answer ends the turn; begin with any answer that an earlier run left."""
    run.hooks.is_stop_active = False
    reply = _pending_answer(run)
    if reply is not None:
        # An earlier run stored this text, and the `system.init` of this run has cleared it from the view.
        run.view.last_text = reply.text
    while reply is None or not await _is_last(run, reply):
        reply = await _next_reply(run)


def _pending_answer(run: Run) -> Reply | None:
    """The complete answer at the end of the log, if no run has ended with it and no hook refused it; otherwise None."""
    # A process that died between an answer and the `result` must not pay for that answer again. Read backwards, it is a
    # message and then its `model.response`, with no other event of these kinds before or between them.
    kinds, answer = (UserMessage, AssistantMessage, ToolUse, ToolResult, ModelResponse, SessionCompacted), None
    for event in newest_standing(run.view.events):
        is_over = isinstance(event, Result) and event.stop_reason in ("end", *REFUSED)
        if isinstance(event, AssistantMessage) and answer is None and not event.incomplete:
            answer = event.text
        elif is_over or isinstance(event, kinds):
            is_whole = isinstance(event, ModelResponse) and event.finish_reason != "pause_turn"
            return Reply(answer) if answer is not None and is_whole else None
    return None


async def _next_reply(run: Run) -> Reply:
    """Record the messages that arrived meanwhile, then return the model's next reply. Raises `RunStopped` at a limit."""
    # A call of this run, or of one that died, has given the answer: no limit applies before it, and nothing is paid for it.
    for part in run.parts.at(Part.take_answer):
        if (answer := part.take_answer()) is not None:
            return Reply(answer)
    while run.notes:
        await run.record(run.notes.pop(0))
    while run.inbox:
        message = run.inbox.popleft()
        # A sender that got no reply may have sent it twice.
        if message.request_id is None or message.request_id not in run.view.requests:
            await store_prompt(run, IncomingPrompt(message, message.text, message.request_id, origin="steering"))
    # Only now, so that whatever a person sent is in the log even if a limit ends the run here.
    _check_limits(run)
    for part in run.parts.at(Part.before_step):
        await part.before_step()
    try:
        reply = await ask_model(run)
    except ContextLengthError:  # too long for the endpoint: retry once if it could be shortened
        for part in run.parts.at(Part.make_room):
            if await part.make_room():
                break
        else:
            raise
        reply = await ask_model(run)
    run.steps += 1
    return reply


async def _is_last(run: Run, reply: Reply) -> bool:
    """Run the calls of a reply; return whether the turn ends with it."""
    if reply.calls:
        for part in run.parts.at(Part.after_answer):
            await part.after_answer(reply)
        await run_calls(run, reply.calls)
        return False  # an answer that a call gave is the next reply
    if reply.output.finish_reason == "pause_turn":
        return False  # the vendor's own tool needs more time: it continues when the conversation is resent
    # A message that came while the model was answering is a reason to go on.
    return not run.inbox and await _may_end(run, reply) and await _may_stop(run, reply.text)


async def _may_end(run: Run, reply: Reply) -> bool:
    for part in run.parts.at(Part.may_end):
        if not await part.may_end(reply):
            return False
    return True


def _check_limits(run: Run) -> None:
    if run.steps >= run.agent.max_steps:
        raise RunStopped("max_steps", f"max_steps is {run.agent.max_steps}: raise it, or resume the session")
    if run.hooks.stopped_by is not None:
        raise run.hooks.stopped_by
    if run.lifetime.stopping.soon:
        raise RunStopped("suspended", "the process was asked to end: resume the session to continue")
    if run.lifetime.deadline.remaining_s() == 0:
        raise RunStopped("timeout", "the time limit timeout_s has passed: raise it, or resume the session")


async def _may_stop(run: Run, answer: str) -> bool:
    """Run the stop hooks on an answer; return False if one blocks, after recording its reason as a message to the model.

    Raises `RunStopped` if a hook ends the run. A refused answer is not the run's final text.
    """
    if run.hooks.stopped_by is not None:
        raise run.hooks.stopped_by
    events, decision = await run.agent.hooks.run_stop(
        stop_hook_active=run.hooks.is_stop_active,
        last_assistant_message=answer,
        context=run.hooks.context(final_text=answer),
    )
    await run.record(*events)
    if decision is None or not (decision.block or decision.stops):
        return True
    run.view.last_text = ""
    if decision.stops:
        raise RunStopped("blocked:stop", decision.block_reason or "")
    run.hooks.is_stop_active = True
    await run.record(UserMessage(decision.block_reason or "Go on: you are not done.", origin="hook"))
    return False


# --- the end ---------------------------------------------------------------------------------------------------------


async def _close(run: Run, ending: RunStopped) -> Result:
    """Record the last events and the result, release the lock, and only then show the result.

    A caller may stop reading at the result and resume at once, so the lock must be free by then.
    """
    # Continued through any number of cancellations, because giving up would leave calls open and the session locked.
    closing, cancelled = await settled(_record_ending(run, ending), run.lifetime.hurry)
    result: Result = closing.result()
    if cancelled is not None:
        raise cancelled
    await run.recorder.channel.send(result)
    return result


async def _record_ending(run: Run, ending: RunStopped) -> Result:
    """Record the events that close a run, and its result; return the result, which reports an error of the store, too."""
    try:
        try:
            ending = await _last_events(run, ending)
        except (StorageError, InvalidEventError) as error:
            # The first error is the cause of the others.
            ending = ending if ending.reason == "error" else _failure(error)
        result = _result(run, ending)
        try:
            try:
                stored_result = (await run.recorder.store(result))[-1]
            except InvalidEventError as error:  # the value of a part, such as that of a workflow
                stored_result = (await run.recorder.store(_result(run, _failure(error))))[-1]
            assert isinstance(stored_result, Result)
            # Otherwise events are missing from the log, and a signature would attest to less than it appears to.
            if stored_result.saved:
                for part in run.parts.at(Part.vouch):
                    await part.vouch()
            return stored_result
        except (StorageError, InvalidEventError):
            # The caller gets a result in any case; to a later reader, the log ends as after a crash.
            return replace(result, saved=False)
    finally:
        await run.recorder.close()


async def _last_events(run: Run, ending: RunStopped) -> RunStopped:
    """Close what tools left open, end the calls without a result and the parts, and run the session_end hooks; return how
    the run ended.

    A run that finished while a background subagent waits for a person ends as `waiting`, too.
    """
    # First, because a shell or a subagent that ends now may still record events and leave calls open, which are closed
    # below.
    for resource in run.parts.services.get(RunResources):
        if isinstance(resource, Closable):
            name = type(resource).__name__
            closing = Guest(partial(run_in_thread, resource.close, name=f"openagentic-close {name}"), f"closing {name}")
            # In a thread and with a limit, because `close` may be a caller's. Subagents that end meanwhile need longer.
            await run.lifetime.wait_for(closing, RESOURCE_MOMENT_S, lambda: run.children > 0)
            if closing.error is not None:
                problem = f"{name} could not be closed: {': '.join(error_words(closing.error))}"
                await run.record(SystemNotice("resource.close", problem))
    if ending.reason == "end" and run.questions.parked:
        ids = ", ".join(question.question_id for question in run.questions.parked.values())
        ending = RunStopped("waiting", f"a subagent in the background waits for an answer (question {ids})")
    untouched = untouched_questions(run)
    # Determined before the calls are closed: a question counts as untouched only as long as its call is open.
    to_keep = run.view.open_questions() if ending.reason == "waiting" else untouched
    kept_ids = {question.tool_use_id for question in untouched}
    calls = [
        *run.view.open_inner_calls(),  # of code that could not be stopped
        *(record for record in run.view.open_calls() if not _stays_open(run, record, ending, kept_ids)),
    ]
    questions = [question for question in run.view.open_questions() if question not in to_keep]
    await run.record(*closing_events(calls, questions, ending.reason))
    for part in run.parts.at(Part.end):
        ending = await part.end(ending)
    if run.request.part == "whole" and run.agent.hooks.are_any:
        context = run.hooks.context(stop_reason=ending.reason)
        hooks = Guest(lambda: run.agent.hooks.run_session_end(context=context), "the hooks of session_end")
        await run.lifetime.wait_for(hooks)
        if not hooks.is_left and hooks.error is None:
            await run.record(*hooks.value()[0])
    # Last, because hooks and parts may have left something running, too.
    for name in [*run.lifetime.left]:
        await run.record(SystemNotice("left_behind", f"{name} did not end when asked to, and may still be running"))
    return ending


def _stays_open(run: Run, record: CallRecord, ending: RunStopped, kept_ids: Container[str | None]) -> bool:
    """Whether a call is left open for a resume: a part continues it, it waits for a person, or it can still run (again)."""
    started, use_id = record.started, record.use.tool_use_id
    if run.parts.continue_call(use_id):
        return True
    if ending.reason in ("waiting", "suspended"):
        return started is None or started.effect in REPEATABLE or use_id in run.questions.parked or use_id in kept_ids
    return use_id in kept_ids or (bool(kept_ids) and started is None)


def _result(run: Run, ending: RunStopped) -> Result:
    view, error, cut = run.view, ending.__cause__, None
    if ending.reason == "end":
        cut = cut_by(next((e.finish_reason for e in reversed(view.events) if isinstance(e, ModelResponse)), None))
    message = ending.message or (f"the model's last answer was cut off ({cut}): it is incomplete" if cut else None)
    result = Result(
        view.last_text if len(view.last_text) <= MAX_TEXT_TWICE else view.last_text[:MAX_TEXT_TWICE],
        run.session_id,
        ending.reason,
        usage=view.usage,
        # The sum begins at 0.0, which would claim that a run without a reported usage was free.
        cost_usd=None if view.usage is None else view.cost_usd,
        steps=run.steps,
        duration_s=round(run.agent.clock.monotonic() - run.lifetime.began_at, 6),
        error_type=error_words(error)[0] if error is not None else None,
        error_message=message,
        saved=run.recorder.saved,
        cached_share=cached_share(view.usage),
        cut_by=cut,
        # A run that continues without a prompt works on the newest one.
        request_id=run.request.request_id or next(iter(view.requests.asked), None),
    )
    for part in run.parts.at(Part.complete_result):
        result = part.complete_result(result)
    return result
