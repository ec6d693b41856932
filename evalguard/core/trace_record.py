from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationError:
    """How far a candidate's tensor is from the base's, over all elements of all sequences.

    Attributes:
        relative_l2: L2 norm of the difference over the base's norm; inf where the base is zero and
            the candidate is not, nan where either holds a nan or an infinity.
        cosine: of the angle between both, flattened; nan where one of them is zero.
        max_abs: the largest absolute difference of one element.
        sum_base, sum_candidate, mean_base, mean_candidate: over all elements, as porters report
            them.
        elements: compared.
    """

    relative_l2: float
    cosine: float
    max_abs: float
    sum_base: float
    sum_candidate: float
    mean_base: float
    mean_candidate: float
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDelta:
    """One measured point: a tensor at a named place of the base, and the candidate's there.

    Attributes:
        point: canonical name, as "model.layers.3.self_attn.o_proj:in" (see core/trace_points).
        module: whose doing a local error at this point is: a leaf for its output; for glue (the
            code between modules) the innermost module whose code ran since the points before.
        kind: "leaf": a leaf's output; "glue": the input of a module; "container": the output of a
            module with children.
        place: in words, as "before o_proj"; "" for a leaf's output.
        layer: number of the layer in the longest list of like layers; None outside of it.
        order: of execution in the base, from 0.
        local: with the base's values at all points before; None where it could not be measured.
        accumulated: with each side's own values.
        floor: relative L2 of benign twins at this point, locally; ``accumulated_floor`` with their
            own values. None where not measured.
        local_ratio: the larger one of both checks' error over floor; ``check`` says which.
        accumulated_ratio: of ``accumulated`` over its floor.
        since: the forced points before this one, where modules that were not measured lie
            between; empty where nothing but ``module`` does.
        separating: the point that tells them apart, were it recorded too; "" where nothing lies
            between.
        accumulated_floor: of benign twins with their own values.
        check: the one whose error over floor is larger.
        cancels_at: the point at which nothing of the error here is left; "" where it stays.
    """

    point: str
    module: str
    kind: PointKind
    place: str = ""
    layer: int | None = None
    order: int
    local: ActivationError | None = None
    accumulated: ActivationError | None = None
    floor: float | None = None
    accumulated_floor: float | None = None
    local_ratio: float | None = None
    accumulated_ratio: float | None = None
    check: Check = "as it runs"
    since: tuple[str, ...] = ()
    separating: str = ""
    cancels_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRelation:
    """A tensor that is the base's but for one number: times it, or plus it.

    Attributes:
        kind: "factor": ``value`` times the base's; "offset": the base's plus ``value``.
        cosine: of the angle between both.
        value: times the base's, or plus it.
    """

    kind: Literal["factor", "offset"]
    value: float
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectModule:
    """A module that introduces more error than benign twins do.

    Attributes:
        module: leaf, or container for glue.
        point: where its largest local ratio was seen.
        operation: in words, as "weights: looks transposed" or "LlamaAttention, before o_proj:
            computes something else"; ``difference``: without the module's class.
        fault: what differs: its weights, what it computes, or in which precision it does.
        relation: where its values are the base's but for one number; None: they are not.
        swap_sigma: drift that goes away with this module taken from the base, in standard errors
            of the base on the task; None where it was not measured.
        order: of execution.
        layer: its number; None outside of the layers.
        check: which of both checks saw more.
        local_ratio: error introduced here over the floor.
        accumulated_ratio: with each side's own values; None: not measured.
        cancels_at: of a module that is laid out otherwise: the point at which the modules that read
            it have undone that; "" for a suspect.
    """

    module: str
    operation: str
    fault: Fault
    point: str
    order: int
    layer: int | None
    check: Check
    local_ratio: float
    accumulated_ratio: float | None
    relation: ConstantRelation | None = None
    swap_sigma: float | None = None
    difference: str = ""
    cancels_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedPoint:
    """A point or module of one side that has no counterpart, and why.

    Attributes:
        name: point or module.
        side: that has it.
        reason: why it has no counterpart.
        missed: whether it was to be compared and could not be: a recorded point of the base's,
            which nobody would have recorded for nothing. Others are of one side alone, or laid out
            otherwise by a model whose next point tells what they would have told.
    """

    name: str
    side: Literal["base", "candidate"]
    reason: str
    missed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteOrigin:
    """The first point at which a side's own pass has nan or infinite values, and how many.

    Attributes:
        position: of the sequence, the first with such a value; None where the point has none.
        weights: tensors of that side that hold such values themselves.
        side: whose.
        module: where it was seen first, at ``point``.
        elements: that are nan or infinite.
        sequence: place in the report's documents.
        point: where it was seen first.
    """

    side: Literal["base", "candidate"]
    module: str
    point: str
    elements: int
    sequence: int
    position: int | None = None
    weights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFacts:
    """What the floors were measured with.

    Attributes:
        dtype: in which the candidate computes.
        weights: the class of weight matrices that is taken as the floor ("float32", "bfloat16",
            "int8 per channel", ...); ``votes``: how many have which.
        seen: what most matrices look like; it is the floor only where it is declared or stored so.
        declared: what declares it, in words; "" where nothing need, or does.
        undeclared: how many matrices look rounded to what, where nothing declares it.
        twins: benign variants of the base that were run, in words.
        upcast: whether the second check, in float32, was made; else ``not_upcast`` says why not.
        threshold: a point with a larger ratio is beyond the floor; ``weights_threshold``: a
            weight tensor.
        attention: implementation of base and candidate, where they have such a choice.
        not_upcast: why the second check was not made.
    """

    dtype: str
    weights: str
    seen: str = ""
    declared: str = ""
    undeclared: Mapping[str, int] = field(default_factory=dict)
    votes: Mapping[str, int] = field(default_factory=dict)
    twins: tuple[str, ...] = ()
    upcast: bool = False
    not_upcast: str = ""
    threshold: float
    weights_threshold: float | None = None
    attention: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDetail:
    """Local error of a point that was asked for in detail: by token, and by head.

    Attributes:
        point: its name.
        tokens: relative L2 of each position of each sequence.
        heads: over all sequences, where the point's last axis is made of the attention's heads;
            else empty.
    """

    point: str
    tokens: tuple[tuple[float, ...], ...]
    heads: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What was measured on two models.

    Attributes:
        layers: every measured point, in the base's order of execution.
        suspects: modules beyond the floor, the largest local ratio first.
        first: of these in order of execution, but for those of rounding's size before one that is
            a hundred times as large; None where nothing is beyond the floor.
        other_layouts: modules beyond the floor whose errors cancel, as ``suspects``: permuted or
            scaled values with a reader that is so, too. They are no suspects.
        localised: whether local errors were measured; False for two sides of files alone, whose
            suspects rest on the growth of the accumulated error and are weaker evidence.
        never_run: modules of the base that no sequence ran.
        tokens: of all sequences.
        to_the_end: whether the base's output was among what was compared: else an error behind the
            last point that was is not seen.
    """

    layers: tuple[LayerDelta, ...]
    suspects: tuple[SuspectModule, ...]
    first: SuspectModule | None
    other_layouts: tuple[SuspectModule, ...] = ()
    localised: bool = True
    unaligned: tuple[UnalignedPoint, ...] = ()
    never_run: tuple[str, ...] = ()
    nonfinite: tuple[NonFiniteOrigin, ...] = ()
    details: tuple[TokenDetail, ...] = ()
    twin: TwinFacts | None
    documents: int
    tokens: int
    to_the_end: bool = True
    caveats: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[UnalignedPoint, ...]:
        """Points that were to be compared, and were not."""
        return tuple(point for point in self.unaligned if point.missed)

    @property
    def broken_base(self) -> NonFiniteOrigin | None:
        """Where the base itself begins to be nan or infinite; None where it is not."""
        return next((origin for origin in self.nonfinite if origin.side == "base"), None)


PointKind = Literal["leaf", "glue", "container"]
Check = Literal["as it runs", "what it computes", "weights"]
Fault = Literal["weights", "operation", "precision"]
