"""What holds for every comparison that evalguard makes, and where one that was read breaks it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from evalguard.comparison import Comparison
from evalguard.verdict import decide

# Field, and what is wrong with it.
Fault = tuple[str, str]

_MOST = 2**63 - 1
_CHANCES = ("p_value", "mid_p_value", "bh_q_value", "false_alarm_probability", "same_answer")
# Sums of many terms may pass 1 in their last digits.
_ROUNDING = 1e-9
_NUMBERS = ("sigma", "sigma_interval")


def faults(
    comparison: Comparison, *, margin: float, may_be_chance: bool = False
) -> Iterator[Fault]:
    """Yield what contradicts itself: counts, chances, intervals, and the verdict on its numbers.

    Args:
        margin: that the comparison was judged with, finite and not negative.
        may_be_chance: whether the gate asks for evidence that the comparison lacks: above the
            margin it is undecided then.
    """
    yield from _counts(comparison)
    yield from _chances(comparison)
    yield from _intervals(comparison)
    yield from _verdict(comparison, margin, may_be_chance)


def _counts(c: Comparison) -> Iterator[Fault]:
    if not 0 <= c.n <= _MOST:
        yield "n", f"is {_short(c.n)}, which is no number of documents"
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
    found = [(name, getattr(c, name)) for name in ("sigma_interval", "same_answer_interval")]
    found += [
        (f"companions[{i}].sigma_interval", test.sigma_interval)
        for i, test in enumerate(c.companions)
    ]
    for name, interval in found:
        if interval is not None and interval[0] > interval[1]:
            yield name, f"begins at {interval[0]!r} and ends at {interval[1]!r}"


def _verdict(c: Comparison, margin: float, may_be_chance: bool) -> Iterator[Fault]:
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
        verdict = decide(c.sigma, low, high, margin)
        unproven = may_be_chance and verdict.outcome == "regressed"
        outcome = "undecided" if unproven else verdict.outcome
        found = (outcome, verdict.significant, verdict.certain)
    names = ("outcome", "significant", "certain")
    for name, told, follows in zip(
        names, (c.outcome, c.significant, c.certain), found, strict=True
    ):
        if told != follows:
            yield name, f"is {told!r}, and {follows!r} follows from sigma and its interval"


def _short(number: int) -> str:
    return str(number) if abs(number) <= _MOST else "a number of hundreds of digits"
