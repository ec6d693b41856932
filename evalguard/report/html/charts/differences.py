"""Charts of per-document differences: histogram, quantile plot, share of all change."""

from __future__ import annotations

from itertools import pairwise

from markupsafe import Markup

from evalguard.report.html.charts.frame import axes, inner, path, picture
from evalguard.report.html.charts.scale import Scale
from evalguard.report.html.markup import tag
from evalguard.stats.difference_shape import DifferenceShape

_WIDTH, _HEIGHT = 340.0, 232.0
_UNIT = "sigma that a document adds"


def histogram(shape: DifferenceShape) -> Markup:
    """How many documents differ by how much; right of 0 the candidate is worse."""
    (left, right), (bottom, top) = inner(_WIDTH, _HEIGHT)
    across = Scale(low=shape.edges[0], high=shape.edges[-1], start=left, stop=right)
    up = Scale(low=0.0, high=max(shape.counts) * 1.05, start=bottom, stop=top)
    bars = [
        tag(
            "rect",
            tag("title", f"{low:.2g} to {high:.2g} sigma: {count:,} document{'s' * (count > 1)}"),
            class_="worse" if (low + high) / 2 > 0.0 else "better",
            x=across.at(low) + 0.5,
            y=up.at(count),
            width=max(across.at(high) - across.at(low) - 1.0, 1.0),
            height=bottom - up.at(count),
        )
        for (low, high), count in zip(pairwise(shape.edges), shape.counts, strict=True)
        if count
    ]
    zero = tag("line", class_="zero", x1=across.at(0.0), x2=across.at(0.0), y1=bottom, y2=top)
    said = f"histogram of the differences of {shape.moved:,} documents"
    frame = axes(across, up, (_UNIT, "documents"), ticks=4, counts=True)
    return picture(_WIDTH, _HEIGHT, said, frame, *bars, zero, kind="histogram")


def quantile_plot(shape: DifferenceShape) -> Markup:
    """Differences against a normal distribution of the same mean and spread: the line."""
    (left, right), (bottom, top) = inner(_WIDTH, _HEIGHT)
    normal = [place for place, _ in shape.quantiles]
    line = [shape.mean + shape.sd * place for place in (normal[0], normal[-1])]
    across = Scale.over(normal, left, right)
    up = Scale.over([*(value for _, value in shape.quantiles), *line], bottom, top)
    ends = [(across.at(x), up.at(y)) for x, y in zip((normal[0], normal[-1]), line, strict=True)]
    dots = [
        tag("circle", class_="dot", cx=across.at(x), cy=up.at(y), r=2.2) for x, y in shape.quantiles
    ]
    said = "quantile plot of the differences against a normal distribution"
    frame = axes(across, up, ("quantile of a normal distribution", "difference, sigma"))
    return picture(_WIDTH, _HEIGHT, said, frame, path(ends, "line"), *dots, kind="quantiles")


def share_plot(shape: DifferenceShape) -> Markup:
    """Share of all change that the most changed documents make up; the line: all change alike."""
    (left, right), (bottom, top) = inner(_WIDTH, _HEIGHT)
    across = Scale(low=0.0, high=100.0, start=left, stop=right)
    up = Scale(low=0.0, high=100.0, start=bottom, stop=top)
    points = [(across.at(0.0), up.at(0.0))]
    points += [(across.at(100.0 * x), up.at(100.0 * y)) for x, y in shape.shares]
    alike = path([(left, bottom), (right, top)], "even")
    said = (
        f"the {shape.top:,} most changed of {shape.n:,} documents make up "
        f"{100 * shape.top_share:.0f}% of all change"
    )
    frame = axes(across, up, ("% of the documents, most changed first", "% of all change"))
    return picture(_WIDTH, _HEIGHT, said, frame, alike, path(points, "curve"), kind="shares")
