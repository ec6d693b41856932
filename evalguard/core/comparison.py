"""Comparison: one metric of base and candidate, with its verdict, ready to be reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from evalguard.core.findings import WORDS, Quote, quotes_text
from evalguard.core.noise_floor import Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluentialDocument:
    """A document and what it adds to a drift.

    Attributes:
        contribution: in sigma (to first order on a log scale), above 0 where the candidate is
            worse.
        share: its part of the whole drift, above 1 where others point the other way; None where the
            drift is 0.
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
        assumed_worst: the most that a document not asked may lose, in the unit of its score (nats
            for log-likelihoods); None where nothing is assumed. ``seen_worst`` is the most among
            those asked.
        assumption: what is taken for granted, "" where nothing is.
        guarantee: one sentence, with the assumption.
        n_used: documents that were asked.
        looks: planned looks, in documents; the last is all of them.
        seen_worst: the most among the documents asked.
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

    Attributes:
        n_used: documents that were asked, of ``n_total``.
        look: the one it stopped at, 1 for the first; ``looks`` are all that were planned, in
            documents.
        n_total: documents there are.
        looks: planned looks, in documents; the last is all of them.
        reason: why all documents were asked although stopping was allowed; "" where it was stopped
            early or simply not decided before the last look.
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
        tasks: every task.
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
        seed: seed of the resamples.
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
    """Why a metric is undecided, and what would decide it.

    Attributes:
        detectable_sigma: the smallest true drift that fails such a run in 80% of cases, in sigma;
            ``detectable_change`` in units of the metric. None where the base's standard error is 0
            (sigma has no size), and of means of fewer than 30 or of skewed documents, of which
            nothing holds.
        needed_n: documents after which 80% of runs are decided, whatever the true drift is, at the
            gate's own margin. None where no number of documents does that: a margin in sigma
            shrinks as documents are added, as fast as the interval does.
        fixed_margin: the margin of this run in a unit that does not shrink ("1.26pp", "2.1%"), and
            ``fixed_margin_n``: ``needed_n`` with that one; "" and None where the gate's is fixed.
        decidable_margin: the smallest such margin that the documents there are (all of the task's
            where that is known, else this run's) decide in 80% of runs; "" where there is none.
        kind: above_margin: chance is not excluded; too_few_documents: a drift above the margin is
            not.
        detectable_change: the same in units of the metric.
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
        base, candidate: the metric's two values.
        base_stderr, candidate_stderr: their unpaired standard errors, as lm-eval reports them
            (closed form).
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
        reason: why the outcome is what it is, one sentence, without words of documents.
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
        higher_is_better: direction of the metric, from the task.
        caveats: what may mislead about these numbers.
        provenance: how they were made, where that is not what one would take for granted.
        n_used: documents that the statistic uses.
        confidence: confidence of sigma_interval.
        mid_p_value: 0/1 metrics: McNemar's one-sided mid-p, which is p_value and decides; of
            results of 0.1 it stood beside an exact p_value.
        same_answer_interval: interval of same_answer, at confidence.
        cluster_field: field of the document that says which belong together; "" without clusters.
        subgroups: for the aggregate of a group: the groups inside it.
        margin_text: that margin as it was given: 1 sigma, 1pp, 2%.
        drift_interval: paired interval of drift.
        quotes: words of documents that reason is about; see ``Finding.quotes``.
        planned_scatter: standard error that plans take, over paired_stderr: above 1 where documents
            are skewed or heavy-tailed; None where so few carry it that nothing can be planned. 1 of
            0/1 metrics, whose flips tell.
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
    planned_scatter: float | None = 1.0
    tolerated: float | None = None
    caveats: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    quotes: tuple[Quote, ...] = field(default=(), metadata=WORDS)

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric)."""
        return self.task, self.filter, self.metric

    @property
    def quoted_reason(self) -> str:
        """The reason with its quotes."""
        return f"{self.reason}{quotes_text(self.quotes)}"

    @property
    def recovery(self) -> float | None:
        """What the candidate keeps of the base's value, in per cent; above 100 it is better.

        candidate / base where more is better, base / candidate where less is. None where nobody
        says which way is better, and for values that are not above 0: their ratio says nothing.
        """
        return None if self.candidate is None else self._recovery_at(self.candidate)

    @property
    def recovery_interval(self) -> tuple[float, float] | None:
        """Paired interval of recovery: that of the drift, from the base's value as it is."""
        unit, ends = self.base_stderr, self.sigma_interval
        if self.base is None or not unit or ends is None or self.recovery is None:
            return None
        sign = -1.0 if self.higher_is_better else 1.0
        best, worst = (self._recovery_at(self.base + sign * end * unit) for end in ends)
        return None if best is None or worst is None else (worst, best)

    def _recovery_at(self, value: float) -> float | None:
        if self.base is None or not self.directed:
            return None
        if not (0.0 < self.base < math.inf and 0.0 <= value < math.inf):
            return None
        if self.higher_is_better:
            return 100.0 * value / self.base
        return 100.0 * self.base / value if value > 0.0 else None
