"""Several candidates of one base as one self-contained HTML file: the table, and what each keeps
by its size.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

import evalguard
from evalguard.core.gate_state import GateState
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.several_report import NoVerdict, SeveralReport, state_of
from evalguard.report.html.html_page import html_page
from evalguard.report.html.ladder_plots import draw_kl_plot, draw_recovery_plot
from evalguard.report.ladder_table import ladder_legend, ladder_table
from evalguard.report.several_texts import (
    candidate_name,
    grouped_findings,
    several_answer,
    several_rule,
    shared_gate_rule,
    split_texts,
    steps_table,
    verdict_texts,
)
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
        headline=several_answer(report),
        rule=several_rule(report),
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
    recovery, label = draw_recovery_plot(report)
    found = [
        (draw_kl_plot(report), "Mean KL"),
        (recovery, f"Recovery of {label}; the dashed line is the base"),
    ]
    return [(plot, said) for plot, said in found if plot]
