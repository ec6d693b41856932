"""Judgement: what all comparisons of a run come to, one by one and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalguard.across_tasks import AcrossTasks, Key
from evalguard.comparison import Comparison
from evalguard.gate import Gate, GateResult
from evalguard.stats import Compared, Contributions, across_tasks, benjamini_hochberg


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The comparisons as they are reported, the gate's answer, and all gated metrics together.

    ``across_tasks`` is None, with ``across_tasks_reason``, where fewer than two metrics can be
    judged together.
    """

    comparisons: tuple[Comparison, ...]
    gate: GateResult
    across_tasks: AcrossTasks | None
    across_tasks_reason: str


def judge(compared: Sequence[Compared], *, gate: Gate) -> Judgement:
    """Judge comparisons that were made with this gate's margin and confidence.

    Raises:
        UsageError, ValueError: as ``Gate.judge``.
    """
    comparisons = _with_q_values([one.comparison for one in compared])
    judged = gate.judge(comparisons)
    together, reason = _together(compared, gated=judged.gated, confidence=gate.confidence)
    return Judgement(
        comparisons=comparisons, gate=judged, across_tasks=together, across_tasks_reason=reason
    )


def _with_q_values(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    p_values = [c.p_value for c in comparisons if c.p_value is not None]
    adjusted = iter(benjamini_hochberg(p_values))
    return tuple(
        c if c.p_value is None else replace(c, bh_q_value=next(adjusted)) for c in comparisons
    )


def _together(
    compared: Sequence[Compared], *, gated: Sequence[Key], confidence: float
) -> tuple[AcrossTasks | None, str]:
    """Judge the gated metrics together; None with a reason for fewer than two."""
    wanted, chosen, left_out = set(gated), [], []
    for one in compared:
        key = (one.comparison.task, one.comparison.filter, one.comparison.metric)
        if key not in wanted:
            continue
        found = _summed(one)
        if isinstance(found, Contributions):
            chosen.append(found)
        else:
            left_out.append((key, found))
    if len(chosen) < 2:
        reason = f"{len(chosen)} of {len(wanted)} gated metrics are sums over documents with a unit"
        return None, f"{reason}: metrics are judged together from two on"
    return across_tasks(chosen, confidence=confidence, left_out=left_out), ""


def _summed(one: Compared) -> Contributions | str:
    """A comparison's contributions in a unit that is not 0, or why there are none."""
    found = one.contributions
    if one.comparison.outcome == "failed":
        return "it failed"
    if found is None:
        return "its drift is no sum over documents"
    if found.unit > 0.0:
        return found
    if one.comparison.bit_identical:  # 0 in any unit
        return replace(found, unit=1.0)
    return "the base's standard error is 0, so that its drift has no size in sigma"
