"""Divergence: how two models' next-token distributions differ at every scored position.

Known are the tail's mass p_T, a cap c that no p_i exceeds, a few draws from it, and all q_i.

The k most probable tokens are kept as they are. Of the others, the tail, only the mass is known,
and a few tokens drawn from it. With p, q the probabilities of base and candidate, S the kept
tokens, p_T and q_T the two tails' masses, and c the smallest kept probability:

    low       sum_S p log(p / q) + p_T log(p_T / q_T)                   (log-sum inequality)
    high      sum_S p log(p / q) + supremum of the tail's part          (see ``DistributionTail``)
    estimate  sum_S p log(p / q) + p_T mean over the draws of log(p / q)  (unbiased)

No tail that agrees with what is kept lies outside the bounds, and the supremum is attained.
Where both models are near, the draws take q / p as a control variate
(:meth:`DistributionTail.estimate`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.logprob_rows import (
    NO_TOKEN,
    Float,
    Ids,
    LogprobRows,
    Row,
    RowTails,
    as_rows,
    at_tokens,
    check_rows,
    log_ratios,
    log_sums,
    longest_piece,
    no_draws,
    no_tails,
    pieces,
    shared_tokens,
    top_tokens,
)

# Near: log ratios up to 1, in every kept token and in all that is known of the tail.
NEAR = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionTail:
    """The tails of T positions; probabilities are renormalised.

    Attributes:
        p_mass, q_mass: of base and candidate, shape (T,).
        cap: the base's smallest kept probability, shape (T,).
        full: how many tokens the base's tail can fill up to the cap, see :func:`count_full`.
        rows: what the candidate's rows say of the tail, as given: not renormalised.
        log_q_sums: what they are to be renormalised by, shape (T,).
        draws: log(p / q) of m tokens drawn from the base's tail, each with its probability, shape
            (T, m); anything where ``p_mass`` is 0.
        full_support: whether all p_i > 0, shape (T,).
        near: whether the kept tokens' log ratios are at most 1, shape (T,).
    """

    p_mass: Float
    q_mass: Float
    cap: Float
    full: Ids
    rows: RowTails
    log_q_sums: Float
    draws: Float
    full_support: NDArray[np.bool_]
    near: NDArray[np.bool_]

    def smallest(self) -> Float:
        """The infimum: p_T log(p_T / q_T), by the log-sum inequality; nats, shape (T,)."""
        return smallest_tail(self.p_mass, self.q_mass)

    def largest(self) -> Float:
        """The supremum, see :func:`largest_tail`; shape (T,)."""
        with np.errstate(invalid="ignore"):  # rows that are no distribution
            shifts = self.p_mass * self.log_q_sums
        return largest_tail(self.rows, self.full, self.p_mass, self.cap) + shifts

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
        with np.errstate(invalid="ignore"):
            largest_q = np.exp(self.rows.largest - self.log_q_sums)
        near: NDArray[np.bool_] = self.near & (largest_q <= limit * self.cap)
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


def count_full(mass: Float, cap: Float, tokens: int) -> Ids:
    """How many of a tail's ``tokens`` hold their cap where ``mass`` is put on few; shape (T,)."""
    known = (mass > 0.0) & (cap > 0.0)
    ratios = np.divide(mass, cap, out=np.zeros_like(mass), where=known)
    return np.minimum(ratios, tokens).astype(np.int64)


def largest_tail(rows: RowTails, full: Ids, mass: Float, cap: Float) -> Float:
    """sup of sum p_i log(p_i / q_i) over 0 <= p_i <= cap with sum p_i = mass; nats, shape (T,).

    The sum is convex in p, so that its maximum lies at a vertex: every p_i is 0 or cap, but one
    that takes the remainder. Of these vertices the one with the most mass on the smallest q_i is
    the largest (rearrangement). It is attained, so that no smaller bound holds for all tails.
    It is inf where the tail may lie on a token that the candidate cannot say.

    Args:
        rows: of the candidate; ``least_sum`` is that of ``full`` tokens.
        full: of :func:`count_full`.
        mass: at most the tail's tokens * cap; NaN gives NaN.
        cap: above 0 where ``mass`` is.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        at_cap = np.where(full > 0, full * cap * np.log(cap) - cap * rows.least_sum, 0.0)
        rest = mass - full * cap
        has_rest = rest > 0.0
        has_rest &= rows.next_least < np.inf  # of kept tokens: the tail is full
        last = np.where(has_rest, rest * (np.log(rest) - rows.next_least), 0.0)
    totals: Float = np.where(mass > 0.0, at_cap + last, 0.0 * mass)
    return totals


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
    kept_ids = _each_once(top_ids)
    top_logprobs, sums = np.empty((positions, k), dtype=np.float32), np.empty(positions)
    for piece in pieces(positions, k):
        values = rows.part(piece).at(kept_ids[piece])
        top_logprobs[piece] = values
        with np.errstate(over="ignore"):
            sums[piece] = np.exp(values).sum(axis=1)
    if k < vocabulary:
        tails = rows.draw(kept_ids, np.random.default_rng(seed).random((positions, samples)))
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


R = TypeVar("R")


def join_positions(parts: Sequence[R]) -> R:
    """Put records of consecutive positions together: arrays one after the other.

    Args:
        parts: frozen dataclasses of one class, whose arrays have the positions as first axis; what
            is not an array (a number of tokens, None) is the same in all of them.

    Raises:
        ValueError: for no parts, or parts that do not fit together.
    """
    if not parts:
        raise ValueError("no records to put together")
    if len(parts) == 1:
        return parts[0]
    first: Any = parts[0]
    fields = {}
    for field in dataclasses.fields(first):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            fields[field.name] = np.concatenate(values)
        elif all(not isinstance(value, np.ndarray) and value == values[0] for value in values):
            fields[field.name] = values[0]
        else:
            raise ValueError(f"records differ in {field.name}: they do not fit together")
    return dataclasses.replace(first, **fields)  # type: ignore[no-any-return]


def cut(record: R, lengths: Sequence[int]) -> list[R]:
    """Cut a record into parts of so many positions each.

    Raises:
        ValueError: if the lengths do not add up to its positions.
    """
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    values = {field.name: getattr(record, field.name) for field in fields}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    positions = {array.shape[0] for array in arrays.values()}
    if positions != {sum(lengths)}:
        raise ValueError(f"{sorted(positions)} positions are not the {sum(lengths)} to be cut")
    kind = type(record)
    return [
        kind(**{**values, **{name: array[end - length : end] for name, array in arrays.items()}})
        for end, length in zip(accumulate(lengths), lengths, strict=True)
    ]
