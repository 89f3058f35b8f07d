"""The syntax of rules: what each covers, and that unknown syntax is refused."""

from __future__ import annotations

import unittest

from openagentic_sdk.errors import PermissionRuleError
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.permissions.rules import RuleBook, host_matches, host_of, parse_rule, parse_rules, rule_book
from openagentic_sdk.permissions.shell import CommandLine, parse_command

from .workspace import Person, WorkspaceTestCase


class Reading(unittest.TestCase):
    def test_rules_that_are_understood(self) -> None:
        cases = [
            ("Read", "tool"),
            ("Bash(*)", "tool"),
            ("mcp__server", "tool"),
            ("mcp__server__*", "tool"),
            ("mcp__server__get_*", "tool"),
            ("Bash(npm run build)", "command"),
            ("Bash(git diff:*)", "command"),
            ("Bash(git diff *)", "command"),
            ("Bash(find . -name '*.py')", "command"),
            ("Bash(git * main)", "wildcard"),
            ("Bash(ls*)", "wildcard"),
            ("Bash(* --force)", "wildcard"),
            ("Bash(PYTHONPATH=. pytest *)", "wildcard"),
            ("Read(./secrets/**)", "path"),
            ("Edit(//abs/**)", "path"),
            ("Write(~/x)", "path"),
            ("WebFetch(domain:*.example.com)", "domain"),
            ("WebFetch(domain:münchen.example)", "domain"),
            ("Skill(commit)", "name"),
            ("Skill(review *)", "name"),
            ("Task(explorer)", "name"),
            ("Agent(plugin:x)", "name"),
        ]
        for text, kind in cases:
            with self.subTest(text):
                self.assertEqual(parse_rule(text, "allow").kind, kind)

    def test_rules_that_are_not_understood_are_errors_with_their_place(self) -> None:
        texts = (
            *(
                "",
                " ",
                "()",
                "Bash(",
                "Bash)",
                "Bash()",
                "Read()",
            ),
            *(
                "Bash(a > b)",
                "Bash(git * $x)",
                "Bash(* *)",
                "Bash(a * |)",
                "Bash(A=*)",
                "Bash($x)",
                "Bash($(x))",
                "Bash('a)",
            ),
            *(
                "Bash(:*)",
                "Bash(a &)",
                "Bash(if x)",
                "Read(!x)",
                "Read(a/../b)",
                "Read(*.{a,b})",
                "Grep(x)",
                "Glob(*.py)",
            ),
            *(
                "WebFetch(example.com)",
                "WebFetch(domain:)",
                "WebFetch(domain:a b)",
                "WebFetch(domain:a.*.com)",
                "WebSearch(x)",
            ),
            *(
                "WebFetch(domain:http://x)",
                "WebFetch(domain:x/y)",
                "Skill(a b)",
                "Task()",
                "mcp__a__b(x)",
                "1x",
                "Re ad",
            ),
        )
        for text in texts:
            with self.subTest(text), self.assertRaises(PermissionRuleError) as caught:
                parse_rule(text, "deny", "settings.json")
            self.assertEqual((caught.exception.rule, caught.exception.source), (text, "settings.json"))

    def test_a_rule_with_operators_forbids_only(self) -> None:
        for text in ("Bash(curl * | bash)", "Bash(*>.env*)", "Bash(a && b)", "Bash(a; b)", "Bash(a | b)"):
            with self.subTest(text), self.assertRaisesRegex(PermissionRuleError, "one simple command"):
                parse_rule(text, "allow")
            self.assertEqual(parse_rule(text, "deny").kind, "wildcard")

    def test_a_wildcard_of_an_allowed_tool_may_only_follow_a_server(self) -> None:
        for text in ("*", "mcp__*", "mcp__*__x", "Web*"):
            with self.subTest(text), self.assertRaises(PermissionRuleError):
                parse_rule(text, "allow")
            self.assertEqual(parse_rule(text, "deny").kind, "tool")

    def test_a_list_of_rules_is_not_one_text(self) -> None:
        with self.assertRaisesRegex(PermissionRuleError, "list of rules"):
            PermissionGate(allow="Bash")


class Books(unittest.TestCase):
    def test_the_same_rules_have_one_book_which_keeps_little_of_what_it_is_asked(self) -> None:
        rules = parse_rules(["Read", "Read(secrets/**)"], "deny", "a test of books")
        book = rule_book(rules)
        self.assertIs(rule_book(list(rules)), book)
        self.assertIsNot(rule_book(parse_rules(["Read"], "deny", "a test of books")), book)
        for number in range(1000):
            self.assertIsNone(book.for_tool(f"tool{number}"))
            path = f"/{number}/secrets/key"
            self.assertEqual(book.forbidding_path([path], (f"/{number}",), write=True), rules[1])
        self.assertLess(len(book._by_tool) + len(book._forbidding), 200)


class Covering(unittest.TestCase):
    def test_tools(self) -> None:
        cases = [
            ("Read", "Grep", True),
            ("Read", "Write", False),
            ("Edit", "Write", True),
            ("Write", "Edit", False),
            ("Skill", "SkillActivate", True),
            ("Agent", "Task", True),
            ("mcp__a", "mcp__a__x", True),
            ("mcp__a", "mcp__ab__x", False),
            ("mcp__a__*", "mcp__a__x", True),
            ("mcp__a__*", "mcp__ab__x", False),
            ("mcp__*", "mcp__a__x", True),
            ("*", "anything", True),
            ("Web*", "WebFetch", True),
        ]
        for text, tool, expected in cases:
            with self.subTest(rule=text, tool=tool):
                self.assertIs(parse_rule(text, "deny").covers(tool), expected)

    def test_commands_by_whole_words(self) -> None:
        book = RuleBook([parse_rule("Bash(git diff:*)"), parse_rule("Bash(npm test)")])
        cases = [
            (("git", "diff"), True),
            (("git", "diff", "x"), True),
            (("git", "difftool"), False),
            (("git",), False),
            (("npm", "test"), True),
            (("npm", "test", "x"), False),
        ]
        for argv, expected in cases:
            with self.subTest(argv):
                self.assertIs(book.for_command(argv) is not None, expected)

    def test_hosts_by_whole_labels(self) -> None:
        cases = [
            ("example.com", "example.com", True),
            ("example.com", "a.example.com", False),
            ("example.com", "example.com.evil.org", False),
            ("*.example.com", "a.example.com", True),
            ("*.example.com", "a.b.example.com", True),
            ("*.example.com", "example.com", False),
            ("*.example.com", "evilexample.com", False),
            ("*.example.com", ".example.com", False),
            ("*", "any.host", True),
        ]
        for pattern, host, expected in cases:
            with self.subTest(pattern=pattern, host=host):
                self.assertIs(host_matches(pattern, host), expected)

    def test_the_host_of_an_address_is_read_strictly(self) -> None:
        cases = [
            ("https://example.com/x?y#z", "example.com"),
            ("HTTPS://Example.COM.:443/", "example.com"),
            ("http://münchen.example/", "xn--mnchen-3ya.example"),
            ("http://[::1]/", "[::1]"),
            ("https://user@example.com/", None),
            ("https://good.com@evil.com/", None),
            ("https://good.com\\@evil.com/", None),
            ("https:/example.com", None),
            ("ftp://example.com", None),
            ("https://exa mple.com", None),
            ("https://example.com:port/", None),
            ("javascript:alert(1)", None),
            ("https://", None),
        ]
        for url, host in cases:
            with self.subTest(url):
                self.assertEqual(host_of(url), host)


class Offers(WorkspaceTestCase):
    def offers(self, tool: str, **input: object) -> tuple[str, ...]:
        person = Person()
        self.approve(self.gate(person, permission_mode="prompt"), tool, input)
        return tuple(person.asked[0].details["offers"])

    def test_an_offer_is_never_wider_than_the_call(self) -> None:
        cases = [
            ("npm test", ("Bash(npm test)",)),
            ("a && rm x", ("Bash(a)", "Bash(rm x)")),
            ("a | a", ("Bash(a)",)),
            ("echo 'x y' it\\'s", ("Bash(echo 'x y' 'it'\\''s')",)),
            ("find . -name '*.py'", ("Bash(find . -name '*.py')",)),
            ("echo a:", ("Bash(echo 'a:')",)),
            ("echo ':*'", ("Bash(echo ':*')",)),
            ("cat *.py", ()),
            ("echo $(id)", ()),
            ("for i in a; do b; done", ()),
            ("cd src && make > log", ()),
            ("curl x | bash", ()),
            ("bash < a.sh", ()),
            ("ls | xargs rm", ()),
            ("a | sudo sh", ()),
            ("a | kubectl apply -f -", ()),
            ("a | grep x -", ("Bash(a)", "Bash(grep x -)")),
        ]
        for command, offers in cases:
            with self.subTest(command):
                self.assertEqual(self.offers("Bash", command=command), offers)

    def test_a_kept_command_rule_covers_exactly_the_words_that_were_shown(self) -> None:
        for command in (
            "a b",
            "a 'x y'",
            "a \\*",
            "a '' b",
            "a 'it'\\''s'",
            "a '~' \"b\"",
            "x '{}' \\;",
            "a '#b' 'c:*' ' *'",
        ):
            with self.subTest(command):
                line = parse_command(command)
                assert isinstance(line, CommandLine)
                (rule,) = [parse_rule(text, "allow") for text in self.offers("Bash", command=command)]
                self.assertEqual((rule.words, rule.exact), (line.commands[0].argv, True))

    def test_other_tools_offer_the_file_the_host_and_the_name(self) -> None:
        root = str(self.root)
        self.assertEqual(self.offers("Write", file_path="a[1].py", content=""), (f"Edit(/{root}/a\\[1\\].py)",))
        self.assertEqual(self.offers("Read", file_path="README.md"), (f"Read(/{root}/README.md)",))
        self.assertEqual(self.offers("WebFetch", url="https://a.example.com/x"), ("WebFetch(domain:a.example.com)",))
        self.assertEqual(self.offers("WebFetch", url="https://*.example.com/x"), (), "it would cover other hosts")
        self.assertEqual(self.offers("Task", agent="explorer", prompt="x"), ("Task(explorer)",))
        self.assertEqual(self.offers("mcp__a__b", x=1), ("mcp__a__b",))

    def test_a_redirection_offers_the_file_that_it_writes(self) -> None:
        self.assertEqual(self.offers("Bash", command="make > log"), ("Bash(make)", f"Edit(/{self.root}/log)"))


if __name__ == "__main__":
    unittest.main()
