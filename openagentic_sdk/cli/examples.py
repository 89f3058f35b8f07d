"""The examples below every `--help`: command lines that work, and what they do."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence

_NAME = "openagentic-sdk"

# By the words after the command's name; each line may say after `#` what it does.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        'run "What does this project do?"',
        "chat --continue  # go on with the newest conversation of this folder",
        "sessions list    # what was said before",
        "view newest      # a session as a page for the browser",
    ),
    "run": (
        'run "Fix the failing test" --allow "Bash(python3 -m unittest:*)"',
        'git diff | openagentic-sdk run - --system "Review this change."',
        'run "What is on it?" --attach screen.png',
        'run "Go on" --continue --json  # every event as a line of JSON',
        'run "Hello" --base-url http://127.0.0.1:11434/v1 --model llama3.2  # a server on this machine',
    ),
    "chat": (
        "chat",
        "chat --continue                # with the newest conversation of this folder",
        "chat --resume 3f2a --plain     # line by line, for a screen reader",
        "chat --permission-mode plan    # nothing is changed until you say so",
    ),
    "sessions": ("sessions list", "sessions show newest", "sessions rewind newest --files --dry-run"),
    "sessions list": (
        "sessions list",
        "sessions list deploy --cwd .  # of this folder, with this word",
        "sessions list --json",
    ),
    "sessions show": ("sessions show", "sessions show 3f2a --json"),
    "sessions search": ("sessions search rounding error", "sessions search TODO --limit 5"),
    "sessions diff": (
        "sessions diff 3f2a 9c1b    # where two sessions part, and what each cost",
        "sessions diff 3f2a --files  # what one changed in files",
    ),
    "sessions explain": ("sessions explain newest", "sessions explain 3f2a --step 4"),
    "sessions cost": ("sessions cost newest", "sessions cost --by model --since 7d"),
    "sessions tail": ("sessions tail newest --follow",),
    "sessions verify": ("sessions verify newest", "sessions verify --all"),
    "sessions salvage": ("sessions salvage 3f2a",),
    "sessions fork": ("sessions fork 3f2a", "sessions fork 3f2a --at-seq 12  # a copy up to event 12"),
    "sessions rename": ('sessions rename 3f2a "The rounding error"',),
    "sessions tag": ("sessions tag 3f2a bug shop", "sessions tag 3f2a ^bug  # takes the tag away"),
    "sessions archive": ("sessions archive 3f2a price.zip", "sessions archive 3f2a price.zip --remove"),
    "sessions restore": ("sessions restore price.zip",),
    "sessions delete": ("sessions delete 3f2a",),
    "sessions rewind": (
        "sessions rewind newest --files --dry-run  # what would be done to files",
        "sessions rewind newest --turns 2 --files",
        "sessions rewind 3f2a --only-files --conflicts skip",
    ),
    "sessions copy": ("sessions copy 3f2a --to sqlite:///var/lib/agents.db", "sessions copy --all --to backup"),
    "sessions sign": ("sessions sign newest --ssh-key ~/.ssh/id_ed25519",),
    "sessions erase": ('sessions erase 3f2a --text-file secret.txt --reason "a password" --dry-run',),
    "sessions hold": ('sessions hold 3f2a --reason "case 12"', 'sessions hold 3f2a --release --reason "case closed"'),
    "sessions retain": ('sessions retain 3f2a --for 90d --reason "policy 4"',),
    "sessions purge": ("sessions purge --older-than 90d --dry-run",),
    "acp": ("acp --model gpt-5  # what an editor starts; see docs/editors.md",),
    "replay": (
        "replay newest",
        "replay 3f2a --tolerant             # show every request that differs",
        "replay 3f2a --emit-test test_price --agent app:options",
    ),
    "whatif": (
        "whatif 3f2a --at 12 --model gpt-5-mini",
        'whatif 3f2a --at 2 --prompt "Use decimal instead" --on-new live',
        "whatif 3f2a --at 2 --system shorter.md",
    ),
    "eval": ("eval suite.toml --repeats 3", "eval suite.toml --page report.html --junit report.xml"),
    "verify": ("verify newest", "verify record.zip --signed  # who vouches for the record in a file"),
    "view": (
        "view                    # the newest session, as ID.html",
        "view 3f2a -o run.html",
        "view newest --serve     # follow it while it runs",
        "view --all              # a list of all, to search and open",
    ),
    "serve": ("serve --agents agents.toml", "serve --agents app:agents --port 8080 --token-file token"),
    "fleet": (
        'fleet enqueue reviewer "Review main" --agents agents.toml',
        "fleet work --agents agents.toml",
        "fleet runs",
    ),
    "export": ("export newest --format markdown", "export 3f2a --format otlp -o spans.json"),
    "bundle": ("bundle -o agent.pyz",),
    "skills": ("skills list", "skills show release-notes", "skills check"),
    "skills list": ("skills list", "skills list review --json"),
    "skills show": ("skills show release-notes",),
    "skills why": ("skills why release-notes  # which file it comes from, and which it hides",),
    "skills sources": ("skills sources",),
    "skills check": ("skills check", "skills check .claude/skills --strict"),
    "memory": ("memory list", "memory check"),
    "memory list": ("memory list",),
    "memory why": ("memory why project/build.md",),
    "memory forget": ("memory forget project/build.md",),
    "memory check": ("memory check",),
    "plugins": ("plugins list", "plugins add ~/plugins/shop"),
    "plugins list": ("plugins list",),
    "plugins add": ("plugins add ~/plugins/shop",),
    "plugins remove": ("plugins remove shop",),
    "plugins check": ("plugins check ~/plugins/shop",),
    "mcp": ("mcp list", "mcp test", "mcp serve --agents agents.toml"),
    "mcp list": ("mcp list",),
    "mcp get": ("mcp get files",),
    "mcp remove": ("mcp remove files",),
    "mcp test": ("mcp test", "mcp test files"),
    "mcp logout": ("mcp logout wiki",),
    "permissions": ("permissions suggest --since 7d", "permissions backtest --settings stricter.json"),
    "trust": ("trust show", "trust add .", "trust list"),
    "trust add": ("trust add .",),
    "trust show": ("trust show",),
    "trust revoke": ("trust revoke .",),
    "trust list": ("trust list",),
    "import": ("import claude ~/.claude/projects",),
    "import claude": ("import claude ~/.claude/projects",),
    "store": ("store migrate postgresql://localhost/agents",),
    "store migrate": ("store migrate postgresql://localhost/agents",),
    "completion": (
        "source <(openagentic-sdk completion bash)  # in ~/.bashrc",
        "source <(openagentic-sdk completion zsh)   # in ~/.zshrc",
        "openagentic-sdk completion fish | source   # in ~/.config/fish/config.fish",
    ),
    "doctor": ("doctor", "doctor --base-url http://127.0.0.1:11434/v1"),
}


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs, and leaves lines that begin with blanks as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = text.split("\n\n")
        return "\n\n".join(block if "\n  " in block else textwrap.fill(block, width) for block in blocks)


def add_examples(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Put the examples below the help of this command, and of the actions below it."""
    parser.formatter_class = HelpFormatter
    lines = [line if _NAME in line else f"{_NAME} {line}" for line in EXAMPLES.get(name, ())]
    shown = (
        "\n".join(["examples:" if len(lines) > 1 else "example:", *(f"  {line}" for line in lines)]) if lines else None
    )
    parser.epilog = "\n\n".join(filter(None, (shown, parser.epilog))) or None
    for action in parser._actions:
        if name and isinstance(action, argparse._SubParsersAction):
            for inner, below in action.choices.items():
                add_examples(below, f"{name} {inner}")
