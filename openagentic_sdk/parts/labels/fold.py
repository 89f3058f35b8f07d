"""What a session may trust, folded from its log: the texts that a person wrote or a trusted tool gave, and what is secret.

The sources of untrusted text are those of `UntrustedFold`, which stands before this fold in the list of folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...events import (
    Event,
    Result,
    SessionForked,
    SystemInit,
    ToolResult,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...sessions.answers import pick_choices
from ...sessions.folds.features.untrusted import UntrustedFold
from ...sessions.folds.view import CallRecord, Fold, SessionView
from .values import KnownText, leaves, meanings_of

# What is not kept of trusted text counts as untrusted.
MAX_TRUSTED_CHARS = 500_000
_MAX_TOLD = 100
_MAX_FOREIGN = 10_000
_WRITERS = frozenset({"Write", "Edit", "MultiEdit", "NotebookEdit"})
_PATH_KEYS = ("file_path", "notebook_path")


class _Trusted(NamedTuple):
    """What an event holds that counts as trusted once a voucher of ours is there."""

    seq: int | None
    text: str = ""
    fields: Sequence[Any] = ()


class LabelsFold(Fold):
    """`texts` are trusted texts with the `seq` of their events, `meanings` those of trusted fields; `secrets` maps what only
    some may learn to its readers.

    A field of a structured result is trusted as a whole: a channel's name may hold a sentence of whoever made the channel.

    `written` maps files that this session wrote after untrusted text had come in to that source; `shell_source` is set once
    a command may have written anything.
    """

    name = "labels"
    reads = (SystemInit, UserMessage, UserQuestion, UserAnswer, ToolUse, ToolResult, Result, SessionForked)

    def __init__(self) -> None:
        self.texts: list[tuple[int, KnownText]] = []
        self.meanings: set[str] = set()
        self.secrets: dict[str, list[str]] = {}
        self.written: dict[str, str] = {}
        self.shell_source: str | None = None
        self._kept_chars = 0
        # Texts of results and values of their fields, which carry no digest of their own.
        self._unvouched: list[_Trusted] = []
        self._foreign: list[tuple[Event, Sequence[_Trusted]]] = []
        self._is_derived = False
        self._choices: dict[str, tuple[str, ...]] = {}

    def apply(self, event: Event, view: SessionView) -> None:
        match event:
            case SystemInit():
                # What no event of ours vouches for by now was written by somebody else, or cut from a log.
                self._unvouched.clear()
                # The prompt of a subagent is what its starter made of all that it had read.
                self._is_derived = bool(event.untrusted)
            case ToolUse() | Result():
                self._vouch(event, self._unvouched, view)
                self._unvouched = []
            case UserMessage():
                if self._is_typed(event):
                    self._vouch(event, [_Trusted(event.seq, event.text)], view)
            case UserQuestion():
                self._choices[event.question_id] = tuple(event.choices)
            case UserAnswer():
                # A choice that was picked is the words of whoever asked.
                choices = self._choices.pop(event.question_id, ())
                if not pick_choices(event.answer, choices, several=True, numbered=True):
                    self._vouch(event, [_Trusted(event.seq, event.answer)], view)
            case ToolResult():
                self._apply_result(event, view)
            case SessionForked():
                # Now it can be told which of the parent's events are ours.
                copied, self._foreign = self._foreign, []
                for voucher, found in copied:
                    self._vouch(voucher, found, view)

    def _vouch(self, voucher: Event, found: Sequence[_Trusted], view: SessionView) -> None:
        """Trust what was found if its voucher is ours; what a fork copied is kept until the fork's marker comes."""
        if not found:
            return
        if view.is_ours(voucher):
            for each in found:
                self._trust(each.seq, each.text)
                self._trust_fields(each.fields)
        elif len(self._foreign) < _MAX_FOREIGN:
            self._foreign.append((voucher, found))

    def _is_typed(self, event: UserMessage) -> bool:
        return event.origin in ("user", "steering") and not event.untrusted and not self._is_derived

    def _apply_result(self, event: ToolResult, view: SessionView) -> None:
        label = (event.meta or {}).get("label")
        label = label if isinstance(label, Mapping) else {}
        source = next(iter(view.fold(UntrustedFold).sources), None)
        record = view.calls.get(event.tool_use_id)
        input = _input_of(record)
        if label.get("source", "") is None or source is None:
            is_text = isinstance(event.output, str) or not label.get("is_structured")
            text, fields = (_text_of(event.output, input), ()) if is_text else ("", (event.output,))
            self._unvouched.append(_Trusted(event.seq, text, fields))
        elif paths := label.get("trusted_fields"):
            values = [value for path in paths for value in values_at(event.output, str(path).split("."))]
            self._unvouched.append(_Trusted(event.seq, fields=values))
        if (readers := label.get("readers")) is not None and len(self.secrets) < _MAX_TOLD:
            self.secrets.setdefault(str(label.get("name")), list(readers))
        if record is None or source is None or event.outcome == "denied":
            return
        if record.use.name == "Bash" and (record.started is None or record.started.effect != "read"):
            self.shell_source = self.shell_source or source
        elif record.use.name in _WRITERS:
            paths = [*((event.meta or {}).get("files") or {}), *(input.get(key) for key in _PATH_KEYS)]
            for path in filter(None, map(str, paths)):
                self.written.setdefault(path, source)

    def _trust(self, seq: int | None, text: str) -> None:
        if text and self._kept_chars + len(text) <= MAX_TRUSTED_CHARS:
            self._kept_chars += len(text)
            self.texts.append((seq or 0, KnownText(text)))

    def _trust_fields(self, fields: Sequence[Any]) -> None:
        for _, value in leaves(fields, ""):
            found = () if value is None or isinstance(value, bool) else meanings_of(value)
            for meaning in found:
                if self._kept_chars + len(meaning) <= MAX_TRUSTED_CHARS and meaning not in self.meanings:
                    self._kept_chars += len(meaning)
                    self.meanings.add(meaning)

    def trusts(self, value: Any) -> bool:
        """Whether a value stands in a trusted text, or is a trusted field. A boolean or None carries nothing."""
        return (
            value is None
            or isinstance(value, bool)
            or self.meanings.issuperset(meanings_of(value))
            or any(known.place_of(value) is not None for _, known in reversed(self.texts))
        )

    def kept(self) -> Mapping[str, Any]:
        return {
            "texts": [[seq, known.text] for seq, known in self.texts],
            "meanings": sorted(self.meanings),
            "choices": {key: list(choices) for key, choices in self._choices.items()},
            "secrets": dict(self.secrets),
            "written": dict(self.written),
            "shell_source": self.shell_source,
            "is_derived": self._is_derived,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.texts, self._kept_chars = [], 0
        for seq, text in kept["texts"]:
            self._trust(seq, text)
        self.meanings = set(kept["meanings"])
        self._kept_chars += sum(map(len, self.meanings))
        self._choices = {key: tuple(choices) for key, choices in kept["choices"].items()}
        self.secrets, self.written = dict(kept["secrets"]), dict(kept["written"])
        self.shell_source, self._is_derived = kept["shell_source"], kept["is_derived"]


def _input_of(record: CallRecord | None) -> Mapping[str, Any]:
    if record is None:
        return {}
    return record.use.input if record.started is None else record.started.input or record.use.input


def _text_of(output: Any, input: Mapping[str, Any]) -> str:
    """The text of a result without what the tool only repeats of its input, such as a query."""
    if isinstance(output, str) or output is None:
        return output or ""
    repeated = {str(value) for _, value in leaves(input, "")}
    return "\n|\n".join(text for _, value in leaves(output, "", ()) if (text := str(value)) not in repeated)


def values_at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """The values at a path of names in nested JSON; `*` is every item of a list or object."""
    if not path:
        yield value
    elif path[0] == "*":
        for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
            yield from values_at(item, path[1:])
    elif isinstance(value, Mapping) and path[0] in value:
        yield from values_at(value[path[0]], path[1:])
