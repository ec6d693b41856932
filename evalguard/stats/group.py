"""The aggregate of a group of tasks: lm-eval's metric, and a paired standard error by strata.

lm-eval (0.4.13, ``lm_eval/api/group.py``) takes a group's metric as the mean of its subtasks',
weighted by their documents n_t (``weight_by_size``) or each alike. Documents of different subtasks
are independent, so that the drift sum w_t D_t has the paired standard error
sqrt(sum w_t^2 SE_t^2), SE_t that of subtask t (cluster-robust where it has clusters), with
Satterthwaite's degrees of freedom. The unit of sigma is lm-eval's own unpaired standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalguard.comparison import Companion, Comparison
from evalguard.stats.companions import disagreements, sign_flip_companion
from evalguard.stats.compare import Compared, failed_comparison
from evalguard.stats.contributions import Contributions, TaskContributions
from evalguard.stats.drift import Drift
from evalguard.stats.estimate import all_finite
from evalguard.stats.flip_units import flip_units
from evalguard.stats.influence import influence
from evalguard.stats.moments import Moments
from evalguard.stats.planning import documents_needed
from evalguard.stats.reason import explain, explain_identical
from evalguard.stats.strata import Stratum, stratified
from evalguard.stats.tails import skewness
from evalguard.task_group import TaskGroup
from evalguard.verdict import Verdict, decide

Key = tuple[str, str, str]
_UNCHANGED = Verdict(outcome="unchanged", significant=False, certain=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask:
    """A subtask's comparison, and how many documents lm-eval counts it with."""

    compared: Compared
    size: int

    @property
    def comparison(self) -> Comparison:
        """Its comparison."""
        return self.compared.comparison


def compare_group(
    group: TaskGroup,
    subtasks: Sequence[Subtask],
    *,
    weight_by_size: bool,
    margin: float,
    confidence: float,
) -> Compared:
    """Compare the aggregate of one metric under one filter over a group's subtasks.

    Args:
        subtasks: at least one, of one (filter, metric), none failed, with one direction.
    """
    sizes = [subtask.size for subtask in subtasks]
    weights = [size / sum(sizes) if weight_by_size else 1.0 / len(subtasks) for size in sizes]
    drift = _drift(subtasks, weights, weight_by_size, confidence)
    if not all_finite(drift.estimate):
        key = (group.name, subtasks[0].comparison.filter, subtasks[0].comparison.metric)
        return failed_group(group, key, "its drift overflows double precision", confidence)
    parts = _contributions(group, subtasks, weights, drift)
    identical = all(subtask.comparison.bit_identical for subtask in subtasks)
    verdict = _UNCHANGED if identical else decide(drift.sigma, *drift.sigma_interval, margin)
    comparison = _comparison(group, subtasks, drift, verdict, margin)
    if identical:
        comparison = replace(comparison, bit_identical=True, reason=explain_identical())
    tests = () if parts is None or identical else _companions(parts)
    doubts = disagreements(tests, real=verdict.significant, level=(1.0 - confidence) / 2.0)
    caveats = (_how(subtasks, weight_by_size), *_skew(parts), *doubts)
    return Compared(
        comparison=replace(
            comparison,
            companions=tests,
            influence=None if parts is None else influence(drift, parts),
            caveats=caveats,
        ),
        contributions=parts,
    )


def failed_group(group: TaskGroup, key: Key, reason: str, confidence: float) -> Compared:
    """The aggregate of a group where a subtask has no number, or the sides do not agree."""
    bare = failed_comparison(key, reason, confidence=confidence)
    return Compared(comparison=replace(bare, subtasks=group.tasks, subgroups=group.groups))


def _drift(
    subtasks: Sequence[Subtask], weights: Sequence[float], weight_by_size: bool, confidence: float
) -> Drift:
    comparisons = [subtask.comparison for subtask in subtasks]
    sizes = [subtask.size for subtask in subtasks]
    sign = -1.0 if comparisons[0].higher_is_better else 1.0
    strata = [
        Stratum(
            point=weight * sign * (_number(c.candidate) - _number(c.base)),
            stderr=weight * _number(c.paired_stderr),
            df=(c.n_used if c.clusters is None else c.clusters) - 1.0,
        )
        for c, weight in zip(comparisons, weights, strict=True)
    ]
    estimate = stratified(strata, confidence=confidence).estimate
    base, candidate = (
        Moments(
            point=math.fsum(w * value for w, value in zip(weights, values, strict=True)),
            stderr=_unpaired(stderrs, sizes, weight_by_size),
        )
        for values, stderrs in (
            ([_number(c.base) for c in comparisons], [_number(c.base_stderr) for c in comparisons]),
            (
                [_number(c.candidate) for c in comparisons],
                [_number(c.candidate_stderr) for c in comparisons],
            ),
        )
    )
    return Drift(
        base=base,
        candidate=candidate,
        paired_stderr=estimate.stderr,
        estimate=estimate,
        unit=base.stderr,
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _unpaired(stderrs: Sequence[float], sizes: Sequence[int], weight_by_size: bool) -> float:
    """lm-eval's ``pooled_sample_stderr``, or its ``unweighted_mean_stderr``."""
    if not weight_by_size:
        return math.sqrt(math.fsum(stderr**2 for stderr in stderrs)) / len(stderrs)
    total = sum(sizes)
    squares = ((size - 1) * stderr**2 * size for size, stderr in zip(sizes, stderrs, strict=True))
    return math.sqrt(math.fsum(squares) / (total - len(sizes)) / total)


def _contributions(
    group: TaskGroup, subtasks: Sequence[Subtask], weights: Sequence[float], drift: Drift
) -> Contributions | None:
    """The documents of all subtasks in the group's drift; None where one is no sum over them."""
    parts: list[TaskContributions] = []
    for subtask, weight in zip(subtasks, weights, strict=True):
        own = subtask.compared.contributions
        if own is None:
            return None
        # from a log scale to the metric's own, to first order; 1 on a linear scale
        slope = _number(subtask.comparison.base_stderr) / own.unit if own.unit > 0.0 else 1.0
        parts += [replace(part, values=part.values * (weight * slope)) for part in own.parts]
    first = subtasks[0].comparison
    return Contributions(
        task=group.name,
        filter=first.filter,
        metric=first.metric,
        unit=drift.unit,
        parts=tuple(parts),
    )


def _comparison(
    group: TaskGroup,
    subtasks: Sequence[Subtask],
    drift: Drift,
    verdict: Verdict,
    margin: float,
) -> Comparison:
    first = subtasks[0].comparison
    n = sum(subtask.comparison.n_used for subtask in subtasks)
    needed = None
    if verdict.outcome == "undecided":
        needed = documents_needed(drift.estimate, n=n, tolerance=drift.drift_of(margin))
    reason = explain(drift, verdict, margin=margin, n=n, needed_n=needed, n_total=0)
    return Comparison(
        task=group.name,
        filter=first.filter,
        metric=first.metric,
        higher_is_better=first.higher_is_better,
        n=sum(subtask.comparison.n for subtask in subtasks),
        n_used=n,
        base=drift.base.point,
        base_stderr=drift.base.stderr,
        candidate=drift.candidate.point,
        candidate_stderr=drift.candidate.stderr,
        sigma=drift.sigma,
        sigma_interval=drift.sigma_interval,
        paired_stderr=drift.paired_stderr,
        p_value=drift.estimate.p_value,
        method=drift.estimate.method,
        confidence=drift.estimate.confidence,
        false_alarm_probability=drift.false_alarm_probability(margin),
        outcome=verdict.outcome,
        significant=verdict.significant,
        certain=verdict.certain,
        bit_identical=False,
        reason=reason,
        needed_n=needed,
        subtasks=group.tasks,
        subgroups=group.groups,
    )


def _companions(parts: Contributions) -> tuple[Companion, ...]:
    """Signs of all documents (or clusters) flipped, whichever subtask they belong to."""
    values = flip_units([replace(parts, unit=1.0)]).values[:, 0]
    return (sign_flip_companion(values, "documents"),) if np.any(values) else ()


def _how(subtasks: Sequence[Subtask], weight_by_size: bool) -> str:
    how = "weighted by their documents" if weight_by_size else "each counting alike"
    return (
        f"aggregate of {len(subtasks)} subtasks, {how}, as lm-eval takes it; standard error of the "
        "drift stratified over subtasks"
    )


def _skew(parts: Contributions | None) -> tuple[str, ...]:
    """Whether documents are too few and too lopsided for a t interval."""
    if parts is None:
        return ()
    residuals = np.concatenate([part.residuals for part in parts.parts])
    skew, n = skewness(residuals, None), residuals.shape[0]
    if skew.needed <= n:
        return ()
    side = "worse" if skew.value > 0.0 else "better"
    return (
        f"skewed differences: a true drift {side} than the whole interval is likelier than its "
        f"confidence says (skewness {skew.value:.1f} asks for {math.ceil(skew.needed):,} documents,"
        f" here {n:,})",
    )
