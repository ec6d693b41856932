"""What each step of a chain of models adds to the mean KL from the chain's base.

KL is no distance and does not add up: KL(a||b) + KL(b||c) is not KL(a||c). What does, exactly and
whatever the three distributions are, is

    KL(a||c) = KL(a||b) + E_a[log b - log c]

so that a step from b to c adds KL(a||c) - KL(a||b), seen from the base a. It may be below 0, where
a step takes back what one before it did; and where two steps move logits in related directions,
what they do together counts for the later one. Both are of the same tokens, so that errors of parts
and shares are paired: ratios of sums over documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evalguard.core.distribution_comparison import Figure
from evalguard.stats.moments import Array
from evalguard.stats.positions import Positions, ratio_estimate


def kl_parts(
    models: Sequence[Sequence[Positions]], *, confidence: float
) -> list[tuple[Figure, Figure]] | None:
    """Return what each model of a chain adds to the last one's mean KL: nats a token, and a share.

    Args:
        models: of each model after the base its positions of every task, KL from the base; the same
            documents, tokens and clusters of all.

    Returns:
        None where the positions are not the same, where KL is not a finite number, where there are
        fewer than two documents, or no KL to split.
    """
    first, last = models[0], models[-1]
    if not all(_same_tokens(first, other) for other in models):
        return None
    sums = [_concatenated([one.sums(one.column("kl")) for one in of]) for of in models]
    tokens = _concatenated([one.weights for one in last])
    total = float(np.sum(sums[-1]))
    if len(tokens) < 2 or not all(np.isfinite(one).all() for one in sums) or total <= 0.0:
        return None
    before = [np.zeros_like(tokens), *sums[:-1]]
    return [
        (
            _figure(after - earlier, tokens, confidence),
            _figure(after - earlier, sums[-1], confidence),
        )
        for earlier, after in zip(before, sums, strict=True)
    ]


def _figure(sums: Array, weights: Array, confidence: float) -> Figure:
    if np.array_equal(sums, weights):
        return Figure(value=1.0, stderr=0.0, interval=(1.0, 1.0))
    found = ratio_estimate(sums, weights, confidence=confidence)
    return Figure(value=found.point, stderr=found.stderr, interval=(found.low, found.high))


def _same_tokens(one: Sequence[Positions], other: Sequence[Positions]) -> bool:
    return len(one) == len(other) and all(
        ours.requests == theirs.requests
        and np.array_equal(ours.units, theirs.units)
        and all(
            np.array_equal(a.token_ids, b.token_ids)
            for a, b in zip(ours.divergences, theirs.divergences, strict=True)
        )
        for ours, theirs in zip(one, other, strict=True)
    )


def _concatenated(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0)
