"""Programs that a deny rule forbids entirely, whose files can be hidden; and the rules that only words can enforce."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ...tools.shell.environment import USUAL_FOLDERS
from ..rules import Rule
from ..shell import word_set

BUILT_IN = "built in"
# The programs that run the commands themselves.
_NEEDED = frozenset({"bash"})


def program_files(rule: Rule) -> tuple[str, ...] | None:
    """The files of a program that a rule forbids entirely; None if hiding files could not enforce the rule: it is about
    some of the program's words or a shell builtin, or the program shares its file with others.
    """
    if rule.kind != "command" or rule.exact or len(rule.words) != 1 or rule.words[0] in _NEEDED | BUILTINS:
        return None
    name = rule.words[0]
    searched = [*USUAL_FOLDERS, "/sbin", "/usr/sbin", *filter(None, os.environ.get("PATH", "").split(os.pathsep))]
    places = [name] if "/" in name else [os.path.join(folder, name) for folder in searched]
    real = {os.path.realpath(place) for place in places if os.path.isfile(place)}
    return tuple(sorted(real)) if all(os.path.basename(path) == os.path.basename(name) for path in real) else None


BUILTINS = word_set("""
    . : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo enable
    eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd
    read readarray readonly return set shift shopt source suspend test time times trap true type typeset ulimit umask
    unalias unset wait
""")


def unheld_rules(rules: Iterable[Rule], *, confined: bool) -> Iterator[Rule]:
    """Yield the rules, except built-in ones, that no mount enforces (without `confined`, none is), so that they depend on
    the words of a command.
    """
    for rule in rules:
        is_held = rule.kind == "path" or (rule.kind == "command" and program_files(rule) is not None)
        if rule.source != BUILT_IN and rule.kind in ("path", "command", "wildcard") and not (confined and is_held):
            yield rule


def enforced_by_words(rule: Rule, confined: bool) -> str:
    """The reason, for people, why the words of a command must be understood: nothing else can enforce this rule."""
    where = "" if confined else "without a sandbox, "
    return f"{where}nothing but the words of the command can be compared with the rule {rule.text} ({rule.source})"
