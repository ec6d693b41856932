"""Models quantised while they are loaded, or before: bitsandbytes, quanto, compressed-tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from system_models import MODEL, ORIGINAL, Compare, kl_mean, named, run_in

pytestmark = [pytest.mark.systems, pytest.mark.nightly]


PACKAGES = [
    "torch==2.13.0", "transformers==5.23.0", "accelerate", "bitsandbytes==0.50.2",
    "optimum-quanto==0.2.7", "compressed-tensors==0.20.0",
]  # fmt: skip
LIMIT: dict[str, Any] = {"metrics": {"kl_mean": 1e-2}}


def loaded_as(reference: dict[str, Any] | None, candidate: dict[str, Any]) -> dict[str, Any]:
    return {
        **ORIGINAL,
        "requirements": PACKAGES,
        "settings": {
            "quantiser": {
                "reference": reference,
                "candidate": candidate,
                "target": "model_args.quantization_config",
            },
            "attention": {
                "reference": "eager",
                "candidate": None,
                "target": "model_args.attn_implementation",
            },
        },
    }


@pytest.mark.parametrize(
    ("fine", "coarse"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        ),
        (
            {"quant_method": "quanto", "weights": "int8"},
            {"quant_method": "quanto", "weights": "int4"},
        ),
    ],
    ids=["bitsandbytes", "quanto"],
)
def test_eight_bits_pass_a_limit_on_kl_and_four_bits_are_named(
    compare: Compare, fine: dict[str, Any], coarse: dict[str, Any]
) -> None:
    port = loaded_as(fine, coarse)
    models = {"original": ORIGINAL, "port": port}
    passed = compare(models, "--set", "quantiser=reference", gate=LIMIT)
    assert 1e-8 < kl_mean(passed) < LIMIT["metrics"]["kl_mean"]
    found = compare(models, "--bisect", "auto", code=1, gate=LIMIT)
    assert named(found) == {"quantiser"}


TRACE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
from evalguard.core.trace_points import token_inputs
from evalguard.models.runtimes.hf import read_quantisation
from evalguard.tracing.measure.forced_trace import trace_models

folder, told = sys.argv[1], json.loads(sys.argv[2])
base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
candidate = AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32, quantization_config=read_quantisation(told)
).eval()
found = []
for factor in (1.0, 1.1):
    candidate.model.layers[1].self_attn.scaling *= factor
    trace = trace_models(base, candidate, [token_inputs(list(range(5, 45)))])
    found.append([trace.twin.weights, [suspect.module for suspect in trace.suspects]])
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("told", "family"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "int4",
        ),
        ({"quant_method": "quanto", "weights": "int8"}, "int8"),
        ({"quant_method": "quanto", "weights": "int4"}, "int4"),
    ],
)
def test_a_quantised_model_has_no_location_and_a_wrong_scale_in_it_has_one(
    cache_dir: Path, tmp_path: Path, told: dict[str, Any], family: str
) -> None:
    script = tmp_path / "trace.py"
    script.write_text(TRACE, encoding="utf-8")
    healthy, faulty = json.loads(
        run_in(PACKAGES, cache_dir, str(script), str(MODEL), json.dumps(told))
    )
    assert healthy[0].startswith(family)
    assert healthy[1] == []
    assert faulty[1][:1] == ["model.layers.1.self_attn"]


@pytest.mark.parametrize(
    "told",
    [
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "quanto", "weights": "int4"},
    ],
    ids=["bitsandbytes", "quanto"],
)
def test_nor_has_it_one_where_its_activations_come_from_its_own_environment(
    cache_dir: Path, tmp_path: Path, told: dict[str, Any]
) -> None:
    arguments = {**ORIGINAL["model_args"], "quantization_config": told}
    models = {"original": ORIGINAL, "port": {"model_args": arguments, "requirements": PACKAGES}}
    (tmp_path / "guard.yaml").write_text(json.dumps({"models": models}), encoding="utf-8")
    (tmp_path / "text.txt").write_text("Mara carried the lantern down to the harbour.")
    words = ["trace", "--config", "guard.yaml", "--base", "original", "--cand", "port"]
    words += ["--text", "text.txt", "--cache-dir", str(cache_dir), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "evalguard", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["suspects"] == []


def test_a_quantiser_that_is_none_is_an_error_with_those_there_are(compare: Compare) -> None:
    port = loaded_as(None, {"quant_method": "quant0"})
    found = compare({"original": ORIGINAL, "port": port}, code=2)
    assert "quant_method 'quant0' is not known" in found["error"]["message"]
    assert "quanto" in found["error"]["hint"]


def test_a_checkpoint_of_compressed_tensors_is_read_as_it_is_stored(
    compare: Compare, cache_dir: Path, tmp_path: Path
) -> None:
    script = tmp_path / "compress.py"
    script.write_text(COMPRESS, encoding="utf-8")
    run_in(PACKAGES, cache_dir, str(script), str(MODEL), str(tmp_path / "stored"))
    port = {
        "model_args": {"pretrained": str(tmp_path / "stored"), "dtype": "float32"},
        "requirements": PACKAGES,
    }
    found = compare({"original": ORIGINAL, "port": port}, gate=LIMIT)
    assert 1e-8 < kl_mean(found) < LIMIT["metrics"]["kl_mean"]


COMPRESS = """
import sys
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationConfig, apply_quantization_config, preset_name_to_scheme,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

source, output = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
groups = {"linear": preset_name_to_scheme("W8A16", ["Linear"])}
apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
for module in model.modules():
    if hasattr(module, "weight_scale"):
        rows, parts = module.weight_scale.shape
        largest = module.weight.reshape(rows, parts, -1).abs().amax(-1)
        module.weight_scale.data.copy_(largest / 127)
compressor = ModelCompressor.from_pretrained_model(model)
compressor.compress_model(model)
model.save_pretrained(output)
AutoTokenizer.from_pretrained(source).save_pretrained(output)
compressor.update_config(output)
"""
