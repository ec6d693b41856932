"""Exported graphs: the tensors of ONNX and OpenVINO beside the modules they were traced from."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced_ports import graph, local_errors, trace

pytestmark = pytest.mark.systems


def test_onnx_tensors_of_a_graph_agree_with_the_modules_they_were_traced_from(
    llama: Path, cache_dir: Path
) -> None:
    found = trace(llama, graph("onnx", llama), cache_dir)
    assert not found.suspects
    assert {"model.layers.2.self_attn.o_proj:in", "lm_head:out"} <= local_errors(found).keys()
    assert max(local_errors(found).values()) < 2e-6


def test_openvino_agrees_in_float32_and_in_bfloat16_is_of_that_precision(
    llama: Path, cache_dir: Path
) -> None:
    exact = trace(llama, graph("openvino", llama, precision="f32"), cache_dir)
    assert not exact.suspects
    assert max(local_errors(exact).values()) < 2e-6
    rounded = trace(llama, graph("openvino", llama, precision="bf16"), cache_dir)
    assert not rounded.suspects
    assert rounded.twin is not None
    assert rounded.twin.dtype == "bfloat16"
