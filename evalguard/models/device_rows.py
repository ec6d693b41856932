"""Rows of log-probabilities on a device: they stay there, a few numbers a position leave it.

What leaves the device is a few numbers a position. On a CPU numpy takes a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from evalguard.core.divergence import TOP_K, Divergence, divergence
from evalguard.core.logprob_rows import (
    NO_TOKEN,
    Float,
    Ids,
    LogprobRows,
    RowTails,
    TailDraws,
    log_sums,
)

# Numbers of a float64 temporary: 32 MiB, of which there are about four.
PIECE = 2**22


class DeviceRows(LogprobRows):
    """Rows on a device: every method brings its results, and nothing else, to main memory."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows
        self.shape = rows.shape[0], rows.shape[1]

    def part(self, piece: slice) -> DeviceRows:
        """Look at some."""
        return DeviceRows(self._rows[piece])

    def at(self, ids: Ids) -> Float:
        """Gather values."""
        values: Float = self._rows.gather(1, self._given(ids)).double().cpu().numpy()
        return values

    def top(self, k: int) -> Ids:
        """Sort values and token ids as one."""
        parts = [top_tokens_on_device(self._rows[piece], k) for piece in slices(self.shape)]
        ids: Ids = torch.cat([self._given(np.empty((0, k), dtype=np.int64)), *parts]).cpu().numpy()
        return ids

    def tails(self, kept: Ids, least: Ids) -> RowTails:
        """Sum and sort, piece by piece."""
        places, counts = self._given(kept), self._given(least)[:, None]
        parts = [self._given(np.empty((0, 4)))]
        for piece in slices(self.shape):
            tail = self._rows[piece].scatter(1, places[piece], -np.inf)
            largest, mass = tail.amax(dim=1).double(), tail.double().exp().sum(dim=1)
            ordered = tail.scatter_(1, places[piece], np.inf).sort(dim=1).values.double()
            n = counts[piece]
            upcoming = ordered.gather(1, n.clamp(max=self.shape[1] - 1))[:, 0]
            sums = ordered.cumsum(dim=1).gather(1, (n - 1).clamp(min=0))[:, 0]
            sums = torch.where(n[:, 0] > 0, sums, 0.0)
            parts.append(torch.stack([mass, largest, sums, upcoming], dim=1))
        mass, largest, sums, upcoming = torch.cat(parts).cpu().numpy().T.copy()
        return RowTails(mass=mass, largest=largest, least_sum=sums, next_least=upcoming)

    def draw(self, kept: Ids, uniforms: Float) -> TailDraws:
        """Cumulate masses, piece by piece."""
        places, numbers = self._given(kept), self._given(uniforms)
        sums = [self._given(np.empty((0, 2)))]
        ids = [self._given(np.empty((0, uniforms.shape[1]), dtype=np.int64))]
        for piece in slices(self.shape):
            rows = self._rows[piece]
            p = rows.double().exp_().scatter_(1, places[piece], 0.0)
            sums.append(torch.stack([p.sum(dim=1), rows.amin(dim=1).double().exp()], dim=1))
            cumulated = p.cumsum_(dim=1)
            totals = cumulated[:, -1:].contiguous()
            last = torch.searchsorted(cumulated, totals)
            drawn = torch.searchsorted(cumulated, numbers[piece] * totals, right=True)
            known = (totals > 0.0) & totals.isfinite()
            ids.append(torch.where(known, torch.minimum(drawn, last), NO_TOKEN))
        mass, least = torch.cat(sums).cpu().numpy().T.copy()
        drawn_ids = torch.cat(ids).int().cpu().numpy()
        return TailDraws(mass=mass, full_support=least > 0.0, ids=drawn_ids)

    def _given(self, values: NDArray[np.int64] | Float) -> torch.Tensor:
        return torch.from_numpy(values).to(self._rows.device, non_blocking=True)


def top_tokens_on_device(rows: torch.Tensor, k: int) -> torch.Tensor:
    """The k most probable tokens of each float32 row, as ``core.top_tokens`` orders them.

    The smaller token id comes first among equals: torch's own order of equals is not defined, so
    that value and id are sorted as one whole number.
    """
    bits = (rows + 0.0).view(torch.int32).long()  # -0.0 is no smaller than 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(rows.shape[1], device=rows.device)
    tops = (ordered * 2**32 + (2**32 - 1 - ids)).topk(k, dim=1).indices
    return tops.masked_fill_(rows.isnan().any(dim=1, keepdim=True), NO_TOKEN)


def slices(shape: tuple[int, int]) -> Iterator[slice]:
    """Slices over the positions, each small enough for a few float64 temporaries."""
    positions, vocabulary = shape
    step = max(1, PIECE // max(vocabulary, 1))
    for start in range(0, positions, step):
        yield slice(start, min(start + step, positions))


def compare_rows(
    base: torch.Tensor, candidate: torch.Tensor, token_ids: NDArray[np.int64]
) -> Divergence:
    """Compare two models' rows, as :func:`evalguard.core.divergence.divergence` does.

    Args:
        base, candidate: natural log-probabilities, float32, shape (T, V).
        token_ids: the scored tokens, shape (T,).
    """
    if base.is_cuda and base.device == candidate.device:
        return compare_rows_on_device(base, candidate, token_ids)
    return divergence(base.cpu().numpy(), candidate.cpu().numpy(), token_ids)


def compare_rows_on_device(
    base: torch.Tensor,
    candidate: torch.Tensor,
    token_ids: NDArray[np.int64],
    *,
    top_k: int = TOP_K,
) -> Divergence:
    """Compare two models' rows on their device; one transfer brings the results.

    The sums are float64, as numpy's: KL agrees within 1e-12 of itself and 1e-14 nats, the rest
    exactly.

    Raises:
        ValueError: for shapes that do not fit, or rows that are no log-probabilities.
    """
    if base.shape != candidate.shape or base.ndim != 2 or base.shape[0] != token_ids.shape[0]:
        shapes = f"{tuple(base.shape)} and {tuple(candidate.shape)}"
        raise ValueError(f"rows of {shapes} for {token_ids.shape[0]} token ids")
    k = min(top_k, base.shape[1])
    scored = torch.from_numpy(token_ids).to(base.device, non_blocking=True)[:, None]
    parts = [
        _compare_slice(base[piece], candidate[piece], scored[piece], k)
        for piece in slices((base.shape[0], base.shape[1]))
    ]
    numbers = torch.cat([numbers for numbers, _ in parts]).cpu().numpy()
    tops = torch.cat([tops for _, tops in parts]).cpu().numpy()
    dots, p_sums, q_sums, base_logprobs, candidate_logprobs = numbers.T.copy()
    base_log, candidate_log = log_sums(p_sums, side="base"), log_sums(q_sums, side="candidate")
    return Divergence(
        token_ids=token_ids,
        base_logprobs=base_logprobs,
        candidate_logprobs=candidate_logprobs,
        kl=np.maximum(dots / np.exp(base_log) - base_log + candidate_log, 0.0),
        base_top=tops[:, 0].copy(),
        candidate_top=tops[:, 1].copy(),
        shared_top=tops[:, 2].copy(),
        top_k=k,
    )


def _compare_slice(
    base: torch.Tensor, candidate: torch.Tensor, scored: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers (t, 5): sum of p (log p - log q), of p, of q, log-probabilities; tokens (t, 3)."""
    log_p, log_q = base.double(), candidate.double()
    p = log_p.exp()
    terms = torch.where(p == 0.0, 0.0, p * (log_p - log_q))
    sums = (terms.sum(dim=1), p.sum(dim=1), log_q.exp().sum(dim=1))
    chosen = (rows.gather(1, scored)[:, 0] for rows in (log_p, log_q))
    tops, their_tops = top_tokens_on_device(base, k), top_tokens_on_device(candidate, k)
    same = (tops[:, :, None] == their_tops[:, None, :]) & (tops[:, :, None] != NO_TOKEN)
    counts = same.sum(dim=(1, 2))
    return torch.stack([*sums, *chosen], dim=1), torch.stack(
        [tops[:, 0], their_tops[:, 0], counts], 1
    )
