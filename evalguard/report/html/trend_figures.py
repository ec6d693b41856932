"""Trends of a history as pictures with their words, for HTML pages."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from evalguard.core.drift_unit import DriftUnit
from evalguard.core.history_night import Night
from evalguard.core.reports.history_report import Trend
from evalguard.report.html.trend_plot import TrendLevel, TrendNight, draw_trend
from evalguard.report.trends import change_sentences
from evalguard.report.words.glossary import outcome_name
from evalguard.report.words.night_news import metric_key_text
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_with_stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendFigure:
    """A metric over nights: a picture, and what it shows in words."""

    title: str
    plot: Markup
    said: tuple[str, ...]


def trend_figure(trend: Trend) -> TrendFigure | None:
    """The figure of a metric; None where no night has a number."""
    if not trend.used:
        return None
    nights = [trend.nights[place] for place in trend.used]
    title = printable(metric_key_text(trend.key))
    said = tuple(map(format_sentence, change_sentences(trend))) or ("No change point.",)
    return TrendFigure(
        title=title,
        plot=draw_trend(
            [_plotted_night(night, trend.unit) for night in nights],
            [
                TrendLevel(start=level.start, stop=level.stop, mean=level.mean)
                for level in trend.scan.levels
            ],
            margin=nights[-1].margin_in(trend.unit),
            unit=trend.unit,
            ends=(nights[0].run.created[:10], nights[-1].run.created[:10]),
            said=f"{title}: {trend.unit} of {len(nights)} nights. {' '.join(said)}",
        ),
        said=said,
    )


def format_sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def _plotted_night(night: Night, unit: DriftUnit) -> TrendNight:
    metric = night.metric
    drift, stderr = metric.drift_in(unit)
    low, high = metric.interval_in(unit)
    value = format_with_stderr(drift, stderr)
    return TrendNight(
        drift=drift,
        low=low,
        high=high,
        kind=metric.outcome if metric.gated else "",
        said=printable(f"{night.run.created}: {value} {unit}, {outcome_name(metric.outcome)}"),
    )
