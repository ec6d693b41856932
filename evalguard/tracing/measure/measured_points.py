"""What passes have measured, made into points with the module whose doing an error is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evalguard.core.trace_points import ROOT, PointName
from evalguard.core.trace_record import NonFiniteOrigin, PointKind
from evalguard.core.weight_precision import SAME
from evalguard.tracing.measure.suspects import MeasuredPoint, coherent_ulp_floor, ulp_floor

if TYPE_CHECKING:
    import torch

    from evalguard.core.activation_sums import ErrorSums
    from evalguard.core.trace_points import ModelInputs
    from evalguard.tracing.measure.module_hooks import PointEvent
    from evalguard.tracing.measure.passes import ComparedPass, TwinFloors


def count_tokens(inputs: ModelInputs) -> int:
    """Count positions of a sequence: the second axis of its first input."""
    first = inputs.get("input_ids", next(iter(inputs.values())))
    return int(first.shape[1]) if first.ndim > 1 else int(first.size)


def collect_points(
    events: Collection[PointEvent],
    local: Mapping[str, ErrorSums],
    accumulated: Mapping[str, ErrorSums],
    misshapen: Mapping[str, tuple[tuple[int, ...], ...]] | None = None,
) -> list[MeasuredPoint]:
    """Make the measured points, each with the module whose doing an error there is.

    Args:
        events: all points of the base, in order of execution.
        misshapen: see :func:`find_misshapen`.
    """
    misshapen = misshapen or {}
    points = []
    last_child: dict[str, str] = {}
    for number, event in enumerate(events):
        end = PointName.parse(event.name).end
        kind: PointKind = "glue" if end == "in" else "leaf" if event.leaf else "container"
        child = event.module.removeprefix(f"{event.code}.")
        location = f"before {child}" if end == "in" else ""
        if kind == "container" and event.module in last_child:
            location = f"after {last_child[event.module]}"
        if end == "in":
            last_child[event.code] = child
        if not any(event.name in measured for measured in (local, accumulated, misshapen)):
            continue
        points.append(
            MeasuredPoint(
                name=event.name,
                code=event.code,
                kind=kind,
                place=location,
                order=number,
                local=local.get(event.name),
                accumulated=accumulated.get(event.name),
                shapes=misshapen.get(event.name, ()),
            )
        )
    return points


def find_misshapen(
    base: torch.nn.Module,
    candidate: torch.nn.Module,
    names: Mapping[str, str],
    local: ComparedPass,
) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    """Find outputs of another shape that the same class made of the same input and weights.

    Another class may lay its tensors out as it likes; this one was told something else.

    Returns:
        The base's shape and the candidate's, by point.
    """
    ours = {name or ROOT: module for name, module in base.named_modules()}
    theirs = {names.get(name or ROOT): module for name, module in candidate.named_modules()}
    misshapen = {}
    for name, shapes in local.shapes.items():
        point = PointName.parse(name)
        pair = ours.get(point.module), theirs.get(point.module)
        given = str(replace(point, end="in", index=0))
        same = type(pair[0]) is type(pair[1]) and _list_shapes(pair[0]) == _list_shapes(pair[1])
        if point.end == "out" and given in local.sums and same and name not in local.given:
            misshapen[name] = shapes
    makers = {PointName.parse(name).module for name in misshapen}
    return {  # what holds a maker passes on what that has made
        name: shapes
        for name, shapes in misshapen.items()
        if not any(maker.startswith(f"{PointName.parse(name).module}.") for maker in makers)
    }


def _list_shapes(module: torch.nn.Module | None) -> Mapping[str, tuple[int, ...]]:
    if module is None:
        return {}
    held = (*module.named_parameters(), *module.named_buffers())
    return {name: tuple(tensor.shape) for name, tensor in held}


def note_misfed(points: Collection[MeasuredPoint], local: ComparedPass) -> None:
    """Note whose code was given a tensor that another module made in another shape."""
    misshapen = {point.name for point in points if point.shapes}
    for point in points:
        point.misfed = not misshapen.isdisjoint(local.given.get(point.name, ()))


def note_rounding(point: MeasuredPoint, local: ComparedPass, *, dtype: str) -> None:
    """Note where a candidate computes in a coarser dtype than its own.

    An input of a float32 candidate that is the base's, merely rounded, is the doing of the module
    that it goes into: nothing else was computed before it.
    """
    point.rounded = local.rounded.get(point.name, "")
    cast = local.cast.get(point.name) if dtype == SAME else ""
    if cast:
        point.rounded, point.place = cast, "its input"
        point.code = PointName.parse(point.name).module


def apply_floors(point: MeasuredPoint, floors: TwinFloors, dtype: str, *, exact: bool) -> None:
    """Set the floors of the first check.

    Args:
        dtype: the coarser one of both sides. exact: whether the candidate's weights are known to
            the last bit; the coherent part of an error is not judged otherwise.
    """
    ulps, name = ulp_floor(dtype), point.name
    point.floor = max(floors.local.get(name, 0.0), ulps)
    point.accumulated_floor = max(floors.accumulated.get(name, 0.0), ulps)
    if exact and point.local is not None:
        least = coherent_ulp_floor(dtype, point.local.width)
        point.coherent_floor = max(floors.coherent.get(name, 0.0), least)


def apply_computed_floors(point: MeasuredPoint, floors: TwinFloors) -> None:
    """Set the floors of the second check, in which both sides have the same weights in float32."""
    assert point.computed is not None
    least = coherent_ulp_floor(SAME, point.computed.width)
    point.computed_floor = max(floors.local.get(point.name, 0.0), ulp_floor(SAME))
    point.computed_coherent_floor = max(floors.coherent.get(point.name, 0.0), least)


def list_never_run(base: torch.nn.Module, events: Collection[PointEvent]) -> tuple[str, ...]:
    """Give the leaves that no sequence ran."""
    ran = {event.module for event in events}
    leaves = [n for n, m in base.named_modules() if n and next(m.children(), None) is None]
    return tuple(name for name in leaves if name not in ran)


def find_origins(
    base: ComparedPass,
    candidate: ComparedPass | None,
    models: tuple[torch.nn.Module, torch.nn.Module | None],
    sequences: Sequence[ModelInputs],
) -> tuple[NonFiniteOrigin, ...]:
    """Say where nan or infinite values arise in each side's own pass, and whether weights hold any.

    Args:
        models: of both sides, where they are here.
    """
    origins = []
    for visitor, model in zip((base, candidate), models, strict=True):
        if visitor is not None and visitor.origin is not None:
            event, elements, sequence = visitor.origin
            origins.append(
                NonFiniteOrigin(
                    side="base" if visitor is base else "candidate",
                    module=event.code,
                    point=event.name,
                    elements=elements,
                    sequence=sequence,
                    position=_position(visitor.origin_at, count_tokens(sequences[sequence])),
                    weights=() if model is None else list_nonfinite_weights(model),
                )
            )
    return tuple(origins)


def _position(at: tuple[tuple[int, ...], tuple[int, ...]], tokens: int) -> int | None:
    """The place on the first axis behind the batch that is as long as the sequence."""
    places, shape = at
    along = zip(places[1:], shape[1:], strict=True)
    return next((index for index, size in along if size == tokens), None)


def list_nonfinite_weights(model: torch.nn.Module) -> tuple[str, ...]:
    """Name the parameters and buffers that hold nan, or parameters that hold infinities."""
    names = [n for n, p in model.named_parameters() if _is_damaged(p)]
    names += [n for n, b in model.named_buffers() if _is_damaged(b) and bool(b.isnan().any())]
    return tuple(names)


def _is_damaged(tensor: torch.Tensor) -> bool:
    values = tensor.data
    if not values.is_floating_point():
        return False
    return not bool(values.float().sum().isfinite()) and not bool(values.isfinite().all())


def name_kinds(model: torch.nn.Module) -> Mapping[str, str]:
    """Give the class name of every module."""
    return {name or ROOT: type(module).__name__ for name, module in model.named_modules()}
