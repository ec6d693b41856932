"""Several candidates of one base as one self-contained HTML file: the table, and what each keeps
by its size.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

import evalguard
from evalguard.core.comparison import Comparison
from evalguard.core.gate_state import GateState
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.ladder import LadderRow, ladder_rows
from evalguard.core.reports.several_report import NoVerdict, SeveralReport, state_of
from evalguard.report.html.html_page import html_page
from evalguard.report.html.size_plot import PlottedModel, draw_size_plot
from evalguard.report.ladder_table import ladder_legend, ladder_table, ranked_metrics, row_texts
from evalguard.report.several_texts import (
    candidate_name,
    grouped_findings,
    several_headline,
    shared_gate_rule,
    split_texts,
    steps_table,
    verdict_texts,
)
from evalguard.report.words.metric_labels import full_label
from evalguard.report.words.plain_text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateTexts:
    """A candidate's verdict and cause, and the folder of its own page."""

    name: str
    state: GateState
    texts: tuple[str, ...]
    folder: str


def render_ladder_page(report: SeveralReport) -> str:
    """Return the page."""
    return html_page(
        "ladder.html",
        headline=several_headline(report),
        state=report.state,
        table=ladder_table(report, joined=True),
        legend=ladder_legend(report),
        plots=_plots(report),
        splits=split_texts(report),
        steps=steps_table(report) if report.steps else None,
        base=printable(report.base),
        candidates=[_texts(report, one) for one in report.candidates],
        notes=grouped_findings(report),
        remarks=[printable(note) for note in report.notes],
        version=evalguard.__version__,
    )


def _texts(report: SeveralReport, one: CompareReport | NoVerdict) -> CandidateTexts:
    folder = "" if isinstance(one, NoVerdict) else printable(one.run_folder or "")
    return CandidateTexts(
        name=candidate_name(one),
        state=state_of(one),
        texts=tuple(verdict_texts(one, shared_gate=bool(shared_gate_rule(report)))),
        folder=folder,
    )


def _plots(report: SeveralReport) -> list[tuple[Markup, str]]:
    """KL by size, and recovery of the metric that drifts most; each with what it shows."""
    rows, texts = ladder_rows(report.candidates), row_texts(report)
    pairs = list(zip(rows, texts, strict=True))
    kl = [_plotted(row, text, row.kl.value, row.kl.interval) for row, text in pairs]
    found = [(draw_size_plot(kl, name="mean KL, nats a token", better="lower"), "Mean KL")]
    for key in ranked_metrics(report)[:1]:
        of_rows = [_comparison(row, key) for row in rows]
        models = [
            _plotted(row, text, *((None, None) if c is None else (c.recovery, c.recovery_interval)))
            for (row, text), c in zip(pairs, of_rows, strict=True)
        ]
        label = next(full_label(c) for c in of_rows if c is not None)
        plot = draw_size_plot(models, name="recovery, %", better="higher", base=100.0)
        found.append((plot, f"Recovery of {label}; the dashed line is the base"))
    return [(plot, said) for plot, said in found if plot]


def _plotted(
    row: LadderRow, text: str, value: float | None, interval: tuple[float, float] | None
) -> PlottedModel:
    return PlottedModel(
        name=row.name,
        size=None if row.size is None else row.size.bytes,
        value=value,
        interval=interval,
        row=text,
        state=row.state,
    )


def _comparison(row: LadderRow, key: tuple[str, str, str]) -> Comparison | None:
    one = row.outcome
    return (
        None
        if isinstance(one, NoVerdict)
        else next((c for c in one.comparisons if c.key == key), None)
    )
