"""What two finished runs may have done otherwise is said first; what is one, is no difference.

Runs of other harnesses are known by their shape and refused with what to do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_runs import DATE, WrittenRun, write_finished_runs

import evalguard
from evalguard.core.compare_report import CompareReport
from evalguard.core.findings import Finding
from evalguard.core.run_agreement import canonical_generation
from evalguard.errors import UsageError
from evalguard.harness.finished_runs.lmeval_run import is_lmeval_run
from evalguard.harness.finished_runs.other_harnesses import name_other_harness

Change = Callable[[WrittenRun, WrittenRun], None]
OPTIONS: Any = {"write": False, "track": ()}


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], CompareReport]:
    def run(change: Change) -> CompareReport:
        monkeypatch.chdir(tmp_path)
        base, candidate = write_finished_runs(tmp_path, change)
        return evalguard.compare(str(base), str(candidate), **OPTIONS).report

    return run


def of_kind(report: CompareReport, kind: str) -> list[Finding]:
    return [one for one in report.findings if one.kind == kind]


def only(name: str, *runs: WrittenRun) -> None:
    """Leave one task in runs."""
    for run in runs:
        run.tasks = {name: run.tasks[name]}


ONE = [
    ({"do_sample": False}, {"temperature": 0.0}),
    ({"do_sample": False}, {}),
    ({"do_sample": False, "temperature": 0.0, "top_p": 0.9, "top_k": 50}, {"temperature": "0"}),
    ({"do_sample": "false"}, {"do_sample": False}),
    ({"temperature": 0.7}, {"do_sample": True, "temperature": 0.7}),
    ({"temperature": 0.7, "top_p": 1.0}, {"temperature": 0.7, "repetition_penalty": 1.0}),
    ({"temperature": 0.7, "top_k": -1}, {"temperature": 0.7, "top_k": 0}),
    ({"until": ["a", "b"]}, {"until": ["b", "a", "a"]}),
    ({"until": "a"}, {"until": ["a"], "num_beams": 1}),
    ({"max_gen_toks": 64}, {"max_new_tokens": 64}),
    ({"max_gen_toks": 64, "max_tokens": 9}, {"max_completion_tokens": "64"}),
]
TWO = [
    ({"do_sample": False}, {"do_sample": True, "temperature": 0.6}),
    ({"temperature": 0.6}, {"temperature": 0.7}),
    ({"temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6}),
    ({"temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": -1}),
    ({"until": ["a"]}, {"until": ["a", "b"]}),
    ({"max_gen_toks": 64}, {"max_gen_toks": 65}),
    ({"do_sample": False}, {"do_sample": False, "repetition_penalty": 1.1}),
    ({"do_sample": False}, {"do_sample": False, "num_beams": 4}),
]


@pytest.mark.parametrize(("one", "other"), ONE)
def test_options_that_let_a_model_write_alike_are_one(one: Any, other: Any) -> None:
    assert canonical_generation(one) == canonical_generation(other)


@pytest.mark.parametrize(("one", "other"), TWO)
def test_options_that_change_a_text_are_two(one: Any, other: Any) -> None:
    assert canonical_generation(one) != canonical_generation(other)


@pytest.mark.parametrize(("pair", "code"), [(ONE[0], 0), (ONE[7], 0), (TWO[0], 3), (TWO[5], 3)])
def test_runs_are_paired_where_their_options_are_one(compare: Any, pair: Any, code: int) -> None:
    def change(base: WrittenRun, candidate: WrittenRun) -> None:
        only("numbers", base, candidate)
        for run, options in zip((base, candidate), pair, strict=True):
            run.tasks["numbers"].config["generation_kwargs"] = options

    assert compare(change).exit_code == code


def run_by(base: str, candidate: str, task: str = "numbers") -> Change:
    def change(one: WrittenRun, other: WrittenRun) -> None:
        only(task, one, other)
        one.config["model"], other.config["model"] = base, candidate

    return change


@pytest.mark.parametrize(
    ("base", "candidate", "said"),
    [
        ("hf", "vllm", "(hf takes what generation_config.json says, else top_k 50; vllm takes nei"),
        ("vllm", "local-completions", "local-completions leaves them to its server"),
        ("hf", "gguf", "by hf, the other by gguf"),
    ],
)
def test_other_engines_are_said(compare: Any, base: str, candidate: str, said: str) -> None:
    report = compare(run_by(base, candidate))
    assert report.exit_code == 0
    found = of_kind(report, "made_differently")
    assert any(said in one.text for one in found)
    assert {"option": "model", "base": base, "candidate": candidate} in [
        one.values for one in found
    ]


def test_of_log_likelihoods_sampling_is_no_matter(compare: Any) -> None:
    (found,) = of_kind(compare(run_by("hf", "vllm", "words")), "made_differently")
    assert found.text == "the base was run by hf, the other by vllm: other kernels"


@pytest.mark.parametrize(("base", "candidate"), [("hf", "hf"), ("hf", "huggingface")])
def test_one_engine_is_not_said(compare: Any, base: str, candidate: str) -> None:
    assert compare(run_by(base, candidate)).findings == ()


def test_another_length_of_texts_whose_task_names_none_is_said(compare: Any) -> None:
    def change(base: WrittenRun, candidate: WrittenRun) -> None:
        only("numbers", base, candidate)
        for run in (base, candidate):
            run.tasks["numbers"].config["generation_kwargs"] = {"until": ["Q:"]}
        candidate.config["model_args"] = {"pretrained": "org/port", "max_gen_toks": 1024}

    (found,) = of_kind(compare(change), "made_differently")
    assert found.text.startswith("max_gen_toks is 256 in the base run and 1024 in the other")


@pytest.mark.parametrize(
    ("engine", "length", "cut"),
    [("hf", 70, 240), ("vllm", 70, 240), ("hf", 2048, 0), ("local-chat-completions", 66, 0)],
)
def test_prompts_that_were_cut_are_counted(
    compare: Any, engine: str, length: int, cut: int
) -> None:
    def change(base: WrittenRun, candidate: WrittenRun) -> None:
        only("numbers", base, candidate)
        for run in (base, candidate):
            run.config["model"] = engine
        long = "How many of these are there? "
        for run in (base, candidate):
            for row in run.tasks["numbers"].rows:
                asked = row["arguments"]["gen_args_0"]
                asked["arg_0"] = f"{long}{asked['arg_0']}"
        candidate.more["max_length"] = base.more["max_length"] = length

    found = of_kind(compare(change), "prompts_cut")
    assert [one.values["cut"] for one in found] == [cut, cut][: 2 * bool(cut)]
    assert not any("How many" in one.text for one in found)


@pytest.mark.parametrize(
    ("engine", "version", "add_bos_token", "doubled"),
    [
        ("hf", "0.4.9", True, True),
        ("hf", "0.4.13", True, False),
        ("vllm", "0.4.13", True, False),
        ("local-completions", "0.4.13", True, True),
        ("local-completions", "0.4.13", False, False),
        ("local-chat-completions", "0.4.13", True, False),
    ],
)
def test_bos_that_is_written_twice_is_said(
    compare: Any, engine: str, version: str, add_bos_token: bool, doubled: bool
) -> None:
    def change(base: WrittenRun, candidate: WrittenRun) -> None:
        only("numbers", base, candidate)
        for run in (base, candidate):
            run.config |= {"model": engine, "model_args": {"add_bos_token": add_bos_token}}
            run.more |= {"lm_eval_version": version, "tokenizer_bos_token": ["<s>", "1"]}
            for row in run.tasks["numbers"].rows:
                asked = row["arguments"]["gen_args_0"]
                asked["arg_0"] = f"<s>{asked['arg_0']}"

    found = of_kind(compare(change), "bos_twice")
    assert [one.values["doubled"] for one in found] == [240, 240][: 2 * doubled]


def test_which_of_several_runs_in_a_folder_is_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base, candidate = write_finished_runs(tmp_path, lambda *runs: only("words", *runs))
    for file in sorted(candidate.iterdir()):
        shutil.copy(file, file.with_name(file.name.replace(DATE, "2026-11-18T09-00-00.000000")))
    report = evalguard.compare(str(base), str(candidate), **OPTIONS).report
    (found,) = of_kind(report, "run_chosen")
    assert found.text.startswith("of 2 runs in ")
    assert f"the newest is read, results_{DATE}.json" in found.text
    assert found.values["older"] == ("results_2026-11-18T09-00-00.000000.json",)


def test_a_caveat_of_rounded_log_probabilities_is_of_log_likelihoods_only(compare: Any) -> None:
    def change(base: WrittenRun, candidate: WrittenRun) -> None:
        for run in (base, candidate):
            run.tasks = {name: run.tasks[name] for name in ("numbers", "words")}
            run.config["model_args"] = {"pretrained": run.model, "dtype": "bfloat16"}

    rounded = {
        one.task: any("rounded to bfloat16" in caveat for caveat in one.caveats)
        for one in compare(change).comparisons
    }
    assert rounded == {"numbers": False, "words": True}


HARNESSES = {
    "lighteval": {
        "results/org/m/results_2026-11-20T10-00-00.000000.json": {
            "config_general": {}, "results": {},
        },
        "details/org/m/2026-11-20/details_gsm8k_2026-11-20.parquet": None,
    },
    "Inspect": {"logs/2026-11-20T10-00-00+00-00_gsm8k_abc.eval": None},
    "HELM": {"runs/v1/mmlu:model=m/run_spec.json": {}, "runs/v1/mmlu:model=m/stats.json": {}},
    "OpenCompass": {
        "20261120_100000/configs/c.py": None,
        "20261120_100000/predictions/m/gsm8k.json": {},
        "20261120_100000/results/m/gsm8k.json": {},
        "20261120_100000/summary/summary.csv": None,
    },
    "EvalScope": {"20261120/predictions/m/a.jsonl": None, "20261120/reviews/m/a.jsonl": None},
    "VLMEvalKit": {"m/m_MMBench.xlsx": None, "m/m_MMBench_acc.csv": None},
    "NeMo Evaluator": {"artifacts/results.yml": None, "artifacts/run_config.yml": None},
    "simple-evals": {"mmlu_m.json": {"score": 0.5, "score:std": 0.5}},
    "OLMES": {"task-000-gsm8k-predictions.jsonl": None, "metrics.json": {}},
    "BigCode's harness": {"evaluation_results.json": {"humaneval": {"pass@1": 0.3}}},
}  # fmt: skip


@pytest.mark.parametrize("name", HARNESSES)
def test_a_folder_of_another_harness_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, content in HARNESSES[name].items():
        path = tmp_path / "run" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if content is None else json.dumps(content))
    assert not is_lmeval_run(tmp_path / "run")
    with pytest.raises(UsageError, match=f"is a run of {name}") as error:
        evalguard.compare("run", "run", **OPTIONS)
    assert "lm_eval --log_samples" in str(error.value.hint)


def test_a_file_of_lighteval_is_known_beside_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "results_2026-11-20T10-00-00.000000.json"
    path.write_text(json.dumps({"config_general": {}, "results": {}}))
    assert name_other_harness(path) == "lighteval"
    assert not is_lmeval_run(path)


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": {}, "generations.json": {}},
        {"model.gguf": None, "results.json": {"score": 1}},
        {"weights.safetensors": None, "stats.json": {}},
        {"a.py": None, "predictions/a.json": {}},
    ],
)
def test_a_model_or_any_other_folder_is_none_of_them(tmp_path: Path, files: Any) -> None:
    for file, content in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if content is None else json.dumps(content))
    assert name_other_harness(tmp_path) == ""
