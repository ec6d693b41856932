"""Scores are held against lm-eval's own path where that is asked, and others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scored_models import Score

from evalguard.engine.executor import Evaluation
from evalguard.errors import EvaluationError
from evalguard.models.hf import batch_scoring


def said(evaluation: Evaluation) -> list[str]:
    return [note for note in evaluation.notes if "own path" in note]


@pytest.mark.parametrize("tasks", [("sw_word", "sw_choice"), ("sw_text",)])
def test_every_task_of_every_model_is_held_against_the_harness(
    score: Score,
    tasks: tuple[str, ...],
) -> None:
    for evaluation in score("llama", "other", tasks=tasks, verify_scorer=3):
        notes = said(evaluation)
        assert [note.partition(":")[0] for note in notes] == list(tasks)
        assert all("3 documents scored again by lm-eval's own path" in note for note in notes)
        assert all("greedy answers agree" in note for note in notes)


def test_scores_from_the_cache_are_held_against_it_too(score: Score) -> None:
    first = score("llama", "other", tasks=("sw_word",), verify_scorer=3)
    again = score("llama", "other", tasks=("sw_word",), verify_scorer=3)
    assert said(first[0]) == said(again[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda told, greedy: (told - 0.01, greedy),
            "other scores than lm-eval's own path gives: sw_w",
            id="scores",
        ),
        pytest.param(
            lambda told, greedy: (told, torch.ones_like(greedy)),
            r"answers that differ: [123];.* and 0 greedy",
            id="greedy answers",
        ),
    ],
)
def test_other_scores_and_other_greedy_answers_are_refused(
    score: Score,
    monkeypatch: pytest.MonkeyPatch,
    change: Any,
    message: str,
) -> None:
    original = batch_scoring.pick_target_logprobs
    monkeypatch.setattr(
        batch_scoring, "pick_target_logprobs", lambda *rows: change(*original(*rows))
    )
    with pytest.raises(EvaluationError, match=message):
        score("llama", "other", tasks=("sw_word",), verify_scorer=3, distributions="off")


def test_a_narrow_dtype_is_allowed_what_batches_do_to_it(score: Score) -> None:
    options = {"tasks": ("sw_word",), "verify_scorer": 4, "distributions": "off"}
    base, _ = score("llama", "llama", dtype="bfloat16", **options)
    (note,) = said(base)
    assert "largest difference" in note


def test_the_harness_is_not_held_against_itself(score: Score) -> None:
    base, other = score("llama", "other", tasks=("sw_word",), verify_scorer=3, scorer="harness")
    assert "scored by lm-eval's own path, which nothing was held against" in base.notes
    (unknown,) = (one for one in other.findings if one.kind == "distributions_unknown")
    assert "(--scorer harness) shows none" in unknown.text
