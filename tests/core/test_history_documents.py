"""The same documents over nights: flips, broken, broken again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from history_examples import N, documents, right
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.moments import ratio_moments
from evalguard.nights.document_scores import DocumentScores, fingerprints, match_documents
from evalguard.nights.history_flips import broken, broken_documents, flips

SETS = st.sets(st.integers(0, N - 1))


def perplexity(candidate: np.ndarray, base: np.ndarray, **changed: object) -> DocumentScores:
    made = documents(candidate, base)
    return replace(made, aggregation="perplexity", higher_is_better=False, **changed)


@given(SETS, SETS)
def test_flips_are_the_documents_right_on_one_night_only(first: set[int], second: set[int]) -> None:
    found = flips(documents(right(*first)), documents(right(*second)))
    assert (found.lost, found.won) == (
        tuple(sorted(second - first)),
        tuple(sorted(first - second)),
    )
    assert (found.shared, found.same) == (N, N - len(first ^ second))


def test_a_log_likelihood_has_no_flips_but_moves() -> None:
    base = np.linspace(-3.0, -1.0, N)
    second = base.copy()
    second[[4, 7]] += [-0.5, 0.25]
    found = flips(perplexity(base, base), perplexity(second, base))
    assert found.lost is None
    assert found.won is None
    assert [(moved.doc_id, moved.worse) for moved in found.moved] == [
        (4, pytest.approx(0.5)),
        (7, pytest.approx(-0.25)),
    ]
    assert found.same == N - 2


def test_a_metric_that_is_better_when_lower_flips_the_other_way() -> None:
    first, second = documents(right(1)), documents(right(2))
    lower = [replace(night, higher_is_better=False) for night in (first, second)]
    assert flips(*lower).lost == flips(first, second).won


def test_another_base_is_said() -> None:
    found = flips(documents(right()), documents(right(), base=right(3, 4)))
    assert found.base_moved == 2


def test_documents_are_the_same_by_content_whatever_their_number() -> None:
    first = documents(right(3, 5))
    order = np.random.default_rng(2).permutation(N)[:30]
    second = documents(
        first.candidate[order], prints=first.prints[order], doc_ids=np.arange(30), base=np.ones(30)
    )
    ours, theirs = match_documents(first, second)
    assert np.array_equal(ours, order)
    assert np.array_equal(theirs, np.arange(30))
    found = flips(first, second)
    assert (found.shared, found.only_first, found.only_second, found.lost) == (30, N - 30, 0, ())


def test_texts_that_a_task_asks_twice_are_told_apart_by_their_order() -> None:
    first = documents(right(n=4), prints=fingerprints(["a", "b", "a", "c"]))
    second = documents(right(n=4), prints=fingerprints(["a", "a", "d", "b"]))
    ours, theirs = match_documents(first, second)
    assert list(zip(ours.tolist(), theirs.tolist(), strict=True)) == [(0, 0), (2, 1), (1, 3)]


def test_no_documents_match_none() -> None:
    nothing = documents(np.ones(0))
    assert [rows.tolist() for rows in match_documents(nothing, documents(right()))] == [[], []]


def test_fingerprints_are_those_of_blake2b() -> None:
    # python -c "import hashlib; print(hashlib.blake2b(b'abc', digest_size=8).hexdigest())"
    assert fingerprints(["abc"])[0] == int.from_bytes(bytes.fromhex("d8bb14d833d59559"), "little")


def test_a_document_is_broken_where_only_the_base_has_it_right() -> None:
    night = documents(right(1, 2), base=right(2, 3))
    assert np.flatnonzero(broken(night)).tolist() == [1]


def test_a_log_likelihood_is_broken_by_a_standard_deviation_of_the_base() -> None:
    base = np.random.default_rng(4).normal(-2.0, 1.5, N)
    spread = float(np.std(base, ddof=1))
    candidate = base - np.where(np.arange(N) == 6, 1.01, 0.99) * spread
    assert np.flatnonzero(broken(perplexity(candidate, base))).tolist() == [6]


def test_the_spread_of_a_ratio_is_that_of_its_residuals() -> None:
    rng = np.random.default_rng(4)
    weights = rng.integers(5, 500, N).astype(float)
    base = -2.0 * weights + rng.normal(0.0, 10.0, N)
    night = perplexity(base, base, weights=weights)
    residuals = base - ratio_moments(base, weights).point * weights
    expected = np.sqrt(np.sum(residuals**2) / (N - 1))
    assert night.spread == pytest.approx(expected, rel=1e-12)


@given(st.lists(SETS, max_size=5), SETS)
def test_broken_documents_are_sorted_by_what_they_were(
    nights: list[set[int]], tonight: set[int]
) -> None:
    earlier = {number: documents(right(*wrong)) for number, wrong in enumerate(nights, 1)}
    found = broken_documents(documents(right(*tonight)), earlier)
    last = nights[-1] if nights else set()
    before = set().union(*nights)
    assert set(found.still) == tonight & last
    assert set(found.again) == (tonight - last) & before
    assert set(found.new) == tonight - before
    assert set(found.repaired) == last - tonight
    assert found.total == len(tonight)


def test_the_same_documents_broken_again_are_recognised() -> None:
    nights = [{1}, {10, 11, 12, 13}, {1}, set(), {20}, {2}]
    earlier = {number: documents(right(*wrong)) for number, wrong in enumerate(nights, 1)}
    found = broken_documents(documents(right(10, 11, 12, 30)), earlier)
    assert (found.again, found.new) == ((10, 11, 12), (30,))
    assert found.alike is not None
    assert (found.alike.run, found.alike.broken, found.alike.again) == (2, 4, 3)
    assert found.alike.by_chance == pytest.approx(4 * 4 / N)


def test_a_document_that_was_not_asked_counts_as_sound() -> None:
    half = documents(right(3, n=20))
    found = broken_documents(documents(right(3, 30)), {1: half})
    assert (found.still, found.new) == ((3,), (30,))
