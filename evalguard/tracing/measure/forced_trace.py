"""Where a candidate introduces error: two models, or a model and recorded activations.

The base's activations are recorded once. A pass of the candidate is then forced to them: at every
point its own tensor is compared with the base's, and replaced by it, so that an error belongs to
the code since the points before. Benign twins of the base, forced alike, say what rounding alone
does at each point. Of activations that were recorded elsewhere the base is forced to them, and its
own tensors are compared: the same code, the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.activation_sums import ErrorSums
from evalguard.core.exchanged_documents import DocumentOrder
from evalguard.core.row_counts import RowCounts, find_row_counts
from evalguard.core.trace_points import OUTPUT, ROOT, ModelRounding, PointName
from evalguard.core.trace_record import SuspectModule, Trace, TwinFacts, UnalignedPoint
from evalguard.core.weight_precision import (
    CLASSES,
    EPSILON,
    OTHER,
    QUANTISED,
    SAME,
    DeclaredPrecision,
    round_weights,
)
from evalguard.errors import EvaluationError, UsageError, nearest
from evalguard.models.checkpoint_tensors import computing_dtype
from evalguard.tracing.measure.activation_spool import ActivationSpool
from evalguard.tracing.measure.alignment import ModuleAlignment, align_modules
from evalguard.tracing.measure.benign_twins import (
    attention_of,
    in_float32,
    laid_out_as,
    rounded_as,
    rounded_as_candidate,
    why_not_upcast,
    with_attention,
    with_weights_of,
    without_epsilons,
)
from evalguard.tracing.measure.cancelling import ReleasedPasses, layer_of, note_cancelling
from evalguard.tracing.measure.measured_points import (
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
from evalguard.tracing.measure.passes import (
    ComparedPass,
    PointDetails,
    ReportStep,
    TracedSequences,
    TwinFloors,
    as_array,
    fit_reference,
    reaches_output,
)
from evalguard.tracing.measure.relayouts import Relayout, find_relayouts, weights_of_part
from evalguard.tracing.measure.rounded_products import rounded_products
from evalguard.tracing.measure.suspects import (
    THRESHOLD,
    WEIGHTS_THRESHOLD,
    MeasuredPoint,
    rank_suspects,
    ulp_floor,
)
from evalguard.tracing.measure.weight_rounding import (
    WeightsCompared,
    compare_weights,
    read_declared,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from evalguard.core.settings import Value
    from evalguard.core.trace_points import ModelInputs, RecordedActivations
    from evalguard.tracing.measure.model_outline import OtherPasses
    from evalguard.tracing.measure.module_hooks import PointEvent

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
    point_counts = {}
    for point, (theirs, ours) in local.shapes.items():
        axes = [n for n, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]]
        tensors = (spool.get(0, point), source.get(0, point))
        if len(theirs) != len(ours) or len(axes) != 1 or 0 in (*theirs, *ours):
            continue
        if any(tensor is None for tensor in tensors):
            continue
        rows = [
            np.moveaxis(as_array(tensor), axes[0], 0) for tensor in tensors if tensor is not None
        ]
        sides = [array.reshape(len(array), -1).astype(np.float32) for array in rows]
        counts = find_row_counts(*sides) if sides[0].shape[1] == sides[1].shape[1] else None
        if counts is not None:
            point_counts[point] = counts
    return point_counts


def _first_with_rows(
    events: Mapping[str, PointEvent], counts: Mapping[str, RowCounts]
) -> tuple[str, ...]:
    """The first point that lost a few frames, or has a few more among its own: all behind it have
    them from there. Many are those that were not recorded, and some at the end may be padding."""
    for point in events:
        row_counts = counts.get(point)
        if row_counts is not None:
            few = len(row_counts.rows) <= max(_MOST_FRAMES * row_counts.count, 1)
            return (point,) if few and row_counts.fault != "rows appended" else ()
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
    error_sums: dict[str, ErrorSums] = {}
    for sequence in range(n_sequences):
        for point in events:
            ours, theirs = spool.get(sequence, point), source.get(sequence, point)
            if ours is None or theirs is None:
                continue
            fitted = fit_reference(theirs, ours)
            if fitted is not None:
                sums = error_sums.setdefault(point, ErrorSums())
                sums.add(as_array(ours).reshape(-1), as_array(fitted).reshape(-1))
    return error_sums


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
        other_modules = set(taken.values()) - {event.code}
        if other_modules:
            point = by_name[event.name]
            point.code = _common_container([*other_modules, event.code])
            point.since = (last,) if last else ()
            point.place = f"between {last} and {event.name}" if last else f"up to {event.name}"
            point.kind = "glue"
            point.separating = _choose_middle(taken)
        if taken:
            open_modules.clear()
        last = event.name


def _choose_middle(points: Collection[str]) -> str:
    """The output, of a segment's points that are not recorded, with as many before as behind."""
    outputs = [point for point in points if PointName.parse(point).end == "out"] or list(points)
    return outputs[len(outputs) // 2]


def _common_container(modules: Sequence[str]) -> str:
    paths = [[] if name == ROOT else name.split(".") for name in modules]
    common = [parts[0] for parts in zip(*paths, strict=False) if len(set(parts)) == 1]
    while common and any(path[: len(common)] != common for path in paths):
        common.pop()
    return ".".join(common) or ROOT


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
        trace = self.run()
        if not self.differing or not trace.suspects:
            return trace
        try:
            layouts = self._find_layouts()
            if not layouts:
                return self._put_first(trace)
            weights = {key: own for layout in layouts for key, own in layout.weights.items()}
            with (
                laid_out_as(self.base, weights) as base,
                ActivationSpool(self.memory) as spool,
            ):
                beside = replace(self, base=base, spool=spool, details=None, buffers=False)
                if self.details is not None:
                    beside.details = PointDetails(self.details.patterns, self.details.heads)
                beside_trace = beside._put_first(beside.run())
        except EvaluationError as error:
            why = f"whether weights are laid out otherwise was not measured: {error}"
            return replace(trace, caveats=(*trace.caveats, why))
        cancels = {key[0]: layout.cancels_at for layout in layouts for key in layout.weights}
        known = {
            suspect.module for suspect in (*beside_trace.suspects, *beside_trace.other_layouts)
        }
        explained = [
            replace(suspect, cancels_at=suspect.cancels_at or cancels[suspect.module])
            for suspect in (*trace.suspects, *trace.other_layouts)
            if suspect.module in cancels and suspect.module not in known
        ]
        both = sorted(
            (*beside_trace.other_layouts, *explained),
            key=lambda suspect: (-suspect.local_ratio, suspect.order),
        )
        return replace(beside_trace, other_layouts=tuple(both))

    def _put_first(self, found: Trace) -> Trace:
        """Put suspects first whose layer's weights, in the base, change its output beyond rounding.

        What is laid out otherwise in a layer that undoes it reaches no output, whether or not it is
        known for a layout.
        """
        parts: dict[str, list[SuspectModule]] = {}
        for suspect in found.suspects:
            parts.setdefault(layer_of(suspect.module) or suspect.module, []).append(suspect)
        floors = [layer.accumulated_floor for layer in found.layers if layer.point == OUTPUT]
        if len(parts) < 2 or not floors or floors[0] is None:
            return found
        quiet: set[str] = set()
        with ActivationSpool(self.memory) as spool:
            same = _SameOutput(self.base, self.traced, (spool, spool))
            for part, inside in parts.items():
                weights = weights_of_part(self.base, self.candidate, self.names, part)
                known = all(
                    member.fault == "weights" and any(key[0] == member.module for key in weights)
                    for member in inside
                )
                if known and same.measure(weights)[1] <= THRESHOLD * floors[0]:
                    quiet.update(member.module for member in inside)
        reaching = [suspect for suspect in found.suspects if suspect.module not in quiet]
        if not reaching:
            return found
        quiet_suspects = [suspect for suspect in found.suspects if suspect.module in quiet]
        first = found.first
        if first is None or first.module in quiet:
            first = min(reaching, key=lambda suspect: suspect.order)
        return replace(found, suspects=(*reaching, *quiet_suspects), first=first)

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
        largest, error_left = self.measure(weights)
        if largest <= THRESHOLD or not error_left <= _LEFT_BY_EPSILON:
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
        ends = {name: sums for name, sums in own.first_sums.items() if reaches_output([name])}
        errors = {name: sums.relative_l2 for name, sums in ends.items()}
        if not errors or not all(isfinite(error) for error in errors.values()):
            return inf, inf
        ratios = (
            error / max(floors.get(name, 0.0), ulp_floor(SAME)) for name, error in errors.items()
        )
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
    return next((name for name, module in model.named_modules() if module is head), "")


def passes_apart(model: torch.nn.Module) -> OtherPasses | None:
    """What runs a model that is in a process of its own; None for one of this process."""
    from evalguard.tracing.measure.model_outline import OutlinedModel

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
