"""Fold a log into the text that its session may trust, because a person or a trusted tool wrote it, and the session's
secrets.

The sources of untrusted text are those of `UntrustedFold`, which precedes this fold in the list of folds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...events import (
    Event,
    PartState,
    Result,
    SessionForked,
    SystemInit,
    ToolResult,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from ...ground.loose import as_list, as_mapping
from ...sessions.answers import pick_choices
from ...sessions.folds.features.untrusted import LABELS_STATE, UntrustedFold, short_source
from ...sessions.folds.view import CallRecord, Fold, SessionView
from .values import KnownText, leaves, meanings_of, spelled

# Limit on text kept of results; anything beyond it counts as untrusted. Text written by people is always kept.
MAX_TRUSTED_CHARS = 500_000
_MAX_SECRETS = 100
_MAX_FOREIGN = 10_000
_MAX_UNLABELLED = 100
_WRITERS = frozenset({"Write", "Edit", "MultiEdit", "NotebookEdit"})
_PATH_KEYS = ("file_path", "notebook_path")
# The name of a record must not be a number or a short word, which occur in prompts for many reasons.
_NAMING_KINDS = ("email", "iban", "url", "path", "words")
_MIN_NAME_CHARS = 3

# The meanings of the values of one record of a result, such as one file in a list.
Record = frozenset[str]


class _Trusted(NamedTuple):
    """The trusted content of an event, except what `input_text` contains. It counts once an event of ours vouches for it."""

    seq: int | None
    text: str = ""
    input_text: str = ""
    fields: Sequence[tuple[str, Any]] = ()
    is_typed: bool = False


class LabelsFold(Fold):
    """A fold of the text that a session may trust, and of the secrets that it must keep.

    `typed` contains the texts that people wrote, each with the `seq` of its event. `texts` contains those of trusted
    results, each with the text of its call's input, because a result does not vouch for text that it may only repeat.
    `results` contains the records of trusted structured results. `secrets` maps each secret to the readers who may learn it.
    `unlabelled` names the tools with unlabelled results, up to 100: such a result was stored by a run without labels, or its
    call was cut off.

    A field of a structured result is trusted as a whole: a channel's name may contain a sentence by whoever created the
    channel.

    `written` maps files that this session wrote after untrusted text had arrived to the source of that text. `shell_source`
    is that source once a command or a tool may have written any file, or the name of a subagent that read untrusted text.
    """

    name = "labels"
    version = 3
    reads = (SystemInit, UserMessage, UserQuestion, UserAnswer, ToolUse, ToolResult, Result, SessionForked, PartState)

    def __init__(self) -> None:
        self.typed: list[tuple[int, KnownText]] = []
        self.texts: list[tuple[KnownText, KnownText]] = []
        self.results: list[tuple[Record, ...]] = []
        self.secrets: dict[str, list[str]] = {}
        self.unlabelled: dict[str, None] = {}
        self.written: dict[str, str] = {}
        self.shell_source: str | None = None
        self._meanings: set[str] = set()
        self._kept_chars = 0
        # Content of results waits here for the next signed event, because results have no keyed digest of their own.
        self._unvouched: list[_Trusted] = []
        self._foreign: list[tuple[Event, Sequence[_Trusted]]] = []
        self._is_derived = False
        self._questions: dict[str, tuple[bool, tuple[str, ...]]] = {}

    def apply(self, event: Event, view: SessionView) -> None:
        match event:
            case SystemInit():
                # Content that no event of ours has vouched for by now was written by someone else or cut from a log.
                self._unvouched.clear()
                # The prompt of a subagent derives from everything that its starter had read.
                self._is_derived = bool(event.untrusted)
            case ToolUse() | Result():
                self._vouch(event, self._unvouched, view)
                self._unvouched = []
            case UserMessage():
                if event.origin in ("user", "steering") and not event.untrusted and not self._is_derived:
                    self._vouch(event, [_Trusted(event.seq, event.text, is_typed=True)], view)
            case UserQuestion():
                self._questions[event.question_id] = (event.kind == "permission", tuple(event.choices))
            case UserAnswer():
                self._apply_answer(event, view)
            case ToolResult():
                self._apply_result(event, view)
            case PartState() if event.part == LABELS_STATE:
                self._apply_note(event, as_mapping(event.data), view)
            case SessionForked():
                # The marker shows which of the parent's events are ours.
                copied, self._foreign = self._foreign, []
                for voucher, contents in copied:
                    self._vouch(voucher, contents, view)

    def _vouch(self, voucher: Event, contents: Sequence[_Trusted], view: SessionView) -> None:
        """Trust the content if its voucher is ours; content copied by a fork is kept until the fork's marker arrives."""
        if not contents:
            return
        if view.is_ours(voucher):
            for each in contents:
                self._trust(each)
                self._trust_fields(each.fields, KnownText(each.input_text))
        elif len(self._foreign) < _MAX_FOREIGN:
            self._foreign.append((voucher, contents))

    def _apply_answer(self, event: UserAnswer, view: SessionView) -> None:
        """Trust an answer that a person wrote.

        A selected choice is not trusted, because its text comes from whoever asked; nor is an edited call, mostly the
        model's text.
        """
        is_permission, choices = self._questions.pop(event.question_id, (False, ()))
        word = event.answer.partition(" ")[0]
        is_edit = is_permission and word.lower().rstrip(",.:") == "edit"
        if not is_edit and not pick_choices(event.answer, choices, several=True, numbered=True):
            self._vouch(event, [_Trusted(event.seq, event.answer, is_typed=True)], view)

    def _apply_note(self, event: PartState, data: Mapping[str, Any], view: SessionView) -> None:
        """Apply the part's own notes: the typed text of a prompt, and the sources and secrets that a subagent has read."""
        if isinstance(typed := data.get("typed"), str) and not self._is_derived:
            self._vouch(event, [_Trusted(event.seq, typed, is_typed=True)], view)
        if isinstance(agent := data.get("agent"), str) and as_list(data.get("untrusted")):
            self.shell_source = self.shell_source or short_source(f"subagent {agent}")
        for name, readers in as_mapping(data.get("secrets")).items():
            self._keep_secret(str(name), as_list(readers))

    def _apply_result(self, event: ToolResult, view: SessionView) -> None:
        label = as_mapping((event.meta or {}).get("label"))
        source = next(iter(view.fold(UntrustedFold).sources), None)
        record = view.calls.get(event.tool_use_id)
        input = _input_of(record)
        if not label and record is not None and record.started is not None and len(self.unlabelled) < _MAX_UNLABELLED:
            self.unlabelled[record.use.name] = None
        if "rewritten" in (event.meta or {}):
            pass  # a hook wrote it, after the result was labelled: it vouches for nothing
        elif label and (label.get("source", "") is None or source is None):
            input_text = "" if source is None else _text_of(input)
            if isinstance(event.output, str) or not label.get("is_structured"):
                self._unvouched.append(_Trusted(event.seq, _text_of(event.output), input_text))
            else:
                self._unvouched.append(_Trusted(event.seq, input_text=input_text, fields=[*leaves(event.output, "")]))
        elif paths := as_list(label.get("trusted_fields")):
            fields = [each for path in paths for each in leaves_at(event.output, str(path).split("."))]
            self._unvouched.append(_Trusted(event.seq, input_text=_text_of(input), fields=fields))
        if (readers := label.get("readers")) is not None:
            self._keep_secret(str(label.get("name")), as_list(readers))
        if record is not None and source is not None and event.outcome != "denied":
            self._note_writes(event, record, input, label, source)

    def _note_writes(
        self, event: ToolResult, record: CallRecord, input: Mapping[str, Any], label: Mapping[str, Any], source: str
    ) -> None:
        """Record the files that a call may have written. A tool that only acts on the session writes none."""
        name = record.use.name
        if record.started is None or record.started.effect == "read" or label.get("is_own"):
            return
        if name not in _WRITERS:
            self.shell_source = self.shell_source or source
            return
        for path in filter(None, map(str, [*as_mapping((event.meta or {}).get("files")), *map(input.get, _PATH_KEYS)])):
            self.written.setdefault(path, source)

    def _keep_secret(self, name: str, readers: Sequence[Any]) -> None:
        """Record a secret; entries that share a name allow only the readers that all of them allow.

        All secrets after the first 100 share one name.
        """
        if name not in self.secrets and len(self.secrets) >= _MAX_SECRETS:
            name = "more secrets than are told apart"
        earlier_readers = self.secrets.get(name)
        reader_names = [str(reader) for reader in readers]
        self.secrets[name] = (
            reader_names
            if earlier_readers is None
            else [reader for reader in earlier_readers if reader in reader_names]
        )

    def _trust(self, content: _Trusted) -> None:
        if content.text and content.is_typed:
            self.typed.append((content.seq or 0, KnownText(content.text)))
        elif content.text and self._has_room(len(content.text) + len(content.input_text)):
            self.texts.append((KnownText(content.text), KnownText(content.input_text)))

    def _trust_fields(self, fields: Sequence[tuple[str, Any]], input_text: KnownText) -> None:
        """Trust fields, grouped in records: the scalars of one object, or one item of a list of scalars."""
        records: dict[str, set[str]] = {}
        for place, value in fields:
            if value is None or isinstance(value, bool):
                continue
            if input_text.place_of(value) is not None and not self.trusts(value):
                continue
            whole = place.rpartition(".")[0]
            is_alone = place.rpartition(".")[2].isdigit()  # an item of a list of names
            field_meanings = records.setdefault(place if is_alone else whole, set())
            for meaning in meanings_of(value):
                if meaning in self._meanings or self._has_room(len(meaning)):
                    self._meanings.add(meaning)
                    field_meanings.add(meaning)
        if records:
            self.results.append(tuple(map(frozenset, records.values())))

    def _has_room(self, chars: int) -> bool:
        if self._kept_chars + chars > MAX_TRUSTED_CHARS:
            return False
        self._kept_chars += chars
        return True

    def trusts(self, value: Any) -> bool:
        """Whether a value is in a trusted text or is a trusted field. Empty values and booleans are always trusted."""
        if value is None or isinstance(value, bool) or value == "":
            return True
        meanings = meanings_of(value)
        return (
            _holds(self.typed, meanings)
            or self._meanings.issuperset(meanings)
            or any(
                entry.place_of_meanings(meanings) is not None and input_text.place_of_meanings(meanings) is None
                for entry, input_text in reversed(self.texts)
            )
        )

    def is_typed(self, value: Any) -> bool:
        """Whether a person wrote this value."""
        return _holds(self.typed, meanings_of(value))

    def is_named(self, value: Any) -> bool:
        """Whether a person wrote this value, or the name of a record that contains it in a trusted result.

        A name is not a number, has at least three letters, and is unique among the records of its result. Empty values and
        booleans count as named.
        """
        if value is None or isinstance(value, bool) or value == "" or self.is_typed(value):
            return True
        meanings = frozenset(meanings_of(value))
        for records in self.results:
            for record in records:
                if meanings <= record and any(self._is_name(each, records) for each in record - meanings):
                    return True
        return False

    def _is_name(self, meaning: str, records: Sequence[Record]) -> bool:
        kind, _, canonical = meaning.partition(":")
        letters = sum(letter.isalpha() for letter in canonical)
        return (
            kind in _NAMING_KINDS
            and letters >= _MIN_NAME_CHARS
            and sum(meaning in record for record in records) == 1
            and _holds(self.typed, (meaning,))
        )

    def kept(self) -> Mapping[str, Any]:
        return {
            "typed": [[seq, entry.text] for seq, entry in self.typed],
            "texts": [[entry.text, input_text.text] for entry, input_text in self.texts],
            "results": [[sorted(record) for record in records] for records in self.results],
            "questions": {
                key: [is_permission, list(choices)] for key, (is_permission, choices) in self._questions.items()
            },
            "unlabelled": list(self.unlabelled),
            "secrets": dict(self.secrets),
            "written": dict(self.written),
            "shell_source": self.shell_source,
            "is_derived": self._is_derived,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.typed = [(seq, KnownText(text)) for seq, text in kept["typed"]]
        self.texts = [(KnownText(text), KnownText(input_text)) for text, input_text in kept["texts"]]
        self.results = [tuple(map(frozenset, records)) for records in kept["results"]]
        self._meanings = {meaning for records in self.results for record in records for meaning in record}
        self._kept_chars = sum(len(entry.text) + len(input_text.text) for entry, input_text in self.texts) + sum(
            map(len, self._meanings)
        )
        self._questions = {
            key: (input_text, tuple(choices)) for key, (input_text, choices) in kept["questions"].items()
        }
        self.secrets, self.written = dict(kept["secrets"]), dict(kept["written"])
        self.unlabelled = dict.fromkeys(kept["unlabelled"])
        self.shell_source, self._is_derived = kept["shell_source"], kept["is_derived"]


def _holds(texts: Sequence[tuple[int, KnownText]], meanings: tuple[str, ...]) -> bool:
    """Whether one of the texts contains all of these meanings; the newest texts are searched first."""
    return any(entry.place_of_meanings(meanings) is not None for _, entry in reversed(texts))


def _input_of(record: CallRecord | None) -> Mapping[str, Any]:
    if record is None:
        return {}
    return record.use.input if record.started is None else record.started.input or record.use.input


def _text_of(value: Any) -> str:
    """The values of a result or an input as one text, separated so that no two of them join."""
    if isinstance(value, str) or value is None:
        return value or ""
    return "\n|\n".join(spelled(each) for _, each in leaves(value, "", ()))


def leaves_at(value: Any, path: Sequence[str], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values at a path of names in nested JSON, each with its dotted place; `*` matches every item or member."""
    if not path:
        yield from leaves(value, place)
    elif path[0] == "*":
        items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for name, item in items:
            yield from leaves_at(item, path[1:], f"{place}.{name}")
    elif isinstance(value, Mapping) and path[0] in value:
        yield from leaves_at(value[path[0]], path[1:], f"{place}.{path[0]}")
