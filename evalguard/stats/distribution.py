"""How two models' next-token distributions differ on one task, from every scored position."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evalguard.core.distribution_comparison import (
    DistributionComparison,
    Figure,
    Percentile,
)
from evalguard.core.divergence import DocumentDivergence
from evalguard.stats.compare_scores import check_confidence
from evalguard.stats.llama_cpp_figures import llama_cpp_figures
from evalguard.stats.mean_kl import is_carried_by_few, mean_kl
from evalguard.stats.moments import Array
from evalguard.stats.positions import Positions, rank_of
from evalguard.stats.token_perplexity import correlation, token_perplexities

# Below this a sample often holds none of the tokens that a mean KL is made of (simulated).
_FEWEST_FOR_KL = 50
KL_PERCENTS = (0.0, 0.1, 1.0, 5.0, 10.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0)
DP_PERCENTS = (0.0, 0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)


def compare_distributions(
    task: str,
    documents: Sequence[DocumentDivergence],
    *,
    confidence: float = 0.95,
    clusters: Mapping[int, str] | None = None,
    cluster_field: str = "",
    llama_cpp: bool = False,
) -> DistributionComparison:
    """Compare two models' distributions over all positions of a task.

    Args:
        documents: in any order; one without a scored token counts for nothing.
        clusters: doc_id -> label of the documents that belong together; None where each stands
            alone. ``cluster_field`` is the field of the documents that the labels come from.
        llama_cpp: whether the figures that llama.cpp prints are wanted, too.

    Returns:
        The comparison; with a ``failure`` and no numbers where a position has none (NaN), or where
        there is no position at all.

    Raises:
        ValueError: for an impossible confidence, or divergences of different ``top_k``.
    """
    check_confidence(confidence)
    positions = Positions.of(documents, confidence=confidence, clusters=clusters)
    top_k = {divergence.top_k for divergence in positions.divergences}
    if len(top_k) > 1:
        raise ValueError(f"divergences of different top_k: {sorted(top_k)}")
    comparison = DistributionComparison(
        task=task,
        n=positions.documents,
        positions=len(positions),
        top_k=max(top_k, default=0),
        confidence=confidence,
        clusters=None if clusters is None else len(set(positions.units.tolist())),
        cluster_field="" if clusters is None else cluster_field,
    )
    failure = _failure(positions)
    if failure:
        return replace(comparison, failure=failure)
    return _measured(comparison, positions, llama_cpp)


def _measured(
    comparison: DistributionComparison, positions: Positions, llama_cpp: bool
) -> DistributionComparison:
    base, candidate = positions.column("base_logprobs"), positions.column("candidate_logprobs")
    same_top = positions.column("base_top") == positions.column("candidate_top")
    kl, exact = positions.column("kl"), positions.divergences[0].kl_low is None
    dp = np.exp(candidate) - np.exp(base)
    identical = exact and not kl.any() and bool(np.array_equal(base, candidate))
    perplexities, mean = token_perplexities(positions, base, candidate), mean_kl(positions, kl)
    return replace(
        comparison,
        exact=exact,
        bit_identical=identical and bool(same_top.all()),
        kl=mean if exact else _bounded(positions, mean),
        kl_percentiles=_kl_percentiles(positions, kl, exact),
        kl_max_at=positions.place(int(np.argmax(kl))),
        dp=positions.mean(dp),
        dp_rms=_root(positions.mean(np.square(dp))),
        dp_percentiles=positions.percentiles(dp, DP_PERCENTS, reach=(-1.0, 1.0)),
        dp_min_at=positions.place(int(np.argmin(dp))),
        same_top1=positions.share(same_top.astype(np.float64)),
        same_topk=positions.share(positions.column("shared_top") / comparison.top_k),
        base_perplexity=perplexities.base,
        candidate_perplexity=perplexities.candidate,
        log_perplexity_ratio=perplexities.log_ratio,
        perplexity_ratio=perplexities.ratio,
        perplexity_difference=perplexities.difference,
        correlation=correlation(base, candidate),
        llama_cpp=llama_cpp_figures(
            base, candidate, kl, same_top, kl_percents=KL_PERCENTS, dp_percents=DP_PERCENTS
        )
        if llama_cpp
        else None,
        caveats=_caveats(comparison, positions, kl, exact=exact),
    )


def _bounded(positions: Positions, mean: Figure) -> Figure:
    low, high = (float(positions.column(name).mean()) for name in ("kl_low", "kl_high"))
    return replace(mean, bounds=(low, high))


def _kl_percentiles(positions: Positions, kl: Array, exact: bool) -> tuple[Percentile, ...]:
    """Percentiles of KL; those of the bounds bound them, since order keeps inequalities."""
    found = positions.percentiles(kl, KL_PERCENTS, reach=(0.0, math.inf))
    if exact:
        return found
    lows, highs = (np.sort(positions.column(name)) for name in ("kl_low", "kl_high"))
    ranks = [rank_of(percentile.percent, len(positions)) - 1 for percentile in found]
    return tuple(
        replace(p, figure=replace(p.figure, bounds=(float(lows[rank]), float(highs[rank]))))
        for p, rank in zip(found, ranks, strict=True)
    )


def _root(square: Figure) -> Figure:
    """Root of a mean square: SE by the delta method, ends of the interval mapped."""
    if square.value is None or square.interval is None or square.stderr is None:
        return Figure(value=None if square.value is None else math.sqrt(square.value))
    root = math.sqrt(square.value)
    low, high = (math.sqrt(max(end, 0.0)) for end in square.interval)
    stderr = square.stderr / (2.0 * root) if root > 0.0 else 0.0
    return Figure(value=root, stderr=stderr, interval=(low, high))


def _failure(positions: Positions) -> str:
    """Why there are no numbers, or ""."""
    if len(positions) == 0:
        return "no token was scored"
    values = [positions.column(name) for name in ("kl", "base_logprobs", "candidate_logprobs")]
    unknown = np.isnan(values).any(axis=0)
    if not unknown.any():
        return ""
    first = positions.place(int(np.argmax(unknown)))
    return (
        f"{int(unknown.sum()):,} of {len(positions):,} positions have NaN or infinite logits "
        f"(first: doc_id {first.doc_id}, request {first.request}, position {first.position})"
    )


def _caveats(
    comparison: DistributionComparison, positions: Positions, kl: Array, *, exact: bool
) -> tuple[str, ...]:
    caveats = []
    units, noun = comparison.n, "documents"
    if comparison.clusters is not None:
        units, noun = comparison.clusters, "clusters"
        caveats.append(
            f"documents with the same {comparison.cluster_field or 'cluster'} are not independent: "
            f"{units:,} clusters of {comparison.n:,} documents"
        )
    if units < 2:
        caveats.append(f"a standard error needs at least 2 {noun}, and there is {units}")
    elif units < _FEWEST_FOR_KL:
        caveats.append(
            f"{units} {noun} are few for the interval of the mean KL: where a small share of the "
            f"tokens carries it, it ends too low, and from {_FEWEST_FOR_KL} on seldom"
        )
    elif is_carried_by_few(positions.sums(kl), positions.weights):
        caveats.append(
            f"few of the {units:,} {noun} carry the mean KL: others like them may be missing, and "
            "its interval end too low"
        )
    if not exact:
        caveats.append(
            "KL is estimated from the base's most probable tokens and draws from the rest; proven "
            "bounds stand beside it"
        )
    return tuple(caveats)
