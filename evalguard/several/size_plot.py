"""Candidates as points: what each costs in size, and what it keeps of its base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison
from evalguard.core.gate_state import GateState
from evalguard.page.charts import AxisScale, draw_line, draw_picture, draw_text, tick_text
from evalguard.page.html_page import make_tag, read_asset
from evalguard.page.safe_text import printable
from evalguard.report.metric_labels import full_label
from evalguard.several.ladder import LadderRow, ladder_rows, ranked_metrics, row_texts
from evalguard.several.several_report import SeveralReport

_WIDTH, _HEIGHT = 480.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 16.0, 30.0, 46.0
_LETTER, _LINE = 7.3, 15.0  # how wide and high a letter is, as size_plot.css has it
_RADIUS = 5.0
_LONGEST_NAME = 24
_DECADE = 10.0
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))
Better = Literal["lower", "higher"]
_Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedModel:
    """One model of the plot.

    Attributes:
        size: in bytes; without one, and without a finite ``value``, it is not drawn.
        value: what it keeps or loses, in the unit of the plot; ``interval``: of that.
        row: all that is known of it, shown where a pointer rests on it.
    """

    name: str
    size: int | None
    value: float | None
    interval: tuple[float, float] | None = None
    row: str = ""
    state: GateState = "passed"

    @property
    def drawn(self) -> bool:
        """Whether it has a place."""
        return self.size is not None and self.value is not None and math.isfinite(self.value)


def pareto_front(models: Sequence[PlottedModel], better: Better) -> list[PlottedModel]:
    """Return the models that no other one beats in size and value, the smallest first.

    By the values alone: models whose intervals overlap may change places with other documents.
    """
    sign = 1.0 if better == "lower" else -1.0
    places = [
        (model.size or 0, sign * (model.value or 0.0), model) for model in models if model.drawn
    ]
    front: list[PlottedModel] = []
    least = math.inf
    for _, value, model in sorted(places, key=lambda ranked: ranked[:2]):
        if value < least:
            front.append(model)
            least = value
    return front


def draw_size_plot(
    models: Sequence[PlottedModel], *, name: str, better: Better, base: float | None = None
) -> Markup:
    """Draw ``models`` by their size; Markup("") where none has a place.

    A model has an interval as a whisker, and its gate's state as a colour and in its row. Names
    stand where there is room for them.

    Args:
        name: of the vertical axis, with its unit.
        base: the value that the base has, drawn as a line; None: none.
    """
    drawn = [model for model in models if model.drawn]
    if not drawn:
        return Markup("")
    unit, factor = next(
        (unit for unit in _UNITS if max(model.size or 0 for model in drawn) >= unit[1]), _UNITS[-1]
    )
    across = AxisScale.over([(model.size or 0) / factor for model in drawn], _LEFT, _WIDTH - _RIGHT)
    up = _Vertical.over(drawn, base)
    front = pareto_front(drawn, better)
    spots = [(across.at((model.size or 0) / factor), up.at(model.value or 0.0)) for model in drawn]
    steps = [spots[drawn.index(model)] for model in front]
    parts = [
        _draw_axes(across, up, (f"size, {unit}", name)),
        *([] if base is None else [_draw_base(up, base)]),
        *([draw_line(steps, "front")] if len(steps) > 1 else []),
        *(
            _draw_model(model, spot, up, model in front)
            for model, spot in zip(drawn, spots, strict=True)
        ),
        *_draw_names(drawn, spots, front),
    ]
    best = ", ".join(_short(model) for model in front)
    title = f"{name} of {len(drawn)} models by size; on the Pareto front: {best}"
    return draw_picture(_WIDTH, _HEIGHT, title, *parts, kind="size-plot")


def size_plot_file(plot: Markup) -> str:
    """Return a plot as the text of an SVG file, which needs no page and no stylesheet."""
    if not plot:
        return ""
    style = make_tag("style", Markup(_FILE_COLOURS + read_asset("size_plot.css")))
    paper = make_tag("rect", class_="paper", width="100%", height="100%")
    head, _, rest = str(plot).partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg">{style}{paper}{rest}\n'


_FILE_COLOURS = """
.size-plot { --paper: #ffffff; --ink: #1b2028; --dim: #555e6c; --grid: #e4e7ec; --plot: #3465a4;
  --bad: #b3261e; --good: #186a3b; --unsure: #7a5200; --failed: #86188f; }
@media (prefers-color-scheme: dark) { .size-plot { --paper: #14171c; --ink: #e6e9ee; --dim: #a3acba;
  --grid: #2a303a; --plot: #8ab8ff; --bad: #ff8a80; --good: #7fd6a0; --unsure: #f0c46b;
  --failed: #ea9df0; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vertical:
    """The vertical axis: values in units of ``unit``, bent where they span decades.

    Bent, it is linear up to its unit and logarithmic above, so that 0 has a place.
    """

    scale: AxisScale
    unit: float

    @classmethod
    def over(cls, models: Sequence[PlottedModel], base: float | None) -> _Vertical:
        ends = [end for model in models for end in model.interval or ()]
        values = [model.value or 0.0 for model in models]
        known = [value for value in (*values, *ends) if math.isfinite(value)]
        known += [] if base is None else [base]
        least = min((value for value in values if value > 0.0), default=1.0)
        bent = min(known) >= 0.0 and max(known) > _DECADE * least
        unit = 10.0 ** math.floor(math.log10(least)) if bent else 1.0
        scale = AxisScale.over(
            [value / unit for value in known], _HEIGHT - _BOTTOM, _TOP, bend=bent
        )
        return cls(scale=scale, unit=unit)

    def at(self, value: float) -> float:
        return self.scale.at(value / self.unit)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and texts."""
        ticks = self.scale.ticks(5)
        return [
            (self.scale.at(tick), tick_text(float(f"{tick * self.unit:.12g}"))) for tick in ticks
        ]


def _draw_axes(across: AxisScale, up: _Vertical, names: tuple[str, str]) -> Markup:
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for position, text in up.ticks:
        parts.append(make_tag("line", class_="grid", x1=left, x2=right, y1=position, y2=position))
        parts.append(draw_text(left - 6, position + 4, text, anchor="end"))
    parts.append(make_tag("line", class_="axis", x1=left, x2=right, y1=bottom, y2=bottom))
    for value in across.ticks(6, letter=_LETTER):
        position = across.at(value)
        parts.append(
            make_tag("line", class_="axis", x1=position, x2=position, y1=bottom, y2=bottom + 4)
        )
        parts.append(draw_text(position, bottom + 18, tick_text(value), anchor="middle"))
    parts.append(draw_text((left + right) / 2, bottom + 38, names[0], anchor="middle"))
    parts.append(draw_text(4.0, _TOP - 14, names[1]))
    return make_tag("g", *parts)


def _draw_base(up: _Vertical, value: float) -> Markup:
    position = up.at(value)
    return make_tag("line", class_="base", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=position, y2=position)


def _draw_model(
    one: PlottedModel, spot: tuple[float, float], up: _Vertical, in_front: bool
) -> Markup:
    x, y = spot
    parts: list[object] = [make_tag("title", printable(one.row or one.name))]
    if one.interval is not None and all(map(math.isfinite, one.interval)):
        low, high = map(up.at, one.interval)
        parts.append(make_tag("line", class_="whisker", x1=x, x2=x, y1=low, y2=high))
    parts.append(make_tag("circle", class_="model", cx=x, cy=y, r=_RADIUS))
    kind = f"{one.state} in-front" if in_front else one.state
    return make_tag("g", *parts, class_=kind)


def _draw_names(
    models: Sequence[PlottedModel],
    spots: Sequence[tuple[float, float]],
    front: Sequence[PlottedModel],
) -> list[Markup]:
    """Names beside their models, those of the front first; none where it would cover another."""
    taken: list[_Box] = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in spots]
    order = sorted(range(len(models)), key=lambda index: models[index] not in front)
    labels = []
    for index in order:
        model, (x, y) = models[index], spots[index]
        text = _short(model)
        for left, middle in _beside(x, y, len(text) * _LETTER):
            box = (left, middle - _LINE / 2, left + len(text) * _LETTER, middle + _LINE / 2)
            inside = box[0] >= _LEFT and box[2] <= _WIDTH and box[1] >= _TOP - 8
            if inside and box[3] <= _HEIGHT - _BOTTOM and not any(_meet(box, b) for b in taken):
                taken.append(box)
                kind = "name in-front" if model in front else "name"
                labels.append(draw_text(left, middle + 4, text, kind=kind))
                break
    return labels


def _beside(x: float, y: float, width: float) -> list[tuple[float, float]]:
    """Left end and middle of a name: right of its model, left of it, above, below."""
    gap = _RADIUS + 4
    return [
        (x + gap, y),
        (x + gap, y - _LINE / 2),
        (x + gap, y + _LINE / 2),
        (x - gap - width, y),
        (x - gap - width, y - _LINE / 2),
        (x - gap - width, y + _LINE / 2),
    ]


def _meet(one: _Box, other: _Box) -> bool:
    beside = one[2] <= other[0] or other[2] <= one[0]
    return not (beside or one[3] <= other[1] or other[3] <= one[1])


def _short(one: PlottedModel) -> str:
    name = printable(one.name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


_Value = tuple[float | None, tuple[float, float] | None]  # with its interval


def draw_kl_plot(report: SeveralReport) -> Markup:
    """Draw mean KL by size; Markup("") where no candidate has both."""
    values = [(row.kl.value, row.kl.interval) for row in ladder_rows(report.candidates)]
    return draw_size_plot(_models(report, values), name="mean KL, nats a token", better="lower")


def draw_recovery_plot(report: SeveralReport) -> tuple[Markup, str]:
    """Draw what is kept of the metric that drifts most, by size, and return that metric's name."""
    for key in ranked_metrics(report)[:1]:
        comparisons = [_comparison(row, key) for row in ladder_rows(report.candidates)]
        values = [
            (None, None) if c is None else (c.recovery, c.recovery_interval) for c in comparisons
        ]
        models = _models(report, values)
        plot = draw_size_plot(models, name="recovery, %", better="higher", base=100.0)
        return plot, next(full_label(c) for c in comparisons if c is not None)
    return Markup(""), ""


def _models(report: SeveralReport, values: Sequence[_Value]) -> list[PlottedModel]:
    rows = zip(ladder_rows(report.candidates), row_texts(report), values, strict=True)
    return [
        PlottedModel(
            name=row.name,
            size=None if row.size is None else row.size.shown_bytes,
            value=value,
            interval=interval,
            row=text,
            state=row.state,
        )
        for row, text, (value, interval) in rows
    ]


def _comparison(row: LadderRow, key: tuple[str, str, str]) -> Comparison | None:
    comparisons = row.outcome.comparisons if isinstance(row.outcome, CompareReport) else ()
    return next((comparison for comparison in comparisons if comparison.key == key), None)
