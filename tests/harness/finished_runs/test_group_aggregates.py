"""Aggregates of groups are lm-eval's own, for models scored here and for finished runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grouped_tasks import SIZES
from local_tasks import answers

from evalguard.comparison.table_comparisons import (
    add_aggregates,
    compare_by_document,
    list_missing_aggregates,
)
from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.core.scores import ScoreTable, TaskGroup
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun, read_run
from evalguard.harness.finished_runs.results_file import Results, stored_groups
from evalguard.harness.score_tables import score_tables
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks

Side = tuple[Sequence[ScoreTable], Sequence[TaskGroup]]
GATE = Gate()


@pytest.fixture(scope="module")
def runs(evaluate: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("grouped")
    return {m: evaluate(folder / m, ["gr_all", "eg_group"], model=m) for m in ("m", "n")}


@pytest.fixture(scope="module")
def theirs(runs: dict[str, Path]) -> dict[str, Any]:
    return {m: json.loads(read_run(path).path.read_text()) for m, path in runs.items()}


def scored(folder: Path, model: str, names: Sequence[str]) -> Side:
    tasks = load_tasks(names, options=TaskOptions(include_paths=(folder,)))
    tables: list[ScoreTable] = []
    for name in tasks.names:
        requests = tasks.requests(name)
        tables += score_tables(requests, answers(requests.requests, model=model)).tables
    return tables, tasks.aggregates


def stored(run: LmEvalRun) -> Side:
    return run.tables, run.groups


def compared(base: Side, candidate: Side, **options: Any) -> dict[tuple[str, str], Comparison]:
    found = add_aggregates(
        # the made-up models hash their own name into the token ids
        compare_by_document(
            base[0], candidate[0], gate=GATE, allow=frozenset({"tokens", "reading"})
        ),
        (base[1], candidate[1]),
        left_out=options.get("left_out", ()),
        gate=GATE,
    )
    return {(one.comparison.task, one.comparison.metric): one.comparison for one in found}


@pytest.mark.parametrize("how", ["models", "stored runs", "a model beside a run"])
def test_values_and_standard_errors_equal_those_of_lm_eval(
    how: str, run_tasks: Path, runs: dict[str, Path], theirs: dict[str, Any]
) -> None:
    names = ["gr_all", "eg_group"]
    sides = [
        stored(read_run(runs[m]))
        if how == "stored runs" or (how == "a model beside a run" and m == "m")
        else scored(run_tasks, m, names)
        for m in ("m", "n")
    ]
    found = compared(*sides)
    aggregates = {key for key, comparison in found.items() if comparison.subtasks}
    assert aggregates == {
        ("gr_all", "acc"), ("gr_all", "acc_norm"), ("gr_all", "mcc"), ("gr_inner", "acc"),
    }  # fmt: skip
    for group, metric in aggregates:
        comparison = found[group, metric]
        for model, value, stderr in (
            ("m", comparison.base, comparison.base_stderr),
            ("n", comparison.candidate, comparison.candidate_stderr),
        ):
            own = theirs[model]["groups"][group]
            assert value == pytest.approx(own[f"{metric},none"], rel=1e-12)
            if metric != "mcc":  # lm-eval bootstraps that, with other draws
                assert stderr == pytest.approx(own[f"{metric}_stderr,none"], rel=1e-12)


@pytest.mark.parametrize("how", ["models", "stored runs"])
def test_a_task_that_a_group_holds_twice_counts_twice_as_in_lm_eval(
    how: str, run_tasks: Path, evaluate: Any, tmp_path: Path
) -> None:
    run = read_run(evaluate(tmp_path / "m", ["gr_twice"]))
    side = stored(run) if how == "stored runs" else scored(run_tasks, "m", ["gr_twice"])
    own = json.loads(run.path.read_text())["groups"]["gr_twice"]
    found = compared(side, side)
    for metric in ("acc", "acc_norm"):
        got = found["gr_twice", metric]
        assert got.base == pytest.approx(own[f"{metric},none"], rel=1e-12)
        assert got.base_stderr == pytest.approx(own[f"{metric}_stderr,none"], rel=1e-12)
        assert got.subtasks == ("gr_small", "gr_middle")
        assert got.n == SIZES["gr_small"] + SIZES["gr_middle"]


def test_what_a_group_aggregates_and_no_subtask_has_is_named(run_tasks: Path) -> None:
    side = scored(run_tasks, "m", ["gr_twice"])
    (absent,) = list_missing_aggregates(
        compare_by_document(side[0], side[0], gate=GATE), (side[1], ())
    )
    assert (absent.task, absent.filter, absent.metric) == ("gr_twice", "", "f1")
    assert absent.reason == "the group aggregates it, and none of its subtasks has it"


def test_a_weighting_that_one_run_does_not_show_is_read_from_the_other(
    runs: dict[str, Path],
) -> None:
    run = read_run(runs["m"], tasks=["gr_inner"])
    content = json.loads(run.path.read_text())
    for name in ("gr_middle", "gr_large", "gr_inner"):  # alike: weighted or not, the mean is it
        content["results"][name]["acc,none"] = 0.25
    alike, _ = stored_groups(Results(run.path, content), run.tables, ["gr_inner"])
    assert [metric.weight_by_size for metric in alike[0].metrics] == [None]
    expected = compared(stored(run), stored(run))["gr_inner", "acc"]
    assert compared((run.tables, alike), stored(run))["gr_inner", "acc"] == expected
    assert "each counting alike" in expected.caveats[0]


def test_the_drift_is_that_of_the_subtasks_and_its_error_theirs_in_quadrature(
    runs: dict[str, Path],
) -> None:
    found = compared(*(stored(read_run(runs[m])) for m in ("m", "n")))
    for group, metric, tasks, by_size in (
        ("gr_all", "acc", list(SIZES), True),
        ("gr_all", "acc_norm", list(SIZES), False),
        ("gr_inner", "acc", ["gr_middle", "gr_large"], False),
    ):
        got, parts = found[group, metric], [found[task, metric] for task in tasks]
        sizes = np.array([SIZES[task] for task in tasks], dtype=float)
        weights = sizes / sizes.sum() if by_size else np.full(len(tasks), 1 / len(tasks))
        errors = weights * [part.paired_stderr for part in parts]
        drift = math.fsum(weights * [part.base - part.candidate for part in parts])
        assert got.paired_stderr == pytest.approx(math.sqrt(np.sum(errors**2)), rel=1e-12)
        assert got.sigma == pytest.approx(drift / got.base_stderr, rel=1e-12, abs=1e-14)
        assert got.method.removesuffix("-sign-flip") == "stratified-t"  # where few documents differ
        assert got.n == int(sizes.sum())
        assert [test.method for test in got.companions] == ["sign-flip"]
        assert got.influence is not None
        contributions = {document.task for document in got.influence.documents}
        assert contributions <= set(tasks)


def test_a_group_stands_above_the_groups_inside_it_and_its_subtasks(runs: dict[str, Path]) -> None:
    found = compared(*(stored(read_run(runs[m])) for m in ("m", "n")))
    order = list(dict.fromkeys(task for task, _ in found))
    expected = ["gr_all", "gr_small", "gr_inner", "gr_middle", "gr_large"]
    assert [task for task in order if task.startswith("gr_")] == expected
    assert found["gr_all", "acc"].subtasks == ("gr_small", "gr_middle", "gr_large")
    assert found["gr_all", "acc"].subgroups == ("gr_inner",)


def test_a_run_against_itself_is_bit_identical_in_its_groups(runs: dict[str, Path]) -> None:
    run = stored(read_run(runs["m"]))
    got = compared(run, run)["gr_all", "acc"]
    assert (got.outcome, got.bit_identical, got.sigma) == ("unchanged", True, 0.0)


def test_only_the_groups_that_were_asked_for_are_aggregated(
    run_tasks: Path, runs: dict[str, Path]
) -> None:
    assert [group.name for group in read_run(runs["m"], tasks=["gr_inner"]).groups] == ["gr_inner"]
    assert read_run(runs["m"], tasks=["gr_middle", "gr_large"]).groups == ()
    of_wildcard = read_run(runs["m"], tasks=["*"]).groups
    assert {group.name for group in of_wildcard} == {"gr_all", "gr_inner", "eg_group"}
    assert scored(run_tasks, "m", ["gr_middle"])[1] == ()
    assert not any(c.subtasks for c in compared(*(scored(run_tasks, m, ["eg_group"])
                                                  for m in "mn")).values())  # fmt: skip


def test_a_subtask_without_a_number_leaves_its_groups_without_one(run_tasks: Path) -> None:
    base, candidate = (scored(run_tasks, m, ["gr_all"]) for m in "mn")
    broken = [table for table in candidate[0] if table.task != "gr_middle"]
    found = compared(base, (broken, candidate[1]))
    for key in (("gr_all", "acc"), ("gr_inner", "acc")):
        assert found[key].outcome == "failed"
        assert "1 of" in found[key].reason
        assert "gr_middle: only the base has this metric" in found[key].reason
        assert found[key].subtasks


def test_two_runs_that_declare_a_group_differently_give_no_aggregate(run_tasks: Path) -> None:
    base, candidate = (scored(run_tasks, m, ["gr_all"]) for m in "mn")
    groups = {group.name: group for group in candidate[1]}
    fewer = [
        TaskGroup(name="gr_inner", children=("gr_middle",), tasks=("gr_middle",),
                  metrics=groups["gr_inner"].metrics),
        groups["gr_all"],
    ]  # fmt: skip
    found = compared(base, (candidate[0], fewer))
    assert found["gr_inner", "acc"].outcome == "failed"
    assert "different subtasks" in found["gr_inner", "acc"].reason
    assert found["gr_all", "acc"].outcome != "failed"


def test_a_group_whose_value_cannot_be_explained_is_not_compared(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    source = read_run(runs["m"]).path.parent
    folder = tmp_path / "run"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (results,) = folder.glob("results_*.json")
    content = json.loads(results.read_text())
    content["results"]["gr_all"]["acc,none"] += 0.01
    results.write_text(json.dumps(content))
    run = read_run(folder)
    (left,) = [left for left in run.not_compared if left.task == "gr_all"]
    assert (left.metric, left.filter) == ("acc", "none")
    assert "not a mean of its subtasks" in left.reason
