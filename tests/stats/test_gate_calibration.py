"""How often the gate's rules fail an unchanged candidate, and one that drifts."""

from __future__ import annotations

import math

import pytest

from benchmarks.gate_rules import false_alarms as gate_alarms
from benchmarks.gate_rules import power as gate_power


def test_the_default_gate_fails_an_unchanged_candidate_in_a_twentieth_of_runs_at_most():
    by_count = gate_alarms(churn=0.15, repetitions=200, counts=(1, 7))
    for found in by_count.values():
        assert found.real <= 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / found.of)
    assert by_count[7].margin > 0.3 > 3.0 * by_count[7].real  # the literal rule


@pytest.mark.nightly
@pytest.mark.parametrize("churn", [0.05, 0.15])
def test_so_it_does_with_fifty_metrics_that_share_their_documents(churn):
    by_count = gate_alarms(churn=churn, repetitions=100, counts=(20, 50))
    for found in by_count.values():
        assert found.real <= 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / found.of)
        assert found.margin > 0.2


@pytest.mark.parametrize("ratio", [1 / 10, 1 / 50])
def test_a_perplexity_that_drifts_fails_the_default_gate_as_often_as_the_literal_one(ratio):
    for drift in (1.1, 2.0):
        found = gate_power(ratio, drift, beside=6, repetitions=60)
        assert found.differ == 0.0
        assert found.real == found.margin > (0.9 if drift == 2.0 else 0.5)
