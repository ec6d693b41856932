"""Rows: what was measured, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.oracle import (
    Floats,
    Mask,
)

_ROUNDING = 1e-5  # of a drift
FULL = 1e-9  # of the documents: what rounding may leave out


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One row for each assignment measured, the candidate's first.

    Attributes:
        masks: (m, n_settings).
        sigma: (m,) mean drift in units of the yardstick.
        variance: (m,) of ``sigma`` as an estimate for all documents.
        share: (m,) of the documents that are measured.
        twin: (m,) number of the row that is the same measurement; its own if there is none.
    """

    masks: Mask
    sigma: Floats
    variance: Floats
    share: Floats
    twin: NDArray[np.intp]

    @property
    def covariance(self) -> Floats:
        """(m, m) of the errors: rows that are the same measurement share theirs."""
        same = self.twin[:, None] == self.twin[None, :]
        return np.where(same, np.minimum.outer(self.variance, self.variance), 0.0)

    @property
    def complete(self) -> Mask:
        """(m,): whether all documents are measured."""
        whole: Mask = self.share >= 1.0 - FULL
        return whole

    def floor(self, error: float) -> float:
        """An error, or what rounding leaves of the largest drift if that is more."""
        return max(error, _ROUNDING * float(np.max(np.abs(self.sigma), initial=0.0)))

    def finished(self) -> Rows:
        """Those that are complete."""
        use = self.complete
        return Rows(
            masks=self.masks[use],
            sigma=self.sigma[use],
            variance=self.variance[use],
            share=self.share[use],
            twin=self.twin[use],
        )
