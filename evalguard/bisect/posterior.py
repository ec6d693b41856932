"""Posterior: models that explain the rows, weighed, on two grounds.

The ground is what settings do that are no culprits. On the sparse ground all of them together do
little against the margin. On the diffuse ground each does its part of the drift.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from evalguard.bisect.answer_draws import Draws
from evalguard.bisect.components import Components
from evalguard.bisect.measured_rows import Rows
from evalguard.bisect.oracle import Floats
from evalguard.bisect.selection import Classes, Model, best_models, classes_of

SMALL = 0.25  # of the margin: what all settings together may do that is not a culprit
_LEAST = 0.5  # of the margin: what a component does at least
_DIFFUSE_ODDS = 0.005
_UNEVEN = 0.4  # standard deviation of a setting's part of diffuse drift, of the mean part
_DEPTHS = {False: 5, True: 1}  # most components on a sparse ground, on a diffuse one
_FLOOR = 0.01  # of the margin: no measurement is believed closer than this
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
        each = rows.covariance + rows.floor(_FLOOR * margin) ** 2 * np.eye(len(rows.sigma))
        self._noise = each + (SMALL * margin) ** 2 / n * (self._masks @ self._masks.T)
        spread = self._masks @ self._shared(self._masks.T)
        self.classes: Classes = classes_of(components.acting(rows.masks), components.log_prior, n)
        covariances = {False: self._noise, True: self._noise + spread}
        self._inverse = {ground: np.linalg.inv(c) for ground, c in covariances.items()}
        found = [
            (ground, model)
            for ground, covariance in covariances.items()
            for model in best_models(
                self.classes, rows.sigma, covariance, self._scale, _DEPTHS[ground]
            )
        ]
        self._members: dict[int, tuple[NDArray[np.intp], Floats]] = {}
        self._weigh(found)

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
            for place, which in enumerate(model.classes):
                components[rows, place] = self._picked(which, rng.random(rows.size))
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
        left = self._rows.sigma[:, None] - acting @ effects.T
        each: Floats = self._shared(self._masks.T @ (self._inverse[True] @ left)).T
        return each
