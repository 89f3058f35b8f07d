"""Findings of the workflow check in a body it does not run, and the code that it accepts."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import textwrap
import unittest
from pathlib import Path

from openagentic_sdk.cli.main import main
from openagentic_sdk.errors import OptionsError
from openagentic_sdk.parts.workflows.lint import KINDS, check_paths, check_source
from openagentic_sdk.parts.workflows.tables import without_tables
from tests.size import drawn, full_size

HEAD = """
import asyncio, os, random, secrets, subprocess, sys, threading, time, uuid
import concurrent.futures as futures
import datetime as dt
import functools
import http.client
import urllib.request
import httpx
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import time as t, perf_counter
from openagentic_sdk import Flow, tool, workflow

HERE = Path(__file__).parent
NAMES = {"a", "b"}
client = httpx.AsyncClient()
clock = time.time
rng = random.Random(7)

def plain(x): return len(x)
def late(): return dt.datetime.now()
def deep(): return late()
def fetch(url): return urllib.request.urlopen(url)
def typed(http: httpx.Client, names: Set[str] | None = None): return http.get("x"), [name for name in names]
def chances(generator): return generator.random()
def by_chance(x): return random.random()
def steps(recorder): recorder.step(lambda: time.time()); time.time()
@tool
def opaque(): return time.time()
@functools.lru_cache(maxsize=None)
def cached(): return time.time()

@dataclass
class Report:
    text: str = ""
    key: str = field(default_factory=lambda: str(uuid.uuid4()))

class Base:
    def when(self): return time.time()

class Store(Base):
    def __init__(self): self.path = os.getcwd()
    @staticmethod
    def now(): return datetime.now()
"""
# The body of a workflow, and the kinds of findings in it.
BODIES: tuple[tuple[str, str], ...] = (
    # The clock, under each of its names.
    ("time.time()", "clock"),
    ("t()", "clock"),
    ("perf_counter()", "clock"),
    ("dt.datetime.now(tz=dt.UTC)", "clock"),
    ("datetime.now().isoformat()", "clock"),
    ("dt.date.today()", "clock"),
    ("clock()", "clock"),
    ("now = datetime.now; now()", "clock"),
    ("now, then = datetime.now, plain; now(); then(x)", "clock"),
    ("getattr(time, 'monotonic')()", "clock"),
    ("__import__('time').time()", "clock"),
    ("import time as zeit; zeit.time()", "clock"),
    ("functools.partial(time.time)()", "clock"),
    ("while time.time() < 5: pass", "clock"),
    ("x = x if t() else None", "clock"),
    ("f'{t()}'", "clock"),
    ("time.localtime()", "clock"),
    ("time.sleep(1)", "clock"),
    ("asyncio.get_running_loop().time()", "clock"),
    ("sorted(x, key=lambda _: t())", "clock"),
    ("[t() for _ in x]", "clock"),
    ("late()", "clock"),
    ("deep()", "clock"),
    ("cached()", "clock"),
    ("Store().when()", "clock environment"),
    ("Store.now()", "clock"),
    ("check = lambda: t(); check()", "clock"),
    ("def inner(): return t()\n    inner()", "clock"),
    ("await flow.step(plain, t())", "clock"),
    ("await flow.step(functools.partial(plain, t()))", "clock"),
    ("await flow.step(plain, x, key=t())", "clock"),
    ("steps(flow)", "clock"),
    # Randomness.
    ("random.choice(x)", "random"),
    ("random.Random()", "random"),
    ("secrets.token_hex()", "random"),
    ("uuid.uuid4().hex", "random"),
    ("os.urandom(8)", "random"),
    ("sorted(x, key=by_chance)", "random"),
    ("sorted(x, key=random.random)", "random"),
    ("from random import *; shuffle(x)", "random"),
    ("chances(random)", "random"),
    ("Report()", "random"),
    # The world outside the process.
    ("urllib.request.urlopen('http://x')", "network"),
    ("http.client.HTTPSConnection('x')", "network"),
    ("await client.get('x')", "network"),
    ("async with httpx.AsyncClient() as http: await http.get('x')", "network"),
    ("fetch(x)", "network"),
    ("typed(x)", "network order"),
    ("open('x')", "files"),
    ("(HERE / 'x').read_text()", "files"),
    ("Path(x).parent.with_suffix('.y').exists()", "files"),
    ("for path in HERE.iterdir(): pass", "files"),
    ("with Path(x).open() as file: file.read()", "files"),
    ("os.path.exists(x)", "files"),
    ("os.environ['X']", "environment"),
    ("os.environ.get('X')", "environment"),
    ("from os import environ; environ['X']", "environment"),
    ("sys.argv[1]", "environment"),
    ("os.getenv('X')", "environment"),
    ("input()", "environment"),
    ("subprocess.run(['x'])", "processes"),
    ("os.system('x')", "processes"),
    ("threading.Thread(target=plain).start()", "threads"),
    ("with futures.ThreadPoolExecutor() as pool: pool.submit(plain)", "threads"),
    ("await asyncio.to_thread(plain, x)", "threads"),
    # Functions of asyncio that Flow replaces.
    ("await asyncio.sleep(1)", "asyncio"),
    ("await asyncio.gather(flow.step(plain, x))", "asyncio"),
    ("asyncio.create_task(flow.step(plain, x))", "asyncio"),
    ("async with asyncio.TaskGroup() as group: group.create_task(x)", "asyncio"),
    ("async with asyncio.timeout(1): pass", "asyncio"),
    # Iteration order and identity.
    ("for name in NAMES: pass", "order"),
    ("for name in {'a', *x}: pass", "order"),
    ("for name in set(x) - {'a'}: pass", "order"),
    ("for name in x.keys() & x: pass", "order"),
    ("names = set(x); [name for name in names]", "order"),
    ("names: set[str] = x; list(names)", "order"),
    ("', '.join(set(x))", "order"),
    ("[*NAMES]", "order"),
    ("NAMES.pop()", "order"),
    ("await flow.gather(flow.step(plain, name) for name in NAMES)", "order"),
    ("dict.fromkeys(frozenset(x))", "order"),
    ("{name: 1 for name in NAMES}", "order"),
    ("id(x)", "identity"),
    ("hash(x)", "identity"),
    # Bodies without findings.
    ("await flow.step(time.time)", ""),
    ("await flow.step(lambda: t())", ""),
    ("await flow.step(functools.partial(fetch, x))", ""),
    ("await flow.step(fetch, x)", ""),
    ("def inner(): return t()\n    await flow.step(inner)", ""),
    ("inner = lambda: t(); await flow.step(inner)", ""),
    ("flow.now(); flow.random(); flow.uuid()", ""),
    ("await flow.sleep(1)", ""),
    ("time = x; time.time()", ""),
    ("for random in x: random.choice()", ""),
    ("def open(name): return name\n    open('x')", ""),
    ("[time.time() for time in x]", ""),
    ("datetime.fromtimestamp(4); dt.timedelta(seconds=1); datetime(2026, 1, 1)", ""),
    ("time.strftime('%Y', x); time.gmtime(4)", ""),
    ("random.Random(7).choice(x); rng.random()", ""),
    ("chances(random.Random(7))", ""),
    ("uuid.uuid5(uuid.NAMESPACE_URL, 'x'); uuid.UUID(x)", ""),
    ("Path(x) / 'y'; Path(x).name; Path(x).with_suffix('.y')", ""),
    ("os.path.join('a', 'b'); os.sep", ""),
    ("raise httpx.HTTPError('x')", ""),
    ("for name in sorted(NAMES): pass", ""),
    ("len(NAMES); 'a' in NAMES; sum(len(name) for name in NAMES); {name for name in NAMES}", ""),
    ("for number in {1, 2}: pass", ""),
    ("for key in {'a': 1}: pass", ""),
    ("names = set(x); names = sorted(names); [name for name in names]", ""),
    ("asyncio.Event(); asyncio.CancelledError()", ""),
    ("opaque()", ""),
    ("plain(x)", ""),
    ("x.open(); x.sleep(); x.read_text()", ""),
    ("value: Path | None = None", ""),
    ("try: pass\n    except TimeoutError: pass", ""),
    # Findings allowed by a comment.
    ("t()  # workflow: allow", ""),
    ("t()  # workflow: allow clock, files: only for the log", ""),
    ("plain(\n        t(\n        )  # workflow: allow clock\n    )", ""),
    ("t()  # workflow: allow files", "clock"),
    ("'# workflow: allow'; t()", "clock"),
    ("plain(x)  # workflow: allow nothing", "allow"),
)


def checked(body: str, head: str = HEAD) -> list[str]:
    source = f"{head}\n@workflow\nasync def main(flow: Flow, x):\n    {body}\n"
    return sorted({finding.kind for finding in check_source(source.encode()).findings})


class LintTest(unittest.TestCase):
    def test_nondeterministic_calls_are_found_under_any_name_and_nothing_else(self) -> None:
        for body, kinds in drawn(BODIES, 2):
            with self.subTest(body):
                self.assertEqual(checked(body), sorted(kinds.split()))

    def test_a_kind_of_the_table_has_a_case(self) -> None:
        self.assertLessEqual(KINDS, {kind for _, kinds in BODIES for kind in kinds.split()})

    def test_a_finding_names_the_place_the_remedy_and_the_workflow_that_calls_it(self) -> None:
        source = textwrap.dedent(
            """
            from time import time as t
            from openagentic_sdk import Flow, workflow
            def late(): return "über", t()
            @workflow
            async def main(flow: Flow): return late()
            """
        )
        (finding,) = check_source(source.encode(), "flows.py").findings
        self.assertEqual(
            str(finding),
            "flows.py:4:28: clock: t(), which is time.time(), reads the clock: use flow.now() (in late, called by main)",
        )

    def test_a_body_is_a_workflow_by_its_decorator_or_by_taking_a_flow_wherever_it_is_defined(self) -> None:
        bodies = {
            "import openagentic_sdk as oa\n@oa.workflow\nasync def f(flow): t()": "f",
            "from openagentic_sdk import workflow\n@workflow(name='x')\nasync def f(flow): t()": "f",
            "from openagentic_sdk import Flow\nasync def helper(x, flow: 'Flow | None'): t()": "helper",
            "from .base import workflow as durable\n@durable\nasync def f(flow): t()": "f",
            "from openagentic_sdk import workflow\ndef build():\n  if 1:\n    @workflow\n    async def f(flow): t()": "f",
            "from openagentic_sdk import workflow\nclass A:\n  @workflow\n  async def f(self, flow): t()": "A.f",
            "from openagentic_sdk import workflow\n@workflow\nasync def f(flow, at=t()): pass": "f",
            "from temporalio import workflow\n@workflow\nasync def f(flow): t()": "",
            "async def f(flow): t()": "",
        }
        for source, name in bodies.items():
            with self.subTest(source):
                report = check_source(f"from time import time as t\n{source}\n".encode(), "m")
                self.assertEqual(report.workflows, (f"m:{name}",) if name else ())
                self.assertEqual([finding.kind for finding in report.findings], ["clock"] if name else [])

    def test_hostile_and_broken_files_are_findings_of_their_own(self) -> None:
        sources = [
            b"def (",
            b"x = 1\0",
            b"\xff",
            b"(" * 5000,
            b"# -*- coding: none -*-",
            b"-" * 100_000 + b"1",
            b"x = '''",
        ]
        for source in sources:
            with self.subTest(source[:20]):
                self.assertEqual([finding.kind for finding in check_source(source).findings], ["unreadable"])
        self.assertEqual(check_source(b"").findings, ())

    @full_size
    def test_tables_of_a_long_file_are_left_out_and_findings_keep_their_places(self) -> None:
        row, words = "'é'" + ", None" * 20 + f"{', -1' * 10}  # x", "'b', " * 99
        rows = f"[{', '.join([f'({10**90}, 2)'] * 60)}]\n"
        table = f"T = [{{1: 2, 3: [4, # (\n 5]}}, ({row}\n), *range(3)]; import time; s = {{'a',\n{words}}}\n"
        body = "@workflow\nasync def f(flow):\n  g([" + "0, " * 99 + "'é'], time.time())\n  for x in s: pass\n"
        code = f"from openagentic_sdk import workflow\n{table}{body}def g(*args): pass\n"
        short, long = (check_source((code + f"U = {rows}" * count).encode()) for count in (1, 100))
        self.assertEqual(short, long)
        self.assertEqual([(f.line, f.column, f.kind) for f in long.findings], [(8, 309, "clock"), (9, 12, "order")])
        blanked = without_tables(code + f"U = {rows}" * 100)
        self.assertEqual(len(blanked.encode()), len((code + f"U = {rows}" * 100).encode()))
        self.assertLess(len(blanked.replace(" ", "")), len(blanked) / 2)

    @full_size
    def test_a_long_file_with_too_much_code_is_a_finding_if_it_may_have_a_workflow(self) -> None:
        code = "f(x);" * 75_000
        self.assertEqual(check_source(code.encode()).findings, ())
        (finding,) = check_source(f"{code}import workflow".encode()).findings
        self.assertRegex(finding.message, r"\Acannot be parsed: it has 375,0\d\d tokens .* at most 300,000 .*: move ")

    def test_functions_that_call_each_other_end(self) -> None:
        head = HEAD + "def one(x): two(x); t()\ndef two(x): one(x)\nclass Odd(Odd): pass\n"
        self.assertEqual(checked("one(x); Odd().missing()", head), ["clock"])

    def test_folders_are_checked_without_hidden_ones_and_environments_and_each_file_once(self) -> None:
        source = "from openagentic_sdk import workflow\n@workflow\nasync def f(flow): id(f)\n"
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name in ("a.py", "b/c.py", ".hidden/d.py", "env/lib/e.py", "__pycache__/f.py", "g.txt"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(source)
            (root / "env" / "pyvenv.cfg").touch()
            report = check_paths([root, root / "a.py"])
            self.assertEqual([Path(finding.path).name for finding in report.findings], ["a.py", "c.py"])
            self.assertEqual(report.files, 2)
            with self.assertRaisesRegex(OptionsError, "does not exist"):
                check_paths([root / "missing"])

    def test_the_command_prints_findings_or_json_and_its_exit_code_shows_whether_there_are_any(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            flows = Path(folder, "flows.py")
            flows.write_text("from openagentic_sdk import workflow\n@workflow\nasync def f(flow):\n    return id(f)\n")
            code, output = command("check", str(flows))
            self.assertEqual((code, output.splitlines()[-1]), (1, "1 workflow in 1 file: 1 finding"))
            self.assertIn("flows.py:4:12: identity: id() returns a different number in each process", output)
            code, output = command("check", folder, "--json")
            self.assertEqual([each["column"] for each in json.loads(output)["findings"]], [12])
            flows.write_text("raise SystemExit('this was imported')")
            self.assertEqual(command("check", str(flows)), (0, "0 workflows in 1 file: nothing found\n"))
            self.assertEqual(command("check", f"{folder}/none")[0], 2)


def command(*words: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        return main(["workflow", *words]), out.getvalue()
