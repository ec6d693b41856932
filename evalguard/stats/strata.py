"""Strata: an estimate that is a sum of independent parts, such as the subtasks of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evalguard.stats.estimate import Estimate, t_estimate
from evalguard.stats.moments import Array, exact_sum

STRATIFIED = "stratified-t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """What one stratum adds: its part of the estimate, the part's standard error and its df."""

    point: float
    stderr: float
    df: float

    @classmethod
    def of_residuals(cls, values: Array, residuals: Array) -> Stratum:
        """A stratum of G units, float64, shape (G,), whose residuals sum to 0.

        SE = sqrt(G / (G - 1) sum r^2), the linearised standard error of the sum of the values. A
        single unit shows no scatter: its standard error is infinite.
        """
        count = residuals.shape[0]
        if count < 2:
            return cls(point=exact_sum(values), stderr=math.inf, df=1.0)
        scatter = exact_sum(residuals * residuals) * count / (count - 1)
        return cls(point=exact_sum(values), stderr=math.sqrt(scatter), df=count - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratified:
    """A sum over strata and the degrees of freedom of its standard error."""

    estimate: Estimate
    df: float


def stratify_documents(strata: Sequence[Stratum], *, confidence: float) -> Stratified:
    """Add up independent strata: SE = sqrt(sum SE_t^2), t interval and one-sided p.

    Degrees of freedom by F. E. Satterthwaite (Biometrics Bulletin 2, 1946, 110-114):
    (sum SE_t^2)^2 / sum (SE_t^4 / df_t). Asymptotic where the strata are not normal.

    Args:
        strata: at least one.
    """
    variances = [stratum.stderr**2 for stratum in strata]
    total = math.fsum(variances)
    df = _satterthwaite(variances, [stratum.df for stratum in strata])
    estimate = t_estimate(
        math.fsum(stratum.point for stratum in strata),
        math.sqrt(total),
        df=df,
        confidence=confidence,
        method=STRATIFIED,
    )
    return Stratified(estimate=estimate, df=df)


def _satterthwaite(variances: Sequence[float], dfs: Sequence[float]) -> float:
    """The degrees of freedom of a sum of variances; those of all strata where nothing scatters."""
    total = math.fsum(variances)
    if total == 0.0:
        return math.fsum(dfs)
    if math.isinf(total):
        return 1.0
    largest = max(variances)
    shares = [variance / largest for variance in variances]  # no square over- or underflows
    spread = math.fsum(share * share / df for share, df in zip(shares, dfs, strict=True))
    return math.fsum(shares) ** 2 / spread
