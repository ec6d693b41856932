"""``compare --history`` keeps nights, and ``evalguard history`` shows them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from history_examples import keep_nights
from small_world import Ran, SmallWorld

Run = Callable[..., Ran]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.sqlite"


def shown(run: Run, *words: object) -> dict[str, object]:
    found = run("history", *words, "--json")
    assert found.code == 0, found.err
    return dict(json.loads(found.out))


def with_history(world: SmallWorld, history: object) -> str:
    """The small world's guard file, with a history."""
    return world.guard.read_text().replace("run: {", f"run: {{history: {history}, ")


def test_a_comparison_is_kept_when_asked_with_its_own_numbers(
    compare: Run, run: Run, file: Path
) -> None:
    results = [
        json.loads(compare("orig", name, "--history", file, "--json").out)
        for name in ("sharp", "same")
    ]
    listed = shown(run, "list", "--history", file)["runs"]
    for kept, result in zip(listed, results, strict=True):
        assert kept["candidate"] == result["candidate"]["name"]
        assert kept["candidate_digest"] == result["candidate"]["digest"]
        assert kept["exit_code"] == result["exit_code"]
        assert kept["folder"] == result["run_folder"]
        for metric, comparison in zip(kept["metrics"], result["comparisons"], strict=True):
            shared = metric.keys() & comparison.keys()
            assert {"sigma", "outcome", "base", "paired_stderr", "n"} <= shared
            assert {key: metric[key] for key in shared} == {key: comparison[key] for key in shared}


def test_nothing_is_kept_unasked(compare: Run, tmp_path: Path) -> None:
    compare("orig", "same")
    assert not list(tmp_path.rglob("*.sqlite"))


def test_the_guard_file_may_name_the_history(run: Run, world: SmallWorld, tmp_path: Path) -> None:
    guard = tmp_path / "evalguard.yaml"
    guard.write_text(with_history(world, "kept/nightly.sqlite"))
    pair = ("--base", "orig", "--cand", "same")
    assert run("compare", "--allow-code", *pair).code == 0
    assert run("compare", "--allow-code", *pair, "--history", "none").code == 0
    assert len(shown(run, "list")["runs"]) == 1
    assert (tmp_path / "kept" / "nightly.sqlite").exists()


def test_the_guard_file_may_say_that_there_is_none(
    run: Run, world: SmallWorld, tmp_path: Path
) -> None:
    (tmp_path / "evalguard.yaml").write_text(with_history(world, "none"))
    pair = ("--base", "orig", "--cand", "same")
    assert run("compare", "--allow-code", *pair).code == 0
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.rglob("*.sqlite"))


def test_a_guard_file_that_was_only_found_writes_into_its_own_folder_only(
    refused: Run, run: Run, world: SmallWorld, tmp_path: Path
) -> None:
    guard = tmp_path / "evalguard.yaml"
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere.sqlite"
    guard.write_text(with_history(world, elsewhere))
    pair = ("--base", "orig", "--cand", "same")
    assert "outside the folder" in refused(2, "history", "list").err
    assert not elsewhere.exists()
    assert run("compare", "--config", guard, *pair).code == 0
    assert elsewhere.exists()


def test_a_file_that_is_no_history_is_refused_before_anything_runs(
    refused_pair: Run, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine\n" * 300)
    found = refused_pair(2, "orig", "same", "--history", notes)
    assert "is not a history" in found.err
    assert not list(tmp_path.glob("reports/*"))
    assert notes.read_text() == "mine\n" * 300


def test_a_history_that_fails_in_the_end_costs_no_verdict(
    compare: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.nights import history_runs as keeping

    whole = keeping.prepare_history

    def then_removed(path: Path) -> None:
        whole(path)
        path.unlink()
        path.mkdir()

    monkeypatch.setattr("evalguard.nights.history_runs.prepare_history", then_removed)
    found = compare("orig", "sharp", "--history", file, "--json")
    assert found.code == 1
    told = [one for one in json.loads(found.out)["findings"] if one["kind"] == "not_stored"]
    assert any("this run is not in the history" in one["text"] for one in told)


def test_trend_flips_check_and_export_answer(run: Run, file: Path, tmp_path: Path) -> None:
    keep_nights(file, [0.1, 0.2, 0.1, 0.3])
    (trend,) = shown(run, "trend", "--history", file, "--last", 3)["trends"]
    assert [night["run"] for night in trend["nights"]] == [2, 3, 4]
    flips = shown(run, "flips", "1", "2026-01-03", "--history", file)
    assert (flips["first"]["run"], flips["second"]["run"]) == (1, 3)
    assert shown(run, "check", "--history", file)["check"]["whole"] is True
    shown(run, "export", tmp_path / "out", "--history", file)
    nights = pq.read_table(tmp_path / "out" / "nights.parquet")
    assert nights.column("sigma").to_pylist() == [0.1, 0.2, 0.1, 0.3]
    assert pq.read_table(tmp_path / "out" / "documents.parquet").num_rows == 4 * 40


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trend", "--cand", "prot"], "did you mean 'port'?"),
        (["trend", "--metric", "ac"], "did you mean 'acc'?"),
        (["flips", "latest", "4"], "are the same run"),
        (["flips", "latest~9"], "the pair has 4 runs"),
        (["flips", "yesterday"], "no run 'yesterday'"),
    ],
)
def test_names_that_are_not_there_are_answered(
    refused: Run, file: Path, words: list[str], said: str
) -> None:
    keep_nights(file, [0.1, 0.2, 0.1, 0.3])
    assert said in refused(2, "history", *words, "--history", file).err


def test_several_pairs_ask_for_one(refused: Run, run: Run, file: Path) -> None:
    keep_nights(file, [0.1, 0.2])
    keep_nights(file, [0.1, 0.2], candidate="other")
    found = refused(2, "history", "trend", "--history", file)
    assert "orig vs port, orig vs other" in found.err
    assert run("history", "trend", "--cand", "other", "--history", file).code == 0


def test_damage_is_found_and_named(run: Run, file: Path) -> None:
    keep_nights(file, [0.1, 0.2])
    with sqlite3.connect(file) as damaged:
        damaged.execute("UPDATE vectors SET content = substr(content, 1, length(content) - 1)")
    damaged.close()
    found = run("history", "check", "--history", file)
    assert found.code == 1
    assert "vector 1: it was changed or cut" in found.out
    flips = run("history", "flips", "--history", file)
    assert flips.code == 2
    assert "is damaged" in flips.err
    assert run("history", "trend", "--history", file).code == 0


def test_a_page_of_trends_of_which_nothing_could_be_read_is_exit_3(
    run: Run, file: Path, tmp_path: Path
) -> None:
    keep_nights(file, [0.1, 0.2])
    with sqlite3.connect(file) as damaged:
        damaged.execute("UPDATE metrics SET sigma = 0.0")
    damaged.close()
    page = tmp_path / "trend.html"
    assert run("history", "trend", "--history", file, "-o", page).code == 3
    assert page.exists()
    assert run("history", "trend", "--history", file).code == 3


def test_without_a_name_the_answer_says_how_to_give_one(refused: Run) -> None:
    assert "--history FILE" in refused(2, "history", "list").err


def waived(world: SmallWorld, until: str) -> str:
    accept = (
        "accept: [{task: sw_word, metric: perplexity, up_to: 1000, "
        f"until: {until}, reason: known since autumn}}]"
    )
    text = world.guard.read_text()
    return text.replace("cand: sharp}", f"cand: sharp, {accept}}}")


def test_a_waiver_lets_a_known_degradation_through_until_it_expires(
    run: Run, world: SmallWorld, tmp_path: Path, file: Path
) -> None:
    guard = tmp_path / "waived.yaml"
    words = ("compare", "--config", guard, "--base", "orig", "--cand", "sharp")
    guard.write_text(waived(world, "2999-12-31"))
    found = run(*words, "--history", file, "--json")
    result = json.loads(found.out)
    outcomes = {one["metric"]: one["outcome"] for one in result["comparisons"]}
    assert outcomes["perplexity"] == "regressed"
    assert (found.code, result["gate"]["passed"]) == (0, True)
    (accepted,) = result["gate"]["accepted"]
    assert (accepted["metric"], accepted["until"]) == ("perplexity", "2999-12-31")
    assert "waived.yaml:" in accepted["where"]
    text = " ".join(run(*words).out.split())
    assert "accepted: sw_word perplexity, up to 1000 sigma until 2999-12-31" in text
    (kept,) = shown(run, "list", "--history", file)["runs"]
    assert kept["metrics"][0]["accepted"] == "until 2999-12-31: known since autumn"
    guard.write_text(waived(world, "2000-01-01"))
    found = run(*words)
    assert found.code == 1
    assert "EXPIRED on 2000-01-01" in " ".join(found.out.split())


def test_a_waiver_until_no_day_is_a_problem_of_the_guard_file(
    refused: Run, world: SmallWorld, tmp_path: Path
) -> None:
    guard = tmp_path / "waived.yaml"
    guard.write_text(waived(world, "2026-02-30"))
    found = refused(2, "models", "--config", guard)
    assert "there is no day 2026-02-30" in found.err
