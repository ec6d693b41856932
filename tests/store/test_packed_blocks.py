"""Blocks of packed weights, dequantised by hand.

Whole weights against their owners' packages: tests/systems/test_packed_by_owners.py; against
ModelOpt 0.47.0, AutoAWQ 0.2.9, transformers 5.24.0 (gpt-oss) and GPTQModel 7.7.0 (2, 3, 4 and 8
bits, with act-order and without, both versions of zero points: equal to its float16) when this was
written. torchao's Int4Tensor as torchao 0.18.0 packs it with mslk 1.1.0 (MSLK_PYTHON_ONLY=1) is
within half a step of its base; neither dequantises it without a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packed_parts import ALL_CODES, ALL_E2M1, quant_state, words
from safetensors.torch import save_file

from evalguard.tensor_files.opening import open_tensors


def numbers(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> list[list[float]]:
    metadata = config.pop("metadata", None)
    save_file(tensors, folder / "model.safetensors", metadata=metadata)
    if config:
        text = json.dumps({"quantization_config": config})
        (folder / "config.json").write_text(text, encoding="utf-8")
    with open_tensors(folder) as found:
        (weight,) = found.tensors.values()
        assert weight.fault == ""
        values: list[list[float]] = weight.load().tolist()
        return values


def test_nvfp4_divides_by_compressed_tensors_second_scale(tmp_path: Path) -> None:
    found = numbers(
        tmp_path,
        {
            "a.weight_packed": ALL_CODES,
            "a.weight_scale": torch.tensor([[1.5]]).to(torch.float8_e4m3fn),
            "a.weight_global_scale": torch.tensor([2.0]),
        },
    )
    assert found == [[0.75 * one for one in ALL_E2M1]]


def test_nvfp4_multiplies_with_modelopts_second_scale(tmp_path: Path) -> None:
    found = numbers(
        tmp_path,
        {
            "a.weight": ALL_CODES,
            "a.weight_scale": torch.tensor([[1.5]]).to(torch.float8_e4m3fn),
            "a.weight_scale_2": torch.tensor(2.0),
        },
    )
    assert found == [[3.0 * one for one in ALL_E2M1]]


def test_mxfp4_has_powers_of_two_as_scales(tmp_path: Path) -> None:
    tensors = {
        "a.weight_packed": ALL_CODES.repeat(1, 2),
        "a.weight_scale": torch.tensor([[126]], dtype=torch.uint8),
    }
    assert numbers(tmp_path, tensors) == [[0.5 * one for one in ALL_E2M1 * 2]]


def test_gpt_oss_experts_are_turned_as_transformers_turns_them(tmp_path: Path) -> None:
    tensors = {
        "experts.down_proj_blocks": ALL_CODES.repeat(1, 2).reshape(1, 1, 1, 16).repeat(1, 2, 1, 1),
        "experts.down_proj_scales": torch.tensor([[[127], [128]]], dtype=torch.uint8),
    }
    found = numbers(tmp_path, tensors)
    assert found == [[[one, 2 * one] for one in ALL_E2M1 * 2]]


def test_compressed_tensors_integers_are_offset_and_their_zero_points_packed_along_rows(
    tmp_path: Path,
) -> None:
    tensors = {
        "a.weight_packed": torch.stack([words(0x76543210), words(0xFEDCBA98)]),
        "a.weight_scale": torch.tensor([[0.5], [2.0]]),
        "a.weight_shape": torch.tensor([2, 8]),
        "a.weight_zero_point": words(0x97).reshape(1, 1),  # -1 of the first row, 1 of the second
    }
    assert numbers(tmp_path, tensors) == [
        [0.5 * (code - 8 + 1) for code in range(8)],
        [2.0 * (code - 1) for code in range(8)],
    ]


def test_three_bits_run_across_words(tmp_path: Path) -> None:
    codes = [number % 8 for number in range(32)]
    packed = sum(code << (3 * place) for place, code in enumerate(codes))
    tensors = {
        "a.weight_packed": words(*(packed >> shift & 0xFFFFFFFF for shift in (0, 32, 64)))[None],
        "a.weight_scale": torch.tensor([[1.0]]),
        "a.weight_shape": torch.tensor([1, 32]),
    }
    assert numbers(tmp_path, tensors) == [[code - 4.0 for code in codes]]


@pytest.mark.parametrize(("version", "zero"), [("gptq", 2), ("gptq_v2", 1)])
def test_gptq_is_packed_along_inputs_and_stores_zeros_less_one(
    tmp_path: Path, version: str, zero: int
) -> None:
    tensors = {
        "a.qweight": words(0x76543210, 0xFEDCBA98).repeat(4).reshape(1, 8),
        "a.qzeros": words(0x11111111).reshape(1, 1),
        "a.scales": torch.tensor([[1.0, 0.5] * 4], dtype=torch.float16),
        "a.g_idx": torch.zeros(8, dtype=torch.int32),
    }
    found = numbers(tmp_path, tensors, quant_method="gptq", checkpoint_format=version)
    assert found[0] == [float(code - zero) for code in range(8)]
    assert found[1] == [0.5 * (code + 8 - zero) for code in range(8)]


def test_act_order_gives_each_input_the_scale_of_its_group(tmp_path: Path) -> None:
    tensors = {
        "a.qweight": words(0x33333333).reshape(1, 1).repeat(1, 8),
        "a.qzeros": words(0x11111111, 0x22222222).reshape(2, 1),
        "a.scales": torch.tensor([[1.0], [10.0]], dtype=torch.float16).repeat(1, 8),
        "a.g_idx": torch.tensor([1, 0, 0, 1, 1, 0, 1, 0], dtype=torch.int32),
    }
    found = numbers(tmp_path, tensors, quant_method="gptq", checkpoint_format="gptq_v2")
    assert found[3] == [10.0, 2.0, 2.0, 10.0, 10.0, 2.0, 10.0, 2.0]


def test_awq_interleaves_its_outputs(tmp_path: Path) -> None:
    """Nibbles from the lowest on are outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    tensors = {
        "a.qweight": words(0x75316420, 0x75316420).reshape(2, 1),
        "a.qzeros": words(0x11111111).reshape(1, 1),
        "a.scales": torch.full((1, 8), 0.5, dtype=torch.float16),
    }
    found = numbers(tmp_path, tensors, quant_method="awq", version="gemm")
    assert found == [[0.5 * (output - 1)] * 2 for output in range(8)]


def pack(codes: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight numbers of 4 bits a word, along the last axis; ``order``: which lie from bit 0 on."""
    eight = codes.reshape(*codes.shape[:-1], -1, 8)[..., list(order)].astype(np.int64)
    made = (eight << np.arange(0, 32, 4)).sum(axis=-1).astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(made))


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("same_zeros", [False, True])
def test_weights_that_are_turned_slab_by_slab_are_whole(
    tmp_path: Path, method: str, same_zeros: bool
) -> None:
    inputs, outputs, groups = 4096, 200, 32
    generator = np.random.default_rng(5)
    codes = generator.integers(0, 16, (inputs, outputs))
    zeros = (
        np.full((groups, outputs), 9)
        if same_zeros
        else generator.integers(1, 16, (groups, outputs))
    )
    scales = generator.integers(1, 9, (groups, outputs)) / 8
    each = inputs // groups
    expected = ((codes - zeros.repeat(each, axis=0)) * scales.repeat(each, axis=0)).T
    awq = (0, 2, 4, 6, 1, 3, 5, 7)
    if method == "gptq":
        stored = {"a.qweight": pack(codes.T).T.contiguous(), "a.qzeros": pack(zeros)}
    else:
        stored = {"a.qweight": pack(codes, awq), "a.qzeros": pack(zeros, awq)}
    stored["a.scales"] = torch.from_numpy(scales.astype(np.float16))
    save_file(stored, tmp_path / "model.safetensors")
    form = {"quant_method": method, "checkpoint_format": "gptq_v2", "version": "gemm"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": form}))
    with open_tensors(tmp_path) as found:
        (weight,) = found.tensors.values()
        np.testing.assert_array_equal(weight.load(), expected)
        for first, stop in ((0, 1), (60, 70), (127, 200), (3, 190)):
            rows = weight.read(first * inputs, stop * inputs).reshape(-1, inputs)
            np.testing.assert_array_equal(rows, expected[first:stop])


def test_bitsandbytes_has_the_earlier_element_in_the_higher_bits(tmp_path: Path) -> None:
    tensors = {
        "a.weight": torch.tensor([[0x70]] * 32 + [[0xF7]] * 32, dtype=torch.uint8),
        "a.weight.absmax": torch.tensor([2.0, 3.0]),
        "a.weight.quant_map": torch.zeros(16),
        "a.weight.quant_state.bitsandbytes__nf4": quant_state(),
    }
    assert numbers(tmp_path, tensors) == [[0.0, -2.0] * 32, [3.0, 0.0] * 32]


def test_bitsandbytes_quantises_the_greatest_elements_once_more(tmp_path: Path) -> None:
    table = torch.linspace(-1, 1, 256)
    tensors = {
        "a.weight": torch.full((64, 1), 0xF7, dtype=torch.uint8),
        "a.weight.absmax": torch.tensor([255, 0], dtype=torch.uint8),
        "a.weight.quant_map": torch.zeros(16),
        "a.weight.nested_absmax": torch.tensor([0.5]),
        "a.weight.nested_quant_map": table,
        "a.weight.quant_state.bitsandbytes__nf4": quant_state(
            nested_blocksize=256, nested_dtype="float32", nested_offset=2.0
        ),
    }
    assert numbers(tmp_path, tensors) == [[2.5, 0.0] * 32, [1.5, 0.0] * 32]


def test_torchao_says_in_the_metadata_what_its_tensors_are(tmp_path: Path) -> None:
    own = {
        "_type": "IntxUnpackedToInt8Tensor",
        "_data": {"target_dtype": {"_type": "torch.dtype", "_data": "int4"}, "block_size": [1, 2]},
        "_tensor_data_names": ["qdata", "scale", "zero_point"],
    }
    found = numbers(
        tmp_path,
        {
            "a._weight_qdata": torch.tensor([[-8, 7, 1, 2]], dtype=torch.int8),
            "a._weight_scale": torch.tensor([[0.5, 2.0]]),
            "a._weight_zero_point": torch.tensor([[0, 1]], dtype=torch.int8),
        },
        metadata={"a.weight": json.dumps(own), "tensor_names": '["a.weight"]'},
    )
    assert found == [[-4.0, 3.5, 0.0, 2.0]]


def test_quanto_packs_its_groups_below_one_another(tmp_path: Path) -> None:
    found = numbers(
        tmp_path,
        {
            "a.weight._data._data": torch.tensor([[0x21, 0x43]], dtype=torch.uint8),
            "a.weight._scale": torch.tensor([[0.5], [2.0]]),
            "a.weight._shift": torch.tensor([[1.0], [4.0]]),
            "a.input_scale": torch.ones(()),
        },
    )
    assert found == [[0.5 * 1 - 1, 0.5 * 3 - 1], [2.0 * 2 - 4, 2.0 * 4 - 4]]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_adds_a_bias_and_its_codes_run_across_words(tmp_path: Path, bits: int) -> None:
    codes = [*range(2**bits), *[2**bits - 1] * 256][:256]
    stream = sum(code << (bits * place) for place, code in enumerate(codes))
    packed = np.frombuffer(stream.to_bytes(32 * bits, "little"), np.int32).copy().reshape(1, -1)
    found = numbers(
        tmp_path,
        {
            "a.weight": torch.from_numpy(packed).view(torch.uint32),
            "a.scales": torch.tensor([[0.5, -2.0]]).half(),
            "a.biases": torch.tensor([[-1.0, 4.0]]).half(),
        },
        bits=7,
        group_size=64,
        a={"bits": bits, "group_size": 128},
    )
    first, second = ([step * code + shift for code in part] for step, shift, part in
                     ((0.5, -1.0, codes[:128]), (-2.0, 4.0, codes[128:])))  # fmt: skip
    assert found == [[*first, *second]]


def test_mlx_of_a_scale_of_0_leaves_the_bias(tmp_path: Path) -> None:
    found = numbers(
        tmp_path,
        {
            "a.weight": words(*[7] * 5)[None].view(torch.uint32),
            "a.scales": torch.zeros(1, 1),
            "a.biases": torch.tensor([[0.25]]),
        },
    )
    assert found == [[0.25] * 32]


@pytest.mark.parametrize(
    ("packed", "scale", "values"),
    [
        ([0x76543210, 0xFEDCBA98], 0x38, ALL_E2M1),  # nvfp4: float8 1
        ([0x76543210, 0xFEDCBA98] * 2, 128, [2 * one for one in ALL_E2M1 * 2]),  # mxfp4: 2
        ([0x38B80040] * 8, 126, [1.0, 0.0, -0.5, 0.5] * 8),  # mxfp8: a half
    ],
)
def test_mlx_modes_of_floats_are_told_by_the_bytes_of_a_group(
    tmp_path: Path, packed: list[int], scale: int, values: list[float]
) -> None:
    found = numbers(
        tmp_path,
        {
            "a.weight": words(*packed)[None].view(torch.uint32),
            "a.scales": torch.tensor([[scale]], dtype=torch.uint8),
        },
    )
    assert found == [values]


def test_blocks_of_float8_may_be_cut_at_the_end(tmp_path: Path) -> None:
    """576 rows in blocks of 128 are five blocks, the last of half the size (DeepSeek's kv_a)."""
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]])
    found = numbers(
        tmp_path,
        {"a.weight": torch.ones(576, 192).to(torch.float8_e4m3fn), "a.weight_scale_inv": scale},
        quant_method="fp8",
        weight_block_size=[128, 128],
    )
    assert (found[0][127], found[0][128], found[127][0], found[128][0]) == (1.0, 2.0, 1.0, 3.0)
    assert (found[512][0], found[575][191]) == (9.0, 10.0)
