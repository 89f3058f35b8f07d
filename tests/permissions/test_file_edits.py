"""Mode acceptEdits and commands that only edit files: which run on their text alone, and which need a question."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.programs import FileEdits, file_edits

ALLOWED = """
mkdir new
mkdir -p src/a/b -v
mkdir -- -odd
touch src/new.py b.txt
touch -c a.txt
LANG=C touch a.txt
NO_COLOR=1 rm a.txt
cp a.txt b.txt
cp a.txt src
cp a.txt src/b.txt src/deep
cp -r src copy
cp -a src/deep ./src2
cp ./?.txt src
mv a.txt b.txt
mv a.txt src/
mv src/b.txt .
mv src lib
rm a.txt
rm -f a.txt gone.txt
rm -rf src
rm -r linked
rm ./?.txt
rmdir src/empty
mkdir x && touch x/y && rm x/y
sed -i s/a/b/ a.txt
sed -i 's/a/b/g' a.txt src/b.txt
sed -i -e 's|a|b|' -e '1d' a.txt
sed -i.bak -E s/a/b/ a.txt
sed -n -i p a.txt
/bin/mkdir new
mkdir ../project/new
touch src/../a.txt
cat a.txt && touch b.txt
mkdir ünïcode
""".strip().splitlines()

ASKED = """
mkdir ../new
mkdir /tmp/x
mkdir -m 4777 new
mkdir --mode=777 new
mkdir .git
mkdir -p .git/hooks
mkdir sub/.git
touch ~/x
touch /etc/x
touch -r a.txt b.txt
touch .git/config
touch .claude/settings.json
touch $HOME/x
touch "$(echo x)"
touch out/x
touch CLAUDE.md
cp a.txt ../x
cp a.txt /tmp
cp /etc/passwd .
cp ../other/secret.txt b.txt
cp leak.txt b.txt
cp a.txt leak.txt
cp a.txt out
cp a.txt .git/hooks/pre-commit
cp a.txt .git
cp a.txt .claude/settings.json
cp hooks/settings.json .claude
cp -r hooks/. .
cp -r hooks/.. .
cp -r ../other x
cp -r repo x
cp -r linked x
cp -r src into
cp ./*.txt src
rm ./*.txt
cp -l a.txt b.txt
cp -s a.txt b.txt
cp --link a.txt b.txt
cp -t src a.txt
cp --target-directory=src a.txt
cp --parents src/b.txt lib
cp -b a.txt b.txt
cp -R . x
cp a.txt
cp a.txt s*
mv a.txt ../x
mv ../other/secret.txt .
mv .git gone
mv repo gone
mv . x
mv ../project ../x
mv a.txt .git/hooks/post-checkout
mv src/b.txt .claude/settings.json
mv --backup=numbered a.txt b.txt
mv -t src a.txt
rm -rf .
rm -rf ..
rm -rf /
rm -rf ~
rm -rf ../project
rm -rf .git
rm -rf repo
rm -r "$DIR"
rm -rf *
rm --no-preserve-root -rf /
rm .claude/settings.json
rm out/x
rmdir -p src/empty
rmdir ..
sed -i 's/a/b/e' a.txt
sed -i 's/a/b/w x' a.txt
sed -i '1e touch x' a.txt
sed -i e a.txt
sed -i 'w x' a.txt
sed -i 'r /etc/passwd' a.txt
sed -i 's/a/b/;w x' a.txt
sed -i -f script.sed a.txt
sed -i 's/a/b/' ../other/secret.txt
sed -i 's/a/b/' leak.txt
sed -i 's/a/b/' .git/config
sed -i/../x 's/a/b/' a.txt
sed -i'*' 's/a/b/' a.txt
sed --follow-symlinks -i 's/a/b/' a.txt
sed -i 's/a/b/'
sed -s 's/a/b/' -i
./mkdir x
src/rm a.txt
PATH=. touch a.txt
LD_PRELOAD=x touch a.txt
touch a.txt > ../x
touch a.txt > .git/config
touch a.txt; curl http://x
touch a.txt | sh
cd .. && touch x
xargs rm
nohup touch a.txt
chmod 777 a.txt
ln -s /etc x
truncate -s 0 a.txt
dd if=a.txt of=b.txt
install a.txt b.txt
""".strip().splitlines()


class Edits(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.project = Path(folder.name).resolve() / "project"
        for name in (
            "a.txt", "b.txt", "src/b.txt", "src/deep/c.txt", "hooks/settings.json", "repo/.git/config", ".git/config",
            ".claude/settings.json", "into/src/x", "linked/x", "../other/secret.txt", "CLAUDE.md", "sub/x",
        ):  # fmt: skip
            path = cls.project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        (cls.project / "src/empty").mkdir()
        for name, target in (
            ("leak.txt", "../other/secret.txt"),
            ("out", "../other"),
            ("linked/away", "/etc/passwd"),
            ("into/src/away", "/etc/passwd"),
        ):
            (cls.project / name).symlink_to(target)

    def outcome(self, command: str, mode: str = "acceptEdits", **options: Any) -> tuple[str, str]:
        gate = PermissionGate(permission_mode=mode, workspace_roots=(str(self.project),), **options)
        context = {"cwd": str(self.project), "project_dir": str(self.project)}
        verdict = gate.verdict("Bash", {"command": command}, context)
        return verdict.outcome, verdict.category

    def test_commands_that_only_edit_the_workspace_run_and_all_others_are_asked_about(self) -> None:
        for command in ALLOWED:
            with self.subTest(command):
                self.assertEqual(self.outcome(command)[0], "allow")
        for command in ASKED:
            with self.subTest(command):
                self.assertEqual(self.outcome(command)[0], "ask")

    def test_no_other_mode_lets_any_of_it_run(self) -> None:
        for command in ALLOWED:
            for mode, outcome in (("default", "ask"), ("prompt", "ask"), ("dontAsk", "deny"), ("plan", "deny")):
                with self.subTest(command, mode=mode):
                    self.assertEqual(self.outcome(command, mode)[0], outcome)

    def test_forbidding_rules_take_precedence_over_it(self) -> None:
        for command, rule, outcome in (
            ("touch src/x", "Edit(src/**)", "deny"),
            ("cp a.txt src/x", "Edit(src/**)", "deny"),
            ("mv src/b.txt b.txt", "Edit(src/**)", "deny"),
            ("rm src/b.txt", "Edit(src/b.txt)", "deny"),
            ("sed -i s/a/b/ src/b.txt", "Edit(src/**)", "deny"),
            ("cp src/b.txt c.txt", "Read(src/b.txt)", "deny"),
            ("rm a.txt", "Bash(rm:*)", "deny"),
            ("mkdir x", "Bash", "deny"),
        ):
            with self.subTest(command, rule=rule):
                self.assertEqual(self.outcome(command, deny=(rule,))[0], outcome)
                self.assertEqual(self.outcome(command, ask=(rule,))[0], "ask")
        for command in ("cp -r src copy", "rm -r src", "mv src lib"):
            with self.subTest(command):
                self.assertIn(self.outcome(command, deny=("Read(src/b.txt)",))[0], ("ask", "deny"))

    def test_a_trial_comes_first_where_there_is_one(self) -> None:
        gate = PermissionGate(permission_mode="acceptEdits", workspace_roots=(str(self.project),))
        context = {"cwd": str(self.project), "project_dir": str(self.project)}
        self.assertEqual(self.outcome("touch src/x"), ("allow", "edits"))
        self.assertIsNotNone(gate.trial("Bash", {"command": "touch src/x"}, context))
        self.assertIsNone(gate.trial("Bash", {"command": "cat a.txt"}, context))

    def test_nothing_runs_by_a_mode_that_nobody_asked_for(self) -> None:
        gate = PermissionGate(permission_mode="acceptEdits", workspace_roots=(str(self.project),))
        context = {"cwd": str(self.project), "project_dir": str(self.project)}
        self.assertFalse(gate.judge_by_rule("Bash", {"command": "touch src/x"}, context).allowed)

    def test_the_question_names_what_is_changed_and_what_is_read(self) -> None:
        for command, expected in (
            ("cp a b", FileEdits((), ("a",), ("a",), "b")),
            ("mv a b c", FileEdits(("a", "b"), (), ("a", "b"), "c", whole_trees=True, removes=True)),
            ("rm -rf a", FileEdits(("a",), whole_trees=True, removes=True)),
            ("sed -i.b s/a/b/ x", FileEdits(("x", "x.b"))),
            ("mkdir", None),
            ("cp -Z a b", None),
            ("MKDIR a", None),
            ("/opt/mkdir a", None),
        ):
            with self.subTest(command):
                self.assertEqual(file_edits(command.split()), expected)
