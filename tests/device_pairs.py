"""Pairs of rows of log-probabilities on a device, for tests that hold torch to the core's numpy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]
DRIFTS = st.sampled_from([0.0, 1e-7, 1e-3, 0.3, 5.0])


def rows(positions: int, vocabulary: int, seed: int, drift: float) -> tuple[torch.Tensor, ...]:
    """Base and candidate, which is a drift away."""
    draws = torch.Generator().manual_seed(seed)
    base = torch.randn(positions, vocabulary, generator=draws) * 3.0
    candidate = base + drift * torch.randn(positions, vocabulary, generator=draws)
    return base.log_softmax(-1), candidate.log_softmax(-1)


def damaged_rows(
    positions: int, vocabulary: int, seed: int, drift: float, data: st.DataObject
) -> tuple[torch.Tensor, ...]:
    """The same with tokens that cannot be, and with NaN, here and there."""
    sides = rows(positions, vocabulary, seed, drift)
    places = st.tuples(st.integers(0, max(positions - 1, 0)), st.integers(0, vocabulary - 1))
    if positions and vocabulary > 2:
        for side in sides:
            for row, column in data.draw(st.lists(places, max_size=2)):
                side[row, column] = -torch.inf
                side[row] = side[row].log_softmax(-1)
            if data.draw(st.booleans()):
                side[data.draw(places)] = torch.nan
    return sides
