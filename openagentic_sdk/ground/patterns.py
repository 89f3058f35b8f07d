"""Regular expressions compiled on first use: compiling them all is a large part of an import's cost."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern, like `re.compile`; an invalid expression raises `re.error` only on first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))


class _Pattern:
    """A pattern that is compiled when one of its attributes is first used."""

    def __init__(self, text: Any, flags: int) -> None:
        self._made_of = (text, flags)

    def __getattr__(self, name: str) -> Any:
        # Called only for attributes that are not set: the next use of these finds the compiled pattern's own.
        compiled = re.compile(*self._made_of)
        for each in ("match", "search", "fullmatch", "sub", "finditer", "findall", "split", "groups"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)
