"""KL and perplexity of two models on one task, from every scored position, with intervals.

Positions of one document are not independent. All standard errors are those of a ratio of sums
over documents, or over clusters of them: sums per document, with its positions as weight.

A t interval of it ends too low, because a sample often holds fewer of the largest documents than
it should. Two things raise its upper end; the higher one counts:

- the corrections of skewed documents and unequal texts, as of a drift (``careful_t``): the sample
  with more documents like its most extreme one;
- the log scale, on which a mean that cannot be negative scatters more evenly:
  m exp(t SE / m) (delta method).

The lower end is that of the (corrected) t interval, or 0. How often that holds the truth, and how
often it is said that it may not: ``benchmarks.kl_interval``.

These are the figures that llama.cpp's perplexity tool prints beside KL; here with standard
errors over documents, not over tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evalguard.core.distribution_comparison import (
    DistributionComparison,
    Figure,
    Percentile,
    TokenPosition,
)
from evalguard.core.divergence import Divergence, DocumentDivergence
from evalguard.core.moments import Array, exact_sum, ratio_moments
from evalguard.distributions.llama_cpp_block import llama_cpp_figures
from evalguard.stats.compare_scores import check_confidence
from evalguard.stats.effective_sample import Share, rank_limits
from evalguard.stats.estimate import Estimate, t_critical, t_estimate
from evalguard.stats.skewness import careful_t, skewness


@dataclass(frozen=True, kw_only=True)
class Positions:
    """T positions in ascending doc_id, then in reading order.

    Attributes:
        divergences: of all requests with a scored token, with the (doc_id, request) of each beside
            them in ``requests``.
        units: number of the document or cluster that each position belongs to, shape (T,).
        confidence: of all intervals.
    """

    divergences: tuple[Divergence, ...]
    requests: tuple[tuple[int, int], ...]
    units: NDArray[np.int64]
    confidence: float

    @classmethod
    def of(
        cls,
        documents: Sequence[DocumentDivergence],
        *,
        confidence: float,
        clusters: Mapping[int, str] | None = None,
    ) -> Positions:
        """Collect the positions of documents; with ``clusters``, doc_id -> label, those count."""
        measured = [
            (document.doc_id, number, divergence)
            for document in sorted(documents, key=lambda document: document.doc_id)
            for number, divergence in enumerate(document.requests)
            if divergence.positions
        ]
        labels = [doc_id if clusters is None else clusters[doc_id] for doc_id, _, _ in measured]
        numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        lengths = [divergence.positions for _, _, divergence in measured]
        units = np.repeat(np.array([numbers[label] for label in labels], dtype=np.int64), lengths)
        return cls(
            divergences=tuple(divergence for _, _, divergence in measured),
            requests=tuple((doc_id, number) for doc_id, number, _ in measured),
            units=units,
            confidence=confidence,
        )

    @property
    def documents(self) -> int:
        """Documents with a scored token."""
        return len({doc_id for doc_id, _ in self.requests})

    def __len__(self) -> int:
        return int(self.units.shape[0])

    def column(self, name: str) -> Array:
        """A field of all divergences, float64, shape (T,)."""
        return np.concatenate([getattr(d, name) for d in self.divergences]).astype(np.float64)

    @cached_property
    def weights(self) -> Array:
        """Positions of each unit, shape (G,)."""
        return np.bincount(self.units).astype(np.float64)

    def sums(self, values: Array) -> Array:
        """Sum of ``values``, shape (T,), over each unit, shape (G,)."""
        return np.bincount(self.units, weights=values).astype(np.float64)

    def mean(self, values: Array) -> Figure:
        """Mean over all positions, with the interval of :func:`ratio_estimate` over the units.

        Infinite where a value is; nothing where values are infinite on both sides.
        """
        sums = self.sums(values)
        if not np.isfinite(sums).all():
            total = float(values[~np.isfinite(values)].sum())
            return Figure(value=None if math.isnan(total) else total)
        if len(self.weights) < 2:
            return Figure(value=exact_sum(sums) / exact_sum(self.weights))
        estimate = ratio_estimate(sums, self.weights, confidence=self.confidence)
        return Figure(
            value=estimate.point, stderr=estimate.stderr, interval=(estimate.low, estimate.high)
        )

    def share(self, values: Array) -> Figure:
        """Mean of values from 0 to 1, with the interval of a share (:class:`Share`)."""
        share = Share(hits=self.sums(values), positions=self.weights)
        if len(self.weights) < 2:
            return Figure(value=share.value)
        return Figure(
            value=share.value,
            stderr=ratio_moments(share.hits, share.positions).stderr,
            interval=share.interval(confidence=self.confidence),
        )

    def percentiles(
        self, values: Array, percents: Sequence[float], *, reach: tuple[float, float]
    ) -> tuple[Percentile, ...]:
        """Percentiles of ``values``, shape (T,), with intervals from order statistics.

        Args:
            reach: the smallest and largest value there can be; an interval ends there where no
                order statistic bounds it.
        """
        ordered = np.sort(values)
        return tuple(
            Percentile(percent=percent, figure=self._percentile(values, ordered, percent, reach))
            for percent in percents
        )

    def _percentile(
        self, values: Array, ordered: Array, percent: float, reach: tuple[float, float]
    ) -> Figure:
        n, probability = len(self), percent / 100.0
        value = float(ordered[rank_of(percent, n) - 1])
        if percent in (0.0, 100.0) or len(self.weights) < 2:
            return Figure(value=value)
        below = Share(hits=self.sums((values <= value).astype(np.float64)), positions=self.weights)
        effective = below.effective(confidence=self.confidence)
        low, high = rank_limits(probability, n, effective, confidence=self.confidence)
        return Figure(
            value=value,
            interval=(
                float(ordered[low - 1]) if low > 0 else reach[0],
                float(ordered[high - 1]) if high <= n else reach[1],
            ),
        )

    def place(self, index: int) -> TokenPosition:
        """Where a position, counted over all of them, is."""
        ends = np.cumsum([divergence.positions for divergence in self.divergences])
        which = int(np.searchsorted(ends, index, side="right"))
        divergence, (doc_id, request) = self.divergences[which], self.requests[which]
        position = index - (int(ends[which]) - divergence.positions)
        token_id = int(divergence.token_ids[position])
        return TokenPosition(doc_id=doc_id, request=request, position=position, token_id=token_id)


def ratio_estimate(sums: Array, weights: Array, *, confidence: float) -> Estimate:
    """Ratio of sums over G units, both of shape (G,), G >= 2, as careful as a drift."""
    moments, df = ratio_moments(sums, weights), sums.shape[0] - 1
    plain = t_estimate(
        moments.point, moments.stderr, df=df, confidence=confidence, method="t-ratio"
    )
    return careful_t(plain, sums, weights, 1.0)


def rank_of(percent: float, n: int) -> int:
    """Rank, from 1 to n, of the smallest value that ``percent`` per cent do not exceed."""
    return min(n, max(1, math.ceil(percent / 100.0 * n - 1e-9)))


def mean_kl(positions: Positions, kl: Array) -> Figure:
    """Mean of ``kl``, shape (T,), over all positions; no interval of it reaches below 0."""
    figure = positions.mean(kl)
    if figure.interval is None:
        return figure
    high = kl_upper_end(positions.sums(kl), positions.weights, confidence=positions.confidence)
    return replace(figure, interval=(max(figure.interval[0], 0.0), high))


def kl_upper_end(sums: Array, weights: Array, *, confidence: float) -> float:
    """Upper end of the interval of sum S / sum w.

    Args:
        sums, weights: of the documents, or clusters of them; float64, shape (G,), G >= 2.
    """
    estimate = ratio_estimate(sums, weights, confidence=confidence)
    return max(estimate.high, _on_log_scale(estimate, sums.shape[0] - 1))


def is_carried_by_few(sums: Array, weights: Array) -> bool:
    """Whether documents are fewer than their skewness asks for: the upper end may be too low.

    Arguments as of ``kl_upper_end``.
    """
    return bool(skewness(sums, weights).needed > sums.shape[0])


def _on_log_scale(estimate: Estimate, df: int) -> float:
    """Upper end of the t interval of log(mean), mapped back; 0 where nothing was measured."""
    if estimate.point <= 0.0:
        return 0.0
    exponent = t_critical(estimate.confidence, df) * estimate.stderr / estimate.point
    return estimate.point * math.exp(exponent) if exponent < 700.0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPerplexities:
    """exp(-mean log p) of base and candidate, and how they compare."""

    base: Figure
    candidate: Figure
    log_ratio: Figure
    ratio: Figure
    difference: Figure


def token_perplexities(positions: Positions, base: Array, candidate: Array) -> TokenPerplexities:
    """Perplexities of two models, from log-probabilities of the scored tokens, shape (T,).

    Standard errors by the delta method. The difference is linearised per position:
    exp(m_c) (-log c) - exp(m_b) (-log b), with m the two mean surprisals.
    """
    surprisals = positions.mean(-base), positions.mean(-candidate)
    with np.errstate(invalid="ignore"):
        log_ratio = positions.mean(base - candidate)
    ours, theirs = (_exp(figure) for figure in surprisals)
    return TokenPerplexities(
        base=ours,
        candidate=theirs,
        log_ratio=log_ratio,
        ratio=_exp(log_ratio),
        difference=_difference(positions, (ours, theirs), base, candidate),
    )


def correlation(one: Array, other: Array) -> float | None:
    """Pearson's correlation, float64, shape (T,); None where one is constant or infinite."""
    if one.shape[0] < 2 or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    x, y = one - one.mean(), other - other.mean()
    scale = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return max(-1.0, min(1.0, float(x @ y) / scale)) if scale > 0.0 else None


def _difference(
    positions: Positions, perplexities: tuple[Figure, Figure], base: Array, candidate: Array
) -> Figure:
    ours, theirs = perplexities
    if ours.value is None or theirs.value is None:
        return Figure()
    if not math.isfinite(ours.value) or not math.isfinite(theirs.value):
        apart = theirs.value - ours.value
        return Figure(value=None if math.isnan(apart) else apart)
    point = theirs.value - ours.value
    linear = positions.mean(ours.value * base - theirs.value * candidate)
    if linear.interval is None or linear.value is None:
        return Figure(value=point)
    shift = point - linear.value
    low, high = linear.interval
    return Figure(value=point, stderr=linear.stderr, interval=(low + shift, high + shift))


def _exp(log: Figure) -> Figure:
    """exp of a figure: SE by the delta method, ends of the interval mapped."""
    if log.value is None or math.isnan(log.value):
        return Figure()
    value = _grown(log.value)
    if log.interval is None or log.stderr is None:
        return Figure(value=value)
    low, high = (_grown(end) for end in log.interval)
    return Figure(value=value, stderr=value * log.stderr, interval=(low, high))


def _grown(log: float) -> float:
    return math.exp(log) if log < 700.0 else math.inf


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
    percentiles = positions.percentiles(kl, KL_PERCENTS, reach=(0.0, math.inf))
    if exact:
        return percentiles
    lows, highs = (np.sort(positions.column(name)) for name in ("kl_low", "kl_high"))
    ranks = [rank_of(percentile.percent, len(positions)) - 1 for percentile in percentiles]
    return tuple(
        replace(p, figure=replace(p.figure, bounds=(float(lows[rank]), float(highs[rank]))))
        for p, rank in zip(percentiles, ranks, strict=True)
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
