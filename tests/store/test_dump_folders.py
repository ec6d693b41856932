"""A folder of tensors without a config.json: activations, or a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from evalguard.tensor_files.activation_dumps import is_dump

ROWS = np.zeros((2, 4), np.float32)
WEIGHTS = {"model.embed_tokens.weight": ROWS, "lm_head.weight": ROWS}
OUTPUTS = {"model.layers.0": ROWS, "model.layers.0.mlp:in": ROWS}


def write(file: Path, tensors: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".safetensors":
        save_file(dict(tensors), file)
    elif file.suffix == ".gguf":
        gguf = pytest.importorskip("gguf")
        writer = gguf.GGUFWriter(file, "llama")
        for name, values in tensors.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        np.savez(file, **tensors)


@pytest.mark.parametrize(
    "file",
    ["a.gguf", "Q4/a.gguf", "a.safetensors", "step-1/a.safetensors", "model-00001-of-2.gguf"],
)
def test_a_folder_of_weights_is_a_model(tmp_path: Path, file: str) -> None:
    write(tmp_path / file, WEIGHTS)
    assert not is_dump(tmp_path)


def test_a_gguf_file_that_cannot_be_read_is_a_model_and_arrays_beside_one_do_not_change_that(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert not is_dump(tmp_path)
    write(tmp_path / "imatrix.npz", OUTPUTS)
    assert not is_dump(tmp_path)


@pytest.mark.parametrize(
    "file", ["a.npz", "000/a.npz", "a.safetensors", "000/a.safetensors", "000/a.gguf", "a.gguf"]
)
def test_a_folder_of_what_modules_put_out_is_a_dump(tmp_path: Path, file: str) -> None:
    write(tmp_path / file, OUTPUTS)
    assert is_dump(tmp_path)


def test_a_folder_with_a_config_or_without_tensors_is_none(tmp_path: Path) -> None:
    assert not is_dump(tmp_path)
    write(tmp_path / "000/a.npz", OUTPUTS)
    (tmp_path / "config.json").write_text("{}")
    assert not is_dump(tmp_path)
