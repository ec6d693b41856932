"""The gate's answer over the comparisons of a run, and the comparisons as they are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from evalguard.core.broken_documents import BrokenDocument
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.figures import FigureShare, figure_named, split_name
from evalguard.core.findings import Finding
from evalguard.core.gate import Gate, GateResult, metric_names
from evalguard.core.gate_state import Key
from evalguard.core.generation_comparison import GenerationComparison
from evalguard.core.multiple_tests import benjamini_hochberg
from evalguard.core.scores import NotCompared
from evalguard.core.shown_tokens import KlEstimate
from evalguard.errors import nearest
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.few_documents import crossing_chance, find_few_documents
from evalguard.stats.judgement import MetricComparison, complete_verdict

_NO_DIRECTION = (
    "whether higher is better is not declared (`higher_is_better` in the task's metric_list, or in "
    "`gate: {metrics: {METRIC: {higher_is_better: true}}}` of the guard file)"
)


def refuse_undirected(
    compared: Sequence[MetricComparison], gate: Gate
) -> tuple[list[MetricComparison], tuple[str, ...]]:
    """Take metrics of which nobody says which way is better out of what the gate judges.

    They are shown, with a note; where the gate lists one of them, or has no other, they fail: which
    way the candidate went is not known.
    """
    undirected, fatal = gate.undirected(metric.comparison for metric in compared)
    keys = {comparison.key for comparison in undirected}
    if fatal:
        return [
            _undirected(metric) if metric.comparison.key in keys else metric for metric in compared
        ], ()
    notes = (f"{c.task} {c.metric}: {_NO_DIRECTION}: it is shown, not gated" for c in undirected)
    shown = [
        _without_verdict(metric) if not metric.comparison.directed else metric
        for metric in compared
    ]
    return shown, tuple(dict.fromkeys(notes))


def _undirected(one: MetricComparison) -> MetricComparison:
    comparison = one.comparison
    if comparison.outcome == "failed":
        return replace(one, comparison=replace(comparison, directed=True))
    failed = failed_comparison(
        comparison.key, _NO_DIRECTION, n=comparison.n, confidence=comparison.confidence
    )
    return MetricComparison(comparison=failed)


def _without_verdict(one: MetricComparison) -> MetricComparison:
    """Neither better nor worse: what moved is undecided, whichever way."""
    comparison = one.comparison
    if comparison.outcome in ("failed", "unchanged") or comparison.bit_identical:
        return one
    undecided = replace(
        comparison,
        outcome="undecided",
        needed_n=None,
        reason=f"{_NO_DIRECTION}: {comparison.reason}",
    )
    return replace(one, comparison=undecided)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJudgement:
    """The comparisons as they are reported, and the gate's answer.

    ``distributions`` are those that the gate's limits were held to. ``notes`` say
    which subtasks the gate does not judge, ``note_uncompared`` what no subtask has.
    ``kl_estimates`` are lower bounds: they may break a limit, and never keep one.
    ``generations`` say how the generated answers differ; they decide nothing, and no more do the
    ``findings``: dependent documents, and few that a verdict rests on.
    ``broken_documents`` are all on which a model is broken; the gate has judged their number.
    """

    comparisons: tuple[Comparison, ...]
    gate: GateResult
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
    unknown = [(omitted.task, omitted.filter, omitted.metric) for omitted in left_out]
    listed = gate.missing([metric.comparison for metric in compared], unknown)
    keys = (*(metric.comparison.key for metric in compared), *unknown)
    known = {name for key in keys for name in metric_names(*key)}
    compared = [
        *compared,
        *(MetricComparison(comparison=_missing_metric(name, known)) for name in listed),
    ]
    compared, undirected = refuse_undirected(compared, gate)
    comparisons = _with_q_values([metric.comparison for metric in compared])
    judged = gate.judge(comparisons, distributions, broken, shares, bounds)
    comparisons = tuple(
        complete_verdict(
            replace(metric, comparison=settled),
            holm_p_value=judged.holm_p_value(settled.key),
            metrics=len(judged.gated),
        )
        for metric, settled in zip(compared, gate.with_outcomes(comparisons, judged), strict=True)
    )
    if gate.fail_on == "margin":
        judged = replace(judged, family_false_alarm_estimate=_crossing_rate(compared, judged.gated))
    return GateJudgement(
        comparisons=comparisons,
        gate=judged,
        distributions=tuple(distributions),
        kl_estimates=tuple(bounds),
        broken_documents=tuple(broken),
        notes=(
            *undirected,
            *_ungated_notes(comparisons, judged.gated),
            *_misspelled_metrics(gate.advisory, known),
            *_misspelled_tasks(gate.declared, {metric.comparison.task for metric in compared}),
        ),
        findings=(
            *gate.find_unused_waivers(comparisons, judged),
            *find_few_documents(
                [(metric.comparison, metric.contributions) for metric in compared], judged
            ),
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
    unlisted = [task for task in asked if task not in tasks]
    for task in tasks:
        if task not in asked and (meant := nearest(task, sorted(unlisted))):
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
        unaggregated = {c.metric for c in comparisons if c.task in tasks} - metrics
        verb = "has" if len(unaggregated) == 1 else "have"
        without = f"; {', '.join(sorted(unaggregated))} {verb} no aggregate" if unaggregated else ""
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


def _crossing_rate(compared: Sequence[MetricComparison], gated: Sequence[Key]) -> float | None:
    """How often an unchanged candidate crosses a margin; None where flipped signs cannot tell.

    They tell where every gated metric that has a number is a sum over documents with a unit, and
    there are two or more.
    """
    chosen, margins = [], []
    for metric in compared:
        comparison, parts = metric.comparison, metric.contributions
        if comparison.key not in gated or comparison.false_alarm_probability is None:
            continue
        if parts is not None and parts.unit == 0.0 and comparison.bit_identical:  # 0 in any unit
            parts = replace(parts, unit=1.0)
        early = comparison.stopping is not None and comparison.stopping.early
        if parts is None or early or not parts.unit > 0.0 or comparison.margin is None:
            return None
        chosen.append(parts)
        margins.append(comparison.margin)
    return crossing_chance(chosen, margins) if len(chosen) > 1 else None
