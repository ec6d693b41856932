"""The gate: its rule and waivers, and what it says of metrics and limits (``GateResult``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from evalguard.core.broken_documents import BrokenDocument, broken_text, judge_broken
from evalguard.core.comparison import Comparison, Outcome
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.figures import INSTEAD_OF, FigureShare, figure_named, is_figure, split_name
from evalguard.core.findings import Finding
from evalguard.core.gate_state import GateState, Key, overall, reason
from evalguard.core.limits import Limit, LimitVerdict, judge_limits
from evalguard.core.multiple_tests import family_false_alarm, holm
from evalguard.core.option_words import FailOn
from evalguard.core.shown_tokens import KlEstimate
from evalguard.core.verdict import Margin, decide_comparison, one_sided_level
from evalguard.errors import UsageError, nearest

SOON = 14
"""Days before its end at which a waiver is announced to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """What somebody decided about one metric of a pair.

    Attributes:
        filter: "" stands for all filters.
        up_to: the largest sigma that is accepted.
        until: the last day (UTC) on which it counts, YYYY-MM-DD.
        where: ``FILE:LINE`` that says so.
    """

    task: str
    metric: str
    filter: str = ""
    up_to: float
    until: str
    reason: str
    where: str = ""

    @property
    def label(self) -> str:
        """Task and metric, with the filter where it names one."""
        return " ".join(filter(None, (self.task, self.metric, self.filter)))

    def names(self, comparison: Comparison) -> bool:
        """Whether it is about a comparison's metric."""
        asked = (self.task, self.metric)
        same_filter = self.filter in ("", comparison.filter)
        return asked == (comparison.task, comparison.metric) and same_filter

    def covers(self, comparison: Comparison, today: str) -> bool:
        """Whether it accepts a comparison on a day, YYYY-MM-DD."""
        sigma = comparison.sigma
        known = sigma is not None and sigma <= self.up_to
        return known and today <= self.until and self.names(comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedDrift:
    """A metric that regressed and that the gate lets through, by a waiver."""

    key: Key
    waiver: Waiver


def accept_drift(
    waivers: Sequence[Waiver], regressed: Iterable[Comparison], today: str
) -> tuple[AcceptedDrift, ...]:
    """Return which of the regressed comparisons a waiver covers; the first waiver counts."""
    accepted = []
    for comparison in regressed:
        waiver = next((waiver for waiver in waivers if waiver.covers(comparison, today)), None)
        if waiver is not None:
            key = (comparison.task, comparison.filter, comparison.metric)
            accepted.append(AcceptedDrift(key=key, waiver=waiver))
    return tuple(accepted)


def find_unused_waivers(
    waivers: Sequence[Waiver],
    comparisons: Sequence[Comparison],
    used: Collection[Waiver],
    today: str,
) -> Iterator[Finding]:
    """What to say of every waiver that is not simply in use.

    Args:
        used: waivers that a comparison was accepted by.
    """
    for waiver in waivers:
        about = [comparison for comparison in comparisons if waiver.names(comparison)]
        state, text = _waiver_state(waiver, about, today, used=waiver in used)
        if state is not None:
            where = f" ({waiver.where})" if waiver.where else ""
            yield Finding(
                kind="waiver",
                text=f"waiver of {waiver.label}: {text}{where}",
                task=waiver.task,
                filter=waiver.filter,
                metric=waiver.metric,
                values={"state": state, "until": waiver.until, "up_to": waiver.up_to},
            )


_WaiverState = Literal["expired", "names_nothing", "exceeded", "not_needed", "ends_soon"]


def _waiver_state(
    waiver: Waiver, about: Sequence[Comparison], today: str, *, used: bool
) -> tuple[_WaiverState | None, str]:
    if today > waiver.until:
        return "expired", (
            f"it EXPIRED on {waiver.until} and counts no more: decide anew, or remove it "
            f"(its reason was: {waiver.reason})"
        )
    if not about:
        return "names_nothing", "it names nothing that was compared"
    beyond = [c for c in about if c.outcome == "regressed" and (c.sigma or 0.0) > waiver.up_to]
    if beyond:
        return "exceeded", (
            f"sigma {beyond[0].sigma:.3g} is beyond the {waiver.up_to:g} that it accepts"
        )
    if not used:
        return "not_needed", "it is not needed in this run"
    days_left = _days(today, waiver.until)
    if days_left > SOON:
        return None, ""
    return "ends_soon", f"it ends in {days_left} days, on {waiver.until}"


def _days(today: str, until: str) -> int:
    return int((np.datetime64(until) - np.datetime64(today)).astype(np.int64))


WhenUndecided = Literal["warn", "fail", "pass"]
# Of results of earlier versions, whose gate did not say its level.
_LEVEL_OF_OLD = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMetric:
    """A metric that the gate judges.

    Attributes:
        holm_p_value: its p-value, adjusted over all gated metrics (Holm-Bonferroni); None where the
            metric failed.
        state: what it brings about.
    """

    key: Key
    holm_p_value: float | None
    state: GateState


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The gate's answer.

    Attributes:
        passed: whether the gate lets the candidate through. True for state "undecided" where the
            policy only warns; never True for "failed".
        state: "regressed" if any gated metric or limit is; else "failed" if any gave no number, or
            nothing was compared; else "undecided" if any is; else "passed".
        level: one-sided level, over all gated metrics together, at which a degradation is real:
            (1 - confidence) / 2; None in results of earlier versions, whose level was 0.05.
        when_undecided: what becomes of a run that is undecided.
        margin: in standard errors of the base; where it was given in another unit, the smallest
            that it comes to over the gated metrics. ``margin_text`` as it was given: "1pp".
        gated: keys (task, filter, metric) of the gated metrics; ``holm_p_values`` are beside them
            in the same order (None for a failed metric).
        regressed, undecided, failed: the keys that brought each about.
        family_false_alarm: upper bound of the chance that an unchanged candidate fails, because
            at least one gated metric crosses the margin: min(1, sum of the metrics' false-alarm
            probabilities). It holds whatever the dependence between metrics, which share
            documents, and for "significant" and "certain", which ask for more. For "real" it is
            at most ``level``, too; for "any-degradation" that is added. None where no gated metric
            has a number. It takes documents as independent, and not extremely skewed.
        family_false_alarm_independent: the chance that one crosses the margin if the metrics were
            independent, 1 - prod(1 - p_k); not above the bound.
        family_false_alarm_estimate: the chance itself, estimated by flipping the signs of the
            documents in all gated metrics together. Only for "margin", with two gated metrics or
            more that are all sums over documents; else None, and the bound is what is known.
        reason: one sentence.
        limits: what the absolute limits say, one per limit and task.
        accepted: metrics that regressed and that waivers let through; not in ``regressed``.
        fail_on: its rule.
        confidence: of the paired intervals.
        margin_text: the margin as it was given: 1 sigma, 1pp, 2%.
    """

    passed: bool
    state: GateState
    margin: float
    fail_on: FailOn
    confidence: float
    gated: tuple[Key, ...]
    regressed: tuple[Key, ...]
    undecided: tuple[Key, ...]
    failed: tuple[Key, ...]
    holm_p_values: tuple[float | None, ...]
    family_false_alarm: float | None
    family_false_alarm_independent: float | None
    reason: str
    limits: tuple[LimitVerdict, ...] = ()
    accepted: tuple[AcceptedDrift, ...] = ()
    margin_text: str = ""
    family_false_alarm_estimate: float | None = None
    level: float | None = None
    when_undecided: WhenUndecided = "warn"

    @property
    def judged(self) -> tuple[GatedMetric, ...]:
        """The gated metrics, and what each brings about."""
        return tuple(
            GatedMetric(key=key, holm_p_value=p_value, state=self.state_of(key))
            for key, p_value in zip(self.gated, self.holm_p_values, strict=True)
        )

    def accepted_text(self, key: Key) -> str:
        """Until when and why a waiver lets a metric through; "" where none does."""
        waivers = (drift.waiver for drift in self.accepted if drift.key == key)
        return next((f"until {waiver.until}: {waiver.reason}" for waiver in waivers), "")

    @property
    def rule(self) -> str:
        """The rule in words: "a metric fails above 1 sigma if its interval lies above 0 (...)"."""
        margin = self.margin_text or f"{self.margin:.12g} sigma"
        level, metrics = f"{100 * self.confidence:.6g}%", len(self.gated)
        sure = f"{100 * (1.0 - 2.0 * self.real_level):.6g}%"
        those = "both" if metrics == 2 else f"all {metrics}"
        own = f"its {level} interval lies above 0"
        over_all = f"its interval lies above 0 ({sure} over {those})"
        real = f"its {sure} interval lies above 0" if metrics < 2 else over_all
        return (
            "a metric fails "
            + {
                "real": f"above {margin} if {real}",
                "margin": f"above {margin}, chance or not",
                "significant": f"above {margin} if {own}",
                "certain": f"if its whole {level} interval lies above {margin}",
                "any-degradation": f"above {margin}, or if {real}",
            }[self.fail_on]
        )

    @property
    def real_level(self) -> float:
        """``level``, also of results that do not say it."""
        return _LEVEL_OF_OLD if self.level is None else self.level

    def holm_p_value(self, key: Key) -> float | None:
        """The adjusted p-value of a gated metric; None without one, and for any other metric."""
        return self.holm_p_values[self.gated.index(key)] if key in self.gated else None

    def state_of(self, key: Key) -> GateState:
        """What a gated metric brought about; "passed" where a waiver lets it through."""
        if key in self.regressed:
            return "regressed"
        if key in self.failed:
            return "failed"
        return "undecided" if key in self.undecided else "passed"


FAIL_ON: tuple[str, ...] = get_args(FailOn)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """When a run fails, as a guard file says it.

    Attributes:
        margin: tolerated drift; a number is in standard errors of the base.
        margins: margins of metrics ("acc") or of a task's metric ("gsm8k/exact_match"), which wins.
        directions: whether higher is better, of metrics (named likewise) whose task does not say.
        fail_on: which metrics fail the gate.
            "real": sigma above the margin, and a degradation that is real: its interval at
            ``confidence``, Holm-adjusted over the gated metrics, lies above 0, which is where the
            paired one-sided test says so at ``level``. The default.
            "margin": sigma above the margin, the literal rule.
            "significant": that, and the drift is real (interval above 0).
            "certain": that, and the whole interval is above the margin.
            "any-degradation": sigma above the margin, or a degradation that is real.
            A metric above the margin without the evidence that the policy asks for counts as
            undecided: more is needed to fail, but it was not shown harmless either.
        confidence: of the paired intervals.
        undecided: "warn" lets undecided metrics through and says so, "pass" does so without a
            warning of CI; "fail" does not.
        gate_metrics: metric names ("acc") or task and metric ("lambada_openai/acc") to which the
            gate is confined; () gates all. The others are shown and decide nothing.
            One that was not compared fails the gate.
        figures: figures of generated answers ("loops", "gsm8k/loops") that are gated as metrics
            are, where ``gate_metrics`` does not leave them out. Those that nobody names, here or in
            any other field, are no metrics.
        advisory: metrics, or tasks' metrics, that are shown and never fail.
        subtasks: gate what is below a compared group too, not only its aggregate: dozens of
            subtasks fail nearly every unchanged candidate by chance. ``gate_metrics`` wins.
        limits: absolute limits on distributions and answers, beside the margin. A value beyond its
            limit fails, whatever the margin says; under "certain" only if its whole interval is
            beyond, else it is undecided.
        broken_documents: how many documents of the run may be broken
            (``evalguard.core.broken_documents``), whatever the metrics say.
    """

    margin: float | str | Margin = 1.0
    margins: tuple[tuple[str, Margin], ...] = ()
    directions: tuple[tuple[str, bool], ...] = ()
    fail_on: FailOn = "real"
    confidence: float = 0.95
    undecided: WhenUndecided = "warn"
    gate_metrics: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    advisory: tuple[str, ...] = ()
    subtasks: bool = False
    limits: tuple[Limit, ...] = ()
    broken_documents: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(GateOptions):
    """What makes a run fail: what a guard file or an option says, and what else is known of a run.

    Attributes:
        declared: figures that a guard file makes known of a task ("sums/valid_json"), gated
            as ``figures`` wherever that task is asked.
        figures_where_known: figures that are gated likewise where any answer shows them, and that
            nobody misses where none does.
        waivers: known degradations that are let through, for comparisons judged on ``today``
            (YYYY-MM-DD, UTC).
    """

    declared: tuple[str, ...] = ()
    figures_where_known: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    today: str = ""

    def __post_init__(self) -> None:
        self.default_margin  # noqa: B018 - refuses a margin that is none
        if not 0.0 < self.confidence < 1.0:
            raise ValueError(f"a confidence lies between 0 and 1, not {self.confidence!r}")
        if self.fail_on not in FAIL_ON:
            raise UsageError(
                f"unknown gate policy '{self.fail_on}'{nearest(self.fail_on, FAIL_ON)}",
                hint=f"fail_on: {', '.join(FAIL_ON)}",
            )
        if self.broken_documents < 0:
            raise UsageError(f"broken_documents is 0 or more, not {self.broken_documents}")
        if self.undecided not in get_args(WhenUndecided):
            raise UsageError(f"undecided metrics can warn, fail or pass, not '{self.undecided}'")
        for name in dict.fromkeys((*self._gated_figures, *self.gate_metrics)):
            task, metric, _ = split_name(name)
            if metric in INSTEAD_OF and self.direction_of(task, metric) is None:
                raise UsageError(
                    f"{name} has no direction: to differ early is no worse than to differ late",
                    hint=f"name {INSTEAD_OF[metric]} (limit: {INSTEAD_OF[metric]}=2%)",
                )
        both = sorted(set(self.gate_metrics) & set(self.advisory))
        if both:
            raise UsageError(
                f"the gate lists {both[0]} in only and in advisory",
                hint="only: what may fail; advisory: what is shown and never fails",
            )

    @property
    def level(self) -> float:
        """One-sided level, over all gated metrics, at which a degradation is real."""
        return one_sided_level(self.confidence)

    @property
    def default_margin(self) -> Margin:
        """The margin of every metric without one of its own."""
        return Margin.parse(self.margin)

    def margin_of(self, task: str, metric: str) -> Margin:
        """The margin of a task's metric: its own, the metric's, else the gate's."""
        own = dict(self.margins)
        return own.get(f"{task}/{metric}") or own.get(metric) or self.default_margin

    def direction_of(self, task: str, metric: str) -> bool | None:
        """Whether higher is better, where the gate says so of a task's metric."""
        stated = dict(self.directions)
        return stated.get(f"{task}/{metric}", stated.get(metric))

    @property
    def needs_distributions(self) -> bool:
        """Whether a limit asks for the two models' distributions."""
        return any(limit.of_distributions for limit in self.limits)

    @property
    def figure_names(self) -> tuple[str, ...]:
        """Names of the figures of generated answers that the gate asks for, in whatever way."""
        named = (
            *self._gated_figures,
            *self.figures_where_known,
            *self.gate_metrics,
            *self.advisory,
            *(name for name, _ in self.directions),
            *(limit.name for limit in self.limits),
        )
        return tuple(dict.fromkeys(name for name in named if figure_named(name) is not None))

    @property
    def _gated_figures(self) -> tuple[str, ...]:
        """Figures that are gated by their drift; one with a limit only is held to that alone."""
        margins = (name for name, _ in self.margins)
        return (
            *self.figures,
            *self.declared,
            *(name for name in margins if figure_named(name) is not None),
        )

    def judge(
        self,
        comparisons: Iterable[Comparison],
        distributions: Sequence[DistributionComparison] = (),
        broken: Sequence[BrokenDocument] = (),
        shares: Sequence[FigureShare] = (),
        bounds: Sequence[KlEstimate] = (),
    ) -> GateResult:
        """Judge comparisons that were made with this gate's margin and confidence.

        Args:
            broken: all documents on which a model is broken.
            shares: figures of the candidate's generated answers that a limit is on.
            bounds: lower bounds of KL, where nobody shows whole distributions.

        Raises:
            ValueError: for a comparison made with another margin or confidence.
        """
        comparisons = list(comparisons)
        gated = self._gated(comparisons)
        for comparison in gated:
            self._check(comparison)
        adjusted = _holm_p_values(gated)
        by_state = self._by_state(gated, adjusted)
        regressed = [c for c in gated if c.key in by_state["regressed"]]
        let_through = accept_drift(self.waivers, regressed, self.today)
        by_state = _without(by_state, {drift.key for drift in let_through})
        sure = self.fail_on == "certain"
        limits = judge_limits(
            self.limits, distributions, comparisons, shares, only_certain=sure, bounds=bounds
        )
        by_document = judge_broken(broken, allowed=self.broken_documents)
        state = overall(by_state, (*limits, *by_document), compared=bool(gated or limits))
        of_metrics = reason(
            by_state,
            limits,
            len(gated),
            accepted=len(let_through),
            shown=len(comparisons) - len(gated),
        )
        chances = [c.false_alarm_probability for c in gated]
        bound, independent = family_false_alarm(
            [chance for chance in chances if chance is not None],
            self.level if self.fail_on == "any-degradation" else 0.0,
        )
        if self.fail_on == "real":
            bound, independent = self._at_most_level(bound), self._at_most_level(independent)
        return GateResult(
            passed=state == "passed" or (state == "undecided" and self.undecided != "fail"),
            state=state,
            margin=self.least_margin(c.margin for c in gated),
            margin_text=self._margin_text(),
            fail_on=self.fail_on,
            confidence=self.confidence,
            level=self.level,
            when_undecided=self.undecided,
            gated=tuple(c.key for c in gated),
            regressed=by_state["regressed"],
            undecided=by_state["undecided"],
            failed=by_state["failed"],
            holm_p_values=adjusted,
            family_false_alarm=bound,
            family_false_alarm_independent=independent,
            reason="; ".join([*map(broken_text, by_document), of_metrics]),
            limits=(*limits, *by_document),
            accepted=let_through,
        )

    def with_outcomes(
        self, comparisons: Iterable[Comparison], result: GateResult
    ) -> tuple[Comparison, ...]:
        """The comparisons with the outcome that the policy gives them.

        What is not real is not called so: by its p-value adjusted over the gated metrics; that of
        a metric that is not gated, by its own.
        """
        adjusted = dict(zip(result.gated, result.holm_p_values, strict=True))
        return tuple(
            _settled(
                c,
                adjusted.get(c.key, c.p_value),
                fail_on=self.fail_on,
                level=self.level,
                margin=result.margin,
            )
            for c in comparisons
        )

    def find_unused_waivers(
        self, comparisons: Sequence[Comparison], result: GateResult
    ) -> tuple[Finding, ...]:
        """What to say of the waivers: which expired, end soon, are exceeded or not needed."""
        used = [drift.waiver for drift in result.accepted]
        return tuple(find_unused_waivers(self.waivers, comparisons, used, self.today))

    def _by_state(
        self, gated: Sequence[Comparison], holm_p_values: Sequence[float | None]
    ) -> dict[GateState, tuple[Key, ...]]:
        states = [
            gated_state(
                c,
                p,
                fail_on=self.fail_on,
                level=self.level,
                margin=self.least_margin([c.margin]),
            )
            for c, p in zip(gated, holm_p_values, strict=True)
        ]
        return {
            state: tuple(c.key for c, its in zip(gated, states, strict=True) if its == state)
            for state in get_args(GateState)
        }

    def _at_most_level(self, chance: float | None) -> float | None:
        return None if chance is None else min(chance, self.level)

    def _gated(self, comparisons: list[Comparison]) -> list[Comparison]:
        return [c for c in self._chosen(comparisons) if c.directed]

    def _chosen(self, comparisons: list[Comparison]) -> list[Comparison]:
        if not self.gate_metrics:
            below = set() if self.subtasks else below_groups(comparisons)
            named = set(self._gated_figures)  # a group has no aggregate of a figure
            return [
                c
                for c in comparisons
                if self.covers(*c.key)
                and (c.task not in below or not named.isdisjoint(metric_names(*c.key)))
            ]
        return [c for c in comparisons if self.covers(*c.key)]

    def undirected(self, comparisons: Iterable[Comparison]) -> tuple[tuple[Comparison, ...], bool]:
        """Those that the gate would judge if anybody said which way is better.

        The flag says whether nothing is known then: one of them is listed by name, or there is
        nothing else that the gate judges.
        """
        chosen = self._chosen(list(comparisons))
        undirected = tuple(c for c in chosen if not c.directed)
        return undirected, bool(undirected) and (
            bool(self.gate_metrics) or len(undirected) == len(chosen)
        )

    def missing(
        self, comparisons: Iterable[Comparison], left_out: Iterable[Key] = ()
    ) -> tuple[str, ...]:
        """What the gate lists by name and was not compared: a listed metric fails the gate then.

        Args:
            left_out: metrics that could not be compared; nobody misses one that decides nothing.
        """
        compared = list(comparisons)
        idle = [key for key in left_out if not self.covers(*key)]
        known = {n for key in (*(c.key for c in compared), *idle) for n in metric_names(*key)}
        tasks = {c.task for c in compared}
        declared = (name for name in self.declared if split_name(name)[0] in tasks)
        listed = (
            *self.gate_metrics,
            *self.figures,
            *declared,
            *(name for name, _ in self.margins),
        )
        return tuple(dict.fromkeys(name for name in listed if name not in known))

    def least_margin(self, in_sigma: Iterable[float | None]) -> float:
        """The gate's margin in sigma, else the smallest that it comes to over the metrics."""
        if self.default_margin.unit == "sigma":
            return self.default_margin.value
        return min((margin for margin in in_sigma if margin is not None), default=1.0)

    def _margin_text(self) -> str:
        margin = self.default_margin
        own_count = len([1 for _, own_margin in self.margins if own_margin != margin])
        own = "1 metric has its own" if own_count == 1 else f"{own_count} metrics have their own"
        return margin.text + (f" ({own})" if own_count else "")

    def covers(self, task: str, filter_name: str, metric: str) -> bool:
        """Whether a metric of a task is gated under a filter."""
        names = set(metric_names(task, filter_name, metric))
        if names & set(self.advisory):
            return False
        if self.gate_metrics:
            return bool(names & set(self.gate_metrics))
        limited = names & {limit.name for limit in self.limits if limit.of_figure}
        only_limited = limited and is_figure(filter_name, metric)
        return not only_limited or bool(names & set(self._gated_figures))

    def _check(self, comparison: Comparison) -> None:
        """Refuse a comparison whose verdict belongs to another margin or confidence."""
        if comparison.sigma is None or comparison.sigma_interval is None:
            return
        margin = self.margin_of(comparison.task, comparison.metric)
        in_sigma = margin.value if margin.unit == "sigma" else comparison.margin
        if in_sigma is None and comparison.tolerated is None:
            raise ValueError(f"{comparison.task} {comparison.metric} was compared without a margin")
        verdict = decide_comparison(comparison, 0.0 if in_sigma is None else in_sigma)
        same = True
        if verdict is not None:
            own = replace(comparison, outcome=verdict.outcome)
            unproven = settle_outcome(
                own, None, fail_on="real", level=self.level, margin=in_sigma or 0.0
            )
            same = comparison.outcome in (verdict.outcome, unproven)
        early = comparison.stopping is not None and comparison.stopping.early
        # A part of the documents has an interval at the levels of its own rule.
        wrong = comparison.confidence != self.confidence and not early
        if wrong or not (same or comparison.bit_identical):
            raise ValueError(
                f"{comparison.task} {comparison.metric} was compared with another margin or "
                f"confidence than the gate's ({margin.text}, {self.confidence:g})"
            )


def metric_names(task: str, filter_name: str, metric: str) -> tuple[str, ...]:
    """Names by which a gate may list a metric."""
    return tuple(
        f"{where}{metric}{of_filter}"
        for where in ("", f"{task}/")
        for of_filter in ("", f",{filter_name}")
    )


def gated_state(
    comparison: Comparison,
    holm_p_value: float | None,
    *,
    fail_on: str,
    level: float | None,
    margin: float,
) -> GateState:
    """What one gated metric brings about under a policy, waivers aside.

    Args:
        holm_p_value: its p-value, adjusted over all gated metrics.
        level: at which that makes it real; None in results of earlier versions.
        margin: of the gate, in sigma, for a comparison that does not say its own.
    """
    outcome = settle_outcome(comparison, holm_p_value, fail_on=fail_on, level=level, margin=margin)
    if outcome == "failed" or outcome == "undecided":
        return outcome
    if outcome == "regressed":
        enough = {"significant": comparison.significant, "certain": comparison.certain}
        return "regressed" if enough.get(fail_on, True) else "undecided"
    if fail_on == "any-degradation" and outcome == "degraded":
        return "regressed" if is_real(holm_p_value, level) else "passed"
    return "passed"


def is_real(p_value: float | None, level: float | None) -> bool:
    """Whether a p-value, adjusted over all gated metrics, makes a degradation a real one."""
    return p_value is not None and p_value <= (_LEVEL_OF_OLD if level is None else level)


def settle_outcome(
    comparison: Comparison,
    p_value: float | None,
    *,
    fail_on: str,
    level: float | None,
    margin: float,
) -> Outcome:
    """The outcome of a comparison once its p-value is adjusted over the gated metrics.

    What is above the margin and may be chance is undecided under "real". A drift within the margin
    is degraded only where it is real: else it is unchanged, or undecided where its interval reaches
    the margin.

    Args:
        p_value: of a metric that is not gated: its own.
        level: None in results of earlier versions, which adjusted the first of the two alone.
        margin: as of ``gated_state``.
    """
    outcome = comparison.outcome
    if is_real(p_value, level) or (outcome == "regressed" and fail_on != "real"):
        return outcome
    if outcome == "regressed":
        return "undecided"
    if outcome == "degraded" and level is not None:
        return "undecided" if _reaches_margin(comparison, margin) else "unchanged"
    return outcome


def _reaches_margin(c: Comparison, margin: float) -> bool:
    if c.tolerated is not None and c.drift_interval is not None:
        return c.drift_interval[1] >= c.tolerated
    own = margin if c.margin is None else c.margin
    return c.sigma_interval is None or c.sigma_interval[1] >= own


def _settled(
    comparison: Comparison, p_value: float | None, *, fail_on: str, level: float, margin: float
) -> Comparison:
    """A comparison with its settled outcome, and the reason why it is another than its own."""
    outcome = settle_outcome(comparison, p_value, fail_on=fail_on, level=level, margin=margin)
    if outcome == comparison.outcome:
        return comparison
    adjusted = p_value is not None and p_value != comparison.p_value
    where = "above the margin, and" if comparison.outcome == "regressed" else "within the margin;"
    statement = "no p-value says" if p_value is None else f"p = {p_value:.2g} does not say"
    over = ", adjusted over the gated metrics," if adjusted else ""
    reason = f"{where} {statement}{over} that it is real: {comparison.reason}"
    return replace(comparison, outcome=outcome, reason=reason)


def below_groups(comparisons: Iterable[Comparison]) -> set[str]:
    """Return the names of tasks and groups that stand below a compared group."""
    return {name for c in comparisons for name in (*c.subtasks, *c.subgroups)}


def _without(
    by_state: Mapping[GateState, tuple[Key, ...]], let_through: Collection[Key]
) -> dict[GateState, tuple[Key, ...]]:
    """The same, but for metrics that regressed and are accepted."""
    regressed = tuple(key for key in by_state["regressed"] if key not in let_through)
    return {**by_state, "regressed": regressed}


def _holm_p_values(comparisons: Sequence[Comparison]) -> tuple[float | None, ...]:
    adjusted = iter(holm([c.p_value for c in comparisons if c.p_value is not None]))
    return tuple(None if c.p_value is None else next(adjusted) for c in comparisons)
