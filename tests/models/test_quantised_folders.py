"""Folders with quantised weights: what reads them is said before any of them is loaded."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from evalguard.core.scorer import ScoringPolicy
from evalguard.errors import UsageError
from evalguard.models.loading import load_lm
from evalguard.models.model_caveats import list_model_caveats
from evalguard.models.quantised_folders import check_quantisation


def write_config(folder: Path, **fields: Any) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps({"model_type": "llama", **fields}))
    return config


def refusal(config: Path) -> UsageError:
    with pytest.raises(UsageError, match="cannot be read here") as caught:
        check_quantisation("./packed", config, {})
    return caught.value


@pytest.mark.parametrize(
    ("settings", "module", "installed", "by_vllm"),
    [
        ({"quant_method": "awq", "bits": 4}, "gptqmodel", "'gptqmodel>=", True),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32},
            "gptqmodel",
            "'optimum>=1.24.0' 'gptqmodel>=1.4.3'",
            True,
        ),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            "compressed_tensors",
            "'compressed-tensors>=",
            True,
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "bitsandbytes",
            "'bitsandbytes>=",
            True,
        ),
        ({"load_in_8bit": True}, "bitsandbytes", "'bitsandbytes>=", True),
        ({"quant_method": "torchao", "quant_type": "int8"}, "torchao", "'torchao>=", True),
        ({"quant_method": "quanto", "weights": "int8"}, "optimum", "optimum-quanto", False),
        ({"quant_method": "aqlm"}, "aqlm", "'aqlm[gpu,cpu]'", False),
    ],
    ids=lambda one: one.get("quant_method", "unnamed") if isinstance(one, dict) else "",
)
def test_packages_that_transformers_lacks_are_named_for_both_environments(
    tmp_path: Path,
    settings: dict[str, Any],
    module: str,
    installed: str,
    by_vllm: bool,
) -> None:
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed")
    error = refusal(write_config(tmp_path, quantization_config=settings))
    assert f"pip install {installed}" in error.hint
    assert "requirements: [torch, transformers, accelerate, " in error.hint
    assert ("vllm:./packed (pip install vllm)" in error.hint) == by_vllm


@pytest.mark.parametrize(
    ("fields", "beside", "hint"),
    [
        ({"quantization_config": {"quant_method": "modelopt"}}, "", "vLLM reads it: vllm:./packed"),
        ({}, "hf_quant_config.json", "vLLM reads it: vllm:./packed"),
        ({"quantization_config": {"quant_method": "exl2", "bits": 4.0}}, "", "only exllamav2 "),
        ({"quantization_config": {"quant_method": "exl3", "bits": 4.0}}, "", "only exllamav3 "),
        ({"quantization": {"group_size": 64, "bits": 4}}, "", "--mlx-path PLAIN --dequantize"),
        (
            {
                name: {"group_size": 64, "bits": 4}
                for name in ("quantization", "quantization_config")
            },
            "",
            "--mlx-path PLAIN --dequantize",
        ),
        ({"quantization_config": {"quant_method": "nvfp4"}}, "", "that it was quantised from"),
        (
            {"text_config": {"quantization_config": {"quant_method": "own"}}},
            "",
            "that it was quantised from",
        ),
        ({"quantization_config": {"quant_method": "own"}}, "", "that it was quantised from"),
        ({"quantization_config": {"bits": 4}}, "", "that it was quantised from"),
        ({"quantization_config": "4 bits"}, "", "that it was quantised from"),
    ],
)
def test_weights_that_transformers_does_not_read_name_what_does(
    tmp_path: Path, fields: dict[str, Any], beside: str, hint: str
) -> None:
    if beside:
        (tmp_path / beside).write_text("{}")
    error = refusal(write_config(tmp_path, **fields))
    assert hint in error.hint
    assert "requirements: [" not in error.hint


@pytest.mark.parametrize(
    ("settings", "beside", "called"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {}, "modelopt (NVFP4) quantised"),
        (None, {"quantization": {"quant_algo": "NVFP4"}}, "modelopt (NVFP4) quantised"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            {},
            "compressed-tensors (nvfp4-pack-quantized) quantised",
        ),
    ],
)
def test_of_a_method_with_several_forms_the_form_is_named(
    tmp_path: Path, settings: dict[str, Any] | None, beside: dict[str, Any], called: str
) -> None:
    if importlib.util.find_spec("compressed_tensors"):
        pytest.skip("compressed_tensors is installed")
    if beside:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    error = refusal(write_config(tmp_path, quantization_config=settings))
    assert str(error).startswith(f"./packed holds {called} weights, which cannot be read here: ")
    ways = ("only vLLM reads it: vllm:./packed", "pip install 'compressed-tensors>=")
    assert ways[settings is not None and "format" in settings] in error.hint


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({}, {}),
        ({"quantization_config": None}, {}),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, {}),
        ({"quantization_config": {"quant_method": "mxfp4"}}, {}),
        ({"quantization_config": {"quant_method": "awq"}}, {"gguf_file": "other.gguf"}),
        ({"quantization_config": {"quant_method": "gptq"}}, {"gptqmodel": True}),
    ],
)
def test_weights_that_can_be_read_here_are_not_refused(
    tmp_path: Path, fields: dict[str, Any], given: dict[str, Any]
) -> None:
    check_quantisation("./packed", write_config(tmp_path, **fields), given)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_config_that_cannot_be_read_is_left_to_loading(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    check_quantisation("./packed", tmp_path / "config.json", {})
    check_quantisation("./packed", tmp_path / "absent" / "config.json", {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="computed in fp8 there")
def test_weights_that_are_dequantised_while_they_load_are_said_to_be(
    tiny_llama: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "fp8"))
    config = json.loads((folder / "config.json").read_text())
    settings = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    write_config(folder, **config, quantization_config=settings)
    stored: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "proj" not in name:
            stored[name] = weight
            continue
        scale = weight.abs().max().float() / 448
        stored[name] = (weight / scale).to(torch.float8_e4m3fn)
        stored[name.replace("weight", "weight_scale_inv")] = scale.reshape(1, 1)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    told = [list_model_caveats(load(one), {"pretrained": str(one)}) for one in (folder, tiny_llama)]
    assert [any("fp8 weights were dequantised" in text for text in of) for of in told] == [
        True,
        False,
    ]


def load(folder: Path) -> Any:
    policy = ScoringPolicy(batch_size=4, device="cpu")
    arguments = {"pretrained": str(folder)}
    return load_lm("hf", arguments, {}, policy, trust_remote_code=False, allow_pickle=False)
