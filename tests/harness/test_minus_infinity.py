"""Minus infinity in a model's answers, however a server spelled it, before a task scores them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_tasks import answers

from evalguard.core.scorer import Response
from evalguard.harness.score_tables import TaskScores, score_tables
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import load_tasks

FLOAT32 = -3.4028234663852886e38


def scored(folder: Path, task: str, change: Any) -> TaskScores:
    """The task's scores, with the answer to the first request of document 3 changed."""
    tasks = load_tasks([task], options=TaskOptions(include_paths=(folder,), limit=8))
    requests = tasks.requests(task)
    told = answers(requests.requests)
    place = next(n for n, one in enumerate(requests.requests) if one.doc_id == 3)
    return score_tables(requests, [*told[:place], change(told[place]), *told[place + 1 :]])


def with_tokens(value: float) -> Any:
    def change(answer: Response) -> Response:
        tokens = np.array([-0.5, value, -1.0])
        return replace(answer, loglikelihood=float(tokens.sum()), token_logprobs=tokens)

    return change


def alone(value: float) -> Any:
    return lambda answer: replace(answer, loglikelihood=value, token_logprobs=None)


@pytest.mark.parametrize(
    "change",
    [
        with_tokens(-9999.0),
        with_tokens(-65504.0),
        with_tokens(FLOAT32),
        alone(-10_004.5),
        alone(FLOAT32),
        alone(-math.inf),
    ],
)
def test_a_continuation_with_a_token_of_no_probability_has_none(
    task_folder: Path, change: Any
) -> None:
    found = scored(task_folder, "eg_lastword", change)
    (table,) = (table for table in found.tables if table.metric == "perplexity")
    assert np.flatnonzero(~np.isfinite(table.values)).tolist() == [3]
    assert table.values[3] == -math.inf
    (row,) = (row for row in found.samples if row["doc_id"] == 3)
    assert row["loglikelihood"] == [-math.inf]


def test_the_tokens_of_a_whole_text_decide_where_they_are_known(task_folder: Path) -> None:
    def long(answer: Response) -> Response:
        tokens = np.full(4_000, -3.0)
        return replace(answer, loglikelihood=float(tokens.sum()), token_logprobs=tokens)

    for change, expected in ((long, -12_000.0), (with_tokens(-9999.0), -math.inf)):
        found = scored(task_folder, "eg_rolling", change)
        (table,) = (table for table in found.tables if table.metric == "word_perplexity")
        assert table.values[3] == expected


def test_an_option_of_no_probability_is_never_chosen(task_folder: Path) -> None:
    found = scored(task_folder, "eg_choice", with_tokens(-9999.0))
    (table,) = (table for table in found.tables if table.metric == "acc")
    assert np.isfinite(table.values).all()
    assert table.answers[3] != "0"


def test_a_model_that_gives_no_text_any_probability_is_left_to_the_gate(
    task_folder: Path,
) -> None:
    tasks = load_tasks(["eg_lastword"], options=TaskOptions(include_paths=(task_folder,), limit=8))
    requests = tasks.requests("eg_lastword")
    told = [alone(-9999.0)(one) for one in answers(requests.requests)]
    found = score_tables(requests, told)
    (table,) = (table for table in found.tables if table.metric == "perplexity")
    assert (table.values == -math.inf).all()
