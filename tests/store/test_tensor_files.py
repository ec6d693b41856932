"""Tensor files are read lazily and as their own libraries read them; what is damaged is said."""

from __future__ import annotations

import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from evalguard.errors import EvalguardError, EvaluationError, UsageError
from evalguard.models.hyperparameters_read import read_hyperparameter_file
from evalguard.tensor_files.opening import open_tensors

STATE = {
    "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b.bias": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "c": torch.tensor(7, dtype=torch.int64),
    "empty": torch.zeros(0, 3),
}


def numbers(path: Path) -> dict[str, np.ndarray]:
    with open_tensors(path) as files:
        return {name: tensor.load() for name, tensor in files.tensors.items()}


def check_state(found: dict[str, np.ndarray]) -> None:
    assert found.keys() == STATE.keys()
    for name, tensor in STATE.items():
        expected = tensor.float().numpy() if tensor.dtype == torch.float16 else tensor.numpy()
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].shape == expected.shape


def test_safetensors_torch_and_numpy_files_hold_the_same(tmp_path: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in STATE.items()}
    save_file(STATE, tmp_path / "s.safetensors")
    torch.save(STATE, tmp_path / "t.bin")
    torch.save(STATE, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    np.savez(tmp_path / "n.npz", **arrays)
    np.savez_compressed(tmp_path / "c.npz", **arrays)
    for name in ("s.safetensors", "t.bin", "old.pt", "n.npz", "c.npz"):
        check_state(numbers(tmp_path / name))


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16", "float16", "float64", "int8", "uint8", "int16", "bool", "float8_e4m3fn",
        "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    ],
)  # fmt: skip
def test_every_dtype_is_decoded_as_torch_decodes_it(tmp_path: Path, dtype: str) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    codes = torch.arange(256).to(torch.uint8)
    kind = getattr(torch, dtype)
    values = codes.view(kind) if dtype.startswith("float8") else codes.float().sub(100).to(kind)
    save_file({"x": values}, tmp_path / "x.safetensors")
    expected = values.double() if dtype == "float64" else values.float()
    np.testing.assert_array_equal(numbers(tmp_path / "x.safetensors")["x"], expected.numpy())


def test_a_part_of_a_tensor_can_be_read(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "s.safetensors")
    np.savez_compressed(tmp_path / "c.npz", **{k: v.numpy() for k, v in STATE.items()})
    for name in ("s.safetensors", "c.npz"):
        with open_tensors(tmp_path / name) as files:
            np.testing.assert_array_equal(files.tensors["a.weight"].read(5, 8), [5, 6, 7])


def test_a_fortran_array_is_read_in_its_own_order(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array)
    for name in ("x.npy", "x.npz"):
        np.testing.assert_array_equal(numbers(tmp_path / name)["x"], array)


def test_nested_state_dicts_and_training_checkpoints_are_flattened(tmp_path: Path) -> None:
    torch.save({"state_dict": {"w": torch.ones(2)}, "epoch": 3}, tmp_path / "a.ckpt")
    torch.save({"x": {"w": torch.ones(2)}, "y": [torch.zeros(1)]}, tmp_path / "b.pt")
    torch.save(torch.ones(3), tmp_path / "c.pt")
    assert set(numbers(tmp_path / "a.ckpt")) == {"w"}
    assert set(numbers(tmp_path / "b.pt")) == {"x.w", "y.0"}
    assert set(numbers(tmp_path / "c.pt")) == {"tensor"}


def test_a_view_in_a_torch_file_is_read_in_its_own_order(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(6).reshape(2, 3).T}, tmp_path / "x.pt")
    np.testing.assert_array_equal(numbers(tmp_path / "x.pt")["x"], [[0, 3], [1, 4], [2, 5]])


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.touch, (Path("executed"),)  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", ["bin", "pt", "pkl", "safetensors", "npy", "npz"])
def test_no_pickle_is_ever_executed(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"evil.{suffix}"
    if suffix in ("bin", "pt"):
        torch.save({"x": torch.ones(2), "evil": Evil()}, path)
    elif suffix == "npy":
        np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)
    elif suffix == "npz":
        np.savez(path, x=np.array([Evil()], dtype=object))
    else:
        path.write_bytes(pickle.dumps({"x": Evil()}))
    with pytest.raises(EvalguardError) as caught:
        numbers(path)
    assert not Path("executed").exists()
    if suffix in ("bin", "pt"):
        assert "never runs what a pickle holds" in caught.value.hint


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    save_shards(tmp_path)
    check_state(numbers(tmp_path))
    with open_tensors(tmp_path) as files:
        assert {tensor.file for tensor in files.tensors.values()} == {
            "m-1.safetensors",
            "m-2.safetensors",
        }


def save_shards(folder: Path) -> None:
    names = list(STATE)
    weight_map = {}
    for number, part in enumerate((names[:2], names[2:]), start=1):
        file = f"m-{number}.safetensors"
        save_file({name: STATE[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "m.safetensors.index.json").write_text(json.dumps(index))


def test_a_missing_or_damaged_shard_leaves_the_others_readable(tmp_path: Path) -> None:
    save_shards(tmp_path)
    (tmp_path / "m-2.safetensors").unlink()
    with open_tensors(tmp_path) as files:
        assert files.tensors["a.weight"].load().shape == (3, 4)
        assert "is not there" in files.tensors["c"].fault
        with pytest.raises(EvaluationError, match=r"c of m-2\.safetensors cannot be read"):
            files.tensors["c"].load()
    (tmp_path / "m-2.safetensors").write_bytes(b"xx")
    with open_tensors(tmp_path) as files:
        assert "no safetensors" in files.tensors["c"].fault


def test_a_name_in_two_files_of_a_folder_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file(STATE, tmp_path / f"{name}.safetensors")
    with pytest.raises(EvaluationError, match=r"is in a\.safetensors and in b\.safetensors"):
        open_tensors(tmp_path)


def test_a_second_copy_of_the_weights_is_left_out_and_named(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    save_file(STATE, tmp_path / "consolidated.safetensors")
    with open_tensors(tmp_path) as files:
        assert files.notes == (f"{tmp_path}: not read: consolidated.safetensors",)


def test_a_file_that_was_cut_off_still_gives_what_lies_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_file({"x": torch.ones(1000), "y": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:-100])
    with open_tensors(path) as files:
        assert files.tensors["x"].load().sum() == 1000
        assert "the file ends at byte" in files.tensors["y"].fault


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_file({"x": torch.ones(1000)}, path)
    with open_tensors(path) as files:
        with path.open("r+b") as file:
            file.truncate(500)
        with pytest.raises(EvaluationError, match="ends at byte"):
            files.tensors["x"].load()


def header(entry: object) -> bytes:
    text = json.dumps(entry).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"x" * 7, "no safetensors"),
        (b"\xff" * 64, "cut off: its header would have"),
        (b"\x02" + b"\0" * 7 + b"{x", "not JSON"),
        (header([1]), "of no tensors"),
        (header({"x": {"dtype": "F32"}}), "no dtype, shape and place of 'x'"),
        (header({}), "holds no tensors"),
    ],
)
def test_a_damaged_header_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "s.safetensors"
    path.write_bytes(content)
    with pytest.raises(EvaluationError) as caught:
        open_tensors(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}, "dtype F4"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "is not 4 bytes"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}, "below zero"),
        ({"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}, "the file ends"),
    ],
)
def test_an_entry_that_cannot_be_right_is_a_fault_of_its_tensor(
    tmp_path: Path, entry: dict[str, object], said: str
) -> None:
    path = tmp_path / "s.safetensors"
    path.write_bytes(header({"x": entry}) + b"\0" * 8)
    with open_tensors(path) as files:
        assert said in files.tensors["x"].fault


def test_what_is_no_tensor_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UsageError, match="there is nothing at"):
        open_tensors(tmp_path / "absent")
    with pytest.raises(UsageError, match="of no form that evalguard knows"):
        open_tensors(tmp_path / "notes.txt")
    with pytest.raises(UsageError, match=r"holds no tensor files \(it holds notes\.txt\)"):
        open_tensors(tmp_path)
    for name in ("m.bin", "m.npz", "m.npy"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not really")
        with pytest.raises(EvaluationError, match="cannot be read as"):
            open_tensors(tmp_path / name)


def test_shards_without_an_index_have_to_be_all_there(tmp_path: Path) -> None:
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    save_file({"a": torch.ones(2)}, tmp_path / first)
    with pytest.raises(EvaluationError, match=f"holds {first}, and lacks {second}"):
        open_tensors(tmp_path)
    with open_tensors(tmp_path / first) as named:
        assert [*named.tensors] == ["a"]
    save_file({"b": torch.ones(2)}, tmp_path / second)
    with open_tensors(tmp_path) as whole:
        assert sorted(whole.tensors) == ["a", "b"]


def test_a_shape_of_no_whole_numbers_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(EvaluationError, match="has no dtype, shape and place of 'a'"):
        open_tensors(path)


def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    save_shards(tmp_path)
    index = {"weight_map": {"a.weight": "../m-1.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EvaluationError, match="not in its folder"):
        open_tensors(tmp_path)


def safetensors_file(path: Path, header: str, data: bytes) -> Path:
    path.write_bytes(len(header.encode()).to_bytes(8, "little") + header.encode() + data)
    return path


def entries(*spans: tuple[int, int]) -> str:
    """A header with tensors a, b, c ... at these bytes."""
    return json.dumps(
        {
            name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
            for name, (begin, end) in zip("abcdef", spans, strict=False)
        }
    )


@pytest.mark.parametrize(
    ("spans", "size", "faults"),
    [
        pytest.param([(0, 8), (4, 12)], 12, "ab", id="two share bytes"),
        pytest.param([(0, 8), (0, 8)], 8, "ab", id="two are in one place"),
        pytest.param([(0, 12), (2, 4), (4, 12)], 12, "abc", id="one holds two others"),
        pytest.param([(0, 4), (8, 12)], 12, "b", id="a gap"),
        pytest.param([(4, 8)], 8, "a", id="a gap before the first"),
        pytest.param([(0, 4)], 12, "a", id="bytes behind the last"),
        pytest.param([(0, 4), (4, 4), (4, 8)], 8, "", id="healthy, with an empty one"),
        pytest.param([(4, 8), (0, 4)], 8, "", id="healthy, in another order"),
    ],
)
def test_tensors_lie_one_behind_the_other(
    tmp_path: Path, spans: list[tuple[int, int]], size: int, faults: str
) -> None:
    file = safetensors_file(tmp_path / "m.safetensors", entries(*spans), bytes(size))
    with open_tensors(file) as found:
        named = {name for name, one in found.tensors.items() if "its bytes are" in one.fault}
        named |= {name for name, one in found.tensors.items() if "are of no tensor" in one.fault}
    assert named == set(faults)


def test_a_name_twice_in_a_header_and_a_shape_of_a_thousand_axes_are_refused(
    tmp_path: Path,
) -> None:
    one = '"a": {"dtype": "U8", "shape": [4], "data_offsets": [%d, %d]}'
    header = "{" + one % (0, 4) + ", " + one % (4, 8) + "}"
    with pytest.raises(EvaluationError, match="names 'a' twice"):
        open_tensors(safetensors_file(tmp_path / "m.safetensors", header, bytes(8)))
    deep = json.dumps({"a": {"dtype": "U8", "shape": [1] * 1000, "data_offsets": [0, 1]}})
    with open_tensors(safetensors_file(tmp_path / "n.safetensors", deep, bytes(1))) as found:
        assert "1,000 dimensions" in found.tensors["a"].fault


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_header(tensors: int = 0, pairs: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, pairs)


def gguf_tensor(name: str, shape: tuple[int, ...], offset: int, kind: int = 0) -> bytes:
    return (
        gguf_text(name)
        + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        + struct.pack("<IQ", kind, offset)
    )


HUGE_GGUFS = {
    "an array of 2^40 bytes": gguf_header(pairs=1)
    + gguf_text("a")
    + struct.pack("<IIQ", 9, 0, 2**40),
    "an array of 2^40 texts": gguf_header(pairs=1)
    + gguf_text("a")
    + struct.pack("<IIQ", 9, 8, 2**40),
    "an array of arrays": gguf_header(pairs=1)
    + gguf_text("a")
    + struct.pack("<IIQ", 9, 9, 1)
    + struct.pack("<IQ", 4, 2**62),
    "a text of 2^60 bytes": gguf_header(pairs=1) + gguf_text("a") + struct.pack("<IQ", 8, 2**60),
    "a key of 2^63 bytes": gguf_header(pairs=1) + struct.pack("<Q", 2**63),
    "2^50 tensors": gguf_header(tensors=2**50),
    "2^64-1 pairs": gguf_header(pairs=2**64 - 1),
    "2^31 dimensions": gguf_header(tensors=1) + gguf_text("t") + struct.pack("<I", 2**31),
    "overlapping tensors": gguf_header(tensors=2)
    + gguf_tensor("a", (16,), 0)
    + gguf_tensor("b", (16,), 32)
    + bytes(256),
}


@pytest.mark.parametrize("case", HUGE_GGUFS)
def test_a_gguf_header_that_says_more_than_the_file_holds_is_refused_before_it_is_read(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "m.gguf"
    file.write_bytes(HUGE_GGUFS[case])

    def refuse(*_: object) -> None:
        raise AssertionError("the package gguf allocates what a header says")

    monkeypatch.setattr(gguf, "GGUFReader", refuse)
    for read in (open_tensors, read_hyperparameter_file):
        with pytest.raises(EvaluationError, match=r"header|overlap|dimensions|elements"):
            read(file)


def npy(shape: str, values: int = 8) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    length = struct.pack("<H", len(header))
    return b"\x93NUMPY\x01\x00" + length + header.encode() + bytes(4 * values)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("a.npy", npy("(40,)"))], "a.npy says that it holds 160 bytes, and holds 32"),
        ([("a.npy", npy("(4,)"))], "a.npy says that it holds 16 bytes, and holds 32"),
        ([("a.npy", npy("(1099511627776,)"))], "says that it holds 4,398,046,511,104 bytes"),
        ([("a.npy", npy("(-8,)"))], r"its shape is \(-8,\)"),
        ([("a.npy", npy("(-2, -4)"))], r"its shape is \(-2, -4\)"),
        ([("a.npy", npy("(8,)"))] * 2, "it holds a.npy twice"),
    ],
)
def test_an_npz_header_that_says_other_than_its_file_holds_is_refused(
    tmp_path: Path, compression: int, members: list[tuple[str, bytes]], said: str
) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x.npz", "w", compression) as file:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in [*members, ("z.npy", npy("(40,)", 40))]:
            file.writestr(name, content)
    with pytest.raises(EvaluationError, match=said):
        numbers(tmp_path / "x.npz")


def test_what_lies_behind_the_tensor_of_a_torch_file_is_none_of_it(tmp_path: Path) -> None:
    state = {"a": torch.arange(8.0), "b": torch.arange(8.0)}
    torch.save(state, tmp_path / "x.pt")
    numbers(tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as file:
        members = [(one, file.read(one)) for one in file.infolist()]
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as file:
        for one, content in members:  # eight values of each tensor become ten
            longer = content.replace(b"K\x08", b"K\x0a") if "data.pkl" in one.filename else content
            file.writestr(one, longer)
    with pytest.raises(EvaluationError, match="they hold 80 bytes, its records hold 64"):
        numbers(tmp_path / "x.pt")


def test_a_tensor_without_numbers_in_a_torch_file_damages_no_other(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(8.0), "m": torch.empty(99, device="meta")}, tmp_path / "x.pt")
    with open_tensors(tmp_path / "x.pt") as files:
        np.testing.assert_array_equal(files.tensors["a"].load(), np.arange(8.0))


def test_dimensions_whose_product_overflows_lie_behind_the_end(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    file = tmp_path / "m.gguf"
    shape = (2**32, 2**32, 2)
    file.write_bytes(gguf_header(tensors=1) + gguf_tensor("t", shape, 0) + bytes(256))
    try:
        with open_tensors(file) as found:
            assert "ends at byte" in found.tensors["t"].fault
    except EvaluationError as error:
        assert "cannot be read" in str(error)  # noqa: PT017 - gguf's versions differ
