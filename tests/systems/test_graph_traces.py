"""Exported graphs: the tensors of ONNX and OpenVINO beside the modules they were traced from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from system_models import MODEL
from traced_ports import graph, local_errors, opened, trace
from transformers import AutoModelForCausalLM

from evalguard.core.hyperparameters import compare_hyperparameters
from evalguard.models.hyperparameters_read import read_model

pytestmark = [pytest.mark.systems, pytest.mark.nightly]


def test_onnx_tensors_of_a_graph_agree_with_the_modules_they_were_traced_from(
    llama: Path, cache_dir: Path
) -> None:
    found = trace(llama, graph("onnx", llama), cache_dir)
    assert not found.suspects
    assert {"model.layers.2.self_attn.o_proj:in", "lm_head:out"} <= local_errors(found).keys()
    assert max(local_errors(found).values()) < 2e-6


HELD = ("norm_eps", "attention_scale", "attention_softcap", "final_softcap", "activation")


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_the_constants_of_a_graph_are_what_it_holds(kind: str, cache_dir: Path) -> None:
    with opened(graph(kind, MODEL), cache_dir) as side:
        held = side.held_values()
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    rows = compare_hyperparameters(read_model(model), held)
    assert {row.name for row in rows if row.verdict.startswith("equal")} == set(HELD)
    assert not [row for row in rows if row.verdict == "differs"]
    attention = model.model.layers[1].self_attn
    attention.scaling, attention.attn_logit_softcapping = attention.scaling * 1.065, None
    model.model.layers[2].input_layernorm.eps = 1e-5
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()
    rows = compare_hyperparameters(read_model(model), held)
    assert {(row.name, row.where) for row in rows if row.verdict == "differs"} == {
        ("norm_eps", "model.layers.2.input_layernorm"),
        ("attention_scale", "model.layers.1.self_attn"),
        ("attention_softcap", "model.layers.1.self_attn"),
        ("activation", "model.layers.0.mlp.act_fn"),
    }


def test_the_constants_of_a_llama_are_read_where_silu_is_two_operations(
    llama: Path, cache_dir: Path
) -> None:
    with opened(graph("onnx", llama), cache_dir) as side:
        held = side.held_values()
    rows = compare_hyperparameters(read_model(AutoModelForCausalLM.from_pretrained(llama)), held)
    equal = {row.name for row in rows if row.verdict.startswith("equal")}
    assert equal == {"norm_eps", "attention_scale", "activation"}
    assert not [row for row in rows if row.verdict == "differs"]


def test_openvino_agrees_in_float32_and_in_bfloat16_is_of_that_precision(
    llama: Path, cache_dir: Path
) -> None:
    exact = trace(llama, graph("openvino", llama, precision="f32"), cache_dir)
    assert not exact.suspects
    assert max(local_errors(exact).values()) < 2e-6
    rounded = trace(llama, graph("openvino", llama, precision="bf16"), cache_dir)
    assert not rounded.suspects
    assert rounded.twin is not None
    # OpenVINO computes in float32 all the same where the CPU has no such arithmetic
    has = "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert rounded.twin.dtype == ("bfloat16" if has else "float32")
