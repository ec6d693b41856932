"""Companion tests: they stand beside the test that decides, and inform."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evalguard.comparison import Companion
from evalguard.pairing import PairedScores
from evalguard.stats.drift import Drift
from evalguard.stats.permutation import sign_flip
from evalguard.stats.rank import wilcoxon_signed_rank

NAMES = {
    "sign-flip": "the sign-flip permutation test",
    "wilcoxon": "Wilcoxon's signed-rank test",
}
# A Monte Carlo p-value this close to the level says nothing about which side it is on.
_MONTE_CARLO_ERRORS = 3.0


def companions(paired: PairedScores, drift: Drift) -> tuple[Companion, ...]:
    """The tests beside the one that decides.

    None for 0/1 metrics: there both are McNemar's exact test once more (every difference is 1 or
    -1). None where no document differs.
    """
    if drift.flips is not None or not np.any(paired.d):
        return ()
    return (_sign_flip(paired), _wilcoxon(paired))


def disagreements(tests: Sequence[Companion], *, real: bool, level: float) -> list[str]:
    """One sentence for each companion that sees a drift where the deciding test sees none, or not.

    Args:
        real: whether the deciding test calls the drift to the worse real.
        level: one-sided level of all tests.
    """
    return [
        f"{NAMES[test.method]} {'does not see' if real else 'sees'} a drift to the worse "
        f"(one-sided p = {test.p_value:.3g}), the deciding test {'does' if real else 'does not'}"
        for test in tests
        if (test.p_value <= level) != real and not _too_close(test, level)
    ]


def _too_close(test: Companion, level: float) -> bool:
    if test.resamples is None:
        return False
    error = math.sqrt(level * (1.0 - level) / test.resamples)
    return abs(test.p_value - level) <= _MONTE_CARLO_ERRORS * error


def _sign_flip(paired: PairedScores) -> Companion:
    test = sign_flip(paired.d)
    how = "all sign patterns" if test.resamples is None else f"{test.resamples:,} random patterns"
    return Companion(
        method="sign-flip",
        p_value=test.p_value,
        resamples=test.resamples,
        seed=test.seed,
        note=f"signs of the documents' differences flipped: {how}",
    )


def _wilcoxon(paired: PairedScores) -> Companion:
    zeros = int(np.count_nonzero(paired.d == 0.0))
    notes = [f"{zeros:,} documents without a difference left out"] if zeros else []
    if paired.base.weights is not None:
        notes.append("documents count alike, whatever their weight")
    p_value = wilcoxon_signed_rank(paired.d)
    return Companion(method="wilcoxon", p_value=p_value, note="; ".join(notes))
