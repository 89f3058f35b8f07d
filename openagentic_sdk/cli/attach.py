"""Files that a person names beside a prompt: `--attach FILE`, and `@path` in what was typed.

Only what a person typed is looked at, never what came through a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import OptionsError
from ..patterns import regex
from ..runtime.prompt import OnePrompt

_MENTION = regex(r"(?<!\S)@(\S+)")


def with_files(text: str, cwd: str, attached: Sequence[str] = (), *, typed: bool) -> OnePrompt:
    """The prompt with the files that it names. A mention, from `cwd` on, that is no file stays the text that it is.

    Raises `OptionsError` for an attached file that is not there.
    """
    given = [Path(path).expanduser().absolute() for path in attached]
    missing = [str(path) for path in given if not path.is_file()]
    if missing:
        raise OptionsError(f"--attach {missing[0]!r} is no file: name one that exists")
    mentions = _MENTION.findall(text) if typed else ()
    named = [
        next((path for path in (word, word.rstrip(".,;:!?)")) if Path(cwd, path).is_file()), None) for word in mentions
    ]
    files = dict.fromkeys([*map(str, given), *(path for path in named if path)])
    if not files:
        return text
    return [{"type": "text", "text": text}, *({"type": "file", "path": path} for path in files)]
