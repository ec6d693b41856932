"""``history add`` and ``history prune``."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from history_examples import METRIC, documents, keep_nights, night
from small_world import Ran, SmallWorld

from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_questions import check_history

Run = Callable[..., Ran]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.sqlite"


def test_a_finished_run_put_in_later_is_as_if_it_had_been_kept_at_once(
    compare: Run, run: Run, file: Path, tmp_path: Path
) -> None:
    later = tmp_path / "later.sqlite"
    words = ("--tasks", "sw_word,sw_choice,sw_text", "--history", file, "--json")
    made = json.loads(compare("orig", "sharp", *words).out)
    found = run("history", "add", made["run_folder"], "--history", later)
    assert (found.code, "run 1, orig vs sharp" in " ".join(found.out.split())) == (0, True)
    with HistoryFile(file) as one, HistoryFile(later) as other:
        assert one.runs() == other.runs()
        assert one.metrics(1) == other.metrics(1)
        for metric in one.metrics(1):
            kept, added = (h.documents([1], metric.key, hashes=True)[1] for h in (one, other))
            assert np.array_equal(kept.candidate, added.candidate)
            assert np.array_equal(kept.base, added.base)
            assert kept.hashes == added.hashes
            assert kept.hashes is not None
            assert all(kept.hashes.token_hashes)


def test_a_run_is_not_put_in_twice(compare: Run, refused: Run, file: Path) -> None:
    made = json.loads(compare("orig", "same", "--history", file, "--json").out)
    assert (
        "has this run already: it is run 1"
        in refused(2, "history", "add", made["run_folder"], "--history", file).err
    )


def test_what_is_no_run_folder_is_not_put_in(refused: Run, file: Path, tmp_path: Path) -> None:
    assert "cannot be read" in refused(2, "history", "add", tmp_path, "--history", file).err
    assert not file.exists()


def test_pruning_keeps_the_latest_nights_of_every_pair(run: Run, file: Path) -> None:
    keep_nights(file, [0.1, 0.2, 0.3, 0.4])
    keep_nights(file, [0.1, 0.2], candidate="other")
    words = ("history", "prune", "--keep-nights", 2, "--history", file, "--json")
    dry = json.loads(run(*words, "--dry-run").out)["prune"]
    assert [one["run"] for one in dry["removed"]] == [1, 2]
    assert len(json.loads(run("history", "list", "--history", file, "--json").out)["runs"]) == 6
    found = json.loads(run(*words).out)["prune"]
    assert (found["kept"], found["dry_run"]) == (4, False)
    listed = json.loads(run("history", "list", "--history", file, "--json").out)["runs"]
    assert sorted(one["run"] for one in listed) == [3, 4, 5, 6]
    assert check_history(file).problems == ()


def test_pruning_by_days_keeps_what_is_younger(run: Run, file: Path) -> None:
    keep_nights(file, [0.1, 0.2])  # of January 2026
    assert (
        "Nothing to remove" in run("history", "prune", "--keep-days", 36500, "--history", file).out
    )
    assert "2 of 2 runs removed" in run("history", "prune", "--keep-days", 1, "--history", file).out


def test_one_run_is_spoken_of_as_one(run: Run, file: Path) -> None:
    keep_nights(file, [0.1])
    words = ("history", "prune", "--history", file)
    dry = run(*words, "--keep-days", 1, "--dry-run").out
    assert "1 of 1 run would be removed: run 1 of 2026-" in dry
    assert "from" not in dry
    assert "the only run is kept" in run(*words, "--keep-nights", 1).out
    run(*words, "--keep-days", 1)
    assert "there are no runs" in run(*words, "--keep-days", 1).out


def test_what_either_rule_keeps_stays(run: Run, file: Path) -> None:
    keep_nights(file, [0.1, 0.2])
    words = ("--keep-days", 1, "--keep-nights", 1)
    assert "1 of 2 runs removed" in run("history", "prune", *words, "--history", file).out


def test_pruning_gives_the_room_back_and_keeps_what_other_runs_need(run: Run, file: Path) -> None:
    rng = np.random.default_rng(5)
    base = rng.normal(size=3000)
    candidates = [base + 1e-7 * rng.normal(size=3000) for _ in range(12)]
    with HistoryFile(file, create=True) as history:
        for day, candidate in enumerate(candidates):
            scores = documents(candidate, base)
            history.add(night(day), [StoredMetric(metric=METRIC, documents=scores)], {})
    assert run("history", "prune", "--keep-nights", 2, "--history", file).code == 0
    with HistoryFile(file) as history:
        kept = history.documents([11, 12], METRIC.key)
        assert np.array_equal(kept[12].candidate, candidates[11])
        assert np.array_equal(kept[11].base, base)
    with sqlite3.connect(file) as connection:  # doc_ids, prints, base, two candidates
        assert connection.execute("SELECT count(*) FROM vectors").fetchone() == (5,)
    connection.close()
    assert file.stat().st_size < 200_000


def test_pruning_without_a_rule_is_refused(refused: Run, file: Path) -> None:
    keep_nights(file, [0.1])
    assert "--keep-days" in refused(2, "history", "prune", "--history", file).err


@pytest.mark.slow
def test_a_bisection_is_kept_in_a_history_too(run: Run, world: SmallWorld, file: Path) -> None:
    words = ("--config", world.guard, "--base", "orig", "--cand", "sharp", "--history", file)
    assert run("bisect", *words, "--budget", 0).code == 1
    assert len(json.loads(run("history", "list", "--history", file, "--json").out)["runs"]) == 1
