"""The programs that default mode runs without a rule, executed for real: nothing in the workspace changes."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import lzma
import os
import random
import string
import subprocess
import tarfile
import unittest
import zipfile
from pathlib import Path

from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.program_tables import FIND_VALUED, FIND_WORDS, LISTERS, OPTIONS, READERS
from tests.size import full_size, sized

from .real_bash import BASH
from .workspace import WorkspaceTestCase

LINES = sized(100, 300, 20_000)
_LETTERS = string.ascii_letters + string.digits
_WORDS = (
    "README.md",
    "src/a.py",
    "src",
    ".",
    "new",
    "out/x",
    "1",
    "2",
    "x",
    "+%s",
    "s/x/y/w new",
    "w new",
    "1p",
    "$p",
    "s/x/y/",
    "--",
)
# The archive for a program whose name contains these letters.
_ARCHIVES = {
    "xz": "x.xz",
    "bz": "x.bz2",
    "bun": "x.bz2",
    "unzip": "x.zip",
    "zipinfo": "x.zip",
    "tar": "x.tar",
    "": "x.gz",
}


def random_call(rng: random.Random) -> str:
    """A call of a reading program with options that may or may not be harmless."""
    name = rng.choice((*READERS, *LISTERS, "awk", "find", "sed"))
    words = [name]
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4))):
        words.append(rng.choice((_option, _option, _word))(rng, name))
    return " ".join(f"'{word}'" for word in words)


def _option(rng: random.Random, name: str) -> str:
    if name == "find":
        return rng.choice((*sorted(FIND_WORDS), *sorted(FIND_VALUED), *sorted(OPTIONS["find"].words)))
    if name in LISTERS and rng.random() < 0.7:
        return rng.choice(("-", "-", "")) + "".join(
            rng.choice(f"{LISTERS[name].letters}dxc") for _ in range(rng.choice((1, 2, 2, 3)))
        )
    if rng.random() < 0.3:
        reader = READERS.get(name)
        known = (*reader.long, *reader.long_valued) if reader else ("expression", "in-place")
        risky = OPTIONS[name].long if name in OPTIONS else ("output",)
        return "--" + rng.choice((*known, *risky, "output")) + rng.choice(("", "=new", "=1"))
    return "-" + "".join(rng.choice(_LETTERS) for _ in range(rng.choice((1, 1, 2, 3))))


def _word(rng: random.Random, name: str) -> str:
    if name in LISTERS and rng.random() < 0.9:
        return next(archive for letters, archive in _ARCHIVES.items() if letters in name)
    return rng.choice(_WORDS)


@unittest.skipIf(BASH is None, "bash is not installed")
class ReadingPrograms(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        for name, compress in {"x.gz": gzip.compress, "x.xz": lzma.compress, "x.bz2": bz2.compress}.items():
            (self.root / name).write_bytes(compress(b"x\n"))
        with tarfile.open(self.root / "x.tar", "w") as archive:
            archive.add(self.root / "README.md", "new")
        with zipfile.ZipFile(self.root / "x.zip", "w") as packed:
            packed.writestr("new", "x\n")

    def snapshot(self) -> dict[str, tuple[int, int, bytes]]:
        found = {}
        for path in sorted(self.outside.rglob("*")):
            state = path.lstat()
            found[str(path)] = (state.st_mode, state.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        return found

    async def allowed(self, calls: list[str]) -> list[str]:
        gate = PermissionGate(cwd=str(self.root))
        return [call for call in calls if await gate.approve("Bash", {"command": call}, {"cwd": str(self.root)})]

    @full_size
    def test_no_call_that_passes_without_a_rule_changes_anything(self) -> None:
        rng = random.Random(13)
        calls = list(dict.fromkeys(random_call(rng) for _ in range(LINES)))
        allowed = asyncio.run(self.allowed(calls))
        self.assertGreater(len(allowed), len(calls) / 10)
        run = [f"timeout 5 {call}" for call in allowed if call.split("'")[1] not in ("sleep", "type", "test")]
        script = Path(self.outside, "script.sh")
        script.write_text("\n".join(run), encoding="utf-8")
        before = self.snapshot()
        with open(os.devnull, "wb") as nowhere:
            subprocess.run(
                [BASH or "bash", "--noprofile", "--norc", str(script)],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=nowhere,
                stderr=nowhere,
                timeout=300,
                check=False,
            )
        self.assertEqual(self.snapshot(), before)


class FoundFiles(WorkspaceTestCase):
    def test_a_program_that_only_reads_may_open_what_find_passes_to_it(self) -> None:
        (self.root / "docs" / "a b.md").touch()
        (self.root / "docs" / "out.cfg").symlink_to("/etc/passwd")
        for expected, command in (
            ("allow", "find . -name '*.py' -exec grep -n x {} +"),
            ("allow", "find src -type f -exec head -n 3 {} \\;"),
            ("allow", "find . -name '*.md' -exec awk '{print $1}' {} +"),
            ("allow", "find . -type f -exec sed -n 1,3p {} \\;"),
            ("ask", "find . -type f -exec awk '{print > $1}' {} +"),
            ("allow", "find src -name '*.py' | head -5 | xargs wc -l 2>/dev/null"),
            ("allow", "find docs -name '*.md' -print0 | xargs -0 -r cat"),
            ("allow", "ls | xargs -n1 basename"),
            ("ask", "find docs -name '*.md' | xargs cat"),
            ("ask", "find docs -name '*.cfg' -exec cat {} +"),
            ("ask", "find d* -name '*.cfg' -exec cat {} +"),
            ("ask", "find ./d* -name '*.cfg' | xargs cat"),
            ("ask", "find docs -print -name '*.md' | xargs cat"),
            ("ask", "find docs -name '*.md' -print0 | head -c 9 | xargs -0 cat"),
            ("ask", "find . -type f -exec sed {} README.md \\;"),
            ("ask", "find . -type f -exec uniq {} +"),
            ("ask", "find . -type f | xargs sort -o x"),
            ("ask", "find . -type f -exec cat /etc/passwd {} +"),
            ("ask", "find . -type f -exec rm {} +"),
            ("ask", "ls | xargs cat"),
            ("allow", "/bin/cat README.md && timeout 5 /usr/bin/head README.md && cat --help && cat /etc/os-release"),
            ("ask", "/bin/cat /etc/passwd"),
            ("allow", "timeout -k 1 5s nice -n 5 cat README.md"),
            ("ask", "timeout"),
            ("ask", "timeout -k 1"),
            ("ask", "timeout cat README.md"),
            ("ask", "nice -n"),
            ("ask", "command nice"),
            ("ask", "/usr/bin/diff /etc src"),
            ("ask", "/usr/bin/../../tmp/ls"),
            ("allow", "apt list --installed"),
            ("ask", "apt show ./x.deb"),
            ("allow", "sed '/^#/d' README.md"),
            ("ask", "sed '/#/w x' README.md"),
        ):
            with self.subTest(command=command):
                self.assertEqual(self.outcome({}, "Bash", {"command": command}), expected)

    def test_a_rule_about_a_program_by_its_name_does_not_cover_the_one_in_bin(self) -> None:
        self.assertEqual(self.outcome({"allow": ["Bash(touch:*)"]}, "Bash", {"command": "/bin/touch x"}), "ask")


if __name__ == "__main__":
    unittest.main()
