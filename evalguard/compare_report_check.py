"""What holds for every report that evalguard makes, and where one that was read breaks it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.comparison_check import Fault, faults
from evalguard.gate import exit_code, gated_state, is_real
from evalguard.gate_reason import GateState, Key, overall
from evalguard.gate_result import GateResult
from evalguard.stats.multiplicity import benjamini_hochberg, holm

# Adjusted p-values are computed in another order of additions by other versions of numpy.
_NEARLY = 1e-9


def report_faults(report: CompareReport) -> Iterator[Fault]:
    """Yield what contradicts itself, the place first: comparisons, the gate on them, the exit code.

    The verdict is what the comparisons come to by the gate's own rules.
    """
    gate = report.gate
    if not (math.isfinite(gate.margin) and gate.margin >= 0.0):
        yield "gate.margin", f"is {gate.margin!r}, not a finite number of sigmas"
        return
    adjusted = dict(zip(gate.gated, gate.holm_p_values, strict=True))
    keys = Counter(c.key for c in report.comparisons)
    for number, comparison in enumerate(report.comparisons):
        where = f"comparisons[{number}]"
        if keys[comparison.key] > 1:
            yield where, f"is there twice: {' '.join(comparison.key)}"
        chance = gate.fail_on == "real" and not is_real(
            adjusted.get(comparison.key, comparison.p_value)
        )
        margin = gate.margin if comparison.margin is None else comparison.margin
        if not (math.isfinite(margin) and margin >= 0.0):
            yield f"{where}.margin", f"is {margin!r}, not a finite number of sigmas"
            continue
        for name, what in faults(comparison, margin=margin, may_be_chance=chance):
            yield f"{where}.{name}", what
    yield from _q_values(report)
    yield from _gate(gate, {c.key: c for c in report.comparisons})
    codes = {
        exit_code(gate, strict=strict, git_bisect=git_bisect)
        for strict in (False, True)
        for git_bisect in (False, True)
    }
    if report.exit_code not in codes:
        yield "exit_code", f"is {report.exit_code}, and the gate says {gate.state}"
    yield from _distributions(report)


def _q_values(report: CompareReport) -> Iterator[Fault]:
    tested = [c for c in report.comparisons if c.p_value is not None]
    if all(c.bh_q_value is None for c in report.comparisons):
        return  # an earlier version's
    values = benjamini_hochberg([c.p_value for c in tested if c.p_value is not None])
    found = {c.key: value for c, value in zip(tested, values, strict=True)}
    for number, comparison in enumerate(report.comparisons):
        if not _same(comparison.bh_q_value, found.get(comparison.key)):
            yield f"comparisons[{number}].bh_q_value", "does not follow from the p-values"


def _gate(gate: GateResult, comparisons: Mapping[Key, Comparison]) -> Iterator[Fault]:
    for number, key in enumerate(gate.gated):
        if key not in comparisons or gate.gated.index(key) != number:
            what = "is there twice" if key in comparisons else "is not among the comparisons"
            yield f"gate.gated[{number}]", f"{what}: {' '.join(key)}"
            return
    if not 0.0 < gate.confidence < 1.0:
        yield "gate.confidence", f"is {gate.confidence!r}, not between 0 and 1"
        return
    gated = [comparisons[key] for key in gate.gated]
    adjusted = iter(holm([c.p_value for c in gated if c.p_value is not None]))
    let_through = {one.key for one in gate.accepted}
    for number, (comparison, told) in enumerate(zip(gated, gate.holm_p_values, strict=True)):
        where = f"gate.gated[{number}]"
        if not _same(told, None if comparison.p_value is None else next(adjusted)):
            yield f"{where}.holm_p_value", "does not follow from the p-values"
        follows = gated_state(comparison, told, fail_on=gate.fail_on, confidence=gate.confidence)
        if follows == "regressed" and comparison.key in let_through:
            follows = "passed"
        state = gate.state_of(comparison.key)
        if state != follows:
            yield f"{where}.state", f"is {state}, and {follows} follows from the comparison"
    yield from _overall(gate)


def _overall(gate: GateResult) -> Iterator[Fault]:
    """The gate's state and answer, from those of its metrics and limits."""
    by_state: dict[GateState, tuple[Key, ...]] = {
        "regressed": gate.regressed,
        "failed": gate.failed,
        "undecided": gate.undecided,
    }
    state = overall(by_state, gate.limits, compared=bool(gate.gated or gate.limits))
    if gate.state != state:
        yield "gate.state", f"is {gate.state}, and {state} follows from its metrics and limits"
    if gate.state != "undecided" and gate.passed != (gate.state == "passed"):
        yield "gate.passed", f"is {gate.passed}, and the state is {gate.state}"
    for name in (
        "family_false_alarm",
        "family_false_alarm_independent",
        "family_false_alarm_estimate",
    ):
        chance = getattr(gate, name)
        if chance is not None and not 0.0 <= chance <= 1.0:
            yield f"gate.{name}", f"is {chance!r}, not between 0 and 1"


def _distributions(report: CompareReport) -> Iterator[Fault]:
    tasks = Counter(one.task for one in report.distributions)
    for number, one in enumerate(report.distributions):
        where = f"distributions[{number}]"
        if tasks[one.task] > 1:
            yield where, f"is there twice: {one.task}"
        if one.n < 0 or one.positions < 0:
            yield where, "counts less than no documents or positions"


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_NEARLY, abs_tol=0.0)
