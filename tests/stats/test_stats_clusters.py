"""Documents of one cluster move together, and the interval is that of a regression by clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from clustered_documents import LABELS, MEMBERS, RNG, WEIGHTS, D, G, N, clustered
from paired_tables import paired

from evalguard.stats.binary import mcnemar_exact
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.compare_scores import compare_scores
from evalguard.stats.drift import estimate_drift


def of_statsmodels(d, exogenous, groups):
    fit = sm.OLS(d, exogenous).fit(cov_type="cluster", cov_kwds={"groups": groups})
    return float(fit.params[0]), float(fit.bse[0])


def test_the_standard_error_is_that_of_a_cluster_robust_regression_on_a_constant():
    point, stderr = of_statsmodels(D, np.ones(N), MEMBERS)  # its factor is G / (G - 1) too
    estimate = estimate_drift(clustered(), confidence=0.95).estimate
    assert estimate.point == pytest.approx(point, rel=1e-9)
    assert estimate.stderr == pytest.approx(stderr, rel=1e-9)
    assert estimate.method == "cluster-t"


def test_the_standard_error_of_a_ratio_is_that_of_its_weighted_regression():
    # sum d / sum w is the least-squares fit of d / w with weights w.
    w = WEIGHTS
    fit = sm.WLS(D / w, np.ones(N), weights=w).fit(cov_type="cluster", cov_kwds={"groups": MEMBERS})
    run = clustered(aggregation="bits_per_byte")
    estimate = estimate_drift(run, confidence=0.95).estimate
    assert estimate.point * math.log(2.0) == pytest.approx(float(fit.params[0]), rel=1e-9)
    assert estimate.stderr * math.log(2.0) == pytest.approx(float(fit.bse[0]), rel=1e-9)
    assert estimate.method == "cluster-t-ratio"


@pytest.mark.parametrize("aggregation", ["mean", "perplexity", "weighted_perplexity"])
def test_clusters_of_one_document_change_nothing_but_the_name(aggregation):
    own = tuple(str(i) for i in range(N))
    alone = estimate_drift(clustered(aggregation=aggregation, labels=()), confidence=0.95)
    each = estimate_drift(clustered(aggregation=aggregation, labels=own), confidence=0.95)
    assert each.sigma == alone.sigma
    assert each.sigma_interval == pytest.approx(alone.sigma_interval, rel=1e-12)
    assert each.estimate.p_value == pytest.approx(alone.estimate.p_value, rel=1e-9)


def test_documents_that_move_together_widen_the_interval_and_leave_the_size():
    alone = compare_scores(clustered(labels=()))
    together = compare_scores(clustered())
    assert (together.sigma, together.base_stderr) == (alone.sigma, alone.base_stderr)
    assert together.paired_stderr > 1.3 * alone.paired_stderr
    assert (together.clusters, together.cluster_field) == (G, "passage")
    assert (alone.clusters, alone.cluster_field) == (None, "")
    (caveat,) = (text for text in together.caveats if "not independent" in text)
    assert f"{G} clusters of {N} documents" in caveat
    assert [test.method for test in together.companions] == ["sign-flip"]


def test_the_order_of_documents_changes_nothing():
    order = RNG.permutation(N)
    sums = cluster_sums(D, WEIGHTS, LABELS)
    other = cluster_sums(D[order], WEIGHTS[order], [LABELS[row] for row in order])
    np.testing.assert_array_equal(sums.values, other.values)
    np.testing.assert_array_equal(sums.weights, other.weights)


def test_0_1_metrics_use_the_clusters_and_show_mcnemar_beside():
    right = (RNG.random(N) > 0.3).astype(float)
    flipped = np.where((MEMBERS % 7 == 0) & (right == 1.0), 0.0, right)
    got = compare_scores(
        paired(right, flipped, clusters=LABELS, cluster_field="passage"), confidence=0.95
    )
    assert got.method.startswith("cluster-t")
    assert got.mid_p_value is None
    assert got.flips == (int(np.sum(right > flipped)), 0)
    tests = {test.method: test for test in got.companions}
    assert tests["mcnemar-exact"].p_value == mcnemar_exact(*got.flips)
    assert "independent" in tests["mcnemar-exact"].note
    assert "cluster-robust t" in got.reason
