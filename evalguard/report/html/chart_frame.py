"""The picture around a chart, as inline SVG coloured by the page's stylesheet, and its axes."""

from __future__ import annotations

from markupsafe import Markup

from evalguard.report.html.axis_scale import AxisScale, tick_text
from evalguard.report.html.markup import make_tag

_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 12.0, 22.0, 34.0
LETTER_WIDTH = 6.5  # how wide a letter of a tick is, as charts.css has it


def draw_picture(width: float, height: float, said: str, *parts: object, kind: str = "") -> Markup:
    """A picture with what it shows in words, for those who do not see it."""
    return make_tag(
        "svg",
        *parts,
        class_=f"chart {kind}".strip(),
        role="img",
        aria_label=said,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
    )


def plot_area(width: float, height: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a chart with two axes draws: (left, right) and (bottom, top)."""
    return (_LEFT, width - _RIGHT), (height - _BOTTOM, _TOP)


def draw_axes(
    across: AxisScale,
    up: AxisScale,
    names: tuple[str, str],
    *,
    ticks: int = 6,
    counts: bool = False,
) -> Markup:
    """A horizontal axis below and a vertical one on the left, with their names.

    Args:
        ticks: about how many there are along the horizontal one.
        counts: the vertical one counts something: no ticks between whole numbers.
    """
    bottom, left = up.start, across.start
    parts = [make_tag("line", class_="axis", x1=left, x2=across.stop, y1=bottom, y2=bottom)]
    for value in across.ticks(ticks, letter=LETTER_WIDTH):
        place = across.at(value)
        parts.append(make_tag("line", class_="axis", x1=place, x2=place, y1=bottom, y2=bottom + 4))
        parts.append(draw_text(place, bottom + 15, tick_text(value), anchor="middle"))
    for value in up.ticks(4):
        if counts and not value.is_integer():
            continue
        place = up.at(value)
        parts.append(make_tag("line", class_="grid", x1=left, x2=across.stop, y1=place, y2=place))
        parts.append(draw_text(left - 5, place + 4, tick_text(value), anchor="end"))
    middle = (across.start + across.stop) / 2
    parts.append(draw_text(middle, bottom + 30, names[0], anchor="middle", kind="name"))
    parts.append(draw_text(4.0, up.stop - 10, names[1], kind="name"))
    return make_tag("g", *parts)


def draw_text(
    x: float, y: float, text: str, *, anchor: str = "start", kind: str = "tick"
) -> Markup:
    """A piece of text in a picture."""
    return make_tag("text", text, class_=kind, x=x, y=y, text_anchor=anchor)


def draw_line(points: list[tuple[float, float]], kind: str) -> Markup:
    """A line through points."""
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return make_tag("path", class_=kind, d=d)
