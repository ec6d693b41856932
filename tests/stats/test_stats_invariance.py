"""What may be done to documents without changing what is said about them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paired_tables import METRICS, WEIGHTED, paired, score_table

from evalguard.core.pairing import pair
from evalguard.stats.compare_scores import compare_scores

RNG = np.random.default_rng(20261121)
N = 150
WEIGHTS = RNG.integers(4, 60, N).astype(float)
BASE = -RNG.gamma(1.4, 1.0, N)
CAND = BASE - RNG.normal(0.03, 0.3, N)
RIGHT = (RNG.random(N) < 0.6).astype(float)
CAND_RIGHT = np.where(RNG.random(N) < 0.2, 1.0 - RIGHT, RIGHT)
KINDS = (*METRICS, "binary")


def compared(kind, rows=slice(None), *, base=None, cand=None, factor=1.0, **options):
    """Compare the same documents by one kind of metric, or some of them."""
    if kind == "binary":
        base, cand = (RIGHT, CAND_RIGHT) if base is None else (base, cand)
        return compare_scores(paired(base[rows], cand[rows]), **options)
    base, cand = (BASE, CAND) if base is None else (base, cand)
    weights = WEIGHTS[rows] * factor if kind in WEIGHTED else None
    return compare_scores(paired(base[rows], cand[rows], kind, weights=weights), **options)


@pytest.mark.parametrize("copies", [2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_all_documents_sharpen_sigma_by_their_root(kind, copies):
    # the metric stays; every standard error has sqrt(n (n - 1)) in its denominator
    rows = np.tile(np.arange(N), copies)
    one, more = compared(kind), compared(kind, rows)
    scale = math.sqrt((copies * N - 1) / (N - 1))
    assert more.base == pytest.approx(one.base, rel=1e-12)
    assert more.base_stderr * scale == pytest.approx(one.base_stderr, rel=1e-12)
    assert more.sigma == pytest.approx(one.sigma * scale, rel=1e-10)
    assert more.p_value < one.p_value


@pytest.mark.parametrize("kind", ["mean", "weighted_perplexity", "bits_per_byte"])
@given(factor=st.floats(1e-3, 1e3))
def test_the_unit_of_a_metric_is_no_part_of_its_sigma(kind, factor):
    one = compared(kind)
    if kind == "mean":
        other = compared(kind, base=BASE * factor, cand=CAND * factor)
    else:  # more words in every document: the log-likelihood of a text grows alike
        other = compared(kind, base=BASE * factor, cand=CAND * factor, factor=factor)
    assert other.sigma == pytest.approx(one.sigma, rel=1e-9)
    assert other.sigma_interval == pytest.approx(one.sigma_interval, rel=1e-9)
    assert other.p_value == pytest.approx(one.p_value, rel=1e-9)
    assert other.outcome == one.outcome


@pytest.mark.parametrize("kind", ["mean", "perplexity"])
@given(constant=st.floats(-50.0, 50.0))
def test_what_is_added_to_both_models_cancels(kind, constant):
    one = compared(kind)
    other = compared(kind, base=BASE + constant, cand=CAND + constant)
    assert other.sigma == pytest.approx(one.sigma, rel=1e-9)
    assert other.p_value == pytest.approx(one.p_value, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_limit_compares_the_first_documents_as_if_there_were_no_others(kind):
    rows = np.arange(60)
    first = compared(kind, rows)
    whole = [
        score_table(
            side,
            "mean" if kind == "binary" else kind,
            weights=WEIGHTS if kind in WEIGHTED else None,
        )
        for side in ((RIGHT, CAND_RIGHT) if kind == "binary" else (BASE, CAND))
    ]
    limited = [
        replace(
            table,
            doc_ids=table.doc_ids[:60],
            values=table.values[:60],
            weights=None if table.weights is None else table.weights[:60],
            n_total=N,
            **{
                field: getattr(table, field)[:60]
                for field in ("doc_hashes", "prompt_hashes", "target_hashes", "token_hashes")
            },
        )
        for table in whole
    ]
    got = compare_scores(pair(*limited))
    assert got.provenance[0] == "only 60 of the task's 150 documents were scored"
    assert got.n_total == N
    told = {"caveats": (), "provenance": (), "undecided": None, "n_total": 0}
    assert replace(got, **told) == replace(first, **told)


@pytest.mark.parametrize("kind", KINDS)
def test_a_documents_id_and_neighbours_do_not_matter(kind):
    rows = RNG.permutation(N)
    moved, kept = compared(kind, rows), compared(kind)
    assert replace(moved, influence=None) == replace(kept, influence=None)
    assert moved.influence.sigma_without == kept.influence.sigma_without


@pytest.mark.parametrize("kind", KINDS)
def test_more_confidence_widens_the_interval_and_moves_nothing_else(kind):
    narrow, wide = compared(kind, confidence=0.9), compared(kind, confidence=0.99)
    assert wide.sigma_interval[0] < narrow.sigma_interval[0]
    assert narrow.sigma_interval[1] < wide.sigma_interval[1]
    assert (wide.sigma, wide.p_value) == (narrow.sigma, narrow.p_value)


@pytest.mark.parametrize("kind", ["mean", "binary"])
def test_an_error_rate_says_what_its_accuracy_says(kind):
    base, cand = (RIGHT, CAND_RIGHT) if kind == "binary" else (BASE, CAND)
    right = compare_scores(paired(base, cand))
    wrong = compare_scores(paired(1.0 - base, 1.0 - cand, higher_is_better=False))
    assert wrong.sigma == pytest.approx(right.sigma, rel=1e-9)
    assert wrong.sigma_interval == pytest.approx(right.sigma_interval, rel=1e-9)
    assert wrong.p_value == pytest.approx(right.p_value, rel=1e-9)
    assert (wrong.outcome, wrong.flips) == (right.outcome, right.flips)


def test_numbers_are_plain_and_zero_has_no_sign():
    for kind in KINDS:
        got = compared(kind, base=RIGHT.copy(), cand=RIGHT.copy())
        for number in (got.sigma, *got.sigma_interval, got.paired_stderr):
            assert type(number) is float
            assert math.copysign(1.0, number) == 1.0


@pytest.mark.parametrize(
    ("base", "cand"),
    [
        ([1, 1], [1, 0]),
        ([0, 1], [1, 0]),
        ([1, 1], [0, 0]),
        ([0, 0], [1, 1]),
        ([1, 0], [1, 0]),
        ([1] * 1000, [1] * 999 + [0]),
    ],
)
def test_the_smallest_and_plainest_answer_sheets_have_a_verdict(base, cand):
    got = compare_scores(paired(np.array(base, float), np.array(cand, float)))
    assert got.outcome in ("regressed", "undecided", "unchanged")
    low, high = got.sigma_interval
    assert low <= got.sigma <= high
    assert not got.significant
    assert 0.0 <= got.false_alarm_probability <= 1.0
