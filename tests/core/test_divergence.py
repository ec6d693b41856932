"""KL of two distributions, exact and from what was kept of one of them."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax, rel_entr

from evalguard.core.divergence import (
    Divergence,
    count_full,
    divergence,
    divergence_from,
    largest_tail,
    reference,
)
from evalguard.core.logprob_rows import NO_TOKEN, HostRows, pieces, shared_tokens, top_tokens

Rows = NDArray[np.float32]


def rows_of(logits: NDArray[np.float64]) -> Rows:
    """Log-probabilities as a model gives them: float32, which do not quite sum to 1."""
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float32), dim=-1).numpy()


def two_models(
    positions: int, vocabulary: int, *, seed: int, spread: float = 3.0, drift: float = 0.3
) -> tuple[Rows, Rows, NDArray[np.int64]]:
    draws = np.random.default_rng(seed)
    base = draws.normal(scale=spread, size=(positions, vocabulary))
    candidate = base + draws.normal(scale=drift, size=base.shape)
    return rows_of(base), rows_of(candidate), draws.integers(0, vocabulary, positions)


def exact(base: Rows, candidate: Rows) -> NDArray[np.float64]:
    """torch's kl_div of the float64 distributions that the float32 rows stand for."""
    p = torch.log_softmax(torch.tensor(base, dtype=torch.float64), dim=-1)
    q = torch.log_softmax(torch.tensor(candidate, dtype=torch.float64), dim=-1)
    kl = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True)
    return kl.sum(dim=-1).numpy()


@pytest.mark.parametrize("drift", [1e-6, 1e-3, 0.3, 5.0])
def test_kl_is_torchs_and_scipys(drift):
    base, candidate, tokens = two_models(40, 3000, seed=1, drift=drift)
    found = divergence(base, candidate, tokens).kl
    np.testing.assert_allclose(found, exact(base, candidate), rtol=1e-9, atol=1e-13)
    p = np.exp(log_softmax(base.astype(float), axis=1))
    q = np.exp(log_softmax(candidate.astype(float), axis=1))
    np.testing.assert_allclose(found, rel_entr(p, q).sum(axis=1), rtol=1e-9, atol=1e-13)


def test_a_model_against_itself_diverges_by_exactly_nothing():
    base, _, tokens = two_models(200, 1111, seed=2, spread=8.0)
    same = divergence(base, base.copy(), tokens)
    assert not same.kl.any()
    assert (same.shared_top == 10).all()
    assert (same.base_top == same.candidate_top).all()
    np.testing.assert_array_equal(same.base_logprobs, same.candidate_logprobs)
    kept = divergence_from(reference(base, tokens, top_k=5, samples=3, seed=0), base)
    assert kept.kl_low is not None
    assert not kept.kl.any()
    assert not kept.kl_low.any()


def test_rounding_of_the_rows_makes_no_kl():
    """Float32 rows sum to 1 within 1e-6 only: unnormalised, that alone would be a KL of 1e-7."""
    logits = np.random.default_rng(3).normal(scale=4.0, size=(100, 5000))
    base, moved = rows_of(logits), rows_of(logits + 7.3)
    found = divergence(base, moved, np.zeros(100, dtype=np.int64)).kl
    assert (found >= 0.0).all()
    assert found.max() < 1e-12


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), drift=st.sampled_from([0.0, 1e-9, 1e-7, 1e-5]))
def test_kl_is_never_negative(seed, drift):
    base, candidate, tokens = two_models(8, 300, seed=seed, drift=drift)
    assert (divergence(base, candidate, tokens).kl >= 0.0).all()


def test_a_token_that_only_the_base_can_say_is_an_infinite_kl():
    base, candidate, tokens = two_models(3, 20, seed=4)
    candidate[1, 7] = -np.inf
    candidate = log_softmax(candidate, axis=1).astype(np.float32)
    found = divergence(base, candidate, tokens).kl
    assert np.isinf(found).tolist() == [False, True, False]


def test_a_token_that_neither_can_say_changes_nothing():
    base, candidate, tokens = two_models(3, 20, seed=5)
    alone = divergence(base, candidate, tokens)
    wall = np.full((3, 4), -np.inf, dtype=np.float32)
    padded = divergence(np.hstack([base, wall]), np.hstack([candidate, wall]), tokens)
    np.testing.assert_allclose(padded.kl, alone.kl, rtol=1e-12)
    kept = reference(np.hstack([base, wall]), tokens, top_k=22, samples=2, seed=0)
    from_kept = divergence_from(kept, np.hstack([candidate, wall]))
    np.testing.assert_allclose(from_kept.kl_high, alone.kl, atol=2e-11)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_distribution_has_no_kl(bad):
    base, candidate, tokens = two_models(3, 200, seed=6)
    broken = candidate.copy()
    broken[1, 150] = bad
    broken[2] = -np.inf
    kept = reference(base, tokens, top_k=5, samples=2, seed=0)
    for found in (divergence(base, broken, tokens), divergence_from(kept, broken)):
        assert np.isnan(found.kl).tolist() == [False, True, True]
    for found in (
        divergence(broken, candidate, tokens),
        divergence_from(reference(broken, tokens, top_k=5, samples=2, seed=0), candidate),
    ):
        assert np.isnan(found.kl).tolist() == [False, True, True]
        assert found.kl_high is None or np.isnan(found.kl_high).tolist() == [False, True, True]


def test_a_base_that_is_no_distribution_says_nothing_against_the_candidate():
    """None of the base's tokens is known there, and the candidate's still sum to 1."""
    base, _, tokens = two_models(2, 6, seed=6, spread=0.1)
    broken = base.copy()
    broken[1] = math.nan
    for k in (3, 6):
        kept = reference(broken, tokens, top_k=k, samples=2, seed=0)
        assert np.isnan(divergence_from(kept, base).kl).tolist() == [False, True]


def test_logits_in_the_place_of_log_probabilities_are_refused():
    logits = np.random.default_rng(7).normal(size=(2, 50)).astype(np.float32)
    tokens = np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="base: rows are no log-probabilities: one sums to"):
        divergence(logits, rows_of(logits), tokens)
    with pytest.raises(ValueError, match="reference: rows are no log-probabilities"):
        reference(logits, tokens, top_k=3, samples=1, seed=0)


@pytest.mark.parametrize(
    ("base", "candidate", "tokens", "message"),
    [
        ((2, 5), (2, 6), (2,), "different shapes"),
        ((2, 5), (2, 5), (3,), "2 rows for"),
        ((5,), (5,), (5,), "shape \\(positions, vocabulary\\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(base, candidate, tokens, message):
    with pytest.raises(ValueError, match=message):
        divergence(
            rows_of(np.zeros(base)), rows_of(np.zeros(candidate)), np.zeros(tokens, dtype=np.int64)
        )


def test_a_scored_token_outside_the_vocabulary_is_refused():
    rows = rows_of(np.zeros((1, 5)))
    with pytest.raises(ValueError, match="outside the 5 tokens"):
        divergence(rows, rows, np.array([5]))


def test_the_scored_tokens_log_probabilities_are_the_models_own():
    base, candidate, tokens = two_models(30, 500, seed=8)
    found = divergence(base, candidate, tokens)
    at = np.arange(30)
    np.testing.assert_array_equal(found.base_logprobs, base[at, tokens])
    np.testing.assert_array_equal(found.candidate_logprobs, candidate[at, tokens])


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([1, 2, 63, 64, 65, 700, 2561, 9001]),
    k=st.integers(1, 12),
    levels=st.sampled_from([2, 5, 10**6]),
)
@example(seed=0, vocabulary=64, k=1, levels=10**6)  # blocks of 8, 16 and 64 tokens, and the edge
@example(seed=0, vocabulary=128, k=2, levels=2)
@example(seed=0, vocabulary=9001, k=2, levels=10**6)
@example(seed=0, vocabulary=9001, k=12, levels=10**6)
def test_top_tokens_are_those_of_a_stable_sort(seed, vocabulary, k, levels):
    """With 2 or 5 levels nearly every token ties with others: the smaller id comes first."""
    rows = np.random.default_rng(seed).integers(0, levels, (5, vocabulary)).astype(np.float32)
    k = min(k, vocabulary)
    found = top_tokens(rows, k)
    np.testing.assert_array_equal(found, np.argsort(-rows, axis=1, kind="stable")[:, :k])
    other = top_tokens(rows[::-1].copy(), k)
    sets = [len(set(a) & set(b)) for a, b in zip(found.tolist(), other.tolist(), strict=True)]
    assert shared_tokens(found, other).tolist() == sets
    rows[2, seed % vocabulary] = np.nan
    assert (top_tokens(rows, k)[2] == NO_TOKEN).all()
    np.testing.assert_array_equal(np.delete(top_tokens(rows, k), 2, 0), np.delete(found, 2, 0))


def test_the_pieces_cover_every_position_once():
    for positions, vocabulary in ((0, 5), (1, 10**6), (1000, 300), (7, 2**16)):
        seen = [i for piece in pieces(positions, vocabulary) for i in range(positions)[piece]]
        assert seen == list(range(positions))


def logits_of(kind: str, draws: np.random.Generator, shape: tuple[int, int]) -> Rows:
    logits = draws.normal(scale=4.0, size=shape)
    if kind == "ties":
        logits = np.round(logits / 4.0)
    if kind == "peaked":
        logits[:, 0] += 60.0
    if kind == "near zero":
        logits[draws.random(shape) < 0.3] -= 90.0
    if kind == "impossible":
        logits[draws.random(shape) < 0.3] = -np.inf
        logits[:, 0] = 0.0
    return rows_of(logits)


@settings(deadline=None, max_examples=300)
@given(
    seed=st.integers(0, 10**6),
    base_kind=st.sampled_from(["plain", "ties", "peaked", "near zero", "impossible"]),
    kind=st.sampled_from(["plain", "ties", "peaked", "near zero", "impossible", "same"]),
    vocabulary=st.sampled_from([1, 2, 7, 130]),
    k=st.sampled_from([1, 2, 7, 64, 200]),
)
def test_the_exact_kl_lies_within_the_bounds(seed, base_kind, kind, vocabulary, k):
    draws = np.random.default_rng(seed)
    base = logits_of(base_kind, draws, (6, vocabulary))
    candidate = base if kind == "same" else logits_of(kind, draws, (6, vocabulary))
    tokens = draws.integers(0, vocabulary, 6)
    true = divergence(base, candidate, tokens)
    found = divergence_from(reference(base, tokens, top_k=k, samples=4, seed=seed), candidate)
    np.testing.assert_array_equal(found.base_top, true.base_top)
    np.testing.assert_array_equal(found.candidate_top, true.candidate_top)
    if k >= vocabulary:
        assert found.kl_low is None
        np.testing.assert_allclose(found.kl, true.kl, rtol=1e-12, atol=1e-13)
        return
    assert found.kl_low is not None
    assert found.kl_high is not None
    assert (found.kl_low >= 0.0).all()
    assert (found.kl_low <= true.kl).all()
    assert (true.kl <= found.kl_high).all()


def with_tail(kept: Rows, tail: NDArray[np.float64]) -> Rows:
    return np.hstack([kept, np.log(tail).astype(np.float32)])


@pytest.mark.parametrize("seed", range(5))
def test_the_upper_bound_is_attained(seed):
    """A base whose tail has the cap on the tokens that the candidate finds least likely."""
    draws = np.random.default_rng(seed)
    candidate = rows_of(draws.normal(scale=3.0, size=(1, 50)))
    cap, full, rest = 2.0**-6, 7, 2.0**-8
    order = 4 + np.argsort(candidate[0, 4:])
    base = np.full((1, 50), -np.inf, dtype=np.float32)
    base[0, order[:full]] = math.log(cap)
    base[0, order[full]] = math.log(rest)
    base[0, :4] = np.log([0.5, 0.25, 0.25 - 8 * cap - rest, cap])
    tokens = np.zeros(1, dtype=np.int64)
    found = divergence_from(reference(base, tokens, top_k=4, samples=2, seed=0), candidate)
    assert found.kl_high is not None
    np.testing.assert_allclose(divergence(base, candidate, tokens).kl, found.kl_high, rtol=1e-6)


def test_the_lower_bound_is_attained_where_the_tails_are_in_proportion():
    draws = np.random.default_rng(9)
    kept = rows_of(np.array([[2.0, 1.0, 0.5]]))
    tail = draws.random((1, 40)) / 40
    base = rows_of(with_tail(kept, 0.1 * tail / tail.sum()))
    candidate = rows_of(with_tail(kept[:, ::-1], 0.2 * tail / tail.sum()))
    tokens = np.zeros(1, dtype=np.int64)
    found = divergence_from(reference(base, tokens, top_k=3, samples=2, seed=0), candidate)
    np.testing.assert_allclose(divergence(base, candidate, tokens).kl, found.kl_low, rtol=1e-6)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), filled=st.floats(0.01, 1.0))
def test_no_tail_beats_the_supremum(seed, filled):
    draws = np.random.default_rng(seed)
    log_q, cap = draws.normal(scale=4.0, size=20) - 5.0, 0.01
    p = np.minimum(draws.exponential(size=20) ** 3 * cap * filled, cap)
    mass, caps = p.sum(keepdims=True), np.array([cap])
    full = count_full(mass, caps, 20)
    rows = HostRows(np.append(log_q, 0.0)[None])
    bound = largest_tail(rows.tails(np.array([[20]]), full), full, mass, caps)
    assert float((p * (np.log(p) - log_q)).sum()) <= bound[0] + 1e-12


@pytest.mark.parametrize("drift", [0.05, 3.0], ids=["controlled", "plain"])
def test_the_estimate_is_unbiased(drift):
    """Mean of 4,000 references of one position each, within 4.5 of its standard errors."""
    base, candidate, _ = two_models(1, 200, seed=10, spread=1.0, drift=drift)
    many, tokens = np.repeat(base, 4000, axis=0), np.zeros(4000, dtype=np.int64)
    kept = reference(many, tokens, top_k=4, samples=8, seed=11)
    found = divergence_from(kept, np.repeat(candidate, 4000, axis=0)).kl
    true = float(exact(base, candidate)[0])
    assert abs(found.mean() - true) < 4.5 * found.std() / math.sqrt(4000)
    assert found.std() > 0.0


def test_near_models_need_few_draws():
    """The control variate: the error of an estimate is of the size of KL, not of its root."""
    base, candidate, _ = two_models(1, 2000, seed=12, spread=1.0, drift=0.01)
    many, tokens = np.repeat(base, 500, axis=0), np.zeros(500, dtype=np.int64)
    kept = reference(many, tokens, top_k=4, samples=8, seed=13)
    found = divergence_from(kept, np.repeat(candidate, 500, axis=0)).kl
    assert found.std() < exact(base, candidate)[0]


def test_a_tail_with_impossible_tokens_is_estimated_without_bias():
    """The control variate would count what the candidate gives to tokens that nobody can draw."""
    base, candidate, _ = two_models(1, 60, seed=14, spread=1.0, drift=0.05)
    base[0, 40:] = -np.inf
    base = rows_of(base)
    candidate[0, 40:] -= 0.5
    candidate = rows_of(candidate)
    base[0, 55] = -np.inf
    many, tokens = np.repeat(base, 4000, axis=0), np.zeros(4000, dtype=np.int64)
    kept = reference(many, tokens, top_k=4, samples=8, seed=15)
    assert not kept.full_support.any()
    found = divergence_from(kept, np.repeat(candidate, 4000, axis=0)).kl
    true = float(exact_where_possible(base, candidate))
    assert abs(found.mean() - true) < 4.5 * found.std() / math.sqrt(4000)


def exact_where_possible(base: Rows, candidate: Rows) -> float:
    p = np.exp(log_softmax(base.astype(float), axis=1))
    q = np.exp(log_softmax(candidate.astype(float), axis=1))
    return float(rel_entr(p, q).sum())


def test_a_reference_is_what_its_seed_says():
    base, _, tokens = two_models(20, 400, seed=16)
    once, again, other = (
        reference(base, tokens, top_k=8, samples=6, seed=seed) for seed in (1, 1, (1, 2))
    )
    np.testing.assert_array_equal(once.sample_ids, again.sample_ids)
    assert (once.sample_ids != other.sample_ids).any()
    assert not (once.sample_ids[:, :, None] == once.top_ids[:, None, :]).any()
    at = np.arange(20)[:, None]
    np.testing.assert_array_equal(once.sample_logprobs, base[at, once.sample_ids])
    np.testing.assert_array_equal(once.top_logprobs, base[at, once.top_ids])
    mass = np.exp(once.top_logprobs.astype(float)).sum(axis=1) + once.tail_mass
    np.testing.assert_allclose(mass, 1.0, atol=1e-5)


def test_a_reference_of_another_vocabulary_is_refused():
    base, _, tokens = two_models(2, 30, seed=17)
    kept = reference(base, tokens, top_k=3, samples=2, seed=0)
    with pytest.raises(ValueError, match="29 tokens for a reference of 30"):
        divergence_from(kept, rows_of(np.zeros((2, 29))))


@pytest.mark.parametrize(("top_k", "samples"), [(0, 1), (1, 0)])
def test_a_reference_that_keeps_nothing_is_refused(top_k, samples):
    base, _, tokens = two_models(2, 30, seed=18)
    with pytest.raises(ValueError, match="at least 1"):
        reference(base, tokens, top_k=top_k, samples=samples, seed=0)
    with pytest.raises(ValueError, match="float32"):
        reference(base.astype(np.float64), tokens, top_k=1, samples=1, seed=0)


@pytest.mark.parametrize("top_k", [64, 1000])
def test_memory_does_not_grow_with_what_is_kept_of_a_row(top_k):
    """Beside what is kept, a few temporaries of a piece of the positions: not of all of them."""
    base, candidate, tokens = two_models(2000, 1000, seed=18)
    tracemalloc.start()
    kept = reference(base, tokens, top_k=top_k, samples=2, seed=0)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    divergence_from(kept, candidate)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 2 * base.nbytes


def test_no_positions_are_no_error():
    empty, tokens = rows_of(np.zeros((0, 30))), np.zeros(0, dtype=np.int64)
    assert divergence(empty, empty, tokens).positions == 0
    kept = reference(empty, tokens, top_k=3, samples=2, seed=0)
    found: Divergence = divergence_from(kept, empty)
    assert found.positions == 0
