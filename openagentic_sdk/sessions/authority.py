"""Determine which events of a session this installation wrote: only these may authorize anything when the session continues.

Recorded events that could later let something run without a question (`events.AUTHORIZING`: runs and their results, prompts,
calls, decisions, questions, answers, grants of skills and commands, subagents, file backups, states of a caller's own parts)
carry a digest that only this installation's key can produce. It covers the session's id, the event's `seq`, and a chain over
every event up to and including this one, so a moved event, an edited log or a foreign archive can be read, but authorizes
nothing: people are asked again.

    chain(n) = sha256(chain(n - 1) + the fields of event n as JSON)
    mac(n)   = HMAC(key, session id, n, chain(n))

A fork begins with events of its parent, under the parent's id. The digest of its `session.forked` covers the fork's id, this
event's `seq` and its fields; it vouches for the digests that were valid in the parent, and for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

from ..errors import InvalidEventError, OptionsError
from ..events import AUTHORIZING, Event, SessionForked, UnknownEvent
from ..ground.frozen import changed
from ..serialization import EncodedEvents, dumps_event, dumps_fields

_PURPOSE = b"openagentic-sdk authority 1"
_FORK = b"openagentic-sdk fork 1"
_MAC_AT_END = r',"mac":"[0-9a-f]*"\Z'


class KeyedDigests(Protocol):
    """The digests that only the holders of one key can compute; `sessions.seal.Seal` reads the key from a file."""

    def digest(self, *parts: bytes) -> str:
        """The digest of the parts, unambiguously separated. Raises `OptionsError` if there is no usable key."""

    def matches(self, digest: str, *parts: bytes) -> bool:
        """Whether the digest is that of these parts. Raises `OptionsError` if there is no usable key."""


def with_mac(event: Event, mac: str | None) -> Event:
    """The event with this digest (None: without any) instead of its own; an unknown type keeps its other fields verbatim."""
    if isinstance(event, UnknownEvent):
        data = {name: value for name, value in event.data.items() if name != "mac"}
        return UnknownEvent(data if mac is None else {**data, "mac": mac})
    return changed(event, mac=mac)


class Authority:
    """A fold that recognizes those of a session's events that this installation wrote; it also signs what a run appends.

    Without a usable key, it signs nothing and recognizes no stored event; `problem` explains why.
    """

    def __init__(self, session_id: str, seal: KeyedDigests) -> None:
        self.session_id = session_id
        self._name = session_id.encode("utf-8", "surrogatepass")
        self.problem: str | None = None
        self._seal = seal
        self._chain = b""
        self._ours: set[int] = set()
        # The chain after each of the events that were signed last and are about to be stored.
        self._signed: dict[int, bytes] = {}
        # Digests that do not match this session's id, for which a fork's marker may vouch; for a marker, also the parent's
        # id and seq.
        self._foreign: dict[int, tuple[str, bytes, tuple[str, int] | None]] = {}

    def is_ours(self, event: Event) -> bool:
        """Whether this installation wrote this authorizing event; one without a `seq` was created by this run."""
        return event.seq is None or event.seq in self._ours

    def apply(self, event: Event, *, made_here: bool = False) -> None:
        """Apply one more event, in the order of `seq`; `made_here` is for events just signed."""
        if event.seq is None:
            return
        if made_here:
            # Its digest was computed a moment ago, by `sign`.
            self._chain = self._signed[event.seq]
            if event.__class__ in AUTHORIZING:
                self._ours.add(event.seq)
            return
        try:
            body = signed_body(event).encode("ascii")
        except InvalidEventError:
            # Nested deeper than this version writes: not ours, and no reason to refuse the session.
            body = dumps_event(event).encode("ascii")
        self._chain = sha256(self._chain + body).digest()
        if event.__class__ not in AUTHORIZING or event.mac is None:
            return
        if isinstance(event, SessionForked):
            self._foreign[event.seq] = event.mac, body, (event.parent_session_id, event.parent_seq)
            self._settle_fork(event.seq, self.session_id)
        elif self._matches(event.mac, self.session_id, event.seq, self._chain):
            self._ours.add(event.seq)
        else:
            self._foreign[event.seq] = event.mac, self._chain, None

    def sign(self, events: Sequence[Event], last_seq: int) -> EncodedEvents:
        """Add the digests to the events that will follow event `last_seq`, the last one applied."""
        signed, bodies, chain = [], [], self._chain
        self._signed = {}
        for seq, event in enumerate(events, start=last_seq + 1):
            text = signed_body(event)
            body = text.encode("ascii")
            self._signed[seq] = chain = sha256(chain + body).digest()
            mac = self.mac(event, seq, body, chain) if event.__class__ in AUTHORIZING else None
            signed.append(event if mac is event.mac else with_mac(event, mac))
            bodies.append(text if mac is None else f'{text},"mac":"{mac}"')
        return EncodedEvents(signed, bodies)

    def mac(self, event: Event, seq: int, body: bytes, chain: bytes) -> str | None:
        """Return the digest of an event; None if there is no usable key, as `problem` then explains."""
        is_fork = isinstance(event, SessionForked)
        if self.problem is None:
            try:
                purpose, covered = (_FORK, body) if is_fork else (_PURPOSE, chain)
                return self._seal.digest(purpose, self._name, b"%d" % seq, covered)
            except OptionsError as error:
                self.problem = str(error)
        return None

    def _matches(self, mac: str, session_id: str, seq: int, covered: bytes, purpose: bytes = _PURPOSE) -> bool:
        try:
            name = session_id.encode("utf-8", "surrogatepass")
            return self._seal.matches(mac, purpose, name, b"%d" % seq, covered)
        except OptionsError as error:
            self.problem = str(error)
            return False

    def _settle_fork(self, seq: int, session_id: str) -> None:
        """Process a fork's marker: if it is ours, the events before it are judged under the parent's id."""
        mac, body, forked_at = self._foreign[seq]
        if forked_at is None or not self._matches(mac, session_id, seq, body, _FORK):
            return
        del self._foreign[seq]
        self._ours.add(seq)
        parent_id, parent_seq = forked_at
        for number, (mac, covered, inner) in list(self._foreign.items()):
            # A marker among the copied events may have settled it already; no marker vouches for an event after itself.
            if number not in self._foreign or number > min(parent_seq, seq - 1):
                continue
            if inner is not None:
                self._settle_fork(number, parent_id)
            elif self._matches(mac, parent_id, number, covered):
                del self._foreign[number]
                self._ours.add(number)

    def kept(self, seqs: Container[int]) -> dict[str, Any]:
        """The state so far as JSON, for the events in `seqs`, to be stored beside a compaction."""
        foreign_records = ((seq, record) for seq, record in self._foreign.items() if seq in seqs)
        foreign = [[seq, mac, covered.hex(), parent] for seq, (mac, covered, parent) in foreign_records]
        ours = sorted(seq for seq in self._ours if seq in seqs)
        return {"chain": self._chain.hex(), "ours": ours, "foreign": foreign}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from a state returned by `kept`, instead of from the events up to then."""
        self._chain, self._ours = bytes.fromhex(kept["chain"]), set(kept["ours"])
        self._foreign = {
            seq: (mac, bytes.fromhex(covered), None if parent is None else (parent[0], parent[1]))
            for seq, mac, covered, parent in kept["foreign"]
        }


def signed_body(event: Event) -> str:
    """The event's own fields as JSON, without its digest."""
    text = dumps_fields(event)
    return text if event.mac is None and not isinstance(event, UnknownEvent) else re.sub(_MAC_AT_END, "", text)
