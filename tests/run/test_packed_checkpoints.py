"""Packed checkpoints against their base: a healthy one is never called different, a damaged block,
a swapped scale and a wrong zero point are named, and what is not known is said to be unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evalguard.core.reports.tensors_report import TensorDelta, TensorsReport
from evalguard.run.tensors.compare_tensors import TensorOptions, compare_tensors

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.0."
UP = f"{LAYER}mlp.up_proj"
ROWS, COLUMNS, GROUP = 128, 256, 64


@pytest.fixture(scope="module")
def weights() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    rows = 1 + 2 * torch.rand(ROWS, 1, generator=generator)
    return {
        f"{UP}.weight": torch.randn(ROWS, COLUMNS, generator=generator) * 0.02 * rows,
        f"{LAYER}post_attention_layernorm.weight": torch.rand(COLUMNS, generator=generator) + 0.5,
        "lm_head.weight": torch.randn(96, COLUMNS, generator=generator) * 0.02,
    }


def plain(weights: Tensors) -> Tensors:
    return {name: one for name, one in weights.items() if name != f"{UP}.weight"}


def compare(folder: Path, base: Tensors, packed: Tensors, **config: Any) -> TensorsReport:
    save_file(base, folder / "base.safetensors")
    candidate = folder / "packed"
    candidate.mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in packed.items()}, candidate / "model.safetensors")
    text = json.dumps({"quantization_config": config} if config else {})
    (candidate / "config.json").write_text(text, encoding="utf-8")
    return compare_tensors(str(folder / "base.safetensors"), str(candidate), TensorOptions())


def find(report: TensorsReport, name: str = f"{UP}.weight") -> TensorDelta:
    return next(delta for delta in report.deltas if delta.name == name)


def words(report: TensorsReport, name: str = f"{UP}.weight") -> str:
    likeness = find(report, name).likeness
    return "" if likeness is None else likeness.words


# How formats pack, in a few lines each, from the same descriptions as the code that reads them.


def choose_e2m1(scaled: torch.Tensor) -> torch.Tensor:
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = (scaled.abs()[..., None] - levels).abs().argmin(-1)
    return (codes + 8 * (scaled < 0)).to(torch.uint8)


def pack_nvfp4(weight: torch.Tensor) -> Tensors:
    whole = weight.abs().max() / (6 * 448)
    groups = weight.reshape(ROWS, -1, 16)
    scale = (groups.abs().amax(2) / 6 / whole).to(torch.float8_e4m3fn)
    codes = choose_e2m1(groups / (scale.float() * whole)[..., None]).reshape(ROWS, -1)
    return {
        f"{UP}.weight": codes[:, ::2] | (codes[:, 1::2] << 4),
        f"{UP}.weight_scale": scale,
        f"{UP}.weight_scale_2": whole,
        f"{UP}.input_scale": torch.ones(()),
    }


def pack_words(codes: torch.Tensor) -> torch.Tensor:
    """Eight numbers of 4 bits a word, along the first axis."""
    grid = codes.reshape(-1, 8, codes.shape[1]).numpy().astype(np.uint32)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)[None, :, None]
    return torch.from_numpy((grid << shifts).sum(axis=1, dtype=np.uint32).view(np.int32))


def pack_gptq(weight: torch.Tensor, order: torch.Tensor | None = None) -> Tensors:
    inputs = torch.arange(COLUMNS) if order is None else order
    index = torch.empty(COLUMNS, dtype=torch.int64)
    index[inputs] = torch.arange(COLUMNS) // GROUP
    groups = weight[:, inputs].reshape(ROWS, -1, GROUP)
    high, low = groups.amax(2).clamp(min=0), groups.amin(2).clamp(max=0)
    scale = ((high - low) / 15).half().float()
    zero = (-low / scale).round().clamp(1, 15)
    codes = (weight / scale[:, index]).round() + zero[:, index]
    return {
        f"{UP}.qweight": pack_words(codes.clamp(0, 15).T.contiguous()),
        f"{UP}.qzeros": pack_words(zero - 1).T.contiguous(),
        f"{UP}.scales": scale.T.half(),
        f"{UP}.g_idx": index.int(),
    }


def pack_act_order(weight: torch.Tensor) -> Tensors:
    return pack_gptq(weight, torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(1)))


def pack_int8(weight: torch.Tensor) -> Tensors:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {
        f"{UP}.weight": (weight / scale).round().to(torch.int8),
        f"{UP}.weight_scale": scale,
    }


FORMATS: dict[str, tuple[Callable[[torch.Tensor], Tensors], str, str]] = {
    "ModelOpt NVFP4": (pack_nvfp4, "weight", "weight_scale"),
    "GPTQ": (pack_gptq, "qweight", "scales"),
    "GPTQ, act-order": (pack_act_order, "qweight", "scales"),
    "int8 a row": (pack_int8, "weight", "weight_scale"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_healthy_one_is_equal_under_the_weights_own_name(
    tmp_path: Path, weights: Tensors, name: str
) -> None:
    packed = FORMATS[name][0](weights[f"{UP}.weight"])
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert (report.exit_code, report.missing) == (0, ())
    assert {delta.name for delta in report.deltas} == {*weights}
    assert find(report, "lm_head.weight").state == "identical", "what is left out is plain"


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_block_is_named(tmp_path: Path, weights: Tensors, name: str) -> None:
    pack, codes, _scale = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    raw = packed[f"{UP}.{codes}"].view(torch.uint8)
    raw[9, 40:48] ^= 0x5A
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert (report.exit_code, [d.name for d in report.deltas if not d.passed]) == (
        1,
        [f"{UP}.weight"],
    )
    rows = {"ModelOpt NVFP4": {9}, "int8 a row": {9}}.get(name, {10, 11})
    (damage,) = find(report).damage
    assert (damage.fault, {*damage.first}) == ("blocks damaged", rows)


@pytest.mark.parametrize("name", FORMATS)
def test_swapped_scales_are_named(tmp_path: Path, weights: Tensors, name: str) -> None:
    pack, _codes, kind = FORMATS[name]
    packed = pack(weights[f"{UP}.weight"])
    scale = packed[f"{UP}.{kind}"]
    if name.startswith("GPTQ"):
        scale = scale.T  # (rows, groups), a view
    raw = scale.view(torch.uint8) if scale.dtype == torch.float8_e4m3fn else scale
    first = scale.float()[:, 0]
    other = int((first / first[5] - 1.5).abs().argmin())
    raw[5, 0], raw[other, 0] = raw[other, 0].clone(), raw[5, 0].clone()
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    faults = {one.fault: {*one.first} for one in find(report).damage}
    assert set().union(*faults.values()) == {5, other}
    assert faults.keys() & {"blocks scaled", "rows scaled"}


def test_a_wrong_zero_point_is_named(tmp_path: Path, weights: Tensors) -> None:
    packed = pack_gptq(weights[f"{UP}.weight"])
    packed[f"{UP}.qzeros"][2, 0] ^= 1  # of the first row's third group
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    assert words(report).startswith("zero points off (row 0, columns 128 to 191, values shifted by")


def test_all_zero_points_off_by_one_are_no_moved_errors(tmp_path: Path, weights: Tensors) -> None:
    """Version 1 of GPTQ's format read as version 2, or the other way round."""
    packed = pack_gptq(weights[f"{UP}.weight"])
    config = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    assert compare(tmp_path, weights, {**plain(weights), **packed}, **config).exit_code == 1


# Quantisers that do not round to nearest


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


# Bad input


def test_scales_that_are_nan_are_told_with_their_place(tmp_path: Path, weights: Tensors) -> None:
    packed = pack_int8(weights[f"{UP}.weight"])
    packed[f"{UP}.weight_scale"][7] = torch.nan
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert (report.exit_code, find(report).state) == (3, "unreadable")
    assert "has 1 scales that are NaN or infinite, the first of row 7" in find(report).fault


def test_a_scale_of_zero_is_a_row_of_zeros(tmp_path: Path, weights: Tensors) -> None:
    packed = pack_int8(weights[f"{UP}.weight"])
    packed[f"{UP}.weight_scale"][7] = 0
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert report.exit_code == 1
    assert words(report).startswith("rows zeroed (row 7")


def test_an_unknown_packing_is_unknown_and_never_another_shape(
    tmp_path: Path, weights: Tensors
) -> None:
    """Told by its parts, by the config, or by codes of another shape alone."""
    codes = torch.ones(ROWS, COLUMNS // 2, dtype=torch.uint8)
    for packed, config in (
        ({f"{UP}.W_q": codes, f"{UP}.meta": torch.ones(4)}, {"quant_method": "hqq"}),
        ({f"{UP}.weight": codes, f"{UP}.blob": codes.clone()}, {"quant_method": "newquant"}),
        ({f"{UP}.weight": codes}, {}),
    ):
        report = compare(tmp_path, weights, {**plain(weights), **packed}, **config)
        assert (report.exit_code, find(report).state, report.missing) == (3, "unreadable", ())


def test_activation_scales_are_a_caveat_and_no_missing_tensors(
    tmp_path: Path, weights: Tensors
) -> None:
    packed = {
        **pack_nvfp4(weights[f"{UP}.weight"]),
        f"{LAYER}self_attn.k_scale": torch.ones(1),
    }
    report = compare(tmp_path, weights, {**plain(weights), **packed})
    assert (report.exit_code, report.missing) == (0, ())
    assert {*report.ignored} == {f"{UP}.input_scale", f"{LAYER}self_attn.k_scale"}
    assert any(text.startswith("2 scales of activations or caches") for text in report.caveats)
