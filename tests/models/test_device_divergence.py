"""Divergences on the models' device are those of the numpy core."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from device_pairs import DEVICES, DRIFTS, damaged_rows, rows
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evalguard.core.divergence import Divergence, divergence
from evalguard.core.logprob_rows import top_tokens
from evalguard.models import device_rows
from evalguard.models import device_rows as module
from evalguard.models.device_rows import compare_rows, compare_rows_on_device, top_tokens_on_device


def assert_same(found: Divergence, core: Divergence) -> None:
    for field in dataclasses.fields(Divergence):
        one, other = getattr(found, field.name), getattr(core, field.name)
        if field.name == "kl":
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
        else:
            np.testing.assert_array_equal(one, other, err_msg=field.name)
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


@pytest.mark.parametrize("device", DEVICES)
@given(
    positions=st.integers(0, 5),
    vocabulary=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    drift=DRIFTS,
    data=st.data(),
)
def test_it_is_the_divergence_of_the_core(
    device: str, positions: int, vocabulary: int, seed: int, drift: float, data: st.DataObject
) -> None:
    base, candidate = damaged_rows(positions, vocabulary, seed, drift, data)
    ids = data.draw(arrays(np.int64, positions, elements=st.integers(0, vocabulary - 1)))
    if positions == 0:
        return
    found = compare_rows_on_device(base.to(device), candidate.to(device), ids)
    assert_same(found, divergence(base.numpy(), candidate.numpy(), ids))


@pytest.mark.parametrize("device", DEVICES)
@given(
    values=arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 200)),
        elements=st.sampled_from([-np.inf, -3.0, -1.0, -0.0, 0.0, 0.5, np.nan]),
    ),
    k=st.integers(1, 200),
)
def test_equal_probabilities_come_in_the_order_of_token_ids(
    device: str, values: np.ndarray, k: int
) -> None:
    k = min(k, values.shape[1])
    found = top_tokens_on_device(torch.from_numpy(values).to(device), k).cpu().numpy()
    np.testing.assert_array_equal(found, top_tokens(values, k))


@given(st.integers(0, 2**31))
def test_any_two_numbers_are_ordered_as_floats_are(seed: int) -> None:
    bits = np.random.default_rng(seed).integers(-(2**31), 2**31, (3, 64), dtype=np.int64)
    values = bits.astype(np.int32).view(np.float32)
    values[np.isnan(values)] = 1.5
    found = top_tokens_on_device(torch.from_numpy(values), 64).numpy()
    np.testing.assert_array_equal(found, top_tokens(values, 64))


def test_pieces_of_positions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    base, candidate = rows(9, 50, 1, 0.3)
    ids = np.arange(9)
    whole = compare_rows_on_device(base, candidate, ids)
    monkeypatch.setattr(device_rows, "PIECE", 100)
    cut = compare_rows_on_device(base, candidate, ids)
    assert_same(cut, whole)


def test_logits_are_refused_and_so_are_rows_that_do_not_fit() -> None:
    base, candidate = rows(2, 50, 1, 0.3)
    ids = np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="candidate: rows are no log-probabilities"):
        compare_rows_on_device(base, candidate + 3.0, ids)
    with pytest.raises(ValueError, match="for 2 token ids"):
        compare_rows_on_device(base, candidate[:, :-1], ids)
    with pytest.raises(ValueError, match="for 1 token ids"):
        compare_rows_on_device(base, candidate, ids[:1])


def test_on_the_cpu_the_core_does_it() -> None:
    base, candidate = rows(3, 50, 1, 0.3)
    ids = np.zeros(3, dtype=np.int64)
    found = compare_rows(base, candidate, ids)
    np.testing.assert_array_equal(found.kl, divergence(base.numpy(), candidate.numpy(), ids).kl)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_rows_on_a_gpu_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    base, candidate = rows(6, 128_256, 2, 0.1)
    ids = np.arange(6)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("rows left the device")

    core = divergence(base.numpy(), candidate.numpy(), ids)
    monkeypatch.setattr(module, "divergence", refused)
    assert_same(compare_rows(base.cuda(), candidate.cuda(), ids), core)
