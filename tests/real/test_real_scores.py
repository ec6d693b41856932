"""Scores of a real model on real text, document by document, against lm-eval's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from real_tasks import LIKELIHOOD

if TYPE_CHECKING:
    from lm_eval_itself import FinishedRun

    from evalguard import CompareResult

pytestmark = [pytest.mark.data, pytest.mark.slow]
# lm-eval adds up a continuation's tokens in float32, which at 1,500 nats has steps of 1.2e-4
FLOAT32 = 5e-7
SIDES = {"base": "orig", "candidate": "int5-folder"}


def samples(result: CompareResult, task: str) -> pd.DataFrame:
    assert result.run_folder is not None
    return pd.read_parquet(Path(result.run_folder) / "samples" / f"{task}.parquet")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("task", LIKELIHOOD)
def test_every_document_scores_as_in_lm_eval(
    task: str,
    side: str,
    both_models: CompareResult,
    lm_eval_run: Callable[[str], FinishedRun],
) -> None:
    ours = samples(both_models, task)
    theirs = lm_eval_run(SIDES[side]).samples[task]
    assert list(ours["doc_id"]) == [record["doc_id"] for record in theirs]
    for (_, row), record in zip(ours.iterrows(), theirs, strict=True):
        answers: list[Any] = [answer for (answer,) in record["resps"]]
        assert list(row[f"{side}:loglikelihood"]) == pytest.approx(
            [loglikelihood for loglikelihood, _ in answers], abs=1e-4, rel=FLOAT32
        )
        assert list(row[f"{side}:is_greedy"]) == [greedy for _, greedy in answers]


@pytest.mark.parametrize("task", LIKELIHOOD)
def test_every_document_was_asked_what_lm_eval_asks(
    task: str, both_models: CompareResult, lm_eval_run: Callable[[str], FinishedRun]
) -> None:
    ours = samples(both_models, task)
    theirs = lm_eval_run("orig").samples[task]
    for name in ("doc_hash", "target_hash"):
        assert list(ours[name]) == [record[name] for record in theirs]
    assert list(ours["base:prompt_hash"]) == [record["prompt_hash"] for record in theirs]
    asked = [[json.loads(text) for text in texts] for texts in ours["base:arguments"]]
    assert asked == [[list(arguments) for arguments in record["arguments"]] for record in theirs]


@pytest.mark.parametrize("task", LIKELIHOOD)
def test_tokens_of_a_continuation_add_up_to_its_score(
    task: str, both_models: CompareResult
) -> None:
    ours = samples(both_models, task)
    for _, row in ours.iterrows():
        sums = [float(sum(tokens)) for tokens in row["base:token_logprobs"]]
        assert sums == pytest.approx(list(row["base:loglikelihood"]), abs=1e-9)
