"""Dumped activations: formats, name maps, sequences, and files that are not what they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from evalguard.core.name_map import parse_name_map
from evalguard.core.trace_points import ModelRounding
from evalguard.errors import EvaluationError, UsageError
from evalguard.tensor_files.activation_dumps import DumpedActivations
from evalguard.tracing.measure.activation_spool import SpooledActivations

Arrays = Mapping[str, NDArray[Any]]
VALUES = np.arange(60, dtype=np.float32).reshape(5, 12)


DAMAGED = (
    "cut off|cannot be read|is empty|ends at byte|ends in the middle|holds [0-9]+ bytes"
    "|is not safetensors|is no GGUF"
)


def save_gguf(file: Path, arrays: Arrays) -> None:
    writer = GGUFWriter(str(file), "dump")
    for name, value in arrays.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save_npy(file: Path, arrays: Arrays) -> None:
    for name, value in arrays.items():
        np.save(file.parent / f"{name}.npy", value)


WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    "dump.safetensors": lambda file, arrays: save_file(dict(arrays), file),
    "dump.npz": lambda file, arrays: np.savez(file, **arrays),
    "dump.gguf": save_gguf,
    "dump.npy": save_npy,
}


def mapped(*rules: dict[str, Any], ignore: tuple[str, ...] = ()) -> Any:
    return parse_name_map({"map": list(rules), "ignore": list(ignore)}, where="map.yaml")


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_values_under_the_points_of_their_names(
    name: str, tmp_path: Path
) -> None:
    WRITERS[name](tmp_path / name, {"layers.0.mlp": VALUES, "layers.0.norm:in": 2 * VALUES})
    dump = DumpedActivations(tmp_path)
    assert len(dump) == 1
    assert sorted(dump.names(0)) == ["layers.0.mlp:out", "layers.0.norm:in"]
    assert np.array_equal(dump.read(0, "layers.0.mlp:out"), VALUES)
    assert np.array_equal(dump.read(0, "layers.0.norm:in"), 2 * VALUES)


def test_half_precision_and_quantised_values_are_read_as_what_they_stand_for(
    tmp_path: Path,
) -> None:
    half = torch.from_numpy(VALUES).bfloat16()
    save_torch({"a": half, "b": half.half()}, tmp_path / "x.safetensors")
    blocks = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    writer = GGUFWriter(str(tmp_path / "y.gguf"), "dump")
    kind = GGMLQuantizationType.Q8_0
    writer.add_tensor("c", quantize(blocks, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    dump = DumpedActivations(tmp_path)
    assert np.array_equal(dump.read(0, "a:out"), half.float().numpy())
    assert np.array_equal(dump.read(0, "b:out"), VALUES)
    assert np.allclose(dump.read(0, "c:out"), blocks, atol=0.01)


def test_one_folder_is_one_sequence_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for step in (0, 2, 10):
        (tmp_path / f"step-{step}").mkdir()
        np.savez(tmp_path / f"step-{step}" / "x.npz", a=np.full(3, step))
    dump = DumpedActivations(tmp_path)
    assert [int(dump.read(number, "a:out")[0]) for number in range(3)] == [0, 2, 10]
    with pytest.raises(UsageError, match="has 3 sequences, and sequence 4 is asked for"):
        dump.names(3)


def test_a_name_map_renames_and_lays_out_as_the_base_has_it(tmp_path: Path) -> None:
    pairs = np.arange(48, dtype=np.float32).reshape(6, 8)  # 6 tokens, 2 heads of 4
    np.savez(
        tmp_path / "x.npz",
        **{"blk.0.q": pairs, "blk.0.z": VALUES.T, "blk.0.qkv": VALUES, "scratch": VALUES},
    )
    names = mapped(
        {"base": "layers.*.q:out", "cand": "blk.*.q",
         "permute": {"axis": 1, "heads": 2, "order": "interleaved"}},
        {"base": "layers.*.o:in", "cand": "blk.*.z", "transpose": [1, 0]},
        {"base": "layers.*.k", "cand": "blk.*.qkv", "split": {"axis": 1, "parts": 3, "index": 1}},
        {"base": "layers.*.v", "cand": "blk.*.qkv", "split": {"axis": 1, "parts": 3, "index": 2}},
        ignore=("scratch",),
    )  # fmt: skip
    dump = DumpedActivations(tmp_path, names)
    assert set(dump.names(0)) == {
        "layers.0.q:out", "layers.0.o:in", "layers.0.k:out", "layers.0.v:out",
    }  # fmt: skip
    assert dump.read(0, "layers.0.q:out")[0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert np.array_equal(dump.read(0, "layers.0.o:in"), VALUES)
    assert np.array_equal(dump.read(0, "layers.0.v:out"), VALUES[:, 8:])


def test_a_stack_of_all_layers_gives_one_point_for_each(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", hidden_states=np.stack([VALUES, 3 * VALUES]))
    rule = {"base": "model.layers.*:out", "cand": "hidden_states", "take": {"index": "$1"}}
    dump = DumpedActivations(tmp_path, mapped(rule))
    assert list(dump.names(0)) == ["model.layers.0:out", "model.layers.1:out"]
    assert np.array_equal(dump.read(0, "model.layers.1:out"), 3 * VALUES)


def test_an_earlier_rule_counts_and_a_tensor_that_is_there_twice_is_refused(
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "x.npz", a=VALUES, b=2 * VALUES)
    rules = {"base": "m:out", "cand": "b"}, {"base": "m:out", "cand": "a"}
    assert np.array_equal(DumpedActivations(tmp_path, mapped(*rules)).read(0, "m:out"), 2 * VALUES)
    np.savez(tmp_path / "y.npz", a=VALUES)
    for names in (mapped(), mapped(*rules)):
        with pytest.raises(UsageError, match=r"'a' \(.*x.npz\) and 'a' \(.*y.npz\) both stand"):
            DumpedActivations(tmp_path, names)


def test_a_layout_that_does_not_fit_names_file_tensor_and_point(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=VALUES)
    dump = DumpedActivations(tmp_path, mapped({"base": "m:out", "cand": "a", "reshape": [7, 2]}))
    with pytest.raises(EvaluationError, match=r"x\.npz: 'a', a tensor of \[5, 12\].* m:out"):
        dump.read(0, "m:out")


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "dump.npy"])
@pytest.mark.parametrize("share", [0.01, 0.4, 0.97])
def test_a_file_that_is_cut_short_is_an_error_and_no_value(
    name: str, share: float, tmp_path: Path
) -> None:
    WRITERS[name](tmp_path / name, {"a": np.ones((40, 50), dtype=np.float32)})
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(EvaluationError, match=DAMAGED):
        DumpedActivations(tmp_path).read(0, "a:out")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy", ".gguf"])
@pytest.mark.parametrize("content", [b"", b"not what the name says" * 9])
def test_a_file_of_something_else_is_an_error(suffix: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"x{suffix}").write_bytes(content)
    with pytest.raises(EvaluationError, match=DAMAGED):
        DumpedActivations(tmp_path)


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(EvaluationError, match="Python objects"):
        DumpedActivations(tmp_path)


def test_a_file_that_changes_between_opening_and_reading_is_an_error(tmp_path: Path) -> None:
    save_file({"a": VALUES}, tmp_path / "x.safetensors")
    dump = DumpedActivations(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(EvaluationError, match="is empty"):
        dump.read(0, "a:out")


def test_a_folder_without_activations_and_a_mixed_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        DumpedActivations(tmp_path / "none")
    with pytest.raises(UsageError, match="holds no activations"):
        DumpedActivations(tmp_path)
    (tmp_path / "0").mkdir()
    for folder in (tmp_path, tmp_path / "0"):
        np.savez(folder / "x.npz", a=VALUES)
    with pytest.raises(UsageError, match="beside folders of sequences"):
        DumpedActivations(tmp_path)


def test_hyper_parameters_beside_the_tensors_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=VALUES)
    assert DumpedActivations(tmp_path).hyperparameters == {}
    (tmp_path / "config.json").write_text('{"layer_norm_eps": 9.99999975e-06, "dtype": "float16"}')
    dump = DumpedActivations(tmp_path)
    assert dump.hyperparameters["layer_norm_eps"] == 9.99999975e-06
    assert dump.rounding == ModelRounding(precision="float16")
    said = {"precision": "float32", "torch_dtype": "bfloat16", "computes_in": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(said))
    dump = DumpedActivations(tmp_path)
    assert dump.rounding == ModelRounding(precision="float32", computes_in="float16")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UsageError, match="must hold a mapping"):
        DumpedActivations(tmp_path)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("precison", "precision"), ("Precision", "precision"), ("precisions", "precision"),
        ("compute_in", "computes_in"), ("computes-in", "computes_in"),
    ],
)  # fmt: skip
def test_a_key_of_ours_that_is_misspelt_is_no_hyper_parameter(
    key: str, meant: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", a=VALUES)
    (tmp_path / "config.yaml").write_text(f"{key}: float16\n")
    with pytest.raises(UsageError, match=f"'{key}' is no key; did you mean '{meant}'"):
        DumpedActivations(tmp_path)
    (tmp_path / "config.yaml").write_text("position: 3\ncompute_dtype: float16\n")
    assert len(DumpedActivations(tmp_path).hyperparameters) == 2


def test_a_spool_keeps_the_order_and_leaves_nothing_behind() -> None:
    spool = SpooledActivations(ModelRounding(precision="float32"))
    spool.add([("b:out", VALUES), ("a:in", 2 * VALUES)])
    spool.add([("b:out", 3 * VALUES)])
    assert spool.names(0) == ["b:out", "a:in"]
    assert np.array_equal(spool.read(1, "b:out"), 3 * VALUES)
    file = Path(spool.files(0)["a:in"])
    assert np.array_equal(np.load(file), 2 * VALUES)
    spool.close()
    assert not file.parent.parent.exists()


@pytest.mark.parametrize("name", WRITERS)
def test_a_tensor_is_read_from_its_file_as_it_is_now(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, {"one": VALUES, "two": VALUES})
    dump = DumpedActivations(tmp_path)
    assert np.array_equal(dump.read(0, "one:out"), VALUES)
    other = tmp_path / "other"
    other.mkdir()
    WRITERS[name](other / name, {"one": VALUES + 1.0, "two": VALUES})
    for file in other.iterdir():
        file.replace(tmp_path / file.name)
    assert np.array_equal(dump.read(0, "one:out"), VALUES + 1.0)
    for file in list(tmp_path.glob("*.*")):
        file.unlink()
    with pytest.raises(UsageError, match="there is nothing at"):
        dump.read(0, "two:out")


def test_tensors_of_more_files_than_stay_open_are_read_in_any_order(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / str(number)).mkdir()
        save_file({"one": VALUES + number}, tmp_path / str(number) / "dump.safetensors")
    dump = DumpedActivations(tmp_path)
    for number in (*range(9), 0, 8, 0, 4, *range(9)):
        assert np.array_equal(dump.read(number, "one:out"), VALUES + number)
