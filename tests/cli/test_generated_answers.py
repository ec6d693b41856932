"""A served model's answers in another form, cut, or all the same: the report says what that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from answering_servers import (
    DOCUMENTS,
    Asked,
    Says,
    cut,
    empty,
    in_another_form,
    right,
    the_same,
    without_mark,
    without_number,
    without_seed,
)
from jsonschema import Draft202012Validator
from small_world import run_here

from evalguard.report.compare_document import compare_schema


def generation(done: Any) -> Any:
    Draft202012Validator(compare_schema()).validate(done.document)
    (found,) = done.document["generations"]
    return found


def by_filter(found: Any) -> dict[str, Any]:
    return {one["filter"]: one for one in found["filters"]}


def caveats(done: Any, filter_: str) -> list[str]:
    return next(c["caveats"] for c in done.document["comparisons"] if c["filter"] == filter_)


def test_a_drop_that_is_a_filter_finding_nothing_is_said_to_be_one(asked: Asked) -> None:
    done = asked.compare(right, in_another_form, "--json", repeats=1)
    found = generation(done)
    strict, flexible = by_filter(found)["strict"], by_filter(found)["flexible"]
    assert strict["missing"]["base"]["value"] == 0.0
    assert strict["missing"]["candidate"]["value"] == 0.5
    low, high = strict["missing"]["difference"]["interval"]
    assert 0.0 < low < 0.5 < high < 1.0
    assert (strict["candidate_only"], strict["base_only"]) == (DOCUMENTS // 2, 0)
    assert flexible["missing"]["difference"]["value"] == 0.0
    (part,) = found["parts"]
    assert (part["filter"], part["cause"], part["side"]) == ("strict", "missing", "candidate")
    assert part["share"] == 1.0
    (said,) = [text for text in caveats(done, "strict") if text.startswith("of the loss")]
    assert f"{abs(part['part']):.3g} come from 10 documents in which no answer was found" in said
    assert not [text for text in caveats(done, "flexible") if text.startswith("of the loss")]


def test_the_first_screen_says_that_answers_were_not_found(asked: Asked) -> None:
    done = asked.compare(right, in_another_form, repeats=1)
    screen = " ".join(done.out.split())
    assert "Answers of sums:" in screen
    assert "50% of the candidate's texts (base 0%): a loss of form" in screen
    assert len(done.out.splitlines()) <= 30


def test_a_stop_sequence_that_a_server_leaves_in_makes_no_text_another_one(asked: Asked) -> None:
    def with_stop(number: int, seed: int) -> tuple[str, str]:
        text, reason = right(number, seed)
        return f"{text}\nQ:", reason

    def without(number: int, seed: int) -> tuple[str, str]:
        text, reason = right(number, seed)
        return f"{text}\n", reason

    done = asked.compare(without, with_stop, "--json", "--gate-metric", "loops=0", repeats=1)
    assert done.code == 0
    found = generation(done)
    assert (found["base_stops"], found["candidate_stops"]) == (0, 20)
    assert found["same_text"]["value"] == 1.0
    assert found["first_difference"]["differ"] == 0
    (told,) = [one for one in done.document["findings"] if one["kind"] == "stops_left_in"]
    assert told["text"].startswith("20 of 20 texts of the candidate end in a stop sequence")
    both = asked.compare(with_stop, with_stop, "--json", repeats=1)
    assert "stops_left_in" not in {one["kind"] for one in both.document["findings"]}


def test_answers_cut_at_the_token_limit_are_counted_where_the_server_says_so(
    asked: Asked,
) -> None:
    done = asked.compare(right, cut, "--json", repeats=1)
    found = generation(done)
    assert found["cut"]["base"]["value"] == 0.0
    assert found["cut"]["candidate"]["value"] == 0.5
    assert found["length"]["difference"]["interval"][1] < 0.0
    assert {part["cause"] for part in found["parts"]} == {"missing", "cut"}
    (said,) = [text for text in caveats(done, "strict") if text.startswith("of the loss")]
    assert "whose answer was cut at the token limit, of the candidate only" in said


def test_repeats_have_seeds_of_their_own_and_give_pass_at_k(asked: Asked) -> None:
    done = asked.compare(right, right, "--json")
    assert done.code == 0, done.out + done.err
    found = generation(done)
    assert (found["repeats"], found["base_equal"]) == (4, 0.0)
    scores = {(one["filter"], one["kind"], one["k"]): one["score"] for one in found["repeated"]}
    # of four answers to each document three are right
    assert scores["strict", "mean", 4]["base"]["value"] == 0.75
    assert scores["strict", "pass", 2]["base"]["value"] == 1.0
    assert scores["strict", "pass", 4]["candidate"]["value"] == 1.0
    assert scores["strict", "pass", 4]["difference"]["value"] == 0.0
    assert found["same_text"]["value"] == 1.0
    # lm-eval's own metric is that of the first answers
    own = next(c for c in done.document["comparisons"] if c["filter"] == "strict")
    assert own["base"] == 0.75
    gated = {one["metric"] for one in done.document["gate"]["gated"]}
    assert gated == {"exact_match"}


def test_a_server_that_ignores_the_seed_is_told_by_its_equal_answers(asked: Asked) -> None:
    done = asked.compare(right, without_seed, "--json")
    found = generation(done)
    assert (found["base_equal"], found["candidate_equal"]) == (0.0, 1.0)
    (said,) = [text for text in caveats(done, "strict") if "the same text" in text]
    assert f"in {DOCUMENTS} of {DOCUMENTS} documents" in said
    assert "temperature 0.8" in said


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (without_number, "the filter strict finds no answer in all 20 documents"),
        (empty, "the generated answers to all 20 documents are empty"),
        (the_same, "all 20 documents are given the same answer"),
    ],
)
@pytest.mark.parametrize("repeats", [1, 4])
def test_two_servers_whose_answers_say_nothing_give_no_verdict(
    asked: Asked, says: Says, said: str, repeats: int
) -> None:
    done = asked.compare(says, says, "--json", repeats=repeats)
    assert done.code == 3
    strict = next(c for c in done.document["comparisons"] if c["filter"] == "strict")
    assert said in strict["reason"]


@pytest.mark.parametrize("says", [without_number, empty, the_same])
def test_a_base_that_was_stored_and_says_nothing_gives_no_verdict(asked: Asked, says: Says) -> None:
    done = asked.compare(says, right, "--json", repeats=1)
    words = ["compare", "--config", asked.tmp_path / "servers.yaml", "--quiet", "--json"]
    folder = done.document["run_folder"]
    again = run_here(
        [*words, "--base", folder, "--cand", "port", "--output-path", asked.tmp_path / "more"],
        asked.capfd,
    )
    assert (done.code, again.code) == (3, 3)
    assert again.document["comparisons"][0]["reason"] == done.document["comparisons"][0]["reason"]
    assert (
        "there is nothing that a candidate could lose" in done.document["comparisons"][0]["reason"]
    )


@pytest.mark.parametrize("says", [without_number, empty, the_same])
def test_a_candidate_that_says_nothing_is_never_a_pass(asked: Asked, says: Says) -> None:
    assert asked.compare(right, says, repeats=1).code == 1


def test_a_filter_that_is_not_meant_for_the_models_comes_off_the_gate(asked: Asked) -> None:
    done = asked.compare(without_mark, without_mark, repeats=1)
    assert done.code == 3
    assert "the filter strict finds no answer in all 20 documents" in " ".join(done.out.split())
    guard = asked.tmp_path / "servers.yaml"
    told = json.loads(guard.read_text())
    guard.write_text(json.dumps(told | {"gate": {"advisory": ["sums/exact_match,strict"]}}))
    words = ["compare", "--config", guard, "--base", "served", "--cand", "port", "--quiet"]
    again = run_here([*words, "--output-path", asked.tmp_path / "more"], asked.capfd)
    assert again.code == 0
    assert "no answer is found in 100% of the candidate's texts" in " ".join(again.out.split())


def test_a_stored_run_shows_the_same_answers_again(asked: Asked) -> None:
    done = asked.compare(right, in_another_form, "--json")
    folder = Path(done.document["run_folder"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Generated answers" in page
    again = run_here(["report", folder, "--format", "json"], asked.capfd)
    assert again.document["generations"] == done.document["generations"]
    markdown = run_here(["report", folder, "--format", "markdown"], asked.capfd).out
    assert "| sums | exact\\_match pass@\u200b4 (strict) |" in markdown
    long = run_here(["report", folder], asked.capfd).out
    assert "Generated answers, sums (20 documents, 4 answers each)" in " ".join(long.split())


def test_a_base_that_was_stored_has_its_answers_still(asked: Asked) -> None:
    done = asked.compare(right, in_another_form, "--json")
    folder = Path(done.document["run_folder"])
    words = ["compare", "--config", asked.tmp_path / "servers.yaml", "--quiet", "--json"]
    again = run_here(
        [*words, "--base", folder, "--cand", "port", "--output-path", asked.tmp_path / "more"],
        asked.capfd,
    )
    assert again.document["generations"] == done.document["generations"]


def test_a_chat_endpoint_has_seeds_and_endings_too(asked: Asked) -> None:
    done = asked.compare(right, cut, "--json", chat=True)
    found = generation(done)
    assert (found["repeats"], found["base_equal"]) == (4, 0.0)
    assert found["cut"]["candidate"]["value"] == 0.5
