"""The examples in every `--help`: working command lines, and their effects."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence

from ..ground.packaged import read_packaged

_NAME = "openagentic-sdk"

# Keyed by the words after the command's name; a line may explain itself after `#`.
EXAMPLES: Mapping[str, Sequence[str]] = json.loads(read_packaged(__spec__, "examples.json"))


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that wraps paragraphs, except those that contain indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = text.split("\n\n")
        return "\n\n".join(block if "\n  " in block else textwrap.fill(block, width) for block in blocks)


def add_examples(parser: argparse.ArgumentParser, name: str = "") -> None:
    """Add the examples to the help of this command and of its actions."""
    parser.formatter_class = HelpFormatter
    lines = [line if _NAME in line else f"{_NAME} {line}" for line in EXAMPLES.get(name, ())]
    example_text = (
        "\n".join(["examples:" if len(lines) > 1 else "example:", *(f"  {line}" for line in lines)]) if lines else None
    )
    parser.epilog = "\n\n".join(filter(None, (example_text, parser.epilog))) or None
    for action in parser._actions:
        if name and isinstance(action, argparse._SubParsersAction):
            for inner, below in action.choices.items():
                add_examples(below, f"{name} {inner}")
