"""Compound lines, compared with a real bash: whatever runs is among the commands of the plain form."""

from __future__ import annotations

import random
import unittest

from openagentic_sdk.permissions.compound import read_compound
from tests.size import full_size, sized

from .real_bash import BASH, record_commands
from .workspace import WorkspaceTestCase

LINES = sized(150, 400, 20_000)
_WORDS = (
    "a",
    "b.c",
    "'x y'",
    '"p q"',
    "-n",
    "x/y",
    "$HOME",
    '"$HOME/z"',
    "$f",
    '"$f"',
    '"${f}"',
    '"pre $f post"',
    "$f.bak",
    "*.md",
    "'*'",
    "\\$f",
    "$g",
    "do",
    "fi",
    '"$f}"',
    "$f=./x",
    "$f>/dev/null",
    "</dev/null",
    "A=$f",
)
_ENDS = (";", "\n", " && ", " || ", " | ", " ; # done\n", ";\n\n")


def random_compound(rng: random.Random, depth: int = 0) -> str:
    """A line of commands, some of them compound, with and without mistakes."""
    return "".join(_command(rng, depth) + rng.choice(_ENDS) for _ in range(rng.choice((1, 1, 2, 3)))).rstrip("|& ")


def _command(rng: random.Random, depth: int) -> str:
    body = random_compound(rng, depth + 1) if depth < 3 else "x;"
    if not body.endswith((";", "\n")):
        body += ";"
    kinds = ("simple", "simple", "simple", "for", "for", "if", "else", "{", "(", "!", "[[", "odd")
    match rng.choice(kinds) if depth < 3 else "simple":
        case "for":
            words = " ".join(rng.choice(_WORDS) for _ in range(rng.choice((1, 2, 3))))
            return f"for {rng.choice('ffffg')} in {words}{rng.choice((';', chr(10)))} do {body} done"
        case "if":
            return f"if {body} then {body} fi"
        case "else":
            return f"if {body} then {body} elif {body} then {body} else {body} fi"
        case "{":
            return f"{{ {body} }}"
        case "(":
            return f"( {body} )"
        case "!":
            return "! " + _command(rng, depth + 1)
        case "[[":
            return rng.choice(("[[ -f a ]]", '[[ -d "$f" ]]', "[[ -n x && -f y ]]", "[[ a = b ]]"))
        case "odd":
            return rng.choice(
                (
                    "while a; do b; done",
                    "((a))",
                    "case x in x) b;; esac",
                    "f() { a; }; f",
                    "x=1",
                    "a <<< b",
                    "done",
                    "{ a",
                    "a }",
                    "for x; do a; done",
                    "b 2>&1",
                    "b <<< 'p q' a",
                    "while read f; do b; done </dev/null",
                    "for f in {1..3}; do b $f; done",
                    "'for' f in a",
                    "\\if a",
                    "b <<E\nx\nE",
                    "b x <<'E' | c\n$(d) `e`\nE \nE\n",
                    'b <<-"E" && c\n\tE',
                    "b <<E\n$(c)\nE",
                    "b <<E\nx\nE ",
                    "b <<'E'; c 'x\ny'\nE",
                    "b <<'E'\nx\ndone\nE\nc",
                    "g=b; cat $g",
                    "g='p q' && cat \"$g\" $g",
                    'g=$(b); echo "$g"',
                    "g=b c; cat $g",
                    "g= b; cat $g",
                    "g=b | cat $g",
                    "g=b\nh=$g/c; cat $h",
                    "b {x,y}.c {p,q}{1,2} {z}",
                    "b \\\n -n \\\n  x",
                    'echo "$(b \'c d\' "$f" | ls "p q")"',
                    '[[ $f == x* && ! -n "$(b c)" || -f d ]]',
                    "b <<E\n$HOME ${PATH} $5\nE",
                )
            )
    name = rng.choice(
        ("echo", "cat", "ls", "grep", "$f", "'q r'", "LANG=C $f", "</dev/null $f", "time ls", "LANG=C ls")
    )
    return " ".join((name, *(rng.choice(_WORDS) for _ in range(rng.choice((0, 1, 1, 2, 3))))))


@unittest.skipIf(BASH is None, "bash is not installed")
class CompoundAgainstBash(unittest.TestCase):
    def test_bash_runs_no_command_that_the_plain_form_does_not_list(self) -> None:
        rng = random.Random(4)
        lines = list(dict.fromkeys(random_compound(rng) for _ in range(LINES)))
        plain = {line: read_compound(line, {"HOME": "/home/me"}) for line in lines}
        accepted = [line for line, form in plain.items() if form is not None]
        self.assertGreater(len(accepted), len(lines) / 30)
        for status in (0, 1):
            runs = record_commands(accepted, status, env={"LC_ALL": "C.UTF-8", "HOME": "/home/me"})
            for line, ran in zip(accepted, runs, strict=True):
                form = plain[line]
                listed = {command.argv for command in form.commands} if form else set()
                # The recorded commands print nothing, and the plain form has a stand-in for what an echo prints of them.
                listed |= {("echo", "")} if any(argv[0] == "echo" for argv in listed) else set()
                with self.subTest(line=line, status=status):
                    self.assertEqual(set(ran) - listed, set())


class CompoundTable(WorkspaceTestCase):
    @full_size
    def test_a_compound_line_is_permitted_if_all_of_its_commands_are(self) -> None:
        (self.root / "-n").touch()
        for expected, command in (
            ("allow", 'for f in src/*.py; do echo "== $f"; head -5 "$f"; done'),
            ("allow", "for f in README.md src/a.py; do cat $f | wc -l; done"),
            ("allow", "for i in 1 2 3; do echo $i; done"),
            ("allow", "if [ -f README.md ]; then cat README.md; else ls; fi 2>/dev/null"),
            ("allow", "(cd src && ls) && { pwd; ls; }"),
            ("allow", 'ls "$PWD/src"; echo "$?"'),
            ("allow", "time grep -rn x src"),
            ("ask", 'for f in *; do cat "$f"; done'),
            ("ask", 'for f in ../*; do cat "$f"; done'),
            ("ask", 'for f in link_*; do cat "$f"; done'),
            ("ask", "for f in /etc/*; do echo x; done"),
            ("ask", "for f in src/*; do cat $f; done"),
            ("ask", 'for f in src/*; do cat "x$f"; done'),
            ("ask", 'for f in src; do cat "$f/../../outside.txt"; done'),
            ("ask", "for f in rm; do $f README.md; done"),
            ("ask", 'for f in src/*; do rm "$f"; done'),
            ("ask", 'for f in src/*; do printf "$f" x; done'),
            ("ask", "for PATH in src; do ls; done"),
            ("ask", "for http_proxy in x; do ls; done"),
            ("ask", "for f in a; do ls; done > x"),
            ("ask", "for f in a; do ls; done & ls"),
            ("ask", "if ls; then rm README.md; fi"),
            ("ask", "(cd / && ls)"),
            ("ask", "cd /; ls $PWD/etc"),
            ("ask", "HOME=/etc; cat $HOME/passwd"),
            ("ask", "cat $HOME/.profile"),
            ("ask", "( " * 3000 + "ls" + " )" * 3000),
            ("ask", "f() { ls; }; f"),
            ("allow", 'ls | while IFS= read -r f; do echo "$f"; done'),
            ("allow", 'while read line; do echo "== $line"; done < README.md'),
            ("ask", 'while read f; do cat "$f"; done < README.md'),
            ("ask", "while read f; do echo $f; done < README.md"),
            ("ask", 'while read f; do rm "$f"; done < README.md'),
            ("ask", 'while read f; do echo "$f"; done < link_file_out'),
            ("allow", 'echo "$(wc -l < README.md) lines, $USER" $((1 + 2))'),
            ("ask", 'echo "$(rm x)"'),
            ("ask", "echo $(cat README.md)"),
            ("ask", 'cat "$(ls)"'),
            ("ask", "echo $((x))"),
            ("ask", "cat $USER"),
            ("allow", "grep x <<< 'x y'; for i in {3..1}; do echo $i; done; for i in $(seq 2); do echo $i; done"),
            ("ask", "sh <<< 'rm x'"),
            ("ask", "cat <<< $(rm x)"),
            ("allow", "cat <<'E' | wc -l; ls\n$(rm x)\nE \nE\nls"),
            ("allow", "grep x <<-E\n\tit's x\n\tE"),
            ("ask", "cat <<E\n$(rm x)\nE"),
            ("ask", "cat <<E\nx\\\nE\nrm x\nE"),
            ("ask", "cat <<'E'\nx\nE\nrm x"),
            ("ask", "cat <<'E'; ls 'a\nE\nb'"),
            ("ask", "cat <<'E'\nx\nE "),
            ("ask", "cat <<A <<B\nA\nB"),
            ("ask", "for i in 1 2; do cat <<E\nx\nE\ndone"),
            ("ask", "bash <<'E'\nrm x\nE"),
            ("ask", "cat link_file_out - <<'E'\nx\nE"),
            ("ask", "cat > src/new.py <<'E'\nx\nE"),
            ("ask", "for i in {1..99}; do ls; done"),
            ("ask", "for i in $(seq 1 2; rm x); do ls; done"),
            ("allow", "( (ls) )"),
            # Arithmetic evaluates the value of a variable, and this value runs a command.
            ("ask", "for ls in 'a[$(touch x)]'; do ((ls)); done"),
            ("ask", "((ls))"),
            ("ask", "[[ -v x ]]"),
            ("allow", "[[ 1 -eq 1 ]]"),
            ("ask", "[[ $USER -eq 1 ]]"),
            ("ask", '[[ "$(cat README.md)" -eq 1 ]]'),
            ("ask", "[[ x -eq 1 ]]"),
            ("allow", '[[ -n "$(id)" && ! "$USER" == r* || -f README.md ]] && ls'),
            ("ask", '[[ -n "$(rm x)" ]]'),
            ("ask", '[[ -f "$(ls)" ]]'),
            ("ask", '[[ -f "$USER" ]]'),
            ("ask", "[[ -f /etc/passwd ]]"),
            ("ask", "[[ a && -v x ]]"),
            ("ask", "[[ a ]] x; [[ -f a"),
            ("allow", '[ "$(wc -l < README.md)" -gt 3 ] && test -z "$USER" && [ -n "$HOME" ] && [ 1 -eq 1 ]'),
            ("ask", '[ -f "$(ls)" ]'),
            ("ask", '[ -v "$USER" ]'),
            ("ask", "[ $USER = x ]"),
            # Variables that the line sets.
            ("allow", 'f=README.md; cat $f && wc -l "$f"\necho "$f"'),
            ("allow", 'FILE=src/a.py; N=$(wc -l < "$FILE"); echo "$N lines"'),
            ("ask", "f=/etc/passwd; cat $f"),
            ("ask", 'f=/etc/passwd; wc < "$f"'),
            ("ask", "f=README.md; wc < $f"),
            ("ask", 'wc < "$USER"'),
            ("ask", 'echo x > "$USER"'),
            ("ask", 'f=README.md; echo x > "$f"'),
            ("ask", "f='README.md /etc/passwd'; cat $f"),
            ("ask", "f='/etc/*'; echo $f"),
            ("ask", "f=rm; $f README.md"),
            ("ask", "false && f=README.md; cat $f"),
            ("ask", "if ls; then f=README.md; fi; cat $f"),
            ("ask", "f=README.md | ls; cat $f"),
            ("ask", "(f=README.md); cat $f"),
            ("ask", "f=README.md; read f; cat $f"),
            ("ask", "f=README.md; f=/etc/passwd; cat $f"),
            ("ask", "f=README.md; printf -v f /etc/passwd; cat $f"),
            ("ask", "f= cat /etc/passwd"),
            ("ask", "f=$(cat README.md); echo $f"),
            ("ask", "f=$(cat README.md); cat $f"),
            ("ask", "f=$(rm x); ls"),
            *(
                ("ask", f"{name}=x; ls")
                for name in ("PATH", "HOME", "IFS", "LD_PRELOAD", "BASH_ENV", "PS4", "GIT_DIR", "http_proxy")
            ),
            ("ask", "VERSION=1; rm README.md"),
            # Braces, continued lines, pipes in the place of files.
            ("allow", "cat src/{a,b}.py {README,x}.md \\\n  | wc -l"),
            ("ask", "cat {README.md,/etc/passwd}"),
            ("ask", "sort {-o,x} README.md"),
            ("ask", "find . {-print,-delete}"),
            ("ask", "cat README.md \\\n; rm x"),
            ("ask", "ls # \\\nrm x"),
            ("allow", "diff <(sort README.md) <(ls src | head -3)"),
            ("ask", "cat <(rm x)"),
            ("ask", "bash <(cat README.md)"),
            ("ask", "source <(ls)"),
            ("ask", "awk -f <(ls) README.md"),
            ("ask", "sort -o <(ls) README.md"),
            ("ask", "diff <(cat /etc/passwd) README.md"),
            ("allow", "cat <<E\nhi $USER ${HOME} $ x\nE"),
            ("ask", "cat <<E\n${x:=$(rm x)}\nE"),
            ("ask", "cat <<E\n$[x]\nE"),
            ("ask", "cat <<E\n`rm x`\nE"),
            # Names of files from a listing.
            ("allow", "wc -l $(find src -name '*.py')"),
            ("allow", 'for f in $(grep -rl x src); do head "$f"; done'),
            ("allow", 'find src -name "*.py" | while read -r f; do wc -l "$f"; done'),
            ("ask", "cat $(find .)"),  # there are links that lead outside
            ("ask", "cat $(cat README.md)"),
            ("ask", "cat $(cat README.md | head -n1)"),
            ("ask", "cat $(ls | head -n1)"),
            ("ask", "rm $(find src)"),
            ("ask", "cat $(find src -exec rm {} +)"),
            ("ask", "cat $(find src; cat README.md)"),
            ("ask", "echo $(ls)"),
            ("ask", "sed $(find src) README.md"),
            ("ask", 'for f in $(find src); do rm "$f"; done'),
            ("ask", 'for f in $(find src); do sed "$f" README.md; done'),
            ("ask", "for f in $(cat README.md); do cat $f; done"),
            ("ask", 'find . | while read f; do cat "$f"; done'),
            ("ask", 'cat README.md | while read f; do cat "$f"; done'),
            ("ask", "while ls; do ls; done"),
            # What bash recognizes before it replaces variables: assignments, descriptors, closing braces.
            ("ask", "for f in NO_COLOR; do LANG=C $f=./evil ls; done"),
            ("ask", "for f in if; do <README.md $f ls; done"),
            ("ask", "for f in 2; do cat README.md $f<src/a.py; done"),
            ("ask", 'for f in link_file_out; do cat "${f}"; done'),
            ("allow", 'for f in link_file_out; do cat "$f}"; done'),
            # Only an echo shows a name and does not open the file.
            ("ask", 'for f in s*; do <README.md cat "link_$f"; done'),
            ("ask", 'for f in s*; do echo < "link_$f"; done'),
            # Behind a `|` it is a program, and an assignment is the name of the program that it runs.
            ("ask", "ls | time NO_COLOR=./evil ls"),
            ("allow", "ls || time ls"),
            ("ask", 'c"d" src; ls "$PWD/x"'),
            ("ask", "for f in a; do done"),
            ("ask", "".join(f"for {name} in {'1 ' * 20}; do " for name in "abcdefgh") + "ls;" + "done; " * 8),
            ("ask", "".join(f"for {name} in {'1 ' * 20}; do " for name in "abcdefgh") + "done; " * 8),
        ):
            with self.subTest(command=command[:60]):
                self.assertEqual(self.outcome({}, "Bash", {"command": command}), expected)

    def test_double_brackets_are_not_a_wildcard_for_rules_about_files(self) -> None:
        command = '[[ "$USER" == root ]] && ls'
        verdict = self.gate(deny=["Read(~/.ssh/**)"]).verdict(
            "Bash", {"command": command}, {"cwd": str(self.root), "confined": "namespaces"}
        )
        self.assertEqual(verdict.outcome, "allow", verdict.reason)

    def test_a_here_document_is_written_as_by_the_file_tools(self) -> None:
        for target, expected in {
            "src/b.py": "allow",
            "link_dir/b.py": "allow",
            "link_out/x": "ask",
            ".git/x": "ask",
        }.items():
            command = f"cat > {target} <<'E'\nprint($x)\nE"
            with self.subTest(target):
                self.assertEqual(
                    self.outcome({"permission_mode": "acceptEdits"}, "Bash", {"command": command}), expected
                )
        denied = {"permission_mode": "acceptEdits", "deny": ["Edit(src/b.py)"]}
        self.assertEqual(self.outcome(denied, "Bash", {"command": "cat > src/b.py <<'E'\nx\nE"}), "deny")

    def test_a_rule_for_a_shell_alone_does_not_cover_a_text_that_it_is_given(self) -> None:
        for command in ("bash <<< 'rm x'", "bash <<'E'\nrm x\nE", "'ba'sh <<E\nrm x\nE"):
            with self.subTest(command):
                self.assertEqual(self.outcome({"allow": ["Bash(bash)"]}, "Bash", {"command": command}), "ask")

    def test_an_open_quote_full_of_variables_takes_no_time(self) -> None:
        for text in ("$IFS", "$(a)", "${a}", "x$a "):
            self.assertIsNone(read_compound('echo "' + text * 1_000, {}))

    def test_no_loop_writes_where_its_words_do_not_show(self) -> None:
        for command in ('for f in f*; do echo x > "link_$f"; done', 'for f in s*; do echo x > ".$f"; done'):
            with self.subTest(command=command):
                self.assertEqual(self.outcome({"permission_mode": "acceptEdits"}, "Bash", {"command": command}), "ask")

    def test_a_deny_rule_still_judges_the_line_itself(self) -> None:
        for command in ('for f in .e*; do cat "$f"; done', "if ls; then cat .env; fi", "(cat .env)"):
            with self.subTest(command=command):
                self.assertNotEqual(self.outcome({"deny": ["Read(.env)"]}, "Bash", {"command": command}), "allow")


class HostileNames(WorkspaceTestCase):
    """Lines that pass on names, in a workspace in which no link leads outside unless a test adds one."""

    def setUp(self) -> None:
        super().setUp()
        self.root = self.outside / "clean"
        self.fill("src/a.py", "sub/b.py", "m.py")

    def fill(self, *names: str) -> None:
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("x\n", encoding="utf-8")

    def check(self, *rows: tuple[str, str]) -> None:
        for expected, command in rows:
            with self.subTest(command=command):
                self.assertEqual(self.outcome({}, "Bash", {"command": command}), expected)

    def test_a_listing_with_other_words_than_names_is_not_passed_on(self) -> None:
        self.check(
            # The folder above.
            ("ask", "ls -a src | xargs grep -r x"),
            ("ask", "grep -r x $(ls -a src)"),
            ("ask", 'for f in $(ls -a src); do grep -r x "$f"; done'),
            ("ask", 'ls -a src | while read -r f; do grep -r x "$f"; done'),
            ("allow", "ls -A src | xargs grep -r x"),
            # Numbers, matching lines, help.
            ("ask", "rg -l -c x m.py | xargs cat"),
            ("ask", "grep -cl x m.py | xargs cat"),
            ("ask", "grep -el m.py | xargs cat"),
            ("ask", "grep -e -l m.py | xargs cat"),
            ("ask", "rg -lh x src | xargs cat"),
            ("ask", "fd -a x | xargs cat"),
            ("ask", "grep -l x - m.py | xargs cat"),
            ("allow", "grep -rl -e x --include=*.py src | xargs cat"),
            ("allow", "rg -l -g '*.py' x src | xargs cat"),
            ("allow", "cat $(rg --files src)"),
            # An operand, which names a file of lines.
            ("ask", "find src -type f | uniq 5 | xargs cat"),
            ("ask", "find src -type f | sort -u 5 | xargs cat"),
            ("ask", "find src -type f | sort -n 5 | xargs cat"),
            ("ask", "find src -type f | tail +5 | xargs cat"),
            ("allow", "find src -type f | sort -u | tail -n +1 | head -n 5 | xargs cat"),
            # Error texts, and other inputs.
            ("ask", "find src nofile 2>&1 | xargs cat"),
            ("ask", "find src nofile 2>&1 | head -3 | xargs cat"),
            ("ask", "find src nofile 2>/dev/stdout | xargs cat"),
            ("ask", "{ find src nofile; } 2>&1 | xargs cat"),
            ("ask", "cat $(find src nofile 2>&1)"),
            ("ask", "cat $({ find src nofile; } 2>&1)"),
            ("ask", "cat $(grep -l x src/a.py nofile 2>&1)"),
            ("ask", 'find src nofile 2>&1 | while read -r f; do cat "$f"; done'),
            ("ask", "find src | head < m.py | xargs cat"),
            ("ask", "find src | head <<< /etc/passwd | xargs cat"),
            ("ask", "find src | sort <<'E' | xargs cat\n/etc/passwd\nE"),
            ("ask", 'find src | head <<< /etc/passwd | while read -r f; do cat "$f"; done'),
            ("ask", 'find src | while read -r f; do cat "$f"; done < m.py'),
            ("ask", 'find src | while read -r f; do head -c 5; cat "$f"; done'),
            ("ask", 'find src | while read -r f; do head -c 5 - "$f"; done'),
            ("ask", 'find src | while read -r f; do head -c 5 /dev/stdin "$f"; done'),
            ("ask", 'find src | while read -r f; do head -c 5 | cat "$f"; done'),
            ("ask", 'find src | while read -r f; do echo "$(head -c 5)"; cat "$f"; done'),
            ("allow", 'find src 2>/dev/null | while read -r f; do echo "== $f"; head -c 5 "$f" | wc -c; done'),
        )

    def test_links_beside_what_a_line_names_are_not_followed(self) -> None:
        (self.root / "sub/m.py").symlink_to(self.outside / "outside.txt")
        (self.root / "sub/src").symlink_to(self.outside)
        self.fill("d/a", "e/b", "e/deep/b")
        (self.root / "d:").symlink_to(self.outside / "outside.txt")
        (self.root / "e/deep/in").symlink_to("../../sub")
        self.check(
            ("ask", "find . -maxdepth 1 -type f -exec grep -R x sub {} \\;"),
            ("ask", "find . -maxdepth 1 -name sub -exec grep -R x {} \\;"),
            ("ask", "find . -maxdepth 1 -type f -exec diff -r {} sub \\;"),
            ("ask", "find . -maxdepth 1 -type f -exec diff {} sub \\;"),
            ("ask", "find . -maxdepth 1 -name m.py -o -name sub -exec diff {} + "),
            ("ask", "find . -maxdepth 1 -type f | xargs grep -R x sub"),
            ("ask", "fd -e py m.py | xargs cat"),
            ("ask", "cd e && ls ../d ../e | xargs cat"),
            ("ask", "find src -type f | xargs -I{} grep -R x sub {}"),
            # A link that leads to a folder beside the one that is searched, and the folder above its target.
            ("ask", "grep -R x e"),
            ("ask", "grep -R x e/deep/in/../sub"),
            ("ask", "find e/deep/in/../sub -exec cat {} \\;"),
            ("allow", "grep -R x src"),
            ("allow", "find e -type f -exec cat {} \\;"),
            # The names belong to another folder.
            ("ask", 'find . -name a.py | while read -r f; do cd sub; cat "$f"; done'),
            ("ask", 'for f in $(find . -name a.py); do cat "$f"; cd sub; done'),
            ("ask", "for f in $(find . -name a.py); do if true; then c'd' sub; fi; cat \"$f\"; done"),
            ("ask", "while read -r f; do cat m.py; cd sub; done < src/a.py"),
            ("ask", "for f in s*; do cat m.py; cd sub; done"),
            ("allow", 'cd src && for f in $(find . -name a.py); do cat "$f"; done'),
        )
        self.fill("é/a")
        (self.root / "é/é").symlink_to(self.outside / "outside.txt")
        self.check(("ask", "LC_ALL=C find é -name '??' -exec cat {} \\;"))

    def test_the_shell_expands_the_words_of_an_output_and_xargs_does_not(self) -> None:
        self.fill("g/[a]/f.py", "x(y)/b")
        (self.root / "g/a").symlink_to(self.outside)
        self.check(
            ("ask", "cat $(find g -type f)"),
            ("ask", 'for f in $(find g -type f); do cat "$f"; done'),
            ("allow", "find g -type f | xargs cat"),
            ("allow", "find 'x(y)' -type f | xargs cat"),
        )


if __name__ == "__main__":
    unittest.main()
