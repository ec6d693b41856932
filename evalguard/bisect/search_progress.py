"""Progress: what a search tells of its case while it runs."""

from __future__ import annotations

import numpy as np

from evalguard.bisect.case import Case
from evalguard.bisect.events import Accepted, Cleared, Expected, Listener
from evalguard.bisect.measurement import Measurements

_INNOCENT = 0.01  # a setting that is guilty with less is cleared
_SUSPECTED = 0.1  # ... and one that is with more is suspected
_NATS = 1.5  # that a full evaluation tells, about: for the expected cost


class Progress:
    """Tells who is cleared and who is accepted, each once, and what the rest will cost."""

    def __init__(self, listen: Listener) -> None:
        self._listen = listen
        self._cleared: set[int] = set()
        self._accepted: set[int] = set()

    def tell(self, case: Case, measured: Measurements) -> None:
        """Tell what is new, and what is expected."""
        names, inclusion = measured.settings, case.belief.inclusion
        cleared = {int(one) for one in np.flatnonzero(inclusion < _INNOCENT)}
        if cleared - self._cleared and measured.probes:
            fresh = sorted(cleared - self._cleared)
            self._listen(Cleared(settings=tuple(names[one] for one in fresh)))
            self._cleared |= cleared
        self.accept(case, measured)
        proof = sum(measured.cost(mask, 1.0) for mask in case.missing)
        likely = [int(one) for one in np.argsort(-inclusion, kind="stable")]
        self._listen(
            Expected(
                remaining=case.belief.entropy / _NATS + proof,
                suspects=tuple(names[one] for one in likely if inclusion[one] >= _SUSPECTED),
            )
        )

    def accept(self, case: Case, measured: Measurements) -> None:
        """Tell who is proven since it was last told."""
        for one in sorted(case.proven - self._accepted):
            sigma = measured.yardstick.reported(case.fit.largest(one))
            self._listen(Accepted(setting=measured.settings[one], sigma=sigma))
            self._accepted.add(one)
