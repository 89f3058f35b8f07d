"""Verify a record offline, from its events alone: who vouches for which events, and which of them were altered and how."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from ...errors import OptionsError
from ...events import (
    Event,
    LogSalvaged,
    PermissionDecision,
    RecordErased,
    RecordErasing,
    RecordSigned,
    SessionForked,
    UserAnswer,
    UserQuestion,
)
from ...ground.frozen import frozen, mutable
from ...ground.text import on_one_line
from ...sessions.authority import Authority
from .commit import ZERO, BadOpeningError, Opening, chain_digests, event_digest, is_at_or_below, split_digests
from .places import places_of
from .sign import statement_of
from .signers import Trust, Voucher, check_signature
from .verify_log import Problem, moved_by

# An event that does not match its place is searched for within `_NEAR` places. Up to `_MANY` events that are not found there
# are searched for everywhere, if at most `_MANY` places are free.
_NEAR, _MANY = 32, 64
# The fields of a checkpoint that a receipt contains.
_RECEIPT = ("session_id", "from_seq", "to_seq", "before", "head", "signatures")


@frozen
class VouchedRange:
    """The events `from_seq` to `to_seq`, and the signers of the checkpoint at `seq` that covers them.

    `except_seqs` are the events that were altered. `session_id` is the session that the checkpoint was created in: this
    one, or one that it was forked from.
    """

    from_seq: int
    to_seq: int
    seq: int
    session_id: str
    vouchers: tuple[Voucher, ...]
    head: str
    except_seqs: tuple[int, ...] = ()

    @property
    def is_vouched(self) -> bool:
        return any(voucher.proof == "valid" for voucher in self.vouchers)


@frozen
class Approval:
    """An answer in the log: who gave it, how that was established, and whether this installation recorded it.

    `is_recorded` is `None` if the installation's key is not available for checking.
    """

    seq: int
    tool: str
    answer: str
    name: str
    how: str
    is_recorded: bool | None


@frozen
class RecordReport:
    """The result of verifying a record. `unsigned` counts the events that no checkpoint covers yet, except checkpoints.

    `erased` contains places whose values were erased under a proof that is still valid. The `seq` of a problem is the
    event's present place in the log, 0 for a missing one. Its kind is `changed`, `removed`, `added` or `moved` for an
    event; `checkpoint` (changed, replaced or missing), `replayed` (created for another session or range), `signature`,
    `salts`; `approver` for an answer that this installation did not record; `erasure` for one that was begun but not
    finished, or that no event records; `receipt` for a log that lacks what a receipt attests.
    """

    session_id: str
    events: int
    ranges: tuple[VouchedRange, ...]
    problems: tuple[Problem, ...]
    unsigned: int
    erased: tuple[tuple[int, str], ...]
    approvals: tuple[Approval, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems and at least one checkpoint has a valid signature."""
        return not self.problems and any(each.is_vouched for each in self.ranges)


def verify_record(
    session_id: str, events: Iterable[Event], trust: Trust, *, receipts: Sequence[Mapping[str, Any]] = ()
) -> RecordReport:
    """Check every checkpoint of a log against its events.

    `receipts` are earlier results of `receipt_of`, stored elsewhere: they reveal a log that was since truncated or
    replaced. Raises `OptionsError` for something that is not a receipt.
    """
    log = list(events)
    checked = _Checked(session_id, log, trust)
    for place, event in enumerate(log):
        if isinstance(event, RecordSigned):
            checked.take(place, event)
    erased_places = {place for event in log if isinstance(event, RecordErasing) for place in places_of(event)}
    copied = max((event.parent_seq for event in log if isinstance(event, SessionForked)), default=0)
    finished = {event.erasure_id for event in log if isinstance(event, RecordErased)}
    todo = "this erasure is unfinished: `openagentic-sdk sessions erase ID --finish` continues it"
    unfinished = (event for event in log if isinstance(event, RecordErasing) and event.erasure_id not in finished)
    problems = [*checked.problems, *(Problem("erasure", event.seq or 0, detail=todo) for event in unfinished)]
    for seq, path in checked.erased:
        if seq > copied and not any(
            seq == erased_seq and is_at_or_below(path, place) for erased_seq, place in erased_places
        ):
            problems.append(Problem("erasure", seq, detail=f"{path} was erased without a record.erasing event"))
    for receipt in receipts:
        problems += _missing(receipt, session_id, log, trust)
    approvals = _approvals(session_id, log, trust, checked)
    for each in approvals:
        if each.is_recorded is False:
            text = f"it names {each.name} as the person who answered, but this installation did not record that"
            problems.append(Problem("approver", each.seq, detail=text))
    return RecordReport(
        session_id,
        len(log),
        tuple(checked.ranges()),
        tuple(sorted(problems, key=lambda problem: problem.seq)),
        sum(not isinstance(event, RecordSigned) for event in log[checked.end :]),
        tuple(sorted({*checked.erased, *erased_places})),
        tuple(approvals),
    )


def receipt_of(signed: RecordSigned) -> dict[str, Any]:
    """A receipt to store elsewhere: a checkpoint's statement and its signatures."""
    return {name: getattr(signed, name) for name in _RECEIPT}


@mutable
class _Range:
    signed: RecordSigned
    seq: int
    vouchers: tuple[Voucher, ...]
    is_linked: bool
    bad: list[int]


class _Checked:
    """The checkpoints checked so far; `end` is the place after the last event that any of them covers."""

    def __init__(self, session_id: str, log: Sequence[Event], trust: Trust) -> None:
        self.problems: list[Problem] = []
        self.erased: list[tuple[int, str]] = []
        self.end = 0
        self.bad: set[int] = set()
        self.first_bad = len(log) + 1  # nothing after it can be checked with digests that cover the whole log
        self._session_id, self._log, self._trust = session_id, log, trust
        self._ranges: list[_Range] = []
        self._forks = [
            (place, event.parent_session_id) for place, event in enumerate(log) if isinstance(event, SessionForked)
        ]
        self._all = [event for event in log if isinstance(event, RecordSigned)]
        # A salvage puts one event before all others; salvaging a salvaged log adds a second one.
        salvages = takewhile(lambda event: isinstance(event, LogSalvaged), log)
        self._salvages = 0  # since the last checkpoint
        self._salvaged_from = {event.source_session_id for event in salvages if isinstance(event, LogSalvaged)}

    def take(self, place: int, signed: RecordSigned) -> None:
        seq = signed.seq or place + 1
        # The events before a fork's marker were copied from its parent, checkpoints included.
        made_in = next((parent for fork, parent in self._forks if fork > place), self._session_id)
        if signed.session_id != made_in:
            text = f"this checkpoint was made for session {on_one_line(signed.session_id, 80)}"
            self._say("replayed", seq, f"{text}: it, or everything before it, was inserted here")
            return
        last = self._ranges[-1].signed if self._ranges else None
        next_seq, before = (last.to_seq + 1, last.head) if last else (1, ZERO)
        if signed.from_seq < next_seq:
            text = f"this checkpoint covers events {signed.from_seq} to {signed.to_seq}, which an earlier one already covers"
            self._say("replayed", seq, text)
            return
        try:
            # Signatures cover only the head, so the digests must lead to it.
            digests = split_digests(signed.digests)
            if (
                chain_digests(signed.before, digests) != signed.head
                or len(digests) != signed.to_seq - signed.from_seq + 1
            ):
                raise ValueError("its digests do not match its head")
        except ValueError as error:
            self._say("checkpoint", seq, f"this checkpoint was changed: {error}")
            return
        is_linked = signed.from_seq == next_seq and signed.before == before
        if signed.from_seq > next_seq:
            message = f"the checkpoint of events {next_seq} to {signed.from_seq - 1} no longer exists"
            self._say("checkpoint", seq, message)
            self.end = min(self.end + signed.from_seq - next_seq, place)
        elif not is_linked:
            text = f"it was created after a checkpoint of events up to {next_seq - 1} other than the one in the log"
            self._say("checkpoint", seq, f"{text}: that one was replaced")
        vouchers = tuple(self._voucher(each, signed, seq) for each in signed.signatures)
        checked = _Range(signed, seq, vouchers, is_linked, [])
        self._ranges.append(checked)
        self._compare(checked, digests, place)

    def _voucher(self, signature: Mapping[str, Any], signed: RecordSigned, seq: int) -> Voucher:
        voucher = check_signature(signature, statement_of(signed), self._trust)
        if voucher.proof == "invalid":
            others = (other for other in self._all if other.head != signed.head)
            original = next(
                (o for o in others if check_signature(signature, statement_of(o), self._trust).proof == "valid"), None
            )
            text = f"the signature by {voucher.by} is invalid: {voucher.how}"
            if original is not None:
                span = f"events {original.from_seq} to {original.to_seq}"
                text = f"the signature by {voucher.by} was made for {span}, not for these"
            self._say("replayed" if original else "signature", seq, text)
        return voucher

    def _compare(self, checked: _Range, digests: Sequence[bytes], place: int) -> None:
        """Match the events of the range with those in the log, and report the differences."""
        signed = checked.signed
        # Positions are compared as they were when this was signed: each salvage since then moved them by one place. The
        # first checkpoint after a salvage covers again the last event that the previous checkpoint covers.
        salvages = sum(fork > place and source in self._salvaged_from for fork, source in self._forks)
        first, self._salvages = self.end - max(0, self._salvages - salvages), salvages
        try:
            opening = Opening.read(signed.opening, len(digests))
        except BadOpeningError as error:
            self._say(
                "salts", checked.seq, f"the salts of its events were changed ({error}): none of them can be checked"
            )
            checked.bad += range(signed.from_seq, signed.to_seq + 1)
            self.end = min(first + len(digests), place)
            return
        follower = self._log[place + 1] if place + 1 < len(self._log) else None
        is_followed = isinstance(follower, RecordSigned) and follower.from_seq == signed.to_seq + 1
        log = [moved_by(event, -salvages) for event in self._log[first:place]] if salvages else self._log[first:place]
        events = log[: len(digests) + (0 if first else salvages)]  # with the events that the salvages put first
        # The common case first: every event in its place.
        fits = [
            _digest(opening, event, index) == digest
            for index, (event, digest) in enumerate(zip(events, digests, strict=False))
        ]
        if len(events) == len(digests) and all(fits):
            self.end = first + len(digests)
        else:
            if not is_followed:
                events = log
            # Checkpoints of one signing are adjacent and only the last is signed: none of them covers another.
            while events and isinstance(events[-1], RecordSigned) and not events[-1].signatures:
                events = events[:-1]
            self.end = first + len(events)
            self._name_changes(checked, opening, digests, events)
        for index, (_, erased, marks) in opening.cut.items():
            self.erased += [(signed.from_seq + index, mark) for mark in marks if any(erased)]

    def _name_changes(
        self, checked: _Range, opening: Opening, digests: Sequence[bytes], events: Sequence[Event]
    ) -> None:
        first_seq = checked.signed.from_seq
        alignment = _align(opening, digests, events)
        lost_indexes = sorted(set(range(len(digests))) - set(alignment.values()))
        moved = set(alignment) - _longest_rise(alignment)
        shift = 0
        for index, event in enumerate(events):
            seq = event.seq or 0
            if index in alignment:
                shift = alignment[index] - index if index not in moved else shift
                if index in moved:
                    self._say("moved", seq, f"it was event {first_seq + alignment[index]} when it was signed")
                    checked.bad.append(seq)
                continue
            checked.bad.append(seq)
            if index + shift in lost_indexes:
                lost_indexes.remove(index + shift)
                self._say("changed", seq, f"this {on_one_line(event.type, 40)} differs from what was signed")
            else:
                twin = any(event == other for other in events[:index])
                self._say(
                    "added", seq, "it duplicates an earlier event" if twin else "it did not exist when this was signed"
                )
        for index in lost_indexes:
            checked.bad.append(first_seq + index)
            self._say("removed", 0, f"event {first_seq + index}, which was signed, no longer exists")

    def ranges(self) -> list[VouchedRange]:
        """The signed checkpoints, each with the events that it covers."""
        ranges: list[VouchedRange] = []
        bad: list[int] = []
        start = 1
        for checked in self._ranges:
            if not checked.is_linked:
                start, bad = checked.signed.from_seq, []
            bad += checked.bad
            if checked.signed.signatures:
                signed = checked.signed
                ranges.append(
                    VouchedRange(
                        start,
                        signed.to_seq,
                        checked.seq,
                        signed.session_id,
                        checked.vouchers,
                        signed.head,
                        tuple(sorted(bad)),
                    )
                )
        return ranges

    def _say(self, kind: str, seq: int, text: str) -> None:
        if kind in ("changed", "added", "moved"):
            self.bad.add(seq)
        self.first_bad = min(self.first_bad, seq or self.end)
        self.problems.append(Problem(kind, seq, detail=text))


def _digest(opening: Opening, event: Event, index: int) -> bytes | None:
    try:
        return event_digest(opening.leaf_digests(event, index))
    except BadOpeningError:
        return None


def _align(opening: Opening, digests: Sequence[bytes], events: Sequence[Event]) -> dict[int, int]:
    """Map the index of each event to its signed place, except events that match nowhere."""
    alignment: dict[int, int] = {}
    free = set(range(len(digests)))
    shift = 0
    unknown: list[int] = []
    for index, event in enumerate(events):
        # After a removed or added event, all others are displaced by the same number: try that place first.
        near = sorted(range(index - _NEAR, index + _NEAR + 1), key=lambda place: abs(place - index - shift))
        for place in near if len(unknown) < _MANY else (index + shift,):
            if place in free and _digest(opening, event, place) == digests[place]:
                alignment[index], shift = place, place - index
                free.discard(place)
                break
        else:
            unknown.append(index)
    for index in unknown[:_MANY]:
        for place in sorted(free) if len(free) <= _MANY else ():
            if _digest(opening, events[index], place) == digests[place]:
                alignment[index] = place
                free.discard(place)
                break
    return alignment


def _longest_rise(alignment: Mapping[int, int]) -> set[int]:
    """The longest subsequence of events still in signed order."""
    ends: list[int] = []  # for each length, the smallest last place of an increasing subsequence
    tails: list[int] = []
    before: dict[int, int | None] = {}
    for index in sorted(alignment):
        length = bisect_left(ends, alignment[index])
        ends[length : length + 1] = [alignment[index]]
        tails[length : length + 1] = [index]
        before[index] = tails[length - 1] if length else None
    rise: set[int] = set()
    at = tails[-1] if tails else None
    while at is not None:
        rise.add(at)
        at = before[at]
    return rise


def _missing(receipt: Mapping[str, Any], session_id: str, log: Sequence[Event], trust: Trust) -> list[Problem]:
    """The problem of a log that lacks what a receipt attests, in a list; empty if it lacks nothing."""
    try:
        checkpoint = RecordSigned(digests="", **{name: receipt[name] for name in _RECEIPT})
        statement = statement_of(checkpoint)
        signatures = list(checkpoint.signatures)
    except (KeyError, TypeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise OptionsError(f"this is not a receipt of a signed record: {why}") from None
    if checkpoint.session_id != session_id:
        return [Problem("receipt", detail=f"the receipt is for session {on_one_line(str(checkpoint.session_id), 80)}")]
    if any(isinstance(event, RecordSigned) and statement_of(event) == statement for event in log):
        return []
    vouchers = [check_signature(each, statement, trust) for each in signatures]
    by = ", ".join(f"{each.by} {each.name} ({each.proof})" for each in vouchers) or "nobody"
    head = str(checkpoint.head)[:16]
    text = f"a receipt signed by {by} states that there were {checkpoint.to_seq} events up to head {head}"
    return [Problem("receipt", detail=f"{text}: the log lacks them, so its end was cut off or it was restarted")]


def _approvals(session_id: str, log: Sequence[Event], trust: Trust, checked: _Checked) -> list[Approval]:
    """The answers in the log: who gave each, and whether this installation recorded it.

    The keyed digests cover all earlier events, so they prove nothing after an alteration.
    """
    authority = Authority(session_id, trust.seal) if trust.seal else None
    if authority:
        for event in log:
            authority.apply(event)
    knows_log = authority is not None and any(authority.is_ours(event) for event in log)
    questions = {event.question_id: event for event in log if isinstance(event, UserQuestion)}
    approvals = []
    for event in log:
        is_recorded = None
        if (event.seq or 0) in checked.bad:
            is_recorded = False
        elif authority is not None and knows_log and (authority.is_ours(event) or (event.seq or 0) < checked.first_bad):
            is_recorded = authority.is_ours(event)
        words = _words_of_answer(event, questions)
        if words is not None:
            tool, answer, name, how = (on_one_line(text, 100) for text in words)
            approvals.append(Approval(event.seq or 0, tool, answer, name, how, is_recorded))
    return approvals


def _words_of_answer(event: Event, questions: Mapping[str, UserQuestion]) -> tuple[str, str, str, str] | None:
    """The tool that an answer is about, the answer, who gave it, and how that was established; None for other events."""
    if isinstance(event, UserAnswer):
        question, approver = questions.get(event.question_id), event.approver or {}
        tool = str((question.details.get("tool_name") if question else None) or "a question")
        name = str(approver.get("name") or event.answered_by)
        return tool, event.answer, name, str(approver.get("how") or "the name is not confirmed")
    if isinstance(event, PermissionDecision) and event.answered_by:
        answer = "allowed" if event.allowed else "refused"
        return event.name, answer, event.answered_by, "as recorded in the decision"
    return None
