"""Judgement: a drift's verdict with its interval, its reason, and what would decide it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from evalguard.core.amounts import finite_or_none
from evalguard.core.comparison import Comparison, Outcome, Undecided, UndecidedKind
from evalguard.core.verdict import Margin, MetricMargin, Verdict, decide, one_sided_level
from evalguard.stats.binary import mcnemar_exact, tango_interval
from evalguard.stats.drift import Contributions, Drift
from evalguard.stats.power import (
    POWER,
    decidable_ratio,
    documents_to_decide,
    failing_flip_drift,
    fewest_signs,
)
from evalguard.stats.scatter import FEWEST_FOR_T, NORMAL_KURTOSIS, planned_churn, scatter_factors
from evalguard.stats.sign_flip import SIGNS
from evalguard.stats.skewness import CR2, SKEW, uncorrected
from evalguard.stats.uninformative import NothingKnown

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


_SURE = 0.7  # two-sided: of the scatter that n documents show, the end that 15% exceed
_DIGITS = 2  # of a margin that is proposed
_MOST_COUNTED = 100  # flips; of more the normal approximation says the same, and at once


def explain_undecided(
    drift: Drift,
    *,
    n: int,
    n_total: int,
    tolerance: MetricMargin,
    metrics: int,
    above: bool,
) -> Undecided:
    """Say of an undecided metric what it lacks.

    Args:
        drift: over n documents.
        n_total: documents of the task; 0 where unknown.
        metrics: K, those that the gate judges together.
        above: whether the estimate is above the margin.
    """
    kind: UndecidedKind = "above_margin" if above else "too_few_documents"
    size, level = tolerance.drift, one_sided_level(drift.estimate.confidence)
    stderr = planned_stderr(drift, size)
    if stderr is None or not (stderr > 0.0 and math.isfinite(stderr) and math.isfinite(size)):
        return Undecided(kind=kind)
    detectable = _failing_drift(drift, size, level / max(metrics, 1))
    sigma = None if detectable is None else drift.sigma_of(detectable)
    unit = _fixed_unit(drift, tolerance)
    least = decidable_ratio(level, metrics) * stderr * math.sqrt(n / max(n_total, n))
    undecided = Undecided(
        kind=kind,
        detectable_sigma=None if sigma is None or not math.isfinite(sigma) else sigma,
        detectable_change=None if detectable is None else _metric_change(drift, detectable),
        decidable_margin=_margin_text(drift, least, unit),
    )
    fewest = fewest_documents(drift, n)
    fixed = tolerance.margin.unit != "sigma"
    decide = partial(documents_to_decide, size / stderr, known=n, alpha=level, metrics=metrics)
    needed = decide(fixed=fixed)
    if needed is not None:
        return replace(undecided, needed_n=max(needed, fewest))
    text = "" if fixed else _margin_text(drift, size, unit)
    if not text:
        return undecided
    needed = decide(fixed=True)
    return replace(
        undecided,
        fixed_margin=text,
        fixed_margin_n=None if needed is None else max(needed, fewest),
    )


def planned_stderr(drift: Drift, size: float) -> float | None:
    """The standard error that a plan takes, of a margin of ``size`` on the scale of the drift.

    Of answers that of the flips that the seen ones leave open, of other documents with what a
    sample of skewed ones does not know; None where nothing can be said. ``plan`` takes the same.
    """
    if drift.flips is not None and drift.documents:
        churn = planned_churn(sum(drift.flips), drift.documents, drift=size)
        return math.sqrt(churn / drift.documents)
    if drift.planned_scatter is None:
        return None
    return drift.estimate.stderr * drift.planned_scatter


def _failing_drift(drift: Drift, size: float, level: float) -> float | None:
    """The smallest true drift that fails such a run in 80% of cases: above the margin, and real.

    None where the documents, or the clusters that count in their place, are too few or too skewed
    for a number that holds: of those a plan says what it takes, which errs to the safe side, and
    this would err to the other.
    """
    stderr = drift.estimate.stderr
    if drift.flips is not None and drift.documents:
        churn = planned_churn(sum(drift.flips), drift.documents)
        if sum(drift.flips) <= _MOST_COUNTED:
            return failing_flip_drift(churn, drift.documents, margin=size, alpha=level, power=POWER)
        stderr = math.sqrt(churn / drift.documents)
    else:
        df = drift.estimate.df  # none where the signs of few clusters decide
        if drift.planned_scatter != 1.0 or df is None or df + 1.0 < FEWEST_FOR_T:
            return None
        units = 1 + math.floor(df)
        stderr *= scatter_factors(units, kurtosis=NORMAL_KURTOSIS, confidence=_SURE)[1]
    quantile = drift.estimate.quantile
    return max(size, quantile(1.0 - level) * stderr) + quantile(POWER) * stderr


def fewest_documents(drift: Drift, n: int) -> int:
    """Documents of which so many differ that their signs alone can decide; 0 of answers."""
    differing = drift.estimate.differing
    if not differing or (drift.flips is not None and drift.documents):
        return 0
    return math.ceil(n * fewest_signs(drift.estimate.confidence) / differing)


def _fixed_unit(drift: Drift, tolerance: MetricMargin) -> str:
    if tolerance.is_share and not drift.log_sign:
        return "pp"
    return "%" if drift.base.point != 0.0 and math.isfinite(drift.base.point) else ""


def _margin_text(drift: Drift, size: float, unit: str) -> str:
    """A drift as a margin, rounded up; "" where it is none that a metric can have."""
    amount = _metric_change(drift, size) if unit else None
    if amount is None:
        return ""
    share = 100.0 * (amount if unit == "pp" else amount / abs(drift.base.point))
    if not 0.0 < share < (100.0 if unit == "pp" or drift.log_sign <= 0 else 1e6):
        return ""
    step = 10.0 ** (math.floor(math.log10(share)) - _DIGITS + 1)
    return f"{math.ceil(share / step - 1e-9) * step:.{_DIGITS}g}{unit}"


def _metric_change(drift: Drift, size: float) -> float | None:
    """A drift to the worse in units of the metric; None beyond what doubles hold."""
    change = drift.change_of(size)
    return finite_or_none(change)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A comparison, and what it was made from.

    Attributes:
        contributions: what each document adds to its drift; None where no sum makes it.
        not_compared: why the metric cannot be compared on these documents, whatever the models:
            then it is to be left out, and the comparison, which failed, says the same.
        drift, tolerance: what was judged, and by which margin; None where it failed, and where it
            was stopped early.
        unless_regressed: why nothing is known of the candidate unless the gate calls it regressed;
            None where something is.
    """

    comparison: Comparison
    contributions: Contributions | None = None
    not_compared: str = ""
    drift: Drift | None = None
    tolerance: MetricMargin | None = None
    unless_regressed: NothingKnown | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricJudgement:
    """What a drift means for the gate.

    Attributes:
        interval: of sigma.
        undecided: what an undecided verdict lacks; None for any other.
    """

    verdict: Verdict
    interval: tuple[float, float]
    reason: str
    undecided: Undecided | None = None
    bit_identical: bool = False


# Identical scores: a lossless conversion. There is no scatter, so there is no uncertainty.
IDENTICAL = MetricJudgement(
    verdict=Verdict(outcome="unchanged", significant=False, certain=False),
    interval=(0.0, 0.0),
    reason=explain_identical(),
    bit_identical=True,
)


def judge_metric(drift: Drift, tolerance: MetricMargin, *, n: int, n_total: int) -> MetricJudgement:
    """Judge the drift of scores that are not all identical, as the only metric of its gate.

    Args:
        n: documents of the drift; ``n_total``: those there are, 0 where unknown.
    """
    estimate, sigma_interval = drift.estimate, drift.sigma_interval
    if tolerance.amount is not None:
        point, low, high = map(drift.change_of, (estimate.point, estimate.low, estimate.high))
        verdict = decide(point, low, high, tolerance.amount)
    else:
        assert tolerance.sigma is not None
        verdict = decide(drift.sigma, *sigma_interval, tolerance.sigma)
    lacks = None
    if verdict.outcome == "undecided":
        lacks = explain_undecided(
            drift, n=n, n_total=n_total, tolerance=tolerance, metrics=1, above=False
        )
    reason = explain(drift, verdict, tolerance, n=n)
    return MetricJudgement(verdict=verdict, interval=sigma_interval, reason=reason, undecided=lacks)


def judge_equal_answers(one: MetricComparison, spread: float = 0.0) -> MetricComparison:
    """Judge a metric of equal scores, whose answers are not equal, by its interval.

    Without a change among n documents Tango's interval ends at z^2 / (n + z^2): of 0 and 1, that is
    the drift; of other scores on a coarse grid it is the share of documents that may change, each
    by at most their spread. Unchanged where that is below the margin; undecided where it is not,
    and where the margin has no size: of a base that is right in all documents, or in none, one in
    sigma has none. Any other metric has an interval without width, and is unchanged.

    Args:
        spread: between the lowest and the highest score of a metric that is a mean; 0 of any other.
    """
    compared, drift, margin = one.comparison, one.drift, one.tolerance
    if drift is None or margin is None or (compared.flips is None and not spread):
        alike = replace(compared, bit_identical=False, reason=explain_equal_scores())
        return replace(one, comparison=alike)
    if not drift.documents:
        units = compared.n_used if compared.clusters is None else compared.clusters
        low, high = tango_interval(0, 0, units, confidence=drift.estimate.confidence)
        scale = 1.0 if compared.flips is not None else spread
        estimate = replace(
            drift.estimate, low=low * scale, high=high * scale, interval_method="tango-score"
        )
        drift = replace(drift, estimate=estimate)
        one = replace(one, drift=drift)
    judged = judge_metric(drift, margin, n=compared.n_used, n_total=compared.n_total)
    comparison = replace(
        compared,
        sigma_interval=judged.interval,
        outcome=judged.verdict.outcome,
        bit_identical=False,
        reason=judged.reason,
        undecided=judged.undecided,
        needed_n=None if judged.undecided is None else judged.undecided.needed_n,
        drift_interval=(drift.estimate.low, drift.estimate.high),
    )
    return replace(one, comparison=comparison)


def complete_verdict(
    one: MetricComparison, *, holm_p_value: float | None, metrics: int
) -> Comparison:
    """A comparison with the outcome that the gate left it, and what that outcome needs to be read.

    An undecided one says what it lacks; one that Holm's procedure keeps from being real shows the
    interval that holds 0.

    Args:
        holm_p_value: None for a metric that is not gated.
        metrics: that the gate judges together.
    """
    compared, drift, tolerance = one.comparison, one.drift, one.tolerance
    if drift is None or tolerance is None or compared.bit_identical:
        return compared
    gated = holm_p_value is not None
    adjusted = None
    if gated and compared.significant and compared.outcome in ("undecided", "unchanged"):
        adjusted = _adjusted_interval(drift, holm_p_value or 0.0)
    if compared.outcome != "undecided":
        return replace(compared, adjusted_interval=adjusted, undecided=None, needed_n=None)
    lacks = explain_undecided(
        drift,
        n=compared.n_used,
        n_total=compared.n_total,
        tolerance=tolerance,
        metrics=metrics if gated else 1,
        above=_is_above(compared, tolerance),
    )
    return replace(compared, adjusted_interval=adjusted, undecided=lacks, needed_n=lacks.needed_n)


def _is_above(told: Comparison, tolerance: MetricMargin) -> bool:
    if tolerance.amount is not None and told.drift is not None:
        return told.drift > tolerance.amount
    assert tolerance.sigma is not None
    return told.sigma is not None and told.sigma > tolerance.sigma


def _adjusted_interval(drift: Drift, holm_p_value: float) -> tuple[float, float]:
    """The interval of sigma at the level that Holm's procedure asks of this metric.

    The half widths of the metric's own interval, in the ratio of the two quantiles, of Student's t
    where that made it; its lower end is at most 0, since the adjusted p-value is above the level.
    """
    estimate = drift.estimate
    level = one_sided_level(estimate.confidence)
    asked = level * min(1.0, estimate.p_value / holm_p_value) if holm_p_value > 0.0 else level
    quantile = estimate.quantile
    wider = quantile(asked) / quantile(level) if asked > 0.0 else math.inf
    low = estimate.point - (estimate.point - estimate.low) * wider
    high = estimate.point + (estimate.high - estimate.point) * wider
    return drift.sigma_of(min(low, 0.0)), drift.sigma_of(high)
