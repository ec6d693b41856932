"""Two folders without a guard file: what differs is found, and who is guilty named to the layer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import evalguard
from benchmarks.bisect_knobs import perturbed
from benchmarks.sampled_models import TASK, Sampled, sampled

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    return sampled("hybrid", tmp_path_factory.mktemp("hybrid"), documents=320, seed=11)


def converted(place: Sampled, folder: Path, *, rope_theta: float) -> Path:
    """A port with all its MLPs rounded to bfloat16, layer 2's damaged, and a config of its own."""
    shutil.copytree(perturbed(place.model, 0.4, layer=2), folder)
    weights = load_file(folder / "model.safetensors")
    rounded = {
        name: weight.to(torch.bfloat16).to(torch.float32) if ".mlp." in name else weight
        for name, weight in weights.items()
    }
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 1.01e-6
    config["rope_parameters"]["rope_theta"] = rope_theta
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def bisected(base: Path, candidate: Path, place: Sampled, cache: Path) -> evalguard.CompareResult:
    return evalguard.bisect_settings(
        base, candidate, tasks=[TASK], include_path=place.tasks, device="cpu", threads=1,
        cache_dir=cache, write=False, quiet=True,
    )  # fmt: skip


@pytest.mark.nightly
def test_a_damaged_layer_and_a_wrong_rotary_base_are_named_and_nothing_else(
    place: Sampled, tmp_path: Path
) -> None:
    port = converted(place, tmp_path / "port", rope_theta=2.0)
    result = bisected(place.model, port, place, tmp_path / "cache")
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert found.derived
    assert found.status == "minimal"
    guilty = {culprit.target for culprit in found.culprits}
    assert "config.rope_parameters.rope_theta" in guilty
    weights = guilty - {"config.rope_parameters.rope_theta"}
    assert weights
    assert all(one.startswith("weights:model.layers.2.mlp") for one in weights)


def test_a_tokenizer_that_lost_its_bos_is_named_without_declaring_it(
    place: Sampled, tmp_path: Path
) -> None:
    port = tmp_path / "port"
    shutil.copytree(place.model, port)
    tokenizer = json.loads((port / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (port / "tokenizer.json").write_text(json.dumps(tokenizer))
    result = bisected(place.model, port, place, tmp_path / "cache")
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert [culprit.setting for culprit in found.culprits] == ["add_bos_token"]
    assert found.repaired is not None
    assert found.repaired.passed


@pytest.mark.nightly
def test_one_layer_from_another_checkpoint_is_named_and_its_guilty_part(
    place: Sampled, tmp_path: Path
) -> None:
    port, other = tmp_path / "port", perturbed(place.model, 0.6, layer=1)
    shutil.copytree(other, port)
    weights = load_file(port / "model.safetensors")
    norms = [n for n in weights if ".layers.1." in n and n.endswith("layernorm.weight")]
    rounding = {name: weights[name] + 2.0**-12 for name in norms}
    save_file({**weights, **rounding}, port / "model.safetensors", metadata={"format": "pt"})
    found = bisected(place.model, port, place, tmp_path / "cache").report.bisect
    assert found is not None
    # What was added to the norms is a mistake of its own, and no part of the other one.
    norms_moved, damaged = found.searches[0].settings
    assert norms_moved.startswith("weights.input_layernorm, post_attention_layernorm (layer 1, ")
    assert damaged == "weights.layers.1.mlp"
    assert found.culprits
    assert all(".layers.1.mlp" in culprit.setting for culprit in found.culprits)


def test_one_tensor_of_one_layer_is_named_among_weights_that_are_all_rounded(
    place: Sampled, tmp_path: Path
) -> None:
    port, guilty = tmp_path / "port", "model.layers.2.mlp.up_proj"
    shutil.copytree(place.model, port)
    weights = load_file(port / "model.safetensors")
    rounded = {name: one.to(torch.bfloat16).to(torch.float32) for name, one in weights.items()}
    noise = torch.randn(
        weights[f"{guilty}.weight"].shape, generator=torch.Generator().manual_seed(4)
    )
    rounded[f"{guilty}.weight"] += weights[f"{guilty}.weight"].std() * noise
    save_file(rounded, port / "model.safetensors", metadata={"format": "pt"})
    found = bisected(place.model, port, place, tmp_path / "cache").report.bisect
    assert found is not None
    assert [culprit.setting for culprit in found.culprits] == [f"weights.{guilty}"]
    (search,) = found.searches
    assert len(search.settings) == 2
    assert "rounded to bf16" in search.settings[0]
    assert found.repaired is not None
    assert found.repaired.passed


def test_the_same_folder_twice_has_no_settings_to_search(place: Sampled, tmp_path: Path) -> None:
    same = tmp_path / "same"
    shutil.copytree(place.model, same)
    result = bisected(place.model, same, place, tmp_path / "cache")
    assert result.report.bisect is None or not result.report.bisect.culprits
