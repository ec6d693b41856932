"""The section about where a drift comes from: how single documents differ, metric by metric, with
charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from evalguard.core.reports.run_documents import RunDocuments
from evalguard.report.html.charts import AxisScale, draw_axes, draw_line, draw_picture, plot_area
from evalguard.report.html.page import make_tag
from evalguard.report.view.metric import MetricView, WorstDocument
from evalguard.report.view.report import ReportView
from evalguard.stats.difference_shape import DifferenceShape, difference_shape

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
    by_task = {one.task: one for one in documents}
    found = [
        (metric, shape)
        for metric in sorted(view.metrics, key=_drift_order, reverse=True)
        if metric.task in by_task
        and (shape := _metric_shape(by_task[metric.task], metric)) is not None
    ]
    said = any(
        metric.influence is not None and view.influence.endswith(metric.influence.text)
        for metric, _ in found
    )
    return DriftSection(
        influence="" if said else view.influence,
        shapes=tuple(_shape_section(metric, shape) for metric, shape in found),
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
        sigma="" if metric.plot.sigma is None else f"{metric.sigma} sigma, ",
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


# Charts of per-document differences: histogram, quantile plot, share of all change.


_WIDTH, _HEIGHT = 340.0, 232.0
_UNIT = "sigma that a document adds"


def draw_histogram(shape: DifferenceShape) -> Markup:
    """How many documents differ by how much; right of 0 the candidate is worse."""
    (left, right), (bottom, top) = plot_area(_WIDTH, _HEIGHT)
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
    said = f"histogram of the differences of {shape.moved:,} documents"
    frame = draw_axes(across, up, (_UNIT, "documents"), ticks=4, counts=True)
    return draw_picture(_WIDTH, _HEIGHT, said, frame, *bars, zero, kind="histogram")


def draw_quantile_plot(shape: DifferenceShape) -> Markup:
    """Differences against a normal distribution of the same mean and spread: the line."""
    (left, right), (bottom, top) = plot_area(_WIDTH, _HEIGHT)
    normal = [place for place, _ in shape.quantiles]
    line = [shape.mean + shape.sd * place for place in (normal[0], normal[-1])]
    across = AxisScale.over(normal, left, right)
    up = AxisScale.over([*(value for _, value in shape.quantiles), *line], bottom, top)
    ends = [(across.at(x), up.at(y)) for x, y in zip((normal[0], normal[-1]), line, strict=True)]
    dots = [
        make_tag("circle", class_="dot", cx=across.at(x), cy=up.at(y), r=2.2)
        for x, y in shape.quantiles
    ]
    said = "quantile plot of the differences against a normal distribution"
    frame = draw_axes(across, up, ("quantile of a normal distribution", "difference, sigma"))
    return draw_picture(
        _WIDTH, _HEIGHT, said, frame, draw_line(ends, "line"), *dots, kind="quantiles"
    )


def draw_share_plot(shape: DifferenceShape) -> Markup:
    """Share of all change that the most changed documents make up; the line: all change alike."""
    (left, right), (bottom, top) = plot_area(_WIDTH, _HEIGHT)
    across = AxisScale(low=0.0, high=100.0, start=left, stop=right)
    up = AxisScale(low=0.0, high=100.0, start=bottom, stop=top)
    points = [(across.at(0.0), up.at(0.0))]
    points += [(across.at(100.0 * x), up.at(100.0 * y)) for x, y in shape.shares]
    alike = draw_line([(left, bottom), (right, top)], "even")
    said = (
        f"the {shape.top:,} most changed of {shape.n:,} documents make up "
        f"{100 * shape.top_share:.0f}% of all change"
    )
    frame = draw_axes(across, up, ("% of the documents, most changed first", "% of all change"))
    return draw_picture(
        _WIDTH, _HEIGHT, said, frame, alike, draw_line(points, "curve"), kind="shares"
    )
