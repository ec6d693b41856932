"""A stored run's documents are shown as lm-eval wrote them down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalguard.harness.finished_runs.lmeval_run import read_run

Rewrite = Callable[[Path, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]], None]


def written(folder: Path, task: str) -> list[dict[str, Any]]:
    """The lines of a samples file, in ascending document and as they stand in it."""
    (path,) = folder.glob(f"samples_{task}_*")
    rows = [json.loads(line) for line in path.read_text().split("\n") if line]
    return sorted(rows, key=lambda row: row["doc_id"])


def first(row: dict[str, Any], request: int = 0) -> Any:
    return row["resps"][request][0]


def test_options_of_a_choice_have_their_log_likelihoods(copied: Path) -> None:
    rows = read_run(copied).documents["eg_choice"]
    for row, told in zip(rows, written(copied, "eg_choice"), strict=True):
        asked = [list(one.values()) for one in told["arguments"].values()]
        assert row["doc_id"] == told["doc_id"]
        assert row["prompt"] == asked[0][0]
        assert [json.loads(one)[1] for one in row["arguments"]] == [one[1] for one in asked]
        answers = [first(told, number) for number in range(len(asked))]
        assert row["loglikelihood"] == [float(one[0]) for one in answers]
        assert row["is_greedy"] == [str(one[1]) == "True" for one in answers]
        assert row["text"] == row["token_logprobs"] == [None] * len(asked)
        assert json.loads(row["scores"])["none"]["acc"] == told["acc"]
        assert json.loads(row["doc"]) == told["doc"]


def test_a_whole_text_has_its_log_likelihood_alone(copied: Path) -> None:
    rows = read_run(copied).documents["eg_rolling"]
    for row, told in zip(rows, written(copied, "eg_rolling"), strict=True):
        assert row["loglikelihood"] == [pytest.approx(told["word_perplexity"][0])]
        assert (row["is_greedy"], row["text"]) == ([None], [None])
        assert json.loads(row["arguments"][0]) == [None]
        assert row["prompt"] == told["arguments"]["gen_args_0"]["arg_0"]


def test_a_generated_text_stands_as_it_was_generated(copied: Path) -> None:
    rows = read_run(copied).documents["eg_generate"]
    texts = {row["doc_id"]: first(row) for row in written(copied, "eg_generate")}
    assert {row["doc_id"]: row["text"] for row in rows} == {
        doc_id: [text] for doc_id, text in texts.items()
    }
    filters = {row["filter"] for row in written(copied, "eg_generate")}
    assert all(set(json.loads(row["scores"])) == filters for row in rows)


def test_a_run_that_does_not_show_its_texts_has_scores_and_no_texts(
    copied: Path, rewrite: Rewrite
) -> None:
    def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        hidden = ("arguments", "resps", "filtered_resps", "doc", "target")
        return [{key: row[key] for key in row if key not in hidden} for row in rows]

    rewrite(next(copied.glob("samples_eg_choice_*")), bare)
    for row in read_run(copied).documents["eg_choice"]:
        assert (row["prompt"], row["arguments"], row["loglikelihood"]) == (None, [], [])
        assert "acc" in json.loads(row["scores"])["none"]


def test_a_response_that_is_no_number_is_kept_as_what_it_is(copied: Path, rewrite: Rewrite) -> None:
    def broken(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[0]["resps"][0] = [["-inf", "False"]]
        rows[1]["resps"][0] = [["no number", "False"]]
        rows[2]["resps"] = "nothing"
        return rows

    rewrite(next(copied.glob("samples_eg_choice_*")), broken)
    rows = {row["doc_id"]: row for row in read_run(copied).documents["eg_choice"]}
    ids = [row["doc_id"] for row in written(copied, "eg_choice")[:3]]
    assert [rows[doc_id]["loglikelihood"][0] for doc_id in ids] == [-float("inf"), None, None]
