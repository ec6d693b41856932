"""The domain's types on the wire: Variant, ScoringPolicy, Request, Response, ModelDescription."""

from __future__ import annotations

import base64
import io
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, get_type_hints

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evalguard.core.divergence import Divergence
from evalguard.core.reference import Reference
from evalguard.core.reports.findings import Finding, FindingKind
from evalguard.core.reports.trace_report import Trace
from evalguard.core.scorer import (
    ModelDescription,
    PaddingEffect,
    Request,
    Response,
    ScoringPolicy,
)
from evalguard.core.settings import (
    TARGET_KINDS,
    BuildRecipe,
    Constraint,
    OwnEnvironment,
    ServeRecipe,
    Setting,
    Target,
    Value,
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
from evalguard.errors import WorkerError
from evalguard.worker.codec import (
    BOOLEAN,
    FAILURE,
    FLOAT,
    FLOATS,
    INTEGER,
    PLAIN,
    TEXT,
    Codec,
    Failure,
    WireError,
    codec_of,
    mapping_of,
    name_root,
    one_of,
    optional,
    record,
    sequence,
)
from evalguard.worker.frames import RawMessage, to_frame

_VALUE_MAP = mapping_of(PLAIN)

_TARGET = record(Target, kind=one_of(*TARGET_KINDS), path=TEXT, attribute=TEXT)
_SETTING = record(
    Setting,
    name=TEXT,
    reference=PLAIN,
    candidate=PLAIN,
    target=_TARGET,
    alternatives=sequence(PLAIN),
)
_CONSTRAINT = record(Constraint, when=_VALUE_MAP, then=_VALUE_MAP)
_BUILD = record(
    BuildRecipe,
    command=sequence(TEXT),
    call=TEXT,
    output=TEXT,
    inputs=_VALUE_MAP,
    folder=TEXT,
)

_SERVE = record(
    ServeRecipe,
    command=sequence(TEXT),
    url=TEXT,
    ready=TEXT,
    env=mapping_of(optional(TEXT)),
    start_limit=FLOAT,
    folder=TEXT,
    proofs=_VALUE_MAP,
)

_ENVIRONMENT = record(OwnEnvironment, python=TEXT, requirements=sequence(TEXT))

VARIANT: Codec[Variant] = name_root(
    "variant",
    record(
        Variant,
        name=TEXT,
        model=TEXT,
        model_args=_VALUE_MAP,
        settings=sequence(_SETTING),
        constraints=sequence(_CONSTRAINT),
        assignment=_VALUE_MAP,
        build=optional(_BUILD),
        environment=optional(_ENVIRONMENT),
        serve=optional(_SERVE),
        trust_remote_code=BOOLEAN,
        allow_pickle=BOOLEAN,
        allow_code=BOOLEAN,
        code_folder=TEXT,
        revision=TEXT,
    ),
)

POLICY: Codec[ScoringPolicy] = name_root(
    "policy",
    record(
        ScoringPolicy,
        batch_size=optional(INTEGER),
        token_budget=INTEGER,
        scorer=one_of("fast", "full logits", "harness"),
        share_prefixes=BOOLEAN,
        device=TEXT,
        rolling_bos=one_of("lm-eval", "once"),
        seed=INTEGER,
        threads=INTEGER,
        max_gen_toks=optional(INTEGER),
        softmax_dtype=one_of("float32", "model"),
    ),
)

REQUESTS: Codec[tuple[Request, ...]] = name_root(
    "requests",
    sequence(
        record(
            Request,
            task=TEXT,
            doc_id=INTEGER,
            index=INTEGER,
            kind=one_of("loglikelihood", "loglikelihood_rolling", "generate_until"),
            arguments=sequence(PLAIN),
        )
    ),
)

RESPONSES: Codec[tuple[Response, ...]] = name_root(
    "responses",
    sequence(
        record(
            Response,
            loglikelihood=optional(FLOAT),
            is_greedy=optional(BOOLEAN),
            text=optional(TEXT),
            token_logprobs=optional(FLOATS),
            top_logprobs=optional(sequence(mapping_of(FLOAT))),
            token_hash=TEXT,
            n_tokens=INTEGER,
            truncated=BOOLEAN,
            ended=one_of("", "stop", "length"),
        )
    ),
)

DESCRIPTION: Codec[ModelDescription] = name_root(
    "description",
    record(
        ModelDescription,
        model_type=TEXT,
        effective=_VALUE_MAP,
        identity=optional(_VALUE_MAP),
        vocabulary_digest=TEXT,
        vocabulary_size=INTEGER,
        max_length=INTEGER,
        dtype=TEXT,
        device=TEXT,
        parameters=INTEGER,
        gives_rows=BOOLEAN,
        environment=_VALUE_MAP,
        computation=_VALUE_MAP,
        padding=optional(codec_of(PaddingEffect)),
        configuration=_VALUE_MAP,
        caveats=sequence(TEXT),
        findings=sequence(
            record(
                Finding,
                kind=one_of(*get_args(FindingKind)),
                text=TEXT,
                task=TEXT,
                filter=TEXT,
                metric=TEXT,
                values=_VALUE_MAP,
            )
        ),
        observed=_VALUE_MAP,
    ),
)

TOKEN_IDS: Codec[tuple[tuple[int, ...], ...]] = name_root("token ids", sequence(sequence(INTEGER)))


# Codecs of arrays, and of the records of scored positions that are made of them.


_SHAPE = sequence(INTEGER)


def array(dtype: DTypeLike, *, dimensions: int = 1) -> Codec[NDArray[Any]]:
    """Return the codec of arrays of one type: their shape, and their little-endian bytes."""
    kind = np.dtype(dtype)
    wanted = f"an array of {kind} with {dimensions} dimensions"

    def encode(value: NDArray[Any]) -> Value:
        if not isinstance(value, np.ndarray) or (value.dtype, value.ndim) != (kind, dimensions):
            raise WireError(f"expected {wanted}, found {_describe_value(value)}")
        little = np.ascontiguousarray(value, dtype=kind.newbyteorder("<"))
        data = base64.b64encode(little.tobytes()).decode("ascii")
        return {"shape": [*value.shape], "data": data}

    def decode(value: Value) -> NDArray[Any]:
        if not isinstance(value, dict) or value.keys() != {"shape", "data"}:
            raise WireError(f"expected {wanted}, found {_describe_value(value)}")
        shape, data = _SHAPE.decode(value["shape"]), value["data"]
        try:
            raw = base64.b64decode(str(data), validate=True)
        except ValueError as error:
            raise WireError(f"not base64 ({error})") from error
        if (
            len(shape) != dimensions
            or min(shape) < 0
            or len(raw) != math.prod(shape) * kind.itemsize
        ):
            raise WireError(f"{len(raw)} bytes of shape {shape} are not {wanted}")
        return np.frombuffer(raw, dtype=kind.newbyteorder("<")).astype(kind).reshape(shape)

    return Codec(encode, decode)


def _describe_value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"one of {value.dtype} with {value.ndim}"
    return type(value).__name__


def _any_array() -> Codec[NDArray[Any]]:
    """Return the codec of arrays of numbers of any type and shape: files of numpy's, in base64."""

    def encode(value: NDArray[Any]) -> Value:
        file = io.BytesIO()
        np.save(file, np.asarray(value), allow_pickle=False)
        return base64.b64encode(file.getvalue()).decode("ascii")

    def decode(value: Value) -> NDArray[Any]:
        try:
            raw = base64.b64decode(str(value), validate=True)
            return cast("NDArray[Any]", np.load(io.BytesIO(raw), allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise WireError(f"not an array ({error})") from error

    return Codec(encode, decode)


_INTEGERS, _FLOATS = array(np.int64), array(np.float64)
_IDS, _LOGPROBS = array(np.int32, dimensions=2), array(np.float32, dimensions=2)

REFERENCE: Codec[Reference] = name_root(
    "reference",
    record(
        Reference,
        token_ids=_INTEGERS,
        token_logprobs=_FLOATS,
        vocabulary_size=INTEGER,
        top_ids=_IDS,
        top_logprobs=_LOGPROBS,
        tail_mass=_FLOATS,
        full_support=array(np.bool_),
        sample_ids=_IDS,
        sample_logprobs=_LOGPROBS,
    ),
)

DIVERGENCE: Codec[Divergence] = name_root(
    "divergence",
    record(
        Divergence,
        token_ids=_INTEGERS,
        base_logprobs=_FLOATS,
        candidate_logprobs=_FLOATS,
        kl=_FLOATS,
        kl_low=optional(_FLOATS),
        kl_high=optional(_FLOATS),
        base_top=_INTEGERS,
        candidate_top=_INTEGERS,
        shared_top=_INTEGERS,
        top_k=INTEGER,
    ),
)


# What parent and worker say to each other, and what each call takes and gives.


# Raised with every change of what is said, or of what it means.
PROTOCOL = 4

CallName = Literal[
    "load",
    "reassign",
    "describe",
    "encode",
    "score",
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

    ``recorded`` are ``.npy`` files by point, for each sequence of token ids; ``precision`` is the
    other model's (core/tracing/points.py), ``memory`` of bytes to hold here.
    """

    sequences: tuple[tuple[int, ...], ...]
    recorded: tuple[Mapping[str, str], ...]
    precision: str
    memory: int
    detail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Parent to worker: do this; answer under the same number."""

    number: int
    name: str
    argument: Value


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
    value: Value


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


_LOAD = record(
    Load,
    variant=VARIANT,
    policy=POLICY,
    cache_dir=TEXT,
    import_path=sequence(TEXT),
    reusable=BOOLEAN,
    remember=BOOLEAN,
    traced=BOOLEAN,
)
_CHAT = record(Chat, messages=sequence(mapping_of(TEXT)), add_generation_prompt=BOOLEAN)
_NOTHING = PLAIN
_REFERENCE_CALL = record(ReferenceCall, requests=REQUESTS, top_k=INTEGER, samples=INTEGER)
_COMPARISON_CALL = record(ComparisonCall, requests=REQUESTS, lengths=sequence(INTEGER))
_CHUNKED_ANSWER = record(ChunkedAnswer, responses=RESPONSES, lengths=sequence(INTEGER), reason=TEXT)
_ACTIVATIONS_CALL = record(
    ActivationsCall, ids=sequence(INTEGER), wanted=sequence(TEXT), forced=mapping_of(TEXT)
)
_ACTIVATION_PART = record(
    ActivationPart, point=TEXT, shape=_SHAPE, start=INTEGER, values=array(np.float32)
)
_TRACE_CALL = record(
    TraceCall,
    sequences=TOKEN_IDS,
    recorded=sequence(mapping_of(TEXT)),
    precision=TEXT,
    memory=INTEGER,
    detail=sequence(TEXT),
)
_INPUTS = mapping_of(_any_array())
_PASS_CALL = record(
    PassCall,
    inputs=_INPUTS,
    **{name: codec_of(kind) for name, kind in get_type_hints(PassCall).items() if name != "inputs"},
)
# The argument or value of a call: made, and read, by that call's own codec.
_RAW: Codec[Value] = Codec(lambda value: value, lambda value: value)

CALLS: Mapping[str, CallForm] = {
    "load": CallForm(_LOAD, DESCRIPTION),
    "reassign": CallForm(VARIANT, optional(DESCRIPTION)),  # None: only loading can do that
    "describe": CallForm(_NOTHING, DESCRIPTION),
    "encode": CallForm(REQUESTS, TOKEN_IDS),
    "score": CallForm(REQUESTS, RESPONSES),
    "score_reference": CallForm(_REFERENCE_CALL, _CHUNKED_ANSWER),
    "next_reference": CallForm(_NOTHING, REFERENCE),
    "give_reference": CallForm(REFERENCE, _NOTHING),
    "score_against": CallForm(_COMPARISON_CALL, _CHUNKED_ANSWER),
    "next_divergence": CallForm(_NOTHING, DIVERGENCE),
    "activations": CallForm(_ACTIVATIONS_CALL, _NOTHING),
    "next_activation": CallForm(_NOTHING, optional(_ACTIVATION_PART)),  # None: that was the last
    "trace_recorded": CallForm(_TRACE_CALL, codec_of(Trace)),
    "trace_support": CallForm(_NOTHING, codec_of(TraceSupport)),
    "held_values": CallForm(_NOTHING, sequence(codec_of(HeldValue))),
    "encode_traced": CallForm(REQUESTS, record(EncodedRequest, inputs=_INPUTS, was_cut=BOOLEAN)),
    "outline": CallForm(codec_of(OutlineCall), codec_of(ModelOutline)),
    "read_linear": CallForm(codec_of(LinearCall), BOOLEAN),
    "run_traced": CallForm(_PASS_CALL, optional(codec_of(PassFound))),
    "locate_padding": CallForm(codec_of(PaddingCall), codec_of(PaddingFound)),
    "render_chat": CallForm(_CHAT, TEXT),
    "close": CallForm(_NOTHING, _NOTHING),
}

_MESSAGES: dict[type[Any], Codec[Any]] = {
    Call: record(Call, number=INTEGER, name=TEXT, argument=_RAW),
    Hello: record(Hello, evalguard=TEXT, python=TEXT, protocol=INTEGER),
    Beat: record(Beat, answered=INTEGER),
    Answer: record(Answer, number=INTEGER, value=_RAW),
    Refusal: record(Refusal, number=INTEGER, failure=FAILURE),
}
_KINDS = {kind.__name__: kind for kind in _MESSAGES}


def frame_message(content: Call | Hello | Beat | Answer | Refusal) -> bytes:
    """Return the frame that says ``content``.

    Raises:
        WorkerError: if it is too large to travel at once.
    """
    encoded = _MESSAGES[type(content)].encode(content)
    return to_frame({"kind": type(content).__name__, "content": encoded})


def read_message(message: RawMessage) -> Call | Hello | Beat | Answer | Refusal:
    """Return what a message says.

    Raises:
        WorkerError: if it is of no known kind or lacks a field, said as a predicate of its sender.
    """
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS or message.keys() != {"kind", "content"}:
        raise WorkerError(f"sent a message of no known kind: {reprlib.repr(message)[:80]}")
    try:
        decoded = _MESSAGES[_KINDS[kind]].decode(message["content"])
    except WireError as error:
        raise WorkerError(f"sent a damaged message: {kind}{error}") from error
    return cast("Call | Hello | Beat | Answer | Refusal", decoded)
