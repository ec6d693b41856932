"""Why a comparison has its outcome: one sentence, every number with its method."""

from __future__ import annotations

import math

from evalguard.comparison import Outcome
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.drift import Drift
from evalguard.stats.few_units import SIGNS
from evalguard.verdict import Verdict

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
    "mcnemar-exact": "exact McNemar",
    "tango-score": "Tango's score method",
}
_IDENTICAL = "every document has the same score to the last bit (bit-identical)"
_MOST_DIGITS = 15


def number(value: float, *, beside: float = 0.0) -> str:
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


def explain(
    drift: Drift,
    verdict: Verdict,
    *,
    margin: float,
    margin_text: str = "",
    n: int,
    needed_n: int | None,
    n_total: int,
) -> str:
    """The sentence for a drift that is not bit-identical; ``margin_text`` as it was given."""
    head = _size(drift, margin) + _meaning(verdict, drift, margin, margin_text)
    if verdict.outcome == "undecided":
        head += "; " + _need(needed_n, n_total)
    return f"{head} ({_evidence(drift, n, margin)})"


def explain_identical() -> str:
    """The sentence for runs whose scores do not differ at all."""
    return _IDENTICAL


def _size(drift: Drift, margin: float) -> str:
    sigma = drift.sigma
    if math.isinf(sigma) and drift.unit == 0.0:
        word = "worse" if sigma > 0.0 else "better"
        return (
            f"{word}, and the base's standard error is 0 (its documents do not scatter), "
            "so that any drift is infinite in that unit"
        )
    if sigma == 0.0:
        return "no net drift"
    word = "worse" if sigma > 0.0 else "better"
    return f"{word} by {number(abs(sigma), beside=margin)} standard errors of the base"


def limit_words(margin: float, margin_text: str = "") -> str:
    """Return "the margin of 1", or "the margin of 1pp (0.935)" where it is in another unit."""
    if not margin_text or margin_text.endswith("sigma"):
        return f"the margin of {margin:.12g}"
    return f"the margin of {margin_text} ({margin:.3g})"


def _meaning(verdict: Verdict, drift: Drift, margin: float, margin_text: str) -> str:
    limit = limit_words(margin, margin_text)
    if verdict.outcome == "regressed" and math.isinf(drift.sigma) and drift.unit == 0.0:
        return "; " + (
            "the drift is real" if verdict.significant else "the drift may still be chance"
        )
    if verdict.outcome == "regressed":
        if verdict.certain:
            return f", above {limit}, and so is its whole interval"
        if verdict.significant:
            return f", above {limit}; the drift is real, but its interval reaches below the margin"
        return f", above {limit}, but its interval holds 0"
    beyond = ", although its interval reaches above" if drift.sigma_interval[1] > margin else ""
    meanings: dict[Outcome, str] = {
        "degraded": f": real, but within {limit}{beyond}",
        "improved": "",
        "unchanged": f": its interval holds 0 and ends below {limit}",
        "undecided": f": its interval holds 0 and reaches {limit}",
    }
    return meanings[verdict.outcome]


def _need(needed_n: int | None, n_total: int) -> str:
    if needed_n is None:
        return "no practicable number of documents would decide so small a drift in this scatter"
    need = f"about {needed_n:,} documents would decide if the drift per document stays what it is"
    if 0 < n_total < needed_n:
        need += f", and the task has only {n_total:,}"
    return need


def _evidence(drift: Drift, n: int, margin: float) -> str:
    low, high = drift.sigma_interval
    estimate = drift.estimate
    interval = (
        f"{100.0 * estimate.confidence:g}% interval {number(low, beside=margin)} to "
        f"{number(high, beside=margin)} by {_method(estimate.interval_method)}"
    )
    p_value = f"one-sided p {_p(estimate.p_value)}"
    if drift.flips is not None:
        b, c = drift.flips
        p_value = f"documents lost: {b:,}, won: {c:,}, {_method(estimate.method)} {p_value}"
        if estimate.method == "mcnemar-exact":
            p_value += f", mid-p = {number(mcnemar_mid_p(b, c))}"
    return f"{interval}; {p_value}; n = {n:,}"


def _method(name: str) -> str:
    if name in _METHODS:
        return _METHODS[name]
    return f"{_METHODS[name.removesuffix(SIGNS)]}, joined with sign flips"


def _p(value: float) -> str:
    return f"= {number(value)}" if value > 0.0 else "< 1e-300"
