"""GGUF files of our recipe: a matrix that a type does not fit has another one, which is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from safetensors.numpy import load_file, save_file
from tiny_models import save_gemma2, save_llama

from evalguard.errors import UsageError
from evalguard.recipes.gguf import FALLBACKS_KEY, TYPES, convert, fallback_type
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors


@pytest.mark.parametrize(
    ("asked", "columns", "written"),
    [
        ("Q4_K", 256, "Q4_K"), ("Q2_K", 576, "Q4_0"), ("Q3_K", 576, "Q4_0"),
        ("Q4_K", 576, "Q5_0"), ("Q5_K", 576, "Q5_1"), ("Q6_K", 576, "Q8_0"),
        ("IQ4_XS", 576, "IQ4_NL"), ("IQ3_S", 576, "IQ4_NL"), ("Q4_K", 172, "F16"),
        ("Q4_0", 172, "F16"), ("Q8_0", 172, "F16"), ("F16", 172, "F16"), ("BF16", 1, "BF16"),
    ],
)  # fmt: skip
def test_types_give_way_as_in_llama_cpp(asked: str, columns: int, written: str) -> None:
    """The table of tensor_type_fallback in llama.cpp's src/llama-quant.cpp, of August 2026."""
    assert fallback_type(asked, columns) == written


@pytest.mark.parametrize("asked", TYPES)
@pytest.mark.parametrize("columns", [1, 32, 172, 256, 576])
def test_whatever_is_written_fits_its_rows(asked: str, columns: int) -> None:
    block, _ = GGML_QUANT_SIZES[GGMLQuantizationType[fallback_type(asked, columns)]]
    assert columns % block == 0


@pytest.mark.parametrize("save", [save_llama, save_gemma2])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_what_is_written_holds_the_weights_it_was_made_of(
    save: Callable[[Path], Path], kind: str, tmp_path: Path
) -> None:
    """Gemma's attention scale, which llama.cpp has not, stands in its queries."""
    folder, file = save(tmp_path / "model"), tmp_path / "m.gguf"
    config = json.loads((folder / "config.json").read_text())
    if "query_pre_attn_scalar" in config:
        config["query_pre_attn_scalar"] = 20  # not the size of a head
        (folder / "config.json").write_text(json.dumps(config))
    convert(file, str(folder), type=kind)
    for sides in ((folder, file), (file, folder)):
        report = compare_tensors(*map(str, sides), TensorOptions())
        assert (report.exit_code, report.missing) == (0, ())


def test_a_matrix_of_rows_that_no_block_fits_is_f16_and_named(tmp_path: Path) -> None:
    """Rows of 48 are a block and a half; 32 are one."""
    convert(tmp_path / "m.gguf", str(save_llama(tmp_path / "llama")), type="Q4_0")
    found = GGUFReader(tmp_path / "m.gguf")
    kinds = {one.name: one.tensor_type.name for one in found.tensors}
    assert kinds["blk.0.ffn_down.weight"] == kinds["blk.1.ffn_down.weight"] == "F16"
    assert kinds["blk.0.ffn_up.weight"] == "Q4_0"
    told = found.fields[FALLBACKS_KEY].contents()
    assert told == "F16 in place of Q4_0: blk.*.ffn_down.weight (2)"


@pytest.mark.parametrize(
    "overrides",
    [
        {"blk.*.ffn_dwon.weight": "F16"},  # no tensor's name
        {"*norm.weight": "F16"},  # vectors, which stay F32
        {"blk.*": "F16", "blk.0.*": "F32"},  # never reached
    ],
)
def test_an_override_that_decides_no_type_is_an_error(
    overrides: dict[str, str], tmp_path: Path
) -> None:
    folder, file = save_llama(tmp_path / "llama"), tmp_path / "m.gguf"
    with pytest.raises(UsageError) as raised:
        convert(file, str(folder), overrides=overrides)
    assert f"'{list(overrides)[-1]}' decides the type of no matrix" in str(raised.value)
    assert not file.exists()


def test_a_file_in_which_every_type_fits_names_none(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama")
    convert(tmp_path / "m.gguf", str(folder), type="F16")
    assert FALLBACKS_KEY not in GGUFReader(tmp_path / "m.gguf").fields
    weights = load_file(folder / "model.safetensors")
    weights["extra"] = np.zeros((2, 2), dtype=np.float32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UsageError, match="no GGUF recipe for the tensor extra"):
        convert(tmp_path / "other.gguf", str(folder))
