"""Sizes of models, read off what is loaded of their files; what cannot be known says why."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from evalguard.comparison.checkpoint_sizes import with_sizes
from evalguard.core.compare_report import CheckpointSize, RunIdentity
from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Setting, Target, Variant
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource
from evalguard.gguf_table import GGML_TYPES

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 32}
WEIGHTS = {"embed": (32, 64), "up": (48, 64), "down": (64, 96), "norm": (64,)}
COUNT = 32 * 64 + 48 * 64 + 64 * 96 + 64


def tensors(dtype: Any = np.float32) -> dict[str, Any]:
    return {name: np.ones(shape, dtype=dtype) for name, shape in WEIGHTS.items()}


def checkpoint(folder: Path, arrays: dict[str, Any] | None = None, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors() if arrays is None else arrays, folder / "model.safetensors")
    return folder


def sharded(folder: Path) -> Path:
    """Two shards and their index."""
    checkpoint(folder)
    (folder / "model.safetensors").unlink()
    whole, names = tensors(), list(WEIGHTS)
    shards = {"model-1.safetensors": names[:2], "model-2.safetensors": names[2:]}
    for file, inside in shards.items():
        save_file({name: whole[name] for name in inside}, folder / file)
    weight_map = {name: file for file, inside in shards.items() for name in inside}
    told = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(told))
    return folder


def gguf(file: Path, kind: GGMLQuantizationType = GGMLQuantizationType.Q4_0) -> Path:
    writer = GGUFWriter(str(file), "llama")
    writer.add_token_list([f"token {number}" for number in range(99)])
    for name, array in tensors().items():
        own = kind if array.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(array, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def sizes(
    base: Path | str,
    candidate: Path | str,
    model: str = "hf",
    dtype: str = "",
    weight_bytes: int = 0,
    **more: Any,
) -> tuple[CheckpointSize, CheckpointSize]:
    """Of two models, as a comparison of them has it."""

    def variant(place: Path | str, kind: str, **fields: Any) -> ModelSource:
        args = {"pretrained": str(place), **fields.pop("model_args", {})}
        return ModelSource(
            name="m", variant=Variant(name="m", model=kind, model_args=args, **fields)
        )

    side = ScoredSide(
        identity=RunIdentity(name="m", digest=""),
        tables=(),
        description=ModelDescription(model_type="hf", dtype=dtype, weight_bytes=weight_bytes),
    )
    sources = variant(base, "hf"), variant(candidate, model, **more)
    first, second = with_sizes(sources, (side, side), Path("/nowhere"))
    assert first.identity.size is not None
    assert second.identity.size is not None
    return first.identity.size, second.identity.size


def test_every_number_of_plain_weights_is_a_weight(tmp_path: Path) -> None:
    base, half = sizes(checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b", tensors(np.float16)))
    assert base == CheckpointSize(bytes=4 * COUNT, weights=COUNT, kind="safetensors")
    assert (half.bytes, half.bits_per_weight) == (2 * COUNT, 16.0)


def test_shards_are_read_by_their_headers_and_not_as_the_index_adds_them_up(
    tmp_path: Path,
) -> None:
    assert sizes(sharded(tmp_path / "a"), sharded(tmp_path / "b"))[1].bytes == 4 * COUNT


def test_only_what_is_loaded_of_a_folder_counts(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    save_file(tensors(), folder / "consolidated.safetensors")
    gguf(folder / "model.gguf")
    (folder / "optimizer.pt").write_bytes(b"9" * 9_999)
    (folder / "pytorch_model.bin").write_bytes(b"9" * 9_999)
    both = sizes(folder, folder, model="hf")
    assert both[0].bytes == 4 * COUNT
    assert sizes(folder, folder, model="llama_cpp")[1].kind == "safetensors"
    of_file = sizes(folder, folder, model_args={"gguf_file": "model.gguf"}, dtype="float32")[1]
    assert (of_file.kind, of_file.loaded_as) == ("gguf", "float32")


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q5_1", "F16", "BF16"])
def test_blocks_of_a_gguf_count_with_their_scales(tmp_path: Path, kind: str) -> None:
    quantised = GGMLQuantizationType[kind]
    block, size = GGML_QUANT_SIZES[quantised]
    file = gguf(tmp_path / "model.gguf", quantised)
    found = sizes(file, file, model="llama_cpp")[1]
    assert found.weights == COUNT
    assert found.bytes == (COUNT - 64) // block * size + 4 * 64
    split = tmp_path / "m-00001-of-00002.gguf"
    file.rename(split)
    gguf(tmp_path / "m-00002-of-00002.gguf", quantised)
    whole = sizes(split, split, model="llama_cpp")[1]
    assert (whole.bytes, whole.weights) == (2 * (found.bytes or 0), 2 * COUNT)


def test_sizes_of_blocks_are_those_of_the_package_gguf() -> None:
    known = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    ours = {number: (block, size) for number, (_, block, size) in GGML_TYPES.items()}
    assert {number: known[number] for number in ours if number in known} == {
        number: size for number, size in ours.items() if number in known
    }
    assert known.keys() - ours.keys() <= {int(GGMLQuantizationType.Q8_1)}  # in no file


def test_packed_weights_are_as_many_as_the_base_s_of_the_same_architecture(
    tmp_path: Path,
) -> None:
    packed = {
        "up.weight_packed": np.zeros((48, 8), dtype=np.int32),
        "up.weight_scale": np.ones((48, 2), dtype=np.float16),
    }
    quantised = {"quantization_config": {"quant_method": "compressed-tensors"}}
    base = checkpoint(tmp_path / "a")
    other = checkpoint(tmp_path / "b", packed, **quantised)
    found = sizes(base, other)[1]
    assert found.bytes == 48 * 8 * 4 + 48 * 2 * 2
    assert found.bits_per_weight == 8 * (found.bytes or 0) / COUNT
    alien = checkpoint(tmp_path / "c", packed, **quantised, num_hidden_layers=9)
    unknown = sizes(base, alien)[1]
    assert (unknown.weights, unknown.bits_per_weight) == (None, None)
    assert "compressed-tensors" in unknown.reason


def test_weights_that_are_quantised_while_they_are_loaded_say_so(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    four = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    found = sizes(folder, folder, model_args={"quantization_config": four}, dtype="float32")[1]
    assert (found.bytes, found.loaded_as) == (4 * COUNT, "bitsandbytes nf4")
    assert (found.loaded_bytes, found.bits_per_weight) == (None, 32.0), "nothing was loaded"
    told = {"quantization_config": four}
    held = sizes(folder, folder, model_args=told, dtype="float32", weight_bytes=COUNT)
    assert (held[1].bytes, held[1].loaded_bytes, held[1].bits_per_weight) == (4 * COUNT, COUNT, 8.0)
    assert held[0].loaded_bytes is None, "loaded as it is stored"
    assert sizes(folder, folder, dtype="bfloat16")[1].loaded_as == "bfloat16"
    assert sizes(folder, folder, dtype="float32")[1].loaded_as == ""
    hook = Setting(
        name="int8", reference=False, candidate=True, target=Target.parse("call:hook.py:int8")
    )
    changed = sizes(folder, folder, settings=(hook,), assignment={"int8": True}, dtype="float32")[1]
    assert changed.loaded_as == "changed by int8"


def _missing_shard(folder: Path) -> Path:
    (sharded(folder) / "model-2.safetensors").unlink()
    return folder


def _lying_index(folder: Path) -> Path:
    index = sharded(folder) / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    told["weight_map"]["lm_head"] = "model-2.safetensors"
    index.write_text(json.dumps(told))
    return folder


def _index_that_leaves_the_folder(folder: Path) -> Path:
    index = sharded(folder) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"embed": "../../x.safetensors"}}))
    return folder


def _cut_shard(folder: Path) -> Path:
    file = sharded(folder) / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return folder


def _overlapping(folder: Path) -> Path:
    """Two tensors in the same bytes: the file would hold twice what it does."""
    entry = {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}
    header = json.dumps(dict.fromkeys(("a", "b", "c", "d", "e", "f"), entry)).encode()
    folder.mkdir()
    data = struct.pack("<Q", len(header)) + header + bytes(32)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def _cut_gguf(share: float) -> Callable[[Path], Path]:
    def cut(file: Path) -> Path:
        whole = gguf(file.with_suffix(".gguf"))
        whole.write_bytes(whole.read_bytes()[: int(share * whole.stat().st_size)])
        return whole

    return cut


def _two_ggufs(folder: Path) -> Path:
    folder.mkdir()
    gguf(folder / "a.gguf")
    gguf(folder / "b.gguf")
    return folder


def _half_of_a_split(file: Path) -> Path:
    return gguf(file.with_name("m-00001-of-00002.gguf"))


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("broken", "model", "reason"),
    [
        (_missing_shard, "hf", "model-2.safetensors, which is not there"),
        (_lying_index, "hf", "no tensor lm_head, which the index names"),
        (_index_that_leaves_the_folder, "hf", "not in its folder"),
        (_cut_shard, "hf", "the file ends at byte"),
        (_overlapping, "hf", "model.safetensors: its bytes are those of"),
        (_cut_gguf(0.9), "llama_cpp", "ends at byte"),
        (_cut_gguf(0.1), "llama_cpp", "middle of its header"),
        (_cut_gguf(0.0), "llama_cpp", "is no GGUF file"),
        (_two_ggufs, "llama_cpp", "which of them are loaded is not known"),
        (_half_of_a_split, "llama_cpp", "00002-of-00002.gguf is not there, one of 2 parts"),
        (_empty, "hf", "holds no weights"),
        (lambda _: "nobody/nothing", "hf", "neither a folder nor in the hub's cache"),
        (lambda _: "gpt", "local-completions", "model type 'local-completions'"),
        (lambda folder: checkpoint(folder), "onnx", "files of model type 'onnx' are not read"),
    ],
)  # fmt: skip
def test_a_size_that_cannot_be_known_says_why_and_is_no_number(
    tmp_path: Path, broken: Callable[[Path], Path | str], model: str, reason: str
) -> None:
    found = sizes(checkpoint(tmp_path / "base"), broken(tmp_path / "broken"), model=model)[1]
    assert (found.bytes, found.weights, found.bits_per_weight) == (None, None, None)
    assert reason in found.reason


def test_a_server_has_its_files_for_itself(tmp_path: Path) -> None:
    served = {"base_url": "http://127.0.0.1:9/v1"}
    found = sizes(tmp_path, checkpoint(tmp_path / "b"), "local-completions", model_args=served)[1]
    assert found == CheckpointSize(reason="its files are its server's")


@given(st.integers(0, 3_000), st.integers(0, 255))
def test_a_flipped_byte_of_a_header_is_another_number_or_a_reason_and_no_crash(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    file = gguf(tmp_path_factory.mktemp("flipped") / "m.gguf")
    data = bytearray(file.read_bytes())
    data[place % len(data)] = value
    file.write_bytes(bytes(data))
    found = sizes(file.parent, file, model="llama_cpp")[1]
    assert (found.bytes is None) == bool(found.reason)
    assert found.bytes is None or found.bytes <= len(data)
