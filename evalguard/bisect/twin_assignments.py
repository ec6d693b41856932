"""Twins: assignments that score every document alike, and so are one measurement.

They differ in settings that do nothing. Their jitter is the same jitter: it does not average out
over them, and that they agree says nothing about how large it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.oracle import Floats

ALIKE = 1e-4  # of the variance over documents: what twins may differ by, squared


def twins(drifts: list[Floats]) -> NDArray[np.intp]:
    """For each assignment the number of the longest that it is a twin of, itself if of none; (m,).

    ``drifts``: for each its per-document drift over a prefix of one common order.
    """
    of = np.arange(len(drifts))
    head = min(drift.size for drift in drifts)
    heads = np.array([drift[:head] for drift in drifts])
    squares = np.einsum("mk,mk->m", heads, heads)
    apart = squares[:, None] + squares[None, :] - 2.0 * heads @ heads.T
    near = apart <= 10.0 * ALIKE * np.minimum.outer(squares, squares)
    if np.count_nonzero(near) <= len(drifts):
        return of
    for one in sorted(of.tolist(), key=lambda at: -drifts[at].size):
        for other in np.flatnonzero(near[one] & (of == np.arange(of.size))).tolist():
            longer = drifts[other].size >= drifts[one].size
            if other != one and longer and are_twins(drifts[one], drifts[other]):
                of[of == of[one]] = other
                break
    return of


def are_twins(one: Floats, other: Floats) -> bool:
    """Whether two assignments drift alike on every document that both are measured on."""
    common = min(one.size, other.size)
    apart = one[:common] - other[:common]
    return float(apart @ apart) <= ALIKE * common * float(np.var(one[:common]))
