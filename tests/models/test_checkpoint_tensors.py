"""Tensors read from another checkpoint are bit for bit those that loading it gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save_architecture
from safetensors.torch import load_file, save_file
from tiny_models import save_llama
from transformers import AutoModelForCausalLM

from evalguard.errors import EvaluationError, SettingError
from evalguard.models.checkpoint_files import find_checkpoint_files
from evalguard.models.checkpoint_tensors import read_checkpoint_tensors


def loaded(folder: Path, **arguments: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, **arguments)


def perturbed(folder: Path, to: Path) -> Path:
    """A copy whose every stored tensor is another one."""
    shutil.copytree(folder, to)
    generator = torch.Generator().manual_seed(7)
    for file in to.glob("*.safetensors"):
        tensors = load_file(file)
        noisy = {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in tensors.items()}
        save_file(noisy, file, metadata={"format": "pt"})
    return to


def read(model: Any, folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    options = {"allow_pickle": False, **options}
    return read_checkpoint_tensors(model, str(folder), list(model.state_dict()), **options)


@pytest.mark.parametrize(
    "name",
    [
        "gpt2: learned positions",
        "mixtral: experts",  # stored one by one, stacked in the model
        "qwen3_5: gated delta rule",
        "falcon_h1: attention beside a state",
        "mamba: a state",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tensor_is_that_of_a_model_loaded_from_there(
    name: str, dtype: str, tmp_path: Path
) -> None:
    here = save_architecture(tmp_path / "here", name)
    there = perturbed(here, tmp_path / "there")
    model, other = loaded(here, dtype=dtype), loaded(there, dtype=dtype)
    found, wanted = read(model, there), other.state_dict()
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key


def test_only_what_is_wanted_is_read_though_it_lies_in_shards(tmp_path: Path) -> None:
    here = save_llama(tmp_path / "here")
    there = perturbed(here, tmp_path / "there")
    whole = loaded(there)
    (there / "model.safetensors").unlink()
    whole.save_pretrained(there, max_shard_size="20kB")
    shards = json.loads((there / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(shards.values())) > 2
    name = "model.layers.1.mlp.up_proj.weight"
    found = read_checkpoint_tensors(loaded(here), str(there), [name], allow_pickle=False)
    assert list(found) == [name]
    assert torch.equal(found[name], whole.state_dict()[name])
    (there / shards[name]).unlink()
    with pytest.raises(EvaluationError, match="which is not there"):
        read_checkpoint_tensors(loaded(here), str(there), [name], allow_pickle=False)


@pytest.mark.parametrize(("tied_here", "tied_there"), [(True, False), (False, True), (True, True)])
def test_a_tied_head_is_read_where_the_other_checkpoint_keeps_it(
    tied_here: bool, tied_there: bool, tmp_path: Path
) -> None:
    here = save_llama(tmp_path / "here", tied=tied_here)
    there = perturbed(save_llama(tmp_path / "plain", tied=tied_there), tmp_path / "there")
    found, wanted = read(loaded(here), there), loaded(there).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    same = found["lm_head.weight"] is found["model.embed_tokens.weight"]
    assert same == tied_there


def test_a_checkpoint_without_the_models_prefix_is_read(tmp_path: Path) -> None:
    here = save_llama(tmp_path / "here")
    there = perturbed(here, tmp_path / "there")
    wanted = loaded(there).state_dict()
    loaded(there).model.save_pretrained(there)
    assert not any(n.startswith("model.") for n in load_file(there / "model.safetensors"))
    found = read(loaded(here), there)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_other_shapes_are_refused_with_both(tmp_path: Path) -> None:
    here = save_llama(tmp_path / "here")
    there = save_llama(tmp_path / "there")
    tensors = load_file(there / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    save_file(tensors, there / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SettingError, match=r"other shapes for 1 of the weights") as raised:
        read(loaded(here), there)
    assert "model.norm.weight: [31] there, [32] here" in str(raised.value)


def test_missing_tensors_are_refused_with_the_nearest_name(tmp_path: Path) -> None:
    here = save_llama(tmp_path / "here")
    there = save_llama(tmp_path / "there")
    tensors = load_file(there / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, there / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SettingError, match=r"lacks 1 of the weights \(model.layers.1.mlp.up_proj"):
        read(loaded(here), there)


def test_pickled_weights_are_read_only_where_that_is_allowed(tmp_path: Path) -> None:
    here = save_llama(tmp_path / "here")
    there = perturbed(here, tmp_path / "there")
    wanted = loaded(there).state_dict()
    torch.save(load_file(there / "model.safetensors"), there / "pytorch_model.bin")
    (there / "model.safetensors").unlink()
    with pytest.raises(EvaluationError, match="pickled weights"):
        read(loaded(here), there)
    found = read(loaded(here), there, allow_pickle=True)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    here = save_llama(tmp_path / "here")
    there = Path(shutil.copytree(here, tmp_path / "there"))
    config = json.loads((there / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (there / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError, match=r"holds quantised weights \(fp8\)"):
        read(loaded(here), there)


def test_a_folder_without_weights_and_a_model_that_is_not_there_are_refused(tmp_path: Path) -> None:
    here = save_llama(tmp_path / "here")
    (here / "model.safetensors").unlink()
    with pytest.raises(EvaluationError, match="holds no weights that can be read"):
        find_checkpoint_files(str(here), allow_pickle=False)
    with pytest.raises(EvaluationError, match="checkpoint nobody/nothing cannot be had"):
        find_checkpoint_files("nobody/nothing", allow_pickle=False)


def test_a_model_of_another_library_is_refused() -> None:
    with pytest.raises(SettingError, match="weights of a Linear cannot be taken"):
        read_checkpoint_tensors(torch.nn.Linear(2, 2), "x", ["weight"], allow_pickle=False)
