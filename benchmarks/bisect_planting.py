"""Planted drift: an oracle whose guilty settings are known, to hold a search against.

An assignment's drift on a document is the sum of its planted effects there and its own jitter. An
effect of e sigma has a mean over all documents of e standard errors of that jitter; it is the same
on all documents (uniform), sits on 5% of them (few), or is lognormal over them (heavy). Jitter is
normal with variance 1, drawn anew for every assignment and document and fixed from then on: asking
again gives the same, and only more documents average it out. The base has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.differences import Array
from evalguard.core.question import Untestable

DOCUMENTS = 1024
SPREADS = ("uniform", "few", "heavy")
CASES = (
    "1 culprit", "2 additive", "3 additive", "2 only together", "2 redundant", "1 and a pair",
    "2 saturating", "3 saturating", "diffuse", "masked pair", "1 culprit, crash rules",
    "2 additive, crash rules", "jitter only",
)  # fmt: skip
_FEW = 0.05
_CRASH_RULES = 2
_FURTHER = ((0.5, 0.8), (1.1, 1.4))  # what one more adds, of what the one before it added
_PARTS = (0.5, 1.5)  # range of a setting's part of diffuse drift, of the mean part
_DIFFUSE = 2.0  # effects: the whole of diffuse drift

Acting = Callable[[frozenset[int]], float]  # whether, and with which sign, in an assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Planting:
    """What was planted: effects in sigma with the assignments in which they act, and the guilty.

    ``rules``: (a, b): an assignment with a at candidate and b at reference cannot be built.
    """

    effects: tuple[tuple[float, Acting], ...]
    guilty: frozenset[int]
    rules: tuple[tuple[int, int], ...] = ()


def planting(case: str, n: int, effect: float, rng: np.random.Generator) -> Planting:
    """Plant a case at random among n settings."""
    a, b, c = (int(one) for one in rng.permutation(n)[:3])
    name, _, crashes = case.partition(",")
    rules = tuple(
        (int(one), int(two))
        for one, two in (rng.choice(n, 2, replace=False) for _ in range(_CRASH_RULES))
    )
    planted: dict[str, tuple[list[Acting], set[int]]] = {
        "1 culprit": ([_all(a)], {a}),
        "2 additive": ([_all(a), _all(b)], {a, b}),
        "3 additive": ([_all(a), _all(b), _all(c)], {a, b, c}),
        "2 only together": ([_all(a, b)], {a, b}),
        "2 redundant": ([_any(a, b)], {a, b}),
        "1 and a pair": ([_all(a), _all(b, c)], {a, b, c}),
        "jitter only": ([], set()),
        "masked pair": ([_all(a), _all(b, sign=-1.0)], {a, b}),
    }
    if name.endswith("saturating"):
        return _saturating((a, b, c)[: int(name[0])], effect, rng)
    if name == "diffuse":
        parts = rng.uniform(*_PARTS, size=n)
        sizes = _DIFFUSE * effect * parts / parts.sum()
        effects = [(float(size), _all(one)) for one, size in enumerate(sizes)]
        return Planting(effects=tuple(effects), guilty=frozenset())
    acting, guilty = planted[name]
    return Planting(
        effects=tuple((effect, acts) for acts in acting),
        guilty=frozenset(guilty),
        rules=rules if crashes else (),
    )


def _saturating(members: tuple[int, ...], effect: float, rng: np.random.Generator) -> Planting:
    """Settings that do less beside each other than alone, or more; alone each does ``effect``."""
    further = rng.uniform(*_FURTHER[int(rng.integers(len(_FURTHER)))])

    def beside_the_sum(inside: frozenset[int]) -> float:
        return sum(further**at - 1.0 for at in range(len(inside.intersection(members))))

    acting = [*(_all(one) for one in members), beside_the_sum]
    return Planting(effects=tuple((effect, acts) for acts in acting), guilty=frozenset(members))


def _all(*members: int, sign: float = 1.0) -> Acting:
    return lambda inside: sign * inside.issuperset(members)


def _any(*members: int) -> Acting:
    return lambda inside: float(not inside.isdisjoint(members))


class PlantedOracle:
    """Scores documents of a planting. ``sigma``: the jitter's standard error, of all documents."""

    n_documents = DOCUMENTS
    sigma = DOCUMENTS**-0.5

    def __init__(
        self, planted: Planting, settings: tuple[str, ...], spread: str, seed: int
    ) -> None:
        self._planted, self._seed = planted, seed
        self._number = {name: number for number, name in enumerate(settings)}
        rng = np.random.default_rng([seed, 0])
        self._base: Array = 3.0 * rng.standard_normal(DOCUMENTS)
        self._patterns = [_pattern(spread, rng) for _ in planted.effects]
        self._scores: dict[frozenset[str], Array] = {frozenset(): self._base}

    def measure(self, candidate_settings: frozenset[str], documents: np.ndarray) -> Array:  # type: ignore[type-arg]
        """As ``evalguard.core.question.Oracle`` says."""
        inside = {self._number[name] for name in candidate_settings}
        for one, two in self._planted.rules:
            if one in inside and two not in inside:
                raise Untestable(f"setting {one} needs setting {two}")
        return self._all_scores(candidate_settings)[documents]

    def drift(self, candidate_settings: frozenset[str]) -> float:
        """Mean drift over all documents, in sigma; also of what cannot be built."""
        return float(np.mean(self._base - self._all_scores(candidate_settings))) / self.sigma

    def _all_scores(self, candidate_settings: frozenset[str]) -> Array:
        if candidate_settings not in self._scores:
            inside = frozenset(self._number[name] for name in candidate_settings)
            key = sum(1 << number for number in inside)
            words = [self._seed, 1, key & 0xFFFFFFFF, key >> 32]
            drift = np.random.default_rng(words).standard_normal(DOCUMENTS)
            for (size, acts), pattern in zip(self._planted.effects, self._patterns, strict=True):
                drift += size * acts(inside) * self.sigma * pattern
            self._scores[candidate_settings] = self._base - drift
        return self._scores[candidate_settings]


class BlockedOracle(PlantedOracle):
    """Scores documents in blocks that it gives, each a random sample."""

    blocks = tuple(np.array_split(np.random.default_rng(7).permutation(DOCUMENTS), 16))


def _pattern(spread: str, rng: np.random.Generator) -> Array:
    """How an effect falls on the documents; mean 1."""
    if spread == "uniform":
        return np.ones(DOCUMENTS)
    if spread == "few":
        weights = np.zeros(DOCUMENTS)
        weights[rng.choice(DOCUMENTS, int(_FEW * DOCUMENTS), replace=False)] = 1.0
    else:
        weights = rng.lognormal(0.0, 1.5, DOCUMENTS)
    pattern: Array = weights / np.mean(weights)
    return pattern
