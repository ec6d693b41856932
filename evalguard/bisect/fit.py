"""Fit: the effects of a structure's components, by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.bisect.measurement import Rows
from evalguard.bisect.oracle import Floats
from evalguard.bisect.posterior import SMALL
from evalguard.bisect.structure import Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Effects with standard errors, in the order of the structure's components."""

    structure: Structure
    effects: Floats
    errors: Floats


def fitted(structure: Structure, rows: Rows, *, margin: float) -> Fit:
    """Generalised least squares; jitter and what innocent settings may do are the noise."""
    masks = rows.masks
    acting = np.array([c.acts(masks) for c in structure.components], dtype=np.float64).T
    acting = acting.reshape(len(masks), len(structure.components))
    plain = masks.astype(np.float64)
    noise = np.diag(rows.variance + (1e-3 * margin) ** 2)
    noise += (SMALL * margin) ** 2 / masks.shape[1] * (plain @ plain.T)
    solved = np.linalg.solve(noise, np.column_stack([acting, rows.sigma]))
    inverse = np.linalg.pinv(acting.T @ solved[:, :-1])
    return Fit(
        structure=structure,
        effects=inverse @ (acting.T @ solved[:, -1]),
        errors=np.sqrt(np.diag(inverse)),
    )
