"""A run's questions to people: each is answered from the log if it has the answer, otherwise asked once or parked."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from ..events import UserAnswer, UserQuestion
from ..ground.frozen import changed
from ..ground.threads import call_guest
from .lifetime import RunStopped

if TYPE_CHECKING:
    from .agent import Run


class RunQuestions:
    """The questions of one run. `parked` are those that stay open when the run ends, by the id of the call that asks them;
    `taken_ids` are those that this run has asked or found answered.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.parked: dict[str | None, UserQuestion] = {}
        self.taken_ids: set[str] = set()

    async def ask(self, question: UserQuestion) -> UserAnswer:
        """Return the recorded answer to a question; otherwise ask a person, and record question and answer.

        The answer is empty if nobody can be asked. Raises `RunStopped` if the run parks. Notification hooks run meanwhile.
        """
        run = self._run
        question = run.recorder.masked(question)  # an earlier question is logged as it was stored
        earlier_answer = run.view.answer_to(question, self.taken_ids)
        if earlier_answer is not None:
            self.taken_ids.add(earlier_answer.question_id)
            return earlier_answer
        if not run.can_ask:
            return UserAnswer(question.question_id, "")
        open_question = run.view.open_question_like(question, self.taken_ids)
        question = open_question or question
        self.taken_ids.add(question.question_id)
        try:
            if open_question is None:
                await run.record(question)
            payload = {"message": question.prompt, "kind": question.kind}
            # Beside the question, because a notification that takes long must not keep a person from answering.
            notified = asyncio.create_task(run.hooks.run("notification", payload, tool_use_id=question.tool_use_id))
            try:
                if run.request.parks:
                    # The run ends here, which would cancel a notification that is not sent yet.
                    await notified
                    self.park(question)
                    raise RunStopped("waiting", f"waiting for an answer to question {question.question_id}")
                reply = await call_guest(partial(run.agent.gate.answer, question), "who answers questions")
                await notified
            finally:
                notified.cancel()
            if not isinstance(reply, UserAnswer):
                # A caller's answerer may return anything.
                reply = UserAnswer("", reply if isinstance(reply, str) else "")
            answer = changed(reply, question_id=question.question_id)
            await run.record(answer)
            return answer
        except asyncio.CancelledError:
            # Stopping a run leaves its question open, so park it; an interrupt by a person or the time limit closes it.
            if run.lifetime.stopping.asked != "interrupt" and run.lifetime.deadline.remaining_s() != 0:
                self.park(question)
            raise

    def park(self, question: UserQuestion) -> None:
        """Leave a question, and the call that asks it, open when this run ends."""
        self.parked[question.tool_use_id] = question
