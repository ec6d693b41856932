"""Axes and frames of charts, as inline SVG coloured by the page's stylesheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from evalguard.page.html_page import make_tag

_LINEAR_UP_TO = 8.0
_ROOM = 0.04  # of the axis, at both ends
_FURTHEST, _SMALLEST = 1e100, 1e-300  # no arithmetic between them overflows
_NARROWEST = 1e-9  # of its largest number: what double precision tells apart on a bent axis, too
_STEPS = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """An axis from ``low`` to ``high`` drawn from ``start`` to ``stop``.

    ``bent``: by asinh, linear near 0 and logarithmic far from it, so that drifts of 0.1 and of 30
    sigma can stand on one axis.
    """

    low: float
    high: float
    start: float
    stop: float
    bent: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float | None], start: float, stop: float, *, bend: bool = False
    ) -> AxisScale:
        """An axis that holds all finite values, with a little room at its ends.

        ``bend`` allows a bent axis where a linear one would squeeze the small values.
        """
        finite = [
            min(max(value, -_FURTHEST), _FURTHEST)
            for value in values
            if value is not None and math.isfinite(value)
        ]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        size = max(abs(low), abs(high))
        if high - low <= max(size * _NARROWEST, _SMALLEST):
            around = size if size > _SMALLEST else 1.0
            low, high = low - around, high + around
        bent = bend and max(abs(low), abs(high)) > _LINEAR_UP_TO
        ends = (math.asinh(low), math.asinh(high)) if bent else (low, high)
        room = (ends[1] - ends[0]) * _ROOM
        if bent:
            low, high = math.sinh(ends[0] - room), math.sinh(ends[1] + room)
        else:
            low, high = low - room, high + room
        return cls(low=low, high=high, start=start, stop=stop, bent=bent)

    def at(self, value: float) -> float:
        """The place of a value; of one outside, the nearer end."""
        value = min(max(value, self.low), self.high)
        low, high, position = self.low, self.high, value
        if self.bent:
            low, high, position = math.asinh(low), math.asinh(high), math.asinh(value)
        share = (position - low) / (high - low)
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)

    def ticks(self, most: int = 7, *, letter: float = 0.0) -> tuple[float, ...]:
        """Round values along the axis, about ``most``; two at least, where there is room for them.

        Args:
            letter: how wide a letter of their texts is along the axis; none is on another.
        """
        if self.bent:
            return self._bent_ticks(most, letter)
        ticks = self._even_ticks(most)
        if len(ticks) < 2:  # one number tells of no scale
            most *= 2
            ticks = self._even_ticks(most)
        while most > 1 and not self._apart(ticks, letter):
            most -= 1
            ticks = self._even_ticks(most)
        return ticks

    def _even_ticks(self, most: int) -> tuple[float, ...]:
        step = self._step(most)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return tuple(number * step for number in range(first, last + 1))

    def _apart(self, ticks: Sequence[float], letter: float) -> bool:
        return all(
            abs(self.at(first) - self.at(second)) >= _tick_distance(first, second, letter)
            for first, second in pairwise(ticks)
        )

    def _step(self, most: int) -> float:
        rough = max((self.high - self.low) / most, _SMALLEST)
        size = 10.0 ** math.floor(math.log10(rough))
        return next((step * size for step in _STEPS if step * size >= rough), 10.0 * size)

    def _bent_ticks(self, most: int, letter: float) -> tuple[float, ...]:
        """0 and +-1, 3, 10, 30, ... as long as they do not crowd."""
        sizes = [factor * 10.0**power for power in range(300) for factor in (1.0, 3.0)]
        inside = [
            sign * size
            for size in sizes
            for sign in (1.0, -1.0)
            if self.low <= sign * size <= self.high
        ]
        every = [*([0.0] if self.low <= 0.0 <= self.high else []), *inside]
        apart = abs(self.stop - self.start) / (most * 1.6)
        chosen: list[float] = []
        for value in every:
            if all(
                abs(self.at(value) - self.at(tick))
                >= max(apart, _tick_distance(value, tick, letter))
                for tick in chosen
            ):
                chosen.append(value)
        return tuple(sorted(chosen))


def tick_text(value: float) -> str:
    """A tick's number, as short as it can be: "0.5", "-3", "30,000", "2e6", "2e-5"."""
    if 1e3 <= abs(value) < 1e6 and value.is_integer():
        return f"{value:,.0f}"
    number, _, power = f"{value:.6g}".partition("e")
    text = f"{number}e{int(power)}" if power else number
    return text if text != "-0" else "0"


def _tick_distance(one: float, other: float, letter: float) -> float:
    """How far apart the middles of two ticks' texts are at least: a blank is between them."""
    return letter * ((len(tick_text(one)) + len(tick_text(other))) / 2 + 1)


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
        position = across.at(value)
        parts.append(
            make_tag("line", class_="axis", x1=position, x2=position, y1=bottom, y2=bottom + 4)
        )
        parts.append(draw_text(position, bottom + 15, tick_text(value), anchor="middle"))
    for value in up.ticks(4):
        if counts and not value.is_integer():
            continue
        position = up.at(value)
        parts.append(
            make_tag("line", class_="grid", x1=left, x2=across.stop, y1=position, y2=position)
        )
        parts.append(draw_text(left - 5, position + 4, tick_text(value), anchor="end"))
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
