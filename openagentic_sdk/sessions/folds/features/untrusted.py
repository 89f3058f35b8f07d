"""The origin of results that are not from the project's own files: the web, an MCP server, a file elsewhere.

Such content may have been written to influence the model that reads it, so what a session stores after reading some is
marked with its origin (see `tools.memory`). A command line is judged by its text alone, conservatively: its output is
from elsewhere if the line contains a program that fetches, an address, or a path out of the project. The output of the
project's own programs counts as its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ....events import Event, PartState, SubagentFinished, SystemInit, TextCommandStarted, ToolResult, UserMessage
from ....ground.frozen import changed
from ....ground.loose import as_list, as_mapping
from ....ground.patterns import regex
from ....ground.text import on_one_line
from ..view import Fold, SessionView

MAX_SOURCES = 100
# The `part.state` in which `parts.labels` records what is in no other event. A caller's own part cannot have this name.
LABELS_STATE = "labels of the run"
_MAX_CHARS = 120
_WEB = ("WebFetch", "WebSearch")
_RESOURCES = ("ListMcpResources", "ReadMcpResource")
_READS = ("Read", "NotebookRead", "Grep", "Glob", "LS")
_WRITES = ("Write", "Edit", "MultiEdit", "NotebookEdit")
_PATH_KEYS = ("file_path", "notebook_path", "path", "root", "pattern")
_FETCHES = regex(
    r"(?<![\w.-])(?:curl|wget|aria2c|https?|xh|lynx|w3m|elinks|ftp|sftp|scp|rsync|ssh|nc|ncat|netcat|telnet|socat|gh|glab"
    r"|whois|dig|nslookup|aws|gcloud|az|kubectl|npx|uvx|pipx|(?:docker|podman)\s+(?:pull|run)|npm\s+(?:view|info|show|search))"
    r"(?![\w.-])|\w://|/dev/(?:tcp|udp)/"
)
_SEPARATORS = regex(r"[;|&]")
_GIT = regex(r"(?<![\w.-])git\b")
_GIT_FETCHES = regex(r"\s(?:clone|fetch|pull|ls-remote)(?![\w.-])")
_WORD = regex(r"[^\s'\"`;|&<>(){}=,:]+")
# Naming a program is not reading it, and devices disclose nothing.
_HARMLESS = regex(r"/(?:usr/(?:local/)?)?s?bin/[^/]+|/dev/(?:null|zero|stdin|stdout|stderr|tty)")


class UntrustedFold(Fold):
    """The outside content that a session has read: `sources` maps each origin to the `seq` of its first event, for at most
    `MAX_SOURCES` origins.

    `place` is the newest run's working directory, followed by the folders that belong to the session.
    """

    name = "untrusted"
    reads = (SystemInit, UserMessage, ToolResult, TextCommandStarted, SubagentFinished, PartState)

    def __init__(self) -> None:
        self.sources: dict[str, int] = {}
        self.place: tuple[str, ...] = ()

    def apply(self, event: Event, view: SessionView) -> None:
        sources: Sequence[str | None] = ()
        match event:
            case ToolResult():
                record = view.calls.get(event.tool_use_id)
                if record is not None:
                    started, (cwd, *roots) = record.started, self.place or ("/",)
                    input = record.use.input if started is None or started.input is None else started.input
                    if event.outcome == "cancelled" and started is not None:  # the output so far was read
                        event = changed(event, outcome="unknown")
                    sources = (untrusted_source(record.use.name, input, event, cwd, roots),)
            case UserMessage():
                sources = event.untrusted
            case SystemInit():
                self.place = (event.cwd, *(event.workspace_roots or (event.cwd,)))
                sources = event.untrusted
            case TextCommandStarted():
                cwd, *roots = self.place or ("/",)
                sources = (untrusted_command(event.command, cwd, roots),)
            case SubagentFinished():
                sources = (f"subagent {event.name}",) if event.untrusted is None else event.untrusted
            case PartState() if event.part == LABELS_STATE:
                sources = [short_source(str(each)) for each in as_list(as_mapping(event.data).get("untrusted"))]
        for source in sources:
            if source is not None and len(self.sources) < MAX_SOURCES:
                self.sources.setdefault(source, event.seq or 0)

    def kept(self) -> Mapping[str, Any]:
        return {"sources": dict(self.sources), "place": list(self.place)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.sources, self.place = dict(kept["sources"]), tuple(kept["place"])


def untrusted_source(
    name: str, input: Mapping[str, Any], result: ToolResult, cwd: str, roots: Sequence[str]
) -> str | None:
    """The origin of a call's result, in a few words; None if it counts as the project's own.

    A tool may declare it with a string under `untrusted` in its output's `meta`. `roots` are the project's folders.
    """
    if result.outcome in ("denied", "cancelled"):
        return None  # the model saw none of it
    meta = result.meta or {}
    source = meta.get("untrusted")
    if isinstance(source, str) and source:
        return short_source(source)
    if name.startswith("mcp__"):
        return short_source(f"MCP: {name}")
    if name in _RESOURCES:
        return short_source(f"MCP: {input.get('server') or name} {input.get('uri') or ''}".rstrip())
    if name in _WEB:
        return short_source(f"web: {input.get('url') or input.get('query') or name}")
    if name == "Bash":
        return untrusted_command(str(input.get("command") or ""), cwd, roots)
    # An error may quote the file that was to be changed.
    if name not in _READS and not (name in _WRITES and result.is_error):
        return None
    files = meta.get("files")
    paths = [str(input[key]) for key in _PATH_KEYS if isinstance(input.get(key), str)]
    paths = paths if not isinstance(files, Mapping) else [*files, *paths]
    return next((short_source(f"file: {path}") for path in paths if is_outside(path, cwd, roots)), None)


def untrusted_command(command: str, cwd: str, roots: Sequence[str]) -> str | None:
    """The origin of the output of a shell command line, in a few words; None if it counts as the project's own."""
    if _FETCHES.search(command) or any(map(_fetches_with_git, _SEPARATORS.split(command))):
        return short_source(f"web: {command}")
    words = (word for word in _WORD.findall(command) if not _HARMLESS.fullmatch(word))
    return next((short_source(f"file: {word} ({command})") for word in words if is_outside(word, cwd, roots)), None)


def _fetches_with_git(command: str) -> bool:
    git = _GIT.search(command)
    return git is not None and _GIT_FETCHES.search(command, git.end()) is not None


def is_outside(path: str, cwd: str, roots: Sequence[str]) -> bool:
    """Whether a path, as written by somebody, leads out of the project's folders."""
    if path.startswith(("~", "$")):
        return path.startswith("~") or ("/" in path and not path.startswith(("$PWD/", "$CLAUDE_PROJECT_DIR/")))
    if not path.startswith("/") and ".." not in path.split("/"):
        return False
    whole = os.path.normpath(os.path.join(cwd, path))
    return not any(whole == root or whole.startswith(root.rstrip("/") + "/") for root in roots)


def short_source(text: str) -> str:
    """An origin in a few words on one line."""
    return on_one_line(text, _MAX_CHARS)
