"""From what was measured at every position, or shown by servers, to one comparison a task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evalguard.core.amounts import finite_or_none
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.divergence import TOP_K, Divergence, DocumentDivergence
from evalguard.core.findings import Finding
from evalguard.core.moments import Array, exact_sum
from evalguard.core.scorer import ComparedAnswer, Request
from evalguard.core.scores import ScoreTable
from evalguard.core.shown_tokens import KlEstimate, ShownTokens, bound_kl
from evalguard.distributions.kl import compare_distributions, ratio_estimate
from evalguard.stats.clusters import cluster_labels
from evalguard.stats.compare_scores import check_confidence

GENERATION_ONLY = "it generates text, and only scored tokens have distributions to be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDivergences:
    """How two models' distributions differ on one task's documents.

    ``documents`` is empty where that was not measured; ``reason`` says why.
    """

    task: str
    documents: tuple[DocumentDivergence, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class DivergenceTables:
    """What was measured so far, by task and document."""

    reasons: dict[str, str] = field(default_factory=dict)
    _found: dict[str, dict[int, dict[int, Divergence]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    def add(self, requests: Sequence[Request], compared: ComparedAnswer) -> None:
        """Take in one block; a task of which one block cannot be compared is not measured."""
        task = requests[0].task
        if compared.reason:
            self.give_up(task, compared.reason)
            return
        for request, divergence in zip(requests, compared.divergences, strict=True):
            recorded = _NO_POSITIONS if divergence is None else divergence
            self._found[task][request.doc_id][request.index] = recorded

    def give_up(self, task: str, reason: str) -> None:
        """Say why a task is not measured; the first reason counts."""
        self.reasons.setdefault(task, reason)

    def of(self, tasks: Sequence[str]) -> Mapping[str, TaskDivergences]:
        """Return what was measured; a task without any likelihood request generates."""
        return {task: self._of(task) for task in tasks}

    def _of(self, task: str) -> TaskDivergences:
        if task in self.reasons or task not in self._found:
            return TaskDivergences(task=task, reason=self.reasons.get(task, GENERATION_ONLY))
        documents = tuple(
            DocumentDivergence(doc_id=doc_id, requests=tuple(of for _, of in sorted(asked.items())))
            for doc_id, asked in sorted(self._found[task].items())
        )
        return TaskDivergences(task=task, documents=documents)


_NO_POSITIONS = Divergence(
    token_ids=np.empty(0, dtype=np.int64),
    base_logprobs=np.empty(0),
    candidate_logprobs=np.empty(0),
    kl=np.empty(0),
    base_top=np.empty(0, dtype=np.int64),
    candidate_top=np.empty(0, dtype=np.int64),
    shared_top=np.empty(0, dtype=np.int64),
    top_k=TOP_K,
)
_NAMED_OTHERWISE = (
    "base and candidate show no token of the same name: one by text and the other by id, or "
    "from other vocabularies"
)


def estimate_kl(
    task: str,
    base: ShownTokens,
    candidate: ShownTokens,
    *,
    confidence: float = 0.95,
    clusters: Mapping[int, str] | None = None,
) -> KlEstimate:
    """Bound the mean KL(base || candidate) of a task from below.

    Positions of one document are not independent: standard errors are those of a ratio of sums
    over documents, or over clusters of them.

    Args:
        clusters: doc_id -> label of the documents that belong together; None: each stands alone.

    Returns:
        The estimate; with a ``failure`` and no numbers where the two do not show the same
        positions, or no token of the same name.

    Raises:
        ValueError: for an impossible confidence.
    """
    check_confidence(confidence)
    failed = KlEstimate(task=task, n=0, positions=0, confidence=confidence)
    if not _same_positions(base, candidate):
        return replace(failed, failure="base and candidate do not show the same positions")
    units: dict[object, list[Array]] = {}
    documents = 0
    for doc_id in sorted(base):
        rows = [
            np.stack(bound_kl(*both))
            for both in zip(base[doc_id], candidate[doc_id], strict=True)
            if both[0]
        ]
        documents += bool(rows)
        for row in rows:
            of = doc_id if clusters is None else clusters.get(doc_id, doc_id)
            units.setdefault(of, []).append(row)
    if not units:
        return replace(failed, failure="no token was scored")
    weights = np.array([sum(row.shape[1] for row in rows) for rows in units.values()], dtype=float)
    sums = np.array([np.concatenate(rows, axis=1).sum(axis=1) for rows in units.values()])
    if not sums[:, 2].any():
        return replace(failed, failure=_NAMED_OTHERWISE)
    return KlEstimate(
        task=task,
        n=documents,
        positions=int(weights.sum()),
        tokens=exact_sum(sums[:, 2]) / exact_sum(weights),
        kl_at_least=_mean_of_units(sums[:, 0], weights, confidence, most=np.inf),
        mass_seen=_mean_of_units(sums[:, 1], weights, confidence, most=1.0),
        confidence=confidence,
    )


def _same_positions(base: ShownTokens, candidate: ShownTokens) -> bool:
    return base.keys() == candidate.keys() and all(
        [len(tokens) for tokens in base[doc_id]] == [len(tokens) for tokens in candidate[doc_id]]
        for doc_id in base
    )


def _mean_of_units(sums: Array, weights: Array, confidence: float, *, most: float) -> Figure:
    """Mean over all positions; its interval ends at 0 and at ``most``."""
    if len(weights) < 2:
        return Figure(value=exact_sum(sums) / exact_sum(weights))
    estimate = ratio_estimate(sums, weights, confidence=confidence)
    return Figure(
        value=estimate.point,
        stderr=estimate.stderr,
        interval=(max(estimate.low, 0.0), min(estimate.high, most)),
    )


def compare_task_distributions(
    divergences: Iterable[TaskDivergences],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
    llama_cpp: bool = False,
) -> tuple[DistributionComparison, ...]:
    """Compare two models' distributions, task by task.

    A task that only generates has no scored token, and is left out. Any other one that was not
    measured is a failure with its reason, so that no limit of the gate passes over it.

    Args:
        tables: of one side, with the clusters of their documents.
        llama_cpp: whether one side is a GGUF in llama.cpp, whose own figures are wanted, too.
    """
    return tuple(
        _compare_task(measured, tables, confidence, llama_cpp)
        for measured in divergences
        if measured.reason != GENERATION_ONLY
    )


def _compare_task(
    measured: TaskDivergences, tables: Sequence[ScoreTable], confidence: float, llama_cpp: bool
) -> DistributionComparison:
    if measured.reason:
        return DistributionComparison(
            task=measured.task,
            n=0,
            positions=0,
            top_k=0,
            confidence=confidence,
            failure=measured.reason,
        )
    doc_ids = [document.doc_id for document in measured.documents]
    clusters, field = cluster_labels(measured.task, doc_ids, tables)
    return compare_distributions(
        measured.task,
        measured.documents,
        confidence=confidence,
        clusters=clusters,
        cluster_field=field,
        llama_cpp=llama_cpp,
    )


def find_moved_distributions(
    distributions: Sequence[DistributionComparison],
) -> tuple[Finding, ...]:
    """Say, once, that distributions moved by more than rounding makes, by the worst task."""
    moved = [
        distribution
        for distribution in distributions
        if not distribution.failure and distribution.moved_far
    ]
    if not moved:
        return ()
    most = min(
        moved,
        key=lambda distribution: (
            distribution.same_top1.value or 0.0,
            -(distribution.kl.value or 0.0),
        ),
    )
    kl, top1 = most.kl.value or 0.0, most.same_top1.value or 0.0
    remaining = len(moved) - 1
    suffix = f"; {remaining} more task{'' if remaining == 1 else 's'} too" if remaining else ""
    # without a full stop, and no number that JSON cannot hold
    text = (
        f"beneath the scores the distributions moved by more than rounding makes: KL {kl:.2g} nats "
        f"a token, another most likely token at {100 * (1 - top1):.2g}% of positions{suffix}"
    )
    finite = finite_or_none(kl)
    return (
        Finding(
            kind="distributions_moved",
            text=text,
            task=most.task,
            values={
                "kl": finite,
                "same_top1": top1,
                "tasks": tuple(distribution.task for distribution in moved),
            },
        ),
    )


def estimate_task_kl(
    base: Mapping[str, ShownTokens],
    candidate: Mapping[str, ShownTokens],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
) -> tuple[KlEstimate, ...]:
    """Bound KL from below, task by task, from the tokens that both sides show.

    Where only one of them shows some, that is a failure.
    """
    return tuple(
        estimate_kl(
            task,
            base[task],
            candidate[task],
            confidence=confidence,
            clusters=cluster_labels(task, base[task], tables)[0],
        )
        if task in base and task in candidate
        else KlEstimate(
            task=task,
            n=0,
            positions=0,
            confidence=confidence,
            failure=_ONE_SIDE.format(side="base" if task in candidate else "candidate"),
        )
        for task in dict.fromkeys((*base, *candidate))
    )


_ONE_SIDE = (
    "the {side} shows no tokens beside the scored ones (a server: model_args.top_logprobs; a "
    "Hugging Face model of this process does beside such a server)"
)
