"""A document's score, its mean and the yardstick give back the sigma that compare reports."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_tables import METRICS, WEIGHTED, paired, score_table

from evalguard.core.document_scale import DocumentScale
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import Rescoring
from evalguard.errors import UsageError
from evalguard.stats.compare_scores import compare_scores

FAMILIES = [
    ("mean", None),
    ("mean", False),
    ("perplexity", None),
    ("perplexity", True),
    ("weighted_perplexity", None),
    ("bits_per_byte", None),
]


def made(aggregation: Any, better: bool | None, seed: int, **fields: Any) -> PairedScores:
    """Sixty documents of very different lengths, and a candidate that drifts."""
    rng = np.random.default_rng(seed)
    words = rng.integers(1, 6, 60).astype(np.float64)
    base = -words * rng.gamma(9.0, 0.3, 60)
    worse = -0.4 if better is None else 0.4
    return paired(
        base,
        base + worse * words + rng.normal(0.0, 0.5, 60),
        aggregation,
        weights=words if aggregation in WEIGHTED else None,
        higher_is_better=better,
        **fields,
    )


def drift_in_yardsticks(scale: DocumentScale, scores: PairedScores) -> float:
    drift = np.mean(scale.values(scores.base)) - np.mean(scale.values(scores.candidate))
    return float(drift) / scale.yardstick


@pytest.mark.parametrize(("aggregation", "better"), FAMILIES)
@pytest.mark.parametrize("clusters", [(), tuple(str(number % 25) for number in range(60))])
def test_the_mean_drift_gives_the_sigma_of_the_comparison(
    aggregation: Any, better: bool | None, clusters: tuple[str, ...]
) -> None:
    scores = made(aggregation, better, 3, clusters=clusters, cluster_field="passage")
    scale = DocumentScale.of(scores.base)
    found = compare_scores(scores)
    assert found.sigma is not None
    assert abs(found.sigma) > 0.1
    assert scale.sigma(drift_in_yardsticks(scale, scores)) == pytest.approx(found.sigma, rel=1e-11)


@given(
    family=st.sampled_from(FAMILIES),
    seed=st.integers(0, 10_000),
)
def test_that_holds_whatever_the_scores_are(family: tuple[Any, bool | None], seed: int) -> None:
    scores = made(*family, seed)
    scale, found = DocumentScale.of(scores.base), compare_scores(scores)
    assert scale.sigma(drift_in_yardsticks(scale, scores)) == pytest.approx(
        found.sigma, rel=1e-9, abs=1e-11
    )


def test_accuracies_have_the_sigma_of_their_flips() -> None:
    base = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    candidate = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    scores = paired(base, candidate)
    scale = DocumentScale.of(scores.base)
    found = compare_scores(scores)
    assert found.flips == (3, 1)
    assert scale.yardstick == found.base_stderr
    assert scale.sigma(drift_in_yardsticks(scale, scores)) == pytest.approx(found.sigma, rel=1e-12)


@pytest.mark.parametrize(("aggregation", "better"), FAMILIES)
def test_scores_are_better_when_higher_and_their_mean_is_the_metric(
    aggregation: Any, better: bool | None
) -> None:
    scores = made(aggregation, better, 5)
    found = compare_scores(scores)
    for table, metric in ((scores.base, found.base), (scores.candidate, found.candidate)):
        mean = float(np.mean(DocumentScale.of(scores.base).values(table)))
        sign = 1.0 if table.higher_is_better else -1.0
        expected = math.exp(sign * mean) if "perplexity" in aggregation else sign * mean
        assert expected == pytest.approx(metric, rel=1e-12)
    worse = np.mean(DocumentScale.of(scores.base).values(scores.candidate))
    assert worse < np.mean(DocumentScale.of(scores.base).values(scores.base))


@pytest.mark.parametrize(("aggregation", "better"), FAMILIES)
def test_some_documents_have_the_scores_that_they_have_among_all(
    aggregation: Any, better: bool | None
) -> None:
    scores = made(aggregation, better, 7)
    scale = DocumentScale.of(scores.base)
    part = score_table(
        scores.base.values[10:20],
        aggregation,
        weights=None if scores.base.weights is None else scores.base.weights[10:20],
        higher_is_better=better,
    )
    assert np.array_equal(scale.values(part), scale.values(scores.base)[10:20])


@given(st.sampled_from(FAMILIES), st.floats(0.01, 20.0))
def test_a_margin_is_the_drift_whose_sigma_it_is(
    family: tuple[Any, bool | None], margin: float
) -> None:
    scale = DocumentScale.of(made(*family, 1).base)
    drift = scale.margin(margin)
    if math.isfinite(drift):
        assert scale.sigma(drift) == pytest.approx(margin, rel=1e-9)
    else:
        assert family == ("perplexity", True)


def test_a_linear_metric_has_its_margin_in_yardsticks() -> None:
    scale = DocumentScale.of(made("bits_per_byte", None, 2).base)
    assert scale.margin(1.5) == pytest.approx(1.5, rel=1e-12)
    assert scale.sigma(2.0) == pytest.approx(2.0, rel=1e-12)


def test_a_metric_that_is_no_sum_over_documents_is_refused() -> None:
    rescored = Rescoring(name="f1", metric=lambda rows: 0.5, items=("a", "b"))
    table = replace(score_table([0.0, 0.0]), aggregation="other", metric="f1", rescoring=rescored)
    with pytest.raises(UsageError, match=r"passages \(none\) f1 is not a sum over documents"):
        DocumentScale.of(table)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1.0], [1.0, math.nan, 2.0]])
def test_documents_without_a_standard_error_are_refused(values: list[float]) -> None:
    with pytest.raises(UsageError, match="no standard error above 0"):
        DocumentScale.of(score_table(values))


def test_another_metrics_table_is_refused() -> None:
    scale = DocumentScale.of(score_table([1.0, 2.0]))
    with pytest.raises(UsageError, match="was asked for scores of"):
        scale.values(score_table([1.0, 2.0], "perplexity"))
    assert scale.key[2] == METRICS["mean"]


def test_a_random_part_of_the_documents_has_the_yardstick_of_all() -> None:
    scores = made("perplexity", None, 4)
    part, whole = DocumentScale.of(scores.base), DocumentScale.of(scores.base, population=240)
    assert whole.yardstick == pytest.approx(part.yardstick / 2.0, rel=1e-12)
    assert whole.sigma(whole.margin(1.0)) == pytest.approx(1.0, rel=1e-12)
