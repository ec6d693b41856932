"""Quantised candidates, and weights in GGUF files: at both ends the settings are the two models."""

from __future__ import annotations

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

UNCHANGED = "-"  # in the name of no tensor
# Ternary weights that transformers makes of plain ones, on a CPU too (Wang et al. 2023, BitNet).
_BITNET = {
    "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
def test_a_quantised_candidate_is_one_setting_and_both_ends_are_the_two_models(
    tmp_path: Path,
) -> None:
    base = save_llama(tmp_path / "base")
    config = {"quantization_config": _BITNET}
    quantised = changed(base, tmp_path / "quantised", config=config, only=UNCHANGED)
    found = derive_settings(model(base), model(quantised))
    assert [str(one.target) for one in found.variant.settings] == ["model_args.pretrained"]
    assert found.variant.settings[0].name == "quantization"
    assert found.complete
    (note,) = found.notes
    assert "weights are quantised, so a part of them cannot be exchanged" in note
    plain = scores(model(base), tmp_path)
    assert scores(at_reference(found.variant), tmp_path) == plain
    assert scores(found.variant, tmp_path) == scores(model(quantised), tmp_path) != plain


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
