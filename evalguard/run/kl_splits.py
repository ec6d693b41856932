"""The mean KL of a chain's candidates, split over its steps: what the engine does, and what
quantisation does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evalguard.core.reports.several_report import KlPart, KlSplit, StepKind
from evalguard.run.cluster_fields import cluster_documents
from evalguard.run.finished_comparison import FinishedComparison
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.scoring.task_distributions import cluster_labels
from evalguard.run.sources import ModelSource, Source
from evalguard.stats.kl_parts import kl_parts
from evalguard.stats.positions import Positions

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
    finished = [one for one in chain if one is not None]
    if len(path) < 2 or len(finished) < len(path):
        return None
    last = finished[-1]
    if not any(one.moved for one in last.report.distributions):
        return None
    confidence = last.report.gate.confidence
    positions = [_positions(one, confidence) for one in finished]
    known = [of for of in positions if of]
    if len(known) < len(path):
        return None
    parts = kl_parts(known, confidence=confidence)
    if parts is None:
        return None
    models = [(last.sources[0], last.scored[0])]
    models += [(one.sources[1], one.scored[1]) for one in finished]
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
    (source, side), (other, later) = before, after
    if not (isinstance(source, ModelSource) and isinstance(other, ModelSource)):
        return ""
    bits, fewer = (_bits(one) for one in (side, later))
    if source.variant.model != other.variant.model:
        return "engine" if fewer is not None and fewer >= _UNQUANTISED else ""
    return "quantisation" if bits is not None and fewer is not None and fewer < bits else ""


def _bits(side: ScoredSide) -> float | None:
    size = side.identity.size
    return None if size is None or size.loaded_as else size.bits_per_weight
