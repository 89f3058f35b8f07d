"""Checks of settings. Each returns None if the value fits, otherwise a description of the accepted values.

`check_settings` raises the error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from threading import TIMEOUT_MAX
from types import UnionType
from typing import Any

from ..errors import OptionsError

Check = Callable[[Any], "str | None"]

# The limits of file systems on Linux and macOS: PATH_MAX with its NUL, and NAME_MAX.
MAX_PATH_BYTES, MAX_NAME_BYTES = 4095, 255
# Larger numbers are mistakes, and some do not fit into a float.
MAX_NUMBER = 2**63 - 1


def check_settings(settings: object, checks: Mapping[str, Check], where: str = "") -> None:
    """Raise `OptionsError` for the first invalid setting, with `where`, its name, its value and the accepted values.
    `settings` is a mapping or an object with attributes. The value of a secret never appears in an error.
    """
    source: Any = settings
    is_mapping = isinstance(settings, Mapping)
    for name, check in checks.items():
        value = source[name] if is_mapping else getattr(source, name, None)
        requirement = check(value)
        if requirement is not None:
            actual = f"a value of type {type(value).__name__}" if name in _SECRET else shown(value)
            raise OptionsError(f"{where}{name} must be {requirement}, not {actual}")


_SECRET = frozenset({"api_key", "otlp_headers", "env", "headers", "token", "oauth", "secrets"})


def shown(value: object) -> str:
    """The first 200 characters of a value's `repr`; its type if `__repr__` fails."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - any object's repr may raise or be nested too deeply
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."


def number(low: float, *, whole: bool = False, most: float = MAX_NUMBER) -> Check:
    """Return a check for a number, or with `whole` a whole number, from `low` to `most`; it rejects booleans and NaN."""
    kind, kinds = ("a whole number", (int,)) if whole else ("a number", (int, float))

    def check(value: Any) -> str | None:
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if is_number and low <= value <= most:
            return None
        return f"{kind} from {low:g} to {most:g}" if is_number and value > most else f"{kind} of at least {low:g}"

    return check


def above_0(value: Any) -> str | None:
    """Check for a positive number of seconds that threads, sockets and the event loop can wait for."""
    return None if SECONDS(value) is None and value > 0 else f"a number of seconds above 0, up to {TIMEOUT_MAX:g}"


def is_a(kind: type | UnionType, description: str) -> Check:
    """Return a check for an instance of a class, which is described as `description`."""
    return lambda value: None if isinstance(value, kind) else description


def is_callable(value: Any) -> str | None:
    """Check for a callable."""
    return None if callable(value) else "a callable"


def one_of(*words: str) -> Check:
    """Return a check for one of the given words."""
    return lambda value: None if isinstance(value, str) and value in words else f"one of {', '.join(map(repr, words))}"


def or_none(check: Check) -> Check:
    """Return a check for None or a value that passes `check`."""

    def checked(value: Any) -> str | None:
        requirement = None if value is None else check(value)
        return None if requirement is None else f"{requirement}, or None"

    return checked


_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping)


def list_of(check: Check, each: str) -> Check:
    """Return a check for a list, tuple or set, not a string, mapping or one-shot iterator, of values that pass `check`.

    `each` describes the values, in the plural.
    """

    def checked(value: Any) -> str | None:
        is_list = isinstance(value, Collection) and not isinstance(value, _NO_LISTS)
        requirement = next((text for text in map(check, value) if text is not None), None) if is_list else each
        return None if requirement is None else f"a list of {each}"

    return checked


def passable(text: Any) -> bool:
    """Whether a string can be passed to the operating system: as UTF-8 or as the original bytes of a path, without NUL."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def path(value: Any) -> str | None:
    """Check for a valid file system path, whether it exists or not."""
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not passable(name):
        return "a path"
    encoded = os.fsencode(name or "")
    fits = len(encoded) <= MAX_PATH_BYTES and all(len(part) <= MAX_NAME_BYTES for part in encoded.split(b"/"))
    return None if fits else f"a path of at most {MAX_PATH_BYTES} bytes, and {MAX_NAME_BYTES} for each name in it"


def file(value: Any) -> str | None:
    """Check for a valid path whose last name is not `.` or `..`, and which is not the root."""
    return path(value) or ("the path of a file" if os.path.basename(value) in (".", "..") or value == "/" else None)


COUNT, TEXT, BOOL = number(0, whole=True), is_a(str, "a string"), is_a(bool, "True or False")
TEXTS, PATHS = list_of(TEXT, "strings"), list_of(path, "paths")
NAME: Check = lambda value: None if isinstance(value, str) and value else "a string that is not empty"  # noqa: E731
SECONDS = number(0, most=TIMEOUT_MAX)


def refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's members. Raises `ValueError` for a repeated key: parsers disagree on which of them counts.

    An `object_pairs_hook` for JSON that grants something.
    """
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"the key {key!r:.100} appears twice in one object: remove one of them")
        members[key] = value
    return members
