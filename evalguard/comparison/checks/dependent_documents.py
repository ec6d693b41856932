"""Dependent documents: found in the differences, said, and taken together in interval and p."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import Comparison
from evalguard.core.document_columns import DocumentFields
from evalguard.core.findings import Finding
from evalguard.core.gate_state import Key
from evalguard.core.moments import Array
from evalguard.stats.dependence import (
    FEWEST,
    FEWEST_GROUPS,
    Dependence,
    group_dependence,
    order_dependence,
)
from evalguard.stats.drift import TaskContributions
from evalguard.stats.judgement import MetricComparison

# Chance that a run of independent documents is said to have dependent ones, over all its metrics
# and fields (Bonferroni).
LEVEL = 0.01
# Below this variance ratio the standard error is less than a tenth too small.
_WORTH_SAYING = 1.2
# A field accounts for dependence in document order where it explains so much of it.
_MOST_OF_IT = 0.6
# Of what documents lose together, so much is gained by others where a drift is one of noise.
_FEW_GAINS = 0.1
# By what factor standard errors are too small where neighbours drift alike as in AR(0.6).
_TOO_SMALL = 2.0
# A field with nearly as many values as documents groups hardly any of them.
_FEWEST_PAIRED = 0.2
# Compares a metric once more, of documents with these labels; the text says why.
CompareAgain = Callable[[Key, Mapping[int, str], str, str], MetricComparison]


@dataclass(frozen=True, slots=True, kw_only=True)
class DependentDocuments:
    """Dependence of one metric's documents.

    Attributes:
        field: that they share; "" for none.
        labels: doc_id -> what it is taken together with.
        is_one_loss: what drifts alike lost, and next to nothing gained: no noise of a model that is
            unchanged, so that the verdict on these documents stands.
    """

    comparison: Comparison
    dependence: Dependence
    field: str
    labels: Mapping[int, str]
    is_one_loss: bool = False


def account_for_dependence(
    compared: Sequence[MetricComparison],
    fields: Mapping[str, DocumentFields],
    compare_again: CompareAgain,
) -> tuple[tuple[MetricComparison, ...], tuple[DependentDocuments, ...]]:
    """Take documents together that drift alike, so that interval and p hold; say which.

    They are looked for by their order and by their fields. Documents that belong to declared
    clusters are looked at as whole clusters, in their order.

    Args:
        compared: metrics of tasks; those that are no sum over documents are not looked at.
        fields: task -> fields of its documents.
    """
    parts = list(_parts(compared))
    candidates = {task: _candidate_fields(fields.get(task)) for task in {c.task for c, _ in parts}}
    tests = sum(1 + (0 if part.clusters else len(candidates[c.task])) for c, part in parts)
    again: dict[Key, MetricComparison] = {}
    dependent = []
    for comparison, part in parts:
        documents = _look(comparison, part, candidates[comparison.task], LEVEL / tests)
        if documents is None:
            continue
        wider = compare_again(comparison.key, documents.labels, documents.field, _said(documents))
        stands = _is_really_worse(comparison) and not _is_really_worse(wider.comparison)
        if stands and _is_one_loss(documents, part):
            documents = replace(documents, is_one_loss=True)
        else:
            again[comparison.key] = wider
        dependent.append(documents)
    return tuple(again.get(metric.comparison.key, metric) for metric in compared), tuple(dependent)


def find_dependent_documents(found: Sequence[DependentDocuments]) -> tuple[Finding, ...]:
    """Say which documents drift alike.

    One finding for each field, and one for all that no field accounts for: each names the metric
    with the strongest dependence and counts the others.
    """
    alike: dict[tuple[str, bool], list[DependentDocuments]] = {}
    for documents in found:
        alike.setdefault((documents.field, documents.is_one_loss), []).append(documents)
    return tuple(_finding(of_field) for of_field in alike.values())


def find_unseen_dependence(compared: Sequence[MetricComparison]) -> tuple[Finding, ...]:
    """Say where a loss rests on documents too few to be looked at for dependence.

    One finding, which names the metric with the fewest, of those that would not be really worse
    with the standard error that neighbours alike as in AR(0.6) have.
    """
    few = [
        (count, metric.comparison)
        for metric in compared
        if _is_really_worse(metric.comparison)
        and _would_be_chance(metric.comparison)
        and 0 < (count := metric.comparison.clusters or metric.comparison.n_used) < FEWEST
    ]
    if not few:
        return ()
    count, fewest = min(few, key=lambda counted: counted[0])
    unit = "clusters" if fewest.clusters else "documents"
    text = f"{count} {unit} are too few to see whether neighbours drift alike; where they do, "
    text += "interval and p promise too much"
    remaining = len(few) - 1
    text += (
        f" ({remaining} more {'metric' if remaining == 1 else 'metrics'} alike)"
        if remaining
        else ""
    )
    return (
        Finding(
            kind="dependence_unknown",
            text=text,
            task=fewest.task,
            filter=fewest.filter,
            metric=fewest.metric,
            values={"units": unit, "n": count, "fewest": FEWEST},
        ),
    )


def _is_really_worse(comparison: Comparison) -> bool:
    return comparison.outcome == "regressed" and comparison.significant


def _would_be_chance(comparison: Comparison) -> bool:
    if comparison.sigma is None or comparison.sigma_interval is None:
        return False
    low, _ = comparison.sigma_interval
    return comparison.sigma - _TOO_SMALL * (comparison.sigma - low) <= 0.0


def _is_one_loss(one: DependentDocuments, part: TaskContributions) -> bool:
    sums: dict[str, float] = {}
    for doc, value in zip(part.doc_ids.tolist(), part.values.tolist(), strict=True):
        sums[one.labels[doc]] = sums.get(one.labels[doc], 0.0) + value
    lost = sum(value for value in sums.values() if value > 0.0)
    gained = -sum(value for value in sums.values() if value < 0.0)
    return gained <= _FEW_GAINS * lost


def _said(one: DependentDocuments) -> str:
    unit = "clusters" if one.comparison.clusters else "documents"
    if one.field:
        return f"documents with the same {one.field} drift alike, and count as one cluster"
    return f"neighbouring {unit} drift alike: {one.dependence.window} in a row count as one cluster"


def _parts(compared: Sequence[MetricComparison]) -> Iterator[tuple[Comparison, TaskContributions]]:
    for metric in compared:
        stopping = metric.comparison.stopping
        early = stopping is not None and stopping.early  # in a random order, and some left out
        if metric.contributions is None or early or metric.comparison.bit_identical:
            continue
        for part in metric.contributions.parts:
            if part.values.shape[0] >= FEWEST and np.any(part.values):
                yield metric.comparison, part


def _candidate_fields(fields: DocumentFields | None) -> dict[str, Mapping[int, str]]:
    """Fields that every document has and several share, each partition of the documents once."""
    if fields is None:
        return {}
    partitions: dict[tuple[int, ...], tuple[str, Mapping[int, str]]] = {}
    for name, labels in fields.labels.items():
        count = fields.count(name)
        most = (1.0 - _FEWEST_PAIRED) * fields.n
        if len(labels) < fields.n or not FEWEST_GROUPS <= count <= most:
            continue
        numbers: dict[str, int] = {}
        partition = tuple(
            numbers.setdefault(labels[doc_id], len(numbers)) for doc_id in sorted(labels)
        )
        partitions.setdefault(partition, (name, labels))
    return dict(partitions.values())


def _look(
    comparison: Comparison,
    part: TaskContributions,
    fields: Mapping[str, Mapping[int, str]],
    level: float,
) -> DependentDocuments | None:
    """The dependence of one metric that the reader is told of."""
    in_order = order_dependence(_in_order(part), level=level)
    if in_order is not None and in_order.design_effect < _WORTH_SAYING:
        in_order = None
    best: DependentDocuments | None = None
    for name, labels in () if part.clusters else fields.items():
        doc_ids = part.doc_ids.tolist()
        if any(doc_id not in labels for doc_id in doc_ids):
            continue
        dependence = group_dependence(
            part.residuals, [labels[doc_id] for doc_id in doc_ids], level=level
        )
        if dependence is None or dependence.design_effect < _WORTH_SAYING:
            continue
        if best is None or dependence.design_effect > best.dependence.design_effect:
            best = DependentDocuments(
                comparison=comparison,
                dependence=dependence,
                field=name,
                labels={doc_id: labels[doc_id] for doc_id in doc_ids},
            )
    if in_order is None:
        return best
    if best is not None and best.dependence.design_effect >= _MOST_OF_IT * in_order.design_effect:
        return best
    members, window = _units_in_order(part), in_order.window or 1
    blocks = {
        doc_id: f"block {member // window}"
        for doc_id, member in zip(part.doc_ids.tolist(), members.tolist(), strict=True)
    }
    return DependentDocuments(comparison=comparison, dependence=in_order, field="", labels=blocks)


def _in_order(part: TaskContributions) -> Array:
    """Residuals of documents, or of whole clusters in the order of their first documents."""
    return np.bincount(_units_in_order(part), weights=part.residuals).astype(np.float64)


def _units_in_order(part: TaskContributions) -> NDArray[np.int64]:
    """Of each document its place in the order, or that of its cluster."""
    if not part.clusters:
        return np.arange(part.doc_ids.shape[0])
    first: dict[str, int] = {}
    return np.array([first.setdefault(label, len(first)) for label in part.clusters])


def _finding(found: Sequence[DependentDocuments]) -> Finding:
    """One finding of all metrics whose documents share one field, or none that is known."""
    worst = max(found, key=lambda documents: documents.dependence.design_effect)
    dependence, comparison = worst.dependence, worst.comparison
    unit = "clusters" if comparison.clusters else "documents"
    remaining = len(found) - 1
    suffix = (
        f" ({remaining} more {'metric' if remaining == 1 else 'metrics'} alike)"
        if remaining
        else ""
    )
    counts = (
        f"drift alike: {dependence.n:,} count like about "
        f"{max(round(dependence.effective_n), 1):,}{suffix}"
    )
    who = f"documents with the same {worst.field}" if worst.field else f"neighbouring {unit}"
    if worst.is_one_loss:
        text = f"{who} {counts}; some lost, and next to none gained: a loss of these {unit}"
    elif worst.field:
        text = f"{who} {counts}; p and interval take them together, as --cluster {worst.field} does"
    else:
        text = f"{who} {counts}, no field accounts for it; p and interval "
        text += f"take {dependence.window} in a row as one"
    return Finding(
        kind="dependent_documents",
        text=text,
        task=comparison.task,
        filter=comparison.filter,
        metric=comparison.metric,
        values={
            "field": worst.field,
            "units": unit,
            "n": dependence.n,
            "effective_n": dependence.effective_n,
            "stderr_factor": dependence.stderr_factor,
            "p_value": dependence.p_value,
            "groups": dependence.groups,
            "window": dependence.window,
            "taken_together": not worst.is_one_loss,
            "metrics": tuple(
                f"{entry.comparison.task} {entry.comparison.filter} {entry.comparison.metric}"
                for entry in found
            ),
        },
    )
