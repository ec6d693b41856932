"""ONNX Runtime and OpenVINO: one exported graph, read by both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from system_models import MODEL, ORIGINAL, Compare, healthy, kl_mean, largest_difference, named

pytestmark = [pytest.mark.systems, pytest.mark.nightly]

PACKAGES = [
    "torch==2.13.0", "transformers==5.23.0", "onnx==1.23.2", "onnxscript==0.7.2",
    "onnxruntime==1.32.0", "openvino==2026.4.1",
]  # fmt: skip
WEIGHTS = {"reference": "float32", "candidate": "int8", "target": "build.weights"}
ONNX: dict[str, Any] = {
    "model": "onnx",
    "requirements": PACKAGES,
    "build": {"call": "evalguard.recipes.onnx:export", "inputs": {"source": str(MODEL)}},
    "settings": {
        "weights": WEIGHTS,
        "optimization": {
            "reference": "disabled",
            "candidate": "all",
            "target": "model_args.optimization",
        },
        "bos": {"reference": None, "candidate": True, "target": "model_args.add_bos_token"},
    },
}
PRECISION = {"reference": "f32", "candidate": "bf16", "target": "model_args.precision"}
OPENVINO: dict[str, Any] = {
    **ONNX,
    "model": "openvino",
    "settings": {"precision": PRECISION, "bos": ONNX["settings"]["bos"]},
}
LIMIT = {"metrics": {"kl_mean": 1e-6}}


@pytest.mark.parametrize("port", [ONNX, OPENVINO], ids=lambda port: port["model"])
def test_a_graph_in_float32_is_the_model(port: dict[str, Any], compare: Compare) -> None:
    found = compare({"original": ORIGINAL, "port": port}, *healthy(port["settings"]), gate=LIMIT)
    assert largest_difference(found) < 1e-4
    assert kl_mean(found) < 1e-9


def test_onnx_int8_weights_are_named(compare: Compare) -> None:
    found = compare({"original": ORIGINAL, "port": ONNX}, "--bisect", "auto", code=1, gate=LIMIT)
    assert named(found) == {"weights"}


def test_onnx_modules_that_are_skipped_keep_their_weights(compare: Compare) -> None:
    skip = {"reference": ["model.layers.*.mlp.*"], "candidate": [], "target": "build.skip"}
    inputs = {**ONNX["build"]["inputs"], "weights": "int8"}
    port = {**ONNX, "build": {**ONNX["build"], "inputs": inputs}, "settings": {"skip": skip}}
    models = {"original": ORIGINAL, "port": port}
    whole = compare(models, "--distributions", "reference")
    spared = compare(models, "--set", "skip=reference", "--distributions", "reference")
    assert 0.0 < kl_mean(spared) < kl_mean(whole)


def test_onnx_a_module_that_is_none_is_an_error_and_no_verdict(compare: Compare) -> None:
    inputs = {**ONNX["build"]["inputs"], "weights": "int8", "skip": ["model.layers.0.mpl.*"]}
    port = {**ONNX, "build": {**ONNX["build"], "inputs": inputs}, "settings": {}}
    found = compare({"original": ORIGINAL, "port": port}, code=3)
    assert "no weights that are quantised are in a module" in found["error"]["message"]


@pytest.mark.skipif(
    "avx512_bf16" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"),
    reason="OpenVINO takes bfloat16 by itself where the CPU has it",
)
def test_openvino_the_bfloat16_that_it_takes_by_itself_is_named(compare: Compare) -> None:
    own = {**OPENVINO, "settings": {"precision": {**PRECISION, "candidate": None}}}
    found = compare({"original": ORIGINAL, "port": own}, "--bisect", "auto", code=1, gate=LIMIT)
    assert named(found) == {"precision"}
    assert "computes in bfloat16, which OpenVINO chose" in json.dumps(found)
