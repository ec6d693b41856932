"""``evalguard floor`` as a user meets it, and floors in later verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import evalguard
from evalguard.floors.floor_report import floor_schema
from evalguard.report.compare_document import compare_schema

FLOOR = jsonschema.Draft202012Validator(floor_schema())
COMPARE = jsonschema.Draft202012Validator(compare_schema())
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that no other test's floors lie in."""
    return tmp_path_factory.mktemp("floor-cache")


@pytest.fixture
def floor(run: Run, world: Any, own_cache: Path) -> Run:
    def measured(*words: object) -> Any:
        given = ("--config", world.guard, "--cache-dir", own_cache, "--base", "orig")
        return run("floor", *given, *words)

    return measured


def test_floor_prints_variations_and_one_sentence(floor: Run) -> None:
    ran = floor("-v")
    assert ran.code == 0, ran.err
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    text = " ".join(ran.out.split())
    assert text.startswith("Unchanged, orig shows a drift of up to ")
    assert "unchanged orig hf, " in text
    for words in (
        "sw_word perplexity · 24 documents",
        "sw_word acc · 24 documents",
        "the same again",
        "batch size 1",
        "2 threads",
        "eager attention",
        "Not measured: softmax: the model's own dtype is float32",
        "Kept for comparisons with this base in this environment (1 file).",
        "standard errors",
    ):
        assert words in text, words
    assert ran.out.splitlines()[-1].endswith(".")
    assert not Path("reports").exists()


def test_float32_on_a_cpu_shows_next_to_nothing(floor: Run) -> None:
    document = floor("--json").document
    FLOOR.validate(document)
    assert (document["schema"], document["exit_code"]) == ("evalguard.floor/1", 0)
    assert document["command"].startswith("evalguard floor ")
    names = {variation["name"] for variation in document["variations"]}
    assert {"the same again", "batch size 1", "2 threads", "eager attention"} <= names
    assert {shift["variation"] for shift in document["shifts"]} == names
    again = [shift for shift in document["shifts"] if shift["variation"] == "the same again"]
    assert all(shift["bit_identical"] for shift in again)
    floors = {floor["metric"]: floor for floor in document["floors"]}
    assert floors.keys() == {"perplexity", "acc"}
    assert floors["perplexity"]["sigma"] < 1e-4
    assert floors["perplexity"]["document_sd"] < 1e-3
    assert floors["acc"]["bit_identical"]


def test_the_api_gives_the_numbers_of_the_command(floor: Run, world: Any, own_cache: Path) -> None:
    shown = floor("--json", "--vary", "batch-size").document
    result = evalguard.floor(
        "orig", config=world.guard, cache_dir=own_cache, vary="batch_size", write=False, quiet=True
    )
    mine = result.to_dict()
    for key in ("shifts", "floors", "variations", "unmeasured", "task_keys", "environment"):
        assert mine[key] == shown[key]
    assert mine["kept"] == []
    assert len(shown["kept"]) == 1
    table = result.to_pandas()
    assert list(table["sigma"]) == [shift.sigma for shift in result.shifts]
    assert {"sigma_low", "sigma_high", "document_sd"} <= set(table.columns)


def test_a_comparison_stands_beside_the_floor_that_was_kept(
    floor: Run, compare: Run, own_cache: Path
) -> None:
    kept = floor("--json").document["floors"]
    words = ("--cache-dir", own_cache, "--distributions", "lockstep")
    ran = compare("orig", "sharp", *words, "--json")
    document = ran.document
    COMPARE.validate(document)
    sigmas = {one["metric"]: one["sigma"] for one in kept}
    for comparison in document["comparisons"]:
        found = comparison["floor"]
        assert found["sigma"] == sigmas[comparison["metric"]]
        assert found["n"] == comparison["n"]
        if found["sigma"]:
            assert found["times"] == pytest.approx(abs(comparison["sigma"]) / found["sigma"])
    (distribution,) = document["distributions"]
    assert distribution["floor"]["kl"] < 1e-9
    assert distribution["floor"]["times"] > 1000
    text = " ".join(compare("orig", "sharp", *words).out.split())
    assert "Floor: the drift is more than 1,000 times what an unchanged model shows here" in text
    assert "; the mean KL is more than 1,000 times that of an unchanged model (" in text


def test_a_floor_changes_no_verdict(floor: Run, compare: Run, own_cache: Path) -> None:
    floor()
    # The floor has run the base: by default it would not be run again for the distributions.
    asked = ("orig", "sharp", "--distributions", "lockstep", "--json")
    with_floor = compare(*asked, "--cache-dir", own_cache)
    without = compare(*asked)
    assert with_floor.code == without.code == 1
    for section in ("comparisons", "distributions"):
        beside, alone = (
            [{k: v for k, v in one.items() if k != "floor"} for one in ran.document[section]]
            for ran in (with_floor, without)
        )
        assert beside == alone
    assert all(one["floor"] is None for one in without.document["comparisons"])
    assert "Floor:" not in compare("orig", "sharp").out


def test_a_floor_given_by_hand_counts(floor: Run, compare: Run) -> None:
    document = floor("--json", "--vary", "batch-size").document
    document["floors"][0]["sigma"] = document["floors"][0]["sigma_upper"] = 1e6
    Path("floor.json").write_text(json.dumps(document))
    ran = compare("orig", "sharp", "--floor", "floor.json")
    assert ran.code == 1
    text = " ".join(ran.out.split())
    assert "Floor: the drift is within what an unchanged model shows here" in text


def test_what_is_no_floor_and_what_cannot_be_varied_is_refused(
    refused: Run, refused_pair: Run, world: Any
) -> None:
    Path("run.json").write_text('{"schema": "evalguard.compare/1"}')
    ran = refused_pair(2, "orig", "sharp", "--floor", "run.json")
    assert "run.json is not an evalguard.floor/1 document" in ran.err
    assert "loading" not in ran.err
    ran = refused_pair(2, "orig", "sharp", "--floor", "absent.json")
    assert "absent.json cannot be read" in ran.err
    ran = refused(2, "floor", "--config", world.guard, "--base", "orig", "--vary", "batch")
    assert "batch-size" in ran.err


def test_where_nothing_can_be_varied_nothing_is_known(floor: Run) -> None:
    ran = floor("--vary", "softmax-dtype")
    assert (ran.code, ran.out) == (3, "")
    assert "no variation of orig could be measured: softmax: the model's own dtype" in ran.err


def test_a_model_of_nan_has_no_floor(refused: Run, world: Any) -> None:
    ran = refused(3, "floor", "--config", world.guard, "--base", "not-a-number", "--vary", "repeat")
    assert "could be measured: the same again: " in ran.err


def test_more_documents_than_the_floor_saw_are_told(
    floor: Run, compare: Run, own_cache: Path
) -> None:
    floor("--limit", "12", "--vary", "repeat")
    text = " ".join(compare("orig", "sharp", "--cache-dir", own_cache).out.split())
    assert "measured on 12 documents)" in text
