"""Weights that were multiplied by an orthogonal matrix before they were quantised (QuaRot, arXiv
2404.00456; SpinQuant, 2405.16406), told by what no rotation changes.

W' = W H for an orthogonal H exactly where W' W'^T = W W^T: the lengths of all rows and the angles
between any two. Some dozens of rows prove it, whatever H is: of other weights their angles have
nothing to do with each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LEAST_VECTORS, MOST_VECTORS = 32, 64
_MOST_OFF = 0.5  # of the angles' spread; of other weights 1.4
_MIXED = 0.85  # a coordinate that goes on as one of the base's was moved, not rotated


def is_rotated(base: Array, candidate: Array, off: float) -> bool:
    """Whether vectors of a candidate are those of the base in an orthogonal basis that mixes them.

    Args:
        base, candidate: (vectors, coordinates) of one shape, with at least 32 vectors.
        off: relative error that the candidate's format leaves.
    """
    ours, theirs = base.astype(np.float64), candidate.astype(np.float64)
    if len(ours) < LEAST_VECTORS or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return False
    lengths = [np.sqrt(np.einsum("ij,ij->i", one, one)) for one in (ours, theirs)]
    if any((one == 0).any() for one in lengths):
        return False
    if np.quantile(np.abs(np.log(lengths[1] / lengths[0])), 0.9) > 2 * off:
        return False
    angles = []
    for one, length in zip((ours, theirs), lengths, strict=True):
        unit = one / length[:, None]
        upper = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
        angles.append(upper - upper.mean())
    spread = float(np.linalg.norm(angles[0]))
    apart = float(np.linalg.norm(angles[1] - angles[0]))
    return apart <= min(2 * off, _MOST_OFF) * spread and _mixes(ours, theirs)


def _mixes(ours: Array, theirs: Array) -> bool:
    """Whether most coordinates of the candidate are like no single one of the base."""
    some = theirs[:, np.linspace(0, theirs.shape[1] - 1, 32).astype(np.intp)]
    with np.errstate(divide="ignore", invalid="ignore"):
        alike = np.abs(
            (ours / np.linalg.norm(ours, axis=0)).T @ (some / np.linalg.norm(some, axis=0))
        )
    return bool(np.median(np.nan_to_num(alike).max(axis=0)) < _MIXED)
