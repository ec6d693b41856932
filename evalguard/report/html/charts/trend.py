"""Trend plot: sigma of one metric over nights, its levels, and where they change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalguard.report.html.charts.frame import inner, picture, words
from evalguard.report.html.charts.scale import Scale, tick_text
from evalguard.report.html.markup import tag

_WIDTH, _HEIGHT = 720.0, 240.0
_MOST_BARS = 400  # nights whose intervals can still be told apart
_FEW = 120  # nights whose dots do not hide the level that runs through them


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendNight:
    """One night: ``low`` and ``high`` end its interval; ``said`` is its row in words.

    ``kind`` is a class of the stylesheet (the outcome). A night without a finite sigma is a gap.
    """

    sigma: float | None
    low: float | None = None
    high: float | None = None
    kind: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLevel:
    """Nights ``start`` to ``stop`` (exclusive, positions among all nights) with one mean sigma."""

    start: int
    stop: int
    mean: float


def trend_plot(
    nights: Sequence[TrendNight],
    levels: Sequence[TrendLevel],
    *,
    margin: float,
    ends: tuple[str, str],
    said: str,
) -> Markup:
    """Sigma over nights, with the margin; a vertical line stands where a new level begins.

    Args:
        ends: what is written below the first and the last night.
        said: the picture in words.
    """
    (left, right), (bottom, top) = inner(_WIDTH, _HEIGHT)
    shown = [value for night in nights for value in (night.sigma, night.low, night.high)]
    up = Scale.over([0.0, margin, *shown], bottom, top, bend=True)
    across = Scale(low=-0.5, high=max(len(nights), 1) - 0.5, start=left, stop=right)
    few = len(nights) <= _FEW
    dots = [_night(night, across.at(place), up, bars=len(nights) <= _MOST_BARS, few=few)
            for place, night in enumerate(nights)]  # fmt: skip
    drawn = _levels(levels, across, up)
    parts: list[object] = [_rules(up, across, margin)]
    parts += [*drawn, *dots] if few else [*dots, *drawn]
    parts.append(words(4.0, top - 10, "sigma", kind="name"))
    parts.append(words(left, bottom + 16, ends[0]))
    if ends[1] != ends[0]:
        parts.append(words(right, bottom + 16, ends[1], anchor="end"))
    return picture(_WIDTH, _HEIGHT, said, *parts, kind="trend" if few else "trend crowded")


def _rules(up: Scale, across: Scale, margin: float) -> Markup:
    parts = []
    for value in up.ticks(5):
        place = up.at(value)
        kind = "zero" if value == 0.0 else "grid"
        parts.append(tag("line", class_=kind, x1=across.start, x2=across.stop, y1=place, y2=place))
        parts.append(words(across.start - 5, place + 4, tick_text(value), anchor="end"))
    place = up.at(margin)
    parts.append(tag("line", class_="margin", x1=across.start, x2=across.stop, y1=place, y2=place))
    parts.append(words(across.stop, place - 4, "margin", anchor="end", kind="name"))
    return tag("g", *parts)


def _levels(levels: Sequence[TrendLevel], across: Scale, up: Scale) -> list[Markup]:
    parts = []
    for number, level in enumerate(levels):
        first, last = across.at(level.start - 0.5), across.at(level.stop - 0.5)
        place = up.at(level.mean)
        if number:
            parts.append(tag("line", class_="change", x1=first, x2=first, y1=up.start, y2=up.stop))
        parts.append(tag("line", class_="level", x1=first, x2=last, y1=place, y2=place))
    return parts


def _night(night: TrendNight, x: float, up: Scale, *, bars: bool, few: bool) -> Markup:
    if night.sigma is None or not math.isfinite(night.sigma):
        return Markup("")
    parts: list[object] = [tag("title", night.said)] if night.said else []
    if bars and night.low is not None and night.high is not None:
        low, high = up.at(night.low), up.at(night.high)
        parts.append(tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high))
    parts.append(tag("circle", class_="point", cx=x, cy=up.at(night.sigma), r=3.0 if few else 1.5))
    return tag("g", *parts, class_=f"night {night.kind}".strip())
