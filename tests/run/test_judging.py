"""Every metric of either side is compared or fails with its reason; none is dropped."""

from __future__ import annotations

import numpy as np
from fake_models import table

from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.gate import Gate

GATE = Gate()
RIGHT = [1.0] * 30 + [0.0] * 10
WRONG = [1.0] * 5 + [0.0] * 35


def test_metrics_keep_the_order_of_the_base_and_extra_ones_follow() -> None:
    base = [table(RIGHT, metric="a"), table(RIGHT, metric="b")]
    candidate = [table(RIGHT, metric="c"), table(WRONG, metric="b"), table(RIGHT, metric="a")]
    found = compare_tables(base, candidate, gate=GATE)
    assert [(c.metric, c.outcome) for c in found] == [
        ("a", "unchanged"), ("b", "regressed"), ("c", "failed")
    ]  # fmt: skip
    assert found[2].reason == "only the candidate has this metric, not the base"


def test_a_metric_of_the_base_alone_fails_with_its_own_direction() -> None:
    (found,) = compare_tables([table(RIGHT, higher_is_better=False)], [], gate=GATE)
    assert (found.outcome, found.higher_is_better) == ("failed", False)
    assert found.reason == "only the base has this metric, not the candidate"


def test_what_cannot_be_paired_fails_alone_and_says_what_to_do() -> None:
    others = tuple(f"other-{i}" for i in range(len(RIGHT)))
    base = [table(RIGHT, metric="a"), table(RIGHT, metric="b")]
    candidate = [table(RIGHT, metric="a", token_hashes=others), table(RIGHT, metric="b")]
    failed, fine = compare_tables(base, candidate, gate=GATE)
    assert fine.outcome == "unchanged"
    assert failed.outcome == "failed"
    assert failed.reason.startswith("the base run and the candidate run cannot be paired: token")
    assert "--allow-differing tokens" in failed.reason
    allowed, _ = compare_tables(base, candidate, gate=GATE, allow=frozenset({"tokens"}))
    assert allowed.outcome == "unchanged"
    assert any("token ids differ" in caveat for caveat in allowed.caveats)


def test_the_gates_margin_and_confidence_are_used() -> None:
    half = [1.0] * 28 + [0.0] * 12
    strict = Gate(margin=0.01, confidence=0.5)
    (found,) = compare_tables([table(RIGHT)], [table(half)], gate=strict)
    assert found.confidence == 0.5
    assert found.outcome == "regressed"


def test_a_caveat_of_one_side_names_it_and_a_shared_one_does_not() -> None:
    base = table(RIGHT, caveats=("both have this", "cut short"))
    candidate = table(RIGHT, caveats=("both have this", "direction not declared"))
    (found,) = compare_tables([base], [candidate], gate=GATE)
    assert set(found.caveats) >= {
        "both have this", "base: cut short", "candidate: direction not declared"
    }  # fmt: skip


def test_one_document_and_nan_are_failures() -> None:
    (one,) = compare_tables([table([1.0])], [table([0.0])], gate=GATE)
    assert one.outcome == "failed"
    nan = table([*RIGHT[:-1], np.nan], source="model m")
    (none,) = compare_tables([table(RIGHT)], [nan], gate=GATE)
    assert "1 of 40 documents of model m have NaN" in none.reason
