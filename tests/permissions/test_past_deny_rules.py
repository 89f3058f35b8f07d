"""Deny rules against hand-written and random lines; the lines that the gate allows are run and observed.

The oracle is a separate root (bubblewrap) in which `rm` prints a marker and denied files contain another; neither may be
printed. The small size is a sample; OPENAGENTIC_TEST_LARGE=1 tries 25,000 lines.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.permissions.shell import words
from tests.size import drawn, full_size, sized

from .workspace import FIXTURES, WorkspaceTestCase

LINES = sized(120, 400, 25_000)
SECRET = "swordfish-7291"
MARK = "ran-the-denied"
DENY: dict[str, Any] = {"permission_mode": "bypass", "deny": ["Read(.env)", "Read(./secrets/**)", "Bash(rm:*)"]}

# Ways to write a denied file and a denied program in a line.
PATHS = words(r"""
    .env ./.env src/../.env '.env' .e"n"v \.env $'\x2eenv' .e{n..n}v {.env,} .e?v .[!f]nv .e* .??v $PWD/.env ~+/.env .$x
    ${y:-.env} `ls` $(ls) /proc/self/cwd/.env secrets/key secrets/* s*/k* */key d/.env up/.env link src/link . src/..
    list secrets a src/b cmd x src - ../project/.env .en[v] ./.e* ./* a src/b a src/b
""")
PROGRAMS = words(r"""
    rm /bin/rm \rm r''m r"m" $'rm' r$@m r${IFS:9}m {rm,} /bin/r? $r "$r" ./z src/z b/rm bin/rm z cp ls cat touch head
""")
FORMS = r"""
cat {p}
head -5 {p}
sed -n p {p}
sed '$r{p}' a
sed 's/a/b/' {p}
awk '{{print}}' {p}
awk 'BEGIN{{ARGV[1]=".e" "nv";ARGC=2}}1' a
grep '' {p}
grep -r '' {p}
sort {p}
tac {p}
od -c {p}
xxd {p}
base64 {p}
tar cf - {p}
tar -cT {p}
tar cf y.tar {p}; tar xOf y.tar
cpio -o < {p}
xargs cat < {p}
cat < {p}
echo `cat {p}`
dd if={p}
paste {p} a
diff {p} a
cp {p} x; cat x
cp {p} src; cat src/*
cp -r {p} y; cat y/* y/.e*
mv {p} x; cat x
ln -s {p} x; cat x
ln {p} x; cat x
ln -s {p} src/x; cat src/x
ln -s {p} s; cat s/key s/.env
ln -s .. d; cat d/project/.env d/.env
cd {p} && cat key .env
cd -- {p}; cat key
cd src; cat ../{p}
cat ./{p}
find {p} -exec cat {{}} +
find {p} -type f
strings {p}
wc --files0-from={p}
git diff --no-index a {p}
python3 -c "print(open('{p}').read())"
jq -Rr . {p}
nl {p}
rev {p}
tee x < {p}
mkdir -p y; cp {p} y/; cat y/*
touch y; cat {p} > y; cat y
gzip -c {p} > y; zcat y
install {p} x; cat x
split {p} y; cat yaa
uniq {p}
shuf {p}
{r} y
<a {r} y
{r} y > x
echo a | {r}
echo a | xargs {r}
find . -exec {r} {{}} +
printf '%s%s y' r m | sh
sh -c '{r} y'
env {r} y
cp /bin/rm z; ./z y
ln -s /bin/rm z; ./z y
cat /bin/rm > z; chmod +x z; ./z y
ln -s /bin b; {r} y
bash cmd
test -f {p} && {r} y
printf '%s\n' {p}
ls -la {p}
stat {p}
""".strip().split("\n")
JOINTS = ("; ", " && ", " || ", "\n", " | ", " & ")


def random_line(chance: random.Random) -> str:
    """One to three commands that may read a denied file, run a denied program, or prepare to."""
    parts = []
    for _ in range(chance.randint(1, 3)):
        parts.append(chance.choice(FORMS).format(p=chance.choice(PATHS), r=chance.choice(PROGRAMS)))
    return chance.choice(("{}", "{}", "{}", "{}", "{}", "x=env; r=rm; {}", "( {} )")).format(
        chance.choice(JOINTS).join(parts)
    )


def hand_made() -> list[str]:
    """The lines of the table; `%%` stands for a line break."""
    text = (FIXTURES / "past_deny_rules.txt").read_text(encoding="utf-8")
    return [line.replace("%%", "\n") for line in text.splitlines() if line and not line.startswith("# ")]


class Oracle:
    """A disposable root in which a line runs, to see whether it prints what a rule denies."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "mark"
        self.mark.write_text(f"#!/bin/sh\necho {MARK}\n")
        self.mark.chmod(0o755)

    def fill(self, project: Path) -> None:
        """Create a project with denied files."""
        for folder in ("src", "secrets"):
            (project / folder).mkdir(parents=True)
        texts = dict.fromkeys((".env", "secrets/key"), SECRET + "\n") | dict.fromkeys(("a", "src/b"), "a\n")
        for name, text in {**texts, "list": ".env\nsecrets/key\n", "cmd": "rm y\n"}.items():
            (project / name).write_text(text)

    def leak(self, line: str) -> str | None:
        """Run the line, and return what it leaked, if anything."""
        with tempfile.TemporaryDirectory() as folder:
            project = Path(folder, "project")
            self.fill(project)
            command = words("bwrap --ro-bind / / --dev /dev --proc /proc --unshare-all --die-with-parent --tmpfs /tmp")
            command += ("--bind", str(project), "/tmp/project", "--chdir", "/tmp/project", "--setenv", "HOME", "/tmp")
            command += ("--ro-bind", str(self.mark), os.path.realpath("/bin/rm"))
            command += ("timeout", "-s", "KILL", "3", "bash", "--noprofile", "--norc", "-c", line)
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=300)
        output, secret = done.stdout + done.stderr, SECRET.encode()
        if any(form in output for form in (secret, base64.b64encode(secret)[:12], secret.hex().encode(), secret[::-1])):
            return SECRET
        return MARK if MARK.encode() in output else None


class PastDenyRules(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        shutil.rmtree(self.root)
        self.oracle = Oracle(self.outside)
        self.oracle.fill(self.root)

    def lets_run(self, line: str, **policy: Any) -> bool:
        return bool(self.approve(self.gate(**(policy or DENY)), "Bash", {"command": line}))

    def test_no_line_of_the_table_runs_unasked_where_nothing_confines_commands(self) -> None:
        lines = hand_made()
        self.assertGreater(len(lines), 300)
        for line in drawn(lines, 4):
            with self.subTest(line=line):
                self.assertFalse(self.lets_run(line))

    def test_every_line_of_the_table_runs_in_bypass_where_no_rule_forbids(self) -> None:
        for line in hand_made():
            with self.subTest(line=line):
                self.assertTrue(self.lets_run(line, permission_mode="bypass"))

    @full_size
    @unittest.skipUnless(shutil.which("bwrap"), "bubblewrap is not installed")
    def test_random_lines_that_the_gate_allows_read_and_run_nothing_denied(self) -> None:
        chance = random.Random(32)
        ran, found = 0, []
        for line in {random_line(chance): None for _ in range(LINES)}:
            if self.lets_run(line):
                ran += 1
                leak = self.oracle.leak(line)
                found += [(line, leak)] if leak else []
        self.assertEqual(found[:5], [], f"{len(found)} of {LINES} lines leak, {ran} ran")
        self.assertGreater(ran, LINES / 50)

    @unittest.skipUnless(shutil.which("bwrap"), "bubblewrap is not installed")
    def test_the_oracle_sees_what_comes_out(self) -> None:
        for line in ("cat .env", "cat secrets/key | base64", "rm y", "cp /bin/rm z; ./z", "rev .env"):
            with self.subTest(line=line):
                self.assertIsNotNone(self.oracle.leak(line))


if __name__ == "__main__":
    unittest.main()
