"""Defects seeded into copies of the package, and the first schedule that finds each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.durability.sabotages import SABOTAGES, Sabotage
from tests.pythons import ROOT
from tests.size import IN_MEMORY

SEEDS = 1000
# Defects outside the schedules, which their own tests find: in checkpoints, questions of agents, rewinds and the check of
# requests, and in power cuts within one page of a log (`durability.test_power`).
_ELSEWHERE = (
    *("the truncation after a failed write", "a rewritten log", "an I/O error is reported", "only the last line"),
    *("a loss of durable data", "a checkpoint is trusted", "a prompt leaves", "the digest of a request"),
    *("the end of a run leaves", "a result is assigned to a call", "a forked child"),
)
_REMOTE = "sessions/stores/remote.py"
_SCRIPTS = "sessions/stores/redis/scripts.lua"
# Defects that need the whole simulation: an absent server, lost responses, workflows, older versions, and scripts on Redis.
_OWN = (
    Sabotage(
        "a batch whose answer was lost is not looked for",
        _REMOTE,
        "        return bool(rows) and [text for _, text in rows] == list(batch.lines)\n",
        "        return False\n",
        (),
    ),
    Sabotage(
        "a claim whose answer was lost is not recognized",
        _REMOTE,
        "        return (now.key, now.epoch, now.holder) == (at.key, at.epoch + 1, holder)\n",
        "        return False\n",
        (),
    ),
    Sabotage(
        "a claim that nobody uses stays",
        _REMOTE,
        "            holder.release_later(partial(self._release_unused, unused))\n",
        "",
        (),
    ),
    Sabotage(
        "a claim is released although a later one has its epoch",
        _REMOTE,
        "            if took_effect and not self._server.holder.holds(at.key, at.epoch):\n",
        "            if took_effect:\n",
        (),
    ),
    Sabotage(
        "a writer takes the same epoch of another holder for its own",
        _REMOTE,
        "        return (now.key, now.epoch, now.holder) == (self._at.key, self.epoch, self._holder.name)\n",
        "        return (now.key, now.epoch) == (self._at.key, self.epoch)\n",
        (),
    ),
    Sabotage(
        "an append tells no follower on Redis",
        _SCRIPTS,
        "touch(4, 5)\nfor _, channel in ipairs(redis.call('SMEMBERS', KEYS[3]))",
        "touch(4, 5)\nfor _, channel in ipairs({})",
        (),
    ),
    Sabotage(
        "a list of a server that evicts keys relies on the index",
        "sessions/redis.py",
        "        if self._server.evicts:\n            all_ids",
        "        if False:\n            all_ids",
        (),
    ),
    Sabotage(
        "a session whose row was evicted does not exist on Redis",
        "sessions/redis.py",
        "        if owner_key:\n            raise LogCorruptError",
        "        if False:\n            raise LogCorruptError",
        (),
    ),
    Sabotage(
        "a writer does not look who holds the session",
        _REMOTE,
        "        if not self._is_mine(now):\n            raise LeaseLostError",
        "        if False:\n            raise LeaseLostError",
        (),
    ),
    Sabotage(
        "an event that was delivered before is stored again",
        "parts/workflows/inbox.py",
        "        return [] if event.request_id in inbox.ids else writer",
        "        return [] if False else writer",
        (),
    ),
    Sabotage(
        "an event reaches two steps",
        "parts/workflows/work.py",
        "            if event.seq in assigned_seqs:\n",
        "            if False:\n",
        (),
    ),
    Sabotage(
        "a claim takes a run whose lease lasts",
        "fleet/queue.py",
        "WHERE state = 'running' AND lease_until < {now}",
        "WHERE state = 'running' AND lease_until < {now} + 6",
        (),
    ),
    Sabotage(
        "a worker that lost a run ends it",
        "fleet/queue.py",
        "    WHERE id = %s AND fence = %s AND state = 'running' RETURNING id\n",
        "    WHERE id = %s AND fence >= %s AND state = 'running' RETURNING id\n",
        (),
    ),
    Sabotage(
        "a request id stays with a session that an older version deleted",
        "sessions/store.py",
        "        return name if self.session_exists(name) else None\n",
        "        return name or None\n",
        (),
    ),
    Sabotage(
        "a summary is shown although an older version appended after it",
        "sessions/store.py",
        "            if summary and summary.position.offset == size and not beside.is_hole(fd, summary.position):\n",
        "            if summary:\n",
        (),
    ),
    Sabotage(
        "the line of an older tool must be ASCII",
        "sessions/log/line.py",
        '        data = _load_object(line, "utf-8-sig")\n        if not isinstance',
        '        data = _load_object(line, "ascii")\n        if not isinstance',
        (),
    ),
    Sabotage(
        "a writer that was replaced appends on Redis",
        _SCRIPTS,
        "if (key or '') ~= ARGV[2] or epoch ~= ARGV[3] or holder ~= ARGV[4] then return 0 end\nif (revision",
        "if (key or '') ~= ARGV[2] then return 0 end\nif (revision",
        (),
    ),
    Sabotage(
        "a session whose creation was not acknowledged is refused on Redis",
        _SCRIPTS,
        "    if redis.call('HGET', KEYS[1], 'key') == ARGV[2] then return 1 end\n    return 0\n",
        "    return 0\n",
        (),
    ),
)
# Defects beside other versions on SQLite.
_SQLITE = (
    Sabotage(
        "a session is opened in tables of a newer version that this one would damage",
        "sessions/sqlite.py",
        "        is_usable(db)  # a newer version",
        "        # a newer version",
        (),
    ),
    Sabotage(
        "rows of other packages are changed in tables of a newer version that this one would damage",
        "sessions/stores/sqlite/tables.py",
        "            is_usable(db)  # a newer version",
        "            # a newer version",
        (),
    ),
    Sabotage(
        "a row that an older version left behind is shown",
        "sessions/folds/summary.py",
        'data.get("version") != SUMMARY_VERSION',
        'data.get("version") is None',
        (),
    ),
)
# Defects of the scripts on Redis.
_REDIS = (
    Sabotage(
        "an append that was repeated is stored twice on Redis",
        _SCRIPTS,
        "if length ~= tonumber(ARGV[6]) then return 0 end\n",
        "",
        (),
    ),
    Sabotage(
        "a living holder counts as dead on Redis",
        _SCRIPTS,
        "left_ms = redis.call('PTTL', ARGV[2] .. found[4]) end\nreturn {1",
        "left_ms = 0 end\nreturn {1",
        (),
    ),
    Sabotage(
        "a holder that is gone counts as alive on Redis",
        _SCRIPTS,
        "left_ms = redis.call('PTTL', ARGV[2] .. found[4]) end\nreturn {1",
        "left_ms = 1000 end\nreturn {1",
        (),
    ),
    Sabotage(
        "the count of events stays behind on Redis",
        _SCRIPTS,
        "'last_seq', length + #ARGV - 11)",
        "'last_seq', length)",
        (),
    ),
    Sabotage(
        "a claim compares neither epoch nor holder on Redis",
        _SCRIPTS,
        "(key or '') ~= ARGV[1] or epoch ~= ARGV[2] or holder ~= ARGV[3] then return 0 end\nredis",
        "(key or '') ~= ARGV[1] then return 0 end\nredis",
        (),
    ),
    Sabotage(
        "a claim does not compare the holder on Redis",
        _SCRIPTS,
        "(key or '') ~= ARGV[1] or epoch ~= ARGV[2] or holder ~= ARGV[3] then return 0 end\nredis",
        "(key or '') ~= ARGV[1] or epoch ~= ARGV[2] then return 0 end\nredis",
        (),
    ),
    Sabotage(
        "a creation does not look for the mark of a deletion on Redis",
        _SCRIPTS,
        "if redis.call('EXISTS', KEYS[6]) == 1 then return 0 end\n",
        "",
        (),
    ),
    Sabotage(
        "a session in use is deleted on Redis",
        _SCRIPTS,
        "or epoch ~= ARGV[3] or holder ~= ARGV[4] then return 0 end\n    local stored",
        "then return 0 end\n    local stored",
        (),
    ),
    Sabotage(
        "a message that was sent again comes twice on Redis",
        _SCRIPTS,
        "if number then return tonumber(number) end\n",
        "",
        (),
    ),
)
# Defects beside other versions on servers, and of lists and erasures there.
_SERVERS = (
    Sabotage(
        "erased words stay in the index on Redis",
        "sessions/stores/redis/rewriting.py",
        """                run("forget", [self._key("by", "all")], [self._key("index", ""), at.id], pipe)\n""",
        "",
        (),
    ),
    Sabotage(
        "words that were read before an erasure are added to the index after it",
        _SCRIPTS,
        "if known_key ~= ARGV[4] or (key or '') ~= ARGV[4] or (revision or '0') ~= ARGV[5]\n",
        "if known_key ~= ARGV[4] or (key or '') ~= ARGV[4]\n",
        (),
    ),
    Sabotage(
        "what an older version erased stays in the index on Redis",
        "sessions/stores/redis/search.py",
        "    return isinstance(event, RecordErased)\n",
        "    return False\n",
        (),
    ),
    Sabotage(
        "a list shows a session of a server that is away as a failed one",
        _REMOTE,
        "        if self._server.is_unreachable(error):\n            raise error\n",
        "",
        (),
    ),
    Sabotage(
        "an append does not compare the revision, which an older version raised, on Redis",
        _SCRIPTS,
        "if (revision or '0') ~= ARGV[5] then return 0 end\nlocal length",
        "local length",
        (),
    ),
    Sabotage(
        "a session of a newer format is appended to on Redis",
        _SCRIPTS,
        "if format ~= FORMAT then return 0 end\nif (key or '') ~= ARGV[2] or epoch ~= ARGV[3] or holder ~= ARGV[4] then "
        "return 0 end\nif (revision",
        "if (key or '') ~= ARGV[2] or epoch ~= ARGV[3] or holder ~= ARGV[4] then return 0 end\nif (revision",
        (),
    ),
    Sabotage(
        "tables of a newer version that this one would damage are used on Postgres",
        "sessions/stores/postgres/schema.py",
        "    if version > len(MIGRATIONS) and not _may_go_on(db, version):\n",
        "    if False:\n",
        (),
    ),
    Sabotage(
        "a session of format 1 without a key gets none on Redis",
        _SCRIPTS,
        "    redis.call('HSETNX', KEYS[1], 'key', ARGV[7])\n",
        "",
        (),
    ),
    Sabotage(
        "a session of format 1 is moved although its holder lives on Redis",
        _SCRIPTS,
        "    if left_ms > 0 then return left_ms end\n",
        "",
        (),
    ),
    Sabotage(
        "the words of a session that an older version deleted stay in the index on Redis",
        _SCRIPTS,
        "    if not redis.call('ZSCORE', KEYS[1], known[place]) then forget(ARGV[1], known[place]) end\n",
        "",
        (),
    ),
)
# Defects of the fleet's workers, leases and executions.
_FLEET = (
    Sabotage(
        "a heartbeat renews the lease of another worker",
        "fleet/queue.py",
        '["(id = %s AND fence = %s)"]',
        '["(id = %s AND fence >= %s)"]',
        (),
    ),
    Sabotage(
        "a lease that nobody renewed lasts",
        "fleet/lease.py",
        "        self._is_lost = self._is_lost or left_s <= 0\n",
        "        left_s = max(left_s, 1.0)\n",
        (),
    ),
    Sabotage(
        "a worker that drains cancels the steps of its runs",
        "fleet/execute.py",
        "asyncio.ensure_future(background.suspend(grace_s))",
        "asyncio.ensure_future(background.cancel())",
        (),
    ),
    Sabotage(
        "a run starts tools although its lease is over",
        "fleet/execute.py",
        "options, guard=lease.check)",
        "options)",
        (),
    ),
    Sabotage(
        "a worker that drains keeps its runs",
        "fleet/worker.py",
        "                await asyncio.wait(self._running)\n",
        "                pass\n",
        (),
    ),
    Sabotage(
        "a run that was stopped by a drain has ended",
        "fleet/execute.py",
        'if lease.is_cancelled or is_over else RunOutcome("queued")',
        'if lease.is_cancelled or is_over else RunOutcome("ended", "end")',
        (),
    ),
)
# Defects of erasures and purges.
_KEEPING = (
    Sabotage(
        "an erasure does not look at the other sessions of the family",
        "parts/record/erase.py",
        "        names = store.list_sessions() if everywhere else _family(store, session_id)\n",
        "        names = store.list_sessions() if everywhere else []\n",
        (),
    ),
    Sabotage(
        "a purge leaves no tombstone",
        "parts/record/keep.py",
        "        store.append_events(TOMBSTONES, stones)\n",
        "",
        (),
    ),
)
DEFECTS = (
    *(row for row in SABOTAGES if not row.what.startswith(_ELSEWHERE)),
    *_OWN,
    *_SQLITE,
    *_REDIS,
    *_SERVERS,
    *_FLEET,
    *_KEEPING,
)


def fits(row: Sabotage) -> bool:
    """Whether the package contains the text that the row replaces exactly once."""
    return Path(ROOT, "openagentic_sdk", row.file).read_text().count(row.old) == 1


def first_seeds(rows: Sequence[Sabotage]) -> Iterator[tuple[str, int | None]]:
    """Each defect with the first seed that finds it, or None."""
    with _template() as template, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from zip([row.what for row in rows], pool.map(lambda row: _first_seed(template, row), rows), strict=True)


@contextmanager
def _template() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        for folder in ("openagentic_sdk", "tests", "fixtures"):
            shutil.copytree(Path(ROOT, folder), Path(place) / folder, ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(place)


def _first_seed(template: Path, row: Sabotage) -> int | None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        copy = Path(place) / "copy"
        shutil.copytree(template, copy, copy_function=os.link)
        path = copy / "openagentic_sdk" / row.file
        text = path.read_text()
        if text.count(row.old) != 1:
            raise ValueError(f"{row.what}: {row.file} contains {text.count(row.old)} times {row.old!r}")
        broken = text.replace(row.old, row.new)
        path.unlink()  # the copies are hard links
        path.write_text(broken)
        command = [sys.executable, "-m", "tests.simulation", f"0-{SEEDS - 1}", "stop"]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=900)
        words = done.stdout.split(":", 1)[0].split()
        return int(words[1]) if done.returncode == 1 and words[:1] == ["seed"] else None
