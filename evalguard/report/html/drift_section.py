"""The section about where a drift comes from: how single documents differ, metric by metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from evalguard.core.reports.run_documents import RunDocuments
from evalguard.report.html.difference_charts import (
    draw_histogram,
    draw_quantile_plot,
    draw_share_plot,
)
from evalguard.report.view.influence_view import WorstDocument
from evalguard.report.view.metric_view import MetricView
from evalguard.report.view.report_view import ReportView
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
    said = any(metric.full_label == view.influential for metric, _ in found)
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
