"""A run that lm-eval saved, read back: the same tables as scoring through the harness."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_tasks import N, answers

from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.errors import MisalignedRunsError
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun, is_lmeval_run, read_run
from evalguard.harness.score_tables import score_tables
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks

Rewrite = Callable[[Path, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]], None]
TASKS = ("eg_lastword", "eg_rolling", "eg_choice", "eg_generate", "eg_custom")


def by_key(run: LmEvalRun) -> dict[tuple[str, str, str], ScoreTable]:
    return {table.key: table for table in run.tables}


def assert_same_tables(one: LmEvalRun, other: LmEvalRun) -> None:
    assert list(by_key(one)) == list(by_key(other))
    for table, again in zip(one.tables, other.tables, strict=True):
        np.testing.assert_array_equal(table.doc_ids, again.doc_ids)
        np.testing.assert_array_equal(table.values, again.values)
        assert table.doc_hashes == again.doc_hashes


def test_stored_run_gives_the_tables_of_the_harness(finished: Path, run_tasks: Path) -> None:
    stored = by_key(read_run(finished))
    tasks = load_tasks(TASKS, options=TaskOptions(include_paths=(run_tasks,)))
    compared = 0
    for task in TASKS:
        requests = tasks.requests(task)
        for table in score_tables(requests, answers(requests.requests)).tables:
            if table.metric == "half":  # the task's own function is not in a stored run
                continue
            found = stored[table.key]
            np.testing.assert_array_equal(found.values, table.values)
            np.testing.assert_array_equal(found.doc_ids, table.doc_ids)
            if table.weights is not None:
                np.testing.assert_array_equal(found.weights, table.weights)
            if table.rescoring is not None:
                assert found.rescoring.items == table.rescoring.items
                rows = np.arange(table.n)
                assert found.rescoring.metric(rows) == table.rescoring.metric(rows)
            for name in ("aggregation", "higher_is_better", "doc_hashes", "prompt_hashes"):
                assert getattr(found, name) == getattr(table, name), (table.key, name)
            for name in ("target_hashes", "asked_hashes", "n_total", "run", "answers"):
                assert getattr(found, name) == getattr(table, name), (table.key, name)
            assert all(found.asked_hashes)
            assert found.token_hashes == ()
            compared += 1
    assert compared == len(stored) == 13


def test_stored_run_tells_what_it_is(finished: Path) -> None:
    run = read_run(finished)
    assert run.model_name == "org/m"
    assert run.model_args == {"pretrained": "org/m", "dtype": "float32"}
    assert run.path.name == f"results_{run.date}.json"
    assert run.notes == ()
    assert run.environment["batch_size"] == 4
    assert run.environment["lm_eval_version"] == "0.4.13"
    content = json.loads(run.path.read_text())["results"]["eg_lastword"]
    value, stderr = run.reported["eg_lastword", "none", "perplexity"]
    assert value == content["perplexity,none"]
    assert stderr == content["perplexity_stderr,none"]
    assert run.reported["eg_rolling", "none", "word_perplexity"][1] is None
    assert all(table.source == str(finished) for table in run.tables)


def test_aggregations_of_a_task_s_own_are_left_out_with_a_reason(finished: Path) -> None:
    reasons = {(n.task, n.metric): n.reason for n in read_run(finished).not_compared}
    assert set(reasons) == {("eg_custom", "half")}
    assert "'midpoint' is a function of the task" in reasons["eg_custom", "half"]


def test_folder_model_folder_and_results_file_mean_the_same_run(finished: Path) -> None:
    whole = read_run(finished)
    assert_same_tables(whole, read_run(whole.path.parent))
    assert_same_tables(whole, read_run(whole.path))


def test_output_path_with_a_json_name_is_read(
    evaluate: Any, finished: Path, tmp_path: Path
) -> None:
    results = evaluate(tmp_path / "mine.json", ["eg_lastword", "eg_generate"])
    assert results.name.startswith("mine_20")
    for path in (results, tmp_path):
        assert is_lmeval_run(path)
        assert_same_tables(read_run(path), read_run(finished, tasks=["eg_lastword", "eg_generate"]))


def test_chosen_tasks_groups_and_wildcards(evaluate: Any, tmp_path: Path) -> None:
    run = evaluate(tmp_path / "out", ["eg_group", "eg_rolling"])
    assert {table.task for table in read_run(run).tables} == {
        "eg_lastword",
        "eg_choice",
        "eg_rolling",
    }
    of_group = read_run(run, tasks=["eg_group"])
    assert {table.task for table in of_group.tables} == {"eg_lastword", "eg_choice"}
    assert {table.task for table in read_run(run, tasks=["eg_r*"]).tables} == {"eg_rolling"}


def test_newest_of_several_dates_is_read_and_said(evaluate: Any, tmp_path: Path) -> None:
    older = evaluate(tmp_path / "out", ["eg_lastword"], limit=5)
    first = read_run(older)
    assert first.tables[0].n == 5
    evaluate(tmp_path / "out", ["eg_lastword"])
    both = read_run(tmp_path / "out")
    assert both.tables[0].n == N
    assert both.date > first.date
    (found,) = both.findings
    assert found.text.startswith("of 2 runs in ")
    assert both.path.name in found.text
    assert first.date in found.text
    assert_same_tables(read_run(first.path), first)


def test_limit_and_fewshot_seed_are_part_of_the_run(evaluate: Any, tmp_path: Path) -> None:
    run = evaluate(tmp_path / "out", ["eg_choice"], limit=5, fewshot_random_seed=9)
    assert read_run(run).tables[0].run == {
        "num_fewshot": 2,
        "fewshot_seed": 9,
        "limit": 5,
        "task_version": 3.0,
        "output_type": "multiple_choice",
    }


@pytest.mark.parametrize("seed", range(5))
def test_order_of_the_lines_changes_nothing(
    copied: Path, finished: Path, rewrite: Any, seed: int
) -> None:
    def shuffle(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        random.Random(seed).shuffle(rows)
        return rows

    for path in copied.glob("samples_*.jsonl"):
        rewrite(path, shuffle)
    shuffled, whole = by_key(read_run(copied)), by_key(read_run(finished))
    assert set(shuffled) == set(whole)
    for key, table in shuffled.items():
        assert (np.diff(table.doc_ids) > 0).all()
        np.testing.assert_array_equal(table.values, whole[key].values)
        assert table.prompt_hashes == whole[key].prompt_hashes


def test_samples_before_0_4_8_name_neither_filter_nor_metrics(
    copied: Path, finished: Path, rewrite: Any
) -> None:
    def older(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k not in ("filter", "metrics")} for row in rows]

    for path in copied.glob("samples_*.jsonl"):
        rewrite(path, older)
    assert_same_tables(read_run(copied), read_run(finished))


def test_line_separators_inside_a_document_do_not_cut_its_line(
    copied: Path, finished: Path, rewrite: Any
) -> None:
    (path,) = copied.glob("samples_eg_lastword_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().split("\n") if line]
    rows[0]["doc"] = {"text": "one\u2028two\x85three"}
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert_same_tables(read_run(copied), read_run(finished))


def test_undated_names_are_read(copied: Path, finished: Path) -> None:
    for path in list(copied.iterdir()):
        head, _, tail = path.name.rpartition("_")
        path.rename(copied / (head + Path(tail).suffix))
    assert (copied / "results.json").exists()
    assert is_lmeval_run(copied)
    run = read_run(copied)
    assert_same_tables(run, read_run(finished))
    assert run.date.startswith("20")


def test_answers_worded_differently_are_seen_though_lm_evals_hashes_agree(
    copied: Path, finished: Path, rewrite: Rewrite
) -> None:
    def reworded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows[:3]:
            row["arguments"]["gen_args_1"]["arg_1"] += "!"
        return rows

    rewrite(next(copied.glob("samples_eg_choice_*")), reworded)
    key = ("eg_choice", "none", "acc")
    with pytest.raises(MisalignedRunsError, match=r"requests .* differ in 3 of \d+ documents"):
        pair(by_key(read_run(finished))[key], by_key(read_run(copied))[key])


def test_samples_of_older_layouts_say_what_was_asked_too(copied: Path, rewrite: Rewrite) -> None:
    def listed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            row["arguments"] = [list(asked.values()) for asked in row["arguments"].values()]
        return rows

    before = by_key(read_run(copied))
    for path in copied.glob("samples_*"):
        rewrite(path, listed)
    for key, table in by_key(read_run(copied)).items():
        assert table.asked_hashes == before[key].asked_hashes
