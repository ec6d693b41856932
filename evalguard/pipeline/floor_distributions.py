"""How far variations move an unchanged model's next-token distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evalguard.distribution_comparison import DistributionComparison
from evalguard.distribution_floor import DistributionShift
from evalguard.noise_floor import Unmeasured, Variation
from evalguard.pipeline.distributions import distributions_of
from evalguard.pipeline.divergences import TaskDivergences
from evalguard.scores import ScoreTable

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
        divergences: of the varied run from the usual one; tasks that only
            generate are passed over.
        tables: of the usual run, which know the clusters of documents.
    """
    for compared in distributions_of(divergences.values(), tables, confidence=confidence):
        shift = _shift(variation, compared)
        yield shift or Unmeasured(
            factor=variation.factor,
            name=variation.name,
            reason=compared.failure,
            task=compared.task,
            metric=_KL,
        )


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
