from __future__ import annotations

import math

import pytest

from benchmarks.printed_results import harness_sigma, one_sided_p, unpaired_z

# The FLA port of RWKV-7 on lambada_openai, as its report printed it (shared statistics page).
BASE, BASE_STDERR = 4.1330, 0.0888
CAND, CAND_STDERR = 4.2631, 0.0918


def test_the_rwkv7_port_has_its_golden_sigma_and_p():
    sigma = harness_sigma(BASE, BASE_STDERR, CAND, higher_is_better=False)
    assert sigma == pytest.approx(1.46509, abs=5e-6)
    assert one_sided_p(sigma) == pytest.approx(0.071448, abs=5e-7)


def test_the_unrounded_base_gives_its_own_golden_sigma_and_p():
    sigma = harness_sigma(4.1329989138930125, 0.08878972964627665, CAND, higher_is_better=False)
    assert sigma == pytest.approx(1.465272, abs=5e-7)
    assert one_sided_p(sigma) == pytest.approx(0.0714234, abs=5e-8)


def test_the_unpaired_test_of_the_same_port_sees_nothing():
    z, p_value = unpaired_z(BASE, BASE_STDERR, CAND, CAND_STDERR)
    assert z == pytest.approx(1.018626, abs=5e-7)
    assert p_value == pytest.approx(0.308381, abs=5e-7)


def test_sigma_is_positive_where_the_candidate_is_worse():
    assert harness_sigma(0.5, 0.1, 0.4, higher_is_better=True) == pytest.approx(1.0)
    assert harness_sigma(0.5, 0.1, 0.4, higher_is_better=False) == pytest.approx(-1.0)


@pytest.mark.parametrize("stderr", [0.0, -1.0, math.nan, math.inf])
def test_a_useless_standard_error_is_refused(stderr):
    with pytest.raises(ValueError, match="standard error"):
        harness_sigma(1.0, stderr, 2.0, higher_is_better=False)
