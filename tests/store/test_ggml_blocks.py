"""Every type of ggml that the package gguf can dequantise: read, and judged by block.

``ggml_blocks.npz`` was written by ggml's own quantiser (llama.cpp b11063): Student's t with five
degrees of freedom, without an importance matrix and with one over four orders of magnitude.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evalguard.errors import EvaluationError
from evalguard.tensor_files.opening import open_tensors
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_report import TensorsReport

gguf = pytest.importorskip("gguf")
ROWS, COLUMNS = 4, 512
BLOCKS = dict(np.load(Path(__file__).parent / "ggml_blocks.npz"))
KINDS = sorted({name.split()[0] for name in BLOCKS})
# Where a block's scale is, and its minimum, if it has one.
SCALES = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ1_0": 52, "TQ2_0": 64}
MINIMA = {"Q4_1": 2, "Q5_1": 2, "Q2_K": 82, "Q4_K": 2, "Q5_K": 2}


def weights() -> np.ndarray:
    return (np.random.default_rng(7).standard_t(5, (ROWS, COLUMNS)) * 0.02).astype(np.float32)


def write(path: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def compare(folder: Path, kind: str, raw: np.ndarray) -> TensorsReport:
    base = folder / "base.safetensors"
    save_file({"w.weight": torch.from_numpy(weights())}, base)
    file = write(folder / "made.gguf", {"w.weight": (raw, kind)})
    return compare_tensors(str(base), str(file), TensorOptions())


def test_no_type_that_gguf_dequantises_is_left_out() -> None:
    known = {one.name for one in gguf.quants._type_traits} - {"BF16", "F16", "F32"}
    assert known <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_gguf(tmp_path: Path, kind: str) -> None:
    raw = BLOCKS[f"{kind} plain"]
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    with open_tensors(write(tmp_path / "x.gguf", {"w.weight": (raw, kind)})) as files:
        tensor = files.tensors["w.weight"]
        np.testing.assert_array_equal(tensor.load(), expected)
        np.testing.assert_array_equal(tensor.read(COLUMNS, 2 * COLUMNS), expected[1])
        assert tensor.dtype == kind.lower()


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_are_the_numbers_that_gguf_makes_of_them(tmp_path: Path, kind: str) -> None:
    own = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[own]
    rows = np.random.default_rng(3).integers(0, 256, (7, 3 * 256 // block * size), dtype=np.uint8)
    with np.errstate(all="ignore"):  # scales of any bits: NaN and infinite ones too
        expected = gguf.dequantize(rows, own)
        with open_tensors(write(tmp_path / "x.gguf", {"w.weight": (rows, kind)})) as files:
            found = files.tensors["w.weight"].load()
    np.testing.assert_array_equal(found, expected)
    assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("made", ["plain", "important"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_ggml_wrote_is_healthy(tmp_path: Path, kind: str, made: str) -> None:
    report = compare(tmp_path, kind, BLOCKS[f"{kind} {made}"])
    assert [one.state for one in report.deltas] == ["within"]
    assert report.exit_code == 0


def damage(kind: str, raw: np.ndarray, how: str) -> np.ndarray:
    """Damage the second block of the third row."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = raw.copy().reshape(ROWS, -1, size)
    block = blocks[2, 1]
    if how == "zero":
        block[:] = 0
    elif how == "another block":
        block[:] = blocks[0, 0]
    elif how == "scale" and kind in ("MXFP4", "NVFP4"):  # four times it
        block[0] += {"MXFP4": 2, "NVFP4": 16}[kind]
    elif how == "scale" and kind == "IQ1_M":  # its upper four bits, in four places
        block[55] ^= 0x20
    else:
        at = MINIMA[kind] if how == "minimum" else SCALES.get(kind, 0)
        number = block[at : at + 2].view(np.float16)
        number *= np.float16(-1 if how == "minimum" else 4)
    return blocks.reshape(raw.shape)


@pytest.mark.parametrize("how", ["zero", "another block", "scale"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_damaged_block_is_found_and_named(tmp_path: Path, kind: str, how: str) -> None:
    check_named(compare(tmp_path, kind, damage(kind, BLOCKS[f"{kind} plain"], how)))


@pytest.mark.parametrize("kind", sorted(MINIMA))
def test_one_wrong_minimum_is_found_and_named(tmp_path: Path, kind: str) -> None:
    check_named(compare(tmp_path, kind, damage(kind, BLOCKS[f"{kind} plain"], "minimum")))


def check_named(report: TensorsReport) -> None:
    (delta,) = report.deltas
    assert delta.state == "beyond"
    assert report.exit_code == 1
    assert {one.first for one in delta.damage} == {(2,)}


# Scales in tensors of their own


@pytest.mark.parametrize("experts", [1, 2])
def test_a_scale_in_a_tensor_of_its_own_belongs_to_its_weight(tmp_path: Path, experts: int) -> None:
    """llama.cpp multiplies NVFP4 by X.scale, one for each expert of a stack."""
    raw, scales = BLOCKS["NVFP4 plain"], np.array([0.5, 3.0], dtype=np.float32)[:experts]
    kind = gguf.GGMLQuantizationType.NVFP4
    expected = gguf.dequantize(raw, kind).reshape(experts, -1, COLUMNS) * scales[:, None, None]
    data = raw.reshape(experts, ROWS // experts, -1) if experts > 1 else raw
    path = write(
        tmp_path / "x.gguf",
        {
            "a.weight": (data, "NVFP4"),
            "a.scale": (scales, "F32"),
            "a.input_scale": (scales, "F32"),
        },
    )
    exact = weights().reshape(experts, -1, COLUMNS) * scales[:, None, None]
    shape = exact.shape if experts > 1 else (ROWS, COLUMNS)
    save_file(
        {"a.weight": torch.from_numpy(exact.reshape(shape).copy())}, tmp_path / "b.safetensors"
    )
    with open_tensors(path) as files:
        assert list(files.tensors) == ["a.weight"]
        np.testing.assert_array_equal(
            files.tensors["a.weight"].load().reshape(expected.shape), expected
        )
    report = compare_tensors(str(tmp_path / "b.safetensors"), str(path), TensorOptions())
    assert report.exit_code == 0
    assert [one.state for one in report.deltas] == ["within"]


# What cannot be read


def test_a_type_that_gguf_does_not_know_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", {"w.weight": (BLOCKS["Q4_0 plain"], "Q4_0")})
    content = path.read_bytes()
    at = content.index(b"w.weight") + len("w.weight") + 4 + 2 * 8
    path.write_bytes(content[:at] + struct.pack("<I", 999) + content[at + 4 :])
    with pytest.raises(EvaluationError, match=r"ggml's type 999, which the package gguf .* does"):
        open_tensors(path)


def test_rows_that_are_no_whole_blocks_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", {"w.weight": (BLOCKS["Q4_0 plain"], "Q4_0")})
    content = path.read_bytes()
    at = content.index(b"w.weight") + len("w.weight") + 4
    lying = struct.pack("<2Q", COLUMNS - 16, ROWS)
    path.write_bytes(content[:at] + lying + content[at + 16 :])
    with pytest.raises(
        EvaluationError, match=r"w\.weight has rows of 496, and q4_0 has blocks of 32"
    ):
        open_tensors(path)


def test_a_type_that_gguf_cannot_dequantise_is_unreadable_and_not_different(
    tmp_path: Path,
) -> None:
    base = tmp_path / "base.safetensors"
    save_file({"w.weight": torch.zeros(2, 256)}, base)
    raw = np.zeros((2, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_K][1]), dtype=np.uint8)
    path = write(tmp_path / "x.gguf", {"w.weight": (raw, "Q8_K")})
    report = compare_tensors(str(base), str(path), TensorOptions())
    assert report.exit_code == 3
    assert "cannot dequantise q8_k" in report.deltas[0].fault
