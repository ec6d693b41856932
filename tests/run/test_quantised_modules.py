"""Which modules are quantised, and what restoring them adds to the file: read off headers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import save_llama

from evalguard.bisect.settings.hf_side import HFSide
from evalguard.bisect.settings.quantised_modules import QuantisedModules, find_quantised_modules
from evalguard.core.settings import Value, Variant

Tensors = dict[str, Any]
KIND = "mlp.up_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("quantised") / "base", tied=False)


def found(base: Path, candidate: Path, **given: Value) -> QuantisedModules:
    def side(place: Path, more: Mapping[str, Value]) -> HFSide:
        arguments = {"pretrained": str(place), **more}
        return HFSide.of(Variant(name=place.name, model="hf", model_args=arguments))

    return find_quantised_modules(side(base, {}), side(candidate, given))


def repacked(
    base: Path, folder: Path, pack: Callable[[str, Any], Tensors], config: Value = None
) -> Path:
    """A copy whose matrices of one kind are stored in another way."""
    folder.mkdir()
    for file in base.iterdir():
        if file.name != "model.safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    tensors: Tensors = {}
    for name, values in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        tensors |= pack(module, values) if module.endswith(KIND) else {name: values}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        told = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**told, "quantization_config": config}))
    return folder


def as_pack_quantized(module: str, values: Any) -> Tensors:
    """compressed-tensors, 4 bits: eight weights an int32, a scale of 16 bits for 32 of them."""
    rows, width = values.shape
    return {
        f"{module}.weight_packed": np.zeros((rows, width // 8), np.int32),
        f"{module}.weight_scale": np.zeros((rows, width // 32), np.float16),
        f"{module}.weight_shape": np.array([rows, width], np.int64),
    }


def as_bitsandbytes(module: str, values: Any) -> Tensors:
    """nf4 as it is saved: two weights a byte, a scale of 32 bits for 64 of them, and its state."""
    return {
        f"{module}.weight": np.zeros((values.size // 2, 1), np.uint8),
        f"{module}.weight.absmax": np.zeros(values.size // 64, np.float32),
        f"{module}.weight.quant_map": np.zeros(16, np.float32),
        f"{module}.weight.quant_state.bitsandbytes__nf4": np.zeros(80, np.uint8),
    }


def as_int4_numbers(module: str, values: Any) -> Tensors:
    grouped = values.reshape(values.shape[0], -1, 32)
    scale = np.abs(grouped).max(axis=-1, keepdims=True) / 7
    return {f"{module}.weight": (np.round(grouped / scale) * scale).reshape(values.shape)}


IGNORING = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.mark.parametrize(
    ("pack", "config", "stored", "option"),
    [
        (
            as_pack_quantized, IGNORING, lambda n: n // 2 + n // 32 * 2 + 16,
            'ignore: ["lm_head", "re:.*up_proj$"]',
        ),
        (
            as_bitsandbytes, NF4, lambda n: n // 2 + n // 64 * 4 + 64 + 80,
            'llm_int8_skip_modules=["lm_head", ".*up_proj"]',
        ),
    ],
)  # fmt: skip
def test_what_a_packed_module_takes_counts_scales_and_all_that_comes_with_them(
    base: Path, tmp_path: Path, pack: Any, config: Value, stored: Callable[[int], int], option: str
) -> None:
    candidate = repacked(base, tmp_path / "packed", pack, config)
    there = found(base, candidate)
    sizes = load_file(base / "model.safetensors")
    assert [one.kind for one in there.modules] == [KIND] * there.layers
    for one in there.modules:
        weights = sizes[f"{one.name}.weight"].size
        assert one.added_bytes == 4 * weights - stored(weights)
    assert there.option(there.modules) == option
    assert there.notes == ()


def test_plain_numbers_on_a_grid_are_quantised_at_an_unknown_cost(
    base: Path, tmp_path: Path
) -> None:
    there = found(base, repacked(base, tmp_path / "rounded", as_int4_numbers))
    assert [(one.kind, one.added_bytes) for one in there.modules] == [(KIND, None)] * there.layers
    assert there.option(there.modules) == ""
    assert "what restoring costs is not known" in there.notes[0]


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda module, values: {f"{module}.weight": values}, id="the same"),
        pytest.param(
            lambda module, values: {f"{module}.weight": values.astype(np.float16)}, id="float16"
        ),
        pytest.param(
            lambda module, values: {f"{module}.weight": values * 1.01 + 1e-3}, id="other weights"
        ),
    ],
)
def test_a_candidate_of_plain_weights_has_no_prices(base: Path, tmp_path: Path, pack: Any) -> None:
    assert found(base, repacked(base, tmp_path / "plain", pack)).modules == ()


def test_weights_that_are_quantised_as_they_are_loaded_cost_nobody_knows_what(
    base: Path,
) -> None:
    there = found(base, base, load_in_8bit=True)
    assert {one.kind for one in there.modules} >= {KIND, "self_attn.q_proj"}
    assert all(one.added_bytes is None and one.layer is not None for one in there.modules)
    assert there.option(there.modules[:1]) == (
        f'llm_int8_skip_modules=["lm_head", "{there.modules[0].name}"]'
    )
