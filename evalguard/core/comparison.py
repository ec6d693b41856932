"""Comparison: one metric of base and candidate, with its verdict, ready to be reported."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from evalguard.core.noise_floor import Floor

Outcome = Literal["regressed", "degraded", "improved", "unchanged", "undecided", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A test that stands beside the one that decides; it informs and decides nothing.

    Attributes:
        method: "sign-flip", "wilcoxon", ...
        p_value: one-sided, that an unchanged candidate looks at least this much worse.
        resamples: random resamples drawn, and ``seed`` of them; None for an exact or closed form.
        note: its assumption, or what was left out; "" where there is nothing to say.
        sigma_interval: its own two-sided interval of sigma, where it has one.
    """

    method: str
    p_value: float
    resamples: int | None = None
    seed: int | None = None
    note: str = ""
    sigma_interval: tuple[float, float] | None = None


# above_margin         it is above the margin, and chance is not excluded
# too_few_documents    it is not, and a drift above the margin is not excluded
UndecidedKind = Literal["above_margin", "too_few_documents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """Why a metric is undecided, and what would decide it; normal approximations.

    Attributes:
        detectable_sigma: the smallest true drift that fails such a run in 80% of cases, in sigma;
            ``detectable_change`` in units of the metric. None where the base's standard error is 0
            (sigma has no size).
        needed_n: documents after which 80% of runs are decided, whatever the true drift is, at the
            gate's own margin. None where no number of documents does that: a margin in sigma
            shrinks as documents are added, as fast as the interval does.
        fixed_margin: the margin of this run in a unit that does not shrink ("1.26pp", "2.1%"), and
            ``fixed_margin_n``: ``needed_n`` with that one; "" and None where the gate's is fixed.
        decidable_margin: the smallest such margin that the documents there are (all of the task's
            where that is known, else this run's) decide in 80% of runs; "" where there is none.
    """

    kind: UndecidedKind
    detectable_sigma: float | None = None
    detectable_change: float | None = None
    needed_n: int | None = None
    fixed_margin: str = ""
    fixed_margin_n: int | None = None
    decidable_margin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Drift of one (task, filter, metric); positive drift and sigma mean: the candidate is worse.

    Attributes:
        n: documents of the runs; ``n_used`` those the statistic uses.
        base, candidate: the metric's two values; the ``_stderr`` beside them are the unpaired
            standard errors that lm-eval reports (closed form).
        sigma: (candidate - base) / base_stderr, signed so that positive is worse; may be inf.
        sigma_interval: paired two-sided interval of sigma at ``confidence``.
        paired_stderr: standard error of the paired drift, in units of the metric.
        p_value: one-sided, that an unchanged candidate looks at least this much worse.
        exact_p_value: of the exact McNemar test, beside the mid-p of 0/1 metrics; ``mid_p_value``
            is that mid-p once more. They decide nothing; None for other metrics.
        method: the test that gives p_value ("paired-t", "mcnemar-mid-p", "paired-t-ratio", ...).
        false_alarm_probability: chance that an unchanged candidate with this paired_stderr
            crosses the margin.
        significant: its own interval is above 0; ``certain``: above the margin.
        adjusted_interval: of sigma, at the level that Holm's procedure asks of it, where that is
            what keeps a drift from being real: it holds 0, and ``sigma_interval`` does not.
        undecided: why the outcome is "undecided", and what would decide; None for any other.
        needed_n: ``undecided.needed_n``.
        flips: (base right and candidate wrong, base wrong and candidate right) for 0/1 metrics.
        churn: documents that both got wrong, in different ways, for 0/1 metrics whose answers both
            runs show; else None.
        same_answer: share of documents that both answered in the same way, right or wrong, and its
            ``same_answer_interval``; None where the runs do not show answers.
        clusters: number of clusters of documents that are not independent, and ``cluster_field``
            that says which belong together; None and "" where each document stands alone.
        bit_identical: every document's score is the same to the last bit.
        reason: why the outcome is what it is, one sentence.
        floor: the drift beside what the unchanged base shows; None where that is not known.
        companions: tests beside the one that gives p_value; they decide nothing.
        subtasks: for the aggregate of a group: its leaf tasks; ``subgroups`` the groups inside it.
        bh_q_value: ``p_value`` adjusted over all comparisons of the report by Benjamini and
            Hochberg (false discovery rate); it decides nothing. None where there is no p_value.
        influence: which documents carry the drift; None where none differs, where the base's
            standard error is 0, and for metrics that are no sum over documents.
        stopping: in a sequential run, how many documents the verdict rests on and what that
            guarantees; None in an ordinary one. Where it stopped early, sigma, its interval and
            the standard errors are those of all n documents, and ``n_used`` were asked.
        n_total: documents that the task has; 0 where unknown, as in results of earlier versions.
        directed: whether anybody says which way is better; else its sign is that of a metric of
            which more is better, and the gate does not judge it.
        margin: that it was judged with, in standard errors of the base; None in results of earlier
            versions, whose gate has the one margin, and where the base's standard error is 0.
            ``margin_text`` as it was given ("1pp").
        drift: of the metric in its own unit, positive is worse, with its ``drift_interval``; None
            where it is estimated on a log scale, and in results of earlier versions.
        tolerated: the margin in units of the metric, where it was given in points or percent:
            the verdict is then that of ``drift``, whatever the base's standard error is.
        None stands for a number that does not exist (``outcome == "failed"``).
    """

    task: str
    filter: str
    metric: str
    higher_is_better: bool
    n: int
    n_used: int
    base: float | None
    base_stderr: float | None
    candidate: float | None
    candidate_stderr: float | None
    sigma: float | None
    sigma_interval: tuple[float, float] | None
    paired_stderr: float | None
    p_value: float | None
    method: str
    confidence: float
    false_alarm_probability: float | None
    outcome: Outcome
    significant: bool
    certain: bool
    bit_identical: bool
    reason: str
    adjusted_interval: tuple[float, float] | None = None
    undecided: Undecided | None = None
    needed_n: int | None = None
    mid_p_value: float | None = None
    exact_p_value: float | None = None
    flips: tuple[int, int] | None = None
    churn: int | None = None
    same_answer: float | None = None
    same_answer_interval: tuple[float, float] | None = None
    clusters: int | None = None
    cluster_field: str = ""
    floor: Floor | None = None
    companions: tuple[Companion, ...] = ()
    subtasks: tuple[str, ...] = ()
    subgroups: tuple[str, ...] = ()
    bh_q_value: float | None = None
    influence: Influence | None = None
    stopping: Stopping | None = None
    n_total: int = 0
    directed: bool = True
    margin: float | None = None
    margin_text: str = ""
    drift: float | None = None
    drift_interval: tuple[float, float] | None = None
    tolerated: float | None = None
    caveats: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric)."""
        return self.task, self.filter, self.metric


# AcrossTasks: whether all metrics of a run together show a drift, with one joint null.


Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossTasks:
    """Several metrics judged together; it informs, the gate decides by each metric.

    All p-values are one-sided, that an unchanged candidate looks at least this much worse, and
    come from one joint null: the signs of the documents' differences flipped at random, a document
    with the same sign in every metric. So it does not matter how strongly metrics depend on each
    other.

    Attributes:
        metrics: (task, filter, metric) of those taken together; ``tasks`` counts their tasks.
        n: documents or clusters whose signs are flipped; ``n_moved`` those that differ anywhere.
        pooled_sigma: mean of the metrics' sigmas within a task, of the tasks with equal weight
            (perplexities on their log scale), with its ``pooled_stderr``, ``pooled_interval`` at
            ``confidence`` (stratified by tasks, t with ``pooled_df`` degrees of freedom by
            Satterthwaite, asymptotic) and ``pooled_p_value``.
        max_z: largest paired z of any metric, which metric that is, and the p-value of the largest.
        fisher: -2 sum log p over the metrics (p by the normal approximation of z), its p-value.
        p_value: of the smallest of the three p-values, calibrated by the same flips.
        resamples: random sign patterns; None where all were enumerated. ``seed`` of them.
        left_out: metrics that are no sum over documents, each with the reason.
    """

    metrics: tuple[Key, ...]
    tasks: int
    n: int
    n_moved: int
    pooled_sigma: float
    pooled_stderr: float
    pooled_interval: tuple[float, float]
    pooled_df: float
    confidence: float
    pooled_p_value: float
    max_z: float
    max_z_metric: Key
    max_z_p_value: float
    fisher: float
    fisher_p_value: float
    p_value: float
    resamples: int | None
    seed: int | None
    left_out: tuple[tuple[Key, str], ...] = ()


# Influence: which documents carry a drift.


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluentialDocument:
    """A document and what it adds to a drift.

    ``contribution`` is in sigma (to first order on a log scale), above 0 where the candidate is
    worse; ``share`` is its part of the whole drift, above 1 where others point the other way, None
    where the drift is 0.
    """

    task: str
    doc_id: int
    contribution: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """How a drift spreads over documents.

    Attributes:
        documents: those with the largest contributions in absolute value, largest first.
        moved: documents whose score differs at all.
        half: the fewest documents that make up half of the sum of absolute contributions.
        removed: the most influential 1% of the documents, at least one.
        sigma_without: sigma of the other documents, by the metric's own formula, in the unit of
            all documents.
    """

    documents: tuple[InfluentialDocument, ...]
    moved: int
    half: int
    removed: int
    sigma_without: float


# Stopping: how a sequential comparison came to its verdict, and what that guarantees.


# flips-exact      betting on flips; exact for 0/1 scores
# bounded-betting  betting on any mean or ratio; robust, asymptotic in the base's standard error
# full             all documents were asked: the ordinary comparison
StoppingMethod = Literal["flips-exact", "bounded-betting", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Of one metric, what stopping early means.

    Attributes:
        n_total: N, the documents whose verdict is given; ``n_used`` of them were asked.
        look: number of the look it stopped at, 1 for the first; ``looks`` are all that were
            planned, in documents.
        seed: of the random order the documents came in.
        alpha: the chance, over orders, that the gate's verdict is not that of all documents.
        alpha_below: the level at which sigma of all documents was to be shown below the margin;
            ``alpha_above``: above it (alpha over the number of gated metrics).
        error_chance: bound of the chance that an order brings the evidence seen although the
            verdict of all documents is the other one; at most the level. 0 with all documents.
        method: see ``StoppingMethod``.
        assumed_worst: the most that a document not asked may lose (or gain, which speaks against
            a regression), in the unit of its score (nats for log-likelihoods); None where nothing
            is assumed. ``seen_worst`` is the most among those asked.
        assumption: what is taken for granted, "" where nothing is.
        guarantee: one sentence, with the assumption.
    """

    n_total: int
    n_used: int
    look: int
    looks: tuple[int, ...]
    seed: int
    alpha: float
    alpha_below: float
    alpha_above: float
    error_chance: float
    method: StoppingMethod
    guarantee: str
    assumption: str = ""
    assumed_worst: float | None = None
    seen_worst: float | None = None

    @property
    def early(self) -> bool:
        """Whether documents were left out."""
        return self.n_used < self.n_total


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTask:
    """One task of a sequential run.

    ``reason`` says why all documents were asked although stopping was allowed, "" where it was
    stopped early or simply not decided before the last look.
    """

    task: str
    n_used: int
    n_total: int
    look: int
    looks: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialRun:
    """What was allowed to stop early, and what that guarantees for the gate.

    Attributes:
        alpha: chance, over orders, that the gate's verdict is not that of all documents.
        gated: number of gated metrics; each may be shown above the margin at alpha / gated.
        seed: of the orders.
        loads: how often a model was loaded; 1 for each where both fit in memory together.
        saved_seconds: estimated wall-clock time that scoring the documents left out would have
            taken, less what loading models several times took; None where all answers came from
            the cache, so that no pace is known. Negative where stopping early did not pay. No part
            of a run's equality.
    """

    alpha: float
    gated: int
    seed: int
    loads: int
    tasks: tuple[SequentialTask, ...]
    saved_seconds: float | None = field(default=None, compare=False)

    @property
    def early(self) -> bool:
        """Whether any document was left out."""
        return any(task.n_used < task.n_total for task in self.tasks)


# Verdict: what a sigma and its paired interval mean for a given margin.


# A sigma this close to the margin lies on it. A base that is wrong on one document of n has a
# standard error of exactly 1 / n, so that one more error is exactly 1 sigma: without this, the
# last bit of a double would decide.
ON_THE_MARGIN = 1e-9


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

    def in_metric(self, base: float, *, is_share: bool) -> float | None:
        """The margin in units of the metric; None for one in sigma.

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
        if self.unit == "relative" and base == 0.0:
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
        amount = self.in_metric(base, is_share=is_share)
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
