from __future__ import annotations

import math

import numpy as np
import pytest

from evalguard.stats.power import documents_to_show_no_loss, repeats_to_show

# Golden values of the shared statistics page; error bars: E. Miller, Adding Error Bars to Evals.
QUANTILES = 1.959964 + 0.841621  # two-sided at 5%, power 80%


def variance(repeats: int) -> float:
    """Of Miller's example: 1/9 between documents, 1/6 within the answers of each model."""
    return 1 / 9 + 2 * (1 / 6) / repeats


@pytest.mark.parametrize(("effect", "repeats"), [(0.1328, 1), (0.0757, 10)])
def test_the_repeats_of_198_documents_are_those_of_the_golden_effects(
    effect: float, repeats: int
) -> None:
    assert repeats_to_show(effect, n=198, quantiles=QUANTILES, variance=variance) == repeats


def test_three_points_need_969_documents_however_many_answers_each_has() -> None:
    shown = [
        repeats_to_show(0.03, n=n, quantiles=QUANTILES, variance=variance)
        for n in (968, 970, 3875, 3876)
    ]
    assert shown[0] is None
    assert shown[1] is not None
    assert shown[1] > 100
    assert shown[2:] == [2, 1]


def test_a_planned_number_of_documents_has_the_planned_power():
    n, rng = documents_to_show_no_loss(0.09, 0.03), np.random.default_rng(8)
    flips = rng.choice([-1.0, 0.0, 1.0], p=[0.045, 0.91, 0.045], size=(4000, n))
    upper = flips.mean(axis=1) + 1.645 * flips.std(axis=1) / math.sqrt(n)
    assert np.mean(upper < 0.03) == pytest.approx(0.8, abs=0.02)
