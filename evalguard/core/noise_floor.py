"""The A/A floor: what an unchanged model shows when what should not matter is varied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from evalguard.core.settings import Value


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


Factor = Literal[
    "repeat",
    "batch_size",
    "threads",
    "device",
    "attention",
    "softmax_dtype",
    "concurrency",
    "cache",
]
FACTORS: tuple[Factor, ...] = get_args(Factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One change of what should not matter.

    Attributes:
        factor: what is varied; "repeat": nothing, the same is computed once more.
        name: for people, "batch size 1".
        value: what the factor is in this run, and ``default`` what it is in the default run, both
            as read back from the model; None for "repeat", and of "cache" where an engine does
            not say what is in its cache.
        default: what it is in the usual run.
    """

    factor: Factor
    name: str
    value: Value = None
    default: Value = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A variation that could not be had here, or not on a task or a metric of it, and why.

    Attributes:
        factor: see ``Variation``; ``name`` for people.
        task: "": on all; ``metric``: likewise.
        name: for people.
    """

    factor: Factor
    name: str
    reason: str
    task: str = ""
    metric: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far one variation moves one metric, paired with the default run.

    Attributes:
        variation: its name.
        n: documents.
        sigma: drift in standard errors of the default run, positive is worse; may be infinite.
        sigma_interval: paired, two-sided, at ``confidence``.
        document_sd: standard deviation of the differences of single documents, in the unit of
            their values (nats for log-likelihoods); None for metrics that are no mean.
        largest_difference: of a single document, without sign, at ``largest_document``.
        flips: (lost, won) documents of a 0/1 metric.
        bit_identical: every document's score is the same to the last bit.
        other_answers: of documents, whatever they score: their texts or log-likelihoods differ from
            those of the default run; None where that is not known.
        method: of the interval.
        paired_stderr: standard error of the paired drift, in units of the metric.
        largest_document: doc_id of that document.
        confidence: of the interval.
    """

    variation: str
    task: str
    filter: str
    metric: str
    n: int
    sigma: float
    sigma_interval: tuple[float, float]
    paired_stderr: float
    document_sd: float | None
    largest_difference: float | None
    largest_document: int | None
    flips: tuple[int, int] | None
    bit_identical: bool
    method: str
    confidence: float
    caveats: tuple[str, ...] = ()
    other_answers: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric)."""
        return (self.task, self.filter, self.metric)

    @property
    def sigma_upper(self) -> float:
        """The largest size of drift that the interval holds."""
        return max(abs(end) for end in self.sigma_interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFloor:
    """The floor of one metric: the most that any variation shows.

    Attributes:
        n: documents of its run.
        sigma: largest size of a drift, in standard errors of the default run; ``variation`` is
            the one that shows it.
        sigma_upper: largest size of a drift that any variation's interval holds.
        document_sd: largest standard deviation of single documents' differences.
        bit_identical: no variation moves any document's score by a bit; ``other_answers``: in how
            many documents a variation moved the answer all the same, at most.
        margin: what a gate would tolerate of it, in sigma; None where it would not judge it.
            ``margin_text`` as it was given.
        variation: the variation that shows sigma.
        margin_text: the margin as it was given: 1 sigma, 1pp, 2%.
    """

    task: str
    filter: str
    metric: str
    n: int
    sigma: float
    sigma_upper: float
    document_sd: float | None
    variation: str
    bit_identical: bool
    margin: float | None = None
    margin_text: str = ""
    other_answers: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric)."""
        return (self.task, self.filter, self.metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A comparison's drift beside the floor of its base. It informs and decides nothing.

    Attributes:
        sigma, sigma_upper, document_sd, n, variation, bit_identical: of the floor.
        measured: when, UTC time as ISO 8601 text.
        times: size of the drift / ``sigma``; None where the floor is 0 or either is infinite.
        within: the drift is no larger than ``sigma``.
        within_upper: the drift is no larger than ``sigma_upper``: one variation may be as large.
    """

    sigma: float
    sigma_upper: float
    document_sd: float | None
    n: int
    variation: str
    bit_identical: bool
    measured: str
    times: float | None
    within: bool
    within_upper: bool


def metric_floors(shifts: Sequence[Shift]) -> tuple[MetricFloor, ...]:
    """The floor of every metric, from all variations that were measured."""
    keys = dict.fromkeys(shift.key for shift in shifts)
    return tuple(_floor([shift for shift in shifts if shift.key == key]) for key in keys)


def _floor(shifts: Sequence[Shift]) -> MetricFloor:
    largest = max(shifts, key=lambda shift: (abs(shift.sigma), shift.sigma_upper))
    spreads = [shift.document_sd for shift in shifts if shift.document_sd is not None]
    return MetricFloor(
        task=largest.task,
        filter=largest.filter,
        metric=largest.metric,
        n=largest.n,
        sigma=abs(largest.sigma),
        sigma_upper=max(shift.sigma_upper for shift in shifts),
        document_sd=max(spreads, default=None),
        variation=largest.variation,
        bit_identical=all(shift.bit_identical for shift in shifts),
        other_answers=max(
            (shift.other_answers for shift in shifts if shift.other_answers is not None),
            default=None,
        ),
    )


def beside(sigma: float, floor: MetricFloor, *, measured: str) -> Floor:
    """Hold a drift against a floor.

    Args:
        sigma: the drift, of any sign; may be infinite.
        measured: when the floor was measured.
    """
    size = abs(sigma)
    comparable = 0.0 < floor.sigma < math.inf and size < math.inf
    return Floor(
        sigma=floor.sigma,
        sigma_upper=floor.sigma_upper,
        document_sd=floor.document_sd,
        n=floor.n,
        variation=floor.variation,
        bit_identical=floor.bit_identical,
        measured=measured,
        times=size / floor.sigma if comparable else None,
        within=size <= floor.sigma,
        within_upper=size <= max(floor.sigma, floor.sigma_upper),
    )
