"""From what was measured at every position to one comparison of distributions per task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.reports.findings import Finding
from evalguard.core.scores import ScoreTable
from evalguard.core.shown_tokens import KlEstimate, ShownTokens
from evalguard.run.scoring.divergences import GENERATION_ONLY, TaskDivergences
from evalguard.stats.distribution import compare_distributions
from evalguard.stats.kl_of_servers import estimate_kl


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
        _compare_task(one, tables, confidence, llama_cpp)
        for one in divergences
        if one.reason != GENERATION_ONLY
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
    doc_ids = [one.doc_id for one in measured.documents]
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
    moved = [one for one in distributions if not one.failure and one.moved_far]
    if not moved:
        return ()
    most = min(moved, key=lambda one: (one.same_top1.value or 0.0, -(one.kl.value or 0.0)))
    kl, top1 = most.kl.value or 0.0, most.same_top1.value or 0.0
    others = len(moved) - 1
    more = f"; {others} more task{'' if others == 1 else 's'} too" if others else ""
    # without a full stop, and no number that JSON cannot hold
    text = (
        f"beneath the scores the distributions moved by more than rounding makes: KL {kl:.2g} nats "
        f"a token, another most likely token at {100 * (1 - top1):.2g}% of positions{more}"
    )
    finite = kl if math.isfinite(kl) else None
    return (
        Finding(
            kind="distributions_moved",
            text=text,
            task=most.task,
            values={"kl": finite, "same_top1": top1, "tasks": tuple(one.task for one in moved)},
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


def cluster_labels(
    task: str, doc_ids: Iterable[int], tables: Sequence[ScoreTable]
) -> tuple[Mapping[int, str] | None, str]:
    """Each document's label, and the field it comes from; None where each stands alone.

    A document that no metric has a value for belongs to no cluster but its own.
    """
    clustered = [table for table in tables if table.task == task and table.clusters]
    if not clustered:
        return None, ""
    labels = {
        doc_id: f"in {label}"
        for table in clustered
        for doc_id, label in zip(table.doc_ids.tolist(), table.clusters, strict=True)
    }
    alone = {doc_id: f"document {doc_id}" for doc_id in doc_ids}
    return {**alone, **labels}, clustered[0].cluster_field
