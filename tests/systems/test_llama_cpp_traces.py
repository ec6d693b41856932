"""Where llama.cpp introduces error, in float32, in four bits and with a wrong rope base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from system_models import MODEL
from traced_ports import accumulated_errors, gguf, local_errors, opened, suspects, trace

from evalguard.core.hyperparameters import compare_hyperparameters
from evalguard.models.hyperparameters_read import read_hyperparameter_file

pytestmark = pytest.mark.systems


def test_gguf_in_float32_agrees_with_pytorch_at_every_point(llama: Path, cache_dir: Path) -> None:
    found = trace(llama, gguf(llama, type="F32"), cache_dir)
    assert not found.suspects
    assert not found.unaligned
    assert max(local_errors(found).values()) < 1e-6
    assert max(accumulated_errors(found).values()) < 5e-6
    assert {"model.layers.3.self_attn.o_proj:in", "(root):out"} <= local_errors(found).keys()


def test_gguf_what_llama_cpp_holds_is_read_off_its_log(llama: Path, cache_dir: Path) -> None:
    base = read_hyperparameter_file(MODEL / "config.json")
    with opened(gguf(MODEL, type="F32"), cache_dir) as side:
        rows = {one.name: one for one in compare_hyperparameters(base, side.held_values())}
    assert not [row for row in rows.values() if row.verdict == "differs"]
    assert rows["attention_scale"].verdict == "declared alike"  # "1.8e-01", times the weights' part
    assert rows["attention_window"].verdict == rows["heads"].verdict == "equal"
    config = json.loads((llama / "config.json").read_text(encoding="utf-8"))
    config["sliding_window"] = 8
    (llama / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with opened(gguf(llama, type="F32", rope_base=9000.0), cache_dir) as side:
        held = {one.name: one.value for one in side.held_values()}
    assert held["attention_window"] == "none"
    assert held["rope_theta"] == 9000.0


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_0", "Q4_0"])
def test_gguf_whose_matrices_are_all_rounded_alike_has_no_single_location(
    kind: str, llama: Path, cache_dir: Path
) -> None:
    found = trace(llama, gguf(llama, type=kind), cache_dir)
    assert not found.suspects
    assert max(accumulated_errors(found).values()) > 1e-4


def test_gguf_the_floor_of_eight_bits_is_what_ggml_does(cache_dir: Path) -> None:
    found = trace(MODEL, gguf(MODEL, type="Q8_0", cache="f16"), cache_dir)
    ratios = {one.point: one.local_ratio or 0.0 for one in found.layers}
    assert max(ratios.values()) < 1.3, ratios


def test_gguf_what_is_coarser_in_every_layer_is_no_location(cache_dir: Path) -> None:
    """Most of a q6_K is q8_0 where rows are no multiple of 256."""
    found = trace(MODEL, gguf(MODEL, type="Q6_K", cache="f16"), cache_dir)
    assert not found.suspects


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_gguf_the_caches_float16_is_no_location_as_llama_cpp_is_by_default(
    kind: str, llama: Path, cache_dir: Path
) -> None:
    found = trace(llama, gguf(llama, type=kind, cache="f16"), cache_dir)
    assert not found.suspects
    assert found.twin is not None
    assert found.twin.dtype == "float16"


def test_gguf_one_matrix_in_four_bits_of_a_file_in_fp16_is_named(
    llama: Path, cache_dir: Path
) -> None:
    overrides = {"blk.1.ffn_down.weight": "Q4_0"}
    found = trace(llama, gguf(llama, type="F16", overrides=overrides), cache_dir)
    assert list(suspects(found)) == ["model.layers.1.mlp.down_proj"]


def test_gguf_a_wrong_rope_base_is_seen_in_the_attention(llama: Path, cache_dir: Path) -> None:
    found = trace(llama, gguf(llama, type="F32", rope_base=9000.0), cache_dir)
    assert set(suspects(found)) == {f"model.layers.{n}.self_attn" for n in range(4)}
    rounded = gguf(llama, type="Q8_0", cache="f16", rope_base=9000.0)
    assert set(suspects(trace(llama, rounded, cache_dir))) == set(suspects(found))


def test_gguf_of_gemma_2_is_blamed_for_ggmls_table_of_gelu(cache_dir: Path) -> None:
    found = trace(MODEL, gguf(MODEL, type="F32"), cache_dir)
    assert set(suspects(found).values()) == {f"model.layers.{n}.mlp.down_proj:in" for n in range(4)}
    errors = local_errors(found)
    assert all(error < 1e-3 for error in errors.values())
