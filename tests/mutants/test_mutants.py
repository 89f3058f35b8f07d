"""Tests of the mutation tests: the changes, a jail that notices one, and the truth of the list of equivalent mutants."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.permissions.subcommands import subcommands
from openagentic_sdk.sessions.log.lock import _watch_forks

from .equivalent import EQUIVALENT
from .inside import package_caches

ROOT = Path(__file__).parent.parent.parent
CODE = """
def cut(text: str | None, limit: int = 3) -> str:
    if len(text) > limit:
        raise ValueError(f"the text is {limit + 1} long")
    note(text, name="openagentic-note")
    if sys.platform == "win32":
        text = text + 1
    return text[: event.seq or 0]
"""

# Its attempts change nothing even if they succeed.
RIGHTS = """
import pathlib, socket, unittest

class Rights(unittest.TestCase):
    def test_none(self):
        status = pathlib.Path("/proc/self/status").read_text()
        self.assertIn("CapEff:\\t0000000000000000", status)
        name = pathlib.Path("/proc/sys/kernel/hostname")
        with self.assertRaises(OSError):
            name.write_text(name.read_text())
        with self.assertRaises(OSError):
            pathlib.Path("/etc/hostname").open("a")
        self.assertEqual([name for _, name in socket.if_nameindex()], ["lo"])
"""


class EquivalentTest(unittest.TestCase):
    def test_each_row_matches_the_code_and_has_a_reason(self) -> None:
        for (file, function, before, after), reason in EQUIVALENT.items():
            with self.subTest(file=file, function=function):
                code = (ROOT / "openagentic_sdk" / file).read_text()
                self.assertIn(before, " ".join(line.strip() for line in code.split("\n")))
                self.assertNotEqual(before, after)
                self.assertGreater(len(reason), 15)


class CachesTest(unittest.TestCase):
    def test_caches_of_results_are_emptied_and_what_happens_once_a_process_is_left(self) -> None:
        caches = package_caches()
        self.assertIn(subcommands, caches)
        self.assertNotIn(_watch_forks, caches)


@unittest.skipUnless(importlib.util.find_spec("mutmut"), "mutmut is not installed")
class DrawTest(unittest.TestCase):
    def test_behaviour_is_changed_and_neither_types_nor_wording(self) -> None:
        from .draw import changes_of, mutant_of

        mutants = [mutant_of("log", change) for change in changes_of("cut.py", CODE)]
        self.assertEqual(
            {mutant.after for mutant in mutants if mutant},
            {
                "if len(text) >= limit:",
                "pass",
                'note(None, name="openagentic-note")',
                'note(name="openagentic-note")',
                'if sys.platform != "win32":',
                'if sys.platform == "XXwin32XX":',
                "return text[: event.seq and 0]",
                "def cut(text: str | None, limit: int = 4) -> str:",
            },
        )

    def test_a_sample_is_the_same_whatever_else_changes(self) -> None:
        from .draw import changes_of

        keys, more = ([change.key for change in changes_of("cut.py", code)] for code in (CODE, "import os\n\n" + CODE))
        self.assertEqual(keys, more)


@unittest.skipUnless(importlib.util.find_spec("mutmut"), "mutmut is not installed")
@unittest.skipUnless(shutil.which("bwrap"), "bubblewrap is not installed")
class JailTest(unittest.TestCase):
    def test_a_change_is_noticed_and_gone_afterwards(self) -> None:
        from .__main__ import Jail

        name = "tests.mutants.test_mutants.EquivalentTest.test_each_row_matches_the_code_and_has_a_reason"
        with tempfile.TemporaryDirectory() as place:
            jail = Jail(Path(place, "copy"))
            self.assertEqual(jail.ask("run", jail.tell([name]), 60), {"ran": 1, "noticed": None, "how": None})
            put_back = jail.change("errors.py", "raise RuntimeError('changed')")
            hurt = jail.ask("run", jail.tell(["tests.sessions.test_rebuild"]), 60)
            self.assertIn("changed", hurt["how"])
            put_back()
            self.assertEqual(jail.ask("run", jail.tell(["tests.sessions.test_folds"]), 60)["noticed"], None)

    def test_programs_in_the_sandbox_have_no_rights_of_root_and_no_network(self) -> None:
        from .__main__ import Jail

        with tempfile.TemporaryDirectory() as place:
            jail = Jail(Path(place, "copy"))
            Path(place, "copy", "tests", "test_rights.py").write_text(RIGHTS)
            self.assertEqual(
                jail.ask("run", jail.tell(["tests.test_rights"]), 60), {"ran": 1, "noticed": None, "how": None}
            )


if __name__ == "__main__":
    unittest.main()
