"""KL of two servers: at least so much, from the tokens that both show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from evalguard.core.distribution_comparison import (
    Figure,
)
from evalguard.core.shown_tokens import KlEstimate, ShownTokens, bound_kl
from evalguard.stats.compare_scores import check_confidence
from evalguard.stats.moments import Array, exact_sum
from evalguard.stats.positions import ratio_estimate

_NAMED_OTHERWISE = (
    "base and candidate show no token of the same name: one by text and the other by id, or "
    "from other vocabularies"
)


def estimate_kl(
    task: str,
    base: ShownTokens,
    candidate: ShownTokens,
    *,
    confidence: float = 0.95,
    clusters: Mapping[int, str] | None = None,
) -> KlEstimate:
    """Bound the mean KL(base || candidate) of a task from below.

    Positions of one document are not independent: standard errors are those of a ratio of sums
    over documents, or over clusters of them.

    Args:
        clusters: doc_id -> label of the documents that belong together; None: each stands alone.

    Returns:
        The estimate; with a ``failure`` and no numbers where the two do not show the same
        positions, or no token of the same name.

    Raises:
        ValueError: for an impossible confidence.
    """
    check_confidence(confidence)
    failed = KlEstimate(task=task, n=0, positions=0, confidence=confidence)
    if not _same_positions(base, candidate):
        return replace(failed, failure="base and candidate do not show the same positions")
    units: dict[object, list[Array]] = {}
    documents = 0
    for doc_id in sorted(base):
        rows = [
            np.stack(bound_kl(*both))
            for both in zip(base[doc_id], candidate[doc_id], strict=True)
            if both[0]
        ]
        documents += bool(rows)
        for row in rows:
            of = doc_id if clusters is None else clusters.get(doc_id, doc_id)
            units.setdefault(of, []).append(row)
    if not units:
        return replace(failed, failure="no token was scored")
    weights = np.array([sum(row.shape[1] for row in rows) for rows in units.values()], dtype=float)
    sums = np.array([np.concatenate(rows, axis=1).sum(axis=1) for rows in units.values()])
    if not sums[:, 2].any():
        return replace(failed, failure=_NAMED_OTHERWISE)
    return KlEstimate(
        task=task,
        n=documents,
        positions=int(weights.sum()),
        tokens=exact_sum(sums[:, 2]) / exact_sum(weights),
        kl_at_least=_mean_of_units(sums[:, 0], weights, confidence, most=np.inf),
        mass_seen=_mean_of_units(sums[:, 1], weights, confidence, most=1.0),
        confidence=confidence,
    )


def _same_positions(base: ShownTokens, candidate: ShownTokens) -> bool:
    return base.keys() == candidate.keys() and all(
        [len(one) for one in base[doc_id]] == [len(one) for one in candidate[doc_id]]
        for doc_id in base
    )


def _mean_of_units(sums: Array, weights: Array, confidence: float, *, most: float) -> Figure:
    """Mean over all positions; its interval ends at 0 and at ``most``."""
    if len(weights) < 2:
        return Figure(value=exact_sum(sums) / exact_sum(weights))
    found = ratio_estimate(sums, weights, confidence=confidence)
    return Figure(
        value=found.point,
        stderr=found.stderr,
        interval=(max(found.low, 0.0), min(found.high, most)),
    )
