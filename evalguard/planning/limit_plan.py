"""How many documents a limit on a figure of answers takes, by exact binomial probabilities."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from scipy.special import bdtr

from evalguard.core.figures import smallest_shown
from evalguard.core.limits import Limit

_MOST = 10_000_000
RARE = 0.01
"""The rate that a limit which not one document may break is planned to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPlan:
    """What the documents of a run say of a limit that a share of the candidate's answers has.

    Attributes:
        kind: whether the share must stay below ("upper") or above ("lower") the limit.
        limit: the share that is allowed.
        n: documents of the run that is planned.
        pilot_n, share: documents of the pilot, and the candidate's share among these; None where
            the pilot does not show it.
        literal: not one document may break it.
        seen: literal: the smallest true rate of documents that break it of which the run shows one
            in ``power`` of runs.
        needed: documents that show, in ``power`` of runs, that it is kept if the true share is the
            pilot's; literal: that show a document which breaks it if 1% do. None: no number does.
        fewest: documents that show it kept if none of them counts against it; 1 of a literal one.
    """

    task: str
    filter: str
    metric: str
    kind: Literal["upper", "lower"]
    limit: float
    n: int
    pilot_n: int
    share: float | None
    literal: bool
    seen: float | None
    needed: int | None
    fewest: int


def plan_limit(
    limit: Limit,
    *,
    task: str,
    filter_name: str,
    n: int,
    pilot_n: int,
    share: float | None,
    level: float,
    power: float,
) -> LimitPlan:
    """Plan a limit on one task.

    Args:
        limit: on a figure of answers.
        share: of the pilot's documents, the candidate's; None where it is not known.
        level: one-sided, of the interval.
        power: chance to see what is there.
    """
    upper = limit.kind == "upper"
    allowed = limit.value if upper else 1.0 - limit.value
    bad = share if share is None or upper else 1.0 - share
    needed: int | None = None
    fewest = 1
    if limit.is_literal:
        needed = documents_to_see(RARE, power=power)
    else:
        fewest = documents_to_keep(allowed, 0.0, level=level, power=power) or _MOST
        if bad is not None:
            needed = documents_to_keep(allowed, bad, level=level, power=power)
    return LimitPlan(
        task=task,
        filter=filter_name,
        metric=limit.metric,
        kind=limit.kind,
        limit=limit.value,
        n=n,
        pilot_n=pilot_n,
        share=share,
        literal=limit.is_literal,
        seen=smallest_shown(n, chance=power) if limit.is_literal else None,
        needed=needed,
        fewest=fewest,
    )


def documents_to_see(rate: float, *, power: float) -> int:
    """Documents of which at least one is of a kind with a rate: (1 - rate)^n <= 1 - power.

    >>> documents_to_see(0.01, power=0.95)  # the rule of three
    299
    """
    return math.ceil(math.log1p(-power) / math.log1p(-rate))


def documents_to_keep(limit: float, rate: float, *, level: float, power: float) -> int | None:
    """Documents after which the upper end of Clopper and Pearson's interval is within a limit.

    With k of n it is where P[Bin(n, limit) <= k] <= level. The chance of that, P[Bin(n, rate) <= k]
    for the largest such k, rises with n in saw teeth: the number is the first found by halving.

    Args:
        limit: the largest share allowed, between 0 and 1, both left out.
        rate: the true share.

    Returns:
        None where the rate is not below the limit, or so near that ten million do not tell.

    >>> documents_to_keep(0.01, 0.0, level=0.025, power=0.8)
    368
    """
    if not rate < limit:
        return None

    def tells(n: int) -> bool:
        # the largest k that is within it lies below n * limit
        most = bisect_right(range(n), level, key=lambda k: float(bdtr(k, n, limit))) - 1
        return most >= 0 and bool(bdtr(most, n, rate) >= power)

    high = 1
    while not tells(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tells(middle) else (middle, high)
    return high
