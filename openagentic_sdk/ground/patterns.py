"""Regular expressions compiled on first use: compiling them all is a large part of an import's cost."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern, like `re.compile`; an invalid expression raises `re.error` only on first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))


class _Pattern:
    """A pattern that holds only its text until an attribute is needed, and then those of the compiled pattern."""

    def __init__(self, text: Any, flags: int) -> None:
        self._made_of = (text, flags)

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(*self._made_of)
        for each in ("match", "search", "fullmatch", "sub", "finditer", "findall", "split", "groups"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)
