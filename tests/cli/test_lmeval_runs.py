"""Two finished lm-eval runs are compared without a model, and say what running both says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lmeval_output import run_lm_eval
from small_world import SmallWorld, write_tasks

import evalguard
from evalguard.comparison.stored_run import read_stored_run

TASKS = ("sw_word", "sw_choice", "sw_text")


@pytest.fixture(scope="module")
def lm_eval(world: SmallWorld, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def run(
        model: str = "llama", tasks: Path = world.tasks, names: Any = TASKS, **given: Any
    ) -> Path:
        output = tmp_path_factory.mktemp("lm-eval") / f"of-{model}"
        return run_lm_eval(output, world.models[model], tasks, names, **given)

    return run


@pytest.fixture(scope="module")
def base_run(lm_eval: Any) -> Path:
    found: Path = lm_eval("llama")
    return found


@pytest.fixture(scope="module")
def other_run(lm_eval: Any) -> Path:
    found: Path = lm_eval("other")
    return found


def numbers(document: dict[str, Any]) -> dict[tuple[str, str], list[float]]:
    fields = ("base", "base_stderr", "candidate", "candidate_stderr", "sigma", "p_value")
    return {
        (c["task"], c["metric"]): [c[field] for field in fields] for c in document["comparisons"]
    }


def test_two_finished_runs_say_what_running_both_models_says(
    run: Any, compare: Any, base_run: Path, other_run: Path
) -> None:
    stored = run("compare", "--base", base_run, "--cand", other_run, "--json")
    scored = compare("orig", "other", "--tasks", ",".join(TASKS), "--json")
    assert stored.code == scored.code
    assert "loading" not in stored.err
    found, expected = numbers(stored.document), numbers(scored.document)
    assert found.keys() == expected.keys()
    for key, values in found.items():
        assert values == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    assert stored.document["base"]["kind"] == "lm-eval run"
    assert stored.document["base"]["name"] == "of-llama"


def test_the_documents_of_finished_runs_can_be_looked_at(
    run: Any, base_run: Path, other_run: Path
) -> None:
    run("compare", "--base", base_run, "--cand", other_run)
    (folder,) = Path("reports").iterdir()
    found = read_stored_run(folder).documents("sw_choice")
    assert found is not None
    assert all(found.of("base", "prompt"))
    assert found.of("base", "loglikelihood") != found.of("candidate", "loglikelihood")
    assert sum(found.drifts("none", "acc") or ()) == pytest.approx(
        next(c.sigma for c in read_stored_run(folder).report.comparisons if c.task == "sw_choice")
    )
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'id="grid"' in page
    assert page.count('id="texts-') == len(TASKS)


def test_finished_runs_can_be_a_chain(
    run: Any, base_run: Path, other_run: Path, tmp_path: Path
) -> None:
    again = shutil.copytree(base_run, tmp_path / "again")
    sides = ("--base", base_run, "--cand", other_run, "--cand", again)
    document = run("compare", *sides, "--chain", "--json").document
    there, (back,) = document["candidates"][0], document["steps"]
    assert (back["base"], back["candidate"]) == ("of-other", "again")
    drifts = {(one["task"], one["metric"]): one["sigma"] for one in back["drifts"]}
    for one in there["comparisons"]:
        assert one["sigma"] + drifts[one["task"], one["metric"]] == pytest.approx(0.0, abs=1e-9)


def test_a_comparison_of_finished_runs_is_no_baseline(
    run: Any, base_run: Path, other_run: Path
) -> None:
    run("compare", "--base", base_run, "--cand", other_run)
    (folder,) = Path("reports").iterdir()
    ran = run("compare", "--base", folder, "--cand", other_run)
    assert ran.code == 2
    assert "which is a lm-eval run" in ran.err
    assert run("history", "add", folder, "--history", "h.sqlite").code == 0


def test_a_comparison_of_finished_runs_is_shown_again(
    run: Any, base_run: Path, other_run: Path
) -> None:
    stored = run("compare", "--base", base_run, "--cand", other_run, "-o", "page.md", "-v")
    (folder,) = Path("reports").iterdir()
    again = run("report", folder, "-o", "again.md")
    assert (again.code, Path("again.md").read_text()) == (0, Path("page.md").read_text())
    assert run("report", folder).out == stored.out


def test_a_finished_run_can_stand_beside_a_model(
    run: Any, world: SmallWorld, base_run: Path
) -> None:
    words = ("--config", world.guard, "--base", base_run, "--cand", "same")
    ran = run("compare", *words, "--json", "--tasks", "sw_word")
    assert ran.code == 0
    (perplexity, acc) = ran.document["comparisons"]
    assert perplexity["sigma"] == pytest.approx(0.0, abs=1e-4)
    assert acc["bit_identical"]


def test_one_model_run_twice_is_bit_identical(run: Any, lm_eval: Any, base_run: Path) -> None:
    again = lm_eval("llama")
    ran = run("compare", "--base", base_run, "--cand", again, "--json")
    assert ran.code == 0
    assert all(c["bit_identical"] for c in ran.document["comparisons"])


def test_a_run_against_itself_says_nothing(run: Any, base_run: Path) -> None:
    ran = run("compare", "--base", base_run, "--cand", base_run, "--json")
    assert ran.code == 3
    assert all("both sides are one run" in c["reason"] for c in ran.document["comparisons"])


def test_a_run_of_a_model_that_answered_nan_fails_on_every_metric(
    run: Any, lm_eval: Any, base_run: Path
) -> None:
    broken = lm_eval("nan")
    ran = run("compare", "--base", base_run, "--cand", broken, "--json")
    assert ran.code == 1  # every document is broken, and the base's are not
    assert ran.document["broken_documents"]
    assert {c["outcome"] for c in ran.document["comparisons"]} == {"failed"}


def test_a_limit_that_differs_is_a_failure_with_both_counts(
    run: Any, lm_eval: Any, base_run: Path
) -> None:
    short = lm_eval("other", names=("sw_word",), limit=10)
    ran = run("compare", "--base", base_run, "--cand", short, "--tasks", "sw_word")
    assert ran.code == 3
    text = " ".join(ran.out.split())
    assert "14 documents only in" in text
    assert "run both with the same --limit" in text


def test_few_shot_seeds_that_differ_are_a_failure(run: Any, lm_eval: Any, base_run: Path) -> None:
    reseeded = lm_eval("other", names=("sw_choice",), fewshot_random_seed=99)
    ran = run("compare", "--base", base_run, "--cand", reseeded, "--tasks", "sw_choice")
    assert ran.code == 3
    text = " ".join(ran.out.split())
    assert "fewshot_seed is 1234 in" in text
    assert "99 in" in text


def test_other_documents_are_a_failure(
    run: Any, lm_eval: Any, base_run: Path, tmp_path: Path
) -> None:
    tasks = write_tasks(tmp_path / "tasks")
    rows = (tasks / "test.jsonl").read_text().replace("lantern", "candle")
    (tasks / "test.jsonl").write_text(rows)
    changed = lm_eval("other", tasks=tasks, names=("sw_word",))
    ran = run("compare", "--base", base_run, "--cand", changed, "--tasks", "sw_word")
    assert ran.code == 3
    text = " ".join(ran.out.split())
    assert "documents (doc_hash) differ in" in text
    assert "of 24 documents" in text


def test_a_metric_that_one_run_lacks_is_a_failure_of_that_metric(
    run: Any, lm_eval: Any, base_run: Path
) -> None:
    fewer = lm_eval("llama", names=("sw_word",))
    ran = run("compare", "--base", base_run, "--cand", fewer)
    assert ran.code == 3
    assert "only the base has this metric, not the candidate" in " ".join(ran.out.split())


def test_options_of_a_model_have_no_effect_on_a_run_and_are_refused(
    refused: Any, base_run: Path
) -> None:
    sides = ("compare", "--base", base_run, "--cand", base_run)
    for words in (("--cand-model-args", "dtype=float16"), ("--set", "a=1")):
        ran = refused(2, *sides, *words)
        assert "is a finished lm-eval run: no model is loaded" in ran.err


def test_guard_files_of_another_program_are_in_nobodys_way(
    run: Any, refused: Any, base_run: Path, other_run: Path
) -> None:
    Path("configs").mkdir()
    Path("configs/train.yaml").write_text("defaults: [model, data]\n")
    ran = run("compare", "--base", base_run, "--cand", other_run, "--json")
    assert ran.code == 0
    (note,) = [n for n in ran.document["notes"] if "no guard file is used" in n]
    assert "configs/train.yaml" in note
    assert "configs/train.yaml:1" in refused(2, "compare", "--base", "a", "--cand", base_run).err


def test_the_newest_of_several_dates_is_read_and_said(
    run: Any, lm_eval: Any, base_run: Path, world: SmallWorld, tmp_path: Path
) -> None:
    (source,) = [path for path in base_run.iterdir() if path.is_dir()]
    folder = tmp_path / "dated"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
        date = path.stem.rpartition("_")[2]
        older = path.name.replace(date, f"2001{date[4:]}")
        (folder / older).write_text(path.read_text().replace('"acc": 0', '"acc": 1'))
    ran = run("compare", "--base", base_run, "--cand", folder, "--json")
    assert ran.code == 0
    assert all(c["bit_identical"] for c in ran.document["comparisons"])
    assert any(
        one["kind"] == "run_chosen" and "the newest is read" in one["text"]
        for one in ran.document["findings"]
    )
    assert json.loads(ran.out)["candidate"]["name"] == "dated"


def test_no_model_library_is_loaded_for_finished_runs(
    base_run: Path, other_run: Path, tmp_path: Path
) -> None:
    words = ["compare", "--base", str(base_run), "--cand", str(other_run)]
    code = (
        f"import sys, evalguard.cli\ntry: evalguard.cli.main({words!r})\n"
        "except SystemExit as end: assert end.code in (0, 1), end.code\n"
        "heavy = ('torch', 'lm_eval', 'transformers', 'datasets')\n"
        "assert not [m for m in heavy if m in sys.modules]"
    )
    checkout = str(Path(evalguard.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": checkout}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def older_run(lm_eval: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as lm-eval 0.4.8 scored and saved them: no BOS, no version, old samples."""
    made = lm_eval("llama", model_args={"add_bos_token": False})
    folder = tmp_path_factory.mktemp("older") / "of-llama-0.4.8"
    shutil.copytree(made, folder)
    (results,) = folder.rglob("results_*.json")
    content = json.loads(results.read_text())
    del content["lm_eval_version"]
    content["transformers_version"] = "4.44.0"
    content["config"]["model_args"] = f"pretrained={content['model_name']},dtype=float32"
    results.write_text(json.dumps(content))
    for file in folder.rglob("samples_*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            del row["filter"], row["metrics"]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_a_run_of_an_unknown_lm_eval_is_refused_where_likelihoods_would_be_compared(
    run: Any, older_run: Path, base_run: Path
) -> None:
    ran = run("compare", "--base", older_run, "--cand", base_run, "--json")
    assert ran.code == 3
    assert {c["outcome"] for c in ran.document["comparisons"]} == {"failed"}
    for comparison in ran.document["comparisons"]:
        reason = " ".join(comparison["caveats"] + [str(comparison.get("reason"))])
        assert "the version of lm-eval is not recorded in" in reason
        assert "--allow-differing tokens" in reason
    assert any("transformers_version is 4.44.0" in one["text"] for one in ran.document["findings"])
    words = ("--allow-differing", "tokens", "--json")
    told = run("compare", "--base", older_run, "--cand", base_run, *words).document
    rolling = next(c for c in told["comparisons"] if c["metric"] == "word_perplexity")
    assert rolling["sigma"] > 1  # the same weights: BOS given BOS is all
    assert any("0.4.13" in c and c.endswith("as declared") for c in rolling["caveats"])


def test_a_model_beside_a_run_of_an_unknown_lm_eval_is_not_even_loaded(
    refused: Any, run: Any, world: SmallWorld, older_run: Path
) -> None:
    words = ("compare", "--config", world.guard, "--base", older_run, "--cand", "same")
    words += ("--tasks", ",".join(TASKS))
    ran = refused(3, *words)
    assert "the version of lm-eval is not recorded in the run of-llama-0.4.8" in ran.err
    assert "run lm_eval again with" in ran.err
    assert "loading" not in ran.err
    # what 0.4.8 read is what is read here with BOS once, and without it before a context
    same = ("--allow-differing", "tokens", "--cand-model-args", "add_bos_token=False", "--json")
    for comparison in run(*words, *same).document["comparisons"]:
        assert comparison["sigma"] == pytest.approx(0.0, abs=1e-3)


def test_bos_once_beside_a_finished_run_is_refused(
    run: Any, world: SmallWorld, base_run: Path
) -> None:
    once = world.saying("rolling_bos: once")
    sides = ("--config", once, "--base", base_run, "--cand", "same", "--tasks", "sw_text")
    ran = run("compare", *sides)
    assert ran.code == 3
    assert "rolling_bos is lm-eval in" in " ".join(ran.out.split())


LONG_TEXTS = {"max_length": 16}  # of some 20 to 70 tokens: one window to five


@pytest.fixture(scope="module")
def read_in_windows(lm_eval: Any) -> Path:
    found: Path = lm_eval("llama", names=("sw_text",), model_args=LONG_TEXTS)
    return found


@pytest.mark.parametrize("scorer", ["fast", "harness"])
@pytest.mark.parametrize("windows", ["one window", "several windows"])
def test_whole_texts_have_the_values_that_lm_eval_reports(
    compare: Any, base_run: Path, read_in_windows: Path, scorer: str, windows: str
) -> None:
    one = windows == "one window"
    (results,) = (base_run if one else read_in_windows).rglob("results_*.json")
    reported = json.loads(results.read_text())["results"]["sw_text"]
    args = (
        () if one else ("--base-model-args", "max_length=16", "--cand-model-args", "max_length=16")
    )
    words = ("--tasks", "sw_text", "--scorer", scorer, "--verify-scorer", 24, "--json", *args)
    document = compare("orig", "other", *words).document
    for comparison in document["comparisons"]:
        expected = reported[f"{comparison['metric']},none"]
        assert comparison["base"] == pytest.approx(expected, rel=1e-6)
        assert any("BOS given BOS counts" in text for text in comparison["provenance"])
    assert document["environment"]["base"]["rolling_bos"] == "lm-eval"
    if scorer == "fast":
        # Of both models at once where they say the same, which their rounding decides.
        said = "sw_text: 24 documents scored again by lm-eval's own path"
        assert any(note.removeprefix("orig: ").startswith(said) for note in document["notes"])


def test_bos_once_is_asked_for_said_and_not_verified(
    compare: Any, lm_eval: Any, world: SmallWorld
) -> None:
    without = lm_eval("llama", names=("sw_text",), model_args={"add_bos_token": False})
    (results,) = without.rglob("results_*.json")
    reported = json.loads(results.read_text())["results"]["sw_text"]
    words = ("--tasks", "sw_text", "--config", world.saying("rolling_bos: once"), "--json")
    document = compare("orig", "other", *words, "--verify-scorer", 4).document
    for comparison in document["comparisons"]:
        expected = reported[f"{comparison['metric']},none"]
        assert comparison["base"] == pytest.approx(expected, rel=1e-6)
        assert any(
            "lm-eval itself gives another value" in text for text in comparison["provenance"]
        )
    assert document["environment"]["base"]["rolling_bos"] == "once"
    assert any("sw_text: its scores were not verified" in note for note in document["notes"])


def test_bos_once_is_refused_where_lm_evals_own_code_reads_the_texts(
    refused_pair: Any, world: SmallWorld
) -> None:
    words = ("--tasks", "sw_text", "--config", world.saying("rolling_bos: once"))
    ran = refused_pair(2, "orig", "other", *words, "--scorer", "harness")
    assert "otherwise than lm-eval's own path" in ran.err


def test_a_stored_base_of_the_other_reading_is_refused_and_the_key_named(
    run: Any, refused: Any, compare: Any, world: SmallWorld
) -> None:
    once = ("--tasks", "sw_text", "--config", world.saying("rolling_bos: once"), "--json")
    made = compare("orig", "other", *once).document
    again = ("--config", world.guard, "--base", made["run_folder"], "--cand", "other")
    ran = refused(3, "compare", *again, "--tasks", "sw_text", "--allow-differing", "tokens")
    assert "rolling_bos is 'once' in" in ran.err
    assert "run: {rolling_bos: ...} as in the stored run" in ran.err
    same = run("compare", *again, *once).document
    assert [c["sigma"] for c in same["comparisons"]] == [c["sigma"] for c in made["comparisons"]]


def test_a_bos_that_one_side_lost_is_no_silent_improvement(compare: Any, world: SmallWorld) -> None:
    lost = ("--tasks", "sw_text", "--cand-model-args", "add_bos_token=False")
    assert compare("orig", "same", *lost).code == 3
    declared = (*lost, "--allow-differing", "tokens", "--json")
    for comparison in compare("orig", "same", *declared).document["comparisons"]:
        (caveat,) = [c for c in comparison["caveats"] if c.startswith("token ids differ in 24")]
        assert "only orig counts the likelihood of BOS given BOS" in caveat
    once = compare(
        "orig", "same", *lost, "--config", world.saying("rolling_bos: once"), "--json"
    ).document
    assert all(c["bit_identical"] for c in once["comparisons"])
