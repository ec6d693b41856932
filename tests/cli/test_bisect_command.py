"""``evalguard bisect``: the guilty settings of real models, from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from edited_result import edit_result
from sample_run import SAMPLE
from small_world import SmallWorld


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--base", "a"), "--cand is missing"),
        (("--cand", "b"), "--base is missing"),
        (("--resume", "run", "--tasks", "t"), "goes on with the models and options of then"),
        (("--resume", "run", "--base", "a"), "not with --base"),
        (("--resume", "nowhere"), "cannot be read"),
        (("--base", "a", "--cand", "b", "--jobs", "0"), "--jobs"),
    ],
)
def test_what_makes_no_sense_is_refused(refused: Any, words: tuple[str, ...], message: str) -> None:
    assert message in refused(2, "bisect", *words).err


def test_it_does_not_go_on_from_a_damaged_result(refused: Any, tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "result.json", tmp_path)
    edit_result(tmp_path, lambda result: result["base"].pop("digest"))
    found = refused(3, "bisect", "--resume", tmp_path)
    assert "the stored result is damaged: base.digest is missing" in found.err
    assert str(tmp_path) in found.err


@pytest.mark.slow
def test_the_guilty_setting_is_named_and_the_bisection_can_be_gone_on_with(
    run: Any, world: SmallWorld, tmp_path: Path
) -> None:
    sides = ("--config", world.guard, "--base", "orig", "--cand", "sharp")
    stopped = run("bisect", *sides, "--budget", "0", "--json", "--quiet")
    assert stopped.code == 1
    found = stopped.document["bisect"]
    assert (found["status"], found["searches"][0]["ended"]) == ("stopped", "budget")
    folder = Path(stopped.document["run_folder"])
    resumed = run("bisect", "--resume", folder, "--budget", "9", "--json", "--quiet")
    assert resumed.code == 1
    answer = resumed.document["bisect"]
    assert [culprit["setting"] for culprit in answer["culprits"]] == ["gain"]
    assert answer["status"] == "minimal"
    assert answer["repaired"]["passed"]
    assert answer["proof"].endswith("--set gain=reference")
    assert json.loads((folder / "result.json").read_text())["bisect"] == answer


@pytest.mark.slow
def test_the_verdict_names_the_guilty_setting_where_the_gate_fails(
    run: Any, world: SmallWorld
) -> None:
    sides = ("--config", world.guard, "--base", "orig", "--cand", "sharp")
    ran = run("compare", *sides, "--bisect", "auto")
    assert ran.code == 1
    text = " ".join(ran.out.split())
    assert "Cause: gain" in text
    assert "left" in text.partition("Cause: gain")[2].partition("Next")[0]
    assert "bisecting sw_word perplexity" in ran.err
    assert "full evaluations for 1 to" in ran.err
    assert "culprit, on all documents: gain" in ran.err


@pytest.fixture
def loud(world: SmallWorld, tmp_path: Path) -> Path:
    """The tiny Llama with a last norm twice as large, and a first one hardly larger."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "loud"
    shutil.copytree(world.models["llama"], folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 2.0
    weights["model.layers.0.input_layernorm.weight"] *= 1.0001
    weights["model.layers.1.mlp.down_proj.weight"] *= 1.0001
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_without_a_guard_file_settings_are_derived_and_the_repair_is_a_guard_file(
    run: Any, world: SmallWorld, loud: Path
) -> None:
    sides = ("--base", world.models["llama"], "--cand", loud)
    tasks = ("--tasks", "sw_word", "--include_path", world.tasks)
    ran = run("bisect", *sides, *tasks, "--json", "--quiet")
    found = ran.document["bisect"]
    assert found["derived"]
    (guilty,) = found["culprits"]
    assert "norm" in guilty["setting"]
    assert found["repaired"]["passed"]
    repaired = Path(ran.document["run_folder"]) / "repaired.yaml"
    assert repaired.read_text() == found["fix"]
    proven = run(*found["proof"].split()[1:], "--quiet")
    assert proven.code == 0, proven.out + proven.err
