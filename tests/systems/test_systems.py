"""The systems that people port with, by their own packages: a healthy port passes, a planted fault
is detected, and the search names it and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from system_models import MODEL, ORIGINAL, Compare, healthy, kl_mean, named, perplexity

pytestmark = pytest.mark.systems

# GGUF by llama.cpp.

GGUF = {
    "weights": {"reference": "F32", "candidate": "Q8_0", "target": "build.type"},
    "kv_keys": {"reference": "f32", "candidate": "f16", "target": "model_args.type_k"},
    "flash": {"reference": "off", "candidate": "on", "target": "model_args.flash_attn"},
    "eps": {"reference": 1e-6, "candidate": 1e-5, "target": "build.eps"},
    "rope": {"reference": 4000.0, "candidate": 400.0, "target": "build.rope_base"},
}
LLAMA_CPP = {
    "model": "llama_cpp",
    "model_args": {"type_v": "f32"},
    "requirements": ["xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors", "numpy"],
    "build": {
        "call": "evalguard.recipes.gguf:convert",
        "output": "model.gguf",
        "inputs": {"source": str(MODEL)},
    },
    "settings": GGUF,
}


def test_gguf_a_port_with_everything_at_reference_is_the_model(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": LLAMA_CPP}, *healthy(GGUF), "--distributions", "reference"
    )
    assert abs(perplexity(found)["sigma"]) < 0.01
    # llama.cpp looks GELU up in a table of fp16 numbers.
    assert kl_mean(found) < 1e-5


def test_gguf_a_rope_base_with_a_digit_too_few_is_named(compare: Compare) -> None:
    found = compare({"original": ORIGINAL, "port": LLAMA_CPP}, "--bisect", "auto", code=1)
    assert named(found) == {"rope"}


def test_gguf_a_truncated_file_is_an_error_and_no_verdict(compare: Compare, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\x00" * 100)
    broken = {**LLAMA_CPP, "build": None, "settings": {}, "model_args": {"pretrained": str(file)}}
    del broken["build"]
    found = compare({"original": ORIGINAL, "port": broken}, code=3)
    assert "cannot be loaded" in found["error"]["message"]


# TransformerLens.

LENS = {
    "package.transformer-lens": {"reference": "3.5.1", "candidate": "2.3.0 typeguard<3"},
    "activation": {"reference": None, "candidate": "gelu_new", "target": "model_args.act_fn"},
}
TRANSFORMER_LENS = {
    "model": "transformer_lens",
    "model_args": {"pretrained": str(MODEL), "dtype": "float32", "api": "hooked"},
    "requirements": ["torch==2.13.0", "transformers==5.23.0", "transformer-lens==3.5.1"],
    "settings": {"package.transformer-lens": LENS["package.transformer-lens"]},
}


def test_transformer_lens_3_5_1_is_the_model(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": TRANSFORMER_LENS},
        "--set", "package.transformer-lens=reference", "--distributions", "reference",
    )  # fmt: skip
    assert abs(perplexity(found)["sigma"]) < 1e-3
    assert kl_mean(found) < 1e-8


def test_transformer_lens_2_3_0_has_another_attention_scale_and_the_upgrade_is_named(
    compare: Compare,
) -> None:
    port = {
        **TRANSFORMER_LENS,
        "settings": {
            **TRANSFORMER_LENS["settings"],  # type: ignore[dict-item]
            "bos": {"reference": True, "candidate": None, "target": "model_args.add_bos_token"},
        },
    }
    found = compare({"original": ORIGINAL, "port": port}, "--bisect", "auto", code=1)
    assert named(found) == {"package.transformer-lens"}


def test_packages_that_exclude_each_other_cannot_be_built_and_that_is_said(
    compare: Compare,
) -> None:
    port = {**TRANSFORMER_LENS, "requirements": ["transformer-lens==3.5.1", "typeguard<3"]}
    port["settings"] = {}
    found = compare({"original": ORIGINAL, "port": port}, code=3)
    assert "cannot be made of" in found["error"]["message"]
    assert "typeguard" in found["error"]["message"]


# torchao.

TORCHAO = {
    "quantiser": {
        "reference": "none",
        "candidate": "Float8WeightOnlyConfig",
        "target": "build.config",
    },
    "head": {"reference": ["lm_head"], "candidate": [], "target": "build.skip"},
}
QUANTISED = {
    "model_args": {"dtype": "float32"},
    "requirements": ["torch==2.13.0", "transformers==5.23.0", "torchao==0.18.0"],
    "build": {
        "call": "evalguard.recipes.torchao:quantise",
        "inputs": {"source": str(MODEL)},
    },
    "settings": TORCHAO,
}
TORCHAO_GATE = {"metrics": {"kl_mean": 3e-4}}


def test_torchao_int8_weights_pass_a_limit_on_kl(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": QUANTISED},
        "--set", "quantiser=Int8WeightOnlyConfig", gate=TORCHAO_GATE,
    )  # fmt: skip
    assert 1e-8 < kl_mean(found) < 3e-4


def test_torchao_a_coarser_quantiser_is_named(compare: Compare) -> None:
    found = compare(
        {"original": ORIGINAL, "port": QUANTISED}, "--bisect", "auto", code=1, gate=TORCHAO_GATE
    )
    assert named(found) == {"quantiser"}


# mergekit.


def merged(noisy: Path) -> dict[str, Any]:
    return {
        "model_args": {"dtype": "float32"},
        "requirements": ["torch==2.13.0", "transformers==5.23.0", "mergekit==0.1.5"],
        "build": {
            "call": "evalguard.recipes.mergekit:merge",
            "inputs": {
                "base": str(noisy),
                "models": [{"model": str(MODEL), "weight": 1.0}],
                "method": "ties",
            },
        },
        "settings": {
            "density": {"reference": 1.0, "candidate": 0.2, "target": "build.density"},
            "normalize": {"reference": False, "candidate": True, "target": "build.normalize"},
            "dtype": {"reference": "float32", "candidate": "bfloat16", "target": "build.dtype"},
        },
    }


def test_mergekit_a_whole_task_vector_gives_the_tuned_model(
    compare: Compare, noisy_model: Path, cache_dir: Path
) -> None:
    port = merged(noisy_model)
    found = compare({"tuned": ORIGINAL, "merged": port}, *healthy(port["settings"]))
    assert abs(perplexity(found)["sigma"]) < 1e-3
    facts = [
        json.loads(file.read_text()) for file in cache_dir.glob("builds/*/*/evalguard-merge.json")
    ]
    assert any(one["dtype"] == "float32" and one["sign_mask"]["elements"] for one in facts)


def test_mergekit_a_density_that_loses_the_tuning_is_named(
    compare: Compare, noisy_model: Path
) -> None:
    found = compare({"tuned": ORIGINAL, "merged": merged(noisy_model)}, "--bisect", "auto", code=1)
    assert named(found) == {"density"}
