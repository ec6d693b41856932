"""GGUF files are read as the package gguf reads them, and damage is said."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import save_gguf
from tiny_models import save_llama

from evalguard.errors import EvaluationError
from evalguard.installation import extra_command
from evalguard.tensor_files.foreign_names import map_gguf_names
from evalguard.tensor_files.gguf_blocks import cut_codes
from evalguard.tensor_files.opening import open_tensors
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors


def test_a_gguf_file_has_the_numbers_of_its_model_once_names_are_mapped(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model = save_llama(tmp_path / "hf", tied=False)
    file = save_gguf(model, tmp_path / "m.gguf")
    with open_tensors(model) as base, open_tensors(file) as other:
        assert other.metadata["llama.attention.head_count_kv"] > 0
        for first, second, inverted in ((base, other, False), (other, base, True)):
            names = map_gguf_names(
                base.tensors, other.tensors, other.metadata, gguf_is_base=inverted
            )
            aligned = names.align(first.tensors, second.tensors)
            assert not aligned.base_only
            assert not aligned.cand_only
            for pair in aligned.pairs:
                found = pair.layout.apply(second.tensors[pair.cand].load())
                np.testing.assert_array_equal(found, first.tensors[pair.base].load())


def write_gguf(path: Path, kind: str, rows: np.ndarray) -> Path:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    quantised = getattr(gguf.GGMLQuantizationType, kind)
    data = gguf.quants.quantize(rows, quantised)
    writer.add_tensor("x", data, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1", "BF16", "F16"])
def test_gguf_blocks_are_dequantised_as_gguf_does(tmp_path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    rows = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    path = write_gguf(tmp_path / "x.gguf", kind, rows)
    quantised = getattr(gguf.GGMLQuantizationType, kind)
    expected = gguf.quants.dequantize(gguf.quants.quantize(rows, quantised), quantised)
    with open_tensors(path) as files:
        tensor = files.tensors["x"]
        np.testing.assert_array_equal(tensor.load(), expected)
        np.testing.assert_array_equal(tensor.read(64, 128), expected[1])
        assert tensor.dtype in (kind.lower(), "bfloat16", "float16")


@pytest.mark.parametrize("kind", ["Q3_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K"])
def test_the_fields_of_codes_together_are_what_blocks_stand_for(kind: str) -> None:
    """As gguf decodes them."""
    gguf = pytest.importorskip("gguf")
    quantised = getattr(gguf.GGMLQuantizationType, kind)
    size = gguf.GGML_QUANT_SIZES[quantised][1]
    raw = np.random.default_rng(0).integers(0, 256, (64, size), dtype=np.uint8)
    with np.errstate(all="ignore"):  # some scales are infinite
        expected = gguf.quants.dequantize(raw, quantised).reshape(-1)
    codes = cut_codes(kind.lower(), size, raw.reshape(-1))
    assert codes is not None
    whole = sum(one.held.astype(np.float64) * 2**one.lowest for one in codes.fields.values())
    known = np.isfinite(expected) & np.isfinite(codes.step)
    assert known.mean() > 0.5
    found = (codes.zero + codes.step * whole)[known]
    largest = np.abs(codes.zero[known]) + np.abs(codes.step[known]) * whole[known]
    assert (np.abs(found - expected[known]) <= 1e-5 * largest).all()


def test_a_damaged_gguf_file_is_an_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "Q8_0", np.ones((4, 64), dtype=np.float32))
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(EvaluationError, match="cannot be read as a GGUF file"):
        open_tensors(path)


def test_all_parts_of_a_split_gguf_are_read_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    rows = np.ones((4, 64), dtype=np.float32)
    names = [f"m-{part:05d}-of-00002.gguf" for part in (1, 2)]
    for part, name in enumerate(names):
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        writer.add_tensor(f"x{part}", rows)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    for path in (tmp_path / names[0], tmp_path / names[1], tmp_path):
        with open_tensors(path) as files:
            assert sorted(files.tensors) == ["x0", "x1"]
    (tmp_path / names[1]).unlink()
    for path in (tmp_path / names[0], tmp_path):
        with pytest.raises(EvaluationError, match=rf"holds {names[0]}, and lacks {names[1]}"):
            open_tensors(path)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_an_infinite_scale_is_a_difference_that_is_told(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    path = write_gguf(tmp_path / "x.gguf", kind, rows)
    raw = path.read_bytes()
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind] * 16
    at = len(raw) - size
    path.write_bytes(raw[:at] + np.float16("inf").tobytes() + raw[at + 2 :])
    np.save(tmp_path / "x.npy", rows)
    report = compare_tensors(str(tmp_path / "x.npy"), str(path), TensorOptions())
    assert report.exit_code == 1
    assert any("infinite elements" in one for one in report.caveats)


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "x.gguf", "Q8_0", np.ones((4, 64), dtype=np.float32))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(EvaluationError, match="the package gguf is not installed") as caught:
        open_tensors(path)
    assert extra_command("gguf") in caught.value.hint
