"""How far variations move an unchanged model's next-token distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evalguard.distribution_comparison import DistributionComparison
from evalguard.distribution_floor import DistributionShift
from evalguard.noise_floor import Unmeasured, Variation
from evalguard.pipeline.divergences import TaskDivergences
from evalguard.scores import ScoreTable
from evalguard.stats.distribution import compare_distributions

_KL = "kl"


def distribution_shifts(
    variation: Variation,
    divergences: Mapping[str, TaskDivergences],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
) -> Iterator[DistributionShift | Unmeasured]:
    """Yield what was measured of each task's distributions, or why it gives no number.

    Args:
        divergences: of the varied run from the usual one; a task without any is passed over.
        tables: of the usual run, which know the clusters of documents.
    """
    for task, found in divergences.items():
        if not found.documents:
            continue
        table = next((table for table in tables if table.task == task and table.clusters), None)
        compared = compare_distributions(
            task,
            found.documents,
            confidence=confidence,
            clusters=None if table is None else _labels(table),
            cluster_field="" if table is None else table.cluster_field,
        )
        shift = _shift(variation, compared)
        yield shift or Unmeasured(
            factor=variation.factor,
            name=variation.name,
            reason=compared.failure,
            task=task,
            metric=_KL,
        )


def _labels(table: ScoreTable) -> dict[int, str]:
    return {int(doc): label for doc, label in zip(table.doc_ids, table.clusters, strict=True)}


def _shift(variation: Variation, compared: DistributionComparison) -> DistributionShift | None:
    largest, same = compared.kl_at(100.0), compared.same_top1
    if compared.kl.value is None or largest.value is None or same.value is None:
        return None
    return DistributionShift(
        variation=variation.name,
        task=compared.task,
        n=compared.n,
        positions=compared.positions,
        kl=compared.kl.value,
        kl_interval=compared.kl.interval,
        kl_bounds=compared.kl.bounds,
        kl_max=largest.value,
        top1_changed=1.0 - same.value,
        top1_changed_interval=_complement(same.interval),
        bit_identical=compared.bit_identical,
        confidence=compared.confidence,
        caveats=compared.caveats,
    )


def _complement(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (1.0 - interval[1], 1.0 - interval[0])
