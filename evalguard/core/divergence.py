"""Divergence: how two models' next-token distributions differ at every scored position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import (
    Float,
    Row,
    at_tokens,
    check_rows,
    log_ratios,
    log_sums,
    longest_piece,
    pieces,
)
from evalguard.core.top_tokens import Ids, shared_tokens, top_tokens

TOP_K = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How base and candidate differ at the T scored positions of one request, in reading order.

    Attributes:
        token_ids: the scored token, shape (T,).
        base_logprobs, candidate_logprobs: natural log-probability of the scored token, as the
            models gave it, shape (T,).
        kl: KL(base || candidate) in nats, shape (T,); exact, or the unbiased estimate from a
            reference. NaN where one of the rows is no distribution, inf where the candidate gives
            no probability at all to a token that the base can say.
        kl_low, kl_high: proven bounds of the exact value, shape (T,); None where ``kl`` is exact.
        base_top, candidate_top: most probable token of each model, shape (T,); -1 for a row that
            is not a distribution. Ties: the smaller token id.
        shared_top: how many of the ``top_k`` most probable tokens both models share, shape (T,).
    """

    token_ids: NDArray[np.int64]
    base_logprobs: Float
    candidate_logprobs: Float
    kl: Float
    kl_low: Float | None = None
    kl_high: Float | None = None
    base_top: Ids
    candidate_top: Ids
    shared_top: Ids
    top_k: int

    @property
    def positions(self) -> int:
        """T, the number of scored positions."""
        return int(self.token_ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDivergence:
    """The divergences of one document's requests, in their order."""

    doc_id: int
    requests: tuple[Divergence, ...]


def divergence(
    base: Row, candidate: Row, token_ids: NDArray[np.int64], *, top_k: int = TOP_K
) -> Divergence:
    """Compare two models' distributions, position by position.

    KL(p || q) = sum p (log p - log q). Float32 log-probabilities sum to 1 only within rounding,
    which would make noise of 1e-7 of it, of either sign; so both rows are renormalised, and all is
    summed, in float64. What rounding is left is about 1e-15; a value that it would make negative
    is 0, and a row against itself gives exactly 0.

    Args:
        base, candidate: natural log-probabilities, shape (T, V), float32 or float64; -inf is a
            probability of 0.
        token_ids: the scored tokens, shape (T,).
        top_k: tokens that ``shared_top`` looks at; at most V are used.

    Raises:
        ValueError: for shapes that do not fit, or rows that are no log-probabilities.
    """
    check_rows(base, token_ids, side="base")
    check_rows(candidate, token_ids, side="candidate")
    if base.shape != candidate.shape:
        raise ValueError(f"rows of different shapes: {base.shape} and {candidate.shape}")
    k = min(top_k, base.shape[1])
    base_top, candidate_top = top_tokens(base, k), top_tokens(candidate, k)
    scored = token_ids[:, None]
    return Divergence(
        token_ids=token_ids,
        base_logprobs=at_tokens(base, scored)[:, 0],
        candidate_logprobs=at_tokens(candidate, scored)[:, 0],
        kl=_kl(base, candidate),
        base_top=base_top[:, 0],
        candidate_top=candidate_top[:, 0],
        shared_top=shared_tokens(base_top, candidate_top),
        top_k=k,
    )


def _kl(base: Row, candidate: Row) -> Float:
    """KL of each row, in nats, shape (T,).

    A row of a large vocabulary is so long that fetching fresh memory for it takes longer than the
    arithmetic: three arrays of a piece are all that is worked in.
    """
    positions, vocabulary = base.shape
    longest = min(longest_piece(vocabulary), positions)
    rooms = [np.empty((longest, vocabulary)) for _ in range(3)]
    base_sums, candidate_sums, sums = (np.empty(positions) for _ in range(3))
    with np.errstate(invalid="ignore"):
        for piece in pieces(positions, vocabulary):
            log_p, log_q, p = (room[: piece.stop - piece.start] for room in rooms)
            np.copyto(log_q, candidate[piece])
            np.exp(log_q, out=p).sum(axis=1, out=candidate_sums[piece])
            np.copyto(log_p, base[piece])
            np.exp(log_p, out=p).sum(axis=1, out=base_sums[piece])
            sums[piece] = _dots(p, np.subtract(log_p, log_q, out=log_p))
    for row in np.flatnonzero(np.isnan(sums)):  # a probability of 0, or a row that is none
        log_p, log_q = (side[row : row + 1].astype(np.float64) for side in (base, candidate))
        p = np.exp(log_p)
        with np.errstate(invalid="ignore"):
            sums[row] = _dots(p, log_ratios(log_p, log_q, p))[0]
    base_logs = log_sums(base_sums, side="base")
    candidate_logs = log_sums(candidate_sums, side="candidate")
    kl: Float = np.maximum(sums / np.exp(base_logs) - base_logs + candidate_logs, 0.0)
    return kl


def _dots(one: Float, other: Float) -> Float:
    """Sum of products, row by row; twice as fast as einsum where rows are long."""
    dots: Float = np.matmul(one[:, None, :], other[:, :, None])[:, 0, 0]
    return dots
