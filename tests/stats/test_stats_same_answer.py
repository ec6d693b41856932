"""Churn, and the share of documents that both models answered in the same way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paired_tables import paired
from scipy import stats

from evalguard.core.pairing import PairedScores
from evalguard.stats.compare_scores import compare_scores


def answered(
    base: list[tuple[float, str]], candidate: list[tuple[float, str]], **fields: object
) -> PairedScores:
    both = paired([value for value, _ in base], [value for value, _ in candidate])
    ours = replace(both.base, answers=tuple(text for _, text in base), **fields)
    theirs = replace(both.candidate, answers=tuple(text for _, text in candidate), **fields)
    return replace(both, base=ours, candidate=theirs)


BASE = [(1.0, "a"), (1.0, "a"), (0.0, "b"), (0.0, "b"), (0.0, "c"), (0.0, "c")]
CANDIDATE = [(1.0, "a"), (0.0, "b"), (1.0, "a"), (0.0, "c"), (0.0, "c"), (0.0, "d")]


def test_churn_counts_documents_that_both_got_wrong_in_different_ways():
    found = compare_scores(answered(BASE, CANDIDATE))
    assert found.flips == (1, 1)
    assert found.churn == 2
    assert found.same_answer == pytest.approx(2 / 6)
    assert found.same_answer_interval is not None
    low, high = found.same_answer_interval
    assert 0.0 <= low < 2 / 6 < high <= 1.0


def test_the_interval_is_the_exact_binomial_one():
    base = [(1.0, "a")] * 500
    candidate = [(1.0, "a")] * 450 + [(0.0, "b")] * 50
    found = compare_scores(answered(base, candidate))
    exact = stats.binomtest(450, 500).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(found.same_answer_interval, exact, atol=0.004)


def test_without_the_answers_of_both_nothing_is_said_of_them():
    silent = answered(BASE, CANDIDATE)
    silent = replace(silent, candidate=replace(silent.candidate, answers=()))
    found = compare_scores(silent)
    assert found.churn is None
    assert found.same_answer is None
    assert found.same_answer_interval is None


def test_a_metric_that_is_not_right_or_wrong_has_no_churn():
    base = [(0.3, "a"), (0.7, "b"), (0.2, "c")]
    candidate = [(0.3, "a"), (0.6, "d"), (0.2, "c")]
    found = compare_scores(answered(base, candidate))
    assert found.churn is None
    assert found.same_answer == pytest.approx(2 / 3)


def test_identical_answers_are_all_the_same():
    found = compare_scores(answered(BASE, BASE))
    assert found.bit_identical
    assert found.churn == 0
    assert found.same_answer == 1.0
