"""The index of a folder of many sessions never changes a result, whatever happens to it, the sessions or the processes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.errors import OptionsError
from openagentic_sdk.events import AssistantMessage, UserMessage
from openagentic_sdk.parts.record.folds.costs import all_costs
from openagentic_sdk.sessions.base import SessionStore, whole_id
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.sessions.stores import file_index
from openagentic_sdk.testing import store_contract
from openagentic_sdk.testing.store_contract.listing import Listing
from tests.pythons import ROOT, run_python
from tests.size import IN_MEMORY, full_size, full_size_but, sized
from tests.waiting import pause, until

WORDS = ("maple", "willow", "ÄSCHE", "oak tree", "fir", "ab", "yew")


class IndexedStore(FileSessionStore):
    """A store that has an index from the first session on."""

    index_from = 1


@full_size_but(*vars(Listing))
class IndexedContract(store_contract.StoreContract):
    many_events = 500
    can_take_over = False

    def make_store(self) -> SessionStore:
        return IndexedStore(self.place, durability="flush")

    def distinct_time(self) -> None:
        pause(0.011, "lists sort by modification time, which has a granularity of up to 10 ms")


class FileIndexTest(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.index = self.place / "index"
        self.store = IndexedStore(self.place, "flush")

    def fill(self, count: int) -> None:
        for number in range(count):
            self.store.create_session(session_id=f"s{number}", metadata={"cwd": f"/c{number % 3}"})
            self.store.append_event(f"s{number}", UserMessage(f"{WORDS[number % len(WORDS)]} {number}"))

    def compare(self, store: FileSessionStore) -> None:
        """Compare the results of a store that uses the index with those of one that does not."""
        exact = FileSessionStore(self.place, read_only=True)
        for asked in (
            {"limit": 5},
            {},
            {"cwd": "/c1"},
            {"query": "maple"},
            {"query": "äsche 2"},
            {"query": "ab"},
            {"query": "ak tr", "limit": 2, "offset": 1},
        ):
            found, wanted = ([row.id for row in each.list_session_summaries(**asked)] for each in (store, exact))
            self.assertEqual(found, wanted, asked)
        for word in ("maple", "asche", "nothing", "ya"):
            found, wanted = (
                [(hit.session_id, hit.seq) for hit in each.search(word, limit=10_000)] for each in (store, exact)
            )
            self.assertEqual(sorted(found), sorted(wanted), word)
        pages: list[str] = []
        page = store.page_sessions(limit=3)
        pages += [row.id for row in page.rows]
        while page.next:
            page = store.page_sessions(limit=3, after=page.next)
            pages += [row.id for row in page.rows]
        self.assertEqual(pages, [row.id for row in exact.list_session_summaries()])

    def test_whatever_is_done_through_any_store_every_answer_is_the_one_without_an_index(self) -> None:
        for seed in range(sized(1, 4, 40)):
            with self.subTest(seed=seed):
                shutil.rmtree(self.place / "sessions", ignore_errors=True)
                self.play(random.Random(seed))

    def play(self, rng: random.Random) -> None:
        stores = [IndexedStore(self.place, "flush") for _ in range(2)]
        made, writers, damages = 0, {}, 0
        for _ in range(40):
            store = rng.choice(stores)
            names = [name for name in store.list_sessions() if name not in writers]
            match rng.choice(
                ("make", "append", "append", "open", "write", "close", "name", "delete", "damage", "look")
            ):
                case "make":
                    made += 1
                    store.create_session(session_id=f"n{made}", metadata={"cwd": f"/c{made % 3}"})
                case "append" if names:
                    store.append_event(rng.choice(names), UserMessage(f"{rng.choice(WORDS)} {rng.randrange(30)}"))
                case "open" if names:
                    name = rng.choice(names)
                    writers[name] = store.open_writer(name)
                case "write" if writers:
                    writers[rng.choice(sorted(writers))].append([AssistantMessage(rng.choice(WORDS))])
                case "close" if writers:
                    writers.pop(rng.choice(sorted(writers))).close()
                case "name" if names:
                    store.update_metadata(rng.choice(names), {"cwd": f"/c{rng.randrange(3)}"})
                case "delete" if names:
                    store.delete_session(rng.choice(names))
                case "damage":
                    damages += 1
                    self.damage(rng)
                case "look":
                    self.compare(store)
        for writer in writers.values():
            writer.close()
        self.compare(stores[0])
        self.assertTrue(self.index.exists() or not stores[0].list_sessions() or damages == 0)

    def damage(self, rng: random.Random) -> None:
        """Damage the index at random."""
        path = self.index / "sessions.sqlite"
        match rng.randrange(4):
            case 0:
                shutil.rmtree(self.index, ignore_errors=True)
            case 1 if path.exists():
                path.write_bytes(b"no database " * 500)
            case 2 if path.exists():
                path.unlink()
            case 3:
                shutil.rmtree(self.index / "touched", ignore_errors=True)

    def test_where_no_index_can_be_made_lists_and_search_go_through_the_folder(self) -> None:
        self.index.write_text("in the way")
        self.fill(5)
        self.compare(self.store)
        self.assertEqual(self.index.read_text(), "in the way")

    def test_a_writer_that_is_killed_leaves_its_session_noted(self) -> None:
        self.fill(6)
        self.store.list_session_summaries(limit=1)
        source = (
            "from tests.stores.test_file_index import *\nimport sys, os\n"
            f"writer = IndexedStore({str(self.place)!r}, 'flush').open_writer('s2')\n"
            "writer.append([UserMessage('maple of one who dies')])\nos.kill(os.getpid(), 9)\n"
        )
        self.assertEqual(run_python("-c", source, cwd=ROOT).returncode, -9)
        self.assertEqual(self.store.list_session_summaries(limit=1)[0].id, "s2")
        self.assertEqual([hit.seq for hit in self.store.search("maple of one")], [2])
        self.compare(self.store)
        self.assertEqual(os.listdir(self.index / "touched"), [])

    def test_events_and_sessions_of_other_programs_are_found_at_the_next_look_at_all_logs(self) -> None:
        self.fill(8)
        self.store.list_session_summaries()
        log = self.place / "sessions" / "s1" / "events.jsonl"
        with log.open("ab") as file:
            file.write(b'{"type":"user.message","text":"willow by hand"}\n')
        shutil.copytree(self.place / "sessions" / "s3", self.place / "sessions" / "copied")
        # Changes among the newest sessions are seen at once, others only when the logs are checked again, as here.
        self.assertEqual(self.store.list_session_summaries(limit=1)[0].id, "s1")
        shutil.rmtree(self.index / "touched")
        self.compare(self.store)
        self.assertEqual(whole_id(self.store, "cop"), "copied")

    def test_a_replaced_log_is_not_found_by_its_former_text(self) -> None:
        self.fill(3)
        self.assertEqual(len(self.store.search("maple")), 1)
        events = self.store.read_events("s0")
        self.store.rewrite_events("s0", lambda _: {1: events[0].__class__("erased", seq=1, ts=events[0].ts)})
        self.assertEqual((self.store.search("maple"), len(self.store.search("erased"))), ([], 1))
        self.store.scrub("s0")
        self.assertFalse(self.index.exists())

    def test_an_id_is_found_by_its_start_and_two_that_begin_so_are_refused(self) -> None:
        self.fill(12)
        self.assertEqual(whole_id(self.store, "s7"), "s7")
        self.store.delete_session("s11")
        self.assertEqual(self.store.ids_beginning("s1"), ["s1", "s10"])
        with self.assertRaisesRegex(OptionsError, "begin with 's'"):
            whole_id(self.store, "s")

    def test_progress_counts_the_sessions_whose_words_are_taken_in(self) -> None:
        self.fill(5)
        seen: list[tuple[int, int]] = []
        self.store.update_search(lambda done, whole: seen.append((done, whole)))
        self.assertEqual(seen[-1], (5, 5))
        seen.clear()
        self.store.update_search(lambda done, whole: seen.append((done, whole)))
        self.assertEqual(seen, [])
        self.store.index_progress = lambda done, whole: seen.append((done, whole))
        for number, ask in enumerate(
            (
                lambda: self.store.list_session_summaries(cwd="/here"),
                lambda: self.store.search("nothing"),
                lambda: all_costs(self.store, "tag"),
            )
        ):
            self.store.append_event("s1", UserMessage(f"again {number}"))
            seen.clear()
            ask()
            self.assertEqual(seen[-1][0], seen[-1][1])

    @full_size
    def test_an_update_that_is_stopped_has_reported_from_its_first_sessions_on_and_keeps_them(self) -> None:
        self.fill(100)
        described: list[str] = []
        kept_summary = self.store.kept_summary
        self.store.kept_summary = lambda name: (described.append(name), kept_summary(name))[1]  # type: ignore[method-assign]

        def stop(done: int, whole: int) -> None:
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.store.update_search(stop)
        self.assertTrue(0 < len(described) <= 64)
        reports: list[tuple[int, int]] = []
        self.store.update_search(lambda done, whole: reports.append((done, whole)))
        self.assertEqual(len(described), len(set(described)))
        self.assertEqual({whole for _, whole in reports}, {100 - (len(described) - reports[-1][1])})
        self.compare(self.store)

    def test_an_index_of_another_version_is_left_alone(self) -> None:
        self.fill(3)
        self.store.search("maple")
        with file_index.driver().connect(self.index / "sessions.sqlite") as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
        self.compare(self.store)
        self.assertTrue((self.index / "sessions.sqlite").exists())

    @full_size
    def test_processes_that_write_while_others_list_leave_an_index_that_is_right(self) -> None:
        self.fill(20)
        source = (
            "from tests.stores.test_file_index import *\nimport sys\nrng = random.Random(int(sys.argv[1]))\n"
            f"store = IndexedStore({str(self.place)!r}, 'flush')\n"
            "for n in range(60):\n"
            "    try:\n        store.append_event(f's{rng.randrange(20)}', UserMessage(f'maple {n}'))\n"
            "    except SessionLockedError:\n        pass\n"
            "    if n % 7 == 0:\n        store.list_session_summaries(limit=3); store.search('maple')\n"
        )
        source = "from openagentic_sdk.errors import SessionLockedError\n" + source
        started = [subprocess.Popen([sys.executable, "-c", source, str(n)], cwd=ROOT) for n in range(4)]
        for process in started:
            until(lambda process=process: process.poll() is not None, "a process never ended")
            self.assertEqual(process.returncode, 0)
        self.compare(self.store)


if __name__ == "__main__":
    unittest.main()
