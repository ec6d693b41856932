"""What a night comes to: its exit code, and what is other than last night."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalguard.core.exit_code import gravest_exit_code
from evalguard.core.gate_state import GateState
from evalguard.nights.night_changes import changed_since, gone_since, other_bases
from evalguard.nights.night_report import GonePair, NightlyMetric, PairNight


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
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 4], 4),
        ([0, 3, 4], 3),
        ([3, 1, 4, 0], 1),
        ([0, 1], 1),
        ([0, 125], 125),
    ],
)
def test_a_known_regression_outweighs_what_is_not_known(codes: list[int], expected: int) -> None:
    assert gravest_exit_code(codes) == expected


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


def test_a_pair_that_was_taken_out_or_renamed_is_named_with_its_state_then() -> None:
    before = (pair("regressed"), replace(pair("failed"), candidate="c"))
    renamed = (replace(pair(), candidate="c"), replace(pair(), candidate="d"))
    assert gone_since(renamed, before) == (GonePair(base="a", candidate="b", was="regressed"),)
    assert gone_since(before, ()) == ()


def test_a_base_is_another_one_where_its_digest_is() -> None:
    def night(*digests: str) -> list[PairNight]:
        return [
            replace(pair(), base=name, candidate=f"{name}-port", base_digest=digest)
            for name, digest in zip("abc", digests, strict=True)
        ]

    assert other_bases(night("1", "2", "3"), night("1", "2", "3")) == ()
    assert other_bases(night("1", "0", ""), night("1", "2", "3")) == ("b",)
    assert other_bases(night("1", "2", "3"), night("1", "2", "")) == ()
    assert other_bases(night("1", "2", "3"), []) == ()
