"""Quantised weights are judged block by block: a healthy quantiser is never flagged, one block or
row beyond what its format can do always is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from benchmarks.importance_matrix import draw_importance, quantise_by_importance
from benchmarks.tensor_faults import (
    FAULTS,
    FORMATS,
    OTHERS,
    check_healthy,
    plant,
    quantise,
)
from evalguard.tensor_files.gguf_bounds import block_cells, bound_blocks
from evalguard.tensor_files.packed.levels import Levels, float8_levels, signed_levels
from evalguard.tensor_files.packed.row_codec import PackedRows, RowGrid
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors

gguf = pytest.importorskip("gguf")
KINDS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "Q4_K", "Q6_K")


def make_weights(seed: int, tails: float, rows: int = 16) -> np.ndarray:
    """Weights with tails from a normal distribution's to none that has a variance, with an outlier
    row, one of tiny numbers and one that is zero."""
    generator = np.random.default_rng(seed)
    values = generator.standard_t(tails, (rows, 256)) * 0.02
    values[0] *= 100
    values[1] *= 1e-7
    values[2] = 0
    return values.astype(np.float32)


def count_beyond(values: np.ndarray, raw: np.ndarray, kind: str) -> np.ndarray:
    """Return for each 32 elements how many are beyond the bound, by gguf's own dequantisation."""
    dtype = gguf.GGMLQuantizationType[kind]
    stored = gguf.dequantize(raw, dtype).reshape(-1)
    exact = values.reshape(-1)
    size = gguf.GGML_QUANT_SIZES[dtype][1]
    bound = bound_blocks(kind.lower(), size, raw.reshape(-1), stored, exact)
    wrong = np.abs(stored - exact) > bound.excuse(exact, stored)
    return wrong.reshape(-1, 32).sum(axis=1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 2.0, 5.0, 50.0]), st.sampled_from(KINDS))
def test_a_healthy_quantiser_is_never_beyond_its_bound(seed: int, tails: float, kind: str) -> None:
    values = make_weights(seed, tails)
    assert not count_beyond(values, quantise(values, kind), kind).any()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(KINDS),
    st.sampled_from([0.0, -1.0, 3.0, 10.0, 0.2]),
    st.integers(3, 15),
    st.integers(0, 7),
)
def test_any_single_block_that_is_damaged_is_beyond_it(
    seed: int, kind: str, factor: float, row: int, block: int
) -> None:
    values = make_weights(seed, 5.0)
    damaged = values.copy()
    here = slice(32 * block, 32 * block + 32)
    damaged[row, here] *= np.float32(factor)
    beyond = count_beyond(values, quantise(damaged, kind), kind)
    assert np.flatnonzero(beyond).tolist() == [8 * row + block]


def decode_rows(
    levels: Levels, codes: np.ndarray, scale: np.ndarray, exact: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of packed rows, and the greatest healthy error of each."""
    grid = RowGrid(levels=levels, columns=codes.shape[1])
    codec = grid.codec()
    raw = grid.pack(PackedRows(codes=codes.view(np.uint8), scales=scale.astype(np.float32)))
    stored = codec.decode(raw)
    assert codec.bound is not None
    allowed = codec.bound(raw, stored, exact.reshape(-1)).excuse(exact.reshape(-1), stored)
    return stored.reshape(codes.shape), allowed.reshape(codes.shape)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 3.0, 50.0]), st.sampled_from([127, 7]))
def test_integers_with_a_scale_have_a_bound_as_well(seed: int, tails: float, top: int) -> None:
    values = make_weights(seed, tails)
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True) / top, 1e-12)
    codes = np.rint(values / scale).astype(np.int8)
    levels = signed_levels(8 if top == 127 else 4)
    stored, allowed = decode_rows(levels, codes, scale, values)
    assert not (np.abs(stored - values) > allowed).any()
    codes[5] *= -1
    stored, allowed = decode_rows(levels, codes, scale, values)
    assert (np.abs(stored - values) > allowed)[5].any()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("tails", [1.0, 3.0, 50.0])
def test_torchs_float8_is_within_its_bound(dtype: torch.dtype, tails: float) -> None:
    values = make_weights(0, tails, rows=64)
    top = torch.finfo(dtype).max
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True) / top, 1e-12).astype(np.float32)
    codes = torch.from_numpy(values / scale).to(dtype).view(torch.uint8).numpy()
    levels = float8_levels(str(dtype).removeprefix("torch."))
    stored, allowed = decode_rows(levels, codes, scale, values)
    assert not (np.abs(stored - values) > allowed).any()
    stored, allowed = decode_rows(levels, codes, 2 * scale, values)
    assert (np.abs(stored - values) > allowed)[5].any()


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_the_ends_of_every_grid_are_those_that_gguf_decodes(kind: str) -> None:
    """Blocks of random bytes with plain float16 scales: every number lies between the ends."""
    generator = np.random.default_rng(0)
    dtype = gguf.GGMLQuantizationType[kind]
    size = gguf.GGML_QUANT_SIZES[dtype][1]
    raw = generator.integers(0, 256, (300, size), dtype=np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2)}
    for at in places.get(kind, (0,)):
        scales = generator.uniform(0.001, 0.01, (300, 1)).astype(np.float16)
        raw[:, at : at + 2] = scales.view(np.uint8)
    cells = block_cells(kind.lower(), raw.reshape(-1), size)
    assert cells is not None
    grids = gguf.dequantize(raw, dtype).reshape(-1, cells.width)
    low, high = cells.low.reshape(-1), cells.high.reshape(-1)
    slack = 1e-5 * (high - low) + 1e-9
    assert (grids.min(axis=1) >= low - slack).all()
    assert (grids.max(axis=1) <= high + slack).all()
    reached = (grids.max(axis=1) - grids.min(axis=1)) / np.maximum(high - low, 1e-9)
    assert np.median(reached) > 0.85


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("name", ["GGUF q4_k", "int4 groups of 64"])
def test_a_planted_difference_is_flagged_and_named(tmp_path: Path, name: str, fault: Any) -> None:
    row = plant(name, fault, tmp_path)
    assert row[2:5] == ["yes", "yes", "0"], row


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("name", [one for one in FORMATS if one[:6] not in ("GGUF q4", "int4 g")])
def test_it_is_in_other_formats_too(tmp_path: Path, name: str, fault: Any) -> None:
    row = plant(name, fault, tmp_path)
    assert row[2:5] == ["yes", "yes", "0"], row


# Bytes of a block, and which of them are codes (ggml-common.h); of iq2_xxs signs and scales too.
CODES = {
    "Q8_0": (34, slice(2, 34)), "Q4_0": (18, slice(2, 18)), "Q5_1": (24, slice(4, 24)),
    "MXFP4": (17, slice(1, 17)), "Q2_K": (84, slice(16, 80)), "Q3_K": (110, slice(0, 96)),
    "Q4_K": (144, slice(16, 144)), "Q6_K": (210, slice(0, 192)), "IQ2_XXS": (66, slice(2, 66)),
}  # fmt: skip
Move = Callable[[np.ndarray], np.ndarray]
ROLLED: Move = lambda one: np.roll(one, 1, axis=0)  # noqa: E731
TURNED: Move = lambda one: one[::-1]  # noqa: E731
ALONG: Move = lambda one: np.roll(one, 1, axis=2)  # noqa: E731
NIBBLES: Move = lambda one: one << 4 | one >> 4  # noqa: E731


def trained(rows: int = 192, columns: int = 512) -> np.ndarray:
    """Rows and columns of many sizes."""
    generator = np.random.default_rng(1)
    sizes = np.exp(0.3 * generator.standard_normal((rows, 1)))
    sizes = sizes * np.exp(0.2 * generator.standard_normal((1, columns)))
    found: np.ndarray = 0.02 * sizes * generator.standard_normal((rows, columns))
    return found.astype(np.float32)


def pack(values: np.ndarray, kind: str) -> np.ndarray:
    if kind in ("Q2_K", "Q3_K", "IQ2_XXS"):
        return quantise_by_importance(kind, values, draw_importance(values.shape[1], 2, 5))
    return quantise(values, kind)


def name_moved(folder: Path, kind: str, base: np.ndarray, raw: np.ndarray) -> str:
    """What a matrix of an MLP is called that a GGUF file holds as these blocks."""
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({name: torch.from_numpy(base)}, folder / "base.safetensors")
    writer = gguf.GGUFWriter(folder / "moved.gguf", "llama")
    writer.add_block_count(1)
    dtype = gguf.GGMLQuantizationType[kind]
    writer.add_tensor("blk.0.ffn_up.weight", np.ascontiguousarray(raw), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = str(folder / "base.safetensors"), str(folder / "moved.gguf")
    (delta,) = compare_tensors(*paths, TensorOptions(processes=0)).deltas
    assert delta.state == "beyond"
    return "" if delta.likeness is None else delta.likeness.words


@pytest.mark.parametrize(
    ("move", "told"),
    [
        (lambda one: np.roll(one, 1, axis=0), "shifted (codes without their scales, by one"),
        (
            lambda one: one[::-1],
            "rows permuted (codes without their scales, all 192 rows reversed",
        ),
    ],
)
@pytest.mark.parametrize("kind", CODES)
def test_codes_in_the_blocks_of_other_rows_are_named_as_what_moved(
    kind: str, move: Move, told: str, tmp_path: Path
) -> None:
    base, (size, codes) = trained(), CODES[kind]
    blocks = pack(base, kind).reshape(len(base), -1, size)
    blocks[..., codes] = move(blocks[..., codes]).copy()
    assert name_moved(tmp_path, kind, base, blocks.reshape(len(base), -1)).startswith(told)


@pytest.mark.parametrize(
    ("kind", "move", "told"),
    [
        ("Q8_0", lambda one: np.roll(one, 1, axis=2), "rolled by 1 in each 32 columns"),
        ("Q4_0", lambda one: one[..., ::-1], "reversed in each 16 columns"),
        ("Q4_0", lambda one: one << 4 | one >> 4, "32 blocks of 16 columns"),
        ("Q4_K", lambda one: np.roll(one, 1, axis=2), "one order in each 256 columns, of 512"),
        ("Q4_K", lambda one: one << 4 | one >> 4, "codes without their scales, 16 blocks of 32"),
        ("Q6_K", lambda one: np.roll(one, 1, axis=1), "2 blocks of 256 columns"),
        ("Q2_K", lambda one: np.roll(one, 1, axis=1), "2 blocks of 256 columns"),
    ],
)
def test_codes_at_other_places_of_their_block_are_columns_in_another_order(
    kind: str, move: Move, told: str, tmp_path: Path
) -> None:
    base, (size, codes) = trained(), CODES[kind]
    blocks = pack(base, kind).reshape(len(base), -1, size)
    if "blocks of 256" in told:  # with their scales
        codes = slice(0, size)
    blocks[..., codes] = move(blocks[..., codes]).copy()
    words = name_moved(tmp_path, kind, base, blocks.reshape(len(base), -1))
    assert words.startswith(f"columns permuted ({told}")


@pytest.mark.parametrize(
    ("kind", "field", "move", "told"),
    [
        ("Q6_K", slice(0, 128), ROLLED, "shifted (ql of its codes alone, by one along axis 0"),
        ("Q6_K", slice(0, 128), NIBBLES, "columns permuted (ql of its codes alone, 8 blocks of 64"),
        ("Q6_K", slice(128, 192), TURNED, "rows permuted (qh of its codes alone, all 192 rows"),
        ("Q3_K", slice(0, 32), ROLLED, "shifted (hmask of its codes alone, by one along axis 0"),
        ("Q3_K", slice(32, 96), TURNED, "rows permuted (qs of its codes alone, all 192 rows"),
        (
            "Q5_0",
            slice(2, 6),
            ALONG,
            "columns permuted (qh of its codes alone, 64 blocks of 8",
        ),
        (
            "Q5_1",
            slice(4, 8),
            ALONG,
            "columns permuted (qh of its codes alone, 64 blocks of 8",
        ),
    ],
)
def test_some_bits_of_codes_that_moved_are_named_by_their_field(
    kind: str, field: slice, move: Move, told: str, tmp_path: Path
) -> None:
    """Fields of blocks as in ggml-common.h."""
    base, size = trained(), gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = pack(base, kind).reshape(len(base), -1, size)
    blocks[..., field] = move(blocks[..., field]).copy()
    assert name_moved(tmp_path, kind, base, blocks.reshape(len(base), -1)).startswith(told)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q5_0", "Q6_K", "Q2_K", "IQ2_XXS"])
@pytest.mark.parametrize("share", [1.0, 0.9])
def test_other_weights_are_no_order_of_codes(kind: str, share: float, tmp_path: Path) -> None:
    """Neither others, nor so much noise that hardly anything is left."""
    base = trained()
    noise = np.random.default_rng(7).permutation(base.reshape(-1)).reshape(base.shape)
    other = ((1 - share**2) ** 0.5 * base + share * noise).astype(np.float32)
    words = name_moved(tmp_path, kind, base, pack(other, kind))
    assert not words.startswith(("shifted", "rows permuted", "columns permuted", "transposed"))


@pytest.mark.parametrize("name", ["GGUF q8_0", "int8 a row", "float8 a row"])
def test_heavy_tails_outliers_and_empty_rows_are_healthy(tmp_path: Path, name: str) -> None:
    assert check_healthy(name, "heavy-tailed", tmp_path)[2] == "0"


# Not for the night: of each family one, those that the tests above do not write.
FAMILIES = ("GGUF q4_k", "GGUF q4_0", "GGUF mxfp4", "int4 groups of 64")
FAMILIES += tuple(f"GGUF {kind}, importance matrix" for kind in ("q4_0", "q2_k", "iq2_xxs"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["random", pytest.param("heavy-tailed", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAMILIES else pytest.mark.nightly)
        for name in (*FORMATS, *OTHERS)
    ],
)
def test_no_healthy_quantisation_is_flagged(tmp_path: Path, name: str, kind: str) -> None:
    assert check_healthy(name, kind, tmp_path)[2] == "0"


Damage = Callable[[np.ndarray], None]


def compare_floats(folder: Path, base: np.ndarray, candidate: np.ndarray) -> Any:
    for name, values in (("base", base), ("cand", candidate)):
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        save_file({"model.layers.0.mlp.up_proj.weight": tensor}, folder / f"{name}.safetensors")
    paths = [str(folder / f"{name}.safetensors") for name in ("base", "cand")]
    return compare_tensors(*paths, TensorOptions()).deltas[0]


@pytest.mark.parametrize("nearest", [True, False])
@pytest.mark.parametrize("group", [0, 64])
def test_what_is_stored_dequantised_is_judged_on_the_grid_of_its_values(
    tmp_path: Path, group: int, nearest: bool
) -> None:
    base = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32) * np.float32(0.02)
    blocks = base.reshape(256, -1, group or 256)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / 7
    moved = 0 if nearest else np.random.default_rng(1).uniform(-0.9, 0.9, blocks.shape)
    stored = (np.clip(np.rint(blocks / scale + moved), -7, 7) * scale).reshape(base.shape)
    stored = stored.astype(np.float32)
    healthy = compare_floats(tmp_path, base, stored)
    assert healthy.likeness is not None
    assert (healthy.likeness.name, healthy.damage) == ("int4", ())
    stored[9] = 0
    stored[40:50] *= -1
    damaged = compare_floats(tmp_path, base, stored)
    assert [(one.fault, one.rows) for one in damaged.damage] == [
        ("rows negated", 10),
        ("rows zeroed", 1),
    ]
    assert "otherwise int4" in damaged.likeness.detail


def test_a_factor_of_every_element_is_no_rounding(tmp_path: Path) -> None:
    base = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    found = compare_floats(tmp_path, base, base * np.float32(0.9))
    assert found.likeness.words == "scaled (by 0.9)"
    noisy = base + np.random.default_rng(1).normal(size=base.shape).astype(np.float32) * 0.1
    assert compare_floats(tmp_path, base, noisy.astype(np.float32)).likeness is None


def test_a_cast_of_equal_elements_is_a_cast(tmp_path: Path) -> None:
    base = torch.full((64,), 0.317)
    for name, tensor in (("a", base), ("b", base.bfloat16())):
        save_file({"model.norm.weight": tensor}, tmp_path / f"{name}.safetensors")
    paths = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    found = compare_tensors(*paths, TensorOptions()).deltas[0]
    assert found.state == "within"
    assert found.likeness is not None
    assert found.likeness.words == "bf16 (bfloat16)"


def test_one_cause_is_told_once(tmp_path: Path) -> None:
    """A norm of equal elements is scaled as exactly as it has a constant added."""
    base = {
        f"model.layers.{n}.input_layernorm.weight": torch.rand(64) * 0.3 + 0.2 for n in range(30)
    }
    base["model.norm.weight"] = torch.full((64,), 0.317)
    for step, words in ((1.0, "plus a constant (+1)"), (0.25, "plus a constant (+0.25)")):
        for name, tensors in (("a", base), ("b", {k: v + step for k, v in base.items()})):
            save_file(tensors, tmp_path / f"{name}.safetensors")
        paths = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
        deltas = compare_tensors(*paths, TensorOptions()).deltas
        assert {one.likeness and one.likeness.words for one in deltas} == {words}


def test_a_scale_that_is_too_large_is_no_healthy_one(tmp_path: Path) -> None:
    """All codes are within half a step, and most are zero."""
    base = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    scale = np.abs(base).max(axis=1, keepdims=True) / 10
    codes = np.rint(base / scale).astype(np.int8)
    save_file({"a.weight": torch.from_numpy(base)}, tmp_path / "a.safetensors")
    stored = {"a.weight": torch.from_numpy(codes), "a.weight_scale": torch.from_numpy(scale)}
    save_file(stored, tmp_path / "b.safetensors")
    paths = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    assert compare_tensors(*paths, TensorOptions()).exit_code == 1


def test_the_document_names_rows_and_blocks(tmp_path: Path) -> None:
    from evalguard.tensors.tensors_report import tensors_document

    base = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    wrong = base.copy()
    wrong[7, 32:64] *= 10
    compare_floats(tmp_path, base, wrong)
    paths = [str(tmp_path / f"{name}.safetensors") for name in ("base", "cand")]
    document = tensors_document(compare_tensors(*paths, TensorOptions()))
    found = json.loads(json.dumps(document))["tensors"][0]
    assert found["damage"] == [
        {
            "fault": "blocks scaled",
            "detail": "row 7, columns 32 to 63, by 10",
            "rows": 1,
            "first": [7],
            "blocks": [[7, 32, 63]],
        }
    ]
    assert found["likeness"]["fault"] == "blocks scaled"
