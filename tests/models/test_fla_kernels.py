"""RWKV-7's kernels in plain torch: they are the recurrence, and round where fla's kernels round.

``tests/systems`` holds them to fla's own kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evalguard.models.runtimes import fla_kernels

STRONGEST_DECAY = -0.6065306597126334  # of RWKV-7: -exp(-0.5)
Inputs = dict[str, Tensor]


def inputs(length: int, seed: int, *, size: int = 16, dtype: torch.dtype = torch.float32) -> Inputs:
    """A text's tokens as a layer of RWKV-7 gives them: two texts, two heads."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(2, length, 2, size, generator=generator)

    def uniform() -> Tensor:
        return torch.rand(2, length, 2, size, generator=generator)

    kk = torch.nn.functional.normalize(normal(), dim=-1)
    named = {
        "r": normal(), "w": STRONGEST_DECAY * uniform(), "k": 0.5 * normal(), "v": normal(),
        "a": -kk, "b": kk * uniform(),
    }  # fmt: skip
    return {name: tensor.to(dtype) for name, tensor in named.items()}


def recur(given: Inputs) -> Tensor:
    """As it is written down, in float64: ``S = diag(e^w) S + b (a S) + k v``, ``o = r S``."""
    wide = {name: tensor.double() for name, tensor in given.items()}
    texts, length, heads, size = wide["r"].shape
    out = torch.zeros(texts, length, heads, size, dtype=torch.float64)
    for text in range(texts):
        for head in range(heads):
            state = torch.zeros(size, size, dtype=torch.float64)
            for t in range(length):
                r, w, k, v, a, b = (wide[name][text, t, head] for name in "rwkvab")
                state = torch.diag(w.exp()) @ state + torch.outer(b, a @ state) + torch.outer(k, v)
                out[text, t, head] = r @ state
    return out


def largest(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).abs().max())


@given(length=st.integers(1, 150), seed=st.integers(0, 10**6))
def test_both_ways_to_read_a_text_are_the_recurrence(length: int, seed: int) -> None:
    given = inputs(length, seed)
    expected = recur(given)
    scale = float(expected.abs().max())
    by_token, _ = fla_kernels.run_recurrence(**given)
    by_chunk, _ = fla_kernels.run_chunks(**given)
    assert largest(by_token, expected) < 2e-6 * scale
    # The triangular inverse is in float16, of which a unit in the last place is 2^-10.
    assert largest(by_chunk, expected) < 2**-10 * scale


def test_a_chunk_of_a_long_memory_differs_from_the_recurrence_by_its_float16_inverse() -> None:
    given = inputs(100, 3, size=32)
    given["w"] = given["w"] * 0.01
    by_token, _ = fla_kernels.run_recurrence(**given)
    by_chunk, _ = fla_kernels.run_chunks(**given)
    assert 1e-4 < largest(by_token, by_chunk) < 0.1


@given(cut=st.integers(1, 99), seed=st.integers(0, 10**6))
def test_a_text_in_two_pieces_with_the_state_between_is_the_text(cut: int, seed: int) -> None:
    given = inputs(100, seed)
    whole, last = fla_kernels.run_recurrence(**given, output_final_state=True)
    first = {name: tensor[:, :cut] for name, tensor in given.items()}
    rest = {name: tensor[:, cut:] for name, tensor in given.items()}
    for kernel, within in ((fla_kernels.run_recurrence, 1e-5), (fla_kernels.run_chunks, 5e-2)):
        head, state = kernel(**first, output_final_state=True)
        tail, end = kernel(**rest, initial_state=state, output_final_state=True)
        assert largest(torch.cat([head, tail], dim=1), whole) < within
        assert end is not None
        assert last is not None
        assert largest(end, last) < within


def test_the_state_has_keys_before_values() -> None:
    given = inputs(3, 1)
    for name in "ab":
        given[name] = torch.zeros_like(given[name])
    _, state = fla_kernels.run_recurrence(**given, output_final_state=True)
    decay = given["w"].exp()
    expected = torch.zeros(2, 2, 16, 16)
    for t in range(3):
        expected = decay[:, t, :, :, None] * expected
        expected += given["k"][:, t, :, :, None] * given["v"][:, t, :, None, :]
    assert state is not None
    assert torch.allclose(state, expected, atol=1e-6)


def test_outputs_are_rounded_to_the_models_dtype_and_states_are_not() -> None:
    for kernel in (fla_kernels.run_recurrence, fla_kernels.run_chunks):
        out, state = kernel(**inputs(70, 5, dtype=torch.bfloat16), output_final_state=True)
        assert out.dtype == torch.bfloat16
        assert state is not None
        assert state.dtype == torch.float32


def test_the_inverse_is_that_of_a_unit_triangle_in_half_precision() -> None:
    below = 0.1 * torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(2)).tril(-1)
    expected = torch.linalg.inv(torch.eye(64) - below)
    found = fla_kernels.invert_unit_triangle(below)
    assert 1e-6 < largest(found, expected) < 2e-2
    assert torch.equal(found, found.tril())


def test_the_predecessor_of_the_first_token_is_zero_or_the_last_one_read_before() -> None:
    x = torch.randn(2, 5, 8)
    whole, last = fla_kernels.shift_tokens(x, output_cache=True)
    assert torch.equal(whole[:, 0], -x[:, 0])
    assert torch.equal(whole[:, 1:], x[:, :-1] - x[:, 1:])
    _, kept = fla_kernels.shift_tokens(x[:, :3], output_cache=True)
    assert torch.equal(fla_kernels.shift_tokens(x[:, 3:], cache=kept), whole[:, 3:])
    assert torch.equal(last, x[:, -1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_norm_normalises_the_sum_before_it_is_rounded(dtype: torch.dtype) -> None:
    x, residual = (torch.randn(2, 5, 8).to(dtype) for _ in range(2))
    norm = fla_kernels.StandInLayerNorm(8, bias=True, eps=1e-5).to(dtype)
    out, total = norm(x, residual, prenorm=True)
    exact = x.float() + residual.float()
    assert torch.equal(total, exact.to(dtype))
    expected = torch.nn.functional.layer_norm(exact, (8,), eps=1e-5)
    assert torch.equal(out, expected.to(dtype))


def test_a_fused_group_norm_is_torchs() -> None:
    x = torch.randn(2, 5, 8)
    ours = fla_kernels.StandInGroupNorm(num_groups=2, hidden_size=8, bias=True, eps=64e-5)
    expected = torch.nn.functional.group_norm(x.view(10, 8), 2, eps=64e-5).view(2, 5, 8)
    assert torch.allclose(ours(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fla_kernels.run_chunks(**inputs(3, 1), cu_seqlens=torch.tensor([0, 3])),
        lambda: fla_kernels.run_recurrence(**inputs(3, 1), cu_seqlens=torch.tensor([0, 3])),
        lambda: fla_kernels.shift_tokens(torch.zeros(1, 3, 2), torch.tensor([0, 3])),
    ],
)
def test_packed_texts_are_refused(call: Any) -> None:
    with pytest.raises(NotImplementedError, match="cu_seqlens"):
        call()
