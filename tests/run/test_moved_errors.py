"""Quantisers that do not round to nearest: errors moved to other columns, and rescaled channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from packed_pairs import (
    COLUMNS,
    GROUP,
    LAYER,
    ROWS,
    UP,
    Tensors,
    compare,
    find,
    make_weights,
    pack_gptq,
    pack_words,
    plain,
    words,
)


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return make_weights()


def quantise_moving_errors(weight: torch.Tensor) -> torch.Tensor:
    """Return int4 codes in groups as GPTQ chooses them (arXiv 2210.17323, algorithm 1)."""
    generator = np.random.default_rng(0)
    mixed = generator.normal(size=(COLUMNS, COLUMNS // 4))
    inputs = generator.normal(size=(2048, COLUMNS // 4)) @ mixed.T
    inputs += 0.5 * generator.normal(size=inputs.shape)
    hessian = inputs.T @ inputs / len(inputs) + 0.01 * np.eye(COLUMNS)
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    left, codes = weight.numpy().astype(np.float64).copy(), np.zeros((ROWS, COLUMNS))
    scale = np.abs(left.reshape(ROWS, -1, GROUP)).max(axis=2) / 7
    for column in range(COLUMNS):
        step = scale[:, column // GROUP]
        codes[:, column] = np.clip(np.rint(left[:, column] / step), -8, 7)
        error = (left[:, column] - codes[:, column] * step) / upper[column, column]
        left[:, column + 1 :] -= np.outer(error, upper[column, column + 1 :])
    return torch.from_numpy(codes)


def pack_codes(codes: torch.Tensor, scale: torch.Tensor) -> Tensors:
    return {
        f"{UP}.weight_packed": pack_words((codes + 8).T.contiguous()).T.contiguous(),
        f"{UP}.weight_scale": scale,
        f"{UP}.weight_shape": torch.tensor([ROWS, COLUMNS]),
    }


def test_errors_that_are_moved_to_other_columns_are_healthy(
    tmp_path: Path, weights: Tensors
) -> None:
    weight = weights[f"{UP}.weight"]
    scale = weight.reshape(ROWS, -1, GROUP).abs().amax(2) / 7
    codes = quantise_moving_errors(weight)
    packed = pack_codes(codes, scale)
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 0
    assert find(report).beyond_format > 0.05 * ROWS * COLUMNS
    codes[9, 64:128] = codes[9, 64:128].flip(0)
    damaged = compare(tmp_path, weights, {**plain(weights), **pack_codes(codes, scale)})
    assert damaged.exit_code == 1
    assert words(damaged).startswith("blocks damaged (row 9, columns 64 to 127")


def test_weights_rescaled_by_channel_are_neither_equal_nor_different(
    tmp_path: Path, weights: Tensors
) -> None:
    """As AWQ and SmoothQuant do, and the norm before takes it back."""
    factors = torch.exp(0.5 * torch.randn(COLUMNS, generator=torch.Generator().manual_seed(2)))
    norm = f"{LAYER}post_attention_layernorm.weight"
    packed = pack_gptq(weights[f"{UP}.weight"] * factors)
    moved = {**plain(weights), norm: weights[norm] / factors, **packed}
    report = compare(tmp_path, weights, moved)
    assert (report.exit_code, find(report).state, find(report, norm).state) == (
        3,
        "rescaled",
        "rescaled",
    )
    assert words(report, norm) == f"rescaled (by the inverse of the columns of {UP}.weight)"
    packed[f"{UP}.qweight"].view(torch.uint8)[9, 40:48] ^= 0x5A
    assert compare(tmp_path, weights, {**moved, **packed}).exit_code == 1
    alone = {**plain(weights), norm: weights[norm] / factors, **pack_gptq(weights[f"{UP}.weight"])}
    assert compare(tmp_path, weights, alone).exit_code == 1, "nothing takes it back"


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_factors_of_some_rows_are_no_rescaling_of_channels(
    factor: float, tmp_path: Path, weights: Tensors
) -> None:
    """What a rounding makes of the factors of columns is no rescaling of columns."""
    weight = weights[f"{UP}.weight"].clone()
    weight[5:20] *= factor
    codes = quantise_moving_errors(weight)
    packed = pack_codes(codes, weight.reshape(ROWS, -1, GROUP).abs().amax(2) / 7)
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    assert words(report).startswith(("rows scaled (15 rows: 5 to 19", "blocks scaled ("))
