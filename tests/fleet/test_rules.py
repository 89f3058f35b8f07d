"""Rules for a whole fleet: limits, fairness, budgets, rates, schedules, figures; on Postgres too if configured."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from openagentic_sdk.agents import NamedAgent
from openagentic_sdk.errors import OptionsError, ProviderHTTPError
from openagentic_sdk.fleet import Fleet, Worker
from openagentic_sdk.fleet.lease import Lease
from openagentic_sdk.fleet.limits import Rates
from openagentic_sdk.fleet.prepare import RatedProvider, rated_options
from openagentic_sdk.fleet.queue import Claimer, NewRun
from openagentic_sdk.fleet.record import FleetRun, RunOutcome
from openagentic_sdk.fleet.schedules import request_id_of
from openagentic_sdk.fleet.stats import BUCKETS_S, MAX_TENANTS, OTHERS, to_text
from openagentic_sdk.ground.frozen import changed
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.providers.wrappers.fallback import Fallback
from openagentic_sdk.providers.wrappers.guarded import guarded
from openagentic_sdk.providers.wrappers.retry import RetryPolicy
from openagentic_sdk.server.asgi import app
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.sqlite import clock
from openagentic_sdk.sessions.stores.sqlite.clock import MOST_AFTER_BOOT_S
from openagentic_sdk.sessions.stores.tables import drive
from openagentic_sdk.testing.clock import FakeClock
from openagentic_sdk.testing.scripted import ScriptedProvider
from tests.server.support import TOKEN, ask, bearer, by_tenant
from tests.size import IN_MEMORY, LARGE, full_size
from tests.stores import servers

POSTGRES_URL = os.environ.get("OPENAGENTIC_TEST_POSTGRES_URL", "")
WHO = Claimer("a worker", 60.0, ("a",))


def _agents(turns: Sequence[Any] = ("hello",), **options: Any) -> dict[str, NamedAgent]:
    def made() -> OpenAgenticOptions:
        return OpenAgenticOptions(provider=ScriptedProvider(turns), model="scripted", **options)

    return {"a": NamedAgent(made), "b": NamedAgent(made)}


def _run(tenant: str = "", **fields: Any) -> NewRun:
    known = {"agent": "a", "body": "{}", "queue": "default", "priority": 0, "run_at": None, "max_attempts": 3}
    names = {"session": os.urandom(8).hex(), "request_id": os.urandom(8).hex(), "tenant": tenant}
    return NewRun(**{**known, **names, "workspace": None, "traceparent": None, **fields})


class RulesTest(unittest.TestCase):
    """One database, and any number of fleets over it, each standing for a host."""

    url: str

    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.addCleanup(made.cleanup)
        self.url = f"sqlite:{made.name}/runs.db"

    def host(self, agents: Any = None) -> Fleet:
        store = open_store(self.url)
        self.addCleanup(store.close)
        fleet = Fleet(store, _agents() if agents is None else agents)
        self.addCleanup(fleet.close)
        return fleet

    def change(self, fleet: Fleet, command: str, *values: Any) -> None:
        fleet.queue.tables.change(lambda execute: execute(f"{command} RETURNING 1", values))

    def claims(self, fleet: Fleet, who: Claimer = WHO) -> list[FleetRun]:
        found = []
        while (run := fleet.queue.claim(who)) is not None:
            found.append(run)
        return found


class Fairness(RulesTest):
    def test_tenants_take_turns_however_many_runs_one_of_them_has(self) -> None:
        fleet = self.host()
        for tenant in [*["flood"] * 6, "small", *["mid"] * 2]:
            fleet.queue.add(_run(tenant, priority=9 if tenant == "flood" else 0))
        order = [run.tenant for run in self.claims(fleet)]
        self.assertEqual(sorted(order[:3]), ["flood", "mid", "small"])
        self.assertEqual(sorted(order[3:5]), ["flood", "mid"])

    def test_a_run_that_has_waited_long_enough_precedes_a_higher_priority(self) -> None:
        fleet = self.host()
        old = fleet.queue.add(_run(priority=0, run_at=1_000_000.0))
        high = fleet.queue.add(_run(priority=1000))
        low = fleet.queue.add(_run(priority=-1))
        self.assertEqual([run.id for run in self.claims(fleet)], [old, high, low])

    def test_a_worker_claims_what_it_can_run_only(self) -> None:
        fleet = self.host()
        fleet.queue.add(_run("x", agent="other"))
        fleet.queue.add(_run("x", queue="slow"))
        mine = fleet.queue.add(_run("x"))
        self.assertEqual([run.id for run in self.claims(fleet, Claimer("w", 60.0, ("a",), ("default",)))], [mine])


class Effort(RulesTest):
    """The work a claim causes in SQLite, in hundreds of virtual machine instructions."""

    def effort(self, fleet: Fleet, claims: int) -> int:
        done = 0

        def count() -> int:
            nonlocal done
            done += 1
            return 0

        with fleet.queue.tables._file.reading() as db:  # type: ignore[attr-defined]
            db.set_progress_handler(count, 100)
            try:
                for _ in range(claims):
                    self.assertIsNotNone(fleet.queue.claim(WHO))
            finally:
                db.set_progress_handler(None, 100)
        return done

    def test_a_claim_takes_no_longer_while_many_runs_are_running(self) -> None:
        fleet = self.host()
        fleet.queue.tables.change(lambda execute: [drive(fleet.queue.adding(_run()), execute) for _ in range(400)])
        few = self.effort(fleet, 20)
        for _ in range(350):
            fleet.queue.claim(WHO)
        self.assertLess(self.effort(fleet, 20), 1.5 * few)

    def test_a_worker_without_work_does_not_keep_others_from_writing(self) -> None:
        fleet, other = self.host(), self.host()
        fleet.queue.add(_run())
        self.assertEqual(len(self.claims(fleet)), 1)
        with other.queue.tables._file.transaction():  # type: ignore[attr-defined]
            self.assertIsNone(fleet.queue.claim(WHO))  # a write would wait for the transaction and fail


class Concurrency(RulesTest):
    def test_tenants_queues_and_agents_are_held_to_their_limits_by_every_way_of_claiming(self) -> None:
        fleet = self.host()
        for kind, name, most in (("tenant", "x", 2), ("queue", "slow", 1), ("agent", "b", 0)):
            fleet.queue.limits.set(kind, name, most)
        ids = [fleet.queue.add(_run("x")) for _ in range(3)]
        ids += [fleet.queue.add(_run(f"t{at}", queue="slow")) for at in range(2)] + [fleet.queue.add(_run(agent="b"))]
        who = Claimer("w", 60.0, ("a", "b"))
        claimed = self.claims(fleet, who)
        self.assertEqual(Counter((run.tenant, run.queue) for run in claimed)["x", "default"], 2)
        self.assertEqual(sum(run.queue == "slow" for run in claimed), 1)
        self.assertEqual(len(claimed), 3)
        left = set(ids) - {run.id for run in claimed}
        self.assertEqual([fleet.queue.claim(who, run_id=run_id) for run_id in left], [None] * 3)
        fleet.queue.leave(next(run for run in claimed if run.tenant == "x"), RunOutcome("waiting", "waiting"))
        self.assertEqual([run.tenant for run in self.claims(fleet, who)], ["x"])
        fleet.queue.limits.set("queue", "slow", None)
        fleet.queue.limits.set("agent", "b", 5)
        self.assertEqual(len(self.claims(fleet, who)), 2)

    def test_many_claimers_at_once_never_pass_a_limit_and_every_run_ends(self) -> None:
        most = {"one": 1, "two": 2, "five": 5}
        first = self.host()
        for tenant, limit in most.items():
            first.queue.limits.set("tenant", tenant, limit)
        count = 500 if LARGE else 45
        for number in range(count):
            first.queue.add(_run(tuple(most)[number % 3]))
        guard, running, highest, ended = threading.Lock(), Counter[str](), Counter[str](), Counter[str]()
        problems: list[BaseException] = []

        def work() -> None:
            try:
                fleet = self.host()
                held: list[FleetRun] = []
                while sum(ended.values()) < count:
                    run = fleet.queue.claim(WHO)
                    if run is not None:
                        held.append(run)
                        with guard:
                            running[run.tenant] += 1
                            highest[run.tenant] = max(highest[run.tenant], running[run.tenant])
                    if held and (run is None or len(held) > 2):
                        done = held.pop(0)
                        with guard:
                            running[done.tenant] -= 1
                            ended[done.tenant] += 1
                        fleet.queue.leave(done, RunOutcome("ended", "end"))
            except BaseException as error:  # noqa: BLE001 - reported in the test's own thread
                problems.append(error)
                ended.update({"": count})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        self.assertEqual(problems, [])
        self.assertEqual(sum(ended.values()), count)
        self.assertEqual(len(first.queue.rows(states=("ended",), limit=1000)), count)
        for tenant, limit in most.items():
            self.assertLessEqual(highest[tenant], limit)
            self.assertGreaterEqual(highest[tenant], 1)

    def test_an_invalid_limit_is_refused(self) -> None:
        limits = self.host().queue.limits
        for kind, most in (("user", 1), ("tenant", -1), ("tenant", 1.5), ("queue", 2**64)):
            with self.subTest(kind=kind, most=most), self.assertRaises(OptionsError):
                limits.set(kind, "x", most)  # type: ignore[arg-type]
        for amount in (-1, float("nan"), "5"):
            with self.subTest(amount=amount), self.assertRaises(OptionsError):
                limits.set_budget("x", amount)  # type: ignore[arg-type]


class Budgets(RulesTest):
    def test_runs_reserve_first_and_pay_what_they_cost(self) -> None:
        fleet = self.host()
        limits = fleet.queue.limits
        limits.set_budget("x", 1.0, 0.4)
        for _ in range(4):
            fleet.queue.add(_run("x"))
        first, second, third = (fleet.queue.claim(WHO) for _ in range(3))
        assert first is not None and second is not None and third is not None
        self.assertEqual(limits.reserve(first.id, first.fence, "x", None), 0.4)
        self.assertEqual(limits.reserve(second.id, second.fence, "x", 5.0), 0.4)
        self.assertAlmostEqual(limits.reserve(third.id, third.fence, "x", None) or 0, 0.2)
        self.assertIsNone(fleet.queue.claim(WHO))  # everything is reserved, so no run can start
        self.assertEqual(limits.reserve(first.id, first.fence, "x", None), 0.4)  # the same one again
        limits.settle(first.id, first.fence, "x", 0.1)
        limits.settle(first.id, first.fence, "x", 0.1)
        limits.settle(second.id, second.fence + 1, "x", 9.0)  # from a zombie worker
        [budget] = limits.budgets()
        self.assertAlmostEqual(budget.spent_usd, 0.1)
        self.assertAlmostEqual(budget.reserved_usd, 0.6)
        limits.settle(second.id, second.fence, "x", None)  # no price: the whole reservation counts as spent
        limits.settle(third.id, third.fence, "x", 0.6)
        [budget] = limits.budgets()
        self.assertAlmostEqual(budget.spent_usd, 1.1)
        self.assertAlmostEqual(budget.reserved_usd, 0.0)
        self.assertTrue(limits.is_spent("x"))
        self.assertIsNone(limits.reserve(third.id, third.fence, "y", None))

    def test_a_run_of_a_tenant_whose_budget_is_spent_fails_with_a_sentence(self) -> None:
        agents = _agents([{"text": "hi", "usage": {"input_tokens": 1_000_000, "output_tokens": 0}}] * 2, prices=_PRICES)
        fleet = self.host(agents)
        fleet.queue.limits.set_budget("x", 0.5, 0.5)

        async def work() -> list[FleetRun]:
            for _ in range(2):
                await fleet.enqueue("a", "go", tenant="x")
                await Worker(fleet).work(until_idle=True)
            return await fleet.runs()

        second, first = asyncio.run(work())
        self.assertEqual((first.state, second.state, second.stop_reason), ("ended", "failed", "budget"))
        self.assertIn("budget of tenant 'x' is spent", second.error or "")
        [budget] = fleet.queue.limits.budgets()
        self.assertEqual((budget.spent_usd, budget.reserved_usd), (1.0, 0.0))


_PRICES = {"scripted": {"input": 1.0, "output": 1.0}}


class RateLimits(RulesTest):
    def test_no_minute_exceeds_the_request_limit(self) -> None:
        rates = Rates(self.host().queue.tables)
        for limit in (1, 7, 30, 120):
            rates.set(str(limit), limit, None)
            starts = sorted(rates.take(str(limit), 10) for _ in range(min(3 * limit, 150)))
            for at in starts:
                # The bucket refilled a little during the calls themselves.
                self.assertLessEqual(sum(at <= other < at + 59 for other in starts), limit + 1)
            self.assertGreater(starts[-1], 60 * (len(starts) / limit - 1) - 30)

    def test_tokens_count_by_their_number_and_what_was_less_is_given_back(self) -> None:
        rates = Rates(self.host().queue.tables)
        rates.set("k", None, 6000)
        self.change(self.host(), "UPDATE openagentic_rates SET tokens = 300 WHERE name = 'k'")
        self.assertEqual(rates.take("k", 300), 0.0)
        waits = [rates.take("k", 300) for _ in range(3)]
        self.assertEqual(sorted(waits), waits)
        self.assertGreater(waits[-1], 5.0)
        rates.settle("k", -1000)
        self.assertLess(rates.take("k", 1), waits[-1])
        self.assertGreater(rates.take("k", 100_000), 0.0)  # more than the bucket holds: must not wait for ever
        self.assertLess(rates.take("k", 1), 100_000)

    def test_a_rate_is_a_number_above_0(self) -> None:
        rates = Rates(self.host().queue.tables)
        for wrong in (math.nan, math.inf, 0, -1, "7"):
            for limits in ((wrong, None), (None, wrong)):
                with self.subTest(limits), self.assertRaisesRegex(OptionsError, "above 0"):
                    rates.set("k", *limits)  # type: ignore[arg-type]
        self.assertEqual(rates.rows(), [])

    def test_a_key_without_a_rate_waits_for_nothing(self) -> None:
        rates = Rates(self.host().queue.tables)
        self.assertFalse(rates.is_known("k"))
        self.assertEqual(rates.take("k", 10**9), 0.0)

    def test_the_tokens_of_a_request_are_estimated_only_for_a_key_with_a_rate(self) -> None:
        class Read(dict[str, str]):
            times = 0

            def items(self) -> Any:
                self.times += 1
                return super().items()

        rates = Rates(self.host().queue.tables)
        provider = RatedProvider(ScriptedProvider(["one", "two"]), rates, "k")
        message = Read(role="user", content="go")
        self.assertEqual(asyncio.run(provider.complete(model="m", messages=[message])).assistant_text, "one")
        unlimited = message.times
        rates.set("k", 600, 60_000)
        self.assertEqual(asyncio.run(provider.complete(model="m", messages=[message])).assistant_text, "two")
        self.assertEqual((unlimited, message.times), (0, 1))

    def test_the_delay_of_a_429_holds_on_all_hosts_and_only_the_longest_counts(self) -> None:
        here, there = Rates(self.host().queue.tables), Rates(self.host().queue.tables)
        here.set("k", 600, None)
        here.block("k", 30.0)
        here.block("k", 20.0)
        self.assertTrue(there.is_blocked("k"))
        waits = [there.take("k", 1) for _ in range(20)]
        self.assertGreater(min(waits), 20.0)
        self.assertLess(max(waits), 60.0)
        self.assertGreater(max(waits) - min(waits), 0.5)  # one after another, not all at once
        here.block("unnamed", 5.0)
        self.assertGreater(there.take("unnamed", 1), 0.0)

    def test_each_attempt_waits_and_shares_the_endpoints_delay_with_the_others(self) -> None:
        refusal = {"error": {"message": "slow down", "type": "http", "status": 429}}
        fleet, clock = self.host(), FakeClock()
        inner = ScriptedProvider([refusal, {"text": "hello", "usage": {"input_tokens": 5, "output_tokens": 2}}])
        fleet.rates.set("team", 1000, 100_000)
        provider = guarded(
            RatedProvider(inner, fleet.rates, "team", clock=clock), retry=RetryPolicy(base_s=0.0), clock=clock
        )

        async def ask() -> Any:
            return await provider.complete(model="m", messages=[{"role": "user", "content": "hi"}])  # type: ignore[union-attr]

        # The fake clock does not affect the database: expire the wait requested by the refusal at once.
        original = fleet.rates.block

        def block(name: str, for_s: float) -> None:
            original(name, for_s)
            self.assertTrue(fleet.rates.is_blocked(name))
            self.change(fleet, "UPDATE openagentic_rates SET blocked_until = 0 WHERE name = %s", name)

        fleet.rates.block = block  # type: ignore[method-assign]
        self.assertEqual(asyncio.run(ask()).assistant_text, "hello")
        self.assertEqual(len(inner.requests), 2)

    def test_every_provider_of_a_run_is_in_turn_and_keeps_its_retries(self) -> None:
        fleet = self.host()
        other = ScriptedProvider(["b"])
        options = OpenAgenticOptions(
            provider=ScriptedProvider(["a"]),
            model="m",
            retry=RetryPolicy(max_retries=1),
            fallback=[Fallback("n", other)],
        )
        made = rated_options(fleet, FleetRun(**{**_FIELDS, "agent": "a"}), options).provider
        seen = []
        while made is not None:
            seen.append(type(made).__name__)
            for one in getattr(made, "fallbacks", ()):
                self.assertIsInstance(one.provider.provider, RatedProvider)
            made = getattr(made, "provider", None)
        self.assertEqual(seen, ["FallbackProvider", "RetryingProvider", "RatedProvider", "ScriptedProvider"])

    def test_an_error_that_is_about_money_blocks_nobody(self) -> None:
        fleet = self.host()
        error = ProviderHTTPError("no credit", status=429, headers={"retry-after": "60"}, retryable=False)

        class Refusing:
            name = "refusing"

            async def complete(self, **_: Any) -> Any:
                raise error

        async def ask() -> None:
            await RatedProvider(Refusing(), fleet.rates, "k").complete(model="m", messages=[])  # type: ignore[arg-type]

        with self.assertRaises(ProviderHTTPError):
            asyncio.run(ask())
        self.assertFalse(fleet.rates.is_blocked("k"))


_FIELDS: dict[str, Any] = dict.fromkeys(FleetRun.__dataclass_fields__, None)


class Scheduling(RulesTest):
    def make(self, fleet: Fleet, name: str = "nightly", cron: str = "0 3 * * *", **more: Any) -> Any:
        return asyncio.run(fleet.schedule(name, cron, "a", "do it", **more))

    def set_back(self, fleet: Fleet, at: float) -> None:
        self.change(fleet, "UPDATE openagentic_schedules SET next_at = %s", at)

    def test_hosts_that_fire_at_the_same_time_enqueue_each_time_once(self) -> None:
        hosts = [self.host() for _ in range(3)]
        self.make(hosts[0], zone="Europe/Berlin", tenant="x")
        for at in (1_780_000_000.0, 1_780_086_400.0):
            self.set_back(hosts[0], at)
            threads = [threading.Thread(target=fleet.schedules.fire_due) for fleet in hosts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        runs = hosts[0].queue.rows()
        expected = [request_id_of("nightly", at) for at in (1_780_086_400.0, 1_780_000_000.0)]
        self.assertEqual([run.request_id for run in runs], expected)
        self.assertEqual({(run.tenant, run.agent, run.prompt) for run in runs}, {("x", "a", "do it")})
        self.assertEqual(len({run.session for run in runs}), 2)

    def test_missed_times_of_a_schedule_are_made_up_for_once(self) -> None:
        fleet = self.host()
        self.make(fleet, cron="* * * * *")
        self.set_back(fleet, 1_780_000_000.0)
        self.assertEqual(fleet.schedules.fire_due(), 1)
        self.assertEqual(fleet.schedules.fire_due(), 0)
        self.assertGreater(fleet.schedules.find("nightly").next_at, 1_780_000_060.0)

    def test_a_next_time_from_a_clock_that_was_ahead_is_corrected(self) -> None:
        fleet = self.host()
        made = self.make(fleet)
        self.set_back(fleet, 4e9)
        self.assertEqual(fleet.schedules.fire_due(), 0)
        self.assertEqual(fleet.schedules.find("nightly").next_at, made.next_at)
        self.set_back(fleet, 4e9)
        fleet.schedules.fire_due()  # not compared again at once
        self.assertEqual(fleet.schedules.find("nightly").next_at, 4e9)

    def test_a_pause_is_not_made_up_for(self) -> None:
        fleet = self.host()
        made = self.make(fleet)
        fleet.schedules.pause("nightly")
        self.set_back(fleet, 1_780_000_000.0)
        self.assertEqual(fleet.schedules.fire_due(), 0)
        going_on = fleet.schedules.pause("nightly", paused=False)
        self.assertEqual((going_on.is_paused, going_on.next_at), (False, made.next_at))
        self.assertEqual(fleet.schedules.fire_due(), 0)

    def test_one_that_cannot_be_read_here_keeps_no_other_from_firing(self) -> None:
        fleet = self.host()
        self.make(fleet, "broken")
        self.make(fleet, "good")
        self.change(fleet, "UPDATE openagentic_schedules SET zone = 'Not/There' WHERE name = 'broken'")
        self.set_back(fleet, 1_780_000_000.0)
        self.assertEqual(fleet.schedules.fire_due(), 1)
        self.assertIn("Not/There", fleet.schedules.find("broken").error or "")
        self.assertEqual(fleet.schedules.fire_due(), 0)

    def test_one_whose_request_id_is_taken_continues_to_its_next_time(self) -> None:
        fleet = self.host()
        self.make(fleet)
        self.set_back(fleet, 1_780_000_000.0)
        fleet.queue.add(_run(request_id=request_id_of("nightly", 1_780_000_000.0)))
        self.assertEqual(fleet.schedules.fire_due(), 0)
        row = fleet.schedules.find("nightly")
        self.assertGreater(row.next_at, 1_780_000_000.0)
        self.assertIn("was already used by a different request", row.error or "")

    def test_names_lines_zones_and_agents_that_cannot_be_used_are_refused(self) -> None:
        fleet = self.host()
        self.make(fleet)
        self.make(fleet, "other")
        for wrong in ({"name": "nightly", "cron": "* * * * *"}, {"cron": "x", "name": "n"}, {"zone": "x", "name": "n"}):
            with self.subTest(wrong), self.assertRaises(OptionsError):
                self.make(fleet, **wrong)
        with self.assertRaises(OptionsError):
            self.make(fleet, "n", workspace="nowhere")
        fleet.schedules.remove("other")
        self.assertEqual([row.name for row in fleet.schedules.rows()], ["nightly"])
        for look_up in (fleet.schedules.find, fleet.schedules.remove, fleet.schedules.pause):
            with self.assertRaisesRegex(OptionsError, "does not exist"):
                look_up("other")


class Figures(RulesTest):
    def test_the_usage_of_runs_is_counted_by_tenant_and_exposed_as_text(self) -> None:
        turn = {"text": "hi", "usage": {"input_tokens": 100, "output_tokens": 20}}
        fleet = self.host(_agents([turn], prices=_PRICES))
        nasty = 'a"b\\c'

        async def work() -> None:
            await fleet.enqueue("a", "go", tenant="x")
            await fleet.enqueue("a", "go", tenant=nasty)
            await Worker(fleet).work(until_idle=True)
            await fleet.enqueue("a", "later", tenant="x")

        asyncio.run(work())
        stats = asyncio.run(fleet.stats())
        report = json.loads(json.dumps(stats.to_dict()))
        self.assertEqual((report["runs"]["ended"], report["runs"]["queued"], report["claims"]), (2, 1, 2))
        self.assertEqual((report["input_tokens"], report["output_tokens"], report["unknown"]), (200, 40, 0))
        self.assertAlmostEqual(report["cost_usd"], 0.00024)
        text = to_text(stats)
        for line in (
            'openagentic_fleet_runs{tenant="x",queue="default",state="ended"} 1',
            'openagentic_fleet_tokens_total{tenant="a\\"b\\\\c",direction="input"} 100',
            'openagentic_fleet_claims_total{queue="default"} 2',
            "openagentic_fleet_first_event_seconds_count 2",
        ):
            self.assertIn(line + "\n", text)
        for line in filter(None, text.splitlines()):
            self.assertRegex(line, r"^(# (HELP|TYPE) \S+ .+|[a-z_]+(\{[a-z]+=\".*\"\})? [0-9.e+-]+)$")
        self.assertEqual(text.count("# TYPE openagentic_fleet_runs "), 1)
        buckets = [int(line.rpartition(" ")[2]) for line in text.splitlines() if "seconds_bucket" in line]
        self.assertEqual((sorted(buckets), len(buckets)), (buckets, len(BUCKETS_S) + 1))
        self.assertEqual({group.tenant for group in asyncio.run(fleet.stats(tenant="x")).groups}, {"x"})
        waiting = next(group for group in stats.groups if group.state == "queued")
        many = [changed(waiting, tenant=f"t{n}", runs=1, oldest_s=float(n)) for n in range(MAX_TENANTS + 3)]
        text = to_text(changed(stats, groups=many))
        self.assertIn(
            f'openagentic_fleet_runs{{tenant="{OTHERS}",queue="default",state="queued"}} 3', text.splitlines()
        )
        [oldest] = [line for line in text.splitlines() if "oldest_queued_seconds{" in line and OTHERS in line]
        self.assertEqual(float(oldest.rpartition(" ")[2]), MAX_TENANTS + 2)

    def test_a_server_shows_figures_to_authorized_clients_and_a_tenant_only_its_own(self) -> None:
        fleet = self.host()
        for tenant in ("north", "south"):
            fleet.queue.add(_run(tenant))
        served = app(None, store=fleet.store, auth=by_tenant)
        operator = app(None, store=fleet.store, auth=TOKEN)

        async def look() -> list[Any]:
            nobody = await ask(served, "GET", "/metrics", headers={"Authorization": "Bearer nobody"})
            north = await ask(served, "GET", "/metrics", headers=bearer("token-of-anna-at-north"))
            nothing = await ask(app(None, store=MemorySessionStore(), auth=TOKEN), "GET", "/metrics")
            return [nobody, north, await ask(operator, "GET", "/metrics"), nothing]

        nobody, north, everything, nothing = asyncio.run(look())
        self.assertEqual([answer.status for answer in (nobody, north, everything, nothing)], [401, 200, 200, 200])
        self.assertIn(b'tenant="north"', north.body)
        self.assertNotIn(b"south", north.body)
        self.assertIn(b"south", everything.body)
        self.assertIn("version=0.0.4", everything.headers["content-type"])

    def test_a_run_that_was_taken_over_is_a_steal_and_a_lost_lease(self) -> None:
        fleet = self.host()
        fleet.queue.add(_run())
        self.assertIsNotNone(fleet.queue.claim(WHO))
        self.change(fleet, "UPDATE openagentic_runs SET lease_until = 0")
        self.assertEqual(asyncio.run(fleet.stats()).total("lost_now"), 1)
        self.assertIsNotNone(fleet.queue.claim(WHO))
        stats = asyncio.run(fleet.stats())
        self.assertEqual((stats.total("steals"), stats.total("lost_now"), stats.total("claims")), (1, 0, 2))


class JumpingClock(RulesTest):
    """The wall clock of a host with an SQLite file is set forward and back."""

    def stores_at(self, *jumps_s: float) -> list[Fleet]:
        """Fleets on one file, one for each process, whose wall clock is wrong by that many seconds."""
        fleets = []
        for jump_s in jumps_s:
            store = SqliteSessionStore(self.url.removeprefix("sqlite:"), clock=FakeClock(1_800_000_000.0 + jump_s))
            self.addCleanup(store.close)
            fleets.append(Fleet(store, _agents()))
            self.addCleanup(fleets[-1].close)
        return fleets

    def test_no_living_run_is_taken_over_and_none_waits_longer(self) -> None:
        first, forward, back = self.stores_at(0, 3600, -3600)
        first.queue.add(_run())
        claimed = first.queue.claim(WHO)
        assert claimed is not None
        for other in (forward, back):
            self.assertIsNone(other.queue.claim(WHO))
            self.assertEqual(other.queue.beat({claimed.id: claimed.fence}, 60.0, 1.0), {claimed.id: False})
        for enqueues, runs in ((forward, back), (back, forward), (first, back)):
            added = enqueues.queue.add(_run())
            found = runs.queue.claim(WHO)
            assert found is not None
            self.assertEqual(found.id, added)
        self.change(first, "UPDATE openagentic_runs SET lease_until = lease_until - 61 WHERE id = ?", claimed.id)
        second_claim = back.queue.claim(WHO)
        assert second_claim is not None
        self.assertEqual((second_claim.id, second_claim.fence), (claimed.id, claimed.fence + 1))

    def test_no_key_of_a_provider_is_left_alone_for_longer_or_asked_more_often(self) -> None:
        first, forward, back = self.stores_at(0, 3600, -3600)
        first.rates.set("key", requests_per_minute=60, tokens_per_minute=None)
        self.assertGreater(first.rates.block("key", 30.0) or first.rates.take("key", 1), 25)
        self.assertGreater(forward.rates.take("key", 1), 25)
        self.assertLess(back.rates.take("key", 1), 60)

    def test_a_calendar_time_is_due_at_that_time(self) -> None:
        first, forward = self.stores_at(0, 3600)
        first.queue.add(_run(run_at=1_800_000_000.0 + 1800))
        self.assertIsNone(first.queue.claim(WHO))
        due = forward.queue.add(_run(run_at=1_800_000_000.0 + 1800))
        found = first.queue.claim(WHO)
        assert found is not None
        self.assertEqual(found.id, due)

    def test_an_idle_worker_takes_over_soon_after_a_restart_of_the_machine_whatever_the_lease(self) -> None:
        first, after = self.stores_at(0, 0)
        first.queue.add(_run())
        claimed = first.queue.claim(Claimer("a worker", 36_000.0, ("a",)))
        assert claimed is not None
        self.change(first, "UPDATE openagentic_clock SET boot = 'earlier ' || boot")
        self.assertIsNone(after.queue.claim(WHO))  # nothing is due yet, so it need not write
        left_s = after.queue.find(claimed.id).lease_left_s
        assert left_s is not None
        self.assertTrue(left_s <= MOST_AFTER_BOOT_S, left_s)

    def test_after_a_restart_of_the_machine_with_its_clock_far_back_nothing_waits_for_the_calendar(
        self,
    ) -> None:
        for hours in (-240, -1):
            with self.subTest(hours=hours), tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
                self.url = f"sqlite:{place}/runs.db"
                first, after = self.stores_at(0, hours * 3600)
                first.rates.set("key", requests_per_minute=60, tokens_per_minute=None)
                first.rates.take("key", 1)
                first.queue.add(_run())
                claimed = first.queue.claim(Claimer("a worker", 36_000.0, ("a",)))
                assert claimed is not None
                queued = first.queue.add(_run())
                self.change(first, "UPDATE openagentic_clock SET boot = 'earlier ' || boot")
                found = after.queue.claim(WHO) or after.queue.claim(WHO)
                assert found is not None
                self.assertEqual(found.id, queued)
                self.assertLess(after.rates.take("key", 1), 60)
                # Workers from before a reboot are gone, except in containers with their own boot id.
                left_s = after.queue.find(claimed.id).lease_left_s
                assert left_s is not None
                self.assertTrue(0 < left_s <= MOST_AFTER_BOOT_S, left_s)
                for fleet in (first, after):
                    fleet.close()
                    fleet.store.close()


class SleepingMachine(RulesTest):
    """A host with an SQLite file sleeps while its boot-time clock advances, as on Linux."""

    def setUp(self) -> None:
        super().setUp()
        self.slept_s = 0.0
        real_elapsed_s = clock.elapsed_s
        self.addCleanup(setattr, clock, "elapsed_s", real_elapsed_s)
        clock.elapsed_s = lambda: real_elapsed_s() + self.slept_s

    def test_no_living_run_is_taken_over_after_a_sleep_longer_than_its_lease(self) -> None:
        first, second = self.host(), self.host()
        first.queue.add(_run())
        claimed = first.queue.claim(WHO)
        assert claimed is not None
        now = first.queue.tables.lease_now
        lease = asyncio.run(_leased(claimed, now))
        for _ in range(3):
            self.slept_s += 8 * 3600
            self.assertIsNone(second.queue.claim(WHO))
            self.assertIsNone(self.host().queue.claim(WHO))  # of a process started after the sleep
            self.assertFalse(lease.is_lost)
            self.assertEqual(first.queue.beat({claimed.id: claimed.fence}, 60.0, 1.0), {claimed.id: False})
        self.assertLessEqual(first.queue.find(claimed.id).lease_left_s or 1e9, 60.0)

    def test_a_run_whose_worker_died_is_taken_over_when_what_was_left_of_its_lease_has_passed_awake(self) -> None:
        first, second = self.host(), self.host()
        first.queue.add(_run())
        claimed = first.queue.claim(WHO)
        self.slept_s += 3600
        self.assertIsNone(second.queue.claim(WHO))
        assert claimed is not None
        self.change(first, "UPDATE openagentic_runs SET lease_until = lease_until - 61 WHERE id = ?", claimed.id)
        second_claim = second.queue.claim(WHO)
        assert second_claim is not None
        self.assertEqual((second_claim.id, second_claim.fence), (claimed.id, claimed.fence + 1))

    def test_a_sleep_counts_once_even_if_the_transaction_that_saw_it_failed(self) -> None:
        first = self.host()
        first.queue.add(_run())
        claimed = first.queue.claim(WHO)
        assert claimed is not None
        self.slept_s += 3600

        def fail(execute: Any) -> None:
            raise ValueError("a disk that is full")

        with self.assertRaises(ValueError):
            first.queue.tables.change(fail)
        for _ in range(3):
            self.assertIsNone(first.queue.claim(WHO))
        left_s = first.queue.find(claimed.id).lease_left_s
        assert left_s is not None
        self.assertTrue(30.0 < left_s <= 60.0, left_s)

    def test_a_scheduled_run_is_due_although_the_machine_slept_until_then(self) -> None:
        first = self.host()
        due = first.queue.add(_run(run_at=time.time() + 3000))
        self.assertIsNone(first.queue.claim(WHO))
        self.slept_s += 3600
        found = first.queue.claim(WHO)
        assert found is not None
        self.assertEqual(found.id, due)

    def test_a_file_of_a_version_that_did_not_count_sleep_continues(self) -> None:
        first = self.host()
        first.queue.add(_run())
        claimed = first.queue.claim(WHO)
        assert claimed is not None
        self.change(first, "DELETE FROM openagentic_clock WHERE boot LIKE '% asleep'")
        second = self.host()
        self.change(second, "UPDATE openagentic_runs SET priority = 0")
        self.slept_s += 3600
        self.assertIsNone(second.queue.claim(WHO))
        self.assertIsNone(first.queue.claim(WHO))

    @full_size
    @unittest.skipUnless(shutil.which("unshare"), "unshare is not installed")
    def test_containers_with_a_time_namespace_of_their_own_agree_with_their_host(self) -> None:
        """A lease expires on time in a container whose clocks are shifted as described in time_namespaces(7)."""
        command = [
            "unshare",
            "--time",
            "--boottime",
            "86400",
            "--monotonic",
            "7200",
            "--fork",
            sys.executable,
            "-c",
            _CLAIMS,
        ]
        self.host().queue.add(_run())
        self.assertIsNotNone(self.host().queue.claim(WHO))
        done = subprocess.run([*command, self.url, str(clock.asleep_s())], capture_output=True, text=True)
        if done.stderr.startswith("unshare"):
            self.skipTest(f"cannot create a time namespace: {done.stderr.strip()}")
        self.assertEqual((done.stdout, done.stderr), ("None True\n", ""))


async def _leased(run: FleetRun, now: Callable[[], float]) -> Lease:
    return Lease(run, WHO.lease_s, now(), now)


_CLAIMS = """
import sys
from openagentic_sdk.fleet.queue import Claimer, Queue
from openagentic_sdk.sessions.stores.locate import open_store
from openagentic_sdk.sessions.stores.sqlite.clock import asleep_s
from openagentic_sdk.sessions.stores.tables import tables_of

store = open_store(sys.argv[1])
print(Queue(tables_of(store)).claim(Claimer("another", 60.0, ("a",))), abs(asleep_s() - float(sys.argv[2])) < 1)
store.close()
"""


@unittest.skipUnless(POSTGRES_URL, "OPENAGENTIC_TEST_POSTGRES_URL is not set")
class OnPostgres:
    """A mixin that runs the same tests in a fresh Postgres schema."""

    def setUp(self: Any) -> None:
        self.url = servers.own_postgres_schema(self, POSTGRES_URL)


def load_tests(loader: unittest.TestLoader, standard: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """Repeat each group on Postgres if a server is configured."""
    for group in (Fairness, Concurrency, Budgets, RateLimits, Scheduling, Figures) if POSTGRES_URL else ():
        standard.addTests(loader.loadTestsFromTestCase(type(f"{group.__name__}OnPostgres", (OnPostgres, group), {})))
    return standard


if __name__ == "__main__":
    unittest.main()
