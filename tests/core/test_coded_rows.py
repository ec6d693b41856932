"""Sixteen bits a log-probability: what they show of a divergence, and what they prove."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logits_files import code_row

from evalguard.core.coded_rows import (
    ROUNDING,
    CodedRows,
    DamagedRowError,
    check_scales,
    divergence_from_codes,
    spans_all,
)
from evalguard.core.divergence import divergence


def code(logits: np.ndarray) -> CodedRows:
    scale, least, codes = zip(*map(code_row, logits), strict=True)
    return CodedRows(scale=np.array(scale), least=np.array(least), codes=np.array(codes))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def draw(seed: int, spread: float, apart: float, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed)
    base = (drawn.normal(size=(6, vocabulary)) * spread).astype(np.float32)
    other = base + (drawn.normal(size=base.shape) * apart).astype(np.float32)
    return base, other


def test_a_stored_log_probability_is_off_by_at_most_half_a_step() -> None:
    """16 nats in 65,535 steps: 0.000122 nats."""
    base, _ = draw(0, 5.0, 0.0, 999)
    coded = code(base)
    there = ~(spans_all(coded.scale)[:, None] & (coded.codes == 0))
    assert not there.all()
    assert there.any(axis=1).all()
    off = np.abs(coded.logprobs() - log_softmax(base))
    assert off[there].max() < ROUNDING + 4e-6
    assert pytest.approx(1.2207e-4, rel=1e-3) == ROUNDING


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.5, 3.0, 8.0]),
    st.sampled_from([0.0, 1e-4, 0.03, 1.0, 6.0]),
    st.sampled_from([2, 33, 700]),
)
def test_the_exact_divergence_lies_within_the_bounds(
    seed: int, spread: float, apart: float, vocabulary: int
) -> None:
    base, other = draw(seed, spread, apart, vocabulary)
    ids = np.zeros(len(base), dtype=np.int64)
    exact = divergence(log_softmax(base), log_softmax(other), ids).kl
    found = divergence_from_codes(code(base), log_softmax(other).astype(np.float32), ids)
    assert found.kl_low is not None
    assert found.kl_high is not None
    assert (found.kl_low <= exact + 2e-7 * (1 + exact)).all()
    assert (exact <= found.kl_high + 2e-7 * (1 + exact)).all()


@pytest.mark.parametrize("spread", [2.0, 5.0])
def test_of_a_model_against_its_own_file_nothing_is_proven(spread: float) -> None:
    base, _ = draw(1, spread, 0.0, 2000)
    ids = np.zeros(len(base), dtype=np.int64)
    found = divergence_from_codes(code(base), log_softmax(base).astype(np.float32), ids)
    assert found.kl_low is not None
    assert found.kl_low.max() < 1e-7
    assert np.abs(found.kl).max() < ROUNDING


def test_kl_is_summed_as_llama_cpp_does() -> None:
    """By hand: sum p (log p - log q) over log p > -16, and p is not renormalised."""
    base, other = draw(2, 6.0, 0.5, 50)
    coded, log_q = code(base), log_softmax(other).astype(np.float32)
    stored = coded.logprobs().astype(np.float64)
    expected = [
        sum(np.exp(p) * (p - q) for p, q in zip(ours, theirs, strict=True) if p > -16)
        for ours, theirs in zip(stored, log_q.astype(np.float64), strict=True)
    ]
    ids = np.full(len(base), 7)
    found = divergence_from_codes(coded, log_q, ids)
    np.testing.assert_allclose(found.kl, expected, rtol=1e-12)
    np.testing.assert_array_equal(found.base_logprobs, stored[:, 7])


def test_a_row_that_sums_to_something_else_is_damaged() -> None:
    base, _ = draw(3, 3.0, 0.0, 40)
    coded = code(base)
    coded.codes[4] = 65535
    with pytest.raises(DamagedRowError, match=r"probabilities of .* in all") as raised:
        divergence_from_codes(coded, log_softmax(base).astype(np.float32), np.zeros(6, np.int64))
    assert raised.value.row == 4


@pytest.mark.parametrize(("scale", "least"), [(np.nan, -1), (-1e-4, -1), (0.1, -1), (1e-4, 2)])
def test_scales_that_no_row_has_are_damage(scale: float, least: float) -> None:
    scales = np.array([1e-4, scale], dtype=np.float32)
    with pytest.raises(DamagedRowError, match="the scale") as raised:
        check_scales(scales, np.array([-9, least], dtype=np.float32))
    assert raised.value.row == 1
