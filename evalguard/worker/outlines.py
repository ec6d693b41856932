"""What is said of a traced torch model that is in a process of its own: its outline, its passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evalguard.core.activation_sums import ErrorSums
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.scorer import Request
from evalguard.core.settings import Value
from evalguard.core.trace_points import ModelInputs
from evalguard.core.trace_record import TokenDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlinedTensor:
    """A parameter or buffer of a module.

    Attributes:
        tensor: its name in the outline's file; tensors that are one have one name.
        packed: whether it is stored quantised; the file has its values.
        stored: of a buffer: whether a checkpoint stores it.
    """

    key: str
    tensor: str
    packed: bool = False
    stored: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlinedModule:
    """A module under one of its names.

    Attributes:
        kind: name of its class. same_as: an earlier name of the same module; "" where it is new.
    """

    name: str
    kind: str
    same_as: str = ""
    parameters: tuple[OutlinedTensor, ...] = ()
    buffers: tuple[OutlinedTensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutline:
    """All of a model that a trace reads of it outside of its passes.

    Attributes:
        file: safetensors file with every tensor.
        attention: its implementation of attention; "" where there is no choice of it.
        not_upcast: why it cannot be run in float32 with its weights as they are; "" where it can.
        declared_by, bits, dtypes: how its weights are said to be rounded (``DeclaredPrecision``).
    """

    modules: tuple[OutlinedModule, ...]
    file: str
    attention: str
    not_upcast: str
    declared_by: str
    bits: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineCall:
    """Outline the model; its tensors go to ``file``.

    ``said``: settings, arguments and build inputs that may declare how it is rounded.
    """

    file: str
    said: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCall:
    """Read a linear module's matrix off what it makes of the unit matrix; it goes to ``file``."""

    module: str
    columns: int
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCall:
    """Run one sequence of a pass; a pass has all sequences, in their order, as calls of its own.

    Attributes:
        number: of the sequence. last: whether the pass ends with it.
        names: the base's name of each module that is visited; None: all, under their own names.
        reference: ``.npy`` files of the base by point, which the model's tensors are compared with.
        forced: whether they also take the place of the model's.
        wide: whether it computes in float32.
        record: folder for ``.npy`` files of its own tensors; "": none are kept.
        detail: globs of points whose error is wanted by token and by ``heads``.
        threads: CPU threads of torch; 0: as many as it uses.
        released, apart: see ``ComparedPass``.
    """

    inputs: ModelInputs
    number: int
    last: bool
    names: Mapping[str, str] | None
    reference: Mapping[str, str]
    forced: bool
    wide: bool
    record: str
    detail: tuple[str, ...]
    heads: int
    threads: int
    released: tuple[str, ...] = ()
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitedPoint:
    """A point that a pass came by; see ``PointEvent``."""

    name: str
    module: str
    code: str
    leaf: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherShape:
    """A point whose tensor has another shape than the base's."""

    point: str
    base: tuple[int, ...]
    own: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinitePoint:
    """The first point with nan or infinite values, how many, of which sequence, and where."""

    point: VisitedPoint
    elements: int
    sequence: int
    place: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFound:
    """What a pass has found: the fields of ``ComparedPass``; ``recorded`` are files by point."""

    events: tuple[VisitedPoint, ...]
    sums: Mapping[str, ErrorSums]
    shapes: tuple[OtherShape, ...]
    rounded: Mapping[str, str]
    cast: Mapping[str, str]
    origin: NonFinitePoint | None
    details: tuple[TokenDetail, ...]
    recorded: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRequest:
    """A request as a traced model reads it, and whether it was cut to the context."""

    inputs: ModelInputs
    was_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingCall:
    """Find where padding enters: a text's ids, as ``locate_padding``."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingFound:
    """The module where padding enters, and how far it moves its output; ("", 0.0) for none."""

    module: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSupport:
    """What a traced model is, and can be asked for: some have no tokenizer, no template.

    Attributes:
        kind: name of its class. computes_in: dtype of most of its weights.
        max_length: tokens that it may read; 0 where unknown.
    """

    kind: str
    computes_in: str
    max_length: int
    reads_text: bool
    renders_chat: bool
    locates_padding: bool


class TracedScorer(Protocol):
    """A torch model, loaded to be traced, wherever it is."""

    def trace_support(self) -> TraceSupport:
        """What it is, and can be asked for."""

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as it holds them."""

    def encode_traced(self, request: Request) -> EncodedRequest:
        """A request as it reads it."""

    def outline(self, call: OutlineCall) -> ModelOutline:
        """Say what it is made of."""

    def read_linear(self, call: LinearCall) -> bool:
        """Read a matrix; False where the module is not called as a linear one is."""

    def run_traced(self, call: PassCall) -> PassFound | None:
        """Run a sequence; None where the pass goes on."""

    def locate_padding(self, call: PaddingCall) -> PaddingFound:
        """Find where padding enters what it computes."""
