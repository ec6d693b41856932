"""``bisect --base RUN``: the guilty settings, where of the base only its scores are at hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lmeval_output import run_lm_eval
from small_world import Ran, SmallWorld

import evalguard

Run = Callable[..., Ran]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "nights.sqlite"


@pytest.fixture
def made(compare: Run, history: Path) -> str:
    """Run folder of a comparison whose base is taken."""
    found = compare("orig", "soft", "--tasks", "sw_word", "--history", history, "--json")
    return str(found.document["run_folder"])


@pytest.fixture
def searched(run: Run, world: SmallWorld) -> Run:
    def ran(baseline: object, *words: object) -> Ran:
        sides = ("--config", world.guard, "--base", baseline, "--cand", "sharp")
        return run("bisect", *sides, "--tasks", "sw_word", *words, "--json", "--quiet")

    return ran


@pytest.mark.slow
def test_a_stored_base_gives_the_culprits_that_its_model_gives(
    searched: Run, run: Run, world: SmallWorld, made: str, history: Path
) -> None:
    with_model = run("bisect", "--config", world.guard, "--base", "orig", "--cand", "sharp",
                     "--tasks", "sw_word", "--json", "--quiet").document["bisect"]  # fmt: skip
    assert [one["setting"] for one in with_model["culprits"]] == ["gain"]
    for baseline in (made, history):
        found = searched(baseline).document["bisect"]
        assert found["culprits"] == with_model["culprits"]
        assert found["status"] == "minimal"
        assert found["repaired"]["passed"]
        proven = run(*found["proof"].split()[1:], "--quiet")
        assert f"--base {baseline}" in found["proof"]
        assert proven.code == 0, proven.out + proven.err


@pytest.mark.slow
def test_it_goes_on_from_where_it_stopped_with_the_stored_base_of_then(
    searched: Run, run: Run, made: str, history: Path
) -> None:
    # Its own run is the latest of the history by then.
    for words in ((made,), (history, "--history", history)):
        stopped = searched(*words, "--budget", "0").document
        assert stopped["bisect"]["searches"][0]["ended"] == "budget"
        resume = ("bisect", "--resume", stopped["run_folder"], "--budget", "9", "--json", "--quiet")
        found = run(*resume).document["bisect"]
        assert [one["setting"] for one in found["culprits"]] == ["gain"]


@pytest.mark.slow
def test_from_python_the_proof_names_the_stored_base_and_no_model(
    world: SmallWorld, made: str
) -> None:
    fields = {"config": world.guard, "quiet": True, "tasks": ["sw_word"]}
    found = evalguard.bisect_settings(made, "sharp", **fields).report.bisect
    assert found is not None
    assert f"--base {made}" in found.proof


@pytest.mark.slow
def test_another_base_of_the_same_name_is_refused_when_it_goes_on(
    searched: Run, refused: Run, compare: Run, made: str
) -> None:
    stopped = searched(made, "--budget", "0").document
    other = compare("same", "soft", "--tasks", "sw_word", "--limit", 12, "--json").document
    shutil.rmtree(made)
    shutil.copytree(other["run_folder"], made)
    assert "12 documents" in refused(3, "bisect", "--resume", stopped["run_folder"]).err
    shutil.rmtree(made)
    gone = refused(2, "bisect", "--resume", stopped["run_folder"]).err
    assert f"there is no folder {made}" in gone


@pytest.mark.parametrize(
    ("candidate", "words", "said"),
    [
        ("other", (), "declares no settings, and they can be derived from two models only: orig "
                      "is a stored base, without its model"),
        ("sharp", ("--set", "gain=reference", "--set", "eps=reference"),
         "stands at its reference value"),
    ],
)  # fmt: skip
def test_where_there_is_nothing_to_search_that_is_said_before_a_model_is_loaded(
    refused: Run, world: SmallWorld, made: str, unloaded: None, candidate: str, words: Any,
    said: str,
) -> None:  # fmt: skip
    sides = ("--config", world.guard, "--base", made, "--cand", candidate)
    found = refused(2, "bisect", *sides, *words)
    assert said in found.err
    assert "hint: " in found.err


def test_a_finished_run_has_no_settings_to_search(
    refused: Run, world: SmallWorld, tmp_path: Path
) -> None:
    finished = run_lm_eval(tmp_path / "out", world.models["llama"], world.tasks, ["sw_word"])
    sides = ("--config", world.guard, "--base", "orig", "--cand", finished)
    assert "it cannot be run with other settings" in refused(2, "bisect", *sides).err


def test_what_compare_refuses_of_a_stored_base_bisect_refuses(
    refused: Run, world: SmallWorld, made: str, unloaded: None
) -> None:
    sides = ("--config", world.guard, "--base", made, "--cand", "sharp")
    assert "run both with the same --limit" in refused(3, "bisect", *sides, "--limit", 10).err
    assert "no scores of sw_long" in refused(2, "bisect", *sides, "--tasks", "sw_long").err
    assert "no model is loaded" in refused(2, "bisect", *sides, "--base-set", "gain=1").err
    assert "not with --base" in refused(2, "bisect", "--resume", made, "--base", made).err


def test_a_failed_comparison_leads_to_the_bisection_against_the_same_stored_base(
    run: Run, world: SmallWorld, made: str
) -> None:
    sides = ("--config", world.guard, "--base", made, "--cand", "sharp", "--tasks", "sw_word")
    found = run("compare", *sides, "--bisect", "never")
    assert found.code == 1
    text = " ".join(found.out.replace("\\\n", " ").split())
    assert "to name the culprits: " in text
    command = text.partition("name the culprits: ")[2]
    assert command.startswith("evalguard bisect --config ")
    assert f"--base {made} --cand sharp --tasks sw_word" in command
    assert "--bisect" not in command.removeprefix("evalguard bisect")


def test_without_declared_settings_nothing_leads_to_a_bisection_that_cannot_be(
    run: Run, world: SmallWorld, made: str
) -> None:
    better = ("--base", f"{made}:soft")
    sides = ("--config", world.guard, *better, "--cand", "orig", "--tasks", "sw_word")
    found = json.loads(run("compare", *sides, "--bisect", "auto", "--json", "--margin", 0.1).out)
    assert found["gate"]["state"] == "regressed"
    assert "derived from two models only" in found["bisect_reason"]
    assert "evalguard bisect" not in found["bisect_reason"]
