"""Scores that have nothing in common with the base's, or are far better, are said to be."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.tables import scored
from evalguard.comparison.checks.unexpected_scores import find_unexpected_scores, rank_correlation
from evalguard.stats.compare_scores import compare_scores


def kinds(base: Any, candidate: Any, aggregation: Any = "perplexity", **given: Any) -> list[str]:
    paired = scored(base, candidate, aggregation, **given)
    found = find_unexpected_scores(
        [paired.base], [paired.candidate], [compare_scores(paired, confidence=0.95)]
    )
    return [one.kind for one in found]


@pytest.fixture
def likelihoods() -> Any:
    return -np.random.default_rng(3).gamma(1.4, 1.0, 400)


def test_answers_of_the_next_document_have_nothing_in_common(likelihoods: Any) -> None:
    assert kinds(likelihoods, np.roll(likelihoods, 1)) == ["scores_unrelated"]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3, 1.0])
def test_another_model_of_the_same_documents_has(likelihoods: Any, noise: float) -> None:
    other = likelihoods - noise * np.random.default_rng(4).normal(size=400)
    assert "scores_unrelated" not in kinds(likelihoods, other)


def test_of_few_documents_nothing_is_said(likelihoods: Any) -> None:
    assert kinds(likelihoods[:60], np.roll(likelihoods[:60], 1)) == []


def test_lengths_of_texts_are_not_what_they_have_in_common(likelihoods: Any) -> None:
    words = np.random.default_rng(5).integers(5, 500, 400).astype(float)
    mixed = np.roll(likelihoods, 1)
    found = kinds(likelihoods * words, mixed * words, "weighted_perplexity", weights=words)
    assert found == ["scores_unrelated"]


def test_answers_and_broken_documents_are_left_alone(likelihoods: Any) -> None:
    right = (likelihoods > -1.0).astype(float)
    assert "scores_unrelated" not in kinds(right, np.roll(right, 1), "mean")
    paired = scored(likelihoods, likelihoods - 0.1, "perplexity")
    values = paired.candidate.values.copy()
    values[3] = -np.inf
    broken = dataclasses.replace(paired.candidate, values=values)
    ours, theirs = np.delete(paired.base.values, 3), np.delete(values, 3)
    expected = stats.spearmanr(ours, theirs).statistic
    assert rank_correlation(paired.base, broken) == pytest.approx(expected, rel=1e-12)


def test_logarithms_of_base_ten_are_far_better(likelihoods: Any) -> None:
    assert kinds(likelihoods, likelihoods / np.log(10.0)) == ["far_better"]


def test_an_improvement_within_the_margin_is_none_to_wonder_at(likelihoods: Any) -> None:
    assert kinds(likelihoods, likelihoods + 0.01) == []
