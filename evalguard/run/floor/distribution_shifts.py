"""How far variations move an unchanged model's next-token distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.distribution_floor import DistributionShift
from evalguard.core.noise_floor import Unmeasured, Variation
from evalguard.core.scores import ScoreTable
from evalguard.run.scoring.divergences import TaskDivergences
from evalguard.run.scoring.task_distributions import compare_task_distributions

_KL_METRIC = "kl"


def measure_distribution_shifts(
    variation: Variation,
    divergences: Mapping[str, TaskDivergences],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
) -> Iterator[DistributionShift | Unmeasured]:
    """Yield what was measured of each task's distributions, or why it gives no number.

    Args:
        divergences: of the varied run from the usual one; tasks that only
            generate are passed over.
        tables: of the usual run, which know the clusters of documents.
    """
    for compared in compare_task_distributions(divergences.values(), tables, confidence=confidence):
        shift = _distribution_shift(variation, compared)
        yield shift or Unmeasured(
            factor=variation.factor,
            name=variation.name,
            reason=compared.failure,
            task=compared.task,
            metric=_KL_METRIC,
        )


def _distribution_shift(
    variation: Variation, compared: DistributionComparison
) -> DistributionShift | None:
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
        top1_changed_interval=_complement_interval(same.interval),
        bit_identical=compared.bit_identical,
        confidence=compared.confidence,
        caveats=compared.caveats,
    )


def _complement_interval(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (1.0 - interval[1], 1.0 - interval[0])
