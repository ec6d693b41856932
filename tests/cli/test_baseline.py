"""``compare --base RUN``: a stored base gives the numbers that its model gave, or is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_result import edit_result
from history_examples import METRIC, N, documents, keep_nights, night
from small_world import Ran, SmallWorld

from evalguard.comparison.stored_sides import read_stored_tables
from evalguard.errors import EvaluationError
from evalguard.harness.scored_answers import requested_documents
from evalguard.nights.document_scores import DocumentHashes
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_runs import read_base_of_history
from evalguard.store.run_tables import read_samples, sample_files

Run = Callable[..., Ran]
TASKS_OF_HISTORY = ("--tasks", "sw_word,sw_choice,sw_text")
TASKS = ("--tasks", "sw_word,sw_choice,sw_text,sw_mcc")
# The q-value is one of all metrics of a run, and mcc is left out beside a stored base.
# Without mcc, one metric fewer is judged: what is undecided lacks other numbers.
_OF_THE_RUN = ("caveats", "provenance", "bh_q_value", "undecided")
_OF_ANSWERS = ("same_answer", "same_answer_interval", "churn")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.sqlite"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what the one comparison left is kept, once there is something."""
    return tmp_path_factory.mktemp("kept") / "folder"


@pytest.fixture
def made(compare: Run, file: Path, kept: Path, tmp_path: Path) -> dict[str, Any]:
    """One comparison for all tests; each has a copy of its own of what it left."""
    if kept.exists():
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    else:
        found = compare("orig", "sharp", *TASKS, "--limit", 20, "--history", file, "--json")
        (tmp_path / "made.json").write_text(found.out)
        shutil.copytree(tmp_path, kept)
    return dict(json.loads((tmp_path / "made.json").read_text()))


@pytest.fixture
def against(run: Run, world: SmallWorld) -> Run:
    def compared(baseline: object, candidate: str, *words: object) -> Ran:
        config = ("--config", world.guard, "--cand", candidate)
        tasks = () if "--tasks" in words else TASKS
        return run("compare", *config, "--base", baseline, *tasks, *words)

    return compared


def rows(document: dict[str, Any], *left_out: str) -> list[dict[str, Any]]:
    kept = [c for c in document["comparisons"] if c["metric"] != "mcc"]
    return [{k: v for k, v in one.items() if k not in left_out} for one in kept]


def test_a_stored_base_gives_every_number_that_its_model_gave(
    against: Run, made: dict[str, Any], file: Path
) -> None:
    found = json.loads(against(made["run_folder"], "sharp", "--json").out)
    for one, other in zip(rows(found, *_OF_THE_RUN), rows(made, *_OF_THE_RUN), strict=True):
        assert {key: one[key] for key in one if one[key] != other[key]} == {}
    assert (found["base"]["kind"], found["base"]["digest"]) == (
        "stored run", made["base"]["digest"],
    )  # fmt: skip
    assert f"stored {made['created']}" in found["base"]["description"]
    # A history does not know of a metric that was not compared, which on a slow machine mcc is not.
    of_history = json.loads(against(file, "sharp", *TASKS_OF_HISTORY, "--json").out)
    left_out = (*_OF_THE_RUN, *_OF_ANSWERS)
    for one, other in zip(rows(of_history, *left_out), rows(made, *left_out), strict=True):
        assert {key: one[key] for key in one if one[key] != other[key]} == {}


def answered(folder: str, side: str, task: str = "sw_choice") -> dict[str, list[Any]]:
    """What a side was asked and answered, by the names of the columns."""
    columns = read_samples(Path(folder) / "samples" / f"{task}.parquet")
    own = {name: values for name, values in columns.items() if name.startswith(f"{side}:")}
    shared = {name: values for name, values in columns.items() if ":" not in name}
    return {**shared, **{name.removeprefix(f"{side}:"): values for name, values in own.items()}}


def test_a_stored_base_s_answers_stand_beside_the_candidate_s(
    against: Run, made: dict[str, Any]
) -> None:
    found = against(made["run_folder"], "sharp", "--json").document["run_folder"]
    for task in ("sw_word", "sw_choice", "sw_text"):
        kept = answered(found, "base", task)
        assert kept == answered(made["run_folder"], "base", task)
        assert {"prompt", "loglikelihood", "token_logprobs", "text"} <= kept.keys()
    assert "no answers are shown" not in (Path(found) / "report.html").read_text()


def test_the_other_side_of_a_run_brings_its_own_answers(against: Run, made: dict[str, Any]) -> None:
    found = against(f"{made['run_folder']}:sharp", "orig", "--json").document
    assert answered(found["run_folder"], "base") == answered(made["run_folder"], "candidate")


def test_of_a_history_the_page_says_why_it_shows_no_answers(
    against: Run, made: dict[str, Any], file: Path
) -> None:
    found = against(file, "sharp", *TASKS_OF_HISTORY, "--json").document
    page = (Path(found["run_folder"]) / "report.html").read_text()
    said = "Of orig no answers are shown: its scores come from a history, which keeps numbers"
    assert said in page


def test_a_run_beside_a_stored_base_can_be_a_baseline_and_says_where_it_comes_from(
    against: Run, run: Run, made: dict[str, Any], tmp_path: Path
) -> None:
    first = against(made["run_folder"], "sharp", "--json").document
    again = against(first["run_folder"], "sharp", "--json").document
    told = ("caveats", "provenance")
    assert rows(again, *told) == rows(first, *told)
    provenance = again["comparisons"][0]["provenance"]
    assert sum("scores that were stored on" in text for text in provenance) >= 1
    assert again["base"]["digest"] == made["base"]["digest"]
    added = run("history", "add", first["run_folder"], "--history", tmp_path / "h", "--json")
    assert added.document["add"]["with_documents"] == len(first["comparisons"])


def test_it_says_that_the_base_was_stored_and_when(against: Run, made: dict[str, Any]) -> None:
    found = json.loads(against(made["run_folder"], "sharp", "--json").out)
    said = f"base: scores that were stored on {made['created']}"
    assert all(said in one["provenance"] for one in found["comparisons"])


def test_a_metric_of_a_task_s_own_aggregation_is_left_out_and_said(
    against: Run, made: dict[str, Any]
) -> None:
    found = json.loads(against(made["run_folder"], "sharp", "--json").out)
    (left_out,) = [one for one in found["not_compared"] if one["metric"] == "mcc"]
    assert "the task's own" in left_out["reason"]
    assert "mcc" not in [one["metric"] for one in found["comparisons"]]
    (note,) = [one for one in found["findings"] if one["kind"] == "not_judged"]
    assert note["values"]["metrics"] == ["sw_mcc mcc"]


@pytest.mark.parametrize("named", ["mcc", "sw_mcc/mcc"])
def test_a_metric_that_the_gate_names_and_nobody_can_compare_is_no_pass(
    run: Run, world: SmallWorld, made: dict[str, Any], named: str
) -> None:
    guard = world.saying(more=f"gate: {{only: [acc, {named}]}}\n")
    config = ("--config", guard, "--base", made["run_folder"], "--cand", "orig")
    ran = run("compare", *config, *TASKS, "--bisect", "never")
    assert ran.code == 3, ran.err
    assert f"the gate lists {named}" in " ".join(ran.out.split())


def test_a_task_of_which_nothing_could_be_compared_then_is_left_out_and_said(
    against: Run, compare: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.harness.score_tables.LONGEST", 0.0)
    made = json.loads(
        compare("orig", "sharp", "--tasks", "sw_word,sw_mcc", "--limit", 20, "--json").out
    )
    found = json.loads(
        against(made["run_folder"], "soft", "--tasks", "sw_word,sw_mcc", "--json").out
    )
    assert [one["task"] for one in found["not_compared"]] == ["sw_mcc"]
    assert "not_judged" in [one["kind"] for one in found["findings"]]
    assert {one["task"] for one in found["comparisons"]} == {"sw_word"}


def test_the_other_side_of_a_run_can_be_the_base(against: Run, made: dict[str, Any]) -> None:
    found = json.loads(against(f"{made['run_folder']}:sharp", "orig", "--json").out)
    assert found["base"]["name"] == "sharp"
    assert [one["base"] for one in rows(found)] == [one["candidate"] for one in rows(made)]


def test_tasks_that_are_not_asked_now_are_left_out_and_named(
    against: Run, made: dict[str, Any]
) -> None:
    found = json.loads(against(made["run_folder"], "sharp", "--tasks", "sw_word", "--json").out)
    assert {one["task"] for one in found["comparisons"]} == {"sw_word"}
    assert any("sw_choice, sw_text" in note for note in found["notes"])


def test_the_stored_limit_counts_where_none_is_given(against: Run, made: dict[str, Any]) -> None:
    found = json.loads(against(made["run_folder"], "sharp", "--json").out)
    assert {one["n"] for one in found["comparisons"]} == {20}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--tasks", "sw_word,sw_long"), 2, "orig (reports/"),
        (("--tasks", "sw_word,sw_long"), 2, "no scores of sw_long are kept"),
        (("--tasks", "sw_word,sw_long"), 2, "its tasks: sw_word, sw_choice, sw_text"),
        (("--limit", 10), 3, "run both with the same --limit"),
        (("--limit", 10), 3, "with the same --limit"),
        (("--tasks", "sw_word", "--num-fewshot", 2), 3, "num_fewshot is 0 in stored run orig"),
        (("--sequential", "--tasks", "sw_long"), 2, "no scores of sw_long are kept"),
    ],
)
def test_what_the_base_was_not_asked_is_refused_before_a_model_is_loaded(
    against: Run, made: dict[str, Any], unloaded: None, words: Any, code: int, said: str
) -> None:
    found = against(made["run_folder"], "soft", *words)
    assert (found.code, found.out) == (code, "")
    assert said in found.err


@pytest.mark.parametrize(
    ("limit", "said", "hint"),
    [
        (
            "kl_mean=0.01",
            "the gate has limits on kl_mean, and the stored base 'orig' holds scores, no "
            "distributions",
            "name the model itself with --base, or leave out the limits",
        ),
        (
            "same_answer=0.9",
            "the gate asks for figures of generated answers (same_answer), and the stored base "
            "'orig' keeps no texts",
            "give its run folder in place of the history, or name the model itself",
        ),
    ],
)
def test_a_limit_that_a_stored_base_cannot_be_held_to_is_refused_before_a_model_is_loaded(
    against: Run, made: dict[str, Any], unloaded: None, file: Path, limit: str, said: str, hint: str
) -> None:
    found = against(file, "sharp", *TASKS_OF_HISTORY, "--gate-metric", limit)
    assert (found.code, found.out) == (2, "")
    assert f"error: {said}" in " ".join(found.err.split())
    assert f"hint: {hint}" in " ".join(found.err.split())


def test_a_limit_on_answers_holds_against_a_run_folder(against: Run, made: dict[str, Any]) -> None:
    words = ("--tasks", "sw_choice", "--gate-metric", "same_answer=0.99", "--json")
    limits = against(made["run_folder"], "sharp", *words).document["gate"]["limits"]
    assert [(one["metric"], one["value"] is None) for one in limits] == [("same_answer", False)]


def test_other_documents_are_refused_by_their_hashes_before_a_model_is_loaded(
    against: Run, made: dict[str, Any], unloaded: None, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    asked = requested_documents

    def others(requests: Any) -> Any:
        return tuple(dataclasses.replace(one, doc_hash="0" * 64) for one in asked(requests))

    monkeypatch.setattr("evalguard.engine.stored_requests.requested_documents", others)
    for baseline in (made["run_folder"], file):
        found = against(baseline, "soft", "--tasks", "sw_word")
        assert found.code == 3
        assert "documents (doc_hash) differ in 20 of 20 documents" in found.err


def test_other_token_ids_are_refused(against: Run, made: dict[str, Any], file: Path) -> None:
    for baseline in (made["run_folder"], file):
        found = against(baseline, "other-encoding", "--tasks", "sw_word", "--json")
        reasons = [one["reason"] for one in json.loads(found.out)["comparisons"]]
        assert found.code == 3
        assert all("token ids differ" in reason for reason in reasons)


def test_samples_of_another_run_are_refused(
    against: Run, compare: Run, made: dict[str, Any]
) -> None:
    other = json.loads(compare("soft", "same", *TASKS, "--limit", 20, "--json").out)
    samples = Path(made["run_folder"]) / "samples"
    shutil.rmtree(samples)
    shutil.copytree(Path(other["run_folder"]) / "samples", samples)
    found = against(made["run_folder"], "sharp")
    assert (found.code, "is not as evalguard wrote it" in found.err) == (3, True)
    # An earlier evalguard wrote no digests of them: their values tell.
    edit_result(Path(made["run_folder"]), lambda document: document.pop("files"))
    found = against(made["run_folder"], "sharp")
    assert (found.code, "they are not of one run" in found.err) == (3, True)


def test_other_packages_of_then_are_said(against: Run, made: dict[str, Any]) -> None:
    def older(document: dict[str, Any]) -> None:
        document["environment"]["base"]["packages"]["torch"] = "1.13"

    edit_result(Path(made["run_folder"]), older)
    findings = json.loads(against(made["run_folder"], "sharp", "--json").out)["findings"]
    (found,) = [one for one in findings if one["kind"] == "made_differently"]
    assert "torch 1.13 then" in found["text"]


@pytest.mark.slow
def test_a_stored_base_can_be_bisected_against(against: Run, made: dict[str, Any]) -> None:
    words = ("--tasks", "sw_word", "--bisect", "always", "--json")
    bisect = json.loads(against(made["run_folder"], "sharp", *words).out)["bisect"]
    assert [one["setting"] for one in bisect["culprits"]] == ["gain"]


def test_settings_cannot_be_derived_without_the_base_and_that_is_said(
    against: Run, made: dict[str, Any]
) -> None:
    words = ("--tasks", "sw_word", "--bisect", "always", "--json")
    found = json.loads(against(made["run_folder"], "other", *words).out)
    assert "orig is a stored base, without its model" in found["bisect_reason"]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (":orgi", [], "did you mean 'orig'?"),
        ("", ["--base-set", "gain=1"], "no model is loaded"),
        ("", ["--distributions", "lockstep"], "holds no distributions"),
    ],
)
def test_what_a_stored_base_cannot_do_is_refused(
    refused: Run, world: SmallWorld, made: dict[str, Any], name: str, words: list[str], said: str
) -> None:
    sides = ("--config", world.guard, "--cand", "sharp", "--base", f"{made['run_folder']}{name}")
    assert said in refused(2, "compare", *sides, *words).err


def test_a_model_in_there_may_be_named(
    run: Run, world: SmallWorld, made: dict[str, Any], file: Path
) -> None:
    def comparisons(*words: object) -> Any:
        found = run("compare", "--config", world.guard, "--cand", "sharp", "--json", *words)
        assert found.code == 1, found.err
        return json.loads(found.out)["comparisons"]

    for stored in (made["run_folder"], Path(made["run_folder"]) / "result.json", file):
        assert comparisons("--base", stored) == comparisons("--base", f"{stored}:orig")


def test_a_history_without_hashes_is_refused_with_what_to_do(
    refused: Run, world: SmallWorld, file: Path
) -> None:
    keep_nights(file, [0.1])
    sides = ("--config", world.guard, "--cand", "sharp", "--base", file)
    found = refused(2, "compare", *sides)
    assert "without the hashes" in found.err
    assert "reports/x" in found.err


def test_a_base_that_is_none_is_refused(refused: Run, world: SmallWorld, tmp_path: Path) -> None:
    config = ("--config", world.guard, "--cand", "sharp")
    for place in (tmp_path / "x", f"{tmp_path / 'x'}:orig"):
        assert "no model or lm-eval run at" in refused(2, "compare", *config, "--base", place).err
    assert "--base is missing" in refused(2, "compare", *config).err


def test_a_stored_base_whose_log_likelihoods_say_nothing_is_refused(made: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = sample_files(Path(made["run_folder"]))["sw_word"]
    assert read_stored_tables(path, "sw_word", "base", source="stored") is not None
    table = pq.read_table(path)
    place = table.schema.get_field_index("base:loglikelihood")
    column = pa.array([[0.0]] * table.num_rows, type=table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), path)
    with pytest.raises(EvaluationError, match="all 20 log-likelihoods are 0"):
        read_stored_tables(path, "sw_word", "base", source="stored")


@pytest.mark.parametrize(
    ("stored", "told"), [(0.0, "all 40 log-likelihoods are 0"), (-1.5, "-1.5")]
)
def test_a_history_whose_log_likelihoods_say_nothing_is_refused(
    stored: float, told: str, file: Path
) -> None:
    names = tuple(f"document {number}" for number in range(N))
    hashes = DocumentHashes(
        doc_hashes=names, prompt_hashes=names, target_hashes=names, asked_hashes=names
    )
    sound = -1.0 - np.arange(N) / N
    for base, said in ((sound, ""), (np.full(N, stored), told)):
        kept = documents(sound, base, aggregation="perplexity", hashes=hashes)
        metric = dataclasses.replace(METRIC, metric="perplexity")
        file.unlink(missing_ok=True)
        with HistoryFile(file, create=True) as history:
            history.add(night(0), [StoredMetric(metric=metric, documents=kept)], {})
        if not said:
            assert read_base_of_history(file, "", "port").tables[0].n == N
            continue
        with pytest.raises(EvaluationError, match=said):
            read_base_of_history(file, "", "port")


@pytest.mark.slow
def test_a_reference_file_is_a_base_without_its_model(
    compare: Run, run: Run, world: SmallWorld, tmp_path: Path
) -> None:
    file = tmp_path / "base.parquet"
    limits = ("--gate-metric", "kl_mean=0.001", "--json")
    with_model = compare("orig", "sharp", "--save-reference", file, *limits).document
    ran = compare(file, "sharp", *limits)
    assert ran.code == 1, ran.err
    found = ran.document
    assert found["distributions"] == with_model["distributions"]
    told = ("provenance", "caveats")
    assert rows(found, *told) == rows(with_model, *told)
    base = found["base"]
    assert (base["name"], base["kind"], base["digest"]) == (
        "orig", "stored run", with_model["base"]["digest"],
    )  # fmt: skip
    assert "from base.parquet" in base["description"]
    again = compare(found["run_folder"], "sharp", "--json").document  # and that run is a base, too
    assert rows(again, *_OF_THE_RUN) == rows(found, *_OF_THE_RUN)
    sides = ("--config", world.guard, "--base", file, "--cand", "sharp")
    bisect = run("bisect", *sides, "--json", "--quiet").document["bisect"]
    assert [one["setting"] for one in bisect["culprits"]] == ["gain"]
    assert bisect["repaired"]["passed"]
