"""Subject: the metric whose drift is searched, and how much of it is tolerated."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalguard.comparison import Comparison
from evalguard.document_scale import DocumentScale
from evalguard.errors import UsageError
from evalguard.gate_reason import Key
from evalguard.gate_result import GateResult
from evalguard.pipeline.scored import Scored
from evalguard.scores import ScoreTable

_FAR = 8.0  # margins from which on drift is searched for its largest causes first
_COARSE = 4.0  # parts of the drift that is tolerated then


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A metric to search.

    Attributes:
        sigma: its drift. ``margin``: what of it is tolerated; both in the comparison's sigma.
        is_coarse: whether that is more than the gate tolerates.
        table: the base's scores.
    """

    key: Key
    sigma: float
    margin: float
    table: ScoreTable
    is_coarse: bool = False

    def coarse(self) -> Subject:
        """With a margin to find the largest causes by, where the drift is far above its own.

        Both are compared as means over documents, where effects add up.
        """
        scale = DocumentScale.of(self.table)
        drift = scale.margin(self.sigma)
        if drift <= _FAR * scale.margin(self.margin):
            return self
        return replace(self, margin=scale.sigma(drift / _COARSE), is_coarse=True)


def subject_of(
    comparisons: Sequence[Comparison],
    gate: GateResult,
    tables: Sequence[ScoreTable],
    *,
    failing_only: bool,
    without: Collection[Key] = (),
) -> Subject | str:
    """Choose the metric that is searched: the worst that fails the gate.

    Of a group that fails, the worst of its subtasks stands for it.

    Args:
        tables: the base's.
        failing_only: else the worst of all gated metrics is taken where none fails.
        without: metrics that were searched already.

    Returns:
        The metric, or why there is none.
    """
    by_key = {_key(one): one for one in comparisons}
    keys = gate.regressed or (() if failing_only else gate.gated)
    wanted = [one for key in keys for one in _with_scores(by_key[key], comparisons)]
    ranked = sorted(
        (one for one in wanted if one.sigma is not None and _key(one) not in without),
        key=lambda one: -(one.sigma or 0.0),
    )
    of_base = {table.key: table for table in tables}
    reasons = []
    for comparison in ranked:
        found = _subject(comparison, of_base.get(_key(comparison)), gate)
        if isinstance(found, Subject):
            return found
        reasons.append(found)
    return reasons[0] if reasons else _nothing(gate, keys)


def tolerated(comparison: Comparison, gate: GateResult) -> float:
    """How much drift of a metric would pass: the margin.

    A metric inside the margin fails where the gate allows no drift that is real: then as much is
    tolerated as its interval would not tell from none.
    """
    sigma, interval = comparison.sigma or 0.0, comparison.sigma_interval
    unseen = sigma - interval[0] if interval is not None else 0.0
    if gate.margin == 0.0:
        return unseen
    inside = sigma <= gate.margin and _key(comparison) in gate.regressed
    return min(unseen, gate.margin) if inside else gate.margin


def drift_of(scored: tuple[Scored, Scored], subject: Subject) -> float:
    """Drift of another candidate on a metric, in the comparison's sigma."""
    scale = DocumentScale.of(subject.table)
    table = next(table for table in scored[1].tables if table.key == subject.key)
    drift = float(np.mean(scale.values(subject.table)) - np.mean(scale.values(table)))
    return scale.sigma(drift / scale.yardstick)


def _subject(comparison: Comparison, table: ScoreTable | None, gate: GateResult) -> Subject | str:
    if table is None:
        return f"{comparison.task} {comparison.metric} has no scores of single documents"
    margin = tolerated(comparison, gate)
    try:
        reachable = DocumentScale.of(table).margin(margin) if margin > 0.0 else 0.0
    except UsageError as error:
        return str(error)
    if not 0.0 < reachable < float("inf"):
        return f"{comparison.task} {comparison.metric}: no drift that a search could be held to"
    return Subject(key=_key(comparison), sigma=comparison.sigma or 0.0, margin=margin, table=table)


def _with_scores(one: Comparison, comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """The comparison itself, or those of a group's tasks."""
    if not one.subtasks:
        yield one
        return
    for other in comparisons:
        if other.task in one.subtasks and other.metric == one.metric and not other.subtasks:
            yield other


def _nothing(gate: GateResult, keys: Sequence[Key]) -> str:
    if not keys and any(limit.state == "regressed" for limit in gate.limits):
        return (
            "only limits on distributions or answers failed; a search needs a score of every "
            "document whose mean is the metric, and the base itself to stand at 0 with a standard "
            "error (evalguard bisect searches the metric that drifts most)"
        )
    return "no metric that the gate judges has a number"


def _key(comparison: Comparison) -> Key:
    return comparison.task, comparison.filter, comparison.metric
