"""How single documents differ between two aligned runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.core.paired_scores import PairedScores
from evalguard.stats.moments import mean_moments


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDifferences:
    """Scatter of d_i over n documents, in the unit of the values (nats for log-likelihoods).

    Attributes:
        sd: sample standard deviation, n - 1 in the denominator.
        largest: the largest size of a difference; ``doc_id`` is the first document that has it.
    """

    sd: float
    largest: float
    doc_id: int


def document_differences(paired: PairedScores) -> DocumentDifferences | None:
    """Describe the differences of single documents.

    Returns:
        None for a metric that is computed from all documents together, so that none has a score.
        Finite scores of two documents or more are asked for.
    """
    if paired.base.rescoring is not None:
        return None
    d = paired.d
    furthest = int(np.argmax(np.abs(d)))
    return DocumentDifferences(
        sd=mean_moments(d).stderr * float(np.sqrt(d.shape[0])),
        largest=float(abs(d[furthest])),
        doc_id=int(paired.base.doc_ids[furthest]),
    )
