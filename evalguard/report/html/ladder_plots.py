"""What the candidates of one base lose, or keep, by their size; a hover shows a candidate's row."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from evalguard.core.comparison import Comparison
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.ladder import LadderRow, ladder_rows
from evalguard.core.reports.several_report import SeveralReport
from evalguard.report.html.size_plot import PlottedModel, draw_size_plot
from evalguard.report.ladder_table import ranked_metrics, row_texts
from evalguard.report.words.metric_labels import full_label

_Value = tuple[float | None, tuple[float, float] | None]  # with its interval


def draw_kl_plot(report: SeveralReport) -> Markup:
    """Draw mean KL by size; Markup("") where no candidate has both."""
    values = [(row.kl.value, row.kl.interval) for row in ladder_rows(report.candidates)]
    return draw_size_plot(_models(report, values), name="mean KL, nats a token", better="lower")


def draw_recovery_plot(report: SeveralReport) -> tuple[Markup, str]:
    """Draw what is kept of the metric that drifts most, by size, and return that metric's name."""
    for key in ranked_metrics(report)[:1]:
        found = [_comparison(row, key) for row in ladder_rows(report.candidates)]
        values = [(None, None) if c is None else (c.recovery, c.recovery_interval) for c in found]
        models = _models(report, values)
        plot = draw_size_plot(models, name="recovery, %", better="higher", base=100.0)
        return plot, next(full_label(c) for c in found if c is not None)
    return Markup(""), ""


def _models(report: SeveralReport, values: Sequence[_Value]) -> list[PlottedModel]:
    rows = zip(ladder_rows(report.candidates), row_texts(report), values, strict=True)
    return [
        PlottedModel(
            name=row.name,
            size=None if row.size is None else row.size.shown_bytes,
            value=value,
            interval=interval,
            row=text,
            state=row.state,
        )
        for row, text, (value, interval) in rows
    ]


def _comparison(row: LadderRow, key: tuple[str, str, str]) -> Comparison | None:
    comparisons = row.outcome.comparisons if isinstance(row.outcome, CompareReport) else ()
    return next((one for one in comparisons if one.key == key), None)
