"""The HTML pages of a comparison, with their plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from evalguard import tools
from evalguard.core.compare_report import CompareReport, RunDocuments
from evalguard.page.charts import (
    LETTER_WIDTH,
    AxisScale,
    draw_axes,
    draw_line,
    draw_picture,
    draw_text,
    plot_area,
    tick_text,
)
from evalguard.page.html_page import html_page, make_tag
from evalguard.report.compare_view import ReportView, build_report_view
from evalguard.report.distribution_section import distribution_table
from evalguard.report.document_table import pack_documents
from evalguard.report.metric_view import MetricView, TaskView, WorstDocument
from evalguard.stats.influence import DifferenceShape, difference_shape

_CHART_WIDTH, _HEIGHT = 340.0, 232.0
_UNIT = "sigma that a document adds"


def draw_histogram(shape: DifferenceShape) -> Markup:
    """How many documents differ by how much; right of 0 the candidate is worse."""
    (left, right), (bottom, top) = plot_area(_CHART_WIDTH, _HEIGHT)
    across = AxisScale(low=shape.edges[0], high=shape.edges[-1], start=left, stop=right)
    up = AxisScale(low=0.0, high=max(shape.counts) * 1.05, start=bottom, stop=top)
    bars = [
        make_tag(
            "rect",
            make_tag(
                "title", f"{low:.2g} to {high:.2g} sigma: {count:,} document{'s' * (count > 1)}"
            ),
            class_="worse" if (low + high) / 2 > 0.0 else "better",
            x=across.at(low) + 0.5,
            y=up.at(count),
            width=max(across.at(high) - across.at(low) - 1.0, 1.0),
            height=bottom - up.at(count),
        )
        for (low, high), count in zip(pairwise(shape.edges), shape.counts, strict=True)
        if count
    ]
    zero = make_tag("line", class_="zero", x1=across.at(0.0), x2=across.at(0.0), y1=bottom, y2=top)
    caption = f"histogram of the differences of {shape.moved:,} documents"
    frame = draw_axes(across, up, (_UNIT, "documents"), ticks=4, counts=True)
    return draw_picture(_CHART_WIDTH, _HEIGHT, caption, frame, *bars, zero, kind="histogram")


def draw_quantile_plot(shape: DifferenceShape) -> Markup:
    """Differences against a normal distribution of the same mean and spread: the line."""
    (left, right), (bottom, top) = plot_area(_CHART_WIDTH, _HEIGHT)
    normal = [quantile for quantile, _ in shape.quantiles]
    line = [shape.mean + shape.sd * quantile for quantile in (normal[0], normal[-1])]
    across = AxisScale.over(normal, left, right)
    up = AxisScale.over([*(value for _, value in shape.quantiles), *line], bottom, top)
    ends = [(across.at(x), up.at(y)) for x, y in zip((normal[0], normal[-1]), line, strict=True)]
    dots = [
        make_tag("circle", class_="dot", cx=across.at(x), cy=up.at(y), r=2.2)
        for x, y in shape.quantiles
    ]
    caption = "quantile plot of the differences against a normal distribution"
    frame = draw_axes(across, up, ("quantile of a normal distribution", "difference, sigma"))
    return draw_picture(
        _CHART_WIDTH, _HEIGHT, caption, frame, draw_line(ends, "line"), *dots, kind="quantiles"
    )


def draw_share_plot(shape: DifferenceShape) -> Markup:
    """Share of all change that the most changed documents make up; the line: all change alike."""
    (left, right), (bottom, top) = plot_area(_CHART_WIDTH, _HEIGHT)
    across = AxisScale(low=0.0, high=100.0, start=left, stop=right)
    up = AxisScale(low=0.0, high=100.0, start=bottom, stop=top)
    points = [(across.at(0.0), up.at(0.0))]
    points += [(across.at(100.0 * x), up.at(100.0 * y)) for x, y in shape.shares]
    alike = draw_line([(left, bottom), (right, top)], "even")
    caption = (
        f"the {shape.top:,} most changed of {shape.n:,} documents make up "
        f"{100 * shape.top_share:.0f}% of all change"
    )
    frame = draw_axes(across, up, ("% of the documents, most changed first", "% of all change"))
    return draw_picture(
        _CHART_WIDTH, _HEIGHT, caption, frame, alike, draw_line(points, "curve"), kind="shares"
    )


_FEWEST_DOCUMENTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSection:
    """What carries the drift in a sentence, "" where a metric's own section says it."""

    influence: str
    shapes: tuple[ShapeSection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSection:
    """One metric's differences: sentences, pictures with what is said below each, the documents
    that move it most. Of one or two documents that differ there is nothing to draw.
    """

    label: str
    sigma: str
    moved: str
    tail: str
    pictures: tuple[tuple[Markup, str], ...]
    worst: tuple[WorstDocument, ...]


def drift_section(view: ReportView, documents: Sequence[RunDocuments]) -> DriftSection:
    """Return every metric whose documents differ, the largest sigma first."""
    by_task = {run_documents.task: run_documents for run_documents in documents}
    pairs = [
        (metric, shape)
        for metric in sorted(view.metrics, key=_drift_order, reverse=True)
        if metric.task in by_task
        and (shape := _metric_shape(by_task[metric.task], metric)) is not None
    ]
    shown = any(metric.full_label == view.influential for metric, _ in pairs)
    return DriftSection(
        influence="" if shown else view.influence,
        shapes=tuple(_shape_section(metric, shape) for metric, shape in pairs),
    )


def _drift_order(metric: MetricView) -> float:
    return abs(metric.plot.sigma) if metric.plot.sigma is not None else 0.0


def _metric_shape(documents: RunDocuments, metric: MetricView) -> DifferenceShape | None:
    drifts = documents.drifts(metric.filter, metric.metric)
    return None if drifts is None else difference_shape(np.asarray(drifts, dtype=np.float64))


def _shape_section(metric: MetricView, shape: DifferenceShape) -> ShapeSection:
    carried = "" if metric.influence is None else f"{metric.influence.carried} "
    return ShapeSection(
        label=metric.full_label,
        sigma="" if metric.plot.sigma is None else f"{metric.size}, ",
        moved=_moved_text(shape),
        tail=f"{carried}{_top_share_text(shape)}",
        pictures=_draw_shape(shape) if shape.moved >= _FEWEST_DOCUMENTS else (),
        worst=() if metric.influence is None else metric.influence.worst,
    )


def _draw_shape(shape: DifferenceShape) -> tuple[tuple[Markup, str], ...]:
    normal = "The dashed line is a normal distribution of the same mean and spread."
    return (
        (draw_histogram(shape), _outliers_text(shape)),
        (draw_quantile_plot(shape), normal),
        (draw_share_plot(shape), "The dashed line: all documents change alike."),
    )


def _moved_text(shape: DifferenceShape) -> str:
    documents = f"{shape.n:,} document{'' if shape.n == 1 else 's'}"
    return f"{shape.moved:,} of {documents} {'differs' if shape.moved == 1 else 'differ'}"


def _top_share_text(shape: DifferenceShape) -> str:
    part = f"{100 * shape.top_share:.0f}% of all change"
    if shape.top == 1:
        return f"The most changed document makes up {part}."
    return f"The {shape.top:,} most changed documents (1%) make up {part}."


def _outliers_text(shape: DifferenceShape) -> str:
    still = shape.n - shape.moved
    parts = ["Right of 0 the candidate is worse."]
    if still:
        parts.append(f"Not drawn: {still:,} that do not differ.")
    outside = shape.below + shape.above
    if outside:
        verb = "lies" if outside == 1 else "lie"
        parts.append(f"{outside:,} {verb} further out, in the end bars.")
    return " ".join(parts)


_WIDTH, _ROW, _AXIS = 320.0, 26.0, 33.0
_EDGE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestBar:
    """One row: ``kind`` is a class of the stylesheet (the outcome), ``said`` the row in words.

    Each may be infinite: then it lies at the axis' end, sigma as an arrow. Without a sigma nothing
    is drawn; ``low`` and ``high`` are None where it has no interval. ``margin`` is the row's own.
    """

    sigma: float | None
    low: float | None
    high: float | None
    kind: str
    said: str
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestPlot:
    """Rows that share one axis; ``margin`` is that of all of them, None where they differ."""

    scale: AxisScale
    margin: float | None

    @classmethod
    def over(cls, bars: Sequence[ForestBar]) -> ForestPlot:
        """The axis holds every row, 0 and the margins."""
        ends = [end for bar in bars for end in (bar.sigma, bar.low, bar.high)]
        margins = list(dict.fromkeys(bar.margin for bar in bars)) or [1.0]
        scale = AxisScale.over([0.0, *margins, *ends], _EDGE, _WIDTH - _EDGE, bend=True)
        return cls(scale=scale, margin=margins[0] if len(margins) == 1 else None)

    def row(self, bar: ForestBar) -> Markup:
        """A row's picture."""
        middle = _ROW / 2
        parts = [self._rule(0.0, "zero"), self._rule(bar.margin, "margin")]
        if bar.sigma is not None:
            low = self.scale.at(bar.sigma if bar.low is None else bar.low)
            high = self.scale.at(bar.sigma if bar.high is None else bar.high)
            position = self.scale.at(bar.sigma)
            parts += [
                make_tag("line", class_="whisker", x1=low, x2=high, y1=middle, y2=middle),
                _draw_interval_end(low, bar.low),
                _draw_interval_end(high, bar.high),
                _draw_point(position, bar.sigma),
            ]
        return draw_picture(_WIDTH, _ROW, bar.said, *parts, kind=f"forest {bar.kind}")

    def axis(self) -> Markup:
        """The axis below all rows, with the margin named where they share it."""
        scale = self.scale
        parts = [make_tag("line", class_="axis", x1=scale.start, x2=scale.stop, y1=1.0, y2=1.0)]
        for value in scale.ticks(letter=LETTER_WIDTH):
            position = scale.at(value)
            parts.append(make_tag("line", class_="axis", x1=position, x2=position, y1=1.0, y2=5.0))
            parts.append(draw_text(position, 16.0, tick_text(value), anchor="middle"))
        if self.margin is not None:
            parts.append(
                draw_text(scale.at(self.margin), 28.0, "margin", anchor="middle", kind="name")
            )
        caption = f"sigma, from {tick_text(scale.low)} to {tick_text(scale.high)}"
        return draw_picture(_WIDTH, _AXIS, caption, *parts, kind="forest axis-row")

    def _rule(self, value: float, kind: str) -> Markup:
        position = self.scale.at(value)
        return make_tag("line", class_=kind, x1=position, x2=position, y1=0.0, y2=_ROW)


def _draw_point(place: float, sigma: float) -> Markup:
    if math.isfinite(sigma):
        return make_tag("circle", class_="point", cx=place, cy=_ROW / 2, r=4.5)
    return _draw_arrow(place, sigma, 9.0, 6.0, "point")


def _draw_interval_end(place: float, value: float | None) -> Markup:
    """The end of an interval: a bar across; an arrow where the interval has no end."""
    if value is None or math.isfinite(value):
        upper, lower = _ROW / 2 - 4.0, _ROW / 2 + 4.0
        return make_tag("line", class_="whisker", x1=place, x2=place, y1=upper, y2=lower)
    return _draw_arrow(place, value, 6.0, 4.0, "endless")


def _draw_arrow(place: float, towards: float, long: float, wide: float, kind: str) -> Markup:
    tip = math.copysign(long, towards)
    corners = ((0.0, -wide), (tip, 0.0), (0.0, wide))
    points = " ".join(f"{place + x:.1f},{_ROW / 2 + y:.1f}" for x, y in corners)
    return make_tag("polygon", class_=kind, points=points)


_MOST_UNFOLDED = 15  # rows
_MOST_NAMED = 20
_GRAVE_STATES = ("regressed", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A row of the table; ``name`` is its id in the page, which no text of a run is part of."""

    name: str
    metric: MetricView
    picture: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRows:
    """The table: its tasks, their axis, and of a table too long to be seen at once the worst rows.

    ``worst``: metrics that regressed or failed, the largest drift first; ``more`` are not named.
    """

    tasks: tuple[tuple[TaskView, tuple[MetricRow, ...]], ...]
    axis: Markup
    long: bool
    worst: tuple[MetricRow, ...]
    more: int


def metric_rows(view: ReportView) -> MetricRows:
    """Return each task with its shown metrics and their pictures, and the axis of them all."""
    shown = [metric for metric in view.metrics if metric.shown]
    forest = ForestPlot.over([_forest_bar(metric) for metric in shown])
    rows = [
        MetricRow(name=f"metric-{number}", metric=metric, picture=forest.row(_forest_bar(metric)))
        for number, metric in enumerate(shown)
    ]
    own = iter(rows)
    tasks = [(task, tuple(islice(own, sum(m.shown for m in task.metrics)))) for task in view.tasks]
    long = len(rows) > _MOST_UNFOLDED
    grave = sorted(
        (r for r in rows if long and r.metric.outcome in _GRAVE_STATES), key=_sigma_order
    )
    return MetricRows(
        tasks=tuple((task, of_task) for task, of_task in tasks if of_task),
        axis=forest.axis(),
        long=long,
        worst=tuple(grave[:_MOST_NAMED]),
        more=max(len(grave) - _MOST_NAMED, 0),
    )


def _sigma_order(row: MetricRow) -> float:
    return -math.inf if row.metric.plot.sigma is None else -row.metric.plot.sigma


def _forest_bar(metric: MetricView) -> ForestBar:
    return ForestBar(
        sigma=metric.plot.sigma,
        low=metric.plot.low,
        high=metric.plot.high,
        kind=metric.outcome,
        said=f"{metric.full_label}: sigma {metric.sigma} {metric.interval}",
        margin=metric.plot.margin,
    )


_SCRIPTS = ("blocks.js", "rows.js", "grid.js", "tokens.js", "drilldown.js", "report.js")


def render_html(view: ReportView, documents: Sequence[RunDocuments] = (), trace: Any = None) -> str:
    """Return the page of a comparison.

    Args:
        trace: a ``TraceView`` of the two models; None: there is none.
        documents: what was asked and answered, one per task; without them there is neither a table
            of documents nor a picture of their differences.
    """
    tables = pack_documents(view, documents)
    drift = drift_section(view, documents)
    return html_page(
        "report/report.html",
        scripts=(
            *(_SCRIPTS if tables.blocks else ()),
            *(() if trace is None else tools.fetch("TRACE_SCRIPTS")),
        ),
        view=view,
        trace=trace,
        growth=None if trace is None else tools.fetch("draw_growth")(trace),
        forest=metric_rows(view),
        distributions=distribution_table(view.distributions),
        influence=drift.influence,
        shapes=drift.shapes,
        stories=(
            () if view.bisection is None else tools.fetch("bisection_section")(view.bisection)
        ),
        tables=bool(tables.blocks),
        cuts=tables.cuts,
        blocks=tables.blocks,
    )


def render_forest_page(report: CompareReport) -> str:
    """Return a self-contained page: the verdict in a sentence, sigma of every metric drawn, and
    the table of distributions where they were compared, else why not.
    """
    view = build_report_view(report)
    return html_page(
        "report/tracker_page.html",
        view=view,
        forest=metric_rows(view),
        distributions=distribution_table(view.distributions),
    )
