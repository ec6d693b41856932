"""A figure of generated answers that fails is searched: which of eight settings makes it loop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import evalguard
from benchmarks.bisect_generations import SEED, local, served

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [0, 2], ids=["loops", "valid_json"])
def test_the_flag_that_spoils_5_of_15_answers_of_a_server_is_named(
    number: int, tmp_path: Path
) -> None:
    row = served(SEED, number, tmp_path)
    assert row.exact
    assert row.status == "minimal"
    assert row.share == pytest.approx(1 / 3)
    assert row.spent <= row.alone / 3


@pytest.mark.data
def test_of_sampled_answers_a_setting_is_compared_with_the_base_seed_by_seed(
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.bisect_generations.SHARED", shared_data)
    row = local(SEED, 0, tmp_path, repeats=2)
    assert row.exact
    assert row.status == "minimal"


@pytest.mark.data
@pytest.mark.parametrize("number", [1, 2], ids=["first_difference_beyond_ties", "loops"])
def test_the_setting_that_spoils_a_trained_models_texts_is_named_and_texts_end_early(
    number: int, tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.bisect_generations.SHARED", shared_data)
    row = local(SEED, number, tmp_path)
    assert row.exact
    assert row.unit == "tokens"
    assert row.spent <= row.alone / 3


@pytest.mark.data
def test_the_layer_that_makes_texts_differ_is_named_among_layers(
    tmp_path: Path, shared_data: Path
) -> None:
    model, figure = shared_data / "stories260K" / "hf", "first_difference_beyond_ties"
    guilty = "model.layers.3.self_attn.o_proj"
    generator = torch.Generator().manual_seed(5)
    weights = {
        name: one + 1e-5 * torch.randn(one.shape, generator=generator)
        for name, one in load_file(model / "model.safetensors").items()
    }
    damaged = weights[f"{guilty}.weight"]
    damaged += 1.5 * damaged.std() * torch.randn(damaged.shape, generator=generator)
    shutil.copytree(model, tmp_path / "port")
    save_file(weights, tmp_path / "port" / "model.safetensors", metadata={"format": "pt"})
    passages = (model.parent / "tinystories_lastword.jsonl").read_text().splitlines()[:24]
    begun = [" ".join(json.loads(line)["text"].split()[:16]) for line in passages]
    documents = tmp_path / "documents.jsonl"
    documents.write_text(
        "".join(json.dumps({"context": one, "target": ""}) + "\n" for one in begun)
    )
    task = {
        "task": "stories",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(documents)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{context}}",
        "doc_to_target": "{{target}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 32, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
    }
    (tmp_path / "stories.yaml").write_text(yaml.safe_dump(task))
    sides = {"orig": model.resolve(), "port": tmp_path / "port"}
    guard = {
        "models": {
            name: {"model_args": {"pretrained": str(folder), "dtype": "float32"}}
            for name, folder in sides.items()
        },
        "tasks": ["stories"],
        "include_path": [str(tmp_path)],
        "gate": {"metrics": {figure: "10%"}, "only": [figure]},
    }
    (tmp_path / "guard.yaml").write_text(yaml.safe_dump(guard))
    result = evalguard.bisect_settings(
        "orig", "port", config=tmp_path / "guard.yaml", cache_dir=tmp_path / "cache", device="cpu",
        threads=1, bisect_over="layers", write=False, quiet=True,
    )  # fmt: skip
    found = result.report.bisect
    assert found is not None, result.report.bisect_reason
    assert (found.status, [one.setting for one in found.culprits]) == ("minimal", [guilty])
