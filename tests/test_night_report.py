"""What a night comes to: its exit code, and what is other than last night."""

from __future__ import annotations

from typing import Any

import pytest

from evalguard.gate_reason import GateState
from evalguard.night_changes import changed_since
from evalguard.night_report import NightlyMetric, PairNight, night_exit_code


def pair(state: GateState = "passed", **metrics: GateState) -> PairNight:
    made: dict[str, Any] = {"task": "t", "filter": "none", "low": 0.0, "high": 1.0, "n": 9}
    return PairNight(
        base="a", candidate="b", state=state, exit_code=0, reason="",
        metrics=tuple(
            NightlyMetric(metric=name, sigma=0.5, outcome="unchanged", state=its, **made)
            for name, its in metrics.items()
        ),
    )  # fmt: skip


def key(metric: str) -> tuple[str, str, str]:
    return "t", "none", metric


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], 0), ([0, 0], 0), ([0, 4], 4), ([0, 3, 4], 3), ([3, 1, 4, 0], 1), ([0, 1], 1)],
)
def test_a_known_regression_outweighs_what_is_not_known(codes: list[int], expected: int) -> None:
    assert night_exit_code(codes) == expected


def test_new_still_there_and_gone_are_told_apart() -> None:
    before = pair("regressed", acc="regressed", f1="regressed", ppl="passed")
    found = changed_since(pair("regressed", acc="regressed", f1="passed", ppl="regressed"), before)
    assert (found.regressed, found.still, found.recovered) == (
        (key("ppl"),), (key("acc"),), (key("f1"),),
    )  # fmt: skip
    assert found.was == "regressed"


def test_on_the_first_night_every_regression_is_new() -> None:
    found = changed_since(pair("regressed", acc="regressed"), None)
    assert (found.was, found.regressed) == (None, (key("acc"),))


def test_a_metric_without_a_number_has_not_recovered() -> None:
    found = changed_since(pair("failed", acc="failed"), pair("regressed", acc="regressed"))
    assert (found.recovered, found.failed) == ((), True)
    gone = changed_since(pair("failed"), pair("regressed", acc="regressed"))
    assert (gone.recovered, gone.failed) == ((), True)


def test_a_pair_that_fails_again_is_not_new() -> None:
    assert not changed_since(pair("failed"), pair("failed")).failed
