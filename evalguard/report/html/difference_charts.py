"""Charts of per-document differences: histogram, quantile plot, share of all change."""

from __future__ import annotations

from itertools import pairwise

from markupsafe import Markup

from evalguard.report.html.axis_scale import AxisScale
from evalguard.report.html.chart_frame import draw_axes, draw_line, draw_picture, plot_area
from evalguard.report.html.markup import make_tag
from evalguard.stats.difference_shape import DifferenceShape

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
