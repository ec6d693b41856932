"""Which documents carry a drift: against plain definitions, for every kind of metric."""

from __future__ import annotations

import math

import numpy as np
import pytest
from document_drifts import drift_of
from paired_tables import paired, score_table

from evalguard.core.pairing import pair
from evalguard.stats.compare_scores import compare_scores

RNG = np.random.default_rng(4)
N = 250
BASE = -RNG.gamma(1.4, 1.0, N)
CANDIDATE = BASE - RNG.standard_t(2.5, N) * 0.2 - 0.05
WORDS = RNG.integers(4, 60, N).astype(float)


@pytest.mark.parametrize("aggregation", ["mean", "perplexity", "weighted_perplexity"])
def test_sigma_without_the_top_documents_is_the_metric_s_own_formula_over_the_others(aggregation):
    weights = WORDS if aggregation == "weighted_perplexity" else None
    got = compare_scores(paired(BASE, CANDIDATE, aggregation, weights=weights))
    found = got.influence
    assert found.removed == 2
    names = [document.doc_id for document in found.documents[:2]]
    rest = np.delete(np.arange(N), names)
    w = np.ones(N) if weights is None else weights
    rates = [side[rest].sum() / w[rest].sum() for side in (BASE, CANDIDATE)]
    if aggregation == "mean":
        expected = (rates[0] - rates[1]) / got.base_stderr
    else:  # on the log scale, in the unit of all documents
        whole = math.exp(-BASE.sum() / w.sum())
        expected = math.expm1(rates[0] - rates[1]) / (got.base_stderr / whole)
    assert found.sigma_without == pytest.approx(expected, rel=1e-9)


def test_contributions_are_in_sigma_and_shares_of_the_drift():
    got = compare_scores(paired(BASE, CANDIDATE))
    d = (BASE - CANDIDATE) / N
    order = np.argsort(-np.abs(d))[:5]
    assert [document.doc_id for document in got.influence.documents] == order.tolist()
    for document, value in zip(got.influence.documents, d[order], strict=True):
        assert document.task == "passages"
        assert document.contribution == pytest.approx(value / got.base_stderr, rel=1e-12)
        assert document.share == pytest.approx(value / d.sum(), rel=1e-12)
    sizes = np.sort(np.abs(d))[::-1]
    assert sizes[: got.influence.half].sum() >= sizes.sum() / 2
    assert sizes[: got.influence.half - 1].sum() < sizes.sum() / 2
    assert got.influence.moved == N


def test_of_lost_and_won_answers_those_along_the_drift_come_first():
    base, candidate = np.zeros(40), np.zeros(40)
    base[[3, 9, 20]], candidate[[1, 2]] = 1.0, 1.0
    got = compare_scores(paired(base, candidate)).influence
    assert [document.doc_id for document in got.documents] == [3, 9, 20, 1, 2]
    assert (got.moved, got.half, got.removed) == (5, 3, 1)
    assert [math.copysign(1, one.contribution) for one in got.documents] == [1, 1, 1, -1, -1]


def test_one_outlier_is_seen_and_its_removal_takes_the_drift_away():
    candidate = BASE.copy()
    candidate[17] -= 30.0
    got = compare_scores(paired(BASE, candidate)).influence
    (document,) = got.documents
    assert (document.doc_id, document.share) == (17, pytest.approx(1.0))
    assert (got.half, got.sigma_without) == (1, 0.0)


def test_a_drift_that_cancels_has_no_shares():
    got = compare_scores(paired([0.0, 0.0, 1.0, 2.0], [1.0, -1.0, 1.0, 2.0])).influence
    assert [document.share for document in got.documents] == [None, None]


def test_nothing_is_said_where_nothing_moves_or_sigma_has_no_unit():
    assert compare_scores(paired(BASE, BASE)).influence is None
    assert compare_scores(paired(np.ones(4), [1.0, 1.0, 1.0, 0.0])).influence is None
    broken = pair(score_table(BASE), score_table(np.where(np.arange(N) == 3, np.nan, CANDIDATE)))
    assert compare_scores(broken).influence is None
    assert drift_of([0.0, 0.0]).total == 0.0
