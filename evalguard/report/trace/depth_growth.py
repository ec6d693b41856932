"""Growth over depth: one point a layer, and one for each module outside of the layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evalguard.core.reports.trace_report import (
    LayerDelta,
    TraceReport,
)
from evalguard.core.tracing.points import ROOT
from evalguard.report.words.plain_text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthPoint:
    """A layer, or what stands before or behind the layers: largest ratios there, None: none."""

    label: str
    local: float | None
    accumulated: float | None
    first: bool
    layer: int | None = None


def depth_points(report: TraceReport) -> Iterator[DepthPoint]:
    """Yield the points in the order of the pass."""
    first = report.trace.first
    groups: dict[str, list[LayerDelta]] = {}
    for one in sorted(report.trace.layers, key=lambda layer: layer.order):
        if one.layer is None and one.kind != "leaf" and not is_beyond(report, one):
            continue  # the whole model, which holds all, and what leaves nothing behind
        label = f"layer {one.layer}" if one.layer is not None else _end_of_name(one.point)
        groups.setdefault(label, []).append(one)
    for label, layers in groups.items():
        accumulated = [one.accumulated_ratio for one in layers if _known(one.accumulated_ratio)]
        local = [
            one.local_ratio for one in layers if _known(one.local_ratio) and not one.cancels_at
        ]
        layer = layers[0].layer
        if (layer is not None and (accumulated or local)) or any((*accumulated, *local)):
            yield DepthPoint(
                label=printable(label),
                local=max((one for one in local if one is not None), default=None),
                accumulated=accumulated[-1] if accumulated else None,
                first=first is not None and any(first.point == one.point for one in layers),
                layer=layer,
            )


def is_beyond(report: TraceReport, one: LayerDelta) -> bool:
    """Whether the local error of a point is above the floor, and not one that cancels."""
    twin = report.trace.twin
    if one.cancels_at:
        return False
    return _known(one.local_ratio) and twin is not None and (one.local_ratio or 0) > twin.threshold


def _known(ratio: float | None) -> bool:
    return ratio is not None and ratio == ratio


def _end_of_name(point: str) -> str:
    """What a point outside of the layers belongs to: "lm_head"; "encoder.layers.0", of a module in
    another list of layers; "output" of the whole model."""
    module = point.rpartition(":")[0].partition("#")[0]
    names = module.split(".")
    inside = next((at for at, name in enumerate(names[:-1]) if name.isdigit()), 0)
    if inside:
        return ".".join(names[max(inside - 2, 0) : inside + 1])
    *_, above, end = ("", *names)
    if end.isdigit():  # a module of a list beside the layers
        return f"{above} {end}"
    return "output" if module == ROOT else end
