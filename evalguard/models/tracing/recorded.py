"""A candidate that ran elsewhere: the base is forced to the activations recorded of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from evalguard.core.exchanged_documents import DocumentOrder
from evalguard.core.reports.trace_report import Trace, TwinFacts, UnalignedPoint
from evalguard.core.tensors.other_row_counts import RowCounts, find_row_counts
from evalguard.core.tracing.points import ROOT, ModelRounding, PointName
from evalguard.core.tracing.sums import ErrorSums
from evalguard.core.tracing.suspects import (
    THRESHOLD,
    MeasuredPoint,
    rank_suspects,
    ulp_floor,
)
from evalguard.core.tracing.weight_precision import (
    CLASSES,
    EPSILON,
    OTHER,
    QUANTISED,
    SAME,
    round_weights,
)
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.models.tracing.cancelling import ReleasedPasses, note_cancelling
from evalguard.models.tracing.measured import (
    apply_floors,
    collect_points,
    count_tokens,
    find_origins,
    list_never_run,
    name_kinds,
    note_rounding,
)
from evalguard.models.tracing.passes import (
    ComparedPass,
    PointDetails,
    ReportStep,
    TracedSequences,
    TwinFloors,
    as_array,
    fit_reference,
    reaches_output,
)
from evalguard.models.tracing.rounded_products import rounded_products
from evalguard.models.tracing.spool import ActivationSpool
from evalguard.models.tracing.twins import rounded_as
from evalguard.models.tracing.weights import computing_dtype

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from evalguard.core.tracing.points import ModelInputs, RecordedActivations
    from evalguard.models.tracing.hooks import PointEvent

# Tried in this order where the precision is not known: the first whose twin explains most of the
# outputs of weights is taken.
_TRIED = ("float16", "bfloat16", "int8 in groups of 32", "int4 in groups of 32")
_EXPLAINED = 2.0  # ratio: activations may be rounded as the weights are
# The share of outputs of weights that a class has to explain. Of a file of several types, which is
# declared quantised and no more, what is coarser than most of it is no error: a GGUF's q6_K is
# q8_0 wherever a row is no multiple of 256.
_MOST, _NEARLY_ALL = 0.5, 0.9
_HALF = ("float16", "bfloat16")
_EXPLAINING = 0.1  # of an error: what is left of it where one rounding makes the same values
_MOST_FRAMES = 0.1  # of the base's: more are missing because they were not recorded


def trace_recorded(
    base: torch.nn.Module,
    candidate: RecordedActivations,
    traced: TracedSequences,
    *,
    spool: ActivationSpool,
    memory: int,
    details: PointDetails | None,
) -> Trace:
    """Trace recorded activations: at each point, what the base makes of those before it.

    Raises:
        EvaluationError: no point of the recording is one of the base's, or has its shape.
        MisalignedRunsError: its inputs are not known, and its documents look exchanged.
        UsageError: its precision is none that is known.
    """
    stated = candidate.rounding.precision
    if stated not in ("", QUANTISED, *CLASSES):
        raise UsageError(
            f"'{stated}' is not a precision that a twin can be made of{nearest(stated, CLASSES)}",
            hint=f"one of: {', '.join(CLASSES)}",
        )
    computes_in = candidate.rounding.computes_in or SAME
    if computes_in not in EPSILON:
        raise UsageError(
            f"'{computes_in}' is not a dtype that a twin can compute in"
            f"{nearest(computes_in, EPSILON)}",
            hint=f"one of: {', '.join(EPSILON)}",
        )
    recorded = traced.run("base", base, ComparedPass(reference=None, spool=spool))
    source = _RecordedSource(candidate, spool)
    if not candidate.inputs_known:
        _refuse_exchanged(source, spool, recorded.events, len(traced.sequences))
    unaligned = _list_unaligned(candidate, recorded.events, len(traced.sequences))
    accumulated = _compare_directly(source, spool, recorded.events, len(traced.sequences))
    with ActivationSpool(memory) as answers:
        local = _force_base(base, traced, source, answers, details)
        sums = local.first_sums
        floors = TwinFloors(traced=traced, own=spool, reference=answers, forced=source)
        floors.add("another batch shape, last bits moved", base, moved=True)
        if computing_dtype(base) == SAME:
            floors.add("every operation rounded as plain float32 code does", base, plain=True)
        if computes_in not in (SAME, stated):
            with rounded_as(base, computes_in) as twin:
                floors.add(f"computed in {computes_in}", twin)
        chosen = _choose_precision(base, candidate, sums, floors)
    precision, floors = chosen.taken, chosen.floors
    counts = _find_row_counts(local, source, spool)
    moved = _first_with_rows(recorded.events, counts)
    points = collect_points(
        recorded.events.values(), sums, accumulated, {n: local.shapes[n][::-1] for n in moved}
    )
    for point in points:
        if point.name in moved:
            point.rows = _rows_text(counts[point.name])
    _blame_segments(points, recorded.events.values(), frozenset((*sums, *moved)))
    dtype = precision if precision in EPSILON and precision != SAME else computes_in
    coarser = max(computing_dtype(base), dtype, key=ulp_floor)
    for point in points:
        if dtype == SAME:
            note_rounding(point, local, dtype=dtype)
        apply_floors(point, floors, coarser, exact=stated == SAME == dtype)
    if dtype == SAME:
        _note_products(base, points, traced, source)
    unmeasured = ""
    if precision == coarser == SAME:  # coarser roundings hide small faults in what cancels
        unmeasured = note_cancelling(
            points,
            tuple(recorded.events.values()),
            ReleasedPasses(
                run=partial(_run_released, base, traced, source, None),
                floors=partial(_released_floors, base, traced, source, memory),
                apply=partial(apply_floors, dtype=SAME, exact=stated == SAME),
                base=spool,
                sequences=len(traced.sequences),
            ),
        )
    ranking = rank_suspects(points, kinds=name_kinds(base))
    return Trace(
        layers=ranking.layers,
        suspects=ranking.suspects,
        first=ranking.first,
        other_layouts=ranking.other_layouts,
        unaligned=(
            *unaligned,
            *(
                UnalignedPoint(
                    name=n,
                    side="candidate",
                    reason=f"shape {theirs}, not {ours}"
                    + (f": {_rows_text(counts[n])}" if n in counts else ""),
                    missed=True,
                )
                for n, (theirs, ours) in local.shapes.items()
                if n not in moved
            ),
        ),
        never_run=list_never_run(base, recorded.events.values()),
        nonfinite=find_origins(recorded, None, (base, None), traced.sequences),
        details=details.results() if details else (),
        twin=TwinFacts(
            dtype=dtype,
            weights=precision,
            seen=chosen.seen,
            declared="the recording says so" if stated else "",
            twins=tuple(floors.twins),
            not_upcast="the candidate's activations were recorded elsewhere",
            threshold=THRESHOLD,
        ),
        documents=len(traced.sequences),
        tokens=sum(count_tokens(inputs) for inputs in traced.sequences),
        to_the_end=reaches_output(local.sums),
        caveats=(*floors.failed, *filter(None, (unmeasured,))),
    )


def _run_released(
    base: torch.nn.Module,
    traced: TracedSequences,
    source: _RecordedSource,
    answers: ActivationSpool | None,
    released: frozenset[str],
) -> Mapping[str, ErrorSums]:
    visitor = ComparedPass(
        reference=source,
        forced=source,
        spool=answers,
        candidate_is_reference=True,
        released=released,
        apart=True,
    )
    return traced.run("base, partly forced to the recorded activations", base, visitor).first_sums


def _released_floors(
    base: torch.nn.Module,
    traced: TracedSequences,
    source: _RecordedSource,
    memory: int,
    released: frozenset[str],
) -> TwinFloors:
    """Measure the floors of :func:`trace_recorded` in float32 with some points released."""
    with ActivationSpool(memory) as answers:
        _run_released(base, traced, source, answers, released)
        floors = TwinFloors(
            traced=traced, own=answers, reference=answers, forced=source, released=released
        )
        floors.add("another batch shape, last bits moved", base, moved=True)
        floors.add("every operation rounded as plain float32 code does", base, plain=True)
    return floors


def _note_products(
    base: torch.nn.Module,
    points: Sequence[MeasuredPoint],
    traced: TracedSequences,
    source: _RecordedSource,
) -> None:
    """Note where the base makes the candidate's values once what it multiplies has 16 bits.

    Sums in float32 hide such a rounding from what shows it in other operations: a result that only
    16 bits could hold.
    """
    for dtype in _HALF:
        low, high = EPSILON[dtype] / 32.0, 4.0 * EPSILON[dtype]
        for factors in ((0, 1), (1,), (0,)):
            errors = {
                point.name: point
                for point in points
                if point.local is not None
                and not point.rounded
                and point.ratios()[0] > THRESHOLD
                and low < point.local.relative_l2 < high
            }
            if not errors:
                continue
            visitor = ComparedPass(reference=source, forced=source, candidate_is_reference=True)
            with rounded_products(partial(_cast_and_back, dtype), factors):
                traced.run(f"base with products in {dtype}", base, visitor)
            for name, sums in visitor.first_sums.items():
                local = errors[name].local if name in errors else None
                if local is not None and sums.relative_l2 <= _EXPLAINING * local.relative_l2:
                    errors[name].rounded = dtype


def _cast_and_back(dtype: str, value: torch.Tensor) -> torch.Tensor:
    import torch

    return value.to(getattr(torch, dtype)).to(value)


def _find_row_counts(
    local: ComparedPass, source: _RecordedSource, spool: ActivationSpool
) -> Mapping[str, RowCounts]:
    """Which frames one side has more, at points whose shapes differ along one axis alone."""
    found = {}
    for point, (theirs, ours) in local.shapes.items():
        axes = [n for n, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]]
        tensors = (spool.get(0, point), source.get(0, point))
        if len(theirs) != len(ours) or len(axes) != 1 or 0 in (*theirs, *ours):
            continue
        if any(one is None for one in tensors):
            continue
        rows = [np.moveaxis(as_array(one), axes[0], 0) for one in tensors if one is not None]
        sides = [one.reshape(len(one), -1).astype(np.float32) for one in rows]
        counts = find_row_counts(*sides) if sides[0].shape[1] == sides[1].shape[1] else None
        if counts is not None:
            found[point] = counts
    return found


def _first_with_rows(
    events: Mapping[str, PointEvent], counts: Mapping[str, RowCounts]
) -> tuple[str, ...]:
    """The first point that lost a few frames, or has a few more among its own: all behind it have
    them from there. Many are those that were not recorded, and some at the end may be padding."""
    for point in events:
        one = counts.get(point)
        if one is not None:
            few = len(one.rows) <= max(_MOST_FRAMES * one.count, 1)
            return (point,) if few and one.fault != "rows appended" else ()
    return ()


def _rows_text(counts: RowCounts) -> str:
    return f"{counts.fault} ({counts.detail})"


def _force_base(
    base: torch.nn.Module,
    traced: TracedSequences,
    source: _RecordedSource,
    answers: ActivationSpool,
    details: PointDetails | None,
) -> ComparedPass:
    """Force the base to what was recorded; its own tensors go to ``answers``."""
    visitor = ComparedPass(
        reference=source,
        forced=source,
        spool=answers,
        details=details,
        candidate_is_reference=True,
    )
    local = traced.run("base, forced to the recorded activations", base, visitor)
    if not local.sums:
        raise EvaluationError(
            "no recorded activation has the name and shape of a point of the base",
            hint=f"the base has points such as {', '.join(list(local.events)[1:4])}; give a name "
            "map",
        )
    return local


@contextmanager
def record_activations(
    model: torch.nn.Module,
    sequences: Sequence[ModelInputs],
    *,
    memory: int,
    report_step: ReportStep | None = None,
) -> Iterator[RecordedActivations]:
    """Record a model's own activations, as a candidate that need not be loaded beside the base.

    Args:
        memory: bytes to hold; above it they go to a temporary file, which is gone in the end.
    """
    traced = TracedSequences(sequences=sequences, report_step=report_step)
    with ActivationSpool(memory) as spool:
        traced.run("recording", model, ComparedPass(reference=None, spool=spool))
        recording = _ModelRecording(ModelRounding(precision=computing_dtype(model)), spool)
        del model  # so that closing it gives its memory back while this is in use
        yield recording


@dataclass(frozen=True, slots=True)
class _ModelRecording:
    rounding: ModelRounding
    spool: ActivationSpool
    inputs_known: bool = True

    def names(self, sequence: int) -> Sequence[str]:
        return self.spool.points(sequence)

    def read(self, sequence: int, point: str) -> NDArray[np.generic]:
        value = self.spool.get(sequence, point)
        if value is None:
            raise EvaluationError(f"nothing was recorded of {point} in sequence {sequence}")
        return as_array(value)


@dataclass(slots=True)
class _RecordedSource:
    """Recorded activations as tensors, under every name that the base has for the same tensor."""

    recorded: RecordedActivations
    spool: ActivationSpool
    _found: dict[int, Mapping[str, str]] = field(default_factory=dict)

    def get(self, sequence: int, point: str) -> torch.Tensor | None:
        import torch

        if sequence not in self._found:
            self._found[sequence] = self._names(sequence)
        name = self._found[sequence].get(point)
        if name is None:
            return None
        values = np.array(self.recorded.read(sequence, name))
        return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=False))

    def _names(self, sequence: int) -> Mapping[str, str]:
        names = [str(PointName.parse(name)) for name in self.recorded.names(sequence)]
        known = set(self.spool.points(sequence))
        first: dict[str, str] = {}
        for name in names:
            if name in known:
                first.setdefault(self.spool.stored_as(sequence, name), name)
        same = {
            point: first[self.spool.stored_as(sequence, point)]
            for point in self.spool.points(sequence)
            if self.spool.stored_as(sequence, point) in first
        }
        return {**same, **{name: name for name in names}}


def _list_unaligned(
    candidate: RecordedActivations, events: Mapping[str, PointEvent], n_sequences: int
) -> list[UnalignedPoint]:
    """List recorded names that are no points of the base, and those of some sequences alone."""
    recorded = [
        {str(PointName.parse(name)) for name in candidate.names(n)} for n in range(n_sequences)
    ]
    names = dict.fromkeys(name for each in recorded for name in sorted(each))
    absent = {name: [n for n, each in enumerate(recorded) if name not in each] for name in names}
    return [
        *(
            UnalignedPoint(name=name, side="candidate", reason="the base has no such point")
            for name in names
            if name not in events
        ),
        *(
            UnalignedPoint(
                name=name,
                side="candidate",
                reason=f"not in {len(numbers)} of {n_sequences} sequences, the first of them "
                f"{numbers[0] + 1}",
                missed=True,
            )
            for name, numbers in absent.items()
            if name in events and numbers
        ),
    ]


def _refuse_exchanged(
    source: _RecordedSource, spool: ActivationSpool, points: Iterable[str], n_sequences: int
) -> None:
    """Refuse documents in another order, as the first point says at which they differ.

    Behind it a module may mix them up, which is a fault of the model.
    """
    for point in points:
        order = DocumentOrder()
        for sequence in range(n_sequences):
            ours, theirs = spool.get(sequence, point), source.get(sequence, point)
            fitted = None if ours is None or theirs is None else fit_reference(theirs, ours)
            if ours is not None and fitted is not None:
                order.add(as_array(ours), as_array(fitted))
        if order.differing():
            names = [f"document {number + 1}" for number in range(n_sequences)]
            order.refuse_exchanged(
                names,
                ("the base", f"the recording ({point})"),
                "give the documents in the order of the recording's folders, or lay the inputs.npz "
                "of each into its folder",
            )
            return


def _compare_directly(
    source: _RecordedSource,
    spool: ActivationSpool,
    events: Mapping[str, PointEvent],
    n_sequences: int,
) -> Mapping[str, ErrorSums]:
    """Compare recorded tensors with the base's own: accumulated errors."""
    found: dict[str, ErrorSums] = {}
    for sequence in range(n_sequences):
        for point in events:
            ours, theirs = spool.get(sequence, point), source.get(sequence, point)
            if ours is None or theirs is None:
                continue
            fitted = fit_reference(theirs, ours)
            if fitted is not None:
                sums = found.setdefault(point, ErrorSums())
                sums.add(as_array(ours).reshape(-1), as_array(fitted).reshape(-1))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChosenPrecision:
    """The class that the floors are of, and the one that the outputs of weights look to be of."""

    taken: str
    seen: str
    floors: TwinFloors


def _choose_precision(
    base: torch.nn.Module,
    candidate: RecordedActivations,
    sums: Mapping[str, ErrorSums],
    floors: TwinFloors,
) -> _ChosenPrecision:
    """Add the twin of the stated precision, or of the first that explains most outputs.

    A dtype of computation is one where the activations are numbers of it; quantised weights are a
    floor only where they are declared.
    """
    stated = candidate.rounding.precision
    guessed = stated in ("", QUANTISED)
    share = _NEARLY_ALL if stated == QUANTISED else _MOST
    if stated == SAME or (guessed and _explains(base, sums, floors, share)):
        return _ChosenPrecision(taken=SAME, seen=SAME, floors=floors)
    tried = [name for name in _TRIED if name not in EPSILON or _is_computed_in(candidate, name)]
    for name in tried if guessed else (stated,):
        trial = floors.copy()
        inputs = "" if name in EPSILON else candidate.rounding.inputs
        with rounded_as(base, name, inputs=inputs) as twin:
            trial.add(f"weights and computation in {name}", twin)
        declared = stated == QUANTISED and name == _TRIED[-1]
        if not guessed or declared or _explains(base, sums, trial, share):
            if name in EPSILON or stated:
                return _ChosenPrecision(taken=name, seen=name, floors=trial)
            return _ChosenPrecision(taken=SAME, seen=name, floors=floors)
    return _ChosenPrecision(taken=SAME, seen=OTHER, floors=floors)


_MOST_LOOKED_AT = 64  # points of a recording


def _is_computed_in(candidate: RecordedActivations, dtype: str) -> bool:
    """Whether most activations of the first sequence are numbers of a 16-bit dtype."""
    names = list(candidate.names(0))[:_MOST_LOOKED_AT]
    held = 0
    for name in names:
        values = np.asarray(candidate.read(0, name))
        if values.dtype.kind == "f":
            plain = values.astype(np.float32)
            held += np.array_equal(plain, round_weights(plain, dtype), equal_nan=True)
    return 2 * held > len(names)


def _explains(
    base: torch.nn.Module, sums: Mapping[str, ErrorSums], floors: TwinFloors, share: float
) -> bool:
    """Whether that share of the outputs of modules with matrices is within the floor."""
    weighted = {
        f"{name}:out"
        for name, module in base.named_modules()
        if any(p.ndim > 1 for p in module.parameters(recurse=False))
    }
    ulps = ulp_floor(computing_dtype(base))
    ratios = [
        each.relative_l2 / max(floors.local.get(point, 0.0), ulps)
        for point, each in sums.items()
        if point in weighted
    ]
    return float(np.quantile(ratios or [0.0], share)) <= _EXPLAINED


def _blame_segments(
    points: Sequence[MeasuredPoint], events: Iterable[PointEvent], forced: frozenset[str]
) -> None:
    """Where points between two forced ones are missing, blame what holds all that ran there.

    A module's input, and a container's output, take up all that was made before in their
    container; a leaf's output takes up its own input only.
    """
    by_name = {point.name: point for point in points}
    open_modules: dict[str, str] = {}  # point that is not forced -> whose doing it is
    last = ""
    for event in events:
        end = PointName.parse(event.name).end
        if event.name not in forced:
            open_modules[event.name] = event.code
            continue
        own_input = str(PointName(event.module, "in", call=PointName.parse(event.name).call))
        leaf_output = end == "out" and event.leaf
        before = (
            {own_input: open_modules[own_input]}
            if leaf_output and own_input in open_modules
            else {}
        )
        taken = open_modules if not leaf_output or before else {}
        others = set(taken.values()) - {event.code}
        if others:
            point = by_name[event.name]
            point.code = _common_container([*others, event.code])
            point.since = (last,) if last else ()
            point.place = f"between {last} and {event.name}" if last else f"up to {event.name}"
            point.kind = "glue"
            point.separating = _choose_middle(taken)
        if taken:
            open_modules.clear()
        last = event.name


def _choose_middle(points: Collection[str]) -> str:
    """The output, of a segment's points that are not recorded, with as many before as behind."""
    outputs = [one for one in points if PointName.parse(one).end == "out"] or list(points)
    return outputs[len(outputs) // 2]


def _common_container(modules: Sequence[str]) -> str:
    paths = [[] if name == ROOT else name.split(".") for name in modules]
    common = [parts[0] for parts in zip(*paths, strict=False) if len(set(parts)) == 1]
    while common and any(path[: len(common)] != common for path in paths):
        common.pop()
    return ".".join(common) or ROOT
