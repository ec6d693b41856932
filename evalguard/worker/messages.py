"""What parent and worker say to each other: calls, frames and failures.

A frame is the magic bytes ``EVGF``, the protocol version (16 bits), the payload's length in
bytes (32 bits, both big-endian), and the payload: one JSON object. The payload is UTF-8 in which
a lone surrogate, which a Python string may hold, is written like any other code point; NaN and
infinity are written as Python's ``json`` writes them. There is no pickle: nothing that is read
can run code.
"""

from __future__ import annotations

import json
import reprlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from evalguard import errors
from evalguard.core.codec import PLAIN, Codec, PlainError, codec_of
from evalguard.core.divergence import Divergence, Reference
from evalguard.core.findings import Quote
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.core.trace_points import ModelRounding
from evalguard.core.trace_record import Trace
from evalguard.errors import EvalguardError, EvaluationError, WorkerError
from evalguard.worker.outlines import (
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

# By name, and fixed: what a worker says is never looked up among arbitrary classes.
_CLASSES: dict[str, type[EvalguardError]] = {
    kind.__name__: kind
    for kind in (
        errors.EvalguardError,
        errors.UsageError,
        errors.GuardFileError,
        errors.EvaluationError,
        errors.SettingError,
        errors.BuildError,
        errors.FallbackError,
        errors.WorkerError,
        errors.MisalignedRunsError,
        errors.StoreError,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that a call raised.

    ``kind`` is the name of the nearest evalguard error class; ``expected`` is False for any other
    exception, whose traceback is in the worker's log. ``where`` belongs to GuardFileError,
    ``giving_up`` to FallbackError; ``setting``, ``target`` and ``quotes`` are as in
    EvalguardError.
    """

    kind: str
    message: str
    hint: str
    where: str
    giving_up: str
    expected: bool
    setting: str = ""
    target: str = ""
    quotes: tuple[Quote, ...] = ()


def to_failure(error: Exception) -> Failure:
    """Return the record of an exception."""
    if not isinstance(error, EvalguardError):
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        return Failure(
            kind=EvaluationError.__name__,
            message=text,
            hint="",
            where="",
            giving_up="",
            expected=False,
        )
    kind = next(c.__name__ for c in type(error).__mro__ if c.__name__ in _CLASSES)
    return Failure(
        kind=kind,
        message=str(error),
        hint=error.hint,
        where=str(getattr(error, "where", "")),
        giving_up=str(getattr(error, "giving_up", "")),
        expected=True,
        setting=error.setting,
        target=error.target,
        quotes=error.quotes,
    )


def to_exception(failure: Failure, *, model: str, log: str) -> EvalguardError:
    """Return the exception that a record stands for, as the caller in this process sees it."""
    if not failure.expected:
        return EvaluationError(
            f"model '{model}': {failure.message}",
            hint=f"the traceback is in the worker's log, {log}",
        )
    kind = _CLASSES.get(failure.kind)
    if kind is None:
        return EvaluationError(f"{failure.kind}: {failure.message}", hint=failure.hint)
    # The message is complete already; some constructors would put its beginning there again.
    error = kind.__new__(kind)
    EvalguardError.__init__(
        error,
        failure.message,
        hint=failure.hint,
        setting=failure.setting,
        target=failure.target,
        quotes=failure.quotes,
    )
    if isinstance(error, errors.GuardFileError):
        error.where = failure.where
    if isinstance(error, errors.WorkerError):
        error.log = log
        error.cause = ""
    if isinstance(error, errors.FallbackError):
        error.giving_up = failure.giving_up
    return error


RawMessage = dict[str, Value]
MAGIC = b"EVGF"
FRAME_VERSION = 1
MAX_PAYLOAD = 256 * 2**20
_HEADER = struct.Struct(">4sHI")
_MOST_SHOWN = 80


def to_frame(message: RawMessage) -> bytes:
    """Return the bytes of one frame.

    Raises:
        WorkerError: if the payload is larger than ``MAX_PAYLOAD``.
    """
    payload = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    if len(payload) > MAX_PAYLOAD:
        raise WorkerError(
            f"a message of {len(payload):,} bytes is larger than the {MAX_PAYLOAD:,} bytes "
            "that may travel between evalguard and a worker at once",
            hint="ask for fewer documents at once",
        )
    return _HEADER.pack(MAGIC, FRAME_VERSION, len(payload)) + payload


class FrameParser:
    """Cuts a stream of bytes, which may arrive in any pieces, into messages.

    What is wrong with a stream is said as a predicate of its sender ("sent ...").
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[RawMessage]:
        """Take more bytes; return the messages that they complete.

        Raises:
            WorkerError: if the bytes are no frame of this protocol version, announce more than
                ``MAX_PAYLOAD`` bytes, or hold anything but a JSON object.
        """
        self._buffer += data
        messages = []
        while (size := self._announced()) is not None and len(self._buffer) >= size:
            payload = bytes(self._buffer[_HEADER.size : size])
            del self._buffer[:size]
            messages.append(_from_payload(payload))
        return messages

    @property
    def remainder(self) -> str:
        """What of an unfinished frame has arrived, in words; "" between two frames."""
        if not self._buffer:
            return ""
        size = self._announced()
        return f"{len(self._buffer):,} of {'?' if size is None else format(size, ',')} bytes"

    def _announced(self) -> int | None:
        """Return the size of the frame at the head of the buffer; None before its header."""
        head = bytes(self._buffer[: len(MAGIC)])
        if not MAGIC.startswith(head):
            raise WorkerError(f"sent what is not a frame: {bytes(self._buffer[:_MOST_SHOWN])!r}")
        if len(self._buffer) < _HEADER.size:
            return None
        _, version, length = _HEADER.unpack_from(self._buffer)
        if version != FRAME_VERSION:
            raise WorkerError(f"speaks protocol {version}, this evalguard speaks {FRAME_VERSION}")
        if length > MAX_PAYLOAD:
            raise WorkerError(
                f"announced a frame of {length:,} bytes; at most {MAX_PAYLOAD:,} are allowed"
            )
        return _HEADER.size + int(length)


def _from_payload(payload: bytes) -> RawMessage:
    try:
        message = json.loads(payload.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WorkerError(
            f"sent a frame that is not JSON ({error}): {payload[:_MOST_SHOWN]!r}"
        ) from error
    if not isinstance(message, dict):
        raise WorkerError(f"sent a frame that is not a JSON object: {payload[:_MOST_SHOWN]!r}")
    return message


VARIANT: Codec[Variant] = codec_of(Variant, "variant")
REQUESTS: Codec[tuple[Request, ...]] = codec_of(tuple[Request, ...], "requests")
RESPONSES: Codec[tuple[Response, ...]] = codec_of(tuple[Response, ...], "responses")
DESCRIPTION: Codec[ModelDescription] = codec_of(ModelDescription, "description")
TOKEN_IDS: Codec[tuple[tuple[int, ...], ...]] = codec_of(tuple[tuple[int, ...], ...], "token ids")
REFERENCE: Codec[Reference] = codec_of(Reference, "reference")
DIVERGENCE: Codec[Divergence] = codec_of(Divergence, "divergence")
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
