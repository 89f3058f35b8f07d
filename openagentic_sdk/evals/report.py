"""The results of an eval as a pure fold over its session's events, and as rows, JSON and JUnit XML."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

from ..errors import SuiteError
from ..events import EvalCase, EvalFinished, EvalStarted, Event
from ..ground.frozen import frozen
from ..ground.text import on_one_line, printable
from ..permissions.shell import words
from ..sessions.folds.summary import calendar_time

# Which failed repeats make a case fail.
FailOn = Literal["any", "most", "all"]
# The fields of each run in the JSON report, besides its scores.
_REPORTED_FIELDS = tuple(
    words("""
    case variant repeat mode passed stop_reason session_id steps usage cost_usd duration_s final_text
""")
)


@frozen(kw_only=True)
class Row:
    """The runs of a case under a variant: how many passed, and the mean and standard deviation of their values.

    The value of a run is the mean of its scores; the standard deviation is `None` for a single run.
    """

    case: str
    variant: str
    runs: Sequence[EvalCase]

    @property
    def passed(self) -> int:
        return sum(run.passed for run in self.runs)

    @property
    def rate(self) -> float:
        return self.passed / len(self.runs)

    @property
    def value(self) -> float:
        return mean([value_of(run) for run in self.runs])

    @property
    def spread(self) -> float | None:
        return deviation([value_of(run) for run in self.runs])

    @property
    def cost_usd(self) -> float | None:
        """The mean cost of a run; None if any is unknown."""
        costs = [run.cost_usd for run in self.runs if run.cost_usd is not None]
        return mean(costs) if len(costs) == len(self.runs) else None

    @property
    def steps(self) -> float:
        return mean([run.steps for run in self.runs])

    @property
    def scores(self) -> dict[str, float]:
        """The mean value of each scorer, by name."""
        values: dict[str, list[float]] = {}
        for run in self.runs:
            for score in run.scores:
                values.setdefault(str(score.get("name")), []).append(score_value(score))
        return {name: mean(numbers) for name, numbers in values.items()}

    @property
    def is_replayed(self) -> bool:
        """Whether the row only checks that the agent still behaves as recorded."""
        return all(run.mode == "replay" for run in self.runs)

    def fails(self, fail_on: FailOn = "most") -> bool:
        """Whether the row makes its eval fail: one with a repeat that could not be run or scored always does.

        `fail_on` is as in `EvalReport.passes`.
        """
        failed = len(self.runs) - self.passed
        most = {"any": failed > 0, "most": 2 * failed > len(self.runs), "all": not self.passed}[fail_on]
        return bool(failed) and (most or any(is_error(run) for run in self.runs))

    def verdict(self, fail_on: FailOn = "most") -> str:
        """The outcome as one word: `same` or `DIFFERS` for a replay; `pass`, `wavers` or `FAIL` for any other row."""
        if self.is_replayed:
            return "same" if self.passed == len(self.runs) else "DIFFERS"
        return "pass" if self.passed == len(self.runs) else "FAIL" if self.fails(fail_on) else "wavers"

    def problems(self) -> list[str]:
        """The distinct failures, each on one line that is safe to display."""
        failed = (score for run in self.runs for score in run.scores if not score.get("passed"))
        return list(dict.fromkeys(f"{_line(score.get('name'))}: {_line(score.get('words'))}" for score in failed))


@frozen(kw_only=True)
class EvalReport:
    """An eval: its start, its finished runs, and how it last stopped (None if it has not)."""

    session_id: str
    started: EvalStarted
    runs: Sequence[EvalCase] = ()
    finished: EvalFinished | None = None
    ts: float | None = None

    @classmethod
    def of(cls, session_id: str, events: Iterable[Event]) -> EvalReport:
        """The report of an eval's session. Raises `SuiteError` for other sessions."""
        waiting = iter(events)
        for event in waiting:
            if isinstance(event, EvalStarted):
                report = cls(session_id=session_id, started=event, ts=event.ts)
                for later in waiting:
                    report = report.after(later)
                return report
        raise SuiteError(
            f"session {session_id!r} is not an eval: `openagentic-sdk sessions list --evals` lists the evals"
        )

    def after(self, event: Event) -> EvalReport:
        """The report including one more event; a second result of the same run counts only if the first could not run."""
        if isinstance(event, EvalCase):
            before = next((run for run in self.runs if key_of(run) == key_of(event)), None)
            if before is not None and not could_not_run(before):
                return self
            return replace(self, runs=(*(run for run in self.runs if run is not before), event))
        return replace(self, finished=event) if isinstance(event, EvalFinished) else self

    @property
    def passed(self) -> int:
        return sum(run.passed for run in self.runs)

    @property
    def ok(self) -> bool:
        """Whether the eval passes if a case fails only when most of its repeats fail; see `passes`."""
        return self.passes()

    def passes(self, fail_on: FailOn = "most") -> bool:
        """Whether everything ran and no row fails; `fail_on` is how many failed repeats make a row fail."""
        is_whole = bool(self.runs) and self.finished is not None and not self.finished.left
        return is_whole and not any(row.fails(fail_on) for row in self.rows())

    @property
    def cost_usd(self) -> float | None:
        """The cost of all runs and judges; None if any part is unknown."""
        parts = [run.cost_usd for run in self.runs]
        parts += [score.get("cost_usd") for run in self.runs for score in run.scores if score.get("session_id")]
        costs = [part for part in parts if part is not None]
        return sum(costs) if len(costs) == len(parts) else None

    def rows(self) -> list[Row]:
        """A row for each case and variant that ran, in planned order."""
        grouped: dict[tuple[str, str], list[EvalCase]] = {}
        for run in self.runs:
            grouped.setdefault((run.case, run.variant), []).append(run)
        order = {entry.get("id"): place for place, entry in enumerate(self.started.plan)}
        names = list(self.started.variants)
        keys = sorted(
            grouped, key=lambda key: (order.get(key[0], len(order)), names.index(key[1]) if key[1] in names else 0)
        )
        return [Row(case=case, variant=variant, runs=grouped[case, variant]) for case, variant in keys]

    def missing(self) -> list[tuple[str, str, int]]:
        """The planned runs without a result: case, variant and repeat."""
        done = set(map(key_of, self.runs))
        planned = (
            (str(entry.get("id")), variant, repeat)
            for repeat in range(1, self.started.repeats + 1)
            for entry in self.started.plan
            for variant in self.started.variants
            if variant in (entry.get("variants") or self.started.variants)
        )
        return [key for key in planned if key not in done]

    def finished_event(self, reason: str, message: str = "") -> EvalFinished:
        """The event for stopping the eval now."""
        failed = len(self.runs) - self.passed
        return EvalFinished(
            reason=reason,
            passed=self.passed,
            failed=failed,
            left=len(self.missing()),
            cost_usd=self.cost_usd,
            message=message,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "session_id": self.session_id,
            "suite": self.started.suite,
            "ok": self.ok,
            "passed": self.passed,
            "failed": len(self.runs) - self.passed,
            "left": None if self.finished is None else self.finished.left,
            "reason": None if self.finished is None else self.finished.reason,
            "cost_usd": self.cost_usd,
            "rows": [
                {
                    "case": row.case,
                    "variant": row.variant,
                    "passed": row.passed,
                    "runs": len(row.runs),
                    "value": row.value,
                    "spread": row.spread,
                    "steps": row.steps,
                    "cost_usd": row.cost_usd,
                    "sessions": [run.session_id for run in row.runs],
                    "problems": row.problems(),
                }
                for row in self.rows()
            ],
            "runs": [
                {
                    **{name: getattr(run, name) for name in _REPORTED_FIELDS},
                    "scores": [dict(score) for score in run.scores],
                }
                for run in self.runs
            ],
        }


def key_of(run: EvalCase) -> tuple[str, str, int]:
    """The identity of a planned run: case, variant and repeat."""
    return run.case, run.variant, run.repeat


def could_not_run(run: EvalCase) -> bool:
    """Whether nothing ran, so that the run is tried again when the eval is resumed."""
    return any(score.get("type") == "run" for score in run.scores)


def value_of(run: EvalCase) -> float:
    """The mean of the scores, 0 to 1; without any score, 1 if the run passed, else 0."""
    values = [score_value(score) for score in run.scores]
    return mean(values) if values else float(run.passed)


def score_value(score: Mapping[str, Any]) -> float:
    """The value of a score, 0 to 1; 0 for an invalid value in a log."""
    value = score.get("value")
    is_value = isinstance(value, int | float) and 0 <= value <= 1
    return float(value) if is_value and value is not None else 0.0


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 for an empty sequence."""
    return sum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None for fewer than two values."""
    middle = mean(values)
    return sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else None


def _line(text: object) -> str:
    """The first line; if a diff follows it, also its first removed and first added line."""
    first, _, rest = str(text or "").strip().partition("\n")
    changed = [line for line in rest.split("\n") if line[:1] in ("-", "+") and line[:3] not in ("---", "+++")]
    sides = [next((on_one_line(line, 200) for line in changed if line[0] == sign), "") for sign in "-+"]
    return " ".join(filter(None, [on_one_line(first, 300), *sides]))


# --- JUnit -----------------------------------------------------------------------------------------------------------


def to_junit(report: EvalReport, fail_on: FailOn = "most") -> str:
    """JUnit XML, one test suite for each variant and one test case for each run.

    A planned run without a result counts as skipped, and so does a failed repeat of a case that does not fail, with its
    message. The output is valid under both schemas in use: the strict one of Ant (github.com/windyroad/JUnit-Schema) and
    that of Jenkins' xUnit plugin.
    """
    suites = []
    for number, variant in enumerate(report.started.variants):
        rows = [row for row in report.rows() if row.variant == variant]
        runs = [run for row in rows for run in row.runs]
        wavering = [run for row in rows if not row.fails(fail_on) for run in row.runs if not run.passed]
        errors = sum(map(is_error, runs))
        missing = [(case, repeat) for case, other, repeat in report.missing() if other == variant]
        failures = sum(not run.passed for run in runs) - errors - len(wavering)
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(calendar_time(report.ts)))
        name = f"{report.started.suite}.{variant}"
        head = {
            "package": report.started.suite,
            "id": str(number),
            "name": name,
            "timestamp": when,
            "hostname": "localhost",
            "tests": str(len(runs) + len(missing)),
            "skipped": str(len(missing) + len(wavering)),
            "failures": str(failures),
            "errors": str(errors),
            "time": f"{sum(run.duration_s or 0.0 for run in runs):.3f}",
        }
        properties = {"session_id": report.session_id, "cost_usd": str(report.cost_usd)}
        lines = [f"<property{xml_attributes({'name': key, 'value': value})}/>" for key, value in properties.items()]
        several = report.started.repeats > 1
        skipped = [f"<testcase{_case_attributes(*key, name, several, 0.0)}><skipped/></testcase>" for key in missing]
        cases = "\n".join([_test_case(run, name, several, run in wavering) for run in runs] + skipped)
        suites.append(
            f"<testsuite{xml_attributes(head)}>\n<properties>{''.join(lines)}</properties>\n{cases}\n"
            "<system-out></system-out>\n<system-err></system-err>\n</testsuite>"
        )
    body = "\n".join(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{body}\n</testsuites>\n'


def _case_attributes(case: str, repeat: int, suite: str, several: bool, seconds: float) -> str:
    name = f"{case} #{repeat}" if several else case
    return xml_attributes({"name": name, "classname": suite, "time": f"{seconds:.3f}"})


def _test_case(run: EvalCase, suite: str, several: bool, is_wavering: bool) -> str:
    head = _case_attributes(run.case, run.repeat, suite, several, run.duration_s or 0.0)
    if run.passed:
        return f"<testcase{head}/>"
    failed = [score for score in run.scores if not score.get("passed")]
    words = "\n".join(f"{score.get('name')}: {score.get('words') or 'failed'}" for score in failed)
    attributes = {
        "message": on_one_line(words.partition("\n")[0], 500),
        "type": str(failed[0].get("type") if failed else "run"),
    }
    if is_wavering:
        return f"<testcase{head}><skipped{xml_attributes({'message': attributes['message']})}/></testcase>"
    kind = "error" if is_error(run) else "failure"
    where = f"\nsession {run.session_id}" if run.session_id else ""
    return f"<testcase{head}><{kind}{xml_attributes(attributes)}>{escape(_clean(words + where))}</{kind}></testcase>"


def is_error(run: EvalCase) -> bool:
    """Whether the eval failed rather than the agent: the run or a scorer did not work."""
    return any(score.get("error_type") for score in run.scores)


def xml_attributes(values: Mapping[str, str]) -> str:
    """The attributes of a tag, each preceded by a space."""
    return "".join(f" {name}={quoteattr(_clean(value))}" for name, value in values.items())


def _clean(text: str) -> str:
    """The text with hidden characters, and those that XML 1.0 does not allow (section 2.2), as escapes."""
    return printable(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
