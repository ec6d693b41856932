"""The floor of two models' distributions: how far an unchanged model's own ones move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionShift:
    """How far one variation moves the next-token distributions of one task.

    Attributes:
        variation: its name.
        n: documents with a scored token; ``positions`` counts these tokens.
        kl: mean KL(usual run || variation), nats a token; ``kl_interval``: two-sided, at
            ``confidence``, None where it cannot be had; ``kl_bounds``: proven ones, where it was
            measured by a reference; ``kl_max``: at a single token.
        top1_changed: share of positions where another token is the most probable one, with its
            ``top1_changed_interval``.
        bit_identical: no distribution moves by a bit.
        positions: scored tokens.
        top1_changed_interval: two-sided.
        confidence: of the intervals.
    """

    variation: str
    task: str
    n: int
    positions: int
    kl: float
    kl_interval: tuple[float, float] | None
    kl_bounds: tuple[float, float] | None
    kl_max: float
    top1_changed: float
    top1_changed_interval: tuple[float, float] | None
    bit_identical: bool
    confidence: float
    caveats: tuple[str, ...] = ()

    @property
    def kl_upper(self) -> float:
        """The largest mean KL that interval and bounds hold."""
        ends = (interval[1] for interval in (self.kl_interval, self.kl_bounds) if interval)
        return max([self.kl, *ends])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDistributionFloor:
    """The floor of one task's distributions: the most that any variation shows.

    Attributes:
        n, positions: of the run.
        kl: largest mean KL; ``variation`` is the one that shows it. ``kl_upper``: largest that
            any variation's interval holds; ``kl_max``: largest at a single token.
        top1_changed: largest share of positions with another most probable token.
        bit_identical: no variation moves any distribution by a bit.
        variation: the variation that shows kl.
    """

    task: str
    n: int
    positions: int
    kl: float
    kl_upper: float
    kl_max: float
    top1_changed: float
    variation: str
    bit_identical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionFloor:
    """A comparison's mean KL beside the floor of its base. It informs and decides nothing.

    Attributes:
        kl, kl_upper, kl_max, top1_changed, n, positions, variation, bit_identical: of the floor.
        measured: when, UTC time as ISO 8601 text.
        times: mean KL of the comparison / ``kl``; None where the floor is 0 or either is infinite.
        within: its mean KL is no larger than ``kl``; ``within_upper``: than ``kl_upper``.
    """

    kl: float
    kl_upper: float
    kl_max: float
    top1_changed: float
    n: int
    positions: int
    variation: str
    bit_identical: bool
    measured: str
    times: float | None
    within: bool
    within_upper: bool


def distribution_floors(shifts: Sequence[DistributionShift]) -> tuple[TaskDistributionFloor, ...]:
    """The floor of every task, from all variations that were measured."""
    tasks = dict.fromkeys(shift.task for shift in shifts)
    return tuple(
        _distribution_floor([shift for shift in shifts if shift.task == task]) for task in tasks
    )


def _distribution_floor(shifts: Sequence[DistributionShift]) -> TaskDistributionFloor:
    largest = max(shifts, key=lambda shift: (shift.kl, shift.kl_upper))
    return TaskDistributionFloor(
        task=largest.task,
        n=largest.n,
        positions=largest.positions,
        kl=largest.kl,
        kl_upper=max(shift.kl_upper for shift in shifts),
        kl_max=max(shift.kl_max for shift in shifts),
        top1_changed=max(shift.top1_changed for shift in shifts),
        variation=largest.variation,
        bit_identical=all(shift.bit_identical for shift in shifts),
    )


def kl_beside(kl: float, floor: TaskDistributionFloor, *, measured: str) -> DistributionFloor:
    """Hold a mean KL against a floor.

    Args:
        kl: of the comparison, nats a token; may be infinite.
        measured: when the floor was measured.
    """
    comparable = 0.0 < floor.kl < math.inf and kl < math.inf
    return DistributionFloor(
        kl=floor.kl,
        kl_upper=floor.kl_upper,
        kl_max=floor.kl_max,
        top1_changed=floor.top1_changed,
        n=floor.n,
        positions=floor.positions,
        variation=floor.variation,
        bit_identical=floor.bit_identical,
        measured=measured,
        times=kl / floor.kl if comparable else None,
        within=kl <= floor.kl,
        within_upper=kl <= floor.kl_upper,
    )
