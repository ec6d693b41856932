"""Part of the documents, corrected by assignments that are known on all of them."""

from __future__ import annotations

import numpy as np
import pytest

from evalguard.bisect.search.block_estimates import correct_estimates

N, K = 400, 80


def drawn(seed: int, *, alike: float) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Drift on all documents of one assignment, and of another that shares part of it."""
    rng = np.random.default_rng(seed)
    known = 2.0 + rng.standard_normal(N)
    own = rng.standard_normal(N)
    return 1.0 + 0.5 * known + np.sqrt(1.0 / alike**2 - 1.0) * 0.5 * own, known


def test_it_is_the_least_squares_line_at_the_mean_of_all_documents() -> None:
    drift, known = drawn(0, alike=0.9)
    slope, level = np.polyfit(known[:K], drift[:K], 1)
    found = correct_estimates(drift[:K], known[None])
    assert found is not None
    assert found[0] == pytest.approx(level + slope * known.mean())


def test_its_error_is_as_large_as_it_says_and_smaller_than_without() -> None:
    off, said, plain = [], [], []
    for seed in range(400):
        drift, known = drawn(seed, alike=0.9)
        found = correct_estimates(drift[:K], known[None])
        assert found is not None
        off.append(found[0] - drift.mean())
        said.append(found[1])
        plain.append(drift[:K].mean() - drift.mean())
    whole = 1.0 - K / N  # what is measured of a finite number is known
    assert np.var(off) == pytest.approx(whole * np.mean(said), rel=0.25)
    assert np.var(off) < 0.35 * np.var(plain)


def test_two_known_assignments_correct_what_is_their_sum() -> None:
    rng = np.random.default_rng(1)
    known = rng.standard_normal((2, N)) + 1.0
    drift = known[0] - known[1] + 1e-3 * rng.standard_normal(N)
    found = correct_estimates(drift[:K], known)
    assert found is not None
    assert found[0] == pytest.approx(drift.mean(), abs=1e-3)


def test_what_resembles_nothing_is_left_alone() -> None:
    drift, known = drawn(2, alike=0.3)
    assert correct_estimates(drift[:K], known[None]) is None


def test_documents_that_do_not_scatter_are_nothing_to_resemble() -> None:
    base = np.random.default_rng(3).standard_normal(N)
    constant = base - (base - 0.02)  # rounding is left
    assert correct_estimates(constant[:K], constant[None] * 1.5) is None
