"""Growth of an error over depth as bars on a scale of powers of ten."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf, log10

from rich.text import Text

from evalguard.report.table import Table
from evalguard.report.terminal_page import wrap_prose
from evalguard.report.trace.depth_growth import DepthPoint
from evalguard.report.trace.trace_view import TraceView
from evalguard.report.trace.trace_words import format_ratio
from evalguard.report.words.plain_text import fit_text


def growth_lines(view: TraceView, width: int, most: int) -> list[Text]:
    """Return a row of a table for each depth, at most about ``most``; none for fewer than two."""
    points = _merge_depths(view.growth, most) if most else []
    if len(points) < 2:
        return []
    label = min(max(len(one.label) for one in points) + 2, width // 3)
    room = max(width - label - 22, 4)
    top = max(_power(one.accumulated) for one in points)
    scale = room / max(top, 1.0)  # a whole bar is ten times the floor or more
    title = "Growth over depth: error over the floor, bars in powers of ten"
    lines = wrap_prose(title, width, style="dim")
    rows = []
    for one in points:
        bar = "#" * round(_power(one.accumulated) * scale)
        name = fit_text(f"{'> ' if one.first else '  '}{one.label}", label)
        rows.append([name, format_ratio(one.local), f"{format_ratio(one.accumulated):<9}{bar}"])
    styles = ["dim", *("bold" if one.first else "" for one in points)]
    table = Table(headings=["", f"{'local':<8}", "accumulated"], rows=rows, leaving=())
    return [*lines, *table.lines(width, styles)]


def _power(ratio: float | None) -> float:
    """Powers of ten above the floor; an infinite one as a large one."""
    if ratio is None or ratio <= 1.0:
        return 0.0
    return 15.0 if isinf(ratio) else log10(ratio)


def _merge_depths(points: Sequence[DepthPoint], most: int) -> list[DepthPoint]:
    """Join neighbouring layers until there are about so many rows; the first suspect's stays."""
    if len(points) <= most:
        return list(points)
    plain = [one for one in points if _is_plain_layer(one)]
    step = -(-len(plain) // max(most - (len(points) - len(plain)), 1))
    merged: list[DepthPoint] = []
    group: list[DepthPoint] = []
    for one in points:
        if group and (not _is_plain_layer(one) or len(group) == step):
            merged.append(_joined(group))
            group = []
        if _is_plain_layer(one):
            group.append(one)
        else:
            merged.append(one)
    return [*merged, *([_joined(group)] if group else [])]


def _is_plain_layer(one: DepthPoint) -> bool:
    return one.layer is not None and not one.first


def _joined(group: Sequence[DepthPoint]) -> DepthPoint:
    if len(group) == 1:
        return group[0]
    local = [one.local for one in group if one.local is not None]
    far = [one.accumulated for one in group if one.accumulated is not None]
    return DepthPoint(
        label=f"layers {group[0].layer}-{group[-1].layer}", local=max(local, default=None),
        accumulated=max(far, default=None), first=False,
    )  # fmt: skip
