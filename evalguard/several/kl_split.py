"""The mean KL of a chain's candidates, split over its steps: what the engine does, and what
quantisation does.

KL is no distance and does not add up: KL(a||b) + KL(b||c) is not KL(a||c). What does, exactly and
whatever the three distributions are, is

    KL(a||c) = KL(a||b) + E_a[log b - log c]

so that a step from b to c adds KL(a||c) - KL(a||b), seen from the base a. It may be below 0, where
a step takes back what one before it did; and where two steps move logits in related directions,
what they do together counts for the later one. Both are of the same tokens, so that errors of parts
and shares are paired: ratios of sums over documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.core.distribution_comparison import Figure
from evalguard.core.moments import Array
from evalguard.distributions.kl import Positions, ratio_estimate
from evalguard.engine.cluster_fields import cluster_documents
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource, Source
from evalguard.several.several_report import KlPart, KlSplit, StepKind
from evalguard.stats.clusters import cluster_labels


def kl_parts(
    models: Sequence[Sequence[Positions]], *, confidence: float
) -> list[tuple[Figure, Figure]] | None:
    """Return what each model of a chain adds to the last one's mean KL: nats a token, and a share.

    Args:
        models: of each model after the base its positions of every task, KL from the base; the same
            documents, tokens and clusters of all.

    Returns:
        None where the positions are not the same, where KL is not a finite number, where there are
        fewer than two documents, or no KL to split.
    """
    first, last = models[0], models[-1]
    if not all(_same_tokens(first, model) for model in models):
        return None
    sums = [_concatenated([task.sums(task.column("kl")) for task in of]) for of in models]
    tokens = _concatenated([task.weights for task in last])
    total = float(np.sum(sums[-1]))
    if len(tokens) < 2 or not all(np.isfinite(summed).all() for summed in sums) or total <= 0.0:
        return None
    before = [np.zeros_like(tokens), *sums[:-1]]
    return [
        (
            _figure(after - earlier, tokens, confidence),
            _figure(after - earlier, sums[-1], confidence),
        )
        for earlier, after in zip(before, sums, strict=True)
    ]


def _figure(sums: Array, weights: Array, confidence: float) -> Figure:
    if np.array_equal(sums, weights):
        return Figure(value=1.0, stderr=0.0, interval=(1.0, 1.0))
    estimate = ratio_estimate(sums, weights, confidence=confidence)
    return Figure(
        value=estimate.point, stderr=estimate.stderr, interval=(estimate.low, estimate.high)
    )


def _same_tokens(one: Sequence[Positions], other: Sequence[Positions]) -> bool:
    return len(one) == len(other) and all(
        ours.requests == theirs.requests
        and np.array_equal(ours.units, theirs.units)
        and all(
            np.array_equal(a.token_ids, b.token_ids)
            for a, b in zip(ours.divergences, theirs.divergences, strict=True)
        )
        for ours, theirs in zip(one, other, strict=True)
    )


def _concatenated(arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0)


_UNQUANTISED = 15.5  # bits a weight: 16 with vectors of 32 on top, or a few of fewer bits below


def split_kl(
    path: Sequence[tuple[str, str]], found: Mapping[str, FinishedComparison]
) -> KlSplit | None:
    """Return a candidate's KL split over the steps of its path; None where it cannot be.

    Args:
        path: steps from the base to the candidate, by the names of their two models.
        found: comparisons with the base, by the candidate's name.
    """
    chain = [found.get(after) for _, after in path]
    finished = [comparison for comparison in chain if comparison is not None]
    if len(path) < 2 or len(finished) < len(path):
        return None
    last = finished[-1]
    if not any(distribution.moved for distribution in last.report.distributions):
        return None
    confidence = last.report.gate.confidence
    positions = [_positions(comparison, confidence) for comparison in finished]
    known = [of for of in positions if of]
    if len(known) < len(path):
        return None
    parts = kl_parts(known, confidence=confidence)
    if parts is None:
        return None
    models = [(last.sources[0], last.scored[0])]
    models += [(comparison.sources[1], comparison.scored[1]) for comparison in finished]
    return KlSplit(
        candidate=last.report.candidate.name,
        parts=tuple(
            KlPart(step=step, kind=_kind(before, after), kl=kl, share=share)
            for step, before, after, (kl, share) in zip(
                path, models[:-1], models[1:], parts, strict=True
            )
        ),
    )


def _positions(one: FinishedComparison, confidence: float) -> list[Positions]:
    """Of every task with distributions; [] where one of them was not measured."""
    measured = [task for task in one.scored[1].divergences.values() if task.documents]
    asked = [each.task for each in one.report.distributions]
    if [task.task for task in measured] != asked:
        return []
    base, candidate = one.scored
    tables = cluster_documents(
        base.tables, {**candidate.fields, **base.fields}, one.choices.clusters
    )
    labels = (
        cluster_labels(task.task, [each.doc_id for each in task.documents], tables)[0]
        for task in measured
    )
    return [
        Positions.of(task.documents, confidence=confidence, clusters=of_documents)
        for task, of_documents in zip(measured, labels, strict=True)
    ]


def _kind(before: tuple[Source, ScoredSide], after: tuple[Source, ScoredSide]) -> StepKind:
    """What a step changes, where that is one thing: by model types, and bits of the weights."""
    (source, side), (target, later) = before, after
    if not (isinstance(source, ModelSource) and isinstance(target, ModelSource)):
        return ""
    bits, fewer = (_bits(scored) for scored in (side, later))
    if source.variant.model != target.variant.model:
        return "engine" if fewer is not None and fewer >= _UNQUANTISED else ""
    return "quantisation" if bits is not None and fewer is not None and fewer < bits else ""


def _bits(side: ScoredSide) -> float | None:
    size = side.identity.size
    return None if size is None or size.loaded_as else size.bits_per_weight
