"""Metrics of which nobody says which way is better: shown, and never guessed in a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evalguard.core.gate import Gate
from evalguard.stats.compare_scores import failed_comparison
from evalguard.stats.judgement import MetricComparison

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
    found, fatal = gate.undirected(one.comparison for one in compared)
    keys = {comparison.key for comparison in found}
    if fatal:
        return [_undirected(one) if one.comparison.key in keys else one for one in compared], ()
    notes = (f"{c.task} {c.metric}: {_NO_DIRECTION}: it is shown, not gated" for c in found)
    shown = [_without_verdict(one) if not one.comparison.directed else one for one in compared]
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
