"""Metrics that a gate lists: by metric, by task, and by the filter that lm-eval writes after it."""

from __future__ import annotations

import pytest

from evalguard.core.gate import Gate

STRICT = ("gsm8k", "strict-match", "exact_match")
FLEXIBLE = ("gsm8k", "flexible-extract", "exact_match")


@pytest.mark.parametrize("name", ["exact_match,strict-match", "gsm8k/exact_match,strict-match"])
def test_a_filter_s_metric_is_listed_as_lm_eval_writes_it(name: str) -> None:
    advisory, only = Gate(advisory=(name,)), Gate(gate_metrics=(name,))
    assert [advisory.covers(*key) for key in (STRICT, FLEXIBLE)] == [False, True]
    assert [only.covers(*key) for key in (STRICT, FLEXIBLE)] == [True, False]


@pytest.mark.parametrize("name", ["exact_match", "gsm8k/exact_match"])
def test_a_metric_without_a_filter_means_all_of_its_filters(name: str) -> None:
    assert not any(Gate(advisory=(name,)).covers(*key) for key in (STRICT, FLEXIBLE))
