"""What all comparisons of a run come to, one by one and together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalguard.core.across_tasks import AcrossTasks, Key
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.documents.broken_documents import BrokenDocument
from evalguard.core.figure_names import figure_named, split_name
from evalguard.core.figure_share import FigureShare
from evalguard.core.gate import Gate, GateResult, metric_names
from evalguard.core.reports.findings import Finding
from evalguard.core.reports.generations import GenerationComparison
from evalguard.core.scores import NotCompared
from evalguard.core.shown_tokens import KlEstimate
from evalguard.errors import (
    nearest,
)
from evalguard.run.undirected import refuse_undirected
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.contributions import Contributions
from evalguard.stats.joint_null import across_tasks, crossing_chance
from evalguard.stats.judgement import MetricComparison, complete_verdict
from evalguard.stats.multiple_tests import benjamini_hochberg
from evalguard.stats.skewed.few_documents import find_few_documents
from evalguard.stats.skewness import skewness

# Of Cochran's number of documents, which is for two-sided intervals of one metric.
# Of 4 the joint test of six metrics rejected 9% at 5%, of 8 2% to 4% (docs/calibration.md).
_ONE_SIDED = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement:
    """The comparisons as they are reported, the gate's answer, and all gated metrics together.

    ``across_tasks`` is None, with ``across_tasks_reason``, where fewer than two metrics can be
    judged together. ``distributions`` are those that the gate's limits were held to. ``notes`` say
    which subtasks the gate does not judge, ``note_uncompared`` what no subtask has.
    ``kl_estimates`` are lower bounds: they may break a limit, and never keep one.
    ``generations`` say how the generated answers differ; they decide nothing, and no more do the
    ``findings``: dependent documents, and few that a verdict rests on.
    ``broken_documents`` are all on which a model is broken; the gate has judged their number.
    """

    comparisons: tuple[Comparison, ...]
    gate: GateResult
    across_tasks: AcrossTasks | None
    across_tasks_reason: str
    distributions: tuple[DistributionComparison, ...] = ()
    kl_estimates: tuple[KlEstimate, ...] = ()
    notes: tuple[str, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    generations: tuple[GenerationComparison, ...] = ()
    findings: tuple[Finding, ...] = ()
    broken_documents: tuple[BrokenDocument, ...] = ()


def judge_comparisons(
    compared: Sequence[MetricComparison],
    *,
    gate: Gate,
    distributions: Sequence[DistributionComparison] = (),
    broken: Sequence[BrokenDocument] = (),
    shares: Sequence[FigureShare] = (),
    bounds: Sequence[KlEstimate] = (),
    left_out: Sequence[NotCompared] = (),
) -> GateJudgement:
    """Judge comparisons that were made with this gate's margin and confidence.

    Args:
        broken: those documents that the comparisons were made without, and all others on which a
            model is broken.
        shares: figures of the candidate's generated answers.
        bounds: lower bounds of KL from what servers show; a limit may be broken by one.
        left_out: metrics that could not be compared.

    Raises:
        UsageError, ValueError: as ``Gate.judge``.
    """
    unknown = [(one.task, one.filter, one.metric) for one in left_out]
    listed = gate.missing([one.comparison for one in compared], unknown)
    keys = (*(one.comparison.key for one in compared), *unknown)
    known = {name for key in keys for name in metric_names(*key)}
    compared = [
        *compared,
        *(MetricComparison(comparison=_missing_metric(name, known)) for name in listed),
    ]
    compared, undirected = refuse_undirected(compared, gate)
    comparisons = _with_q_values([one.comparison for one in compared])
    judged = gate.judge(comparisons, distributions, broken, shares, bounds)
    comparisons = tuple(
        complete_verdict(
            replace(one, comparison=settled),
            holm_p_value=judged.holm_p_value(settled.key),
            metrics=len(judged.gated),
        )
        for one, settled in zip(compared, gate.with_outcomes(comparisons, judged), strict=True)
    )
    together, reason = _judge_together(compared, gated=judged.gated, confidence=gate.confidence)
    if gate.fail_on == "margin":
        judged = replace(judged, family_false_alarm_estimate=_crossing_rate(compared, judged.gated))
    return GateJudgement(
        comparisons=comparisons,
        gate=judged,
        across_tasks=together,
        across_tasks_reason=reason,
        distributions=tuple(distributions),
        kl_estimates=tuple(bounds),
        broken_documents=tuple(broken),
        notes=(
            *undirected,
            *_ungated_notes(comparisons, judged.gated),
            *_misspelled_metrics(gate.advisory, known),
            *_misspelled_tasks(gate.declared, {one.comparison.task for one in compared}),
        ),
        findings=(
            *gate.find_unused_waivers(comparisons, judged),
            *find_few_documents([(one.comparison, one.contributions) for one in compared], judged),
        ),
    )


def _missing_metric(name: str, known: Collection[str]) -> Comparison:
    """A metric that the gate lists and that was not compared: nothing is known of it."""
    named, _, filter_name = name.partition(",")
    task, _, metric = named.rpartition("/")
    reason = (
        f"the gate lists {name}, and it was not compared{nearest(name, known)}: run its task, or "
        "take it off the list"
    )
    if figure_named(name) is not None:
        reason = (
            f"the gate lists {name}, a figure of generated answers, and "
            f"{f'of {task} no' if task else 'of no task'} answers are known: name a task that "
            "generates, and sides that keep their texts"
        )
    return failed_comparison((task or "any task", filter_name or "none", metric), reason)


def _misspelled_metrics(advisory: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """Advisory metrics that were not compared, and whose name is much like one that was."""
    for name in advisory:
        if name not in known and (meant := nearest(name, known)):
            yield f"the gate lists {name} as advisory, and it was not compared{meant}"


def _misspelled_tasks(declared: Sequence[str], asked: Collection[str]) -> Iterator[str]:
    """Tasks that a guard file expects answers of, not asked, and much like one that was."""
    tasks = dict.fromkeys(split_name(name)[0] for name in declared)
    others = [task for task in asked if task not in tasks]
    for task in tasks:
        if task not in asked and (meant := nearest(task, sorted(others))):
            yield f"answers: of the guard file lists {task}, which was not asked{meant}"


def _ungated_notes(comparisons: Sequence[Comparison], gated: Sequence[Key]) -> Iterator[str]:
    """For each outermost group, what of it is shown and not judged by the gate."""
    judged = {task for task, _, _ in gated}
    inner = {name for c in comparisons for name in c.subgroups}
    for group in dict.fromkeys(c.task for c in comparisons if c.subtasks):
        aggregates = [c for c in comparisons if c.task == group]
        tasks = set(aggregates[0].subtasks)
        if group in inner or judged & tasks or group not in judged:
            continue
        metrics = {c.metric for c in aggregates}
        others = {c.metric for c in comparisons if c.task in tasks} - metrics
        verb = "has" if len(others) == 1 else "have"
        without = f"; {', '.join(sorted(others))} {verb} no aggregate" if others else ""
        yield (
            f"the gate judges {group} as a whole: its {len(tasks)} subtasks are shown, and not "
            f"gated{without} (gate: {{subtasks: true}} in the guard file gates them)"
        )


def _with_q_values(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    p_values = [c.p_value for c in comparisons if c.p_value is not None]
    adjusted = iter(benjamini_hochberg(p_values))
    return tuple(
        c if c.p_value is None else replace(c, bh_q_value=next(adjusted)) for c in comparisons
    )


def _judge_together(
    compared: Sequence[MetricComparison], *, gated: Sequence[Key], confidence: float
) -> tuple[AcrossTasks | None, str]:
    """Judge the gated metrics together; None with a reason for fewer than two."""
    wanted, chosen, left_out, unfit = set(gated), [], [], []
    for one in compared:
        key = (one.comparison.task, one.comparison.filter, one.comparison.metric)
        if key not in wanted:
            continue
        found = _contributions_of(one)
        if isinstance(found, Contributions):
            chosen.append(found)
        else:
            left_out.append((key, found.why))
            unfit.append(found)
    if len(chosen) < 2:
        reason = f"{len(chosen)} of {len(wanted)} gated metrics are sums over documents with a unit"
        skewed = [one.why for one in unfit if one.few_gain]
        if skewed:
            reason = f"{len(chosen)} of {len(wanted)} gated metrics fit a joint test ({skewed[0]})"
        return None, f"{reason}: metrics are judged together from two on"
    return across_tasks(chosen, confidence=confidence, left_out=left_out), ""


def _crossing_rate(compared: Sequence[MetricComparison], gated: Sequence[Key]) -> float | None:
    """How often an unchanged candidate crosses a margin; None where flipped signs cannot tell.

    They tell where every gated metric that has a number takes part, and there are two or more.
    """
    chosen, margins = [], []
    for one in compared:
        if one.comparison.key not in gated or one.comparison.false_alarm_probability is None:
            continue
        found, margin = _contributions_of(one), one.comparison.margin
        if not isinstance(found, Contributions) or margin is None:
            return None
        chosen.append(found)
        margins.append(margin)
    return crossing_chance(chosen, margins) if len(chosen) > 1 else None


@dataclass(frozen=True, slots=True)
class _Unfit:
    """Why a metric is in no joint test; ``few_gain``: because few documents gain much."""

    why: str
    few_gain: bool = False


def _contributions_of(one: MetricComparison) -> Contributions | _Unfit:
    """A comparison's contributions in a unit that is not 0, or why there are none."""
    found = one.contributions
    if one.comparison.outcome == "failed":
        return _Unfit("it failed")
    stopping = one.comparison.stopping
    if stopping is not None and stopping.early:
        return _Unfit("it was stopped early")
    if found is None:
        return _Unfit("its drift is not a sum over documents")
    if found.unit > 0.0:
        return _long_tail_of_gains(one.comparison, found) or found
    if one.comparison.bit_identical:  # 0 in any unit
        return replace(found, unit=1.0)
    return _Unfit("the base's standard error is 0, so that its drift has no size in sigma")


def _long_tail_of_gains(comparison: Comparison, found: Contributions) -> _Unfit | None:
    """Why flipped signs are no null for a metric: few documents gain much, many lose a little.

    A sample without those few looks worse than it is, and the flips, which are symmetric, do not
    know: with lognormal gains one joint test of seven metrics at 5% rejected 43% of unchanged
    candidates of 200 documents. A long tail of losses makes the test careful, and of right and
    wrong answers each is one document.
    """
    if comparison.flips is not None:
        return None
    values = np.concatenate([part.residuals for part in found.parts])
    skew = skewness(values, None)
    needed = _ONE_SIDED * skew.needed
    if skew.value >= 0.0 or needed <= len(values):
        return None
    return _Unfit(
        f"few documents gain much (skewness {skew.value:.1f}), for which flipped signs are no "
        f"fair null below {needed:,.0f} documents",
        few_gain=True,
    )
