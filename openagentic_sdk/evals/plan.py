"""Plan the runs of a suite: each case (its sessions are looked up once) with each variant, repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidEventError, SessionError, SessionNotFoundError, SuiteError
from ..events import Event, UserMessage
from ..ground.disk import read_regular
from ..ground.frozen import frozen
from ..serialization import loads_event
from ..sessions.base import SessionStore
from .suite import PLAIN, Case, CaseMode, Suite

# The metadata key with the id of the eval that created a session: such sessions are not cases of others.
EVAL_KEY = "eval"
MAX_LOG_BYTES = 256 * 1024 * 1024


@frozen(kw_only=True)
class Planned:
    """A case that is ready to run. `session_id` is that of the recorded session; None for a prompt, or a log in a file."""

    id: str
    case: Case
    session_id: str | None = None

    @property
    def mode(self) -> CaseMode:
        return self.case.run_mode

    def runs_under(self, variant: str) -> bool:
        """Whether the case includes this variant."""
        return not self.case.variants or variant in self.case.variants

    def recorded(self, suite: Suite, store: SessionStore) -> Sequence[Event]:
        """Read the events of the recorded session. Raises `SessionError`, or `SuiteError` for a file that is unreadable."""
        if self.session_id is not None:
            return store.read_events(self.session_id)
        assert self.case.log is not None, "a prompt has no recorded session"
        return read_log(Path(suite.folder, self.case.log))

    def to_dict(self) -> dict[str, Any]:
        """The case's entry in the plan of `eval.started`."""
        entry: dict[str, Any] = {
            "id": self.id,
            "mode": self.mode,
            "session_id": self.session_id,
            "at_seq": self.case.at,
        }
        entry["variants"] = list(self.case.variants) or None
        return {key: value for key, value in entry.items() if value is not None}


@frozen(kw_only=True)
class EvalJob:
    """One run: a case under a variant, repeat number `repeat`, counted from 1."""

    planned: Planned
    variant: str
    repeat: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.planned.id, self.variant, self.repeat

    def session_id(self, eval_id: str, part: str = "run") -> str:
        """The id of the session that this run creates: the same after a crash, so that nothing is repeated."""
        digest = hashlib.sha256("\0".join((eval_id, *map(str, self.key), part)).encode()).hexdigest()
        # Not the eval's id with a suffix: then a person could no longer abbreviate the eval's own id.
        return digest[:32]


def plan_cases(suite: Suite, store: SessionStore) -> list[Planned]:
    """Look up the cases of a suite in a store; a tag or a search becomes one case for each session found, up to `limit`.

    Raises `SuiteError` for a session or file that does not exist, and for a tag or a search that finds nothing.
    """
    cases: list[Planned] = []
    for number, case in enumerate(suite.cases):
        where = f"cases[{number}]"
        if case.session is not None:
            if not store.session_exists(case.session):
                raise SuiteError(
                    f"no session {case.session!r} in this store", field=f"{where}.session", source=suite.source
                )
            cases.append(Planned(id=case.id, case=case, session_id=case.session))
        elif case.tag is not None or case.search is not None:
            if case.tag is not None:
                rows = store.list_session_summaries()
                tagged_ids = (row.id for row in rows if case.tag in row.tags and not row.error)
                names = _own(store, tagged_ids, case.limit)
            else:
                names = _found(store, case.search or "", case.limit)
            if not names:
                field = f"{where}.{'tag' if case.tag is not None else 'search'}"
                raise SuiteError("matches no session in this store", field=field, source=suite.source)
            cases += [Planned(id=f"{case.id}/{name}", case=case, session_id=name) for name in names]
        else:
            if case.log is not None and not Path(suite.folder, case.log).is_file():
                raise SuiteError(f"the file {case.log!r} does not exist", field=f"{where}.log", source=suite.source)
            cases.append(Planned(id=case.id, case=case))
    return cases


def planned_before(suite: Suite, entries: Sequence[Mapping[str, Any]]) -> list[Planned]:
    """The cases with which an eval began, from its plan: tags and searches may find other sessions now."""
    by_id = {case.id: case for case in suite.cases}
    return [
        Planned(id=entry["id"], case=case, session_id=entry.get("session_id"))
        for entry in entries
        if (case := by_id.get(entry["id"]) or by_id.get(entry["id"].rpartition("/")[0])) is not None
    ]


def jobs_of(plan: Sequence[Planned], suite: Suite, variants: Sequence[str], repeats: int) -> Iterator[EvalJob]:
    """Yield the runs in the order in which they start: every case once before any is repeated."""
    for repeat in range(1, repeats + 1):
        for planned in plan:
            for variant in filter(planned.runs_under, variants):
                yield EvalJob(planned=planned, variant=variant, repeat=repeat)


def variants_of(suite: Suite) -> list[str]:
    """The names of the variants; for a suite without variants, the name of the variant that changes nothing."""
    return list(suite.variants) or [PLAIN]


def _found(store: SessionStore, query: str, limit: int) -> list[str]:
    """The first `limit` sessions with an event that matches: hits are events, of which one session may have thousands."""
    most_hits = 100 * limit
    while True:
        hits = store.search(query, limit=most_hits)
        names = _own(store, dict.fromkeys(hit.session_id for hit in hits), limit)
        if len(names) >= limit or len(hits) < most_hits:
            return names
        most_hits *= 4


def _own(store: SessionStore, names: Iterable[str], limit: int) -> list[str]:
    """The first `limit` of these sessions that neither belong to subagents nor were created by evals (copies keep tags)."""
    own_names: list[str] = []
    for name in names:
        if len(own_names) >= limit:
            break
        try:
            metadata = store.read_metadata(name)["metadata"]
        except SessionNotFoundError:
            continue  # deleted since it was listed
        # A subagent's session is part of its parent's.
        if EVAL_KEY not in metadata and "parent_tool_use_id" not in metadata:
            own_names.append(name)
    return own_names


def read_log(path: Path) -> list[Event]:
    """Read the events of a log file, one per line. Raises `SuiteError`."""
    try:
        lines = read_regular(path, MAX_LOG_BYTES).split(b"\n")
        return [loads_event(line, strict=False) for line in lines if line.strip()]
    except (OSError, ValueError, InvalidEventError, SessionError) as error:
        raise SuiteError(f"{str(path)!r} cannot be read as a log: {error}") from None


def prompts_of(events: Sequence[Event]) -> list[UserMessage]:
    """The prompts of a session whose origin is the user, in order."""
    return [event for event in events if isinstance(event, UserMessage) and event.origin == "user"]
