"""DocumentScores: what both models scored on each document, one night."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moments import exact_sum, moments
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import Aggregation, ScoreTable
from evalguard.core.settings import Value

Floats = NDArray[np.float64]
Prints = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentScores:
    """Scores of one metric's documents, as the comparison had them, in ascending doc_id.

    Attributes:
        doc_ids: int64, shape (n,).
        prints: uint64, shape (n,): fingerprints of lm-eval's doc_hash, by which a document is the
            same over nights, whatever its number.
        base, candidate: float64, shape (n,): log-likelihoods or metric values (``ScoreTable``).
        weights: float64, shape (n,), words or bytes; None where the metric has none.
        hashes: the full hashes of the base's documents; None where they were not kept.
    """

    aggregation: Aggregation
    higher_is_better: bool
    doc_ids: NDArray[np.int64]
    prints: Prints
    base: Floats
    candidate: Floats
    weights: Floats | None = None
    hashes: DocumentHashes | None = None

    @classmethod
    def of(cls, paired: PairedScores) -> DocumentScores | None:
        """The documents of a comparison; None where no document has a score of its own."""
        table = paired.base
        if table.rescoring is not None:
            return None
        return cls(
            aggregation=table.aggregation,
            higher_is_better=table.higher_is_better,
            doc_ids=table.doc_ids,
            prints=fingerprints(table.doc_hashes),
            base=table.values,
            candidate=paired.candidate.values,
            weights=table.weights,
            hashes=DocumentHashes.of(table),
        )

    @property
    def n(self) -> int:
        """Number of documents."""
        return int(self.doc_ids.shape[0])

    @property
    def binary(self) -> bool:
        """Whether every document is right or wrong, for both models."""
        both = np.concatenate([self.base, self.candidate])
        return self.aggregation == "mean" and bool(np.all((both == 0.0) | (both == 1.0)))

    @property
    def quality(self) -> Floats:
        """The candidate's scores, higher is better, shape (n,)."""
        return self.sign * self.candidate

    @property
    def harm(self) -> Floats:
        """By how much the candidate is worse than the base, shape (n,), in unit of the values."""
        return self.sign * (self.base - self.candidate)

    @property
    def sign(self) -> float:
        """+1 where a higher value is better, else -1."""
        return 1.0 if self.higher_is_better == (self.aggregation == "mean") else -1.0

    @property
    def spread(self) -> float:
        """Standard deviation of one document's score of the base; 0 for fewer than 2 documents.

        For ratio metrics that of the linearised residual l_i - R w_i, as their standard error has
        it (``stats.moments``).
        """
        if self.n < 2:
            return 0.0
        mean_weight = 1.0 if self.weights is None else exact_sum(self.weights) / self.n
        stderr = moments(self.base, self.weights).stderr
        return float(stderr * mean_weight * np.sqrt(self.n))


def fingerprints(hashes: Sequence[str]) -> Prints:
    """The first 64 bits of BLAKE2b of each text, shape (n,).

    Among 100,000 documents two share one with a chance of 3e-10.
    """
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for text in hashes
    )
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


HASH_FIELDS = ("doc_hashes", "prompt_hashes", "target_hashes", "asked_hashes", "token_hashes")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentHashes:
    """Hashes of a metric's documents as the base was asked them; see ``ScoreTable``.

    Attributes:
        n_total: documents that the task has.
        run: how they were asked (num_fewshot, seed, limit, task version ...).
    """

    doc_hashes: tuple[str, ...]
    prompt_hashes: tuple[str, ...]
    target_hashes: tuple[str, ...]
    asked_hashes: tuple[str, ...] = ()
    token_hashes: tuple[str, ...] = ()
    n_total: int = 0
    run: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, table: ScoreTable) -> DocumentHashes:
        """The hashes of a score table."""
        hashes = {name: getattr(table, name) for name in HASH_FIELDS}
        return cls(**hashes, n_total=table.n_total, run=dict(table.run))


Rows = NDArray[np.int64]


def match_documents(first: DocumentScores, second: DocumentScores) -> tuple[Rows, Rows]:
    """Rows of the documents that both nights have, in the second's order, shapes (m,).

    Documents are the same by the fingerprint of their content. Those of one content (a text that a
    task asks twice) are told apart by their order.
    """
    if np.array_equal(first.prints, second.prints):
        rows = np.arange(first.n)
        return rows, rows
    ours, theirs = identities(first.prints), identities(second.prints)
    _, first_rows, second_rows = np.intersect1d(
        ours, theirs, assume_unique=True, return_indices=True
    )
    order = np.argsort(second_rows, kind="stable")
    return first_rows[order], second_rows[order]


def identities(prints: Prints) -> NDArray[np.void]:
    """Fingerprint and how often it came before, as one sortable value each, shape (n,)."""
    order = np.argsort(prints, kind="stable")
    ordered = prints[order]
    start = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if prints.shape[0] else order > 0
    places = np.arange(prints.shape[0])
    times = np.empty(prints.shape[0], np.int64)
    times[order] = places - np.maximum.accumulate(np.where(start, places, 0))
    pairs = np.empty(prints.shape[0], [("print", np.uint64), ("times", np.int64)])
    pairs["print"], pairs["times"] = prints, times
    return pairs
