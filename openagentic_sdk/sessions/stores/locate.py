"""Which store a name means: `file:`, `sqlite:`, `postgresql:`, `redis:` or `memory:`.

Only the module of the store that is named is imported; a driver that is missing is one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ...errors import OptionsError
from ..base import SessionStore
from ..seal import sdk_home

ENVIRONMENT_NAME = "OPENAGENTIC_SDK_STORE"
DEFAULT_DURABILITY = "barrier"
FORMS = "file:FOLDER, sqlite:FILE, postgresql://USER@HOST/DATABASE, redis://HOST:PORT/NUMBER or memory:"


def open_store(url: str | None = None) -> SessionStore:
    """The store that `url` names; None is what `OPENAGENTIC_SDK_STORE` names.

    When that is not set either: files in `OPENAGENTIC_SDK_HOME`, else in `~/.openagentic-sdk`. What begins with `/`, `~` or
    `.` is a folder of files. A path may begin with `~`; `sqlite:x.db` is relative, `sqlite:///var/x.db` absolute. Files and
    SQLite take `?durability=flush|barrier|fsync`. Nothing is connected or made yet. Raises `OptionsError`.
    """
    url = url or os.environ.get(ENVIRONMENT_NAME)
    if not url:
        return _file_store(sdk_home())
    if url.startswith(("/", "~", ".")):
        return _file_store(Path(url).expanduser())
    scheme, colon, _ = url.partition(":")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        raise OptionsError(f"store {_without_password(url)!r} cannot be used: name it as {FORMS}")
    return opener(url)


def _open_memory(url: str) -> SessionStore:
    from ..memory import MemorySessionStore

    return MemorySessionStore()


def _open_file(url: str) -> SessionStore:
    path, durability = _path_and_durability(url)
    return _file_store(path, durability)


def _file_store(root_dir: Path, durability: str = DEFAULT_DURABILITY) -> SessionStore:
    from ..store import FileSessionStore

    return FileSessionStore(root_dir, durability)


def _open_sqlite(url: str) -> SessionStore:
    from ..sqlite import SqliteSessionStore

    path, durability = _path_and_durability(url)
    # As other programs write it, with the slashes of an absolute path.
    return SqliteSessionStore(":memory:" if path.name == ":memory:" else path, durability=durability)


def _open_postgres(url: str) -> SessionStore:
    from ..postgres import PostgresSessionStore

    return PostgresSessionStore(url)


def _open_redis(url: str) -> SessionStore:
    from ..redis import RedisSessionStore

    return RedisSessionStore(url)


_OPENERS: Mapping[str, Callable[[str], SessionStore]] = {
    "memory": _open_memory,
    "file": _open_file,
    "sqlite": _open_sqlite,
    "postgres": _open_postgres,
    "postgresql": _open_postgres,
    "redis": _open_redis,
    "rediss": _open_redis,
    "unix": _open_redis,
}


def _path_and_durability(url: str) -> tuple[Path, str]:
    """The path of a `file:` or `sqlite:` name, and its setting; a Windows path like `file:C:/x` stays whole."""
    rest = url.partition(":")[2]
    path, _, query = rest.partition("?")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    path = unquote(path)
    path = path[1:] if path.startswith("/~") else path
    settings = dict(parse_qsl(query))
    unknown = sorted(set(settings) - {"durability"})
    if not path or unknown:
        wrong = f"there is no setting {unknown[0]!r}" if unknown else "the path is missing"
        raise OptionsError(f"store {url!r} cannot be used: {wrong}")
    return Path(path).expanduser(), settings.get("durability", DEFAULT_DURABILITY)


def _without_password(url: str) -> str:
    password = urlsplit(url).password if "@" in url else None
    return url.replace(f":{password}@", ":...@") if password else url
