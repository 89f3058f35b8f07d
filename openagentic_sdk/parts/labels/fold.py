"""What a session may trust, folded from its log: the texts that a person wrote or a trusted tool gave, and what is secret.

The sources of untrusted text are those of `UntrustedFold`, which stands before this fold in the list of folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...events import Event, Result, SystemInit, ToolResult, ToolUse, UserAnswer, UserMessage, UserQuestion
from ...serialization import dumps_json
from ...sessions.folds.features.untrusted import UntrustedFold
from ...sessions.folds.view import Fold, SessionView
from .values import KnownText

# What is not kept of trusted text counts as untrusted.
MAX_TRUSTED_CHARS = 500_000
_MAX_TOLD = 100
_WRITERS = frozenset({"Write", "Edit", "MultiEdit", "NotebookEdit"})
_PATH_KEYS = ("file_path", "notebook_path")


class LabelsFold(Fold):
    """`texts` are trusted texts with the `seq` of their events; `secrets` maps what only some may learn to its readers.

    `written` maps files that this session wrote after untrusted text had come in to that source; `shell_source` is set once
    a command may have written anything.
    """

    name = "labels"
    reads = (SystemInit, UserMessage, UserQuestion, UserAnswer, ToolUse, ToolResult, Result)

    def __init__(self) -> None:
        self.texts: list[tuple[int, KnownText]] = []
        self.secrets: dict[str, list[str]] = {}
        self.written: dict[str, str] = {}
        self.shell_source: str | None = None
        self._kept_chars = 0
        self._unvouched: list[tuple[int | None, str]] = []  # texts of results, which carry no digest of their own
        self._is_derived = False
        self._choices: dict[str, tuple[str, ...]] = {}

    def apply(self, event: Event, view: SessionView) -> None:
        match event:
            case SystemInit():
                # What no event of ours vouches for by now was written by somebody else, or cut from a log.
                self._unvouched.clear()
                # The prompt of a subagent is what its starter made of all that it had read.
                self._is_derived = bool(event.untrusted)
            case ToolUse() | Result() if self._unvouched and view.is_ours(event):
                for seq, text in self._unvouched:
                    self._trust(seq, text)
                self._unvouched.clear()
            case UserMessage():
                if self._is_typed(event) and view.is_ours(event):
                    self._trust(event.seq, event.text)
            case UserQuestion():
                self._choices[event.question_id] = tuple(event.choices)
            case UserAnswer():
                # A choice that was picked is the words of whoever asked.
                choices = self._choices.pop(event.question_id, ())
                if event.answer not in choices and view.is_ours(event):
                    self._trust(event.seq, event.answer)
            case ToolResult():
                self._apply_result(event, view)

    def _is_typed(self, event: UserMessage) -> bool:
        return event.origin in ("user", "steering") and not event.untrusted and not self._is_derived

    def _apply_result(self, event: ToolResult, view: SessionView) -> None:
        label = (event.meta or {}).get("label")
        label = label if isinstance(label, Mapping) else {}
        source = next(iter(view.fold(UntrustedFold).sources), None)
        if label.get("source", "") is None or source is None:
            self._unvouched.append((event.seq, _text_of(event.output)))
        elif fields := label.get("trusted_fields"):
            for field in fields:
                for value in values_at(event.output, str(field).split(".")):
                    self._unvouched.append((event.seq, _text_of(value)))
        if (readers := label.get("readers")) is not None and len(self.secrets) < _MAX_TOLD:
            self.secrets.setdefault(str(label.get("name")), list(readers))
        record = view.calls.get(event.tool_use_id)
        if record is None or source is None or event.outcome == "denied":
            return
        if record.use.name == "Bash" and (record.started is None or record.started.effect != "read"):
            self.shell_source = self.shell_source or source
        elif record.use.name in _WRITERS:
            input = record.use.input if record.started is None else record.started.input or record.use.input
            paths = [*((event.meta or {}).get("files") or {}), *(input.get(key) for key in _PATH_KEYS)]
            for path in filter(None, map(str, paths)):
                self.written.setdefault(path, source)

    def _trust(self, seq: int | None, text: str) -> None:
        if text and self._kept_chars + len(text) <= MAX_TRUSTED_CHARS:
            self._kept_chars += len(text)
            self.texts.append((seq or 0, KnownText(text)))

    def trusts(self, value: Any) -> bool:
        """Whether a value stands in a trusted text. A boolean or None carries nothing."""
        return (
            value is None
            or isinstance(value, bool)
            or any(known.place_of(value) is not None for _, known in reversed(self.texts))
        )

    def kept(self) -> Mapping[str, Any]:
        return {
            "texts": [[seq, known.text] for seq, known in self.texts],
            "secrets": dict(self.secrets),
            "written": dict(self.written),
            "shell_source": self.shell_source,
            "is_derived": self._is_derived,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.texts, self._kept_chars = [], 0
        for seq, text in kept["texts"]:
            self._trust(seq, text)
        self.secrets, self.written = dict(kept["secrets"]), dict(kept["written"])
        self.shell_source, self._is_derived = kept["shell_source"], kept["is_derived"]


def _text_of(output: Any) -> str:
    return output if isinstance(output, str) else "" if output is None else dumps_json(output)


def values_at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """The values at a path of names in nested JSON; `*` is every item of a list or object."""
    if not path:
        yield value
    elif path[0] == "*":
        for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
            yield from values_at(item, path[1:])
    elif isinstance(value, Mapping) and path[0] in value:
        yield from values_at(value[path[0]], path[1:])
