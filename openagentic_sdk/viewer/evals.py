"""Render an eval as a self-contained page without scripts or requests, in which no session content can become markup."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from ..errors import SessionError
from ..evals.report import EvalReport, Row
from ..events import EvalCase, Event, ModelContext
from ..ground.text import printable
from ..parts.masking import shown
from ..parts.record.folds.export import to_markdown
from .page import fill_page


def build_eval_page(report: EvalReport) -> str:
    """Build the page of an eval: the outcome of each case and variant, and for each run its scores and their reasons."""
    passed = f"{report.passed} of {len(report.runs)} runs passed"
    cost = "" if report.cost_usd is None else f", {report.cost_usd:.4f} USD"
    unrun = f", {report.finished.left} did not run" if report.finished is not None and report.finished.left else ""
    parts = {
        "TITLE": _shown(f"{report.started.suite}: {passed}"),
        "FACTS": _shown(f"eval {report.session_id}: {passed}{unrun}{cost}"),
        "ROWS": "\n".join(map(_row, report.rows())),
    }
    return fill_page("evals.html", parts, "form-action 'none'")


def _row(row: Row) -> str:
    spread = "" if row.spread is None else f" ± {row.spread:.2f}"
    cost = "?" if row.cost_usd is None else f"{row.cost_usd:.4f}"
    verdict = row.verdict()
    figures = (f"{row.passed}/{len(row.runs)}", f"{row.value:.2f}{spread}", f"{row.steps:g}", cost)
    cells = "".join(f"<td>{_shown(cell)}</td>" for cell in (row.case, row.variant, verdict, *figures))
    return f'<tr>{cells}</tr>\n<tr><td colspan="7">{"".join(map(_run, row.runs))}</td></tr>'


def build_comparison_page(
    lines: Sequence[str], pairs: Sequence[tuple[str, Row, Row]], read: Callable[[str], Sequence[Event]]
) -> str:
    """Build the page of a comparison: `lines` are its sentences; of each pair, both system prompts and transcripts are shown
    side by side.

    Pairs that got worse come first. Of several repeats, the first failed one is shown, otherwise the first. `read` returns
    the events of a session.
    """
    pairs = sorted(pairs, key=lambda pair: (pair[2].rate - pair[1].rate, pair[0]))
    parts = {
        "TITLE": "Comparison",
        "FACTS": "<br>".join(map(_shown, lines)),
        "ROWS": "\n".join(_pair(name, a, b, read) for name, a, b in pairs),
    }
    return fill_page("evals.html", parts, "form-action 'none'")


def _pair(name: str, a: Row, b: Row, read: Callable[[str], Sequence[Event]]) -> str:
    cells = []
    for row in (a, b):
        run = next((run for run in row.runs if not run.passed), row.runs[0])
        cells.append(f'<td colspan="3">{_side(row, run, read)}</td>')
    verdicts = f"{_shown(a.verdict())} → {_shown(b.verdict())}"
    is_open = " open" if a.rate != b.rate else ""
    table = f"<table><tr>{''.join(cells)}</tr></table>"
    return f'<tr><td colspan="7"><details{is_open}><summary>{_shown(name)}: {verdicts}</summary>{table}</details></td></tr>'


def _side(row: Row, run: EvalCase, read: Callable[[str], Sequence[Event]]) -> str:
    """One side of a pair: its variant, problems, system prompt and transcript, or the reason why they cannot be read."""
    try:
        events = [shown(event) for event in read(run.session_id)] if run.session_id else []
    except SessionError as error:
        return f"<p>{_shown(error)}</p>"
    system = next((event.system_prompt for event in events if isinstance(event, ModelContext)), "")
    head = f"<h2>{_shown(row.variant)}</h2><p>session <code>{_shown(run.session_id)}</code></p>"
    problems = "".join(f"<li>{_shown(problem)}</li>" for problem in row.problems())
    return f"{head}<ul>{problems}</ul><pre>{_shown(system)}</pre><pre>{_shown(to_markdown(events))}</pre>"


def _run(run: EvalCase) -> str:
    scores = "".join(
        f"<li>{_shown('pass' if score.get('passed') else 'FAIL')} <b>{_shown(score.get('name'))}</b>"
        f"<pre>{_shown(score.get('words'))}</pre></li>"
        for score in run.scores
    )
    title = f"run {run.repeat}: {'pass' if run.passed else 'FAIL'}, {run.stop_reason or run.mode}"
    session = f"<p>session <code>{_shown(run.session_id)}</code></p>" if run.session_id else ""
    answer = f"<pre>{_shown(run.final_text)}</pre>" if run.final_text else ""
    is_open = "" if run.passed else " open"
    return f"<details{is_open}><summary>{_shown(title)}</summary>{session}<ul>{scores}</ul>{answer}</details>"


def _shown(text: object) -> str:
    return html.escape(printable(str("" if text is None else text)))
