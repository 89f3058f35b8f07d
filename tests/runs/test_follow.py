"""Following sessions: many followers, one watcher, deltas of a run in this process."""

import asyncio
import tempfile
import threading
import unittest
from dataclasses import replace

from openagentic_sdk.errors import OptionsError, SessionError, SessionNotFoundError
from openagentic_sdk.events import (
    Result,
    SessionMeta,
    SessionRewound,
    SystemInit,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookMatcher
from openagentic_sdk.runs.background import submit
from openagentic_sdk.sessions.follow import (
    MAX_PAGE_CHARS,
    MAX_RECENT_EVENTS,
    Follower,
    follow,
    is_abandoned,
    publish,
    watch_of,
)
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.clock import FakeClock
from tests.runtime.support import options_for


class Counted(MemorySessionStore):
    """A store that counts how many threads use it at the same time."""

    def __init__(self):
        super().__init__()
        self.now, self.most, self._counting = 0, 0, threading.Lock()

    def _counted(self, call, *args, **kwargs):
        with self._counting:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return call(*args, **kwargs)
        finally:
            with self._counting:
                self.now -= 1

    def read_events(self, *args, **kwargs):
        return self._counted(super().read_events, *args, **kwargs)

    def wait_for_events(self, *args, **kwargs):
        return self._counted(super().wait_for_events, *args, **kwargs)


class Watched(MemorySessionStore):
    """A store that reports when somebody waits for its news."""

    def __init__(self):
        super().__init__()
        self._is_watched = threading.Event()

    def wait_for_news(self, *args, **kwargs):
        self._is_watched.set()
        return super().wait_for_news(*args, **kwargs)

    async def until_watched(self):
        assert await asyncio.to_thread(self._is_watched.wait, 120)


class LookedAt(FileSessionStore):
    """A store that reports when it has looked for news once."""

    def __init__(self, folder):
        super().__init__(folder)
        self.is_seen = threading.Event()

    def wait_for_news(self, *args, **kwargs):
        news = super().wait_for_news(*args, **kwargs)
        self.is_seen.set()
        return news


async def take(events, count):
    taken = []
    async for event in events:
        taken.append(event)
        if len(taken) == count:
            await events.aclose()
    return taken


class AbandonedTest(unittest.TestCase):
    def test_a_run_that_waits_for_a_person_is_abandoned_only_after_its_process_and_only_then_is_its_log_read(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        store = FileSessionStore(folder)
        session_id = store.create_session()
        reader = FileSessionStore(folder, read_only=True)
        scans, iter_events = [], reader.iter_events
        reader.iter_events = lambda *args, **more: scans.append(more.get("after_seq", 0)) or iter_events(*args, **more)
        with store.open_writer(session_id) as writer:
            writer.append([SystemInit(session_id, folder, "1"), UserMessage("x"), UserQuestion("q", "Well?")])
            row = reader.read_summary(session_id)
            scans.clear()
            self.assertFalse(is_abandoned(reader, row))
            self.assertNotIn(0, scans)
        self.assertTrue(is_abandoned(reader, row))


class FollowTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_page_of_large_events_is_bounded_by_their_size_and_none_is_lost(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        large = [UserMessage("x" * 200_000) for _ in range(40)]
        store.append_events(session_id, [*large, *(UserMessage("small") for _ in range(10))])
        follower, seen, pages = Follower(store, session_id), [], []
        other = Follower(store, session_id, after_seq=50)
        self.addAsyncCleanup(follower.close)
        self.addAsyncCleanup(other.close)
        while not follower.is_level:
            page = await follower.batch()
            pages.append(sum(len(event.text) for event in page))
            seen += [event.seq for event in page]
        self.assertEqual(seen, list(range(1, 51)))
        self.assertLess(max(pages), MAX_PAGE_CHARS + 200_000)
        store.append_events(session_id, large)
        publish(store, session_id, store.read_events(session_id, after_seq=50))
        while follower.after_seq < 90:  # events shown by a run of this process are read in pages too
            page = await follower.batch()
            self.assertLess(sum(len(event.text) for event in page), MAX_PAGE_CHARS + 200_000)
            seen += [event.seq for event in page]
        self.assertEqual(seen, list(range(1, 91)))
        self.assertLess(sum(len(event.text) for event in follower._feed.recent), MAX_PAGE_CHARS + 200_000)

    async def test_fifty_followers_of_five_sessions_keep_one_thread_waiting(self):
        store = Counted()
        ids = [store.create_session() for _ in range(5)]
        followers = [asyncio.create_task(take(follow(store, ids[n % 5]), 3)) for n in range(50)]
        for text in ("one", "two", "three"):
            for session_id in ids:
                store.append_event(session_id, UserMessage(text))
            await asyncio.sleep(0)
        taken = await asyncio.wait_for(asyncio.gather(*followers), 120)
        self.assertEqual({tuple(event.text for event in events) for events in taken}, {("one", "two", "three")})
        self.assertLessEqual(store.most, 2, "one waits for news, one reads for a new follower")

    async def test_followers_from_different_cursors_each_see_every_event_once(self):
        # A poll in progress when its follower leaves may still create a file there.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for store in (MemorySessionStore(), FileSessionStore(folder), SqliteSessionStore(f"{folder}/s.db")):
                session_id = store.create_session()
                store.append_events(session_id, [UserMessage(str(n)) for n in range(1, 8)])
                tasks = [asyncio.create_task(take(follow(store, session_id, after_seq=n), 10 - n)) for n in (0, 3, 7)]
                for n in range(8, 11):
                    for _ in range(10):
                        await asyncio.sleep(0)
                    store.append_event(session_id, UserMessage(str(n)))
                for after, events in zip((0, 3, 7), await asyncio.wait_for(asyncio.gather(*tasks), 120), strict=True):
                    self.assertEqual([event.seq for event in events], list(range(after + 1, 11)))
                store.close()

    async def test_a_follower_that_starts_after_the_result_ends_at_once_beside_another(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        first = Follower(store, session_id)  # keeps the events that the run has shown
        self.addAsyncCleanup(first.close)
        publish(store, session_id, store.append_events(session_id, [UserMessage("one"), Result("", session_id, "end")]))
        events = self.all_of(follow(store, session_id, after_seq=1, until_result=True))
        self.assertEqual([event.seq for event in await asyncio.wait_for(events, 120)], [2])

    async def test_a_waiting_follower_is_woken_by_events_that_another_has_read(self):
        looking, go_on = threading.Event(), threading.Event()

        class Late(MemorySessionStore):
            def wait_for_news(self, *args, **kwargs):
                looking.set()
                go_on.wait(120)
                return super().wait_for_news(*args, **kwargs)

        store = Late()
        session_id = store.create_session()
        waiting = asyncio.create_task(take(follow(store, session_id), 1))
        await asyncio.to_thread(looking.wait, 120)
        store.append_event(session_id, UserMessage("one"))
        await take(follow(store, session_id), 1)
        go_on.set()
        (event,) = await asyncio.wait_for(waiting, 120)
        self.assertEqual(event.text, "one")

    async def test_waiting_for_a_result_lasts_through_a_suspension_and_not_for_a_dead_run(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        began = [SystemInit(session_id, "/", "1"), UserMessage("go", request_id="r")]
        store.append_events(session_id, [*began, Result("", session_id, "suspended")])
        waiting = asyncio.create_task(self.all_of(follow(store, session_id, until_result=True, left_s=120)))
        short = await asyncio.wait_for(self.all_of(follow(store, session_id, until_result=True, left_s=0)), 120)
        self.assertEqual([event.seq for event in short], [1, 2, 3])
        with store.open_writer(session_id) as writer:
            writer.append([SystemInit(session_id, "/", "1"), UserQuestion("q", "Milk?", ())])
            writer.append([Result("", session_id, "waiting")])
        self.assertEqual([event.seq for event in await asyncio.wait_for(waiting, 120)], [1, 2, 3, 4, 5, 6])
        dead = store.create_session()
        store.append_events(dead, began)  # the state after kill -9
        alone = await asyncio.wait_for(self.all_of(follow(store, dead, until_result=True, left_s=0)), 120)
        self.assertEqual((len(alone), store.read_summary(dead).state), (2, "stopped"))
        with store.open_writer(dead) as writer:  # somebody is working on it, without new events
            silent = asyncio.create_task(self.all_of(follow(store, dead, until_result=True, left_s=0)))
            self.assertEqual(await asyncio.wait({silent}, timeout=0.2), (set(), {silent}))
            writer.append([Result("Done.", dead, "end")])
        self.assertEqual([event.seq for event in await asyncio.wait_for(silent, 120)], [1, 2, 3])

    async def test_a_title_or_a_rewind_after_the_result_reopens_nothing_and_an_answer_does(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        run = [SystemInit(session_id, "/", "1"), UserMessage("go"), Result("Done.", session_id, "end")]
        store.append_events(session_id, run)
        for number, later in enumerate((SessionMeta(title="Tea"), SessionRewound(1)), 4):
            store.append_event(session_id, later)
            events = await asyncio.wait_for(self.all_of(follow(store, session_id, until_result=True)), 120)
            self.assertEqual([event.seq for event in events], list(range(1, number + 1)))
        store.append_events(session_id, [*run[:2], UserQuestion("q", "Milk?", ()), Result("", session_id, "waiting")])
        store.append_event(session_id, UserAnswer("q", "yes"))
        waiting = asyncio.create_task(self.all_of(follow(store, session_id, until_result=True)))
        self.assertEqual(await asyncio.wait({waiting}, timeout=0.2), (set(), {waiting}))
        store.append_events(session_id, [run[0], run[2]])
        self.assertEqual(len(await asyncio.wait_for(waiting, 120)), 12)

    async def test_a_subagent_that_continues_after_an_answer_is_followed_to_its_end(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        begun, waits = SystemInit(session_id, "/", "1"), Result("", session_id, "waiting")
        log = [begun, UserQuestion("q", "Milk?", ()), waits, UserAnswer("q", "yes"), begun]
        # The events of a subagent's log name the call that started it.
        store.append_events(session_id, [replace(event, parent_tool_use_id="c") for event in log])
        with store.open_writer(session_id) as writer:
            following = asyncio.create_task(self.all_of(follow(store, session_id, until_result=True)))
            self.assertEqual(await asyncio.wait({following}, timeout=0.2), (set(), {following}))
            writer.append([Result("Done.", session_id, "end", parent_tool_use_id="c")])
        self.assertEqual(len(await asyncio.wait_for(following, 120)), 6)

    async def test_deltas_come_in_their_place_to_who_asks_for_them(self):
        store, asked, release = Watched(), asyncio.Event(), asyncio.Event()

        async def before_model_call(payload):
            asked.set()
            await release.wait()

        hooks = HookEngine(before_model_call=[HookMatcher("wait", hook=before_model_call)])
        options = options_for([{"text": "one two three", "deltas": 3}], session_store=store, hooks=hooks)
        background = submit("go", options)
        async for _ in background.events():
            break
        with_deltas, without = (
            asyncio.create_task(self.all_of(follow(store, background.session_id, deltas=deltas, until_result=True)))
            for deltas in (True, False)
        )
        await asked.wait()
        await store.until_watched()  # one follower has read the existing events, and the other reads them
        release.set()
        seen, stored = await asyncio.wait_for(asyncio.gather(with_deltas, without), 120)
        self.assertEqual("".join(event.text_delta for event in seen if event.seq is None), "one two three")
        kinds = [event.type for event in seen]
        self.assertLess(kinds.index("model.request"), kinds.index("assistant.delta"))
        self.assertLess(kinds.index("assistant.delta"), kinds.index("assistant.message"))
        self.assertEqual([event.seq for event in stored], list(range(1, len(stored) + 1)))

    async def all_of(self, events):
        return [event async for event in events]

    async def test_a_slow_follower_misses_no_stored_event(self):
        store = Watched()
        session_id = store.create_session()
        events = follow(store, session_id)
        first = asyncio.create_task(anext(events))
        await store.until_watched()
        store.append_event(session_id, UserMessage("first"))
        await first
        count = MAX_RECENT_EVENTS * 20
        store.append_events(session_id, [UserMessage(str(n)) for n in range(count)])
        await asyncio.wait_for(take(follow(store, session_id, after_seq=1), count), 120)  # another one is faster
        rest = await take(events, count)
        self.assertEqual([event.seq for event in rest], list(range(2, count + 2)))

    async def test_following_a_deleted_or_missing_session_is_an_error(self):
        store = MemorySessionStore()
        with self.assertRaises(SessionNotFoundError):
            await anext(follow(store, "none"))
        store = Watched()
        session_id = store.create_session()
        waiting = asyncio.create_task(anext(follow(store, session_id)))
        await store.until_watched()
        store.delete_session(session_id)
        with self.assertRaises(SessionNotFoundError):
            await asyncio.wait_for(waiting, 120)

    async def test_a_log_that_is_truncated_while_it_is_followed_is_an_error(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        store = LookedAt(folder)
        session_id = store.create_session()
        store.append_events(session_id, [UserMessage(str(n)) for n in range(3)])
        waiting = asyncio.create_task(anext(follow(store, session_id, after_seq=3)))
        assert await asyncio.to_thread(store.is_seen.wait, 120)
        log = store.session_dir(session_id) / "events.jsonl"
        log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
        with self.assertRaisesRegex(SessionError, "ended at event 3 and ends at event 1 now: .*sessions verify"):
            await asyncio.wait_for(waiting, 120)

    async def test_a_log_that_is_replaced_by_a_longer_one_while_it_is_followed_is_an_error(self):
        for after_seq in (0, 3):
            folder = self.enterContext(tempfile.TemporaryDirectory())
            store = LookedAt(folder)
            ids = [store.create_session() for _ in range(2)]
            for number, session_id in enumerate(ids, 1):
                store._clock = FakeClock(1_700_000_000.0 + number)
                store.append_events(session_id, [UserMessage(f"{number}-{n}") for n in range(3 * number)])
            following = follow(store, ids[0], after_seq=after_seq)
            for _ in range(3 - after_seq):
                await anext(following)
            waiting = asyncio.create_task(anext(following))
            assert await asyncio.to_thread(store.is_seen.wait, 120)
            logs = [store.session_dir(session_id) / "events.jsonl" for session_id in ids]
            logs[0].write_bytes(logs[1].read_bytes())
            with self.assertRaisesRegex(
                SessionError, "event 3 of session .* is not the one that was read before: .*sessions verify"
            ):
                await asyncio.wait_for(waiting, 120)

    async def test_a_session_that_is_erased_from_while_it_is_followed_continues(self):
        store = LookedAt(self.enterContext(tempfile.TemporaryDirectory()))
        session_id = store.create_session()
        store.append_events(session_id, [UserMessage(f"secret {n}") for n in range(3)])
        waiting = asyncio.create_task(anext(follow(store, session_id, after_seq=3)))
        assert await asyncio.to_thread(store.is_seen.wait, 120)
        store.rewrite_events(session_id, lambda events: {3: replace(events[2], text="erased")})
        store.append_event(session_id, UserMessage("more"))
        self.assertEqual((await asyncio.wait_for(waiting, 120)).text, "more")

    async def test_an_invalid_cursor_is_refused(self):
        store = MemorySessionStore()
        session_id = store.create_session()
        for cursor in (-1, 1.5, "1", None, True, float("nan"), 10**20):
            with self.subTest(cursor=cursor), self.assertRaisesRegex(OptionsError, "after_seq"):
                await anext(follow(store, session_id, after_seq=cursor))

    async def test_a_follower_woken_while_it_reads_the_store_does_not_wait_again(self):
        reading, go_on = threading.Event(), threading.Event()

        class Slow(MemorySessionStore):
            def read_events(self, *args, **kwargs):
                reading.set()
                go_on.wait(120)
                return super().read_events(*args, **kwargs)

        store = Slow()
        follower = Follower(store, store.create_session())
        self.addAsyncCleanup(follower.close)
        waiting = asyncio.create_task(follower.batch())
        await asyncio.to_thread(reading.wait, 120)
        follower.wake()
        go_on.set()
        self.assertEqual(await asyncio.wait_for(waiting, 120), ())

    async def test_a_loop_that_its_own_thread_closes_meanwhile_does_not_fail_the_run_that_publishes(self):
        class Closing(asyncio.SelectorEventLoop):
            looks_open = True  # as just before the other thread closes it

            def is_closed(self):
                return not self.looks_open and super().is_closed()

        store, other = MemorySessionStore(), Closing()
        await asyncio.to_thread(lambda: other.run_until_complete(watching(store)))
        other.close()
        self.addCleanup(setattr, other, "looks_open", False)
        publish(store, store.create_session(), [UserMessage("Go on")])

    async def test_a_loop_is_not_skipped_if_a_follower_of_a_new_loop_comes_while_a_run_publishes(self):
        store, calls = MemorySessionStore(), []

        class Meeting(asyncio.SelectorEventLoop):
            """A loop that is closed as a run reaches it, while another thread starts to follow."""

            def call_soon_threadsafe(self, *args, **kwargs):
                if threading.current_thread() is threading.main_thread():
                    self.close()
                    thread = threading.Thread(target=lambda: asyncio.run(watching(store)))
                    thread.start()
                    thread.join()
                return super().call_soon_threadsafe(*args, **kwargs)

        class Open(asyncio.SelectorEventLoop):
            def call_soon_threadsafe(self, callback, *args, **kwargs):
                calls.append(args)
                return super().call_soon_threadsafe(callback, *args, **kwargs)

        for loop in (Meeting(), opened := Open()):
            await asyncio.to_thread(lambda loop=loop: loop.run_until_complete(watching(store)))
        self.addCleanup(opened.close)
        session_id, events = store.create_session(), [UserMessage("Go on")]
        publish(store, session_id, events)
        self.assertEqual(calls, [(session_id, events)])


async def watching(store):
    watch_of(store)


if __name__ == "__main__":
    unittest.main()
