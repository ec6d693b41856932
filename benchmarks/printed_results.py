"""What can be said from two printed results alone, without documents.

These are the numbers of port reports. They never decide anything here: without documents there
is not a pairing, and the unpaired test throws away most of what the same run could have shown.
"""

from __future__ import annotations

import math

from evalguard.stats.estimate import normal_upper_tail


def harness_sigma(
    base: float, base_stderr: float, candidate: float, *, higher_is_better: bool
) -> float:
    """(candidate - base) / base_stderr, signed so that positive is worse.

    Raises:
        ValueError: for a standard error that is not positive and finite.
    """
    if not (base_stderr > 0.0 and math.isfinite(base_stderr)):
        raise ValueError(f"a standard error must be positive and finite, not {base_stderr!r}")
    drift = base - candidate if higher_is_better else candidate - base
    return drift / base_stderr


def one_sided_p(sigma: float) -> float:
    """1 - Phi(sigma): how a sigma reads if it is taken for a z-score (normal approximation)."""
    return normal_upper_tail(sigma)


def unpaired_z(
    base: float, base_stderr: float, candidate: float, candidate_stderr: float
) -> tuple[float, float]:
    """Two-sample z = (candidate - base) / sqrt(SE_base^2 + SE_cand^2), and its two-sided p.

    For reference only: it ignores that both models answered the same documents.
    """
    z = (candidate - base) / math.hypot(base_stderr, candidate_stderr)
    return z, 2.0 * normal_upper_tail(abs(z))
