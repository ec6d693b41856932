"""Recommendation: the assignment nearest to the candidate that passes the gate.

Innocent settings keep their candidate value. Each culprit takes the first of its alternatives
with which the gate passes, the others standing at what was chosen for them so far, else its
reference value. What is recommended has been measured on all documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.bisect.jitter import deviations
from evalguard.bisect.measurement import OutOfBudget
from evalguard.bisect.oracle import (
    BlockOracle,
    Floats,
    Indices,
    Untestable,
    ValueOracle,
    check_reply,
)
from evalguard.bisect.search_probe import LAUNCH, Outcome
from evalguard.bisect.yardstick import Unit, Yardstick
from evalguard.core.settings import Value

_GLANCE = 4  # a quarter of the documents is asked first
_ENOUGH = 64  # documents that may show an alternative to be too bad
_CLEARLY = 4.0  # standard errors beyond the margin


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An assignment that was tried.

    Attributes:
        values: of the culprits; all other settings had their candidate value.
        documents: how many were scored.
        drift_sigma: over those, as reported; NaN if they were not scored.
        passed: whether the gate passes, on all documents.
        outcome: scored, or why not.
        untestable: the same in words; empty if scored.
        cost: in full evaluations.
    """

    values: Mapping[str, Value]
    documents: int
    drift_sigma: float
    passed: bool
    outcome: Outcome
    untestable: str
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Values of the culprits with which the gate passes, and everything that was tried."""

    values: Mapping[str, Value]
    drift_sigma: float
    trials: tuple[Trial, ...]

    @property
    def cost(self) -> float:
        """Of all trials, in full evaluations."""
        return sum(trial.cost for trial in self.trials)


def recommend(
    oracle: ValueOracle,
    culprits: Sequence[str],
    alternatives: Mapping[str, Sequence[Value]],
    *,
    references: Mapping[str, Value],
    margin: float,
    yardstick: float,
    unit: Unit | None = None,
    budget: float | None = None,
) -> Recommendation | None:
    """Find values of the culprits that pass the gate; None if none was shown to.

    Args:
        oracle: measures values, and the base's scores as ``measure(frozenset(), ...)``.
        culprits: names, the costliest first; of those the first chooses first.
        alternatives: of each culprit, in order of preference; may be missing.
        references: the reference value of each culprit.
        margin: drift that is tolerated, in units of ``yardstick``.
        yardstick: the base's standard error, in units of the scores.
        unit: see ``find_culprits``.
        budget: full evaluations that may be spent; when they are, the best so far is returned.
    """
    bench = _Bench(oracle, margin, Yardstick(size=yardstick, unit=unit), budget)
    chosen: dict[str, Value] = {name: references[name] for name in culprits}
    verified: Trial | None = None
    try:
        for name in culprits:
            for value in alternatives.get(name, ()):
                trial = bench.trial({**chosen, name: value})
                if trial.passed:
                    chosen[name], verified = value, trial
                    break
        if verified is None:
            last = bench.trial(chosen)
            verified = last if last.passed else None
    except (KeyboardInterrupt, OutOfBudget):
        pass  # what is verified so far stands
    if verified is None:
        return None
    return Recommendation(
        values=verified.values, drift_sigma=verified.drift_sigma, trials=tuple(bench.trials)
    )


class _Bench:
    """Tries assignments, and keeps what came out."""

    def __init__(
        self, oracle: ValueOracle, margin: float, yardstick: Yardstick, budget: float | None
    ) -> None:
        self.trials: list[Trial] = []
        self._oracle, self._margin, self._yardstick = oracle, margin, yardstick
        self._left = np.inf if budget is None else budget
        self._first, self._rest = _parts(oracle)
        everything = np.arange(oracle.n_documents)
        self._base = np.asarray(oracle.measure(frozenset(), everything), dtype=np.float64)

    def trial(self, values: Mapping[str, Value]) -> Trial:
        """Try an assignment; on part of the documents only, where that shows it to be too bad."""
        n = self._base.size
        if self._left < 1.0 + LAUNCH:
            raise OutOfBudget
        drift: Floats = np.empty(0)
        refusal: Untestable | None = None
        try:
            for documents in (self._first, self._rest):
                if documents.size and not self._hopeless(drift):
                    scores = check_reply(self._oracle.measure_values(values, documents))
                    if isinstance(scores, Untestable):
                        raise scores
                    drift = np.concatenate([drift, self._base[documents] - scores])
        except Untestable as error:
            refusal = error
        sigma = float(np.mean(drift)) / self._yardstick.size if drift.size else np.nan
        trial = Trial(
            values=dict(values),
            documents=drift.size,
            drift_sigma=self._yardstick.reported(sigma) if refusal is None else np.nan,
            passed=refusal is None and drift.size == n and sigma <= self._margin,
            outcome="scored" if refusal is None else refusal.kind,
            untestable="" if refusal is None else refusal.reason,
            cost=LAUNCH + drift.size / n,
        )
        self.trials.append(trial)
        self._left -= trial.cost
        return trial

    def _hopeless(self, drift: Floats) -> bool:
        if drift.size < _ENOUGH:
            return False
        error = float(np.std(drift, ddof=1)) / np.sqrt(drift.size)
        beyond = float(np.mean(drift)) - self._margin * self._yardstick.size
        return bool(beyond > deviations(_CLEARLY, drift.size) * error)


def _parts(oracle: ValueOracle) -> tuple[Indices, Indices]:
    """The documents that are asked first, and the others; whole blocks where there are any."""
    n = oracle.n_documents
    if not isinstance(oracle, BlockOracle):
        return np.arange(0, n, _GLANCE), np.setdiff1d(np.arange(n), np.arange(0, n, _GLANCE))
    blocks = [np.asarray(block, dtype=np.intp) for block in oracle.blocks]
    first = blocks[::_GLANCE]
    rest = [block for at, block in enumerate(blocks) if at % _GLANCE]
    return np.concatenate(first), np.concatenate([*rest, np.empty(0, dtype=np.intp)])
