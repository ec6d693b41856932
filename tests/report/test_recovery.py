"""Recovery: what a candidate keeps of the base's value, in per cent."""

from __future__ import annotations

from typing import Any

import pytest
from example_reports import comparison


@pytest.mark.parametrize(
    ("base", "candidate", "higher_is_better", "recovery"),
    [
        (0.80, 0.78, True, 97.5),  # llm-compressor: quantised / unquantised
        (0.80, 0.84, True, 105.0),
        (4.0, 5.0, False, 80.0),  # of a perplexity the other way round: above 100 is better
        (0.8, 0.0, True, 0.0),
    ],
)
def test_above_100_the_candidate_is_better(
    base: float, candidate: float, higher_is_better: bool, recovery: float
) -> None:
    found = comparison(base=base, candidate=candidate, higher_is_better=higher_is_better).recovery
    assert found == pytest.approx(recovery)


@pytest.mark.parametrize(
    "changes",
    [
        {"base": 0.0, "candidate": 0.1},
        {"base": -3.0, "candidate": -4.0},
        {"base": 4.0, "candidate": 0.0},
        {"base": None},
        {"candidate": None},
        {"base": float("inf")},
        {"candidate": float("nan")},
        {"directed": False},
    ],
)
def test_a_ratio_that_says_nothing_is_none(changes: dict[str, Any]) -> None:
    assert comparison(**changes).recovery is None
