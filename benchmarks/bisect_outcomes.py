"""What searches make of planted drift, one planting at a time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.bisect_baselines import Judge, bisection, delta_debugging, one_at_a_time
from benchmarks.bisect_planting import SPREADS, BlockedOracle, PlantedOracle, Planting, planting
from evalguard.bisect.search.find_culprits import find_culprits

JITTER_LIMIT = 3.0  # sigma: the other searches call less than that jitter
OURS = ("evalguard", "evalguard, thorough", "evalguard, given blocks")
OTHERS = {"one at a time": one_at_a_time, "bisection": bisection, "ddmin": delta_debugging}
_NOBODY = ("diffuse", "jitter only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search made of one planting.

    ``exact``: it named the guilty and nobody else, and called diffuse what is; ``valid``: it named
    no innocent, and what it named makes the gate pass; ``innocent``: it named one.
    """

    exact: bool
    valid: bool
    innocent: bool
    cost: float


@cache
def names(n: int) -> tuple[str, ...]:
    """Names of n settings."""
    return tuple(f"setting-{number}" for number in range(n))


def drawn(
    case: str, n: int, effect: float, number: int, seed: int, *, blocks: bool = False
) -> tuple[Planting, PlantedOracle]:
    """A planting and its oracle; drawn again until the candidate fails the gate."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{case}|{n}|{effect}".encode()), number])
    spread = SPREADS[number % len(SPREADS)]
    made = BlockedOracle if blocks else PlantedOracle
    while True:
        planted = planting(case, n, effect, rng)
        oracle = made(planted, names(n), spread, int(rng.integers(1 << 31)))
        if case == "masked pair" or oracle.drift(frozenset(names(n))) > effect / 2.0:
            return planted, oracle


def outcome(case: str, n: int, effect: float, search: str, number: int, seed: int) -> Outcome:
    """Search one planting."""
    blocks = "blocks" in search
    planted, oracle = drawn(case, n, effect, number, seed, blocks=blocks)
    settings, margin = names(n), effect / 2.0
    if search in OTHERS:
        judge = Judge(oracle, settings, max(margin, JITTER_LIMIT))
        named = OTHERS[search](judge, settings)
        cost, diffuse = judge.cost, False
    else:
        result = find_culprits(
            oracle, settings, margin=margin, yardstick=oracle.sigma, seed=number,
            thorough="thorough" in search,
        )  # fmt: skip
        named = {culprit.name for culprit in result.culprits}
        cost, diffuse = result.cost, result.status == "diffuse"
    guilty = {settings[one] for one in planted.guilty}
    left = oracle.drift(frozenset(settings) - named)
    nobody = case in _NOBODY and not named
    return Outcome(
        exact=named == guilty and diffuse == (case == "diffuse"),
        valid=nobody if case in _NOBODY else named <= guilty and left <= margin,
        innocent=not named <= guilty,
        cost=cost,
    )
