"""Scores of the harness against lm_eval.simple_evaluate with the same (made-up) model."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from local_tasks import N, answers, fake_lm, render_chat

from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.gate import Gate
from evalguard.core.scorer import Response
from evalguard.core.scores import ScoreTable, rescoring
from evalguard.errors import EvaluationError
from evalguard.harness.requests import build_requests
from evalguard.harness.score_tables import TaskScores, score_tables, task_rescoring
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks

TASKS = ["eg_lastword", "eg_rolling", "eg_choice", "eg_generate", "eg_custom"]


def aggregate(table: ScoreTable) -> float:
    if table.rescoring is not None:
        return table.rescoring.metric(np.arange(table.n))
    if table.aggregation == "mean":
        return float(table.values.mean())
    if table.aggregation == "perplexity":
        return math.exp(-table.values.mean())
    assert table.weights is not None
    ratio = -table.values.sum() / table.weights.sum()
    return math.exp(ratio) if table.aggregation == "weighted_perplexity" else ratio / math.log(2)


def simple_evaluate(folder: Path, tasks: list[str], **options: Any) -> Any:
    from lm_eval.evaluator import simple_evaluate as evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return evaluate(model=fake_lm(), tasks=tasks, task_manager=manager, **options)


@pytest.fixture(scope="module")
def theirs(task_folder: Path) -> Any:
    return simple_evaluate(task_folder, TASKS, bootstrap_iters=2, limit=20)


@pytest.fixture(scope="module")
def ours(task_folder: Path) -> dict[str, TaskScores]:
    tasks = load_tasks(TASKS, options=TaskOptions(include_paths=(task_folder,), limit=20))
    scores = {}
    for name in tasks.names:
        requests = tasks.requests(name)
        scores[name] = score_tables(requests, answers(requests.requests), source="model m")
    return scores


@pytest.mark.parametrize("task", TASKS)
def test_metrics_and_sample_hashes_equal_those_of_lm_eval(
    task: str, ours: dict[str, TaskScores], theirs: Any
) -> None:
    samples = {(s["filter"], s["doc_id"]): s for s in theirs["samples"][task]}
    assert ours[task].tables
    for table in ours[task].tables:
        rows = [samples[table.filter, doc_id] for doc_id in table.doc_ids.tolist()]
        assert table.doc_hashes == tuple(row["doc_hash"] for row in rows)
        assert table.prompt_hashes == tuple(row["prompt_hash"] for row in rows)
        assert table.target_hashes == tuple(row["target_hash"] for row in rows)
        items = [row[table.metric] for row in rows]
        if table.rescoring is not None:
            assert table.rescoring.items == rescoring(items, table.metric, len).items
        elif table.weights is None:
            np.testing.assert_array_equal(table.values, np.array(items, dtype=float))
        else:
            pairs = np.column_stack([table.values, table.weights])
            np.testing.assert_array_equal(pairs, np.array(items, dtype=float))
        reported = theirs["results"][task][f"{table.metric},{table.filter}"]
        np.testing.assert_allclose(aggregate(table), reported, rtol=1e-12)
        assert table.n_total == theirs["n-samples"][task]["original"] == N
        assert table.source == "model m"


def test_answers_are_the_options_and_texts_that_lm_eval_scored(
    ours: dict[str, TaskScores], theirs: Any
) -> None:
    tables = {(t.task, t.filter, t.metric): t for s in ours.values() for t in s.tables}
    for metric in ("acc", "acc_norm"):
        table = tables["eg_choice", "none", metric]
        samples = {s["doc_id"]: s for s in theirs["samples"]["eg_choice"]}
        golds = [int(samples[doc_id]["target"]) for doc_id in table.doc_ids.tolist()]
        right = [int(answer) == gold for answer, gold in zip(table.answers, golds, strict=True)]
        np.testing.assert_array_equal(table.values, np.array(right, dtype=float))
    raw, normalised = (tables["eg_choice", "none", metric] for metric in ("acc", "acc_norm"))
    assert raw.answers != normalised.answers
    for name in ("strict", "digits"):
        table = tables["eg_generate", name, "exact_match"]
        texts = {
            s["doc_id"]: s["filtered_resps"][0]
            for s in theirs["samples"]["eg_generate"]
            if s["filter"] == name
        }
        if isinstance(texts[0], str):
            assert table.answers == tuple(texts[doc_id] for doc_id in table.doc_ids.tolist())
    # Which token was the likeliest is not known; a task's own rules are its own.
    assert tables["eg_lastword", "none", "acc"].answers == ()
    assert tables["eg_rolling", "none", "bits_per_byte"].answers == ()
    assert all(t.answers == () for (task, _, _), t in tables.items() if task == "eg_custom")


def test_closed_form_stderr_of_a_mean_equals_lm_evals(
    ours: dict[str, TaskScores], theirs: Any
) -> None:
    checked = 0
    for task in ("eg_lastword", "eg_choice", "eg_generate"):
        for table in ours[task].tables:
            if table.aggregation == "mean":
                stderr = table.values.std(ddof=1) / math.sqrt(table.n)
                key = f"{table.metric}_stderr,{table.filter}"
                np.testing.assert_allclose(stderr, theirs["results"][task][key], rtol=1e-12)
                checked += 1
    assert checked == 5


def test_every_metric_of_lm_eval_is_a_table_or_named_as_left_out(
    ours: dict[str, TaskScores], theirs: Any
) -> None:
    for task, scores in ours.items():
        found = {f"{t.metric},{t.filter}" for t in scores.tables}
        found |= {f"{n.metric},{n.filter}" for n in scores.not_compared}
        keys = {key for key in theirs["results"][task] if "," in key and "_stderr," not in key}
        assert found == keys


def test_aggregations_and_directions_come_from_the_task(ours: dict[str, TaskScores]) -> None:
    found = {
        (t.task, t.filter, t.metric): (t.aggregation, t.higher_is_better)
        for scores in ours.values()
        for t in scores.tables
    }
    assert found == {
        ("eg_lastword", "none", "perplexity"): ("perplexity", False),
        ("eg_lastword", "none", "acc"): ("mean", True),
        ("eg_rolling", "none", "word_perplexity"): ("weighted_perplexity", False),
        ("eg_rolling", "none", "byte_perplexity"): ("weighted_perplexity", False),
        ("eg_rolling", "none", "bits_per_byte"): ("bits_per_byte", False),
        ("eg_choice", "none", "acc"): ("mean", True),
        ("eg_choice", "none", "acc_norm"): ("mean", True),
        ("eg_choice", "none", "mcc"): ("other", True),
        ("eg_custom", "none", "half"): ("other", True),
        ("eg_generate", "strict", "exact_match"): ("mean", True),
        ("eg_generate", "digits", "exact_match"): ("mean", True),
        ("eg_custom", "none", "sometimes"): ("mean", True),
        ("eg_custom", "none", "broken"): ("mean", False),
        ("eg_custom", "none", "undeclared"): ("mean", True),
    }


def test_other_aggregations_are_rescored_by_the_tasks_own(ours: dict[str, TaskScores]) -> None:
    assert all(not of_task.not_compared for of_task in ours.values())
    tables = {table.metric: table for of_task in ours.values() for table in of_task.tables}
    for metric, name in (("mcc", "matthews_corrcoef"), ("half", "midpoint")):
        assert tables[metric].aggregation == "other"
        assert tables[metric].rescoring.name == name
        assert not tables[metric].values.any()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda items, pass_a_minute: items[0]["no"], "TypeError"),
        (lambda items, pass_a_minute: {"f1": 0.5}, "TypeError"),
        (lambda items, pass_a_minute: pass_a_minute(), "too long"),
    ],
    ids=["fails", "is not a number", "takes long"],
)
def test_an_aggregation_that_cannot_be_run_often_is_left_out_with_a_reason(
    broken: Any, reason: str, task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes: list[None] = []
    told = SimpleNamespace(perf_counter=lambda: 60.0 * len(minutes))
    monkeypatch.setattr("evalguard.harness.score_tables.time", told)
    requests = load_tasks(["eg_custom"], options=TaskOptions(include_paths=(task_folder,)))
    asked = requests.requests("eg_custom")

    def half(items: Any) -> Any:
        return broken(items, lambda: minutes.append(None)) or 0.0

    declared = {**asked.lm_eval_task.aggregation(), "half": half}
    monkeypatch.setattr(asked.lm_eval_task, "aggregation", lambda: declared)
    scores = score_tables(asked, answers(asked.requests))
    (half,) = scores.not_compared
    assert half.metric == "half"
    assert reason in half.reason


def test_a_first_call_that_imports_a_library_is_not_the_pace_of_an_aggregation(
    task_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 60.0, 60.0, 60.1])
    told = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("evalguard.harness.score_tables.time", told)
    requests = load_tasks(["eg_custom"], options=TaskOptions(include_paths=(task_folder,)))
    task = requests.requests("eg_custom").lm_eval_task
    monkeypatch.setattr(task, "aggregation", lambda: {"half": lambda items: 0.5})
    assert task_rescoring(task, "half", [1, 2, 3], "half").name == "half"


def test_nan_stays_nan_and_missing_documents_are_said(ours: dict[str, TaskScores]) -> None:
    tables = {table.metric: table for table in ours["eg_custom"].tables}
    assert np.isnan(tables["broken"].values).any()
    assert tables["broken"].n == 20
    assert tables["sometimes"].n < 20
    assert f"{20 - tables['sometimes'].n} of 20 documents have no value" in str(
        tables["sometimes"].caveats
    )
    assert any("no aggregation declared" in c for c in tables["undeclared"].caveats)
    assert not tables["undeclared"].directed
    assert tables["broken"].directed


def test_filters_of_a_task_are_scored_apart(ours: dict[str, TaskScores]) -> None:
    strict, digits = ours["eg_generate"].tables
    assert strict.values.sum() == 0
    assert digits.values.sum() > 0
    assert len(ours["eg_generate"].samples[0]["text"]) == 2  # repeats


def test_chat_template_and_system_instruction_give_lm_evals_prompts(task_folder: Path) -> None:
    chat = {"system_instruction": "Be brief.", "apply_chat_template": True}
    theirs = simple_evaluate(task_folder, ["eg_choice"], bootstrap_iters=0, **chat)
    options = TaskOptions(include_paths=(task_folder,), **chat)  # type: ignore[arg-type]
    requests = load_tasks(["eg_choice"], options=options).requests(
        "eg_choice", render_chat=render_chat
    )
    scores = score_tables(requests, answers(requests.requests))
    hashes = {s["doc_id"]: s["prompt_hash"] for s in theirs["samples"]["eg_choice"]}
    assert dict(enumerate(scores.tables[0].prompt_hashes)) == hashes


def test_scoring_twice_gives_the_same_and_an_older_build_still_works(task_folder: Path) -> None:
    options = TaskOptions(include_paths=(task_folder,))
    first = load_tasks(["eg_choice"], options=options).requests("eg_choice")
    build_requests("eg_choice", first.lm_eval_task, options, render_chat=None)
    one = score_tables(first, answers(first.requests))
    score_tables(first, answers(first.requests, model="other"))
    again = score_tables(first, answers(first.requests))
    np.testing.assert_array_equal(one.tables[0].values, again.tables[0].values)


def test_token_hash_of_a_document_covers_all_its_requests(task_folder: Path) -> None:
    tasks = load_tasks(["eg_choice"], options=TaskOptions(include_paths=(task_folder,), limit=3))
    requests = tasks.requests("eg_choice")
    responses = answers(requests.requests)
    before = score_tables(requests, responses).tables[0].token_hashes
    assert len(set(before)) == 3
    responses[-1] = Response(loglikelihood=-1.0, is_greedy=True, token_hash="other")
    after = score_tables(requests, responses).tables[0].token_hashes
    assert before[:2] == after[:2]
    assert before[2] != after[2]
    responses[0] = Response(loglikelihood=-1.0, is_greedy=True)
    assert score_tables(requests, responses).tables[0].token_hashes == ()


def test_truncated_documents_are_a_caveat(task_folder: Path) -> None:
    tasks = load_tasks(["eg_lastword"], options=TaskOptions(include_paths=(task_folder,)))
    requests = tasks.requests("eg_lastword")
    responses = answers(requests.requests)
    responses[3] = Response(loglikelihood=-1.0, is_greedy=True, truncated=True)
    scores = score_tables(requests, responses)
    assert any(f"1 of {N} documents cut" in caveat for caveat in scores.tables[0].caveats)
    assert scores.samples[3]["truncated"] is True


def test_samples_hold_what_was_asked_and_answered(ours: dict[str, TaskScores]) -> None:
    row = ours["eg_choice"].samples[0]
    assert row["doc_id"] == 0
    assert "gold" in json.loads(str(row["doc"]))
    assert len(row["arguments"]) == len(row["loglikelihood"]) == len(row["is_greedy"]) == 4
    assert len(row["token_logprobs"][0]) == 4
    assert set(json.loads(str(row["scores"]))["none"]) == {"acc", "acc_norm", "mcc"}
    columns = {tuple(sample) for scores in ours.values() for sample in scores.samples}
    assert len(columns) == 1


def test_stdout_stays_clean_and_generators_are_left_alone(
    task_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    tasks = load_tasks(["eg_custom"], options=TaskOptions(include_paths=(task_folder,)))
    requests = tasks.requests("eg_custom")
    score_tables(requests, answers(requests.requests))
    assert (random.random(), np.random.random()) == expected
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a task that writes to stdout" in captured.err


def test_answer_of_another_kind_is_an_error(task_folder: Path) -> None:
    tasks = load_tasks(["eg_lastword"], options=TaskOptions(include_paths=(task_folder,)))
    requests = tasks.requests("eg_lastword")
    with pytest.raises(EvaluationError, match=r"document 0, request 0.*loglikelihood"):
        score_tables(requests, [Response(text="no")] * N)
    with pytest.raises(ValueError, match="24 requests have 1 responses"):
        score_tables(requests, [Response(text="no")])


def test_failing_task_code_names_task_and_document(tmp_path: Path) -> None:
    from local_tasks import write_task, write_tasks

    write_tasks(tmp_path)
    body = 'output_type: loglikelihood\ndoc_to_text: "{{text}}"\ndoc_to_target: " end"\n'
    write_task(tmp_path, "eg_fails", body + "process_results: !function code.fails\n")
    tasks = load_tasks(["eg_fails"], options=TaskOptions(include_paths=(tmp_path,)))
    requests = tasks.requests("eg_fails")
    with pytest.raises(EvaluationError, match=r"'eg_fails'.*document 0: KeyError"):
        score_tables(requests, answers(requests.requests))


def test_two_models_that_both_say_nothing_are_not_compared(task_folder: Path) -> None:
    def tables(task: str, *, silent: bool) -> tuple[ScoreTable, ...]:
        requests = load_tasks([task], options=TaskOptions(include_paths=(task_folder,))).requests(
            task
        )
        told = answers(requests.requests)
        if silent and task == "eg_generate":
            told = [replace(one, text=" \n") for one in told]
        elif silent:  # another number of tokens in each: the log-likelihoods differ
            told = [_of_a_dead_head(one, n % 3 + 1) for n, one in enumerate(told)]
        return score_tables(requests, told).tables

    flat = "every token has the same log-probability"
    for task, kind, reason in (
        ("eg_generate", "empty", "the generated answers to all 24 documents are empty"),
        ("eg_lastword", "flat", f"{flat}, so the output does not depend on the input"),
    ):
        silent, sound = tables(task, silent=True), tables(task, silent=False)
        assert {of.uninformative and of.uninformative.kind for of in silent} == {kind}
        assert all(reason in table.caveats for table in silent)
        assert {table.uninformative for table in sound} == {None}
        for one in compare_tables(silent, silent, gate=Gate()):
            assert one.outcome == "failed"
            assert reason in one.reason
        for one in compare_tables(sound, silent, gate=Gate()):
            assert one.outcome != "failed"
            assert f"candidate: {reason}" in one.caveats


@pytest.mark.parametrize("choices", ['["yes"]', '["yes", "yes"]', "['{{text}}']"])
def test_a_choice_of_one_option_says_nothing_of_any_model(tmp_path: Path, choices: str) -> None:
    from local_tasks import write_task, write_tasks

    write_tasks(tmp_path)
    body = "output_type: multiple_choice\ndoc_to_text: '{{text}}'\ndoc_to_target: 0\n"
    body += f"doc_to_choice: {choices}\nmetric_list: [{{metric: acc}}]\n"
    write_task(tmp_path, "eg_one", body)
    tasks = load_tasks(["eg_one"], options=TaskOptions(include_paths=(tmp_path,)))
    requests = tasks.requests("eg_one")
    tables = score_tables(requests, answers(requests.requests)).tables
    (one,) = compare_tables(tables, tables, gate=Gate())
    assert one.outcome == "failed"
    assert "have one option to choose, so that any model answers alike" in one.reason
    assert "look at the task's doc_to_choice" in one.reason


def _of_a_dead_head(response: Response, n_tokens: int) -> Response:
    logprobs = np.full(n_tokens, -math.log(50))
    return replace(response, token_logprobs=logprobs, loglikelihood=float(logprobs.sum()))
