"""Packed weights whose parts are missing, do not fit or are not known: why, in their words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_parts import ALL_CODES, quant_state, words
from safetensors.torch import save_file

from evalguard.tensor_files.opening import open_tensors


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


def mlx(**changed: torch.Tensor | None) -> dict[str, torch.Tensor]:
    parts: dict[str, torch.Tensor | None] = {
        "weight": torch.zeros(1, 8, dtype=torch.int32).view(torch.uint32),
        "scales": torch.ones(1, 1),
        "biases": torch.ones(1, 1),
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
            "a.weight is uint8 without a zero point",
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
            {
                "a.weight": torch.zeros(64, 1, dtype=torch.uint8),
                "a.weight.absmax": torch.ones(2),
                "a.weight.quant_state.bitsandbytes__nf4": quant_state(quant_type="fp4"),
            },
            {},
            "a.weight.quant_state.bitsandbytes__nf4 says 'fp4', not nf4",
        ),
        (
            {
                "a.weight": torch.zeros(64, 1, dtype=torch.uint8),
                "a.weight.absmax": torch.zeros(2, dtype=torch.uint8),
                "a.weight.nested_absmax": torch.ones(1),
                "a.weight.nested_quant_map": torch.ones(256),
                "a.weight.quant_state.bitsandbytes__nf4": quant_state(
                    nested_offset=0.0, nested_blocksize=0
                ),
            },
            {},
            "a.weight says blocks of 0 with an offset 0.0",
        ),
        (
            {"a.weight": torch.ones(64, 8, dtype=torch.int8), "a.weight_scale": torch.ones(7)},
            {},
            "a scale of [7] does not fit [64, 8]",
        ),
        (
            {"a.weight": torch.zeros(0, dtype=torch.int8), "a.weight_scale": torch.ones(2, 1)},
            {},
            "a scale of [2, 1] does not fit [0]",
        ),
        ({"a.weight_scale": torch.ones(2)}, {}, "a.weight is missing"),
        (mlx(), {}, "a.weight has 8 words and 1 groups a row, which do not say how many bits it"),
        (
            mlx(),
            {"bits": 5, "group_size": 64},
            "a.weight has 8 words and 1 groups a row, which 5 bits in groups of 64 do not fill",
        ),
        (mlx(biases=None), {}, "a.biases is missing, and a.scales is float32"),
        (mlx(scales=torch.ones(3, 1)), {}, "a.scales is of shape [3, 1], a.weight [1, 8] asks"),
        (mlx(biases=torch.ones(1, 2)), {}, "a.biases is of shape [1, 2], a.scales [1, 1] asks"),
        (mlx(biases=torch.ones(1, 1).int()), {}, "a.biases is int32, not float16 or bfloat16"),
        (
            mlx(biases=None, scales=torch.ones(1, 3, dtype=torch.uint8)),
            {},
            "a.scales has 3 scales a row, which do not fit 32 bytes",
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


def test_a_part_that_torchaos_metadata_names_has_to_be_there(tmp_path: Path) -> None:
    own = {
        "_type": "IntxUnpackedToInt8Tensor",
        "_data": {"target_dtype": {"_data": "int4"}, "block_size": ["a", []]},
        "_tensor_data_names": ["qdata", "scale", "zero_point"],
    }
    tensors = {"a._weight_qdata": torch.ones(2, 4).char(), "a._weight_scale": torch.ones(2, 1)}
    metadata = {"a.weight": json.dumps(own)}
    save_file(tensors, tmp_path / "model.safetensors", metadata=metadata)
    with open_tensors(tmp_path / "model.safetensors") as found:
        assert found.tensors["a.weight"].fault == "a._weight_zero_point is missing"


@pytest.mark.parametrize("bits", [[4], "4", None, {"a": 1}, 99])
def test_a_config_that_says_no_number_of_bits_is_no_error(tmp_path: Path, bits: Any) -> None:
    tensors = {"a.weight": torch.ones(2, 4).char(), "a.weight_scale": torch.ones(2, 1)}
    groups = {"group_0": {"weights": {"num_bits": bits, "type": "int"}}}
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert fault(tmp_path, tensors, **config) == "a.weight: "
