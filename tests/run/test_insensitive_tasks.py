"""A task that could hardly show a drift is said to be one, and no other is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from evalguard.comparison.checks.insensitive_tasks import find_insensitive_tasks
from evalguard.core.comparison import Comparison
from evalguard.core.findings import Finding
from evalguard.stats.compare_scores import failed_comparison


def metric(
    name: str, base: float, n: int = 400, *, candidate: float | None = None, **about: Any
) -> Comparison:
    fields: dict[str, Any] = {
        "metric": name, "base": base, "candidate": base if candidate is None else candidate,
        "n": n, "n_used": n, "outcome": "unchanged", "higher_is_better": name == "acc",
        "flips": (0, 0) if name in ("acc", "exact_match") else None, "subtasks": (),
    }  # fmt: skip
    if name in ("exact_match", "bleu"):
        fields["higher_is_better"] = True
    return replace(failed_comparison(("words", "none", name), ""), **{**fields, **about})


def choices(k: int) -> Sequence[Mapping[str, Any]]:
    return [{"arguments": [f'["{i}"]' for i in range(k)], "loglikelihood": [-1.0] * k}] * 5


def written() -> Sequence[Mapping[str, Any]]:
    return [{"arguments": ['["x"]'], "loglikelihood": [None], "text": ["42"]}] * 5


def tokens(nats: float) -> Sequence[Mapping[str, Any]]:
    return [{"arguments": ['["x"]'], "loglikelihood": [-2 * nats], "token_logprobs": [[-nats] * 2]}]


def found(
    *comparisons: Comparison, rows: Sequence[Mapping[str, Any]] = (), vocabulary: int = 512
) -> Finding | None:
    told = find_insensitive_tasks(
        comparisons, {one.task: rows for one in comparisons}, vocabulary=vocabulary
    )
    return told[0] if told else None


LITTLE = [
    (metric("acc", 0.27), choices(4), "answers 27% rightly where a guess gives 25%"),
    (metric("acc", 0.251, 14_000), choices(4), "answers 25.1% rightly where a guess gives 25%"),
    (metric("acc", 0.52, 100), choices(2), "answers 52% rightly where a guess gives 50%"),
    (metric("acc", 0.2, 400), choices(5), "where a guess gives 20%"),
    (metric("acc", 0.1, 400), choices(4), "answers 10% rightly where a guess gives 25%"),
    (metric("exact_match", 0.0, 100), written(), "none of 100 rightly: nothing can be lost"),
    (metric("exact_match", 0.04, 100), written(), "only 4 of 100 rightly"),
    (metric("exact_match", 1.0, 100), written(), "both models answer all 100 rightly"),
    (metric("acc", 0.005, 400), choices(1), "only 2 of 400 rightly"),
    (metric("bleu", 0.0), written(), "both models score 0 in all documents"),
    (metric("perplexity", 520_000.0), (), "hardly knows these texts (520,000)"),
    (metric("word_perplexity", 4_200.0), (), "hardly knows these texts (4,200)"),
    (metric("bits_per_byte", 7.9), (), "hardly knows these texts (7.9)"),
    (metric("perplexity", 300.0), tokens(6.0), "6 nats a token, a guess 6.24"),
    (metric("perplexity", math.inf), (), "hardly knows these texts (inf)"),
]  # fmt: skip
ENOUGH = [
    (metric("acc", 0.35), choices(4)),
    (metric("acc", 0.30, 14_000), choices(4)),
    (metric("acc", 0.62), choices(2)),
    (metric("exact_match", 0.05, 100), written()),
    (metric("exact_match", 1.0, 100, candidate=0.98), written()),
    (metric("exact_match", 0.99, 100), written()),
    (metric("bleu", 0.0, candidate=3.0), written()),
    (metric("perplexity", 4.13), tokens(1.4)),
    (metric("perplexity", 900.0), tokens(2.0)),
    (metric("word_perplexity", 38.0), ()),
    (metric("bits_per_byte", 1.1), ()),
    (metric("acc", 0.2, outcome="regressed"), choices(4)),
    (metric("acc", 0.26, subtasks=("a", "b")), choices(4)),
    (replace(metric("acc", 0.0), outcome="failed", base=None), choices(4)),
    (metric("acc", 0.4, higher_is_better=False), choices(2)),
]  # fmt: skip


@pytest.mark.parametrize(("of", "rows", "said"), LITTLE)
def test_a_base_that_has_nothing_to_lose_is_told(of: Comparison, rows: Any, said: str) -> None:
    told = found(of, rows=rows)
    assert told is not None
    assert told.kind == "task_shows_little"
    assert said in told.text
    assert (told.task, told.metric) == (of.task, of.metric)
    assert all(not isinstance(v, float) or math.isfinite(v) for v in told.values.values())


@pytest.mark.parametrize(("of", "rows"), ENOUGH)
def test_a_base_that_has_something_to_lose_is_not(of: Comparison, rows: Any) -> None:
    assert found(of, rows=rows) is None


def test_answers_that_are_all_as_they_should_be_show_a_loss_well() -> None:
    of: dict[str, Any] = {"filter": "text", "higher_is_better": True, "flips": (0, 0)}
    assert found(metric("valid_json", 1.0, **of), rows=written()) is None
    told = found(metric("valid_json", 0.0, **of), rows=written())
    assert told is not None
    assert told.text.startswith("of the base's answers none of 400 count for valid_json: a loss")


def test_many_are_one_sentence_that_names_the_first() -> None:
    told = found(*(metric("acc", 0.25, task=f"t{at}") for at in range(9)), rows=choices(4))
    assert told is not None
    assert told.task == ""
    assert "t0 acc (25%, a guess 25%), t1 acc (25%, a guess 25%) and 7 more metrics" in told.text
    metrics = told.values["metrics"]
    assert isinstance(metrics, tuple)
    assert len(metrics) == 9
