"""Regular expressions that are compiled when they are first used: all at once, they are much of what an import costs."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but a text that is no regular expression raises `re.error` at its first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))


class _Pattern:
    """Has nothing but the text until somebody asks for more; then it has all that the compiled pattern has."""

    def __init__(self, text: Any, flags: int) -> None:
        self._made_of = (text, flags)

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(*self._made_of)
        for each in ("match", "search", "fullmatch", "sub", "finditer", "findall", "split", "groups"):
            setattr(self, each, getattr(compiled, each))
        return getattr(compiled, name)
