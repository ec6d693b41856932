"""Fit: the effects of a structure's components, by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.bisect.answer_structure import Structure
from evalguard.bisect.measured_rows import Rows
from evalguard.bisect.oracle import Floats
from evalguard.bisect.posterior import SMALL

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
