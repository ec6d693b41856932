"""From requested documents to the inputs of both models, checked to be the same for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalguard.core.reports.findings import quote_ids
from evalguard.core.reports.trace_report import TracedDocument
from evalguard.core.tracing.points import ModelInputs
from evalguard.errors import MisalignedRunsError, UsageError
from evalguard.run.tracing.sides import TracedSide
from evalguard.run.tracing.traced_documents import RequestedSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSequences:
    """Inputs of both models, the documents that they stand for, and what is to be said."""

    inputs: tuple[ModelInputs, ...]
    documents: tuple[TracedDocument, ...]
    notes: tuple[str, ...] = ()


def encode_sequences(
    requested: Sequence[RequestedSequence], base: TracedSide, candidate: TracedSide
) -> EncodedSequences:
    """Encode sequences with the base's tokenizer, and see that the candidate reads the same ids.

    Raises:
        UsageError: a text of no tokens, one that is longer than a model reads, or one for a model
            that reads none.
        MisalignedRunsError: the candidate reads other token ids.
    """
    if any(one.inputs is None for one in requested):
        _check_vocabularies(base, candidate)
    inputs: list[ModelInputs] = []
    documents: list[TracedDocument] = []
    cut = 0
    for one in requested:
        found, was_cut = _encode_one(one, base, candidate)
        cut += was_cut
        request = one.request
        inputs.append(found)
        documents.append(
            TracedDocument(
                name=one.name,
                tokens=count_positions(found),
                task="" if request is None else request.task,
                doc_id=request.doc_id if request is not None and request.task else None,
                request=request.index if request is not None and request.task else None,
                drift=one.drift,
                token_texts=base.token_texts(found),
            )
        )
    notes: tuple[str, ...] = ()
    if cut:
        plural = "documents are" if cut > 1 else "document is"
        notes = (f"{cut} {plural} cut to the model's context of {base.max_length:,} tokens",)
    return EncodedSequences(inputs=tuple(inputs), documents=tuple(documents), notes=notes)


def _check_vocabularies(base: TracedSide, candidate: TracedSide) -> None:
    digests = {base.vocabulary, candidate.vocabulary} - {""}
    if len(digests) > 1:
        raise MisalignedRunsError(
            f"{base.name} and {candidate.name} have different vocabularies: one token id means "
            "different texts to the two",
            of_tokens=True,
            hint="trace a model with its own port; --inputs gives token ids that both are meant to "
            "read",
        )


def check_same_inputs(
    read: EncodedSequences, other: EncodedSequences, base: str, candidate: str
) -> None:
    """Refuse sequences that the two models, loaded in turn, encode in two ways.

    Raises:
        MisalignedRunsError: naming the first.
    """
    pairs = zip(read.inputs, other.inputs, strict=True)
    for document, (one, two) in zip(other.documents, pairs, strict=True):
        same = one.keys() == two.keys() and all(np.array_equal(one[n], two[n]) for n in one)
        if not same:
            raise MisalignedRunsError(
                f"{candidate} reads other token ids of {document.name} than {base}",
                of_tokens=True,
                hint="a trace compares the models, not their tokenizers: --inputs gives both the "
                "same ids",
            )


def count_positions(inputs: ModelInputs) -> int:
    """Positions of a sequence: the longest second axis of its inputs."""
    return max((int(one.shape[1]) for one in inputs.values() if one.ndim > 1), default=1)


def _encode_one(
    one: RequestedSequence, base: TracedSide, candidate: TracedSide
) -> tuple[ModelInputs, bool]:
    if one.inputs is not None:
        _check_inputs(one, base)
        return one.inputs, False
    assert one.request is not None
    if base.encode is None:
        raise UsageError(
            f"{base.name} has no tokenizer, so it reads no text",
            hint="--inputs FILE.npz gives its inputs by name, e.g. input_values",
        )
    found, was_cut = base.encode(one.request)
    ids = found["input_ids"]
    if not ids.size:
        raise UsageError(f"{one.name}: the text has no tokens", hint="give a longer text")
    longest = min((side.max_length for side in (base, candidate) if side.max_length), default=0)
    if longest and ids.shape[1] > longest:
        raise UsageError(
            f"{one.name} has {ids.shape[1]:,} tokens, and the models read {longest:,}",
            hint="cut the text, or give its parts as files of their own",
        )
    if candidate.encode is not None:
        other, _ = candidate.encode(one.request)
        _check_same_ids(one, base, candidate, ids, other["input_ids"])
    return found, was_cut


def _check_same_ids(
    one: RequestedSequence, base: TracedSide, candidate: TracedSide, ids: Any, other: Any
) -> None:
    if ids.shape == other.shape and bool(np.all(ids == other)):
        return
    first, second = np.ravel(ids).tolist(), np.ravel(other).tolist()
    at = next(
        (at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )
    raise MisalignedRunsError(
        f"{candidate.name} reads other token ids of {one.name} than {base.name}: from position "
        f"{at} on ({len(second)} and {len(first)} tokens)",
        of_tokens=True,
        quotes=(
            *quote_ids(first[at:], side="base"),
            *quote_ids(second[at:], side="candidate"),
        ),
        hint="a trace compares the models, not their tokenizers: --inputs gives both the same ids",
    )


def _check_inputs(one: RequestedSequence, base: TracedSide) -> None:
    """Refuse token ids that the base does not know, which would fail deep in the model."""
    assert one.inputs is not None
    ids = one.inputs.get("input_ids")
    embeddings = getattr(base.module, "get_input_embeddings", None)
    if ids is None or embeddings is None:
        return
    if ids.dtype.kind not in "iu":
        raise UsageError(f"{one.name}: input_ids are {ids.dtype}, not whole numbers")
    try:
        known = int(embeddings().num_embeddings)
    except (NotImplementedError, AttributeError):
        return
    if ids.size and (int(ids.max()) >= known or int(ids.min()) < 0):
        raise UsageError(
            f"{one.name}: token id {int(ids.max() if ids.max() >= known else ids.min())} is not "
            f"in the vocabulary of {known:,}"
        )
