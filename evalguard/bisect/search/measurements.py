"""Measurements: everything measured so far, each once, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.search.block_estimates import (
    Blocks,
    Estimates,
    Flips,
    Jitter,
    blocks_for,
    few_change,
    twins,
)
from evalguard.bisect.search.buildable import Buildable
from evalguard.bisect.search.search_result import (
    LAUNCH,
    Listener,
    Probe,
    ProbeEnded,
    ProbeStarted,
    Yardstick,
)
from evalguard.core.amounts import finite_or_none
from evalguard.core.question import (
    BlockOracle,
    Floats,
    Indices,
    Mask,
    Oracle,
    ParallelOracle,
    Question,
    Untestable,
    request_scores,
)

_ROW_ROUNDING = 1e-5  # of a drift
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
        return max(error, _ROW_ROUNDING * float(np.max(np.abs(self.sigma), initial=0.0)))

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


# Of the base's standard deviation over documents: what rounding leaves of a change that cancels.
_ROUNDING = 1e-4
_UNDONE = 0.1  # of what a part of some settings does: what their jitter leaves of it at most


class OutOfBudget(Exception):
    """The next measurement would cost more than is left."""


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
        yardstick: Yardstick,
        budget: float | None,
        buildable: Buildable,
        rng: np.random.Generator,
        listen: Listener,
        counted: bool = False,
        document_costs: tuple[Floats, Floats] | None = None,
    ) -> None:
        self.settings, self.yardstick = settings, yardstick
        self.probes: list[Probe] = []
        self.spent = 0.0
        self._oracle, self._budget = oracle, budget
        self._buildable, self._listen = buildable, listen
        self._base, drift = _sides(oracle, settings)
        given = oracle.blocks if isinstance(oracle, BlockOracle) else None
        self.blocks: Blocks = blocks_for(given, drift, rng, counted=counted)
        self._costs = _cumulated(document_costs, self.blocks.order)
        self._counted = counted
        self._flips = Flips.of(drift[self.blocks.order], counted=counted)
        self._estimates = self._estimated()
        whole = np.ones(len(settings), dtype=np.bool_)
        self._masks = {whole.tobytes(): whole}
        self._drift = {whole.tobytes(): drift[self.blocks.order]}
        self._rows: Rows | None = None
        self.joined = frozenset[int]()
        self.spent_before_joining = 0.0  # most of it told which settings are one, and nothing else
        buildable.learn(whole, built=True)

    @property
    def total(self) -> float:
        """The candidate's drift in units of the yardstick."""
        return self.mean(np.ones(len(self.settings), dtype=np.bool_))

    @property
    def base_mean(self) -> float:
        """Mean score of the model with every setting at reference, in units of the scores."""
        return float(np.mean(self._base))

    def mean(self, mask: Mask) -> float:
        """Mean drift over the documents measured under this assignment; 0 for the base."""
        if not mask.any():
            return 0.0
        return float(np.mean(self._drift[mask.tobytes()])) / self.yardstick.size

    def drift(self, mask: Mask) -> Floats:
        """Drift of each document measured under this assignment, in the order asked; (k,)."""
        if not mask.any():
            return np.zeros(self.blocks.ends[-1])
        return self._drift[mask.tobytes()]

    def measured(self, mask: Mask) -> float:
        """Share of the documents that are measured under this assignment; 1 for the base."""
        if not mask.any():
            return 1.0
        return self._measured(mask) / self.blocks.ends[-1]

    def complete(self, mask: Mask) -> bool:
        """Whether all documents are measured under this assignment."""
        return self.measured(mask) >= 1.0 - FULL

    def cost(self, mask: Mask, share: float) -> float:
        """What it would cost to measure this assignment up to this share of the documents."""
        done = self._measured(mask)
        documents = max(self.blocks.up_to(share) - done, 0)
        return documents / self.blocks.ends[-1] + (0.0 if done else LAUNCH)

    def expected_cost(self, mask: Mask, share: float, drifting: float) -> float:
        """Likewise, where documents cost more that change as under the candidate.

        ``drifting``: share of those that change there which are to change here.
        """
        if self._costs is None:
            return self.cost(mask, share)
        done, end = self._measured(mask), max(self.blocks.up_to(share), self._measured(mask))
        base, candidate = (costs[end] - costs[done] for costs in self._costs)
        cost = float(base + drifting * (candidate - base)) / float(self._costs[0][-1])
        return cost + (0.0 if done else LAUNCH)

    def measure(self, mask: Mask, share: float) -> bool:
        """Measure up to this share of the documents; False if the assignment cannot be built.

        Raises:
            OutOfBudget: before anything is asked.
            KeyboardInterrupt: from the oracle; nothing is kept of this measurement.
        """
        return self.measure_all([mask], share)[0]

    def measure_all(self, masks: Sequence[Mask], share: float) -> list[bool]:
        """Measure different assignments, at once if the oracle can; see ``measure``.

        Raises:
            OutOfBudget: when what the budget allows is measured.
        """
        wanted = [mask for mask in masks if self._open(mask, share)]
        costs = np.cumsum([self.cost(mask, share) for mask in wanted])
        remaining = np.inf if self._budget is None else self._budget - self.spent + FULL
        affordable = wanted[: int(np.searchsorted(costs, remaining, side="right"))]
        alone = not isinstance(self._oracle, ParallelOracle)
        for batch in [[mask] for mask in affordable] if alone else [affordable]:
            self._ask(batch, share)
        if len(affordable) < len(wanted):
            raise OutOfBudget
        return [not self._buildable.refused(mask) for mask in masks]

    def _open(self, mask: Mask, share: float) -> bool:
        """Whether there is anything to ask."""
        done = self._measured(mask) >= self.blocks.up_to(share)
        return bool(mask.any()) and not done and not self._buildable.refused(mask)

    def _ask(self, masks: list[Mask], share: float) -> None:
        questions: list[Question] = []
        for mask in masks:
            documents = self.blocks.order[self._measured(mask) : self.blocks.up_to(share)]
            names = self._names(mask)
            cost = self.cost(mask, share)
            self._listen(ProbeStarted(settings=names, documents=documents.size, cost=cost))
            questions.append((frozenset(names), documents))
        for mask, question, answer in zip(
            masks, questions, request_scores(self._oracle, questions), strict=True
        ):
            cost = self.cost(mask, share)
            if isinstance(answer, Untestable):
                self._buildable.learn(mask, built=False)
                self._keep(mask, 0, LAUNCH if self._measured(mask) == 0 else 0.0, answer)
                continue
            key = mask.tobytes()
            drift = np.concatenate(
                [self._drift.get(key, np.empty(0)), self._base[question[1]] - answer]
            )
            self._masks[key], self._drift[key], self._rows = mask.copy(), drift, None
            self._buildable.learn(mask, built=True)
            self._keep(mask, question[1].size, cost, None)

    def rows(self) -> Rows:
        """All of it, as rows."""
        if self._rows is None:
            drifts = [self._drift[key] for key in self._telling]
            unit = self.yardstick.size
            masks = [self._masks[key] for key in self._telling]
            means, variances = self._estimates.of(masks, drifts, self.blocks.ends[-1])
            self._rows = Rows(
                masks=np.array(masks),
                sigma=means / unit,
                variance=variances / unit**2,
                share=np.array([drift.size for drift in drifts]) / self.blocks.ends[-1],
                twin=twins(drifts),
            )
        return self._rows

    def noise(self) -> float:
        """Variance of a typical measurement of all documents, in squared yardsticks."""
        rows = self.rows()
        typical = rows.variance * rows.share
        if self._flips is None:
            return float(np.median(typical)) + 1e-12
        least = self._flips.glance / self.yardstick.size**2
        return max(float(np.median(typical[1:])) if typical.size > 1 else 0.0, least)

    def others_error(self, repaired: Mask | None) -> float:
        """What the others do, where they change few documents: it stands against the culprits.

        Standard error, in yardsticks, of the mean drift without the culprits; 0 where the others
        change no score, or many: then the rows tell their jitter.
        """
        if repaired is None:
            return 0.0
        if not self.complete(repaired):
            return 0.0 if self._flips is None else np.inf
        drift = self._drift.get(repaired.tobytes(), np.zeros(1))
        if not few_change(drift, counted=self._counted):
            return 0.0
        return float(np.sqrt(np.mean(drift**2) / self.blocks.ends[-1])) / self.yardstick.size

    @property
    def counts_flips(self) -> bool:
        """Whether the candidate changes few documents."""
        return self._flips is not None

    def finished_drifts(self) -> Floats:
        """Drift of each document, of the rows that are complete; (rows, n)."""
        n = self.blocks.ends[-1]
        drifts = [self._drift[key] for key in self._telling]
        return np.array([drift for drift in drifts if drift.size == n])

    def as_base(self, mask: Mask) -> bool:
        """Whether all documents are measured under this assignment, and score as the base's."""
        return self.complete(mask) and not (mask.any() and self._drift[mask.tobytes()].any())

    @property
    def unmoved(self) -> bool:
        """Whether the candidate scores every document as the base does, but for rounding."""
        whole = np.ones(len(self.settings), dtype=np.bool_)
        spread = self.yardstick.size * float(np.sqrt(self.blocks.ends[-1]))
        return _root_mean_square(self.drift(whole)) <= _ROUNDING * spread

    def undone(self, mask: Mask) -> bool:
        """Whether some of these settings undo what others of them do, on each document measured.

        Two mistakes that hide each other make each document better or worse; what a scale does,
        and what takes it back, leave it as it was.
        """
        parts = [key for key, part in self._masks.items() if not (part & ~mask).any()]
        most = max(_root_mean_square(self._drift[key]) for key in parts)
        return _root_mean_square(self.drift(mask)) < _UNDONE * most

    def join(self, mask: Mask) -> None:
        """Take settings for one: what some of them do without the others is no evidence."""
        self.joined, self._rows = frozenset(np.flatnonzero(mask).tolist()), None
        self.spent_before_joining = self.spent
        self._estimates = self._estimated()
        self._buildable.tie(self._names(mask))

    def _estimated(self) -> Estimates:
        jitter = Jitter(self.blocks.order.size, self.blocks.lumpiness)
        return Estimates(jitter, self._flips)

    @property
    def _telling(self) -> list[bytes]:
        """Assignments that are evidence: those with all of what is one setting, or none."""
        inside = [(key, mask[[*self.joined]]) for key, mask in self._masks.items()]
        return [key for key, joined in inside if joined.all() or not joined.any()]

    def finished(self) -> set[bytes]:
        """Assignments measured on all documents, the base among them; the bytes of their masks."""
        base = np.zeros(len(self.settings), dtype=np.bool_)
        n = self.blocks.ends[-1]
        return {base.tobytes(), *(key for key, drift in self._drift.items() if drift.size == n)}

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

    def _names(self, mask: Mask) -> tuple[str, ...]:
        return tuple(name for name, inside in zip(self.settings, mask, strict=True) if inside)

    def _keep(self, mask: Mask, documents: int, cost: float, refusal: Untestable | None) -> None:
        self.spent += cost
        drift = self._drift.get(mask.tobytes(), np.empty(0))
        sigma = error = None
        if refusal is None:
            reported = self.yardstick.reported_with_error(
                self.mean(mask), float(np.std(drift) / np.sqrt(drift.size)) / self.yardstick.size
            )
            sigma, error = map(finite_or_none, reported)
        probe = Probe(
            settings=self._names(mask),
            documents=documents,
            documents_so_far=drift.size,
            drift_sigma=sigma,
            error_sigma=error,
            outcome="scored" if refusal is None else refusal.kind,
            reason="" if refusal is None else refusal.reason,
            cost=cost,
        )
        self.probes.append(probe)
        self._listen(ProbeEnded(probe=probe, spent=self.spent))


def _root_mean_square(drift: Floats) -> float:
    return float(np.sqrt(np.mean(drift**2)))


def _cumulated(costs: tuple[Floats, Floats] | None, order: Indices) -> tuple[Floats, Floats] | None:
    """Costs of the first 0, 1, ... documents as they are asked; None where there are none."""
    if costs is None or not (np.sum(costs[0]) > 0.0 and np.isfinite(costs).all()):
        return None
    base, candidate = (np.concatenate([[0.0], np.cumsum(side[order])]) for side in costs)
    return base, candidate


def _sides(oracle: Oracle, settings: tuple[str, ...]) -> tuple[Floats, Floats]:
    """Scores of the base, and the candidate's drift, on all documents.

    Raises:
        Untestable: one of them cannot be measured.
    """
    everything = np.arange(oracle.n_documents)
    sides = [(frozenset[str](), everything), (frozenset(settings), everything)]
    scores: list[Floats] = []
    for name, answer in zip(("base", "candidate"), request_scores(oracle, sides), strict=True):
        if isinstance(answer, Untestable):
            raise Untestable(f"the {name}: {answer.reason}", kind=answer.kind, hint=answer.hint)
        scores.append(answer)
    return scores[0], scores[0] - scores[1]
