"""AcrossTasks: whether all metrics of a run together show a drift, with one joint null."""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossTasks:
    """Several metrics judged together; it informs, the gate decides by each metric.

    All p-values are one-sided, that an unchanged candidate looks at least this much worse, and
    come from one joint null: the signs of the documents' differences flipped at random, a document
    with the same sign in every metric. So it does not matter how strongly metrics depend on each
    other.

    Attributes:
        metrics: (task, filter, metric) of those taken together; ``tasks`` counts their tasks.
        n: documents or clusters whose signs are flipped; ``n_moved`` those that differ anywhere.
        pooled_sigma: mean of the metrics' sigmas within a task, of the tasks with equal weight
            (perplexities on their log scale), with its ``pooled_stderr``, ``pooled_interval`` at
            ``confidence`` (stratified by tasks, t with ``pooled_df`` degrees of freedom by
            Satterthwaite, asymptotic) and ``pooled_p_value``.
        max_z: largest paired z of any metric, ``max_z_metric``.
        max_z_p_value: one-sided, of the largest z.
        fisher: -2 sum log p over the metrics (p by the normal approximation of z).
        fisher_p_value: of that.
        p_value: of the smallest of the three p-values, calibrated by the same flips.
        resamples: random sign patterns; None where all were enumerated. ``seed`` of them.
        left_out: metrics that are no sum over documents, each with the reason.
        tasks: number of their tasks.
        n_moved: those that differ in any metric.
        pooled_stderr: its paired standard error, stratified by tasks.
        pooled_interval: its paired interval.
        pooled_df: degrees of freedom (Satterthwaite).
        confidence: of pooled_interval.
        pooled_p_value: one-sided p of the pooled drift.
        max_z_metric: the metric whose z that is.
        seed: seed of the patterns.
    """

    metrics: tuple[Key, ...]
    tasks: int
    n: int
    n_moved: int
    pooled_sigma: float
    pooled_stderr: float
    pooled_interval: tuple[float, float]
    pooled_df: float
    confidence: float
    pooled_p_value: float
    max_z: float
    max_z_metric: Key
    max_z_p_value: float
    fisher: float
    fisher_p_value: float
    p_value: float
    resamples: int | None
    seed: int | None
    left_out: tuple[tuple[Key, str], ...] = ()
