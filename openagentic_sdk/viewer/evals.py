"""Put an eval into one page that stands alone: no script, no request, and nothing of a session can become markup."""

from __future__ import annotations

import html

from ..evals.report import EvalReport, Row
from ..events import EvalCase
from ..ground.text import printable
from .page import fill_page


def build_eval_page(report: EvalReport) -> str:
    """The page: what came of each case and variant, and for each run its scores and what it said."""
    passed = f"{report.passed} of {len(report.runs)} runs passed"
    cost = "" if report.cost_usd is None else f", {report.cost_usd:.4f} USD"
    left = f", {report.finished.left} did not run" if report.finished is not None and report.finished.left else ""
    parts = {
        "TITLE": _shown(f"{report.started.suite}: {passed}"),
        "FACTS": _shown(f"eval {report.session_id}: {passed}{left}{cost}"),
        "ROWS": "\n".join(map(_row, report.rows())),
    }
    return fill_page("evals.html", parts, "form-action 'none'")


def _row(row: Row) -> str:
    spread = "" if row.spread is None else f" ± {row.spread:.2f}"
    cost = "?" if row.cost_usd is None else f"{row.cost_usd:.4f}"
    verdict = "pass" if row.passed == len(row.runs) else "fail"
    figures = (f"{row.passed}/{len(row.runs)}", f"{row.value:.2f}{spread}", f"{row.steps:g}", cost)
    cells = "".join(f"<td>{_shown(cell)}</td>" for cell in (row.case, row.variant, verdict, *figures))
    return f'<tr>{cells}</tr>\n<tr><td colspan="7">{"".join(map(_run, row.runs))}</td></tr>'


def _run(run: EvalCase) -> str:
    scores = "".join(
        f"<li>{_shown('pass' if score.get('passed') else 'FAIL')} <b>{_shown(score.get('name'))}</b>"
        f"<pre>{_shown(score.get('words'))}</pre></li>"
        for score in run.scores
    )
    title = f"run {run.repeat}: {'pass' if run.passed else 'FAIL'}, {run.stop_reason or run.mode}"
    session = f"<p>session <code>{_shown(run.session_id)}</code></p>" if run.session_id else ""
    said = f"<pre>{_shown(run.final_text)}</pre>" if run.final_text else ""
    is_open = "" if run.passed else " open"
    return f"<details{is_open}><summary>{_shown(title)}</summary>{session}<ul>{scores}</ul>{said}</details>"


def _shown(text: object) -> str:
    return html.escape(printable(str("" if text is None else text)))
