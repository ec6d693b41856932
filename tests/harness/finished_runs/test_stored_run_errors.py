"""Runs that cannot be read: one clear message each, with the file and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.gate import Gate
from evalguard.core.pairing import pair
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError
from evalguard.harness.finished_runs.lmeval_run import is_lmeval_run, read_run
from evalguard.harness.finished_runs.run_facts import environment_differences


def samples(folder: Path, task: str = "eg_lastword") -> Path:
    (path,) = folder.glob(f"samples_{task}_*.jsonl")
    return path


def edit_results(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    (path,) = folder.glob("results_*.json")
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_model_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoint").mkdir()
    assert not is_lmeval_run(tmp_path)
    assert not is_lmeval_run(tmp_path / "config.json")
    assert not is_lmeval_run(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no lm-eval run"):
        read_run(tmp_path)
    with pytest.raises(UsageError, match="not a results file"):
        read_run(tmp_path / "config.json")
    with pytest.raises(UsageError, match="does not exist"):
        read_run(tmp_path / "nowhere")


def test_run_without_samples_says_how_to_make_them(copied: Path) -> None:
    for path in copied.glob("samples_*"):
        path.unlink()
    assert is_lmeval_run(copied)
    with pytest.raises(UsageError, match="no samples files") as error:
        read_run(copied)
    assert "--log_samples" in error.value.hint


def test_run_of_lm_eval_before_0_4_3_is_refused_with_the_version(copied: Path) -> None:
    for path in copied.glob("samples_*"):
        path.unlink()
    (results,) = copied.glob("results_*.json")
    results.rename(copied / "results.json")
    (copied / "pretrained__org__m_eg_lastword.jsonl").write_text("[]")
    with pytest.raises(UsageError, match=r"before 0\.4\.3"):
        read_run(copied)


@pytest.mark.parametrize("name", ["doc_hash", "prompt_hash", "target_hash"])
def test_samples_without_hashes_are_refused(copied: Path, rewrite: Any, name: str) -> None:
    rewrite(samples(copied), lambda rows: [{k: row[k] for k in row if k != name} for row in rows])
    with pytest.raises(UsageError, match=f"jsonl:1: the sample has no {name}") as error:
        read_run(copied)
    assert "0.4.3" in error.value.hint


def test_damaged_line_is_named(copied: Path) -> None:
    path = samples(copied)
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2][:50]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(EvaluationError, match=rf"{path.name}:3: not JSON"):
        read_run(copied)


def test_damaged_results_file_is_named(copied: Path) -> None:
    (path,) = copied.glob("results_*.json")
    path.write_bytes(path.read_bytes()[:-100])
    assert is_lmeval_run(copied)
    with pytest.raises(EvaluationError, match=rf"{path.name}:\d+: not JSON"):
        read_run(copied)


def test_cut_off_samples_do_not_fit_the_results(copied: Path, rewrite: Any) -> None:
    rewrite(samples(copied), lambda rows: rows[:-1])
    with pytest.raises(EvaluationError, match="not of one run"):
        read_run(copied)


def test_samples_of_another_run_are_refused(evaluate: Any, copied: Path, tmp_path: Path) -> None:
    other = evaluate(tmp_path / "other", ["eg_lastword"], model="other")
    (path,) = other.rglob("samples_eg_lastword_*.jsonl")
    samples(copied).write_bytes(path.read_bytes())
    with pytest.raises(EvaluationError, match=r"perplexity \(none\).*the samples give"):
        read_run(copied)


@pytest.mark.parametrize("factor", [1.01, 0.0])
def test_a_wrong_standard_error_beside_right_values_is_a_caveat(
    copied: Path, factor: float
) -> None:
    def edit(content: dict[str, Any]) -> None:
        content["results"]["eg_lastword"]["acc_stderr,none"] *= factor

    edit_results(copied, edit)
    (acc,) = (t for t in read_run(copied, tasks=["eg_lastword"]).tables if t.metric == "acc")
    (caveat,) = (c for c in acc.caveats if "standard error" in c)
    assert "that of the samples is used" in caveat


def test_document_twice_is_an_error_with_both_lines(copied: Path, rewrite: Any) -> None:
    rewrite(samples(copied), lambda rows: [*rows, rows[3]])
    with pytest.raises(EvaluationError, match=r"jsonl:25: document 3 .* twice .*line 4"):
        read_run(copied)


def test_unknown_task_names_the_nearest(copied: Path) -> None:
    with pytest.raises(UsageError, match="'eg_lastwort'; did you mean 'eg_lastword'"):
        read_run(copied, tasks=["eg_lastwort"])


def test_task_of_an_older_date_is_pointed_at(evaluate: Any, tmp_path: Path) -> None:
    evaluate(tmp_path / "out", ["eg_lastword"])
    date = read_run(tmp_path / "out").date
    evaluate(tmp_path / "out", ["eg_rolling"])
    with pytest.raises(UsageError, match="no samples of task 'eg_lastword'") as error:
        read_run(tmp_path / "out", tasks=["eg_lastword"])
    assert date in error.value.hint


def test_several_models_are_listed(evaluate: Any, tmp_path: Path) -> None:
    for model in ("one", "two"):
        evaluate(tmp_path / "out", ["eg_lastword"], model=model)
    assert is_lmeval_run(tmp_path / "out")
    with pytest.raises(UsageError, match="several models: org__one, org__two"):
        read_run(tmp_path / "out")


def test_several_names_in_one_folder_are_listed(evaluate: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        evaluate(tmp_path / f"{name}.json", ["eg_lastword"])
    with pytest.raises(UsageError, match="several names: a, b"):
        read_run(tmp_path)


def test_task_without_its_samples_file_is_lost_and_said(copied: Path) -> None:
    samples(copied, "eg_rolling").unlink()
    run = read_run(copied)
    assert "eg_rolling" not in {table.task for table in run.tables}
    reasons = {key: reason for key, reason in run.lost.items() if key[0] == "eg_rolling"}
    assert {metric for _, _, metric in reasons} >= {"word_perplexity", "bits_per_byte"}
    assert all("no samples file" in reason for reason in reasons.values())
    assert read_run(copied, tasks=["eg_lastword"]).lost == {}


def test_response_cache_half_precision_and_auto_batches_are_caveats(copied: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        content["config"] |= {
            "use_cache": "cache.db",
            "batch_size": "auto",
            "model_args": "pretrained=org/m,dtype=bfloat16",
        }

    assert read_run(copied).tables[0].caveats == ()
    edit_results(copied, edit)
    caveats = " | ".join(read_run(copied).tables[0].caveats)
    assert "use_cache" in caveats
    assert "rounded to bfloat16" in caveats
    assert "batch_size was auto" in caveats

    def exact(content: dict[str, Any]) -> None:
        content["config"]["model_args"] += ",softmax_dtype=float32"

    edit_results(copied, exact)
    assert "rounded" not in " | ".join(read_run(copied).tables[0].caveats)


def test_differences_in_the_making_of_two_runs_are_said(copied: Path, finished: Path) -> None:
    whole = read_run(finished)
    assert environment_differences(whole.environment, whole.environment) == ()

    def edit(content: dict[str, Any]) -> None:
        content["config"]["batch_size"] = 8
        content["lm_eval_version"] = "0.4.9"

    edit_results(copied, edit)
    other = read_run(copied)
    found = environment_differences(whole.environment, other.environment)
    assert len(found) == 2
    assert found[0].startswith("batch_size is 4 in the base run and 8 in the other")


def test_selection_of_documents_is_a_caveat(evaluate: Any, tmp_path: Path) -> None:
    chosen = {"eg_lastword": [2, 5, 7]}
    run = read_run(evaluate(tmp_path / "out", ["eg_lastword"], samples=chosen))
    assert run.tables[0].doc_ids.tolist() == [2, 5, 7]
    assert any("--samples" in caveat for caveat in run.tables[0].caveats)


def test_undeclared_aggregation_that_is_no_mean_is_left_out(copied: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        content["results"]["eg_custom"]["undeclared,none"] += 1

    tables = {table.metric: table for table in read_run(copied, tasks=["eg_custom"]).tables}
    assert any("no aggregation declared" in c for c in tables["undeclared"].caveats)
    edit_results(copied, edit)
    run = read_run(copied, tasks=["eg_custom"])
    assert "undeclared" not in {table.metric for table in run.tables}
    assert "undeclared" in {left_out.metric for left_out in run.not_compared}


@pytest.mark.parametrize(
    ("task", "value", "told"),
    [
        ("eg_lastword", 0.0, "all 24 log-likelihoods are 0"),
        ("eg_lastword", -3.5, "all 24 log-likelihoods are -3.5"),
        ("eg_rolling", 0.0, "all 24 log-likelihoods are 0"),
        ("eg_choice", 0.0, "log-likelihoods are 0"),
        ("eg_lastword", 2.0, "is above 0"),
    ],
)
def test_a_run_whose_log_likelihoods_say_nothing_is_refused(
    copied: Path, task: str, value: float, told: str
) -> None:
    path = samples(copied, task)
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def with_value(answer: Any) -> Any:
        if isinstance(answer, list) and len(answer) == 2 and str(answer[1]) in ("True", "False"):
            return [str(value), answer[1]]
        if isinstance(answer, list):
            return [with_value(one) for one in answer]
        return str(value)

    for row in rows:
        row["resps"] = with_value(row["resps"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(EvaluationError, match=told) as error:
        read_run(copied, tasks=[task])
    assert str(path) in str(error.value)
    assert "echo" in error.value.hint


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda content: content["config"].update(limit="ten"), "'limit'"),
        (lambda content: content["config"].update(limit=[10]), "'limit'"),
        (lambda content: content["config"].update(fewshot_seed={}), "'fewshot_seed'"),
        (lambda content: content["n-shot"].update(eg_choice="two"), "'n-shot' of 'eg_choice'"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named_with_its_file(
    copied: Path, edit: Callable[[dict[str, Any]], None], where: str
) -> None:
    edit_results(copied, edit)
    with pytest.raises(EvaluationError, match=where) as error:
        read_run(copied)
    assert "results_" in str(error.value)


def test_a_version_beside_none_is_a_difference(copied: Path, finished: Path) -> None:
    def edit(content: dict[str, Any]) -> None:
        del content["lm_eval_version"]
        content["transformers_version"] = "4.44.0"

    edit_results(copied, edit)
    whole, older = read_run(finished), read_run(copied)
    found = environment_differences(older.environment, whole.environment)
    assert found[0].startswith("lm_eval_version is not recorded in the base run and 0.4.13 in")
    assert found[1].startswith("transformers_version is 4.44.0 in the base run and not recorded in")


def test_another_lm_eval_forbids_every_comparison_unless_it_is_declared(
    copied: Path, finished: Path
) -> None:
    edit_results(copied, lambda content: content.update(lm_eval_version="0.4.9.1"))
    tables = {table.key: table for table in read_run(copied).tables}
    for table in read_run(finished).tables:
        with pytest.raises(MisalignedRunsError, match=r"version of lm-eval is 0\.4\.9\.1 in"):
            pair(tables[table.key], table)
        found = pair(tables[table.key], table, allow=frozenset({"reading"}))
        assert any("0.4.13" in caveat for caveat in found.caveats)


def test_two_runs_of_empty_answers_are_not_compared(copied: Path) -> None:
    path = samples(copied, "eg_generate")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["resps"] = [["" for _ in of] for of in row["resps"]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = read_run(copied, tasks=["eg_generate"]).tables
    for one in compare_tables(tables, tables, gate=Gate()):
        assert one.outcome == "failed"
        assert "the generated answers to all 24 documents are empty" in one.reason
