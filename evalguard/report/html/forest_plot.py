"""Forest plot: sigma of each metric with its interval, beside the margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalguard.report.html.axis_scale import AxisScale, tick_text
from evalguard.report.html.chart_frame import LETTER_WIDTH, draw_picture, draw_text
from evalguard.report.html.markup import make_tag

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
            place = self.scale.at(bar.sigma)
            parts += [
                make_tag("line", class_="whisker", x1=low, x2=high, y1=middle, y2=middle),
                _draw_interval_end(low, bar.low),
                _draw_interval_end(high, bar.high),
                _draw_point(place, bar.sigma),
            ]
        return draw_picture(_WIDTH, _ROW, bar.said, *parts, kind=f"forest {bar.kind}")

    def axis(self) -> Markup:
        """The axis below all rows, with the margin named where they share it."""
        scale = self.scale
        parts = [make_tag("line", class_="axis", x1=scale.start, x2=scale.stop, y1=1.0, y2=1.0)]
        for value in scale.ticks(letter=LETTER_WIDTH):
            place = scale.at(value)
            parts.append(make_tag("line", class_="axis", x1=place, x2=place, y1=1.0, y2=5.0))
            parts.append(draw_text(place, 16.0, tick_text(value), anchor="middle"))
        if self.margin is not None:
            parts.append(
                draw_text(scale.at(self.margin), 28.0, "margin", anchor="middle", kind="name")
            )
        said = f"sigma, from {tick_text(scale.low)} to {tick_text(scale.high)}"
        return draw_picture(_WIDTH, _AXIS, said, *parts, kind="forest axis-row")

    def _rule(self, value: float, kind: str) -> Markup:
        place = self.scale.at(value)
        return make_tag("line", class_=kind, x1=place, x2=place, y1=0.0, y2=_ROW)


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
