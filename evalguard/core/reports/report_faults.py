"""What holds for every report that evalguard makes, and where one that was read breaks it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from evalguard.core.comparison import Comparison, Outcome
from evalguard.core.documents.broken_documents import BROKEN_DOCUMENTS
from evalguard.core.gate import GateResult, exit_code, gated_state, settle_outcome
from evalguard.core.gate_state import GateState, Key, overall
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.verdict import MARGIN_PATTERN, decide, decide_comparison
from evalguard.stats.multiple_tests import benjamini_hochberg, holm

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
        margin = gate.margin if comparison.margin is None else comparison.margin
        if not (math.isfinite(margin) and margin >= 0.0):
            yield f"{where}.margin", f"is {margin!r}, not a finite number of sigmas"
            continue
        p_value = adjusted.get(comparison.key, comparison.p_value)

        def settle(found: Comparison, p_value: float | None = p_value) -> Outcome:
            return settle_outcome(
                found, p_value, fail_on=gate.fail_on, level=gate.level, margin=gate.margin
            )

        for name, what in faults(comparison, margin=margin, settle=settle):
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
    yield from _generations(report)


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
        follows = gated_state(
            comparison, told, fail_on=gate.fail_on, level=gate.level, margin=gate.margin
        )
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
    measured = [limit for limit in gate.limits if limit.metric != BROKEN_DOCUMENTS]
    state = overall(by_state, gate.limits, compared=bool(gate.gated or measured))
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


def _generations(report: CompareReport) -> Iterator[Fault]:
    tasks = Counter(one.task for one in report.generations)
    for number, one in enumerate(report.generations):
        where = f"generations[{number}]"
        if tasks[one.task] > 1:
            yield where, f"is there twice: {one.task}"
        figures = [one.length, *(found.missing for found in one.filters)]
        figures += [found.figure for found in one.figures]
        figures += [score.score for score in one.repeated]
        figures += [] if one.cut is None else [one.cut]
        if one.n < 0 or one.repeats < 0 or not all(0 <= figure.n <= one.n for figure in figures):
            yield where, f"counts other documents than the {_short(one.n)} that both answered"


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_NEARLY, abs_tol=0.0)


# Field, and what is wrong with it.
Fault = tuple[str, str]

_MOST = 2**63 - 1
_CHANCES = ("p_value", "mid_p_value", "bh_q_value", "false_alarm_probability", "same_answer")
# Sums of many terms may pass 1 in their last digits.
_ROUNDING = 1e-9
_INTERVALS = ("sigma_interval", "adjusted_interval", "drift_interval", "same_answer_interval")
_NUMBERS = ("sigma", "sigma_interval")


def faults(
    comparison: Comparison,
    *,
    margin: float,
    settle: Callable[[Comparison], Outcome] = lambda found: found.outcome,
) -> Iterator[Fault]:
    """Yield what contradicts itself: counts, chances, intervals, and the verdict on its numbers.

    Args:
        margin: that the comparison was judged with, finite and not negative.
        settle: the outcome that the gate leaves to a comparison with the outcome of its numbers.
    """
    if comparison.margin_text and not re.match(MARGIN_PATTERN, comparison.margin_text):
        yield "margin_text", "is no margin"
    yield from _counts(comparison)
    yield from _chances(comparison)
    yield from _intervals(comparison)
    yield from _verdict(comparison, margin, settle)


def _counts(c: Comparison) -> Iterator[Fault]:
    if not 0 <= c.n <= _MOST:
        yield "n", f"is {_short(c.n)}, which is not a number of documents"
    elif not 0 <= c.n_used <= c.n:
        yield "n_used", f"is {_short(c.n_used)}, of {c.n} documents"
    for name, parts in (("flips", c.flips or ()), ("churn", (c.churn or 0,))):
        if min(parts, default=0) < 0 or sum(parts) > c.n_used:
            yield name, f"counts other documents than the {_short(c.n_used)} that were used"
    if c.clusters is not None and not 0 <= c.clusters <= c.n:
        yield "clusters", f"is {_short(c.clusters)}, of {_short(c.n)} documents"
    if c.needed_n is not None and c.needed_n < 0:
        yield "needed_n", f"is {_short(c.needed_n)}"
    carried = c.influence
    if carried is not None and not 0 <= carried.half <= carried.moved <= c.n_used:
        yield "influence", f"counts other documents than the {_short(c.n_used)} that were used"
    stopping = c.stopping
    if stopping is not None and (stopping.n_used, stopping.n_total) != (c.n_used, c.n):
        yield "stopping", "counts other documents than n_used and n"


def _chances(c: Comparison) -> Iterator[Fault]:
    if not 0.0 < c.confidence < 1.0:
        yield "confidence", f"is {c.confidence!r}, not between 0 and 1"
    found = [(name, getattr(c, name)) for name in _CHANCES]
    found += [(f"companions[{i}].p_value", test.p_value) for i, test in enumerate(c.companions)]
    for name, chance in found:
        if chance is not None and not 0.0 <= chance <= 1.0 + _ROUNDING:
            yield name, f"is {chance!r}, not between 0 and 1"
    for name in ("base_stderr", "candidate_stderr", "paired_stderr"):
        stderr = getattr(c, name)
        if stderr is not None and stderr < 0.0:
            yield name, f"is {stderr!r}, below 0"


def _intervals(c: Comparison) -> Iterator[Fault]:
    found = [(name, getattr(c, name)) for name in _INTERVALS]
    found += [
        (f"companions[{i}].sigma_interval", test.sigma_interval)
        for i, test in enumerate(c.companions)
    ]
    for name, interval in found:
        if interval is not None and interval[0] > interval[1]:
            yield name, f"begins at {interval[0]!r} and ends at {interval[1]!r}"


def _verdict(
    c: Comparison, margin: float, settle: Callable[[Comparison], Outcome]
) -> Iterator[Fault]:
    numbers = [getattr(c, name) for name in _NUMBERS]
    if c.outcome == "failed":
        if c.significant or c.certain or any(number is not None for number in numbers):
            yield "outcome", "is failed, and there are numbers"
        return
    absent = [name for name, number in zip(_NUMBERS, numbers, strict=True) if number is None]
    if c.sigma is None or c.sigma_interval is None:
        yield absent[0], f"is missing, and the outcome is {c.outcome}"
        return
    low, high = c.sigma_interval
    if any(map(math.isnan, (c.sigma, low, high))):
        yield "sigma", f"and its interval are no numbers, and the outcome is {c.outcome}"
        return
    if low > high:
        return
    if c.bit_identical:
        if (c.sigma, low, high) != (0.0, 0.0, 0.0) or c.outcome != "unchanged":
            yield "bit_identical", "is true, and there is a drift"
        found = ("unchanged", False, False)
    else:
        verdict = decide_comparison(c, margin) or decide(c.sigma, low, high, margin)
        outcome = settle(replace(c, outcome=verdict.outcome))
        found = (outcome, verdict.significant, verdict.certain)
    names = ("outcome", "significant", "certain")
    for name, told, follows in zip(
        names, (c.outcome, c.significant, c.certain), found, strict=True
    ):
        if told != follows:
            yield name, f"is {told!r}, and {follows!r} follows from sigma and its interval"


def _short(number: int) -> str:
    return str(number) if abs(number) <= _MOST else "a number of hundreds of digits"
