"""``evalguard plan`` as a user meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lmeval_output import run_lm_eval


def plan_words(world: Any, candidate: str = "sharp") -> tuple[object, ...]:
    return ("plan", "--config", world.guard, "--base", "orig", "--cand", candidate)


def test_plan_prints_drift_documents_time_and_tokens(run: Any, world: Any) -> None:
    ran = run(*plan_words(world), "--tasks", "sw_long,sw_choice,sw_mcc", "--pilot", "16", "-v")
    assert ran.code == 0, ran.err
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert "Pilot: 16 documents of each task, drawn at random (seed 1234)." in ran.out
    assert "sw_long · 300 documents" in ran.out
    for words in ("drift seen, sigma", "to see 1.0 sigma", "tokens", "alpha = 0.025", "in all"):
        assert words in ran.out
    assert "not planned: sw_mcc mcc" in ran.out
    assert ran.out.startswith("Too few documents")
    assert not Path("reports").exists()


def test_plan_as_json_is_one_document(run: Any, world: Any) -> None:
    words = ("--pilot", "8", "--margin", "2", "--confidence", "0.9", "--power", "0.9", "--json")
    ran = run(*plan_words(world), *words)
    assert ran.code == 0, ran.err
    document = ran.document
    assert document["schema"] == "evalguard.plan/1"
    assert document["aim"] == pytest.approx(
        {"margin": 2.0, "alpha": 0.05, "power": 0.9, "confidence": 0.9}
    )
    assert document["command"].startswith("evalguard plan ")
    assert document["exit_code"] == 0


def test_plan_needs_both_models_or_a_run(refused: Any) -> None:
    assert "missing option '--cand'" in refused(2, "plan", "--base", "a").err
    ran = refused(2, "plan")
    assert "missing option '--base'" in ran.err
    assert "--run" in ran.err


def test_a_file_of_a_bases_answers_is_no_model_to_score_a_sample_with(
    refused: Any, tmp_path: Path
) -> None:
    file = tmp_path / "base.parquet"
    file.write_bytes(b"PAR1")
    ran = refused(2, "plan", "--base", str(file), "--cand", "a")
    assert f"--base {file} is a file of a base's answers" in ran.err
    assert "name the model: --base MODEL" in ran.err
    assert "--run FOLDER" in ran.err


def test_plan_from_a_run_folder(run: Any, compare: Any) -> None:
    compare("orig", "sharp")
    folder = next(Path("reports").iterdir())
    ran = run("plan", "--run", folder, "--margin", "0.5", "-v")
    assert ran.code == 0, ran.err
    assert f"Pilot: the stored run {folder}." in ran.out
    assert "what the next run costs is not known" in " ".join(ran.out.split())
    assert "to see 0.5 sigma" in ran.out


@pytest.fixture(scope="module")
def lm_eval_runs(world: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    names = ("llama", "other")
    base, other = (
        run_lm_eval(folder / name, world.models[name], world.tasks, ["sw_word"]) for name in names
    )
    return base, other


def test_finished_lm_eval_runs_are_a_pilot_of_all_their_documents(
    run: Any, lm_eval_runs: tuple[Path, Path]
) -> None:
    base, other = lm_eval_runs
    ran = run("plan", "--base", base, "--cand", other)
    assert ran.code == 0, ran.err
    assert "Pilot: all documents of the two lm-eval runs." in ran.out
    assert "sw_word · 24 documents" in ran.out
    assert "tokens" not in ran.out


def test_finished_lm_eval_runs_are_planned_by_their_clusters(
    run: Any, world: Any, lm_eval_runs: tuple[Path, Path]
) -> None:
    base, other = lm_eval_runs
    alone, clustered = (
        run("plan", "--base", base, "--cand", other, "--json", *words)
        for words in ((), ("--config", world.saying(more="clusters: {sw_word: last}")))
    )
    assert clustered.code == 0, clustered.err
    assert "as independent" not in clustered.out
    metrics = [ran.document["metrics"][0] for ran in (alone, clustered)]
    assert metrics[0]["scatter_ratio"] != metrics[1]["scatter_ratio"]
    assert metrics[1]["needed_to_detect"] > metrics[1]["pilot_n"]


def test_beside_a_finished_run_only_the_model_scores_the_pilot(
    run: Any, world: Any, lm_eval_runs: tuple[Path, Path]
) -> None:
    words = ("--config", world.guard, "--base", lm_eval_runs[0], "--pilot", "12", "--json")
    ran = run("plan", *words, "--cand", "other")
    assert ran.code == 0, ran.err
    metric = ran.document["metrics"][0]
    assert (metric["metric"], metric["pilot_n"], metric["n"]) == ("perplexity", 12, 24)
    assert metric["reason"] == ""
    assert {cost["role"] for cost in ran.document["costs"]} == {"candidate"}


def test_options_without_effect_on_a_stored_run_are_refused(refused: Any) -> None:
    ran = refused(2, "plan", "--run", "reports/x", "--base", "a", "--pilot", "32")
    assert "--base, --pilot would have no effect" in ran.err


def test_plan_of_a_failed_pilot_exits_with_3_and_says_why(run: Any, world: Any) -> None:
    ran = run(*plan_words(world, "not-a-number"), "--pilot", "8")
    assert ran.code == 3
    assert "no plan: " in ran.out
    assert "NaN" in ran.out
    assert "Nothing can be planned from this pilot." in ran.out


def test_plan_help_names_what_counts(run: Any) -> None:
    text = " ".join(run("plan", "--help").out.split())
    for words in ("--pilot", "--power", "--run", "--margin", "before anything long runs"):
        assert words in text
    for words in ("--fail-on", "--no-cache", "--output-path", "--verify-scorer"):
        assert words not in text
