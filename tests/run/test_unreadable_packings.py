"""Packed checkpoints that cannot be read, or only in part: what is not known is said to be unknown,
never to be different."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from packed_pairs import (
    COLUMNS,
    LAYER,
    ROWS,
    UP,
    Tensors,
    compare,
    find,
    make_weights,
    pack_int8,
    pack_nvfp4,
    plain,
    words,
)


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return make_weights()


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
    words = torch.ones(ROWS, COLUMNS // 8, dtype=torch.int32).view(torch.uint32)
    one = torch.ones(1, dtype=torch.bfloat16)
    for packed, config in (
        ({f"{UP}.W_q": codes, f"{UP}.meta": torch.ones(4)}, {"quant_method": "hqq"}),
        ({f"{UP}.weight": codes, f"{UP}.blob": codes.clone()}, {"quant_method": "newquant"}),
        ({f"{UP}.weight": codes}, {}),
        ({f"{UP}.weight": codes, f"{UP}.weight_scale": one}, {"quant_method": "bitnet"}),
        ({f"{UP}.weight": codes, f"{UP}.weight_scale": one}, {}),
        ({f"{UP}.weight": words, f"{UP}.steps": one, f"{UP}.levels": codes.clone()}, {}),
        ({f"{UP}.weight": codes.short(), f"{UP}.weight_norm": one}, {}),
        ({f"{UP}.compressed": one, f"{UP}.bitmask": codes, f"{UP}.shape": one.int()}, {}),
        ({f"{UP}.weight_v": one, f"{UP}.weight_g": one.clone()}, {}),
        ({f"{UP}.base.weight": one, f"{UP}.lora_A": one.clone()}, {}),
    ):
        report = compare(tmp_path, weights, {**plain(weights), **packed}, **config)
        assert (report.exit_code, find(report).state, report.missing) == (3, "unreadable", ())


def test_a_base_that_is_packed_in_an_unknown_way_is_unknown_as_well(
    tmp_path: Path, weights: Tensors
) -> None:
    codes = torch.ones(ROWS, COLUMNS // 2, dtype=torch.uint8)
    report = compare(tmp_path, {**plain(weights), f"{UP}.compressed": codes}, weights)
    delta = find(report)
    assert (report.exit_code, delta.state, report.missing) == (3, "unreadable", ())
    assert (delta.base.shape, delta.candidate.shape) == ((), (ROWS, COLUMNS))
    assert f"in its place stand {UP}.compressed, packed in a way that evalguard" in delta.fault


def test_a_weight_that_is_not_there_is_missing(tmp_path: Path, weights: Tensors) -> None:
    for left in ({}, {f"{UP}.bias": torch.ones(ROWS)}):
        report = compare(tmp_path, weights, {**plain(weights), **left})
        assert (report.exit_code, report.base_only) == (1, (f"{UP}.weight",))


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


@pytest.mark.parametrize("part", ["weight", "weight_scale", "weight_scale_2"])
@pytest.mark.parametrize("told", [{}, {"quant_method": "modelopt", "quant_algo": "NVFP4"}])
def test_a_part_in_a_shard_that_is_missing_leaves_the_weight_unknown(
    tmp_path: Path, weights: Tensors, part: str, told: dict[str, str]
) -> None:
    packed = pack_nvfp4(weights[f"{UP}.weight"])
    lost = f"{UP}.{part}"
    here = {**plain(weights), **{name: one for name, one in packed.items() if name != lost}}
    folder = tmp_path / "packed"
    folder.mkdir()
    index = {"weight_map": {**dict.fromkeys(here, "model.safetensors"), lost: "two.safetensors"}}
    text = json.dumps(index)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    report = compare(tmp_path, weights, here, **told)
    assert (report.exit_code, report.missing, report.candidate_only) == (3, (), ())
    assert find(report).state == "unreadable"
    assert "two.safetensors is not there, and the index names it" in find(report).fault
