"""Weights rotated before they were quantised, as QuaRot and SpinQuant store them, with no config
that says so: never different, and never equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packed_pairs import COLUMNS, LAYER, ROWS, UP, Tensors, compare, find, pack_nvfp4, words
from scipy.linalg import hadamard

NORM, FINAL = f"{LAYER}post_attention_layernorm.weight", "model.norm.weight"
DOWN = f"{LAYER}mlp.down_proj.weight"


def make_model() -> Tensors:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.02

    return {
        "model.embed_tokens.weight": draw(96, COLUMNS),
        f"{UP}.weight": draw(ROWS, COLUMNS),
        DOWN: draw(COLUMNS, ROWS),
        NORM: 0.5 + torch.rand(COLUMNS, generator=generator),
        FINAL: 0.5 + torch.rand(COLUMNS, generator=generator),
        "lm_head.weight": draw(96, COLUMNS),
    }


def hadamard_with_signs(size: int, seed: int) -> torch.Tensor:
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.from_numpy(hadamard(size)).float() / size**0.5 * signs


def any_orthogonal(size: int, seed: int) -> torch.Tensor:
    normal = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(normal).Q


def rotate(model: Tensors, draw: Callable[[int, int], torch.Tensor]) -> Tensors:
    """Fold the norms in, turn the residual stream, and what the down projection is given."""
    turn, online = draw(COLUMNS, 1), draw(ROWS, 2)
    return {
        "model.embed_tokens.weight": model["model.embed_tokens.weight"] @ turn,
        f"{UP}.weight": model[f"{UP}.weight"] * model[NORM] @ turn,
        DOWN: turn.T @ model[DOWN] @ online,
        NORM: torch.ones(COLUMNS),
        FINAL: torch.ones(COLUMNS),
        "lm_head.weight": model["lm_head.weight"] * model[FINAL] @ turn,
    }


@pytest.mark.parametrize("draw", [hadamard_with_signs, any_orthogonal])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rotated_model_is_neither_equal_nor_different(
    tmp_path: Path,
    draw: Callable[[int, int], torch.Tensor],
    packed: bool,
    dtype: torch.dtype,
) -> None:
    model = make_model()
    made = {name: one.to(dtype) for name, one in rotate(model, draw).items()}
    if packed:
        made |= pack_nvfp4(made[f"{UP}.weight"].float())
    report = compare(tmp_path, model, made)
    assert {delta.name: delta.state for delta in report.deltas} == dict.fromkeys(model, "rotated")
    assert report.exit_code == 3
    assert words(report).startswith("rotated (on the side of its inputs")
    assert words(report, NORM).startswith("rotated (its factors went into the weights after it")
    assert words(report, DOWN).startswith("rotated (on both sides")


def test_the_side_of_the_outputs_is_told_by_columns(tmp_path: Path) -> None:
    model = make_model()
    made = {**model, DOWN: any_orthogonal(COLUMNS, 3).T @ model[DOWN]}
    report = compare(tmp_path, model, made)
    assert (report.exit_code, find(report, DOWN).state) == (3, "rotated")
    assert words(report, DOWN).startswith("rotated (on the side of its outputs")


def other_weights(model: Tensors) -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(9)) * 0.02


def mixed_columns(model: Tensors) -> torch.Tensor:
    order = torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(9))
    signs = torch.randint(0, 2, (COLUMNS,), generator=torch.Generator().manual_seed(8)) * 2 - 1
    return model[f"{UP}.weight"][:, order] * signs


def stretched(model: Tensors) -> torch.Tensor:
    return 1.1 * model[f"{UP}.weight"] @ any_orthogonal(COLUMNS, 1)


def mostly_rotated(model: Tensors) -> torch.Tensor:
    made = model[f"{UP}.weight"] @ any_orthogonal(COLUMNS, 1)
    return torch.cat([made[:64], other_weights(model)[64:]])


@pytest.mark.parametrize("change", [other_weights, mixed_columns, stretched, mostly_rotated])
def test_what_no_rotation_makes_is_different(
    tmp_path: Path, change: Callable[[Tensors], torch.Tensor]
) -> None:
    model = make_model()
    report = compare(tmp_path, model, {**model, f"{UP}.weight": change(model)})
    assert (report.exit_code, find(report).state) == (1, "beyond")
