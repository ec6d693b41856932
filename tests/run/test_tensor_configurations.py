"""Tensors that are the same make another model with another configuration, which is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from evalguard.report.tensors.terminal import render_tensors
from evalguard.run.tensors.compare_tensors import TensorOptions, compare_tensors

CONFIG: dict[str, Any] = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "num_experts_per_tok": 2,
    "sliding_window": None, "eos_token_id": [2, 7], "dtype": "float32", "hidden_act": "silu",
}  # fmt: skip
TENSORS = {"model.norm.weight": np.ones(8, dtype=np.float32)}


def save(folder: Path, config: dict[str, Any] | None) -> Path:
    folder.mkdir()
    save_file(TENSORS, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def differing(base: Path, candidate: Path) -> dict[str, tuple[Any, Any]]:
    report = compare_tensors(str(base), str(candidate), TensorOptions())
    assert report.exit_code == 0
    shown = " ".join(render_tensors(report, width=80, color=False).split())
    assert ("the configurations differ" in shown) == bool(report.configuration)
    return {one.name: (one.base, one.candidate) for one in report.configuration}


DIFFERENT = {
    "epsilon": ({"rms_norm_eps": 1e-5}, {"norm_eps": (1e-6, 1e-5)}),
    "rope": (
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        {"rope_theta": (1e6, 1e4)},
    ),
    "experts": ({"num_experts_per_tok": 1}, {"num_experts_per_tok": (2, 1)}),
    "window": ({"sliding_window": 4096}, {"attention_window": ("none", 4096)}),
    "activation": ({"hidden_act": "gelu"}, {"activation": ("silu", "gelu (erf)")}),
    "ends": ({"eos_token_id": 3}, {"eos_token_id": ([2, 7], 3)}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_a_config_says_otherwise_is_said(tmp_path: Path, what: str) -> None:
    change, said = DIFFERENT[what]
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", {**CONFIG, **change})) == said


EQUAL: dict[str, dict[str, Any]] = {
    "a copy": {},
    "another version": {"transformers_version": "5.0.0"},
    "another dtype": {"dtype": "bfloat16"},
    "for training": {"initializer_range": 0.01, "attention_dropout": 0.1},
    "its quantisation": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "one of several ends": {"eos_token_id": 2},
    "what one side alone says": {"head_dim": 64, "router_aux_loss_coef": 0.1},
}


@pytest.mark.parametrize("what", EQUAL)
def test_what_changes_no_computation_is_not(tmp_path: Path, what: str) -> None:
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", {**CONFIG, **EQUAL[what]})) == {}


def test_configs_of_two_kinds_are_compared_in_what_both_mean(tmp_path: Path) -> None:
    other = {**CONFIG, "model_type": "port", "rms_norm_eps": 1e-5, "num_experts_per_tok": 1}
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", other)) == {"norm_eps": (1e-6, 1e-5)}


def test_nothing_is_said_where_a_side_has_no_configuration(tmp_path: Path) -> None:
    base = save(tmp_path / "base", CONFIG)
    assert differing(base, save(tmp_path / "port", None)) == {}


def test_metadata_of_a_gguf_file_are_compared_with_a_config(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_tensor("output_norm.weight", TENSORS["model.norm.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = {**CONFIG, "sliding_window": 4096}
    assert differing(save(tmp_path / "base", config), file) == {
        "rope_theta": (1e6, 1e4), "attention_window": (4096, "none"),
    }  # fmt: skip
