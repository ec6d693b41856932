"""The drift of all N documents, estimated from those drawn so far."""

from __future__ import annotations

import math
from dataclasses import replace

from evalguard.core.paired_scores import PairedScores
from evalguard.stats.drift import Drift, estimate_drift
from evalguard.stats.moments import Moments


def drift_of_all(paired: PairedScores, population: int, *, confidence: float, unit: float) -> Drift:
    """The drift of the documents so far, with the standard errors that all N would have.

    Standard errors of n documents are sqrt(N / n) times those of N; sigma is counted in the latter.

    Args:
        unit: the base's standard error over all N on the scale of the drift.
    """
    drift = estimate_drift(paired, confidence=confidence)
    shrink = math.sqrt(paired.base.n / population)
    stderr = drift.base.stderr * (unit / drift.unit) if drift.unit > 0.0 else 0.0
    return replace(
        drift,
        base=Moments(point=drift.base.point, stderr=stderr),
        candidate=Moments(point=drift.candidate.point, stderr=drift.candidate.stderr * shrink),
        paired_stderr=drift.paired_stderr * shrink,
        estimate=replace(drift.estimate, stderr=drift.estimate.stderr * shrink),
        unit=unit,
    )
