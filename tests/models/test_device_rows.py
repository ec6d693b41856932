"""What is asked of rows on a device is what numpy reads in main memory, and no row leaves it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from device_pairs import DEVICES, DRIFTS, damaged_rows, rows
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.divergence import Divergence, Reference, divergence_from, reference
from evalguard.models import device_rows
from evalguard.models.device_rows import DeviceRows

EXACT = {"rtol": 1e-11, "atol": 1e-11}


def assert_same(found: Reference | Divergence, core: Reference | Divergence) -> None:
    for field in fields(core):
        one, other = getattr(found, field.name), getattr(core, field.name)
        if getattr(other, "dtype", None) == np.float64:
            np.testing.assert_allclose(one, other, err_msg=field.name, **EXACT)
        else:
            np.testing.assert_array_equal(one, other, err_msg=field.name)


@pytest.mark.parametrize("device", DEVICES)
@given(
    positions=st.integers(0, 5),
    vocabulary=st.integers(1, 300),
    top_k=st.sampled_from([1, 7, 64, 400]),
    seed=st.integers(0, 2**31),
    drift=DRIFTS,
    data=st.data(),
)
def test_references_and_divergences_are_those_of_the_core(
    device: str, positions: int, vocabulary: int, top_k: int, seed: int, drift: float,
    data: st.DataObject,
) -> None:  # fmt: skip
    base, candidate = damaged_rows(positions, vocabulary, seed, drift, data)
    ids = np.random.default_rng(seed).integers(0, vocabulary, positions)
    asked: Any = {"top_k": top_k, "samples": 4, "seed": seed}
    kept = reference(base.numpy(), ids, **asked)
    assert_same(reference(DeviceRows(base.to(device)), ids, **asked), kept)
    found = divergence_from(kept, DeviceRows(candidate.to(device)))
    assert_same(found, divergence_from(kept, candidate.numpy()))


def test_pieces_of_positions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    base, candidate = rows(9, 50, 1, 0.3)
    ids = np.arange(9)
    kept = reference(base.numpy(), ids, top_k=8, samples=4, seed=0)
    monkeypatch.setattr(device_rows, "PIECE", 100)
    assert_same(reference(DeviceRows(base), ids, top_k=8, samples=4, seed=0), kept)
    found = divergence_from(kept, DeviceRows(candidate))
    assert_same(found, divergence_from(kept, candidate.numpy()))


def test_no_row_leaves_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is brought to main memory goes through ``cpu``, here as there."""
    base, candidate = rows(6, 5000, 2, 0.1)
    copy, brought = torch.Tensor.cpu, []

    def watched(tensor: torch.Tensor) -> torch.Tensor:
        brought.append(tensor.numel() / 6)
        return copy(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", watched)
    kept = reference(DeviceRows(base), np.arange(6), top_k=64, samples=8, seed=0)
    divergence_from(kept, DeviceRows(candidate))
    assert brought
    assert max(brought) <= 64
