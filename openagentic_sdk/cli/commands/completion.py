"""`openagentic-sdk completion bash|zsh|fish`: a script with which a shell completes commands, actions and flags.

The script is generated from the parsers, once; no command runs while a person types.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import suppress

from ...errors import RoomMissingError
from ..commands import COMMANDS, load_command
from ..exits import OK

_BASH = """_openagentic_sdk() {{
  local path="" word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path/$word" in {paths}) path="$path/$word";; esac
  done
  case "$path" in
{cases}
  esac
}}
complete -o bashdefault -o default -F _openagentic_sdk openagentic-sdk
"""
_BASH_CASE = '    {path}) COMPREPLY=($(compgen -W {words} -- "${{COMP_WORDS[COMP_CWORD]}}"));;'
_ZSH = "#compdef openagentic-sdk\nautoload -U +X bashcompinit && bashcompinit\n"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("completion", description="Print the completion script for a shell.")
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")


def run(args: argparse.Namespace) -> int:
    tree = dict(_walk("", _whole_parser()))
    if args.shell == "fish":
        print("\n".join(_fish(tree)))
        return OK
    paths = "|".join(shlex.quote(path) for path in tree if path)
    cases = "\n".join(
        _BASH_CASE.format(path=shlex.quote(path) if path else '""', words=shlex.quote(" ".join(words)))
        for path, words in tree.items()
    )
    print((_ZSH if args.shell == "zsh" else "") + _BASH.format(paths=paths, cases=cases), end="")
    return OK


def _whole_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openagentic-sdk")
    subparsers = parser.add_subparsers()
    for name in COMMANDS:
        with suppress(RoomMissingError):  # commands that cannot run here are not offered
            load_command(name).add_parser(subparsers)
    return parser


def _walk(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield each command by its path (`/sessions/list`), with the actions, flags and choices that may follow."""
    words: list[str] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        words += [option for option in action.option_strings if option.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            below += action.choices.items()
        elif action.choices is not None and not action.option_strings:
            words += map(str, action.choices)
    yield path, [*(name for name, _ in below), *words]
    for name, inner in below:
        yield from _walk(f"{path}/{name}", inner)


def _fish(tree: dict[str, list[str]]) -> Iterator[str]:
    for path, words in tree.items():
        names = path.split("/")[1:]
        seen = " && ".join(f"__fish_seen_subcommand_from {name}" for name in names) or "__fish_use_subcommand"
        deeper = [word for word in words if f"{path}/{word}" in tree]
        if names and deeper:
            seen += f" && not __fish_seen_subcommand_from {' '.join(deeper)}"
        yield from (
            f"complete -c openagentic-sdk -f -n {shlex.quote(seen)} -a {word}" for word in words if word[0] != "-"
        )
        yield from (
            f"complete -c openagentic-sdk -n {shlex.quote(seen)} -l {word[2:]}" for word in words if word[0] == "-"
        )
