"""Log-probabilities in llama.cpp's 16 bits, and the divergence that they show and prove.

A row that ``llama-perplexity --kl-divergence-base`` writes (tools/perplexity/perplexity.cpp,
``log_softmax``) is a scale s, the least log-probability m, and a code c of 16 bits a token:
log p = s c + m, rounded to nearest. The codes span at most 16 nats; what lies lower is cut off at
code 0.

    KL, as llama.cpp has it     sum p (log p - log q) over log p > -16, not renormalised
    proven, with h = s / 2      |log p - (s c + m)| <= h of a token that is not cut off; of those
                                cut off, at most exp(m + h) each, and 1 - (the others' sum) in all

With c any number, r = log p~ - log q of the stored p~, M the mass that was cut off and Q the
candidate's there, KL is between

    sum p~ (r - c - 1) + (1 + c) (1 - M) +- h exp(h) sum p~ (|r - c| + h) + T(M)

since sum p = 1: first-order errors cancel where r is near c. T(M) is at least M log(M / Q) (the
log-sum inequality), and at most sum p (m + h - log q) over the smallest q that have room for M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.distribution_tail import smallest_tail
from evalguard.core.divergence import TOP_K, Divergence
from evalguard.core.logprob_rows import Float, at_tokens, check_rows, log_sums, longest_piece
from evalguard.core.top_tokens import shared_tokens, top_tokens

SPAN = 16.0  # nats that the codes span at most; llama.cpp leaves out below it, too
STEPS = 65535
ROUNDING = 0.5 * SPAN / STEPS
"""The most that a stored log-probability that is not cut off may be off by, in nats."""

_WHOLE_SPAN = SPAN / STEPS * (1 - 1e-4)
_FLOAT32 = 4e-6  # of log-probabilities, their sum and the product, in float32
_SUMS = 1e-4  # what float32 may leave of a row's sum beyond all that


class DamagedRowError(ValueError):
    """A row that no distribution has been written as; ``row`` is counted from 0."""

    def __init__(self, row: int, fault: str) -> None:
        super().__init__(f"a row has {fault}")
        self.row = row


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedRows:
    """Rows of T positions.

    Attributes:
        scale, least: s and m, float32, shape (T,).
        codes: shape (T, V).
    """

    scale: NDArray[np.float32]
    least: NDArray[np.float32]
    codes: NDArray[np.uint16]

    def logprobs(self) -> NDArray[np.float32]:
        """The stored log-probabilities, in float32 as llama.cpp has them, shape (T, V)."""
        found: NDArray[np.float32] = self.codes.astype(np.float32)
        found *= self.scale[:, None]
        found += self.least[:, None]
        return found


def check_scales(scale: NDArray[np.float32], least: NDArray[np.float32]) -> None:
    """Refuse scales and least log-probabilities that no row has.

    Raises:
        DamagedRowError: naming the first.
    """
    with np.errstate(invalid="ignore"):
        sound = (scale >= 0) & (scale <= SPAN / STEPS * 1.001) & (least <= 0) & (least > -1e4)
    if not sound.all():
        first = int(np.argmin(sound))
        fault = f"the scale {scale[first]:g} and the least log-probability {least[first]:g}"
        raise DamagedRowError(first, fault)


def spans_all(scale: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether rows span all of the 16 nats, so that code 0 is of what was cut off."""
    found: NDArray[np.bool_] = scale >= _WHOLE_SPAN
    return found


def divergence_from_codes(
    coded: CodedRows,
    candidate: NDArray[np.float32],
    token_ids: NDArray[np.int64],
    *,
    top_k: int = TOP_K,
) -> Divergence:
    """Compare a candidate's distributions with stored ones.

    Args:
        candidate: natural log-probabilities, shape (T, V).

    Returns:
        ``kl`` is as llama.cpp has it, and may be below 0 by what rounding makes; the bounds are
        proven. ``base_logprobs`` are as stored.

    Raises:
        ValueError: for arrays that do not fit, or rows that are no log-probabilities.
        DamagedRowError: a stored row is no distribution.
    """
    check_rows(candidate, token_ids, side="candidate")
    if candidate.shape != coded.codes.shape:
        raise ValueError(f"rows of different shapes: {coded.codes.shape} and {candidate.shape}")
    k = min(top_k, candidate.shape[1])
    stored = coded.logprobs()
    base_top, candidate_top = top_tokens(stored, k), top_tokens(candidate, k)
    positions, step = len(token_ids), longest_piece(candidate.shape[1])
    kl, low, high = (np.empty(positions) for _ in range(3))
    for start in range(0, positions, step):
        piece = slice(start, min(start + step, positions))
        kl[piece], low[piece], high[piece] = _bounded(
            coded.scale[piece], coded.codes[piece], stored[piece], candidate[piece], start
        )
    return Divergence(
        token_ids=token_ids,
        base_logprobs=at_tokens(stored, token_ids[:, None])[:, 0],
        candidate_logprobs=at_tokens(candidate, token_ids[:, None])[:, 0],
        kl=kl,
        kl_low=low,
        kl_high=high,
        rounded=True,
        base_top=base_top[:, 0],
        candidate_top=candidate_top[:, 0],
        shared_top=shared_tokens(base_top, candidate_top),
        top_k=k,
    )


def _bounded(
    scale: NDArray[np.float32],
    codes: NDArray[np.uint16],
    stored: NDArray[np.float32],
    candidate: NDArray[np.float32],
    start: int,
) -> tuple[Float, Float, Float]:
    """KL as llama.cpp has it, and its least and greatest value, of a few rows."""
    log_p, log_q = stored.astype(np.float64), candidate.astype(np.float64)
    unknown = spans_all(scale)[:, None] & (codes == 0)
    p = np.exp(log_p)
    log_q_sums = log_sums(np.exp(log_q).sum(axis=1), side="candidate")
    with np.errstate(invalid="ignore"):  # -inf, and rows that hold NaN
        ratios = log_p - log_q
        kl = np.where(stored > -SPAN, p * ratios, 0.0).sum(axis=1)
        log_q -= log_q_sums[:, None]
        ratios += log_q_sums[:, None]
        known = np.where(unknown, 0.0, p)
        mass = known.sum(axis=1)
        apart = np.where(unknown, 0.0, ratios)
        shift = (known * apart).sum(axis=1) / mass
        off = np.abs(apart - shift[:, None])
        inside = (known * (apart - shift[:, None] - 1.0)).sum(axis=1) + 1.0 + shift
        half = 0.5 * scale.astype(np.float64) + _FLOAT32
        error = half * np.exp(half) * (known * (off + half[:, None])).sum(axis=1)
    cut = _cut_mass(mass, half, log_p, unknown, start)
    q_cut = np.where(unknown, np.exp(log_q), 0.0).sum(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        likely = np.clip(q_cut * np.exp(np.minimum(shift, 700.0)), *cut)
        low = inside - error - (1.0 + shift) * likely + smallest_tail(likely, q_cut)
        high = inside + error + _largest_tails(cut[1], shift, half, log_p, log_q, unknown)
    endless = np.isinf(kl)
    low, high = (np.where(endless, math.inf, one) for one in (low, high))
    return kl, np.maximum(low, 0.0), high


def _cut_mass(
    mass: Float, half: Float, log_p: Float, unknown: NDArray[np.bool_], start: int
) -> tuple[Float, Float]:
    """Return the least and the greatest probability of what was cut off, in all of it.

    Raises:
        DamagedRowError: with the others' sum, a row cannot be a distribution.
    """
    most = (np.exp(log_p + half[:, None]) * unknown).sum(axis=1)
    least = 1.0 - mass * np.exp(half)
    highest = np.minimum(most, 1.0 - mass * np.exp(-half))
    wrong = ~((least <= most + _SUMS) & (highest >= -_SUMS))
    if wrong.any():
        row = int(np.argmax(wrong))
        fault = f"probabilities of {mass[row]:.6g} in all, and at most {most[row]:.3g} cut off"
        raise DamagedRowError(start + row, fault)
    low = np.minimum(np.maximum(least, 0.0), most)
    return low, np.maximum(highest, low)


def _largest_tails(
    most: Float,
    shift: Float,
    half: Float,
    log_p: Float,
    log_q: Float,
    unknown: NDArray[np.bool_],
) -> Float:
    """What the tokens that were cut off may add at most, whatever there is of them."""
    found = np.zeros(len(shift))
    for row in np.flatnonzero((most > 0.0) & np.isfinite(shift)):
        log_cap = float(log_p[row][unknown[row]][0] + half[row])
        tail, cap = log_q[row, unknown[row]], math.exp(log_cap)
        count = min(len(tail), math.ceil(most[row] / cap))
        worst = np.partition(tail, count - 1)[:count]
        found[row] = cap * np.maximum(log_cap - worst - 1.0 - shift[row], 0.0).sum()
    return found
