"""Draws: equally likely answers, to choose the measurement that tells them apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.components import Components
from evalguard.bisect.oracle import Floats, Mask


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
