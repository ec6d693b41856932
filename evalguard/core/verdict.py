"""Verdict: what a sigma and its paired interval mean for a given margin."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from evalguard.core.comparison import Comparison, Outcome
from evalguard.core.scores import ScoreTable

SIGMA = "sigma"  # the unit of a drift in standard errors of the base
# A sigma this close to the margin lies on it. A base that is wrong on one document of n has a
# standard error of exactly 1 / n, so that one more error is exactly 1 sigma: without this, the
# last bit of a double would decide.
ON_THE_MARGIN = 1e-9
_ROUNDING = 1e-12  # a mean of scores that cancel is so small a part of its standard error


def one_sided_level(confidence: float) -> float:
    """Level of every one-sided test beside two-sided intervals: where the interval leaves 0."""
    return round((1.0 - confidence) / 2.0, 12)  # 0.025, not 0.025000000000000022


MarginUnit = Literal["sigma", "points", "relative"]
_UNITS: dict[str, tuple[MarginUnit, float]] = {
    "": ("sigma", 1.0),
    "sigma": ("sigma", 1.0),
    "pp": ("points", 0.01),
    "%": ("relative", 0.01),
}
MARGIN_PATTERN = r"^\s*[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?\s*(sigma|pp|%)?\s*$"


@dataclass(frozen=True, slots=True)
class Margin:
    """The drift that a gate tolerates, in the unit that it was given in.

    Attributes:
        value: "sigma": standard errors of the base; "points": of a metric between 0 and 1 (0.01 is
            one percentage point); "relative": share of the base's value.
    """

    value: float
    unit: MarginUnit = "sigma"

    def __post_init__(self) -> None:
        check_margin(self.value)

    @classmethod
    def parse(cls, given: object) -> Margin:
        """Read 1, "1.5", "1 sigma", "1pp" or "2%".

        Raises:
            ValueError: for anything else.
        """
        if isinstance(given, Margin):
            return given
        text = f"{given!r}" if isinstance(given, float) else str(given)
        if isinstance(given, bool) or not re.match(MARGIN_PATTERN, text):
            raise ValueError(
                f"a margin is a number of sigmas, points (1pp) or a share (2%), not {text}"
            )
        number = text.strip().rstrip("sigmap% ")
        unit, scale = _UNITS[text.strip().removeprefix(number).strip()]
        value = float(number) * scale
        if not math.isfinite(value):
            raise ValueError(f"a margin is finite, not {text.strip()}")
        if unit == "points" and value >= 1.0:
            raise ValueError(
                f"a margin in points is below 100pp, not {text.strip()}: no metric between 0 and 1 "
                "drifts by more, so that the gate could not fail"
            )
        return cls(value, unit)

    @property
    def text(self) -> str:
        """As people write it: "1 sigma", "1pp", "2%"."""
        if self.unit == "sigma":
            return f"{self.value:.12g} sigma"
        return f"{100.0 * self.value:.12g}{'pp' if self.unit == 'points' else '%'}"

    def in_metric(self, base: float, base_stderr: float, *, is_share: bool) -> float | None:
        """The margin in units of the metric; None for one in sigma.

        A base that is 0 but for rounding, beside its standard error, is 0.

        Raises:
            ValueError: the metric has no such margin; the message is a reason fit for a report.
        """
        if self.unit == "sigma":
            return None
        if self.unit == "points" and not (is_share and 0.0 <= base <= 1.0):
            raise ValueError(
                f"a margin of {self.text} is for metrics between 0 and 1: give this one a margin "
                "of its own, in % or sigma (gate: {metrics: {TASK/METRIC: {margin: 2%}}})"
            )
        if self.unit == "relative" and abs(base) <= _ROUNDING * base_stderr:
            raise ValueError(
                f"the base's value is 0, and {self.text} of it is nothing: give this metric a "
                "margin in sigma or points"
            )
        return self.value * (abs(base) if self.unit == "relative" else 1.0)

    def in_sigma(self, base: float, base_stderr: float, *, is_share: bool) -> float:
        """The margin in standard errors of the base.

        Args:
            base, base_stderr: of the base, in units of the metric.
            is_share: whether the metric lies between 0 and 1 by its kind.

        Raises:
            ValueError: the metric has no such margin; the message is a reason fit for a report.
        """
        amount = self.in_metric(base, base_stderr, is_share=is_share)
        if amount is None:
            return self.value
        if not (base_stderr > 0.0 and math.isfinite(amount / base_stderr)):
            raise ValueError(
                f"the base's standard error is {base_stderr:.3g}, so that a margin of {self.text} "
                "has no size in sigma"
            )
        return amount / base_stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricMargin:
    """A margin beside one metric's drift.

    Attributes:
        sigma: in standard errors of the base; None where that is 0 and the margin needs none.
        amount: in units of the metric, for a margin in points or percent of a metric on a linear
            scale: it decides then, whatever the base's standard error is. Else None.
        drift: on the scale that the drift is estimated on.
        is_share: whether the metric lies between 0 and 1 by its kind.
    """

    margin: Margin
    sigma: float | None
    amount: float | None
    drift: float
    is_share: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one metric.

    ``significant``: its interval is above 0 (lo > 0); ``certain``: above the margin (lo > margin).
    """

    outcome: Outcome
    significant: bool
    certain: bool


def decide_comparison(comparison: Comparison, margin: float) -> Verdict | None:
    """Read the decision table for a comparison's numbers; None where it has none.

    Args:
        margin: in sigma; one in units of the metric (``tolerated``) takes its place.

    Raises:
        ValueError: as ``decide``.
    """
    c = comparison
    if c.tolerated is not None and c.drift is not None and c.drift_interval is not None:
        return decide(c.drift, *c.drift_interval, c.tolerated)
    if c.sigma is None or c.sigma_interval is None:
        return None
    return decide(c.sigma, *c.sigma_interval, margin)


def decide(sigma: float, lo: float, hi: float, margin: float) -> Verdict:
    """Read the decision table.

    | outcome   | condition, first match from above                    |
    |-----------|------------------------------------------------------|
    | regressed | sigma > margin, whatever the interval (literal rule) |
    | degraded  | lo > 0: worse for sure, but within the margin        |
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


DriftUnit = Literal["sigma", "pp", "%"]
"""Standard errors of the base; percentage points; per cent of the base's value."""


def choose_drift_unit(
    *,
    base: float | None,
    base_stderr: float | None,
    sigmas: tuple[float | None, ...],
    margin_text: str,
    is_binary: bool,
) -> DriftUnit:
    """Sigma, but where the base's documents do not scatter and sigma is infinite.

    There a share is in points, and what has a margin in per cent in per cent.

    Args:
        base, base_stderr: of the base, in units of the metric.
        sigmas: sigma and the ends of its interval; None where there are none.
        margin_text: as it was given: "1pp", "2%", "1 sigma"; "" where it is not known.
        is_binary: whether every document is right or wrong.
    """
    if base_stderr != 0.0 or not any(sigma is not None and math.isinf(sigma) for sigma in sigmas):
        return "sigma"
    given = Margin.parse(margin_text).unit if margin_text else "sigma"
    if is_binary or given == "points":
        return "pp"
    return "%" if given == "relative" and base else "sigma"


def scale_to_unit(unit: DriftUnit, base: float | None) -> float:
    """What a drift in units of the metric is multiplied by; nan where the unit has no size."""
    if unit == "pp":
        return 100.0
    return 100.0 / abs(base) if unit == "%" and base else math.nan


_ON_LOG_SCALE = ("perplexity", "weighted_perplexity")


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaScale:
    """An increasing map through 0.

    Attributes:
        unit: standard error of the base on the estimation scale.
        log_sign: 0 for a linear scale; on a log scale +1 if a lower metric is better, else -1.
    """

    unit: float
    log_sign: int = 0

    @staticmethod
    def log_sign_of(table: ScoreTable) -> int:
        """The ``log_sign`` of a table's metric."""
        if table.aggregation not in _ON_LOG_SCALE:
            return 0
        return -1 if table.higher_is_better else 1

    def sigma_of(self, drift: float) -> float:
        """Sigma of a drift on the estimation scale; +-inf where the unit is 0 and it is not."""
        amount = drift if self.log_sign == 0 else self.log_sign * _expm1(self.log_sign * drift)
        if self.unit == 0.0:
            return math.copysign(math.inf, amount) if amount else 0.0
        return amount / self.unit

    def drift_of(self, sigma: float) -> float:
        """The drift on the estimation scale that has this sigma (the inverse map)."""
        amount = sigma * self.unit
        if self.log_sign == 0:
            return amount
        inner = self.log_sign * amount
        return self.log_sign * math.log1p(inner) if inner > -1.0 else math.inf


def _expm1(x: float) -> float:
    """exp(x) - 1, infinite beyond the largest double."""
    try:
        return math.expm1(x)
    except OverflowError:
        return math.inf
