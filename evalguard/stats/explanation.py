"""Why a comparison has its outcome: one sentence, every number with its method."""

from __future__ import annotations

import math

from evalguard.core.comparison import Outcome
from evalguard.core.verdict import Margin, MetricMargin, Verdict
from evalguard.stats.binary import mcnemar_exact
from evalguard.stats.drift import Drift
from evalguard.stats.few_units import SIGNS
from evalguard.stats.skewed.corrected_t import CR2, SKEW, uncorrected

_METHODS = {
    "paired-t": "paired t",
    "paired-t-log": "paired t on the log scale",
    "paired-t-ratio": "paired t of the ratio estimator",
    "paired-t-log-ratio": "paired t of the ratio estimator on the log scale",
    "cluster-t": "cluster-robust t",
    "cluster-t-log": "cluster-robust t on the log scale",
    "cluster-t-ratio": "cluster-robust t of the ratio estimator",
    "cluster-t-log-ratio": "cluster-robust t of the ratio estimator on the log scale",
    "cluster-sign-flip": "sign flips of whole clusters",
    "paired-bootstrap-bca": "paired BCa bootstrap",
    "stratified-t": "stratified t over the subtasks",
    "mcnemar-mid-p": "McNemar's mid-p",
    "mcnemar-exact": "exact McNemar",
    "tango-score": "Tango's score method",
}
_CORRECTIONS = {SKEW: "skewed documents", CR2: "unequal weights"}
_IDENTICAL = "every document has the same score to the last bit (bit-identical)"
_EQUAL = "every document has the same score, though not every answer is the same"
_MOST_DIGITS = 15


def number_text(value: float, *, beside: float = 0.0) -> str:
    """Three significant digits, more where these would move a number onto or across ``beside``."""
    if math.isinf(value):
        return "infinity" if value > 0.0 else "-infinity"
    for digits in range(3, _MOST_DIGITS):
        text = f"{value:.{digits}g}"
        if _side(float(text), beside) == _side(value, beside):
            return text
    return f"{value:.3g}"  # differs in the last bits of a double only


def _side(value: float, border: float) -> int:
    return (value > border) - (value < border)


def explain(drift: Drift, verdict: Verdict, tolerance: MetricMargin, *, n: int) -> str:
    """The sentence for a drift that is not bit-identical."""
    head = _size(drift, tolerance) + _meaning(verdict, drift, tolerance)
    return f"{head} ({_evidence(drift, n, tolerance)})"


def explain_equal_scores() -> str:
    """The sentence for equal scores of answers that differ."""
    return _EQUAL


def explain_identical() -> str:
    """The sentence for runs whose scores do not differ at all."""
    return _IDENTICAL


def _size(drift: Drift, tolerance: MetricMargin) -> str:
    sigma, point = drift.sigma, drift.estimate.point
    word = "worse" if point > 0.0 else "better"
    if math.isinf(sigma) and drift.unit == 0.0:
        if tolerance.amount is not None:
            return f"{word} by {_in_unit(drift.change_of(point), tolerance)}"
        return (
            f"{word}, and the base's standard error is 0 (its documents do not scatter), "
            "so that any drift is infinite in that unit"
        )
    if sigma == 0.0:
        return "no net drift"
    beside = 0.0 if tolerance.sigma is None else tolerance.sigma
    return f"{word} by {number_text(abs(sigma), beside=beside)} standard errors of the base"


def _in_unit(amount: float, tolerance: MetricMargin) -> str:
    """A drift on a linear scale, in the unit of its margin; in points for one in sigma."""
    if tolerance.margin.unit in ("points", "sigma"):
        return f"{number_text(100.0 * abs(amount))}pp"
    return number_text(abs(amount))


def limit_words(margin: float | None, margin_text: str = "") -> str:
    """Return "the margin of 1", or "the margin of 1pp (0.935)" where it is in another unit."""
    if margin is None:
        return f"the margin of {margin_text}"
    if not margin_text or Margin.parse(margin_text).unit == "sigma":
        return f"the margin of {margin:.12g}"
    return f"the margin of {margin_text} ({margin:.3g})"


def _meaning(verdict: Verdict, drift: Drift, tolerance: MetricMargin) -> str:
    limit = limit_words(tolerance.sigma, tolerance.margin.text)
    if verdict.outcome == "regressed" and math.isinf(drift.sigma) and tolerance.amount is None:
        return "; " + (
            "the drift is real" if verdict.significant else "the drift may still be chance"
        )
    if verdict.outcome == "regressed":
        if verdict.certain:
            return f", above {limit}, and so is its whole interval"
        if verdict.significant:
            return f", above {limit}; the drift is real, but its interval reaches below the margin"
        return f", above {limit}, but its interval holds 0"
    if verdict.outcome == "undecided" and drift.unit == 0.0 and tolerance.amount is None:
        return (
            f": its interval holds 0, and {limit} has no size, for the base's documents do not "
            "scatter"
        )
    beyond = ", although its interval reaches above" if _reaches(drift, tolerance) else ""
    meanings: dict[Outcome, str] = {
        "degraded": f": real, but within {limit}{beyond}",
        "improved": "",
        "unchanged": f": its interval holds 0 and ends below {limit}",
        "undecided": f": its interval holds 0 and reaches {limit}",
    }
    return meanings[verdict.outcome]


def _reaches(drift: Drift, tolerance: MetricMargin) -> bool:
    """Whether the interval reaches above the margin."""
    if tolerance.amount is not None:
        return drift.change_of(drift.estimate.high) > tolerance.amount
    return tolerance.sigma is not None and drift.sigma_interval[1] > tolerance.sigma


def _evidence(drift: Drift, n: int, tolerance: MetricMargin) -> str:
    low, high = drift.sigma_interval
    estimate, beside = drift.estimate, tolerance.sigma or 0.0
    ends = f"{number_text(low, beside=beside)} to {number_text(high, beside=beside)}"
    if drift.unit == 0.0 and (tolerance.amount is not None or drift.flips is not None):
        low_text, high_text = (
            ("-" if end < 0.0 else "") + _in_unit(drift.change_of(end), tolerance)
            for end in (estimate.low, estimate.high)
        )
        ends = f"{low_text} to {high_text}"
    interval = (
        f"{100.0 * estimate.confidence:g}% interval {ends} by {_method(estimate.interval_method)}"
    )
    p_value = f"one-sided p {p_text(estimate.p_value)}"
    if drift.flips is not None:
        b, c = drift.flips
        p_value = f"documents lost: {b:,}, won: {c:,}, {_method(estimate.method)} {p_value}"
        if estimate.method == "mcnemar-mid-p":
            p_value += f", exact p = {number_text(mcnemar_exact(b, c))}"
    return f"{interval}; {p_value}; n = {n:,}"


def _method(name: str) -> str:
    if name in _METHODS:
        return _METHODS[name]
    bare = uncorrected(name)
    words = _METHODS.get(bare, "")
    if not words:
        words = f"{_METHODS[bare.removesuffix(SIGNS)]}, joined with sign flips"
    for suffix, correction in _CORRECTIONS.items():
        words += f", corrected for {correction}" if suffix in name else ""
    return words


def p_text(value: float) -> str:
    return f"= {number_text(value)}" if value > 0.0 else "< 1e-300"
