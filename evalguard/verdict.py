"""Verdict: what a sigma and its paired interval mean for a given margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evalguard.comparison import Outcome

# A sigma this close to the margin lies on it. A base that is wrong on one document of n has a
# standard error of exactly 1 / n, so that one more error is exactly 1 sigma: without this, the
# last bit of a double would decide.
ON_THE_MARGIN = 1e-9

# Chance that the default gate calls any of its metrics really worse where none is (Holm's level).
REAL_LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one metric.

    ``significant``: the drift to the worse is real (lo > 0); ``certain``: it is above the margin
    (lo > margin).
    """

    outcome: Outcome
    significant: bool
    certain: bool


def decide(sigma: float, lo: float, hi: float, margin: float) -> Verdict:
    """Read the decision table.

    | outcome   | condition, first match from above                    |
    |-----------|------------------------------------------------------|
    | regressed | sigma > margin, whatever the interval (literal rule) |
    | degraded  | lo > 0: real, but within the margin                  |
    | improved  | hi < 0                                               |
    | unchanged | hi < margin (and lo <= 0 <= hi): shown not to be worse |
    | undecided | the rest: lo <= 0 and hi >= margin                   |

    A number within a billionth of the margin (relative) counts as the margin itself.

    Args:
        sigma: drift in standard errors of the base, positive is worse; may be infinite.
        lo, hi: its paired interval, lo <= hi; may be infinite.
        margin: the tolerated sigma, finite and not negative.

    Raises:
        ValueError: for a NaN, an interval whose ends are exchanged, or an impossible margin.
    """
    if math.isnan(sigma) or math.isnan(lo) or math.isnan(hi):
        raise ValueError(f"a verdict needs numbers: sigma={sigma}, lo={lo}, hi={hi}")
    if lo > hi:
        raise ValueError(f"the interval's ends are exchanged: lo={lo} > hi={hi}")
    check_margin(margin)
    return Verdict(
        outcome=_outcome(sigma, lo, hi, margin), significant=lo > 0.0, certain=_above(lo, margin)
    )


def _outcome(sigma: float, lo: float, hi: float, margin: float) -> Outcome:
    if _above(sigma, margin):
        return "regressed"
    if lo > 0.0:
        return "degraded"
    if hi < 0.0:
        return "improved"
    return "unchanged" if _above(margin, hi) else "undecided"


def _above(one: float, other: float) -> bool:
    return one > other and not math.isclose(one, other, rel_tol=ON_THE_MARGIN)


def check_margin(margin: float) -> None:
    """Check a margin in sigmas.

    Raises:
        ValueError: unless it is finite and not negative.
    """
    if not (math.isfinite(margin) and margin >= 0.0):
        raise ValueError(f"a margin must be a finite number of sigmas, 0 or more, not {margin!r}")
