"""The log of a workflow, as used by its part: find the records of the current history, and append events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import OptionsError, WorkflowChangedError
from ...events import Event, SessionCompacted, ToolResult, UserMessage
from ...kernel.agent import Run
from ...kernel.recorder import off_loop
from ...serialization import dumps_json, loads_json
from ...sessions.folds.view import CallRecord
from .fold import RESTARTED, StepsFold
from .steps import StepPlan, check_record


class WorkflowLog:
    """The log of the workflow `name` in one run. `failure` is the first error that must end the run."""

    def __init__(self, run: Run, name: str, *, replays: bool = False) -> None:
        self.failure: BaseException | None = None
        self._run, self._name, self._replays = run, name, replays
        self._unstored: list[Event] = []

    @property
    def fold(self) -> StepsFold:
        """The steps of the current history."""
        return self._run.view.fold(StepsFold)

    def find(self, call_id: str) -> CallRecord | None:
        """The record of a call in the current history; None if the call was never made."""
        return self.fold.find(call_id)

    def check(self, number: str, plan: StepPlan, at: str, record: CallRecord) -> None:
        """Compare a step with its record. Raises `WorkflowChangedError`, which ends the run whatever the body does."""
        try:
            if not self._replays and self.fold.is_erased(record):
                text = (
                    f"step {number} ({plan.name}) of the workflow has lost values to an erasure, and the workflow would "
                    "continue with marks in their place: start a new session"
                )
                raise WorkflowChangedError(text, step=number)
            check_record(number, plan, at, record, self._run.parts.masked)
        except WorkflowChangedError as error:
            # The body may catch the error that is raised, but not this record of it.
            self.failure = self.failure or error
            raise

    async def read_output(self, result: ToolResult) -> Any:
        """Return the output of a step, even if it was too long for the log."""
        output = result.output
        if not (isinstance(output, Mapping) and output.get("truncated") is True and "blob" in output):
            return output
        data = await off_loop(True, self._run.agent.store.read_blob, self._run.session_id, output["blob"])
        # A function may return text with lone surrogates, and JSON of the log can express them.
        text = data.decode("utf-8", "surrogatepass")
        return text if (result.meta or {}).get("is_text") else loads_json(text)

    def arguments(self) -> tuple[Mapping[str, Any], str]:
        """The arguments of the current history, and the prefix of its steps' ids."""
        arguments, history = read_prompt(self.fold.prompt or "", self._name)
        return arguments, "" if history == 1 else f"h{history}-"

    def note(self, *events: Event) -> None:
        """Keep events, to store them together with the next step or with the end."""
        self._unstored += events

    async def record(self, *events: Event) -> list[Event]:
        """Store the noted events, then these; return all of them as stored."""
        unstored, self._unstored = self._unstored, []
        return await self._run.record(*unstored, *events)

    async def begin_anew(self, arguments: Mapping[str, Any]) -> None:
        """Start the workflow over with `arguments`; the history so far is hidden from later steps and never read again."""
        prompt = loads_json(self.fold.prompt or "")
        prompt |= {"arguments": dict(arguments), "history": int(prompt.get("history", 1)) + 1}
        text = f"the workflow restarted after {len(self.fold.ids())} steps"
        await self.record(
            SessionCompacted(self._run.view.events[-1].seq or 0, text, trigger="workflow", method="restart")
        )
        await self.record(UserMessage(dumps_json(prompt), origin="part", about=RESTARTED))

    async def cut(self, steps: int) -> None:
        """Store the finished steps beside the log once `steps` of them, and an eighth of all, have ended since the last cut.

        The next run then need not read all of the log.
        """
        fold = self.fold
        # Each cut writes all finished steps, so cuts grow rarer as the history grows, and their sum stays proportional
        # to it.
        if fold.finished < steps or fold.finished * 8 < len(fold.ids()):
            return
        open_seqs = [record.use.seq or 0 for record in fold.calls.values() if record.result is None]
        # A call must not be separated from its result, so the cut ends before the first call that has none.
        up_to = min(open_seqs, default=(self._run.view.events[-1].seq or 0) + 1) - 1
        fold.finished = 0
        if up_to > self._run.view.conversation.horizon:
            text = f"{len(fold.ids())} steps of the workflow"
            await self.record(SessionCompacted(up_to, text, trigger="workflow", method="steps"))


def read_prompt(text: str, workflow: str) -> tuple[Mapping[str, Any], int]:
    """Parse the prompt of a session of this workflow: its arguments, and the number of its history, starting at 1.

    Raises `OptionsError` for the prompt of another workflow, and for any other text.
    """
    try:
        prompt = loads_json(text)
        name, arguments, history = prompt["workflow"], dict(prompt["arguments"]), int(prompt.get("history", 1))
    except (ValueError, KeyError, TypeError) as error:
        raise OptionsError(
            f'the prompt of a workflow must be {{"workflow": "{workflow}", "arguments": {{...}}}} as JSON ({error})'
        ) from error
    if name != workflow:
        raise OptionsError(f"this session belongs to the workflow {name!r}, not {workflow!r}")
    return arguments, history
