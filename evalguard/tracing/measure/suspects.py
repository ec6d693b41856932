"""Which modules introduce more error than benign twins do, ranked.

An error is compared with its floor twice, because rounding hides small faults of what is computed:
"as it runs" (floor: the base in another batch shape, with its last bits moved, and in the
candidate's precision) and "what it computes" (both sides in float32 with the candidate's weights;
floor: the base so in another batch shape, with its last bits moved). Weights are compared with the
base's directly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, sqrt

from evalguard.core.activation_sums import ErrorSums
from evalguard.core.trace_record import (
    Check,
    ConstantRelation,
    Fault,
    LayerDelta,
    PointKind,
    SuspectModule,
)
from evalguard.core.weight_precision import EPSILON

# A healthy port in another implementation (kernels, order of operations) shows up to 1.2 times the
# floor in tiny models; in float32, sums of 11,000 terms in the worst order differ by 1.2 times the
# least floor. Twice that is room for what was not tried (benchmarks/trace_planting.py).
THRESHOLD = 2.5
# Of a weight's error over that of its class's rule; other healthy quantisers of the same class
# (zero points, calibrated scales) show up to 1.6.
WEIGHTS_THRESHOLD = 2.0
# Up to four thresholds an excess may be rounding of a kind that no twin has; it is not the headline
# where another is a hundred times as large.
_SMALL, _FAR = 4.0 * THRESHOLD, 100.0
_SECOND = re.compile(r":out\.\d+$")
# One rounding to nearest has a relative L2 error of about 0.21 spacings. What is rounded once in
# the end (16 bits) gets one; what is accumulated in float32 gets several, because the order of a
# sum is free.
_ROUNDINGS = {"float64": 4.0, "float32": 4.0, "float16": 0.25, "bfloat16": 0.25}
# Independent roundings of a vector's elements leave little error along the vector itself, less the
# longer it is; a factor that was rounded before it was multiplied (in a norm) leaves all of it. One
# such factor is rounded in every healthy norm, in float32.
_ALONG = {"float64": 2.0, "float32": 2.0}


def coherent_ulp_floor(dtype: str, width: int) -> float:
    """Give the least coherent error (see ErrorSums) of two healthy implementations."""
    independent = 1.5 * ulp_floor(dtype) / sqrt(max(width, 1))
    return max(independent, _ALONG.get(dtype, 0.0) * EPSILON.get(dtype, 0.0))


def ulp_floor(dtype: str) -> float:
    """Give the least relative L2 error that two healthy implementations may differ by."""
    return _ROUNDINGS.get(dtype, 0.25) * EPSILON.get(dtype, EPSILON["bfloat16"])


def plain_sum_error(terms: int) -> float:
    """Give the relative L2 error of float32 sums of so many terms, added one after the other.

    Each addition rounds a running sum, which for terms of any sign grows as a random walk: the
    errors' squares add up to half of the terms (for terms of one sign, a third). The bound in
    sqrt(terms), in place of one in terms: Higham and Mary, SIAM J. Sci. Comput. 41 (2019).
    """
    return 0.21 * EPSILON["float32"] * sqrt(max(terms / 2, 1.0))


@dataclass(slots=True, kw_only=True)
class MeasuredPoint:
    """A point of the base with all that was measured there.

    Attributes:
        code: whose doing a local error is (see LayerDelta.module). place, kind: see there.
        local, accumulated: sums against the candidate; None where not measured.
        floor, accumulated_floor: the largest relative L2 of benign twins.
        computed, computed_floor: of the second check; None where not made.
        coherent_floor, computed_coherent_floor: of the coherent part of the error; None where it is
            not judged, because the candidate's weights are not known to be exact.
        rounded: dtype in which all of the candidate's local values can be held, where that is
            coarser than its own; "" if not.
        shapes: the base's and the candidate's, where the same code made another one of the same
            input; ().
        misfed: whether its code was given a tensor of such another shape: its error says nothing.
        rows: which rows of that other shape one side has more, in words; "" where that is not seen.
        separating: see LayerDelta.
        cancels_at: the point at which what reads this one has undone its error; "" if not.
    """

    name: str
    code: str
    kind: PointKind
    place: str
    order: int
    local: ErrorSums | None = None
    accumulated: ErrorSums | None = None
    floor: float = 0.0
    accumulated_floor: float = 0.0
    computed: ErrorSums | None = None
    computed_floor: float = 0.0
    coherent_floor: float | None = None
    computed_coherent_floor: float | None = None
    rounded: str = ""
    since: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    misfed: bool = False
    rows: str = ""
    separating: str = ""
    cancels_at: str = ""

    def ratios(self) -> tuple[float, Check]:
        """Give the larger ratio of both checks, and which it is; 0 where nothing was measured."""
        if self.shapes:
            return inf, "as it runs"
        runs, computes = self.run_ratio(), self.computed_ratio()
        return (computes, "what it computes") if computes > runs else (runs, "as it runs")

    def run_ratio(self) -> float:
        """Give the ratio of the first check."""
        whole = _ratio(self.local, self.floor)
        return max(whole, _coherent_ratio(self.local, self.coherent_floor))

    def computed_ratio(self) -> float:
        """Give the ratio of the second check; 0 where it was not made."""
        whole = _ratio(self.computed, self.computed_floor)
        return max(whole, _coherent_ratio(self.computed, self.computed_coherent_floor))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFinding:
    """A module's weight that is not the base's, rounded as most of the candidate's are.

    ``ratio``: of its error over that of the rule. ``looks``: "weight looks transposed", in words.
    ``nonfinite``: it holds nan or infinite values, which count wherever a document reads.
    """

    module: str
    ratio: float
    looks: str
    nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """All points, judged; see Trace."""

    layers: tuple[LayerDelta, ...]
    suspects: tuple[SuspectModule, ...]
    first: SuspectModule | None
    other_layouts: tuple[SuspectModule, ...]


def rank_suspects(
    points: Sequence[MeasuredPoint],
    findings: Iterable[WeightFinding] = (),
    *,
    kinds: Mapping[str, str],
    threshold: float = THRESHOLD,
) -> Ranking:
    """Judge every point, and name the modules beyond the floor, the largest local ratio first.

    Args:
        kinds: class name of each module, for words.
    """
    layer_of = number_layers(point.code for point in points)
    guilty_weights = _points_of_weights(points, findings)
    owners = {finding.module for held in guilty_weights.values() for finding in held}
    # whose code uses weights of modules that it does not call
    users = {
        point.code
        for point in points
        for finding in guilty_weights.get(point.name, ())
        if finding.module != point.code
    }
    layers, named, cancelling = [], _Beyond(), _Beyond()
    for point in points:
        beyond = cancelling if point.cancels_at else named
        ratio, check = point.ratios()
        findings_here = guilty_weights.get(point.name, ())
        worst = max((finding.ratio for finding in findings_here), default=0.0)
        if worst > ratio:
            ratio, check = worst, "weights"
        delta = _delta(point, ratio, check, layer_of.get(point.code))
        layers.append(delta)
        kind = kinds.get(point.code, "")
        for finding in findings_here:
            looks = f"weights: {finding.looks}"
            beyond.add(point, delta, finding.module, "weights", looks, looks)
        alike = point.computed_ratio() <= threshold
        explained = point.misfed or (point.code in users and alike)
        if ratio > threshold and point.code in owners and point.computed is not None and alike:
            beyond.earliest.setdefault(point.code, point.order)  # its weights are all that it is
        elif ratio > threshold and not explained:
            fault, description = _find_operation(point, delta)
            difference = f"{point.place}: {description}" if point.place else description
            where = ", ".join(filter(None, (kind, point.place)))
            beyond.add(point, delta, point.code, fault, f"{where}: {description}", difference)
    suspects = sorted(named.found.values(), key=lambda s: (-s.local_ratio, s.order))
    cancelled = [
        suspect for suspect in cancelling.found.values() if suspect.module not in named.found
    ]
    largest = max((suspect.local_ratio for suspect in suspects), default=0.0)
    telling = [
        suspect
        for suspect in suspects
        if suspect.fault == "weights"
        or suspect.local_ratio > _SMALL
        or suspect.local_ratio * _FAR > largest
    ]
    first = min(telling, key=lambda suspect: named.earliest[suspect.module], default=None)
    return Ranking(tuple(layers), tuple(suspects), first, tuple(cancelled))


@dataclass(slots=True)
class _Beyond:
    """Modules with points beyond the floor: the worst point of each, and the earliest."""

    found: dict[str, SuspectModule] = field(default_factory=dict)
    earliest: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        point: MeasuredPoint,
        delta: LayerDelta,
        module: str,
        fault: Fault,
        operation: str,
        difference: str,
    ) -> None:
        self.earliest.setdefault(module, point.order)
        known, ratio = self.found.get(module), delta.local_ratio or 0.0
        if known is not None and (known.local_ratio >= ratio or known.fault == "weights"):
            return
        # Attention weights, say, beside the output: where the fault shows first is told instead.
        beside = point.kind == "container" and _SECOND.search(point.name)
        if known is not None and beside and fault != "weights":
            return
        self.found[module] = SuspectModule(
            module=module,
            operation=operation,
            difference=difference,
            fault=fault,
            point=point.name,
            order=point.order,
            layer=delta.layer,
            check=delta.check,
            local_ratio=ratio,
            accumulated_ratio=delta.accumulated_ratio,
            relation=_relation(point),
            cancels_at=point.cancels_at,
        )


def number_layers(modules: Iterable[str]) -> Mapping[str, int]:
    """Number the modules inside the longest list of like layers ("model.layers.3.mlp": 3)."""
    inside: dict[str, dict[str, int]] = {}
    for module in modules:
        for match in re.finditer(r"(?:^|\.)(\d+)(?=\.|$)", module):
            inside.setdefault(module[: match.start()], {})[module] = int(match[1])
    if not inside:
        return {}
    longest = max(inside.values(), key=lambda members: (len(set(members.values())), len(members)))
    return longest if len(set(longest.values())) > 1 else {}


def _ratio(sums: ErrorSums | None, floor: float) -> float:
    if sums is None:
        return 0.0
    error = sums.relative_l2
    return inf if isnan(error) or not isfinite(error) else error / floor


def _coherent_ratio(sums: ErrorSums | None, floor: float | None) -> float:
    if sums is None or not floor or not sums.width:
        return 0.0
    return sums.relative_coherent / floor


def _delta(point: MeasuredPoint, ratio: float, check: Check, layer: int | None) -> LayerDelta:
    accumulated = point.accumulated
    return LayerDelta(
        point=point.name,
        module=point.code,
        kind=point.kind,
        place=point.place,
        layer=layer,
        order=point.order,
        local=point.local.error() if point.local else None,
        accumulated=accumulated.error() if accumulated else None,
        floor=point.floor if point.local else None,
        accumulated_floor=point.accumulated_floor if accumulated else None,
        local_ratio=ratio if point.local or point.shapes or check == "weights" else None,
        accumulated_ratio=_ratio(accumulated, point.accumulated_floor) if accumulated else None,
        check=check,
        since=point.since,
        separating=point.separating,
        cancels_at=point.cancels_at,
    )


def _points_of_weights(
    points: Sequence[MeasuredPoint], findings: Iterable[WeightFinding]
) -> Mapping[str, Sequence[WeightFinding]]:
    """Find where a module's own weights show most; nowhere, if they change nothing that was run.

    Weights of a module that is never called are used by the code of one that holds it; those with
    which a module's own code does nothing, by that of one that it hands them to.
    """
    worst: dict[str, WeightFinding] = {}
    for finding in findings:
        if finding.module not in worst or finding.ratio > worst[finding.module].ratio:
            worst[finding.module] = finding
    by_point: dict[str, list[WeightFinding]] = {}
    for module, finding in worst.items():
        user, own = module, [p for p in points if p.code == module]
        while not own and user:
            user = user.rpartition(".")[0]
            own = [p for p in points if p.code == user]
        seen = [
            p for p in own
            if p.local
            and (p.local.squared_difference or p.local.nonfinite or finding.nonfinite)
        ]  # fmt: skip
        seen = seen or [
            p for p in points
            if p.code.startswith(f"{module}.") and p.code not in worst
            and p.computed is not None and p.computed_ratio() <= THRESHOLD < p.run_ratio()
        ]  # fmt: skip
        if seen:
            point = max(seen, key=lambda p: p.run_ratio()).name
            by_point.setdefault(point, []).append(finding)
    return by_point


def _relation(point: MeasuredPoint) -> ConstantRelation | None:
    """A constant that the whole error is; rounding hides a small one from what runs."""
    for sums in (point.computed, point.local):
        relation = None if sums is None else sums.relation()
        if relation is not None:
            return relation
    return None


def relation_text(found: ConstantRelation, what: str) -> str:
    """Say it of an output, or of what else ``what`` says."""
    if found.kind == "offset":
        return f"{what} is the base's plus {found.value:.4g}, cosine {found.cosine:.6f}"
    if abs(found.value) < 1e-6:
        return f"{what} is zero"
    if abs(found.value + 1.0) < 1e-3:
        return f"{what} is the base's with the other sign, cosine {found.cosine:.6f}"
    close = abs(found.value) < 1.1
    times = f"{found.value:.5g}" if close else f"{found.value:.2f}"
    return f"{what} is {times} times the base's, cosine {found.cosine:.6f}"


def _find_operation(point: MeasuredPoint, delta: LayerDelta) -> tuple[Fault, str]:
    """Say what differs at a point beyond the floor: fault and words."""
    if point.shapes:
        ours, theirs = (list(shape) for shape in point.shapes)
        rows = f": {point.rows}" if point.rows else ""
        return "operation", f"output has the shape {theirs}, the base's {ours}{rows}"
    if point.local is not None and point.local.nonfinite:
        return "operation", "nan or infinite where the base is finite"
    relation = _relation(point)
    if relation is not None:
        what = "what it passes on" if point.kind == "glue" else "output"
        return "operation", relation_text(relation, what)
    if point.rounded:
        return "precision", f"computed in {point.rounded}"
    alike = point.computed is not None and point.computed_ratio() <= THRESHOLD
    if delta.check == "as it runs" and alike:
        return "precision", "rounds more than the candidate's precision does"
    return "operation", "computes something else"
