"""Ways to exit 0 without having measured anything: none of them does."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_runs import (
    WrittenRun,
    answer,
    loglikelihood,
    rehash,
    write_finished_runs,
)

GUARD = """
models: {a: {model_args: {pretrained: a}}, b: {model_args: {pretrained: b}}}
tasks: [words]
"""
NOTHING_KNOWN = 3


@pytest.fixture
def compared(run: Any, tmp_path: Path) -> Callable[..., Any]:
    """Compare two written runs under a gate; give exit code and screen."""

    def compare(
        change: Callable[[WrittenRun, WrittenRun], None], *words: str, gate: str = ""
    ) -> tuple[int, str]:
        base, cand = write_finished_runs(tmp_path, change)
        if gate:
            (tmp_path / "guard.yaml").write_text(f"{GUARD}gate: {gate}\n")
            words = ("--config", str(tmp_path / "guard.yaml"), *words)
        ran = run("compare", "--base", base, "--cand", cand, *words)
        return ran.code, " ".join(f"{ran.out} {ran.err}".split())

    return compare


def nothing(_: WrittenRun, __: WrittenRun) -> None:
    """Break nothing."""


def worse(_: WrittenRun, cand: WrittenRun) -> None:
    for row in cand.tasks["words"].rows:
        answer(row, loglikelihood(row) - 1.0)


def only(name: str, base: WrittenRun, cand: WrittenRun) -> None:
    for run in (base, cand):
        run.tasks = {name: run.tasks[name]}


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        (worse, "{advisory: [perplexity, acc, exact_match, word_perplexity]}"),
        (worse, "{only: [word/perplexity]}"),
        (nothing, "{metrics: {words/perplexty: {margin: 2}}}"),
    ],
)
def test_a_gate_that_judges_nothing_does_not_pass(compared: Any, change: Any, gate: str) -> None:
    code, seen = compared(change, gate=gate)
    assert code == NOTHING_KNOWN, seen


def test_the_gate_of_a_named_guard_file_holds_for_finished_runs(compared: Any) -> None:
    code, seen = compared(nothing, gate="{only: [no_such_metric]}")
    assert code == NOTHING_KNOWN
    assert "the gate lists no_such_metric, and it was not compared" in seen


def test_one_task_among_others_of_which_nothing_can_be_compared(compared: Any) -> None:
    def own_aggregation(base: WrittenRun, cand: WrittenRun) -> None:
        for run in (base, cand):
            task = run.tasks["words"]
            task.config["metric_list"] = [
                {"metric": "best", "aggregation": "def best(items): ...", "higher_is_better": True}
            ]
            task.scores = lambda row: {"best": float(row["resps"][0][0][0])}
        worse(base, cand)

    code, seen = compared(own_aggregation)
    assert code == NOTHING_KNOWN
    assert "no metric of words can be compared, so nothing is known of it" in seen
    assert "a function of the task" in seen


def test_one_document(compared: Any) -> None:
    def first(base: WrittenRun, cand: WrittenRun) -> None:
        for run in (base, cand):
            for task in run.tasks.values():
                task.rows = [row for row in task.rows if row["doc_id"] == 0]

    code, seen = compared(first)
    assert code == NOTHING_KNOWN
    assert "a standard error needs at least 2 documents" in seen


def test_texts_without_a_word(compared: Any) -> None:
    def empty(base: WrittenRun, cand: WrittenRun) -> None:
        only("texts", base, cand)
        for run in (base, cand):
            for row in run.tasks["texts"].rows:
                row["doc"] = {"text": ""}
                rehash(row)

    code, seen = compared(empty)
    assert code == NOTHING_KNOWN
    assert "the documents' weights sum to 0" in seen


@pytest.mark.parametrize(
    ("metrics", "said"), [([], "nothing was compared"), (["bypass"], "lm_eval --predict_only")]
)
def test_runs_without_a_metric(compared: Any, metrics: list[str], said: str) -> None:
    def unscored(base: WrittenRun, cand: WrittenRun) -> None:
        only("numbers", base, cand)
        for run in (base, cand):
            task = run.tasks["numbers"]
            task.config["metric_list"] = [
                {"metric": name, "aggregation": "mean", "higher_is_better": True}
                for name in metrics
            ]
            task.scores = lambda _: dict.fromkeys(metrics, 999)

    code, seen = compared(unscored)
    assert code == NOTHING_KNOWN
    assert said in seen


@pytest.mark.parametrize("margin", ["99pp", "100000%", "nan", "-1", "inf"])
def test_a_margin_that_cannot_fail(compared: Any, margin: str) -> None:
    code, seen = compared(worse, "--margin", margin)
    assert code in (2, NOTHING_KNOWN), seen


def test_a_gate_that_no_metric_of_finished_runs_can_be_held_to(compared: Any) -> None:
    code, seen = compared(nothing, gate="{metrics: {kl_mean: 0.01}}")
    assert code == 2
    assert "kl_mean" in seen


def test_an_improvement_that_no_conversion_makes_is_said(compared: Any) -> None:
    def in_tens(_: WrittenRun, cand: WrittenRun) -> None:
        for row in cand.tasks["words"].rows:
            answer(row, loglikelihood(row) / math.log(10.0))

    _, seen = compared(in_tens)
    assert "words perplexity: 10.4 sigma better than the base's" in seen


def keep_first(number: int, *runs: WrittenRun) -> None:
    for run in runs:
        for task in run.tasks.values():
            task.rows = [row for row in task.rows if row["doc_id"] < number]


@pytest.mark.parametrize(("margin", "code"), [("1pp", 4), ("1.0", 4), ("60pp", 0)])
def test_no_flip_among_few_documents_of_models_that_differ_is_decided_by_the_interval(
    compared: Any, margin: str, code: int
) -> None:
    def moved(base: WrittenRun, cand: WrittenRun) -> None:
        only("choices", base, cand)
        keep_first(10, base, cand)
        for row in cand.tasks["choices"].rows:
            row["resps"] = [[[str(float(one[0][0]) - 0.01), one[0][1]]] for one in row["resps"]]

    found, seen = compared(moved, "--strict", "--margin", margin)
    assert found == code
    assert ("too few documents to exclude a drift above the margin" in seen) == (code == 4)


@pytest.mark.parametrize("right", [1.0, 0.0], ids=["all right", "none right"])
def test_no_flip_where_the_base_does_not_scatter_leaves_a_margin_in_sigma_open(
    compared: Any, right: float
) -> None:
    def moved(base: WrittenRun, cand: WrittenRun) -> None:
        task = base.tasks["choices"]
        task.rows = [row for row in task.rows if task.scores(row)["acc"] == right]
        base.tasks = {name: base.tasks[name] for name in ("choices", "texts")}
        cand.tasks = copy.deepcopy(base.tasks)
        for row in cand.tasks["choices"].rows:
            row["resps"] = [[[str(float(one[0][0]) - 0.01), one[0][1]]] for one in row["resps"]]

    found, seen = compared(moved, "--strict")
    assert (found, "UNDECIDED" in seen) == (4, True)
    assert "more documents do not decide at this margin; a wider one does: --margin" in seen


def test_a_lossless_copy_is_unchanged_however_few_its_documents(compared: Any) -> None:
    def few(base: WrittenRun, cand: WrittenRun) -> None:
        only("choices", base, cand)
        keep_first(10, base, cand)
        cand.tasks["choices"].rows = copy.deepcopy(base.tasks["choices"].rows)

    code, seen = compared(few, "--strict")
    assert code == 0
    assert "bit-identical" in seen


@pytest.mark.parametrize(
    "words",
    [
        ("--num-fewshot", "7"),
        ("--limit", "3"),
        ("--limit", "0.5"),
        ("--verify-scorer", "5"),
        ("--apply-chat-template",),
        ("--gen-kwargs", "temperature=1"),
        ("--scorer", "harness"),
    ],
)
def test_finished_runs_do_not_pass_what_they_were_not_asked(
    compared: Any, words: tuple[str, ...]
) -> None:
    code, seen = compared(nothing, *words)
    assert code == 2, seen
    assert f"no model is asked, so {words[0]} would have no effect" in seen


@pytest.mark.parametrize("words", [("--num-fewshot", "0"), ("--limit", "240"), ("--seed", "3")])
def test_what_finished_runs_were_asked_may_be_said(compared: Any, words: tuple[str, ...]) -> None:
    code, seen = compared(nothing, *words)
    assert code == 0, seen


@pytest.mark.parametrize("named", ["folder", "file", "link"])
def test_a_run_beside_itself(run: Any, tmp_path: Path, named: str) -> None:
    base, _ = write_finished_runs(tmp_path, nothing)
    (tmp_path / "link").symlink_to(base)
    other = {"folder": base, "file": next(base.glob("results_*")), "link": tmp_path / "link"}
    ran = run("compare", "--base", base, "--cand", other[named])
    assert ran.code == NOTHING_KNOWN
    assert "both sides are one run" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    "option", ["--tasks", "--config", "--include-path", "--history", "--cluster", "--cache-dir"]
)
def test_an_empty_value_is_not_taken_for_none(run: Any, tmp_path: Path, option: str) -> None:
    base, cand = write_finished_runs(tmp_path, nothing)
    ran = run("compare", "--base", base, "--cand", cand, option, "")
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {option} is empty" in ran.err


def test_a_list_of_no_task_is_none_either(run: Any, tmp_path: Path) -> None:
    base, cand = write_finished_runs(tmp_path, nothing)
    assert run("compare", "--base", base, "--cand", cand, "--tasks", ", ,").code == 2
