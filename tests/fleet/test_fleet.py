"""The queue of a fleet in one process: adding, ordering, answering, cancelling and following runs."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
import unittest
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from openagentic_sdk import OpenAgenticOptions, run
from openagentic_sdk.agents import NamedAgent
from openagentic_sdk.errors import (
    AgentNotFoundError,
    AnswerRefusedError,
    FleetError,
    FleetStoreError,
    OptionsError,
    RunLostError,
    RunNotFoundError,
    SessionNotFoundError,
    StorageError,
)
from openagentic_sdk.events import Event, Result, ToolStarted, UserAnswer, UserMessage
from openagentic_sdk.fleet import Fleet, FleetRun, Worker, execute_run
from openagentic_sdk.fleet.execute import _leave, carry_out
from openagentic_sdk.fleet.lease import Heart, Lease
from openagentic_sdk.fleet.queue import Claimer
from openagentic_sdk.fleet.record import FORMAT, RunOutcome
from openagentic_sdk.ground.clock import elapsed_s
from openagentic_sdk.parts.record.lifecycle import rename_session, rewind_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.base import Message, ModelOutput
from openagentic_sdk.runs.background import answer_question, cancel_session
from openagentic_sdk.sessions.core import SessionWriter
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from tests.size import IN_MEMORY, full_size

from .payments import Payer, pay
from .places import FleetTest, PostgresFleetTest, postgres_url

ANYBODY = Claimer("somebody", 30.0, ("payer", "asker"))
DEAD = Claimer("dead", -1.0, ("payer", "asker"))


class QueueTest(FleetTest):
    def work(self, **settings: Any) -> list[tuple[int, str]]:
        """Work in this process until nothing is due; return the outcome of each run."""
        seen: list[tuple[int, str]] = []

        async def work() -> None:
            worker = Worker(self.fleet, report=lambda run, what: seen.append((run.id, what)), **settings)
            await worker.work(until_idle=True)

        asyncio.run(work())
        return seen

    def ended(self, *run_ids: int) -> None:
        self.assertEqual([self.status(each).state for each in run_ids], ["ended"] * len(run_ids))

    def test_a_run_stores_its_prompt_once_under_its_request_id_and_ends_with_its_log(self) -> None:
        run_id = self.pay("k")
        self.assertEqual(self.work(), [(run_id, "running"), (run_id, "ended")])
        run = self.status(run_id)
        prompts = [event for event in self.store.read_events(run.session) if isinstance(event, UserMessage)]
        self.assertEqual([(event.text, event.request_id) for event in prompts], [("pay k 0.0", "k")])
        self.assertEqual((run.attempts, run.stop_reason, run.lease_left_s), (1, "end", None))
        self.check_ended(run_id, "k")

    def test_the_same_request_is_put_there_once_and_another_under_its_id_is_refused(self) -> None:
        first = self.pay("k")
        self.assertEqual(self.pay("k"), first)
        with self.assertRaises(FleetError) as caught:
            self.run_async(self.fleet.enqueue("payer", "something else", request_id="k"))
        self.assertEqual(caught.exception.run_id, first)
        other = self.run_async(self.fleet.enqueue("payer", "something else", request_id="k", tenant="t"))
        self.assertNotEqual(other, first)
        self.work()
        self.assertEqual(self.pay("k"), first)

    def test_a_run_that_cannot_start_is_refused_with_its_reason_and_leaves_nothing(self) -> None:
        self.store.create_session(session_id="theirs", metadata={"tenant": "them"})
        for error, agent, prompt, more in (
            (AgentNotFoundError, "nobody", "x", {}),
            (OptionsError, "payer", "", {}),
            (OptionsError, "payer", None, {}),
            (OptionsError, "payer", 7, {}),
            (OptionsError, "payer", [{"type": "image", "path": "/etc/passwd"}], {}),
            (OptionsError, "payer", "x", {"run_at": datetime.fromisoformat("2026-01-01T00:00:00")}),
            (OptionsError, "payer", "x", {"run_at": float("nan")}),
            (OptionsError, "payer", "x", {"priority": 1.5}),
            (OptionsError, "payer", "x", {"priority": 10**12}),
            (OptionsError, "payer", "x", {"queue": ""}),
            (OptionsError, "payer", "x", {"tenant": "a\0b"}),
            (OptionsError, "payer", "x", {"request_id": "\ud800"}),
            (OptionsError, "payer", "x", {"session": "a\nb"}),
            (OptionsError, "payer", "x", {"max_attempts": 0}),
            (OptionsError, "payer", "x", {"wishes": {"permission_mode": "bypass"}}),
            (OptionsError, "payer", "x" * (9 << 20), {}),
            (SessionNotFoundError, "payer", "x", {"session": "theirs"}),
            (OptionsError, "payer", "x", {"connection": object()}),
        ):
            with self.subTest(prompt=str(prompt)[:20], **more), self.assertRaises(error):
                self.run_async(self.fleet.enqueue(agent, prompt, **more))
        self.assertEqual(self.fleet.queue.rows(), [])
        with self.assertRaises(RunNotFoundError):
            self.run_async(self.fleet.status(99))
        with self.assertRaises(OptionsError):
            self.run_async(Fleet(self.store).enqueue("payer", "x"))

    def test_a_store_that_is_not_a_database_is_refused_with_a_remedy(self) -> None:
        for store in (MemorySessionStore(), FileSessionStore(self.folder), "redis://127.0.0.1:1/0", "memory:"):
            try:
                with self.assertRaises(FleetStoreError) as caught:
                    Fleet(store)
            except OptionsError as missing:  # the Redis driver is not installed
                self.assertIn("driver", str(missing))
                continue
            self.assertIn("postgresql://", str(caught.exception))

    def test_higher_priorities_come_first_and_what_is_not_due_waits(self) -> None:
        enqueue = self.fleet.enqueue
        low = self.run_async(enqueue("payer", "pay low 0"))
        high = self.run_async(enqueue("payer", "pay high 0", priority=5))
        later = self.run_async(enqueue("payer", "pay later 0", priority=9, run_at=time.time() + 3600))
        past = datetime(2020, 1, 1, tzinfo=UTC)
        self.run_async(enqueue("payer", "pay past 0", run_at=past, queue="other"))
        begun = [run_id for run_id, what in self.work(slots=1, queues=["default"]) if what == "running"]
        self.assertEqual(begun, [high, low])
        self.assertEqual(self.status(later).state, "queued")

    def test_runs_of_one_session_come_one_after_the_other_even_after_one_that_is_parked(self) -> None:
        first = self.run_async(self.fleet.enqueue("asker", "pay a 0", session="s"))
        second = self.run_async(self.fleet.enqueue("payer", "pay b 0", session="s", priority=9))
        self.assertEqual(self.work(), [(first, "running"), (first, "waiting")])
        self.assertEqual(self.status(second).state, "queued")
        self.run_async(self.fleet.answer(first, None, "yes"))
        self.work()
        self.ended(first, second)
        self.assertEqual(list(self.payments()), ["a", "b"])

    def test_a_prompt_that_is_queued_after_a_question_ends_it_and_the_run_that_asked(self) -> None:
        first = self.run_async(self.fleet.enqueue("asker", "pay a 0", session="s"))
        before = self.run_async(self.fleet.enqueue("payer", "pay b 0", session="s"))
        self.work()
        self.assertEqual((self.status(first).state, self.status(before).state), ("waiting", "queued"))
        question = self.run_async(self.fleet.questions(first))[0].question_id
        late = self.run_async(self.fleet.enqueue("payer", "pay c 0", session="s"))
        self.work()
        self.work()
        self.ended(before, late)
        stopped = self.status(first)
        self.assertEqual((stopped.state, stopped.stop_reason), ("cancelled", "interrupted"))
        self.assertIn("another prompt", str(stopped.error))
        self.assertEqual(list(self.payments()), ["b", "c"])
        [end] = [event for event in self.store.read_events("s") if isinstance(event, UserAnswer)]
        self.assertEqual((end.question_id, end.answered_by), (question, "superseded"))
        for run_id in (first, late):
            with self.assertRaises(FleetError):
                self.run_async(self.fleet.answer(run_id, question, "yes"))

    def test_a_queued_prompt_of_somebody_who_may_not_answer_fails_where_a_question_waits(self) -> None:
        first = self.run_async(self.fleet.enqueue("asker", "pay a 0", session="s"))
        self.work()
        prompt = {"content": "pay b 0", "may_answer": False}
        late = self.run_async(self.fleet.enqueue("payer", prompt, session="s"))
        log = self.store.read_events("s")
        self.work()
        self.assertEqual((self.status(first).state, self.status(late).state), ("waiting", "failed"))
        self.assertIn("awaits an answer", str(self.status(late).error))
        self.assertEqual(self.store.read_events("s"), log)

    def test_a_parked_run_holds_nothing_and_an_answer_through_any_door_wakes_it(self) -> None:
        ids = [self.pay(f"p{number}", agent="asker") for number in range(2)]
        self.work()
        for run_id in ids:
            run = self.status(run_id)
            self.assertEqual((run.state, run.owner, run.lease_left_s, run.attempts), ("waiting", "", None, 0))
            self.store.open_writer(run.session).close()
        question = self.run_async(self.fleet.questions(ids[1]))[0].question_id
        self.run_async(self.fleet.answer(ids[0], None, "yes"))
        self.run_async(answer_question(self.store, run.session, question, "yes"))
        self.work()
        self.ended(*ids)
        self.assertEqual([self.status(run_id).attempts for run_id in ids], [1, 1])
        with self.assertRaises(FleetError):
            self.run_async(self.fleet.answer(ids[0], question, "again"))

    def test_other_events_in_a_parked_session_wake_no_run(self) -> None:
        run_id = self.pay("p", agent="asker")
        self.work()
        session = self.status(run_id).session
        rename_session(self.store, session, "A title")
        self.assertEqual(self.work(), [])
        with self.assertRaises(FleetError):
            self.run_async(self.fleet.answer(run_id, "no such question", "yes"))
        later = self.pay("later")
        with self.assertRaisesRegex(FleetError, f"run {later} is queued and does not wait for an answer"):
            self.run_async(self.fleet.answer(later, None, "yes"))
        self.run_async(self.fleet.cancel(later))
        with self.assertRaisesRegex(AnswerRefusedError, "'approve' is not a valid answer"):
            self.run_async(self.fleet.answer(run_id, None, "approve"))
        self.assertEqual(self.status(run_id).state, "waiting")
        self.run_async(self.fleet.answer(run_id, None, "yes"))
        self.work()
        self.ended(run_id)

    def test_a_worker_without_the_tool_of_an_answered_call_leaves_the_run_to_one_that_has_it(self) -> None:
        run_id = self.pay("k", agent="asker")
        self.work()
        self.run_async(self.fleet.answer(run_id, None, "yes"))
        options = OpenAgenticOptions(
            provider=Payer(),
            model="payer",
            permission_gate=PermissionGate(permission_mode="prompt"),
            setting_sources=(),
        )
        able, self.fleet = self.fleet, Fleet(self.store, {"asker": NamedAgent(lambda: options)})
        self.addCleanup(self.fleet.close)
        for least_s in (0.5, 1.0, 2.0):
            before = self.fleet.queue.now()
            [_, (_, what)] = self.work()
            self.assertTrue(what.startswith("handed back: this process lacks the tool 'pay'"), what)
            run = self.status(run_id)
            self.assertEqual((run.state, run.attempts, run.is_parked), ("queued", 0, False))
            self.assertGreaterEqual(run.run_at - before, least_s)
            self.make_due(run_id)
        self.fleet = able
        self.assertEqual(self.work(), [(run_id, "running"), (run_id, "ended")])
        self.check_ended(run_id, "k")

    def test_a_run_without_a_prompt_that_fails_is_over_as_one_with_a_prompt(self) -> None:
        class Broken(Payer):
            async def complete(self, **_: Any) -> ModelOutput:
                raise ValueError("no such model")

        broken = OpenAgenticOptions(provider=Broken(), model="payer", setting_sources=())
        self.fleet = Fleet(self.store, {"payer": NamedAgent(lambda: broken)})
        self.addCleanup(self.fleet.close)
        for prompt in ("pay a 0", None):
            run_id = self.run_async(self.fleet.enqueue("payer", prompt, session="s"))
            self.assertEqual(self.work(), [(run_id, "running"), (run_id, "failed: no such model")])
            self.assertEqual((self.status(run_id).state, self.status(run_id).stop_reason), ("failed", "error"))

    def test_a_run_whose_result_was_not_stored_is_not_over_and_waits_longer_each_time(self) -> None:
        open_writer, refusals = self.store.open_writer, 3

        def open_refusing(session_id: str) -> SessionWriter:
            writer = open_writer(session_id)
            append = writer.append

            def append_but_refuse_the_result(events: Sequence[Event]) -> list[Event]:
                nonlocal refusals
                if refusals and any(isinstance(event, Result) for event in events):
                    refusals -= 1
                    raise StorageError("the connection is gone")
                return append(events)

            writer.append = append_but_refuse_the_result  # type: ignore[method-assign]
            return writer

        self.store.open_writer = open_refusing  # type: ignore[method-assign]
        run_id = self.pay("k")
        for least_s in (2.0, 4.0, 8.0):
            before = self.fleet.queue.now()
            [_, (_, what)] = self.work()
            self.assertEqual(what, "handed back: its result could not be stored")
            self.assertGreaterEqual(self.status(run_id).run_at - before, least_s)
            self.make_due(run_id)
        self.assertEqual(self.work(), [(run_id, "running"), (run_id, "ended")])
        self.check_ended(run_id, "k")

    def test_a_worker_whose_wait_for_notifications_fails_continues_by_polling_and_reports_no_traceback(self) -> None:
        run_id, complaints = self.pay("k"), list[Any]()
        ended, failed = threading.Event(), threading.Event()
        tables, claim = self.fleet.queue.tables, self.fleet.queue.claim

        def wait(channel: str, timeout_s: float) -> bool:
            ended.wait()
            if failed.is_set():
                worker.drain()
            failed.set()
            raise StorageError("the connection is gone")

        def claim_after_failure(*args: Any, **settings: Any) -> FleetRun | None:
            if ended.is_set():
                failed.wait()
            return claim(*args, **settings)

        def report(run: FleetRun, what: str) -> None:
            if what == "ended":
                ended.set()

        async def work() -> None:
            nonlocal worker
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
            worker = Worker(self.fleet, slots=2, report=report)
            await worker.work()
            gc.collect()

        worker: Worker
        tables.wait, self.fleet.queue.claim = wait, claim_after_failure  # type: ignore[method-assign]
        asyncio.run(work())
        self.assertEqual(complaints, [])
        self.ended(run_id)

    @full_size
    def test_a_cancel_ends_what_is_queued_parked_or_running_and_closes_its_log(self) -> None:
        parked, queued = self.pay("parked", agent="asker"), self.pay("queued")
        self.assertTrue(self.run_async(self.fleet.cancel(queued)))
        self.work()
        self.assertTrue(self.run_async(self.fleet.cancel(parked, cancelled_by="ann")))
        self.assertFalse(self.run_async(self.fleet.cancel(parked)))
        summary = self.store.read_summary(self.status(parked).session)
        self.assertEqual((summary.open_questions, summary.state), ((), "idle"))
        running = self.pay("running", 600.0)

        async def cancel_while_it_runs() -> None:
            worker = Worker(self.fleet)
            working = asyncio.create_task(worker.work(until_idle=True))
            await asyncio.to_thread(self.until, lambda: self.payments()["running"])
            self.assertTrue(await self.fleet.cancel(running))
            await working

        asyncio.run(cancel_while_it_runs())
        states = [(self.status(each).state, self.status(each).cancelled_by) for each in (queued, parked, running)]
        self.assertEqual(states, [("cancelled", "user"), ("cancelled", "ann"), ("cancelled", "user")])
        last = self.store.read_events(self.status(running).session)[-1]
        assert isinstance(last, Result)
        self.assertEqual(last.stop_reason, "interrupted")

    def test_cancelling_a_queued_run_leaves_another_one_of_its_session_parked(self) -> None:
        first = self.run_async(self.fleet.enqueue("asker", "pay a 0", session="s"))
        second = self.run_async(self.fleet.enqueue("payer", "pay b 0", session="s"))
        self.work()
        self.run_async(self.fleet.cancel(second))
        self.assertEqual(self.status(first).state, "waiting")
        self.assertEqual(len(self.store.read_summary("s").open_questions), 1)

    def test_a_session_that_was_ended_rewound_or_deleted_while_its_run_was_parked_ends_the_run(self) -> None:
        ended, deleted, rewound = (self.pay(name, agent="asker") for name in "edr")
        self.work()
        rewind_session(self.store, self.status(rewound).session, turns=1)
        self.assertEqual(self.run_async(self.fleet.questions(rewound)), [])
        self.run_async(cancel_session(self.store, self.status(ended).session))
        self.store.delete_session(self.status(deleted).session)
        self.work()
        states = [self.status(each).state for each in (ended, deleted, rewound)]
        self.assertEqual(states, ["cancelled", "failed", "cancelled"])
        self.assertEqual(self.payments(), {})

    def test_a_run_whose_model_fails_is_failed_with_its_words_and_is_not_tried_again(self) -> None:
        run_id = self.run_async(self.fleet.enqueue("payer", "pay"))
        self.assertEqual(len(self.work()), 2)
        run = self.status(run_id)
        self.assertEqual(
            (run.state, run.stop_reason, run.error, run.attempts), ("failed", "error", "list index out of range", 1)
        )

    def test_a_retry_continues_after_finished_effects_and_sends_a_prompt_that_was_never_stored(self) -> None:
        asked: list[int] = []

        class Broken(Payer):
            async def complete(self, *, messages: Sequence[Message], **settings: Any) -> ModelOutput:
                asked.append(len(messages))
                if messages[-1]["role"] == "tool":
                    raise ValueError("no such model")
                return await super().complete(messages=messages, **settings)

        def at_work(provider: Payer) -> None:
            options = OpenAgenticOptions(
                provider=provider,
                model="payer",
                tools=(pay,),
                setting_sources=(),
                permission_gate=PermissionGate(permission_mode="bypass"),
            )
            self.fleet = Fleet(self.store, {"payer": NamedAgent(lambda: options)})
            self.addCleanup(self.fleet.close)

        at_work(Broken())
        failed = self.run_async(self.fleet.enqueue("payer", "pay a 0", tenant="acme", queue="fast", priority=3))
        self.work()
        self.assertEqual((self.status(failed).state, self.payments()), ("failed", {"a": 1}))
        at_work(Payer())
        retry = self.run_async(self.fleet.retry(failed))
        self.assertEqual(self.run_async(self.fleet.retry(failed)), retry)
        with self.assertRaisesRegex(FleetError, f"run {retry} is queued: only a run that is over"):
            self.run_async(self.fleet.retry(retry))
        self.work()
        self.ended(retry)
        self.assertEqual((len(asked), self.payments()), (2, {"a": 1}))
        was, now = self.status(failed), self.status(retry)
        kept = ("session", "tenant", "queue", "priority", "agent", "max_attempts")
        self.assertEqual([getattr(now, name) for name in kept], [getattr(was, name) for name in kept])
        # Its prompt never reached the session: the tenant's budget was spent.
        self.fleet.queue.limits.set_budget("poor", 0.0, None)
        unsaid = self.run_async(self.fleet.enqueue("payer", "pay b 0", tenant="poor"))
        self.work()
        self.assertIn(f"fleet retry {unsaid}", self.status(unsaid).error or "")
        self.fleet.queue.limits.set_budget("poor", 9.0, None)
        again = self.run_async(self.fleet.retry(unsaid))
        self.work()
        self.ended(again)
        self.assertEqual(self.payments(), {"a": 1, "b": 1})

    def test_a_run_that_cannot_be_retried_is_refused_with_a_remedy(self) -> None:
        ended = self.pay("k")
        self.work()
        failed = self.run_async(self.fleet.enqueue("payer", "pay", session="s"))
        self.work()
        self.run_async(self.fleet.enqueue("payer", "pay l 0", session="s"))
        self.work()
        cancelled = self.pay("m")
        self.run_async(self.fleet.cancel(cancelled))
        for run_id, words in (
            (ended, "ended by itself: `fleet enqueue payer PROMPT --session"),
            (cancelled, "was cancelled permanently: `fleet enqueue payer --session"),
            (failed, "has continued with another prompt since; enqueue its task again"),
        ):
            with self.assertRaisesRegex(FleetError, words):
                self.run_async(self.fleet.retry(run_id))

    def test_the_log_decides_what_happened_and_the_row_follows_it(self) -> None:
        run_id = self.pay("k")
        claimed = self.fleet.queue.claim(DEAD)
        assert claimed is not None
        options = self.fleet.agents.options(
            "payer", session_store=self.store, session_id=claimed.session, request_id="k"
        )
        asyncio.run(run(prompt=claimed.prompt, options=options))
        seq = self.store.last_seq(claimed.session)
        self.work()
        self.ended(run_id)
        self.assertEqual(self.store.last_seq(claimed.session), seq)
        self.assertEqual(self.payments(), {"k": 1})

    def test_only_the_owner_at_the_newest_fence_moves_a_run(self) -> None:
        self.pay("k")
        queue = self.fleet.queue
        first = queue.claim(DEAD)
        second = queue.claim(ANYBODY)
        assert first is not None and second is not None
        self.assertEqual((second.fence, second.lost_owner, second.attempts), (first.fence + 1, "dead", 2))
        self.assertFalse(queue.leave(first, RunOutcome("ended")))
        self.assertEqual(queue.beat({first.id: first.fence}, 30.0, 5.0), {})
        self.assertEqual(queue.beat({second.id: second.fence}, 30.0, 5.0), {second.id: False})
        self.assertIsNone(queue.claim(ANYBODY))
        self.assertTrue(queue.leave(second, RunOutcome("queued")))
        self.assertEqual((self.status(first.id).state, self.status(first.id).attempts), ("queued", 1))

    def test_a_run_of_a_newer_format_is_left_for_a_newer_version(self) -> None:
        run_id = self.pay("k")
        command = "UPDATE openagentic_runs SET format = %s RETURNING id"
        self.fleet.queue.tables.change(lambda execute: execute(command, (FORMAT + 1,)))
        self.assertEqual(self.work(), [])
        with self.assertRaises(FleetError) as caught:
            self.run_async(execute_run(self.fleet, run_id))
        self.assertIn("upgrade", str(caught.exception))
        self.assertEqual(self.status(run_id).state, "queued")

    def test_execute_run_may_be_called_as_often_and_by_as_many_as_one_likes(self) -> None:
        run_id, parked = self.pay("k", 0.1), self.pay("p", agent="asker")

        async def all_at_once() -> list[FleetRun]:
            return await asyncio.gather(*(execute_run(self.fleet, run_id) for _ in range(3)))

        self.assertEqual({run.state for run in asyncio.run(all_at_once())}, {"ended"})
        self.assertEqual(self.run_async(execute_run(self.fleet, run_id)).state, "ended")
        self.assertEqual(self.check_ended(run_id, "k"), "ok")
        self.assertEqual(self.run_async(execute_run(self.fleet, parked)).state, "waiting")

    def test_execute_run_continues_with_what_a_dead_process_left(self) -> None:
        run_id = self.pay("k")
        self.fleet.queue.claim(DEAD)
        self.assertEqual(self.run_async(execute_run(self.fleet, run_id)).attempts, 2)
        self.check_ended(run_id, "k")

    @full_size
    def test_a_cancelled_execute_run_hands_the_run_back(self) -> None:
        run_id = self.pay("k", 600.0)

        async def cancelled() -> None:
            task = asyncio.create_task(execute_run(self.fleet, run_id))
            await asyncio.to_thread(self.until, lambda: self.payments()["k"])
            task.cancel()
            await asyncio.wait({task})

        asyncio.run(cancelled())
        self.assertEqual((self.status(run_id).state, self.status(run_id).attempts), ("queued", 0))

    def test_a_run_that_lost_its_lease_starts_nothing_and_writes_nothing_more(self) -> None:
        run_id = self.pay("k")

        async def lose() -> None:
            claimed = self.fleet.queue.claim(ANYBODY)
            assert claimed is not None
            lease = Lease(claimed, 30.0, elapsed_s(), elapsed_s)
            lease.lose()
            with self.assertRaises(RunLostError):
                lease.check()
            self.assertIsNone(await carry_out(self.fleet, lease, asyncio.Event(), 0.0))

        asyncio.run(lose())
        self.assertEqual(self.status(run_id).state, "running")
        self.assertFalse(self.store.session_exists(self.status(run_id).session))

    def test_a_lease_ends_by_the_clock_of_its_process_when_no_beat_is_answered(self) -> None:
        self.pay("k")

        async def wait() -> None:
            claimed = self.fleet.queue.claim(ANYBODY)
            assert claimed is not None
            lease = Lease(claimed, 0.2, elapsed_s(), elapsed_s)
            self.fleet.queue.leave(claimed, RunOutcome("queued"))
            heart = Heart(self.fleet.queue, 0.2)
            heart.hold(lease)
            await asyncio.wait_for(lease.changed.wait(), 60)
            self.assertTrue(lease.is_lost)
            self.assertEqual(heart.leases(), [])

        asyncio.run(wait())

    def test_the_outcome_of_a_run_whose_session_cannot_be_read_is_written_without_what_it_used(self) -> None:
        if not isinstance(self.store, SqliteSessionStore):
            self.skipTest("it damages the file of an SQLite store")
        run_id, path = self.pay("k"), self.store.path

        async def leave() -> bool:
            claimed = self.fleet.queue.claim(ANYBODY)
            assert claimed is not None
            self.store.create_session(session_id=claimed.session)
            self.store.append_event(claimed.session, UserMessage("hi"))
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("UPDATE events SET data = 'damaged'")
            lease = Lease(claimed, 30.0, elapsed_s(), elapsed_s)
            return await _leave(self.fleet, lease, RunOutcome("failed", "error", "gone"), 0)

        self.assertTrue(asyncio.run(leave()))
        self.assertEqual((self.status(run_id).state, self.status(run_id).error), ("failed", "gone"))

    def test_a_lease_ends_early_enough_to_stop_and_is_not_renewed_once_it_has_ended(self) -> None:
        self.pay("k")

        async def lapse() -> None:
            claimed = self.fleet.queue.claim(ANYBODY)
            assert claimed is not None
            now = 100.0
            lease = Lease(claimed, 30.0, 100.0, lambda: now)
            self.assertAlmostEqual(lease.left_s, 27.0)
            now = 110.0
            lease.renew(30.0, 105.0)
            self.assertAlmostEqual(lease.left_s, 22.0)
            lease.check()
            now = 132.5
            self.assertEqual((lease.left_s, lease.is_lost), (0.0, True))
            lease.renew(30.0, 132.5)
            with self.assertRaises(RunLostError):
                lease.check()

        asyncio.run(lapse())

    def test_its_events_can_be_followed_from_before_it_begins_to_its_end(self) -> None:
        run_id = self.pay("k")

        async def follow() -> tuple[list[Any], list[Any]]:
            working = asyncio.create_task(Worker(self.fleet).work(until_idle=True))
            events = [event async for event in self.fleet.events(run_id)]
            await working
            return events, [event async for event in self.fleet.events(run_id, after_seq=3)]

        events, rest = asyncio.run(follow())
        self.assertEqual(events, self.store.read_events(self.status(run_id).session))
        self.assertEqual(rest, events[3:])
        self.assertEqual(sum(isinstance(event, ToolStarted) for event in events), 1)


class SlowStore(SqliteSessionStore):
    """A store whose `open_writer` returns only when allowed to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_open, self.may_return = threading.Event(), threading.Event()

    def open_writer(self, session_id: str) -> SessionWriter:
        writer = super().open_writer(session_id)
        self.is_open.set()
        self.may_return.wait(60)
        return writer


class LateOpeningTest(FleetTest):
    def test_a_session_that_another_one_took_over_is_not_reclaimed_by_the_run_that_created_it(self) -> None:
        store = SlowStore(Path(self.folder, "fleet.db"))
        self.addCleanup(store.close)

        async def open_late() -> None:
            options = self.fleet.agents.options("payer", session_store=store, session_id="s")
            opening = asyncio.create_task(run(prompt="pay k 0", options=options))
            await asyncio.to_thread(store.is_open.wait, 60)
            opening.cancel()
            with self.store.take_over("s") as writer:
                writer.append([UserMessage("somebody else's")])
            store.may_return.set()
            await asyncio.wait({opening})

        asyncio.run(open_late())
        self.assertEqual(len(self.store.read_events("s")), 1)


class ClaimTest(FleetTest):
    def test_a_worker_is_not_idle_before_it_has_looked_behind_a_run_that_ended_during_a_claim(self) -> None:
        first, second = [self.run_async(self.fleet.enqueue("payer", f"pay {key} 0", session="s")) for key in "ab"]
        ended, claim = threading.Event(), self.fleet.queue.claim

        def claim_slowly(*args: Any, **settings: Any) -> FleetRun | None:
            claimed = claim(*args, **settings)
            if claimed is None:
                ended.wait(60)
            return claimed

        def report(run: FleetRun, what: str) -> None:
            if what == "ended":
                ended.set()

        self.fleet.queue.claim = claim_slowly  # type: ignore[method-assign]
        self.run_async(Worker(self.fleet, report=report).work(until_idle=True))
        self.assertEqual([self.status(run_id).state for run_id in (first, second)], ["ended", "ended"])

    def test_a_worker_asks_its_queue_in_threads_that_it_keeps(self) -> None:
        for key in "abcdef":
            self.pay(key)
        threads, claim = [], self.fleet.queue.claim

        def claim_here(*args: Any, **settings: Any) -> FleetRun | None:
            threads.append(threading.current_thread())
            return claim(*args, **settings)

        self.fleet.queue.claim = claim_here  # type: ignore[method-assign]
        self.run_async(Worker(self.fleet, slots=1).work(until_idle=True))
        self.assertGreaterEqual(len(threads), 7)
        # Beside a claim, at most a wait for notifications, a run and its lease call the database.
        self.assertLessEqual(len(set(threads)), 4)

    def test_a_run_that_the_database_grants_to_a_worker_being_cancelled_is_handed_back(self) -> None:
        run_id = self.pay("k")
        works = (lambda: Worker(self.fleet).work(), lambda: execute_run(self.fleet, run_id))
        for work in works:
            asyncio.run(self.cancel_in_claim(work))
            run = self.status(run_id)
            self.assertEqual((run.state, run.attempts), ("queued", 0))

    async def cancel_in_claim(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        granted, may_answer, claim = threading.Event(), threading.Event(), self.fleet.queue.claim

        def claim_slowly(*args: Any, **settings: Any) -> FleetRun | None:
            claimed = claim(*args, **settings)
            granted.set()
            may_answer.wait(60)
            return claimed

        self.fleet.queue.claim = claim_slowly  # type: ignore[method-assign]
        try:
            working = asyncio.create_task(work())
            await asyncio.to_thread(granted.wait, 60)
            working.cancel()
            may_answer.set()
            with self.assertRaises(asyncio.CancelledError):
                await working
        finally:
            self.fleet.queue.claim = claim  # type: ignore[method-assign]


class HangingPayer(Payer):
    """A payer that hangs the first time it is asked."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def complete(self, **request: Any) -> ModelOutput:
        if not self.is_asked.is_set():
            self.is_asked.set()
            await self.may_answer.wait()
        return await super().complete(**request)


class LostRunTest(FleetTest):
    def test_a_worker_that_lost_its_run_leaves_the_question_open_that_the_next_worker_asked(self) -> None:
        reported = list[Any]()

        async def lose() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
            model = HangingPayer()
            gate = PermissionGate(permission_mode="prompt")
            options = OpenAgenticOptions(
                provider=model, model="payer", tools=[pay], permission_gate=gate, cwd=self.folder
            )
            fleet = Fleet(self.store, {"asker": NamedAgent(options)})
            run_id = await fleet.enqueue("asker", "pay k 0")
            claimed = fleet.queue.claim(DEAD)
            assert claimed is not None
            lease = Lease(claimed, 30.0, elapsed_s(), elapsed_s)
            hanging = asyncio.create_task(carry_out(fleet, lease, asyncio.Event(), 0.0))
            await asyncio.wait_for(model.is_asked.wait(), 60)
            await Worker(fleet).work(until_idle=True)
            lease.lose()
            self.assertIsNone(await asyncio.wait_for(hanging, 60))
            self.assertEqual((await fleet.status(run_id)).state, "waiting")
            self.assertEqual(len(await fleet.questions(run_id)), 1)

        asyncio.run(lose())
        gc.collect()
        self.assertEqual(reported, [])


class CallersTransactionTest(FleetTest):
    def test_a_run_is_part_of_the_callers_transaction(self) -> None:
        self.store.list_sessions()
        db = sqlite3.connect(self.url.removeprefix("sqlite:"))
        self.addCleanup(db.close)
        db.row_factory = sqlite3.Row
        db.execute("CREATE TABLE orders (id INTEGER)")
        for ends_well in (False, True):
            db.execute("INSERT INTO orders VALUES (1)")
            run_id = self.run_async(self.fleet.enqueue("payer", "pay k 0", request_id="k", connection=db))
            again = self.run_async(self.fleet.enqueue("payer", "pay k 0", request_id="k", connection=db))
            self.assertEqual(again, run_id)
            self.assertEqual(self.fleet.queue.rows(), [])
            db.commit() if ends_well else db.rollback()
            self.assertEqual(len(self.fleet.queue.rows()), ends_well)
            self.assertEqual(db.execute("SELECT count(*) FROM orders").fetchone()[0], ends_well)

    def test_a_connection_to_another_database_is_refused(self) -> None:
        with tempfile_database() as other, self.assertRaises(OptionsError) as caught:
            self.run_async(self.fleet.enqueue("payer", "x", connection=other))
        self.assertIn("not to the store's", str(caught.exception))

    def test_a_transaction_that_failed_is_a_storage_error(self) -> None:
        self.store.list_sessions()
        db = sqlite3.connect(f"file:{self.url.removeprefix('sqlite:')}?mode=ro", uri=True)
        self.addCleanup(db.close)
        with self.assertRaises(StorageError):
            self.run_async(self.fleet.enqueue("payer", "x", connection=db))


def tempfile_database() -> Any:
    import contextlib
    import tempfile

    @contextlib.contextmanager
    def made() -> Any:
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            db = sqlite3.connect(Path(folder, "x.db"))
            try:
                yield db
            finally:
                db.close()

    return made()


@unittest.skipUnless(postgres_url(), "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class PostgresQueueTest(PostgresFleetTest, QueueTest):
    def test_a_run_is_part_of_the_callers_transaction_async_or_not(self) -> None:
        import psycopg

        self.store.list_sessions()
        rows = {"row_factory": psycopg.rows.dict_row}
        with psycopg.connect(self.url, **rows) as db:
            self.run_async(self.fleet.enqueue("payer", "pay a 0", connection=db))
            db.rollback()
            self.assertEqual(self.fleet.queue.rows(), [])
            run_id = self.run_async(self.fleet.enqueue("payer", "pay a 0", connection=db))
            db.commit()

        async def put() -> int:
            async with await psycopg.AsyncConnection.connect(self.url, **rows) as db:
                await self.fleet.enqueue("payer", "pay b 0", connection=db)
                await db.rollback()
                return await self.fleet.enqueue("payer", "pay b 0", connection=db)

        second = self.run_async(put())
        self.assertEqual([run.id for run in self.fleet.queue.rows()], [second, run_id])
        self.work()
        self.ended(run_id, second)
        with psycopg.connect(self.url.partition("?")[0]) as elsewhere, self.assertRaises(OptionsError):
            self.run_async(self.fleet.enqueue("payer", "pay c 0", connection=elsewhere))

    def test_a_role_that_may_only_read_and_write_rows_is_enough(self) -> None:
        import psycopg

        from openagentic_sdk.sessions.stores.locate import open_store

        self.store.migrate()
        schema = self.fleet.queue.tables.read("SELECT current_schema()")[0][0]
        role = f"{schema}_only"
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(f"CREATE ROLE {role} LOGIN")
            self.addCleanup(self._drop, role)
            db.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
            db.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
        self.store = open_store(self.url.replace("postgres@", f"{role}@", 1))
        self.addCleanup(self.store.close)
        self.fleet = Fleet(self.store, self.fleet.agents)
        self.addCleanup(self.fleet.close)
        run_id, parked = self.pay("k"), self.pay("p", agent="asker")
        self.work()
        self.run_async(self.fleet.answer(parked, None, "yes"))
        self.work()
        self.ended(run_id, parked)

    def _drop(self, role: str) -> None:
        import psycopg

        with psycopg.connect(self.url.partition("?")[0], autocommit=True) as db:
            db.execute(f"DROP OWNED BY {role}")
            db.execute(f"DROP ROLE {role}")


if __name__ == "__main__":
    unittest.main()
