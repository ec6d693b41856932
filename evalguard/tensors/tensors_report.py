"""TensorsReport: what ``evalguard tensors`` found, as plain data for the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from evalguard.core.hyperparameters import HyperparameterDelta
from evalguard.core.settings import Value
from evalguard.core.split_files import FileKind
from evalguard.core.tensor_structure import Fault, Likeness
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED
from evalguard.report.record_documents import nulls_told, write_record
from evalguard.report.record_schema import LOST, add_keys, contract_schema
from evalguard.tensors.tolerances import Tolerance

# identical: bit for bit; equal: the same numbers in another dtype; within, beyond the tolerance;
# rescaled: within it once factors of rows and columns are taken back, which other tensors may do;
# rotated: its lengths and angles are the base's, in another basis.
TensorState = Literal[
    "identical", "equal", "within", "rescaled", "rotated", "beyond", "shape", "unreadable"
]
Role = Literal["tensor", "scale", "zero point"]
ScaleFaultKind = Literal["missing", "not finite", "negative", "zero", "never calibrated"]
# The gravest first.
STATES: tuple[TensorState, ...] = (
    "unreadable", "shape", "beyond", "rotated", "rescaled", "within", "equal", "identical",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """One side: what was read, and from where.

    Attributes:
        name: path as it was given.
        kind: of file.
        files: names of its files.
        tensors: how many.
        nbytes: of all tensors that can be read.
        architecture: model class or GGUF architecture; "" if nothing says it.
    """

    name: str
    kind: FileKind
    files: tuple[str, ...]
    tensors: int
    nbytes: int
    architecture: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCounts:
    """What one side holds in a tensor; ``total`` is the sum of its finite elements.

    Attributes:
        dtype: as it is stored: bfloat16, q8_0.
        shape: as it is stored.
        zeros: elements that are 0; ``nans`` those that are NaN, ``infs`` infinite.
        nans: NaN elements.
        infs: infinite elements.
        total: sum of the finite elements.
    """

    dtype: str
    shape: tuple[int, ...]
    zeros: int = 0
    nans: int = 0
    infs: int = 0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GreatestDifference:
    """The greatest difference, and the element that has it; ``value`` may be infinite.

    Attributes:
        index: of the element, an axis each.
        value: may be infinite.
    """

    value: float
    index: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRows:
    """Rows, or blocks within rows, to which one thing was done.

    Attributes:
        rows: how many; ``first``: the first few of them.
        blocks: (row, first column, last column) of the first few; () where whole rows are.
        fault: what was done; ``detail`` how.
        detail: how.
    """

    fault: Fault
    detail: str
    rows: int
    first: tuple[int, ...]
    blocks: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDelta:
    """Divergence of one tensor.

    Attributes:
        name, candidate_name: its names on the two sides.
        rows_appended: of a padded vocabulary, at the candidate's end; the others were compared.
        unequal: elements that are not the same number on both sides; NaN never is.
        untrained: elements of rows, or of a whole tensor, in which nothing was trained; counted
            where an invariant asks.
        mismatched: elements beyond the tolerance; ``mismatched_absolute`` and
            ``mismatched_relative`` are the greatest differences among these.
        sign_disagreements: elements that are above zero on one side and below on the other;
            ``zero_on_one_side``: zero here or there only.
        relative_l2: norm of the difference over the base's; inf where the base is zero.
        snr: signal to noise ratio in dB, without what an importance matrix explains; None without
            any difference.
        beyond_format: elements farther off than a healthy quantiser to the stored format leaves
            them; ``beyond_blocks``: runs of 32 that hold some.
        damage: rows and blocks that stand out, and what was done to them.
        state: identical: bit for bit; equal: the same numbers in another dtype or layout; within,
            beyond the tolerance; rescaled: within it once factors of rows and columns are taken
            back, which other tensors may do; rotated: in another basis, as QuaRot and SpinQuant do;
            shape: of another shape.
        role: a tensor's values, or a scale or zero point of its quantisation.
        greatest_absolute: greatest abs(candidate - base) of all elements.
        greatest_relative: greatest abs(candidate - base) / abs(base) of all elements.
        cosine: of both.
        layout: what the name map did to the candidate.
        fault: why it could not be read or compared.
        mismatched_absolute: the same, of mismatched elements only, as assert_close reports it.
        mismatched_relative: the same, of mismatched elements only.
    """

    name: str
    candidate_name: str
    state: TensorState
    base: SideCounts
    candidate: SideCounts
    tolerance: Tolerance
    role: Role = "tensor"
    elements: int = 0
    rows_appended: int = 0
    unequal: int = 0
    untrained: int = 0
    mismatched: int = 0
    sign_disagreements: int = 0
    zero_on_one_side: int = 0
    greatest_absolute: GreatestDifference | None = None
    greatest_relative: GreatestDifference | None = None
    mismatched_absolute: GreatestDifference | None = None
    mismatched_relative: GreatestDifference | None = None
    relative_l2: float | None = None
    cosine: float | None = None
    snr: float | None = None
    beyond_format: int = 0
    beyond_blocks: int = 0
    damage: tuple[DamagedRows, ...] = ()
    likeness: Likeness | None = None
    layout: str = ""
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Whether it is equal within its tolerance."""
        return self.state in ("identical", "equal", "within")

    @property
    def mismatched_share(self) -> float:
        """Share of its elements beyond the tolerance."""
        return self.mismatched / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateTensors:
    """Tensors of one side that are bit for bit the same under different names.

    Attributes:
        side: whose they are.
        names: of the tensors.
    """

    side: Literal["base", "candidate"]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFault:
    """What is wrong with the candidate's scales of activations or caches, by themselves.

    Attributes:
        fault: missing: its config asks for them; never calibrated: all of a kind are exactly 1.0.
        names: of the scales.
        asked: whether its config says that the model computes with them.
    """

    fault: ScaleFaultKind
    names: tuple[str, ...]
    asked: bool

    @property
    def is_unknown(self) -> bool:
        """Whether a model may be as good with it: 1.0 is what some libraries recommend."""
        return self.fault == "never calibrated"


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantTensor:
    """What an invariant found in one tensor: ``violations`` of ``elements``.

    Attributes:
        name: of the tensor.
        elements: checked.
        violations: elements that break it.
        untrained: elements that were left out, since nothing was trained in their rows.
    """

    name: str
    elements: int
    violations: int
    untrained: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantResult:
    """An invariant by name, over all tensors that it is about; ``words`` say what it demands.

    Attributes:
        words: what it demands.
    """

    name: str
    words: str
    tensors: tuple[InvariantTensor, ...]

    @property
    def elements(self) -> int:
        """Elements that were checked."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def untrained(self) -> int:
        """Elements that were left out."""
        return sum(tensor.untrained for tensor in self.tensors)

    @property
    def violations(self) -> int:
        """Elements that break it."""
        return sum(tensor.violations for tensor in self.tensors)

    @property
    def holds(self) -> bool:
        """Whether no element breaks it."""
        return self.violations == 0

    @property
    def share(self) -> float:
        """Share of elements that break it."""
        return self.violations / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorsReport:
    """What ``evalguard tensors`` found.

    Attributes:
        deltas: of all pairs, in the base's order.
        base_only, candidate_only: names without a partner; ``tied``: of these, name -> the tensor
            of its own side with the same values, which has one.
        ignored: names that the map leaves out.
        scale_faults: of scales of activations and caches that the base has not.
        invariants: where any were asked for, they alone decide.
        configuration: where config.json or a GGUF's metadata differ; decides nothing.
    """

    base: TensorSource
    candidate: TensorSource
    deltas: tuple[TensorDelta, ...]
    base_only: tuple[str, ...] = ()
    candidate_only: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    duplicates: tuple[DuplicateTensors, ...] = ()
    scale_faults: tuple[ScaleFault, ...] = ()
    invariants: tuple[InvariantResult, ...] = ()
    configuration: tuple[HyperparameterDelta, ...] = ()
    caveats: tuple[str, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    command: str = ""
    created: str = ""
    version: str = ""

    def count(self, state: TensorState) -> int:
        """Count the pairs of a state."""
        return sum(delta.state == state for delta in self.deltas)

    @property
    def states(self) -> Mapping[TensorState, int]:
        """How many pairs are in each state."""
        return {state: self.count(state) for state in STATES}

    @property
    def missing(self) -> tuple[str, ...]:
        """Names on one side only that are not tied to another tensor of it."""
        return tuple(n for n in (*self.base_only, *self.candidate_only) if n not in self.tied)

    @property
    def passed(self) -> bool:
        """Whether all invariants hold; without any, whether all tensors are within tolerance."""
        if self.invariants:
            return all(result.holds for result in self.invariants)
        broken = any(fault.asked or not fault.is_unknown for fault in self.scale_faults)
        return not self.missing and not broken and all(delta.passed for delta in self.deltas)

    @property
    def differs(self) -> bool:
        """Whether a tensor is known to be another, or is missing."""
        broken = any(not fault.is_unknown for fault in self.scale_faults)
        return bool(self.missing or broken or self.count("beyond") or self.count("shape"))

    @property
    def exit_code(self) -> int:
        """0 equal within tolerance, 1 not, 3 where a tensor could not be read, or all that differs
        was rescaled or rotated, or a scale of 1.0: what that does is not known from weights."""
        if self.count("unreadable"):
            return EXIT_FAILED
        if self.passed:
            return EXIT_PASSED
        known = self.differs or self.invariants
        return EXIT_REGRESSED if known else EXIT_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """Attributes:
    words: what it demands, for people.
    count: the elements of a tensor that break it; None: the tensor is none of its business.
    of_training: whether it is about what was trained, and leaves out rows that were not.
    """

    words: str
    count: Callable[[TensorDelta], int | None]
    of_training: bool = False


def _count_unchanged(delta: TensorDelta) -> int | None:
    """Elements of the task vector (candidate - base) that are zero.

    mergekit's mask of sign consensus is ``sign(delta) == majority``, and the majority of one task
    vector is its own sign, or +1 where that is 0: the mask is false exactly where an element was
    not changed. A difference of two unequal numbers is never rounded to zero, so unequal elements
    count the same in every precision in which the merge may compute it.
    """
    if delta.base.dtype in _WHOLE:
        return None
    return delta.elements - delta.unequal


def _count_false(delta: TensorDelta) -> int | None:
    return delta.candidate.zeros if delta.candidate.dtype == "bool" else None


def _count_not_finite(delta: TensorDelta) -> int | None:
    return delta.candidate.nans + delta.candidate.infs


_WHOLE = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)
INVARIANTS: Mapping[str, Invariant] = {
    "sign-consensus": Invariant(
        words="the sign mask of one task vector (candidate - base) is true wherever anything was "
        "trained",
        count=_count_unchanged,
        of_training=True,
    ),
    "mask-all-true": Invariant(
        words="every element of the candidate's masks (tensors of bool) is true",
        count=_count_false,
    ),
    "finite": Invariant(
        words="the candidate holds no NaN and no infinite element", count=_count_not_finite
    ),
}


def check_invariant(name: str, deltas: Iterable[TensorDelta]) -> InvariantResult:
    """Check an invariant on all pairs that were read."""
    invariant, readable = INVARIANTS[name], list(deltas)
    # Of a candidate that is the base, nothing tells what was trained: there is no task vector.
    leaves_out = invariant.of_training and any(delta.unequal for delta in readable)
    tensors = []
    for delta in readable:
        count, untrained = invariant.count(delta), delta.untrained if leaves_out else 0
        if count is not None:
            checked = InvariantTensor(
                name=delta.name,
                elements=delta.elements - untrained,
                violations=count - untrained,
                untrained=untrained,
            )
            tensors.append(checked)
    return InvariantResult(name=name, words=invariant.words, tensors=tuple(tensors))


TENSORS_SCHEMA = "evalguard.tensors/1"


def tensors_document(report: TensorsReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    content = {"schema": TENSORS_SCHEMA, **write_record(report)}
    for delta, fields in zip(report.deltas, content["tensors"], strict=True):
        for side in ("base", "candidate"):
            zeros = fields[side]["zeros"]
            fields[side]["zero_share"] = zeros / delta.elements if delta.elements else 0.0
    return nulls_told(content, "caveats")


def tensors_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    schema = contract_schema(
        TENSORS_SCHEMA,
        TensorsReport,
        "Two sets of stored tensors compared",
        exit_code={"enum": [EXIT_PASSED, EXIT_REGRESSED, EXIT_FAILED]},
        non_finite=LOST,
    )
    share = {"type": "number", "description": "Zeros as a share of the elements compared."}
    add_keys(schema, SideCounts, zero_share=share)
    add_keys(schema, InvariantResult, share={"type": "number"})
    return schema
