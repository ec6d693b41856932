"""The aggregate of a group of tasks: lm-eval's metric, and a paired standard error by strata.

lm-eval (0.4.13, ``lm_eval/api/group.py``) takes a group's metric as the mean of its subtasks',
weighted by their documents n_t (``weight_by_size``) or each alike. The drift sum w_t D_t has a
paired standard error by strata (``group_strata``), and Satterthwaite's degrees of freedom. The
unit of sigma is lm-eval's own unpaired standard error.

Documents of different subtasks are independent, so that sum w_t D_t has the standard error
sqrt(sum w_t^2 SE_t^2), SE_t that of subtask t (cluster-robust where it has clusters). Subtasks
that ask about the same documents (one text in several templates) are not independent: they are
one stratum of units, each a document with all that it adds to any of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import Companion, Comparison
from evalguard.core.gate_state import Key
from evalguard.core.moments import Array, Moments, exact_sum
from evalguard.core.scores import PERPLEXITIES, TaskGroup
from evalguard.core.verdict import Margin, MetricMargin, one_sided_level
from evalguard.stats.caveats import skewed_differences
from evalguard.stats.clusters import Stratum, stratify_documents
from evalguard.stats.compare_scores import (
    disagreements,
    drift_fields,
    failed_comparison,
    margin_tolerance,
    plain_t,
    sigma_tolerance,
    sign_flip_companion,
)
from evalguard.stats.drift import Contributions, Drift, TaskContributions
from evalguard.stats.estimate import Estimate, all_finite
from evalguard.stats.influence import influence
from evalguard.stats.joint_null import flip_units
from evalguard.stats.judgement import IDENTICAL, MetricComparison, MetricJudgement, judge_metric
from evalguard.stats.scatter import planned_scatter
from evalguard.stats.sign_flip import limited_to_signs, limited_to_swaps
from evalguard.stats.skewness import Differing, careful_t, differing_from, skewness


def how_made(times: Sequence[int], weight_by_size: bool) -> str:
    """Say how subtasks, each counted so many times, were averaged."""
    how = "weighted by their documents" if weight_by_size else "each counting alike"
    repeated = sum(count > 1 for count in times)
    repeats = f" ({repeated} of them more than once)" if repeated else ""
    noun = "subtask" if len(times) == 1 else "subtasks"
    return (
        f"aggregate of {len(times)} {noun}, {how}{repeats}, as lm-eval takes it; standard error of "
        "the drift stratified over subtasks"
    )


def sharing(subtasks: int) -> tuple[str, ...]:
    """Say that so many subtasks have documents in common, if any."""
    if not subtasks:
        return ()
    return (
        f"{subtasks} of the subtasks share documents: the standard error of the drift takes each "
        "shared document as one, the base's (lm-eval's) takes them as independent",
    )


def skewed(parts: Contributions | None, drift: Drift) -> tuple[str, ...]:
    """Say whether documents are too few and too lopsided for a t interval."""
    if parts is None:
        return ()
    residuals = np.concatenate([part.residuals for part in parts.parts])
    sentences = skewed_differences(
        skewness(residuals, None), residuals.shape[0], "documents", drift
    )
    return tuple(sentences)


# Two aggregates of n numbers that are equal but for rounding are equal.
_ROUNDING = 1e-15


def number(value: float | None) -> float:
    """A comparison's number, NaN where it has none."""
    return math.nan if value is None else value


def subtask_strata(comparisons: Sequence[Comparison], weights: Sequence[float]) -> list[Stratum]:
    """One stratum for each subtask: its drift, positive where the candidate is worse."""
    sign = -1.0 if comparisons[0].higher_is_better else 1.0
    strata = [
        Stratum(
            point=weight * sign * (number(c.candidate) - number(c.base)),
            stderr=weight * number(c.paired_stderr),
            df=(c.n_used if c.clusters is None else c.clusters) - 1.0,
        )
        for c, weight in zip(comparisons, weights, strict=True)
    ]
    size = math.fsum(
        weight * (abs(number(c.candidate)) + abs(number(c.base)))
        for c, weight in zip(comparisons, weights, strict=True)
    )
    if abs(math.fsum(stratum.point for stratum in strata)) > _ROUNDING * size:
        return strata
    rest = math.fsum(stratum.point for stratum in strata[:-1])
    last = Stratum(point=-rest, stderr=strata[-1].stderr, df=strata[-1].df)
    return [*strata[:-1], last]


def joined_strata(
    strata: Sequence[Stratum], parts: Sequence[TaskContributions]
) -> tuple[list[Stratum], int]:
    """Join the strata of subtasks that share documents; also return how many subtasks these are.

    Args:
        strata: one for each subtask.
        parts: the documents of each, in the same order; () where they are not known.
    """
    if not parts:
        return list(strata), 0
    whole = Contributions(task="", filter="", metric="", unit=1.0, parts=tuple(parts))
    units = flip_units([whole])
    labels = [units.of_tasks[part.task] for part in parts]
    merged: list[Stratum] = []
    joined = 0
    for label in dict.fromkeys(labels):
        members = [s for s, own in zip(strata, labels, strict=True) if own == label]
        if len(members) == 1:
            merged += members
            continue
        joined += len(members)
        rows = units.strata == label
        together = Stratum.of_residuals(units.values[rows, 0], units.residuals[rows, 0])
        point = math.fsum(member.point for member in members)
        merged.append(Stratum(point=point, stderr=together.stderr, df=together.df))
    return merged, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask:
    """A subtask's comparison, how many documents lm-eval counts it with, and how often."""

    compared: MetricComparison
    size: int
    times: int = 1

    @property
    def comparison(self) -> Comparison:
        """Its comparison."""
        return self.compared.comparison


def compare_group(
    group: TaskGroup,
    subtasks: Sequence[Subtask],
    *,
    weight_by_size: bool,
    margin: float | Margin,
    confidence: float,
    gated: bool = True,
) -> MetricComparison:
    """Compare the aggregate of one metric under one filter over a group's subtasks.

    Args:
        subtasks: at least one, of one (filter, metric), none failed, with one direction.
        gated: as of ``compare_documents``.
    """
    weights = _weights(subtasks, weight_by_size)
    linear = _parts(subtasks, weights)
    drift, shared = _drift(subtasks, weights, linear, weight_by_size, confidence)
    if not all_finite(drift.estimate):
        key = (group.name, subtasks[0].comparison.filter, subtasks[0].comparison.metric)
        return failed_group(group, key, "its drift overflows double precision", confidence)
    parts = _contributions(group, subtasks, linear, drift)
    identical = all(subtask.comparison.bit_identical for subtask in subtasks)
    n = sum(subtask.comparison.n_used for subtask in subtasks)
    wanted = margin if isinstance(margin, Margin) else Margin(margin)
    try:
        # a perplexity may lie between 0 and 1 too, and is no share of anything
        is_share = subtasks[0].comparison.metric not in PERPLEXITIES
        tolerance = margin_tolerance(drift, wanted, is_share=is_share)
    except ValueError as error:
        if gated and not identical:
            key = (group.name, subtasks[0].comparison.filter, subtasks[0].comparison.metric)
            return failed_group(group, key, str(error), confidence)
        # no drift is within any margin
        tolerance = sigma_tolerance(drift, 1.0)
        if identical:
            tolerance = replace(tolerance, margin=wanted)
    judged = IDENTICAL if identical else judge_metric(drift, tolerance, n=n, n_total=0)
    comparison = _comparison(group, subtasks, drift, judged, tolerance)
    tests = () if parts is None or identical else (*_companions(parts), *plain_t(drift))
    level = one_sided_level(confidence)
    doubts = disagreements(tests, real=judged.verdict.significant, level=level)
    counts = [subtask.times for subtask in subtasks]
    caveats = (how_made(counts, weight_by_size), *sharing(shared), *skewed(parts, drift), *doubts)
    return MetricComparison(
        comparison=replace(
            comparison,
            companions=tests,
            influence=None if parts is None else influence(drift, parts),
            caveats=caveats,
        ),
        contributions=parts,
        drift=drift,
        tolerance=tolerance,
    )


def failed_group(group: TaskGroup, key: Key, reason: str, confidence: float) -> MetricComparison:
    """The aggregate of a group where a subtask has no number, or the sides do not agree."""
    bare = failed_comparison(key, reason, confidence=confidence)
    return MetricComparison(comparison=replace(bare, subtasks=group.tasks, subgroups=group.groups))


def _weights(subtasks: Sequence[Subtask], by_size: bool) -> list[float]:
    counts = [s.times * (s.size if by_size else 1) for s in subtasks]
    return [count / sum(counts) for count in counts]


def _drift(
    subtasks: Sequence[Subtask],
    weights: Sequence[float],
    parts: Sequence[TaskContributions],
    weight_by_size: bool,
    confidence: float,
) -> tuple[Drift, int]:
    """The drift, and in how many subtasks there are documents that others have too."""
    comparisons = [subtask.comparison for subtask in subtasks]
    strata = subtask_strata(comparisons, weights)
    strata, shared = joined_strata(strata, parts)
    stratified = stratify_documents(strata, confidence=confidence)
    plain = limited_to_documents(stratified.estimate, comparisons, weights, parts)
    estimate = plain
    if parts and any(c.flips is None or c.clusters for c in comparisons):
        shares = _per_unit(_weighted_shares(parts, weights))
        residuals = flip_units([_whole(parts)]).residuals[:, 0]
        estimate = careful_t(
            plain,
            residuals,
            shares,
            1.0,
            df=stratified.df,
            differing=_differing(parts, weights, residuals),
            flips=all(c.flips is not None for c in comparisons),
        )
    base, candidate = (
        Moments(
            point=math.fsum(w * value for w, value in zip(weights, values, strict=True)),
            stderr=_unpaired(stderrs, subtasks, weight_by_size),
        )
        for values, stderrs in (
            ([number(c.base) for c in comparisons], [number(c.base_stderr) for c in comparisons]),
            (
                [number(c.candidate) for c in comparisons],
                [number(c.candidate_stderr) for c in comparisons],
            ),
        )
    )
    drift = Drift(
        base=base,
        candidate=candidate,
        paired_stderr=estimate.stderr,
        estimate=estimate,
        unit=base.stderr,
        plain=None if estimate is plain else plain,
        planned_scatter=planned_scatter(estimate, _of_units(parts)),
    )
    return drift, shared


def _unpaired(stderrs: Sequence[float], subtasks: Sequence[Subtask], weight_by_size: bool) -> float:
    """lm-eval's ``pooled_sample_stderr``, or its ``unweighted_mean_stderr``."""
    counted = [
        (subtask.size, stderr)
        for subtask, stderr in zip(subtasks, stderrs, strict=True)
        for _ in range(subtask.times)
    ]
    if not weight_by_size:
        return math.sqrt(math.fsum(stderr**2 for _, stderr in counted)) / len(counted)
    total = sum(size for size, _ in counted)
    squares = ((size - 1) * stderr**2 * size for size, stderr in counted)
    return math.sqrt(math.fsum(squares) / (total - len(counted)) / total)


def _parts(subtasks: Sequence[Subtask], weights: Sequence[float]) -> tuple[TaskContributions, ...]:
    """The documents of all subtasks in the group's drift; () where one is not a sum over them."""
    parts: list[TaskContributions] = []
    for subtask, weight in zip(subtasks, weights, strict=True):
        own = subtask.compared.contributions
        if own is None:
            return ()
        # from a log scale to the metric's own, to first order; 1 on a linear scale
        slope = number(subtask.comparison.base_stderr) / own.unit if own.unit > 0.0 else 1.0
        parts += [replace(part, values=part.values * (weight * slope)) for part in own.parts]
    return tuple(parts)


def _contributions(
    group: TaskGroup,
    subtasks: Sequence[Subtask],
    parts: tuple[TaskContributions, ...],
    drift: Drift,
) -> Contributions | None:
    if not parts:
        return None
    first = subtasks[0].comparison
    return Contributions(
        task=group.name,
        filter=first.filter,
        metric=first.metric,
        unit=drift.unit,
        parts=parts,
    )


def _comparison(
    group: TaskGroup,
    subtasks: Sequence[Subtask],
    drift: Drift,
    judged: MetricJudgement,
    tolerance: MetricMargin,
) -> Comparison:
    first = subtasks[0].comparison
    return Comparison(
        task=group.name,
        filter=first.filter,
        metric=first.metric,
        higher_is_better=first.higher_is_better,
        directed=all(subtask.comparison.directed for subtask in subtasks),
        n=sum(subtask.comparison.n for subtask in subtasks),
        n_used=sum(subtask.comparison.n_used for subtask in subtasks),
        **drift_fields(drift, judged, tolerance),
        subtasks=group.tasks,
        subgroups=group.groups,
    )


def _companions(parts: Contributions) -> tuple[Companion, ...]:
    """Signs of all documents (or clusters) flipped, whichever subtask they belong to."""
    values = flip_units([replace(parts, unit=1.0)]).values[:, 0]
    return (sign_flip_companion(values, "documents"),) if np.any(values) else ()


def limited_to_documents(
    estimate: Estimate,
    comparisons: Sequence[Comparison],
    weights: Sequence[float],
    parts: Sequence[TaskContributions],
) -> Estimate:
    """The stratified estimate, no surer than signs grant: see ``few_units``.

    What changes sign is a document in all subtasks that hold it, or a cluster. The interval takes
    away the same drift from every subtask.

    Args:
        comparisons, weights: of the subtasks; the weights sum to 1.
        parts: their documents, in the same order; () where a subtask's drift is not a sum of them.
    """
    if not parts:
        units = sum(c.n_used if c.clusters is None else c.clusters for c in comparisons)
        return limited_to_swaps(estimate, differing=units, units=units)
    shares = _per_unit(_weighted_shares(parts, weights))
    return limited_to_signs(estimate, _per_unit(parts), shares, 1.0)


def _differing(
    parts: Sequence[TaskContributions], weights: Sequence[float], everyone: Array
) -> Differing | None:
    """The documents that differ, each about the drift of those of its own subtask."""
    own: list[TaskContributions] = []
    shares: list[TaskContributions] = []
    for part, weight in zip(parts, weights, strict=True):
        rows = part.values != 0.0
        total = exact_sum(part.shares[rows])
        if total > 0.0:
            some = _rows(part, rows)
            own.append(replace(some, shares=some.shares / total))
            shares.append(replace(some, values=some.shares * weight))
    if not own:
        return None
    carried = _per_unit(shares)
    units = flip_units([_whole(own)])
    values, residuals = units.values[:, 0], units.residuals[:, 0]
    return differing_from(values, residuals, carried, everyone, share=exact_sum(carried))


def _rows(part: TaskContributions, rows: NDArray[np.bool_]) -> TaskContributions:
    selected = np.flatnonzero(rows).tolist()
    return replace(
        part,
        doc_ids=part.doc_ids[rows],
        values=part.values[rows],
        shares=part.shares[rows],
        doc_hashes=[part.doc_hashes[row] for row in selected] if part.doc_hashes else (),
        clusters=tuple(part.clusters[row] for row in selected) if part.clusters else (),
    )


def _weighted_shares(
    parts: Sequence[TaskContributions], weights: Sequence[float]
) -> list[TaskContributions]:
    return [
        replace(part, values=part.shares * weight)
        for part, weight in zip(parts, weights, strict=True)
    ]


def _of_units(parts: Sequence[TaskContributions]) -> Array | None:
    """The residuals of all documents, or clusters of them; None where no sum makes the drift."""
    if not parts:
        return None
    if any(part.clusters for part in parts):
        column: Array = flip_units([_whole(parts)]).residuals[:, 0]
        return column
    return np.concatenate([part.residuals for part in parts])


def _per_unit(parts: Sequence[TaskContributions]) -> Array:
    column: Array = flip_units([_whole(parts)]).values[:, 0]
    return column


def _whole(parts: Sequence[TaskContributions]) -> Contributions:
    return Contributions(task="", filter="", metric="", unit=1.0, parts=tuple(parts))
