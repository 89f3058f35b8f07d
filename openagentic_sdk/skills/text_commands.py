"""Commands in the text of a skill or command, whose output replaces them. Nothing runs here.

They are written `` !`command` `` at the start of a line or after white space, or as a fenced block that opens with ```` ```!
````. In other code they are text, and a command's output is never scanned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ground.frozen import frozen
from ..ground.patterns import regex
from .outline import fence_behind
from .render import fill_command, first_number

MAX_COMMANDS = 20

_SPAN_OR_COMMAND = regex(r"(?<!`)(`{2,})(?!`).*?(?<!`)\1(?!`)|(?<!\S)!`([^`\n]+)`")
_GAP = regex("\0(\\d+)\0")


@frozen
class Draft:
    """A text with a gap for the output of each of its `commands`, which have not run.

    `written` is the file's text at each gap. `name` and `path` identify the text, `grants` are the permission rules that
    the text grants.
    """

    text: str
    commands: tuple[str, ...]
    written: tuple[str, ...]
    name: str = ""
    path: str | None = None
    grants: tuple[str, ...] = ()

    @property
    def as_written(self) -> str:
        """The text with its commands as they are written in the file, in place of their outputs."""
        return self.filled(self.written)

    def filled(self, outputs: Sequence[str]) -> str:
        """The text with these strings in its gaps."""
        return _GAP.sub(lambda gap: outputs[int(gap[1])], self.text)


def draft_of(
    text: str,
    *,
    name: str = "",
    path: str | None = None,
    grants: Sequence[str] = (),
    arguments: str = "",
    argument_names: Sequence[str] = (),
) -> Draft | None:
    """The text with gaps for its commands; None if it has none.

    Arguments in commands are quoted for the shell, so that they cannot become anything but words. Commands beyond the first
    `MAX_COMMANDS` remain text.
    """
    commands: list[tuple[str, str]] = []
    first = first_number(text)

    def gap(source: str, command: str) -> str:
        if len(commands) == MAX_COMMANDS:
            return source
        commands.append((source, fill_command(command.strip(), arguments, names=argument_names, first=first)))
        return f"\0{len(commands) - 1}\0"

    marked = _with_gaps(text.replace("\0", ""), gap)
    if not commands:
        return None
    return Draft(marked, tuple(c for _, c in commands), tuple(w for w, _ in commands), name, path, tuple(grants))


def _with_gaps(text: str, gap: Callable[[str, str], str]) -> str:
    """The text with a gap for each of its commands."""
    output: list[str] = []
    block: list[str] = []
    fence, runs = "", False
    for line in text.split("\n"):
        before, fence = fence, fence_behind(fence, line)
        if not (before or fence):
            output.append(_SPAN_OR_COMMAND.sub(lambda m: gap(m[0], m[2]) if m[2] else m[0], line))
            continue
        block.append(line)
        if not before:
            runs = line.strip().removeprefix(fence).strip() == "!"
        elif not fence:
            output += [gap("\n".join(block), "\n".join(block[1:-1]))] if runs and len(block) > 2 else block
            block = []
    return "\n".join([*output, *block])
