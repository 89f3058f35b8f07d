"""Random commands, executed as a run would execute them; then the disk is compared with what the gate protects and denies.

The small size is a sample; OPENAGENTIC_TEST_LARGE=1 tries 2,000 lines: no path that the gate protects changes, no content
that a deny rule hides is printed, no denied program runs.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
import unittest
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk.kernel.gate import CallContext
from openagentic_sdk.kernel.tool import Services, ToolContext
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.tools.bash import BashTool
from openagentic_sdk.tools.shell.file_policy import CommandRules, FilePolicy
from openagentic_sdk.tools.shell.protected import PROTECTED_FILES, protected_places
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from openagentic_sdk.tools.shell.sandboxed import SandboxMode
from tests.size import LARGE, full_size
from tests.tools_run.support import WorkspaceTestCase, close_run
from tests.tools_run.test_sandbox import needs, pretend

LINES = 2_000 if LARGE else 40  # some 80 ms a line and class
PER_RUN = 8
SANDBOX: SandboxMode = "require"
SECRET = "swordfish-7291"


def words(text: str) -> list[str]:
    return text.split()


NAMES = sorted(PROTECTED_FILES) + words("""
    .git/config .git/hooks/pre-commit .git/info/attributes .git/HEAD
    .git/config.worktree .git/x sub/.git/config sub/.git/HEAD
    sub/.git new/.git/config bare/HEAD bare/config
    bare/hooks/update .github/workflows/ci.yml .github/workflows .claude/settings.json
    .claude .vscode/tasks.json .venv/lib/site-packages/x.pth .husky/pre-push
    hooks-of-git/pre-commit shared.gitconfig HEAD commondir
""")
PLAIN = ("a", "b.txt", "sub/c", "sub/deep/d", "out/e", "new/f", "link", "to-git")
HIDDEN = (".env", "secrets/key", "secrets/deep/k2", "sub/.env")
EXISTING = words("""
    a b.txt sub/c sub/deep/d .git/config .git/hooks/pre-commit
    .git/HEAD bare/HEAD bare/config .claude/settings.json hooks-of-git/pre-commit .npmrc
""")
# Ways to read a denied file, write a protected one and run a denied program; {h}, {n} and {p} stand for the names.
READS = r"""
cat {h}
sed '$r{h}' a
tar cf - {h}
cp {h} {p}; cat {p}
mv {h} {p}; cat {p}
ln {h} {p}; cat {p}
echo `cat {h}`
cat .e{{n..n}}v
cat .[!f]nv
python3 -c "print(open('{h}').read())"
grep -r sword .
ln -s {h} {p}; cat {p}
cat < {h}
find . -type f | xargs cat
tar cf - . | strings
chmod 777 {h}; cat {h}
cat /proc/self/cwd/{h}
cd secrets && cat * deep/*
f=.e; cat ${{f}}nv
base64 {h} | base64 -d
dd if={h}
""".strip().split("\n")
WRITES = r"""
echo x > {n}
mkdir -p $(dirname {n}); echo x > {n}
touch {n}
rm -rf {n}
rm -rf $(dirname {n})
mkdir -p {n}
mv a {n}
cp b.txt {n}
ln -s /etc/passwd {n}
ln -sf $PWD/.git {p}; echo x > {p}/config
ln {n} {p}; echo y >> {p}
chmod 777 {n}
truncate -s 0 {n}
mv {n} {p}
mv sub {p}
rm -rf sub .git .claude
mv . ../gone
rm -rf .
python3 -c "open('{n}','w').write('x')"
tar cf /tmp/t {n} a; rm -rf {n}; tar xf /tmp/t
cd sub; echo x > ../{n}
git init -q {p}
git config core.hooksPath evil
git add -A; git commit -qm x
git -C sub config a.b c
install a {n}
seq 3000 | (mkdir -p out; cd out; xargs touch); echo x > {n}
(setsid sh -c 'sleep 0.05; echo x > {n}' &)
unlink {n}
mkdir -p {p}; mv {p} {n}
echo x | tee {n} {p}
sed -i s/x/y/ {n}
cp -r .git {p}
rsync -a .git/ {p}/ || cp -r sub {p}
""".strip().split("\n")
RUNS = r"""
denied {p}
<a de${{IFS:9}}nied {p}
printf '%s%s {p}' de nied | sh
ln -s $DENIED z; ./z {p}
cp $DENIED w; ./w {p}
$DENIED {p}
exec $DENIED {p}
env denied {p}
bash -c '"$DENIED" {p}'
find . -maxdepth 0 -exec $DENIED {p} \;
""".strip().split("\n")


class Rules(CommandRules):
    """The gate's file policy for a command that no person has approved."""

    def __init__(self, gate: PermissionGate, context: CallContext) -> None:
        self.gate, self.context = gate, context

    def policy(self, ctx: ToolContext, command: str) -> FilePolicy:
        return self.gate.file_policy(command, self.context, asked=False)


class DiskFuzz(WorkspaceTestCase):
    def setUp(self) -> None:
        super().setUp()
        report = probe_sandbox()
        if not (report.namespaces and report.overlay):
            self.skipTest(f"this machine has no overlay: {dict(report.reasons)}")

    def fill(self) -> None:
        for entry in self.workspace.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        texts = dict.fromkeys(HIDDEN, SECRET) | {name: name for name in EXISTING}
        texts["sub/.git/config"] = "[core]\n\thooksPath = ../hooks-of-git\n[include]\n\tpath = ../../shared.gitconfig\n"
        for name, text in {**texts, "shared.gitconfig": "[user]\n\tname = n\n"}.items():
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.workspace / "to-git").symlink_to(".git")
        self.denied = self.workspace.parent / "bin" / "denied"
        self.denied.parent.mkdir(exist_ok=True)
        self.denied.write_text('#!/bin/sh\necho ran-the-denied > "$1"; echo ran-the-denied\n')
        self.denied.chmod(0o755)

    def state(self, protected: Any) -> dict[str, tuple[int, str]]:
        """All paths that the gate protects on disk, with kind, mode and content."""
        found = {}
        for top, folders, files in os.walk(self.workspace):
            for name in (*folders, *files):
                path = os.path.join(top, name)
                if protected.covers(path):
                    found[path] = self.kept(path)
        return found

    @staticmethod
    def kept(path: str) -> tuple[int, str]:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            return status.st_mode, os.readlink(path)
        data = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
        return status.st_mode, hashlib.sha256(data).hexdigest()

    def lines(self, chance: random.Random) -> Iterator[str]:
        while True:
            parts = []
            for _ in range(chance.randint(1, 4)):
                form = chance.choice(chance.choice((READS, WRITES, WRITES, RUNS)))
                parts.append(form.format(n=chance.choice(NAMES), p=chance.choice(PLAIN), h=chance.choice(HIDDEN)))
            yield chance.choice(("; ", " ; ", "\n", " || ", " && ")).join(parts)

    @full_size
    def test_nothing_that_the_gate_protects_changes_and_nothing_denied_is_read_or_run(self) -> None:
        chance = random.Random(20_26)
        lines = self.lines(chance)
        leaks: list[tuple[str, Any]] = []
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        self.addCleanup(os.environ.pop, "DENIED", None)
        for _ in range(LINES // PER_RUN):
            self.fill()
            os.environ["PATH"], os.environ["DENIED"] = f"{self.denied.parent}:{path}", str(self.denied)
            gate = PermissionGate(cwd=str(self.workspace), deny=["Read(.env)", "Read(./secrets/**)", "Bash(denied:*)"])
            context = CallContext(cwd=str(self.workspace))
            ctx = ToolContext(cwd=str(self.workspace), services=Services({CommandRules: Rules(gate, context)}))
            tool = BashTool(sandbox=SANDBOX, timeout_s=120)
            root = os.path.realpath(self.workspace)
            named = [f"{root}/{name}" for name in ("hooks-of-git", "shared.gitconfig")]
            for _ in range(PER_RUN):
                before = self.state(protected_places((root,), named))
                line = next(lines)
                result = tool.run_sync({"command": line}, ctx)
                after = self.state(protected_places((root,), named))
                leaks += [
                    (line, path)
                    for path in before.keys() | after.keys()
                    if not self.may_change(path, line, before, after)
                ]
                output = result["stdout"] + result["stderr"]
                leaks += [(line, word) for word in (SECRET, "ran-the-denied\n") if word in output]
                leaks += [(line, f"lost {name}") for name in HIDDEN if not (self.workspace / name).exists()]
            close_run(ctx)
        self.assertEqual(leaks[:3], [], f"{len(leaks)} leaks")

    def may_change(self, path: str, line: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Whether a protected path is unchanged, or one that a permitted git command writes."""
        if before.get(path) == after.get(path):
            return True
        name = os.path.relpath(path, self.workspace).split(".git/", 1)[-1].split("/")[0]
        stored = ("objects", "refs", "logs", "index", "HEAD", "COMMIT_EDITMSG")
        return "git" in line and ".git/" in path and name in stored


class DiskFuzzWithoutACopy(DiskFuzz):
    """The same with bubblewrap only: a command writes directly, and new protected files are set aside afterwards."""

    def setUp(self) -> None:
        super().setUp()
        needs("bwrap")
        pretend(self, replace(probe_sandbox(), namespaces=False, overlay=False))


if __name__ == "__main__":
    unittest.main()
