"""Two sides of recorded activations alone: how the error grows from point to point.

Neither side can be run, so nothing can be forced: an error at a point may have come from any point
before. What is said is where it grows, which is weaker evidence than a local error.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan

from evalguard.core.reports.trace import LayerDelta, PointKind, SuspectModule, Trace, UnalignedPoint
from evalguard.core.tracing.points import ROOT, PointName, RecordedActivations
from evalguard.core.tracing.precision import EPSILON, SAME
from evalguard.core.tracing.sums import ErrorSums
from evalguard.core.tracing.suspects import number_layers, ulp_floor
from evalguard.errors import EvaluationError

# Rounding errors grow slowly with depth, by less than this from any point to the next ones.
GROWTH = 4.0


def compare_recordings(
    base: RecordedActivations, candidate: RecordedActivations, *, sequences: int, tokens: int = 0
) -> Trace:
    """Compare two recordings point by point, in the base's order.

    A point's ``local_ratio`` is its error over the largest error before it (or the least that the
    coarser precision leaves), a suspect one where that is more than GROWTH.

    Args:
        tokens: of all sequences, for the record.

    Raises:
        EvaluationError: no point with the same name and shape.
    """
    sums, unaligned = _compare_points(base, candidate, sequences)
    if not sums:
        raise EvaluationError(
            "the two recordings have no point with the same name and shape",
            hint="give a name map; the base has "
            f"{', '.join(list(base.names(0))[:3]) or 'no points'}, the candidate "
            f"{', '.join(list(candidate.names(0))[:3]) or 'none'}",
        )
    floor = max(
        ulp_floor(p if p in EPSILON else SAME) for p in (base.precision, candidate.precision)
    )
    layer_of = number_layers(_owner(name) for name in sums)
    layers: list[LayerDelta] = []
    suspects: dict[str, SuspectModule] = {}
    largest = floor
    for order, (name, each) in enumerate(sums.items()):
        error = each.error()
        value = inf if isnan(error.relative_l2) else error.relative_l2
        owner, kind = _owner(name), _kind(name)
        delta = LayerDelta(
            point=name,
            module=owner,
            kind=kind,
            place=f"before {name}" if kind == "glue" else "",
            layer=layer_of.get(owner),
            order=order,
            accumulated=error,
            accumulated_floor=floor,
            local_ratio=value / largest,
            accumulated_ratio=value / floor,
        )
        layers.append(delta)
        known = suspects.get(owner)
        ratio = value / largest
        if ratio > GROWTH and (known is None or known.local_ratio < ratio):
            suspects[owner] = SuspectModule(
                module=owner,
                operation=f"the error grows {ratio:.3g} times at {name}",
                fault="operation",
                point=name,
                order=order,
                layer=delta.layer,
                check="as it runs",
                local_ratio=ratio,
                accumulated_ratio=delta.accumulated_ratio,
            )
        largest = max(largest, value)
    ranked = sorted(suspects.values(), key=lambda suspect: (-suspect.local_ratio, suspect.order))
    return Trace(
        layers=tuple(layers),
        suspects=tuple(ranked),
        first=min(ranked, key=lambda suspect: suspect.order, default=None),
        localised=False,
        unaligned=unaligned,
        twin=None,
        documents=sequences,
        tokens=tokens,
        caveats=(
            "neither side can be run: errors are accumulated, and where one grows says less than a "
            "local error does",
        ),
    )


def _compare_points(
    base: RecordedActivations, candidate: RecordedActivations, sequences: int
) -> tuple[Mapping[str, ErrorSums], tuple[UnalignedPoint, ...]]:
    sums: dict[str, ErrorSums] = {}
    unaligned: dict[str, UnalignedPoint] = {}
    for number in range(sequences):
        theirs = {str(PointName.parse(name)): name for name in candidate.names(number)}
        ours = {str(PointName.parse(name)): name for name in base.names(number)}
        for point, name in ours.items():
            if point not in theirs:
                unaligned[point] = UnalignedPoint(
                    name=point, side="base", reason="the candidate does not have it"
                )
                continue
            own, other = base.read(number, name), candidate.read(number, theirs[point])
            if own.size != other.size:
                unaligned[point] = UnalignedPoint(
                    name=point, side="candidate", reason=f"shape {other.shape}, not {own.shape}"
                )
                continue
            sums.setdefault(point, ErrorSums()).add(own, other.reshape(own.shape))
        for point in theirs.keys() - ours.keys():
            unaligned[point] = UnalignedPoint(
                name=point, side="candidate", reason="the base does not have it"
            )
    return sums, tuple(unaligned.values())


def _owner(point: str) -> str:
    """Give the module that a recorded point speaks of: an input, of the one that holds it."""
    name = PointName.parse(point)
    return name.module if name.end == "out" else name.module.rpartition(".")[0] or ROOT


def _kind(point: str) -> PointKind:
    return "glue" if PointName.parse(point).end == "in" else "leaf"
