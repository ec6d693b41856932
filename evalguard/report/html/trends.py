"""Trends of a history as pictures with their words, for HTML pages."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from evalguard.history.night import Night
from evalguard.history.report import Trend
from evalguard.report.html.charts.trend import TrendLevel, TrendNight, trend_plot
from evalguard.report.night.words import key_text
from evalguard.report.plain_text import printable
from evalguard.report.rounding import with_stderr
from evalguard.report.trend_text import change_sentences


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
    title = printable(key_text(trend.key))
    said = tuple(map(as_sentence, change_sentences(trend))) or ("No change point.",)
    return TrendFigure(
        title=title,
        plot=trend_plot(
            [_night(night) for night in nights],
            [
                TrendLevel(start=level.start, stop=level.stop, mean=level.mean)
                for level in trend.scan.levels
            ],
            margin=nights[-1].margin,
            ends=(nights[0].run.created[:10], nights[-1].run.created[:10]),
            said=f"{title}: sigma of {len(nights)} nights. {' '.join(said)}",
        ),
        said=said,
    )


def as_sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def _night(night: Night) -> TrendNight:
    metric = night.metric
    value = with_stderr(metric.sigma, metric.stderr)
    return TrendNight(
        sigma=metric.sigma,
        low=metric.sigma_low,
        high=metric.sigma_high,
        kind=metric.outcome if metric.gated else "",
        said=printable(f"{night.run.created}: {value} sigma, {metric.outcome}"),
    )
