"""A trace as a page of its own, and the pictures of its section in a comparison's page."""

from __future__ import annotations

from math import inf, log10

from markupsafe import Markup

from evalguard.core.reports.trace_report import TraceReport
from evalguard.report.html.axis_scale import AxisScale
from evalguard.report.html.chart_frame import draw_line, draw_picture, draw_text
from evalguard.report.html.html_page import html_page
from evalguard.report.html.markup import make_tag
from evalguard.report.trace.depth_growth import DepthPoint
from evalguard.report.trace.trace_view import TraceView, build_trace_view
from evalguard.report.trace.trace_words import format_ratio

TRACE_SCRIPTS = ("sortable.js", "beyond.js")
_HEIGHT, _NARROWEST, _WIDEST, _STEP = 260.0, 560.0, 1100.0, 26.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 16.0, 24.0, 70.0
_MOST_POWERS = 6.0
_LONGEST_LABEL = 14
_MOST_LABELS = 30
_ENDLESS = 1e15  # an infinite ratio is drawn here


def render_trace_page(report: TraceReport) -> str:
    """Return the page of a trace."""
    view = build_trace_view(report)
    return html_page("trace.html", scripts=TRACE_SCRIPTS, trace=view, growth=draw_growth(view))


def draw_growth(view: TraceView) -> Markup:
    """Draw both ratios over depth on a logarithmic axis; empty where there is too little.

    Dots: the largest local ratio of each layer, red above the threshold. A line: the accumulated
    ratio behind it. A dashed line: the threshold.
    """
    points = view.growth
    if len(points) < 2:
        return Markup()
    width = min(max(_NARROWEST, _LEFT + _RIGHT + _STEP * len(points)), _WIDEST)
    across = AxisScale(low=0.0, high=float(len(points) - 1), start=_LEFT + 8, stop=width - _RIGHT)
    powers = [
        _power(ratio)
        for one in points
        for ratio in (one.local, one.accumulated, view.threshold)
        if ratio is not None
    ]
    up = AxisScale.over([*powers, 0.0], _HEIGHT - _BOTTOM, _TOP)
    parts = [*_draw_frame(up, width), *_draw_labels(points, across)]
    if view.threshold is not None:
        place = up.at(_power(view.threshold))
        parts.append(make_tag("line", class_="margin", x1=_LEFT, x2=width, y1=place, y2=place))
    line = [
        (across.at(at), up.at(_power(one.accumulated)))
        for at, one in enumerate(points)
        if one.accumulated is not None
    ]
    if len(line) > 1:
        parts.append(draw_line(line, "accumulated"))
    for at, one in enumerate(points):
        if one.local is not None:
            parts.append(_draw_dot(one, across.at(at), up.at(_power(one.local)), view.threshold))
    said = f"Error over the floor at {len(points)} places in order of depth. {view.lead}"
    return draw_picture(width, _HEIGHT, said, *parts, kind="growth")


def _power(ratio: float | None) -> float:
    if ratio is None or ratio <= 0.0:
        return -1.0
    return log10(_ENDLESS if ratio == inf else max(ratio, 0.1))


def _draw_dot(one: DepthPoint, x: float, y: float, threshold: float | None) -> Markup:
    beyond = one.local is not None and threshold is not None and one.local > threshold
    title = make_tag(
        "title",
        f"{one.label}: local {format_ratio(one.local)}, accumulated "
        f"{format_ratio(one.accumulated)} the floor",
    )
    kind = "point beyond first" if one.first else "point beyond" if beyond else "point"
    return make_tag("circle", title, class_=kind, cx=x, cy=y, r=6.0 if one.first else 4.0)


def _draw_frame(up: AxisScale, width: float) -> list[Markup]:
    step = max(1, round((up.high - up.low) / _MOST_POWERS))
    parts = []
    for power in range(int(up.low) - 1, int(up.high) + 1):
        if not up.low <= power <= up.high or power % step:
            continue
        place = up.at(float(power))
        parts.append(make_tag("line", class_="grid", x1=_LEFT, x2=width, y1=place, y2=place))
        parts.append(draw_text(_LEFT - 6, place + 4, _power_text(power), anchor="end"))
    bottom = _HEIGHT - _BOTTOM
    parts.append(make_tag("line", class_="axis", x1=_LEFT, x2=width, y1=bottom, y2=bottom))
    parts.append(draw_text(4.0, _TOP - 10, "error over the floor", kind="name"))
    return parts


def _power_text(power: int) -> str:
    return f"{10.0**power:g}x" if -2 <= power <= 4 else f"1e{power}x"


def _draw_labels(points: tuple[DepthPoint, ...], across: AxisScale) -> list[Markup]:
    """Names below the axis, turned; every few where they would crowd."""
    step = max(1, -(-len(points) // _MOST_LABELS))
    parts = []
    for at, one in enumerate(points):
        if at % step and not one.first:
            continue
        x, y = across.at(at), _HEIGHT - _BOTTOM + 12
        text = one.label if len(one.label) <= _LONGEST_LABEL else f"{one.label[:12]}…"
        parts.append(
            make_tag(
                "text", text, class_="tick", x=x, y=y, text_anchor="end",
                transform=f"rotate(-40 {x:.1f} {y:.1f})",
            )
        )  # fmt: skip
    return parts
