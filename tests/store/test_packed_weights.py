"""Packed weights are counted by the headers of their parts."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from evalguard.tensor_files.loaded_weights import list_stored_weights
from evalguard.tensor_files.opening import open_tensors

UP = "model.layers.0.mlp.up_proj"


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path


def test_a_packed_weight_is_counted_once_with_all_bytes_of_its_parts(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            f"{UP}.weight_packed": torch.zeros(64, 16, dtype=torch.uint8),
            f"{UP}.weight_scale": torch.ones(64, 2).to(torch.float8_e4m3fn),
            f"{UP}.weight_global_scale": torch.ones(1),
            f"{UP}.input_global_scale": torch.ones(1),
            "model.norm.weight": torch.ones(32, dtype=torch.bfloat16),
        },
    )
    found = {one.name: one for one in list_stored_weights(path)}
    weight, scale, norm = (
        found[name] for name in (f"{UP}.weight", f"{UP}.input_global_scale", "model.norm.weight")
    )
    assert len(found) == 3
    assert (weight.shape, weight.weights, weight.dtype) == ((64, 32), 64 * 32, "nvfp4")
    assert weight.stored_bytes == 64 * 16 + 64 * 2 + 4
    assert (scale.weights, scale.stored_bytes) == (0, 4)
    assert (norm.weights, norm.stored_bytes, norm.packing) == (32, 64, "")


def test_a_part_that_is_missing_leaves_a_weight_that_cannot_be_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            f"{UP}.weight_packed": torch.zeros(64, 16, dtype=torch.uint8),
            f"{UP}.weight_scale": torch.ones(64, 2).to(torch.float8_e4m3fn),
        },
    )
    with open_tensors(path) as found:
        assert list(found.tensors) == [f"{UP}.weight"]
        assert found.tensors[f"{UP}.weight"].fault == f"{UP}.weight_global_scale is missing"
    (weight,) = list_stored_weights(path)
    assert (weight.weights, weight.stored_bytes) == (None, 64 * 16 + 64 * 2)
