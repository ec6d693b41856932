"""Looks of a sequential run: what one shows about the verdict of all documents, when to stop."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import StoppingMethod
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.core.verdict import Margin, MarginUnit, SigmaScale
from evalguard.stats.betting import (
    Evidence,
    Excess,
    drift_of_all,
    excess,
    lower_end,
    needed,
    upper_end,
)
from evalguard.stats.drift import is_binary
from evalguard.stats.estimate import normal_quantile
from evalguard.stats.sequential_evidence import BoundedEvidence, FlipEvidence

FIRST_LOOK = 64
# Ten looks from a tenth of the documents to all of them, with a tenth among them.
FACTOR = 10.0**0.1


def planned_looks(
    total: int, *, first: int = FIRST_LOOK, factor: float = FACTOR
) -> tuple[int, ...]:
    """Numbers of documents after which is looked: total, total / factor, ..., down to ``first``.

    The bounds of this package hold at all times together (Ville's inequality), so that the number
    of looks costs no error; they are planned all the same, and nothing is looked at in between.

    Returns:
        Ascending and without repeats; the last is ``total``.

    Raises:
        ValueError: unless total and first are at least 1 and factor is above 1.
    """
    if total < 1 or first < 1 or not factor > 1.0:
        raise ValueError(f"no looks are planned by total={total}, first={first}, factor={factor}")
    looks, at = [total], total / factor
    while round(at) >= first:
        if round(at) < looks[-1]:
            looks.append(round(at))
        at /= factor
    return tuple(reversed(looks))


def document_order(doc_ids: Sequence[int], *, task: str, seed: int) -> tuple[int, ...]:
    """All documents in random order: the same for the same seed, task and documents.

    Tasks with equally many documents get different orders, so that their verdicts are not wrong
    together more often than apart.
    """
    digest = hashlib.sha256(task.encode()).digest()
    generator = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
    return tuple(doc_ids[index] for index in generator.permutation(len(doc_ids)).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """The rule of one run.

    The full run regresses if any of its K gated metrics does. If none of them does, a wrong verdict
    needs one that is wrongly shown above the margin: each has alpha / K for that (Bonferroni). If
    some do, a wrong verdict needs all of these to be wrongly shown below it, so that alpha is
    enough for each (intersection-union test; R. L. Berger, Technometrics 24, 1982, 295-300).

    Attributes:
        margin: of the metric that is looked at; a number is in standard errors of the base over
            all documents. Metrics of one run may have margins of their own.
        alpha: chance, over the orders of the documents, that the gate's verdict is not that of all
            documents.
        gated: K, the number of gated metrics.
        seed: of the order.
        real: whether a metric above the margin fails the gate only if all documents would show
            its drift to be real, too, at ``level`` over all gated metrics.
    """

    margin: float | Margin
    alpha: float
    gated: int
    seed: int
    real: bool = False
    level: float = 0.025

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 0.5:
            raise ValueError(f"a chance of error lies between 0 and 0.5, not {self.alpha!r}")
        if self.gated < 1:
            raise ValueError(f"at least one metric is gated, not {self.gated!r}")

    @property
    def tolerated(self) -> Margin:
        """The margin with its unit."""
        return self.margin if isinstance(self.margin, Margin) else Margin(self.margin)

    def of(self, margin: Margin) -> StoppingRule:
        """The rule for a metric with this margin."""
        return replace(self, margin=margin)

    @property
    def alpha_below(self) -> float:
        """The level at which a metric is shown to stay below the margin."""
        return self.alpha

    @property
    def alpha_above(self) -> float:
        """The level at which a metric is shown to be above the margin."""
        return self.alpha / self.gated

    @property
    def level_of_real(self) -> float:
        """The p-value that all documents would have to give one of K metrics, by Bonferroni."""
        return self.level / self.gated

    @property
    def alpha_far(self) -> float:
        """The level of an interval's end that no verdict rests on."""
        return self.alpha / 10.0

    @property
    def interval_confidence(self) -> float:
        """Chance that the interval holds sigma of all documents, whenever one looks.

        Each end is either the one that the verdict rests on or one that none does, so that both
        ways to be wrong are counted.
        """
        return 1.0 - self.alpha_below - self.alpha_above - 2.0 * self.alpha_far


Side = Literal["above", "below"]
# A margin to aim at, and a level where the bet is to aim at what was deniable at it instead.
Bet = Callable[[float, "float | None"], Evidence]
# The full run takes a number this close to the margin for the margin (verdict.ON_THE_MARGIN).
_JUST_ABOVE = 1.0 + 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class LookResult:
    """One look at one metric.

    Attributes:
        side: where sigma of all documents was shown to be; None where it is not known yet.
        low, high: interval of sigma of all documents at the rule's ``interval_confidence``;
            infinite, and ``p_value`` 1, where no side is shown and none was asked for.
        error_chance: of ``side``, at most the rule's level; 1 where there is none.
        p_value: that sigma of all documents is 0 or less, whenever one looks (1 / wealth).
        sigma: the estimate so far, in units of the base's standard error over all documents,
            which is ``unit`` on the scale of the drift.
        scale: sigmas in one unit of the margin; low and high were found in the latter.
        assumed_worst, seen_worst: as of ``Stopping``.
        to_confirm: whether scores without bounds look to be above the margin. No part of them shows
            that: a few documents not asked may gain more than all others lost.
    """

    side: Side | None
    low: float
    high: float
    error_chance: float
    p_value: float
    sigma: float
    unit: float
    method: StoppingMethod
    assumed_worst: float | None = None
    seen_worst: float | None = None
    scale: float = 1.0
    to_confirm: bool = False


def cannot_stop(table: ScoreTable) -> str:
    """Why a metric cannot be judged from a part of its documents; "" where it can."""
    if table.rescoring is not None:
        return "it is not a mean, so that only all documents tell its verdict"
    if table.clusters:
        return "documents of one cluster belong together and do not come one by one"
    return ""


def find(
    paired: PairedScores,
    drawn: Sequence[int],
    population: int,
    rule: StoppingRule,
    *,
    base_of_all: ScoreTable | None = None,
    with_interval: bool = False,
) -> LookResult | None:
    """Look at the documents drawn so far.

    Args:
        paired: scores of the n documents drawn, finite.
        drawn: their doc_ids in the order drawn.
        population: N, more than n.
        base_of_all: the base's scores of all N documents, where they are known.
        with_interval: give the interval (a search) even where no side is shown yet.

    Returns:
        None where nothing can be said: a metric that cannot be judged from a part, a base whose
        scores do not scatter so far, so that sigma has no unit, or one for which the margin is not
        known to have a size.
    """
    if cannot_stop(paired.base) or paired.base.n < 2:
        return None
    order = np.searchsorted(paired.base.doc_ids, np.asarray(drawn, dtype=np.int64))
    margin, unit = rule.tolerated.value, rule.tolerated.unit
    if not _has_size(unit, paired.base, base_of_all):
        return None
    of = excess(paired, order, population, base_of_all=base_of_all, unit=unit)
    if not (of.unit > 0.0 and of.stderr > 0.0 and math.isfinite(of.sigma)):
        return None
    if of.beyond(margin) is None:
        return None
    if is_binary(paired) and (base_of_all is None or _zeros_and_ones(base_of_all)):
        right = None if base_of_all is None else int(np.sum(base_of_all.values))
        bet = _flip_bet(paired, order, population, rule.alpha_above, right, unit)
    else:
        bet = _bounded_bet(of, population)
    aimed = bet(margin, None)
    scale = of.unit / of.stderr
    side, chance = _side(aimed, rule, of.sigma)
    low, high, p_value = -math.inf, math.inf, 1.0
    if side is not None or with_interval:
        p_value = math.exp(min(0.0, -bet(0.0, None).against_less(0.0)))
        low, high = (scale * end for end in _interval(aimed, bet, side, rule, of.sigma))
    real = side != "above" or not rule.real
    if not real and not _real(paired, population, of.stderr, bet, scale, p_value, rule):
        side, chance = None, 1.0
    worst, to_confirm = None, False
    if isinstance(aimed, BoundedEvidence):
        worst, to_confirm = aimed.worst(), side == "above"
    if to_confirm:
        side, chance = None, 1.0
    return LookResult(
        side=side,
        low=low,
        high=high,
        error_chance=chance,
        p_value=p_value,
        sigma=scale * of.sigma,
        unit=of.stderr,
        method="flips-exact" if worst is None else "bounded-betting",
        assumed_worst=None if worst is None else worst[0],
        seen_worst=None if worst is None else worst[1],
        scale=scale,
        to_confirm=to_confirm,
    )


def _has_size(unit: MarginUnit, base: ScoreTable, base_of_all: ScoreTable | None) -> bool:
    """Whether a margin in this unit is sure to be one of all documents.

    Points are for metrics between 0 and 1. A share is one of the mean's size, which is linear in
    the documents only where all of them have the same sign.
    """
    values = base.values if base_of_all is None else base_of_all.values
    if unit == "points":
        return base.aggregation == "mean" and bool(np.all((values >= 0.0) & (values <= 1.0)))
    of_mean = unit == "relative" and not SigmaScale.log_sign_of(base) and base_of_all is None
    return not of_mean or bool(np.all(values >= 0.0) or np.all(values <= 0.0))


def _zeros_and_ones(table: ScoreTable) -> bool:
    return bool(np.all((table.values == 0.0) | (table.values == 1.0)))


def _flip_bet(
    paired: PairedScores,
    order: NDArray[np.int64],
    population: int,
    alpha: float,
    right_of_all: int | None,
    unit: MarginUnit,
) -> Bet:
    d, right = paired.d[order], paired.base.values[order]

    def bet(margin: float, level: float | None) -> Evidence:
        return FlipEvidence(
            d,
            right,
            population,
            margin=margin,
            alpha=alpha if level is None else level,
            level=level,
            right_of_all=right_of_all,
            unit=unit,
        )

    return bet


def _bounded_bet(of: Excess, population: int) -> Bet:
    def bet(margin: float, level: float | None) -> Evidence:
        return BoundedEvidence(of, population, margin=margin, level=level)

    return bet


def _side(evidence: Evidence, rule: StoppingRule, size: float) -> tuple[Side | None, float]:
    """The side that is shown, if the estimate lies there too, and its chance of error."""
    margin = rule.tolerated.value
    if size < margin:
        wealth = evidence.against_more(margin)
        if wealth >= needed(evidence, rule.alpha_below):
            return "below", evidence.reserved + math.exp(-wealth)
    if size > margin:
        wealth = evidence.against_less(margin * _JUST_ABOVE)
        if wealth >= needed(evidence, rule.alpha_above):
            return "above", evidence.reserved + math.exp(-wealth)
    return None, 1.0


def _real(
    paired: PairedScores,
    population: int,
    unit: float,
    bet: Bet,
    scale: float,
    p_value: float,
    rule: StoppingRule,
) -> bool:
    """Whether all documents would call the drift real.

    By their paired standard error, as the documents so far show it: sigma of all has to be so many
    of them above 0, which a bet that aims there shows at the level of "above". Twice as much
    evidence as the level of real asks for, because that standard error is an estimate.
    """
    if p_value > rule.level_of_real:
        return False
    drift = drift_of_all(paired, population, confidence=rule.interval_confidence, unit=unit)
    stderr = drift.estimate.stderr / unit
    least = -normal_quantile(rule.level_of_real / 2.0) * stderr / scale
    if least <= rule.tolerated.value:
        return True
    evidence = bet(least, None)
    return evidence.against_less(least * _JUST_ABOVE) >= needed(evidence, rule.alpha_above)


def _interval(
    aimed: Evidence, bet: Bet, side: Side | None, rule: StoppingRule, size: float
) -> tuple[float, float]:
    """The end that the verdict rests on by its own bets, the others by bets that aim at them.

    In the unit of the margin, as ``size``, the estimate so far.
    """
    margin = rule.tolerated.value
    far = bet(margin, rule.alpha_far)
    if side == "above":
        low = lower_end(aimed, rule.alpha_above, start=margin)
    else:
        low = lower_end(far, rule.alpha_far, start=size)
    if side == "below":
        return low, upper_end(aimed, rule.alpha_below, start=margin)
    return low, upper_end(far, rule.alpha_far, start=size)
