"""Forest plot: sigma of each metric with its interval, beside the margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalguard.report.html.charts.frame import picture, words
from evalguard.report.html.charts.scale import Scale, tick_text
from evalguard.report.html.markup import tag

_WIDTH, _ROW, _AXIS = 320.0, 26.0, 30.0
_EDGE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row: ``kind`` is a class of the stylesheet (the outcome), ``said`` the row in words.

    Each may be infinite: then it lies at the axis' end, sigma as an arrow. Without a sigma nothing
    is drawn; ``low`` and ``high`` are None where it has no interval.
    """

    sigma: float | None
    low: float | None
    high: float | None
    kind: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Rows that share one axis; ``margin`` is the gate's."""

    scale: Scale
    margin: float

    @classmethod
    def over(cls, bars: Sequence[Bar], margin: float) -> Forest:
        """The axis holds every row, 0 and the margin."""
        ends = [end for bar in bars for end in (bar.sigma, bar.low, bar.high)]
        scale = Scale.over([0.0, margin, *ends], _EDGE, _WIDTH - _EDGE, bend=True)
        return cls(scale=scale, margin=margin)

    def row(self, bar: Bar) -> Markup:
        """A row's picture."""
        middle = _ROW / 2
        parts = [self._rule(0.0, "zero"), self._rule(self.margin, "margin")]
        if bar.sigma is not None:
            low = self.scale.at(bar.sigma if bar.low is None else bar.low)
            high = self.scale.at(bar.sigma if bar.high is None else bar.high)
            place = self.scale.at(bar.sigma)
            parts += [
                tag("line", class_="whisker", x1=low, x2=high, y1=middle, y2=middle),
                tag("line", class_="whisker", x1=low, x2=low, y1=middle - 4, y2=middle + 4),
                tag("line", class_="whisker", x1=high, x2=high, y1=middle - 4, y2=middle + 4),
                self._point(bar.sigma, place),
            ]
        return picture(_WIDTH, _ROW, bar.said, *parts, kind=f"forest {bar.kind}")

    def axis(self) -> Markup:
        """The axis below all rows, with the margin named."""
        scale = self.scale
        parts = [tag("line", class_="axis", x1=scale.start, x2=scale.stop, y1=1.0, y2=1.0)]
        for value in scale.ticks():
            place = scale.at(value)
            parts.append(tag("line", class_="axis", x1=place, x2=place, y1=1.0, y2=5.0))
            parts.append(words(place, 16.0, tick_text(value), anchor="middle"))
        parts.append(words(scale.at(self.margin), 28.0, "margin", anchor="middle", kind="name"))
        said = f"sigma, from {tick_text(scale.low)} to {tick_text(scale.high)}"
        return picture(_WIDTH, _AXIS, said, *parts, kind="forest axis-row")

    def _point(self, sigma: float, place: float) -> Markup:
        middle = _ROW / 2
        if math.isfinite(sigma):
            return tag("circle", class_="point", cx=place, cy=middle, r=4.5)
        tip, back = math.copysign(9.0, sigma), math.copysign(1.0, sigma)
        corners = ((back, -6.0), (tip, 0.0), (back, 6.0))
        points = " ".join(f"{place + x:.1f},{middle + y:.1f}" for x, y in corners)
        return tag("polygon", class_="point", points=points)

    def _rule(self, value: float, kind: str) -> Markup:
        place = self.scale.at(value)
        return tag("line", class_=kind, x1=place, x2=place, y1=0.0, y2=_ROW)
