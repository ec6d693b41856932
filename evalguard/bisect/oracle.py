"""What a search measures with: an oracle, and what it says when an assignment cannot be built."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import EvalguardError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]  # (n_settings,): which settings have their candidate value


class Untestable(EvalguardError):
    """An assignment that cannot be built or run. It is neither good nor bad.

    ``reason`` says why: a crash, out of memory, timed out, refused by the model.
    """

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(reason, hint=hint)
        self.reason = reason


class Oracle(Protocol):
    """Scores documents under an assignment of the settings; the same question, the same answer."""

    @property
    def n_documents(self) -> int:
        """How many documents there are."""

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        """Scores of these documents, higher is better, one each and in their order.

        Exactly ``candidate_settings`` have their candidate value, all others their reference.
        ``documents`` are indices below ``n_documents``, always whole blocks of one fixed order.

        Raises:
            Untestable: this assignment cannot be built or run.
        """
