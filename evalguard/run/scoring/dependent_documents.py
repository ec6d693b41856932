"""Dependent documents: found in the differences of a finished comparison, and said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.core.comparison import Comparison
from evalguard.core.document_fields import DocumentFields
from evalguard.core.reports.findings import Finding
from evalguard.stats.contributions import TaskContributions
from evalguard.stats.judgement import MetricComparison
from evalguard.stats.moments import Array
from evalguard.stats.series.dependence import (
    FEWEST,
    FEWEST_GROUPS,
    Dependence,
    group_dependence,
    order_dependence,
)

# Chance that a run of independent documents is said to have dependent ones, over all its metrics
# and fields (Bonferroni).
LEVEL = 0.01
# Below this variance ratio the standard error is less than a tenth too small.
_WORTH_SAYING = 1.2
# A field accounts for dependence in document order where it explains so much of it.
_MOST_OF_IT = 0.6
# A field with nearly as many values as documents groups hardly any of them.
_FEWEST_PAIRED = 0.2


@dataclass(frozen=True, slots=True)
class _Found:
    """Dependence of one metric's documents, and the field that they share, "" for none."""

    comparison: Comparison
    dependence: Dependence
    field: str


def find_dependent_documents(
    compared: Sequence[MetricComparison], fields: Mapping[str, DocumentFields]
) -> tuple[Finding, ...]:
    """Look for documents that drift alike, by their order and by their fields.

    Documents that belong to declared clusters are looked at as whole clusters, in their order.
    One finding for each field, and one for all that no field accounts for: each names the metric
    with the strongest dependence and counts the others.

    Args:
        compared: metrics of tasks; those that are no sum over documents are not looked at.
        fields: task -> fields of its documents.
    """
    parts = list(_parts(compared))
    candidates = {task: _candidate_fields(fields.get(task)) for task in {c.task for c, _ in parts}}
    tests = sum(1 + (0 if part.clusters else len(candidates[c.task])) for c, part in parts)
    found: dict[str, list[_Found]] = {}
    for comparison, part in parts:
        one = _look(comparison, part, candidates[comparison.task], LEVEL / tests)
        if one is not None:
            found.setdefault(one.field, []).append(one)
    return tuple(_finding(of_field) for of_field in found.values())


def _parts(compared: Sequence[MetricComparison]) -> Iterator[tuple[Comparison, TaskContributions]]:
    for one in compared:
        stopping = one.comparison.stopping
        early = stopping is not None and stopping.early  # in a random order, and some left out
        if one.contributions is None or early or one.comparison.bit_identical:
            continue
        for part in one.contributions.parts:
            if part.values.shape[0] >= FEWEST and np.any(part.values):
                yield one.comparison, part


def _candidate_fields(fields: DocumentFields | None) -> dict[str, Mapping[int, str]]:
    """Fields that every document has and several share, each partition of the documents once."""
    if fields is None:
        return {}
    found: dict[tuple[int, ...], tuple[str, Mapping[int, str]]] = {}
    for name, labels in fields.labels.items():
        count = fields.count(name)
        most = (1.0 - _FEWEST_PAIRED) * fields.n
        if len(labels) < fields.n or not FEWEST_GROUPS <= count <= most:
            continue
        numbers: dict[str, int] = {}
        partition = tuple(
            numbers.setdefault(labels[doc_id], len(numbers)) for doc_id in sorted(labels)
        )
        found.setdefault(partition, (name, labels))
    return dict(found.values())


def _look(
    comparison: Comparison,
    part: TaskContributions,
    fields: Mapping[str, Mapping[int, str]],
    level: float,
) -> _Found | None:
    """The dependence of one metric that the reader is told of."""
    in_order = order_dependence(_in_order(part), level=level)
    if in_order is not None and in_order.design_effect < _WORTH_SAYING:
        in_order = None
    best: _Found | None = None
    for name, labels in () if part.clusters else fields.items():
        doc_ids = part.doc_ids.tolist()
        if any(doc_id not in labels for doc_id in doc_ids):
            continue
        found = group_dependence(
            part.residuals, [labels[doc_id] for doc_id in doc_ids], level=level
        )
        if found is None or found.design_effect < _WORTH_SAYING:
            continue
        if best is None or found.design_effect > best.dependence.design_effect:
            best = _Found(comparison, found, name)
    if in_order is None:
        return best
    if best is not None and best.dependence.design_effect >= _MOST_OF_IT * in_order.design_effect:
        return best
    return _Found(comparison, in_order, "")


def _in_order(part: TaskContributions) -> Array:
    """Residuals of documents, or of whole clusters in the order of their first documents."""
    if not part.clusters:
        return part.residuals
    first: dict[str, int] = {}
    members = np.array([first.setdefault(label, len(first)) for label in part.clusters])
    return np.bincount(members, weights=part.residuals).astype(np.float64)


def _finding(found: Sequence[_Found]) -> Finding:
    """One finding of all metrics whose documents share one field, or none that is known."""
    worst = max(found, key=lambda one: one.dependence.design_effect)
    dependence, comparison = worst.dependence, worst.comparison
    unit = "clusters" if comparison.clusters else "documents"
    more = len(found) - 1
    others = f" ({more} more {'metric' if more == 1 else 'metrics'} alike)" if more else ""
    counts = (
        f"{dependence.n:,} count like about {max(round(dependence.effective_n), 1):,}{others}; p "
        "and interval do not hold"
    )
    if worst.field:
        text = f"documents with the same {worst.field} drift alike: {counts}; "
        text += f"--cluster {worst.field} takes it into account"
    else:
        text = f"neighbouring {unit} drift alike: {counts}, and no field accounts for it"
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
            "metrics": tuple(
                f"{one.comparison.task} {one.comparison.filter} {one.comparison.metric}"
                for one in found
            ),
        },
    )
