"""Figures of generated answers with few events: tests and intervals keep their level."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from evalguard.answers.document_figures import compare_figures
from evalguard.stats.effective_sample import Share


@pytest.mark.parametrize("n", [15, 50, 200, 500])
@pytest.mark.parametrize("events", [0.0, 1.0, 2.0, 5.0])
def test_an_unchanged_candidate_is_seldom_said_to_have_moved(n: int, events: float) -> None:
    """Every pair of counts of discordant documents, weighted by its chance: no sampling error.

    Each side has the event in ``events`` documents on average, in documents of its own.
    """
    rate = events / n
    moved = 0.0
    most = int(stats.binom.ppf(1.0 - 1e-6, n, rate))
    for lost in range(most + 1):
        for won in range(min(most, n - lost) + 1):
            chance = stats.multinomial.pmf(
                [lost, won, n - lost - won], n, [rate, rate, 1 - 2 * rate]
            )
            if chance < 1e-9:
                continue
            base, candidate = np.zeros(n), np.zeros(n)
            candidate[:lost], base[lost : lost + won] = 1.0, 1.0
            low, _ = compare_figures(base, candidate, confidence=0.95).difference.interval or (0, 0)
            moved += chance * (low > 0.0)
    assert moved <= 0.026  # one-sided 2.5%; mid-p may exceed it by a little


@pytest.mark.parametrize("n", [15, 50, 500])
@pytest.mark.parametrize("events", [0.5, 1.0, 3.0, 5.0])
def test_the_interval_of_a_share_holds_it_as_often_as_it_says(n: int, events: float) -> None:
    rate, held = events / n, 0.0
    for hits in range(int(stats.binom.ppf(1.0 - 1e-9, n, rate)) + 1):
        counted = np.zeros(n)
        counted[:hits] = 1.0
        low, high = Share(hits=counted, positions=np.ones(n)).interval(confidence=0.95)
        held += stats.binom.pmf(hits, n, rate) * (low <= rate <= high)
    assert held >= 0.95


def test_no_event_leaves_open_the_share_of_the_rule_of_three() -> None:
    for n in (15, 100, 500):
        _, high = Share(hits=np.zeros(n), positions=np.ones(n)).interval(confidence=0.95)
        assert high == pytest.approx(1.0 - 0.025 ** (1.0 / n))
