"""Pages of a history: sigma of each metric over nights as a plot with its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalguard.core.history import Night
from evalguard.core.reports.history_report import Trend, TrendReport
from evalguard.report.html.charts import AxisScale, draw_picture, draw_text, plot_area, tick_text
from evalguard.report.html.page import html_page, make_tag
from evalguard.report.night import metric_key_text
from evalguard.report.trends import change_sentences, trend_error_text
from evalguard.report.words.glossary import outcome_name
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_with_stderr


def render_history_page(report: TrendReport) -> str:
    """Return the page of a pair's trends, with their change points."""
    figures = [figure for trend in report.trends if (figure := trend_figure(trend)) is not None]
    return html_page(
        "history.html",
        title=printable(f"{report.candidate} against {report.base}: sigma over nights"),
        figures=figures,
        rate=format_sentence(trend_error_text(report)),
        file=printable(report.file),
        problems=[printable(line) for line in report.problems],
    )


# Trends of a history as pictures with their words, for HTML pages.


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
            [_plotted_night(night) for night in nights],
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


def format_sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def _plotted_night(night: Night) -> TrendNight:
    metric = night.metric
    value = format_with_stderr(metric.sigma, metric.stderr)
    return TrendNight(
        sigma=metric.sigma,
        low=metric.sigma_low,
        high=metric.sigma_high,
        kind=metric.outcome if metric.gated else "",
        said=printable(f"{night.run.created}: {value} sigma, {outcome_name(metric.outcome)}"),
    )


# Trend plot: sigma of one metric over nights, its levels, and where they change.


_WIDTH, _HEIGHT = 720.0, 240.0
_MOST_INTERVALS = 400  # nights whose intervals can still be told apart
_FEW_NIGHTS = 120  # nights whose dots do not hide the level that runs through them


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendNight:
    """One night: ``low`` and ``high`` end its interval; ``said`` is its row in words.

    ``kind`` is a class of the stylesheet (the outcome). A night without a finite sigma is a gap.
    """

    sigma: float | None
    low: float | None = None
    high: float | None = None
    kind: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLevel:
    """Nights ``start`` to ``stop`` (exclusive, positions among all nights) with one mean sigma."""

    start: int
    stop: int
    mean: float


def draw_trend(
    nights: Sequence[TrendNight],
    levels: Sequence[TrendLevel],
    *,
    margin: float,
    ends: tuple[str, str],
    said: str,
) -> Markup:
    """Sigma over nights, with the margin; a vertical line stands where a new level begins.

    Args:
        ends: what is written below the first and the last night.
        said: the picture in words.
    """
    (left, right), (bottom, top) = plot_area(_WIDTH, _HEIGHT)
    shown = [value for night in nights for value in (night.sigma, night.low, night.high)]
    up = AxisScale.over([0.0, margin, *shown], bottom, top, bend=True)
    across = AxisScale(low=-0.5, high=max(len(nights), 1) - 0.5, start=left, stop=right)
    few = len(nights) <= _FEW_NIGHTS
    dots = [_draw_night(night, across.at(place), up, bars=len(nights) <= _MOST_INTERVALS, few=few)
            for place, night in enumerate(nights)]  # fmt: skip
    drawn = _draw_levels(levels, across, up)
    parts: list[object] = [_draw_rules(up, across, margin)]
    parts += [*drawn, *dots] if few else [*dots, *drawn]
    parts.append(draw_text(4.0, top - 10, "sigma", kind="name"))
    parts.append(draw_text(left, bottom + 16, ends[0]))
    if ends[1] != ends[0]:
        parts.append(draw_text(right, bottom + 16, ends[1], anchor="end"))
    return draw_picture(_WIDTH, _HEIGHT, said, *parts, kind="trend" if few else "trend crowded")


def _draw_rules(up: AxisScale, across: AxisScale, margin: float) -> Markup:
    parts = []
    for value in up.ticks(5):
        place = up.at(value)
        kind = "zero" if value == 0.0 else "grid"
        parts.append(
            make_tag("line", class_=kind, x1=across.start, x2=across.stop, y1=place, y2=place)
        )
        parts.append(draw_text(across.start - 5, place + 4, tick_text(value), anchor="end"))
    place = up.at(margin)
    parts.append(
        make_tag("line", class_="margin", x1=across.start, x2=across.stop, y1=place, y2=place)
    )
    parts.append(draw_text(across.stop, place - 4, "margin", anchor="end", kind="name"))
    return make_tag("g", *parts)


def _draw_levels(levels: Sequence[TrendLevel], across: AxisScale, up: AxisScale) -> list[Markup]:
    parts = []
    for number, level in enumerate(levels):
        first, last = across.at(level.start - 0.5), across.at(level.stop - 0.5)
        place = up.at(level.mean)
        if number:
            parts.append(
                make_tag("line", class_="change", x1=first, x2=first, y1=up.start, y2=up.stop)
            )
        parts.append(make_tag("line", class_="level", x1=first, x2=last, y1=place, y2=place))
    return parts


def _draw_night(night: TrendNight, x: float, up: AxisScale, *, bars: bool, few: bool) -> Markup:
    if night.sigma is None or not math.isfinite(night.sigma):
        return Markup("")
    parts: list[object] = [make_tag("title", night.said)] if night.said else []
    if bars and night.low is not None and night.high is not None:
        low, high = up.at(night.low), up.at(night.high)
        parts.append(make_tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high))
    parts.append(
        make_tag("circle", class_="point", cx=x, cy=up.at(night.sigma), r=3.0 if few else 1.5)
    )
    return make_tag("g", *parts, class_=f"night {night.kind}".strip())
