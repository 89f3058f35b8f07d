"""Find the files of a project that could grant something, and their digests, to which a decision to trust it is bound.

Links are followed while they stay in the project, so a linked skill counts like one that is stored in its place. Two names
are ignored, because they appear automatically and are harmless: `.DS_Store`, and a `__pycache__` whose content is exactly
what its sources compile to. Files that git ignores count.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import FileRefusedError
from ...ground.checks import refuse_repeated_keys
from ...ground.disk import is_within, path_below
from ...ground.frozen import frozen
from ...ground.loose import as_list, as_mapping
from ...skills.files import read_bytes
from ...skills.render import fill_variables, split_words

# The files that can contain hooks, env, allow rules, grants or instructions with grants.
GRANTING = (
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/skills",
    ".claude/commands",
    ".claude/agents",
    ".claude/hooks",
    ".claude/plugins",
    ".agents/skills",
)
MARKETPLACE = os.path.join(".claude-plugin", "marketplace.json")
MAX_FILES = 5000
MAX_BYTES = 64 * 1024 * 1024
_MAX_FILE_BYTES = 4 * 1024 * 1024


@frozen
class GrantingFiles:
    """The files of a project that could grant something.

    `files` maps paths below the root to digests; `places` are the real files and folders that contain them.
    """

    files: Mapping[str, str]
    places: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A single digest of all files."""
        whole = "".join(f"{name}\0{digest}\n" for name, digest in sorted(self.files.items()))
        return hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()

    def changes_since(self, files: Mapping[str, str]) -> tuple[str, ...]:
        """The names of the files that were added, removed or changed since `files`, an earlier state."""
        other = [name for name in self.files.keys() | files.keys() if self.files.get(name) != files.get(name)]
        return tuple(sorted({name.removesuffix("@") for name in other}))


def granting_files(root: str) -> GrantingFiles:
    """The files of the real folder `root` that could grant something.

    Raises `OSError` if one cannot be read, `FileRefusedError` if there are too many or one leads out of the project.
    """
    reading = _GrantReading(root)
    for name in (*GRANTING, *_named_by_settings(root)):
        reading.add(name)
    if reading.compiled:
        for name in reading.compiled.keys() - _that_their_sources_compile_to(reading.compiled):
            reading.files[name] = reading.digest(reading.compiled[name][0])
    return GrantingFiles(reading.files, tuple(reading.places))


class _GrantReading:
    def __init__(self, root: str) -> None:
        self.root = root
        self.files: dict[str, str] = {}
        self.places: dict[str, None] = {}
        # Compiled files by name, each with its path and that of its source.
        self.compiled: dict[str, tuple[str, str]] = {}
        self.bytes = 0

    def add(self, name: str) -> None:
        path = os.path.join(self.root, name)
        if not os.path.lexists(path):
            return
        real = os.path.realpath(path)
        if not is_within(real, self.root):
            raise FileRefusedError(f"{path} leads to {real}, outside {self.root}: replace the link")
        if os.path.isdir(real):
            self.add_folder(name, real)
        else:
            self.add_file(name, real)

    def add_folder(self, name: str, real: str) -> None:
        waiting = [(name, real)]
        entered: set[str] = set()
        while waiting:
            folder, where = waiting.pop()
            # A link may lead back to a folder above it.
            if where in entered:
                continue
            entered.add(where)
            self.places[where] = None
            with os.scandir(where) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    label = f"{folder}/{entry.name}"
                    target = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                    if entry.is_symlink():
                        self.count(label, "link " + os.readlink(entry.path), 0)
                        if not is_within(target, self.root):
                            continue
                    if os.path.isdir(target):
                        waiting.append((label, target))
                    elif os.path.isfile(target):
                        self.add_file(label, target)

    def add_file(self, name: str, real: str) -> None:
        base, folder = os.path.basename(name), os.path.basename(os.path.dirname(real))
        if base == ".DS_Store":
            return
        if folder == "__pycache__" and base.endswith(f".{sys.implementation.cache_tag}.pyc"):
            source = os.path.join(os.path.dirname(os.path.dirname(real)), base.split(".")[0] + ".py")
            self.compiled[name] = (real, source)
            return
        self.places.setdefault(real)
        self.count(name, self.digest(real), os.path.getsize(real))

    def digest(self, path: str) -> str:
        return hashlib.sha256(read_bytes(path, boundary=self.root, max_bytes=MAX_BYTES)).hexdigest()

    def count(self, name: str, digest: str, size: int) -> None:
        # A link has two entries: its own text here, and under its plain name the content, if that is in the project.
        self.files[name + ("@" if digest.startswith("link ") else "")] = digest
        self.bytes += size
        if len(self.files) > MAX_FILES or self.bytes > MAX_BYTES:
            raise FileRefusedError(
                f"{self.root} contains more than {MAX_FILES} files or {MAX_BYTES} bytes that could grant something"
            )


# Compiles code of the project only to compare it, in a separate process: a malicious file can at most crash that. Whatever
# reading or compiling raises, the file is not printed, and so it counts as one that could grant something.
# Each name is printed at once, so a crash loses only the names after it. A compiled file has a header of 16 bytes (PEP 552).
_COMPARE = """
import importlib.util, json, marshal, sys
same = []
for name, compiled, source in json.load(sys.stdin):
    try:
        data = open(compiled, "rb").read()
        code = compile(open(source, "rb").read(), source, "exec", dont_inherit=True, optimize=0)
        if data[:4] == importlib.util.MAGIC_NUMBER and marshal.loads(data[16:]) == code:
            same.append(name)
            print(json.dumps(same[-1]), flush=True)
    except Exception:
        pass
"""


def _that_their_sources_compile_to(compiled: Mapping[str, tuple[str, str]]) -> set[str]:
    """The names of the compiled files whose content is exactly what this Python compiles their sources to.

    Empty if the comparison cannot be run, or takes longer than 20 s.
    """
    work = json.dumps([(name, *paths) for name, paths in compiled.items()])
    try:
        command = [sys.executable, "-I", "-S", "-B", "-c", _COMPARE]
        done = subprocess.run(command, input=work.encode(), capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return {json.loads(line) for line in done.stdout.splitlines()}


def _named_by_settings(root: str) -> Iterator[str]:
    """Yield the project's files that its settings name: the scripts of hooks, the folders of marketplaces."""
    for name in GRANTING[:2]:
        try:
            text = read_bytes(os.path.join(root, name), boundary=root, max_bytes=_MAX_FILE_BYTES)
            data = json.loads(text, object_pairs_hook=refuse_repeated_keys)
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(data, dict):
            continue
        for command in _commands(data.get("hooks")):
            yield from files_named(command, root)
        for source in as_mapping(data.get("extraKnownMarketplaces")).values():
            folder = marketplace_folder(source, root)
            if folder is not None and folder != root:
                yield os.path.relpath(folder, root)


def files_named(command: str, root: str, *, or_missing: bool = False) -> Iterator[str]:
    """Yield the files below a real folder that the words of a command name, relative to that folder.

    With `or_missing`, names with a slash that do not exist are included.
    """
    text = fill_variables(command.replace("$CLAUDE_PROJECT_DIR", root), {"CLAUDE_PROJECT_DIR": root})
    for word in split_words(text):
        path = os.path.normpath(os.path.join(root, word.strip("\"'`;&|()<>")))
        is_missing = or_missing and "/" in word and not os.path.lexists(path)
        if path != root and is_within(path, root) and (is_missing or os.path.isfile(path)):
            yield os.path.relpath(path, root)


def marketplace_folder(source: Any, project_dir: str) -> str | None:
    """The folder of a marketplace that settings name by path; None if it is not in `project_dir`, which is a real path."""
    inner = as_mapping(source).get("source")
    inner = as_mapping(inner if isinstance(inner, dict) else source)
    path = inner.get("path") if inner.get("source") in ("directory", "file") else None
    place = path_below(project_dir, os.path.expanduser(path)) if isinstance(path, str) else None
    folder = os.path.dirname(os.path.dirname(place)) if place is not None and place.endswith(MARKETPLACE) else place
    return folder if folder is not None and is_within(folder, project_dir) else None


def _commands(hooks: Any) -> Iterator[str]:
    """Yield every string in a `command` or in `args`, at any depth."""
    if isinstance(hooks, dict):
        for key, value in hooks.items():
            if key in ("command", "args"):
                texts = [value] if isinstance(value, str) else as_list(value)
                yield from (each for each in texts if isinstance(each, str))
            else:
                yield from _commands(value)
    elif isinstance(hooks, list):
        for each in hooks:
            yield from _commands(each)
