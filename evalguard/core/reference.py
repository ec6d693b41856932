"""Reference: what is kept of a base's distributions, and the divergence that it proves.

The k most probable tokens are kept as they are. Of the others, the tail, only the mass is known,
and a few tokens drawn from it. With p, q the probabilities of base and candidate, S the kept
tokens, p_T and q_T the two tails' masses, and c the smallest kept probability:

    low       sum_S p log(p / q) + p_T log(p_T / q_T)                   (log-sum inequality)
    high      sum_S p log(p / q) + supremum of the tail's part          (see ``Tail``)
    estimate  sum_S p log(p / q) + p_T mean over the draws of log(p / q)  (unbiased)

No tail that agrees with what is kept lies outside the bounds, and the supremum is attained.
Where both models are near, the draws take q / p as a control variate (:meth:`Tail.estimate`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import (
    NO_TOKEN,
    TOP_K,
    Divergence,
    Float,
    Row,
    at_tokens,
    check_rows,
    log_ratios,
    log_sums,
    pieces,
    shared_tokens,
    top_tokens,
)
from evalguard.core.documents.likelihoods import NO_PROBABILITY
from evalguard.core.noise_floor import Figure

# Draws from the tail at every position, from which KL is estimated without bias.
SAMPLES = 8

# What rounding in sums of V float64 terms may have moved a bound by; bounds are widened by it.
_ROUNDING = 1e-11


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is kept of the base's distributions at the T scored positions of one request.

    All numbers are as the model gave them; :func:`divergence_from` renormalises by the sum of
    kept probabilities and tail mass, in float64. A row that is not a distribution has ``tail_mass``
    NaN and ``top_ids`` -1.

    Attributes:
        token_ids: the scored tokens, shape (T,).
        token_logprobs: their log-probabilities, shape (T,).
        vocabulary_size: V.
        top_ids, top_logprobs: the k most probable tokens in descending probability, int32 and
            float32, shape (T, k).
        tail_mass: probability outside the top k, shape (T,).
        full_support: whether every token of the tail has a probability above 0, shape (T,).
        sample_ids, sample_logprobs: m draws with replacement from the tail, each token with its
            probability, int32 and float32, shape (T, m); -1 and -inf where there is no tail.
    """

    token_ids: NDArray[np.int64]
    token_logprobs: Float
    vocabulary_size: int
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    tail_mass: Float
    full_support: NDArray[np.bool_]
    sample_ids: NDArray[np.int32]
    sample_logprobs: NDArray[np.float32]


def reference(
    logprobs: NDArray[np.float32],
    token_ids: NDArray[np.int64],
    *,
    top_k: int,
    samples: int,
    seed: int | Sequence[int],
) -> Reference:
    """Keep what :func:`divergence_from` needs of a base's distributions.

    Args:
        logprobs: natural log-probabilities, float32 (nothing is rounded then), shape (T, V).
        top_k: k, at least 1; at most V are kept, and then nothing is lost.
        samples: m, at least 1.
        seed: of the draws, for ``numpy.random.default_rng``.

    Raises:
        ValueError: for arrays that do not fit, or rows that are no log-probabilities.
    """
    check_rows(logprobs, token_ids, side="reference")
    if logprobs.dtype != np.float32:
        raise ValueError(f"a reference keeps float32 log-probabilities, not {logprobs.dtype}")
    if top_k < 1 or samples < 1:
        raise ValueError(f"top_k and samples must be at least 1, not {top_k} and {samples}")
    positions, vocabulary = logprobs.shape
    k = min(top_k, vocabulary)
    top_ids = top_tokens(logprobs, k)
    tail_mass, full_support = np.empty(positions), np.empty(positions, dtype=np.bool_)
    sample_ids = np.empty((positions, samples), dtype=np.int32)
    draws = np.random.default_rng(seed)
    for piece in pieces(positions, vocabulary):
        p = np.exp(logprobs[piece].astype(np.float64))
        unsound = np.isnan(log_sums(p.sum(axis=1), side="reference"))
        np.put_along_axis(p, top_ids[piece], 0.0, axis=1)
        tail_mass[piece] = np.where(unsound, np.nan, p.sum(axis=1))
        full_support[piece] = np.count_nonzero(p, axis=1) == vocabulary - k
        sample_ids[piece] = _draw(p, draws.random((p.shape[0], samples)))
    top_ids[np.isnan(tail_mass)] = NO_TOKEN
    drawn = np.take_along_axis(logprobs, np.maximum(sample_ids, 0).astype(np.int64), axis=1)
    return Reference(
        token_ids=token_ids,
        token_logprobs=at_tokens(logprobs, token_ids[:, None])[:, 0],
        vocabulary_size=vocabulary,
        top_ids=top_ids.astype(np.int32),
        top_logprobs=np.take_along_axis(logprobs, np.maximum(top_ids, 0), axis=1),
        tail_mass=tail_mass,
        full_support=full_support,
        sample_ids=sample_ids,
        sample_logprobs=np.where(sample_ids == NO_TOKEN, np.float32(-np.inf), drawn),
    )


def _draw(p: Float, uniforms: Float) -> NDArray[np.int32]:
    """Token ids drawn in proportion to each row of ``p``; -1 for a row without any mass."""
    cumulated = np.cumsum(p, axis=1)
    ids = np.full(uniforms.shape, NO_TOKEN, dtype=np.int32)
    for row, uniform, chosen in zip(cumulated, uniforms, ids, strict=True):
        if row[-1] > 0.0 and np.isfinite(row[-1]):
            # The first token whose cumulated mass is above u; the largest u may round to the end.
            last = np.searchsorted(row, row[-1], side="left")
            found = np.searchsorted(row, uniform * row[-1], side="right")
            chosen[:] = np.minimum(found, last)
    return ids


def divergence_from(
    kept: Reference, candidate: NDArray[np.float32], *, top_k: int = TOP_K
) -> Divergence:
    """Compare a candidate's distributions with what was kept of the base's.

    Args:
        kept: of the same T positions.
        candidate: natural log-probabilities, shape (T, V).
        top_k: tokens that ``shared_top`` looks at; at most those kept.

    Returns:
        ``kl`` is exact where all V tokens were kept. Else it is the estimate, unbiased for each
        position, which may lie outside the bounds and below 0; the exact value does not.

    Raises:
        ValueError: for arrays that do not fit, or rows that are no log-probabilities.
    """
    check_rows(candidate, kept.token_ids, side="candidate")
    positions, vocabulary = candidate.shape
    if vocabulary != kept.vocabulary_size:
        raise ValueError(f"{vocabulary} tokens for a reference of {kept.vocabulary_size}")
    kl, low, high = (np.empty(positions) for _ in range(3))
    for piece in pieces(positions, vocabulary):
        kl[piece], low[piece], high[piece] = _bounded(kept, candidate, piece)
    everything = kept.top_ids.shape[1] == vocabulary
    k = min(top_k, kept.top_ids.shape[1])
    base_top, candidate_top = kept.top_ids[:, :k].astype(np.int64), top_tokens(candidate, k)
    return Divergence(
        token_ids=kept.token_ids,
        base_logprobs=kept.token_logprobs,
        candidate_logprobs=at_tokens(candidate, kept.token_ids[:, None])[:, 0],
        kl=np.maximum(kl, 0.0) if everything else kl,
        kl_low=None if everything else low,
        kl_high=None if everything else high,
        base_top=base_top[:, 0],
        candidate_top=candidate_top[:, 0],
        shared_top=shared_tokens(base_top, candidate_top),
        top_k=k,
    )


def _bounded(
    kept: Reference, candidate: NDArray[np.float32], piece: slice
) -> tuple[Float, Float, Float]:
    """Estimate, low and high of KL, of one piece of the positions.

    Base and candidate go through the same sums, so that a model against itself gives exactly 0.
    """
    rows = candidate[piece]
    top = np.maximum(kept.top_ids[piece], 0).astype(np.int64)
    tail_log_q = rows.copy()
    np.put_along_axis(tail_log_q, top, -np.inf, axis=1)
    q_tail = np.exp(tail_log_q.astype(np.float64)).sum(axis=1)
    log_p, log_q = kept.top_logprobs[piece].astype(np.float64), at_tokens(rows, top)
    p_sums = log_sums(np.exp(log_p).sum(axis=1) + kept.tail_mass[piece], side="reference")
    q_sums = log_sums(np.exp(log_q).sum(axis=1) + q_tail, side="candidate")
    p, shifts = np.exp(log_p - p_sums[:, None]), (p_sums - q_sums)[:, None]
    ratios = log_ratios(log_p, log_q, p) - np.where(p == 0.0, 0.0, shifts)
    largest_q = np.exp(tail_log_q.max(axis=1) - q_sums)
    np.put_along_axis(tail_log_q, top, np.inf, axis=1)
    drawn = np.maximum(kept.sample_ids[piece], 0).astype(np.int64)
    tail = DistributionTail(
        p_mass=kept.tail_mass[piece] / np.exp(p_sums),
        q_mass=q_tail / np.exp(q_sums),
        cap=p[:, -1],
        log_q=tail_log_q,
        log_q_sums=q_sums,
        largest_q=largest_q,
        draws=kept.sample_logprobs[piece] - at_tokens(rows, drawn) - shifts,
        full_support=kept.full_support[piece],
        near=np.max(np.abs(ratios), axis=1) <= NEAR,
    )
    with np.errstate(invalid="ignore"):
        head = np.einsum("ij,ij->i", p, ratios)
    low = np.maximum(head + tail.smallest() - _ROUNDING, 0.0)
    return head + tail.estimate(), low, head + tail.largest() + _ROUNDING


# Tails: what can be said of sum p log(p / q) over the tokens of which the base's p is unknown.
#
# Known are the tail's mass p_T, a cap c that no p_i exceeds, a few draws from it, and all q_i.


# Near: log ratios up to 1, in every kept token and in all that is known of the tail.
NEAR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionTail:
    """The tails of one piece of the positions; probabilities are renormalised.

    Attributes:
        p_mass, q_mass: of base and candidate, shape (T,).
        cap: the base's smallest kept probability, shape (T,).
        log_q: the candidate's log-probabilities, as given, +inf at kept tokens, shape (T, V).
        log_q_sums: what ``log_q`` is to be renormalised by, shape (T,).
        largest_q: the largest of the candidate's probabilities, shape (T,).
        draws: log(p / q) of m tokens drawn from the base's tail, each with its probability, shape
            (T, m); anything where ``p_mass`` is 0.
        full_support: whether all p_i > 0, shape (T,).
        near: whether the kept tokens' log ratios are at most 1, shape (T,).
    """

    p_mass: Float
    q_mass: Float
    cap: Float
    log_q: Row
    log_q_sums: Float
    largest_q: Float
    draws: Float
    full_support: NDArray[np.bool_]
    near: NDArray[np.bool_]

    def smallest(self) -> Float:
        """The infimum: p_T log(p_T / q_T), by the log-sum inequality; nats, shape (T,)."""
        return smallest_tail(self.p_mass, self.q_mass)

    def largest(self) -> Float:
        """The supremum, see :func:`largest_tail`; shape (T,)."""
        cap, mass = self.cap, self.p_mass
        tails = [
            largest_tail(row[row < np.inf], float(mass[i]), float(cap[i])) + float(mass[i] * shift)
            for i, (row, shift) in enumerate(zip(self.log_q, self.log_q_sums, strict=True))
        ]
        return np.array(tails)

    def estimate(self) -> Float:
        """The unbiased estimate from the draws, shape (T,).

        p_T mean log(p / q) is unbiased, and its error is of the size of log(p / q) itself, where
        KL is of the size of its square. Since the draws of q / p have the known mean q_T / p_T
        (all p_i > 0), p_T mean(log(p / q) + q / p - 1) + p_T - q_T is unbiased too, and its error
        is of the size of KL. It scatters badly where q / p can be huge; so it is taken only where
        what is known, the draws aside (they would bias it), says that p and q are near.
        """
        draws = np.where(self.p_mass[:, None] == 0.0, 0.0, self.draws)
        plain = self.p_mass * draws.mean(axis=1)
        with np.errstate(over="ignore"):
            errors = draws + np.expm1(-draws)
            controlled = self.p_mass * errors.mean(axis=1) + (self.p_mass - self.q_mass)
        tails: Float = np.where(self._controlled(), controlled, plain)
        return tails

    def _controlled(self) -> NDArray[np.bool_]:
        limit = math.exp(NEAR)
        near: NDArray[np.bool_] = self.near & (self.largest_q <= limit * self.cap)
        near &= self.q_mass <= limit * self.p_mass
        near &= self.full_support & (self.p_mass > 0.0)
        return near


def smallest_tail(p_mass: Float, q_mass: Float) -> Float:
    """inf of sum p_i log(p_i / q_i) over all p with sum p_i = p_T: p_T log(p_T / q_T).

    T. M. Cover, J. A. Thomas, Elements of Information Theory, 2006, theorem 2.7.1. Shape (T,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        tails = p_mass * (np.log(p_mass) - np.log(q_mass))
    return np.where(p_mass == 0.0, 0.0, tails)


def largest_tail(log_q: Row, mass: float, cap: float) -> float:
    """sup of sum p_i log(p_i / q_i) over 0 <= p_i <= cap with sum p_i = mass.

    The sum is convex in p, so that its maximum lies at a vertex: every p_i is 0 or cap, but one
    that takes the remainder. Of these vertices the one with the most mass on the smallest q_i is
    the largest (rearrangement). It is attained, so that no smaller bound holds for all tails.

    Args:
        log_q: log-probabilities of the tail's tokens under the candidate, shape (n,).
        mass: at most n * cap; NaN gives NaN.
        cap: above 0 where ``mass`` is.

    Returns:
        The bound in nats; inf where the tail may lie on a token that the candidate cannot say.
    """
    n = log_q.shape[0]
    if mass == 0.0 or n == 0 or not mass <= math.inf:
        return 0.0 * mass
    full = min(int(mass / cap), n)
    smallest = np.partition(log_q, min(full, n - 1)).astype(np.float64)
    total = 0.0
    if full > 0:
        total = full * cap * math.log(cap) - cap * float(smallest[:full].sum())
    rest = mass - full * cap
    if rest > 0.0 and full < n:
        total += rest * (math.log(rest) - float(smallest[full]))
    return total


# Shown tokens: what the few tokens that two servers show of their distributions say about KL.
#
# Let S be the tokens that both sides show at a position, p and q the probabilities of base and
# candidate, and p_R = 1 - sum_S p, q_R = 1 - sum_S q what is left for all others together. Which
# token comes next, with the others counted as one, is a function of which token comes next; by the
# data-processing inequality (for a finite partition the log-sum inequality, Cover and Thomas,
# theorem 2.7.1)
#
# KL(p || q) >= sum_S p log(p / q) + p_R log(p_R / q_R).
#
# This holds whichever tokens are in S, so that leaving some out costs sharpness and not truth. From
# above nothing follows: all of q's rest may lie on tokens where p has none.


# Of each scored position: tokens by their texts (or "token_id:7"), with natural log-probabilities.
TopLogprobs = tuple[Mapping[str, float], ...]
# Names a token whose id is known; vLLM's own name, with return_tokens_as_token_ids.
ID_LABEL = "token_id:"
# Of one task: doc_id -> what a server showed for each of its requests, in their order.
ShownTokens = Mapping[int, tuple[TopLogprobs, ...]]

# Bytes that are no character of their own stand for many tokens, and so does no text at all.
_NO_NAME = "\ufffd"
# A rest below this is what rounding left of nothing. A larger q_R only makes the bound smaller.
_LEAST_REST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class KlEstimate:
    """What servers' most probable tokens say about KL(base || candidate) on one task.

    Attributes:
        n: documents with a scored token; ``positions`` counts these tokens.
        tokens: how many tokens of a position both sides show, on average.
        kl_at_least: mean of the positions' lower bounds, in nats a token. Its interval is that of
            the mean bound; KL itself may be larger by any amount.
        mass_seen: share of the base's probability that lies on tokens that both show.
        confidence: of the intervals, over documents or clusters of them.
        failure: why there are no numbers, "" where there are.
    """

    task: str
    n: int
    positions: int
    tokens: float | None = None
    kl_at_least: Figure = field(default_factory=Figure)
    mass_seen: Figure = field(default_factory=Figure)
    confidence: float
    failure: str = ""


def shown_tokens(kept: Reference) -> TopLogprobs:
    """The kept tokens and the scored one of each position, as a server shows them; by ids."""
    return tuple(
        {
            f"{ID_LABEL}{token}": float(value)
            for token, value in zip((*top, own), (*values, logprob), strict=True)
        }
        for top, values, own, logprob in zip(
            kept.top_ids.tolist(),
            kept.top_logprobs.tolist(),
            kept.token_ids.tolist(),
            kept.token_logprobs.tolist(),
            strict=True,
        )
    )


def bound_kl(base: TopLogprobs, candidate: TopLogprobs) -> tuple[Float, Float, Float]:
    """Lower bound of KL in nats, the base's mass on shared tokens, and their number, shape (T,).

    Sums beyond 1 by rounding are renormalised. Two sides that say the same have exactly 0.

    Args:
        base, candidate: of the same T positions.

    Raises:
        ValueError: for different numbers of positions.
    """
    if len(base) != len(candidate):
        raise ValueError(f"{len(base)} and {len(candidate)} positions")
    found = [_bound(ours, theirs) for ours, theirs in zip(base, candidate, strict=True)]
    columns = np.array(found, dtype=np.float64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _bound(base: Mapping[str, float], candidate: Mapping[str, float]) -> tuple[float, float, int]:
    pairs = [
        (base[label], candidate[label])
        for label in base.keys() & candidate.keys()
        if label and _NO_NAME not in label
    ]
    pairs = sorted(pair for pair in pairs if all(NO_PROBABILITY < one < math.inf for one in pair))
    logs = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    (log_p, p_rest), (log_q, q_rest) = _with_rest(logs[:, 0]), _with_rest(logs[:, 1])
    p = np.exp(log_p)
    head = math.fsum((p * (log_p - log_q)).tolist())
    rest = p_rest * math.log(p_rest / max(q_rest, _LEAST_REST)) if p_rest > 0.0 else 0.0
    return max(head + rest, 0.0), min(math.fsum(p.tolist()), 1.0), len(pairs)


def _with_rest(logs: Float) -> tuple[Float, float]:
    """Log-probabilities, scaled to 1 where they sum to more, and what they leave to the others."""
    total = math.fsum(np.exp(logs).tolist())
    return (logs - math.log(total), 0.0) if total > 1.0 else (logs, 1.0 - total)
