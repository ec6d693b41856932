"""Documents that a test needs to see a drift, from documents that both models scored.

Every rule is one-sided at ALPHA with POWER. The drift itself is estimated, so that a rule is
computed anew on resampled documents: the range holds 90% of these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.printed_results import unpaired_z
from evalguard.core.pairing import PairedScores
from evalguard.stats.drift import estimate_drift
from evalguard.stats.power import flip_documents_to_detect, paired_documents_to_detect

ALPHA, POWER = 0.05, 0.8
RESAMPLES = 1_000
DRAWS = 500
MOST_DRAWN = 50_000
_Z_ALPHA, _Z_POWER = float(stats.norm.isf(ALPHA)), float(stats.norm.ppf(POWER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Documents needed; None where no number would do (the candidate is not worse).

    Attributes:
        low, high: 5th and 95th percentile over resampled documents; ``high`` is None where in more
            than 5% of them there is nothing to see.
        measured: share of random draws of ``documents`` documents in which the test itself
            rejected; None where that was not drawn.
    """

    documents: int | None
    low: int | None
    high: int | None
    measured: float | None = None

    @property
    def text(self) -> str:
        """For a table: the number and its range, or what it exceeds."""
        if self.low is None:
            return "not seen"
        if self.documents is None or self.high is None:
            return f"more than {_round(self.low)}"
        measured = "" if self.measured is None else f", {100.0 * self.measured:.0f}%"
        return f"{_round(self.documents)} ({_round(self.low)} to {_round(self.high)}{measured})"


def _round(number: int) -> str:
    digits = max(0, len(str(number)) - 2)
    return f"{round(number, -digits):,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """What a rule is computed from: a drift, and standard deviations per document.

    Attributes:
        drift, paired: on the scale on which evalguard estimates (the log scale of a perplexity).
        change, paired_change, base, candidate: in units of the metric, as lm-eval prints it.
        flips: share of documents that flip, of a 0/1 metric.
    """

    drift: float
    paired: float
    change: float
    paired_change: float
    base: float
    candidate: float
    flips: float = 0.0

    @classmethod
    def of(cls, paired: PairedScores) -> Scatter:
        """Of scored documents."""
        found, n = estimate_drift(paired, confidence=1.0 - 2.0 * ALPHA), paired.base.n
        change, root = found.candidate.point - found.base.point, math.sqrt(n)
        return cls(
            drift=found.estimate.point,
            paired=found.estimate.stderr * root,
            change=-change if paired.base.higher_is_better else change,
            paired_change=found.paired_stderr * root,
            base=found.base.stderr * root,
            candidate=found.candidate.stderr * root,
            flips=sum(found.flips) / n if found.flips else 0.0,
        )


Rule = Callable[[Scatter], "int | None"]


def paired_rule(of: Scatter) -> int | None:
    """The paired t test."""
    return paired_documents_to_detect(of.paired, of.drift, alpha=ALPHA, power=POWER)


def mcnemar_rule(of: Scatter) -> int | None:
    """The exact McNemar test."""
    return flip_documents_to_detect(of.flips, of.drift, alpha=ALPHA, power=POWER)


def unpaired_rule(of: Scatter) -> int | None:
    """The two-sample z-test, on documents that both models answered.

    It rejects where D > z_alpha sqrt(SE_base^2 + SE_cand^2), while D itself scatters only as the
    paired differences do: n = ((z_alpha s_unpaired + z_power s_paired) / D)^2.
    """
    if not of.change > 0.0:
        return None
    threshold = _Z_ALPHA * math.hypot(of.base, of.candidate)
    needed = ((threshold + _Z_POWER * of.paired_change) / of.change) ** 2
    return math.ceil(needed) if needed < 1e12 else None


def rejects_paired(paired: PairedScores) -> bool:
    """Whether evalguard's own test rejects: t, or McNemar's for 0/1 metrics."""
    return estimate_drift(paired, confidence=1.0 - 2.0 * ALPHA).estimate.p_value <= ALPHA


def rejects_unpaired(paired: PairedScores) -> bool:
    """Whether the two-sample z-test rejects, towards worse."""
    found = estimate_drift(paired, confidence=1.0 - 2.0 * ALPHA)
    sides = found.base, found.candidate
    if sides[0].stderr == sides[1].stderr == 0.0:
        return False
    z, _ = unpaired_z(sides[0].point, sides[0].stderr, sides[1].point, sides[1].stderr)
    return (-z if paired.base.higher_is_better else z) > _Z_ALPHA


def needed(
    paired: PairedScores,
    rule: Rule,
    rejects: Callable[[PairedScores], bool],
    picked: Callable[[PairedScores, np.ndarray], PairedScores],
    rng: np.random.Generator,
) -> Needed:
    """Apply a rule to scored documents, to resamples of them, and measure the test itself.

    Args:
        picked: the same comparison on the documents at some rows, which may repeat.
    """
    n = paired.base.n
    documents = rule(Scatter.of(paired))
    found = [rule(Scatter.of(picked(paired, rng.integers(0, n, n)))) for _ in range(RESAMPLES)]
    low, high = (_percentile(found, share) for share in (0.05, 0.95))
    measured = None
    if documents is not None and high is not None and documents <= MOST_DRAWN:
        draws = (picked(paired, rng.integers(0, n, documents)) for _ in range(DRAWS))
        measured = sum(map(rejects, draws)) / DRAWS
    return Needed(documents=documents, low=low, high=high, measured=measured)


def _percentile(found: list[int | None], share: float) -> int | None:
    """Of numbers of which None is the largest."""
    ordered = sorted(math.inf if number is None else number for number in found)
    value = ordered[math.ceil(share * (len(ordered) - 1))]
    return None if math.isinf(value) else int(value)
