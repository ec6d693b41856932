"""DocumentScores: what both models scored on each document, one night."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.history.document_hashes import DocumentHashes
from evalguard.pairing import PairedScores
from evalguard.scores import Aggregation
from evalguard.stats.moments import exact_sum, moments

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
