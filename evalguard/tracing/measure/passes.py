"""One pass of a model compared with recorded activations, and forced to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

import numpy as np

from evalguard.core.activation_sums import ErrorSums
from evalguard.core.trace_points import ROOT, PointName
from evalguard.core.trace_record import TokenDetail
from evalguard.core.weight_precision import EPSILON, round_weights
from evalguard.errors import EvaluationError
from evalguard.tracing.measure.module_hooks import run_pass
from evalguard.tracing.measure.plain_sums import plain_sums

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from evalguard.core.trace_points import ModelInputs
    from evalguard.tracing.measure.activation_spool import ActivationSpool
    from evalguard.tracing.measure.module_hooks import PointEvent

# What is being done, how many passes are done, and how many there are.
ReportStep = Callable[[str, int, int], None]
_ROWS = 2  # of a twin in another batch shape: the sequence, and one with its last bits moved
_PROBE = 4096  # elements that are looked at before all are
_HALF = ("bfloat16", "float16")
_MERELY_CAST = 0.1  # of a rounding's own error: that a float32 sum before it was done otherwise
# Of tokens in another order: numbers of one that tell it from the others, the relative L2 that no
# rounding leaves, and what may be left of it once both sides are sorted.
_LEAST_WIDTH = 4
_NO_ROUNDING = 0.1
_SAME_TOKENS = 0.5


class ActivationSource(Protocol):
    """Tensors by sequence and point, to be read only."""

    def get(self, sequence: int, point: str) -> torch.Tensor | None: ...


@dataclass(slots=True, kw_only=True)
class ComparedPass:
    """A visitor that compares every tensor with a reference, and lets it be replaced.

    Attributes:
        reference: what a tensor is compared with. forced: what takes its place; None: nothing, the
            pass goes on with its own.
        rows: copies of the sequence in the batch. Each is compared; the largest error counts.
        jitter: whether the last bit of what goes on is moved in the last row, by a step that is
            drawn for the point's name: what rounding alone does there.
        sequence: that is run; set before each pass.
        sums: per point, one for each row.
        shapes: points whose shapes differ, the reference's and the tensor's.
        given: points whose code was called with others' tensors that could not be replaced.
        sorted: points of several copies whose tokens do not lie copy by copy (those of experts lie
            expert by expert): they are neither compared nor replaced.
        rounded: points whose every value is a number of a coarser dtype, unlike the reference's.
        cast: inputs that are the reference's values and nothing else, rounded to a coarser dtype.
        origin: the first point with nan or infinite values, how many, and of which sequence.
        origin_at: the first place of such a value on each axis, and the tensor's shape.
        events: every point once, in the order of execution of the first sequence that has it.
        spool: where the tensors are stored before they are replaced.
        candidate_is_reference: the model that runs is the base; sums keep base and candidate apart.
        released: points that keep the model's own tensors in a forced pass.
        apart: whether each sequence has sums of its own, under :func:`sequence_key`.
    """

    reference: ActivationSource | None
    forced: ActivationSource | None = None
    rows: int = 1
    jitter: bool = False
    sequence: int = 0
    sums: dict[str, list[ErrorSums]] = field(default_factory=dict)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    given: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sorted: set[str] = field(default_factory=set)
    rounded: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)
    origin: tuple[PointEvent, int, int] | None = None
    origin_at: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    events: dict[str, PointEvent] = field(default_factory=dict)
    details: PointDetails | None = None
    spool: ActivationSpool | None = None
    candidate_is_reference: bool = False
    released: frozenset[str] = frozenset()
    apart: bool = False

    def __call__(self, event: PointEvent, value: torch.Tensor) -> torch.Tensor | None:
        self.events.setdefault(event.name, event)
        if self.forced is not None and event.given:
            self.given[event.name] = event.given
        if self.spool is not None:
            self.spool.put(self.sequence, event.name, value)
        if self.origin is None and self.forced is None and value.is_floating_point():
            self._note_origin(event, value)
        self._compare(event, value)
        if self.forced is None or event.name in self.released:
            return self._moved(event.name, value) if self.jitter else None
        recorded = self.forced.get(self.sequence, event.name)
        if recorded is None:
            return None
        fitted = fit_reference(recorded, value, self.rows)
        if fitted is None or event.name in self.sorted:
            return None
        replaced = fitted.to(device=value.device, dtype=value.dtype, copy=True)
        return self._moved(event.name, replaced) if self.jitter else replaced

    def _note_origin(self, event: PointEvent, value: torch.Tensor) -> None:
        if not bool(value.sum().isfinite()):  # cheaper than every element, and seldom so
            bad = (~value.isfinite()).nonzero()
            if len(bad):
                self.origin = (event, len(bad), self.sequence)
                self.origin_at = tuple(bad.min(dim=0).values.tolist()), tuple(value.shape)

    @property
    def first_sums(self) -> Mapping[str, ErrorSums]:
        """Per point the sums of the first row: the sequence as it is."""
        return {point: rows[0] for point, rows in self.sums.items()}

    def _compare(self, event: PointEvent, value: torch.Tensor) -> None:
        if self.reference is None:
            return
        reference = self.reference.get(self.sequence, event.name)
        if reference is None:
            return
        fitted = fit_reference(reference, value, self.rows)
        if fitted is None:
            self.shapes[event.name] = (tuple(reference.shape), tuple(value.shape))
            return
        base, own = as_array(fitted), as_array(value)
        if self.candidate_is_reference:
            base, own = own, base
        axis = _row_axis(reference, value, self.rows)
        if axis is not None and _are_in_another_order(base, own, axis):
            self.sorted.add(event.name)
        if event.name in self.sorted:
            return
        key = sequence_key(self.sequence, event.name) if self.apart else event.name
        sums = self.sums.setdefault(key, [ErrorSums() for _ in range(self.rows)])
        if axis is None:
            for each in sums:
                each.add(base, own)
        else:
            ours, theirs = np.split(base, self.rows, axis), np.split(own, self.rows, axis)
            for each, base_copy, own_copy in zip(sums, ours, theirs, strict=True):
                each.add(base_copy, own_copy)
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype == "float32":
            self._note_rounding(event.name, base, own)
            dtype = self.rounded[event.name]
        if event.code != event.module and axis is None:
            self._note_cast(event.name, base, own, dtype)
        if self.details is not None:
            self.details.add(self.sequence, event.name, base, own)

    def _note_rounding(self, point: str, base: NDArray[Any], own: NDArray[Any]) -> None:
        if self.rounded.get(point) == "":
            return
        name = _coarser_dtype(own)
        known = self.rounded.get(point, name)
        self.rounded[point] = name if name == known and name != _coarser_dtype(base) else ""

    def _note_cast(self, point: str, base: NDArray[Any], own: NDArray[Any], dtype: str) -> None:
        if self.cast.get(point) == "" or dtype not in _HALF:
            self.cast[point] = ""
            return
        rounded = round_weights(base.astype(np.float32), dtype)
        error = float(np.linalg.norm((rounded - base).reshape(-1)))
        beside = float(np.linalg.norm((own.astype(np.float32) - rounded).reshape(-1)))
        self.cast[point] = dtype if error > 0.0 and beside <= _MERELY_CAST * error else ""

    def _moved(self, point: str, value: torch.Tensor) -> torch.Tensor | None:
        """Move the last bits in the last row, where the tensor has rows of its own."""
        import torch

        if not value.is_floating_point() or value.element_size() < 4 or value.ndim == 0:
            return value  # nothing between two of its numbers
        rows = self.rows if value.shape[0] % self.rows == 0 else 1
        last = value[value.shape[0] - value.shape[0] // rows :]
        generator = torch.Generator().manual_seed(crc32(f"{self.sequence} {point}".encode()))
        step = torch.rand(last.shape, generator=generator).to(value) * 2.0 - 1.0
        moved = torch.addcmul(last, last, step, value=EPSILON["float32"])
        return torch.cat([value[: value.shape[0] - len(last)], moved])


@dataclass(slots=True, kw_only=True)
class TracedSequences:
    """The documents of a trace, run by any of its models."""

    sequences: Sequence[ModelInputs]
    report_step: ReportStep | None = None

    def run(
        self,
        label: str,
        model: torch.nn.Module,
        visitor: ComparedPass,
        names: Mapping[str, str] | None = None,
    ) -> ComparedPass:
        """Run the model over all sequences with a visitor, and give it back.

        Args:
            names: the base's name of each of the model's modules; None: they are the base's.
        """
        for number, inputs in enumerate(self.sequences):
            if self.report_step is not None:
                self.report_step(label, number, len(self.sequences))
            visitor.sequence = number
            run_pass(model, inputs, visitor, names=names, rows=visitor.rows)
        return visitor


@dataclass(slots=True, kw_only=True)
class TwinFloors:
    """Floors of benign twins: the largest error of any of them at each point.

    Attributes:
        own: what a twin's free pass is compared with. reference, forced: of its forced pass.
        local, accumulated: relative L2 by point. coherent: of its coherent part, locally.
        twins: that were run. failed: why others were not.
        released: points that a twin's forced pass keeps its own tensors at; then each sequence has
            floors of its own (:func:`sequence_key`), and there is no free pass.
    """

    traced: TracedSequences
    own: ActivationSource
    reference: ActivationSource
    forced: ActivationSource
    local: dict[str, float] = field(default_factory=dict)
    coherent: dict[str, float] = field(default_factory=dict)
    accumulated: dict[str, float] = field(default_factory=dict)
    twins: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    released: frozenset[str] = frozenset()

    def copy(self) -> TwinFloors:
        """Give floors that a twin can be added to on trial."""
        return replace(
            self,
            local=dict(self.local),
            coherent=dict(self.coherent),
            accumulated=dict(self.accumulated),
            twins=list(self.twins),
            failed=list(self.failed),
        )

    def add(
        self, label: str, twin: torch.nn.Module, *, moved: bool = False, plain: bool = False
    ) -> None:
        """Run a twin over all sequences, forced and on its own.

        Args:
            moved: run it in another batch shape, with the last bits moved in one of the rows.
            plain: round each operation as plain code does, for a candidate of unknown code.
        """
        rows = _ROWS if moved else 1
        forced = ComparedPass(
            reference=self.reference,
            forced=self.forced,
            rows=rows,
            jitter=moved,
            released=self.released,
            apart=bool(self.released),
        )
        free = ComparedPass(reference=self.own, rows=rows, jitter=moved)
        try:
            with plain_sums() if plain else nullcontext():
                self.traced.run(f"twin ({label}), forced", twin, forced)
                if not self.released:
                    self.traced.run(f"twin ({label})", twin, free)
        except EvaluationError as error:
            self.failed.append(f"the twin with {label} could not be run: {error}")
            return
        self.twins.append(label)
        for visitor, floors in ((forced, self.local), (free, self.accumulated)):
            for point, sums in visitor.sums.items():
                floors[point] = max(floors.get(point, 0.0), *(each.relative_l2 for each in sums))
        for point, sums in forced.sums.items():
            coherent = max(each.relative_coherent for each in sums)
            self.coherent[point] = max(self.coherent.get(point, 0.0), coherent)


@dataclass(slots=True)
class PointDetails:
    """Local errors of some points by token and by head.

    Attributes:
        patterns: globs of the points. heads: number of the attention's heads, 0 where unknown.
        elsewhere: what was found in the process of the model, in place of what was added here.
    """

    patterns: Collection[str]
    heads: int = 0
    elsewhere: tuple[TokenDetail, ...] = ()
    _tokens: dict[str, dict[int, tuple[float, ...]]] = field(default_factory=dict)
    _heads: dict[str, list[ErrorSums]] = field(default_factory=dict)

    def add(self, sequence: int, point: str, base: NDArray[Any], own: NDArray[Any]) -> None:
        """Add a point's tensors of one sequence, [1, tokens, ...]; others are left out."""
        if base.ndim < 3 or not any(fnmatchcase(point, pattern) for pattern in self.patterns):
            return
        by_token = [ErrorSums() for _ in range(base.shape[1])]
        for number, sums in enumerate(by_token):
            sums.add(base[:, number], own[:, number])
        self._tokens.setdefault(point, {})[sequence] = tuple(s.relative_l2 for s in by_token)
        if self.heads and point.endswith(":in") and base.shape[-1] % self.heads == 0:
            pairs = zip(
                np.split(base, self.heads, axis=-1), np.split(own, self.heads, axis=-1), strict=True
            )
            by_head = self._heads.setdefault(point, [ErrorSums() for _ in range(self.heads)])
            for sums, pair in zip(by_head, pairs, strict=True):
                sums.add(*pair)

    def results(self) -> tuple[TokenDetail, ...]:
        """Give what was added."""
        return self.elsewhere or tuple(
            TokenDetail(
                point=point,
                tokens=tuple(tokens[number] for number in sorted(tokens)),
                heads=tuple(sums.relative_l2 for sums in self._heads.get(point, [])),
            )
            for point, tokens in self._tokens.items()
        )


def sequence_key(sequence: int, point: str) -> str:
    """Name the sums of one sequence at a point."""
    return f"{sequence} {point}"


def as_array(value: torch.Tensor) -> NDArray[Any]:
    """Give a tensor's values, in float32 where numpy does not know its dtype."""
    import torch

    plain = value.detach().cpu()
    if plain.dtype is torch.bfloat16 or str(plain.dtype).startswith("torch.float8"):
        plain = plain.float()
    array: NDArray[Any] = plain.numpy()
    return array


def reaches_output(compared: Collection[str]) -> bool:
    """Whether the outermost module's output is among the points that were compared."""
    points = map(PointName.parse, compared)
    return any(point.module == ROOT and point.end == "out" for point in points)


def _row_axis(reference: torch.Tensor, value: torch.Tensor, rows: int) -> int | None:
    """Find the axis along which the copies of a sequence lie; None where there is none."""
    own, single = tuple(value.shape), tuple(reference.shape)
    single = (1,) * (len(own) - len(single)) + single  # leading axes of one may be missing
    if rows == 1 or len(own) != len(single) or own == single:
        return None
    axes = [axis for axis in range(len(own)) if own[axis] == rows * single[axis]]
    rest_equal = (
        axes and own[: axes[0]] == single[: axes[0]] and own[axes[0] + 1 :] == single[axes[0] + 1 :]
    )
    return axes[0] if rest_equal else None


def _are_in_another_order(tiled: NDArray[Any], own: NDArray[Any], axis: int) -> bool:
    """Say whether the tokens along an axis are the expected ones in another order."""
    ours, theirs = (
        np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1).astype(np.float64)
        for values in (tiled, own)
    )
    size = float(np.linalg.norm(ours))
    apart = float(np.linalg.norm(ours - theirs))
    if ours.shape[1] < _LEAST_WIDTH or not apart > _NO_ROUNDING * size:
        return False
    direction = np.random.default_rng(0).standard_normal(ours.shape[1])
    in_order = [values[np.argsort(values @ direction)] for values in (ours, theirs)]
    return float(np.linalg.norm(in_order[0] - in_order[1])) < _SAME_TOKENS * apart


def fit_reference(
    reference: torch.Tensor, value: torch.Tensor, rows: int = 1
) -> torch.Tensor | None:
    """Bring a reference of one sequence to the tensor's shape; None where it has another one."""
    if reference.shape == value.shape:
        return reference
    axis = _row_axis(reference, value, rows)
    if axis is not None:
        return reference.repeat(*[rows if i == axis else 1 for i in range(value.ndim)])
    if _without_ones(reference) == _without_ones(value):
        return reference.reshape(value.shape)
    return None


def _without_ones(value: torch.Tensor) -> tuple[int, ...]:
    shape = list(value.shape)
    while shape and shape[0] == 1:
        shape.pop(0)
    return tuple(shape)


def _coarser_dtype(values: NDArray[Any]) -> str:
    """Name the 16 bit dtype that holds every value; "" where none does, or all are simple."""
    flat = values.reshape(-1).astype(np.float32, copy=False)
    for name in ("bfloat16", "float16"):
        head = flat[:_PROBE]
        if np.array_equal(round_weights(head, name), head):
            return name if np.array_equal(round_weights(flat, name), flat) else ""
    return ""
