"""Tally: what became of the repetitions of one cell, with Monte Carlo errors."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.outcomes import Cell, Outcome

SEED = 20261120
LEVELS = (0.05, 0.025)  # one-sided; the second is that of a 95% interval
LOWEST, HIGHEST = 0.935, 0.965
FEWEST = 200  # documents from which on the limits hold
_EXCESS = 1.1  # a size of 0.055 at 0.05 is tolerated


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of repetitions."""

    value: float
    of: int

    @property
    def error(self) -> float:
        """Its Monte Carlo standard error; never 0, for a share of 0 or 1 is not known exactly."""
        share = min(max(self.value, 0.5 / self.of), 1.0 - 0.5 / self.of)
        return math.sqrt(share * (1.0 - share) / self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Shares of the repetitions of one cell.

    Attributes:
        holds, below, above: intervals that hold the truth, lie below it, lie above it; None for a
            method without an interval.
        plain: plain t intervals that hold it, where a more careful one decides.
        rejected: by each test at each of LEVELS.
        flagged: with a caveat about the interval.
        contradictions: in how many repetitions interval, p-value and "real" disagreed.
    """

    method: str
    data: str
    n: int
    null: bool
    exchangeable: bool
    repetitions: int
    holds: Share | None
    below: Share | None
    above: Share | None
    plain: Share | None
    rejected: Mapping[str, tuple[Share, ...]]
    flagged: Share
    contradictions: int

    def too_narrow(self, holds: Share | None) -> bool:
        """Whether intervals hold the truth less often than is allowed."""
        return self._limited and holds is not None and holds.value < LOWEST

    def too_wide(self, holds: Share | None) -> bool:
        """Whether they hold the truth more often than is asked."""
        return self._limited and holds is not None and holds.value > HIGHEST

    def too_large(self, test: str, level: int) -> bool:
        """Whether a test rejects a true null too often: beyond 1.1 alpha and two Monte Carlo
        errors. Companions count where their own null holds.
        """
        own_null = self.exchangeable or test == next(iter(self.rejected))
        if not self.null or not own_null or test == "mcnemar-exact":
            return False
        alpha = LEVELS[level]
        allowed = _EXCESS * alpha + 2.0 * math.sqrt(alpha * (1.0 - alpha) / self.repetitions)
        return self.rejected[test][level].value > allowed

    @property
    def _limited(self) -> bool:
        return self.n >= FEWEST


def tally(method: str, cell: Cell, repetitions: int) -> Tally:
    """Simulate a cell; its seed depends on nothing but its name."""
    rng = np.random.default_rng([SEED, seed_of(f"{method}|{cell.data}|{cell.n}|{cell.null}")])
    count = max(20, repetitions // cell.cost)
    outcomes = [cell.simulate(rng) for _ in range(count)]
    with_interval = outcomes[0].truth is not None
    return Tally(
        method=method,
        data=cell.data,
        n=cell.n,
        null=cell.null,
        exchangeable=cell.exchangeable,
        repetitions=count,
        holds=_share([_side(o) == 0 for o in outcomes]) if with_interval else None,
        below=_share([_side(o) < 0 for o in outcomes]) if with_interval else None,
        above=_share([_side(o) > 0 for o in outcomes]) if with_interval else None,
        plain=_plain(outcomes),
        rejected={test: _rejections(outcomes, test) for test in _tests(outcomes)},
        flagged=_share([o.flagged for o in outcomes]),
        contradictions=sum(o.contradicted for o in outcomes),
    )


def seed_of(name: str) -> int:
    """A number that depends on the name alone."""
    return zlib.crc32(name.encode())


def _plain(outcomes: list[Outcome]) -> Share | None:
    if outcomes[0].plain is None:
        return None
    sides = [
        _side(replace(outcome, low=outcome.plain[0], high=outcome.plain[1]))
        for outcome in outcomes
        if outcome.plain is not None
    ]
    return _share([side == 0 for side in sides])


def _tests(outcomes: list[Outcome]) -> list[str]:
    return list(dict.fromkeys(test for outcome in outcomes for test in outcome.tests))


def _rejections(outcomes: list[Outcome], test: str) -> tuple[Share, ...]:
    """A test that a sample has no use for (nothing differs) rejects nothing there."""
    p_values = np.array([outcome.tests.get(test, 1.0) for outcome in outcomes])
    return tuple(_share((p_values <= level).tolist()) for level in LEVELS)


def _side(outcome: Outcome) -> int:
    """Where the interval lies: -1 below the truth, 1 above it, 0 around it.

    Ends within rounding of the truth hold it: Tango's and the t interval end in a float.
    """
    assert outcome.truth is not None
    rounding = 1e-9 * max(abs(outcome.low), abs(outcome.high)) if math.isfinite(outcome.low) else 0
    if outcome.high < outcome.truth - rounding:
        return -1
    return int(outcome.low > outcome.truth + rounding)


def _share(hits: list[bool]) -> Share:
    return Share(value=sum(hits) / len(hits), of=len(hits))
