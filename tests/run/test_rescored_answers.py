"""The same answers with other scores say that two runs were scored in two ways, not how models do.

Nothing but exit code 3 is right then; runs whose scores follow from their answers are judged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_runs import Row, WrittenRun, WrittenTask, write_finished_runs, write_texts

import evalguard
from evalguard.core.compare_report import CompareReport

Change = Callable[[WrittenTask], None]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompareReport]:
    def run(change: Callable[[WrittenRun, WrittenRun], None]) -> CompareReport:
        monkeypatch.chdir(tmp_path)
        base, candidate = write_finished_runs(tmp_path, change)
        options: Any = {"write": False, "track": ()}
        return evalguard.compare(str(base), str(candidate), **options).report

    return run


def of_task(name: str, change: Change, *, healthy: bool = False) -> Any:
    """Two runs of one task: with the same answers, or a healthy port's; one is changed."""

    def both(base: WrittenRun, candidate: WrittenRun) -> None:
        own = candidate.tasks[name] if healthy else copy.deepcopy(base.tasks[name])
        for run, task in ((base, base.tasks[name]), (candidate, own)):
            run.tasks.clear()
            run.tasks[name] = task
        change(own)

    return both


def score_otherwise(task: WrittenTask, metric: str, score: Callable[[Row, Any], Any]) -> None:
    """Let every score of a metric be another one of the same answer."""
    before = task.scores

    def scores(row: Row) -> dict[str, Any]:
        found = before(row)
        return found | {metric: score(row, found[metric])}

    task.scores = scores


def every_tenth_is_wrong(row: Row, value: float) -> float:
    return 0.0 if row["doc_id"] % 10 == 0 else value


def another_step(task: WrittenTask) -> None:
    task.config["filter_list"][1]["filter"].insert(1, {"function": "remove_whitespace"})
    score_otherwise(task, "exact_match", every_tenth_is_wrong)


def another_regex(task: WrittenTask) -> None:
    task.config["filter_list"][0]["filter"][0]["regex_pattern"] = "## (.*)"
    score_otherwise(task, "exact_match", every_tenth_is_wrong)


def another_option(name: str, value: Any) -> Change:
    def change(task: WrittenTask) -> None:
        task.config["metric_list"][0][name] = value
        score_otherwise(task, "exact_match", every_tenth_is_wrong)

    return change


def own_rules(task: WrittenTask) -> None:
    task.config["process_results"] = "def process(doc, results):\n    return {}"
    score_otherwise(task, "acc", every_tenth_is_wrong)


def another_target(task: WrittenTask) -> None:
    task.config["doc_to_target"] = "{{gold + 1}}"
    score_otherwise(task, "acc", lambda row, _: float(row["doc"]["gold"] == 1))


def nothing_recorded(task: WrittenTask) -> None:
    score_otherwise(task, "exact_match", every_tenth_is_wrong)


def other_answers_read(task: WrittenTask) -> None:
    for row in task.rows[::20]:
        row["filtered_resps"] = ["[invalid]"]


def likelihood_of_bytes(task: WrittenTask) -> None:
    score_otherwise(task, "perplexity", lambda _, value: 1.1 * value)


def greedy_otherwise(task: WrittenTask) -> None:
    score_otherwise(task, "acc", lambda row, value: value if row["doc_id"] % 9 else 1.0 - value)


@pytest.mark.parametrize(
    ("name", "change", "cause"),
    [
        ("numbers", another_step, "filter_list differs (regex, take_first -> regex, remove_w"),
        ("numbers", another_regex, "filter_list differs (regex_pattern #### "),
        ("numbers", another_option("ignore_case", True), "(ignore_case not given -> true)"),
        ("numbers", another_option("ignore_punctuation", True), "metric_list differs (ignore_p"),
        ("numbers", another_option("regexes_to_ignore", [","]), "metric_list differs (regexes"),
        ("numbers", nothing_recorded, "no recorded option differs, so the code that scores"),
        ("numbers", other_answers_read, "reads other answers in the same texts"),
        ("choices", own_rules, "process_results differs"),
        ("choices", another_target, "doc_to_target differs (not given -> {{gold + 1}})"),
        ("words", likelihood_of_bytes, "no recorded option differs"),
        ("words", greedy_otherwise, "no recorded option differs"),
    ],
)
def test_the_same_answers_with_other_scores_say_nothing_of_the_model(
    compare: Any, name: str, change: Change, cause: str
) -> None:
    report = compare(of_task(name, change))
    assert report.exit_code == 3
    failed = [one for one in report.comparisons if one.outcome == "failed"]
    assert failed
    for one in failed:
        assert one.reason.startswith("all 240 answers are the same, ")
        assert one.sigma is None
    assert any(cause in one.reason for one in failed)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("numbers", nothing_recorded),
        # its log-likelihoods are all others, and choose the same option by every rule
        ("choices", another_target),
        ("words", greedy_otherwise),
    ],
)
def test_so_it_is_where_not_all_answers_are_the_same(
    compare: Any, name: str, change: Change
) -> None:
    report = compare(of_task(name, change, healthy=True))
    assert report.exit_code == 3
    reasons = [one.reason for one in report.comparisons if one.outcome == "failed"]
    assert reasons
    assert all(" 240 answers are the same, " in one for one in reasons)


def unchanged(task: WrittenTask) -> None:
    """Leave all as it is."""


def defaults_written_out(task: WrittenTask) -> None:
    task.config["metric_list"][0] |= {"ignore_case": False, "regexes_to_ignore": []}


def another_address(task: WrittenTask) -> None:
    task.config["doc_to_choice"] = f"<function options at 0x{id(task):x}>"


def other_texts(task: WrittenTask) -> None:
    draws = np.random.default_rng(3)
    write_texts(task, [f"It is #### {i + int(draws.random() < 0.4)}" for i in range(240)])


def last_bits(task: WrittenTask) -> None:
    draws = np.random.default_rng(5)
    for row in task.rows:
        row["resps"] = [
            [[repr(float(value) * (1.0 + draws.normal(0.0, 1e-15))), greedy]]
            for ((value, greedy),) in row["resps"]
        ]
        row["filtered_resps"] = [one[0] for one in row["resps"]]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, unchanged) for name in ("numbers", "choices", "words", "texts")),
        ("numbers", defaults_written_out),
        ("choices", last_bits),
        ("words", last_bits),
    ],
)
def test_equal_scores_of_equal_answers_stay_unchanged(
    compare: Any, name: str, change: Change
) -> None:
    report = compare(of_task(name, change))
    assert report.exit_code == 0
    assert {one.outcome for one in report.comparisons} <= {"unchanged", "undecided"}
    assert not [one for one in report.findings if "scored by other options" in one.text]


@pytest.mark.parametrize("name", ["numbers", "choices", "words", "texts"])
def test_a_healthy_port_is_judged(compare: Any, name: str) -> None:
    report = compare(of_task(name, unchanged, healthy=True))
    assert report.exit_code == 0
    assert "failed" not in {one.outcome for one in report.comparisons}


def test_other_answers_with_other_scores_are_a_models(compare: Any) -> None:
    report = compare(of_task("numbers", other_texts))
    assert "failed" not in {one.outcome for one in report.comparisons}


def test_an_option_that_no_score_shows_is_said_and_decides_nothing(compare: Any) -> None:
    def option(task: WrittenTask) -> None:
        task.config["metric_list"][0]["ignore_case"] = True

    report = compare(of_task("numbers", option))
    assert report.exit_code == 0
    (found,) = [one for one in report.findings if "scored by other options" in one.text]
    assert "metric_list differs (ignore_case not given -> true) (and so 1 more)" in found.text
    assert found.values["option"] == "metric_list"


def test_functions_of_one_name_are_one_wherever_they_lay(compare: Any) -> None:
    def both(base: WrittenRun, candidate: WrittenRun) -> None:
        of_task("choices", unchanged)(base, candidate)
        for run in (base, candidate):
            another_address(run.tasks["choices"])

    assert not [one for one in compare(both).findings if "scored by other" in one.text]


GRIDS = {"points of five": 4.0, "of a rubric of ten": 10.0}


@pytest.mark.parametrize(("documents", "outcome"), [(20, "undecided"), (240, "unchanged")])
@pytest.mark.parametrize("steps", GRIDS.values(), ids=GRIDS)
def test_equal_scores_on_a_coarse_grid_of_few_other_texts_show_little(
    compare: Any, steps: float, documents: int, outcome: str
) -> None:
    def both(base: WrittenRun, candidate: WrittenRun) -> None:
        of_task("numbers", other_texts)(base, candidate)
        for run in (base, candidate):
            task = run.tasks["numbers"]
            task.config["metric_list"][0]["metric"] = "judged"
            task.rows = [row for row in task.rows if row["doc_id"] < documents]
            task.scores = lambda row: {"judged": (row["doc_id"] % (steps + 1)) / steps}

    report = compare(both)
    assert {one.outcome for one in report.comparisons} == {outcome}
    assert not any(one.bit_identical for one in report.comparisons)


def test_equal_scores_on_a_coarse_grid_of_equal_texts_are_a_lossless_conversions(
    compare: Any,
) -> None:
    def both(base: WrittenRun, candidate: WrittenRun) -> None:
        of_task("numbers", unchanged)(base, candidate)
        for run in (base, candidate):
            task = run.tasks["numbers"]
            task.rows = [row for row in task.rows if row["doc_id"] < 20]
            task.scores = lambda row: {"exact_match": (row["doc_id"] % 5) / 4}

    assert all(one.bit_identical for one in compare(both).comparisons)
