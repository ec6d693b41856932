"""Where a candidate introduces error: two models, or a model and recorded activations.

The base's activations are recorded once. A pass of the candidate is then forced to them: at every
point its own tensor is compared with the base's, and replaced by it, so that an error belongs to
the code since the points before. Benign twins of the base, forced alike, say what rounding alone
does at each point. Of activations that were recorded elsewhere the base is forced to them, and its
own tensors are compared: the same code, the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from evalguard.core.reports.trace_report import SuspectModule, Trace, TwinFacts, UnalignedPoint
from evalguard.core.tracing.points import OUTPUT, PointName
from evalguard.core.tracing.suspects import (
    THRESHOLD,
    WEIGHTS_THRESHOLD,
    rank_suspects,
    ulp_floor,
)
from evalguard.core.tracing.weight_precision import EPSILON, SAME, DeclaredPrecision
from evalguard.errors import EvaluationError
from evalguard.models.tracing.alignment import ModuleAlignment, align_modules
from evalguard.models.tracing.cancelling import ReleasedPasses, layer_of, note_cancelling
from evalguard.models.tracing.declared import read_declared
from evalguard.models.tracing.measured import (
    apply_computed_floors,
    apply_floors,
    collect_points,
    count_tokens,
    find_misshapen,
    find_origins,
    list_never_run,
    name_kinds,
    note_misfed,
    note_rounding,
)
from evalguard.models.tracing.passes import (
    ComparedPass,
    PointDetails,
    ReportStep,
    TracedSequences,
    TwinFloors,
    reaches_output,
)
from evalguard.models.tracing.recorded import trace_recorded
from evalguard.models.tracing.relaid import Relayout, find_relayouts, weights_of_part
from evalguard.models.tracing.spool import ActivationSpool
from evalguard.models.tracing.twins import (
    attention_of,
    in_float32,
    laid_out_as,
    rounded_as_candidate,
    why_not_upcast,
    with_attention,
    with_weights_of,
    without_epsilons,
)
from evalguard.models.tracing.weights import WeightsCompared, compare_weights, computing_dtype

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from evalguard.core.settings import Value
    from evalguard.core.tracing.points import ModelInputs, RecordedActivations
    from evalguard.core.tracing.sums import ErrorSums
    from evalguard.core.tracing.suspects import MeasuredPoint
    from evalguard.models.tracing.hooks import PointEvent
    from evalguard.models.tracing.outline import OtherPasses

DEFAULT_MEMORY = 2 * 2**30  # bytes of recorded activations; above it they go to a temporary file

# Of the output: what may be left of a factor by the epsilon of the norm that takes it away.
# Rounding to bfloat16 leaves more than ten times as much.
_LEFT_BY_EPSILON = 1e-4

# Two modules that were aligned by shape and order are the same one if their own values agree so.
_CONFIRMED_COSINE = 0.5


def trace_models(
    base: torch.nn.Module,
    candidate: torch.nn.Module | RecordedActivations,
    sequences: Sequence[ModelInputs],
    *,
    memory: int = DEFAULT_MEMORY,
    detail: Collection[str] = (),
    report_step: ReportStep | None = None,
    said: Mapping[str, Value] | None = None,
) -> Trace:
    """Measure at every aligned point the candidate's error, local and accumulated, over its floor.

    Both models are left as they were: hooks are removed, modes, settings and weights restored.

    Args:
        candidate: another model, or activations of one that ran elsewhere; then the base is forced
            to the recorded values, and sequences are numbered as here.
        memory: bytes of recorded activations to hold; above it they go to a temporary file, which
            is removed whatever happens.
        detail: points (globs) whose error is also wanted by token and by head.
        report_step: called before each pass.
        said: settings, arguments and build inputs of the candidate by name: a rounding of its
            weights that they, its config or its files do not declare is an error, no floor.

    Raises:
        EvaluationError: no common points, or a model fails; nothing is known then.
    """
    import torch

    if not sequences:
        raise EvaluationError("there is no document to trace", hint="give at least one")
    traced = TracedSequences(sequences=sequences, report_step=report_step)
    details = PointDetails(detail, _count_heads(base)) if detail else None
    with ActivationSpool(memory) as spool:
        if isinstance(candidate, torch.nn.Module):
            apart = passes_apart(candidate)
            declared = read_declared(candidate, said or {}) if apart is None else apart.declared
            trace = _ModelTrace(base, candidate, traced, spool, memory, details, declared)
            return trace.run_beside_layouts()
        return trace_recorded(base, candidate, traced, spool=spool, memory=memory, details=details)


@dataclass(slots=True)
class _ModelTrace:
    """A trace of two models: the candidate is forced to the base's activations in ``spool``.

    ``buffers``: whether the base runs in the candidate's precision only with its tables cast too.
    ``differing``: modules whose weights are not the base's, rounded.
    """

    base: torch.nn.Module
    candidate: torch.nn.Module
    traced: TracedSequences
    spool: ActivationSpool
    memory: int
    details: PointDetails | None
    declared: DeclaredPrecision
    names: Mapping[str, str] = field(default_factory=dict)
    buffers: bool = False
    differing: frozenset[str] = frozenset()

    def run_beside_layouts(self) -> Trace:
        """Trace; where weights differ that may be laid out otherwise, beside the base so laid out.

        What differs beside its layout, or is not undone, is a suspect of that trace.
        """
        found = self.run()
        if not self.differing or not found.suspects:
            return found
        try:
            layouts = self._find_layouts()
            if not layouts:
                return self._put_first(found)
            weights = {key: own for one in layouts for key, own in one.weights.items()}
            with (
                laid_out_as(self.base, weights) as base,
                ActivationSpool(self.memory) as spool,
            ):
                beside = replace(self, base=base, spool=spool, details=None, buffers=False)
                if self.details is not None:
                    beside.details = PointDetails(self.details.patterns, self.details.heads)
                left = beside._put_first(beside.run())
        except EvaluationError as error:
            why = f"whether weights are laid out otherwise was not measured: {error}"
            return replace(found, caveats=(*found.caveats, why))
        cancels = {key[0]: one.cancels_at for one in layouts for key in one.weights}
        known = {one.module for one in (*left.suspects, *left.other_layouts)}
        others = [
            replace(one, cancels_at=one.cancels_at or cancels[one.module])
            for one in (*found.suspects, *found.other_layouts)
            if one.module in cancels and one.module not in known
        ]
        both = sorted((*left.other_layouts, *others), key=lambda one: (-one.local_ratio, one.order))
        return replace(left, other_layouts=tuple(both))

    def _put_first(self, found: Trace) -> Trace:
        """Put suspects first whose layer's weights, in the base, change its output beyond rounding.

        What is laid out otherwise in a layer that undoes it reaches no output, whether or not it is
        known for a layout.
        """
        parts: dict[str, list[SuspectModule]] = {}
        for one in found.suspects:
            parts.setdefault(layer_of(one.module) or one.module, []).append(one)
        floors = [one.accumulated_floor for one in found.layers if one.point == OUTPUT]
        if len(parts) < 2 or not floors or floors[0] is None:
            return found
        quiet: set[str] = set()
        with ActivationSpool(self.memory) as spool:
            same = _SameOutput(self.base, self.traced, (spool, spool))
            for part, inside in parts.items():
                weights = weights_of_part(self.base, self.candidate, self.names, part)
                known = all(
                    one.fault == "weights" and any(key[0] == one.module for key in weights)
                    for one in inside
                )
                if known and same.measure(weights)[1] <= THRESHOLD * floors[0]:
                    quiet.update(one.module for one in inside)
        reaching = [one for one in found.suspects if one.module not in quiet]
        if not reaching:
            return found
        others = [one for one in found.suspects if one.module in quiet]
        first = found.first
        if first is None or first.module in quiet:
            first = min(reaching, key=lambda one: one.order)
        return replace(found, suspects=(*reaching, *others), first=first)

    def _find_layouts(self) -> Sequence[Relayout]:
        with ActivationSpool(self.memory) as plain, ActivationSpool(self.memory) as without:
            return find_relayouts(
                self.base,
                self.candidate,
                self.names,
                self.differing,
                self.traced.sequences[0],
                _SameOutput(self.base, self.traced, (without, plain)),
            )

    def run(self) -> Trace:
        alignment = align_modules(self.base, self.candidate)
        self.names = alignment.names
        recorded = self.traced.run(
            "base", self.base, ComparedPass(reference=None, spool=self.spool)
        )
        own = self._run_candidate("candidate", ComparedPass(reference=self.spool))
        doubtful = _unconfirmed(own, alignment)
        self.names = {k: v for k, v in self.names.items() if v not in doubtful}
        local = self._run_candidate(
            "candidate, forced",
            ComparedPass(reference=self.spool, forced=self.spool, details=self.details),
        )
        if not local.sums:
            raise EvaluationError(
                "base and candidate have no point with the same name and shape in common",
                hint="trace models of one architecture and size",
            )
        weights = compare_weights(self.base, self.candidate, self.names, self.declared)
        self.differing = frozenset(finding.module for finding in weights.findings)
        floors = self._measure_floors(weights)
        misshapen = find_misshapen(self.base, self.candidate, self.names, local)
        points = collect_points(
            recorded.events.values(), local.first_sums, own.first_sums, misshapen
        )
        note_misfed(points, local)
        dtype = max(computing_dtype(self.base), weights.dtype, key=ulp_floor)
        for point in points:
            note_rounding(point, local, dtype=weights.dtype)
            apply_floors(point, floors, dtype, exact=weights.exact)
        why_not = self._measure_operations(weights, {point.name: point for point in points})
        if dtype == SAME:
            _note_other_conventions(points, weights)
        unmeasured = self._note_cancelling(points, recorded, weights, dtype, why_not)
        ranking = rank_suspects(points, weights.findings, kinds=name_kinds(self.base))
        attention = (attention_of(self.base), attention_of(self.candidate))
        return Trace(
            layers=ranking.layers,
            suspects=ranking.suspects,
            first=ranking.first,
            other_layouts=ranking.other_layouts,
            unaligned=(
                *alignment.unaligned,
                *_unaligned_points(recorded, local, doubtful, weights),
            ),
            never_run=list_never_run(self.base, recorded.events.values()),
            nonfinite=find_origins(
                recorded, own, (self.base, self.candidate), self.traced.sequences
            ),
            details=self.details.results() if self.details else (),
            twin=TwinFacts(
                dtype=weights.dtype,
                weights=weights.matrices,
                seen=weights.seen,
                declared=weights.declared,
                undeclared=weights.undeclared,
                votes=weights.votes,
                twins=tuple(floors.twins),
                upcast=not why_not,
                not_upcast=why_not,
                threshold=THRESHOLD,
                weights_threshold=WEIGHTS_THRESHOLD,
                attention=attention if all(attention) else None,
            ),
            documents=len(self.traced.sequences),
            tokens=sum(count_tokens(inputs) for inputs in self.traced.sequences),
            to_the_end=reaches_output(local.sums),
            caveats=(*floors.failed, *filter(None, (unmeasured,))),
        )

    def _note_cancelling(
        self,
        points: Sequence[MeasuredPoint],
        recorded: ComparedPass,
        weights: WeightsCompared,
        dtype: str,
        not_upcast: str,
    ) -> str:
        """Note whose error cancels: as both run and, where that hides small faults, in float32.

        What is rounded more than that hides more, and nothing in it is said to cancel.

        Args:
            not_upcast: why the candidate cannot run in float32; "" if it can.

        Returns:
            Why that could not be measured; "" where it was.
        """
        classes = {dtype, weights.matrices, *weights.policies.values()}
        exact = classes == {SAME}
        if not exact and (not_upcast or not classes <= EPSILON.keys()):
            return ""
        events = tuple(recorded.events.values())
        apply = partial(apply_floors, dtype=dtype, exact=weights.exact)
        passes = self._release(self.spool, partial(self._measure_floors, weights), apply)
        failed = note_cancelling(points, events, passes)
        if exact or not any(point.cancels_at for point in points):
            return failed
        with (
            ActivationSpool(self.memory) as spool,
            rounded_as_candidate(
                self.base, self.candidate, self.names, weights, buffers=self.buffers
            ) as rounded,
            in_float32(rounded) as twin,
        ):

            def measure_floors(released: frozenset[str]) -> TwinFloors:
                floors = TwinFloors(
                    traced=self.traced, own=spool, reference=spool, forced=spool, released=released
                )
                floors.add("another batch shape, last bits moved", twin, moved=True)
                return floors

            self.traced.run("base in float32", twin, ComparedPass(reference=None, spool=spool))
            forced = ComparedPass(reference=spool, forced=spool)
            self._run_candidate("candidate in float32, forced", forced, wide=True)
            wide = collect_points(events, forced.first_sums, {})
            apply = partial(apply_floors, dtype=SAME, exact=True)
            floors = measure_floors(frozenset())
            for point in wide:
                apply(point, floors)
            passes = self._release(spool, measure_floors, apply, wide=True)
            failed = failed or note_cancelling(wide, events, passes)
        confirmed = {point.name for point in wide if point.cancels_at}
        for point in points:
            point.cancels_at = point.cancels_at if point.name in confirmed else ""
        return failed

    def _release(
        self,
        spool: ActivationSpool,
        floors: Callable[[frozenset[str]], TwinFloors],
        apply: Callable[[MeasuredPoint, TwinFloors], None],
        *,
        wide: bool = False,
    ) -> ReleasedPasses:
        def run(released: frozenset[str]) -> Mapping[str, ErrorSums]:
            visitor = ComparedPass(reference=spool, forced=spool, released=released, apart=True)
            return self._run_candidate("candidate, partly forced", visitor, wide=wide).first_sums

        return ReleasedPasses(
            run=run,
            floors=floors,
            apply=apply,
            base=spool,
            sequences=len(self.traced.sequences),
        )

    def _run_candidate(
        self, label: str, visitor: ComparedPass, *, wide: bool = False
    ) -> ComparedPass:
        """Run it where it is; ``wide``: in float32."""
        apart = passes_apart(self.candidate)
        if apart is not None:
            return apart.run(
                label,
                self.traced.sequences,
                visitor,
                self.names,
                wide=wide,
                report_step=self.traced.report_step,
            )
        with in_float32(self.candidate) if wide else nullcontext(self.candidate) as model:
            return self.traced.run(label, model, visitor, self.names)

    def _measure_floors(
        self, weights: WeightsCompared, released: frozenset[str] = frozenset()
    ) -> TwinFloors:
        """Run the benign twins of the first check."""
        floors = TwinFloors(
            traced=self.traced,
            own=self.spool,
            reference=self.spool,
            forced=self.spool,
            released=released,
        )
        floors.add("another batch shape, last bits moved", self.base, moved=True)
        base_dtype, dtype = computing_dtype(self.base), weights.dtype
        if weights.identical and dtype == base_dtype == SAME:
            return floors
        label = f"weights {weights.matrices}, computed in {dtype}"
        self._add_precision(floors, label, weights)
        if label not in floors.twins:
            self.buffers = True
            self._add_precision(floors, label, weights)
        if label not in floors.twins:
            raise EvaluationError(
                f"there is nothing to compare the candidate's rounding with: {floors.failed[-1]}",
                hint="trace a candidate that computes in the base's precision",
            )
        if dtype == base_dtype != SAME:  # the base's own rounding, which another code has not
            with in_float32(self.base) as twin:
                floors.add("computed in float32", twin)
        return floors

    def _add_precision(self, floors: TwinFloors, label: str, weights: WeightsCompared) -> None:
        """Add the twin in the candidate's precision, with either side's attention."""
        with rounded_as_candidate(
            self.base, self.candidate, self.names, weights, buffers=self.buffers
        ) as twin:
            floors.add(label, twin)
            theirs = attention_of(self.candidate)
            if label in floors.twins and theirs and attention_of(twin) not in ("", theirs):
                with with_attention(twin, theirs):
                    floors.add(f"the same with {theirs} attention", twin)

    def _measure_operations(
        self, weights: WeightsCompared, points: Mapping[str, MeasuredPoint]
    ) -> str:
        """Make the second check, both sides in float32 with the candidate's weights.

        Returns why it was not made, or "".
        """
        apart = passes_apart(self.candidate)
        why_not = why_not_upcast(self.candidate) if apart is None else apart.outline.not_upcast
        if why_not:
            return why_not
        if weights.identical and weights.dtype == computing_dtype(self.base) == SAME:
            return "both sides are float32 with the same weights: one check is both"
        with ActivationSpool(self.memory) as spool:
            with with_weights_of(
                self.base,
                self.candidate,
                self.names,
                dtype=weights.dtype,
                buffers=self.buffers,
            ) as twin:
                recording = ComparedPass(reference=None, spool=spool)
                self.traced.run("base with the candidate's weights", twin, recording)
                floors = TwinFloors(traced=self.traced, own=spool, reference=spool, forced=spool)
                floors.add("another batch shape, last bits moved", twin, moved=True)
            computed = self._run_candidate(
                "candidate in float32", ComparedPass(reference=spool, forced=spool), wide=True
            )
        for name, sums in computed.first_sums.items():
            if name in points:
                points[name].computed = sums
                apply_computed_floors(points[name], floors)
        return ""


@dataclass(slots=True)
class _SameOutput:
    """Whether the base with other weights has the output that it has, in float32.

    A norm takes away a factor of what it reads but for its epsilon. So little may be left of it
    where nothing is without epsilons.
    """

    base: torch.nn.Module
    traced: TracedSequences
    spools: tuple[ActivationSpool, ActivationSpool]  # without epsilons, and with them
    floors: dict[bool, TwinFloors] = field(default_factory=dict)

    def __call__(self, weights: Mapping[tuple[str, str], NDArray[Any]]) -> bool:
        largest, left = self.measure(weights)
        if largest <= THRESHOLD or not left <= _LEFT_BY_EPSILON:
            return largest <= THRESHOLD
        return self.measure(weights, plain=False)[0] <= THRESHOLD

    def measure(
        self, weights: Mapping[tuple[str, str], NDArray[Any]], *, plain: bool = True
    ) -> tuple[float, float]:
        """The output's largest ratio, and its largest error; infinite where it is not known.

        Args:
            plain: with epsilons.
        """
        spool, head = self.spools[plain], _find_head(self.base)
        with nullcontext() if plain else without_epsilons(self.base):
            if plain not in self.floors:
                self.floors[plain] = self._record(spool)
            with laid_out_as(self.base, weights) as moved:
                own = ComparedPass(reference=spool)
                if any(name == head for name, _ in weights):
                    own = _UpToConstants(reference=_Centred(spool))
                self.traced.run("base laid out otherwise", moved, own)
        floors = self.floors[plain].accumulated
        ends = {name: one for name, one in own.first_sums.items() if reaches_output([name])}
        errors = {name: one.relative_l2 for name, one in ends.items()}
        if not errors or not all(isfinite(one) for one in errors.values()):
            return inf, inf
        ratios = (one / max(floors.get(name, 0.0), ulp_floor(SAME)) for name, one in errors.items())
        return max(ratios), max(errors.values())

    def _record(self, spool: ActivationSpool) -> TwinFloors:
        floors = TwinFloors(traced=self.traced, own=spool, reference=spool, forced=spool)
        with in_float32(self.base) as twin:
            recording = ComparedPass(reference=None, spool=spool)
            self.traced.run("base in float32", twin, recording)
            floors.add("another batch shape, last bits moved", twin, moved=True)
        return floors


@dataclass(frozen=True, slots=True)
class _Centred:
    """Tensors without what all elements of a vector have in common: a softmax takes that away."""

    own: ActivationSpool

    def get(self, sequence: int, point: str) -> torch.Tensor | None:
        value = self.own.get(sequence, point)
        return None if value is None else _centre(value)


@dataclass(slots=True, kw_only=True)
class _UpToConstants(ComparedPass):
    """Compares what a softmax makes no difference of; replaces nothing."""

    def __call__(self, event: PointEvent, value: torch.Tensor) -> None:
        super(_UpToConstants, self).__call__(event, _centre(value))


def _centre(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point() or value.ndim == 0:
        return value
    return value - value.mean(dim=-1, keepdim=True)


def _find_head(model: torch.nn.Module) -> str:
    """Name the module that makes logits of tokens; "" where there is none."""
    find = getattr(model, "get_output_embeddings", None)
    head = None if find is None else find()
    return next((name for name, one in model.named_modules() if one is head), "")


def passes_apart(model: torch.nn.Module) -> OtherPasses | None:
    """What runs a model that is in a process of its own; None for one of this process."""
    from evalguard.models.tracing.outline import OutlinedModel

    return model.passes if isinstance(model, OutlinedModel) else None


def _note_other_conventions(points: Sequence[MeasuredPoint], weights: WeightsCompared) -> None:
    """Note modules whose code and weights both differ, and together make what the base's does.

    A norm that stores its weights from 0, an embedding with its scale in them.
    """
    owners = {finding.module for finding in weights.findings}
    for point in points:
        if point.kind == "leaf" and point.code in owners and point.local is not None:
            together = point.run_ratio() <= THRESHOLD < point.computed_ratio()
            point.cancels_at = point.cancels_at or (point.name if together else "")


def _count_heads(model: torch.nn.Module) -> int:
    return int(getattr(getattr(model, "config", None), "num_attention_heads", None) or 0)


def _unconfirmed(own: ComparedPass, alignment: ModuleAlignment) -> frozenset[str]:
    """Give the modules that were aligned by shape and order but whose values do not agree."""
    doubtful = set()
    for point, sums in own.sums.items():
        module = PointName.parse(point).module
        if module in alignment.guessed and not sums[0].error().cosine >= _CONFIRMED_COSINE:
            doubtful.add(module)
    return frozenset(doubtful)


def _unaligned_points(
    recorded: ComparedPass,
    local: ComparedPass,
    doubtful: Collection[str],
    weights: WeightsCompared,
) -> list[UnalignedPoint]:
    of_candidate = [
        *(
            (p, f"shape {theirs}, the base's is {ours}")
            for p, (ours, theirs) in local.shapes.items()
        ),
        *((name, "its values are not the base's") for name in sorted(doubtful)),
        *((name, "this weight cannot be compared") for name in weights.uncompared),
    ]
    missing = [name for name in recorded.events if name not in local.events]
    return [
        *(UnalignedPoint(name=n, side="candidate", reason=reason) for n, reason in of_candidate),
        *(
            UnalignedPoint(name=name, side="base", reason="the candidate does not have it")
            for name in missing
        ),
    ]
