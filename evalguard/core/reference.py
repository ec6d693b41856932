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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from evalguard.core.distribution_tail import NEAR, DistributionTail, count_full
from evalguard.core.divergence import TOP_K, Divergence
from evalguard.core.logprob_rows import Float, log_ratios, log_sums, pieces
from evalguard.core.row_tails import LogprobRows, as_rows, no_draws, no_tails
from evalguard.core.top_tokens import NO_TOKEN, shared_tokens

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
    top_ids: Annotated[NDArray[np.int32], 2]
    top_logprobs: Annotated[NDArray[np.float32], 2]
    tail_mass: Float
    full_support: NDArray[np.bool_]
    sample_ids: Annotated[NDArray[np.int32], 2]
    sample_logprobs: Annotated[NDArray[np.float32], 2]


def reference(
    logprobs: NDArray[np.float32] | LogprobRows,
    token_ids: NDArray[np.int64],
    *,
    top_k: int,
    samples: int,
    seed: int | Sequence[int] | np.random.Generator,
) -> Reference:
    """Keep what :func:`divergence_from` needs of a base's distributions.

    Args:
        logprobs: natural log-probabilities, float32 (nothing is rounded then), shape (T, V).
        top_k: k, at least 1; at most V are kept, and then nothing is lost.
        samples: m, at least 1.
        seed: of the draws, for ``numpy.random.default_rng``; a generator goes on where it is.

    Raises:
        ValueError: for arrays that do not fit, or rows that are no log-probabilities.
    """
    if isinstance(logprobs, np.ndarray) and logprobs.dtype == np.float64:
        raise ValueError(f"a reference keeps float32 log-probabilities, not {logprobs.dtype}")
    rows = as_rows(logprobs, token_ids, side="reference")
    if top_k < 1 or samples < 1:
        raise ValueError(f"top_k and samples must be at least 1, not {top_k} and {samples}")
    positions, vocabulary = rows.shape
    k = min(top_k, vocabulary)
    top_ids = rows.top(k)
    kept = _each_once(top_ids)
    top_logprobs, sums = np.empty((positions, k), dtype=np.float32), np.empty(positions)
    for piece in pieces(positions, k):
        values = rows.part(piece).at(kept[piece])
        top_logprobs[piece] = values
        with np.errstate(over="ignore"):
            sums[piece] = np.exp(values).sum(axis=1)
    if k < vocabulary:
        tails = rows.draw(kept, np.random.default_rng(seed).random((positions, samples)))
    else:
        tails = no_draws(positions, samples)
    sums += tails.mass
    unsound = np.isnan(log_sums(sums, side="reference"))
    top_ids[unsound] = NO_TOKEN
    drawn = rows.at(np.maximum(tails.ids, 0).astype(np.int64))
    return Reference(
        token_ids=token_ids,
        token_logprobs=rows.at(token_ids[:, None])[:, 0],
        vocabulary_size=vocabulary,
        top_ids=top_ids.astype(np.int32),
        top_logprobs=top_logprobs,
        tail_mass=np.where(unsound, np.nan, tails.mass),
        full_support=tails.full_support,
        sample_ids=tails.ids,
        sample_logprobs=np.where(tails.ids == NO_TOKEN, -np.inf, drawn).astype(np.float32),
    )


def divergence_from(
    kept: Reference, candidate: NDArray[np.float32] | LogprobRows, *, top_k: int = TOP_K
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
    rows = as_rows(candidate, kept.token_ids, side="candidate")
    vocabulary = rows.shape[1]
    if vocabulary != kept.vocabulary_size:
        raise ValueError(f"{vocabulary} tokens for a reference of {kept.vocabulary_size}")
    everything = kept.top_ids.shape[1] == vocabulary
    k = min(top_k, kept.top_ids.shape[1])
    base_top, candidate_top = kept.top_ids[:, :k].astype(np.int64), rows.top(k)
    kl, low, high = (np.empty(rows.shape[0]) for _ in range(3))
    for piece in pieces(rows.shape[0], kept.top_ids.shape[1]):
        kl[piece], low[piece], high[piece] = _bounded(kept, rows.part(piece), piece)
    return Divergence(
        token_ids=kept.token_ids,
        base_logprobs=kept.token_logprobs,
        candidate_logprobs=rows.at(kept.token_ids[:, None])[:, 0],
        kl=np.maximum(kl, 0.0) if everything else kl,
        kl_low=None if everything else low,
        kl_high=None if everything else high,
        base_top=base_top[:, 0],
        candidate_top=candidate_top[:, 0],
        shared_top=shared_tokens(base_top, candidate_top),
        top_k=k,
    )


def _bounded(kept: Reference, rows: LogprobRows, piece: slice) -> tuple[Float, Float, Float]:
    """Estimate, low and high of KL, of one piece of the positions.

    Base and candidate go through the same sums, so that a model against itself gives exactly 0.
    """
    positions, vocabulary = rows.shape
    k = kept.top_ids.shape[1]
    top, tail_mass = _each_once(kept.top_ids[piece]), kept.tail_mass[piece]
    log_p, log_q = kept.top_logprobs[piece].astype(np.float64), rows.at(top)
    p_sums = log_sums(np.exp(log_p).sum(axis=1) + tail_mass, side="reference")
    p = np.exp(log_p - p_sums[:, None])
    p_mass, cap = tail_mass / np.exp(p_sums), p[:, -1]
    full = count_full(p_mass, cap, vocabulary - k)
    tails = rows.tails(top, full) if k < vocabulary else no_tails(positions)
    with np.errstate(over="ignore"):
        q_sums = log_sums(np.exp(log_q).sum(axis=1) + tails.mass, side="candidate")
    shifts = (p_sums - q_sums)[:, None]
    ratios = log_ratios(log_p, log_q, p) - np.where(p == 0.0, 0.0, shifts)
    drawn = rows.at(np.maximum(kept.sample_ids[piece], 0).astype(np.int64))
    with np.errstate(invalid="ignore"):  # -inf - -inf, where nothing was drawn
        draws = kept.sample_logprobs[piece] - drawn - shifts
    tail = DistributionTail(
        p_mass=p_mass,
        q_mass=tails.mass / np.exp(q_sums),
        cap=cap,
        full=full,
        rows=tails,
        log_q_sums=q_sums,
        draws=draws,
        full_support=kept.full_support[piece],
        near=np.max(np.abs(ratios), axis=1) <= NEAR,
    )
    with np.errstate(invalid="ignore"):
        head = np.einsum("ij,ij->i", p, ratios)
    low = np.maximum(head + tail.smallest() - _ROUNDING, 0.0)
    return head + tail.estimate(), low, head + tail.largest() + _ROUNDING


def _each_once(top_ids: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.int64]:
    """The kept tokens. Of a row that is no distribution none is known: any k of them, each once."""
    return np.where(top_ids == NO_TOKEN, np.arange(top_ids.shape[1]), top_ids).astype(np.int64)
