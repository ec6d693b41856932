"""Belief: how probable each answer is, by what was measured so far.

The ground is what settings do that are no culprits. On the sparse ground all of them together do
little against the margin. On the diffuse ground each does its part of the drift.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from evalguard.bisect.search.components import (
    Component,
    Components,
    Structure,
    blame_pair,
    blame_setting,
    material,
    overlapping,
)
from evalguard.bisect.search.measurements import Rows
from evalguard.bisect.search.selection import Classes, Model, best_models, classes_of
from evalguard.core.question import Floats, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Answers with effects, k of them, as drawn from what is believed.

    Attributes:
        components: (k, most): numbers of the components of each, -1 where there are fewer.
        effects: (k, most): of those, 0 where there are fewer.
        each: (k, n_settings): what every setting does beside them, on a diffuse ground.
        of: all components.
    """

    components: NDArray[np.intp]
    effects: Floats
    each: Floats
    of: Components

    @property
    def members(self) -> Mask:
        """(k, n_settings): the settings that each blames."""
        blamed = np.zeros(self.each.shape, dtype=np.bool_)
        for number in range(self.components.shape[1]):
            rows = np.flatnonzero(self.components[:, number] >= 0)
            blamed[rows[:, None], self.of.members[self.components[rows, number]]] = True
        return blamed

    @property
    def partners(self) -> Mask:
        """(k, n_settings): those of them that act only together with another."""
        held = self.of.members[self.components]
        several = (held != held[:, :, :1]).any(axis=2) & ~self.of.redundant[self.components]
        blamed = np.zeros(self.each.shape, dtype=np.bool_)
        rows, places = np.nonzero(several & (self.components >= 0))
        blamed[rows[:, None], held[rows, places]] = True
        return blamed

    def predict(self, masks: Mask) -> Floats:
        """(k, s): drift of each of s assignments, (s, n_settings), by each answer."""
        used, places = np.unique(self.components, return_inverse=True)
        effects = np.zeros((len(self.components), used.size))
        rows = np.arange(len(self.components))[:, None]
        np.add.at(effects, (rows, places.reshape(self.components.shape)), self.effects)
        drift: Floats = effects @ self.of.acting(masks, used).T.astype(np.float64)
        if self.each.any():
            drift += self.each @ masks.T.astype(np.float64)
        return drift


SMALL = 0.25  # of the margin: what all settings together may do that is not a culprit
_LEAST = 0.5  # of the margin: what a component does at least
_DIFFUSE_ODDS = 0.005
_UNEVEN = 0.4  # standard deviation of a setting's part of diffuse drift, of the mean part
_DEPTHS = {False: 5, True: 1}  # most components on a sparse ground, on a diffuse one
_LEAST_PROBABILITY = 0.01  # of the margin: no measurement is believed closer than this
_FORGOTTEN = 8.0  # in log: models that far below the best are dropped


class _Effects(NamedTuple):
    """What is known of a model's effects.

    Means, standard deviations, a root of the covariance, and root mean squares with the means'
    signs.
    """

    mean: Floats
    spread: Floats
    root: Floats
    sizes: list[float]


_NO_EFFECTS = _Effects(np.empty(0), np.empty(0), np.empty((0, 0)), [])


class Posterior:
    """Models with weights and effects, given the rows; drifts in yardsticks.

    Attributes:
        models: (on a diffuse ground?, model), the best first.
        weights: (len(models),), 1 in all.
        diffuse: weight of those on a diffuse ground.
    """

    def __init__(self, rows: Rows, components: Components, *, margin: float, total: float) -> None:
        self.components = components
        self._rows, self._margin = rows, margin
        self._masks = rows.masks.astype(np.float64)
        n = self._masks.shape[1]
        self._scale = max(abs(total) / 2.0, 2.0 * margin)
        self._part = abs(total) / n
        each = rows.covariance + rows.floor(_LEAST_PROBABILITY * margin) ** 2 * np.eye(
            len(rows.sigma)
        )
        self._noise = each + (SMALL * margin) ** 2 / n * (self._masks @ self._masks.T)
        spread = self._masks @ self._shared(self._masks.T)
        self.classes: Classes = classes_of(components.acting(rows.masks), components.log_prior, n)
        covariances = {False: self._noise, True: self._noise + spread}
        self._inverse = {ground: np.linalg.inv(c) for ground, c in covariances.items()}
        models = [
            (ground, model)
            for ground, covariance in covariances.items()
            for model in best_models(
                self.classes, rows.sigma, covariance, self._scale, _DEPTHS[ground]
            )
        ]
        self._members: dict[int, tuple[NDArray[np.intp], Floats]] = {}
        self._weigh(models)

    def _weigh(self, found: list[tuple[bool, Model]]) -> None:
        logs = np.array([m.log_weight + np.log(_DIFFUSE_ODDS) * ground for ground, m in found])
        order = np.argsort(-logs, kind="stable")
        order = order[logs[order] > logs[order[0]] - _FORGOTTEN]
        effects, gains = self._effects([found[at] for at in order])
        logs = logs[order] + gains
        again = np.argsort(-logs, kind="stable")
        self.models = [found[order[at]] for at in again]
        self._posteriors = [effects[at] for at in again]
        weights = np.exp(logs[again] - logs[again[0]])
        self.weights: Floats = weights / weights.sum()
        self.diffuse = float(sum(self.weights[[ground for ground, _ in self.models]]))

    def likely_sizes(self, number: int) -> list[float]:
        """Root mean square of each effect of a model, with the sign of its mean."""
        sizes: list[float] = self._posteriors[number].sizes
        return sizes

    def effects(self, number: int) -> tuple[Floats, Floats]:
        """Means of a model's effects, and a root of their covariance."""
        known = self._posteriors[number]
        return known.mean, known.root

    def draw(self, count: int, rng: np.random.Generator) -> Draws:
        """Draw structures with effects, to tell structures apart: effects that are known well, and
        parts of diffuse drift, stand at their means. That nothing is there is drawn at most every
        second time: what is to be told apart from it must be there to be looked for.
        """
        nothing = np.array([not ground and not model.classes for ground, model in self.models])
        chances = np.where(nothing, np.minimum(self.weights, self.weights @ ~nothing), self.weights)
        picks = rng.choice(len(self.models), size=count, p=chances / chances.sum())
        most = max(len(self.models[at][1].classes) for at in picks)
        components = np.full((count, most), -1, dtype=np.intp)
        effects = np.zeros((count, most))
        each = np.zeros((count, self._masks.shape[1]))
        for at in np.unique(picks):
            rows = np.flatnonzero(picks == at)
            ground, model = self.models[at]
            known = self._posteriors[at]
            loose = np.abs(known.mean) < 2.0 * known.spread
            off = rng.standard_normal((rows.size, loose.size)) @ known.root.T
            drawn = known.mean + loose * off
            effects[rows, : loose.size] = drawn
            for position, which in enumerate(model.classes):
                components[rows, position] = self._picked(which, rng.random(rows.size))
            if ground:
                each[rows] = self._each(model, drawn)
        return Draws(components=components, effects=effects, each=each, of=self.components)

    def part(self, settings: Floats) -> tuple[float, float]:
        """Drift of some settings (n,) on a diffuse ground, and its standard error."""
        cross = self._masks @ self._shared(settings)
        weighed = self._inverse[True] @ cross
        variance = float(settings @ self._shared(settings) - cross @ weighed)
        return float(weighed @ self._rows.sigma), float(np.sqrt(max(variance, 0.0)))

    def members(self, which: int) -> tuple[NDArray[np.intp], Floats]:
        """Components of a class by number, and the chance of each, 1 in all."""
        if which not in self._members:
            self._members[which] = self.classes.members(which, self.components.log_prior)
        return self._members[which]

    def _picked(self, which: int, at: Floats) -> NDArray[np.intp]:
        """Members of a class, by places ``at`` between 0 and 1; the only one once."""
        numbers, chances = self.members(which)
        if numbers.size == 1:
            return numbers
        places = np.searchsorted(np.cumsum(chances), at, side="right")
        return numbers[np.minimum(places, numbers.size - 1)]

    def _shared(self, settings: Floats) -> Floats:
        """Prior covariance of the settings' parts of diffuse drift, times ``settings`` (n, ...)."""
        shared: Floats = self._part**2 * (_UNEVEN**2 * settings + settings.sum(0))
        return shared

    def _effects(self, models: list[tuple[bool, Model]]) -> tuple[list[_Effects], Floats]:
        """Each model's effects, and what it gains by them.

        Models of one size on one ground are one batch.
        """
        effects = [_NO_EFFECTS] * len(models)
        gains = np.zeros(len(models))
        batches: dict[tuple[bool, int], list[int]] = defaultdict(list)
        for at, (ground, model) in enumerate(models):
            batches[ground, len(model.classes)].append(at)
        for (ground, size), batch in batches.items():
            if not size:
                continue
            numbers = np.array([models[at][1].classes for at in batch])
            acting = self.classes.acting.T[numbers].astype(np.float64)  # (batch, size, m)
            weighed = acting @ self._inverse[ground]
            precision = weighed @ acting.swapaxes(1, 2) + np.eye(size) / self._scale**2
            covariance = np.linalg.inv(precision)
            means = (covariance @ (weighed @ self._rows.sigma)[:, :, None])[:, :, 0]
            roots = np.linalg.cholesky(covariance)
            spreads = np.sqrt(np.sum(roots**2, axis=-1))
            gains[batch] = self._log_material(means, spreads)
            sizes = np.copysign(np.sqrt(means**2 + spreads**2), means).tolist()
            for at, *each in zip(batch, means, spreads, roots, sizes, strict=True):
                effects[at] = _Effects(*each)
        return effects, gains

    def _log_material(self, mean: Floats, spread: Floats) -> Floats:
        """What models gain by effects that are no smaller than a component may be; (batch,).

        The normal prior, cut about 0: the share of the posterior beyond _LEAST against the prior's.
        """
        least = _LEAST * self._margin
        inside = ndtr((least - mean) / spread) - ndtr((-least - mean) / spread)
        before = 2.0 * ndtr(-least / self._scale)
        gain: Floats = np.sum(np.log(np.maximum(1.0 - inside, 1e-12) / before), axis=-1)
        return gain

    def _each(self, model: Model, effects: Floats) -> Floats:
        """Posterior mean of the parts of diffuse drift, (k, n), given effects (k, size)."""
        acting = self.classes.acting[:, list(model.classes)].astype(np.float64)
        residual = self._rows.sigma[:, None] - acting @ effects.T
        each: Floats = self._shared(self._masks.T @ (self._inverse[True] @ residual)).T
        return each


_SPELT_OUT = 0.01  # of the best model's weight, and of a class: what has less is not spelt out
_NEGLIGIBLE = 1e-4  # probability of a structure
_MOST = 1000  # combinations of members of a model's classes
_Share = tuple[int, float]  # a component by number, and its share of its class
_Key = tuple[bool, frozenset[int]]  # diffuse ground? settings that are blamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed.

    Attributes:
        structure: the most probable answer: of the most probable set of settings, the best.
        probability: of that set of settings, with the same ground.
        inclusion: (n_settings,) probability of each to be among the culprits.
        diffuse: probability that the drift is spread over all settings, culprits or not.
        entropy: of the answers, in nats.
    """

    structure: Structure
    probability: float
    inclusion: Floats
    diffuse: float
    entropy: float


class _Guess(NamedTuple):
    """An answer: components of a model, one of each class.

    ``kept``: those that are material, by number; ``beside``: others, of which there is only one of
    its class; ``places``: of both in the model.
    """

    model: int
    diffuse: bool
    kept: tuple[int, ...]
    beside: tuple[int, ...]
    places: tuple[int, ...]
    share: float


def belief_of(posterior: Posterior, *, margin: float, n: int) -> Belief:
    """Add up the models' weights by the settings that each blames, the immaterial left out."""
    chance: dict[_Key, float] = defaultdict(float)
    best: dict[_Key, tuple[float, tuple[int, ...]]] = {}
    component = cache(posterior.components.__getitem__)
    for guess in _spelt_out(posterior, margin):
        numbers, key = guess.kept, (guess.diffuse, frozenset(guess.kept))
        if max((*numbers, *guess.beside), default=0) >= n:  # not only single settings
            numbers, members = _blamed(posterior, guess, component, margin)
            key = (guess.diffuse, members)
        chance[key] += guess.share
        if key not in best or best[key][0] < guess.share:
            best[key] = (guess.share, numbers)
    inclusion = np.zeros(n)
    for (_, members), share in chance.items():
        inclusion[list(members)] += share
    nothing: _Key = (False, frozenset())
    best.setdefault(nothing, (0.0, ()))
    top = max(chance, key=lambda key: chance[key], default=nothing)
    shares = np.array(list(chance.values()))
    rest = max(1.0 - float(shares.sum()), 0.0)
    return Belief(
        structure=Structure(
            components=tuple([component(number) for number in best[top][1]]),
            diffuse=top[0],
            members=top[1],
        ),
        probability=chance.get(top, 0.0),
        inclusion=inclusion,
        diffuse=posterior.diffuse,
        entropy=float(-np.sum(shares * np.log(shares))) + rest * float(np.log(n)),
    )


def _blamed(
    posterior: Posterior,
    guess: _Guess,
    component: Callable[[int], Component],
    margin: float,
) -> tuple[tuple[int, ...], frozenset[int]]:
    """The components of an answer that count, and the settings that it blames."""
    counted = [component(number) for number in guess.kept]
    several = [*counted, *(component(number) for number in guess.beside)]
    members = None
    if overlapping(several):
        mean, root = posterior.effects(guess.model)
        at = list(guess.places)
        members = blame_pair(several, mean[at], root[at], margin)
    if members is None:
        return guess.kept, blame_setting(counted)
    return (*guess.kept, *guess.beside) if members else (), members


def _spelt_out(posterior: Posterior, margin: float) -> Iterator[_Guess]:
    """Answers and their probability; what is spread over very many is left out."""
    choices: dict[int, list[_Share]] = {}
    weights: list[float] = posterior.weights.tolist()
    for number, weight in enumerate(weights):
        if weight < _SPELT_OUT * weights[0]:
            break
        ground, model = posterior.models[number]
        for which in model.classes:
            if which not in choices:
                choices[which] = _likely_members(posterior, which)
        needed = material(posterior.likely_sizes(number), margin)
        known = [at for at, which in enumerate(model.classes) if len(choices[which]) == 1]
        beside = [at for at in known if at not in needed]
        classes = [model.classes[at] for at in needed]
        if prod(len(choices[which]) for which in classes) > _MOST:
            continue
        for picked in product(*(choices[which] for which in classes)):
            share = weight * prod([part for _, part in picked])
            if share >= _NEGLIGIBLE:
                yield _Guess(
                    model=number,
                    diffuse=ground,
                    kept=tuple([number for number, _ in picked]),
                    beside=tuple([choices[model.classes[at]][0][0] for at in beside]),
                    places=(*needed, *beside),
                    share=share,
                )


def _likely_members(posterior: Posterior, which: int) -> list[_Share]:
    numbers, chances = posterior.members(which)
    likely = chances >= _SPELT_OUT
    return list(zip(numbers[likely].tolist(), chances[likely].tolist(), strict=True))


_FLOOR = 1e-3  # of the margin: no measurement is believed closer than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Effects with standard errors, in the order of the structure's components.

    ``weights``: (components, rows): each effect is the rows' drifts, weighed.
    """

    structure: Structure
    effects: Floats
    errors: Floats
    weights: Floats

    def of(self, one: int) -> list[int]:
        """Numbers of the components that a member is in, the largest effect first."""
        inside = [at for at, c in enumerate(self.structure.components) if one in c.members]
        return sorted(inside, key=lambda at: -abs(self.effects[at]))

    def largest(self, one: int) -> float:
        """The largest effect that a member has a part in."""
        return float(self.effects[self.of(one)[0]])

    def alone(self, one: int) -> float:
        """What a member does alone; of one that does nothing alone, its largest effect."""
        own = [at for at in self.of(one) if self.structure.components[at].acts_alone]
        return float(self.effects[own].sum()) if own else self.largest(one)

    def certainty(self, one: int) -> float:
        """Standard errors by which the surest effect of a member is away from 0."""
        at = self.surest(one)
        return abs(float(self.effects[at] / self.errors[at]))

    def surest(self, one: int) -> int:
        """Number of the component whose effect is surest, of those that a member is in."""
        return max(self.of(one), key=lambda at: abs(float(self.effects[at] / self.errors[at])))


def fit_effects(structure: Structure, rows: Rows, *, margin: float) -> Fit:
    """Generalised least squares; jitter and what innocent settings may do are the noise."""
    masks = rows.masks
    acting = np.array([c.acts(masks) for c in structure.components], dtype=np.float64).T
    acting = acting.reshape(len(masks), len(structure.components))
    plain = masks.astype(np.float64)
    noise = rows.covariance + rows.floor(_FLOOR * margin) ** 2 * np.eye(len(masks))
    noise += (SMALL * margin) ** 2 / masks.shape[1] * (plain @ plain.T)
    solved = np.linalg.solve(noise, np.column_stack([acting, rows.sigma]))
    inverse = np.linalg.pinv(acting.T @ solved[:, :-1])
    weights = inverse @ solved[:, :-1].T
    return Fit(
        structure=structure,
        effects=weights @ rows.sigma,
        errors=np.sqrt(np.diag(inverse)),
        weights=weights,
    )
