"""Companion tests: they stand beside the test that decides, and inform."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import Companion
from evalguard.core.paired_scores import PairedScores
from evalguard.stats.binary import mcnemar_exact
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.drift import Drift
from evalguard.stats.estimate import SIGN_FLIP
from evalguard.stats.sign_flip import sign_flip
from evalguard.stats.signed_rank import wilcoxon_signed_rank
from evalguard.stats.skewed.corrected_t import uncorrected

NAMES = {
    "sign-flip": "the sign-flip permutation test",
    "wilcoxon": "Wilcoxon's signed-rank test",
    "mcnemar-exact": "the exact McNemar test, which takes documents as independent,",
}
_PLAIN_T = "the plain t test"
# A Monte Carlo p-value this close to the level says nothing about which side it is on.
_MONTE_CARLO_ERRORS = 3.0


def companions(paired: PairedScores, drift: Drift) -> tuple[Companion, ...]:
    """The tests beside the one that decides.

    None for 0/1 metrics: there both are McNemar's exact test once more (every difference is 1 or
    -1). None where no document differs. Where documents belong to clusters, whole clusters change
    sign, and a test that takes documents as independent stands there only for 0/1 metrics, whose
    usual test it is.
    """
    if not np.any(paired.d):
        return ()
    if paired.clusters:
        return _of_clusters(paired, drift)
    if drift.flips is not None:
        return ()
    return (sign_flip_companion(paired.d, "documents"), _wilcoxon(paired), *plain_t(drift))


def _of_clusters(paired: PairedScores, drift: Drift) -> tuple[Companion, ...]:
    tests = []
    if uncorrected(drift.estimate.method) != SIGN_FLIP:
        sums = cluster_sums(paired.d, paired.base.weights, paired.clusters)
        tests.append(sign_flip_companion(sums.values, "clusters"))
    if drift.flips is not None:
        p_value = mcnemar_exact(*drift.flips)
        note = "takes documents as independent, whatever they share"
        tests.append(Companion(method="mcnemar-exact", p_value=p_value, note=note))
    return (*tests, *plain_t(drift))


def plain_t(drift: Drift) -> tuple[Companion, ...]:
    """The t test, or that of few clusters, where a more careful one decides."""
    found = drift.plain
    if found is None:
        return ()
    interval = (drift.sigma_of(found.low), drift.sigma_of(found.high))
    return (Companion(method=found.method, p_value=found.p_value, sigma_interval=interval),)


def disagreements(tests: Sequence[Companion], *, real: bool, level: float) -> list[str]:
    """One sentence for each companion that sees a drift where the deciding test sees none, or not.

    Args:
        real: whether the deciding test calls the drift to the worse real.
        level: one-sided level of all tests.
    """
    sees, does = ("does not see", "does") if real else ("sees", "does not")
    return [
        f"{NAMES.get(test.method, _PLAIN_T)} {sees} a drift to the worse "
        f"(one-sided p = {test.p_value:.3g}), the deciding test {does}"
        for test in tests
        if (test.p_value <= level) != real and not _too_close(test, level)
    ]


def _too_close(test: Companion, level: float) -> bool:
    if test.resamples is None:
        return False
    error = math.sqrt(level * (1.0 - level) / test.resamples)
    return abs(test.p_value - level) <= _MONTE_CARLO_ERRORS * error


def sign_flip_companion(d: NDArray[np.float64], noun: str) -> Companion:
    """The sign-flip test of differences, float64, shape (n,), of documents or whole clusters."""
    test = sign_flip(d)
    how = "all sign patterns" if test.resamples is None else f"{test.resamples:,} random patterns"
    return Companion(
        method="sign-flip",
        p_value=test.p_value,
        resamples=test.resamples,
        seed=test.seed,
        note=f"signs of the {noun}' differences flipped: {how}",
    )


def _wilcoxon(paired: PairedScores) -> Companion:
    zeros = int(np.count_nonzero(paired.d == 0.0))
    notes = [f"{zeros:,} documents without a difference left out"] if zeros else []
    if paired.base.weights is not None:
        notes.append("documents count alike, whatever their weight")
    p_value = wilcoxon_signed_rank(paired.d)
    return Companion(method="wilcoxon", p_value=p_value, note="; ".join(notes))
