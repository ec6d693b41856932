"""What parent and worker say to each other, and what each call takes and gives."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.plain import PLAIN, Codec, PlainError, codec_of
from evalguard.core.reports.trace_report import Trace
from evalguard.core.scorer import (
    ModelDescription,
    Request,
    Response,
    ScoringPolicy,
)
from evalguard.core.settings import (
    Variant,
)
from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.core.tracing.other_process import (
    EncodedRequest,
    LinearCall,
    ModelOutline,
    OutlineCall,
    PaddingCall,
    PaddingFound,
    PassCall,
    PassFound,
    TraceSupport,
)
from evalguard.core.tracing.points import ModelRounding
from evalguard.errors import WorkerError
from evalguard.worker.failures import Failure
from evalguard.worker.frames import RawMessage, to_frame
from evalguard.worker.wire_types import (
    DESCRIPTION,
    DIVERGENCE,
    REFERENCE,
    REQUESTS,
    RESPONSES,
    TOKEN_IDS,
    VARIANT,
)

# Raised with every change of what is said, or of what it means.
PROTOCOL = 9

CallName = Literal[
    "load",
    "reassign",
    "describe",
    "encode",
    "generation_parts",
    "score",
    "count_cached_tokens",
    "check_unchanged",
    "score_reference",
    "next_reference",
    "give_reference",
    "score_against",
    "next_divergence",
    "activations",
    "next_activation",
    "trace_recorded",
    "trace_support",
    "held_values",
    "encode_traced",
    "outline",
    "read_linear",
    "run_traced",
    "locate_padding",
    "render_chat",
    "close",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker needs to load a model, in place of the one that it has.

    ``import_path`` replaces the worker's ``sys.path``, so that hooks are found as in the parent;
    empty for an interpreter that has packages of its own. ``reusable``: other values are to be
    assigned to the settings later. ``remember``: digests of big files are kept in the cache folder,
    and taken from it. ``traced``: it is to be a ``TracedScorer``.
    """

    variant: Variant
    policy: ScoringPolicy
    cache_dir: str
    import_path: tuple[str, ...]
    reusable: bool = False
    remember: bool = False
    traced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation to be rendered by the model's chat template."""

    messages: tuple[Mapping[str, str], ...]
    add_generation_prompt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceCall:
    """Score these requests, and keep a reference of their distributions."""

    requests: tuple[Request, ...]
    top_k: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonCall:
    """Score these requests, and compare with the references that were given piece by piece.

    ``lengths`` are the positions of each request's reference; 0: there is none.
    """

    requests: tuple[Request, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedAnswer:
    """Responses, and records that are fetched piece by piece until ``lengths`` are complete.

    ``reason`` says why there is none.
    """

    responses: tuple[Response, ...]
    lengths: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationsCall:
    """Read these tokens, and be asked for the values at points one after the other.

    ``forced`` are files that stand in place of the model's own values, by point.
    """

    ids: tuple[int, ...]
    wanted: tuple[str, ...]
    forced: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPart:
    """Elements of the value at a point, from ``start`` on, in the order of C."""

    point: str
    shape: tuple[int, ...]
    start: int
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCall:
    """Trace activations that were recorded of another model, by forcing this one to them.

    ``recorded`` are ``.npy`` files by point, for each sequence of token ids; ``rounding`` is the
    other model's, ``memory`` of bytes to hold here.
    """

    sequences: tuple[tuple[int, ...], ...]
    recorded: tuple[Mapping[str, str], ...]
    rounding: ModelRounding
    memory: int
    detail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Parent to worker: do this; answer under the same number."""

    number: int
    name: str
    argument: Any  # as its codec made it, or is to read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Worker to parent, first of all: who is there."""

    evalguard: str
    python: str
    protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Worker to parent, about every second during a call: alive; ``answered`` calls so far."""

    answered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Worker to parent: the value that a call gave."""

    number: int
    value: Any  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Worker to parent: the call raised; the worker is ready for the next one."""

    number: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class CallForm:
    """The codecs of a call's argument and of its value."""

    argument: Codec[Any]
    value: Codec[Any]


_NOTHING = PLAIN
CALLS: Mapping[str, CallForm] = {
    "load": CallForm(codec_of(Load), DESCRIPTION),
    "reassign": CallForm(VARIANT, codec_of(ModelDescription | None)),  # None: only loading can
    "describe": CallForm(_NOTHING, DESCRIPTION),
    "encode": CallForm(REQUESTS, TOKEN_IDS),
    "generation_parts": CallForm(REQUESTS, TOKEN_IDS),  # places of requests, not ids
    "score": CallForm(REQUESTS, RESPONSES),
    "count_cached_tokens": CallForm(_NOTHING, codec_of(int | None)),  # None: it does not say
    "check_unchanged": CallForm(_NOTHING, _NOTHING),
    "score_reference": CallForm(codec_of(ReferenceCall), codec_of(ChunkedAnswer)),
    "next_reference": CallForm(_NOTHING, REFERENCE),
    "give_reference": CallForm(REFERENCE, _NOTHING),
    "score_against": CallForm(codec_of(ComparisonCall), codec_of(ChunkedAnswer)),
    "next_divergence": CallForm(_NOTHING, DIVERGENCE),
    "activations": CallForm(codec_of(ActivationsCall), _NOTHING),
    "next_activation": CallForm(_NOTHING, codec_of(ActivationPart | None)),  # None: that was all
    "trace_recorded": CallForm(codec_of(TraceCall), codec_of(Trace)),
    "trace_support": CallForm(_NOTHING, codec_of(TraceSupport)),
    "held_values": CallForm(_NOTHING, codec_of(tuple[HeldValue, ...])),
    "encode_traced": CallForm(REQUESTS, codec_of(EncodedRequest)),
    "outline": CallForm(codec_of(OutlineCall), codec_of(ModelOutline)),
    "read_linear": CallForm(codec_of(LinearCall), codec_of(bool)),
    "run_traced": CallForm(codec_of(PassCall), codec_of(PassFound | None)),
    "locate_padding": CallForm(codec_of(PaddingCall), codec_of(PaddingFound)),
    "render_chat": CallForm(codec_of(Chat), codec_of(str)),
    "close": CallForm(_NOTHING, _NOTHING),
}
_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in (Call, Hello, Beat, Answer, Refusal)}


def frame_message(content: Call | Hello | Beat | Answer | Refusal) -> bytes:
    """Return the frame that says ``content``.

    Raises:
        WorkerError: if it is too large to travel at once.
    """
    kind = type(content).__name__
    return to_frame({"kind": kind, "content": codec_of(_KINDS[kind]).encode(content)})


def read_message(message: RawMessage) -> Call | Hello | Beat | Answer | Refusal:
    """Return what a message says.

    Raises:
        WorkerError: if it is of no known kind or lacks a field, said as a predicate of its sender.
    """
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS or message.keys() != {"kind", "content"}:
        raise WorkerError(f"sent a message of no known kind: {reprlib.repr(message)[:80]}")
    try:
        decoded = codec_of(_KINDS[kind]).decode(message["content"])
    except PlainError as error:
        raise WorkerError(f"sent a damaged message: {kind}{error}") from error
    return cast("Call | Hello | Beat | Answer | Refusal", decoded)
