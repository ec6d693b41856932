"""A rounding is recognised by its own error, and told from faults of layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evalguard.core.tensors.grid import infer_grid
from evalguard.core.tensors.precision import (
    list_roundings,
    round_float8,
    round_integer,
    round_mantissa,
    vote_precision,
)


def make_weights(seed: int, *, tails: bool = False) -> np.ndarray:
    generator = np.random.default_rng(seed)
    drawn = generator.standard_t(4, (32, 512)) if tails else generator.normal(size=(32, 512))
    return drawn.astype(np.float32) * np.float32(0.02)


def test_rounding_to_the_mantissas_of_torch_is_torchs() -> None:
    values = make_weights(0)
    tensor = torch.from_numpy(values)
    expected = tensor.to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(round_mantissa(values, 7), expected)
    eight = tensor.to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(round_float8(values), eight)
    five = tensor.to(torch.float8_e5m2).float().numpy()
    np.testing.assert_array_equal(round_float8(values, mantissa=2, largest=57344.0), five)


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("way", list(list_roundings(512)), ids=lambda way: way.detail)
def test_every_rounding_is_recognised_on_either_side(way: object, tails: bool) -> None:
    exact = make_weights(1, tails=tails)
    rounded = way.round_values(exact)  # type: ignore[attr-defined]
    vote = vote_precision(exact, rounded)
    assert vote is not None
    assert vote.family == way.family  # type: ignore[attr-defined]
    assert vote.correlation > 0.99
    assert vote.rounded == "candidate"
    other = vote_precision(rounded, exact)
    assert other is not None
    assert (other.family, other.rounded) == (vote.family, "base")


@pytest.mark.parametrize("bits", [8, 4])
def test_a_dequantised_weight_in_bfloat16_is_still_recognised(bits: int) -> None:
    exact = make_weights(2)
    stored = round_mantissa(round_integer(exact, bits, group=32), 7)
    vote = vote_precision(exact, stored)
    assert vote is not None
    assert (vote.family, vote.detail) == (f"int{bits}", "groups of 32")


def test_an_error_of_a_roundings_size_is_no_rounding() -> None:
    exact = make_weights(3)
    generator = np.random.default_rng(0)
    step = np.abs(exact).reshape(-1, 32).max(axis=1, keepdims=True) / 7
    noise = generator.uniform(-0.5, 0.5, (exact.size // 32, 32)) * step
    candidate = exact + noise.reshape(exact.shape).astype(np.float32)
    assert vote_precision(exact, candidate) is None
    assert infer_grid(candidate) is None


@pytest.mark.parametrize("group", [-1, 0, 128, 64, 32])
@pytest.mark.parametrize("bits", [8, 4, 3])
def test_another_quantiser_is_named_by_the_grid_that_its_values_lie_on(
    bits: int, group: int
) -> None:
    """GPTQ moves errors into later columns: they are no longer those of rounding to nearest."""
    exact = make_weights(3)
    width = {0: exact.shape[1], -1: exact.size}.get(group, group)
    blocks = exact.reshape(-1, width)
    top = 2 ** (bits - 1) - 1
    scale = np.abs(blocks).max(axis=1, keepdims=True) / top
    moved = np.random.default_rng(0).uniform(-1, 1, blocks.shape)
    codes = np.clip(np.rint(blocks / scale + moved), -top, top)
    candidate = (codes * scale).reshape(exact.shape).astype(np.float32)
    assert vote_precision(exact, candidate) is None or bits == 3
    grid = infer_grid(candidate)
    assert grid is not None
    assert (grid.family, grid.group) == (f"int{bits}", group)


def test_rounding_errors_of_float32_are_named_as_such() -> None:
    exact = make_weights(4)
    vote = vote_precision(exact, np.nextafter(exact, np.float32(1)))
    assert vote is not None
    assert vote.family == "float32"


def test_what_is_no_rounding_is_not_called_one() -> None:
    exact, other = make_weights(5), make_weights(6)
    assert vote_precision(exact, other) is None
    assert vote_precision(exact, exact) is None
    assert vote_precision(np.zeros_like(exact), exact) is None
    assert vote_precision(exact, -exact) is None


def test_a_vector_and_a_single_number_can_be_judged() -> None:
    vector = make_weights(7)[0]
    vote = vote_precision(vector, round_mantissa(vector, 7))
    assert vote is not None
    assert vote.family == "bf16"
    assert vote_precision(np.float32([1.0]), np.float32([1.0])) is None


def test_a_vote_over_sixty_healthy_weights_is_right_in_every_one() -> None:
    """bfloat16, float16 and int8 of normal, heavy-tailed and already rounded weights."""
    wrong = []
    for seed in range(60):
        exact = make_weights(seed, tails=seed % 2 == 0)[:8, :256]
        bits = (7, 10)[seed % 2]
        made = {
            "bf16": round_mantissa(exact, 7),
            "fp16/TF32": round_mantissa(exact, 10),
            "int8": round_integer(round_mantissa(exact, bits), 8, group=(0, 32, 128)[seed % 3]),
        }
        for family, rounded in made.items():
            named = vote_precision(exact, rounded) or infer_grid(rounded)
            if named is None or named.family != family:
                wrong.append((seed, family, named))
    assert not wrong
