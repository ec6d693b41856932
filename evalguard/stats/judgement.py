"""Judgement: a drift's verdict with its interval, its reason, and what would decide it."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard.stats.drift import Drift
from evalguard.stats.planning import documents_needed
from evalguard.stats.reason import explain, explain_identical
from evalguard.verdict import Verdict, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a drift means for the gate.

    Attributes:
        interval: of sigma.
        needed_n: documents that would decide; None where it is decided, or none would.
    """

    verdict: Verdict
    interval: tuple[float, float]
    reason: str
    needed_n: int | None = None
    bit_identical: bool = False


# Identical scores: a lossless conversion. There is no scatter, so there is no uncertainty.
IDENTICAL = Judgement(
    verdict=Verdict(outcome="unchanged", significant=False, certain=False),
    interval=(0.0, 0.0),
    reason=explain_identical(),
    bit_identical=True,
)


def judge(drift: Drift, *, n: int, n_total: int, margin: float, margin_text: str = "") -> Judgement:
    """Judge the drift of scores that are not all identical.

    Args:
        n: documents of the drift; ``n_total``: those there are, 0 where unknown.
        margin: tolerated drift, in standard errors of the base; ``margin_text`` as it was given.
    """
    low, high = drift.sigma_interval
    verdict = decide(drift.sigma, low, high, margin)
    needed = None
    if verdict.outcome == "undecided":
        needed = documents_needed(drift.estimate, n=n, tolerance=drift.drift_of(margin))
    reason = explain(
        drift,
        verdict,
        margin=margin,
        margin_text=margin_text,
        n=n,
        needed_n=needed,
        n_total=n_total,
    )
    return Judgement(verdict=verdict, interval=(low, high), reason=reason, needed_n=needed)
