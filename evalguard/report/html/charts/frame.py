"""Frame: the picture around a chart, and its axes."""

from __future__ import annotations

from markupsafe import Markup

from evalguard.report.html.charts.scale import Scale, tick_text
from evalguard.report.html.markup import tag

_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 12.0, 22.0, 34.0
LETTER = 6.5  # how wide a letter of a tick is, as charts.css has it


def picture(width: float, height: float, said: str, *parts: object, kind: str = "") -> Markup:
    """A picture with what it shows in words, for those who do not see it."""
    return tag(
        "svg",
        *parts,
        class_=f"chart {kind}".strip(),
        role="img",
        aria_label=said,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
    )


def inner(width: float, height: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where a chart with two axes draws: (left, right) and (bottom, top)."""
    return (_LEFT, width - _RIGHT), (height - _BOTTOM, _TOP)


def axes(
    across: Scale, up: Scale, names: tuple[str, str], *, ticks: int = 6, counts: bool = False
) -> Markup:
    """A horizontal axis below and a vertical one on the left, with their names.

    Args:
        ticks: about how many there are along the horizontal one.
        counts: the vertical one counts something: no ticks between whole numbers.
    """
    bottom, left = up.start, across.start
    parts = [tag("line", class_="axis", x1=left, x2=across.stop, y1=bottom, y2=bottom)]
    for value in across.ticks(ticks, letter=LETTER):
        place = across.at(value)
        parts.append(tag("line", class_="axis", x1=place, x2=place, y1=bottom, y2=bottom + 4))
        parts.append(words(place, bottom + 15, tick_text(value), anchor="middle"))
    for value in up.ticks(4):
        if counts and not value.is_integer():
            continue
        place = up.at(value)
        parts.append(tag("line", class_="grid", x1=left, x2=across.stop, y1=place, y2=place))
        parts.append(words(left - 5, place + 4, tick_text(value), anchor="end"))
    middle = (across.start + across.stop) / 2
    parts.append(words(middle, bottom + 30, names[0], anchor="middle", kind="name"))
    parts.append(words(4.0, up.stop - 10, names[1], kind="name"))
    return tag("g", *parts)


def words(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "tick") -> Markup:
    """A piece of text in a picture."""
    return tag("text", text, class_=kind, x=x, y=y, text_anchor=anchor)


def path(points: list[tuple[float, float]], kind: str) -> Markup:
    """A line through points."""
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", class_=kind, d=d)
