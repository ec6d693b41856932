"""Measurements: everything measured so far, each once, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.bisect.blocks import Blocks, stratified
from evalguard.bisect.buildable import Buildable
from evalguard.bisect.events import Listener, ProbeEnded, ProbeStarted
from evalguard.bisect.jitter import error_variances
from evalguard.bisect.oracle import Floats, Mask, Oracle, Untestable
from evalguard.bisect.probe import LAUNCH, Probe

_FULL = 1e-9


class OutOfBudget(Exception):
    """The next measurement would cost more than is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One row for each assignment measured, the candidate's first.

    Attributes:
        masks: (m, n_settings).
        sigma: (m,) mean drift in units of the yardstick.
        variance: (m,) of ``sigma`` as an estimate for all documents.
        complete: (m,) whether all documents are measured.
    """

    masks: Mask
    sigma: Floats
    variance: Floats
    complete: Mask


class Measurements:
    """Asks the oracle, and keeps what it answered by assignment and document.

    The base and the candidate are known before a search starts: they are asked for first, on all
    documents, and cost nothing here.
    """

    def __init__(
        self,
        oracle: Oracle,
        settings: tuple[str, ...],
        *,
        yardstick: float,
        budget: float | None,
        buildable: Buildable,
        rng: np.random.Generator,
        listen: Listener,
    ) -> None:
        self.settings = settings
        self.probes: list[Probe] = []
        self.spent = 0.0
        self._oracle, self._yardstick, self._budget = oracle, yardstick, budget
        self._buildable, self._listen = buildable, listen
        everything = np.arange(oracle.n_documents)
        self._base = np.asarray(oracle.measure(frozenset(), everything), dtype=np.float64)
        scores = np.asarray(oracle.measure(frozenset(settings), everything), dtype=np.float64)
        for name, values in (("base", self._base), ("candidate", scores)):
            if not np.isfinite(values).all():
                raise Untestable(f"the {name}'s scores are not all finite")
        self.blocks: Blocks = stratified(self._base - scores, rng)
        whole = np.ones(len(settings), dtype=np.bool_)
        order = self.blocks.order
        self._masks = {whole.tobytes(): whole}
        self._drift = {whole.tobytes(): (self._base - scores)[order]}
        buildable.learn(whole, built=True)

    @property
    def total(self) -> float:
        """The candidate's drift in units of the yardstick."""
        return self.mean(np.ones(len(self.settings), dtype=np.bool_))

    def mean(self, mask: Mask) -> float:
        """Mean drift over the documents measured under this assignment; 0 for the base."""
        if not mask.any():
            return 0.0
        return float(np.mean(self._drift[mask.tobytes()])) / self._yardstick

    def measured(self, mask: Mask) -> float:
        """Share of the documents that are measured under this assignment; 1 for the base."""
        if not mask.any():
            return 1.0
        return self._measured(mask) / self.blocks.ends[-1]

    def complete(self, mask: Mask) -> bool:
        """Whether all documents are measured under this assignment."""
        return self.measured(mask) >= 1.0 - _FULL

    def cost(self, mask: Mask, share: float) -> float:
        """What it would cost to measure this assignment up to this share of the documents."""
        done = self._measured(mask)
        documents = max(self.blocks.up_to(share) - done, 0)
        return documents / self.blocks.ends[-1] + (0.0 if done else LAUNCH)

    def measure(self, mask: Mask, share: float) -> bool:
        """Measure up to this share of the documents; False if the assignment cannot be built.

        Raises:
            OutOfBudget: before anything is asked.
            KeyboardInterrupt: from the oracle; nothing is kept of this measurement.
        """
        done, end = self._measured(mask), self.blocks.up_to(share)
        if not mask.any() or done >= end:
            return True
        if self._buildable.refused(mask):
            return False
        cost = self.cost(mask, share)
        if self._budget is not None and self.spent + cost > self._budget + _FULL:
            raise OutOfBudget
        names = tuple(name for name, inside in zip(self.settings, mask, strict=True) if inside)
        self._listen(ProbeStarted(settings=names, documents=end - done, cost=cost))
        asked = self.blocks.order[done:end]
        try:
            scores = np.asarray(self._oracle.measure(frozenset(names), asked), dtype=np.float64)
            if not np.isfinite(scores).all():
                raise Untestable("its scores are not all finite")
        except Untestable as refusal:
            self._keep(names, refusal.reason, 0, mask, LAUNCH if not done else 0.0)
            self._buildable.learn(mask, built=False)
            return False
        key = mask.tobytes()
        drift = self._base[asked] - scores
        self._masks[key] = mask.copy()
        self._drift[key] = np.concatenate([self._drift[key], drift]) if done else drift
        self._buildable.learn(mask, built=True)
        self._keep(names, "", end - done, mask, cost)
        return True

    def rows(self) -> Rows:
        """All of it, as rows."""
        drifts = list(self._drift.values())
        n = self.blocks.ends[-1]
        variances = error_variances(drifts, n, self.blocks.lumpiness)
        return Rows(
            masks=np.array(list(self._masks.values())),
            sigma=np.array([np.mean(drift) for drift in drifts]) / self._yardstick,
            variance=variances / self._yardstick**2,
            complete=np.array([drift.size == n for drift in drifts]),
        )

    def noise(self) -> float:
        """Variance of a typical measurement of all documents, in squared yardsticks."""
        rows = self.rows()
        shares = np.array([drift.size for drift in self._drift.values()]) / self.blocks.ends[-1]
        return float(np.median(rows.variance * shares)) + 1e-12

    def unfinished(self) -> Mask:
        """(m, n_settings): assignments measured on part of the documents."""
        masks = [mask for mask in self._masks.values() if not self.complete(mask)]
        return np.array(masks, dtype=np.bool_).reshape(-1, len(self.settings))

    def inert(self) -> Mask:
        """Settings of assignments under which every document measured scored as the base's."""
        quiet = np.zeros(len(self.settings), dtype=np.bool_)
        for key, drift in self._drift.items():
            if not drift.any():
                quiet |= self._masks[key]
        return quiet

    def _measured(self, mask: Mask) -> int:
        drift = self._drift.get(mask.tobytes())
        return 0 if drift is None else drift.size

    def _keep(
        self, names: tuple[str, ...], refusal: str, documents: int, mask: Mask, cost: float
    ) -> None:
        self.spent += cost
        drift = self._drift.get(mask.tobytes(), np.array([]))
        known = bool(drift.size) and not refusal
        probe = Probe(
            settings=names,
            documents=documents,
            documents_so_far=drift.size,
            drift_sigma=self.mean(mask) if known else np.nan,
            error_sigma=float(np.std(drift) / np.sqrt(drift.size)) / self._yardstick
            if known
            else np.nan,
            untestable=refusal,
            cost=cost,
        )
        self.probes.append(probe)
        self._listen(ProbeEnded(probe=probe, spent=self.spent))
