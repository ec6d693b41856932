"""The drift of one metric over nights, its levels, and where they change, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalguard.report.html.axis_scale import AxisScale, tick_text
from evalguard.report.html.chart_frame import draw_picture, draw_text, plot_area
from evalguard.report.html.markup import make_tag

_WIDTH, _HEIGHT = 720.0, 240.0
_MOST_INTERVALS = 400  # nights whose intervals can still be told apart
_FEW_NIGHTS = 120  # nights whose dots do not hide the level that runs through them


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendNight:
    """One night: ``low`` and ``high`` end its interval; ``said`` is its row in words.

    ``kind`` is a class of the stylesheet (the outcome). A night without a finite drift is a gap.
    """

    drift: float | None
    low: float | None = None
    high: float | None = None
    kind: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLevel:
    """Nights ``start`` to ``stop`` (exclusive, positions among all nights) with one mean drift."""

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
    unit: str = "sigma",
) -> Markup:
    """Drift over nights, with the margin; a vertical line stands where a new level begins.

    Args:
        ends: what is written below the first and the last night.
        said: the picture in words.
        unit: of drifts, levels and margin.
    """
    (left, right), (bottom, top) = plot_area(_WIDTH, _HEIGHT)
    shown = [value for night in nights for value in (night.drift, night.low, night.high)]
    up = AxisScale.over([0.0, margin, *shown], bottom, top, bend=True)
    across = AxisScale(low=-0.5, high=max(len(nights), 1) - 0.5, start=left, stop=right)
    few = len(nights) <= _FEW_NIGHTS
    dots = [_draw_night(night, across.at(place), up, bars=len(nights) <= _MOST_INTERVALS, few=few)
            for place, night in enumerate(nights)]  # fmt: skip
    drawn = _draw_levels(levels, across, up)
    parts: list[object] = [_draw_rules(up, across, margin)]
    parts += [*drawn, *dots] if few else [*dots, *drawn]
    parts.append(draw_text(4.0, top - 10, unit, kind="name"))
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
    if night.drift is None or not math.isfinite(night.drift):
        return Markup("")
    parts: list[object] = [make_tag("title", night.said)] if night.said else []
    if bars and night.low is not None and night.high is not None:
        low, high = up.at(night.low), up.at(night.high)
        parts.append(make_tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high))
    parts.append(
        make_tag("circle", class_="point", cx=x, cy=up.at(night.drift), r=3.0 if few else 1.5)
    )
    return make_tag("g", *parts, class_=f"night {night.kind}".strip())
