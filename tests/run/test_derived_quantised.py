"""Quantised candidates, and weights in GGUF files: at both ends the settings are the two models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from changed_models import at_reference, changed, model, scores
from gguf_writer import save_gguf, save_quantised_gguf
from safetensors.torch import load_file, save_file
from tiny_models import save_llama
from transformers import LlamaConfig, LlamaForCausalLM

from evalguard.bisect.settings.derived_settings import derive_settings
from evalguard.bisect.settings.module_settings import derive_module_settings

UNCHANGED = "-"  # in the name of no tensor
# Ternary weights that transformers makes of plain ones, on a CPU too (Wang et al. 2023, BitNet).
_BITNET = {
    "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_modules_of_a_quantised_candidate_are_exchanged_and_both_ends_are_the_two_models(
    tmp_path: Path,
) -> None:
    base = save_llama(tmp_path / "base")
    config = {"quantization_config": _BITNET}
    quantised = changed(base, tmp_path / "quantised", config=config, only=UNCHANGED)
    found = derive_settings(model(base), model(quantised))
    assert [one.name for one in found.variant.settings] == ["weights.attention", "weights.mlp"]
    assert {one.target.kind for one in found.variant.settings} == {"module"}
    assert found.complete
    assert found.notes == (
        "weights: quantised, so 14 of 21 modules are exchanged whole, with their scales",
    )
    plain = scores(model(base), tmp_path)
    assert scores(at_reference(found.variant), tmp_path) == plain
    ternary = scores(model(quantised), tmp_path)
    assert scores(found.variant, tmp_path) == ternary != plain
    mixed = scores(found.variant.assigned({"weights.mlp": str(base)}), tmp_path)
    assert mixed not in (plain, ternary)
    (one,) = derive_settings(model(quantised), model(base)).variant.settings
    assert (one.name, str(one.target)) == ("quantization", "model_args.pretrained")


Tensors = dict[str, torch.Tensor]


def save_packed(base: Path, folder: Path, damage: Callable[[Tensors], None] | None = None) -> Path:
    """A folder as compressed-tensors packs it in 8 bits, a scale a row; but for the head."""
    shutil.copytree(base, folder)
    stored: Tensors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        scale = weight.abs().amax(1, keepdim=True) / 127
        stored[name] = (weight / scale).round().to(torch.int8)
        stored[f"{name}_scale"] = scale
    if damage:
        damage(stored)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    told = json.loads((folder / "config.json").read_text())
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    told["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    return folder


def roll_scales_of_keys(stored: Tensors) -> None:
    for name in stored:
        if name.endswith("k_proj.weight_scale"):
            stored[name] = stored[name].roll(1, 0)


def draw_codes_anew(stored: Tensors) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    generator = torch.Generator().manual_seed(7)
    shape = stored[name].shape
    stored[name] = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)


def move_a_norm(stored: Tensors) -> None:
    stored["model.norm.weight"] = stored["model.norm.weight"] + 0.25


KEYS = "module:model.layers.*.self_attn.k_proj"


def weighed(base: Path, candidate: Path) -> dict[str, str]:
    """Setting of weights -> its target."""
    found = derive_settings(model(base), model(candidate)).variant.settings
    return {one.name: str(one.target) for one in found if one.name.startswith("weights.")}


def test_a_mistake_in_a_packed_folder_is_one_setting_beside_what_is_rounded(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    found = weighed(base, save_packed(base, tmp_path / "packed", roll_scales_of_keys))
    assert [*found] == [
        "weights.k_proj (all 2, scales rolled)", "weights.attention", "weights.mlp"
    ]  # fmt: skip
    assert next(iter(found.values())) == KEYS
    assert "k_proj" not in found["weights.attention"]


def test_what_is_like_nothing_known_in_a_packed_folder_is_searched_down_to_its_module(
    tmp_path: Path,
) -> None:
    base = save_llama(tmp_path / "base")
    packed = save_packed(base, tmp_path / "packed", draw_codes_anew)
    assert [*weighed(base, packed)] == ["weights.attention", "weights.mlp"]
    groups = derive_settings(model(base), model(packed)).groups
    assert [one.name for one in groups["weights.mlp"]] == [
        "weights.layers.0.mlp", "weights.layers.1.mlp"
    ]  # fmt: skip
    inner = {one.name: str(one.target) for one in groups["weights.layers.1.mlp"]}
    module = "model.layers.1.mlp.up_proj"
    assert inner[f"weights.{module}"] == f"module:{module}"


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (roll_scales_of_keys, {"weights.k_proj (all 2, scales rolled)": KEYS}),
        (
            draw_codes_anew,
            {"weights.model.layers.1.mlp.up_proj": "module:model.layers.1.mlp.up_proj"},
        ),
        (move_a_norm, {"weights.model.norm": "module:model.norm"}),
    ],
)
def test_of_two_folders_packed_alike_only_what_differs_is_exchanged(
    tmp_path: Path, damage: Callable[[Tensors], None], wanted: dict[str, str]
) -> None:
    base = save_llama(tmp_path / "base")
    healthy = save_packed(base, tmp_path / "healthy")
    faulty = save_packed(base, tmp_path / "faulty", damage)
    found = weighed(healthy, faulty)
    assert [*found.values()] == [*wanted.values()]
    assert [name.split(" (")[0] for name in found] == [name.split(" (")[0] for name in wanted]


def test_layers_of_a_packed_folder_have_its_mistake_as_one_setting(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    packed = save_packed(base, tmp_path / "packed", roll_scales_of_keys)
    parts = derive_module_settings(model(base), model(packed), "layers").variant.settings
    assert parts[0].name == "k_proj (all 2, scales rolled)"
    assert str(parts[0].target) == KEYS


def test_weights_of_a_gguf_file_are_exchanged_in_groups(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    base = save_llama(tmp_path / "base")
    port = tmp_path / "port"
    port.mkdir()
    save_gguf(changed(base, tmp_path / "changed", only="mlp"), port / "m.gguf")
    candidate = model(port, gguf_file="m.gguf", tokenizer=str(base), dtype="float32")
    found = derive_settings(model(base), candidate)
    kinds = ("embeddings", "norms", "attention", "mlp")
    assert {f"weights.{kind}" for kind in kinds} <= {one.name for one in found.variant.settings}
    assert found.complete
    plain = scores(model(base), tmp_path)
    assert scores(at_reference(found.variant), tmp_path) == plain
    wanted = scores(candidate, tmp_path)
    assert scores(found.variant, tmp_path) == wanted != plain
    other_way = derive_settings(candidate, model(base))
    assert not other_way.complete
    assert "weights: no setting, because the weights are in m.gguf" in " ".join(other_way.notes)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F32"])
def test_what_is_wrong_in_a_gguf_file_beside_its_rounding_is_one_setting(
    kind: str, tmp_path: Path
) -> None:
    base = save_llama(tmp_path / "base")
    other = changed(base, tmp_path / "other", only=UNCHANGED)
    weights = load_file(other / "model.safetensors")
    for name, one in weights.items():
        if "k_proj" in name:  # so that the file holds them in the order of the base
            pairs = one.reshape(2, 4, 2, -1)
            weights[name] = pairs.swapaxes(1, 2).reshape(one.shape).contiguous()
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    port = tmp_path / "port"
    port.mkdir()
    save_quantised_gguf(other, kind, port / "m.gguf")
    candidate = model(port, gguf_file="m.gguf", tokenizer=str(base), dtype="float32")
    found = derive_settings(model(base), candidate)
    weighed = [one.name for one in found.variant.settings if one.name.startswith("weights.")]
    assert weighed[0] == "weights.k_proj (all 2, rotary pairs)"
    kinds = ("embeddings", "norms", "attention", "mlp", "output_head")
    assert {*weighed[1:]} == {f"weights.{one}" for one in kinds}
    assert found.complete
    plain = scores(model(base), tmp_path)
    assert scores(at_reference(found.variant), tmp_path) == plain


def save_wide(folder: Path) -> Path:
    """Rows of 256 columns, which are a block of the types that have sub-blocks."""
    config = LlamaConfig.from_pretrained(save_llama(folder))
    config.update({"hidden_size": 256, "intermediate_size": 256, "head_dim": 64})
    torch.manual_seed(5)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "part", "fault"),
    [
        ("Q8_0", slice(0, 2), "scales rolled"),
        ("Q4_0", slice(0, 2), "scales rolled"),
        ("Q4_1", slice(0, 4), "scales rolled"),
        ("Q4_1", slice(2, 4), "zero points off"),
        ("Q8_0", slice(2, 34), "shifted"),  # codes, of which the scales stayed
        ("Q4_0", slice(2, 18), "shifted"),
        ("Q4_1", slice(4, 20), "shifted"),
        ("Q4_K", slice(16, 144), "shifted"),
        ("Q6_K", slice(0, 192), "shifted"),
    ],
)
@pytest.mark.parametrize(("stored", "name"), [("ffn_up", "up_proj"), ("attn_k", "k_proj")])
def test_blocks_of_a_gguf_file_that_have_a_part_of_others_are_one_setting(
    kind: str, part: slice, fault: str, stored: str, name: str, tmp_path: Path
) -> None:
    """Of keys, whose rows the file holds in another order than the base, too."""
    gguf = pytest.importorskip("gguf")
    base = save_wide(tmp_path / "base") if "_K" in kind else save_llama(tmp_path / "base")
    (port := tmp_path / "port").mkdir()
    save_quantised_gguf(base, kind, port / "m.gguf")
    for tensor in gguf.GGUFReader(port / "m.gguf", "r+").tensors:
        if stored in tensor.name:
            tensor.data[:, part] = np.roll(tensor.data[:, part], 1, axis=0)
            tensor.data.flush()
    candidate = model(port, gguf_file="m.gguf", tokenizer=str(base), dtype="float32")
    found = derive_settings(model(base), candidate)
    weighed = [one.name for one in found.variant.settings if one.name.startswith("weights.")]
    assert weighed[0] == f"weights.{name} (all 2, {fault})"


def test_a_rounding_alone_is_no_cause_of_a_gguf_file(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    (port := tmp_path / "port").mkdir()
    save_quantised_gguf(base, "Q8_0", port / "m.gguf")
    found = derive_settings(model(base), model(port, gguf_file="m.gguf", tokenizer=str(base)))
    assert not [one.name for one in found.variant.settings if "(" in one.name]
    tied = at_reference(found.variant)
    assert scores(tied, tmp_path) == scores(model(base), tmp_path), "its output layer too"
