"""Find a store by name: `file:`, `sqlite:`, `postgresql:`, `redis:` or `memory:`.

Except for files, the module of a store is imported only if it is named; a missing driver is reported in one sentence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl, unquote

from ...errors import OptionsError
from ...ground.checks import TEXT, check_settings, or_none
from ..base import SessionStore
from ..log.line import Durability
from ..seal import sdk_home
from ..store import FileSessionStore

ENVIRONMENT_NAME = "OPENAGENTIC_SDK_STORE"
DEFAULT_DURABILITY = "barrier"
MAX_PATIENCE_S = 86_400
FORMS = "file:FOLDER, sqlite:FILE, postgresql://USER@HOST/DATABASE, redis://HOST:PORT/NUMBER or memory:"


def open_store(url: str | None = None) -> SessionStore:
    """Open the store named by `url`, or by `OPENAGENTIC_SDK_STORE` if it is `None`.

    The default is files in `OPENAGENTIC_SDK_HOME`, otherwise in `~/.openagentic-sdk`. A name that begins with `/`, `~` or
    `.` is a folder of files. A path may begin with `~`; `sqlite:x.db` is relative, `sqlite:///var/x.db` absolute. Files,
    SQLite and Redis accept `?durability=flush|barrier|fsync`, Postgres and Redis `?patience_s=SECONDS`, Redis
    `?prefix=NAME`. Nothing is connected or created yet. Raises `OptionsError`.
    """
    check_settings({"url": url}, {"url": or_none(TEXT)})
    url = url or os.environ.get(ENVIRONMENT_NAME)
    if not url:
        return FileSessionStore(sdk_home())
    if url.startswith(("/", "~", ".")):
        return FileSessionStore(Path(url).expanduser())
    scheme, colon, _ = url.partition(":")
    # Schemes are case-insensitive (RFC 3986, section 3.1).
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        raise OptionsError(f"store {without_user(url)!r} is invalid: give it as {FORMS}")
    return opener(url)


def without_user(url: str) -> str:
    """The URL as it may be shown to people, without user name and password, even if it is malformed."""
    scheme, _, rest = url.partition(":")
    slashes = "//" if rest.startswith("//") else ""
    # After the last @: a password with an unescaped one must not be shown in part.
    safe_url = f"{scheme}:{slashes}{rest.rpartition('@')[2]}" if "@" in rest else url
    # Postgres also accepts the password as a parameter of the URL.
    return re.sub("(password=)[^& ]*", r"\1...", safe_url)


def _open_memory(url: str) -> SessionStore:
    if url.partition(":")[2].strip("/"):
        raise OptionsError(
            f"store {url!r} cannot be used: write 'memory:' alone, because it has neither a path nor settings"
        )
    return _load("memory", "MemorySessionStore")()


def _open_file(url: str) -> SessionStore:
    path, durability = _path_and_durability(url)
    return FileSessionStore(path, cast(Durability, durability))  # which validates it


def _open_sqlite(url: str) -> SessionStore:
    path, durability = _path_and_durability(url)
    # Other programs write `sqlite:///:memory:`, with the slashes of an absolute path.
    return _load("sqlite", "SqliteSessionStore")(":memory:" if path.name == ":memory:" else path, durability=durability)


def _open_server(url: str, module: str, name: str) -> SessionStore:
    """Open a store on a server, with `patience_s`, which both stores accept and their drivers do not."""
    address, _, query = url.partition("?")
    settings = [each for each in query.split("&") if each]
    waits = [each.partition("=")[2] for each in settings if each.startswith("patience_s=")]
    if not waits:
        return _load(module, name)(url)
    rest = "&".join(each for each in settings if not each.startswith("patience_s="))
    try:
        patience_s = float(waits[-1])
    except ValueError:
        patience_s = 0.0
    if not 0 < patience_s <= MAX_PATIENCE_S:
        raise OptionsError(
            f"store {without_user(url)!r} cannot be used: patience_s must be a number of seconds above 0, at most "
            f"{MAX_PATIENCE_S}, not {waits[-1]!r:.100}"
        )
    return _load(module, name)(f"{address}?{rest}" if rest else address, patience_s=patience_s)


def _load(module: str, name: str) -> Callable[..., SessionStore]:
    """Import the class of a store whose module or driver few programs need."""
    return cast(Callable[..., SessionStore], getattr(import_module(f"..{module}", __package__), name))


_OPENERS: Mapping[str, Callable[[str], SessionStore]] = {
    "memory": _open_memory,
    "file": _open_file,
    "sqlite": _open_sqlite,
    "postgres": lambda url: _open_server(url, "postgres", "PostgresSessionStore"),
    "postgresql": lambda url: _open_server(url, "postgres", "PostgresSessionStore"),
    "redis": lambda url: _open_server(url, "redis", "RedisSessionStore"),
    "rediss": lambda url: _open_server(url, "redis", "RedisSessionStore"),
    "unix": lambda url: _open_server(url, "redis", "RedisSessionStore"),
}


def _path_and_durability(url: str) -> tuple[Path, str]:
    """The path in a `file:` or `sqlite:` name, and its durability; a Windows path like `file:C:/x` is kept whole."""
    rest = url.partition(":")[2]
    path, _, query = rest.partition("?")
    if path.startswith("//"):
        if path[2:3] not in ("", "/", "~", "."):
            name = without_user(url)
            raise OptionsError(
                f"store {name!r} cannot be used: // begins a host name, and a file has none; write /// or no slash"
            )
        path = "/" + path.lstrip("/")
    path = unquote(path)
    path = path[1:] if path.startswith("/~") else path
    settings = dict(parse_qsl(query))
    unknown = sorted(set(settings) - {"durability"})
    if not path.strip("/") or unknown:
        wrong = f"unknown setting {unknown[0]!r}; the only setting is durability" if unknown else "the path is missing"
        raise OptionsError(f"store {url!r} cannot be used: {wrong}")
    return Path(path).expanduser(), settings.get("durability", DEFAULT_DURABILITY)
