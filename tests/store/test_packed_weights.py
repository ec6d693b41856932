"""Packed checkpoints are read as the weights that they stand for, and counted by their headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evalguard.store.tensor_files import list_stored_weights, open_tensors

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


# Blocks checked by hand. Whole weights were read as their owners' packages dequantise them, when
# this was written: compressed-tensors 0.20.0, ModelOpt 0.47.0, bitsandbytes 0.50.2, torchao 0.18.0,
# optimum-quanto 0.2.7, AutoAWQ 0.2.9, transformers 5.24.0 (gpt-oss).


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


def words(*values: int) -> torch.Tensor:
    return torch.tensor([value - (1 << 32) if value >> 31 else value for value in values]).int()


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# Every code once, the even ones in the lower bits: 0x10 is 0 and then 0.5.
ALL_CODES = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
ALL_E2M1 = [*E2M1, *(-one for one in E2M1)]


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


def quant_state(**more: Any) -> torch.Tensor:
    told = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [2, 64], **more}
    return torch.tensor([*json.dumps(told).encode()], dtype=torch.uint8)


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


# Bad input


def fault(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    save_file(tensors, folder / "model.safetensors")
    text = json.dumps({"quantization_config": config} if config else {})
    (folder / "config.json").write_text(text, encoding="utf-8")
    with open_tensors(folder) as found:
        (weight,) = found.tensors.values()
        return f"{weight.name}: {weight.fault}"


def nvfp4(**changed: torch.Tensor | None) -> dict[str, torch.Tensor]:
    parts: dict[str, torch.Tensor | None] = {
        "weight_packed": ALL_CODES,
        "weight_scale": torch.ones(1, 1).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.ones(1),
        **changed,
    }
    return {f"a.{name}": one for name, one in parts.items() if one is not None}


@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        (nvfp4(weight_scale=None), {}, "a.weight_scale is missing"),
        (
            nvfp4(weight_scale=torch.ones(1, 2).to(torch.float8_e4m3fn)),
            {},
            "a.weight_scale is of shape [1, 2], a.weight_packed [1, 8] asks for [1, 1]",
        ),
        (nvfp4(weight_packed=ALL_CODES.float()), {}, "a.weight_packed is float32, not uint8"),
        (
            {"a.codes": torch.ones(2, 2).int(), "a.codebooks": torch.ones(2)},
            {"quant_method": "aqlm"},
            "evalguard does not know how a.codes is packed by aqlm",
        ),
        (
            {"a.W_q": torch.ones(2, 2, dtype=torch.uint8), "a.meta": torch.ones(2)},
            {"quant_method": "hqq"},
            "evalguard does not know how a.W_q is packed by hqq",
        ),
        (
            {"a.weight": torch.ones(2, 2, dtype=torch.uint8), "a.weight_scale": torch.ones(3)},
            {"quant_method": "bitnet"},
            "a scale of [3] does not fit [2, 2]",
        ),
        (
            {"a.weight": torch.ones(2, 2, dtype=torch.int8)},
            {"quant_method": "compressed-tensors"},
            "it is stored as int8, and a.weight_scale is missing",
        ),
        (
            {"a.qzeros": words(1)[None], "a.scales": torch.ones(1, 8, dtype=torch.float16)},
            {"quant_method": "gptq"},
            "a.qweight is missing",
        ),
        (
            {
                "a.qweight": words(*[0] * 8)[None],
                "a.qzeros": words(0)[None],
                "a.scales": torch.ones(1, 8, dtype=torch.float16),
                "a.g_idx": torch.full((8,), 5, dtype=torch.int32),
            },
            {"quant_method": "gptq"},
            "a.g_idx names the groups 5 to 5, there are 1",
        ),
        (
            {
                "a.qweight": words(*[0] * 8)[None],
                "a.qzeros": words(0)[None],
                "a.scales": torch.ones(1, 8, dtype=torch.float16),
            },
            {"quant_method": "gptq", "checkpoint_format": "marlin"},
            "evalguard does not know GPTQ's checkpoint format 'marlin'",
        ),
        (
            {
                "a.weight": torch.zeros(3, 1, dtype=torch.uint8),
                "a.weight.absmax": torch.ones(2),
                "a.weight.quant_state.bitsandbytes__nf4": quant_state(),
            },
            {},
            "a.weight has 3 bytes and 2 blocks of 64, [2, 64] asks for 64 and 2",
        ),
        (
            nvfp4(),
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": 1}}},
            "it was rotated before it was stored (transform_config)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_why(
    tmp_path: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], said: str
) -> None:
    assert fault(tmp_path, tensors, **config).startswith(f"a.weight: {said}")
