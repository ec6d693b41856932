"""Distribution metrics: intervals of means, shares and percentiles over scored positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy import stats

from benchmarks.differences import Rng
from benchmarks.outcomes import CONFIDENCE, Cell, Outcome
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.divergence import Divergence, DocumentDivergence
from evalguard.distributions.kl import compare_distributions

_POSITIONS = 20  # of a document, on average; lengths are geometric
_KL, _SPREAD, _OF_DOCUMENTS = 0.01, 1.5, 0.5  # mean; log scale, its part that documents share
_CHANGE = -0.002
_SAME_TOP = {"98%": 0.98, "99.9%": 0.999}
_PERCENT = 95.0


def distribution() -> Iterator[Cell]:
    """KL, change in probability, same top-1: t and effective-size intervals over documents."""
    quantile = _KL * math.exp(_SPREAD * stats.norm.ppf(_PERCENT / 100.0) - _SPREAD**2 / 2.0)
    truths = {
        "mean KL (lognormal, 1.5)": ("98%", _KL, lambda c: c.kl),
        "95th percentile of KL": ("98%", quantile, lambda c: c.kl_at(_PERCENT)),
        "mean change in probability": ("98%", _CHANGE, lambda c: c.dp),
        "same top-1, 98%": ("98%", 0.98, lambda c: c.same_top1),
        "same top-1, 99.9%": ("99.9%", 0.999, lambda c: c.same_top1),
    }
    for data, (agreement, truth, figure) in truths.items():
        for n in (50, 200, 2_000):
            yield Cell(
                data=data, n=n, null=False, cost=4 if n < 2_000 else 20,
                simulate=partial(_simulate, n, _SAME_TOP[agreement], truth, figure),
            )  # fmt: skip


def _simulate(n: int, agreement: float, truth: float, figure, rng: Rng) -> Outcome:  # type: ignore[no-untyped-def]
    comparison: DistributionComparison = compare_distributions(
        "simulated", _documents(n, agreement, rng), confidence=CONFIDENCE
    )
    found: Figure = figure(comparison)
    if found.interval is None:
        raise RuntimeError(f"a simulated comparison has no interval: {comparison.failure}")
    flagged = bool(comparison.caveats)
    return Outcome(
        tests={}, truth=truth, low=found.interval[0], high=found.interval[1], flagged=flagged
    )


def _documents(n: int, agreement: float, rng: Rng) -> list[DocumentDivergence]:
    """Documents whose positions share a level of KL, a change and a chance to agree."""
    lengths = rng.geometric(1.0 / _POSITIONS, n)
    members, total = np.repeat(np.arange(n), lengths), int(lengths.sum())
    own = math.sqrt(1.0 - _OF_DOCUMENTS**2)
    normal = _OF_DOCUMENTS * rng.normal(size=n)[members] + own * rng.normal(size=total)
    kl = _KL * np.exp(_SPREAD * normal - _SPREAD**2 / 2.0)
    base = rng.uniform(0.2, 0.8, total)
    change = _CHANGE + 0.01 * rng.normal(size=n)[members] + 0.02 * rng.normal(size=total)
    same = rng.random(total) < rng.beta(20.0 * agreement, 20.0 * (1.0 - agreement), n)[members]
    zeros = np.zeros(total, dtype=np.int64)
    columns = {
        "token_ids": zeros, "base_logprobs": np.log(base),
        "candidate_logprobs": np.log(base + change), "kl": kl, "base_top": zeros,
        "candidate_top": np.where(same, 0, 1), "shared_top": zeros + 10,
    }  # fmt: skip
    ends = np.cumsum(lengths)
    return [
        DocumentDivergence(
            doc_id=number,
            requests=(
                Divergence(
                    top_k=10, **{name: column[start:end] for name, column in columns.items()}
                ),
            ),
        )
        for number, (start, end) in enumerate(zip(ends - lengths, ends, strict=True))
    ]
