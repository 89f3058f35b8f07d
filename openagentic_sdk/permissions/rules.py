"""Rules in the syntax of Claude Code's settings, parsed strictly and once into frozen values.

`Tool`, `Bash(git diff:*)`, `Read(./secrets/**)`, `WebFetch(domain:*.example.com)`, `Skill(name)`, `Task(name)`,
`mcp__server__*`. An invalid rule is a `PermissionRuleError`, never a rule that silently matches nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from ..errors import PermissionRuleError
from ..ground.checks import shown
from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..skills.names import name_key
from .paths import compile_pattern, matches_any, pattern_problem
from .shell import CommandLine, SimpleCommand, parse_command
from .wildcards import Wildcard, read_wildcards

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
PermissionEffect = Literal["allow", "ask", "deny"]
RuleKind = Literal["tool", "command", "wildcard", "path", "domain", "name", "parameter"]

READ_TOOLS = frozenset({"Read", "Grep", "Glob", "NotebookRead", "LS"})
EDIT_TOOLS = frozenset({"Edit", "Write", "MultiEdit", "NotebookEdit"})
SKILL_TOOLS = frozenset({"Skill", "SkillLoad", "SkillActivate"})
TASK_TOOLS = frozenset({"Task", "Agent"})

# The tools that a rule's tool name covers besides the tool of that name.
_COVERS = {
    "Read": READ_TOOLS,
    "Edit": EDIT_TOOLS,
    "Skill": SKILL_TOOLS,
    "SkillActivate": frozenset({"Skill", "SkillActivate"}),
    "Task": TASK_TOOLS,
    "Agent": TASK_TOOLS,
    "Bash": frozenset({"Bash"}),
    "TaskOutput": frozenset({"TaskOutput", "BashOutput"}),
    **dict.fromkeys(("TaskStop", "KillShell"), frozenset({"KillBash"})),
}
_PATH_TOOLS = frozenset({"Read", "NotebookRead", *EDIT_TOOLS})
# The parameters that rules may name for tools whose brackets also have another meaning; for other tools, rules may name any
# parameter. A tool's primary field is for the tool's own rules.
_PARAMETERS = {
    "Bash": frozenset({"run_in_background", "timeout", "timeout_s", "description", "dangerouslyDisableSandbox"}),
    **dict.fromkeys(
        TASK_TOOLS, frozenset({"model", "isolation", "run_in_background", "background", "subagent_type", "agent"})
    ),
    **dict.fromkeys(_PATH_TOOLS, frozenset({"offset", "limit", "pages", "replace_all", "count", "overwrite"})),
    "WebFetch": frozenset({"prompt"}),
}
_PRIMARY = {
    "Bash": "command",
    "WebFetch": "url",
    **dict.fromkeys(("Grep", "Glob"), "path"),
    **dict.fromkeys(("Read", "Edit", "Write", "MultiEdit"), "file_path"),
    **dict.fromkeys(("NotebookEdit", "NotebookRead"), "notebook_path"),
}
# Synonyms for a parameter.
_SAME_PARAMETER = {"subagent_type": "agent", "agent": "subagent_type", "run_in_background": "background"}
_PARAMETER = regex(r"([A-Za-z_-][\w-]*)\s*:\s*(\S.*)", re.DOTALL)


@frozen
class Rule:
    """One rule. `text` is the rule as written, `source` where it was written (a file, `options`, `session`); `root` is the
    folder for a path like `/x`.

    `words` are those of a command (a prefix unless `exact`), or the one name of a parameter. `pattern` is the pattern of
    every other kind, or that of the parameter's value; the module `wildcards` parses the pattern of a `wildcard` rule.
    """

    text: str
    tool: str
    kind: RuleKind
    source: str = "options"
    root: str | None = None
    words: tuple[str, ...] = ()
    exact: bool = False
    pattern: str = ""

    def covers(self, tool_name: str) -> bool:
        """Whether the rule is about this tool at all."""
        if tool_name in _COVERS.get(self.tool, (self.tool,)):
            return True
        if "*" in self.tool or "?" in self.tool:
            return fnmatchcase(tool_name, self.tool)
        is_server = self.tool.startswith("mcp__") and self.tool.count("__") == 1
        return is_server and tool_name.startswith(self.tool + "__")


@functools.lru_cache(maxsize=4096)
def parse_rule(text: str, effect: PermissionEffect = "deny", source: str = "options", root: str | None = None) -> Rule:
    """Parse one rule; `source` and `root` are as in `Rule`. Raises `PermissionRuleError`, which names the rule, the reason
    and the `source`.
    """
    match = re.fullmatch(r"([A-Za-z_*?][\w.*?-]*)(?:\((.*)\))?", text.strip(), re.DOTALL)
    if match is None:
        raise PermissionRuleError(text, "a rule must be a tool's name, or a name and a pattern in brackets", source)
    tool, inner = match.groups()
    # A server's name limits what its wildcard covers; `*` alone would also allow tools that are added later.
    is_open = effect == "allow" and ("*" in tool or "?" in tool)
    if is_open and re.match(r"mcp__[A-Za-z0-9.-]+(?:_[A-Za-z0-9.-]+)*__", tool) is None:
        problem = "a wildcard in the name of an allowed tool is only valid after a server, as in mcp__server__*"
        raise PermissionRuleError(text, problem, source)
    if inner is None or inner.strip() == "*":
        return Rule(text, tool, "tool", source, root)
    try:
        return _parse_inner(functools.partial(Rule, text, tool, source=source, root=root), tool, inner.strip(), effect)
    except ValueError as problem_of_inner:
        raise PermissionRuleError(text, str(problem_of_inner), source) from None


def parse_rules(
    texts: Iterable[str | Rule], effect: PermissionEffect, source: str = "options", root: str | None = None
) -> tuple[Rule, ...]:
    """Parse rules; a `Rule` among them is kept as it is. Raises `PermissionRuleError` for anything else that is invalid."""
    if not isinstance(texts, Iterable) or isinstance(texts, str | bytes | Mapping):
        raise PermissionRuleError(
            shown(texts), f"{effect} must be a list of rules, not a single {type(texts).__name__}", source
        )
    rules = []
    for text in texts:
        if not isinstance(text, str | Rule):
            raise PermissionRuleError(
                shown(text), f"a rule must be a string or a Rule, not {type(text).__name__}", source
            )
        rules.append(text if isinstance(text, Rule) else parse_rule(text, effect, source, root))
    return tuple(rules)


# Creates a rule from its kind and the fields that this kind has.
_Make = Callable[..., Rule]


def _parse_inner(make: _Make, tool: str, inner: str, effect: PermissionEffect) -> Rule:
    """Parse the part in parentheses. Raises ValueError with the reason if it is invalid."""
    if not inner:
        raise ValueError(f"the parentheses are empty; write {tool} alone to cover every use of the tool")
    rule = _parameter_rule(make, tool, inner, effect)
    if rule is not None:
        return rule
    if tool in _BY_TOOL:
        return _BY_TOOL[tool](make, inner, effect)
    if tool in READ_TOOLS:
        raise ValueError(f"{tool} follows the rules of Read, so write Read({inner})")
    raise ValueError(f"{tool} accepts no pattern in brackets, so write {tool} alone")


def _parameter_rule(make: _Make, tool: str, inner: str, effect: PermissionEffect) -> Rule | None:
    """The rule about one parameter of a call; None if the brackets contain a pattern of the tool's own kind. Raises
    ValueError for an allow rule, and for the parameter that the tool's own rules are about.
    """
    parameter = _PARAMETER.fullmatch(inner)
    if parameter is None or inner == "timeout:*":  # the program, with any arguments
        return None
    name, pattern = parameter[1], parameter[2].strip()
    if name == _PRIMARY.get(tool):
        raise ValueError(f"the rules of {tool} are about its {name}, so write the pattern without the parameter's name")
    takes_any = tool not in _PARAMETERS and tool not in SKILL_TOOLS
    if not takes_any and name not in _PARAMETERS.get(tool, ()):
        return None
    if effect == "allow":
        raise ValueError("a single parameter does not make a call safe, so only deny and ask rules may name parameters")
    return make("parameter", words=(name,), pattern=pattern)


def _path_rule(make: _Make, inner: str, effect: PermissionEffect) -> Rule:
    problem = pattern_problem(inner)
    if problem:
        raise ValueError(problem)
    return make("path", pattern=inner)


_LABEL = "[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_HOST = regex(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}|\[[0-9a-f:.]+\]|\*")


def _domain_rule(make: _Make, inner: str, effect: PermissionEffect) -> Rule:
    key, colon, host = inner.partition(":")
    if key != "domain" or not colon:
        raise ValueError("write a WebFetch rule as WebFetch(domain:example.com)")
    host = host.strip().rstrip(".").lower()
    if not host.isascii():
        wildcard = "*." if host.startswith("*.") else ""
        # URLs are compared in ASCII, so a rule with other letters would silently match nothing.
        with suppress(UnicodeError):  # it is refused below as it was written
            host = wildcard + host.removeprefix("*.").encode("idna").decode("ascii")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is not a host; write example.com, or *.example.com for all hosts below it")
    return make("domain", pattern=host)


def _name_rule(make: _Make, inner: str, effect: PermissionEffect) -> Rule:
    names = [name.strip() for name in inner.removesuffix(":*").removesuffix(" *").split(",")]
    if not all(names) or re.search(r"[\s()]", "".join(names)):
        raise ValueError("a name cannot be empty or contain spaces or brackets; separate several names with commas")
    return make("name", pattern=",".join(names))


def _command_rule(make: _Make, inner: str, effect: PermissionEffect) -> Rule:
    """Parse a rule about one command, or about all that begin with its words; any other valid form is a wildcard."""
    head, exact = inner, True
    for tail in (":*", " *"):
        if inner.endswith(tail):
            head, exact = inner[: -len(tail)].rstrip(), False
            break
    line = parse_command(head)
    if isinstance(line, CommandLine) and len(line.commands) == 1 and not (line.in_background or line.has_comment):
        command = line.commands[0]
        has_wildcard = bool(command.globs) or (effect != "allow" and "*" in head)
        if not (has_wildcard or command.redirects or command.assignments):
            return make("command", words=command.argv, exact=exact)
    commands = read_wildcards(inner)
    if (len(commands) > 1 or commands[0].line) and effect == "allow":
        raise ValueError(
            "an allow rule must name one simple command, because each part of a command line is checked separately"
        )
    return make("wildcard", pattern=inner)


# How the part in parentheses is read, by the tool that a rule names.
_BY_TOOL: Mapping[str, Callable[[_Make, str, PermissionEffect], Rule]] = {
    "Bash": _command_rule,
    "WebFetch": _domain_rule,
    **dict.fromkeys(_PATH_TOOLS, _path_rule),
    **dict.fromkeys(SKILL_TOOLS | TASK_TOOLS, _name_rule),
}


def host_matches(pattern: str, host: str) -> bool:
    """Whether a host (lower case, no trailing dot) matches the pattern of a rule; only whole labels are compared."""
    if pattern == "*" or host == pattern:
        return True
    # `pattern[1:]` keeps the dot: `*.example.com` covers neither `badexample.com` nor `example.com` itself.
    return pattern.startswith("*.") and host.endswith(pattern[1:]) and len(host) > len(pattern) - 1


_URL = regex(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@\\:\[\]]+)(?::[0-9]{1,5})?(?:[/?#]\S*)?", re.IGNORECASE)


def host_of(url: str) -> str | None:
    """The host of a plain http(s) URL, in lower case and ASCII; None for any other spelling."""
    # One spelling only: user names, backslashes and odd brackets are where URL parsers differ about the host.
    match = _URL.fullmatch(url)
    if match is None:
        return None
    host = match[1].lower()
    try:
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return None
    return host.rstrip(".") or None


class RuleBook:
    """The rules of one effect, indexed by subject, so that a decision examines few of them.

    It caches results for up to `_MAX_KEPT` tools, and for as many workspaces. `rule_book` creates or reuses a book.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.tools = tuple(rule for rule in rules if rule.kind == "tool")
        self.paths = tuple(rule for rule in rules if rule.kind == "path")
        self.domains = tuple(rule for rule in rules if rule.kind == "domain")
        self.names = tuple(rule for rule in rules if rule.kind == "name")
        self.parameters = tuple(rule for rule in rules if rule.kind == "parameter")
        self.wildcards = tuple(rule for rule in rules if rule.kind == "wildcard")
        self.commands: dict[str, list[Rule]] = {}
        for rule in rules:
            if rule.kind == "command":
                self.commands.setdefault(rule.words[0], []).append(rule)
        for same in self.commands.values():
            # The most specific rule comes first: an exact one, then the longest prefix.
            same.sort(key=lambda rule: (not rule.exact, -len(rule.words)))
        self._by_tool: dict[str, Rule | None] = {}
        self._forbidding: dict[tuple[tuple[str, ...], bool], _WorkspacePathRules] = {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    def plus(self, rules: Sequence[Rule]) -> RuleBook:
        """Return a book of this book's rules and these."""
        return rule_book((*self.rules, *rules)) if rules else self

    @property
    def about_commands(self) -> bool:
        """Whether any rule is about certain commands; `Bash` alone, which is about all, does not count."""
        return bool(self.commands or self.wildcards)

    def for_tool(self, tool_name: str) -> Rule | None:
        """The first rule about every use of the tool."""
        if not self.tools:
            return None
        return _cached(self._by_tool, tool_name, lambda: next((r for r in self.tools if r.covers(tool_name)), None))

    def for_command(self, argv: Sequence[str]) -> Rule | None:
        """The most specific rule whose words begin this argument list or, for an exact rule, equal it, if any."""
        for rule in self.commands.get(argv[0], ()):
            if rule.words == tuple(argv) if rule.exact else rule.words == tuple(argv[: len(rule.words)]):
                return rule
        return None

    def for_wildcard(self, command: SimpleCommand) -> tuple[Rule, Wildcard] | None:
        """The first wildcard rule about a single command that matches this one, and its parsed form. The rule's assignments
        must match either all of the command's or those that can change what a program does.
        """
        for rule in self.wildcards:
            commands = read_wildcards(rule.pattern)
            if len(commands) == 1 and commands[0].fits(command.argv):
                is_set = commands[0].sets(command.assignments) or commands[0].sets(command.open_assignments)
                if is_set:
                    return rule, commands[0]
        return None

    def forbidding_command(self, argv: Sequence[str]) -> Rule | None:
        """Like `for_command`, but options may be between the rule's words: `git push` covers `git -C x push`."""
        rule = self.for_command(argv)
        if rule is None and len(argv) > 2:
            rules = (rule for rule in self.commands.get(argv[0], ()) if len(rule.words) > 1)
            rule = next((rule for rule in rules if _between_options(rule, argv)), None)
        return rule

    def for_beginning(self, argv: Sequence[str]) -> Rule | None:
        """The most specific rule that this argument list, as it is or with more words, could match."""
        for rule in self.commands.get(argv[0], ()):
            if rule.words[: len(argv)] == tuple(argv):
                return rule
        return None

    def for_host(self, host: str) -> Rule | None:
        """The first rule whose pattern matches a host."""
        return next((rule for rule in self.domains if host_matches(rule.pattern, host)), None)

    def forbidding_path(self, names: Sequence[str], bases: tuple[str, ...], *, write: bool) -> Rule | None:
        """The first deny or ask rule about reading or, with `write`, about writing that matches any name of a path; see
        `compile_pattern` for the bases.

        A path that may not be read may not be edited either.
        """
        if not self.paths:
            return None
        rules = _cached(self._forbidding, (bases, write), lambda: _WorkspacePathRules(self.paths_about(write), bases))
        return rules.first(names)

    def paths_about(self, write: bool) -> tuple[Rule, ...]:
        """The path rules that forbid writing (all of them) or, without `write`, reading (all but those of edit tools)."""
        return self.paths if write else tuple([rule for rule in self.paths if rule.tool not in EDIT_TOOLS])

    def for_parameter(self, tool_names: Sequence[str], input: Mapping[str, Any]) -> Rule | None:
        """The first rule about a parameter, by its name or a synonym, whose pattern matches the value in the call.

        `*` matches any text. Numbers and booleans (`true`, `false`) are compared as text; lists and objects never match.
        """
        for rule in self.parameters:
            if any(map(rule.covers, tool_names)):
                name = rule.words[0] if rule.words[0] in input else _SAME_PARAMETER.get(rule.words[0], "")
                value = input.get(name)
                text = str(value).lower() if isinstance(value, bool) else str(value)
                pattern = ".*".join(map(re.escape, rule.pattern.split("*")))
                if isinstance(value, str | int | float) and re.fullmatch(pattern, text, re.DOTALL):
                    return rule
        return None

    def for_name(self, tool_name: str, names: Iterable[str]) -> Rule | None:
        """The first rule that covers one of these names of a skill or subagent, normalized as when one is looked up."""
        keys = [name_key(name) for name in names]
        for rule in self.names:
            parts = [name_key(part) for part in rule.pattern.split(",")]
            if rule.covers(tool_name) and any(fnmatchcase(key, part) for key in keys for part in parts):
                return rule
        return None


_MAX_KEPT = 64
_BOOKS: dict[tuple[int, ...], RuleBook] = {}


def rule_book(rules: Sequence[Rule]) -> RuleBook:
    """The book of these rules, shared by all runs of this process with the same `Rule` objects."""
    rules = tuple(rules)
    # By their ids, which is faster than by value: the book keeps the rules alive, so no other object gets the id of one.
    return _cached(_BOOKS, tuple(map(id, rules)), lambda: RuleBook(rules))


def _cached(values: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The cached value of a key, created if missing; a full cache is emptied first. Threads may share `values`."""
    try:
        return values[key]
    except KeyError:
        if len(values) >= _MAX_KEPT:
            values.clear()
        value = values[key] = make()
        return value


# Options of programs with subcommands that take no value.
_WITHOUT_VALUE = frozenset({"--paginate", "--bare", "--literal-pathspecs", "--debug", "--verbose", "--quiet", "--"})


def may_take_value(option: str) -> bool:
    """Whether the word after an option may be its value."""
    return "=" not in option and not option.startswith("--no-") and option not in _WITHOUT_VALUE


def _between_options(rule: Rule, argv: Sequence[str]) -> bool:
    """Whether the words of a rule follow each other in a call with only options and their values in between."""
    at = 1
    for word in rule.words[1:]:
        may_be_value = False
        while at < len(argv) and argv[at] != word:
            is_option = argv[at].startswith("-")
            if not is_option and not may_be_value:
                return False
            may_be_value = is_option and may_take_value(argv[at])
            at += 1
        at += 1
    return at == len(argv) if rule.exact else at <= len(argv)


class _WorkspacePathRules:
    """The path rules of one effect for one workspace: first tested together as one expression, individually on a match."""

    def __init__(self, rules: Sequence[Rule], bases: Sequence[str]) -> None:
        self.each = [
            (rule, compile_pattern(rule.pattern, base, rule.root or base, wide=True))
            for rule in rules
            for base in bases
        ]
        texts = [pattern.pattern for _, pattern in self.each]
        self.any = re.compile("|".join(f"(?:{text})" for text in texts), re.DOTALL | re.IGNORECASE) if texts else None

    def first(self, names: Sequence[str]) -> Rule | None:
        if self.any is None or not matches_any(self.any, names):
            return None
        return next(rule for rule, pattern in self.each if matches_any(pattern, names))
