"""What parent and worker say to each other, and what each call takes and gives."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from evalguard.errors import WorkerError
from evalguard.execution.arrays import DIVERGENCE, REFERENCE
from evalguard.execution.codec import (
    BOOLEAN,
    INTEGER,
    PLAIN,
    TEXT,
    Codec,
    WireError,
    mapping,
    optional,
    record,
    sequence,
)
from evalguard.execution.failures import FAILURE, Failure
from evalguard.execution.frames import Message, to_frame
from evalguard.execution.wire import DESCRIPTION, POLICY, REQUESTS, RESPONSES, TOKEN_IDS, VARIANT
from evalguard.scorer import Request, Response, ScoringPolicy
from evalguard.settings import Value, Variant

# Raised with every change of what is said, or of what it means.
PROTOCOL = 2

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
    "render_chat",
    "close",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker needs to load a model, in place of the one that it has.

    ``import_path`` replaces the worker's ``sys.path``, so that hooks are found as in the parent;
    empty for an interpreter that has packages of its own. ``reusable``: other values are to be
    assigned to the settings later. ``remember``: digests of big files are kept in the cache folder,
    and taken from it.
    """

    variant: Variant
    policy: ScoringPolicy
    cache_dir: str
    import_path: tuple[str, ...]
    reusable: bool = False
    remember: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation to be rendered by the model's chat template."""

    messages: tuple[Mapping[str, str], ...]
    add_generation_prompt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceWanted:
    """Score these requests, and keep a reference of their distributions."""

    requests: tuple[Request, ...]
    top_k: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonWanted:
    """Score these requests, and compare with the references that were given piece by piece.

    ``lengths`` are the positions of each request's reference; 0: there is none.
    """

    requests: tuple[Request, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InParcels:
    """Responses, and records that are fetched piece by piece until ``lengths`` are complete.

    ``reason`` says why there is none.
    """

    responses: tuple[Response, ...]
    lengths: tuple[int, ...]
    reason: str = ""


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
)
_CHAT = record(Chat, messages=sequence(mapping(TEXT)), add_generation_prompt=BOOLEAN)
_NOTHING = PLAIN
_REFERENCE_WANTED = record(ReferenceWanted, requests=REQUESTS, top_k=INTEGER, samples=INTEGER)
_COMPARISON_WANTED = record(ComparisonWanted, requests=REQUESTS, lengths=sequence(INTEGER))
_IN_PARCELS = record(InParcels, responses=RESPONSES, lengths=sequence(INTEGER), reason=TEXT)
# The argument or value of a call: made, and read, by that call's own codec.
_RAW: Codec[Value] = Codec(lambda value: value, lambda value: value)

CALLS: Mapping[str, CallForm] = {
    "load": CallForm(_LOAD, DESCRIPTION),
    "reassign": CallForm(VARIANT, optional(DESCRIPTION)),  # None: only loading can do that
    "describe": CallForm(_NOTHING, DESCRIPTION),
    "encode": CallForm(REQUESTS, TOKEN_IDS),
    "score": CallForm(REQUESTS, RESPONSES),
    "score_reference": CallForm(_REFERENCE_WANTED, _IN_PARCELS),
    "next_reference": CallForm(_NOTHING, REFERENCE),
    "give_reference": CallForm(REFERENCE, _NOTHING),
    "score_against": CallForm(_COMPARISON_WANTED, _IN_PARCELS),
    "next_divergence": CallForm(_NOTHING, DIVERGENCE),
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


def framed(content: Call | Hello | Beat | Answer | Refusal) -> bytes:
    """Return the frame that says ``content``.

    Raises:
        WorkerError: if it is too large to travel at once.
    """
    encoded = _MESSAGES[type(content)].encode(content)
    return to_frame({"kind": type(content).__name__, "content": encoded})


def from_message(message: Message) -> Call | Hello | Beat | Answer | Refusal:
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
