"""Files that a version wrote are read by every later one, with the numbers that they hold.

``write_files.py`` made them, once for each version; no test makes them anew.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml
from small_world import Ran, run_here
from write_files import ANSWER, ANSWERS_OF, HERE, PLACE, make_place

from evalguard.comparison.asked_comparison import StoredRequest
from evalguard.comparison.stored_run import read_stored_run
from evalguard.config.guard import Guard
from evalguard.config.guard_search import load_guards
from evalguard.config.guard_writing import build_guard_schema
from evalguard.config.options import make_options
from evalguard.core.checksum import with_checksum
from evalguard.core.scorer import Response
from evalguard.distributions.reference_file import ReferenceFile
from evalguard.errors import UsageError
from evalguard.floors.known_floors import FloorStore, read_floor
from evalguard.nights.night_folders import NightJournal, read_last_night, read_pair
from evalguard.report.schemas import SCHEMAS
from evalguard.store.answer_journal import AnswerFile
from evalguard.store.block_cache import BlockCache, DivergenceCache, ReferenceCache, ScoreCache
from evalguard.store.fact_cache import BudgetStore, FactCache

VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "written.tar.xz").is_file())
Run = Callable[..., Ran]


@pytest.fixture(scope="module", params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a version wrote, elsewhere than it was written; no test changes it."""
    return unpack(request.param, tmp_path_factory.mktemp("written"))


def unpack(version: str, place: Path) -> Path:
    with tarfile.open(HERE / version / "written.tar.xz") as packed:
        packed.extractall(place, filter="data")
    return place


@pytest.fixture
def run(written: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command beside what was written; words with * are the one path that they match."""
    monkeypatch.chdir(written)

    def run_beside(*words: object) -> Ran:
        told = [one(written, str(word)) if "*" in str(word) else word for word in words]
        return run_here(told, capfd)

    return run_beside


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copy a file or folder that a test changes."""

    def copy(pattern: str) -> Path:
        found = one(written, pattern)
        target = tmp_path / found.name
        (shutil.copytree if found.is_dir() else shutil.copy)(found, target)
        return target

    return copy


def one(place: Path, pattern: str) -> Path:
    (found,) = place.glob(pattern)
    return found


def read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


# Where a folder lies now, and a checksum that has it.
OF_PLACE = ("run_folder", "folder", "checksum")
# Run folders: how the screen begins, and what stands further down.
RUNS = {
    "bisected/*": ("REGRESSED: sw_word perplexity +284 sigma [26, 3099]", "Cause: gain +284"),
    "grouped/*": ("UNDECIDED: sw_group acc +0.64 sigma [-0.77, 2.04], p = 0.50",
                  "sw_group · 24 documents in 2 subtasks"),
    "several/*-soft": ("UNDECIDED: sw_word acc 0.0pp [-24.2, 24.2]", "0.347 ± 0.023"),
    "several/*-sharp": ("REGRESSED: sw_word perplexity +284 sigma", "1.001 ± 0.073"),
    "referenced/*": ("REGRESSED: sw_word perplexity +284 sigma", "a mean between 0.94 and 2.8"),
    "nights/*/20261128*/*-port": ("UNDECIDED: sw_word acc 0.0pp [-24.2, 24.2]", "KL 1 nats"),
    "nights/*/20261129*/*-port": ("REGRESSED: sw_word perplexity +137 sigma", "1 regressed"),
}  # fmt: skip
_GROUP_S_TASKS = ["sw_choice", "sw_word", "sw_written"]


@pytest.mark.parametrize("folder", RUNS)
def test_a_run_is_shown_with_the_verdict_and_the_numbers_of_then(run: Run, folder: str) -> None:
    shown = run("report", folder)
    begins, has = RUNS[folder]
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(begins)
    assert has in shown.out


@pytest.mark.parametrize("folder", RUNS)
def test_a_run_as_json_is_the_document_that_was_kept(run: Run, written: Path, folder: str) -> None:
    kept = read(one(written, f"{folder}/result.json"))
    again = run("report", folder, "--format", "json").document
    assert {key: again[key] for key in kept if key not in OF_PLACE} == {
        key: value for key, value in kept.items() if key not in OF_PLACE
    }
    assert Path(again["run_folder"]).samefile(one(written, folder))


@pytest.mark.parametrize("folder", RUNS)
def test_documents_and_their_log_likelihoods_are_those_that_were_kept(
    written: Path, folder: str
) -> None:
    stored = read_stored_run(one(written, folder))
    stored.check_files()
    assert sorted(stored.tasks) == (_GROUP_S_TASKS if folder == "grouped/*" else ["sw_word"])
    for task in stored.tasks:
        documents = stored.documents(task)
        assert documents is not None
        assert list(documents.doc_ids) == list(range(12))
        assert bool(documents.tokens) == (task != "sw_written")


def test_a_bisection_names_its_culprit_and_what_it_cleared(run: Run) -> None:
    found = run("report", "bisected/*", "--format", "json").document["bisect"]
    assert found["status"] == "minimal"
    assert [culprit["setting"] for culprit in found["culprits"]] == ["gain"]
    assert found["searches"][0]["cleared"] == ["eps"]


def test_what_was_asked_for_is_known_to_a_bisection_that_goes_on(written: Path) -> None:
    asked = StoredRequest.read(one(written, "bisected/*"))
    assert (asked.base, asked.candidate, asked.cwd) == ("orig", "sharp", PLACE)
    assert asked.options.bisect == "always"


def test_a_bisection_without_a_history_goes_on_without_one(tmp_path: Path) -> None:
    options = make_options(None, history="none")
    asked = StoredRequest(base="a", candidate="b", cwd=tmp_path, options=options)
    assert asked.write(tmp_path)
    assert StoredRequest.read(tmp_path) == asked
    file = tmp_path / "bisection.json"
    before = json.loads(file.read_text()) | {"options": {"use_history": False}}
    file.write_text(json.dumps(with_checksum(before)))  # as earlier versions said it
    assert StoredRequest.read(tmp_path) == asked


def test_two_runs_and_what_several_candidates_printed_make_one_card(run: Run) -> None:
    of_runs = run("card", "several/*-soft", "several/*-sharp")
    assert of_runs.code == 0
    assert "| sharp | 111 kB | 32.0 | 1.00 \\[0.83, 1.18\\] |" in of_runs.out
    assert run("card", "several.json").out == of_runs.out


def test_a_plan_is_made_of_a_run(run: Run) -> None:
    planned = run("plan", "--run", "bisected/*")
    assert planned.code == 0
    assert "perplexity  2 [1, 3.7]         39 [30, 132]      55 [30, 187]" in planned.out


def test_a_run_and_an_error_are_shown_to_a_forge(run: Run) -> None:
    assert "REGRESSED: sw_word perplexity +284 sigma" in run("gitlab", "bisected/*").out
    assert "no model 'shrap' in evalguard.yaml" in run("gitlab", "error.json").out


def test_a_trace_is_shown_with_the_module_that_it_named(run: Run, written: Path) -> None:
    shown = run("report", "traced/*")
    assert shown.code == 0
    assert shown.out.startswith("LOCATED: model.layers.1.mlp.down_proj is the first module beyond")
    assert "relative L2 1.4, cosine -0.037801" in shown.out
    again = run("report", "traced/*", "--json").document
    kept = read(one(written, "traced/*/trace.json"))
    assert {key: again[key] for key in kept if key not in OF_PLACE} == {
        key: value for key, value in kept.items() if key not in OF_PLACE
    }


DOCUMENTS = {
    "compare": "bisected/*/result.json", "floor": "floor.json", "plan": "plan.json",
    "tensors": "tensors.json", "trace": "traced/*/trace.json",
    "nightly": "nights/*/20261129*/night.json",
}  # fmt: skip


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_document_fits_its_contract_which_may_have_got_more_keys(
    written: Path, kind: str
) -> None:
    document = read(one(written, DOCUMENTS[kind]))
    assert document["schema"] == f"evalguard.{kind}/1"
    contract = SCHEMAS[kind]()
    faults = jsonschema.Draft202012Validator(contract).iter_errors(document)
    assert [fault.message for fault in faults if fault.validator != "required"] == []
    assert set(document) <= set(contract["properties"])


def test_a_floor_is_known_by_its_model_its_task_and_its_environment(written: Path) -> None:
    document = read(written / "floor.json")
    floor = read_floor(document, "floor.json")
    assert {key: one.n for key, one in floor.floors.items()} == {
        ("sw_word", "none", "perplexity"): 12, ("sw_word", "none", "acc"): 12
    }  # fmt: skip
    store = FloorStore(written / "cache" / "floors")
    kept = store.get(floor.model, floor.tasks["sw_word"], floor.environment_key)
    assert kept is not None
    assert read_floor(kept, "cache").floors == floor.floors


NIGHTS = ("--history", "nights.sqlite")


def test_nights_of_a_history_are_listed_compared_and_whole(run: Run) -> None:
    listed = run("history", "list", *NIGHTS, "--json").document["runs"]
    assert [(night["run"], night["state"]) for night in listed] == [
        (1, "undecided"), (2, "regressed")
    ]  # fmt: skip
    trends = run("history", "trend", *NIGHTS)
    assert trends.out.startswith("No change point: port against orig")
    assert "140 ± 240" in trends.out
    flips = run("history", "flips", *NIGHTS)
    assert "moved most: 2 (-18), 5 (-8.1), 11 (-7.5), 10 (-6.8)" in flips.out
    checked = run("history", "check", *NIGHTS)
    assert "2 runs, 4 metrics" in checked.out
    assert {listed.code for listed in (trends, flips, checked)} == {0}


def test_a_night_s_run_is_known_to_the_history_and_another_run_is_added(
    run: Run, copied: Callable[[str], Path]
) -> None:
    history = copied("nights.sqlite")
    again = run("history", "add", "nights/*/20261129*/*-port", "--history", history)
    assert again.code == 2
    assert "has this run already: it is run 2" in again.err
    assert run("history", "add", "bisected/*", "--history", history).code == 0
    assert len(run("history", "list", "--history", history, "--json").document["runs"]) == 3


def test_a_night_s_journal_and_its_pairs_are_read(written: Path) -> None:
    second = one(written, "nights/*/20261129*")
    journal = NightJournal(second)
    assert (journal.head["schema"], journal.damaged) == ("evalguard.night-journal/1", 0)
    (verdict,) = [record["pair"] for record in journal.records if "verdict" in record]
    pair = read_pair(verdict)
    assert (pair.base, pair.candidate, pair.state) == ("orig", "port", "regressed")
    before = read_last_night(second.parent, "evalguard.yaml", before=second, note=print)
    assert before is not None
    assert [pair.state for pair in before[1]] == ["undecided"]


def test_a_cache_is_listed(run: Run) -> None:
    listed = run("cache", "ls", "--cache-dir", "cache", "--json").document["entries"]
    kinds = [entry["kind"] for entry in listed]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "answers": 1, "devices": 1, "divergences": 5, "facts": 2, "floors": 1, "references": 1,
        "scores": 8,
    }  # fmt: skip
    assert sum(entry["damaged"] + entry["leftovers"] for entry in listed) == 0
    of_orig = [e for e in listed if (e["kind"], e["name"]) == ("scores", "orig")]
    assert [e["tasks"] for e in of_orig] == [["sw_choice", "sw_word", "sw_written"]]


def blocks(cache: BlockCache[Any]) -> Iterator[Any]:
    for file in sorted(cache.current.rglob("*.parquet")):
        yield cache.get(file.parent.name, file.stem, mark=False)
    assert cache.problems == []


def test_every_block_of_a_cache_is_whole_and_says_what_was_answered(written: Path) -> None:
    cache = written / "cache"
    scores = list(blocks(ScoreCache(cache / "scores")))
    assert sorted(map(len, scores)) == [12] * 10 + [48, 48]
    assert {type(answer) for block in scores for answer in block} == {Response}
    compared = list(blocks(DivergenceCache(cache / "divergences")))
    assert {(block.reason, len(block.divergences)) for block in compared} == {("", 12), ("", 48)}
    (references,) = blocks(ReferenceCache(cache / "references"))
    assert len(references) == 12


def test_facts_and_answers_of_a_cache_are_read(written: Path, tmp_path: Path) -> None:
    facts = FactCache(written / "cache" / "facts")
    kept = sorted(facts.current.rglob("*.json"))
    assert all(facts.get(file.parent.name, file.stem) for file in kept)
    assert (len(kept), facts.problems) == (20, [])
    devices = written / "cache" / "devices"
    of_device = read(one(devices, "*.json"))
    assert BudgetStore(devices).get(of_device["of"]) == of_device["token_budget"] == 1024
    journal = shutil.copy(one(written, "cache/answers/*.jsonl"), tmp_path)
    answers = AnswerFile(Path(journal), facts=ANSWERS_OF, revision="of November")
    assert (answers.find("r1"), answers.problems) == (Response(**ANSWER), [])
    answers.close()


def test_a_reference_file_says_what_it_holds(written: Path) -> None:
    reference = ReferenceFile(written / "reference.parquet")
    assert reference.tasks == ("sw_word",)
    assert reference.facts["base"] == "orig"
    reference.close()


@pytest.fixture
def models(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guard file of a place where the models are that all this was written of."""
    shutil.copytree(tiny_llama, tmp_path / "llama")
    make_place(tmp_path, tmp_path / "llama")
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "evalguard.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("base", ["bisected/*", "reference.parquet"])
def test_a_candidate_of_today_is_compared_with_a_base_of_then(
    run: Run, written: Path, models: Path, base: str
) -> None:
    compared = run(
        "compare", "--config", models, "--base", one(written, base), "--cand", "sharp", "--json",
        "--output-path", models.parent / "runs",
    )  # fmt: skip
    assert compared.code == 1
    then = read(one(written, "bisected/*/result.json"))["comparisons"]
    assert [(c["metric"], c["base"]) for c in compared.document["comparisons"]] == [
        (c["metric"], c["base"]) for c in then
    ]


@pytest.mark.slow
def test_activations_that_were_dumped_then_are_those_of_the_model_today(
    run: Run, models: Path
) -> None:
    traced = run(
        "trace", "--config", models, "--base", "orig", "--cand", "dumped", "--json",
        "--output-path", models.parent / "runs",
    )  # fmt: skip
    assert (traced.code, traced.document["tokens"], traced.document["suspects"]) == (0, 19, [])


@pytest.mark.slow
def test_a_night_of_today_follows_the_nights_of_then(
    written: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = models.parent
    shutil.copytree(written / "nights", place / "nights")
    shutil.copy(written / "nights.sqlite", place)
    monkeypatch.chdir(place)
    night = run_here(["nightly", *NIGHTS, "--output-path", "nights", "--json"], capfd).document
    assert night["previous"] == "2026-11-29T03:00:00+00:00"
    (change,) = night["changes"]
    assert (change["was"], change["problem"]) == ("regressed", "")
    assert [metric["metric"] for metric in change["recovered"]] == ["perplexity"]
    listed = run_here(["history", "list", *NIGHTS, "--json"], capfd).document["runs"]
    assert [one["state"] for one in listed] == [
        "undecided",
        "regressed",
        night["pairs"][0]["state"],
    ]


LATER = {
    "bisected/*": ("result.json", ("report", "{}"), "evalguard.compare/2"),
    "traced/*": ("trace.json", ("report", "{}"), "evalguard.trace/2"),
    "several.json": ("", ("card", "{}"), "evalguard.compare-several/2"),
    "error.json": ("", ("gitlab", "{}"), "evalguard.error/2"),
}


@pytest.mark.parametrize("what", LATER)
def test_a_document_of_a_later_contract_is_refused_by_its_name(
    run: Run, copied: Callable[[str], Path], what: str
) -> None:
    inside, words, later = LATER[what]
    place = copied(what)
    file = place / inside if inside else place
    file.write_text(json.dumps({**read(file), "schema": later}))
    refused = run(*(word.format(place) for word in words))
    assert refused.code == 2
    assert f"(schema: '{later}')" in refused.err


def test_what_was_asked_for_and_a_floor_of_a_later_contract_are_refused(
    written: Path, copied: Callable[[str], Path]
) -> None:
    run_folder = copied("bisected/*")
    asked = run_folder / "bisection.json"
    asked.write_text(json.dumps({**read(asked), "schema": "evalguard.bisection/2"}))
    with pytest.raises(UsageError, match=r"is not an evalguard\.bisection/1 document"):
        StoredRequest.read(run_folder)
    with pytest.raises(UsageError, match=r"'evalguard\.floor/2' is not evalguard\.floor/1"):
        read_floor({**read(written / "floor.json"), "schema": "evalguard.floor/2"}, "floor.json")


def test_a_history_of_a_later_version_is_refused_and_left_as_it_is(
    run: Run, copied: Callable[[str], Path]
) -> None:
    history = copied("nights.sqlite")
    with closing(sqlite3.connect(history)) as database:
        database.execute("PRAGMA user_version = 99")
    before = history.read_bytes()
    refused = run("history", "list", "--history", history)
    assert refused.code == 2
    assert "was written by a newer evalguard (version 99 of its tables" in refused.err
    assert history.read_bytes() == before


# An address, a date or a share begins with a slash, too: of folders these are the first names.
OF_A_MACHINE = re.compile(
    r"(?<![\w.])/(?:home|Users|root|work|workspace|tmp|var|usr|opt|mnt|srv|data|private)/[^\s\"',]+"
)


def texts(file: Path) -> Iterator[str]:
    """All that a file holds as text, what is packed in it too."""
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        yield json.dumps([str(table.schema.metadata), table.to_pylist()], default=str)
    elif file.suffix == ".sqlite":
        with closing(sqlite3.connect(file)) as database:
            yield "\n".join(database.iterdump())
    else:
        yield file.read_bytes().decode("utf-8", "replace")


def test_nothing_that_is_kept_names_a_place_of_the_machine_that_wrote_it(written: Path) -> None:
    named = {
        found
        for file in written.rglob("*")
        if file.is_file()
        for text in texts(file)
        for found in OF_A_MACHINE.findall(text)
    }
    assert named, "runs name where they lie"
    assert {path for path in named if not path.startswith(f"{PLACE}")} == set()
    for folder in RUNS:
        surroundings = read(one(written, f"{folder}/result.json"))["environment"]
        kernels = {part["platform"] for part in (surroundings, surroundings["candidate"])}
        assert kernels == {"Linux"}


# Printed, and read by nobody: tests/behaviour holds their keys.
PRINTED_ALONE = {"evalguard.cache/1", "evalguard.history/1"}
PACKAGE = HERE.parent.parent / "evalguard"


def test_every_form_that_the_package_writes_is_among_what_is_kept(tmp_path: Path) -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    forms = set(re.findall(r'"(evalguard\.[a-z-]+/\d+)"', sources))
    for version in VERSIONS:
        unpack(version, tmp_path / version)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    kept = "\n".join(text for file in files for text in texts(file))
    assert {form for form in forms - PRINTED_ALONE if form not in kept} == set()


GUARDS = [HERE / version / "guard" / "guard.yaml" for version in VERSIONS]


def guard_of(file: Path) -> Guard:
    (guard,) = load_guards(file, cwd=file.parent, allow_code=False).guards
    return guard


@pytest.mark.parametrize("file", GUARDS, ids=VERSIONS)
def test_a_guard_file_with_every_key_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(file.parent)
    checked = run_here(["check", "guard.yaml"], capfd)
    assert (checked.code, checked.out) == (0, "guard.yaml: 7 models, 6 pairs, 13 settings\n")
    listed = run_here(["models", "--config", "guard.yaml"], capfd)
    assert "setting cache_dtype: auto -> fp8  [serve.--kv-cache-dtype]" in listed.out


@pytest.mark.parametrize("file", GUARDS, ids=VERSIONS)
def test_how_to_run_and_what_to_gate_is_what_the_guard_file_says(file: Path) -> None:
    said, guard = yaml.safe_load(file.read_text()), guard_of(file)
    assert {key: plain(getattr(guard.run, key)) for key in said["run"]} == said["run"]
    of_gate = [key for key in said["gate"] if key not in ("metrics", "only")]
    assert {key: plain(getattr(guard.gate, key)) for key in of_gate} == {
        key: said["gate"][key] for key in of_gate
    }
    assert list(guard.gate.gate_metrics) == said["gate"]["only"]
    limits = {limit.metric: limit.value for limit in guard.gate.limits}
    assert limits.pop("valid_json") == 0.98  # 98%
    assert limits == {key: said["gate"]["metrics"][key] for key in limits}
    (accepted,) = guard.pairs[0].accept
    of_pair = said["pairs"][0]["accept"][0]
    assert (accepted.metric, accepted.up_to, accepted.until) == ("acc", 2.5, f"{of_pair['until']}")


def plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def keys_in(value: Any, shape: Any, records: Any, record: str = "") -> Iterator[tuple[str, str]]:
    """The keys of a schema that stand in a value, each with the record that it is of."""
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        yield from keys_in(value, records[name], records, name)
    for either in (*shape.get("anyOf", ()), *shape.get("oneOf", ()), *shape.get("allOf", ())):
        yield from keys_in(value, either, records, record)
    if isinstance(value, list) and isinstance(shape.get("items"), dict):
        for item in value:
            yield from keys_in(item, shape["items"], records, record)
    if isinstance(value, dict):
        known = shape.get("properties", {})
        by_name = [*shape.get("patternProperties", {}).values(), shape.get("additionalProperties")]
        for key, item in value.items():
            if key in known:
                yield record, key
            for inner in [known[key]] if key in known else by_name:
                if isinstance(inner, dict):
                    yield from keys_in(item, inner, records, record)


def test_the_guard_file_of_this_version_has_every_key() -> None:
    """A key that comes into this version comes into its guard file."""
    schema = build_guard_schema()
    shapes = {"": schema, **schema["$defs"]}
    keys = {(record, key) for record in shapes for key in shapes[record].get("properties", {})}
    said = yaml.safe_load(GUARDS[-1].read_text(encoding="utf-8"))
    assert keys - set(keys_in(said, schema, schema["$defs"])) == set()
