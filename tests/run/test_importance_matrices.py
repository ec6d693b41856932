"""An importance matrix lets what counts little be far off: that is no damage, and damage in such a
file is found all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from benchmarks.importance_matrix import (
    KINDS,
    draw_importance,
    quantise_by_importance,
    search_signed,
)
from evalguard.core.precision_vote import round_mantissa
from evalguard.tensor_files.gguf_bounds import bound_blocks
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_report import TensorsReport

gguf = pytest.importorskip("gguf")
FOUND_BY_BLOCK = ("Q4_0", "Q5_0", "Q4_1", "Q3_K", "Q4_K")


def make_weights(seed: int, tails: float, rows: int = 32) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_t(tails, (rows, 512)) * 0.02
    return drawn.astype(np.float32)


def find_beyond(exact: np.ndarray, raw: np.ndarray, kind: str) -> np.ndarray:
    """Return which elements are beyond the bound, in the shape of the weights."""
    dtype = gguf.GGMLQuantizationType[kind]
    stored = gguf.dequantize(raw, dtype).reshape(-1)
    size = gguf.GGML_QUANT_SIZES[dtype][1]
    flat = exact.reshape(-1)
    bound = bound_blocks(kind.lower(), size, raw.reshape(-1), stored, flat)
    wrong: np.ndarray = np.abs(stored - flat) > bound.excuse(flat, stored)
    return wrong.reshape(exact.shape)


def test_a_weighted_search_chooses_the_scale_that_the_important_element_asks_for() -> None:
    """By hand: of 1.3 and 8 in steps of -8 / 8 the level of 1.3 is -1, which alone counts."""
    blocks = np.array([[8.0, 1.3]], dtype=np.float32)
    scale, codes = search_signed(blocks, np.array([[1e-9, 1.0]], dtype=np.float32), 8)
    assert codes[0, 1] == -1.0
    assert scale[0] == pytest.approx(-1.3, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_quantisers_are_those_that_gguf_reads(kind: str) -> None:
    values = make_weights(0, 50.0)
    raw = quantise_by_importance(kind, values, np.ones(512, dtype=np.float32))
    stored = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind]).reshape(values.shape)
    left = np.linalg.norm(stored - values) / np.linalg.norm(values)
    most = {"Q2_K": 0.3, "IQ2_XXS": 0.37, "Q3_K": 0.16}.get(kind, 0.1)
    assert left < most


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([2.0, 3.0, 50.0]),
    st.sampled_from([0.0, 3.0, 6.0]),
    st.sampled_from(sorted(KINDS)),
)
def test_what_counts_little_may_be_far_off(
    seed: int, tails: float, orders: float, kind: str
) -> None:
    values = make_weights(seed, tails)
    raw = quantise_by_importance(kind, values, draw_importance(512, orders, seed))
    assert not find_beyond(values, raw, kind).any()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([3.0, 50.0]),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(["zeroed", "negated", "rolled", "times 10"]),
)
def test_rows_that_are_damaged_are_beyond_it_and_no_others(
    seed: int, tails: float, kind: str, damage: str
) -> None:
    values = make_weights(seed, tails)
    damaged, rows = values.copy(), slice(8, 16)
    if damage == "rolled":
        damaged[rows] = np.roll(values[rows], 1, axis=0)
    else:
        damaged[rows] *= np.float32({"zeroed": 0, "negated": -1, "times 10": 10}[damage])
    raw = quantise_by_importance(kind, damaged, draw_importance(512, 6, seed))
    assert np.flatnonzero(find_beyond(values, raw, kind).any(axis=1)).tolist() == [*range(8, 16)]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(FOUND_BY_BLOCK),
    st.sampled_from([0.0, -1.0, 10.0, 0.1]),
    st.integers(0, 15),
)
def test_one_block_that_is_damaged_is_beyond_it(
    seed: int, kind: str, factor: float, block: int
) -> None:
    values = make_weights(seed, 5.0, rows=8)
    damaged, here = values.copy(), slice(32 * block, 32 * block + 32)
    damaged[3, here] *= np.float32(factor)
    raw = quantise_by_importance(kind, damaged, draw_importance(512, 6, seed))
    beyond = find_beyond(values, raw, kind)
    assert beyond[3, here].any()
    assert np.flatnonzero(beyond.any(axis=1)).tolist() == [3]


def test_a_cast_before_it_changes_nothing_of_that() -> None:
    """Two elements of other signs that were unlike are as large as one another in bfloat16."""
    values = make_weights(17, 2.0, rows=256)
    cast = round_mantissa(values, 7)
    for kind in ("Q4_0", "Q5_0"):
        raw = quantise_by_importance(kind, cast, draw_importance(512, 6, 5))
        assert not find_beyond(values, raw, kind).any()


@pytest.mark.parametrize("kind", ["Q4_0", "Q2_K", "Q3_K", "IQ2_XXS"])
def test_no_tails_are_too_heavy(tmp_path: Path, kind: str) -> None:
    """Student's t with two degrees of freedom, importance over six orders of magnitude."""
    values = make_weights(3, 2.0, rows=256)
    assert compare_queries(tmp_path, values, values, kind, 6).exit_code == 0


def compare_queries(
    folder: Path,
    values: np.ndarray,
    stored: np.ndarray,
    kind: str = "IQ2_XXS",
    orders: float = 3,
) -> TensorsReport:
    """Compare a Llama's queries, whose order a GGUF file has changed."""
    heads, name = 4, "model.layers.0.self_attn.q_proj.weight"
    save_file({name: torch.from_numpy(values)}, folder / "a.safetensors")
    turned = stored.reshape(heads, 2, -1, 512).swapaxes(1, 2).reshape(stored.shape)
    raw = quantise_by_importance(kind, turned, draw_importance(512, orders, 0))
    writer = gguf.GGUFWriter(folder / "b.gguf", "llama")
    for key, value in (("block_count", 1), ("head_count", heads), ("head_count_kv", heads)):
        getattr(writer, f"add_{key}")(value)
    dtype = gguf.GGMLQuantizationType[kind]
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return compare_tensors(str(folder / "a.safetensors"), str(folder / "b.gguf"), TensorOptions())


def test_vectors_of_a_codebook_are_judged_in_the_order_of_their_file_too(tmp_path: Path) -> None:
    values = make_weights(1, 5.0, rows=128)
    healthy = compare_queries(tmp_path, values, values)
    assert [one.state for one in healthy.deltas] == ["within"]
    assert "permuted" in healthy.deltas[0].layout
    wrong = values.copy()
    wrong[40:44] *= -1
    damaged = compare_queries(tmp_path, values, wrong).deltas[0]
    assert (damaged.state, damaged.damage[0].rows) == ("beyond", 4)
    assert damaged.damage[0].first == (40, 41, 42, 43)
